//! Peer classes: which predicates hold for which address.
//!
//! A predicate finds its pods through an index of labels, so its cost depends on the number of pods that it matches.
//! Pods of one namespace with the same labels are evaluated once.

mod held;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::addresses::{self, AddressMap, ClassRange, RangeMoves, Ranges, Segments, SetId};
use super::meter::{CLASS_BYTES, Exceeded, Meter, PAIR_BYTES};
use super::ports::{self, Atoms};
use super::predicates::{Predicate, PredicateId, RulePredicates};
use super::subjects::{SubjectDraft, needed_label};
use super::vips::{self, ServiceVip};
use super::{Classes, PeerClass, PeerId};
use held::{Held, OfNamespace, holds};
use weir_model::directory::Directory;
use weir_model::labels::{Labelling, Selection, matches};
use weir_model::{
    Assumptions, Cluster, Direction, Endpoint, EndpointId, Interner, IpBlockPods, LabelSetId, NamedPort, Namespace,
    NamespaceId, SelectorId, Standing,
};
use weir_objects::address::Family;
use weir_objects::k8s::{LabelSelector, Labels};

/// Every peer class, and the data that finds them. A change of policies that leaves them as they are shares them.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) list: Arc<Vec<PeerClass>>,
    /// The classes of backends that have no address.
    pub(super) without_address: HashMap<EndpointId, PeerId>,
    pub(super) addresses: Arc<AddressMap>,
    /// The services behind addresses: [`PeerClass::vip`] is an index into this list.
    pub(super) vips: Arc<Vec<ServiceVip>>,
    pub(super) lookup: Arc<PeerLookup>,
}

/// Finds the class of an address from the facts about it.
#[derive(Clone, Debug)]
pub(super) struct PeerLookup {
    /// The class of each key: of everything that is known of an address.
    ids: HashMap<PeerClass, PeerId>,
    segments: Arc<Segments>,
    held: Held,
}

impl PeerLookup {
    /// The blocks and lists that contain an address.
    pub(super) fn predicates_at(&self, address: IpAddr) -> &[PredicateId] {
        self.segments.find(address)
    }

    /// The ranges of addresses where a predicate holds.
    pub(super) fn ranges_where(&self, predicate: PredicateId) -> Ranges {
        self.segments.ranges_where(predicate)
    }

    /// Gives the segments the predicates that hold after moves.
    pub(super) fn move_segments(&mut self, moves: &RangeMoves, meter: &Meter) {
        self.segments = self.segments.moved(moves, meter).into();
    }

    /// The class of each set of address predicates that holds for some range. A million addresses have few different
    /// sets.
    pub(super) fn classes_of_sets(&mut self, list: &mut Vec<PeerClass>) -> Vec<PeerId> {
        let sets = Arc::clone(&self.segments);
        let key = |predicates: &Arc<_>| PeerClass { predicates: Arc::clone(predicates), ..PeerClass::default() };
        sets.sets.iter().map(|predicates| self.intern(key(predicates), list)).collect()
    }

    /// All ranges of the address space, with the class of each set.
    pub(super) fn ranges(&self, of_sets: &[PeerId]) -> impl Iterator<Item = ClassRange> {
        self.segments.ranges(of_sets)
    }

    /// The number of a key, which becomes a class at the end of `list` if it is new.
    pub(super) fn intern(&mut self, key: PeerClass, list: &mut Vec<PeerClass>) -> PeerId {
        let next = PeerId(list.len() as u32);
        *self.ids.entry(key).or_insert_with_key(|key| {
            list.push(key.clone());
            next
        })
    }

    /// Adds new predicates to the sets of labels for which they hold.
    pub(super) fn hold(&mut self, cluster: &Cluster, rules: &RulePredicates, new: &[PredicateId]) {
        self.held.add(cluster, rules, new);
    }

    /// The pod predicates that hold for pods with these labels. Incomplete if a limit of the meter is exceeded.
    pub(super) fn held_by(
        &self,
        cluster: &Cluster,
        rules: &RulePredicates,
        (namespace, labels): (NamespaceId, LabelSetId),
        meter: &Meter,
    ) -> Vec<PredicateId> {
        if let Some(known) = self.held.get(namespace, labels) {
            return known.clone();
        }
        if !meter.take(0, rules.predicates.len() as u64) {
            return Vec::new();
        }
        let predicates = (0..).map(PredicateId).zip(&rules.predicates);
        predicates.filter(|(_, it)| holds(cluster, it, namespace, labels)).map(|(id, _)| id).collect()
    }

