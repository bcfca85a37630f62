//! `weir cni-install`: installs `weir-cni` in the container runtime's plug-in directory, and appends it to the
//! runtime's chain.
//!
//! Invariant: at every moment the chain is complete and names only plug-ins that exist, because files are replaced
//! atomically.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::CommandOutcome;
use crate::args::CniInstallArgs;
use crate::cni;
use crate::failure::with_hint;
use crate::output_file;
use crate::page;

/// The end of the name of a file that is not finished.
const UNFINISHED: &str = ".weir";

pub(crate) fn run(arguments: &CniInstallArgs) -> Result<CommandOutcome> {
    if arguments.remove {
        let chains = remove_from_chains(&arguments.conf_dir)?;
        remove_plugin(&arguments.bin_dir)?;
        if chains.is_empty() {
            page::print(format_args!("no chain in {} has weir-cni", arguments.conf_dir.display()))?;
        }
        for chain in chains {
            page::print(format_args!("removed weir-cni from {}", chain.display()))?;
        }
        return Ok(CommandOutcome::Clean);
    }
    let plugin = arguments.bin_dir.join(cni::NAME);
    let path = chain(&arguments.conf_dir)?;
    let text = read(&path)?;
    let this = std::env::current_exe().context("cannot find this binary")?;
    let binary = fs::read(&this).with_context(|| format!("cannot read {}", this.display()))?;
    write(&plugin, &binary, 0o755)?;
    replace(&path, with(&text, &path, &entry(arguments))?.as_ref())?;
    page::print(format_args!("{} is the last plug-in of {}", plugin.display(), path.display()))?;
    Ok(CommandOutcome::Clean)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Removes `weir-cni` from every chain of a directory, and returns the chains that had it. A chain that was the first
/// one when `weir-cni` was added may be another one now. A directory that does not exist has no chains.
pub(crate) fn remove_from_chains(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    for path in files(directory)? {
        if is_unfinished(&path, ".conflist") {
            remove(&path)?;
        } else if path.extension().is_some_and(|it| it == "conflist") {
            let text = read(&path)?;
            // A file without the name has no such entry, even if it is not valid.
            let without = text.contains(cni::NAME).then(|| without(&text, &path)).transpose()?.flatten();
            if let Some(without) = without {
                write(&path, without.as_bytes(), mode_of(&path))?;
                changed.push(path);
            }
        }
    }
    Ok(changed)
}

/// Removes the plug-in, and a copy of it that was not finished.
pub(crate) fn remove_plugin(directory: &Path) -> Result<()> {
    for path in files(directory)?.iter().filter(|path| is_unfinished(path, cni::NAME)) {
        remove(path)?;
    }
    remove(&directory.join(cni::NAME))
}

/// Whether [`write`] left this file: its process died.
fn is_unfinished(path: &Path, end: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix('.').and_then(|it| it.strip_suffix(UNFINISHED)).is_some_and(|it| it.ends_with(end))
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", directory.display()))?,
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn entry(arguments: &CniInstallArgs) -> Value {
    json!({
        "type": cni::NAME, "socket": arguments.socket, "bpffs": arguments.pinned.bpffs,
        "timeoutSeconds": arguments.timeout, "onTimeout": arguments.on_timeout.name(),
    })
}

/// The chain that the runtime uses: the first by name.
fn chain(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let is_read = |path: &PathBuf| path.extension().is_some_and(|it| it == "conflist" || it == "conf" || it == "json");
    let first = paths.filter(is_read).min();
    let hint = "the cluster's own CNI plug-in comes first; weir-cni is added to its chain";
    let first =
        first.ok_or_else(|| with_hint(format!("there is no CNI configuration in {}", directory.display()), hint))?;
    if first.extension().is_some_and(|it| it == "conflist") {
        return Ok(first);
    }
    let hint = "convert it to a .conflist: {\"cniVersion\": …, \"name\": …, \"plugins\": [ … ]}";
    Err(with_hint(format!("{} configures a single plug-in and has no chain", first.display()), hint))
}

/// The chain with the entry at its end; `None` if it is there already.
fn with(text: &str, path: &Path, entry: &Value) -> Result<Option<String>> {
    changed(text, path, |plugins| {
        plugins.retain(|plugin| plugin["type"] != cni::NAME);
        plugins.push(entry.clone());
    })
}

fn without(text: &str, path: &Path) -> Result<Option<String>> {
    changed(text, path, |plugins| plugins.retain(|plugin| plugin["type"] != cni::NAME))
}

fn changed(text: &str, path: &Path, change: impl FnOnce(&mut Vec<Value>)) -> Result<Option<String>> {
    let before: Value = serde_json::from_str(text).with_context(|| format!("{} is not JSON", path.display()))?;
    let mut after = before.clone();
    let plugins = after.get_mut("plugins").and_then(Value::as_array_mut);
    change(plugins.with_context(|| format!("{} has no list of plugins", path.display()))?);
    if after == before { Ok(None) } else { Ok(Some(serde_json::to_string_pretty(&after)? + "\n")) }
}

fn replace(path: &Path, text: Option<&String>) -> Result<()> {
    text.map_or(Ok(()), |text| write(path, text.as_bytes(), mode_of(path)))
}

/// The permissions of a chain: it may be one that only root may read.
fn mode_of(path: &Path) -> u32 {
    fs::metadata(path).map_or(0o600, |it| it.permissions().mode() & 0o777)
}

/// Writes a file atomically. The unfinished file has a name that container runtimes do not read.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}{UNFINISHED}"));
    remove(&beside)?;
    let written = output_file::write_with_permissions(&beside, bytes, fs::Permissions::from_mode(mode))
        .and_then(|()| fs::rename(&beside, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn a_chain_keeps_its_permissions() {
        let directory = weir_testing::files::Directory::new("chain-permissions");
        let path = directory.0.join("10-net.conflist");
        for mode in [0o600, 0o640] {
            fs::write(&path, CHAIN).expect("the directory is ours");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
            replace(&path, Some(&"{}".to_owned())).expect("it is ours");
            let now = fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
            assert_eq!((now, fs::read_to_string(&path).expect("it is ours").as_str()), (mode, "{}"));
        }
    }
}
