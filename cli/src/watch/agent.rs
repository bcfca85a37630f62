//! The agent's decisions: from the events of the API server to generations in force.
//!
//! ```text
//!  follow (threads) ──Event──▶ Agent ──▶ index: required work ──▶ compile ──▶ places: interfaces ──▶ Enforce
//!                               └─ single addresses ───────────────────────────────────────────────────▶ │
//! ```
//!
//! Problem: every part can fail and come back at any time, and that must never weaken the policy in force.
//! Strategy: one thread decides. It gets the time as an argument, the API's state as events, and the kernel through
//! [`Enforce`], so tests can produce every order of events.
//! Invariants: nothing is compiled before every kind has been listed. An object that cannot be read any more keeps
//! its last readable content. If a generation cannot be compiled or installed, the previous one stays in force, and
//! the agent retries.

mod absent;
pub(super) mod budget;
mod early;
mod ending;
mod generation;
mod hold;
mod judging;
mod local;
mod look;
mod namespaces;
mod newcomers;
mod policies;
mod status;
mod unread;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_classes::index::{Dirty, Generation, Index, Key};
use weir_codegen::compile::Budgets;
use weir_ebpf::target::Target;
use weir_model::Assumptions;
use weir_objects::k8s::{Body, Object};

use super::Heard;
use super::annotate::InForce;
use super::cursor::Event;
use super::discover::Found;
use super::enforce::Enforce;
use super::hold::Waiting;
use super::log::{Log, Value};
use super::metrics::Metrics;
use super::notices::{Notice, Notices};
use super::place::{Look, Places, Pod};
use local::remembered;
pub(crate) use newcomers::UnknownPods;

/// A generation begins when there was no change for this time,
const QUIET: Duration = Duration::from_millis(3);
/// or when the first change has waited for this time.
const GATHER: Duration = Duration::from_millis(15);
/// The waits after a generation that failed: the first one, and the limit for their doubling.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// The most changes for which the agent measures the time until they are in force, for each generation.
const MOST_HEARD: usize = 10_000;
/// The interval between two surveys of the kernel's state.
const SURVEY: Duration = Duration::from_secs(30);
/// The longest interval between two checks of the host's interfaces. A notification ([`super::stir`]) makes a check
/// due at once; without notifications, the agent only polls.
const CHECK: Duration = Duration::from_secs(1);
/// A generation that was replaced is kept for as long as packets may be under way in it, and a little more.
const REST: Duration = Duration::from_millis(100);

/// The agent's configuration, and its connections to the rest of the process.
pub(crate) struct Setup {
    pub(crate) node: String,
    pub(crate) assume: Assumptions,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) unknown_pods: UnknownPods,
    pub(crate) look: Box<Look>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) notices: Notices,
    /// Publishes the generation in force and its pods for the task that annotates pods.
    pub(crate) told: tokio::sync::watch::Sender<InForce>,
    /// Makes the follower of a kind list it again.
    pub(crate) relist: Box<Relist>,
    pub(crate) log: Log,
    /// The kernel that programs are made for.
    pub(crate) target: Target,
    /// Limits on the cost of a generation.
    pub(crate) budgets: Budgets,
}

