//! The comparison for the pods of the input and for every pod that could exist.
//!
//! Rows about possible pods come first. A row about endpoints of the input is left out if rows about possible pods
//! contain all of its flows: then each of its endpoints is a possible pod like any other, the same on both sides.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::rc::Rc;

use super::{AddressSet, Decides, RowTraffic, VerdictChange, compare};
use super::{Diff, DiffEndpoint, DiffError, DiffRow, EndReason, EndState, FlowWitness, Presence, RowEnd, RowProduct};
use crate::world::{self, CauseKind, EndSet, FlowProduct, PodSet, TrafficSet, WorldRow};
use weir_classes::PortSpec;
use weir_model::eval::{Basis, EndVerdict, Verdict};
use weir_model::labels::matches;
use weir_model::{Cluster, Direction, Endpoint, LabelSetId, Standing};

/// Compares two clusters, for their endpoints and for possible pods. If `keep_all` is set, rows about endpoints stay
/// even if rows about possible pods contain them.
pub fn compare_open(base: &Cluster, head: &Cluster, keep_all: bool) -> Result<Diff, DiffError> {
    compare_open_watched(base, head, keep_all, &|_, _| ())
}

/// The same. `watch` gets the number of finished steps and the number of all steps.
pub fn compare_open_watched(
    base: &Cluster,
    head: &Cluster,
    keep_all: bool,
    watch: &dyn Fn(u64, u64),
) -> Result<Diff, DiffError> {
    let mut diff = compare(base, head)?;
    let world = world::compare_watched(base, head, watch)?;
    let members = Members::new([base, head], &diff.endpoints);
    if !keep_all {
        diff.rows.retain(|row| !members.covers(row));
    }
    let mut rows: Vec<DiffRow> = world.rows.into_iter().map(|row| members.row(row)).collect();
    rows.append(&mut diff.rows);
    diff.rows = rows;
    diff.without_effect = world.without_effect;
    Ok(diff)
}

/// The endpoints that are possible pods: those that both sides have, with the same properties.
struct Members<'c> {
    cluster: &'c Cluster,
    /// By number of the comparison's endpoint; `None` if the sides disagree about it, or if it is no ordinary pod.
    endpoints: Vec<Option<&'c Endpoint>>,
    known: RefCell<HashMap<PodSet, Rc<[u32]>>>,
}

