//! `weir cni-install`: installs `weir-cni` in the container runtime's plug-in directory, and appends it to the
//! runtime's chain; once, or for as long as the command runs ([`keep`]).
//!
//! Invariants: at every moment the chain is complete and names only plug-ins that exist, because files are replaced
//! atomically, and the binary is installed before its entry. Only the holder of the lock on the directory of
//! configurations adds or removes an entry ([`lock`]).

mod chain;
mod directory_watch;
mod keep;
mod lock;
mod pace;
mod plugin;

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::CommandOutcome;
use super::watch::start_log;
use crate::args::CniInstallArgs;
use crate::cni;
use crate::failure::with_hint;
use crate::page;
use crate::watch::log::Log;
use chain::{Chain, EntryState};
use plugin::Plugin;

pub(crate) use chain::remove_from_chains;
use lock::lock;
pub(crate) use lock::{DirectoryIsLocked, lock_for_removal, release};
pub(crate) use plugin::remove as remove_plugin;

pub(crate) fn run(arguments: &CniInstallArgs) -> Result<CommandOutcome> {
    let mode = &arguments.mode;
    if mode.keep {
        start_log(&arguments.logging)?;
        keep::run(arguments, Log)?;
    } else if mode.check {
        return check(arguments);
    } else if mode.remove {
        remove(arguments)?;
    } else {
        install(arguments)?;
    }
    Ok(CommandOutcome::Clean)
}

fn install(arguments: &CniInstallArgs) -> Result<()> {
    let held = lock(&arguments.conf_dir)?;
    release(held, install_with_lock(arguments))
}

fn install_with_lock(arguments: &CniInstallArgs) -> Result<()> {
    let chain = Chain::first(&arguments.conf_dir)?.ok_or_else(|| no_chain(&arguments.conf_dir))?;
    let with_entry = match chain.state(&entry(arguments))? {
        EntryState::Kept => None,
        EntryState::Missing | EntryState::Different | EntryState::First => Some(chain.with(&entry(arguments))?),
    };
    let mut plugin = Plugin::new(&arguments.bin_dir)?;
    if !plugin.is_installed()? {
        plugin.install()?;
    }
    if let Some(text) = with_entry {
        let hint = "run the command again";
        let path = chain.path.display();
        ensure!(chain.replace(&text)?, with_hint(format!("another process changed {path} at the same time"), hint));
    }
    let (plugin, path) = (plugin.path().display(), chain.path.display());
    page::print(format_args!("{path} has weir-cni, and {plugin} is installed"))
}

fn remove(arguments: &CniInstallArgs) -> Result<()> {
    let held = lock_for_removal(&arguments.conf_dir)?;
    let removed = remove_from_chains(&arguments.conf_dir);
    let chains = removed.and_then(|chains| remove_plugin(&arguments.bin_dir).map(|()| chains));
    let chains = release(held, chains)?;
    if chains.is_empty() {
        page::print(format_args!("no chain in {} has weir-cni", arguments.conf_dir.display()))?;
    }
    chains.iter().try_for_each(|chain| page::print(format_args!("removed weir-cni from {}", chain.display())))
}

/// Whether the chain that the runtime uses has the plug-in, and the plug-in exists.
fn check(arguments: &CniInstallArgs) -> Result<CommandOutcome> {
    let plugin = arguments.bin_dir.join(cni::NAME);
    let chain = if arguments.conf_dir.exists() { Chain::first(&arguments.conf_dir)? } else { None };
    let Some(chain) = chain else {
        page::print(format_args!("{}", no_chain(&arguments.conf_dir)))?;
        return Ok(CommandOutcome::Findings);
    };
    let path = chain.path.display();
    let is_installed = plugin.try_exists().with_context(|| format!("cannot read {}", plugin.display()))?;
    let (outcome, text) = match chain.state(&entry(arguments))? {
        EntryState::Missing => (CommandOutcome::Findings, format!("{path} has no entry of weir-cni")),
        EntryState::First => (CommandOutcome::Findings, format!("weir-cni is the first plug-in of {path}")),
        _ if !is_installed => (CommandOutcome::Findings, format!("{} does not exist", plugin.display())),
        EntryState::Kept | EntryState::Different => (CommandOutcome::Clean, format!("{path} has weir-cni")),
    };
    page::print(format_args!("{text}"))?;
    Ok(outcome)
}

fn no_chain(directory: &Path) -> anyhow::Error {
    let hint = "the cluster's own CNI plug-in comes first; weir-cni is added to its chain";
    with_hint(format!("there is no CNI configuration in {}", directory.display()), hint)
}

/// The entry in the chain.
fn entry(arguments: &CniInstallArgs) -> Value {
    json!({
        "type": cni::NAME, "socket": arguments.socket, "bpffs": arguments.pinned.bpffs,
        "timeoutSeconds": arguments.timeout, "onTimeout": arguments.on_timeout.name(),
    })
}