/// Makes the follower of a kind list it again.
pub(crate) type Relist = dyn Fn(&'static str) + Send;

/// The agent of one node.
pub(crate) struct Agent<E> {
    node: String,
    index: Index,
    enforce: E,
    places: Places,
    metrics: Arc<Metrics>,
    notices: Notices,
    told: tokio::sync::watch::Sender<InForce>,
    relist: Box<Relist>,
    log: Log,
    target: Target,
    budgeted: budget::Budgeted,
    /// Kinds whose first list is not complete yet.
    unlisted: BTreeSet<&'static str>,
    /// Objects that cannot be read, and why.
    malformed: BTreeMap<Key, String>,
    policies: policies::Policies,
    absent: absent::Absent,
    early: early::Early,
    look: look::Look,
    newcomers: newcomers::Newcomers,
    ending: ending::Ending,
    /// Deleted pods whose interface still exists.
    leaving: BTreeMap<Key, (Pod, Found)>,
    /// Local pods whose addresses other pods claim too; all packets at their interfaces are dropped. The value says
    /// whether to report the pod.
    unaddressed: BTreeMap<Pod, bool>,
    pending: Pending,
    /// The number of the generation in force.
    in_force: Option<u32>,
    /// The pods on which it is in force, with their interfaces.
    enforced: BTreeMap<Pod, Found>,
    /// Pods that the CNI plug-in holds back.
    waiting: Vec<Waiting>,
    /// Whether the generation in force is the index's. If not, the classes have other numbers in the index than in
    /// the kernel's tables.
    is_indexed: bool,
    /// Why the generation that should be in force is not.
    failure: Option<String>,
    /// Pods on which the kernel refused the generation, each with the error.
    refused: Vec<(String, String)>,
    /// When to try the generation again on them.
    refused_until: Option<Backoff>,
    survey_at: Option<Instant>,
    rest_at: Option<Instant>,
    check_at: Option<Instant>,
    is_to_end: bool,
}

/// Returns the next message that the agent has not handled, if there is one.
pub(crate) type Inbox<'i> = dyn FnMut() -> Option<Heard> + 'i;

/// The time of the next attempt, and the wait after it if it fails too.
type Backoff = (Instant, Duration);

fn back_off(before: Option<Backoff>, now: Instant) -> Backoff {
    let wait = before.map_or(FIRST_RETRY, |(_, wait)| wait);
    (now + wait, (wait * 2).min(LONGEST_RETRY))
}

/// The work that has to be done.
#[derive(Default)]
struct Pending {
    /// If a new generation is needed: the times of the first and the last change that need it.
    generation: Option<(Instant, Instant)>,
    /// Set after a generation that failed.
    retry: Option<Backoff>,
    /// Whether flows must be judged again when the next generation is in force. A generation with a new number does
    /// that by itself.
    judge_with_generation: bool,
    /// Changes of single map entries.
    writes: judging::Writes,
    /// The times of changes of single entries that are not in force yet.
    single: Times,
    /// The times of changes that need a new generation.
    whole: Times,
    /// Policies and lists that have changed, at most [`MOST_NAMED`]. If the generation fails, an Event on each
    /// reports it.
    policies: BTreeSet<Key>,
}

/// The times at which the agent heard of changes, for metrics.
#[derive(Default)]
struct Times {
    pods: Vec<Instant>,
    others: Vec<Instant>,
}

impl Times {
    fn heard(&mut self, is_pod: bool, at: Instant) {
        let heard = if is_pod { &mut self.pods } else { &mut self.others };
        if heard.len() < MOST_HEARD {
            heard.push(at);
        }
    }

    fn append(&mut self, other: &mut Self) {
        self.pods.append(&mut other.pods);
        self.others.append(&mut other.others);
    }
}

/// The changes for which a generation was begun.
struct Begun {
    since: (Instant, Instant),
    judge_again: bool,
    whole: Times,
    policies: BTreeSet<Key>,
}

/// The most policies and lists on which a failed generation is reported.
const MOST_NAMED: usize = 10;

impl Pending {
    /// The time at which a generation must begin.
    fn due(&self) -> Option<Instant> {
        let (first, last) = self.generation?;
        let gathered = (last + QUIET).min(first + GATHER);
        Some(self.retry.map_or(gathered, |(at, _)| at.max(gathered)))
    }

    fn changed(&mut self, key: &Key) {
        if matches!(key.kind.as_str(), "NetworkPolicy" | "CidrList") && self.policies.len() < MOST_NAMED {
            self.policies.insert(key.clone());
        }
    }

    /// Takes all changes that wait: they are in the generation that begins now. Later changes are not.
    fn begin(&mut self, now: Instant) -> Begun {
        self.whole.append(&mut self.single);
        Begun {
            since: self.generation.take().unwrap_or((now, now)),
            judge_again: std::mem::take(&mut self.judge_with_generation),
            whole: std::mem::take(&mut self.whole),
            policies: std::mem::take(&mut self.policies),
        }
    }

    /// Puts the changes back, because their generation failed.
    fn begin_again(&mut self, mut begun: Begun) {
        let (first, last) = begun.since;
        self.generation = Some((first, self.generation.map_or(last, |(_, last)| last)));
        self.judge_with_generation |= begun.judge_again;
        begun.whole.append(&mut self.whole);
        self.whole = begun.whole;
        self.policies.append(&mut begun.policies);
    }

    fn want_generation(&mut self, at: Instant) {
        let (first, _) = self.generation.unwrap_or((at, at));
        self.generation = Some((first, at));
    }
}

impl<E: Enforce> Agent<E> {
    pub(crate) fn new(setup: Setup, mut enforce: E) -> Self {
        let mut places = Places::new(setup.look);
        places.remember(enforce.left().into_iter().filter_map(remembered));
        Self {
            index: Index::new(Some(setup.node.clone()), setup.assume),
            node: setup.node,
            enforce,
            places,
            metrics: setup.metrics,
            notices: setup.notices,
            told: setup.told,
            log: setup.log,
            target: setup.target,
            budgeted: budget::Budgeted::new(setup.budgets),
            unlisted: setup.kinds.into_iter().collect(),
            malformed: BTreeMap::new(),
            policies: policies::Policies::default(),
            absent: absent::Absent::default(),
            early: early::Early::default(),
            look: look::Look::default(),
            newcomers: newcomers::Newcomers::new(setup.unknown_pods, Instant::now()),
            ending: ending::Ending::default(),
            leaving: BTreeMap::new(),
            unaddressed: BTreeMap::new(),
            relist: setup.relist,
            pending: Pending::default(),
            in_force: None,
            enforced: BTreeMap::new(),
            waiting: Vec::new(),
            is_indexed: false,
            failure: None,
            refused: Vec::new(),
            refused_until: None,
            survey_at: None,
            rest_at: None,
            check_at: None,
            is_to_end: false,
        }
    }

    /// Whether the agent should end.
    pub(crate) fn is_to_end(&self) -> bool {
        self.is_to_end
    }

    /// Handles a message.
    pub(crate) fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Told(event, at) => self.take(event, at),
            Heard::Waiting(waiting) => self.asked(waiting),
            Heard::Stop => self.is_to_end = true,
            Heard::Stirred(stirred) => {
                stirred.heard();
                self.stirred(Instant::now());
            }
        }
    }

    /// Handles an event of the API server.
    pub(crate) fn take(&mut self, event: Event, at: Instant) {
        match event {
            Event::Applied(object) => self.applied(object, at),
            Event::Partial { object, message } => self.partly_read(object, message, at),
            Event::Malformed { key, uid, message } => self.cannot_read(key, uid, message, at),
            Event::Deleted(key) => self.deleted(&key, at),
            Event::Listed { kind, keys } => {
                let gone: Vec<Key> = self.index.keys(kind).filter(|key| !keys.contains(key)).cloned().collect();
                gone.iter().for_each(|key| self.deleted(key, at));
                self.malformed.retain(|key, _| key.kind != kind || keys.contains(key));
                if self.unlisted.remove(kind) && self.unlisted.is_empty() {
                    self.log.info("everything is listed", &[("node", Value::from(self.node.as_str()))]);
                    self.pending.want_generation(at);
                }
            }
        }
    }

    fn applied(&mut self, mut object: Object, at: Instant) {
        let key = Key::of(&object);
        object.id = self.policies.number(&key);
        self.policies.keep_no_longer(&key);
        self.leaving.remove(&key);
        if key.kind == "Namespace" && self.is_another(&key, object.meta.uid.as_ref()) {
            self.doubt(&key.name, at);
        }
        if self.malformed.remove(&key).is_some() {
            self.log.info("the object can be read again", &[("object", shown(&key))]);
        }
        let is_pod = matches!(object.body, Body::Pod(_));
        if is_pod {
            object = self.early.complete(&self.node, &key, object, at);
            forget_particulars(&self.node, &mut object);
        }
        let concerns_departed = is_pod && self.ending.concerns(&object);
        let dirty = self.index.apply(object);
        if dirty == Dirty::Everything {
            self.pending.changed(&key);
        }
        self.note_departed(&dirty, concerns_departed, at);
        self.note(dirty, is_pod, at);
    }

    fn deleted(&mut self, key: &Key, at: Instant) {
        self.malformed.remove(key);
        self.early.forget(key);
        if self.policies.outlives(key, &self.index) {
            self.log.info("kept until its namespace is gone", &[("object", shown(key))]);
            return;
        }
        let is_pod = key.kind == "Pod";
        if is_pod && self.leaves(key, at) {
            return;
        }
        let dirty = self.index.delete(key);
        self.note(dirty, is_pod, at);
        if key.kind == "Namespace" {
            self.doubt(&key.name, at);
        }
    }

    fn note(&mut self, dirty: Dirty, is_pod: bool, at: Instant) {
        let times = match dirty {
            Dirty::Nothing => return,
            Dirty::Everything => {
                self.pending.want_generation(at);
                self.pending.judge_with_generation = true;
                &mut self.pending.whole
            }
            Dirty::Addresses(changes) => {
                self.pending.writes.add(changes, at);
                &mut self.pending.single
            }
        };
        if self.in_force.is_some() {
            times.heard(is_pod, at);
        }
    }

    /// Does the work that is due. Compiling takes long, so it handles messages from `inbox` between its steps.
    pub(crate) fn act(&mut self, now: Instant, inbox: &mut Inbox<'_>) {
        self.judge_newcomers(now);
        if !self.unlisted.is_empty() {
            self.let_go(now);
            self.tell(now);
            return;
        }
        self.look_early(now);
        self.write(now);
        self.end_flows_again(now);
        if self.pending.due().is_some_and(|due| due <= now) {
            self.generation(now, inbox);
        } else if self.pending.generation.is_none() {
            self.try_endpoints_again(now);
        }
        if self.check_at.is_none_or(|due| due <= now) {
            self.check_at = Some(now + CHECK);
            self.check_interfaces(now);
        }
        if self.rest_at.is_some_and(|due| due <= now) {
            self.rest_at = None;
            self.rest();
        }
        if self.survey_at.is_none_or(|due| due <= now) {
            self.survey_at = Some(now + SURVEY);
            self.survey();
        }
        self.look(now);
        self.let_go(now);
        self.tell(now);
    }

    /// The time at which the next work is due, if no message comes before.
    pub(crate) fn due(&self) -> Option<Instant> {
        if !self.unlisted.is_empty() {
            return [self.let_go_due(), self.newcomers.due()].into_iter().flatten().min();
        }
        let generation = self.pending.due().or_else(|| {
            let refused = self.refused_until.map(|(at, _)| at);
            [self.places.due(), refused].into_iter().flatten().min()
        });
        // If the generation in force is not the index's, no entries are written, so no write is due.
        let writes = self.pending.writes.due().filter(|_| self.is_indexed);
        let own = [generation, writes, self.ending.due(), self.early.due(), self.let_go_due()];
        let regular = [self.survey_at, self.rest_at, self.check_at, self.look_due(), self.newcomers.due()];
        own.into_iter().chain(regular).flatten().min()
    }

    /// Finds the interfaces of the local pods of the generation in force.
    fn find_again(&mut self, now: Instant) -> bool {
        // From the last search and not from the generation, which exists only until it is in force.
        let pods = self.places.found().keys().chain(self.places.missing().keys()).cloned().collect();
        self.index.has_generation() && self.find_pods(&pods, now)
    }

    fn find(&mut self, generation: &Generation, now: Instant) {
        self.find_pods(&local::pods(generation, &self.node), now);
        self.unaddressed = local::unaddressed(generation, &self.node);
        self.let_leave(now);
    }

    fn find_pods(&mut self, pods: &BTreeSet<Pod>, now: Instant) -> bool {
        let found_before: BTreeSet<Pod> = self.places.found().keys().cloned().collect();
        let changed = self.places.find(pods, now);
        self.note_absent(&found_before, now);
        changed
    }

    /// Checks which interfaces still exist. A deleted pod stays enforced until its interface is gone. Any other pod
    /// that lost its interface may come back at another one, so it is searched for.
    fn check_interfaces(&mut self, now: Instant) {
        let (interfaces, lost) = self.places.check();
        let gone: Vec<Key> =
            self.leaving.extract_if(.., |_, (_, found)| !interfaces.has(found)).map(|(key, _)| key).collect();
        for key in gone {
            let dirty = self.index.delete(&key);
            self.note(dirty, true, now);
        }
        if lost && self.pending.generation.is_none() && self.find_again(now) {
            self.pending.want_generation(now);
        }
    }

    /// Retries pods whose interface was missing, and pods that the kernel refused.
    fn try_endpoints_again(&mut self, now: Instant) {
        let found = self.places.due().is_some_and(|due| due <= now) && self.find_again(now);
        if found || self.refused_until.is_some_and(|(at, _)| at <= now) {
            self.pending.want_generation(now);
        }
    }

    /// Records how long new pods were on their networks without policy. The pods of the first generation are left
    /// out: they may have been there before the agent.
    fn time_new_pods(&mut self) {
        let fresh = self.places.take_fresh();
        if self.in_force.is_some() {
            for made in fresh {
                // This is an error if the clock was set back. Then no time is recorded.
                let open = SystemTime::now().duration_since(made);
                open.into_iter().for_each(|open| self.metrics.observe("weir_interface_enforced_seconds", open));
            }
        }
    }

    fn rest(&mut self) {
        if let Err(trouble) = self.enforce.rest() {
            // The rest after the next generation, or the next agent, removes it.
            self.log.warn("what was replaced is still there", &[("error", Value::from(trouble.0))]);
        }
        // During a compile, the agent needs about twice its usual memory.
        weir_runtime::sys::give_memory_back();
    }

    fn in_force_now(&self, times: Times, now: Instant) {
        let heard = [("weir_pod_enforced_seconds", times.pods), ("weir_policy_enforced_seconds", times.others)];
        for (name, times) in heard {
            for at in times {
                self.metrics.observe(name, now.saturating_duration_since(at));
            }
        }
    }
}

/// Removes the owner of a pod on another node: it does not affect packets, and such pods are many. The UID stays,
/// because it distinguishes pods with the same name or address.
fn forget_particulars(node: &str, object: &mut Object) {
    match &mut object.body {
        Body::Pod(pod) if pod.node.as_deref() != Some(node) => pod.owner = None,
        _ => {}
    }
}

fn shown(key: &Key) -> Value {
    match key.namespace.as_str() {
        "" => Value::from(format!("{}/{}", key.kind, key.name)),
        namespace => Value::from(format!("{}/{namespace}/{}", key.kind, key.name)),
    }
}

#[cfg(test)]
mod tests;
