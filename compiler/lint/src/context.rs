//! The queries that all lints share: the pods that a selector matches, whether the input would show such pods, and the
//! remaining budget of steps.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::LintWorld;
use super::cohorts::Cohorts;
use super::groups::{GroupId, PodGroup, PodGroups};
use super::lookup::{Lookup, MentionedLabels};
use super::selector_suggestions::Census;
use weir_analysis::world::{self, Coverage, CoverageScope, SelectorConflict, SelectorConflicts};
use weir_model::labels::matches;
use weir_model::{Cluster, Direction, EndpointId, IpBlockPods, NamespaceId, Peer, Policy, PolicyId, Rule, SelectorId};
use weir_objects::k8s::{LabelSelector, Object, Operator};
use weir_objects::origin::ObjectId;

/// The input, with indices for lints.
pub(super) struct LintContext<'c> {
    /// The decoded objects: lints see here how something was written, and not only its meaning.
    pub(super) objects: &'c [Object],
    /// The model of the cluster.
    pub(super) cluster: &'c Cluster,
    groups: PodGroups,
    group_lookup: Lookup<'c>,
    namespace_lookup: Lookup<'c>,
    /// Whether the input declares namespaces: then a namespace without declaration is suspicious.
    pub(super) declares_namespaces: bool,
    /// Whether the input looks like a whole cluster. Then an object that is not in the input does not exist.
    pub(super) whole: bool,
    found: RefCell<HashMap<SelectorQuery, Rc<[GroupId]>>>,
    namespaces_found: RefCell<HashMap<SelectorId, Rc<[NamespaceId]>>>,
    cohorts: OnceCell<Cohorts>,
    censuses: RefCell<HashMap<Option<NamespaceId>, Rc<Census<'c>>>>,
    world: LintWorld,
    /// The objects to judge, if not all.
    judged: Option<BTreeSet<ObjectId>>,
    /// Of the open world only.
    conflicts: Option<SelectorConflicts<'c>>,
    coverage: OnceCell<Coverage>,
    steps: Cell<u64>,
    steps_left: Cell<u64>,
    stopped: Cell<Option<ObjectId>>,
}

/// An operation on diagrams takes about as long as this many steps.
const STEPS_OF_DIAGRAMS: u64 = 8;

/// A rule, and where it is.
#[derive(Clone, Copy)]
pub(super) struct PolicyRule<'c> {
    pub(super) policy: &'c Policy,
    pub(super) direction: Direction,
    pub(super) index: usize,
    pub(super) rule: &'c Rule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SelectorQuery {
    In(NamespaceId, SelectorId),
    Across(SelectorId, SelectorId),
    Anywhere(SelectorId),
}

impl<'c> LintContext<'c> {
    pub(super) fn new(objects: &'c [Object], cluster: &'c Cluster, world: LintWorld) -> Self {
        let wanted = MentionedLabels::new(cluster);
        let groups = PodGroups::new(cluster, &wanted);
        let declared = |name: &str| cluster.namespaces.iter().any(|it| it.name == name && it.object.is_some());
        Self {
            objects,
            cluster,
            group_lookup: Lookup::new(cluster, &wanted, groups.all.iter().map(|group| group.labels)),
            namespace_lookup: Lookup::new(cluster, &wanted, cluster.namespaces.iter().map(|it| it.labels)),
            declares_namespaces: cluster.namespaces.iter().any(|namespace| namespace.object.is_some()),
            // Users write no manifest for kube-system, but a cluster's own list of namespaces contains it.
            whole: declared("kube-system") && !groups.all.is_empty(),
            groups,
            found: RefCell::default(),
            namespaces_found: RefCell::default(),
            cohorts: OnceCell::new(),
            censuses: RefCell::default(),
            world,
            judged: None,
            conflicts: (world == LintWorld::Open).then(|| SelectorConflicts::new(cluster)),
            coverage: OnceCell::new(),
            steps: Cell::new(0),
            steps_left: Cell::new(0),
            stopped: Cell::new(None),
        }
    }

    /// Limits lints that compare all policies to findings about these objects.
    pub(super) fn judging(self, judged: BTreeSet<ObjectId>) -> Self {
        Self { judged: Some(judged), ..self }
    }

    /// Whether lints judge policies for every pod that could exist.
    pub(super) fn is_open(&self) -> bool {
        self.world == LintWorld::Open
    }

    /// Policies and rules that add nothing, for every pod that could exist; `None` in the closed world.
    pub(super) fn coverage(&self) -> Option<&Coverage> {
        let compute = || {
            let policies = self.cluster.policies.iter().zip((0..).map(PolicyId));
            let is_judged = |it: &Policy| self.judged.as_ref().is_none_or(|judged| judged.contains(&it.object));
            let judged = policies.filter(|(it, _)| is_judged(it)).map(|(_, id)| id).collect();
            // Pods of the input, if there are any, show whether the other end denies a rule.
            let scope = CoverageScope { judged: &judged, with_denied: self.groups.all.is_empty() };
            world::coverage(self.cluster, scope, self.steps.get() / STEPS_OF_DIAGRAMS)
        };
        self.is_open().then(|| self.coverage.get_or_init(compute))
    }

