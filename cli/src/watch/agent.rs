//! What the API tells → generations in force. The whole of the agent that decides.
//!
//! ```text
//!  follow (threads) ──Event──▶ Agent ──▶ index: what is dirty ──▶ compile ──▶ places: interfaces ──▶ Enforce
//!                               └─ single addresses ───────────────────────────────────────────────────▶ │
//! ```
//!
//! Problem: everything can fail and come back at any time, and what is in force must never become weaker by it. Strategy: one thread,
//! decisions by the time that it is told, the API on one side and the kernel behind [`Enforce`] on the other.
//! Invariants: nothing is compiled before every kind has been listed; what cannot be read stays as it was read last; what
//! cannot be compiled or installed leaves the generation before in force, and is tried again.

mod early;
mod hold;
mod policies;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_compiler::artifact::Artifact;
use weir_compiler::classify::PeerId;
use weir_compiler::compile::{self, Options};
use weir_compiler::ebpf::target::Target;
use weir_compiler::index::{Dirty, Index, Key};
use weir_compiler::k8s::{Body, Object};
use weir_compiler::model::Assumptions;
use weir_compiler::structures::{Place, Structure};

use super::Heard;
use super::annotate::InForce;
use super::cursor::Event;
use super::discover::Found;
use super::enforce::{Enforce, Wanted};
use super::hold::Waiting;
use super::log::{Log, Value};
use super::metrics::Metrics;
use super::notices::{Notice, Notices};
use super::place::{Look, Places, Pod};

/// A generation is begun when nothing has happened for so long,
const QUIET: Duration = Duration::from_millis(3);
/// or when the first change has waited for so long.
const GATHER: Duration = Duration::from_millis(15);
/// Waits after a generation that did not come into force.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// As many changes are timed that wait for one generation.
const MOST_HEARD: usize = 10_000;
/// How often the kernel is looked at.
const SURVEY: Duration = Duration::from_secs(30);
/// How often the host's interfaces are looked at: nobody tells when one goes.
const CHECK: Duration = Duration::from_secs(1);
/// A generation that was replaced is kept for as long as packets may be under way in it, and a little more.
const REST: Duration = Duration::from_millis(100);

/// Where single addresses are written: the kernel's own maps, which can be changed in place, before what stands in lists. All else
/// is laid out as costs the least.
const WRITTEN: [(Place, Structure); 2] = [(Place::Exact4, Structure::Layered), (Place::Exact6, Structure::Layered)];

/// What the agent is made with.
pub(crate) struct Setup {
    pub(crate) node: String,
    pub(crate) assume: Assumptions,
    pub(crate) kinds: Vec<&'static str>,
    pub(crate) look: Box<Look>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) notices: Notices,
    /// Who wants to know what is in force.
    pub(crate) told: tokio::sync::watch::Sender<InForce>,
    pub(crate) log: Log,
    /// The kernel that programs are made for.
    pub(crate) target: Target,
}

/// The agent of one node.
pub(crate) struct Agent<E> {
    node: String,
    index: Index,
    enforce: E,
    places: Places,
    metrics: Arc<Metrics>,
    notices: Notices,
    told: tokio::sync::watch::Sender<InForce>,
    log: Log,
    target: Target,
    /// Kinds that have not been listed to their end.
    unlisted: BTreeSet<&'static str>,
    /// Objects that cannot be read, and why.
    malformed: BTreeMap<Key, String>,
    policies: policies::Policies,
    early: early::Early,
    /// Pods that were deleted, and whose interface is still there.
    leaving: BTreeMap<Key, Found>,
    pending: Pending,
    /// The number of the generation in force, and the pods that it is in force on.
    in_force: Option<u32>,
    enforced: BTreeMap<Pod, Found>,
    /// Pods that the CNI plug-in holds back.
    waiting: Vec<Waiting>,
    /// Whether it is the index's: if not, the index's classes have other numbers than the kernel's tables.
    is_indexed: bool,
    /// Why the generation that should be in force is not.
    failure: Option<String>,
    /// Pods on which the kernel did not take it, and when to try again.
    refused: Vec<(String, String)>,
    refused_until: Option<Backoff>,
    survey_at: Option<Instant>,
    rest_at: Option<Instant>,
    check_at: Option<Instant>,
}

/// Not before the first; and how long to wait after that.
type Backoff = (Instant, Duration);

fn back_off(before: Option<Backoff>, now: Instant) -> Backoff {
    let wait = before.map_or(FIRST_RETRY, |(_, wait)| wait);
    (now + wait, (wait * 2).min(LONGEST_RETRY))
}

