//! Groups that the same policies select.

use std::collections::{BTreeMap, HashMap};

use super::context::LintContext;
use super::groups::GroupId;
use weir_model::{Direction, NamespaceId, PolicyId, SelectorId};

/// A cohort, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CohortId(pub(super) u32);

impl CohortId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Groups that the same policies select.
#[derive(Debug)]
pub(super) struct Cohort {
    /// The groups, sorted.
    pub(super) groups: Vec<GroupId>,
    /// The policies that isolate them for ingress, sorted.
    pub(super) ingress: Vec<PolicyId>,
    /// The policies that isolate them for egress, sorted.
    pub(super) egress: Vec<PolicyId>,
}

impl Cohort {
    /// The policies that isolate it in a direction.
    pub(super) fn isolating(&self, direction: Direction) -> &[PolicyId] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// Every cohort, in the order of its first group.
#[derive(Debug)]
pub(super) struct Cohorts {
    all: Vec<Cohort>,
    of_group: Vec<CohortId>,
    /// False if there are too many pairs of pod and policy; then there are no cohorts here.
    complete: bool,
}

impl Cohorts {
    /// The largest number of pairs of group and policy.
    const MOST_PAIRS: usize = 20_000_000;

    pub(super) fn new(context: &LintContext<'_>) -> Self {
        let mut by_selector: BTreeMap<(NamespaceId, SelectorId), Vec<PolicyId>> = BTreeMap::new();
        for (index, policy) in context.cluster.policies.iter().enumerate() {
            by_selector.entry((policy.namespace, policy.subjects)).or_default().push(PolicyId(index as u32));
        }
        let by_selector: Vec<_> = by_selector.into_iter().collect();
        let mut selected_by: Vec<Vec<u32>> = vec![Vec::new(); context.groups().len()];
        let mut pairs = 0;
        for (index, ((namespace, selector), _)) in by_selector.iter().enumerate() {
            let groups = context.find_in(*namespace, *selector);
            pairs += groups.len();
            if pairs > Self::MOST_PAIRS {
                return Self::too_many();
            }
            for group in groups.iter() {
                selected_by[group.index()].push(index as u32);
            }
        }
        Self::gather(context, selected_by, &by_selector)
    }

    fn gather(
        context: &LintContext<'_>,
        selected_by: Vec<Vec<u32>>,
        by_selector: &[((NamespaceId, SelectorId), Vec<PolicyId>)],
    ) -> Self {
        let mut it = Self { all: Vec::new(), of_group: Vec::new(), complete: true };
        // Groups that no policy selects form one cohort, even in different namespaces, because no policy distinguishes
        // them.
        let mut known: HashMap<Vec<u32>, CohortId> = HashMap::new();
        let mut pairs = 0;
        for (index, selectors) in selected_by.into_iter().enumerate() {
            let cohort = match known.get(&selectors) {
                Some(id) => *id,
                None => {
                    let mut policies: Vec<PolicyId> =
                        selectors.iter().flat_map(|index| by_selector[*index as usize].1.iter().copied()).collect();
                    policies.sort_unstable();
                    pairs += policies.len();
                    if pairs > Self::MOST_PAIRS {
                        return Self::too_many();
                    }
                    let id = CohortId(it.all.len() as u32);
                    it.all.push(Cohort::new(context, &policies));
                    known.insert(selectors, id);
                    id
                }
            };
            it.all[cohort.index()].groups.push(GroupId(index as u32));
            it.of_group.push(cohort);
        }
        it
    }

    fn too_many() -> Self {
        Self { all: Vec::new(), of_group: Vec::new(), complete: false }
    }

    /// Whether cohorts could be computed. If not, the lint that needs them stops at the first policy.
    pub(super) fn are_known(&self, context: &LintContext<'_>) -> bool {
        if !self.complete {
            context.spend(usize::MAX);
            _ = context.cluster.policies.first().is_some_and(|policy| context.is_spent(policy.object));
        }
        self.complete
    }

    /// All cohorts.
    pub(super) fn all(&self) -> &[Cohort] {
        &self.all
    }

    /// The id of a group's cohort.
    pub(super) fn id_of(&self, group: GroupId) -> CohortId {
        self.of_group[group.index()]
    }

    /// A group's cohort.
    pub(super) fn of(&self, group: GroupId) -> &Cohort {
        &self.all[self.id_of(group).index()]
    }
}

impl Cohort {
    fn new(context: &LintContext<'_>, policies: &[PolicyId]) -> Self {
        let isolating = |direction| {
            let isolates = |id: &&PolicyId| context.cluster.policies[id.index()].rules(direction).is_some();
            policies.iter().filter(isolates).copied().collect()
        };
        Self { groups: Vec::new(), ingress: isolating(Direction::Ingress), egress: isolating(Direction::Egress) }
    }
}
