//! Generations that are made by applying changes to the one in force: see [`crate::incremental`].
//!
//! The index collects the changes that the generation in force does not have. If changes of their kinds can be applied,
//! they are applied to the generation; otherwise the caller begins a compile from scratch. A draft of changes borrows
//! nothing from the index, which takes further changes meanwhile.
//! Invariant: whatever happens to a draft of changes, the index stays as it is, or needs a compile from scratch.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::baseline::Baseline;
use super::effect::CLUSTER_POLICY_KINDS;
use super::lists::{only_entries, shallow};
use super::local::selects;
use super::pods::{addresses, as_pod};
use super::roles::Roles;
use super::services::{as_service, with_service};
use super::store::{KeyRef, Keyed};
use super::{Dirty, Generation, Index, Kept, Key};
use crate::addresses::Ranges;
use crate::departed::MovedBackends;
use crate::incremental::{
    Changes, ListChange, LocalChange, Maintained, NamespaceChange, NeedsWhole, PeerPod, PolicyChange, PresentList,
    RangeChanges, ServiceChange, ServiceChanges, TierChange, is_alike,
};
use crate::rows::is_reached;
use crate::{Limits, PeerId, PredicateId};
use weir_model::Service;
use weir_model::labels::matches;
use weir_model::resolve::{named_ports, namespace_labels, nodes, resolve};
use weir_objects::k8s::{
    Body, ClusterPeer, ClusterPort, Labels, NamedPort, Object, Pod, PolicyPeer, PortMatch, Protocol,
};

/// The most changes that are collected. Changes that need no generation are collected too, so that the next generation
/// has them, and a tenant can make any number of them.
const MOST_COLLECTED: usize = 4_096;

/// The changes that the generation in force does not have.
#[derive(Debug, Default)]
pub(super) struct Unbuilt {
    policies: BTreeSet<Key>,
    /// Cluster-wide policies, whether or not they apply to a local pod.
    tiers: BTreeSet<Key>,
    /// Pods whose addresses need a class.
    pods: BTreeSet<Key>,
    /// Those of them that are or were local.
    local: BTreeSet<Key>,
    /// Addresses that such pods had before.
    left: BTreeSet<IpAddr>,
    /// Services that have changed, or their slices, by namespace and name.
    services: BTreeSet<(String, String)>,
    /// Those whose slices have exchanged backends without a generation, and those that are gone without one. Their
    /// moves are known already.
    moved: BTreeSet<(String, String)>,
    /// Namespaces of the generation whose labels have changed.
    namespaces: BTreeSet<String>,
    /// Those of them whose pods have had another class meanwhile, or should have had it. Their entries can be those of
    /// labels between the generation's and the present ones, also if these two are equal.
    moved_namespaces: BTreeSet<String>,
    /// Changed lists, also those that apply to no local pod, and whether more than their entries has changed.
    lists: BTreeMap<String, bool>,
    /// Whether there were too many of them.
    has_more_lists: bool,
    /// Whether `nodes` peers may match other addresses.
    nodes: bool,
    /// Whether there are other changes, which need a compile from scratch.
    is_more: bool,
}

