//! The facts of the last compile that changes are compared with.
//!
//! The index keeps these instead of the [`Generation`]: the verdicts, the services and the pods are most of a
//! generation's memory, and answers to changes need none of them. Everything here is copied or shared when a generation
//! is adopted, so dropping the generation cannot leave this value incomplete.
//! Invariant: `changed`, `relisted` and `moved` are differences from the tables of this generation and no other. They
//! are part of this value, because applied to the tables of a later generation they would hide its own entries.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::changes::Applied;
use super::local::{LocalChange, LocalPods};
use super::pods::{addresses as pod_addresses, as_pod};
use super::roles::{Roles, local_addresses};
use super::{Changes, Dirty, Generation};
use crate::peers::{NamespaceNames, PodClasses};
use crate::{AddressMap, Classes, PeerId, Predicate, PredicateId};
use weir_model::labels::matches;
use weir_model::{Cluster, LabelSetId, NamedPort, NamespaceId};
use weir_objects::k8s::{LabelSelector, Labels, Object};

/// The facts of the last compile that changes are compared with, and the changes of single addresses since then.
#[derive(Debug)]
pub(super) struct Baseline {
    /// The parts that addresses play.
    pub(super) roles: Arc<Roles>,
    /// Whether a policy or list applies to egress of a local pod.
    pub(super) judges_egress: bool,
    /// Whether a rule in force has a `nodes` peer.
    pub(super) has_node_peers: bool,
    pods: PodClasses,
    addresses: Arc<AddressMap>,
    /// The predicate of each list that applies to a local endpoint.
    lists: BTreeMap<String, PredicateId>,
    /// The namespaces and labels of local endpoints.
    local: BTreeSet<(NamespaceId, LabelSetId)>,
    /// Local pods that other pods are compared with, and those that came or left since the generation.
    pub(super) local_pods: LocalPods,
    local_addresses: BTreeSet<IpAddr>,
    /// Changes that were applied since the last compile from scratch.
    applied: AppliedSince,
    /// Entries of the exact table that differ from the generation's.
    changed: BTreeMap<IpAddr, Option<PeerId>>,
    /// Addresses whose blocks and lists differ from the generation's, with the present predicates.
    relisted: Arc<BTreeMap<IpAddr, Vec<PredicateId>>>,
    /// How much more often an address is behind ports of services than in the generation. Negative if slices have lost
    /// it.
    moved: HashMap<IpAddr, i64>,
    /// How many backends of ports have come and left since the generation.
    moves: usize,
}

/// Differences from the last compile from scratch. [`Baseline::is_full`] bounds them.
#[derive(Debug, Default)]
struct AppliedSince {
    /// Addresses of services. One that a service has lost stays here: a pod that gets it then needs a compile from
    /// scratch.
    fixed: BTreeSet<IpAddr>,
    /// How much more often an address is behind ports of services.
    backing: HashMap<IpAddr, i64>,
    /// Services that have no slices now; `None` for those that had none at the last compile from scratch and are gone
    /// or have some.
    selecting: BTreeMap<(String, String), Option<Labels>>,
    /// How many backends of ports have come and left.
    moves: usize,
}

/// The most entries of [`AppliedSince`].
const MOST_APPLIED: usize = 16_384;

/// The predicate of each list that applies to a local endpoint.
fn predicates_of_lists(cluster: &Cluster, classes: &Classes) -> BTreeMap<String, PredicateId> {
    let of_lists = classes.rules.of_lists().into_iter();
    of_lists.map(|(id, predicate)| (cluster.lists[id.index()].name.clone(), predicate)).collect()
}

impl Baseline {
    pub(super) fn new(generation: &Generation) -> Self {
        let Generation { cluster, classes, roles, .. } = generation;
        let local = classes.subject_of.iter().map(|(id, _)| &cluster.endpoints[id.index()]);
        Self {
            roles: Arc::clone(roles),
            judges_egress: classes.judges_egress(cluster),
            has_node_peers: classes.rules.predicates.iter().any(|it| matches!(it, Predicate::Nodes(_))),
            pods: PodClasses::new(cluster, classes),
            addresses: Arc::clone(&classes.addresses),
            lists: predicates_of_lists(cluster, classes),
            local: local.map(|endpoint| (endpoint.namespace, endpoint.labels)).collect(),
            local_pods: LocalPods::new(generation),
            local_addresses: roles.local.clone(),
            applied: AppliedSince::default(),
            changed: BTreeMap::new(),
            relisted: Arc::default(),
            moved: HashMap::new(),
            moves: 0,
        }
    }

