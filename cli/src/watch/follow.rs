//! Follows one kind of objects for as long as the agent lives.
//!
//! [`WatchCursor`] decides; this module adds the connection, the clock and randomness. A fault is logged and counted.
//! The next attempt follows after a wait that grows each time and is partly random, so that the nodes of a cluster do
//! not all reconnect at once. A follower never gives up.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use http::Request;
use http::header::ACCEPT_ENCODING;
use kube::{Client, Error};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::AgentMessage;
use super::answer_lines::AnswerLines;
use super::api_health::{ApiHealth, FailedAt, Progress};
use super::cursor::{ApiEvent, NextRequest, WatchCursor, WatchFault};
use super::metrics::Metrics;
use super::resources::Resource;
use super::scope::{FollowOrder, WatchScope};
use crate::failure::chain;
use crate::served_policies::lacks;

/// The longest silence in a watch: servers send a bookmark every minute.
const WATCH_SILENCE: Duration = Duration::from_secs(150);
/// The longest silence in a list in the form of a stream, which does not pause.
const INITIAL_SILENCE: Duration = Duration::from_secs(15);
/// The pause in a list after which its events are sent to the agent before there are enough of them for a message.
const LIST_PAUSE: Duration = Duration::from_millis(20);
/// The time between two messages to the agent about kinds that change all the time ([`is_busy`]). It is as long as
/// the time between two epochs for single addresses.
const TICK: Duration = Duration::from_millis(100);
/// The limit for a page of a list, and for the beginning of any answer.
const ANSWER: Duration = Duration::from_secs(60);
/// The waits after faults: the first one, and the limit for their doubling.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The interval between requests for a kind that the server does not have. If it has had the kind, it must lack the
/// kind for this time.
const ABSENT_WAIT: Duration = Duration::from_secs(30);
/// The time over which the agents of a cluster spread their lists, if all of them need one for the same reason.
const RELIST_SPREAD: Duration = Duration::from_millis(500);
/// If more versions than this expire in a row, the follower waits before it lists again.
const EXPIRED_AT_ONCE: u32 = 2;
/// After a request that worked for longer than this, waits are short again.
const LONG_REQUEST: Duration = Duration::from_secs(60);

/// The connections that all followers share.
#[derive(Clone)]
pub(crate) struct FollowContext {
    pub(crate) client: Client,
    pub(crate) agent: Sender<AgentMessage>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Arc<ApiHealth>,
    /// The name of the agent's node.
    pub(crate) node: Arc<str>,
    /// The time of the first tick ([`is_busy`]).
    pub(crate) begun: Instant,
}

/// The requests of the agent to one follower.
#[derive(Clone)]
pub(crate) struct FollowRequests {
    pub(crate) relist: Option<watch::Receiver<()>>,
    pub(crate) orders: Option<watch::Receiver<FollowOrder>>,
}

/// Makes followers list their kinds again, when known objects may be outdated.
#[derive(Debug)]
pub(crate) struct RelistRequests {
    kinds: BTreeMap<&'static str, watch::Sender<()>>,
}

impl RelistRequests {
    pub(crate) fn new(kinds: impl Iterator<Item = &'static str>) -> Self {
        Self { kinds: kinds.map(|kind| (kind, watch::Sender::new(()))).collect() }
    }

    /// The channel on which a follower receives the request.
    pub(crate) fn receiver(&self, kind: &str) -> Option<watch::Receiver<()>> {
        self.kinds.get(kind).map(watch::Sender::subscribe)
    }

    pub(crate) fn send(&self, kind: &str) {
        if let Some(sender) = self.kinds.get(kind) {
            sender.send_replace(());
        }
    }
}

impl FollowRequests {
    /// The present order, if it differs from this one.
    fn order_after(&mut self, known: FollowOrder) -> Option<FollowOrder> {
        let order = *self.orders.as_mut()?.borrow_and_update();
        (order != known).then_some(order)
    }