impl Unbuilt {
    /// Records a change and the answer to it. `knows` returns whether a namespace is in the generation.
    pub(super) fn note(
        &mut self,
        before: Option<&Object>,
        after: Option<&Object>,
        dirty: &Dirty,
        judges_services: bool,
        knows: impl Fn(&str) -> bool,
    ) {
        let Some(object) = after.or(before) else { return };
        match (&object.body, dirty) {
            // The generation in force has its entries, and the next one has it as a subject.
            (Body::Pod(_), Dirty::Addresses(changes)) if !changes.locals.is_empty() => {
                self.note_pod(before, after, true);
            }
            // A policy that selects no local pod is not in the data, and a pod's class is in the address table.
            (Body::NetworkPolicy(_) | Body::Pod(_), Dirty::Nothing | Dirty::Addresses(_)) => {}
            // Entries of lists are in the address table, or read when the list begins to apply.
            (Body::CidrList(_), Dirty::Addresses(_)) => {}
            (Body::CidrList(_), _) => {
                let is_other = only_entries(before, after).is_none();
                if is_other || *dirty == Dirty::Everything {
                    *self.lists.entry(object.meta.name.clone()).or_default() |= is_other;
                }
            }
            (Body::Node(_), Dirty::Nothing) => {}
            (Body::ClusterPolicy(_), _) => _ = self.tiers.insert(Key::of(object)),
            (Body::NetworkPolicy(_), Dirty::Everything) => _ = self.policies.insert(Key::of(object)),
            // Also if nothing has to be done now: labels and backends must be known when a later change asks for them.
            (Body::Namespace, _) if knows(&object.meta.name) => _ = self.namespaces.insert(object.meta.name.clone()),
            // Its labels are read when the first object in it is.
            (Body::Namespace, _) => {}
            // Before services are judged, a compile from scratch reads all of them.
            (Body::Service(_) | Body::EndpointSlice(_), _) if !judges_services => {}
            // The backends that have left are known already.
            (Body::Service(_), Dirty::Addresses(_)) => {
                self.moved.insert((object.meta.namespace.to_string(), object.meta.name.clone()));
            }
            (Body::Service(_), _) => {
                self.note_services([(object.meta.namespace.to_string(), object.meta.name.clone())]);
            }
            (Body::EndpointSlice(_), Dirty::Nothing) => self.moved.extend(services_of([before, after])),
            (Body::EndpointSlice(_), _) => self.note_slices([before, after]),
            _ => self.is_more = true,
        }
        self.limit();
    }

    /// Whether the next generation judges this service again, whatever its slices do until then.
    pub(super) fn has_service(&self, service: &Key) -> bool {
        self.is_more || self.services.contains(&(service.namespace.clone(), service.name.clone()))
    }

    /// Whether more than the entries of a list may have changed since the generation.
    pub(super) fn has_other_list(&self, name: &str) -> bool {
        self.has_more_lists || self.lists.get(name).is_some_and(|is_other| *is_other)
    }

    /// Stops collecting changes when there are too many.
    fn limit(&mut self) {
        // Moved namespaces are among the namespaces.
        let Self { policies, tiers, pods, local, left, services, moved, namespaces, lists, .. } = self;
        let counts = [policies.len(), pods.len(), local.len(), left.len(), services.len(), moved.len()];
        let mut counts = counts.into_iter().chain([namespaces.len(), lists.len(), tiers.len()]);
        if !self.is_more && !counts.any(|count| count > MOST_COLLECTED) {
            return;
        }
        let has_more_lists = self.has_more_lists || self.lists.len() > MOST_COLLECTED;
        let lists = if has_more_lists { BTreeMap::new() } else { std::mem::take(&mut self.lists) };
        // A compile from scratch reads all objects, so the rest would only use memory. Lists are kept for
        // `has_other_list`.
        *self = Self { is_more: true, lists, has_more_lists, ..Self::default() };
    }

    /// Records that the labels of a namespace have given its pods another class, or should have.
    pub(super) fn note_moved_namespace(&mut self, name: &str) {
        self.moved_namespaces.insert(name.to_owned());
    }

    /// Records whether `nodes` peers may match other addresses.
    pub(super) fn note_nodes(&mut self, moves_nodes: bool) {
        self.nodes |= moves_nodes;
        self.limit();
    }

    pub(super) fn note_services(&mut self, services: impl IntoIterator<Item = (String, String)>) {
        self.services.extend(services);
        self.limit();
    }

    /// Records that backends of slices' services may have come or left.
    pub(super) fn note_slices(&mut self, states: [Option<&Object>; 2]) {
        self.note_services(services_of(states));
    }

    /// Records a change of a pod whose addresses need a class.
    pub(super) fn note_pod(&mut self, before: Option<&Object>, after: Option<&Object>, is_local: bool) {
        let had = before.and_then(as_pod).map_or(&[][..], |(_, pod)| addresses(pod));
        self.left.extend(had);
        self.pods.extend(after.map(Key::of));
        if is_local {
            self.local.extend(after.or(before).map(Key::of));
        }
        self.limit();
    }
}

