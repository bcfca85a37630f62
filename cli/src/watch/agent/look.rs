//! Regular checks of the kernel's hooks. Readiness and `weir_endpoints` report the last check, not the last
//! installation.

use std::time::{Duration, Instant};

use super::{Agent, Value};
use crate::watch::enforce::Enforce;

/// The interval between checks. The kernel notifies us of changes of interfaces and tc, but not of pins.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// The pause between two checks that notifications ask for.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Look {
    due: Option<Instant>,
    last: Option<Instant>,
    /// Pods without our programs, or with another program before them, and why.
    astray: Vec<(String, String)>,
    /// Why the last check failed.
    failure: Option<String>,
}

impl<E: Enforce> Agent<E> {
    pub(super) fn look_due(&self) -> Option<Instant> {
        self.in_force.and(self.look.due)
    }

    /// Schedules a check because of a notification.
    pub(super) fn look_soon(&mut self, now: Instant) {
        let earliest = self.look.last.map_or(now, |last| now.max(last + PAUSE));
        self.look.due = Some(self.look.due.map_or(earliest, |due| due.min(earliest)));
    }

    /// Checks all hooks if a check is due. The runtime repairs deviations.
    pub(super) fn look(&mut self, now: Instant) {
        if self.in_force.is_none() || self.look.due.is_some_and(|due| due > now) {
            return;
        }
        (self.look.due, self.look.last) = (Some(now + LOOK), Some(now));
        match self.enforce.look() {
            Ok(looked) => {
                self.repaired(&looked.repaired);
                for (pod, why) in looked.astray.iter().filter(|it| !self.look.astray.contains(it)) {
                    let fields = [("pod", Value::from(pod.as_str())), ("error", Value::from(why.as_str()))];
                    self.log.error("not enforced", &fields);
                }
                (self.look.astray, self.look.failure) = (looked.astray, None);
                self.metrics.looked(Instant::now());
            }
            Err(trouble) => {
                self.metrics.add("weir_failures_total", &[("stage", "look")], 1.0);
                if self.look.failure.as_ref() != Some(&trouble.0) {
                    self.log.error("it cannot be seen what is in force", &[("error", Value::from(trouble.0.as_str()))]);
                }
                self.look.failure = Some(trouble.0);
            }
        }
    }

    pub(super) fn repaired(&self, repaired: &[String]) {
        for repaired in repaired {
            self.log.warn("repaired", &[("what", Value::from(repaired.as_str()))]);
        }
        self.metrics.add("weir_drift_repairs_total", &[], repaired.len() as f64);
    }

    /// The reasons that the last check gives for being unready.
    pub(super) fn unseen(&self) -> impl Iterator<Item = String> {
        let failure = self.look.failure.iter().map(|why| format!("it cannot be seen what is in force: {why}"));
        failure.chain(self.look.astray.iter().map(|(pod, why)| format!("pod {pod}: {why}")))
    }

    /// Splits the number of pods that should be enforced into: seen to be enforced, seen not to be, unknown.
    pub(super) fn seen(&self, wanted: usize) -> [usize; 3] {
        if self.look.failure.is_some() || self.look.last.is_none() {
            return [0, 0, wanted];
        }
        let is_refused = |pod: &str| self.refused.iter().any(|(refused, _)| refused == pod);
        let astray = self.look.astray.iter().filter(|(pod, _)| !is_refused(pod)).count().min(wanted);
        [wanted - astray, astray, 0]
    }
}