    /// Keeps the pod predicates that hold for pods with these labels.
    pub(super) fn keep_held(&mut self, kind: (NamespaceId, LabelSetId), held: Vec<PredicateId>) {
        self.held.keep(kind, held);
    }

    /// Forgets the predicates that hold for pods of a namespace.
    pub(super) fn forget_namespace(&mut self, namespace: NamespaceId) {
        self.held.forget(namespace);
    }

    /// The class of a key, if there is one.
    pub(super) fn find(&self, key: &PeerClass) -> Option<PeerId> {
        self.ids.get(key).copied()
    }

    /// The class of an address for which only these predicates hold, if there is such a class.
    pub(super) fn of_predicates(&self, predicates: &[PredicateId]) -> Option<PeerId> {
        self.ids.get(&PeerClass { predicates: predicates.into(), ..PeerClass::default() }).copied()
    }
}

/// The numbers of namespaces by name. Namespaces that are new since the last compile from scratch have the highest
/// numbers, so the numbers of the others stay.
#[derive(Clone, Debug, Default)]
pub(super) struct NamespaceNames(Arc<HashMap<String, NamespaceId>>);

impl NamespaceNames {
    pub(super) fn new(namespaces: &[Namespace]) -> Self {
        let numbered = (0..).map(NamespaceId).zip(namespaces);
        Self(Arc::new(numbered.map(|(id, it)| (it.name.clone(), id)).collect()))
    }

    pub(super) fn find(&self, name: &str) -> Option<NamespaceId> {
        self.0.get(name).copied()
    }

    pub(super) fn add(&mut self, name: &str, id: NamespaceId) {
        Arc::make_mut(&mut self.0).insert(name.to_owned(), id);
    }
}

/// Finds the classes of pods that are new since the classes were made. It needs only some parts of the cluster.
#[derive(Debug)]
pub(super) struct PodClasses {
    namespaces: Vec<Namespace>,
    names: NamespaceNames,
    /// The labels of namespaces that have changed since the classes were made.
    relabelled: HashMap<NamespaceId, Labels>,
    /// Those of them with whose labels other predicates hold for the pods.
    moved: BTreeSet<NamespaceId>,
    labels: Labelling,
    assume: Assumptions,
    rules: Arc<RulePredicates>,
    lookup: Arc<PeerLookup>,
}

impl PodClasses {
    pub(super) fn new(cluster: &Cluster, classes: &Classes) -> Self {
        Self {
            namespaces: cluster.namespaces.clone(),
            names: NamespaceNames::new(&cluster.namespaces),
            relabelled: HashMap::new(),
            moved: BTreeSet::new(),
            labels: cluster.labels.clone(),
            assume: cluster.assume,
            rules: Arc::clone(&classes.rules),
            lookup: Arc::clone(&classes.lookup),
        }
    }

    /// The same for classes after changes.
    pub(super) fn with_changes(self, cluster: &Cluster, classes: &Classes, names: NamespaceNames) -> Self {
        let (rules, lookup) = (Arc::clone(&classes.rules), Arc::clone(&classes.lookup));
        // Most changes need no labels and selectors that are not here.
        let counts = |it: &Labelling| (it.set_count(), it.selector_count());
        let labels = if counts(&self.labels) == counts(&cluster.labels) { self.labels } else { cluster.labels.clone() };
        let is_same = self.namespaces == cluster.namespaces;
        let namespaces = if is_same { self.namespaces } else { cluster.namespaces.clone() };
        // The predicates in `lookup` were found with the present labels.
        let (relabelled, moved) = (HashMap::new(), BTreeSet::new());
        Self { namespaces, names, relabelled, moved, rules, lookup, labels, assume: self.assume }
    }

    pub(super) fn lookup(&self) -> &PeerLookup {
        &self.lookup
    }

    /// The namespace of a name; `None` if it is new since the classes were made.
    pub(super) fn namespace(&self, name: &str) -> Option<NamespaceId> {
        self.names.find(name)
    }

    /// The present labels of the namespace of a name.
    pub(super) fn labels_of(&self, name: &str) -> Option<&Labels> {
        self.namespace(name).map(|id| self.namespace_labels(id))
    }

