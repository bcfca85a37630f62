//! Edits that may deny a flow at one end: a rule that allows it is removed or narrowed, or a pod that nothing isolates
//! gets a policy that allows everything else.
//!
//! A selector cannot say "all pods but this one", so a rule that matches the pod among others excludes the pods that
//! share one of its labels, or its namespace. Which of these exclusions costs least is measured, not guessed.

use weir_model::eval::{FlowProtocol, RuleId};
use weir_model::{Cluster, Endpoint, IpBlockPods, Protocol};
use weir_objects::address::Prefix;
use weir_objects::k8s::{
    Body, LabelSelector, Labels, NAMESPACE_NAME_LABEL, Object, Operator, PolicyPeer, PolicyPort, PolicyRule, PortMatch,
    Requirement,
};

use crate::allow::{for_subject, is_selectable};
use crate::change::Side;
use crate::edit::{Edit, Item, ListPath, rules};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Edits of a rule that allows the flow.
pub(crate) fn narrowings(cluster: &Cluster, objects: &[Object], side: &Side, allowing: RuleId) -> Vec<Edit> {
    let (object, index) = (cluster.policy(allowing.policy).object, allowing.rule as usize);
    let list = ListPath::Rules(side.direction);
    let mut found = vec![Edit::Remove { object, list, index }];
    let body = objects.iter().find(|it| it.id == object).map(|it| &it.body);
    let Some(Body::NetworkPolicy(policy)) = body else { return found };
    let Some(rule) = rules(policy, side.direction).get(index) else { return found };
    let peers = ListPath::Peers(side.direction, index);
    let ports = ListPath::Ports(side.direction, index);
    for (number, peer) in rule.peers.iter().enumerate() {
        if rule.peers.len() > 1 {
            found.push(Edit::Remove { object, list: peers, index: number });
        }
        if let (PolicyPeer::Block { cidr, .. }, Some(address)) = (peer, side.remote.address)
            && cidr.contains(address)
            && cidr.len() < Prefix::host(address).len()
        {
            let list = ListPath::Except(side.direction, index, number);
            found.push(Edit::Append { object, list, item: Item::Except(Prefix::host(address)) });
        }
        for narrowed in without_remote(cluster, side, peer) {
            found.push(Edit::Replace { object, list: peers, index: number, items: vec![Item::Peer(narrowed)] });
        }
    }
    for (number, port) in rule.ports.iter().enumerate() {
        let rest = without_port(side, port);
        if !rest.is_empty() {
            let items = rest.into_iter().map(Item::Port).collect();
            found.push(Edit::Replace { object, list: ports, index: number, items });
        } else if rule.ports.len() > 1 {
            found.push(Edit::Remove { object, list: ports, index: number });
        }
    }
    for rules in splits(cluster, side, rule).into_iter().filter(|it| !it.is_empty()) {
        let items = rules.into_iter().map(Item::Rule).collect();
        found.push(Edit::Replace { object, list, index, items });
    }
    found
}

/// Policies that isolate the subject and allow everything but the flow and as little else as possible.
pub(crate) fn isolations(cluster: &Cluster, objects: &[Object], side: &Side) -> Vec<Edit> {
    let everything = PolicyRule::default();
    let of_rules = |rules| Edit::Create(for_subject(cluster, objects, side, rules, "deny"));
    let mut found: Vec<Edit> = splits(cluster, side, &everything).into_iter().map(of_rules).collect();
    found.push(of_rules(Vec::new()));
    found
}

/// Sets of rules. Each set allows the same flows as a rule, except the flow to deny.
fn splits(cluster: &Cluster, side: &Side, rule: &PolicyRule) -> Vec<Vec<PolicyRule>> {
    let other_ports: Vec<PolicyPort> = match side.protocol {
        FlowProtocol::Icmp if rule.ports.is_empty() => PROTOCOLS.into_iter().map(any_port).collect(),
        FlowProtocol::Icmp => rule.ports.clone(),
        FlowProtocol::Transport(_) if rule.ports.is_empty() => {
            PROTOCOLS.into_iter().flat_map(|it| without_port(side, &any_port(it))).collect()
        }
        FlowProtocol::Transport(_) => rule.ports.iter().flat_map(|it| without_port(side, it)).collect(),
    };
    let same_peers = PolicyRule { peers: rule.peers.clone(), ports: other_ports.clone() };
    let same_peers = (!other_ports.is_empty()).then_some(same_peers);
    let mut found: Vec<Vec<PolicyRule>> = same_peers.clone().into_iter().map(|it| vec![it]).collect();
    for peers in other_peers(cluster, side, &rule.peers) {
        // Other ends keep all traffic, also that without ports; all ends keep the other ports.
        let others = PolicyRule { peers, ports: rule.ports.clone() };
        found.push(std::iter::once(others).chain(same_peers.clone()).collect());
    }
    found
}