impl<'c> Members<'c> {
    fn new(sides: [&'c Cluster; 2], endpoints: &[DiffEndpoint]) -> Self {
        let frontends: HashSet<IpAddr> =
            sides.iter().flat_map(|it| it.frontends.iter().map(|frontend| frontend.address)).collect();
        // If one side alone declares the namespace, possible pods have its labels on both sides. Endpoints of the
        // other side do not.
        let same_namespace = |old: &Endpoint, new: &Endpoint| {
            let [base, head] = sides;
            let (old, new) = (&base.namespaces[old.namespace.index()], &head.namespaces[new.namespace.index()]);
            let are_declared = old.object.is_some() && new.object.is_some();
            are_declared || base.labels.labels(old.labels) == head.labels.labels(new.labels)
        };
        let member = |endpoint: &DiffEndpoint| {
            let [Some(base), Some(head)] = endpoint.ids else { return None };
            let [old, new] = [&sides[0].endpoints[base.index()], &sides[1].endpoints[head.index()]];
            let labels = |side: usize, it: &'c Endpoint| sides[side].labels.labels(it.labels);
            let is_same = old.standing == Standing::Member
                && new.standing == Standing::Member
                && labels(0, old) == labels(1, new)
                && old.addresses == new.addresses
                && old.named_ports == new.named_ports
                && same_namespace(old, new)
                // Traffic to a service's address goes to the service, also if a pod claims the address.
                && !old.addresses.iter().any(|it| frontends.contains(it));
            is_same.then_some(new)
        };
        Self { cluster: sides[1], endpoints: endpoints.iter().map(member).collect(), known: RefCell::default() }
    }

    /// Whether rows about possible pods contain every flow of a row about endpoints.
    fn covers(&self, row: &DiffRow) -> bool {
        let is_possible = |end: &RowEnd| {
            end.services.is_empty() && end.endpoints.iter().all(|it| self.endpoints[*it as usize].is_some())
        };
        let is_covered = row.presence == Presence::Kept && is_possible(&row.source) && is_possible(&row.destination);
        is_covered && !self.has_own_node(row)
    }

    /// Whether a row has traffic of a pod to its own node, which cluster-wide policies alone decide about: a possible
    /// pod is on no node.
    fn has_own_node(&self, row: &DiffRow) -> bool {
        if self.cluster.tiers.is_empty() {
            return false;
        }
        let mut nodes = row.source.endpoints.iter().filter_map(|it| self.endpoints[*it as usize]?.node);
        nodes.any(|node| {
            let addresses = &self.cluster.nodes[node.index()].addresses;
            addresses.iter().any(|it| row.destination.ranges.contains(*it))
        })
    }

    fn row(&self, row: WorldRow) -> DiffRow {
        let WorldRow { change, cause, flows, except, given, family, example, decided } = row;
        let allowing = usize::from(change == VerdictChange::Added);
        let isolated = |rules, isolating| EndReason { state: EndState::Isolated, rules, tiers: Vec::new(), isolating };
        let state = |state| EndReason { state, rules: Vec::new(), tiers: Vec::new(), isolating: Vec::new() };
        let (allowed, denied) = match cause.kind {
            CauseKind::Rule { rule, isolating } => (isolated(vec![rule], Vec::new()), isolated(Vec::new(), isolating)),
            CauseKind::Isolation(policy) => (state(EndState::Open), isolated(Vec::new(), vec![policy])),
            CauseKind::List(list, Some(rule)) => (isolated(vec![rule], Vec::new()), state(EndState::List(list))),
            CauseKind::List(list, None) => (state(EndState::Open), state(EndState::List(list))),
            // `decided` is set.
            CauseKind::Tier { .. } => (state(EndState::Tier), state(EndState::Tier)),
        };
        let by_cause = if allowing == 1 { [denied, allowed] } else { [allowed, denied] };
        let accounts = decided.map_or(by_cause, |sides| sides.map(reason));
        let [egress, ingress] =
            [Direction::Egress, Direction::Ingress].map(|it| (it == cause.direction).then(|| accounts.clone()));
        let verdict = |side: usize| if side == allowing { Verdict::Allow } else { Verdict::Deny };
        let RowProduct { source, destination, traffic } = self.product(flows);
        let decides = match cause.direction {
            Direction::Egress => Decides::Egress,
            Direction::Ingress => Decides::Ingress,
        };
        DiffRow {
            presence: Presence::Kept,
            change,
            decides,
            source,
            destination,
            traffic,
            family,
            egress,
            ingress,
            except: except.into_iter().map(|it| self.product(it)).collect(),
            given,
            witness: FlowWitness {
                source: None,
                destination: None,
                flows: [None, None],
                verdicts: [verdict(0), verdict(1)],
                possible: Some(Box::new(example)),
            },
        }
    }

    fn product(&self, flows: FlowProduct) -> RowProduct {
        let FlowProduct { source, destination, traffic } = flows;
        RowProduct { source: self.end(source), destination: self.end(destination), traffic: row_traffic(traffic) }
    }

    fn end(&self, set: EndSet) -> RowEnd {
        let mut endpoints: Vec<u32> = set.pods.iter().flat_map(|pods| self.among(pods).to_vec()).collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        RowEnd { endpoints, ranges: set.ranges, services: Vec::new(), pods: set.pods }
    }

    /// The endpoints in a set. Many rows have the same sets, and many endpoints the same labels.
    fn among(&self, pods: &PodSet) -> Rc<[u32]> {
        if let Some(known) = self.known.borrow().get(pods) {
            return Rc::clone(known);
        }
        let Cluster { labels, namespaces, .. } = self.cluster;
        let in_namespace: Vec<bool> =
            namespaces.iter().map(|it| matches(&pods.namespaces, labels.labels(it.labels))).collect();
        let mut has_labels: HashMap<LabelSetId, bool> = HashMap::new();
        let at = |endpoint: &Endpoint| {
            let contains = |set: &AddressSet| endpoint.addresses.iter().any(|address| set.contains(*address));
            pods.addresses.as_ref().is_none_or(contains)
        };
        let mut is_in = |endpoint: &Endpoint| {
            in_namespace[endpoint.namespace.index()]
                && *has_labels
                    .entry(endpoint.labels)
                    .or_insert_with(|| matches(&pods.pods, labels.labels(endpoint.labels)))
                && at(endpoint)
        };
        let all = self.endpoints.iter().enumerate();
        let found: Rc<[u32]> =
            all.filter(|(_, it)| it.is_some_and(&mut is_in)).map(|(index, _)| index as u32).collect();
        self.known.borrow_mut().insert(pods.clone(), Rc::clone(&found));
        found
    }
}

/// The reason for a direction's verdict about a row's example.
fn reason(decided: EndVerdict) -> EndReason {
    let mut reason =
        EndReason { state: EndState::Isolated, rules: Vec::new(), tiers: Vec::new(), isolating: Vec::new() };
    match decided.basis {
        Basis::Rules(rules) => reason.rules = rules,
        Basis::Isolated(policies) => reason.isolating = policies,
        Basis::List(list) => reason.state = EndState::List(list),
        Basis::Tier(rule) => {
            reason.state = EndState::Tier;
            reason.tiers.push(rule);
        }
        Basis::NotSubject | Basis::OwnNode => reason.state = EndState::Free,
        // A possible pod has no services and no ports of its node.
        Basis::Itself
        | Basis::IcmpAssumed
        | Basis::NotIsolated
        | Basis::Service(_)
        | Basis::Claims(_)
        | Basis::HostPorts(_) => reason.state = EndState::Open,
    }
    reason
}

/// Traffic as a row has it.
pub fn row_traffic(traffic: TrafficSet) -> RowTraffic {
    let mut row = RowTraffic { portless: traffic.portless, ..RowTraffic::default() };
    for ports in traffic.ports {
        let spec = PortSpec { protocol: ports.protocol, first: ports.first, last: ports.last };
        match ports.names[..] {
            [] => row.ranges.push(spec),
            _ => row.named.push((spec, ports.names)),
        }
    }
    row.ranges = joined(row.ranges);
    row
}

/// The same ports in the fewest ranges, sorted.
fn joined(mut ranges: Vec<PortSpec>) -> Vec<PortSpec> {
    ranges.sort_unstable();
    let mut result: Vec<PortSpec> = Vec::new();
    for range in ranges {
        match result.last_mut() {
            Some(last) if last.protocol == range.protocol && range.first <= last.last.saturating_add(1) => {
                last.last = last.last.max(range.last);
            }
            _ => result.push(range),
        }
    }
    result
}
