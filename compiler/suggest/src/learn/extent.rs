//! How much traffic between workloads a cluster allows.

use std::collections::{BTreeMap, BTreeSet};

use weir_analysis::diff::{self, DiffError, RowEnd, VerdictChange};
use weir_model::resolve::resolve;
use weir_model::{Cluster, Protocol};
use weir_objects::k8s::{Body, LabelSelector, Mode, NetworkPolicy, Object};
use weir_objects::origin::ObjectId;

use super::groups::{GroupId, Groups};
use super::names::PolicyNames;
use super::new_policy;

/// Traffic between workloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Pairs of workloads of which one may open a connection to the other.
    pub pairs: usize,
    /// The ports of all of these pairs, each protocol by itself.
    pub ports: usize,
}

/// A protocol with its first and last port.
type PortRange = (Protocol, u16, u16);

/// Measures a cluster: everything that it allows and a cluster that denies everything does not. Only pairs with an end in
/// one of the namespaces count.
pub fn allowed(objects: &[Object], cluster: &Cluster, namespaces: &BTreeSet<String>) -> Result<Allowed, DiffError> {
    let (nothing, _) = resolve(&without_traffic(objects, cluster), cluster.assume);
    let diff = diff::compare(&nothing, cluster)?;
    let groups = Groups::of(cluster, PolicyNames::default());
    let of = |end: &RowEnd| {
        let group = |it: &u32| groups.group(diff.endpoints[*it as usize].ids[1]?);
        let mut found: Vec<GroupId> = end.endpoints.iter().filter_map(group).collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    let mut ports: BTreeMap<(GroupId, GroupId), Vec<PortRange>> = BTreeMap::new();
    for row in diff.rows.iter().filter(|it| it.change == VerdictChange::Added) {
        let (sources, destinations) = (of(&row.source), of(&row.destination));
        let pairs = sources.iter().flat_map(|from| destinations.iter().map(|to| (*from, *to)));
        let counts =
            |ends: &(GroupId, GroupId)| [ends.0, ends.1].iter().any(|it| namespaces.contains(groups.namespace(*it)));
        for pair in pairs.filter(counts) {
            let ranges = row.traffic.ranges.iter().map(|it| (it.protocol, it.first, it.last));
            ports.entry(pair).or_default().extend(ranges);
        }
    }
    let numbers = ports.values().map(|it| number(it.clone())).sum();
    Ok(Allowed { pairs: ports.len(), ports: numbers })
}

/// The number of ports in ranges that may overlap.
fn number(mut ranges: Vec<PortRange>) -> usize {
    ranges.sort_unstable();
    let mut total = 0;
    let mut end: Option<(Protocol, u16)> = None;
    for (protocol, first, last) in ranges {
        let counted = end.filter(|it| it.0 == protocol).map_or(0, |it| it.1);
        total += usize::from(last.max(counted)) - usize::from(counted.max(first - first.min(1)));
        end = Some((protocol, last.max(counted)));
    }
    total
}

/// The objects with a policy in each namespace that denies everything, and no other NetworkPolicies.
fn without_traffic(objects: &[Object], cluster: &Cluster) -> Vec<Object> {
    let others = objects.iter().filter(|it| !matches!(it.body, Body::NetworkPolicy(_)));
    let mut all: Vec<Object> = others.cloned().collect();
    let first = objects.iter().map(|it| it.id.0 + 1).max().unwrap_or(0);
    for (namespace, id) in cluster.namespaces.iter().zip(first..) {
        let mut policy = new_policy(&namespace.name, "nothing", LabelSelector::default());
        policy.policy = NetworkPolicy { mode: Mode::Enforce, ..policy.policy };
        all.push(policy.object(ObjectId(id)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_overlapping_ranges_are_counted_once() {
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        assert_eq!(number(vec![(tcp, 1, 65535), (tcp, 80, 80)]), 65535);
        assert_eq!(number(vec![(tcp, 80, 90), (tcp, 85, 95), (udp, 53, 53), (tcp, 443, 443)]), 18);
        assert_eq!(number(Vec::new()), 0);
    }
}
