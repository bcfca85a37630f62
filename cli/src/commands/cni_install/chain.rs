//! The configurations of a container runtime: which of them it uses, and the entry of `weir-cni` in their chains.
//!
//! Invariants: a reader sees a complete chain at every moment. [`Chain::replace`] leaves a file alone that another
//! process has changed since it was read, so it does not undo that change.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::cni;
use crate::failure::with_hint;
use crate::output_file;

/// The end of the name of a file that is not finished.
const UNFINISHED: &str = ".weir";
/// How often a chain is read again if another process changes it at the same time.
const MOST_TRIES: usize = 10;

/// A configuration with a list of plug-ins.
pub(super) struct Chain {
    pub(super) path: PathBuf,
    text: String,
}

/// The entry of `weir-cni` in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// It is there, behind at least one other plug-in. It need not be the last one: other chained plug-ins add
    /// themselves at the end too, and two installers that both insist on the last place would never stop writing.
    Kept,
    Missing,
    /// It has other settings, or there are several.
    Different,
    /// No plug-in before it makes an interface.
    First,
}

impl Chain {
    /// The chain that the runtime uses: the first by name. `None` if the directory has no configuration.
    pub(super) fn first(directory: &Path) -> Result<Option<Self>> {
        let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
        let paths = entries.flatten().map(|entry| entry.path());
        let is_read = |path: &PathBuf| {
            let is_named = path.extension().is_some_and(|it| it == "conflist" || it == "conf" || it == "json");
            is_named && !path.is_dir()
        };
        let Some(path) = paths.filter(is_read).min() else { return Ok(None) };
        if path.extension().is_some_and(|it| it == "conflist") {
            let text = read(&path)?;
            return Ok(Some(Self { path, text }));
        }
        let hint = "convert it to a .conflist: {\"cniVersion\": …, \"name\": …, \"plugins\": [ … ]}";
        Err(with_hint(format!("{} configures a single plug-in and has no chain", path.display()), hint))
    }

    pub(super) fn state(&self, entry: &Value) -> Result<EntryState> {
        let chain = parse(&self.text, &self.path)?;
        let plugins = chain["plugins"].as_array().with_context(|| no_plugins(&self.path))?;
        let mut own = plugins.iter().enumerate().filter(|(_, plugin)| is_own(plugin));
        Ok(match (own.next(), own.next()) {
            (None, _) => EntryState::Missing,
            (Some((0, _)), _) => EntryState::First,
            (Some((_, it)), None) if it == entry => EntryState::Kept,
            _ => EntryState::Different,
        })
    }

    /// The chain's text with the entry at its end.
    pub(super) fn with(&self, entry: &Value) -> Result<String> {
        Ok(with(&self.text, &self.path, entry)?.unwrap_or_else(|| self.text.clone()))
    }

    /// Replaces the file, unless another process has changed it since it was read. Returns whether it was replaced.
    pub(super) fn replace(&self, text: &str) -> Result<bool> {
        let unfinished = write_beside(&self.path, text.as_bytes(), mode_of(&self.path))?;
        // The other process can still write between this check and the renaming. No system call makes both one step.
        let is_unchanged = read(&self.path).is_ok_and(|now| now == self.text);
        if is_unchanged {
            finish(&unfinished, &self.path)?;
        } else {
            remove_file(&unfinished)?;
        }
        Ok(is_unchanged)
    }
}

/// Removes `weir-cni` from every chain of a directory, and returns the chains that had it. A chain that was the first
/// one when `weir-cni` was added may be another one now. A directory that does not exist has no chains.
pub(crate) fn remove_from_chains(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    for path in files(directory)? {
        if is_unfinished(&path, ".conflist") {
            remove_file(&path)?;
        } else if path.extension().is_some_and(|it| it == "conflist") {
            changed.extend(remove_from(path)?);
        }
    }
    Ok(changed)
}

/// Removes `weir-cni` from a chain; returns the path if the chain had it.
fn remove_from(path: PathBuf) -> Result<Option<PathBuf>> {
    for _ in 0..MOST_TRIES {
        let chain = Chain { text: read(&path)?, path: path.clone() };
        // A file without the name has no such entry, even if it is not valid.
        let has_name = chain.text.contains(cni::NAME);
        let Some(without) = has_name.then(|| without(&chain.text, &path)).transpose()?.flatten() else {
            return Ok(None);
        };
        if chain.replace(&without)? {
            return Ok(Some(path));
        }
    }
    anyhow::bail!("another process changes {} again and again", path.display())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Whether [`write`] left this file: its process died.
pub(super) fn is_unfinished(path: &Path, end: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix('.').and_then(|it| it.strip_suffix(UNFINISHED)).is_some_and(|it| it.ends_with(end))
}

/// The files of a directory; none if it does not exist.
pub(super) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn is_own(plugin: &Value) -> bool {
    plugin["type"] == cni::NAME
}

fn with(text: &str, path: &Path, entry: &Value) -> Result<Option<String>> {
    changed(text, path, |plugins| {
        plugins.retain(|plugin| !is_own(plugin));
        ensure!(!plugins.is_empty(), "{} has no plug-in that makes interfaces", path.display());
        plugins.push(entry.clone());
        Ok(())
    })
}

fn without(text: &str, path: &Path) -> Result<Option<String>> {
    changed(text, path, |plugins| {
        plugins.retain(|plugin| !is_own(plugin));
        Ok(())
    })
}

fn changed(text: &str, path: &Path, change: impl FnOnce(&mut Vec<Value>) -> Result<()>) -> Result<Option<String>> {
    let before = parse(text, path)?;
    let mut after = before.clone();
    let plugins = after.get_mut("plugins").and_then(Value::as_array_mut);
    change(plugins.with_context(|| no_plugins(path))?)?;
    if after == before { Ok(None) } else { Ok(Some(serde_json::to_string_pretty(&after)? + "\n")) }
}

fn parse(text: &str, path: &Path) -> Result<Value> {
    serde_json::from_str(text).with_context(|| format!("{} is not JSON", path.display()))
}

fn no_plugins(path: &Path) -> String {
    format!("{} has no list of plugins", path.display())
}

/// The permissions of a chain: it may be one that only root may read.
fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o600, |it| it.permissions().mode() & 0o777)
}

