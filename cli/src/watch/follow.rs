//! Follows one kind of objects for as long as the agent lives.
//!
//! [`Cursor`] decides; this module adds the connection, the clock and randomness. A fault is logged and counted. The
//! next attempt follows after a wait that grows each time and is partly random, so that the nodes of a cluster do not
//! all reconnect at once. A follower never gives up.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use http::Request;
use kube_client::{Client, Error};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Heard;
use super::cursor::{Cursor, Event, Fault, Next};
use super::log::{Log, Value};
use super::metrics::Metrics;
use super::resources::Resource;

/// The longest silence in a watch: servers send a bookmark every minute.
const WATCH_SILENCE: Duration = Duration::from_secs(150);
/// The longest silence in a list in the form of a stream, which does not pause.
const INITIAL_SILENCE: Duration = Duration::from_secs(15);
/// The limit for a page of a list, and for the beginning of any answer.
const ANSWER: Duration = Duration::from_secs(60);
/// The waits after faults: the first one, and the limit for their doubling.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The interval between requests for a kind that the server does not have.
const ABSENT_WAIT: Duration = Duration::from_secs(30);
/// If more versions than this expire in a row, the follower waits before it lists again.
const EXPIRED_AT_ONCE: u32 = 2;
/// After a request that worked for longer than this, waits are short again.
const SETTLED: Duration = Duration::from_secs(60);

/// The connections that all followers share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) told: Sender<Heard>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Log,
}

/// Makes followers list their kinds again, when known objects may be outdated.
#[derive(Debug)]
pub(crate) struct Relist {
    kinds: BTreeMap<&'static str, watch::Sender<()>>,
}

impl Relist {
    pub(crate) fn new(kinds: impl Iterator<Item = &'static str>) -> Self {
        Self { kinds: kinds.map(|kind| (kind, watch::Sender::new(()))).collect() }
    }

    /// The channel on which a follower receives the request.
    pub(crate) fn wanted(&self, kind: &str) -> Option<watch::Receiver<()>> {
        self.kinds.get(kind).map(watch::Sender::subscribe)
    }

    pub(crate) fn send(&self, kind: &str) {
        if let Some(wanted) = self.kinds.get(kind) {
            wanted.send_replace(());
        }
    }
}

/// Waits until the kind must be listed again.
async fn wanted_anew(anew: &mut Option<watch::Receiver<()>>) {
    let Some(wanted) = anew else { return std::future::pending().await };
    if wanted.changed().await.is_err() {
        // The agent has ended, so no more requests will come.
        std::future::pending().await
    }
}

/// Follows a kind until the future is dropped.
pub(crate) async fn follow(context: Context, resource: Resource, mut anew: Option<watch::Receiver<()>>) -> Infallible {
    let mut cursor = Cursor::new(resource);
    let mut waits = Waits::new();
    loop {
        cursor.begin();
        let started = Instant::now();
        let answer = tokio::select! {
            answer = ask(&context, &mut cursor) => answer,
            () = wanted_anew(&mut anew) => {
                cursor.list_anew();
                continue;
            }
        };
        let Err(fault) = answer else { continue };
        let kind = cursor.resource().kind;
        if cursor.resource().optional && matches!(fault, Fault::Refused { code: 404, .. }) {
            cursor.absent(|event| _ = context.told.send(Heard::Told(event, Instant::now())));
            context.metrics.connected(kind, true);
            sleep(ABSENT_WAIT).await;
            continue;
        }
        let next = cursor.failed(&fault);
        if fault != Fault::Closed {
            context.metrics.watch_fault(kind);
            context
                .log
                .info("watch interrupted", &[("kind", Value::from(kind)), ("error", Value::from(fault.to_string()))]);
        }
        if let Some(wait) = waits.after(&fault, next, started.elapsed()) {
            context.metrics.connected(kind, false);
            sleep(wait).await;
        }
    }
}