    /// Why no pod that could exist matches a selector; `None` in the closed world.
    pub(super) fn pod_conflict(&self, pods: SelectorId) -> Option<SelectorConflict> {
        self.conflicts.as_ref()?.of_pods(pods)
    }

    /// Why no namespace that could exist matches a selector; `None` in the closed world.
    pub(super) fn namespace_conflict(&self, namespaces: SelectorId) -> Option<SelectorConflict> {
        self.conflicts.as_ref()?.of_namespaces(namespaces)
    }

    /// Every rule of every policy, until the budget is spent.
    pub(super) fn rules(&self) -> impl Iterator<Item = PolicyRule<'c>> {
        let of = |policy: &'c Policy, direction| {
            let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
            rules.map(move |(index, rule)| PolicyRule { policy, direction, index, rule })
        };
        let all =
            self.cluster.policies.iter().flat_map(move |it| Direction::ALL.into_iter().flat_map(move |at| of(it, at)));
        all.take_while(|it| !self.is_spent(it.policy.object))
    }

    /// All groups.
    pub(super) fn groups(&self) -> &[PodGroup] {
        &self.groups.all
    }

    /// A group by its id.
    pub(super) fn group(&self, id: GroupId) -> &PodGroup {
        &self.groups.all[id.index()]
    }

    /// The group of an endpoint; `None` if policies ignore the endpoint.
    pub(super) fn group_of(&self, endpoint: EndpointId) -> Option<GroupId> {
        self.groups.of_endpoint.get(endpoint.index()).copied().flatten()
    }

    /// Whether the input has pods or workloads of this namespace.
    pub(super) fn has_pods(&self, namespace: NamespaceId) -> bool {
        !self.groups.range(namespace).is_empty()
    }

    /// The cohorts: groups by the policies that select them.
    pub(super) fn cohorts(&self) -> &Cohorts {
        self.cohorts.get_or_init(|| Cohorts::new(self))
    }

    /// The counted labels of a namespace's pods, or of the namespaces themselves.
    pub(super) fn census(&self, namespace: Option<NamespaceId>) -> Rc<Census<'c>> {
        if let Some(known) = self.censuses.borrow().get(&namespace) {
            return known.clone();
        }
        let census = Rc::new(Census::new(self.cluster, namespace));
        self.censuses.borrow_mut().insert(namespace, census.clone());
        census
    }
}

/// The budget.
impl LintContext<'_> {
    /// Sets the budget of the comparison of all policies.
    pub(super) fn set_steps(&self, steps: u64) {
        self.steps.set(steps);
    }

    /// Starts a lint with a budget of `steps`.
    pub(super) fn begin(&self, steps: u64) {
        self.steps_left.set(steps);
        self.stopped.set(None);
    }

    /// Takes steps from the budget.
    pub(super) fn spend(&self, steps: usize) {
        self.steps_left.set(self.steps_left.get().saturating_sub(steps as u64));
    }

    /// Whether the budget is spent; then the lint stops at this object.
    pub(super) fn is_spent(&self, at: ObjectId) -> bool {
        let spent = self.steps_left.get() == 0;
        if spent && self.stopped.get().is_none() {
            self.stopped.set(Some(at));
        }
        spent
    }

    /// The object at which the lint stopped, if it did not finish.
    pub(super) fn stopped_at(&self) -> Option<ObjectId> {
        self.stopped.get()
    }
}

