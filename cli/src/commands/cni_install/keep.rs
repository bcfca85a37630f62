//! `weir cni-install --keep`: keeps `weir-cni` in the chain while other programs write the configuration.
//!
//! Problem: an upgrade or a restart of the cluster's CNI plug-in writes its configuration again, without the entry of
//! `weir-cni`. From then on new pods start without it, and nothing else notices. On a new node there is no
//! configuration at first.
//! Strategy: one loop that looks at everything from the beginning: the lock, the binary, and the chain that the runtime
//! uses now. A message of inotify causes a look at once; a look every [`POLL`] finds changes of which there is no
//! message, as of the binary.
//! Invariants: a configuration that cannot be read or is not complete is left alone, and looked at again. No file is
//! written more often than [`WritePace`] allows. A signal ends the process and leaves the entry: it also comes at each
//! upgrade of the agent, and pods must be held back then. Only an uninstall removes the entry, under the [`lock`] that
//! this process holds until its end.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::chain::{Chain, EntryState};
use super::directory_watch::DirectoryWatch;
use super::lock::{DirectoryLock, lock, release};
use super::pace::WritePace;
use super::plugin::Plugin;
use crate::args::CniInstallArgs;
use crate::failure::{chain, with_hint};
use crate::watch::log::{Log, LogField};

/// The longest time between two looks.
const POLL: Duration = Duration::from_secs(2);
/// The shortest time between two looks, if other programs change files of the directory all the time.
const REST: Duration = Duration::from_millis(100);

pub(super) fn run(arguments: &CniInstallArgs, log: Log) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        // Before anything else: the first process of a container ignores signals without a handler.
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        let mut keeper = Keeper::new(arguments, log)?;
        tokio::select! {
            Err(error) = keeper.keep() => return Err(error),
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        log.info("stopped by a signal: weir-cni stays in the CNI configuration", &[]);
        release(keeper.lock.take(), Ok(()))
    })
}

struct Keeper<'a> {
    directory: &'a Path,
    entry: Value,
    plugin: Plugin,
    lock: Option<DirectoryLock>,
    /// The chain that had the entry at the last look that found one.
    path: Option<PathBuf>,
    plugin_pace: WritePace,
    chain_pace: WritePace,
    /// The condition that was logged last; `None` if it was that the entry is in place.
    logged: Option<String>,
    log: Log,
}

/// The result of a look.
enum LookOutcome {
    /// The binary and the entry are in place.
    InPlace,
    NoConfiguration,
    /// Something has to be written, but not yet.
    WriteIn(Duration),
}

impl<'a> Keeper<'a> {
    fn new(arguments: &'a CniInstallArgs, log: Log) -> Result<Self> {
        Ok(Self {
            directory: &arguments.conf_dir,
            entry: super::entry(arguments),
            plugin: Plugin::new(&arguments.bin_dir)?,
            lock: None,
            path: None,
            plugin_pace: WritePace::default(),
            chain_pace: WritePace::default(),
            logged: Some(String::new()),
            log,
        })
    }

    /// Ends only with an error that a new process may not have.
    async fn keep(&mut self) -> Result<Infallible> {
        // Before the first look, so that no change between the two is missed.
        let watch = self.watch();
        loop {
            self.check_directories()?;
            let pause = self.look_and_log(Instant::now());
            sleep(REST).await;
            watch.wait(pause).await;
        }
    }

    fn watch(&self) -> DirectoryWatch {
        DirectoryWatch::start(self.directory.to_owned(), POLL, REST).unwrap_or_else(|error| {
            let fields = [("error", error.to_string().into()), ("seconds", POLL.as_secs().into())];
            self.log.warn("changes of the CNI configuration cannot be watched; looking at it at intervals", &fields);
            DirectoryWatch::without_inotify()
        })
    }

    /// Fails if one of the directories was removed. In a container, the mount still leads to the removed directory when
    /// there is a new one of this name, and only a new container gets that one.
    fn check_directories(&self) -> Result<()> {
        for directory in [self.directory, self.plugin.directory()] {
            if fs::metadata(directory).is_ok_and(|it| it.nlink() == 0) {
                let what = format!("the directory {} was removed", directory.display());
                return Err(with_hint(what, "start the command again: then it uses the new directory of this name"));
            }
        }
        Ok(())
    }

