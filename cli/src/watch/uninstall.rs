//! `weir watch --uninstall`: removes everything that an agent has left on this node.
//!
//! Problem: without an agent, policy stays in force, and with `weir-cni` in the chain no new pod starts. Both are right
//! after a crash and wrong after an uninstall, and on the node both look the same.
//! Strategy: only this command ends enforcement. There is no mark that `weir-cni` takes for an uninstall: an attacker, or
//! a crash that leaves the mark behind, would open every new pod. In this order:
//!
//! ```text
//!  take the lock on the pins      fails while an agent runs: it would put everything back
//!  take the lock on the chains    fails while `weir cni-install --keep` runs, for the same reason
//!  chain: without weir-cni        from here on, new pods start without it
//!  binary of weir-cni             no chain names it any more
//!  programs, links, pins          policy is not enforced any more
//!  sockets
//! ```
//!
//! On a cluster, pods of a DaemonSet run it. Such a DaemonSet can be left in place, or be there together with the agents.
//! An agent that has crashed or is being upgraded then looks like one that was uninstalled, so a process that would
//! uninstall whenever the lock is free would open every pod. Three rules prevent this:
//!
//! * The file of `--installed-file` exists while the agents are installed. While it exists, nothing is removed. It is a
//!   ConfigMap of the agents, so this rule also holds for pods that start during an upgrade of the agents.
//! * An agent that runs has `--wait-for-agent` seconds to end. After that, the process removes nothing any more, also if
//!   that agent ends later. It does not exit: its successor would not know about the agent.
//! * `--stay` removes nothing at all. It fails when something of an agent appears, so its pod is not ready.
//!
//! Invariant: each step can be repeated, so a command that died is repaired by running it again.

pub(crate) mod wait;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use weir_runtime::Error;
use weir_runtime::runtime::{PinAccess, Runtime};

use super::log::{Log, Value};
use crate::commands::cni_install::{self, DirectoryIsLocked};
use crate::failure::{chain, with_hint};

/// The time between two looks with `--stay`.
const INTERVAL: Duration = Duration::from_secs(5);
/// The time between two attempts while an agent ends, and between two looks after it has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// With `--wait-for-agent`: how many looks in a row must find the node clean. An agent's pod whose deletion has not
/// reached the node yet may start once more.
const LOOKS: u32 = 5;
/// The time between two messages of a process that removes nothing any more.
const REMINDER: Duration = Duration::from_secs(60);

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
    /// The file that exists while agents are installed.
    pub(crate) installed_file: Option<&'o Path>,
    /// How long a running agent may take to end.
    pub(crate) patience: Duration,
    /// Whether to remove nothing, and to fail when something of an agent appears.
    pub(crate) stay: bool,
    pub(crate) log: Log,
}

pub(crate) fn run(uninstaller: &Uninstaller<'_>) -> Result<()> {
    if !uninstaller.stay && uninstaller.patience.is_zero() {
        return uninstaller.uninstall();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        tokio::select! {
            result = uninstaller.work() => return result,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        ensure!(uninstaller.stay, "stopped by a signal: the node is not clean");
        Ok(())
    })
}