/// Selectors.
impl<'c> LintContext<'c> {
    pub(super) fn selector(&self, id: SelectorId) -> &'c LabelSelector {
        self.cluster.labels.selector(id)
    }

    /// The groups that a policy selects.
    pub(super) fn subjects(&self, policy: &Policy) -> Rc<[GroupId]> {
        self.find(SelectorQuery::In(policy.namespace, policy.subjects))
    }

    /// The groups of a namespace that a selector matches.
    pub(super) fn find_in(&self, namespace: NamespaceId, pods: SelectorId) -> Rc<[GroupId]> {
        self.find(SelectorQuery::In(namespace, pods))
    }

    /// The groups of any namespace that a selector matches.
    pub(super) fn find_anywhere(&self, pods: SelectorId) -> Rc<[GroupId]> {
        self.find(SelectorQuery::Anywhere(pods))
    }

    /// The groups that a peer matches; none for a block.
    pub(super) fn peer_groups(&self, own: NamespaceId, peer: &Peer) -> Rc<[GroupId]> {
        match peer {
            Peer::Pods { namespaces: None, pods } => self.find(SelectorQuery::In(own, *pods)),
            Peer::Pods { namespaces: Some(namespaces), pods } => self.find(SelectorQuery::Across(*namespaces, *pods)),
            Peer::Block { .. } => Rc::from([]),
        }
    }

    /// Whether a block may contain one of the group's pods.
    pub(super) fn may_be_in_block(&self, group: GroupId, peer: &Peer) -> bool {
        match peer {
            Peer::Block { cidr, except } if self.cluster.assume.ipblock_pods == IpBlockPods::Match => {
                self.group(group).may_be_in(*cidr, except)
            }
            _ => false,
        }
    }

    /// A pod with hostNetwork that a selector would match if policies did not ignore such pods.
    pub(super) fn on_host(&self, namespaces: &[NamespaceId], pods: SelectorId) -> Option<EndpointId> {
        let selector = self.selector(pods);
        self.groups.on_host.iter().copied().find(|id| {
            self.spend(1);
            let endpoint = &self.cluster.endpoints[id.index()];
            namespaces.binary_search(&endpoint.namespace).is_ok()
                && matches(selector, self.cluster.labels.labels(endpoint.labels))
        })
    }

    fn find(&self, query: SelectorQuery) -> Rc<[GroupId]> {
        if let Some(known) = self.found.borrow().get(&query) {
            return known.clone();
        }
        let found: Rc<[GroupId]> = match query {
            SelectorQuery::In(namespace, pods) => self.matching(self.in_namespace(namespace, pods), pods).into(),
            SelectorQuery::Across(namespaces, pods) => self.search(namespaces, pods).into(),
            SelectorQuery::Anywhere(pods) => {
                let all = || (0..self.groups.all.len() as u32).collect();
                let by_label = self.group_lookup.candidates(self.selector(pods));
                self.matching(by_label.map_or_else(all, <[u32]>::to_vec), pods).into()
            }
        };
        self.found.borrow_mut().insert(query, found.clone());
        found
    }

    fn search(&self, namespaces: SelectorId, pods: SelectorId) -> Vec<GroupId> {
        let namespaces = self.namespaces(namespaces);
        let by_label = self.group_lookup.candidates(self.selector(pods));
        let by_namespace: usize = namespaces.iter().map(|id| self.groups.range(*id).len()).sum();
        match by_label {
            Some(list) if list.len() <= by_namespace => {
                let inside = |id: &u32| namespaces.binary_search(&self.group(GroupId(*id)).namespace).is_ok();
                self.matching(list.iter().copied().filter(inside).collect(), pods)
            }
            _ => self.matching(namespaces.iter().flat_map(|id| self.groups.range(*id)).collect(), pods),
        }
    }

    /// The groups of a namespace that the selector could match.
    fn in_namespace(&self, namespace: NamespaceId, pods: SelectorId) -> Vec<u32> {
        let range = self.groups.range(namespace);
        match self.group_lookup.candidates(self.selector(pods)) {
            Some(list) if list.len() <= range.len() => list.iter().copied().filter(|id| range.contains(id)).collect(),
            _ => range.collect(),
        }
    }

    fn matching(&self, candidates: Vec<u32>, pods: SelectorId) -> Vec<GroupId> {
        self.spend(candidates.len() + 1);
        let selector = self.selector(pods);
        let is_match = |id: &GroupId| matches(selector, self.cluster.labels.labels(self.group(*id).labels));
        candidates.into_iter().map(GroupId).filter(is_match).collect()
    }

    /// The namespaces that a selector matches, sorted.
    pub(super) fn namespaces(&self, selector: SelectorId) -> Rc<[NamespaceId]> {
        if let Some(known) = self.namespaces_found.borrow().get(&selector) {
            return known.clone();
        }
        let all = 0..self.cluster.namespaces.len() as u32;
        let wanted = self.selector(selector);
        let candidates = self.namespace_lookup.candidates(wanted).map_or_else(|| all.collect(), <[u32]>::to_vec);
        self.spend(candidates.len() + 1);
        let labels = |id: &NamespaceId| self.cluster.labels.labels(self.cluster.namespaces[id.index()].labels);
        let found: Rc<[_]> = candidates.into_iter().map(NamespaceId).filter(|id| matches(wanted, labels(id))).collect();
        self.namespaces_found.borrow_mut().insert(selector, found.clone());
        found
    }
}

/// Which objects the input can be expected to contain.
impl LintContext<'_> {
    /// Whether the input would show the pods of a peer, if there were any.
    ///
    /// A manifest in one repository may name peers from another repository. So pods of the policy's own namespace are
    /// expected if the input has pods there. Pods of other namespaces are expected if the input is a whole cluster, or
    /// if the selector names particular namespaces and the input has pods of all of them.
    pub(super) fn shows_pods(&self, own: NamespaceId, peer: &Peer) -> bool {
        match peer {
            Peer::Block { .. } => false,
            Peer::Pods { namespaces: None, .. } => self.has_pods(own),
            Peer::Pods { .. } if self.whole => true,
            Peer::Pods { namespaces: Some(selector), .. } => {
                let found = self.namespaces(*selector);
                !is_open(self.selector(*selector)) && !found.is_empty() && found.iter().all(|id| self.has_pods(*id))
            }
        }
    }
}

/// Whether a selector also matches objects that have none of the labels it names.
pub(super) fn is_open(selector: &LabelSelector) -> bool {
    let negative = |operator| matches!(operator, Operator::NotIn | Operator::DoesNotExist);
    selector.match_labels.is_empty() && selector.match_expressions.iter().all(|it| negative(it.operator))
}