/// The terms of a policy that has changed.
struct ChangedTerms<'c> {
    /// Its namespace; empty if it is cluster-wide.
    namespace: &'c str,
    peers: Vec<Cow<'c, PolicyPeer>>,
    /// The named ports of egress rules.
    names: Vec<(&'c str, Protocol)>,
}

impl<'c> ChangedTerms<'c> {
    fn of_policy(change: &'c PolicyChange) -> Option<Self> {
        let Body::NetworkPolicy(policy) = &change.now.as_ref()?.body else { return None };
        let peers = policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.peers).map(Cow::Borrowed);
        let names = policy.egress.iter().flat_map(|rule| &rule.ports).filter_map(|port| match &port.port {
            PortMatch::Named(name) => Some((name.as_str(), port.protocol)),
            PortMatch::Any | PortMatch::Range(..) => None,
        });
        Some(Self { namespace: &change.namespace, peers: peers.collect(), names: names.collect() })
    }

    fn of_tier(change: &'c TierChange) -> Option<Self> {
        let Body::ClusterPolicy(policy) = &change.now.as_ref()?.body else { return None };
        let peers = policy.ingress.iter().chain(&policy.egress).flat_map(|rule| &rule.peers);
        let peers = peers.filter_map(|peer| match peer {
            ClusterPeer::Pods { namespaces, pods } => {
                let (namespaces, pods) = (Some(namespaces.clone()), Some(pods.clone()));
                Some(Cow::Owned(PolicyPeer::Pods { namespaces, pods }))
            }
            ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) | ClusterPeer::DomainNames(_) | ClusterPeer::Unknown => {
                None
            }
        });
        let names = policy.egress.iter().flat_map(|rule| &rule.ports).filter_map(|port| match port {
            ClusterPort::Named(name) => Some(name.as_str()),
            ClusterPort::Transport(_) => None,
        });
        let names =
            names.flat_map(|name| [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| (name, protocol)));
        Some(Self { namespace: "", peers: peers.collect(), names: names.collect() })
    }
}

/// The services that slices belong to, by namespace and name.
fn services_of<'o>(states: [Option<&'o Object>; 2]) -> impl Iterator<Item = (String, String)> + use<'o> {
    let slices = states.into_iter().flatten().filter_map(with_service);
    slices.map(|(slice, service)| (slice.meta.namespace.to_string(), service.to_owned()))
}

/// The facts about changes that a baseline gets, once they are applied.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Addresses of services that have changed.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// How much more often an address is behind ports of services.
    pub(super) backends: Vec<(IpAddr, i64)>,
    /// How many backends of ports have come and left.
    pub(super) moves: usize,
    /// The selectors of services that have changed; `None` if they do not decide about its backends.
    pub(super) selecting: BTreeMap<(String, String), Option<Labels>>,
    /// The blocks and lists that contained single addresses when the changes were collected.
    pub(super) relisted: Arc<BTreeMap<IpAddr, Vec<PredicateId>>>,
    /// The backends that services have got and lost.
    moved: Vec<MovedBackends>,
}

/// A generation in the making, from changes of the one in force.
#[derive(Debug)]
pub struct ChangeDraft {
    maintained: Box<Maintained>,
    changes: Changes,
    applied: Applied,
    roles: Arc<Roles>,
}

impl ChangeDraft {
    /// Applies the changes, unless they need a compile from scratch or cost more than the limits allow.
    pub fn classify_within(self, limits: Limits) -> Result<Generation, NeedsWhole> {
        let Self { maintained, changes, mut applied, roles } = self;
        let maintained = Box::new(maintained.apply(changes, limits)?);
        let (cluster, scope) = (Arc::clone(&maintained.cluster), maintained.scope.clone());
        Ok(Generation {
            cluster,
            scope,
            classes: maintained.classes.clone(),
            is_incremental: true,
            roles,
            moved: std::mem::take(&mut applied.moved),
            kept: Kept::Maintained(maintained, applied.into()),
        })
    }
}