    /// The baseline of a generation that was made by changes of this one.
    pub(super) fn with_changes(
        self,
        generation: &Generation,
        names: NamespaceNames,
        has_moved_ranges: bool,
        applied: Applied,
    ) -> Self {
        let Generation { cluster, scope, classes, .. } = generation;
        let addresses = Arc::clone(&classes.addresses);
        let pods = self.pods.with_changes(cluster, classes, names);
        let local = scope.endpoints().iter().map(|id| &cluster.endpoints[id.index()]);
        // Not the present ones: changes that arrived since the generation was begun are answered again.
        let relisted = if has_moved_ranges { Arc::default() } else { applied.relisted };
        let mut since = self.applied;
        since.fixed.extend(applied.addresses);
        for (address, change) in applied.backends {
            add_count(&mut since.backing, address, change);
        }
        for (service, selector) in applied.selecting {
            // A service that had slices and has some is left out. There are many such services, and each pod is compared
            // with all services that are here.
            match selector.is_some() || self.roles.selecting.contains_key(&service) {
                true => _ = since.selecting.insert(service, selector),
                false => _ = since.selecting.remove(&service),
            }
        }
        since.moves += self.moves + applied.moves;
        Self {
            addresses,
            pods,
            lists: predicates_of_lists(cluster, classes),
            local: local.map(|endpoint| (endpoint.namespace, endpoint.labels)).collect(),
            local_addresses: local_addresses(cluster, scope),
            // The generation has the pods that came, and its subject classes may have other numbers.
            local_pods: LocalPods::new(generation),
            applied: since,
            changed: BTreeMap::new(),
            relisted,
            // The changes of services contain these.
            moved: HashMap::new(),
            moves: 0,
            ..self
        }
    }

    /// Whether so much has changed since the last compile from scratch that another one is due, to free the memory.
    pub(super) fn is_full(&self) -> bool {
        let AppliedSince { fixed, backing, selecting, moves } = &self.applied;
        [fixed.len(), backing.len(), selecting.len(), *moves].into_iter().any(|count| count > MOST_APPLIED)
    }

    /// Whether an address is the own node's or a service's, or a hostPort names it.
    pub(super) fn is_claimed(&self, address: IpAddr) -> bool {
        self.roles.claimed.contains(&address) || self.applied.fixed.contains(&address)
    }

    /// The services without slices that find a pod by its labels.
    pub(super) fn selecting(&self, pod: &Object) -> impl Iterator<Item = &(String, String)> {
        let compiled = self.roles.selecting.iter().filter(|(name, _)| !self.applied.selecting.contains_key(*name));
        let since = self.applied.selecting.iter().filter_map(|(name, labels)| Some((name, labels.as_ref()?)));
        let selects = |((namespace, _), selector): &(&(String, String), &Labels)| {
            *namespace == pod.meta.namespace
                && selector.iter().all(|(key, value)| pod.meta.labels.get(key) == Some(value))
        };
        compiled.chain(since).filter(selects).map(|(name, _)| name)
    }

    /// The entries of the exact table that differ from the generation's.
    pub(super) fn changed(&self) -> &BTreeMap<IpAddr, Option<PeerId>> {
        &self.changed
    }

    /// The present class of an address: the generation's, with the changes since.
    pub(super) fn peer_at(&self, address: IpAddr) -> PeerId {
        match self.changed.get(&address) {
            Some(Some(peer)) => *peer,
            // Addresses that lists contain are in a table of their own, and stay there.
            Some(None) if !self.addresses.is_listed(address) => self.addresses.find_range(address),
            Some(None) | None => self.addresses.find(address),
        }
    }

