//! Whether the API server answers, for the log: an outage is one warning, and one line when it is over.
//!
//! Problem: ten watches meet the same outage again and again, and each with other words for it.
//! Strategy: the watches share this state. A fault is reported once, by its [`FaultKind`], until every watch that had it
//! has been answered; all later ones are only in the log at `debug`. A connection that breaks is no outage yet, because
//! the next request often succeeds: it counts if the next answer breaks too, before anything of it could be read.
//! Invariant: as long as a watch fails, the last reported fault or an earlier one of the same outage says why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::cursor::WatchFault;
use super::log::{Log, Value};

/// How far a request got before it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailedAt {
    /// There was no answer, or it was an error.
    Request,
    /// The answer had begun.
    Answer,
}

/// How much of an answer has been received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It has begun without an error.
    Begun,
    /// A part of it has been read.
    Read,
}

/// The most faults of an outage that are reported by their texts.
const MOST_TEXTS: usize = 32;

/// Faults that are reported as one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FaultKind {
    /// The server cannot answer, or it does not know or accept this client.
    Status(u16),
    /// The server refuses a request for a kind of objects.
    Refused(u16, &'static str),
    Silent,
    /// The connection ended before the answer. Which error says so depends on the moment.
    Cut,
    Other(String),
    /// Further ones, after [`MOST_TEXTS`]: a text can differ each time.
    Rest,
}

impl FaultKind {
    fn of(kind: &'static str, fault: &WatchFault) -> Self {
        const CUT: [&str; 7] = [
            "handshake eof",
            "reading a body",
            "connection closed",
            "onnection reset",
            "roken pipe",
            "nexpected EOF",
            "unexpected end",
        ];
        match fault {
            WatchFault::Refused { code: code @ (401 | 429 | 500..), .. } => Self::Status(*code),
            WatchFault::Refused { code, .. } => Self::Refused(*code, kind),
            WatchFault::Silent => Self::Silent,
            other => {
                let text = other.to_string();
                if CUT.iter().any(|it| text.contains(it)) { Self::Cut } else { Self::Other(text) }
            }
        }
    }
}

#[derive(Debug)]
struct Failing {
    fault: FaultKind,
    at: FailedAt,
}

/// What to log.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    /// Nothing new.
    Nothing,
    Failed,
    /// The watches that had the same fault are answered again. Other watches fail for another reason.
    Back {
        after: Duration,
        still_failing: Vec<&'static str>,
    },
}

#[derive(Debug, Default)]
struct Outage {
    failing: BTreeMap<&'static str, Failing>,
    /// Watches whose last answer broke, and of which nothing has been read since.
    broken: BTreeSet<&'static str>,
    reported: BTreeSet<FaultKind>,
    since: Option<Instant>,
}

impl Outage {
    fn failed(&mut self, kind: &'static str, fault: &WatchFault, at: FailedAt, now: Instant) -> Report {
        let is_first_break = at == FailedAt::Answer && self.broken.insert(kind);
        if is_first_break {
            return Report::Nothing;
        }
        self.since.get_or_insert(now);
        let fault = self.at_most(FaultKind::of(kind, fault));
        self.failing.insert(kind, Failing { fault: fault.clone(), at });
        if self.reported.insert(fault) { Report::Failed } else { Report::Nothing }
    }

    fn at_most(&self, fault: FaultKind) -> FaultKind {
        let is_text = |it: &&FaultKind| matches!(it, FaultKind::Other(_));
        let is_new = is_text(&&fault) && !self.reported.contains(&fault);
        let is_full = is_new && self.reported.iter().filter(is_text).count() >= MOST_TEXTS;
        if is_full { FaultKind::Rest } else { fault }
    }

    fn answered(&mut self, kind: &'static str, progress: Progress, now: Instant) -> Report {
        if progress == Progress::Read {
            self.broken.remove(kind);
        }
        let is_over = |it: &mut Failing| progress == Progress::Read || it.at == FailedAt::Request;
        if !self.failing.get_mut(kind).is_some_and(is_over) {
            return Report::Nothing;
        }
        let Some(Failing { fault, .. }) = self.failing.remove(kind) else { return Report::Nothing };
        // All faults of this watch are over too, and would be news.
        self.reported.retain(|reported| self.failing.values().any(|it| it.fault == *reported));
        if self.failing.values().any(|it| it.fault == fault) {
            return Report::Nothing;
        }
        let still_failing: Vec<_> = self.failing.keys().copied().collect();
        let after = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if still_failing.is_empty() {
            self.since = None;
        }
        Report::Back { after, still_failing }
    }
}

/// The state that all watches share.
#[derive(Debug)]
pub(crate) struct ApiHealth {
    log: Log,
    outage: Mutex<Outage>,
}

impl ApiHealth {
    pub(crate) fn new(log: Log) -> Self {
        Self { log, outage: Mutex::default() }
    }

    /// A request for a kind failed, and is not simply repeated at once.
    pub(crate) fn failed(&self, kind: &'static str, fault: &WatchFault, at: FailedAt) {
        let report = self.update(|outage| outage.failed(kind, fault, at, Instant::now()));
        let fields = [("kind", Value::from(kind)), ("error", Value::from(fault.to_string()))];
        match report {
            Report::Failed => {
                self.log.warn("the API server does not answer as it should; what is in force stays in force", &fields);
            }
            _ => self.log.debug("watch interrupted", &fields),
        }
    }

    /// A request for a kind ended in a way that the next request, which follows at once, takes into account.
    pub(crate) fn repeated(&self, kind: &'static str, fault: &WatchFault) {
        let fields = [("kind", Value::from(kind)), ("error", Value::from(fault.to_string()))];
        match fault {
            WatchFault::Refused { code: 410, .. } => self.log.info("a watch has expired; listing again", &fields),
            _ => self.log.debug("watch ended", &fields),
        }
    }