impl Index {
    /// Begins a generation from the changes since the one in force. Until it is adopted, changes are answered relative
    /// to the generation before. If this fails, the caller begins a compile from scratch.
    pub fn begin_changes(&mut self) -> Result<ChangeDraft, NeedsWhole> {
        let Some(baseline) = &self.baseline else { return Err(NeedsWhole::Base) };
        if self.unbuilt.is_more {
            return Err(NeedsWhole::Objects);
        }
        if baseline.is_full() {
            return Err(NeedsWhole::Unused);
        }
        let maintained = self.maintained.as_ref().ok_or(NeedsWhole::Base)?;
        let (changes, applied) = self.changes(baseline, maintained)?;
        let roles = Arc::clone(&baseline.roles);
        let maintained = self.maintained.take().ok_or(NeedsWhole::Base)?;
        self.since = Some(BTreeMap::new());
        Ok(ChangeDraft { maintained, changes, applied, roles })
    }

    fn changes(&self, baseline: &Baseline, maintained: &Maintained) -> Result<(Changes, Applied), NeedsWhole> {
        let relabelled = self.relabelled(maintained);
        let local = self.local_changes(maintained, &relabelled)?;
        let policies = self.policy_changes(maintained, &local);
        let tiers = self.tier_changes(maintained, &local);
        let lists = self.changed_lists(maintained, &local);
        let (services, mut applied) = self.service_changes_since(maintained)?;
        applied.relisted = Arc::clone(baseline.relisted());
        let mentioned = policies.iter().filter(|it| it.now.is_some()).map(|it| it.namespace.as_str());
        let mentioned = mentioned.chain(self.unbuilt.pods.iter().map(|key| key.namespace.as_str()));
        let mentioned = mentioned.chain(services.list.iter().map(|it| it.namespace.as_str()));
        let new: BTreeSet<&str> = mentioned.filter(|name| !maintained.knows_namespace(name)).collect();
        let mut namespaces: Vec<NamespaceChange> = new.into_iter().map(|name| self.namespace_now(name)).collect();
        namespaces.extend(relabelled);
        let terms =
            policies.iter().filter_map(ChangedTerms::of_policy).chain(tiers.iter().filter_map(ChangedTerms::of_tier));
        let terms: Vec<ChangedTerms<'_>> = terms.collect();
        let pods = self.peer_pods(baseline, maintained, &terms, &namespaces)?;
        let moved = pods.iter().flat_map(|pod| pod.addresses.iter().map(|(address, _)| *address));
        let moved = moved.chain(self.unbuilt.left.iter().copied()).filter(|_| baseline.judges_egress);
        let moved_backends = moved.filter(|address| baseline.is_backing(*address)).collect();
        let (entries, ranges) = (self.entries(baseline)?, self.range_changes(baseline, maintained)?);
        let changes =
            Changes { namespaces, local, policies, tiers, lists, pods, entries, ranges, services, moved_backends };
        Ok((changes, applied))
    }

    /// The lists that have changed, and those that begin to apply to a local pod with the pod's own change or its
    /// namespace's.
    fn changed_lists(&self, maintained: &Maintained, local: &[LocalChange]) -> Vec<ListChange> {
        let mut names: BTreeSet<&str> = self.unbuilt.lists.keys().map(String::as_str).collect();
        for pod in local.iter().filter_map(|change| change.now.as_ref()) {
            let labels = self.namespace_now(&pod.meta.namespace).labels;
            let new = self.of_kind("CidrList").filter(|it| selects(it, &labels, &pod.meta.labels));
            names.extend(new.map(|it| it.meta.name.as_str()).filter(|name| !maintained.applies_list(name)));
        }
        names.into_iter().map(|name| ListChange { name: name.to_owned(), now: self.list_now(name) }).collect()
    }

