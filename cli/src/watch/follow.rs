//! Follows one kind of objects for as long as the agent lives.
//!
//! [`Cursor`] decides; here are the connection, time and chance. Faults are told and waited for: longer each time, with chance in it,
//! so that the nodes of a cluster do not come back all at once. Nothing here ever gives up.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufReadExt as _, TryStreamExt as _};
use http::Request;
use kube_client::{Client, Error};
use tokio::time::{sleep, timeout};

use super::Heard;
use super::cursor::{Cursor, Event, Fault, Next};
use super::log::{Log, Value};
use super::metrics::Metrics;
use super::resources::Resource;

/// Servers send a bookmark every minute.
const WATCH_SILENCE: Duration = Duration::from_secs(150);
/// A list in the form of a stream does not pause.
const INITIAL_SILENCE: Duration = Duration::from_secs(15);
/// A page of a list, or the beginning of any answer.
const ANSWER: Duration = Duration::from_secs(60);
/// Waits after faults.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How often a kind is asked for that the server does not have.
const ABSENT_WAIT: Duration = Duration::from_secs(30);
/// After so long without a fault waits are short again.
const SETTLED: Duration = Duration::from_secs(60);

/// What all followers share.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) told: Sender<Heard>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log: Log,
}

/// Follows a kind, until it is dropped.
pub(crate) async fn follow(context: Context, resource: Resource) -> Infallible {
    let mut cursor = Cursor::new(resource);
    let mut waits = Waits::new();
    loop {
        cursor.begin();
        let started = Instant::now();
        let Err(fault) = ask(&context, &mut cursor).await else { continue };
        if started.elapsed() > SETTLED {
            waits = Waits::new();
        }
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
        if next == Next::Later {
            context.metrics.connected(kind, false);
            sleep(waits.next()).await;
        }
    }
}

/// One request, to its end. `Ok` is a page, after which another question comes at once.
async fn ask(context: &Context, cursor: &mut Cursor) -> Result<(), Fault> {
    let request =
        Request::get(cursor.uri(chance())).body(Vec::new()).map_err(|error| Fault::Broken(error.to_string()))?;
    let kind = cursor.resource().kind;
    let tell = |event: Event| {
        // Nobody listens any more when the agent stops, and then this is dropped.
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
}

impl Waits {
    fn new() -> Self {
        Self { next: FIRST_WAIT }
    }

    /// Between a half and all of it, by chance.
    fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(LONGEST_WAIT);
        now / 2 + now.mul_f64(f64::from(chance() % 1_000) / 2_000.0)
    }
}

/// A number that differs from node to node and from time to time. The standard library seeds its hash maps with such.
fn chance() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) as u32
}