    /// Whether a local pod has an address at present.
    pub(super) fn is_local(&self, address: IpAddr) -> bool {
        self.local_pods.has(address).unwrap_or_else(|| self.local_addresses.contains(&address))
    }

    /// The ports that ingress rules in force name.
    pub(super) fn named_in_ingress(&self, ports: &[NamedPort]) -> Vec<(u32, u16)> {
        self.pods.named_in_ingress(ports)
    }

    /// Whether an address is behind a service or hostPort at present.
    pub(super) fn is_backing(&self, address: IpAddr) -> bool {
        let compiled = self.roles.backing.get(&address).copied().unwrap_or(0);
        let since = [&self.applied.backing, &self.moved].map(|counts| counts.get(&address).copied().unwrap_or(0));
        i64::from(compiled) + since.iter().sum::<i64>() > 0
    }

    /// Records that ports of services have lost and got these backends.
    pub(super) fn note_moved(
        &mut self,
        lost: impl Iterator<Item = IpAddr>,
        got: impl Iterator<Item = IpAddr>,
        moves: usize,
    ) {
        self.moves += moves;
        let changes = lost.map(|address| (address, -1)).chain(got.map(|address| (address, 1)));
        changes.for_each(|(address, change)| add_count(&mut self.moved, address, change));
    }

    /// How many backends of ports have come and left since the generation.
    pub(super) fn moves(&self) -> usize {
        self.moves
    }

