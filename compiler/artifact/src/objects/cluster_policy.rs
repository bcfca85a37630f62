//! Cluster-wide policies as objects of their kinds.

use super::{Json, members, protocol, selector, text};
use weir_objects::k8s::{
    ClusterPeer, ClusterPolicy, ClusterPolicyKind, ClusterPort, ClusterRule, PolicyPort, PortMatch, RuleAction,
};

/// The `spec` of a policy.
pub(super) fn spec(policy: &ClusterPolicy) -> Json<'_> {
    let kind = policy.kind;
    let mut all = Vec::new();
    if kind == ClusterPolicyKind::ClusterNetworkPolicy {
        all.push(("tier", text(policy.tier.name())));
    }
    if kind != ClusterPolicyKind::BaselineAdminNetworkPolicy {
        all.push(("priority", u32::from(policy.priority).into()));
    }
    let pods =
        [("namespaceSelector", selector(&policy.subject_namespaces)), ("podSelector", selector(&policy.subject_pods))];
    all.push(("subject", members([("pods", members(pods))])));
    for (name, peers, rules) in [("ingress", "from", &policy.ingress), ("egress", "to", &policy.egress)] {
        let rules = || Json::List(rules.iter().map(|it| rule(it, kind, peers)).collect());
        all.push((name, rules()));
    }
    members(all)
}

fn rule<'a>(rule: &'a ClusterRule, kind: ClusterPolicyKind, peers: &'static str) -> Json<'a> {
    let action = match (rule.action, kind) {
        (RuleAction::Accept, ClusterPolicyKind::ClusterNetworkPolicy) => "Accept",
        (RuleAction::Accept, _) => "Allow",
        (action, _) => action.name(),
    };
    let mut all = vec![("action", text(action)), (peers, Json::List(rule.peers.iter().map(peer).collect()))];
    all.extend(rule.name.as_ref().map(|name| ("name", text(name))));
    let ports = || Json::List(rule.ports.iter().map(|it| port(it, kind)).collect());
    all.extend((!rule.ports.is_empty()).then(|| (kind.ports_field(), ports())));
    members(all)
}

fn peer(peer: &ClusterPeer) -> Json<'_> {
    match peer {
        ClusterPeer::Pods { namespaces, pods } => {
            let of = [("namespaceSelector", selector(namespaces)), ("podSelector", selector(pods))];
            members([("pods", members(of))])
        }
        ClusterPeer::Nodes(nodes) => members([("nodes", selector(nodes))]),
        ClusterPeer::Networks(networks) => {
            members([("networks", Json::list(networks.iter().map(ToString::to_string)))])
        }
        ClusterPeer::DomainNames(names) => {
            members([("domainNames", Json::List(names.iter().map(|it| text(it)).collect()))])
        }
        // A peer without a field is read as unknown again.
        ClusterPeer::Unknown => members([]),
    }
}

fn port(port: &ClusterPort, kind: ClusterPolicyKind) -> Json<'_> {
    let is_v1alpha2 = kind == ClusterPolicyKind::ClusterNetworkPolicy;
    match port {
        ClusterPort::Named(name) if is_v1alpha2 => members([("destinationNamedPort", text(name))]),
        ClusterPort::Named(name) => members([("namedPort", text(name))]),
        ClusterPort::Transport(port) if is_v1alpha2 => v1alpha2(port),
        ClusterPort::Transport(port) => v1alpha1(port),
    }
}

fn v1alpha2(port: &PolicyPort) -> Json<'_> {
    let field = match port.protocol.name() {
        "TCP" => "tcp",
        "UDP" => "udp",
        _ => "sctp",
    };
    let (first, last) = ends(port);
    let number = match first == last {
        true => ("number", u32::from(first).into()),
        false => ("range", members([("start", u32::from(first).into()), ("end", u32::from(last).into())])),
    };
    members([(field, members([("destinationPort", members([number]))]))])
}

fn v1alpha1(port: &PolicyPort) -> Json<'_> {
    let (first, last) = ends(port);
    let protocol = ("protocol", protocol(port.protocol));
    match first == last {
        true => members([("portNumber", members([protocol, ("port", u32::from(first).into())]))]),
        false => {
            let range = [protocol, ("start", u32::from(first).into()), ("end", u32::from(last).into())];
            members([("portRange", members(range))])
        }
    }
}

/// The first and the last port. The API has no other ports than numbered ones here.
fn ends(port: &PolicyPort) -> (u16, u16) {
    match port.port {
        PortMatch::Range(first, last) => (first, last),
        PortMatch::Any | PortMatch::Named(_) => (1, u16::MAX),
    }
}
