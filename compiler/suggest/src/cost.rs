//! The cost of an edit: the flows that it changes besides the wanted one.
//!
//! Problem: two edits that both allow a flow can allow different other flows, of present and of future pods.
//! Strategy: compare both clusters exactly, and count the flows that differ: pairs of ends times ports. The clusters of
//! the comparison have more pods than the input: for the other end of the flow, pods that differ from it in one label or
//! in the namespace. Flows of the pods that exist, which are those of the input, count more.
//! Each outside address counts as one end, in both families, and the counts are exact: a weight or an order of
//! magnitude would hide that an edit opens a whole IPv6 subnet instead of one address, or denies one pod more beside
//! all of IPv6.

use std::collections::HashSet;
use std::ops::Add as _;
use std::sync::Arc;

use weir_analysis::diff::{self, Diff, DiffError, DiffRow, RowEnd, VerdictChange};
use weir_model::eval::Verdict;
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::address::to_number;
use weir_objects::k8s::{Body, Direction, Labels, Meta, NetworkPolicy, Object, Pod, PolicyType};
use weir_objects::origin::ObjectId;

use crate::count::Count;

/// The most labels that are varied, and the most other namespaces.
const MOST_VARIED: usize = 6;
const VARIED: &str = "weir-another";

/// The changes of an edit. The smallest one is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Flows between ends of the input that change in the other direction.
    pub reversed: Count,
    /// Flows between ends of the input that change as the wanted flow does, that flow included.
    pub changed: Count,
    /// The same at the end that is edited, as if the other end allowed everything.
    pub alone: Count,
    /// The same for pods that could exist.
    pub possible: Count,
    /// The size of the edit.
    pub size: usize,
}

/// Measures edits of one cluster.
pub(crate) struct Measure {
    base: Cluster,
    /// The base with the policies of one direction only.
    alone: Cluster,
    direction: Direction,
    assume: Assumptions,
    added: Vec<Object>,
    names: HashSet<(String, String)>,
    wanted: VerdictChange,
}

impl Measure {
    /// A measure for edits of these objects. `remotes` are the pods at the other end of the flow.
    pub(crate) fn new(
        objects: &[Object],
        assume: Assumptions,
        direction: Direction,
        remotes: &[(String, Labels)],
        wanted: Verdict,
    ) -> Self {
        let added = possible_pods(objects, remotes);
        let names = added.iter().map(|it| (it.meta.namespace.to_string(), it.meta.name.clone())).collect();
        let (base, _) = resolve(objects.iter().chain(&added), assume);
        let (alone, _) = resolve(one_sided(objects, direction).iter().chain(&added), assume);
        let wanted = match wanted {
            Verdict::Allow => VerdictChange::Added,
            Verdict::Deny => VerdictChange::Removed,
        };
        Self { base, alone, direction, assume, added, names, wanted }
    }

    /// The cost of the objects after an edit.
    pub(crate) fn cost(&self, edited: &[Object], size: usize) -> Result<Cost, DiffError> {
        let (head, _) = resolve(edited.iter().chain(&self.added), self.assume);
        let (reversed, changed, possible) = self.sums(&diff::compare(&self.base, &head)?);
        let (alone, _) = resolve(one_sided(edited, self.direction).iter().chain(&self.added), self.assume);
        let (_, alone, possible_alone) = self.sums(&diff::compare(&self.alone, &alone)?);
        Ok(Cost { reversed, changed, alone, possible: possible + possible_alone, size })
    }

    /// The flows that change in the other direction, those that change as wanted, and those of possible pods.
    fn sums(&self, diff: &Diff) -> (Count, Count, Count) {
        let (mut reversed, mut changed, mut possible) = (Count::ZERO, Count::ZERO, Count::ZERO);
        for row in &diff.rows {
            let (real, others) = self.flows(diff, row);
            match row.change == self.wanted {
                true => (changed, possible) = (changed + real, possible + others),
                false => reversed = reversed + real,
            }
        }
        (reversed, changed, possible)
    }

