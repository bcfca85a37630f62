//! The cases, and the form in which answers are recorded.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// The directory of the cases.
const CASES: &str = "../compiler/corpus/cluster-policies";

/// A case.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) path: PathBuf,
    /// The whole file, comments included.
    pub(crate) text: String,
}

/// The decision about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepts,
    /// The fields that are wrong. An empty path is the object itself. Without any field if the text of the answer names
    /// none.
    Refuses(BTreeSet<String>),
}

/// All cases, sorted by name.
pub(crate) fn all() -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(CASES);
    let mut cases: Vec<Case> = fs::read_dir(directory)
        .expect("the directory exists")
        .map(|entry| entry.expect("it can be read").path())
        .map(|path| Case { text: fs::read_to_string(&path).expect("it is text"), path })
        .collect();
    cases.sort_by(|a, b| a.path.cmp(&b.path));
    cases
}

impl Case {
    pub(crate) fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The object without the comments in front of it. Some cases are JSON, because the server tells the field of a
    /// duplicate key only in JSON.
    pub(crate) fn object(&self) -> String {
        let lines = self.text.lines().skip_while(|line| line.starts_with('#'));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// A recorded answer: of the server with the definitions of a channel, or, as `weir`, Weir's where it differs.
    pub(crate) fn recorded(&self, of: &str) -> Option<Answer> {
        Answer::parse(self.comment(of)?)
    }

    /// Why Weir's answer differs.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.comment("because")
    }

    fn comment(&self, name: &str) -> Option<&str> {
        let comments = self.text.lines().map_while(|line| line.strip_prefix("# "));
        comments.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).next()
    }

    /// Writes the server's answers into the file.
    pub(crate) fn record(&self, answers: &[(&str, Answer)]) {
        let is_answer = |line: &str| answers.iter().any(|(channel, _)| line.starts_with(&format!("# {channel}: ")));
        let (comments, object): (Vec<&str>, Vec<&str>) = self.text.lines().partition(|line| line.starts_with('#'));
        let mut text = String::new();
        for line in comments.into_iter().filter(|line| !is_answer(line)) {
            text += &format!("{line}\n");
        }
        for (channel, answer) in answers {
            text += &format!("# {channel}: {answer}\n");
        }
        object.into_iter().for_each(|line| text += &format!("{line}\n"));
        fs::write(&self.path, text).expect("the case can be written");
    }
}

impl Answer {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once(' ').unwrap_or((text, "")) {
            ("accepts", "") => Some(Self::Accepts),
            ("refuses", "without naming a field") => Some(Self::Refuses(BTreeSet::new())),
            ("refuses", fields) => Some(Self::Refuses(paths(fields))),
            _ => None,
        }
    }
}

/// The inverse of `Answer`'s display.
fn paths(text: &str) -> BTreeSet<String> {
    text.split(", ").map(|path| path.replace("the object", "")).collect()
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepts => f.write_str("accepts"),
            Self::Refuses(fields) if fields.is_empty() => f.write_str("refuses without naming a field"),
            Self::Refuses(fields) => {
                let names: Vec<&str> = fields.iter().map(|it| if it.is_empty() { "the object" } else { it }).collect();
                write!(f, "refuses {}", names.join(", "))
            }
        }
    }
}
