//! Limits how often one file is written, if another program undoes each write.
//!
//! Problem: two programs that each restore their own version of a file would write it endlessly. Every
//! write makes the container runtime load its configuration again.
//! Strategy: the first write is immediate. Each further one waits, twice as long as the one before and at most
//! [`LONGEST`]. A file that nothing has undone for [`CALM`] starts again without a wait.

use std::time::{Duration, Instant};

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
const CALM: Duration = Duration::from_secs(300);
/// The number of writes in a row from which on another program is the probable cause.
const SUSPICIOUS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct WritePace {
    last: Option<Instant>,
    /// Writes without [`CALM`] between them.
    writes: u32,
}

impl WritePace {
    /// The time until the file may be written.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let since = self.last.map_or(CALM, |last| now.saturating_duration_since(last));
        if since >= CALM { Duration::ZERO } else { self.pause().saturating_sub(since) }
    }

    pub(super) fn record(&mut self, now: Instant) {
        let is_calm = self.last.is_none_or(|last| now.saturating_duration_since(last) >= CALM);
        self.writes = if is_calm { 1 } else { self.writes.saturating_add(1) };
        self.last = Some(now);
    }

    /// The shortest time between the last write and the next one.
    pub(super) fn pause(&self) -> Duration {
        let doublings = self.writes.saturating_sub(1).min(16);
        SHORTEST.saturating_mul(1 << doublings).min(LONGEST)
    }

    /// The number of writes in a row.
    pub(super) fn writes(&self) -> u32 {
        self.writes
    }

    /// Whether another program probably undoes each write.
    pub(super) fn is_contested(&self) -> bool {
        self.writes >= SUSPICIOUS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_are_undone_become_rarer() {
        let (mut pace, begin) = (WritePace::default(), Instant::now());
        let (mut now, mut waits, mut contested) = (begin, Vec::new(), Vec::new());
        while now - begin < Duration::from_secs(180) {
            let wait = pace.wait(now);
            waits.push(wait.as_secs());
            now += wait;
            assert_eq!(pace.wait(now), Duration::ZERO);
            pace.record(now);
            contested.push(pace.is_contested());
        }
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30]);
        assert_eq!(contested[..4], [false, false, true, true]);
    }

    #[test]
    fn write_after_a_calm_time_is_immediate() {
        let (mut pace, begin) = (WritePace::default(), Instant::now());
        (0..20).for_each(|_| pace.record(begin));
        assert_eq!(pace.wait(begin + Duration::from_secs(1)), LONGEST - Duration::from_secs(1));
        let later = begin + CALM;
        assert_eq!(pace.wait(later), Duration::ZERO);
        pace.record(later);
        assert_eq!((pace.writes(), pace.is_contested(), pace.pause()), (1, false, SHORTEST));
    }
}
