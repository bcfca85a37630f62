//! Changes of objects, applied to the classes of the last generation instead of a compile of all objects.
//!
//! Problem: a policy edit that adds a port to a rule changes the verdicts of a few pods. A compile of all objects
//! resolves every pod, evaluates every selector and makes every row again.
//! Strategy: [`Maintained`] keeps the results of all stages, restricted to the node ([`view`]): the local endpoints,
//! the policies that select them, and their rules in numbers. A changed policy replaces its own rules ([`policies`]).
//! Port atoms are cut again and keep their numbers ([`crate::ports::StableAtoms`]). Only subject classes that the
//! policy selects, before or after the change, get new rows ([`subjects`]). Peer classes are shared with the generation
//! before, unless a rule has a new peer or a remote pod is unlike all others ([`peers`]): then the addresses in
//! question get classes, and rows with a rule for a new class get an entry for it. Local pods come and go ([`local`]),
//! services get other addresses, ports and backends ([`services`]), namespaces get other labels ([`namespaces`]),
//! cluster-wide policies and lists are numbered again ([`tiers`], [`lists`]), and blocks, lists and `nodes` peers get
//! other ranges of addresses ([`ranges`]). [`NeedsWhole`] lists the changes that need a compile from scratch.
//! The alternative was to remember the result of each stage for each unit (pod, selector, policy) and to run the stages
//! over all units. It was not chosen, because looking up 10,000 remembered results takes longer than the change itself.
//! Invariants: the result has the verdicts and reasons of a compile from scratch. Numbers of classes, atoms and sets
//! differ, and distinctions that only a deleted rule or pod needed stay until the next compile from scratch: two peer
//! classes or atoms can be one of a compile from scratch, but never the other way round. A number keeps its meaning
//! where nothing changes, so that most tables stay equal.
//! `compiler/classes/tests/incremental` holds this over series of changes.

mod lists;
mod local;
mod namespaces;
mod peers;
mod policies;
mod ranges;
mod services;
mod subjects;
mod terms;
mod tiers;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::meter::Meter;
use crate::peers::{NamespaceNames, Peers};
use crate::ports::{self, PortSpec, PortSpecs, SpecUse, StableAtoms};
use crate::predicates::TermOrigins;
use crate::rows::{PartClasses, RowBuilder, RowFacts, SpecialChanges};
use crate::subjects::SubjectDraft;
use crate::{AtomSet, Classes, Exceeded, Limits, PeerId, Predicate, PredicateId, Scope, Spent, StageParts, sources};
pub(crate) use lists::{ListChange, PresentList};
pub(crate) use local::LocalChange;
pub(crate) use namespaces::NamespaceChange;
pub(crate) use peers::PeerPod;
pub(crate) use ranges::{HeldRanges, RangeChanges};
pub(crate) use services::{ServiceChange, ServiceChanges, is_alike};
use terms::Uses;
pub(crate) use tiers::TierChange;
use weir_model::labels::Labelling;
use weir_model::{Backend, Cluster, EndpointId, Interner, Service, ServiceId};
use weir_objects::k8s::Object;
use weir_objects::origin::FieldOrigin;

/// A compile from scratch removes sets that no row uses. It is due when there are more than twice as many sets as after
/// the last one, plus this number.
const SPARE_SETS: usize = 256;
/// The most peers, named ports and predicates of lists that nothing uses any more. They are kept, so that a change and
/// its reversal need no compile from scratch.
const MOST_UNUSED: usize = 64;
/// New peer classes beyond this number and twice those of the last compile from scratch need another one.
const SPARE_PEERS: usize = 1_024;
/// The most sets of labels and selectors that changes add before a compile from scratch is due. Each can be as large as
/// an object, and an author of policies or pods can add one with each change.
const SPARE_LABELS: usize = 256;
/// After this number of generations, a compile from scratch frees the selectors and labels that no object has any more.
const MOST_GENERATIONS: u32 = 1_000;

