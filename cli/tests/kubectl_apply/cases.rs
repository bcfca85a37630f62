//! The cases.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The directory of the cases.
const CASES: &str = "../compiler/corpus/kubectl-apply";

/// A case.
pub(crate) struct Case {
    path: PathBuf,
    content: Value,
}

/// All cases, sorted by name.
pub(crate) fn all() -> Vec<Case> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(CASES);
    let entries = fs::read_dir(directory).expect("the directory exists");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    paths.sort();
    let content = |path: &PathBuf| fs::read_to_string(path).expect("it is text");
    let case = |path: PathBuf| Case { content: serde_json::from_str(&content(&path)).expect("it is JSON"), path };
    paths.into_iter().map(case).collect()
}

impl Case {
    pub(crate) fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// A part of the case; null if it has none.
    pub(crate) fn part(&self, name: &str) -> &Value {
        &self.content[name]
    }

    /// Writes the record.
    pub(crate) fn record(mut self, live: Value, applied: Value) {
        self.content["live"] = live;
        self.content["applied"] = applied;
        fs::write(self.path, format!("{:#}\n", self.content)).expect("the case can be written");
    }
}