    /// Whether the generation has a namespace.
    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.pods.namespace(name).is_some()
    }

    /// Whether a local pod is in a namespace.
    pub(super) fn is_any_local_in(&self, name: &str) -> bool {
        let was_any = self.pods.namespace(name).is_some_and(|id| self.local.iter().any(|(of, _)| *of == id));
        was_any || self.local_pods.came().any(|(of, _)| of == name)
    }

    /// Whether a predicate in force depends on the labels of namespaces and holds for only one of these two sets.
    pub(super) fn tells_namespaces_apart(&self, one: &Labels, other: &Labels) -> bool {
        self.pods.tells_namespaces_apart(one, other)
    }

    /// Records the present labels of a namespace: see [`PodClasses::relabel`].
    pub(super) fn relabel(&mut self, name: &str, labels: Labels, moves: bool) {
        self.pods.relabel(name, labels, moves);
    }

    /// The class of a pod's address; `None` if there is no such class yet.
    pub(super) fn class_of(&self, pod: &Object, ports: &[NamedPort], address: IpAddr) -> Option<PeerId> {
        self.pods.find(&pod.meta.namespace, &pod.meta.labels, ports, self.predicates_at(address))
    }

    /// The class of an address that no pod has; `None` if there is no such class yet.
    pub(super) fn class_without_pod(&self, address: IpAddr) -> Option<PeerId> {
        self.class_of_predicates(self.predicates_at(address))
    }

    /// The class of an address for which only these predicates hold; `None` if there is no such class yet.
    pub(super) fn class_of_predicates(&self, predicates: &[PredicateId]) -> Option<PeerId> {
        self.pods.lookup().of_predicates(predicates)
    }

    /// The blocks and lists that contain an address at present.
    pub(super) fn predicates_at(&self, address: IpAddr) -> &[PredicateId] {
        let changed = self.relisted.get(&address);
        changed.map_or_else(|| self.pods.lookup().predicates_at(address), Vec::as_slice)
    }

    /// The predicate of a list; `None` if it applies to no local endpoint of the generation.
    pub(super) fn predicate_of_list(&self, name: &str) -> Option<PredicateId> {
        self.lists.get(name).copied()
    }

    /// Whether a selector of pods in a namespace matches the labels that a local pod had.
    pub(super) fn selects_local(&self, namespace: &str, selector: &LabelSelector) -> bool {
        self.local.iter().any(|(of, labels)| self.pods.selects(namespace, selector, *of, *labels))
            || self.local_pods.came().any(|(of, labels)| of == namespace && matches(selector, labels))
    }

    /// Whether selectors of namespaces and pods match the labels that a local pod had.
    pub(super) fn selects_local_anywhere(&self, namespaces: &LabelSelector, pods: &LabelSelector) -> bool {
        let came = |(of, labels): (&str, &Labels)| {
            matches(pods, labels) && self.pods.labels_of(of).is_none_or(|it| matches(namespaces, it))
        };
        self.local.iter().any(|(of, labels)| self.pods.selects_anywhere(namespaces, pods, *of, *labels))
            || self.local_pods.came().any(came)
    }

    /// The changes that give these addresses these classes.
    pub(super) fn changes(&self, classes: BTreeMap<IpAddr, PeerId>, other_owner: bool) -> Dirty {
        // Flows remember that they were allowed, not for which class. If the class of their address changes, that is
        // outdated.
        let judge_again = other_owner || classes.iter().any(|(address, peer)| self.peer_at(*address) != *peer);
        let entries = classes.into_iter().map(|(address, peer)| (address, self.entry_for(address, peer)));
        // Entries that the table has already need no write. On a large cluster most pod events change no address.
        let entries: Vec<_> = entries.filter(|(address, peer)| self.entry(*address) != *peer).collect();
        match entries.is_empty() && !judge_again {
            true => Dirty::Nothing,
            false => Dirty::Addresses(Changes { entries, judge_again, locals: Vec::new() }),
        }
    }

    /// Records entries of the exact table as written.
    pub(super) fn note_entries(&mut self, entries: &[(IpAddr, Option<PeerId>)]) {
        for (address, peer) in entries {
            // An entry as compiled is no difference. Otherwise every address that a pod ever had would be kept.
            match self.compiled_entry(*address) == *peer {
                true => _ = self.changed.remove(address),
                false => _ = self.changed.insert(*address, *peer),
            }
        }
    }

    /// Records changes of local pods as made; `before` is the previous state of the pod.
    pub(super) fn note_locals(&mut self, locals: &[LocalChange], before: Option<&Object>) {
        let had = before.and_then(as_pod).map_or(&[][..], |(_, pod)| pod_addresses(pod));
        // Of all others, `local_addresses` says already that they are no local pod's.
        let had: Vec<IpAddr> = had.iter().copied().filter(|it| self.local_addresses.contains(it)).collect();
        locals.iter().for_each(|change| self.local_pods.note(change, &had));
    }

    /// The blocks and lists that contain single addresses now, if they differ from the generation's.
    pub(super) fn relisted(&self) -> &Arc<BTreeMap<IpAddr, Vec<PredicateId>>> {
        &self.relisted
    }

    /// Records which blocks and lists contain these addresses now.
    pub(super) fn note_relisted(&mut self, relisted: impl IntoIterator<Item = (IpAddr, Vec<PredicateId>)>) {
        let of_generation = self.pods.lookup();
        let all = Arc::make_mut(&mut self.relisted);
        for (address, predicates) in relisted {
            // As in the generation. Otherwise every address that a list ever had would be kept.
            match *of_generation.predicates_at(address) == predicates[..] {
                true => _ = all.remove(&address),
                false => _ = all.insert(address, predicates),
            }
        }
    }

    /// The present entry of an address in the exact table.
    fn entry(&self, address: IpAddr) -> Option<PeerId> {
        // A change since the compile overrides the compiled table, also if it took the entry out.
        if let Some(changed) = self.changed.get(&address) {
            return *changed;
        }
        self.compiled_entry(address)
    }

    /// The generation's entry of an address in the exact table.
    fn compiled_entry(&self, address: IpAddr) -> Option<PeerId> {
        self.addresses.entry(address).map(|it| it.peer)
    }

    /// The entry to write for an address that should have this class; `None` removes the entry, because the prefixes
    /// already give this class. Addresses that lists contain always get an entry: it is not known here whether the
    /// table of these addresses can be changed in place.
    pub(super) fn entry_for(&self, address: IpAddr, peer: PeerId) -> Option<PeerId> {
        // The same rule as in `addresses::assemble`: otherwise the tables would differ from those of a compile from
        // scratch.
        self.addresses.entry_for(address, peer)
    }
}

fn add_count(counts: &mut HashMap<IpAddr, i64>, address: IpAddr, change: i64) {
    let count = counts.entry(address).or_default();
    *count += change;
    if *count == 0 {
        counts.remove(&address);
    }
}
