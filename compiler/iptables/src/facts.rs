//! The facts about a cluster that rendering needs: the owner of each address, and the labels that a selector selects.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use weir_model::labels::matches;
use weir_model::{
    CidrList, Cluster, Direction, Endpoint, EndpointId, LabelSetId, NamespaceId, Policy, PolicyId, SelectorId,
    Standing, Tier, TierPolicyId,
};
use weir_objects::address::Family;

/// A cluster, indexed by address and by selector.
#[derive(Debug)]
pub(super) struct ClusterFacts<'c> {
    pub(super) cluster: &'c Cluster,
    /// The pod that packets from or to an address belong to.
    owners: BTreeMap<IpAddr, EndpointId>,
    policies: HashMap<NamespaceId, Vec<PolicyId>>,
    /// For every selector used so far, whether it selects each label set.
    selected: HashMap<SelectorId, Vec<bool>>,
}

impl<'c> ClusterFacts<'c> {
    pub(super) fn new(cluster: &'c Cluster) -> Self {
        let mut policies: HashMap<_, Vec<_>> = HashMap::new();
        for (index, policy) in cluster.policies.iter().enumerate() {
            policies.entry(policy.namespace).or_default().push(PolicyId(index as u32));
        }
        Self { cluster, owners: find_owners(cluster), policies, selected: HashMap::new() }
    }

    pub(super) fn owner(&self, address: IpAddr) -> Option<EndpointId> {
        self.owners.get(&address).copied()
    }

    /// Pods by address, in the order of the addresses.
    pub(super) fn owned(&self, family: Family) -> impl Iterator<Item = (IpAddr, EndpointId)> + '_ {
        let of_family = move |(address, _): &(&IpAddr, _)| Family::of(**address) == family;
        self.owners.iter().filter(of_family).map(|(address, id)| (*address, *id))
    }

    pub(super) fn endpoint(&self, id: EndpointId) -> &'c Endpoint {
        &self.cluster.endpoints[id.index()]
    }

    /// The policies that isolate a pod in a direction, in order.
    pub(super) fn isolating(&mut self, direction: Direction, id: EndpointId) -> Vec<PolicyId> {
        let endpoint = self.endpoint(id);
        let candidates = self.policies.get(&endpoint.namespace).cloned().unwrap_or_default();
        let policy = |id: &PolicyId| -> &'c Policy { &self.cluster.policies[id.index()] };
        let in_force: Vec<_> = candidates.into_iter().filter(|id| policy(id).rules(direction).is_some()).collect();
        let subjects: Vec<_> = in_force.iter().map(|id| policy(id).subjects).collect();
        let chosen = in_force.into_iter().zip(subjects);
        chosen.filter(|(_, subjects)| self.selects(*subjects, endpoint.labels)).map(|(id, _)| id).collect()
    }

    /// The cluster-wide policies of a tier that have rules for a pod in a direction, in the order of evaluation.
    pub(super) fn in_tier(&mut self, direction: Direction, tier: Tier, id: EndpointId) -> Vec<TierPolicyId> {
        let (cluster, endpoint) = (self.cluster, self.endpoint(id));
        let mut found = Vec::new();
        for (number, policy) in (0..).map(TierPolicyId).zip(&cluster.tiers) {
            let is_asked = policy.tier == tier && !policy.is_audit && !policy.rules(direction).is_empty();
            if is_asked
                && self.selects_namespace(policy.namespaces, endpoint.namespace)
                && self.selects(policy.pods, endpoint.labels)
            {
                found.push(number);
            }
        }
        found
    }

    pub(super) fn list_applies(&mut self, list: &CidrList, direction: Direction, id: EndpointId) -> bool {
        let endpoint = self.endpoint(id);
        let asked = match direction {
            Direction::Ingress => list.ingress,
            Direction::Egress => list.egress,
        };
        asked && self.selects_namespace(list.namespaces, endpoint.namespace) && self.selects(list.pods, endpoint.labels)
    }

    pub(super) fn selects(&mut self, selector: SelectorId, labels: LabelSetId) -> bool {
        let labelling = &self.cluster.labels;
        let answers = self.selected.entry(selector).or_insert_with(|| {
            let ask = |set| matches(labelling.selector(selector), labelling.labels(LabelSetId(set as u32)));
            (0..labelling.set_count()).map(ask).collect()
        });
        answers[labels.index()]
    }

    pub(super) fn selects_namespace(&mut self, selector: SelectorId, namespace: NamespaceId) -> bool {
        self.selects(selector, self.cluster.namespaces[namespace.index()].labels)
    }
}

/// If two pods claim one address, a pod that is not terminating has precedence, and then the first one.
fn find_owners(cluster: &Cluster) -> BTreeMap<IpAddr, EndpointId> {
    let mut claims: Vec<(IpAddr, bool, EndpointId)> = Vec::new();
    for (index, endpoint) in cluster.endpoints.iter().enumerate() {
        if endpoint.standing == Standing::Member {
            let claim = |address: &IpAddr| (*address, endpoint.terminating, EndpointId(index as u32));
            claims.extend(endpoint.addresses.iter().map(claim));
        }
    }
    claims.sort_unstable();
    let mut owners = BTreeMap::new();
    for (address, _, id) in claims {
        owners.entry(address).or_insert(id);
    }
    owners
}
