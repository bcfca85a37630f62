//! Kubernetes Events: they report a fault on the object that has it, where the author of the object looks.
//!
//! Problem: the agents of all nodes see the same malformed policy, again and again.
//! Strategy: the name of an Event contains a digest of its content, so the server refuses a second Event with the
//! same content. This counts as success, because the first one is there. An agent does not repeat an Event while the
//! server keeps it, and the rate of all Events is limited.
//! Invariant: the agent never waits for an Event. An Event that is not sent is counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use kube::{Client, Error};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender};
use weir_classes::index::Key;
use weir_objects::escape;

use super::log::{Log, Value};
use super::metrics::Metrics;
use super::resources;
use crate::failure::chain;
use crate::time::rfc_3339;

/// The time after which the same notice is sent again: servers keep Events for an hour.
const REPEAT: Duration = Duration::from_secs(3_600);
/// The most Events that may be sent at once.
const BURST: u32 = 20;
/// After each such interval, one more Event may be sent.
const REFILL: Duration = Duration::from_secs(3);
/// The server's limit for a message.
const LONGEST_MESSAGE: usize = 1_024;
/// The part of an object's name that goes into an Event's name. With the digest, it fits into the server's limit of
/// 253.
const LONGEST_NAME: usize = 200;
/// The namespace for Events on objects that have no namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// A fault of an object that should be reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Notice {
    pub(crate) about: Key,
    pub(crate) uid: Option<String>,
    /// The Event's reason: one word for programs.
    pub(crate) reason: &'static str,
    /// The Event's text, for people.
    pub(crate) message: String,
}

/// Decides which notices are sent.
#[derive(Debug)]
pub(crate) struct Notices {
    out: Sender<Notice>,
    metrics: Arc<Metrics>,
    sent: BTreeMap<Notice, Instant>,
    /// How many notices may be sent now, and the time up to which [`REFILL`] has been applied to this number.
    left: u32,
    since: Option<Instant>,
    is_dry_run: bool,
}

impl Notices {
    pub(crate) fn new(out: Sender<Notice>, metrics: Arc<Metrics>) -> Self {
        Self { out, metrics, sent: BTreeMap::new(), left: BURST, since: None, is_dry_run: false }
    }

    /// Whether to mark all notices as those of a dry run.
    pub(crate) fn of_dry_run(self, is_dry_run: bool) -> Self {
        Self { is_dry_run, ..self }
    }

    /// Queues a notice, unless the same notice was queued within [`REPEAT`]. If the rate limit is reached or the
    /// queue is full, the notice is dropped and counted.
    pub(crate) fn report(&mut self, mut notice: Notice, now: Instant) {
        if self.is_dry_run {
            notice.message.insert_str(0, "dry run, nothing is enforced: ");
        }
        self.sent.retain(|_, at| now.saturating_duration_since(*at) < REPEAT);
        if self.sent.contains_key(&notice) {
            return;
        }
        self.refill(now);
        let has_room = self.left > 0 && self.out.try_send(notice.clone()).is_ok();
        if !has_room {
            return count(&self.metrics, "dropped");
        }
        self.left -= 1;
        self.sent.insert(notice, now);
    }

    fn refill(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let more = now.saturating_duration_since(since).as_secs() / REFILL.as_secs();
        self.left = BURST.min(self.left.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)));
        self.since = Some(since + REFILL * u32::try_from(more).unwrap_or(0));
    }
}

fn count(metrics: &Metrics, outcome: &str) {
    metrics.add("weir_kubernetes_events_total", &[("outcome", outcome)], 1.0);
}

/// Sends queued notices to the API server.
pub(crate) async fn post(
    client: Client,
    node: String,
    notices: Arc<Mutex<Receiver<Notice>>>,
    metrics: Arc<Metrics>,
    log: Log,
) {
    let (mut notices, mut is_refused) = (notices.lock().await, false);
    while let Some(notice) = notices.recv().await {
        let result = send(&client, &node, &notice).await;
        match result {
            Ok(()) => count(&metrics, "told"),
            // The Event exists: another agent was first.
            Err(Error::Api(status)) if status.code == 409 => count(&metrics, "known"),
            Err(error) => {
                count(&metrics, "refused");
                // The watches report that the server does not answer.
                if matches!(error, Error::Api(_)) && !std::mem::replace(&mut is_refused, true) {
                    log.warn(
                        "an Event could not be sent; later ones are tried",
                        &[("error", Value::from(chain(&error)))],
                    );
                }
            }
        }
    }
}

async fn send(client: &Client, node: &str, notice: &Notice) -> Result<(), Error> {
    let path = format!("/api/v1/namespaces/{}/events", namespace(notice));
    let body = event(node, notice, SystemTime::now()).to_string().into_bytes();
    let request = http::Request::post(path).header("content-type", "application/json").body(body);
    client.request_text(request.map_err(Error::HttpError)?).await.map(|_| ())
}

