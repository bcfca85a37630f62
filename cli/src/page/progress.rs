//! A progress line on standard error, if that is a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use weir_objects::escape;

/// The line is shown for loads that take longer than this.
const PATIENCE: Duration = Duration::from_millis(500);

/// The current step of a load.
pub(crate) struct Progress {
    shown: bool,
    wanted: bool,
    begun: Instant,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { shown: false, wanted: !quiet && io::stderr().is_terminal(), begun: Instant::now() }
    }

    pub(crate) fn show(&mut self, what: &str) {
        if self.wanted && self.begun.elapsed() > PATIENCE {
            _ = write!(io::stderr(), "\r\x1b[K{} …", escape::line(what));
            self.shown = true;
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.shown {
            _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