    /// The ports that ingress rules name.
    pub(super) fn named_in_ingress(&self, ports: &[NamedPort]) -> Vec<(u32, u16)> {
        ports::named(ports, &self.rules.ids[Direction::Ingress as usize])
    }

    /// The present labels of a namespace.
    fn namespace_labels(&self, id: NamespaceId) -> &Labels {
        self.relabelled.get(&id).unwrap_or_else(|| self.labels.labels(self.namespaces[id.index()].labels))
    }

    /// Records the present labels of a namespace. `moves` says whether other predicates may hold for its pods.
    pub(super) fn relabel(&mut self, name: &str, labels: Labels, moves: bool) {
        if let Some(id) = self.namespace(name) {
            self.relabelled.insert(id, labels);
            self.moved.extend(moves.then_some(id));
        }
    }

    /// Whether a predicate depends on the labels of namespaces and holds for only one of these two sets.
    pub(super) fn tells_namespaces_apart(&self, one: &Labels, other: &Labels) -> bool {
        let selectors = self.rules.predicates.iter().filter_map(|predicate| match predicate {
            Predicate::Pods { namespaces, .. } => *namespaces,
            _ => None,
        });
        // The same selector occurs in many rules.
        let selectors: BTreeSet<SelectorId> = selectors.collect();
        let mut selectors = selectors.into_iter().map(|id| self.labels.selector(id));
        selectors.any(|selector| matches(selector, one) != matches(selector, other))
    }

    /// The class of a pod's address that these blocks and lists contain, if there is such a class.
    pub(super) fn find(
        &self,
        namespace: &str,
        labels: &Labels,
        ports: &[NamedPort],
        of_address: &[PredicateId],
    ) -> Option<PeerId> {
        // `None` for a namespace that is new since the compile: its labels are not in the predicates.
        let namespace = self.namespace(namespace)?;
        // Most new pods have labels that other pods already had when the classes were made. For the others every
        // predicate is evaluated, which costs less than a compile.
        // The predicates were found with the namespace's labels at that time.
        let known = self.labels.find_labels(labels).filter(|_| !self.moved.contains(&namespace));
        let known = known.and_then(|labels| self.lookup.held.get(namespace, labels));
        let held = known.cloned().unwrap_or_else(|| self.predicates_of(namespace, labels));
        self.lookup.ids.get(&pod_key(self.assume, &self.rules, held, of_address, ports)).copied()
    }

    /// The pod predicates that hold for a set of labels that is new to the cluster.
    fn predicates_of(&self, namespace: NamespaceId, labels: &Labels) -> Vec<PredicateId> {
        let namespace_labels = self.namespace_labels(namespace);
        let holds = |predicate: &Predicate| match predicate {
            Predicate::Pods { own, namespaces, pods } => {
                own.is_none_or(|own| own == namespace)
                    && namespaces.is_none_or(|it| matches(self.labels.selector(it), namespace_labels))
                    && matches(self.labels.selector(*pods), labels)
            }
            // Blocks and lists hold for addresses. The caller adds them from `of_address`.
            _ => false,
        };
        let found = self.rules.predicates.iter().enumerate().filter(|(_, predicate)| holds(predicate));
        found.map(|(index, _)| PredicateId(index as u32)).collect()
    }

    /// Whether selectors of namespaces and pods match pods with these labels in a namespace.
    pub(super) fn selects_anywhere(
        &self,
        namespaces: &LabelSelector,
        pods: &LabelSelector,
        of: NamespaceId,
        labels: LabelSetId,
    ) -> bool {
        matches(namespaces, self.namespace_labels(of)) && matches(pods, self.labels.labels(labels))
    }

    /// Whether a selector of pods in the namespace of a name matches pods with these labels.
    pub(super) fn selects(&self, name: &str, selector: &LabelSelector, of: NamespaceId, labels: LabelSetId) -> bool {
        self.namespaces[of.index()].name == name && matches(selector, self.labels.labels(labels))
    }
}

