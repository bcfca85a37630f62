//! A flow and the wanted verdict → the edits that give it.
//!
//! Problem: both ends decide about a flow, and several policies about each end.
//! Strategy: to allow, edit at each end that denies. To deny, one end is enough: plan the edits for both ends and take
//! those that cost less. Within an end, one rule is edited at a time, and the oracle is asked after each edit.
//! Invariants: the result has been judged; anything but a NetworkPolicy that decides is an error that names it.

use weir_analysis::diff::DiffError;
use weir_model::eval::{Basis, EndVerdict, Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Backend, Cluster, Direction, EndpointId, ServiceId, Standing};
use weir_objects::k8s::{Labels, Object};

pub use crate::cost::Cost;
use crate::cost::{Measure, best};
pub use crate::count::Count;
use crate::edit::Edit;
use crate::note::{self, Note};
use crate::{allow, deny};

/// The most edits of one proposal.
const MOST_EDITS: usize = 16;

/// The edits for a flow.
#[derive(Clone, Debug)]
pub struct Change {
    /// In the order in which they are applied.
    pub steps: Vec<Step>,
    /// The objects afterwards.
    pub objects: Vec<Object>,
    /// Effects that the edits do not show.
    pub notes: Vec<Note>,
}

/// One edit, and its cost.
#[derive(Clone, Debug)]
pub struct Step {
    /// The edit, for the objects after the previous step.
    pub edit: Edit,
    /// Its cost, compared with the original objects.
    pub cost: Cost,
    /// The number of edits that would have given the same verdict.
    pub candidates: usize,
}

/// Why there is no proposal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Nothing to do.
    #[error("the flow is {} already", if *.0 == Verdict::Allow { "allowed" } else { "denied" })]
    AlreadySo(Verdict),
    /// An object of another kind decides.
    #[error("{object} decides about the {} of the flow, and no NetworkPolicy can change that", .direction.name())]
    OtherKind {
        /// The object, with its kind.
        object: String,
        /// The direction in which it decides.
        direction: Direction,
    },
    /// No policy can decide.
    #[error("no policy can deny the flow: {0}")]
    NotDeniable(&'static str),
    /// Several destinations are behind one address and port.
    #[error("several destinations share the address and port of the flow; ask about one of their pods")]
    Shared,
    /// Rules cannot name it.
    #[error("a policy cannot name port 0")]
    PortZero,
    /// The address of a pod that is not running may belong to another pod.
    #[error("{0} is not running, so policies about it cannot be compared")]
    NotRunning(String),
    /// A service without backends is denied whatever policies say.
    #[error("service {0} has no ready backend for this port, and no policy can change that")]
    NoBackend(String),
    /// No edit of one rule gives the verdict.
    #[error("no edit of a rule gives the wanted verdict for the {} of the flow", .0.name())]
    NoCandidate(Direction),
    /// The effects cannot be compared.
    #[error(transparent)]
    Diff(#[from] DiffError),
}

/// One end of a flow, as its policies see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) direction: Direction,
    pub(crate) subject: EndpointId,
    pub(crate) remote: FlowEnd,
    pub(crate) protocol: FlowProtocol,
    pub(crate) port: u16,
}

/// Finds the edits with which every one of the flows has the verdict.
pub fn change(objects: &[Object], assume: Assumptions, flows: &[Flow], wanted: Verdict) -> Result<Change, ChangeError> {
    let (cluster, _) = resolve(objects, assume);
    let flows = plain_flows(&cluster, flows)?;
    let measure = |direction| Measure::new(objects, assume, direction, &remotes(&cluster, &flows, direction), wanted);
    let measures = Direction::ALL.map(measure);
    let mut planner = Planner { measures: &measures, assume, objects: objects.to_vec(), steps: Vec::new() };
    for flow in &flows {
        match wanted {
            Verdict::Allow => planner.allow(flow)?,
            Verdict::Deny => planner.deny(flow)?,
        }
    }
    let Planner { steps, objects, .. } = planner;
    if steps.is_empty() {
        return Err(ChangeError::AlreadySo(wanted));
    }
    let edits: Vec<&Edit> = steps.iter().map(|it| &it.edit).collect();
    let notes = note::notes([&cluster, &resolve(&objects, assume).0], &edits, &flows, wanted)?;
    Ok(Change { steps, objects, notes })
}

