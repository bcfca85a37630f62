//! Edits of one rule by brute force, and their effects by asking the oracle about every pair of ends. Shares no code
//! with the search that it checks.

use std::sync::Arc;

use weir_fuzz::generators::cluster::PORTS;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, Endpoint, EndpointId, Protocol, Standing};
use weir_objects::address::Prefix;
use weir_objects::k8s::{
    Body, Direction, LabelSelector, Labels, Meta, NetworkPolicy, Object, PolicyPeer, PolicyPort, PolicyRule,
    PolicyType, PortMatch,
};
use weir_objects::origin::ObjectId;

/// Flows that an edit denies, and flows that it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Effect {
    denied: usize,
    allowed: usize,
}

/// The flows that effects are measured with.
pub(crate) struct Universe {
    flows: Vec<Flow>,
}

impl Universe {
    /// Between all endpoints, and the outside addresses of one flow.
    pub(crate) fn of(cluster: &Cluster, flow: &Flow) -> Self {
        let endpoint = |(index, it): (usize, &Endpoint)| FlowEnd {
            endpoint: Some(EndpointId(index as u32)),
            address: it.addresses.first().copied(),
        };
        let is_running = |it: &(usize, &Endpoint)| matches!(it.1.standing, Standing::Member | Standing::HostNetwork);
        let running = cluster.endpoints.iter().enumerate().filter(is_running);
        let mut ends: Vec<FlowEnd> = running.map(endpoint).collect();
        ends.extend([flow.source, flow.destination].into_iter().filter(|it| it.endpoint.is_none()));
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(FlowProtocol::Transport);
        let mut traffic: Vec<(FlowProtocol, u16)> =
            protocols.into_iter().flat_map(|it| PORTS.map(|port| (it, port))).collect();
        traffic.extend([(FlowProtocol::Icmp, 0), (flow.protocol, flow.port)]);
        let mut flows = Vec::new();
        for source in &ends {
            for destination in &ends {
                let family = |it: &FlowEnd| it.address.map(|at| at.is_ipv4());
                if family(source).zip(family(destination)).is_some_and(|(one, other)| one != other) {
                    continue;
                }
                flows.extend(traffic.iter().map(|(protocol, port)| Flow {
                    source: *source,
                    destination: *destination,
                    protocol: *protocol,
                    port: *port,
                }));
            }
        }
        Self { flows }
    }

    pub(crate) fn effect(&self, before: &Cluster, after: &Cluster) -> Effect {
        let (mut before, mut after) = (Oracle::new(before), Oracle::new(after));
        let mut effect = Effect { denied: 0, allowed: 0 };
        for flow in &self.flows {
            match (before.judge(flow).verdict(), after.judge(flow).verdict()) {
                (Verdict::Allow, Verdict::Deny) => effect.denied += 1,
                (Verdict::Deny, Verdict::Allow) => effect.allowed += 1,
                _ => {}
            }
        }
        effect
    }
}

