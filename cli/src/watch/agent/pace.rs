//! When the next generation may begin, so that a storm of changes costs no more CPU than the budget.
//!
//! Problem: a generation costs a tenth of a second of CPU or more. In a large cluster there is always a change that
//! needs one, and an agent that compiles for each of them keeps a core busy.
//! Strategy: a token bucket over the CPU time of the whole process. It fills with the share of a core that the agent may
//! use, and everything that the process does empties it, reading the API too. The next generation begins when the bucket
//! is not empty. All changes that arrive until then are in the same generation.
//! Invariants: a pure value; the clock and the CPU time are arguments. A change that isolates is not delayed by the
//! budget beyond [`ISOLATION`], less the time that a generation is expected to take ([`Pace::expected`]). No other
//! change is delayed beyond [`LONGEST_WAIT`]. The first generation of an agent is not delayed.

use std::str::FromStr;
use std::time::{Duration, Instant};

/// The time within which an isolating change is in force, if the generation takes no longer than expected.
pub(super) const ISOLATION: Duration = Duration::from_secs(1);
/// The longest time for which the budget delays a change that only allows more.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The bucket holds the budget of this time. A quiet agent has as much to spend at once.
const BURST: Duration = Duration::from_secs(10);

/// A share of a core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CpuShare(f64);

impl CpuShare {
    pub(crate) fn cores(self) -> f64 {
        self.0
    }
}

impl FromStr for CpuShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.strip_suffix('%').and_then(|it| it.parse::<f64>().ok());
        let percent = percent.ok_or_else(|| format!("`{text}` is not a share of a core, such as 10%"))?;
        match (1.0..=10_000.0).contains(&percent) {
            true => Ok(Self(percent / 100.0)),
            false => Err(format!("`{text}` is not between 1% and 10000% (100 cores)")),
        }
    }
}

/// The two changes that a generation may wait for.
#[derive(Clone, Copy, Debug)]
pub(super) struct OldestChanges {
    /// The oldest change of any effect.
    pub(super) first: Instant,
    /// The oldest change that isolates.
    pub(super) isolating: Option<Instant>,
}

/// The CPU budget, and how much of it is left.
#[derive(Debug)]
pub(super) struct Pace {
    share: CpuShare,
    /// CPU seconds that may be spent now; less than zero if more were spent.
    balance: f64,
    /// The time and the CPU time of the process at the last update. `None` before the first generation.
    updated: Option<(Instant, Duration)>,
    /// How long the last generation took, from its beginning until it was in force.
    took: Duration,
    /// The same for the last one that was compiled from scratch.
    whole: Duration,
}

impl Pace {
    pub(super) fn new(share: CpuShare) -> Self {
        Self {
            share,
            balance: share.cores() * BURST.as_secs_f64(),
            updated: None,
            took: Duration::ZERO,
            whole: Duration::ZERO,
        }
    }

    /// Notes how much CPU time the process has used so far.
    pub(super) fn used(&mut self, now: Instant, cpu: Duration) {
        let Some((at, before)) = self.updated else { return };
        let filled = self.share.cores() * now.saturating_duration_since(at).as_secs_f64();
        let balance = self.balance + filled - cpu.saturating_sub(before).as_secs_f64();
        // A debt larger than this could not delay a generation any longer, and would delay later ones for nothing.
        let most_debt = self.share.cores() * LONGEST_WAIT.as_secs_f64();
        self.balance = balance.clamp(-most_debt, self.share.cores() * BURST.as_secs_f64());
        self.updated = Some((now, cpu));
    }

    /// Notes that a generation was made. The budget applies from the first one on: the CPU time for the first lists
    /// does not count.
    pub(super) fn made(&mut self, now: Instant, cpu: Duration, took: Duration, is_whole: bool) {
        self.used(now, cpu);
        self.updated = Some((now, cpu));
        self.took = took;
        if is_whole {
            self.whole = took;
        }
    }

    /// How long the next generation may take: as long as the last one, or as the last one from scratch, because it is
    /// not known yet whether it is one. In the largest clusters that takes a second, and if all later generations began
    /// at once for it, they would exceed the budget. So it counts for at most half of [`ISOLATION`].
    fn expected(&self) -> Duration {
        self.took.max(self.whole.min(ISOLATION / 2))
    }

    /// When a generation begins that could begin at `gathered` if there were no budget.
    pub(super) fn start(&self, gathered: Instant, oldest: OldestChanges) -> Instant {
        let OldestChanges { first, isolating } = oldest;
        let latest = first + LONGEST_WAIT;
        let latest = isolating.map_or(latest, |at| latest.min(at + ISOLATION.saturating_sub(self.expected())));
        gathered.max(self.affordable(gathered).min(latest))
    }

    /// When the budget allows a generation that could begin at `gathered`.
    pub(super) fn affordable(&self, gathered: Instant) -> Instant {
        let Some((updated, _)) = self.updated else { return gathered };
        updated + Duration::from_secs_f64((-self.balance / self.share.cores()).max(0.0))
    }

    /// Whether this part of the full bucket is left, and enough for work that takes as long as the last generation.
    pub(super) fn can_spare(&self, part: f64) -> bool {
        let bucket = self.share.cores() * BURST.as_secs_f64();
        self.balance >= (part * bucket).max(self.took.as_secs_f64())
    }