    /// Looks once, and returns the time until the next look.
    fn look_and_log(&mut self, now: Instant) -> Duration {
        match self.look(now) {
            Ok(LookOutcome::InPlace) => {
                if self.logged.take().is_some() {
                    self.log.info("weir-cni is in the CNI configuration", &self.configuration());
                }
            }
            Ok(LookOutcome::WriteIn(pause)) => return pause.min(POLL),
            Ok(LookOutcome::NoConfiguration) => {
                let message = "there is no CNI configuration: waiting until the cluster's CNI plug-in writes one";
                if self.is_new(message) {
                    self.log.info(message, &[("directory", self.directory.display().to_string().into())]);
                }
            }
            Err(error) => {
                let error = chain(&*error);
                if self.is_new(&error) {
                    let message = "weir-cni is not kept in the CNI configuration; trying again";
                    self.log.warn(message, &[("error", error.into())]);
                }
            }
        }
        POLL
    }

    /// Whether this condition was not the last one that was logged.
    fn is_new(&mut self, condition: &str) -> bool {
        let is_new = self.logged.as_deref() != Some(condition);
        self.logged = Some(condition.to_owned());
        is_new
    }

    fn configuration(&self) -> [LogField<'static>; 1] {
        [("configuration", self.path.as_ref().map(|it| it.display().to_string()).into())]
    }

    fn look(&mut self, now: Instant) -> Result<LookOutcome> {
        if !self.lock.as_ref().is_some_and(|it| it.is_of(self.directory)) {
            self.lock = None;
            self.lock = lock(self.directory)?;
        }
        if self.lock.is_none() {
            return Ok(LookOutcome::NoConfiguration);
        }
        // The chain must not name a plug-in that does not exist.
        if !self.plugin.is_installed()? {
            let wait = self.plugin_pace.wait(now);
            if !wait.is_zero() {
                return Ok(LookOutcome::WriteIn(wait));
            }
            self.install_plugin(now)?;
        }
        let Some(chain) = Chain::first(self.directory)? else { return Ok(LookOutcome::NoConfiguration) };
        let reason = match chain.state(&self.entry)? {
            EntryState::Kept => {
                self.path = Some(chain.path);
                return Ok(LookOutcome::InPlace);
            }
            state => self.reason(&chain.path, state),
        };
        let wait = self.chain_pace.wait(now);
        if !wait.is_zero() {
            return Ok(LookOutcome::WriteIn(wait));
        }
        self.add_entry(chain, reason, now)
    }

    /// Why the entry is not in place, for the log.
    fn reason(&self, path: &Path, state: EntryState) -> &'static str {
        match state {
            _ if self.path.as_deref().is_some_and(|before| before != path) => "this file is the first one now",
            EntryState::Missing if self.path.is_some() => "the file was written again without the entry",
            EntryState::Missing | EntryState::Kept => "the file had no entry",
            EntryState::Different => "the entry had other settings",
            EntryState::First => "the entry was the first in the chain",
        }
    }

    fn install_plugin(&mut self, now: Instant) -> Result<()> {
        self.plugin.install()?;
        self.plugin_pace.record(now);
        let path = self.plugin.path().display().to_string();
        self.log.info("installed the plug-in weir-cni", &[("plugin", path.clone().into())]);
        if self.plugin_pace.is_contested() {
            let message = "another program removes or replaces the plug-in weir-cni again and again";
            self.log.warn(message, &repeated(("plugin", path.into()), &self.plugin_pace));
        }
        Ok(())
    }

    fn add_entry(&mut self, chain: Chain, reason: &'static str, now: Instant) -> Result<LookOutcome> {
        if !chain.replace(&chain.with(&self.entry)?)? {
            // Another process has changed the file since it was read.
            return Ok(LookOutcome::WriteIn(Duration::ZERO));
        }
        self.chain_pace.record(now);
        self.path = Some(chain.path);
        self.logged = None;
        let [configuration] = self.configuration();
        self.log.info("added weir-cni to the CNI configuration", &[configuration.clone(), ("reason", reason.into())]);
        if self.chain_pace.is_contested() {
            let message = "another program removes weir-cni from the CNI configuration again and again: new pods can \
                           start without weir-cni until it is added again";
            self.log.warn(message, &repeated(configuration, &self.chain_pace));
        }
        Ok(LookOutcome::InPlace)
    }
}

/// The fields of a warning about a file that another program writes too.
fn repeated<'f>(file: LogField<'f>, pace: &WritePace) -> [LogField<'f>; 3] {
    [file, ("writes", pace.writes().into()), ("next_write_after_seconds", pace.pause().as_secs().into())]
}
