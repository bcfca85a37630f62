//! Random lives of the agent. Events come in any order. When they have stopped, the kernel must give the verdicts of
//! the reference model for the existing objects.
//!
//! Problem: the agent's bookkeeping can fail in orders of events that no hand-written test covers. Examples: a deletion
//! arrives after another pod has the address, a new list loses events, the agent dies between two steps.
//! Strategy: three models run around the agent. In the cluster ([`world`]), pods, policies, services and namespaces
//! come and go. The API server ([`server`]) has lists and watches that are late, end and expire; the agent's own
//! [`crate::watch::cursor::Cursor`] reads them. On the host ([`host`]), interfaces come and go, and the kernel outlives
//! the agent. The test moves the clock. After each round, [`verdicts`] sends packets between all pods, and to services,
//! through the programs that are in force.
//! Invariant: the same seed gives the same life, except for the time that this machine takes for a generation.
//!
//! `WEIR_LIFE_ROUNDS` sets the number of rounds and `WEIR_LIFE_SEED` the first seed; `cargo xtask life` runs without
//! end.

mod host;
mod server;
mod verdicts;
mod world;

use std::sync::{Arc, Mutex};

use weir_testing::Random;

use super::*;
use crate::watch::resources;
use crate::watch::scope::WatchScope;
use host::FakeHost;
use server::{FakeApiServer, Stream};
use verdicts::VerdictTally;
use world::FakeCluster;

/// The number of rounds of one cluster.
const LIFE: usize = 12;
/// Longer than every wait of the agent, except the waits between retries.
const QUIET_TIME: Duration = Duration::from_secs(45);

struct Life {
    dice: Random,
    world: FakeCluster,
    streams: Vec<Stream>,
    agent: NodeAgent<FakeHost>,
    metrics: Arc<Metrics>,
    relist: Arc<Mutex<BTreeSet<&'static str>>>,
    /// The agent's orders to the followers.
    orders: Arc<Mutex<Vec<(&'static str, FollowOrder)>>>,
    /// Pods that the CNI plug-in has asked about, by their UIDs.
    held: Vec<(String, std::sync::mpsc::Receiver<crate::cni::wire::CniAnswer>)>,
    tally: VerdictTally,
    now: Instant,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut dice = Random::new(seed);
        let world = FakeCluster::new(&mut dice);
        let (relist, orders) = (Arc::default(), Arc::default());
        let (agent, metrics) = agent(&world.host, &relist, &orders);
        Self {
            dice,
            world,
            streams: Stream::all(),
            agent,
            metrics,
            relist,
            orders,
            held: Vec::new(),
            tally: VerdictTally::default(),
            now: Instant::now(),
        }
    }

    fn round(&mut self) -> Vec<String> {
        let steps = 10 + self.dice.below(30);
        for _ in 0..steps {
            match self.dice.below(40) {
                0..=13 => self.world.act(&mut self.dice),
                14..=27 => self.deliver(),
                28..=35 => {
                    let time = Duration::from_millis(1 + self.dice.below(400) as u64);
                    self.pass(time, true);
                }
                36 => self.disturb(),
                37 => self.kill(),
                _ => self.ask(),
            }
        }
        self.world.finish(&mut self.dice);
        self.deliver_everything();
        if self.world.is_any_ending() {
            // A namespace is being deleted: the agent keeps its policies after their deletion, so the objects do not
            // define the result.
            self.held.clear();
            return Vec::new();
        }
        let (pods, of) = (self.world.expected_pods(), &self.world.of);
        let mut state = self.world.host.lock();
        *self.tally.entry("single").or_default() += std::mem::take(&mut state.singles);
        *self.tally.entry("extended").or_default() += std::mem::take(&mut state.extended);
        *self.tally.entry("prepared").or_default() += std::mem::take(&mut state.prepared);
        let mut wrong = verdicts::differences(&self.world.server, &state, &pods, of, &mut self.tally);
        let held = std::mem::take(&mut self.held)
            .into_iter()
            .filter(|(uid, _)| pods.iter().any(|pod| pod.uid == *uid && !pod.is_disputed));
        for (uid, answer) in held {
            match answer.try_recv() {
                Ok(Ok(_)) => *self.tally.entry("started").or_default() += 1,
                other => wrong.push(format!("the answer to the CNI plug-in about {uid} is {other:?}")),
            }
        }
        let is_disputed = pods.iter().any(|it| it.is_disputed);
        if let Some(why) = self.metrics.unready().filter(|_| wrong.is_empty() && !is_disputed) {
            wrong.push(format!("everything is in force, and the agent is not ready: {why}"));
        }
        wrong
    }