    fn list_now(&self, name: &str) -> Option<PresentList> {
        let object = self.objects.get(&KeyRef { kind: "CidrList", namespace: "", name })?;
        let Body::CidrList(list) = &object.body else { return None };
        let (id, meta, body) = (object.id, object.meta.clone(), Body::CidrList(shallow(list).into()));
        Some(PresentList { object: Object { id, meta, body }, ranges: Ranges::of_list(&list.entries) })
    }

    /// The changed ranges of `nodes` peers.
    fn range_changes(&self, baseline: &Baseline, maintained: &Maintained) -> Result<RangeChanges, NeedsWhole> {
        let mut held = Vec::new();
        if self.unbuilt.nodes {
            let nodes = nodes(self.of_kind("Node").chain(self.of_kind("Pod")));
            held = maintained.ranges_of_nodes(&nodes)?;
        }
        let mut of_nodes = self.declared.keys().chain(self.hosted.keys());
        let has_pods_at_nodes = baseline.has_node_peers && of_nodes.any(|address| self.holders.contains_key(address));
        Ok(RangeChanges { held, has_pods_at_nodes, relisted: Arc::clone(baseline.relisted()) })
    }

    fn namespace_now(&self, name: &str) -> NamespaceChange {
        let object = self.objects.get(&KeyRef { kind: "Namespace", namespace: "", name });
        let labels = namespace_labels(name, object).into();
        NamespaceChange { name: name.to_owned(), labels, object: object.map(|it| it.id) }
    }

    /// The namespaces of the generation that have other labels now.
    fn relabelled(&self, maintained: &Maintained) -> Vec<NamespaceChange> {
        let now = self.unbuilt.namespaces.iter().map(|name| self.namespace_now(name));
        now.filter(|it| maintained.knows_namespace(&it.name) && !maintained.has_labels(&it.name, &it.labels)).collect()
    }

