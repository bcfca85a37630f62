//! Lines of source that instructions came from.

use std::collections::BTreeMap;

use crate::ebpf::asm::Tag;

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The file as the user named it, or the object.
    pub file: String,
    /// The line itself, or the field.
    pub text: String,
    /// Its number, from 1; 0 where there is no file.
    pub number: u32,
}

/// The longest text of a line in the object file, in characters.
const LONGEST: usize = 160;
/// Line numbers have 22 bits.
const LARGEST: u32 = (1 << 22) - 1;

impl Line {
    /// A line in the form that loaders take: ASCII, of limited length (aya stops at a verifier's log that is no UTF-8, and the log
    /// cuts lines where it likes).
    pub fn new(file: &str, text: &str, number: u32) -> Self {
        let plain = |text: &str| -> String {
            let shown = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
            text.chars().map(shown).take(LONGEST).collect()
        };
        Self { file: plain(file), text: plain(text.trim()), number: number.min(LARGEST) }
    }

    /// What instructions come from that serve no policy in particular.
    pub fn datapath() -> Self {
        Self::new("weir/datapath", "datapath", 1)
    }
}

/// Lines by the tags that instructions carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineTable {
    lines: Vec<Line>,
    tags: BTreeMap<Line, Tag>,
}

impl Default for LineTable {
    fn default() -> Self {
        let mut table = Self { lines: Vec::new(), tags: BTreeMap::new() };
        table.tag(Line::datapath());
        table
    }
}

impl LineTable {
    /// The tag of a line. Tag 0, the one of instructions that nobody marked, is [`Line::datapath`].
    pub fn tag(&mut self, line: Line) -> Tag {
        let Self { lines, tags } = self;
        *tags.entry(line).or_insert_with_key(|line| {
            lines.push(line.clone());
            Tag(lines.len() as u32 - 1)
        })
    }

    /// The line of a tag.
    pub fn line(&self, tag: Tag) -> Option<&Line> {
        self.lines.get(tag.0 as usize)
    }
}