    /// Waits until there is another order.
    async fn other_order(&mut self) {
        changed(self.orders.as_mut()).await;
    }

    /// Waits for this time, or until there is another order.
    async fn pause(&mut self, time: Duration) {
        _ = timeout(time, self.other_order()).await;
    }
}

/// Waits until the kind must be listed again. The agents of all nodes learn the reason at the same time, so each waits
/// for a random part of [`RELIST_SPREAD`] first. The watch continues meanwhile.
async fn relist_requested(relist: Option<&mut watch::Receiver<()>>) {
    let Some(receiver) = relist else { return std::future::pending().await };
    changed(Some(receiver)).await;
    // If the present request ends during the wait, this function is called again and must see the request again.
    receiver.mark_changed();
    sleep(RELIST_SPREAD.mul_f64(share())).await;
    receiver.mark_unchanged();
}

/// Waits until the channel has a new value.
async fn changed<T>(receiver: Option<&mut watch::Receiver<T>>) {
    let Some(receiver) = receiver else { return std::future::pending().await };
    if receiver.changed().await.is_err() {
        // The agent has ended, so no more requests will come.
        std::future::pending().await
    }
}

/// Whether the server has a kind that servers may lack.
///
/// Problem: a server without the kind answers 404. So do proxies without a server, and servers that have just started.
/// If their answers counted, all lists and cluster-wide policies would be gone.
/// Strategy: the server must also say that it lacks the kind. If it has had the kind, it must say so again after
/// [`ABSENT_WAIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindPresence {
    Unknown,
    Present,
    /// It was present, and the server has said at this time that it lacks the kind.
    Doubted(Instant),
    Absent,
}

impl KindPresence {
    /// Takes the server's answer whether it lacks the kind, after a 404.
    fn not_found(self, is_lacking: bool, now: Instant) -> Self {
        match self {
            Self::Absent => Self::Absent,
            Self::Unknown if is_lacking => Self::Absent,
            Self::Present if is_lacking => Self::Doubted(now),
            Self::Doubted(since) if is_lacking && now.saturating_duration_since(since) >= ABSENT_WAIT => Self::Absent,
            Self::Doubted(_) if !is_lacking => Self::Present,
            other => other,
        }
    }
}

/// Whether the server says that it lacks a kind. If it cannot be asked, it has not said so: the fault gets the reason.
async fn is_lacking(client: &Client, resource: &Resource, fault: &mut WatchFault) -> bool {
    let why = match timeout(ANSWER, lacks(client, resource)).await {
        Ok(Ok(is_lacking)) => return is_lacking,
        Ok(Err(error)) => chain(&error),
        Err(_) => "it does not answer".to_owned(),
    };
    if let WatchFault::Refused { message, .. } = fault {
        message.push_str(&format!("; it cannot be asked whether it has the kind (GET /apis): {why}"));
    }
    false
}