    /// The pods that have come or gone as subjects, and those that labels of their namespace may select.
    fn local_changes(
        &self,
        maintained: &Maintained,
        relabelled: &[NamespaceChange],
    ) -> Result<Vec<LocalChange>, NeedsWhole> {
        let in_relabelled = relabelled.iter().flat_map(|it| self.objects.of_namespace("Pod", &it.name));
        let in_relabelled = in_relabelled.filter(|object| self.is_subject(object)).map(KeyRef::of);
        let keys: BTreeSet<KeyRef<'_>> = self.unbuilt.local.iter().map(Keyed::key).chain(in_relabelled).collect();
        // A pod that names no node is local if its node's address is the own node's.
        let is_known = |namespace, name| keys.contains(&KeyRef { kind: "Pod", namespace, name });
        if relabelled.iter().any(|it| maintained.local_in(&it.name).any(|name| !is_known(&it.name, name))) {
            return Err(NeedsWhole::Objects);
        }
        let change = |key: KeyRef<'_>| LocalChange {
            namespace: key.namespace.to_owned(),
            name: key.name.to_owned(),
            now: self.objects.get(&key).filter(|object| self.is_subject(object)).cloned(),
        };
        let changes: Vec<LocalChange> = keys.into_iter().map(change).collect();
        let mut pods = changes.iter().filter_map(|it| as_pod(it.now.as_ref()?));
        // Which of several pods has an address is decided when all objects are resolved.
        match pods.any(|(_, pod)| addresses(pod).iter().any(|address| self.is_disputed(address))) {
            true => Err(NeedsWhole::Objects),
            false => Ok(changes),
        }
    }

    fn is_subject(&self, object: &Object) -> bool {
        as_pod(object).is_some_and(|(_, pod)| pod.node == self.node && !addresses(pod).is_empty())
    }

    /// The cluster-wide policies that have changed, and those that begin to apply to a local pod with the pod's own
    /// change or its namespace's.
    fn tier_changes(&self, maintained: &Maintained, local: &[LocalChange]) -> Vec<TierChange> {
        let mut keys: BTreeSet<KeyRef<'_>> = self.unbuilt.tiers.iter().map(Keyed::key).collect();
        for pod in local.iter().filter_map(|change| change.now.as_ref()) {
            let policies = CLUSTER_POLICY_KINDS.into_iter().flat_map(|kind| self.of_kind(kind));
            let labels = self.namespace_now(&pod.meta.namespace).labels;
            let new = policies.filter(|it| selects(it, &labels, &pod.meta.labels)).map(KeyRef::of);
            keys.extend(new.filter(|key| !maintained.applies_tier(key.kind, key.name)));
        }
        let change = |key: KeyRef<'_>| TierChange {
            kind: key.kind.to_owned(),
            name: key.name.to_owned(),
            now: self.objects.get(&key).cloned(),
        };
        keys.into_iter().map(change).collect()
    }

    /// The policies that have changed, and those that begin to select a local pod with the pod's own change.
    fn policy_changes(&self, maintained: &Maintained, local: &[LocalChange]) -> Vec<PolicyChange> {
        let mut keys: BTreeSet<KeyRef<'_>> = self.unbuilt.policies.iter().map(Keyed::key).collect();
        for pod in local.iter().filter_map(|change| change.now.as_ref()) {
            let policies = self.objects.of_namespace("NetworkPolicy", &pod.meta.namespace);
            let selects = |object: &Object| match &object.body {
                Body::NetworkPolicy(policy) => matches(&policy.pod_selector, &pod.meta.labels),
                _ => false,
            };
            let new = policies.filter(|object| selects(object)).map(KeyRef::of);
            keys.extend(new.filter(|key| !maintained.has_policy(key.namespace, key.name)));
        }
        let change = |key: KeyRef<'_>| PolicyChange {
            namespace: key.namespace.to_owned(),
            name: key.name.to_owned(),
            now: self.objects.get(&key).cloned(),
        };
        keys.into_iter().map(change).collect()
    }

    /// The services that have changed, with their present backends.
    fn service_changes_since(&self, maintained: &Maintained) -> Result<(ServiceChanges, Applied), NeedsWhole> {
        let (mut changes, mut applied) = (ServiceChanges::default(), Applied::default());
        for of in self.unbuilt.services.union(&self.unbuilt.moved) {
            let (namespace, name) = of;
            let key = Key { kind: "Service".to_owned(), namespace: namespace.clone(), name: name.clone() };
            let now = self.service_now(&key)?;
            let was = maintained.service(namespace, name);
            if was.is_none() && now.is_none() {
                continue;
            }
            let is_moved = !self.unbuilt.services.contains(of);
            if !is_moved {
                let (moved, count) = self.moved_backends(&key, was, now.as_ref())?;
                applied.moved.push(moved);
                applied.moves += count;
            }
            for (service, change) in [(was, -1), (now.as_ref(), 1)] {
                let Some(service) = service else { continue };
                applied.addresses.extend(&service.addresses);
                let backends = service.ports.iter().flat_map(|port| &port.backends).filter(|_| is_reached(service));
                applied.backends.extend(backends.filter_map(|it| Some((it.address?, change))));
            }
            let selector = self.objects.get(&key).and_then(as_service).map(|(_, service)| &service.selector);
            let selector = selector.filter(|it| !it.is_empty() && self.slices.of(&key).next().is_none());
            applied.selecting.insert((namespace.clone(), name.clone()), selector.cloned());
            // `services::moved_by` has compared the ports. It has not compared those of services that no packet
            // reached, or that are gone.
            let keeps_verdicts = is_moved && [was, now.as_ref()].into_iter().all(|it| it.is_some_and(is_reached));
            changes.list.push(ServiceChange { namespace: namespace.clone(), name: name.clone(), now, keeps_verdicts });
        }
        changes.of_pods = applied.addresses.iter().copied().filter(|it| self.holders.contains_key(it)).collect();
        changes.of_nodes = applied.addresses.iter().copied().filter(|it| self.is_of_node(*it)).collect();
        match changes.of_pods.iter().any(|address| self.is_disputed(address)) {
            true => Err(NeedsWhole::Objects),
            false => Ok((changes, applied)),
        }
    }

    /// A service as it is now, without the pods behind its backends' addresses.
    fn service_now(&self, key: &Key) -> Result<Option<Service>, NeedsWhole> {
        self.objects.get(key).map_or(Ok(None), |object| self.resolved_service(object))
    }

    /// A service with its present backends.
    pub(super) fn resolved_service(&self, object: &Object) -> Result<Option<Service>, NeedsWhole> {
        let Some((_, service)) = as_service(object) else { return Ok(None) };
        let key = &Key::of(object);
        let mut objects: Vec<&Object> = vec![object];
        objects.extend(self.slices.of(key).filter_map(|name| self.slice(&key.namespace, name)));
        if objects.len() == 1 && !service.selector.is_empty() {
            // Without pods, a workload would be a backend.
            if self.baseline.as_ref().is_some_and(|it| it.roles.has_workloads) {
                return Err(NeedsWhole::Backends);
            }
            let pods = self.objects.of_namespace("Pod", &key.namespace);
            let selects =
                |pod: &&Object| service.selector.iter().all(|(key, value)| pod.meta.labels.get(key) == Some(value));
            objects.extend(pods.filter(selects));
        }
        let addresses = objects.iter().filter_map(|object| as_pod(object)).flat_map(|(_, pod)| addresses(pod));
        if addresses.into_iter().any(|address| self.is_disputed(address)) {
            return Err(NeedsWhole::Objects);
        }
        let service = resolve(objects, self.assume).0.services.into_iter().next();
        let mut backends = service.iter().flat_map(|it| &it.ports).flat_map(|port| &port.backends);
        if backends.any(|it| it.address.is_none()) { Err(NeedsWhole::Backends) } else { Ok(service) }
    }

    /// The backends that a service has got and lost, and how many these are. All earlier ones count as lost if the
    /// service has another address or port: connections to the old one may use any of them. All present ones are passed
    /// on, but only those count that it did not have.
    pub(super) fn moved_backends(
        &self,
        key: &Key,
        was: Option<&Service>,
        now: Option<&Service>,
    ) -> Result<(MovedBackends, usize), NeedsWhole> {
        let is_alike = is_alike(was, now);
        let [was, now] = [was, now].map(|it| {
            let backends = it.into_iter().flat_map(|it| &it.ports).flat_map(|port| &port.backends);
            backends.filter_map(|it| it.address).collect::<BTreeSet<IpAddr>>()
        });
        let stays = |address: &&IpAddr| is_alike && was.contains(*address) && now.contains(*address);
        let left: BTreeSet<IpAddr> = was.iter().filter(|it| !stays(it)).copied().collect();
        let count = left.len() + now.iter().filter(|it| !stays(it)).count();
        let service = self.service_with_pods(key, &now).ok_or(NeedsWhole::Backends)?;
        Ok((MovedBackends { service, came: now, left, is_alike }, count))
    }

    fn is_disputed(&self, address: &IpAddr) -> bool {
        self.holders.get(address).is_some_and(|count| *count > 1)
    }

    /// The entries of the address table that differ from the generation's.
    fn entries(&self, baseline: &Baseline) -> Result<BTreeMap<IpAddr, Option<PeerId>>, NeedsWhole> {
        let mut entries = baseline.changed().clone();
        // An address that another pod has now was written when that pod got it.
        for address in self.unbuilt.left.iter().filter(|it| !self.holders.contains_key(it)) {
            let peer = baseline.class_without_pod(*address).ok_or(NeedsWhole::Objects)?;
            entries.insert(*address, baseline.entry_for(*address, peer));
        }
        Ok(entries)
    }

    /// The pods whose class may be another one.
    fn peer_pods(
        &self,
        baseline: &Baseline,
        maintained: &Maintained,
        terms: &[ChangedTerms<'_>],
        namespaces: &[NamespaceChange],
    ) -> Result<Vec<PeerPod>, NeedsWhole> {
        let mut found: BTreeSet<KeyRef<'_>> = self.unbuilt.pods.iter().map(Keyed::key).collect();
        for ChangedTerms { namespace, peers, .. } in terms {
            for peer in peers.iter().filter(|peer| !maintained.knows(namespace, peer)) {
                let selected = maintained.namespaces_of(namespace, peer, namespaces);
                found.extend(selected.into_iter().flat_map(|it| self.selected(it, peer)));
            }
        }
        let names = terms.iter().flat_map(|it| it.names.iter().copied());
        let new: BTreeSet<_> = names.filter(|(name, protocol)| !maintained.knows_name(name, *protocol)).collect();
        if new.iter().any(|(name, _)| self.objects.has_port_name(name)) {
            found.extend(self.with_named_ports(&new));
        }
        let told_apart = namespaces.iter().filter(|it| maintained.tells_apart(&it.name, &it.labels));
        for namespace in told_apart.map(|it| &it.name).chain(&self.unbuilt.moved_namespaces) {
            found.extend(self.objects.of_namespace("Pod", namespace).map(KeyRef::of));
        }
        let pods = found.into_iter().filter_map(|key| as_pod(self.objects.get(&key)?));
        // A pod without an address is no peer, and its namespace may not be known.
        let pods = pods.filter(|(_, pod)| !addresses(pod).is_empty());
        pods.map(|(object, pod)| self.peer_pod(baseline, object, pod)).collect()
    }

    /// The pods of a namespace that a peer selects.
    fn selected<'s>(&'s self, namespace: &str, peer: &PolicyPeer) -> impl Iterator<Item = KeyRef<'s>> {
        let is_selected = move |object: &Object| match peer {
            PolicyPeer::Pods { pods: Some(selector), .. } => matches(selector, &object.meta.labels),
            PolicyPeer::Pods { pods: None, .. } => true,
            PolicyPeer::Block { .. } => false,
        };
        self.objects.of_namespace("Pod", namespace).filter(move |object| is_selected(object)).map(KeyRef::of)
    }

    /// The pods of the cluster that have one of these ports.
    fn with_named_ports<'s>(&'s self, names: &BTreeSet<(&str, Protocol)>) -> impl Iterator<Item = KeyRef<'s>> {
        let is_one = |port: &NamedPort| names.contains(&(port.name.as_str(), port.protocol));
        let pods = self.objects.of_kind("Pod").filter_map(as_pod);
        pods.filter(move |(_, pod)| pod.ports.iter().any(is_one)).map(|(object, _)| KeyRef::of(object))
    }

    fn peer_pod(&self, baseline: &Baseline, object: &Object, pod: &Pod) -> Result<PeerPod, NeedsWhole> {
        // Which of several pods has an address is decided when all objects are resolved.
        if addresses(pod).iter().any(|address| self.is_disputed(address)) {
            return Err(NeedsWhole::Objects);
        }
        let (namespace, labels) = (object.meta.namespace.to_string(), Arc::clone(&object.meta.labels));
        let at = |address: &IpAddr| (*address, baseline.predicates_at(*address).to_vec());
        let addresses = addresses(pod).iter().map(at).collect();
        Ok(PeerPod { namespace, labels, ports: named_ports(&pod.ports, self.assume), addresses })
    }

    /// From here on, changes are answered relative to this generation, which has all changes so far.
    pub(super) fn take_over(&mut self, generation: &mut Generation) {
        self.unbuilt = Unbuilt::default();
        self.is_outdated = false;
        let kept = std::mem::replace(&mut generation.kept, Kept::Nothing);
        let before = self.baseline.take();
        (self.baseline, self.maintained) = match (kept, before) {
            (Kept::Maintained(maintained, applied), Some(before)) => {
                let (names, has_moved) = (maintained.names().clone(), maintained.has_moved_ranges());
                (Some(before.with_changes(generation, names, has_moved, *applied)), Some(maintained))
            }
            (Kept::Stages(parts), _) => {
                let Generation { cluster, scope, classes, .. } = &*generation;
                let maintained = Maintained::new(cluster, scope, classes.clone(), *parts);
                (Some(Baseline::new(generation)), Some(maintained.into()))
            }
            (Kept::Nothing | Kept::Maintained(..), _) => (Some(Baseline::new(generation)), None),
        };
    }
}