fn namespace(notice: &Notice) -> &str {
    if notice.about.namespace.is_empty() { DEFAULT_NAMESPACE } else { &notice.about.namespace }
}

fn event(node: &str, notice: &Notice, now: SystemTime) -> serde_json::Value {
    let Notice { about, uid, reason, message } = notice;
    // `kubectl describe` prints the message to terminals, so hidden characters are escaped.
    let message = escape::line(message);
    let mut cut = message.len().min(LONGEST_MESSAGE);
    while !message.is_char_boundary(cut) {
        cut -= 1;
    }
    let time = rfc_3339(now);
    let resources = resources::kinds();
    let version = resources.iter().find(|it| it.kind == about.kind).map_or("v1", |it| it.version.as_ref());
    json!({
        "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message.get(..cut),
        "metadata": {"name": name(notice), "namespace": namespace(notice)},
        "involvedObject": {"apiVersion": version, "kind": about.kind, "name": about.name, "namespace": about.namespace, "uid": uid},
        "source": {"component": "weir", "host": node}, "reportingComponent": "weir.dev/agent", "reportingInstance": node,
        "firstTimestamp": time, "lastTimestamp": time, "count": 1,
    })
}

/// The Event's name: the object's name, and a digest (FNV-1a) of the notice.
fn name(notice: &Notice) -> String {
    let Notice { about, uid, reason, message } = notice;
    let texts = [about.kind.as_str(), uid.as_deref().unwrap_or_default(), reason, message];
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    let digest =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let stem: String = about.name.chars().take(LONGEST_NAME).collect();
    format!("{}.{digest:016x}", stem.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(name: &str) -> Notice {
        let about = Key { kind: "NetworkPolicy".to_owned(), namespace: "shop".to_owned(), name: name.to_owned() };
        Notice { about, uid: Some("u1".to_owned()), reason: "Unreadable", message: "odd".to_owned() }
    }

    fn sent(receiver: &mut Receiver<Notice>) -> Vec<String> {
        std::iter::from_fn(|| receiver.try_recv().ok()).map(|notice| notice.about.name).collect()
    }

    #[test]
    fn same_notice_is_sent_once_an_hour() {
        let (out, mut receiver) = tokio::sync::mpsc::channel(64);
        let (mut notices, now) = (Notices::new(out, Arc::default()), Instant::now());
        notices.report(notice("a"), now);
        notices.report(notice("a"), now + REPEAT / 2);
        notices.report(notice("b"), now + REPEAT / 2);
        assert_eq!(sent(&mut receiver), ["a", "b"]);
        notices.report(notice("a"), now + REPEAT);
        assert_eq!(sent(&mut receiver), ["a"]);
    }

    #[test]
    fn notices_of_a_dry_run_say_that_nothing_is_enforced() {
        let (out, mut receiver) = tokio::sync::mpsc::channel(64);
        let (mut notices, now) = (Notices::new(out, Arc::default()).of_dry_run(true), Instant::now());
        notices.report(notice("a"), now);
        notices.report(notice("a"), now);
        let sent: Vec<String> = std::iter::from_fn(|| receiver.try_recv().ok()).map(|it| it.message).collect();
        assert_eq!(sent, ["dry run, nothing is enforced: odd"]);
    }

    #[test]
    fn notices_over_the_rate_limit_are_dropped_and_counted() {
        let (out, mut receiver) = tokio::sync::mpsc::channel(64);
        let metrics = Arc::new(Metrics::default());
        let (mut notices, now) = (Notices::new(out, Arc::clone(&metrics)), Instant::now());
        (0..BURST + 5).for_each(|number| notices.report(notice(&number.to_string()), now));
        assert_eq!(sent(&mut receiver).len(), BURST as usize);
        assert!(metrics.text().contains("weir_kubernetes_events_total{outcome=\"dropped\"} 5\n"), "{}", metrics.text());
        (0..5).for_each(|number| notices.report(notice(&format!("later-{number}")), now + 2 * REFILL));
        assert_eq!(sent(&mut receiver), ["later-0", "later-1"]);
    }

    #[test]
    fn event_refers_to_its_object_and_its_name_depends_on_its_content() {
        let event = event("n1", &notice("p"), SystemTime::UNIX_EPOCH);
        assert_eq!(event["involvedObject"]["apiVersion"], "networking.k8s.io/v1");
        assert_eq!(event["metadata"]["namespace"], "shop");
        assert_eq!(event["firstTimestamp"], "1970-01-01T00:00:00.000Z");
        let other = Notice { message: "odder".to_owned(), ..notice("p") };
        assert_ne!(name(&notice("p")), name(&other));
        assert!(name(&notice(&"a-".repeat(126))).len() < 253);
    }
}