/// Follows a kind until the future is dropped.
pub(crate) async fn follow(context: FollowContext, resource: Resource, mut requests: FollowRequests) -> Infallible {
    let mut cursor = WatchCursor::new(resource);
    let (mut waits, mut presence) = (Waits::new(), KindPresence::Unknown);
    loop {
        if let Some(order) = requests.order_after(cursor.order()) {
            cursor.obey(order, &context.node);
        }
        let kind = cursor.resource().kind;
        if cursor.order().scope == WatchScope::Nothing {
            context.metrics.not_followed(kind);
            requests.other_order().await;
            continue;
        }
        cursor.begin();
        let started = Instant::now();
        let FollowRequests { relist, orders } = &mut requests;
        let answer = tokio::select! {
            answer = send_request(&context, &mut cursor, &mut presence) => answer,
            () = relist_requested(relist.as_mut()) => {
                cursor.list_again();
                continue;
            }
            // The order is read at the beginning of the loop.
            () = changed(orders.as_mut()) => continue,
        };
        let Err(FailedRequest { mut fault, at }) = answer else { continue };
        let is_not_found = cursor.resource().optional && matches!(fault, WatchFault::Refused { code: 404, .. });
        if is_not_found && presence != KindPresence::Absent {
            let is_lacking = is_lacking(&context.client, cursor.resource(), &mut fault).await;
            presence = presence.not_found(is_lacking, Instant::now());
        } else if !is_not_found && matches!(presence, KindPresence::Doubted(_)) {
            presence = KindPresence::Present;
        }
        if at == FailedAt::Answer && fault == WatchFault::Silent {
            cursor.watch_was_silent();
        }
        if is_not_found && presence == KindPresence::Absent {
            cursor.kind_is_absent(|event| EventBatch::new(&context.agent).push(event));
            context.metrics.connected(kind, true);
            context.health.answered(kind, Progress::Read);
            sleep(ABSENT_WAIT).await;
            continue;
        }
        let next = cursor.failed(&fault);
        if fault != WatchFault::Closed {
            context.metrics.watch_fault(kind);
        }
        match next {
            NextRequest::Later => context.health.failed(kind, &fault, at),
            NextRequest::AtOnce => context.health.repeated(kind, &fault),
        }
        if let Some(wait) = waits.after(&fault, next, started.elapsed()) {
            context.metrics.connected(kind, false);
            requests.pause(wait).await;
        }
    }
}

/// A request that failed.
struct FailedRequest {
    fault: WatchFault,
    at: FailedAt,
}

impl FailedRequest {
    fn at_once(fault: WatchFault) -> Self {
        Self { fault, at: FailedAt::Request }
    }

    fn in_answer(fault: WatchFault) -> Self {
        Self { fault, at: FailedAt::Answer }
    }
}

/// Events that were received and are sent to the agent together. A list has a hundred thousand events, and each message
/// wakes the agent's thread.
///
/// Dropping it sends the events: a request can end at any time, and all that it brought counts.
struct EventBatch<'c> {
    agent: &'c Sender<AgentMessage>,
    events: Vec<(ApiEvent, Instant)>,
}

impl<'c> EventBatch<'c> {
    /// The most events in a message.
    const MOST: usize = 256;

    fn new(agent: &'c Sender<AgentMessage>) -> Self {
        Self { agent, events: Vec::new() }
    }

    fn push(&mut self, event: ApiEvent) {
        self.events.push((event, Instant::now()));
        if self.events.len() >= Self::MOST {
            self.send();
        }
    }

    /// Returns whether there were events.
    fn send(&mut self) -> bool {
        let events = std::mem::take(&mut self.events);
        let has_events = !events.is_empty();
        if has_events {
            // An error means that the agent is stopping. The follower is dropped soon.
            _ = self.agent.send(AgentMessage::Api(events));
        }
        has_events
    }
}

impl Drop for EventBatch<'_> {
    fn drop(&mut self) {
        self.send();
    }
}

/// Whether objects of this kind change all the time.
///
/// Problem: each event wakes this thread, and then the agent's, and the work around an event costs more than the event.
/// Strategy: after it has sent events, the follower of such a kind reads no more until the next tick, and then all that
/// have arrived. The ticks of all followers are at the same times, so the agent wakes once for all of them. An event
/// after a quiet time is read at once.
/// Invariant: policies, lists, namespaces and services never wait.
fn is_busy(kind: &str) -> bool {
    matches!(kind, "Pod" | "EndpointSlice" | "Node")
}

/// The time until the next tick, if the first one was this long ago.
fn until_tick(begun: Duration) -> Duration {
    let tick = TICK.as_micros();
    Duration::from_micros((tick - begun.as_micros() % tick) as u64)
}