    /// The server answers a request for a kind.
    pub(crate) fn answered(&self, kind: &'static str, progress: Progress) {
        let report = self.update(|outage| outage.answered(kind, progress, Instant::now()));
        let Report::Back { after, still_failing } = report else { return };
        let mut fields = vec![("after", Value::from(in_words(after)))];
        if !still_failing.is_empty() {
            fields.push(("still_failing", Value::from(still_failing)));
        }
        self.log.info("the API server answers again", &fields);
    }

    fn update(&self, change: impl FnOnce(&mut Outage) -> Report) -> Report {
        // After a panic in another task, at most one report is missing.
        change(&mut self.outage.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `3m12s`
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{}s", seconds % 60),
        (0, _) => format!("{minutes}m{}s", seconds % 60),
        _ => format!("{hours}h{minutes}m{}s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 3] = ["Pod", "Namespace", "NetworkPolicy"];

    fn broken(text: &str) -> WatchFault {
        WatchFault::Broken(text.to_owned())
    }

    fn refused(code: u16) -> WatchFault {
        WatchFault::Refused { code, message: format!("message {code}") }
    }

    /// The number of reports of rounds in which every watch meets this fault.
    fn rounds(outage: &mut Outage, fault: &WatchFault, at: FailedAt, now: Instant) -> usize {
        let all = (0..20).flat_map(|_| KINDS);
        all.filter(|kind| outage.failed(kind, fault, at, now) == Report::Failed).count()
    }

    fn back(outage: &mut Outage, now: Instant) -> Vec<Report> {
        let reports = KINDS.map(|kind| outage.answered(kind, Progress::Begun, now));
        reports.into_iter().filter(|report| *report != Report::Nothing).collect()
    }

    #[test]
    fn outage_is_reported_once_until_it_changes_or_ends() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        assert_eq!(rounds(&mut outage, &broken("connection refused"), FailedAt::Request, now), 1);
        assert_eq!(rounds(&mut outage, &refused(503), FailedAt::Request, now), 1, "another reason");
        assert_eq!(rounds(&mut outage, &broken("connection refused"), FailedAt::Request, now), 0, "a known reason");
        let after = Duration::from_secs(192);
        assert_eq!(back(&mut outage, now + after), [Report::Back { after, still_failing: vec![] }]);
        assert_eq!(rounds(&mut outage, &refused(503), FailedAt::Request, now), 1, "the next outage");
        assert_eq!(in_words(after), "3m12s");
    }

    #[test]
    fn one_refused_kind_does_not_hide_an_outage_or_its_end() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        assert_eq!(outage.failed("CidrList", &refused(403), FailedAt::Request, now), Report::Failed);
        assert_eq!(rounds(&mut outage, &broken("connection refused"), FailedAt::Request, now), 1);
        let after = Duration::from_secs(9);
        let reports = back(&mut outage, now + after);
        assert_eq!(reports, [Report::Back { after, still_failing: vec!["CidrList"] }]);
        assert_eq!(outage.failed("CidrList", &refused(403), FailedAt::Request, now), Report::Nothing);
        assert_eq!(rounds(&mut outage, &broken("connection refused"), FailedAt::Request, now), 1, "the next outage");
    }

    #[test]
    fn each_kind_that_is_refused_is_reported() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        assert_eq!(outage.failed("CidrList", &refused(403), FailedAt::Request, now), Report::Failed);
        assert_eq!(outage.failed("NetworkPolicy", &refused(403), FailedAt::Request, now), Report::Failed);
        assert_eq!(outage.failed("NetworkPolicy", &refused(403), FailedAt::Request, now), Report::Nothing);
        assert_eq!(rounds(&mut outage, &refused(401), FailedAt::Request, now), 1, "it is about the client");
        outage.answered("NetworkPolicy", Progress::Begun, now);
        assert_eq!(outage.failed("NetworkPolicy", &refused(403), FailedAt::Request, now), Report::Failed, "again");
    }

    #[test]
    fn changing_texts_are_bounded() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        let faults = (0..1_000).map(|number| broken(&format!("port {number}")));
        let reports = faults.map(|fault| outage.failed("Pod", &fault, FailedAt::Request, now));
        assert_eq!(reports.filter(|it| *it == Report::Failed).count(), MOST_TEXTS + 1);
        assert_eq!(outage.reported.len(), MOST_TEXTS + 1);
    }

    #[test]
    fn broken_answer_is_reported_only_if_the_next_one_breaks_too() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        let invalid = broken("invalid answer");
        for _ in 0..3 {
            assert_eq!(outage.failed("Pod", &invalid, FailedAt::Answer, now), Report::Nothing);
            assert_eq!(outage.answered("Pod", Progress::Read, now), Report::Nothing);
        }
        assert_eq!(outage.failed("Pod", &invalid, FailedAt::Answer, now), Report::Nothing);
        for expected in [Report::Failed, Report::Nothing, Report::Nothing] {
            assert_eq!(outage.answered("Pod", Progress::Begun, now), Report::Nothing, "nothing of it was read");
            assert_eq!(outage.failed("Pod", &invalid, FailedAt::Answer, now), expected);
        }
        assert_ne!(outage.answered("Pod", Progress::Read, now), Report::Nothing);
    }

    #[test]
    fn the_words_for_a_cut_connection_are_one_fault() {
        let (mut outage, now) = (Outage::default(), Instant::now());
        let words = ["error reading a body from connection", "Connection reset by peer (os error 104)"];
        let reports = words.map(|text| outage.failed("Pod", &broken(text), FailedAt::Request, now));
        assert_eq!(reports, [Report::Failed, Report::Nothing]);
    }
}