    /// The CPU seconds that may be spent now.
    pub(super) fn balance(&self) -> f64 {
        self.balance
    }

    pub(super) fn share(&self) -> CpuShare {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn tenth() -> CpuShare {
        "10%".parse().expect("it is a share")
    }

    fn pace(now: Instant) -> Pace {
        let mut pace = Pace::new(tenth());
        pace.made(now, Duration::ZERO, Duration::ZERO, false);
        pace
    }

    fn allowing(first: Instant) -> OldestChanges {
        OldestChanges { first, isolating: None }
    }

    fn isolating(first: Instant) -> OldestChanges {
        OldestChanges { first, isolating: Some(first) }
    }

    #[test]
    fn quiet_agent_starts_at_once() {
        let now = Instant::now();
        assert_eq!(pace(now).start(now, allowing(now)), now);
    }

    #[test]
    fn first_generation_does_not_wait_for_the_cost_of_reading_the_cluster() {
        let now = Instant::now();
        let mut pace = Pace::new(tenth());
        pace.used(now, 60 * SECOND);
        assert_eq!(pace.start(now, allowing(now)), now);
        pace.made(now, 60 * SECOND, SECOND, true);
        assert_eq!(pace.start(now, allowing(now)), now, "the second one does not wait for it either");
    }

    #[test]
    fn allowance_waits_until_the_debt_is_paid() {
        let now = Instant::now();
        let mut pace = pace(now);
        // The bucket holds one second of CPU; 1.3 were used.
        pace.used(now, Duration::from_millis(1_300));
        let start = pace.start(now, allowing(now));
        let wait = start - now;
        assert!(wait > Duration::from_millis(2_990) && wait < Duration::from_millis(3_010), "{wait:?}");
        // Half of the time later, half of it is left.
        pace.used(now + wait / 2, Duration::from_millis(1_300));
        let again = pace.start(now + wait / 2, allowing(now));
        assert!(again.max(start) - again.min(start) < Duration::from_millis(1));
    }

    #[test]
    fn isolation_is_in_force_within_its_limit_however_large_the_debt_is() {
        let now = Instant::now();
        let mut pace = pace(now);
        pace.made(now, 100 * SECOND, Duration::from_millis(300), false);
        assert_eq!(pace.start(now, isolating(now)), now + Duration::from_millis(700));
        pace.made(now, 200 * SECOND, 5 * SECOND, false);
        assert_eq!(pace.start(now, isolating(now)), now, "a slow generation begins at once");
        let later = OldestChanges { first: now, isolating: Some(now + 3 * SECOND) };
        assert_eq!(pace.start(now, later), now + 3 * SECOND, "an allowance that waits is taken along");
    }

    #[test]
    fn isolation_begins_early_enough_for_a_compile_from_scratch() {
        let now = Instant::now();
        let mut pace = pace(now);
        for (whole, begins) in [(300, 700), (400, 600), (5_000, 500)] {
            pace.made(now, 100 * SECOND, Duration::from_millis(whole), true);
            pace.made(now, 200 * SECOND, Duration::from_millis(10), false);
            assert_eq!(pace.start(now, isolating(now)), now + Duration::from_millis(begins), "{whole}");
        }
    }

    #[test]
    fn no_change_waits_longer_than_the_longest_wait() {
        let now = Instant::now();
        let mut pace = pace(now);
        pace.used(now, 1_000 * SECOND);
        assert_eq!(pace.start(now, allowing(now)), now + LONGEST_WAIT);
        // The debt is bounded: after this time, a new change does not wait.
        let later = now + LONGEST_WAIT + SECOND;
        pace.used(later, 1_000 * SECOND);
        assert_eq!(pace.start(later, allowing(later)), later);
    }

    #[test]
    fn mean_stays_within_the_budget_under_endless_allowances() {
        let begun = Instant::now();
        let (mut pace, mut now, mut cpu) = (pace(begun), begun, Duration::ZERO);
        let cost = Duration::from_millis(200);
        while now - begun < 600 * SECOND {
            pace.used(now, cpu);
            now = pace.start(now, allowing(now));
            cpu += cost;
            now += cost;
            pace.made(now, cpu, cost, false);
        }
        let share = cpu.as_secs_f64() / (now - begun).as_secs_f64();
        assert!(share > 0.09 && share < 0.105, "{share}");
    }

    #[test]
    fn budget_can_spare_a_part_and_the_time_of_a_generation() {
        let now = Instant::now();
        // The bucket holds one second.
        for (cpu, took, can) in [(0, 0, true), (499, 0, true), (501, 0, false), (0, 999, true), (300, 800, false)] {
            let mut pace = Pace::new(tenth());
            pace.made(now, Duration::ZERO, Duration::from_millis(took), false);
            pace.used(now, Duration::from_millis(cpu));
            assert_eq!(pace.can_spare(0.5), can, "{cpu} {took}");
        }
    }

    #[test]
    fn share_is_a_percentage() {
        assert_eq!("10%".parse::<CpuShare>().map(CpuShare::cores), Ok(0.1));
        assert_eq!("250%".parse::<CpuShare>().map(CpuShare::cores), Ok(2.5));
        for wrong in ["10", "0%", "-5%", "0.5%", "NaN%", "inf%", "x%", ""] {
            assert!(wrong.parse::<CpuShare>().is_err(), "{wrong}");
        }
    }
}
