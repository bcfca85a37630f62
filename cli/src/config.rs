//! `weir.toml`: the same choices as on the command line, kept beside the policies.
//!
//! Found in the current directory or the nearest parent that has one, no further than the repository's root. Without a
//! repository, only the current directory counts: others may be able to write to its parents. A key that does not exist
//! is an error with its line and the nearest key that does: a mistyped lint must not stay on.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use weir_policy::similar_name::most_similar;

use crate::failure::with_hint;
use crate::lints::LintLevel;

/// The file's name.
pub(crate) const FILE_NAME: &str = "weir.toml";

const KEYS: [&str; 5] = ["lints", "assume", "namespace", "ignore-kinds", "exclude"];

/// The contents of a `weir.toml`. Codes and assumptions are checked where they are used.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// The file's path; `None` without a file.
    pub(crate) path: Option<PathBuf>,
    /// `namespace`
    pub(crate) namespace: Option<String>,
    /// `[lints]`
    pub(crate) lints: Vec<(String, LintLevel)>,
    /// `[assume]`
    pub(crate) assume: Vec<(String, String)>,
    /// `ignore-kinds`
    pub(crate) ignore_kinds: Vec<String>,
    /// `exclude`
    pub(crate) exclude: Vec<String>,
}

/// Reads the named file, else the nearest one. Without a file, nothing is configured.
pub(crate) fn load(named: Option<&Path>) -> Result<Config> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => match find(FILE_NAME)? {
            Some(path) => path,
            None => return Ok(Config::default()),
        },
    };
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut config = parse(&text, &path.display().to_string())?;
    config.path = Some(path);
    Ok(config)
}

/// The nearest file of this name: in the current directory or a parent, up to the repository's root. Outside of a
/// repository, only in the current directory.
pub(crate) fn find(name: &str) -> Result<Option<PathBuf>> {
    let Ok(start) = std::env::current_dir() else { return Ok(None) };
    let root = start.ancestors().find(|it| it.join(".git").exists()).unwrap_or(&start);
    for directory in start.ancestors().take_while(|it| it.starts_with(root)) {
        let candidate = directory.join(name);
        if candidate.is_file() {
            stays_in_repository(&candidate, directory)?;
            return Ok(Some(candidate));
        }
    }
    Ok(None)
}

/// A link in a repository must not make us read any file of this machine and print parts of it in an error.
fn stays_in_repository(file: &Path, directory: &Path) -> Result<()> {
    let root = directory.ancestors().find(|it| it.join(".git").exists()).unwrap_or(directory);
    let real = |path: &Path| path.canonicalize().with_context(|| format!("cannot read {}", path.display()));
    if real(file)?.starts_with(real(root)?) {
        return Ok(());
    }
    Err(with_hint(
        format!("{} is a symbolic link that leads out of {}", file.display(), root.display()),
        "a link that leads out of the repository is not followed; a `weir.toml` can be named with --config",
    ))
}

struct ConfigParser<'t> {
    text: &'t str,
    name: &'t str,
}

fn parse(text: &str, name: &str) -> Result<Config> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        with_hint(format!("{name}:{line}: {}", error.message()), "it is read as TOML 1.0")
    })?;
    ConfigParser { text, name }.config(table.get_ref())
}