/// Sends one request and reads its answer to the end. `Ok` means that a page was read: the next request follows at
/// once.
async fn send_request(
    context: &FollowContext,
    cursor: &mut WatchCursor,
    presence: &mut KindPresence,
) -> Result<(), FailedRequest> {
    // A proxy in between may compress the answer otherwise. A compressed watch can hold an event back until later events
    // fill a block.
    let request = Request::get(cursor.uri(chance())).header(ACCEPT_ENCODING, "identity").body(Vec::new());
    let request = request.map_err(|error| FailedRequest::at_once(WatchFault::Broken(error.to_string())))?;
    let kind = cursor.resource().kind;
    let mut batch = EventBatch::new(&context.agent);
    if cursor.wants_page() {
        let answer = timeout(ANSWER, context.client.request_text(request)).await;
        let text = answer.map_err(|_| WatchFault::Silent).and_then(|it| it.map_err(fault));
        let text = text.map_err(FailedRequest::at_once)?;
        *presence = KindPresence::Present;
        cursor.page(&text, |event| batch.push(event)).map_err(FailedRequest::in_answer)?;
        context.health.answered(kind, Progress::Read);
        return Ok(());
    }
    let answer = timeout(ANSWER, context.client.request_stream(request)).await;
    let stream = answer.map_err(|_| WatchFault::Silent).and_then(|it| it.map_err(fault));
    let stream = pin!(stream.map_err(FailedRequest::at_once)?);
    let mut lines = AnswerLines::new(stream);
    *presence = KindPresence::Present;
    context.metrics.connected(kind, true);
    context.health.answered(kind, Progress::Begun);
    let mut is_read = false;
    loop {
        let soon = match cursor.is_initial() {
            true => timeout(LIST_PAUSE, lines.next()).await.ok(),
            false => lines.next_if_there().await,
        };
        let line = match soon {
            Some(line) => Ok(line),
            None => {
                if batch.send() && !cursor.is_initial() && is_busy(kind) {
                    sleep(until_tick(context.begun.elapsed())).await;
                }
                let silence = if cursor.is_initial() { INITIAL_SILENCE } else { WATCH_SILENCE };
                timeout(silence, lines.next()).await.map_err(|_| WatchFault::Silent)
            }
        };
        let line = line.and_then(|it| it.map_err(|error| WatchFault::Broken(error.to_string())));
        let read = line.and_then(|line| cursor.line(&line.ok_or(WatchFault::Closed)?, |event| batch.push(event)));
        read.map_err(FailedRequest::in_answer)?;
        if !std::mem::replace(&mut is_read, true) {
            context.health.answered(kind, Progress::Read);
        }
    }
}

fn fault(error: Error) -> WatchFault {
    match error {
        Error::Api(status) => WatchFault::Refused { code: status.code, message: status.message.clone() },
        other => WatchFault::Broken(chain(&other)),
    }
}

/// Growing waits.
struct Waits {
    next: Duration,
    /// Whether the last request did not reach a server.
    is_unreachable: bool,
    /// Versions that expired in a row.
    expired: u32,
}

impl Waits {
    fn new() -> Self {
        Self { next: FIRST_WAIT, is_unreachable: false, expired: 0 }
    }

    /// The wait after a request that failed after `lasted`; `None` for an immediate retry.
    ///
    /// The first answer after an outage resets the back-off, even if the answer is an error: the wait grew because
    /// there was no server. A server that has just started may refuse the first list while its caches fill. An expired
    /// version leads to a list after a random part of [`RELIST_SPREAD`], because it expires for all nodes at once. If
    /// the lists expire too, the pauses between them grow.
    fn after(&mut self, fault: &WatchFault, next: NextRequest, lasted: Duration) -> Option<Duration> {
        let is_unreachable = matches!(fault, WatchFault::Broken(_) | WatchFault::Silent);
        if lasted > LONG_REQUEST || (self.is_unreachable && !is_unreachable) {
            *self = Self::new();
        }
        self.is_unreachable = is_unreachable;
        let is_expired = matches!(fault, WatchFault::Refused { code: 410, .. });
        self.expired = if is_expired { self.expired.saturating_add(1) } else { 0 };
        match next == NextRequest::Later || self.expired > EXPIRED_AT_ONCE {
            true => Some(self.next()),
            false => is_expired.then(|| RELIST_SPREAD.mul_f64(share())),
        }
    }

