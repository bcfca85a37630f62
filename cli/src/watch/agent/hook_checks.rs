//! Regular checks of the kernel's hooks. Readiness and `weir_endpoints` report the last check, not the last
//! installation.
//!
//! Strategy: all hooks are checked at intervals. After a message of the kernel about interfaces, tc qdiscs or tc
//! filters, those of the interfaces that it names are checked at once.
//! Invariant: a pod counts as enforced only if the last check has succeeded and has not found it astray. A check of
//! some interfaces that finds a deviation continues with all of them.

use std::time::{Duration, Instant};

use weir_runtime::sys::ChangedInterfaces;

use super::{NodeAgent, Value};
use crate::watch::enforce::{CheckedHooks, Enforce, PodFailure};

/// The interval between checks. The kernel notifies us of changes of interfaces and tc, but not of TCX links and pins.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// The pause between two checks that notifications ask for.
const PAUSE: Duration = Duration::from_millis(50);

/// When to check the hooks, and the result of the last check.
#[derive(Debug, Default)]
pub(super) struct HookChecks {
    /// When to check all hooks.
    due: Option<Instant>,
    /// The interfaces that have changed since the last check, and when to check their hooks.
    hurried: Option<(Instant, ChangedInterfaces)>,
    /// When any hooks were checked last.
    checked_at: Option<Instant>,
    last: LastCheck,
    /// Pods without our programs, or with another program before them, in the last check that succeeded.
    astray: Vec<PodFailure>,
}

#[derive(Debug, Default)]
enum LastCheck {
    #[default]
    None,
    Succeeded,
    Failed {
        error: String,
    },
}

impl LastCheck {
    fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { error } => Some(error),
            Self::None | Self::Succeeded => None,
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
    /// When the next check is due; `None` if one is due now.
    pub(super) fn due(&self) -> Option<Instant> {
        let hurried = self.hurried.as_ref().map(|(due, _)| *due);
        self.due.map(|due| hurried.map_or(due, |hurried| due.min(hurried)))
    }

    /// Schedules a check of interfaces because of a notification.
    pub(super) fn hurry(&mut self, changed: ChangedInterfaces, now: Instant) {
        if changed == ChangedInterfaces::NONE {
            return;
        }
        match &mut self.hurried {
            Some((_, known)) => known.add(changed),
            none => *none = Some((self.checked_at.map_or(now, |last| now.max(last + PAUSE)), changed)),
        }
    }

    /// The interfaces whose hooks to check now, if a check is due. Schedules the next one: the caller does this one.
    fn start(&mut self, now: Instant) -> Option<ChangedInterfaces> {
        let is_all_due = self.due.is_none_or(|due| due <= now);
        if !is_all_due && self.hurried.as_ref().is_none_or(|(due, _)| *due > now) {
            return None;
        }
        let hurried = self.hurried.take().filter(|_| !is_all_due);
        // A check of some interfaces that finds nothing does not change the last result, so that one must be good.
        let was_all_right = self.astray.is_empty() && matches!(self.last, LastCheck::Succeeded);
        let of = hurried.filter(|_| was_all_right).map_or(ChangedInterfaces::Any, |(_, changed)| changed);
        if of == ChangedInterfaces::Any {
            self.due = Some(now + INTERVAL);
        }
        self.checked_at = Some(now);
        Some(of)
    }

    /// Takes the result of a check that succeeded. Returns the pods that were not astray before.
    fn succeeded(&mut self, astray: Vec<PodFailure>) -> Vec<PodFailure> {
        let new = astray.iter().filter(|it| !self.astray.contains(it)).cloned().collect();
        (self.astray, self.last) = (astray, LastCheck::Succeeded);
        new
    }

    /// Takes the error of a check that failed. Returns whether it differs from that of the previous check.
    fn failed(&mut self, error: String) -> bool {
        let is_new = self.last.error() != Some(&error);
        self.last = LastCheck::Failed { error };
        is_new
    }

    /// The reasons that the last check gives for being unready.
    pub(super) fn unready(&self) -> impl Iterator<Item = String> {
        let failure = self.last.error().map(|error| format!("the programs in the kernel cannot be checked: {error}"));
        failure.into_iter().chain(self.astray.iter().map(ToString::to_string))
    }

    /// Splits the number of pods that should be enforced. A pod that the kernel refused is not expected to be enforced.
    pub(super) fn count(&self, expected: usize, refused: &[PodFailure]) -> CheckedPods {
        if !matches!(self.last, LastCheck::Succeeded) {
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

    /// Checks the hooks if a check is due: all of them, or those of interfaces that have changed. The runtime repairs
    /// deviations.
    pub(super) fn check_hooks(&mut self, now: Instant) {
        if !self.enforcement.is_any() {
            return;
        }
        let Some(of) = self.upkeep.hooks.start(now) else { return };
        match self.enforce.check_hooks(&of) {
            Ok(checked) if of != ChangedInterfaces::Any && checked == CheckedHooks::default() => {}
            Ok(checked) => {
                self.reports.repaired(&checked.repaired);
                for PodFailure { pod, why } in self.upkeep.hooks.succeeded(checked.astray) {
                    let fields = [("pod", Value::from(pod)), ("error", Value::from(why))];
                    self.reports.log.error("policy is not enforced on the pod", &fields);
                }
                self.reports.metrics.hooks_checked(Instant::now());
            }
            Err(error) => {
                self.reports.metrics.add("weir_failures_total", &[("stage", "look")], 1.0);
                if self.upkeep.hooks.failed(error.message.clone()) {
                    let fields = [("error", Value::from(error.message))];
                    self.reports.log.error("the programs in the kernel cannot be checked", &fields);
                }
            }
        }
    }
}
