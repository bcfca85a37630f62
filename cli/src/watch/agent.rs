//! The agent's decisions: from the events of the API server to generations in force.
//!
//! ```text
//!  follow (threads) ──ApiEvent──▶ NodeAgent ──▶ index: required work ──▶ compile ──▶ find interfaces ──▶ Enforce
//!                                  └─ single addresses ───────────────────────────────────────────────▶ │
//! ```
//!
//! Problem: every part can fail and come back at any time, and that must never weaken the policy in force.
//! Strategy: one thread decides. It gets the time as an argument, the API's state as events, and the kernel through
//! [`Enforce`], so tests can produce every order of events.
//! Invariants: nothing is compiled before every kind has been listed. An object that cannot be read any more keeps
//! its last readable content. If a generation cannot be compiled or installed, the previous one stays in force, and
//! the agent retries.
//!
//! The states of the node's policy:
//!
//! ```text
//!  Listing ──▶ Gathering ──▶ Compiling ──▶ Installing ──▶ In force ─┐
//!                ▲  ▲            │             │             │  ▲   │ single entries
//!                │  │ retry      ▼             ▼             │  └───┘
//!                │  └───────── Failed ◀────────┘             │
//!                └───────────────────────────────────────────┘ a change that needs a generation
//! ```
//!
//! | state | its data |
//! | --- | --- |
//! | Listing | `KnownObjects::is_complete` is false (`agent/objects.rs`); the previous agent's generation is in force |
//! | Gathering | `PendingWork` has a `GenerationRequest` (`agent/pending.rs`) |
//! | Compiling | `BegunGeneration` has the changes; single entries of the previous generation are still written; slices wait in `NodeAgent::slices` |
//! | Installing | `GenerationInForce::Outdated`: no single entries are written (`agent/enforcement.rs`) |
//! | Failed | `FailedGeneration` has the error and the retry; the changes wait again (`agent/pending.rs`) |
//! | In force | `GenerationInForce::Indexed`: single entries are written (`agent/enforcement.rs`) |
//!
//! | transition | when | code |
//! | --- | --- | --- |
//! | Listing → Gathering | the last kind is listed | `handle_event`, here |
//! | Gathering → Gathering | a kind is needed that is not listed yet | `meet_needs` in `agent/scopes.rs` |
//! | Gathering → Compiling | `QUIET` or `GATHER` is over, the CPU budget allows it, the retry is due, and the kernel would not wait | `PendingWork::generation_due`, `Pace::start`, `Upkeep::generation_start` |
//! | Compiling → Installing | the index adopts the compiled generation | `adopt` in `agent/generation.rs` |
//! | Compiling or Installing → Failed | the compiler or the kernel refuses | `try_generation`, `PendingWork::fail` |
//! | Failed → Gathering | at once: the request is there again, with a later time | `PendingWork::fail` |
//! | Installing → In force | the kernel has installed it | `try_generation` in `agent/generation.rs` |
//! | In force → In force | a change of addresses | `write_entries` in `agent/entry_writes.rs` |
//! | | the kernel is not prepared for the next generation, and there is nothing else to do | `prepare_next` in `agent/preparation.rs` |
//! | In force → Gathering | any other change of an object | `PendingWork::add` |
//! | | single entries cannot be written | `write_failed` in `agent/entry_writes.rs` |
//! | | an interface is found or lost; a refused pod is due | `check_interfaces`, `retry_pods` in `agent/local.rs` |
//! | | a departed backend may have to end flows | `note_departed` in `agent/departed.rs` |
//!
//! The states of a local pod:
//!
//! ```text
//!  Starting (StartingPods) ── its interface is new, and policy may apply ──▶ closed (newcomers.rs)
//!     │ the CNI plug-in or the result cache has its address (cni_questions.rs, early_addresses.rs)
//!     ▼
//!  Searched (interfaces.rs) ── not found ──▶ Absent: reported, or excused while it ends (absent.rs)
//!     │ found           └───── ambiguous ──▶ Contested: its possible interfaces are closed (discover/assign.rs)
//!     ▼
//!  Installed (enforcement.rs) ── the kernel refuses ──▶ Refused: retried with a generation (RefusedPods)
//!     │                       └─ another process changes its hooks ──▶ Astray: reported (hook_checks.rs)
//!     ▼ the API deletes it
//!  Leaving: in the index until its interface is gone or belongs to another pod (local.rs) ──▶ forgotten
//! ```
//!
//! Tests: the files of `agent/tests`, and above all `agent/tests/life.rs` with random orders of all these events.