    /// The flows of a row: those between ends of the input, and the others.
    fn flows(&self, diff: &Diff, row: &DiffRow) -> (Count, Count) {
        let traffic = row.traffic.ranges.iter().map(|it| u128::from(it.last) - u128::from(it.first) + 1).sum::<u128>();
        let traffic = Count::from(traffic + u128::from(row.traffic.portless));
        let [source, destination] = [&row.source, &row.destination].map(|it| self.ends(diff, it));
        let others = source.0 * destination.1 + source.1 * (destination.0 + destination.1);
        (source.0 * destination.0 * traffic, others * traffic)
    }

    /// Endpoints and addresses of the input, and pods that could exist. Addresses of services are left out: what they
    /// lead to is counted.
    fn ends(&self, diff: &Diff, end: &RowEnd) -> (Count, Count) {
        let is_possible = |it: &&u32| {
            let endpoint = &diff.endpoints[**it as usize];
            self.names.contains(&(endpoint.namespace.clone(), endpoint.name.clone()))
        };
        let possible = end.endpoints.iter().filter(is_possible).count();
        // All of IPv6 has one address more than a `u128` can count.
        let size = |first, last| Count::from(to_number(last).1 - to_number(first).1) + Count::from(1);
        let addresses = end.ranges.iter().map(|it| size(it.first, it.last)).fold(Count::ZERO, Count::add);
        let real = Count::from((end.endpoints.len() - possible) as u128);
        (real + addresses, Count::from(possible as u128))
    }
}

/// The objects with the rules of one direction only. If both ends deny a flow, an edit of one of them changes nothing
/// yet, and this shows what it will.
fn one_sided(objects: &[Object], direction: Direction) -> Vec<Object> {
    let one_sided = |object: &Object| {
        let Body::NetworkPolicy(policy) = &object.body else { return Some(object.clone()) };
        let (kind, is_written) = match direction {
            Direction::Ingress => (PolicyType::Ingress, true),
            Direction::Egress => (PolicyType::Egress, !policy.egress.is_empty()),
        };
        let isolates = if policy.policy_types.is_empty() { is_written } else { policy.policy_types.contains(&kind) };
        let mut policy = NetworkPolicy { policy_types: vec![kind], ..policy.clone() };
        match direction {
            Direction::Ingress => policy.egress.clear(),
            Direction::Egress => policy.ingress.clear(),
        }
        isolates.then(|| Object { body: Body::NetworkPolicy(policy), ..object.clone() })
    };
    objects.iter().filter_map(one_sided).collect()
}

/// Pods that differ from these in one label or in the namespace.
fn possible_pods(objects: &[Object], remotes: &[(String, Labels)]) -> Vec<Object> {
    let mut namespaces: Vec<&str> = objects.iter().map(|it| it.meta.namespace.as_str()).collect();
    namespaces.retain(|it| !it.is_empty());
    namespaces.push(VARIED);
    namespaces.sort_unstable();
    namespaces.dedup();
    let mut found: Vec<(String, Labels)> = Vec::new();
    for (namespace, labels) in remotes {
        found.push((namespace.clone(), Labels::new()));
        for key in labels.keys().take(MOST_VARIED) {
            let others = labels.iter().filter(|(other, _)| *other != key);
            found.push((namespace.clone(), others.clone().collect()));
            found.push((namespace.clone(), others.chain([(key, VARIED)]).collect()));
        }
        let others = namespaces.iter().filter(|it| *it != namespace).take(MOST_VARIED);
        found.extend(others.map(|it| ((*it).to_owned(), labels.clone())));
    }
    found.sort();
    found.dedup();
    found.retain(|it| !remotes.contains(it));
    let first = objects.iter().map(|it| it.id.0 + 1).max().unwrap_or(0);
    found.into_iter().zip(first..).map(|((namespace, labels), id)| pod(namespace, labels, id)).collect()
}

fn pod(namespace: String, labels: Labels, id: u32) -> Object {
    let meta = Meta {
        name: format!("{VARIED}-{id}"),
        namespace: namespace.into(),
        labels: Arc::new(labels),
        ..Meta::default()
    };
    Object { id: ObjectId(id), meta, body: Body::Pod(Pod::default()) }
}

/// The candidate that costs least; of equal ones the first.
pub(crate) fn best<T>(candidates: Vec<(Cost, T)>) -> Option<(Cost, T)> {
    candidates.into_iter().min_by_key(|(cost, _)| *cost)
}