/// Sends one request and reads its answer to the end. `Ok` means that a page was read: the next request follows at
/// once.
async fn ask(context: &Context, cursor: &mut Cursor) -> Result<(), Fault> {
    let request =
        Request::get(cursor.uri(chance())).body(Vec::new()).map_err(|error| Fault::Broken(error.to_string()))?;
    let kind = cursor.resource().kind;
    let tell = |event: Event| {
        // An error means that the agent is stopping. The follower is dropped soon.
        _ = context.told.send(Heard::Told(event, Instant::now()));
    };
    if cursor.wants_page() {
        let answer = timeout(ANSWER, context.client.request_text(request)).await;
        let text = answer.map_err(|_| Fault::Silent)?.map_err(fault)?;
        return cursor.page(&text, tell);
    }
    let answer = timeout(ANSWER, context.client.request_stream(request)).await;
    let mut lines = pin!(answer.map_err(|_| Fault::Silent)?.map_err(fault)?.lines());
    context.metrics.connected(kind, true);
    loop {
        let silence = if cursor.is_initial() { INITIAL_SILENCE } else { WATCH_SILENCE };
        let line = timeout(silence, lines.try_next()).await.map_err(|_| Fault::Silent)?;
        match line.map_err(|error| Fault::Broken(error.to_string()))? {
            Some(line) => cursor.line(&line, tell)?,
            None => return Err(Fault::Closed),
        }
    }
}

fn fault(error: Error) -> Fault {
    match error {
        Error::Api(status) => Fault::Refused { code: status.code, message: status.message.clone() },
        other => Fault::Broken(chain(&other)),
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(&format!(": {said}"));
        }
        cause = error.source();
    }
    text
}

/// Growing waits.
struct Waits {
    next: Duration,
    /// Whether the last request did not reach a server.
    is_away: bool,
    /// Versions that expired in a row.
    expired: u32,
}

impl Waits {
    fn new() -> Self {
        Self { next: FIRST_WAIT, is_away: false, expired: 0 }
    }

    /// The wait after a request that failed after `lasted`; `None` for an immediate retry.
    ///
    /// The first answer after an outage resets the back-off, even if the answer is an error: the wait grew because
    /// there was no server. A server that has just started may refuse the first list while its caches fill. An expired
    /// version leads to an immediate list. If the lists expire too, there is a pause between them.
    fn after(&mut self, fault: &Fault, next: Next, lasted: Duration) -> Option<Duration> {
        let is_away = matches!(fault, Fault::Broken(_) | Fault::Silent);
        if lasted > SETTLED || (self.is_away && !is_away) {
            *self = Self::new();
        }
        self.is_away = is_away;
        let is_expired = matches!(fault, Fault::Refused { code: 410, .. });
        self.expired = if is_expired { self.expired.saturating_add(1) } else { 0 };
        (next == Next::Later || self.expired > EXPIRED_AT_ONCE).then(|| self.next())
    }

    /// A random wait between half of the present wait and all of it. Doubles the present wait.
    fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(LONGEST_WAIT);
        now / 2 + now.mul_f64(f64::from(chance() % 1_000) / 2_000.0)
    }
}

/// A number that differs from node to node and from call to call. The standard library seeds its hash maps with such
/// numbers.
fn chance() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_millis(5);

    fn expired() -> Fault {
        Fault::Refused { code: 410, message: String::new() }
    }

    fn after_an_outage() -> Waits {
        let mut waits = Waits::new();
        for _ in 0..10 {
            assert!(waits.after(&Fault::Broken("refused".to_owned()), Next::Later, BRIEF).is_some());
        }
        assert_eq!(waits.next, LONGEST_WAIT);
        waits
    }

    #[test]
    fn after_an_outage_an_expired_version_is_listed_anew_at_once() {
        let mut waits = after_an_outage();
        assert_eq!(waits.after(&expired(), Next::AtOnce, BRIEF), None);
        // The server's caches fill: it refuses the list for a moment.
        let busy = Fault::Refused { code: 429, message: String::new() };
        let wait = waits.after(&busy, Next::Later, BRIEF);
        assert!(wait.is_some_and(|wait| wait <= FIRST_WAIT), "{wait:?}");
    }

    #[test]
    fn a_server_that_answers_after_an_outage_is_not_waited_for_as_if_it_were_away() {
        let mut waits = after_an_outage();
        let refused = Fault::Refused { code: 503, message: String::new() };
        assert!(waits.after(&refused, Next::Later, BRIEF).is_some_and(|wait| wait <= FIRST_WAIT));
        for _ in 0..10 {
            waits.after(&refused, Next::Later, BRIEF);
        }
        assert_eq!(waits.next, LONGEST_WAIT, "but a server that goes on refusing is");
    }

    #[test]
    fn a_server_where_every_list_expires_is_not_asked_without_a_pause() {
        let mut waits = Waits::new();
        let waited: Vec<bool> = (0..5).map(|_| waits.after(&expired(), Next::AtOnce, BRIEF).is_some()).collect();
        assert_eq!(waited, [false, false, true, true, true]);
        assert_eq!(waits.after(&Fault::Closed, Next::AtOnce, BRIEF), None);
    }
}