mod absent;
pub(super) mod budget;
mod cni_questions;
mod departed;
mod early_addresses;
mod enforcement;
mod entry_writes;
mod generation;
mod hook_checks;
mod local;
mod local_changes;
mod namespaces;
mod newcomers;
mod objects;
pub(super) mod pace;
mod pending;
mod policies;
mod preparation;
mod reports;
mod scopes;
mod unreadable;
mod upkeep;

use std::time::{Duration, Instant};

use weir_classes::index::{ChangeEffect, Dirty, Key};
use weir_codegen::compile::Budgets;
use weir_ebpf::target::Target;
use weir_model::Assumptions;
use weir_objects::k8s::{Body, Object};

use super::AgentMessage;
use super::backoff::BackoffLimits;
use super::cursor::ApiEvent;
use super::enforce::Enforce;
use super::interfaces::{LocalPod, ReadHost};
use super::log::Value;
use super::notices::Notice;
use super::scope::FollowOrder;
use budget::BudgetState;
use cni_questions::HeldPods;
use departed::DepartedBackends;
use early_addresses::EarlyAddresses;
use enforcement::Enforcement;
use generation::CompileSettings;
use local::LocalPods;
use newcomers::Newcomers;
pub(crate) use newcomers::UnknownPods;
use objects::KnownObjects;
use pace::{CpuShare, Pace};
use pending::PendingWork;
use preparation::Preparation;
pub(crate) use reports::{DRY_RUN, Reports};
use scopes::WatchScopes;
use upkeep::Upkeep;

/// The waits after something that the kernel or the compiler refused.
const RETRY: BackoffLimits = BackoffLimits { first: Duration::from_millis(500), longest: Duration::from_secs(30) };

/// The agent's configuration, and its connections to the rest of the process.
pub(crate) struct Setup {
    pub(crate) node: String,
    pub(crate) assume: Assumptions,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) unknown_pods: UnknownPods,
    pub(crate) read_host: Box<ReadHost>,
    pub(crate) relist: Box<RelistKind>,
    pub(crate) send_order: Box<SendOrder>,
    pub(crate) reports: Reports,
    /// The kernel that programs are compiled for.
    pub(crate) target: Target,
    /// Limits on the cost of a generation.
    pub(crate) budgets: Budgets,
    /// The share of a core that the agent may use.
    pub(crate) cpu: CpuShare,
    /// Returns the CPU time that the process has used.
    pub(crate) read_cpu: Box<ReadCpu>,
}

/// Returns the CPU time that the process has used.
pub(crate) type ReadCpu = dyn Fn() -> Duration + Send;