/// Writes a file atomically.
pub(super) fn write(path: &Path, contents: impl std::io::Read, mode: u32) -> Result<()> {
    finish(&write_beside(path, contents, mode)?, path)
}

/// Writes a file that is to replace another one. It has a name that container runtimes do not read.
fn write_beside(path: &Path, contents: impl std::io::Read, mode: u32) -> Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}{UNFINISHED}"));
    remove_file(&beside)?;
    let written = output_file::write_with_permissions(&beside, contents, fs::Permissions::from_mode(mode));
    written.and_then(|()| sync(&beside)).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(beside)
}

fn finish(unfinished: &Path, path: &Path) -> Result<()> {
    let renamed = fs::rename(unfinished, path).and_then(|()| path.parent().map_or(Ok(()), sync));
    renamed.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file or directory to the disk. Otherwise, after a loss of power, some file systems have an empty file under
/// the new name, and the node has no CNI configuration.
fn sync(path: &Path) -> std::io::Result<()> {
    fs::File::open(path)?.sync_all()
}

/// Removes a file if it exists.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_testing::files::Directory;

    use super::*;

    const CHAIN: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"},{"type":"portmap"}]}"#;

    fn types(text: &str) -> Vec<String> {
        let chain: Value = serde_json::from_str(text).expect("JSON");
        let plugins = chain["plugins"].as_array().expect("plugins").iter();
        plugins.map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn weir_cni_is_added_once_at_the_end_of_the_chain() {
        let path = Path::new("10-net.conflist");
        let entry = json!({"type": cni::NAME, "timeoutSeconds": 15});
        let once = with(CHAIN, path, &entry).expect("a chain").expect("it changes");
        assert_eq!(types(&once), ["bridge", "portmap", "weir-cni"]);
        assert_eq!(with(&once, path, &entry).expect("a chain"), None, "it is so already");
        let other = with(&once, path, &json!({"type": cni::NAME})).expect("a chain").expect("it changes");
        assert_eq!(types(&other), ["bridge", "portmap", "weir-cni"]);
        assert_eq!(types(&without(&once, path).expect("a chain").expect("it changes")), ["bridge", "portmap"]);
        assert_eq!(without(CHAIN, path).expect("a chain"), None);
        assert!(with("{}", path, &entry).is_err());
        assert!(with(r#"{"plugins":[{"type":"weir-cni"}]}"#, path, &entry).is_err(), "no plug-in makes an interface");
    }

    #[test]
    fn entry_is_kept_behind_any_other_plugin() {
        let entry = json!({"type": cni::NAME, "timeoutSeconds": 15});
        let other = json!({"type": cni::NAME, "timeoutSeconds": 20});
        let (bridge, mesh) = (json!({"type": "bridge"}), json!({"type": "mesh-cni"}));
        let state = |plugins: &[&Value]| {
            let text = json!({"plugins": plugins}).to_string();
            Chain { path: "10-net.conflist".into(), text }.state(&entry).expect("a chain")
        };
        assert_eq!(state(&[&bridge, &entry]), EntryState::Kept);
        assert_eq!(state(&[&bridge, &entry, &mesh]), EntryState::Kept);
        assert_eq!(state(&[&bridge, &mesh]), EntryState::Missing);
        assert_eq!(state(&[&bridge, &other]), EntryState::Different);
        assert_eq!(state(&[&bridge, &entry, &entry]), EntryState::Different);
        assert_eq!(state(&[&entry, &bridge]), EntryState::First);
    }

    /// A directory with one chain that has these permissions.
    fn chain_with_mode(directory: &Directory, mode: u32) -> Chain {
        let path = directory.0.join("10-net.conflist");
        fs::write(&path, CHAIN).expect("the directory is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        Chain::first(&directory.0).expect("it can be read").expect("it is there")
    }

    #[test]
    fn a_chain_keeps_its_permissions() {
        let directory = Directory::new("chain-permissions");
        for mode in [0o600, 0o640] {
            let chain = chain_with_mode(&directory, mode);
            assert!(chain.replace("{}").expect("it is ours"));
            let now = fs::metadata(&chain.path).expect("it is there").permissions().mode() & 0o777;
            assert_eq!((now, read(&chain.path).expect("it is ours").as_str()), (mode, "{}"));
        }
    }

    #[test]
    fn change_of_another_process_is_not_overwritten() {
        let directory = Directory::new("chain-changed");
        let chain = chain_with_mode(&directory, 0o600);
        fs::write(&chain.path, "new").expect("it is ours");
        assert!(!chain.replace("{}").expect("it is ours"));
        assert_eq!(read(&chain.path).expect("it is ours"), "new");
        assert_eq!(files(&directory.0).expect("it is there"), [chain.path], "no unfinished file is left");
    }
}