impl Uninstaller<'_> {
    async fn work(&self) -> Result<()> {
        if self.stay { self.watch().await } else { self.uninstall_after_agent().await }
    }

    /// Uninstalls once the agent that runs has ended, and again if something of it appears within [`LOOKS`].
    async fn uninstall_after_agent(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let why = match self.uninstall() {
                Ok(()) => match self.next_leftover().await {
                    None => return Ok(()),
                    Some(path) => format!("{} appeared again", path.display()),
                },
                Err(error) if is_locked(&error) => chain(&*error),
                Err(error) => return Err(error),
            };
            if begun.elapsed() >= self.patience {
                return self.remind(&why).await;
            }
            self.log.warn("waiting until the processes of the agent's pod end", &[("error", why.into())]);
            sleep(PAUSE).await;
        }
    }

    /// The first thing of an agent that appears in the next looks.
    async fn next_leftover(&self) -> Option<PathBuf> {
        for _ in 0..LOOKS {
            sleep(PAUSE).await;
            if let Some(path) = self.leftover() {
                return Some(path);
            }
        }
        None
    }

    /// Removes nothing any more, until a signal comes.
    async fn remind(&self, why: &str) -> Result<()> {
        loop {
            let message = "an agent is installed on this node, so this process removes nothing any more: delete its \
                           DaemonSet, delete the agents, and create it again";
            self.log.error(message, &[("error", why.into())]);
            sleep(REMINDER).await;
        }
    }

    /// Returns when something of an agent appears.
    async fn watch(&self) -> Result<()> {
        loop {
            self.check_not_installed()?;
            if let Some(path) = self.leftover() {
                return Err(with_hint(
                    format!("an agent was installed again after the uninstall: {} is there", path.display()),
                    "if agents are installed, delete this DaemonSet; if not, delete this pod: the next one cleans the node",
                ));
            }
            sleep(INTERVAL).await;
        }
    }

    fn check_not_installed(&self) -> Result<()> {
        match self.installed_file {
            // A path that cannot be read counts as a file that exists.
            Some(path) if !path.try_exists().is_ok_and(|exists| !exists) => Err(with_hint(
                format!("the agents are installed, so nothing is removed: {} exists", path.display()),
                "delete the agents first, or delete this DaemonSet if they should stay",
            )),
            _ => Ok(()),
        }
    }

    fn uninstall(&self) -> Result<()> {
        self.check_not_installed()?;
        let runtime = match Runtime::open(self.bpffs, PinAccess::Change) {
            // Without a bpf file system, nothing can be pinned.
            Err(Error::NotBpffs { .. }) => Ok(None),
            Err(error @ Error::Locked { .. }) => return Err(error).context("an agent still runs on this node"),
            other => other.map(Some),
        };
        // Held to the end: `weir cni-install --keep` would add the entry again.
        let held = cni_install::lock_for_removal(self.cni_chains)?;
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
        cni_install::release(held, Ok(()))?;
        let names = chains.iter().map(|it| Value::from(it.display().to_string())).collect::<Vec<_>>();
        let fields = [("endpoints", Value::from(detached)), ("chains", Value::from(names))];
        self.log.info("uninstalled: the agent's policies are not enforced any more", &fields);
        Ok(())
    }

    /// Something that an agent has left, if there is anything.
    fn leftover(&self) -> Option<PathBuf> {
        let exists = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok();
        let is_named = |path: &PathBuf| std::fs::read(path).is_ok_and(|it| contains(&it, crate::cni::NAME.as_bytes()));
        let plugin = (!self.keep_cni_plugin).then(|| self.cni_plugins.join(crate::cni::NAME));
        let sockets = self.sockets.iter().map(|it| it.to_path_buf());
        let chains = std::fs::read_dir(self.cni_chains).into_iter().flatten().flatten().map(|it| it.path());
        let pins = Some(self.bpffs.to_owned()).filter(|path| exists(path) && self.has_agents_endpoints());
        plugin.into_iter().chain(sockets).filter(exists).chain(chains.filter(is_named)).chain(pins).next()
    }

    /// Whether there are endpoints that an uninstall would remove. An answer that is not certain is yes.
    fn has_agents_endpoints(&self) -> bool {
        match Runtime::open(self.bpffs, PinAccess::Read).and_then(|it| it.attached()) {
            Ok(endpoints) => endpoints.iter().any(|it| self.by_hand_too || it.is_agents()),
            Err(Error::NotBpffs { .. }) => false,
            Err(_) => true,
        }
    }
}

/// Whether a process of an agent's pod still runs: the agent, or the one that keeps `weir-cni` in the chain.
fn is_locked(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Locked { .. })) || error.is::<DirectoryIsLocked>()
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