/// The flows to pods and addresses: a flow to a service's address is one to each of its backends.
pub(crate) fn plain_flows(cluster: &Cluster, flows: &[Flow]) -> Result<Vec<Flow>, ChangeError> {
    let oracle = Oracle::new(cluster);
    let mut plain = Vec::new();
    for flow in flows {
        if flow.protocol != FlowProtocol::Icmp && flow.port == 0 {
            return Err(ChangeError::PortZero);
        }
        let (source, destination) = (oracle.complete(flow.source), oracle.complete(flow.destination));
        let flow = Flow { source, destination, ..flow.clone() };
        let ends = [flow.source.endpoint, flow.destination.endpoint];
        if let Some(id) = ends.into_iter().flatten().find(|id| !is_running(cluster, *id)) {
            return Err(ChangeError::NotRunning(cluster.endpoint_name(id)));
        }
        if !oracle.host_ports_of(&flow).is_empty() {
            return Err(ChangeError::Shared);
        }
        match oracle.services_behind(&flow).map(|it| it.single()) {
            None => plain.push(flow),
            Some(None) => return Err(ChangeError::Shared),
            Some(Some((service, port))) => plain.extend(to_backends(cluster, &flow, service, port)?),
        }
    }
    Ok(plain)
}

/// The flows to the backends of a service's port that have the family of its address.
fn to_backends(
    cluster: &Cluster,
    flow: &Flow,
    service: ServiceId,
    port: Option<u32>,
) -> Result<Vec<Flow>, ChangeError> {
    let ports = &cluster.services[service.index()].ports;
    let backends = port.and_then(|port| ports.get(port as usize)).map_or(&[][..], |it| &it.backends);
    let to = |it: &Backend| Flow {
        destination: FlowEnd { endpoint: it.endpoint, address: it.address },
        port: it.port,
        ..flow.clone()
    };
    let family = flow.destination.address.map(|it| it.is_ipv4());
    let has_family = |it: &&Backend| it.address.is_none_or(|at| family.is_none_or(|v4| at.is_ipv4() == v4));
    let serving: Vec<Flow> = backends.iter().filter(has_family).map(to).collect();
    match serving.is_empty() {
        true => Err(ChangeError::NoBackend(cluster.service_name(service))),
        false => Ok(serving),
    }
}

fn is_running(cluster: &Cluster, id: EndpointId) -> bool {
    !matches!(cluster.endpoints[id.index()].standing, Standing::Finished | Standing::Pending)
}

/// Plans edits, one after the other.
#[derive(Clone)]
struct Planner<'m> {
    /// By the direction of the edit.
    measures: &'m [Measure; 2],
    assume: Assumptions,
    objects: Vec<Object>,
    steps: Vec<Step>,
}

impl Planner<'_> {
    fn allow(&mut self, flow: &Flow) -> Result<(), ChangeError> {
        for direction in [Direction::Egress, Direction::Ingress] {
            let cluster = self.cluster();
            let judged = Oracle::new(&cluster).judge(flow).side(direction).clone();
            if judged.verdict == Verdict::Allow {
                continue;
            }
            let Basis::Isolated(isolating) = &judged.basis else { return Err(decided(&cluster, direction, &judged)) };
            let Some(side) = Side::of(flow, direction) else { return Err(ChangeError::NoCandidate(direction)) };
            let candidates = allow::candidates(&cluster, &self.objects, &side, isolating);
            let is_allowed =
                |cluster: &Cluster| Oracle::new(cluster).judge(flow).side(direction).verdict == Verdict::Allow;
            self.take_best(candidates, direction, is_allowed)?;
        }
        Ok(())
    }

    /// Denies at one of the ends: the one where it costs less.
    fn deny(&mut self, flow: &Flow) -> Result<(), ChangeError> {
        let cluster = self.cluster();
        if Oracle::new(&cluster).judge(flow).verdict() == Verdict::Deny {
            return Ok(());
        }
        let mut plans = Vec::new();
        let mut failed = None;
        for direction in [Direction::Ingress, Direction::Egress] {
            let mut plan = self.clone();
            match plan.deny_at(flow, direction) {
                Ok(()) => {
                    let size = plan.steps.iter().map(|it| it.edit.size()).sum();
                    plans.push((self.measure(direction).cost(&plan.objects, size)?, plan));
                }
                // An object that decides says more than an end at which nothing can.
                Err(error @ ChangeError::NotDeniable(_)) => failed = failed.or(Some(error)),
                Err(error) => failed = Some(error),
            }
        }
        match (best(plans), failed) {
            (Some((_, plan)), _) => *self = plan,
            (None, Some(error)) => return Err(error),
            (None, None) => return Err(ChangeError::NoCandidate(Direction::Ingress)),
        }
        Ok(())
    }

    fn deny_at(&mut self, flow: &Flow, direction: Direction) -> Result<(), ChangeError> {
        let first = self.steps.len();
        while self.steps.len() - first < MOST_EDITS {
            let cluster = self.cluster();
            let judged = Oracle::new(&cluster).judge(flow).side(direction).clone();
            if judged.verdict == Verdict::Deny {
                return Ok(());
            }
            let Some(side) = Side::of(flow, direction) else {
                return Err(ChangeError::NotDeniable("the address does not belong to a pod"));
            };
            let before = allowing(&judged);
            let candidates = match &judged.basis {
                Basis::Rules(rules) => deny::narrowings(&cluster, &self.objects, &side, rules[0]),
                Basis::NotIsolated => deny::isolations(&cluster, &self.objects, &side),
                _ => return Err(decided(&cluster, direction, &judged)),
            };
            let is_closer = |cluster: &Cluster| {
                let judged = Oracle::new(cluster).judge(flow).side(direction).clone();
                judged.verdict == Verdict::Deny || allowing(&judged) < before
            };
            self.take_best(candidates, direction, is_closer)?;
        }
        Err(ChangeError::NoCandidate(direction))
    }

    /// Applies the cheapest candidate that gives the flow the wanted verdict.
    fn take_best(
        &mut self,
        candidates: Vec<Edit>,
        direction: Direction,
        is_wanted: impl Fn(&Cluster) -> bool,
    ) -> Result<(), ChangeError> {
        let mut measured = Vec::new();
        for edit in candidates {
            let objects = edit.apply(&self.objects);
            if is_wanted(&resolve(&objects, self.assume).0) {
                measured.push((self.measure(direction).cost(&objects, edit.size())?, (edit, objects)));
            }
        }
        let candidates = measured.len();
        let Some((cost, (edit, objects))) = best(measured) else { return Err(ChangeError::NoCandidate(direction)) };
        self.steps.push(Step { edit, cost, candidates });
        self.objects = objects;
        Ok(())
    }

    fn measure(&self, direction: Direction) -> &Measure {
        &self.measures[direction as usize]
    }

    fn cluster(&self) -> Cluster {
        resolve(&self.objects, self.assume).0
    }
}