    /// Delivers some events of one stream, or of all streams.
    fn deliver(&mut self) {
        let (all, count) = (0..self.streams.len(), 1 + self.dice.below(12));
        let which = self.dice.below(self.streams.len());
        let which = if self.dice.once_in(3) { all } else { which..which + 1 };
        for _ in 0..count {
            which.clone().for_each(|which| _ = self.step(which));
        }
    }

    fn step(&mut self, which: usize) -> bool {
        self.obey();
        let (message, had) = message(&mut self.streams[which], &self.world.server, &mut self.dice, self.now);
        self.agent.handle(message);
        let is_relisted = list_again(&self.relist, &mut self.streams);
        had || is_relisted
    }

    /// Gives the agent's orders to the followers. Returns whether there were any.
    fn obey(&mut self) -> bool {
        obey(&self.orders, &mut self.streams, &mut self.tally)
    }

    /// Lets time pass. `is_busy` says whether events arrive while the agent works.
    fn pass(&mut self, time: Duration, is_busy: bool) {
        let end = self.now + time;
        self.act(is_busy);
        while let Some(due) = self.agent.due().filter(|due| *due <= end) {
            self.now = due.max(self.now);
            self.act(is_busy);
        }
        self.now = end;
    }

    fn act(&mut self, is_busy: bool) {
        let Self { dice, world, streams, agent, relist, orders, tally, now, .. } = self;
        let mut messages = if is_busy && dice.once_in(2) { dice.below(12) } else { 0 };
        let mut inbox = || {
            messages = messages.checked_sub(1)?;
            obey(orders, streams, tally);
            list_again(relist, streams);
            let which = dice.below(streams.len());
            *tally.entry("meanwhile").or_default() += 1;
            Some(message(&mut streams[which], &world.server, dice, *now).0)
        };
        agent.act(*now, &mut inbox);
    }

    fn disturb(&mut self) {
        match self.dice.below(3) {
            0 => self.world.host.lock().refuse = 1 + self.dice.below(2),
            1 => self.world.host.lock().refuse_pod = 1,
            _ => {
                let which = self.dice.below(self.streams.len());
                self.streams[which].close();
            }
        }
    }

    /// The CNI plug-in asks about a pod that it has attached.
    fn ask(&mut self) {
        let Some((uid, question)) = self.world.question(&mut self.dice) else { return };
        let (reply, answer) = std::sync::mpsc::channel();
        self.agent.handle(AgentMessage::Question(PendingQuestion { question, since: self.now, reply }));
        self.held.push((uid, answer));
    }

    /// Kills the agent and starts another one on the same kernel state.
    fn kill(&mut self) {
        self.world.trail.push("killed".to_owned());
        self.obey();
        (self.agent, self.metrics) = agent(&self.world.host, &self.relist, &self.orders);
        self.streams = Stream::all();
        // The plug-ins see that the socket is closed, and ask again.
        self.held.clear();
    }

    fn deliver_everything(&mut self) {
        {
            let mut state = self.world.host.lock();
            (state.refuse, state.refuse_pod) = (0, 0);
        }
        loop {
            while (0..self.streams.len()).filter(|which| self.step(*which)).count() > 0 {}
            self.pass(QUIET_TIME, false);
            if !self.obey() {
                break;
            }
        }
    }
}

/// The next events of a stream, and whether it was able to do anything.
fn message(stream: &mut Stream, server: &FakeApiServer, dice: &mut Random, now: Instant) -> (AgentMessage, bool) {
    let mut events = Vec::new();
    let had = stream.step(server, dice, &mut |event| events.push((event, now)));
    (AgentMessage::Api(events), had)
}