/// The objects with each edit of one rule, of any policy, in a direction.
pub(crate) fn edits(
    objects: &[Object],
    cluster: &Cluster,
    flow: &Flow,
    direction: Direction,
) -> Vec<(Vec<Object>, String)> {
    let (subject, remote) = match direction {
        Direction::Egress => (flow.source, flow.destination),
        Direction::Ingress => (flow.destination, flow.source),
    };
    let oracle = Oracle::new(cluster);
    let (subject, remote) = (oracle.complete(subject), oracle.complete(remote));
    let (peers, ports) = (peers(cluster, remote), ports(flow));
    let mut found = Vec::new();
    for (at, object) in objects.iter().enumerate() {
        let Body::NetworkPolicy(policy) = &object.body else { continue };
        let mut with = |rules: Vec<PolicyRule>, what: String| {
            let mut objects = objects.to_vec();
            let Body::NetworkPolicy(policy) = &mut objects[at].body else { return };
            match direction {
                Direction::Egress => policy.egress = rules,
                Direction::Ingress => policy.ingress = rules,
            }
            found.push((objects, format!("{} {what}", object.meta.name)));
        };
        let rules = match direction {
            Direction::Egress => &policy.egress,
            Direction::Ingress => &policy.ingress,
        };
        for peers in &peers {
            for ports in &ports {
                let rule = PolicyRule { peers: peers.clone(), ports: ports.clone() };
                with(rules.iter().cloned().chain([rule]).collect(), format!("gets a rule {peers:?} {ports:?}"));
            }
        }
        for (index, rule) in rules.iter().enumerate() {
            let mut changed = |rule: PolicyRule, what: String| {
                let mut rules = rules.clone();
                rules[index] = rule;
                with(rules, format!("rule {index} {what}"));
            };
            for more in &peers {
                let peers = rule.peers.iter().chain(more).cloned().collect();
                changed(PolicyRule { peers, ..rule.clone() }, format!("gets {more:?}"));
            }
            for more in &ports {
                let ports = rule.ports.iter().chain(more).cloned().collect();
                changed(PolicyRule { ports, ..rule.clone() }, format!("gets {more:?}"));
            }
            changed(PolicyRule { peers: Vec::new(), ..rule.clone() }, "loses its peers".to_owned());
            changed(PolicyRule { ports: Vec::new(), ..rule.clone() }, "loses its ports".to_owned());
        }
    }
    let Some(subject) = subject.endpoint else { return found };
    let subject = &cluster.endpoints[subject.index()];
    let namespace = cluster.namespaces[subject.namespace.index()].name.clone();
    for peers in &peers {
        for ports in &ports {
            let rule = PolicyRule { peers: peers.clone(), ports: ports.clone() };
            let policy = new_policy(cluster.labels.labels(subject.labels).clone(), rule, direction);
            let meta = Meta { name: "new".to_owned(), namespace: namespace.as_str().into(), ..Meta::default() };
            let id = ObjectId(objects.len() as u32);
            let object =
                Object { id, meta: Meta { labels: Arc::default(), ..meta }, body: Body::NetworkPolicy(policy) };
            found.push((objects.iter().cloned().chain([object]).collect(), format!("new {peers:?} {ports:?}")));
        }
    }
    found
}

fn new_policy(labels: Labels, rule: PolicyRule, direction: Direction) -> NetworkPolicy {
    let pod_selector = LabelSelector { match_labels: labels, match_expressions: Vec::new() };
    let mut policy = NetworkPolicy { pod_selector, ..NetworkPolicy::default() };
    match direction {
        Direction::Egress => (policy.egress, policy.policy_types) = (vec![rule], vec![PolicyType::Egress]),
        Direction::Ingress => (policy.ingress, policy.policy_types) = (vec![rule], vec![PolicyType::Ingress]),
    }
    policy
}

/// Everybody, and peers that match the other end more and less exactly.
fn peers(cluster: &Cluster, remote: FlowEnd) -> Vec<Vec<PolicyPeer>> {
    let mut found = vec![Vec::new()];
    let is_pod = |id: EndpointId| cluster.endpoints[id.index()].standing == Standing::Member;
    // The address of a pod is no peer to write into a policy: the next pod has another one.
    if let Some(address) = remote.address.filter(|_| !remote.endpoint.is_some_and(is_pod)) {
        let host = Prefix::host(address);
        for len in [host.len(), host.len() - 8] {
            found.push(vec![PolicyPeer::Block { cidr: Prefix::new(address, len), except: Vec::new() }]);
        }
    }
    let Some(id) = remote.endpoint else { return found };
    let endpoint = &cluster.endpoints[id.index()];
    let labels = cluster.labels.labels(endpoint.labels);
    let namespace = &cluster.namespaces[endpoint.namespace.index()];
    let selector = |labels: Labels| LabelSelector { match_labels: labels, match_expressions: Vec::new() };
    let one = |label: (&str, &str)| selector([label].into());
    let mut selectors = vec![selector(labels.clone()), LabelSelector::default()];
    selectors.extend(labels.iter().map(one));
    let all = selector(cluster.labels.labels(namespace.labels).clone());
    for pods in selectors {
        for namespaces in [None, Some(all.clone()), Some(LabelSelector::default())] {
            found.push(vec![PolicyPeer::Pods { pods: Some(pods.clone()), namespaces }]);
        }
    }
    found
}

fn ports(flow: &Flow) -> Vec<Vec<PolicyPort>> {
    let FlowProtocol::Transport(protocol) = flow.protocol else { return vec![Vec::new()] };
    let port = |port| vec![PolicyPort { protocol, port }];
    vec![Vec::new(), port(PortMatch::Any), port(PortMatch::Range(flow.port, flow.port))]
}