    /// A random wait between half of the present wait and all of it. Doubles the present wait.
    fn next(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(LONGEST_WAIT);
        now / 2 + now.mul_f64(share() / 2.0)
    }
}

/// A random number from 0 to 1.
fn share() -> f64 {
    f64::from(chance() % 1_000) / 1_000.0
}

/// A number that differs from node to node and from call to call. The standard library seeds its hash maps with such
/// numbers.
fn chance() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0) as u32
}

#[cfg(test)]
mod tests {
    use xtask::simulated::Simulated;

    use super::*;
    use crate::watch::listed::ListedNames;
    use crate::watch::log::Log;
    use crate::watch::scope::FollowOrders;

    const BRIEF: Duration = Duration::from_millis(5);

    fn expired() -> WatchFault {
        WatchFault::Refused { code: 410, message: String::new() }
    }

    #[test]
    fn events_are_sent_together_and_none_is_lost() {
        let (agent, messages) = std::sync::mpsc::channel();
        let sent = |messages: &std::sync::mpsc::Receiver<AgentMessage>| {
            let count = |message| match message {
                AgentMessage::Api(events) => events.len(),
                other => panic!("{other:?}"),
            };
            messages.try_iter().map(count).collect::<Vec<_>>()
        };
        let event = || ApiEvent::Listed { kind: "Pod", names: ListedNames::default(), order: 0 };
        let mut batch = EventBatch::new(&agent);
        (1..EventBatch::MOST).for_each(|_| batch.push(event()));
        assert!(sent(&messages).is_empty(), "more may follow at once");
        (0..2).for_each(|_| batch.push(event()));
        assert_eq!(sent(&messages), [EventBatch::MOST]);
        drop(batch);
        assert_eq!(sent(&messages), [1], "a request has ended");
        EventBatch::new(&agent).send();
        assert!(sent(&messages).is_empty(), "no message without an event");
    }

    #[test]
    fn only_kinds_without_rules_wait_for_a_tick() {
        let busy: Vec<&str> = crate::api_kinds::kinds().iter().map(|it| it.kind).filter(|it| is_busy(it)).collect();
        assert_eq!(busy, ["Node", "Pod", "EndpointSlice"]);
        for (begun, wait) in [(0, 100_000), (1, 99_999), (99_999, 1), (100_000, 100_000), (365_000, 35_000)] {
            assert_eq!(until_tick(Duration::from_micros(begun)), Duration::from_micros(wait), "{begun}");
        }
    }

    fn after_an_outage() -> Waits {
        let mut waits = Waits::new();
        for _ in 0..10 {
            assert!(waits.after(&WatchFault::Broken("refused".to_owned()), NextRequest::Later, BRIEF).is_some());
        }
        assert_eq!(waits.next, LONGEST_WAIT);
        waits
    }

    #[test]
    fn expired_version_is_listed_soon_after_an_outage() {
        let mut waits = after_an_outage();
        let wait = waits.after(&expired(), NextRequest::AtOnce, BRIEF);
        assert!(wait.is_some_and(|wait| wait <= RELIST_SPREAD), "{wait:?}");
        // The server's caches fill: it refuses the list for a moment.
        let busy = WatchFault::Refused { code: 429, message: String::new() };
        let wait = waits.after(&busy, NextRequest::Later, BRIEF);
        assert!(wait.is_some_and(|wait| wait <= FIRST_WAIT), "{wait:?}");
    }

    #[test]
    fn first_answer_after_an_outage_resets_the_backoff() {
        let mut waits = after_an_outage();
        let refused = WatchFault::Refused { code: 503, message: String::new() };
        assert!(waits.after(&refused, NextRequest::Later, BRIEF).is_some_and(|wait| wait <= FIRST_WAIT));
        for _ in 0..10 {
            waits.after(&refused, NextRequest::Later, BRIEF);
        }
        assert_eq!(waits.next, LONGEST_WAIT, "repeated refusals lengthen the wait again");
    }

