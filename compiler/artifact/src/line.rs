//! Source lines of instructions.

use std::collections::BTreeMap;

use weir_ebpf::asm::Tag;

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLine {
    /// The file as the user named it, or the object.
    pub file: String,
    /// The text of the line, or the field's path.
    pub text: String,
    /// The line's number, from 1; 0 if there is no file.
    pub number: u32,
}

/// The longest text of a line in the object file, in characters.
const LONGEST: usize = 160;
/// Line numbers have 22 bits.
const LARGEST: u32 = (1 << 22) - 1;

impl SourceLine {
    /// A line in the form that loaders accept: ASCII, of limited length. (aya fails on a verifier log that is not
    /// UTF-8, and the log cuts lines at any byte.)
    pub fn new(file: &str, text: &str, number: u32) -> Self {
        let plain = |text: &str| -> String {
            let shown = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
            text.chars().map(shown).take(LONGEST).collect()
        };
        Self { file: plain(file), text: plain(text.trim()), number: number.min(LARGEST) }
    }

    /// The line of instructions that belong to no particular policy.
    pub fn datapath() -> Self {
        Self::new("weir/datapath", "datapath", 1)
    }
}

/// Lines by the tags that instructions carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineTable {
    lines: Vec<SourceLine>,
    tags: BTreeMap<SourceLine, Tag>,
}

impl Default for LineTable {
    fn default() -> Self {
        let mut table = Self { lines: Vec::new(), tags: BTreeMap::new() };
        table.tag(SourceLine::datapath());
        table
    }
}

impl LineTable {
    /// Builds the table of the tags' lines, numbered in the order of their first use, so that a reader of the file gets
    /// the same numbers. `Err` with a tag that has no line.
    pub fn numbered<'t>(
        tags: impl Iterator<Item = &'t mut Vec<Tag>>,
        line: &mut dyn FnMut(Tag) -> Option<SourceLine>,
    ) -> Result<Self, Tag> {
        let mut table = Self::default();
        let mut known: BTreeMap<Tag, Tag> = BTreeMap::new();
        for tag in tags.flatten() {
            *tag = match known.get(tag) {
                Some(known) => *known,
                None => *known.entry(*tag).or_insert(table.tag(line(*tag).ok_or(*tag)?)),
            };
        }
        Ok(table)
    }

    /// The tag of a line. Tag 0, of instructions without a policy line, is [`SourceLine::datapath`].
    pub fn tag(&mut self, line: SourceLine) -> Tag {
        let Self { lines, tags } = self;
        *tags.entry(line).or_insert_with_key(|line| {
            lines.push(line.clone());
            Tag(lines.len() as u32 - 1)
        })
    }

    /// The line of a tag.
    pub fn line(&self, tag: Tag) -> Option<&SourceLine> {
        self.lines.get(tag.0 as usize)
    }
}