/// Why a change needs a compile from scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeedsWhole {
    /// There is no generation that changes can be applied to: none was compiled, the last one was not adopted, or it
    /// lacks rules that did not fit the budget or needed objects that were not listed.
    #[error("there is no generation to change")]
    Base,
    /// A change for which no smaller work is proved to be enough: of the own node, of a pod with hostPorts, or of an
    /// object with an address that another object has.
    #[error("an object has changed whose changes are not applied to a generation")]
    Objects,
    /// The node's first local pod has come or its last one has gone.
    #[error("the first local pod has come or the last one has gone")]
    LocalPods,
    /// A service has a backend without an address.
    #[error("a service has a backend without an address")]
    Backends,
    /// A rule has a new `nodes` peer; or ranges of addresses have changed, and by assumption blocks contain no pods.
    #[error("a rule has a new `nodes` peer, or ranges have changed and blocks contain no pods")]
    Peers,
    /// Too much is kept that nothing may use any more: peers, named ports, peer classes, selectors or labels.
    #[error("too much is kept that nothing uses")]
    Unused,
    /// Policies apply to egress for the first time or no longer, so that service addresses get or lose classes.
    #[error("egress of local pods is judged for the first time or no longer")]
    Egress,
    /// The first policy came into audit mode, or the last one left it.
    #[error("audit rows begin or end")]
    Audit,
    /// The change, added to the cost of the last generations, exceeds a limit.
    #[error(transparent)]
    Limits(#[from] Exceeded),
    /// Too many sets of atoms are unused.
    #[error("too many sets of atoms are unused")]
    Sets,
}

impl NeedsWhole {
    /// The reason as the label of a metric.
    pub fn label(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Objects => "objects",
            Self::LocalPods => "local_pods",
            Self::Backends => "backends",
            Self::Peers => "peers",
            Self::Unused => "unused",
            Self::Egress => "egress",
            Self::Audit => "audit",
            Self::Limits(_) => "limits",
            Self::Sets => "sets",
        }
    }
}

