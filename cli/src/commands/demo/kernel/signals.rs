//! Signals that end the demo. They are only noted, because a demo that ends at once could not remove its namespaces.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The error of a demo that a signal has ended.
#[derive(Debug)]
pub(super) struct Stopped;

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stopped by a signal; everything that the demo had made is removed")
    }
}

impl std::error::Error for Stopped {}

/// The note that a signal came.
#[derive(Clone, Debug)]
pub(super) struct StopSignals(Arc<AtomicBool>);

impl StopSignals {
    /// Notes interrupts (Ctrl-C), requests to terminate, and the end of the terminal, until the process ends.
    pub(super) fn note() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        // The signals are registered before this returns: a signal at any later moment is noted.
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let inside = runtime.enter();
        let signals: Vec<Signal> =
            kinds.into_iter().map(signal).collect::<Result<_, _>>().context("cannot wait for signals")?;
        drop(inside);
        let it = Self(Arc::new(AtomicBool::new(false)));
        let noted = Arc::clone(&it.0);
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(move || wait(&runtime, signals, &noted)).context("cannot wait for signals")?;
        Ok(it)
    }

    /// An error if a signal came.
    pub(super) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Stopped.into()) } else { Ok(()) }
    }
}

fn wait(runtime: &Runtime, mut signals: Vec<Signal>, noted: &AtomicBool) {
    runtime.block_on(async {
        let [interrupt, terminate, hangup] = &mut signals[..] else { return };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        noted.store(true, Ordering::Relaxed);
    });
}