/// The key of a pod's address: predicates and named ports.
pub(super) fn pod_key(
    assume: Assumptions,
    rules: &RulePredicates,
    held: Vec<PredicateId>,
    of_address: &[PredicateId],
    ports: &[NamedPort],
) -> PeerClass {
    let named = ports::named(ports, &rules.ids[Direction::Egress as usize]);
    // A pod to which no pod predicate or named port in force applies is equal to an address without a pod.
    let pods = !held.is_empty() || !named.is_empty();
    let holds_for_pods = |id: &PredicateId| match &rules.predicates[id.index()] {
        // Lists and networks are never left out: the assumption is about `ipBlock`, on which the API text is open.
        Predicate::Block { .. } => assume.ipblock_pods == IpBlockPods::Match,
        // A pod that has the address of a node counts as the pod: its packets come through its own interface.
        Predicate::Nodes(_) => false,
        _ => true,
    };
    let mut predicates = held;
    predicates.extend(of_address.iter().copied().filter(holds_for_pods));
    // Two sorted lists whose numbers are mixed. The key is compared as a whole, so the order has to be unique.
    predicates.sort();
    PeerClass { predicates: predicates.into(), named, pods, ..PeerClass::default() }
}

pub(super) fn classify(
    cluster: &Cluster,
    draft: &SubjectDraft,
    rules: &RulePredicates,
    atoms: &Atoms,
    meter: &Meter,
) -> Result<Peers, Exceeded> {
    let segments = addresses::cut(cluster, rules, meter);
    // The next step costs at least as much again, so classification stops here if a limit is exceeded.
    meter.check()?;
    let held = Held::new(held_by_pods(cluster, rules, meter));
    meter.check()?;
    let mut classifier = Classifier {
        cluster,
        rules,
        meter,
        // Class 0 before anything else: address map and programs use it for every address that they do not find.
        list: vec![PeerClass::default()],
        lookup: PeerLookup { ids: HashMap::from([(PeerClass::default(), PeerId(0))]), segments: segments.into(), held },
    };
    let ExactKeys { of_addresses, list: keys, vips, .. } = classifier.exact_keys(draft, atoms);
    meter.check()?;
    let keys = keys.into_values();
    let mut peers: Vec<Option<PeerId>> = vec![None; keys.len()];
    let mut number = |AddressKeyId(key)| {
        let key = key as usize;
        *peers[key].get_or_insert_with(|| classifier.intern(keys[key].clone()))
    };
    // In the order of addresses, so that numbers do not depend on the order of the objects.
    let exact = of_addresses.into_iter().map(|(address, key)| (address, number(key))).collect();
    let of_sets = classifier.lookup.classes_of_sets(&mut classifier.list);
    let without_address = classifier.without_address();
    let Classifier { list, lookup, .. } = classifier;
    let addresses = addresses::assemble(lookup.ranges(&of_sets), exact);
    meter.check()?;
    let (list, addresses, vips, lookup) = (list.into(), addresses.into(), vips.into(), lookup.into());
    Ok(Peers { list, without_address, addresses, vips, lookup })
}

/// The number of an element of [`ExactKeys::list`].
#[derive(Clone, Copy)]
struct AddressKeyId(u32);

/// The keys of single addresses. A hundred thousand pods have few different keys, and a key is long, so it is stored
/// once.
#[derive(Default)]
struct ExactKeys {
    of_addresses: BTreeMap<IpAddr, AddressKeyId>,
    /// The different keys.
    list: Interner<PeerClass>,
    /// The keys of pods that were asked for, by their kind.
    of_pods: HashMap<PodKind, AddressKeyId>,
    vips: Vec<ServiceVip>,
}

impl ExactKeys {
    fn intern(&mut self, key: PeerClass) -> AddressKeyId {
        AddressKeyId(self.list.intern(key))
    }
}

/// The facts that distinguish a pod's key from another pod's.
#[derive(PartialEq, Eq, Hash)]
struct PodKind {
    namespace: NamespaceId,
    labels: LabelSetId,
    of_address: SetId,
    named: Vec<(u32, u16)>,
}

struct Classifier<'a> {
    cluster: &'a Cluster,
    rules: &'a RulePredicates,
    meter: &'a Meter,
    list: Vec<PeerClass>,
    lookup: PeerLookup,
}

