//! Edits that may allow a flow at one end: a rule more, or a peer or port more in a rule.

use weir_model::eval::{FlowEnd, FlowProtocol};
use weir_model::{Cluster, Endpoint, EndpointId, PolicyId};
use weir_objects::address::Prefix;
use weir_objects::k8s::{
    Direction, LabelSelector, Mode, NetworkPolicy, Object, PolicyPeer, PolicyPort, PolicyRule, PolicyType, PortMatch,
};

use crate::change::Side;
use crate::edit::{Edit, Item, ListPath, NewPolicy};
use crate::labels;

/// Every edit of one rule, and a new policy for the pod.
pub(crate) fn candidates(cluster: &Cluster, objects: &[Object], side: &Side, isolating: &[PolicyId]) -> Vec<Edit> {
    let subject = &cluster.endpoints[side.subject.index()];
    let Some(peer) = peer(cluster, subject, side.remote) else { return Vec::new() };
    let port = port(side);
    let rule = PolicyRule { peers: vec![peer.clone()], ports: port.clone().into_iter().collect() };
    let mut found = Vec::new();
    for id in isolating {
        let policy = cluster.policy(*id);
        let rules = policy.rules(side.direction).unwrap_or_default();
        let append = |list, item| Edit::Append { object: policy.object, list, item };
        for (index, old) in rules.iter().enumerate() {
            if let Some(port) = port.clone().filter(|_| !old.ports.is_empty()) {
                found.push(append(ListPath::Ports(side.direction, index), Item::Port(port)));
            }
            if !old.peers.is_empty() {
                found.push(append(ListPath::Peers(side.direction, index), Item::Peer(peer.clone())));
            }
        }
        found.push(append(ListPath::Rules(side.direction), Item::Rule(rule.clone())));
    }
    found.push(Edit::Create(for_subject(cluster, objects, side, vec![rule], "allow")));
    found
}

/// The peer that is the other end and as little else as possible; `None` if it has neither labels nor an address.
fn peer(cluster: &Cluster, subject: &Endpoint, remote: FlowEnd) -> Option<PolicyPeer> {
    match remote.endpoint.filter(|id| is_selectable(cluster, *id)) {
        Some(id) => Some(pods(cluster, subject, &cluster.endpoints[id.index()])),
        None => remote.address.map(|it| PolicyPeer::Block { cidr: Prefix::host(it), except: Vec::new() }),
    }
}

/// Whether selectors find the endpoint.
pub(crate) fn is_selectable(cluster: &Cluster, id: EndpointId) -> bool {
    use weir_model::{HostNetworkPods, Standing};
    match cluster.endpoints[id.index()].standing {
        Standing::Member => true,
        Standing::HostNetwork => cluster.assume.hostnetwork_pods == HostNetworkPods::Pod,
        Standing::Finished | Standing::Pending => false,
    }
}

fn pods(cluster: &Cluster, subject: &Endpoint, remote: &Endpoint) -> PolicyPeer {
    let labels = labels::lasting(cluster.labels.labels(remote.labels));
    let namespace = &cluster.namespaces[remote.namespace.index()].name;
    let namespaces = (remote.namespace != subject.namespace).then(|| labels::namespace(namespace));
    // A peer needs at least one selector.
    let pods = (namespaces.is_none() || !labels.is_empty()).then(|| labels::exactly(labels));
    PolicyPeer::Pods { pods, namespaces }
}

/// The port of the flow; `None` for traffic without ports, which only rules without ports match.
pub(crate) fn port(side: &Side) -> Option<PolicyPort> {
    let FlowProtocol::Transport(protocol) = side.protocol else { return None };
    Some(PolicyPort { protocol, port: PortMatch::Range(side.port, side.port) })
}

/// A policy of its own for the subject, which isolates it in this direction.
pub(crate) fn for_subject(
    cluster: &Cluster,
    objects: &[Object],
    side: &Side,
    rules: Vec<PolicyRule>,
    verb: &str,
) -> NewPolicy {
    let subject = &cluster.endpoints[side.subject.index()];
    let labels = labels::lasting(cluster.labels.labels(subject.labels));
    let namespace = cluster.namespaces[subject.namespace.index()].name.clone();
    let name = free_name(objects, &namespace, &format!("{}-{verb}-{}", subject.name, side.direction.name()));
    let (ingress, egress, types) = match side.direction {
        Direction::Ingress => (rules, Vec::new(), PolicyType::Ingress),
        Direction::Egress => (Vec::new(), rules, PolicyType::Egress),
    };
    let pod_selector: LabelSelector = labels::exactly(labels);
    let policy = NetworkPolicy {
        pod_selector,
        pod_selector_written: true,
        policy_types: vec![types],
        ingress,
        egress,
        mode: Mode::Enforce,
    };
    NewPolicy { namespace, name, policy }
}

/// A name that no object of the namespace has.
fn free_name(objects: &[Object], namespace: &str, name: &str) -> String {
    let is_taken = |name: &str| objects.iter().any(|it| it.meta.namespace == namespace && it.meta.name == name);
    let numbered = std::iter::once(name.to_owned()).chain((2..).map(|number| format!("{name}-{number}")));
    numbered.into_iter().find(|it| !is_taken(it)).unwrap_or_else(|| name.to_owned())
}