impl ConfigParser<'_> {
    fn config(&self, table: &DeTable<'_>) -> Result<Config> {
        let mut config = Config::default();
        for (key, value) in in_order(table) {
            match key.get_ref().as_ref() {
                "lints" => config.lints = self.lints(self.table(value, "lints")?)?,
                "assume" => config.assume = self.assume(self.table(value, "assume")?)?,
                "namespace" => config.namespace = Some(self.string(value, "namespace")?),
                "ignore-kinds" => config.ignore_kinds = self.strings(value, "ignore-kinds", "GROUP/KIND")?,
                "exclude" => config.exclude = self.strings(value, "exclude", "PATTERN")?,
                other => return Err(self.unknown_key(other, key.span().start)),
            }
        }
        Ok(config)
    }

    fn lints(&self, table: &DeTable<'_>) -> Result<Vec<(String, LintLevel)>> {
        let level = |code: &str, value: &Spanned<DeValue<'_>>| {
            let word = self.string(value, code)?;
            LintLevel::parse(&word).ok_or_else(|| {
                let hint = format!("a level is one of: {}", LintLevel::WORDS.join(", "));
                with_hint(format!("{}: `{word}` is not a level", self.place(value.span().start)), hint)
            })
        };
        in_order(table).map(|(key, value)| Ok((key.get_ref().to_string(), level(key.get_ref(), value)?))).collect()
    }

    fn assume(&self, table: &DeTable<'_>) -> Result<Vec<(String, String)>> {
        in_order(table)
            .map(|(key, value)| Ok((key.get_ref().to_string(), self.string(value, key.get_ref())?)))
            .collect()
    }

    fn table<'v, 't>(&self, value: &'v Spanned<DeValue<'t>>, key: &str) -> Result<&'v DeTable<'t>> {
        let place = self.place(value.span().start);
        value.get_ref().as_table().ok_or_else(|| {
            with_hint(format!("{place}: `{key}` is not a table"), format!("write it as a section: [{key}]"))
        })
    }

    fn string(&self, value: &Spanned<DeValue<'_>>, key: &str) -> Result<String> {
        let place = self.place(value.span().start);
        let text = value.get_ref().as_str().map(ToOwned::to_owned);
        text.ok_or_else(|| with_hint(format!("{place}: `{key}` is not a string"), "put the value in quotes"))
    }

    fn strings(&self, value: &Spanned<DeValue<'_>>, key: &str, item: &str) -> Result<Vec<String>> {
        let place = self.place(value.span().start);
        let items = value.get_ref().as_array().ok_or_else(|| {
            with_hint(format!("{place}: `{key}` is not a list"), format!("write {key} = [\"{item}\"]"))
        })?;
        items.iter().map(|value| self.string(value, key)).collect()
    }

    fn unknown_key(&self, key: &str, offset: usize) -> anyhow::Error {
        let hint = match most_similar(key, KEYS) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the keys are: {}", KEYS.join(", ")),
        };
        with_hint(format!("{}: unknown key `{key}`", self.place(offset)), hint)
    }

    fn place(&self, offset: usize) -> String {
        format!("{}:{}", self.name, line_of(self.text, offset))
    }
}

/// The entries in the order of the file.
fn in_order<'v, 't>(
    table: &'v DeTable<'t>,
) -> impl Iterator<Item = (&'v Spanned<toml::de::DeString<'t>>, &'v Spanned<DeValue<'t>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries.into_iter()
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use weir_objects::diagnostic::Severity;

    use super::*;

    #[track_caller]
    fn check_error(text: &str, expected: &str) {
        let page = crate::failure::page(&parse(text, FILE_NAME).expect_err("refused"));
        assert!(page.as_str().contains(expected), "{}", page.as_str());
    }

    #[test]
    fn all_keys_are_read() {
        let text = "namespace = \"shop\"\n[lints]\nb = \"off\"\na = \"error\"\n[assume]\nicmp = \"allow\"\n";
        let text = format!("ignore-kinds = [\"cilium.io/CiliumNetworkPolicy\"]\n{text}");
        let config = parse(&text, FILE_NAME).expect("valid");
        assert_eq!(config.namespace.as_deref(), Some("shop"));
        assert_eq!(config.lints, [("b".to_owned(), LintLevel::Off), ("a".to_owned(), LintLevel::At(Severity::Error))]);
        assert_eq!(config.ignore_kinds, ["cilium.io/CiliumNetworkPolicy"]);
        assert_eq!(config.assume, [("icmp".to_owned(), "allow".to_owned())]);
    }

    #[test]
    fn a_mistyped_key_names_its_line_and_the_nearest() {
        check_error("\n[lint]\na = \"off\"\n", "weir.toml:2: unknown key `lint`");
        check_error("[lint]\n", "did you mean `lints`?");
    }

    #[test]
    fn a_level_that_does_not_exist_is_refused() {
        check_error("[lints]\na = \"silent\"\n", "weir.toml:2: `silent` is not a level");
        check_error("[lints]\na = 3\n", "weir.toml:2: `a` is not a string");
    }

    #[test]
    fn ignored_kinds_are_a_list_of_strings() {
        check_error("ignore-kinds = \"a/B\"\n", "weir.toml:1: `ignore-kinds` is not a list");
        check_error("ignore-kinds = [\n  1]\n", "weir.toml:2: `ignore-kinds` is not a string");
    }

    #[test]
    fn broken_toml_names_its_line() {
        check_error("namespace = \"shop\"\n[lints\n", "weir.toml:2:");
    }
}