/// What has to be done.
#[derive(Default)]
struct Pending {
    /// A new generation: since when, and when the last change came.
    generation: Option<(Instant, Instant)>,
    /// After a failure.
    retry: Option<Backoff>,
    /// Single entries.
    writes: BTreeMap<IpAddr, Option<PeerId>>,
    /// Whether some are of a list: flows that it now denies end.
    again: bool,
    /// When pods' changes were heard of that are not in force yet.
    pods: Vec<Instant>,
    /// The same for everything else.
    others: Vec<Instant>,
    /// What has changed of what people write, as far as there is a limit.
    policies: BTreeSet<Key>,
}

/// As many policies are told of that a generation failed with.
const MOST_NAMED: usize = 10;

impl Pending {
    /// When a generation is to be begun.
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

    fn want_generation(&mut self, at: Instant) {
        let (first, _) = self.generation.unwrap_or((at, at));
        self.generation = Some((first, at));
    }
}

impl<E: Enforce> Agent<E> {
    pub(crate) fn new(setup: Setup, enforce: E) -> Self {
        Self {
            index: Index::new(Some(setup.node.clone()), setup.assume),
            node: setup.node,
            enforce,
            places: Places::new(setup.look),
            metrics: setup.metrics,
            notices: setup.notices,
            told: setup.told,
            log: setup.log,
            target: setup.target,
            unlisted: setup.kinds.into_iter().collect(),
            malformed: BTreeMap::new(),
            policies: policies::Policies::default(),
            early: early::Early::default(),
            leaving: BTreeMap::new(),
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
        }
    }

