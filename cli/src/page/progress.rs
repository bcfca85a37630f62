//! One line on a terminal's standard error, while a load is long.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use weir_compiler::escape;

/// A load that takes longer than this says what it is doing.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is being done, until it is done.
pub(crate) struct Progress {
    shown: bool,
    wanted: bool,
    begun: Instant,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        Self { shown: false, wanted: !quiet && io::stderr().is_terminal(), begun: Instant::now() }
    }

    pub(crate) fn say(&mut self, what: &str) {
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