impl Classifier<'_> {
    fn intern(&mut self, peer: PeerClass) -> PeerId {
        self.lookup.intern(peer, &mut self.list)
    }

    /// The keys of single addresses: pods, services, nodes, hostPorts.
    fn exact_keys(&self, draft: &SubjectDraft, atoms: &Atoms) -> ExactKeys {
        let mut keys: BTreeMap<IpAddr, PeerClass> = BTreeMap::new();
        let mut vips: Interner<ServiceVip> = Interner::default();
        let mut of_claimed_pods: BTreeMap<IpAddr, u32> = BTreeMap::new();
        let directory = Directory::new(self.cluster);
        // Only nodes with local endpoints. Addresses of other nodes are ordinary addresses and need no class.
        for node in draft.nodes() {
            for address in &self.cluster.nodes[node.index()].addresses {
                let key = self.key_of_address(&mut keys, *address);
                key.nodes.push(node);
                key.family = Some(Family::of(*address));
            }
        }
        // Services and hostPorts are destinations only. The index relies on this: without a policy or list for egress
        // it ignores every change of services (`Index::judges_services`).
        if ports::judges_egress(self.cluster, draft) {
            let is_pod = |address| directory.endpoint_at(address).is_some();
            for (address, vip) in vips::by_address(&self.cluster.frontends, self.cluster.assume, atoms, is_pod) {
                // Equal service VIPs are stored once, such as those of a service with many external addresses.
                let number = vips.intern(vip);
                match is_pod(address) {
                    // Kept apart, because the key of the pod is made below and replaces other keys of its address.
                    true => _ = of_claimed_pods.insert(address, number),
                    false => self.key_of_address(&mut keys, address).vip = Some(number),
                }
            }
            for (index, port) in vips::host_ports(self.cluster, draft) {
                for address in port.addresses(self.cluster) {
                    self.key_of_address(&mut keys, address).host_ports.push(index as u32);
                }
            }
        }
        let mut all = ExactKeys { vips: vips.into_values(), ..ExactKeys::default() };
        all.of_addresses =
            keys.into_iter().map(|(address, key)| (address, AddressKeyId(all.list.intern(key)))).collect();
        for (index, endpoint) in self.cluster.endpoints.iter().enumerate() {
            let id = EndpointId(index as u32);
            // Several objects can have one address, such as a terminating pod and its successor. Only the pod that has
            // it now counts: with the labels of both, the new pod would have the rights of the old one.
            for address in endpoint.addresses.iter().filter(|at| directory.endpoint_at(**at) == Some(id)) {
                let of_pod = self.key_among(&mut all, endpoint, *address);
                let key = match of_claimed_pods.get(address) {
                    Some(vip) => {
                        let key = PeerClass { vip: Some(*vip), ..all.list[of_pod.0 as usize].clone() };
                        all.intern(key)
                    }
                    None => of_pod,
                };
                all.of_addresses.insert(*address, key);
            }
        }
        // Last, since these replace the keys from the loop above, which include blocks such as 0.0.0.0/0 around the
        // placeholder.
        for (address, id) in &draft.stand_ins {
            let key = self.key_of_stand_in(draft, *address, &self.cluster.endpoints[id.index()]);
            let key = all.intern(key);
            all.of_addresses.insert(*address, key);
        }
        all
    }

    /// The number of the key of a pod's address.
    fn key_among(&self, all: &mut ExactKeys, endpoint: &Endpoint, address: IpAddr) -> AddressKeyId {
        // The kind is compared instead of the key: a key lists its predicates, and would be built for every pod to be
        // found equal.
        let kind = PodKind {
            namespace: endpoint.namespace,
            labels: endpoint.labels,
            of_address: self.lookup.segments.set_of(address),
            named: ports::named(&endpoint.named_ports, &self.rules.ids[Direction::Egress as usize]),
        };
        let ExactKeys { list, of_pods, .. } = all;
        // By its kind, so that a long key is made and hashed once for each kind of pods, and not for each address.
        *of_pods.entry(kind).or_insert_with(|| {
            let key = self.key_of_pod(endpoint, Some(address));
            let length = key.predicates.len() as u64;
            // If a limit is exceeded, the result is discarded, so any key will do.
            let fits = self.meter.take(PAIR_BYTES * length + CLASS_BYTES, length);
            AddressKeyId(list.intern(if fits { key } else { PeerClass::default() }))
        })
    }

    /// The key of an endpoint without an address: by its labels, or its node's.
    fn key_of_stand_in(&self, draft: &SubjectDraft, address: IpAddr, endpoint: &Endpoint) -> PeerClass {
        match endpoint.standing {
            Standing::Member => self.key_of_pod(endpoint, None),
            Standing::HostNetwork => {
                // As for real addresses of nodes: those without local endpoints are not distinguished.
                let nodes: Vec<_> = endpoint.node.into_iter().filter(|node| draft.nodes().contains(node)).collect();
                let family = (!nodes.is_empty()).then(|| Family::of(address));
                PeerClass { nodes, family, ..self.key_of_host(endpoint) }
            }
            Standing::Finished | Standing::Pending => PeerClass::default(),
        }
    }

    /// The key of a pod on the host's network that has no address: it is its node.
    fn key_of_host(&self, endpoint: &Endpoint) -> PeerClass {
        let labels = &self.cluster.labels;
        let node = endpoint.node.map(|node| labels.labels(self.cluster.nodes[node.index()].labels));
        let is_it = |predicate: &Predicate| match predicate {
            Predicate::Nodes(nodes) => node.is_some_and(|node| matches(labels.selector(*nodes), node)),
            _ => false,
        };
        let predicates = (0..).map(PredicateId).zip(&self.rules.predicates).filter(|(_, predicate)| is_it(predicate));
        PeerClass { predicates: predicates.map(|(id, _)| id).collect(), ..PeerClass::default() }
    }

    fn key_of_address<'k>(&self, keys: &'k mut BTreeMap<IpAddr, PeerClass>, address: IpAddr) -> &'k mut PeerClass {
        keys.entry(address)
            // Blocks and lists that contain the address still hold: a node or service is an address too.
            .or_insert_with(|| PeerClass { predicates: self.lookup.segments.shared(address), ..PeerClass::default() })
    }

    fn key_of_pod(&self, endpoint: &Endpoint, address: Option<IpAddr>) -> PeerClass {
        let held = self.lookup.held.get(endpoint.namespace, endpoint.labels).cloned().unwrap_or_default();
        let of_address = address.map_or(&[][..], |address| self.lookup.segments.find(address));
        pod_key(self.cluster.assume, self.rules, held, of_address, &endpoint.named_ports)
    }

    fn without_address(&mut self) -> HashMap<EndpointId, PeerId> {
        let backends = self.cluster.services.iter().flat_map(|it| &it.ports).flat_map(|port| &port.backends);
        let mut found: Vec<EndpointId> =
            backends.filter(|it| it.address.is_none()).filter_map(|it| it.endpoint).collect();
        // Numbers of classes are given in the order of endpoints, whichever service lists them first.
        found.sort();
        found.dedup();
        found
            .into_iter()
            .map(|id| {
                let endpoint = &self.cluster.endpoints[id.index()];
                let key = match endpoint.standing {
                    Standing::HostNetwork => self.key_of_host(endpoint),
                    _ => self.key_of_pod(endpoint, None),
                };
                (id, self.intern(key))
            })
            .collect()
    }
}