    #[test]
    fn repeatedly_expired_lists_are_paused() {
        let mut waits = Waits::new();
        for _ in 0..5 {
            waits.after(&expired(), NextRequest::AtOnce, BRIEF);
        }
        assert!(waits.next > 4 * FIRST_WAIT, "the pauses grow after the first ones");
        assert_eq!(waits.after(&WatchFault::Closed, NextRequest::AtOnce, BRIEF), None);
    }

    #[tokio::test]
    async fn request_for_a_list_is_not_lost_if_the_wait_before_it_is_interrupted() {
        let requests = RelistRequests::new(["Pod"].into_iter());
        let mut receiver = requests.receiver("Pod");
        requests.send("Pod");
        for _ in 0..3 {
            _ = timeout(Duration::from_millis(1), relist_requested(receiver.as_mut())).await;
        }
        requests.send("Pod");
        let listed = timeout(10 * RELIST_SPREAD, relist_requested(receiver.as_mut())).await;
        assert!(listed.is_ok());
        assert!(receiver.is_some_and(|it| it.has_changed().is_ok_and(|has| !has)), "one list is enough");
    }

    /// A follower of one kind.
    struct Followed {
        server: Simulated,
        messages: std::sync::mpsc::Receiver<AgentMessage>,
        metrics: Arc<Metrics>,
        task: tokio::task::JoinHandle<Infallible>,
    }

    const POLICIES: &str = "/apis/networking.k8s.io/v1/networkpolicies";

    impl Followed {
        async fn new(version: &'static str, path: &'static str, is_hidden: bool) -> Self {
            Self::of(Resource { optional: true, ..Resource::new("NetworkPolicy", version, path) }, is_hidden).await
        }

        async fn of(resource: Resource, is_hidden: bool) -> Self {
            let path = resource.path.to_string();
            let server = Simulated::start().expect("loopback is there");
            if is_hidden {
                server.hide(&path);
            }
            let directory =
                weir_testing::files::Directory::new(&format!("follow-{is_hidden}{}", path.replace('/', "-")));
            let kubeconfig = directory.0.join("kubeconfig");
            server.write_kubeconfig(&kubeconfig).expect("the directory is ours");
            let config = crate::api_config::read(Some(&kubeconfig), None, "").await.expect("it is valid");
            let client = Client::try_from(config).expect("it is valid");
            let (agent, messages) = std::sync::mpsc::channel();
            let metrics = Arc::new(Metrics::default());
            let health = Arc::new(ApiHealth::new(Log));
            let context = FollowContext {
                client,
                agent,
                metrics: Arc::clone(&metrics),
                health,
                node: Arc::from("near"),
                begun: Instant::now(),
            };
            let requests = FollowRequests { relist: None, orders: None };
            let task = tokio::spawn(follow(context, resource, requests));
            Self { server, messages, metrics, task }
        }

        /// The kinds of events until this time has passed.
        async fn events(&self, time: Duration) -> Vec<&'static str> {
            sleep(time).await;
            let kind = |event: &ApiEvent| match event {
                ApiEvent::Applied(_) => "applied",
                ApiEvent::Listed { .. } => "listed",
                other => panic!("{other:?}"),
            };
            let events = self.messages.try_iter().flat_map(|message| match message {
                AgentMessage::Api(events) => events.into_iter().map(|(event, _)| kind(&event)).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            });
            events.collect()
        }