/// The peers without the other end, in every way of excluding it.
fn other_peers(cluster: &Cluster, side: &Side, peers: &[PolicyPeer]) -> Vec<Vec<PolicyPeer>> {
    let everyone = [PolicyPeer::Pods { pods: None, namespaces: Some(LabelSelector::default()) }];
    let blocks = || ["0.0.0.0/0", "::/0"].into_iter().filter_map(Prefix::read_strictly);
    let address = side.remote.address;
    let is_pod = side.remote.endpoint.is_some_and(|id| is_selectable(cluster, id));
    // Otherwise a block of outside addresses matches the pod too, and would allow it.
    let is_outside_only = is_pod && cluster.assume.ipblock_pods == IpBlockPods::Ignore;
    if peers.is_empty() && !is_pod {
        let except = |cidr: Prefix| address.filter(|it| cidr.contains(*it)).map(Prefix::host).into_iter().collect();
        let blocks = blocks().map(|cidr| PolicyPeer::Block { cidr, except: except(cidr) });
        return vec![everyone.into_iter().chain(blocks).collect()];
    }
    // All peers must be narrowed in the same way: a pod may match several of them.
    let outside = blocks().filter(|_| is_outside_only).map(|cidr| PolicyPeer::Block { cidr, except: Vec::new() });
    let everyone: Vec<PolicyPeer> = everyone.into_iter().chain(outside).collect();
    let peers = if peers.is_empty() { &everyone[..] } else { peers };
    let ways = exclusions(cluster, side).len().max(1);
    let narrowed = (0..ways).map(|way| {
        let one = |peer: &PolicyPeer| match peer {
            PolicyPeer::Pods { .. } if is_pod => without_remote(cluster, side, peer).into_iter().nth(way),
            PolicyPeer::Pods { .. } => Some(peer.clone()),
            PolicyPeer::Block { .. } if is_outside_only => Some(peer.clone()),
            PolicyPeer::Block { cidr, except } => match address.filter(|it| cidr.contains(*it)) {
                Some(address) if Prefix::host(address) == *cidr => None,
                Some(address) => {
                    let except = except.iter().copied().chain([Prefix::host(address)]).collect();
                    Some(PolicyPeer::Block { cidr: *cidr, except })
                }
                None => Some(peer.clone()),
            },
        };
        peers.iter().filter_map(one).collect::<Vec<_>>()
    });
    narrowed.filter(|it| !it.is_empty()).collect()
}

/// What distinguishes the other end from other pods.
enum Exclusion {
    /// A label of the pod.
    Label(String, String),
    /// Its namespace.
    Namespace(String),
}

fn exclusions(cluster: &Cluster, side: &Side) -> Vec<Exclusion> {
    let Some(remote) = side.remote.endpoint.filter(|id| is_selectable(cluster, *id)) else { return Vec::new() };
    let remote: &Endpoint = &cluster.endpoints[remote.index()];
    let labels: &Labels = cluster.labels.labels(remote.labels);
    let labels = labels.iter().map(|(key, value)| Exclusion::Label(key.to_owned(), value.to_owned()));
    let namespace = cluster.namespaces[remote.namespace.index()].name.clone();
    labels.chain([Exclusion::Namespace(namespace)]).collect()
}

/// A peer of pods without the other end, by each exclusion.
fn without_remote(cluster: &Cluster, side: &Side, peer: &PolicyPeer) -> Vec<PolicyPeer> {
    let PolicyPeer::Pods { pods, namespaces } = peer else { return Vec::new() };
    let narrowed = |exclusion| match exclusion {
        Exclusion::Label(key, value) => {
            let pods = Some(excluding(pods.as_ref(), key, value));
            PolicyPeer::Pods { pods, namespaces: namespaces.clone() }
        }
        Exclusion::Namespace(name) => {
            let namespaces = Some(excluding(namespaces.as_ref(), NAMESPACE_NAME_LABEL.to_owned(), name));
            PolicyPeer::Pods { pods: pods.clone(), namespaces }
        }
    };
    exclusions(cluster, side).into_iter().map(narrowed).collect()
}

fn excluding(selector: Option<&LabelSelector>, key: String, value: String) -> LabelSelector {
    let mut selector = selector.cloned().unwrap_or_default();
    selector.match_expressions.push(Requirement { key, operator: Operator::NotIn, values: vec![value] });
    selector
}

fn any_port(protocol: Protocol) -> PolicyPort {
    PolicyPort { protocol, port: PortMatch::Any }
}

/// The same ports without that of the flow.
fn without_port(side: &Side, port: &PolicyPort) -> Vec<PolicyPort> {
    let range = |first, last| PolicyPort { protocol: port.protocol, port: PortMatch::Range(first, last) };
    if side.protocol != FlowProtocol::Transport(port.protocol) {
        return vec![port.clone()];
    }
    let (first, last) = match port.port {
        PortMatch::Any => (1, u16::MAX),
        PortMatch::Range(first, last) => (first, last),
        PortMatch::Named(_) => return Vec::new(),
    };
    if !(first..=last).contains(&side.port) {
        return vec![port.clone()];
    }
    let mut rest = Vec::new();
    rest.extend((first < side.port).then(|| range(first, side.port - 1)));
    rest.extend((side.port < last).then(|| range(side.port + 1, last)));
    rest
}