    /// Something was heard.
    pub(crate) fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Told(event, at) => self.take(event, at),
            Heard::Waiting(waiting) => self.asked(waiting),
        }
    }

    /// The API has told something.
    pub(crate) fn take(&mut self, event: Event, at: Instant) {
        match event {
            Event::Applied(object) => self.applied(object, at),
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
        if self.malformed.remove(&key).is_some() {
            self.log.info("the object can be read again", &[("object", shown(&key))]);
        }
        let is_pod = matches!(object.body, Body::Pod(_));
        if is_pod {
            object = self.early.complete(&self.node, &key, object, at);
            forget_particulars(&self.node, &mut object);
        }
        let dirty = self.index.apply(object);
        if dirty == Dirty::Everything {
            self.pending.changed(&key);
        }
        self.note(dirty, is_pod, at);
    }

    /// What it was when it was read last stays in force.
    fn cannot_read(&mut self, key: Key, uid: Option<String>, message: String, at: Instant) {
        let stays =
            if self.index.get(&key).is_some() { "what it said before stays in force" } else { "it is left out" };
        let told = format!("{message}; {stays}");
        self.notices.tell(Notice { about: key.clone(), uid, reason: "Unreadable", message: told }, at);
        if self.malformed.get(&key) != Some(&message) {
            let fields =
                [("object", shown(&key)), ("error", Value::from(message.as_str())), ("so", Value::from(stays))];
            self.log.error("the object cannot be read", &fields);
        }
        self.malformed.insert(key, message);
    }

    fn deleted(&mut self, key: &Key, at: Instant) {
        self.malformed.remove(key);
        self.early.forget(key);
        if self.policies.outlives(key, &self.index) {
            self.log.info("kept until its namespace is gone", &[("object", shown(key))]);
            return;
        }
        if key.kind == "Pod"
            && let Some(found) = self.places.interface_of(&key.namespace, &key.name)
        {
            self.leaving.insert(key.clone(), found);
            return;
        }
        let mut dirty = vec![self.index.delete(key)];
        if key.kind == "Namespace" {
            let kept = self.policies.kept_for(&key.name);
            dirty.extend(kept.iter().map(|policy| self.index.delete(policy)));
        }
        let is_pod = key.kind == "Pod";
        dirty.into_iter().for_each(|dirty| self.note(dirty, is_pod, at));
    }

    fn note(&mut self, dirty: Dirty, is_pod: bool, at: Instant) {
        match dirty {
            Dirty::Nothing => return,
            Dirty::Everything => self.pending.want_generation(at),
            Dirty::Addresses(changes) => {
                self.pending.writes.extend(changes);
                self.pending.again |= !is_pod;
            }
        }
        if self.in_force.is_some() {
            let heard = if is_pod { &mut self.pending.pods } else { &mut self.pending.others };
            if heard.len() < MOST_HEARD {
                heard.push(at);
            }
        }
    }

    /// Does what is due.
    pub(crate) fn act(&mut self, now: Instant) {
        if !self.unlisted.is_empty() {
            self.let_go(now);
            self.tell();
            return;
        }
        self.look_early(now);
        // A generation that is about to come has everything in it; one that failed may be long in coming.
        if self.is_indexed && (self.pending.generation.is_none() || self.pending.retry.is_some()) {
            self.write(now);
        }
        if self.pending.due().is_some_and(|due| due <= now) {
            self.generation(now);
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
        self.let_go(now);
        self.tell();
    }

    /// When something will be due, if nothing happens before.
    pub(crate) fn due(&self) -> Option<Instant> {
        if !self.unlisted.is_empty() {
            return self.let_go_due();
        }
        let generation = self.pending.due().or_else(|| {
            let refused = self.refused_until.map(|(at, _)| at);
            [self.places.due(), refused].into_iter().flatten().min()
        });
        let own = [generation, self.early.due(), self.survey_at, self.rest_at, self.check_at, self.let_go_due()];
        own.into_iter().flatten().min()
    }

    /// Single entries of the generation in force. If one cannot be written there will be a new generation.
    fn write(&mut self, now: Instant) {
        let changes: Vec<_> = std::mem::take(&mut self.pending.writes).into_iter().collect();
        if changes.is_empty() {
            return;
        }
        let again = std::mem::take(&mut self.pending.again);
        match self.enforce.write(&changes, again) {
            Ok(()) => {
                self.metrics.add("weir_address_writes_total", &[], changes.len() as f64);
                self.in_force_now(Instant::now());
            }
            Err(trouble) => {
                self.log.info("single entries need a new generation", &[("why", Value::from(trouble.0))]);
                self.pending.want_generation(now);
            }
        }
    }

    /// Compiles and installs what there is.
    fn generation(&mut self, now: Instant) {
        let started = Instant::now();
        let result = self.compile();
        self.metrics.observe("weir_compile_seconds", started.elapsed());
        let result = result.and_then(|artifact| {
            self.find(now);
            self.install(&artifact, now)
        });
        match result {
            Ok(epoch) => {
                self.time_new_pods();
                self.in_force = Some(epoch);
                self.rest_at = Some(now + REST);
                self.is_indexed = true;
                self.pending.generation = None;
                self.pending.retry = None;
                self.pending.writes.clear();
                self.pending.again = false;
                self.pending.policies.clear();
                self.failure = None;
                self.in_force_now(Instant::now());
            }
            Err((stage, error)) => self.failed(stage, error, now),
        }
        // Nobody waits for it.
        self.index.settle();
    }

    /// All of the pipeline, from the objects as they are.
    fn compile(&mut self) -> Result<Artifact, (&'static str, String)> {
        let failed = |error: &dyn std::error::Error| ("compile", super::follow::chain(error));
        let generation = self.index.compile().map_err(|error| failed(&error))?;
        self.is_indexed = false;
        let options = Options { forced: WRITTEN.to_vec(), target: self.target, ..Options::default() };
        let cluster = &generation.cluster;
        let compiled = compile::compile_classes(cluster, &generation.scope, generation.classes.clone(), &options);
        let compiled = compiled.map_err(|error| failed(&error))?;
        let node = self.node.clone();
        let artifact = compiled.artifact(cluster, &options, |description| description.node = Some(node));
        artifact.map_err(|error| failed(&error))
    }

    fn install(&mut self, artifact: &Artifact, now: Instant) -> Result<u32, (&'static str, String)> {
        let started = Instant::now();
        let found = self.places.found().iter();
        let endpoints: Vec<_> = found.map(|(pod, found)| (pod.path(), found.name.clone())).collect();
        let installed = self.enforce.install(&Wanted { artifact, endpoints: &endpoints });
        let installed = installed.map_err(|trouble| ("install", trouble.0))?;
        self.metrics.observe("weir_install_seconds", started.elapsed());
        self.metrics.add("weir_generations_total", &[], 1.0);
        let fields = [
            ("generation", Value::from(installed.epoch)),
            ("endpoints", Value::from(endpoints.len())),
            ("missing", Value::from(self.places.missing().len())),
        ];
        self.log.info("in force", &fields);
        if installed.lost_flows > 0 {
            let so = "each is judged anew when it speaks";
            let fields = [("flows", Value::from(installed.lost_flows)), ("so", Value::from(so))];
            self.log.warn("no room in the new flow table", &fields);
        }
        for (pod, why) in &installed.failed {
            self.log.error("not enforced", &[("pod", Value::from(pod.as_str())), ("error", Value::from(why.as_str()))]);
        }
        self.tell_pods(&installed.failed, now);
        self.refused_until = (!installed.failed.is_empty()).then(|| back_off(self.refused_until, now));
        self.refused = installed.failed;
        self.enforced = self.places.found().clone();
        self.enforced.retain(|pod, _| self.refused.iter().all(|(refused, _)| *refused != pod.path()));
        let pods = self.enforced.keys().map(|pod| (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())).collect();
        self.told.send_replace(InForce { generation: installed.epoch, pods });
        Ok(installed.epoch)
    }

    /// What is in force stays; it is tried again, later each time.
    fn failed(&mut self, stage: &'static str, error: String, now: Instant) {
        self.metrics.add("weir_failures_total", &[("stage", stage)], 1.0);
        if self.failure.as_ref() != Some(&error) {
            let stays = "what was in force stays";
            self.log.error("no new generation", &[("error", Value::from(error.as_str())), ("so", Value::from(stays))]);
        }
        self.tell_policies(&error, now);
        self.pending.retry = Some(back_off(self.pending.retry, now));
        self.failure = Some(error);
    }

    /// Finds the interfaces of the local pods of the generation that was compiled last.
    fn find(&mut self, now: Instant) -> bool {
        let Some(generation) = self.index.generation() else { return false };
        let cluster = &generation.cluster;
        let pod = |id: &weir_compiler::model::EndpointId| {
            let endpoint = &cluster.endpoints[id.index()];
            Pod {
                namespace: cluster.namespaces[endpoint.namespace.index()].name.clone(),
                name: endpoint.name.clone(),
                uid: endpoint.uid.clone(),
                addresses: endpoint.addresses.clone(),
            }
        };
        let pods: BTreeSet<Pod> = generation.scope.endpoints().iter().map(pod).collect();
        let before: BTreeSet<Pod> = self.places.missing().keys().cloned().collect();
        let changed = self.places.find(&pods, now);
        for (pod, error) in self.places.missing().iter().filter(|(pod, _)| !before.contains(pod)) {
            let fields = [("pod", Value::from(pod.path())), ("error", Value::from(error.to_string()))];
            self.log.warn("no interface yet; it is looked for again", &fields);
        }
        changed
    }

    /// Deleted pods stay enforced until their interfaces go, whoever deleted them; others may come back at another interface.
    fn check_interfaces(&mut self, now: Instant) {
        let (interfaces, lost) = self.places.check();
        let gone: Vec<Key> =
            self.leaving.extract_if(.., |_, found| !interfaces.has(found)).map(|(key, _)| key).collect();
        for key in gone {
            let dirty = self.index.delete(&key);
            self.note(dirty, true, now);
        }
        if lost && self.pending.generation.is_none() && self.find(now) {
            self.pending.want_generation(now);
        }
    }

    /// Pods whose interface was not there, or that the kernel refused, may be all right by now.
    fn try_endpoints_again(&mut self, now: Instant) {
        let found = self.places.due().is_some_and(|due| due <= now) && self.find(now);
        if found || self.refused_until.is_some_and(|(at, _)| at <= now) {
            self.pending.want_generation(now);
        }
    }

    /// How long pods were on their networks without policy. Those that were there before the agent say nothing.
    fn time_new_pods(&mut self) {
        let fresh = self.places.take_fresh();
        if self.in_force.is_some() {
            for made in fresh {
                // A clock that was set back says nothing either.
                let open = SystemTime::now().duration_since(made);
                open.into_iter().for_each(|open| self.metrics.observe("weir_interface_enforced_seconds", open));
            }
        }
    }

    fn rest(&mut self) {
        if let Err(trouble) = self.enforce.rest() {
            // The next generation, or the next agent, does it.
            self.log.warn("what was replaced is still there", &[("error", Value::from(trouble.0))]);
        }
        // A compile takes as much as everything else together, for a moment.
        weir_runtime::sys::give_memory_back();
    }

    fn in_force_now(&mut self, now: Instant) {
        let heard = [
            ("weir_pod_enforced_seconds", &mut self.pending.pods),
            ("weir_policy_enforced_seconds", &mut self.pending.others),
        ];
        for (name, times) in heard {
            for at in times.drain(..) {
                self.metrics.observe(name, now.saturating_duration_since(at));
            }
        }
    }
}

/// Of pods of other nodes only what packets can feel is kept: there are many.
fn forget_particulars(node: &str, object: &mut Object) {
    match &mut object.body {
        Body::Pod(pod) if pod.node.as_deref() != Some(node) => (object.meta.uid, pod.owner) = (None, None),
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
