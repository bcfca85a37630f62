//! Regular checks of the kernel's hooks. Readiness and `weir_endpoints` report the last check, not the last
//! installation.
//!
//! Invariant: a pod counts as enforced only if the last check has succeeded and has not found it astray.

use std::time::{Duration, Instant};

use super::{NodeAgent, Value};
use crate::watch::enforce::{Enforce, PodFailure};

/// The interval between checks. The kernel notifies us of changes of interfaces and tc, but not of pins.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// The pause between two checks that notifications ask for.
const PAUSE: Duration = Duration::from_millis(50);

/// When to check the hooks, and the result of the last check.
#[derive(Debug, Default)]
pub(super) struct HookChecks {
    due: Option<Instant>,
    last: LastCheck,
    /// Pods without our programs, or with another program before them, in the last check that succeeded.
    astray: Vec<PodFailure>,
}

#[derive(Debug, Default)]
enum LastCheck {
    #[default]
    None,
    Succeeded {
        at: Instant,
    },
    Failed {
        at: Instant,
        error: String,
    },
}

impl LastCheck {
    fn at(&self) -> Option<Instant> {
        match self {
            Self::None => None,
            Self::Succeeded { at } | Self::Failed { at, .. } => Some(*at),
        }
    }

    fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { error, .. } => Some(error),
            Self::None | Self::Succeeded { .. } => None,
        }
    }
}

/// Numbers of the pods that should be enforced, by the result of the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckedPods {
    pub(super) enforced: usize,
    pub(super) astray: usize,
    /// There is no result, because the check has failed.
    pub(super) unknown: usize,
}

impl HookChecks {
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Schedules a check because of a notification.
    pub(super) fn hurry(&mut self, now: Instant) {
        let earliest = self.last.at().map_or(now, |last| now.max(last + PAUSE));
        self.due = Some(self.due.map_or(earliest, |due| due.min(earliest)));
    }

    /// Takes the result of a check that succeeded. Returns the pods that were not astray before.
    fn succeeded(&mut self, astray: Vec<PodFailure>, at: Instant) -> Vec<PodFailure> {
        let new = astray.iter().filter(|it| !self.astray.contains(it)).cloned().collect();
        (self.astray, self.last) = (astray, LastCheck::Succeeded { at });
        new
    }

    /// Takes the error of a check that failed. Returns whether it differs from that of the previous check.
    fn failed(&mut self, error: String, at: Instant) -> bool {
        let is_new = self.last.error() != Some(&error);
        self.last = LastCheck::Failed { at, error };
        is_new
    }

    /// The reasons that the last check gives for being unready.
    pub(super) fn unready(&self) -> impl Iterator<Item = String> {
        let failure = self.last.error().map(|error| format!("the programs in the kernel cannot be checked: {error}"));
        failure.into_iter().chain(self.astray.iter().map(ToString::to_string))
    }

    /// Splits the number of pods that should be enforced. A pod that the kernel refused is not expected to be enforced.
    pub(super) fn count(&self, expected: usize, refused: &[PodFailure]) -> CheckedPods {
        if !matches!(self.last, LastCheck::Succeeded { .. }) {
            return CheckedPods { enforced: 0, astray: 0, unknown: expected };
        }
        let is_refused = |pod: &str| refused.iter().any(|it| it.pod == pod);
        let astray = self.astray.iter().filter(|it| !is_refused(&it.pod)).count().min(expected);
        CheckedPods { enforced: expected - astray, astray, unknown: 0 }
    }
}

impl<E: Enforce> NodeAgent<E> {
    /// When to check the hooks: never before a generation is in force.
    pub(super) fn hook_check_due(&self) -> Option<Instant> {
        self.upkeep.hooks.due().filter(|_| self.enforcement.is_any())
    }

    /// Checks all hooks if a check is due. The runtime repairs deviations.
    pub(super) fn check_hooks(&mut self, now: Instant) {
        if !self.enforcement.is_any() || self.upkeep.hooks.due.is_some_and(|due| due > now) {
            return;
        }
        self.upkeep.hooks.due = Some(now + INTERVAL);
        match self.enforce.check_hooks() {
            Ok(checked) => {
                self.reports.repaired(&checked.repaired);
                for PodFailure { pod, why } in self.upkeep.hooks.succeeded(checked.astray, now) {
                    let fields = [("pod", Value::from(pod)), ("error", Value::from(why))];
                    self.reports.log.error("policy is not enforced on the pod", &fields);
                }
                self.reports.metrics.hooks_checked(Instant::now());
            }
            Err(error) => {
                self.reports.metrics.add("weir_failures_total", &[("stage", "look")], 1.0);
                if self.upkeep.hooks.failed(error.message.clone(), now) {
                    let fields = [("error", Value::from(error.message))];
                    self.reports.log.error("the programs in the kernel cannot be checked", &fields);
                }
            }
        }
    }
}