/// Lists the kinds again that the agent asks for. Returns whether there were any.
fn list_again(relist: &Mutex<BTreeSet<&'static str>>, streams: &mut [Stream]) -> bool {
    let relisted = std::mem::take(&mut *relist.lock().expect("no test panics while it holds it"));
    streams.iter_mut().filter(|it| relisted.contains(it.kind)).for_each(Stream::list_again);
    !relisted.is_empty()
}

/// Gives orders to the followers. Returns whether there were any.
fn obey(orders: &Mutex<Vec<(&'static str, FollowOrder)>>, streams: &mut [Stream], tally: &mut VerdictTally) -> bool {
    let orders = std::mem::take(&mut *orders.lock().expect("no test panics while it holds it"));
    for (kind, order) in &orders {
        *tally.entry("ordered").or_default() += 1;
        streams.iter_mut().filter(|it| it.kind == *kind).for_each(|it| it.obey(*order));
    }
    !orders.is_empty()
}

fn agent(
    host: &FakeHost,
    relist: &Arc<Mutex<BTreeSet<&'static str>>>,
    orders: &Arc<Mutex<Vec<(&'static str, FollowOrder)>>>,
) -> (NodeAgent<FakeHost>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::default());
    let (seen, wanted, ordered) = (host.clone(), Arc::clone(relist), Arc::clone(orders));
    let kinds = resources::kinds().into_iter().map(|it| it.kind);
    let setup = Setup {
        node: "near".to_owned(),
        assume: Assumptions::default(),
        unknown_pods: UnknownPods::Allow,
        kinds: kinds.filter(|kind| WatchScope::initial(kind) != WatchScope::Nothing).collect(),
        read_host: Box::new(move |depth| seen.inventory(depth)),
        reports: Reports {
            metrics: Arc::clone(&metrics),
            notices: Notices::new(tokio::sync::mpsc::channel(64).0, Arc::clone(&metrics)),
            published: tokio::sync::watch::channel(PublishedGeneration::default()).0,
            log: Log,
        },
        relist: Box::new(move |kind| _ = wanted.lock().expect("no test panics while it holds it").insert(kind)),
        send_order: Box::new(move |kind, order| {
            ordered.lock().expect("no test panics while it holds it").push((kind, order));
        }),
        target: Target::BASE,
        budgets: Budgets::default(),
        cpu: "10%".parse().expect("it is a share"),
        read_cpu: Box::new(|| Duration::ZERO),
    };
    (NodeAgent::new(setup, host.clone()), metrics)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn kernel_matches_the_reference_after_random_events() {
    let (rounds, first) = (number("WEIR_LIFE_ROUNDS", 240), number("WEIR_LIFE_SEED", 1));
    let (mut failures, mut tally) = (0, VerdictTally::default());
    for life in 0..rounds.div_ceil(LIFE as u64) {
        let seed = first + life;
        let mut it = Life { tally, ..Life::new(seed) };
        for round in 0..LIFE {
            let wrong = it.round();
            if !wrong.is_empty() {
                failures += 1;
                println!("seed {seed} round {round}: {}\n{}", wrong.join("\n"), it.world.shown());
                break;
            }
        }
        tally = it.tally;
    }
    println!("{rounds} rounds from seed {first}: {tally:?}");
    let occurs = |result| tally.get(result).is_some_and(|count| *count > 0);
    assert!(
        ["allowed", "denied", "service allowed", "service denied"].into_iter().all(occurs)
            && ["started", "ordered", "single", "extended", "prepared", "meanwhile"].into_iter().all(occurs),
        "each kind of answer occurs: {tally:?}"
    );
    // This occurs only if a new agent meets a pod that it did not know and a neighbour that acts first.
    assert!(occurs("closed") || rounds < 5_000, "some pods are closed: {tally:?}");
    assert_eq!(failures, 0, "lives of {rounds} rounds that ended in a difference");
}
