//! Files that a search of a directory leaves out: `exclude` in `weir.toml`, and `.weirignore`.
//!
//! A file that the user names is always read: only searches of directories and globs leave files out. Each command says
//! how many files it has left out, because an answer without them may be another one.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::config::{self, Config};
use crate::path_pattern::{self, IgnoreRule};

/// The file's name.
pub(crate) const FILE_NAME: &str = ".weirignore";

/// The rules of one file.
#[derive(Clone, Debug)]
struct RuleFile {
    /// The real path of the file's directory. Patterns are relative to it.
    directory: PathBuf,
    rules: Vec<IgnoreRule>,
}

/// The rules that are in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExcludedPaths {
    files: Vec<RuleFile>,
}

impl ExcludedPaths {
    /// The rules of the configuration and of the nearest `.weirignore`.
    pub(crate) fn load(config: &Config) -> Result<Self> {
        let mut files = Vec::new();
        if let Some(path) = config.path.as_deref().filter(|_| !config.exclude.is_empty()) {
            let rules = config.exclude.iter().filter_map(|it| IgnoreRule::parse(it)).collect();
            files.push(RuleFile { directory: directory_of(path)?, rules });
        }
        if let Some(path) = config::find(FILE_NAME)? {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let rules = text.lines().filter_map(IgnoreRule::parse).collect();
            files.push(RuleFile { directory: directory_of(&path)?, rules });
        }
        Ok(Self { files })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether a path below a real directory is excluded.
    pub(crate) fn has(&self, path: &Path, is_directory: bool) -> bool {
        self.files.iter().any(|file| {
            let Ok(below) = path.strip_prefix(&file.directory) else { return false };
            let names: Option<Vec<&str>> = below.iter().map(|name| name.to_str()).collect();
            names.is_some_and(|names| path_pattern::is_excluded(&file.rules, &names, is_directory))
        })
    }
}

fn directory_of(file: &Path) -> Result<PathBuf> {
    let directory = file.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    directory.canonicalize().with_context(|| format!("cannot read {}", directory.display()))
}