/// The number of rules that allow; a pod that nothing isolates is one more than any number of them.
fn allowing(judged: &EndVerdict) -> usize {
    match &judged.basis {
        Basis::Rules(rules) => rules.len(),
        _ => usize::MAX,
    }
}

/// The error for an end that no NetworkPolicy decides about.
fn decided(cluster: &Cluster, direction: Direction, judged: &EndVerdict) -> ChangeError {
    let other = |object| ChangeError::OtherKind { object, direction };
    match &judged.basis {
        Basis::List(id) => other(format!("CidrList {}", cluster.lists[id.index()].name)),
        Basis::Tier(rule) => {
            let policy = cluster.tier_policy(rule.policy);
            other(format!("{} {} ({})", policy.kind.name(), policy.name, cluster.tier_rule_name(*rule)))
        }
        Basis::Service(_) | Basis::Claims(_) | Basis::HostPorts(_) => ChangeError::Shared,
        Basis::Itself => ChangeError::NotDeniable("a pod always reaches itself"),
        Basis::OwnNode => ChangeError::NotDeniable("a pod and its own node always reach each other"),
        Basis::IcmpAssumed => ChangeError::NotDeniable("ICMP is assumed to pass (--assume icmp=allow)"),
        Basis::NotSubject => ChangeError::NotDeniable("policies select neither of its ends"),
        Basis::NotIsolated | Basis::Rules(_) | Basis::Isolated(_) => ChangeError::NoCandidate(direction),
    }
}

/// The pods at the other end of a direction, by namespace and labels.
fn remotes(cluster: &Cluster, flows: &[Flow], direction: Direction) -> Vec<(String, Labels)> {
    let ids = flows.iter().filter_map(|it| Side::of(it, direction)?.remote.endpoint);
    let pod = |id: EndpointId| {
        let endpoint = &cluster.endpoints[id.index()];
        let namespace = cluster.namespaces[endpoint.namespace.index()].name.clone();
        (namespace, cluster.labels.labels(endpoint.labels).clone())
    };
    let mut found: Vec<_> = ids.filter(|id| allow::is_selectable(cluster, *id)).map(pod).collect();
    found.sort();
    found.dedup();
    found
}

impl Side {
    /// The side of a flow; `None` if this end is no endpoint.
    fn of(flow: &Flow, direction: Direction) -> Option<Self> {
        let (subject, remote) = match direction {
            Direction::Egress => (flow.source, flow.destination),
            Direction::Ingress => (flow.destination, flow.source),
        };
        Some(Self { direction, subject: subject.endpoint?, remote, protocol: flow.protocol, port: flow.port })
    }
}