        /// The kinds of events until one of this kind has arrived, however slow the machine is.
        async fn events_until(&self, kind: &str) -> Vec<&'static str> {
            let mut events = Vec::new();
            while !events.contains(&kind) {
                events.extend(self.events(BRIEF).await);
            }
            events
        }
    }

    impl Drop for Followed {
        fn drop(&mut self) {
            self.task.abort();
        }
    }

    #[tokio::test]
    async fn an_answer_of_404_alone_removes_no_objects() {
        let followed = Followed::new("networking.k8s.io/v1", POLICIES, false).await;
        let policy = |name: &str| {
            serde_json::json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": name, "namespace": "shop"}, "spec": {"podSelector": {}}})
        };
        followed.server.put("NetworkPolicy", policy("one"));
        let time = Duration::from_millis(700);
        let events = followed.events_until("listed").await;
        assert!(events.contains(&"applied"), "{events:?}");
        followed.server.hide(POLICIES);
        assert_eq!(followed.events(time).await, [""; 0], "the server has the kind");
        while !followed.metrics.text().contains("weir_watch_connected{kind=\"NetworkPolicy\"} 0") {
            sleep(BRIEF).await;
        }
        followed.server.show(POLICIES);
        followed.server.put("NetworkPolicy", policy("two"));
        followed.events_until("applied").await;
        let followed = Followed::new("networking.k8s.io/v1", POLICIES, true).await;
        assert_eq!(followed.events(time).await, [""; 0], "nor is it an empty list at first");
    }

    /// A message for each event would be one event in each tick.
    #[tokio::test]
    async fn busy_follower_reads_all_events_that_have_arrived() {
        const EVENTS: usize = 500;
        let followed = Followed::of(Resource::new("Pod", "v1", "/api/v1/pods"), false).await;
        assert_eq!(followed.events_until("listed").await, ["listed"]);
        // The follower cannot run meanwhile.
        for number in 0..EVENTS {
            let metadata = serde_json::json!({"name": format!("p{number}"), "namespace": "shop", "uid": "u"});
            followed.server.put("Pod", serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}));
        }
        let (mut events, mut messages) = (0, 0);
        while events < EVENTS {
            for message in followed.messages.try_iter() {
                let AgentMessage::Api(of_message) = message else { panic!("{message:?}") };
                (events, messages) = (events + of_message.len(), messages + 1);
            }
            sleep(BRIEF).await;
        }
        assert!(messages < EVENTS / 5, "{messages} messages");
    }

    #[tokio::test]
    async fn a_kind_that_the_server_lacks_is_an_empty_list() {
        let followed = Followed::new("example.dev/v1", "/apis/example.dev/v1/networkpolicies", false).await;
        assert_eq!(followed.events_until("listed").await, ["listed"]);
        assert_eq!(followed.events(Duration::from_millis(700)).await, [""; 0]);
    }

    #[test]
    fn a_kind_is_gone_when_the_server_says_so_for_some_time() {
        use KindPresence::{Absent, Doubted, Present, Unknown};
        let (now, later) = (Instant::now(), Instant::now() + ABSENT_WAIT);
        assert_eq!(Unknown.not_found(true, now), Absent, "it was never there");
        assert_eq!(Unknown.not_found(false, now), Unknown);
        assert_eq!(Present.not_found(false, now), Present);
        assert_eq!(Present.not_found(true, now), Doubted(now));
        assert_eq!(Doubted(now).not_found(true, now), Doubted(now));
        assert_eq!(Doubted(now).not_found(false, later), Present);
        assert_eq!(Doubted(now).not_found(true, later), Absent);
        assert_eq!(Absent.not_found(false, now), Absent, "it is asked for again");
    }

    #[tokio::test]
    async fn follower_gets_each_order_once() {
        let orders = FollowOrders::new(["Service"].into_iter());
        let mut requests = FollowRequests { relist: None, orders: orders.receiver("Service") };
        let initial = FollowOrder::initial("Service");
        assert_eq!(requests.order_after(initial), None);
        let order = FollowOrder { scope: WatchScope::All, number: 1 };
        orders.send("Service", order);
        requests.pause(Duration::from_secs(3_600)).await;
        assert_eq!(requests.order_after(initial), Some(order));
        assert_eq!(requests.order_after(order), None);
    }
}
