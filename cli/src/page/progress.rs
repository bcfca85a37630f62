//! A progress line on standard error, if that is a terminal.
//!
//! Pure functions do the work; they take no callback, or call it rarely. So a thread draws the line, also during a
//! stage that reports nothing. Without a terminal there is no thread.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weir_objects::escape;

/// The line is shown for work that takes longer than this.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two drawings.
const INTERVAL: Duration = Duration::from_millis(200);

/// The progress of a command. The line goes away when it is dropped.
pub(crate) struct Progress {
    drawer: Option<Drawer>,
}

/// The drawing thread and its state.
struct Drawer {
    shared: Arc<SharedState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SharedState {
    state: Mutex<ProgressState>,
    changed: Condvar,
}

#[derive(Default)]
struct ProgressState {
    stage: String,
    /// Finished steps and all steps of the stage, if the total is known.
    share: Option<(u64, u64)>,
    paused: bool,
    ended: bool,
    is_shown: bool,
}

impl Progress {
    /// Begins with the first stage.
    pub(crate) fn new(quiet: bool, stage: &str) -> Self {
        if quiet || !io::stderr().is_terminal() {
            return Self { drawer: None };
        }
        let shared = Arc::new(SharedState::default());
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("progress".to_owned()).spawn(move || of_thread.draw());
        let progress = Self { drawer: Some(Drawer { shared, thread: thread.ok() }) };
        progress.stage(stage);
        progress
    }

    /// The next stage begins.
    pub(crate) fn stage(&self, name: &str) {
        self.set(|state| {
            state.stage = name.to_owned();
            state.share = None;
            state.paused = false;
        });
    }

    /// How much of the stage is done.
    pub(crate) fn share(&self, done: u64, total: u64) {
        self.set(|state| state.share = Some((done, total)));
    }

    /// Removes the line until the next stage, because other text is printed.
    pub(crate) fn pause(&self) {
        self.set(|state| {
            state.paused = true;
            state.clear();
        });
    }

    fn set(&self, change: impl FnOnce(&mut ProgressState)) {
        if let Some(drawer) = &self.drawer {
            change(&mut drawer.shared.lock());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let Some(drawer) = &mut self.drawer else { return };
        drawer.shared.lock().ended = true;
        drawer.shared.changed.notify_all();
        if let Some(thread) = drawer.thread.take() {
            _ = thread.join();
        }
    }
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) {
        let begun = Instant::now();
        let mut state = self.lock();
        while !state.ended {
            if begun.elapsed() >= PATIENCE && !state.paused {
                _ = write!(io::stderr(), "\r\x1b[K{}", state.line());
                state.is_shown = true;
            }
            state = match self.changed.wait_timeout(state, INTERVAL) {
                Ok((state, _)) => state,
                Err(error) => error.into_inner().0,
            };
        }
        state.clear();
    }
}

impl ProgressState {
    fn line(&self) -> String {
        let stage = escape::line(&self.stage);
        match self.share {
            Some((done, total)) if total > 0 => format!("{stage} … {} %", done.min(total) * 100 / total),
            _ => format!("{stage} …"),
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_stage_and_the_share() {
        let state = |share| ProgressState { stage: "verifying".to_owned(), share, ..ProgressState::default() };
        assert_eq!(state(None).line(), "verifying …");
        assert_eq!(state(Some((0, 0))).line(), "verifying …");
        assert_eq!(state(Some((1, 3))).line(), "verifying … 33 %");
        assert_eq!(state(Some((4, 3))).line(), "verifying … 100 %");
    }
}