/// The pod predicates that hold, by namespace and labels.
fn held_by_pods(cluster: &Cluster, rules: &RulePredicates, meter: &Meter) -> Vec<OfNamespace> {
    let groups = LabelGroups::new(cluster);
    let mut selection = Selection::new(&cluster.labels);
    // Every group has an entry, also if nothing holds, so that `PodClasses::find` need not evaluate its labels again.
    let mut held = vec![OfNamespace::new(); cluster.namespaces.len()];
    for (namespace, labels) in &groups.list {
        held[namespace.index()].insert(*labels, Vec::new());
    }
    let mut namespaces_of: HashMap<SelectorId, SelectedNamespaces> = HashMap::new();
    for (index, predicate) in rules.predicates.iter().enumerate() {
        let Predicate::Pods { own, namespaces, pods } = predicate else { continue };
        let mut matched = 0;
        let in_scope = namespaces.map(|selector| {
            // Once for each selector of namespaces; the same one, often `{}`, occurs in many rules.
            &*namespaces_of.entry(selector).or_insert_with(|| {
                let mut select = |labels| selection.matches(&cluster.labels, selector, labels);
                SelectedNamespaces::new(cluster.namespaces.iter().map(|namespace| select(namespace.labels)).collect())
            })
        });
        let candidates = groups.candidates(cluster, *pods, *own, in_scope);
        let asked = cluster.labels.selector(*pods).size();
        // Charged before the loop: a selector can name thousands of values, and one label can be on every pod of the
        // cluster.
        if !meter.take(0, asked.saturating_mul(candidates.len() as u64)) {
            return held;
        }
        for group in &*candidates {
            let (namespace, labels) = groups.list[*group as usize];
            let in_namespace = match (in_scope, own) {
                (Some(selected), _) => selected.is_selected[namespace.index()],
                (None, Some(own)) => namespace == *own,
                (None, None) => true,
            };
            if in_namespace && matches(cluster.labels.selector(*pods), cluster.labels.labels(labels)) {
                held[namespace.index()].entry(labels).or_default().push(PredicateId(index as u32));
                matched += 1;
            }
        }
        if !meter.take(matched * size_of::<PredicateId>() as u64, matched) {
            return held;
        }
    }
    held
}