/// A NetworkPolicy that has changed.
#[derive(Clone, Debug)]
pub(crate) struct PolicyChange {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` if it is gone.
    pub(crate) now: Option<Object>,
}

/// All that has changed since a generation.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Namespaces that are new or have other labels.
    pub(crate) namespaces: Vec<NamespaceChange>,
    /// Local pods that have come, changed or gone.
    pub(crate) local: Vec<LocalChange>,
    pub(crate) policies: Vec<PolicyChange>,
    pub(crate) tiers: Vec<TierChange>,
    pub(crate) lists: Vec<ListChange>,
    /// Pods whose class may be another one: those with a new key, and those that new peers of policies select.
    pub(crate) pods: Vec<PeerPod>,
    /// Single addresses whose classes exist.
    pub(crate) entries: BTreeMap<IpAddr, Option<PeerId>>,
    pub(crate) ranges: RangeChanges,
    pub(crate) services: ServiceChanges,
    /// Addresses behind services or hostPorts that may have got another class.
    pub(crate) moved_backends: HashSet<IpAddr>,
}

/// The effect of changes on the later stages.
#[derive(Debug, Default)]
struct Effect {
    /// The local endpoints whose subject class or rows may be others: indices into the draft.
    touched: BTreeSet<usize>,
    /// Whether a range of ports is new, or not used any more.
    changes_specs: bool,
    /// Whether a single address has another class, so that instructions may have other origins.
    changes_addresses: bool,
    /// Whether a range or term has another position in the input.
    changes_origins: bool,
    /// Whether the facts that all rows share have to be made again.
    changes_facts: bool,
    /// The elements of [`Peers::vips`] that are others.
    vips: BTreeSet<u32>,
    /// For rows that are not made again: the classes whose entries are.
    part: Option<PartClasses>,
    /// Whether a backend may have become local, or ceased to be.
    changes_local_backends: bool,
}

/// The results of all stages for the generation in force, restricted to the node.
#[derive(Debug)]
pub(crate) struct Maintained {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) scope: Scope,
    pub(crate) classes: Classes,
    draft: SubjectDraft,
    origins: TermOrigins,
    ids: HashMap<Predicate, PredicateId>,
    uses: Uses,
    /// Predicates of lists that are gone or apply to no local pod any more.
    free: Vec<PredicateId>,
    specs: PortSpecs,
    peers: Peers,
    facts: RowFacts,
    sets: Interner<AtomSet>,
    most_sets: usize,
    most_peers: usize,
    /// The most sets of labels and selectors.
    most_labels: usize,
    /// The number of generations since the last compile from scratch.
    generations: u32,
    judges_egress: bool,
    names: NamespaceNames,
    /// Whether the last changes moved ranges of addresses.
    has_moved_ranges: bool,
    /// Like [`Classes::spent`], which is for policies.
    spent_for_services: Spent,
}

/// The number of sets of labels and selectors.
fn labels_of(labels: &Labelling) -> usize {
    labels.set_count() + labels.selector_count()
}

impl Maintained {
    /// Keeps the results of a compile from scratch.
    pub(crate) fn new(cluster: &Cluster, scope: &Scope, classes: Classes, parts: StageParts) -> Self {
        let view = view::View::new(cluster, &parts);
        let StageParts { draft, origins, ids, specs, peers, facts, sets, spent_for_services } = parts;
        let draft = view.draft(draft);
        let classes = view.classes(classes);
        Self {
            scope: view.scope(scope),
            uses: Uses::new(&classes.rules),
            free: Vec::new(),
            judges_egress: ports::judges_egress(&view.cluster, &draft),
            names: NamespaceNames::new(&view.cluster.namespaces),
            peers: view.peers(peers),
            facts: view.facts(facts, &draft),
            most_sets: 2 * sets.len() + SPARE_SETS,
            most_peers: 2 * classes.peers.len() + SPARE_PEERS,
            most_labels: 2 * labels_of(&view.cluster.labels) + SPARE_LABELS,
            generations: 0,
            has_moved_ranges: false,
            cluster: view.cluster.into(),
            classes,
            draft,
            origins,
            ids,
            specs,
            sets,
            spent_for_services,
        }
    }

    /// The numbers of namespaces.
    pub(crate) fn names(&self) -> &NamespaceNames {
        &self.names
    }

    /// Whether the last changes moved ranges of addresses. Then the segments have all changes of lists.
    pub(crate) fn has_moved_ranges(&self) -> bool {
        self.has_moved_ranges
    }

    /// Applies changes.
    pub(crate) fn apply(mut self, changes: Changes, limits: Limits) -> Result<Self, NeedsWhole> {
        let meter = Meter::new(limits);
        let Changes {
            namespaces,
            local,
            mut policies,
            tiers,
            lists,
            pods,
            entries,
            mut ranges,
            services,
            moved_backends,
        } = changes;
        let mut effect = Effect { changes_addresses: !pods.is_empty(), ..Effect::default() };
        self.take_entries(&entries, &mut effect);
        self.change_namespaces(namespaces)?;
        let arrived = self.replace_local(local, &mut policies, &mut effect)?;
        let mut new = self.replace_policies(&policies, &mut effect)?;
        new.extend(self.replace_tiers(&tiers, &mut effect)?);
        self.forget_unused_tiers(&mut effect)?;
        ranges.held.extend(self.replace_lists(lists, &mut effect)?);
        effect.touched.extend(self.local_indices(&arrived));
        self.add_specs_of_names(&new, &mut effect);
        let moves = self.change_ranges(&new.predicates, &ranges, &mut effect, &meter)?;
        self.has_moved_ranges = moves.is_some();
        self.rekey(&pods, &new, moves.as_ref(), &mut effect, &meter)?;
        drop(moves);
        let replaced = self.replace_services(services, &mut effect);
        self.generations += 1;
        let is_full = self.peers.list.len() > self.most_peers || labels_of(&self.cluster.labels) > self.most_labels;
        if is_full || self.generations > MOST_GENERATIONS {
            return Err(NeedsWhole::Unused);
        }
        if ports::judges_egress(&self.cluster, &self.draft) != self.judges_egress {
            return Err(NeedsWhole::Egress);
        }
        if effect.changes_specs {
            self.cut_atoms(&meter);
            meter.check()?;
        }
        self.change_vips(&replaced, &mut effect)?;
        self.renew_facts(&replaced, &moved_backends, &mut effect, &meter);
        let changes_sources = effect.changes_specs || effect.changes_addresses || effect.changes_origins;
        self.rebuild_subjects(effect, &meter)?;
        if changes_sources {
            let (rules, specs) = (&self.classes.rules, &self.specs);
            self.classes.sources = sources::of(&self.cluster, rules, &self.origins, specs, &self.peers).into();
        }
        self.classes.lookup = Arc::clone(&self.peers.lookup);
        self.spend(&meter, limits)?;
        Ok(self)
    }

    /// Changes single addresses.
    fn take_entries(&mut self, entries: &BTreeMap<IpAddr, Option<PeerId>>, effect: &mut Effect) {
        if !entries.is_empty() {
            self.peers.addresses = self.peers.addresses.with_entries(entries).into();
            self.classes.addresses = Arc::clone(&self.peers.addresses);
            effect.changes_addresses = true;
        }
    }

    /// Brings the facts that all rows share up to date, and notes what follows: all rows if the facts are made again,
    /// otherwise the entries of new peer classes, and of addresses at which services have other claims or backends.
    fn renew_facts(
        &mut self,
        replaced: &services::Replaced,
        moved_backends: &HashSet<IpAddr>,
        effect: &mut Effect,
        meter: &Meter,
    ) {
        // The entries of addresses with hostPorts depend on the classes of their pods.
        let mut of_host_ports = self.cluster.host_ports.iter().filter_map(|it| it.backend.address);
        effect.changes_facts |= of_host_ports.any(|address| moved_backends.contains(&address));
        let moved = self.services_with_moved(moved_backends);
        let Self { cluster, draft, classes, peers, facts, .. } = self;
        let mut with_others = BTreeSet::new();
        if effect.changes_facts {
            *facts = RowFacts::new(cluster, draft, &classes.rules, &classes.atoms, peers, meter);
        } else {
            let first_new = facts.extend(&classes.rules, peers);
            let node_ports = replaced.changes_ports && facts.renew_node_ports(cluster, &classes.atoms);
            let services = replaced.changed.iter().chain(&moved).copied().collect();
            let facts_now = std::mem::take(facts);
            let builder =
                RowBuilder::new(cluster, &classes.rules, &classes.atoms, peers, meter, facts_now, Interner::default());
            (*facts, with_others) = builder.with_backends(&services);
            let changes =
                SpecialChanges { services: with_others.clone(), vips: std::mem::take(&mut effect.vips), node_ports };
            let again = facts.special_of(&changes, first_new, peers);
            let is_part = first_new < peers.list.len() || !again.is_empty();
            effect.part = is_part.then_some(PartClasses { first_new, again });
        }
        if effect.changes_local_backends || replaced.changes_ports || !replaced.changed.is_empty() {
            facts.renew_local(cluster, draft);
        }
        if effect.changes_facts {
            effect.touched = (0..self.draft.local.len()).collect();
            effect.part = None;
        }
        // A local pod that is a backend itself is judged by the other backends, and this is a part of its class. If
        // backends get other classes, one of them can get or lose the class that this pod has. The classes behind the
        // service are the same then, and its verdict is another one, so all its local backends are judged again.
        effect.touched.extend(&replaced.local);
        let is_other = |id| moved.contains(&id) || with_others.contains(&id);
        let of_others = facts.to_local().iter().filter(|it| is_other(ServiceId(it.service)));
        let endpoints: Vec<EndpointId> = of_others.flat_map(|it| it.endpoints.iter().copied()).collect();
        effect.touched.extend(self.local_indices(&endpoints));
    }

    /// The services whose backends may have got other classes: all of them if ranges of addresses have moved.
    fn services_with_moved(&self, moved: &HashSet<IpAddr>) -> BTreeSet<ServiceId> {
        let services = (0..).map(ServiceId).zip(&self.cluster.services);
        if self.has_moved_ranges {
            return services.map(|(id, _)| id).collect();
        }
        if moved.is_empty() {
            return BTreeSet::new();
        }
        let is_moved = |it: &Backend| it.address.is_some_and(|address| moved.contains(&address));
        let has_moved = |service: &Service| service.ports.iter().flat_map(|port| &port.backends).any(is_moved);
        services.filter(|(_, service)| has_moved(service)).map(|(id, _)| id).collect()
    }

    /// Takes away one use of a range of ports.
    fn drop_spec(&mut self, spec: PortSpec, effect: &mut Effect) {
        if let Some(used) = self.specs.get_mut(&spec) {
            used.count = used.count.saturating_sub(1);
            if used.count == 0 {
                self.specs.remove(&spec);
                effect.changes_specs = true;
            }
        }
    }

    /// Adds a use of a range of ports.
    fn add_spec(&mut self, spec: PortSpec, origin: FieldOrigin, effect: &mut Effect) {
        let before = self.specs.len();
        self.specs.entry(spec).or_insert_with(|| SpecUse { origin, count: 0 }).count += 1;
        effect.changes_specs |= self.specs.len() > before;
    }

    /// Cuts the ports again. Sets that exist keep their ports.
    fn cut_atoms(&mut self, meter: &Meter) {
        let Self { classes, specs, sets, facts, cluster, .. } = self;
        let stable = StableAtoms::new(&classes.atoms, specs, &classes.rules, meter);
        sets.replace_each(|set| stable.translated(set));
        let before = std::mem::replace(&mut classes.atoms, stable.atoms);
        facts.renumber_atoms(cluster, &before, &classes.atoms);
    }

    /// Adds the cost of the change to that of the generation before. Costs of rows and entries that were replaced are
    /// not subtracted, so the sum is too high and never too low.
    fn spend(&mut self, meter: &Meter, limits: Limits) -> Result<(), NeedsWhole> {
        meter.check()?;
        let spent = self.classes.spent.plus(meter.spent());
        let for_services = self.spent_for_services.plus(meter.spent_for_services());
        (self.classes.spent, self.spent_for_services) = (spent, for_services);
        if spent.bytes > limits.bytes {
            return Err(Exceeded::Bytes(limits.bytes).into());
        }
        if spent.steps > limits.steps {
            return Err(Exceeded::Steps(limits.steps).into());
        }
        // Changes of services charge only their own part of the rows. Without the sum, services that come one after
        // the other would be in force, and the next compile from scratch would fail.
        if limits.allow(for_services) { Ok(()) } else { Err(Exceeded::Services(limits).into()) }
    }
}