/// Orders which objects of a kind are followed.
pub(crate) type SendOrder = dyn Fn(&'static str, FollowOrder) + Send;

/// Makes the follower of a kind list it again.
pub(crate) type RelistKind = dyn Fn(&'static str) + Send;

/// Returns the next message that the agent has not handled, if there is one.
pub(crate) type Inbox<'i> = dyn FnMut() -> Option<AgentMessage> + 'i;

/// The agent of one node.
pub(crate) struct NodeAgent<E> {
    node: String,
    enforce: E,
    objects: KnownObjects,
    /// Events about slices that came while a generation was made; empty at all other times. The index can only compare
    /// slices with a generation that is complete. Handled at once, each of them would need another generation. After
    /// it, nearly all of them need none.
    slices: Vec<(ApiEvent, Instant)>,
    scopes: WatchScopes,
    send_order: Box<SendOrder>,
    local: LocalPods,
    starting: StartingPods,
    pending: PendingWork,
    pace: Pace,
    read_cpu: Box<ReadCpu>,
    compile: CompileSettings,
    enforcement: Enforcement,
    preparation: Preparation,
    departed: DepartedBackends,
    upkeep: Upkeep,
    reports: Reports,
    is_to_end: bool,
}

/// Pods between their attachment to the network and the first generation that contains them.
struct StartingPods {
    addresses: EarlyAddresses,
    newcomers: Newcomers,
    held: HeldPods,
}

impl<E: Enforce> NodeAgent<E> {
    pub(crate) fn new(setup: Setup, mut enforce: E) -> Self {
        let (cpu, read_cpu) = (setup.cpu, setup.read_cpu);
        let Setup {
            node, assume, kinds, unknown_pods, read_host, relist, send_order, reports, target, budgets, ..
        } = setup;
        let newcomers = Newcomers::new(unknown_pods, Instant::now());
        Self {
            objects: KnownObjects::new(node.clone(), assume, kinds, relist),
            slices: Vec::new(),
            scopes: WatchScopes::default(),
            send_order,
            node,
            local: LocalPods::new(read_host, enforce.recorded_pods()),
            enforce,
            starting: StartingPods { addresses: EarlyAddresses::default(), newcomers, held: HeldPods::default() },
            pending: PendingWork::default(),
            pace: Pace::new(cpu),
            read_cpu,
            compile: CompileSettings { target, budget: BudgetState::new(budgets), last: Default::default() },
            enforcement: Enforcement::default(),
            preparation: Preparation::default(),
            departed: DepartedBackends::default(),
            upkeep: Upkeep::default(),
            reports,
            is_to_end: false,
        }
    }

    /// Whether the agent should end.
    pub(crate) fn is_to_end(&self) -> bool {
        self.is_to_end
    }

    /// Handles a message.
    pub(crate) fn handle(&mut self, message: AgentMessage) {
        match message {
            AgentMessage::Api(events) => events.into_iter().for_each(|(event, at)| self.handle_event(event, at)),
            AgentMessage::Question(question) => self.asked(question),
            AgentMessage::Stop => self.is_to_end = true,
            AgentMessage::HostChanged(notification) => {
                self.host_changed(notification.received(), Instant::now());
            }
        }
    }

    /// Handles an event of the API server.
    pub(crate) fn handle_event(&mut self, event: ApiEvent, at: Instant) {
        if !self.scopes.is_followed(event.kind()) {
            // It was sent before the follower received the order.
            return;
        }
        if event.kind() == "EndpointSlice" && self.objects.index().is_making_generation() {
            return self.slices.push((event, at));
        }
        match event {
            ApiEvent::Applied(object) => self.applied(object, at),
            ApiEvent::Partial { object, message } => self.partly_read(object, message, at),
            ApiEvent::Malformed(object) => self.cannot_read(object, at),
            ApiEvent::Deleted(key) => self.deleted(&key, at),
            ApiEvent::Listed { kind, order, .. } if !self.scopes.is_current(kind, order) => {}
            ApiEvent::Listed { kind, names, .. } => {
                self.objects.missing_from(kind, &names).iter().for_each(|key| self.deleted(key, at));
                if self.objects.listed(kind, &names) {
                    self.reports.log.info("all kinds are listed", &[("node", Value::from(self.node.as_str()))]);
                    self.warn_of_unknown_node();
                    self.pending.need_generation(at);
                }
                if self.scopes.listed(kind) {
                    self.pending.lists_are_complete();
                    self.pending.need_generation_and_judging(at);
                }
            }
        }
    }

    /// With a wrong name, no pod counts as local, and the pods that an earlier agent enforced are closed.
    fn warn_of_unknown_node(&self) {
        let index = self.objects.index();
        let key = Key { kind: "Node".to_owned(), namespace: String::new(), name: self.node.clone() };
        let is_here =
            |object: &Object| matches!(&object.body, Body::Pod(pod) if pod.node.as_deref() == Some(&*self.node));
        if index.count("Pod") > 0 && index.get(&key).is_none() && !index.of_kind("Pod").any(is_here) {
            let message = "no pod and no Node object has the name of this node: is --node (or NODE_NAME) right?";
            self.reports.log.warn(message, &[("node", Value::from(self.node.as_str()))]);
        }
    }

    /// The work for a change, without the work that waits for the end of the kind's list: a generation follows then.
    fn unless_listing(&self, key: &Key, dirty: Dirty) -> Dirty {
        let is_listing = self.scopes.is_listing(&key.kind) && key.name != self.node;
        if is_listing { Dirty::Nothing } else { dirty }
    }

    fn applied(&mut self, mut object: Object, at: Instant) {
        let key = Key::of(&object);
        object.id = self.objects.policies.number(&key);
        self.objects.policies.exists(&key);
        self.local.exists(&key);
        if key.kind == "Namespace" && self.is_another(&key, object.meta.uid.as_deref()) {
            self.namespace_replaced(&key.name, at);
        }
        if self.objects.take_unreadable(&key).is_some() {
            self.reports.log.info("the object can be read again", &[("object", shown(&key))]);
        }
        let is_pod = matches!(object.body, Body::Pod(_));
        if is_pod {
            object = self.starting.addresses.complete(&self.node, &key, object, at);
            forget_particulars(&self.node, &mut object);
        }
        let concerns_departed = is_pod.then(|| self.departed.concerns(&object));
        self.report_unsupported_peers(&object, at);
        let effect = self.objects.index().effect_of(&object);
        let dirty = self.objects.index_mut().apply(object);
        let dirty = self.unless_listing(&key, dirty);
        if dirty == Dirty::Everything {
            self.log_first_cause(&key, &dirty);
            self.pending.add_policy(&key);
        }
        self.note_departed(&dirty, concerns_departed, at);
        self.note(dirty, effect, is_pod, at);
    }

    fn deleted(&mut self, key: &Key, at: Instant) {
        self.objects.take_unreadable(key);
        self.starting.addresses.forget(key);
        if self.objects.keep_after_deletion(key) {
            let fields = [("object", shown(key))];
            self.reports.log.info("the policy stays in force until its namespace is deleted", &fields);
            return;
        }
        let is_pod = key.kind == "Pod";
        if is_pod && self.keep_while_attached(key, at) {
            return;
        }
        let effect = self.objects.index().effect_of_deletion(key);
        let dirty = self.objects.index_mut().delete(key);
        let dirty = self.unless_listing(key, dirty);
        self.log_first_cause(key, &dirty);
        // A pod that is gone has no connections.
        self.note_departed(&dirty, is_pod.then_some(false), at);
        self.note(dirty, effect, is_pod, at);
        if key.kind == "Namespace" {
            self.namespace_replaced(&key.name, at);
        }
    }

    /// Adds the work that a change of the index needs.
    fn note(&mut self, dirty: Dirty, effect: ChangeEffect, is_pod: bool, at: Instant) {
        self.forget_left(&dirty);
        self.note_moved_backends();
        self.pending.add(dirty, effect, at, is_pod, self.enforcement.is_any());
    }

    /// Does the work that is due. Compiling and reading the kernel's state take long, so messages from `inbox` are
    /// handled in between: a pod that arrives meanwhile must not wait for checks.
    pub(crate) fn act(&mut self, now: Instant, inbox: &mut Inbox<'_>) {
        let started = Instant::now();
        self.close_newcomers(now);
        if self.objects.is_complete() {
            self.read_early_addresses(now);
            self.write_entries(now);
            self.retry_ending_flows(now);
            self.pace.used(now, (self.read_cpu)());
            self.upkeep.postpone_if(|| self.enforce.is_replaced_in_use(), now);
            if self.upkeep.take_separation(now) {
                self.separate_replaced();
            }
            if self.generation_due().is_some_and(|due| due <= now) {
                self.make_generation(now, inbox);
            } else {
                self.receive(inbox, now + started.elapsed());
                if !self.pending.isolates_soon() {
                    self.retry_pods(now);
                }
            }
            if self.upkeep.interfaces.start(now) {
                self.receive(inbox, now + started.elapsed());
                self.check_interfaces(now);
            }
            if self.upkeep.take_replaced(now) {
                self.remove_replaced();
            }
            if self.upkeep.reconcile.start(now) {
                self.receive(inbox, now + started.elapsed());
                self.reconcile(now);
            }
            self.receive(inbox, now + started.elapsed());
            self.check_hooks(now);
            if self.preparation_due().is_some_and(|due| due <= now) {
                self.receive(inbox, now + started.elapsed());
                self.prepare_next(now);
            }
            self.forget_unneeded(now);
        }
        self.answer_held(now);
        self.report(now);
    }

    /// Handles messages that have arrived.
    fn receive(&mut self, inbox: &mut Inbox<'_>, now: Instant) {
        if let Some(message) = inbox() {
            self.handle(message);
            self.catch_up(inbox, now);
        }
    }

    /// When the next generation must begin; `None` if none is needed.
    fn generation_due(&self) -> Option<Instant> {
        self.pending.generation_due(&self.pace).map(|due| self.upkeep.generation_start(due))
    }

    /// The time at which the next work is due, if no message comes before.
    pub(crate) fn due(&self) -> Option<Instant> {
        let starting = [Some(self.starting.newcomers.due()), self.starting.held.due()];
        if !self.objects.is_complete() {
            return starting.into_iter().flatten().min();
        }
        // A generation that comes soon searches for the interfaces of pods too.
        let pods = [self.local.interfaces().due(), self.enforcement.retry_due()];
        let pods = pods.into_iter().flatten().min().filter(|_| !self.pending.isolates_soon());
        let generation = self.generation_due().into_iter().chain(pods).min();
        // If the generation in force is not the index's, no entries are written, so no write is due.
        let writes = self.pending.writes.due().filter(|_| self.enforcement.is_writable());
        let own = [
            generation,
            writes,
            self.departed.due(),
            self.starting.addresses.due(),
            self.hook_check_due(),
            self.scopes.due(),
            self.preparation_due(),
        ];
        starting.into_iter().chain(own).chain(self.upkeep.due()).flatten().min()
    }

    fn separate_replaced(&mut self) {
        if let Err(error) = self.enforce.separate_replaced() {
            // The removal does it, and waits longer.
            let fields = [("error", Value::from(error.message))];
            self.reports.log.debug("the replaced generation cannot be separated yet", &fields);
        }
    }

    fn remove_replaced(&mut self) {
        if let Err(error) = self.enforce.remove_replaced() {
            // The removal after the next generation, or the next agent, removes it.
            let fields = [("error", Value::from(error.message))];
            self.reports.log.warn("the replaced generation cannot be removed; retrying after the next one", &fields);
        }
    }
}

/// Removes the owner of a pod on another node, and the UID that its container runtime has: they do not affect packets,
/// and such pods are many. The UID stays, because it distinguishes pods with the same name or address.
fn forget_particulars(node: &str, object: &mut Object) {
    match &mut object.body {
        Body::Pod(pod) if pod.node.as_deref() != Some(node) => (pod.owner, pod.static_uid) = (None, None),
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