/// The namespaces that a selector matches.
struct SelectedNamespaces {
    is_selected: Vec<bool>,
    list: Vec<NamespaceId>,
}

impl SelectedNamespaces {
    fn new(is_selected: Vec<bool>) -> Self {
        let numbered = (0..).map(NamespaceId).zip(&is_selected);
        let list = numbered.filter(|(_, selected)| **selected).map(|(id, _)| id).collect();
        Self { is_selected, list }
    }
}

/// Pods of one namespace with the same labels, and ways to find them.
struct LabelGroups<'c> {
    list: Vec<(NamespaceId, LabelSetId)>,
    all: Vec<u32>,
    by_namespace: HashMap<NamespaceId, Vec<u32>>,
    by_label: HashMap<(&'c str, &'c str), Vec<u32>>,
    by_namespace_and_label: HashMap<(NamespaceId, &'c str, &'c str), Vec<u32>>,
}

impl<'c> LabelGroups<'c> {
    fn new(cluster: &'c Cluster) -> Self {
        let members = cluster.endpoints.iter().filter(|it| it.standing == Standing::Member);
        let mut list: Vec<_> = members.map(|it| (it.namespace, it.labels)).collect();
        // A deployment's pods have the same labels, so they are one group and are evaluated once.
        list.sort();
        list.dedup();
        let mut it = Self {
            all: (0..list.len() as u32).collect(),
            by_namespace: HashMap::new(),
            by_label: HashMap::new(),
            by_namespace_and_label: HashMap::new(),
            list,
        };
        for (index, (namespace, labels)) in it.list.iter().enumerate() {
            let index = index as u32;
            it.by_namespace.entry(*namespace).or_default().push(index);
            for (key, value) in cluster.labels.labels(*labels) {
                it.by_label.entry((key, value)).or_default().push(index);
                // An index of its own, not the intersection of the two others: `app=web` can be in every namespace, and
                // each tenant's selector would walk the groups of all of them.
                it.by_namespace_and_label.entry((*namespace, key, value)).or_default().push(index);
            }
        }
        it
    }

    /// A superset of the groups that a selector matches, as small as an index can make it.
    fn candidates<'s>(
        &'s self,
        cluster: &'s Cluster,
        pods: SelectorId,
        own: Option<NamespaceId>,
        in_scope: Option<&SelectedNamespaces>,
    ) -> Cow<'s, [u32]> {
        let label = needed_label(cluster.labels.selector(pods));
        let of_label = label.map(|label| self.by_label.get(&label).map_or(&[][..], Vec::as_slice));
        match (own, in_scope) {
            // No entry: no pod has this label, so the selector matches nothing.
            (Some(own), None) => Cow::Borrowed(self.in_namespace(own, label)),
            // A selector of one namespace of a thousand: the namespace is narrower than most labels.
            (_, Some(scope)) if of_label.unwrap_or(&self.all).len() > scope.list.len() => {
                Cow::Owned(scope.list.iter().flat_map(|own| self.in_namespace(*own, label)).copied().collect())
            }
            _ => Cow::Borrowed(of_label.unwrap_or(&self.all)),
        }
    }

    fn in_namespace<'s>(&'s self, own: NamespaceId, label: Option<(&'s str, &'s str)>) -> &'s [u32] {
        let found = match label {
            Some((key, value)) => self.by_namespace_and_label.get(&(own, key, value)),
            None => self.by_namespace.get(&own),
        };
        found.map_or(&[], Vec::as_slice)
    }
}
