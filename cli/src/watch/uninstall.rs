//! `weir watch --uninstall`: removes everything that an agent has left on this node.
//!
//! Problem: without an agent, policy stays in force, and with `weir-cni` in the chain no new pod starts. Both are right
//! after a crash and wrong after an uninstall, and on the node both look the same.
//! Strategy: only this command ends enforcement. There is no mark that `weir-cni` takes for an uninstall: an attacker, or
//! a crash that leaves the mark behind, would open every new pod. In this order:
//!
//! ```text
//!  take the lock on the pins      fails while an agent runs: it would put everything back
//!  chain: without weir-cni        from here on, new pods start without it
//!  binary of weir-cni             no chain names it any more
//!  programs, links, pins          policy is not enforced any more
//!  sockets
//! ```
//!
//! Invariant: each step can be repeated, so a command that died is repaired by running it again.

pub(crate) mod wait;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use weir_runtime::Error;
use weir_runtime::runtime::{PinAccess, Runtime};

use super::log::{Log, Value};
use crate::commands::cni_install;
use crate::failure::chain;

/// The time between two looks with `--stay`.
const INTERVAL: Duration = Duration::from_secs(5);

/// What to remove.
pub(crate) struct Uninstaller<'o> {
    /// The directory of pins.
    pub(crate) bpffs: &'o Path,
    /// Whether to remove also what `weir attach` attached.
    pub(crate) by_hand_too: bool,
    pub(crate) sockets: Vec<&'o Path>,
    /// The container runtime's directory of plug-ins.
    pub(crate) cni_plugins: &'o Path,
    /// The container runtime's directory of chains.
    pub(crate) cni_chains: &'o Path,
    /// Whether the binary of `weir-cni` stays.
    pub(crate) keep_cni_plugin: bool,
    /// Whether to look again and again, until a signal comes.
    pub(crate) stay: bool,
    pub(crate) log: Log,
}

pub(crate) fn run(uninstaller: &Uninstaller<'_>) -> Result<()> {
    if !uninstaller.stay {
        return uninstaller.uninstall();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        loop {
            if !uninstaller.is_clean()
                && let Err(error) = uninstaller.uninstall()
            {
                uninstaller.log.error("the node is not clean; retrying", &[("error", chain(&*error).into())]);
            }
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    })
}

impl Uninstaller<'_> {
    fn uninstall(&self) -> Result<()> {
        let runtime = match Runtime::open(self.bpffs, PinAccess::Change) {
            // Without a bpf file system, nothing can be pinned.
            Err(Error::NotBpffs { .. }) => Ok(None),
            Err(error @ Error::Locked { .. }) => return Err(error).context("an agent still runs on this node"),
            other => other.map(Some),
        };
        let chains = cni_install::remove_from_chains(self.cni_chains)?;
        if !self.keep_cni_plugin {
            cni_install::remove_plugin(self.cni_plugins)?;
        }
        // Only now: pods start also if the rest cannot be removed.
        let detached = match runtime? {
            Some(runtime) => runtime.uninstall(self.by_hand_too)?.len(),
            None => 0,
        };
        for socket in &self.sockets {
            remove_socket(socket)?;
        }
        let names = chains.iter().map(|it| Value::from(it.display().to_string())).collect::<Vec<_>>();
        let fields = [("endpoints", Value::from(detached)), ("chains", Value::from(names))];
        self.log.info("uninstalled: the agent's policies are not enforced any more", &fields);
        Ok(())
    }

    /// Whether an agent has left nothing. An answer that is not certain is no.
    fn is_clean(&self) -> bool {
        let exists = |path: &Path| std::fs::symlink_metadata(path).is_ok();
        let plugin = !self.keep_cni_plugin && exists(&self.cni_plugins.join(crate::cni::NAME));
        let chains = std::fs::read_dir(self.cni_chains).into_iter().flatten().flatten();
        let is_named = |path: &Path| std::fs::read(path).is_ok_and(|it| contains(&it, crate::cni::NAME.as_bytes()));
        !exists(self.bpffs) && !plugin && !chains.into_iter().any(|entry| is_named(&entry.path()))
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|it| it == part)
}

fn remove_socket(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
