//! Clusters and flows by the seed: small, dense, and full of the corners of the API.
//!
//! Problem: engines that are asked only sensible questions agree.
//! Strategy: few names, labels, addresses and ports, so that everything touches everything; every feature of the
//! model turns up every few clusters. Objects are valid by the API server's rules, and the same seed gives the
//! same objects on every machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use weir_model::{Assumptions, HostNetworkPods, Icmp};
use weir_objects::address::Prefix;
use weir_objects::k8s::{
    Body, CidrList, ClusterPeer, ClusterPolicy, ClusterPolicyKind, ClusterPort, ClusterRule, EndpointSlice, HostPort,
    LabelSelector, Labels, ListAction, ListEntry, Meta, Mode, NamedPort, NetworkPolicy, Node, Object, Operator, Phase,
    Pod, PolicyPeer, PolicyPort, PolicyRule, PolicyType, PortMatch, Protocol, Requirement, RuleAction, Service,
    ServicePort, SliceEndpoint, SlicePort, TargetPort, Tier, Workload,
};
use weir_objects::origin::ObjectId;

use super::manifest::yaml;
use super::{Generated, Random};

const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const KEYS: [&str; 3] = ["app", "tier", "zone"];
const VALUES: [&str; 3] = ["x", "y", ""];
/// The only ports that clusters use.
pub const PORTS: [u16; 8] = [53, 80, 81, 443, 8080, 8081, 1, 65535];
const PORT_NAMES: [&str; 3] = ["http", "dns", "admin"];
/// The most cluster-wide policies of most clusters: a few decide little, so more of the other features shows.
const FEW_CLUSTER_POLICIES: usize = 6;
/// The most cluster-wide policies of any cluster.
const MANY_CLUSTER_POLICIES: usize = 20;
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// A cluster and the assumptions under which it is resolved.
#[derive(Clone)]
pub struct ClusterCase {
    /// The objects, numbered in order.
    pub objects: Vec<Object>,
    /// Mostly the defaults.
    pub assume: Assumptions,
    /// The seed of the questions about the cluster.
    pub seed: u64,
}

impl ClusterCase {
    /// The choices of the questions about the cluster.
    pub fn random(&self) -> Random {
        Random::new(self.seed)
    }
}

impl fmt::Debug for ClusterCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "# {:?}, questions from seed {}\n{}", self.assume, self.seed, yaml(&self.objects))
    }
}

/// Clusters with any assumptions.
pub fn clusters() -> Generated<ClusterCase> {
    Generated::by(|random| {
        let (objects, assume) = (objects(random), assumptions(random));
        // Its own seed: so the many choices of the questions are not shrunk with those of the cluster.
        ClusterCase { objects, assume, seed: random.number() }
    })
}

/// Clusters with assumptions that programs can enforce. `classify` refuses the others.
pub fn enforceable() -> Generated<ClusterCase> {
    clusters().then(|it, _| {
        let assume = Assumptions { hostnetwork_pods: HostNetworkPods::Node, icmp: Icmp::Policy, ..it.assume };
        ClusterCase { assume, ..it }
    })
}

/// A cluster's objects, numbered in order.
pub fn objects(random: &mut Random) -> Vec<Object> {
    let mut objects = Vec::new();
    for name in NAMESPACES {
        if random.mostly(4) {
            let labels = labels(random).into();
            objects.push(object(Meta { labels, ..meta("", name) }, Body::Namespace));
        }
    }
    let nodes = random.list(1..=3, |node, random| {
        let body = Body::Node(node_body(node, random));
        object(Meta { labels: labels(random).into(), ..meta("", &format!("node-{node}")) }, body)
    });
    let pods = random.list(2..=10, |index, random| pod(index, nodes.len().max(1), random));
    objects.extend(nodes.into_iter().chain(pods));
    objects.extend(random.list(0..=2, workload));
    objects.extend(random.list(0..=3, service).into_iter().flatten());
    objects.extend(random.list(0..=8, policy));
    objects.extend(random.list(0..=3, list));
    // Every second cluster: a pod that a tier decides about shows less of NetworkPolicies.
    if random.once_in(2) {
        let most = if random.once_in(4) { MANY_CLUSTER_POLICIES } else { FEW_CLUSTER_POLICIES };
        objects.extend(random.list(0..=most, cluster_policy));
    }
    number(&mut objects);
    if random.once_in(4) {
        stage(&mut objects, random);
    }
    objects
}

/// Puts some policies in audit mode.
fn stage(objects: &mut [Object], random: &mut Random) {
    for object in objects {
        let mode = match &mut object.body {
            Body::NetworkPolicy(policy) => &mut policy.mode,
            Body::ClusterPolicy(policy) => &mut policy.mode,
            _ => continue,
        };
        if random.once_in(2) {
            *mode = Mode::Audit;
        }
    }
}

/// Numbers the objects in their order.
pub fn number(objects: &mut [Object]) {
    for (index, object) in objects.iter_mut().enumerate() {
        object.id = ObjectId(index as u32);
    }
}

/// Random assumptions, mostly the defaults.
pub fn assumptions(random: &mut Random) -> Assumptions {
    let mut assume = Assumptions::default();
    for (key, values) in Assumptions::KEYS {
        if random.once_in(4) {
            assume.set(key, random.pick(values)).expect("a known key and value");
        }
    }
    assume
}

fn object(meta: Meta, body: Body) -> Object {
    Object { id: ObjectId(0), meta, body }
}

fn meta(namespace: &str, name: &str) -> Meta {
    Meta { name: name.to_owned(), namespace: namespace.into(), ..Meta::default() }
}

fn labels(random: &mut Random) -> Labels {
    random.several(3, |random| (random.pick(&KEYS).to_owned(), random.pick(&VALUES).to_owned())).into_iter().collect()
}

fn node_v4(node: usize) -> IpAddr {
    Ipv4Addr::new(172, 16, 0, node as u8 + 1).into()
}

fn node_v6(node: usize) -> IpAddr {
    Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, node as u16 + 1).into()
}

fn node_body(node: usize, random: &mut Random) -> Node {
    let mut addresses = vec![node_v4(node)];
    addresses.extend(random.mostly(3).then(|| node_v6(node)));
    Node { addresses }
}

fn pod_v4(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, (index % 2) as u8, index as u8).into()
}

fn pod_v6(index: usize) -> IpAddr {
    Ipv6Addr::new(0xfd00, 0, 0, (index % 2) as u16, 0, 0, 0, index as u16).into()
}

fn pod(index: usize, nodes: usize, random: &mut Random) -> Object {
    let node = random.below(nodes);
    let host_network = random.once_in(8);
    // Sometimes a terminating or finished pod still has the address of its successor.
    let gone = random.once_in(8);
    let place = if gone && index > 0 { index - 1 } else { index };
    // Or it claims its node's address.
    let addresses = match host_network || random.once_in(25) {
        true => vec![node_v4(node)],
        false => match random.below(6) {
            0 => vec![pod_v4(place)],
            1 => vec![pod_v6(place)],
            2 => vec![pod_v6(place), pod_v4(place)],
            _ => vec![pod_v4(place), pod_v6(place)],
        },
    };
    let is_finished = gone && random.once_in(2);
    let phase = if is_finished { random.pick(&[Phase::Succeeded, Phase::Failed]) } else { Phase::Running };
    let is_pending = !gone && random.once_in(15);
    let body = Pod {
        node: (!random.once_in(10) || host_network).then(|| format!("node-{node}").into()),
        host_network,
        phase: Some(if is_pending { Phase::Pending } else { phase }),
        unready: random.once_in(8),
        addresses: if is_pending { Vec::new() } else { addresses },
        node_addresses: [node_v4(node)].into(),
        ports: random.several(3, named_port).into(),
        host_ports: if random.once_in(3) { random.several(2, |random| host_port(node, random)) } else { Vec::new() },
        owner: None,
        static_uid: None,
    };
    let meta = Meta {
        labels: labels(random).into(),
        deleting: gone,
        ..meta(random.pick(&NAMESPACES), &format!("pod-{index}"))
    };
    object(meta, Body::Pod(body))
}

/// A hostPort of few numbers, so that several pods claim the same, and node ports are among them.
fn host_port(node: usize, random: &mut Random) -> HostPort {
    let address = match random.below(10) {
        6 => Some(node_v4(node)),
        1 => Some(node_v6(node)),
        2 => Some(Ipv4Addr::UNSPECIFIED.into()),
        3 => Some(Ipv6Addr::UNSPECIFIED.into()),
        // An address that no Node has, and addresses that other objects have.
        4 => Some(Ipv4Addr::new(203, 0, 113, 1).into()),
        5 => Some(random.pick(&[service_v4(0), node_v4(node + 1), pod_v4(1), Ipv4Addr::LOCALHOST.into()])),
        _ => None,
    };
    HostPort {
        address,
        protocol: random.pick(&[Protocol::Tcp, Protocol::Tcp, Protocol::Udp]),
        port: random.pick(&[80, 8080, 65535, 1]),
        number: random.pick(&PORTS),
    }
}

fn named_port(random: &mut Random) -> NamedPort {
    NamedPort {
        name: random.pick(&PORT_NAMES).to_owned(),
        protocol: random.pick(&PROTOCOLS),
        number: random.pick(&PORTS),
    }
}

fn workload(index: usize, random: &mut Random) -> Object {
    let kind = random.pick(&["Deployment", "StatefulSet", "Job"]);
    let body = Workload {
        kind: kind.to_owned(),
        pod_labels: labels(random),
        host_network: random.once_in(6),
        ports: random.several(2, named_port),
        at_most_one: kind == "StatefulSet" && random.once_in(2),
        owner: None,
    };
    object(meta(random.pick(&NAMESPACES), &format!("{}-{index}", kind.to_lowercase())), Body::Workload(body))
}

/// A service, alone or with a slice.
fn service(index: usize, random: &mut Random) -> Vec<Object> {
    let mut meta = meta(random.pick(&NAMESPACES), &format!("service-{index}"));
    let mut external_addresses = random.several(1, |_| Ipv4Addr::new(198, 51, 100, 1).into());
    external_addresses.extend(random.once_in(8).then(|| node_v4(0)));
    // Addresses that other objects have already, and one address of the other family.
    external_addresses.extend(random.once_in(3).then(|| service_v4(random.below(3))));
    external_addresses.extend(random.once_in(4).then(|| pod_v4(random.below(10))));
    external_addresses.extend(random.once_in(6).then(|| IpAddr::from([0x2001, 0xdb8, 9, 0, 0, 0, 0, 9])));
    let headless = random.once_in(6);
    let mut cluster_addresses =
        if headless { Vec::new() } else { vec![service_v4(if random.once_in(8) { 0 } else { index })] };
    let of_v6 = IpAddr::from([0xfd00, 2, 0, 0, 0, 0, 0, index as u16]);
    cluster_addresses.extend((!headless && random.mostly(4)).then_some(of_v6));
    other_proxy(&mut meta, random);
    let body = Service {
        cluster_addresses,
        headless,
        external_addresses,
        local_traffic: random.once_in(3),
        selector: labels(random),
        publish_not_ready: random.once_in(4),
        external_name: false,
        ports: random.some(2, service_port),
    };
    let slice = EndpointSlice {
        service: Some(meta.name.clone()),
        endpoints: random.several(3, |random| SliceEndpoint {
            addresses: vec![pod_v4(random.below(10))],
            ready: !random.once_in(2),
            serving: !random.once_in(3),
            terminating: random.once_in(2),
            node: random.once_in(2).then(|| random.pick(&["n1", "n2"]).into()),
            pod: None,
        }),
        ports: body
            .ports
            .iter()
            .map(|port| SlicePort {
                name: port.name.clone(),
                protocol: port.protocol,
                number: (!random.once_in(10)).then(|| random.pick(&PORTS)),
            })
            .collect(),
    };
    let mut slice_meta = Meta { name: format!("{}-slice", meta.name), labels: Labels::new().into(), ..meta.clone() };
    other_proxy(&mut slice_meta, random);
    let mut objects = vec![object(meta, Body::Service(body))];
    if random.once_in(3) {
        objects.push(object(slice_meta, Body::EndpointSlice(slice)));
    }
    objects
}

/// Sometimes adds a label because of which kube-proxy ignores the object.
fn other_proxy(meta: &mut Meta, random: &mut Random) {
    if random.once_in(8) {
        let label = random.pick(&["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"]);
        Arc::make_mut(&mut meta.labels).insert(label, "");
    }
}

fn service_v4(index: usize) -> IpAddr {
    Ipv4Addr::new(10, 96, 0, index as u8 + 1).into()
}

fn service_port(index: usize, random: &mut Random) -> ServicePort {
    ServicePort {
        name: format!("port-{index}"),
        protocol: random.pick(&PROTOCOLS),
        port: PORTS[index],
        target: match random.once_in(3) {
            true => TargetPort::Name(random.pick(&PORT_NAMES).to_owned()),
            false => TargetPort::Number(random.pick(&PORTS)),
        },
        node_port: random.once_in(3).then(|| PORTS[7 - index]),
    }
}

/// A policy; its name ends in `index`.
pub fn policy(index: usize, random: &mut Random) -> Object {
    let body = NetworkPolicy {
        pod_selector: selector(random),
        pod_selector_written: true,
        policy_types: match random.below(5) {
            0 => Vec::new(),
            1 => vec![PolicyType::Ingress],
            2 => vec![PolicyType::Egress],
            _ => vec![PolicyType::Ingress, PolicyType::Egress],
        },
        ingress: random.several(3, rule),
        egress: random.several(3, rule),
        mode: Mode::Enforce,
    };
    object(meta(random.pick(&NAMESPACES), &format!("policy-{index}")), Body::NetworkPolicy(body))
}

/// A selector; the empty one is more frequent than pure chance would make it.
fn selector(random: &mut Random) -> LabelSelector {
    match random.below(3) {
        0 => LabelSelector::default(),
        1 => LabelSelector { match_labels: labels(random), match_expressions: Vec::new() },
        _ => {
            let match_labels = if random.once_in(3) { labels(random) } else { Labels::new() };
            LabelSelector { match_labels, match_expressions: random.several(2, requirement) }
        }
    }
}

fn requirement(random: &mut Random) -> Requirement {
    let operator = random.pick(&[Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist]);
    let values = match operator {
        Operator::In | Operator::NotIn => random.some(2, |_, random| random.pick(&VALUES).to_owned()),
        Operator::Exists | Operator::DoesNotExist => Vec::new(),
    };
    Requirement { key: random.pick(&KEYS).to_owned(), operator, values }
}

/// A rule of either direction.
pub fn rule(random: &mut Random) -> PolicyRule {
    let ports = if random.once_in(3) { 0 } else { 3 };
    // Sometimes more ports than one `--dports` takes.
    let ports = if random.once_in(12) { 30 } else { ports };
    PolicyRule { peers: random.several(3, peer), ports: random.several(ports, policy_port) }
}

fn peer(random: &mut Random) -> PolicyPeer {
    if random.once_in(2) {
        return block(random);
    }
    let (pods, namespaces) = match random.below(3) {
        0 => (Some(selector(random)), None),
        1 => (None, Some(namespace_selector(random))),
        _ => (Some(selector(random)), Some(namespace_selector(random))),
    };
    PolicyPeer::Pods { pods, namespaces }
}

fn namespace_selector(random: &mut Random) -> LabelSelector {
    let name = |random: &mut Random| Labels::from([("kubernetes.io/metadata.name", random.pick(&NAMESPACES))]);
    match random.once_in(3) {
        true => LabelSelector { match_labels: name(random), match_expressions: Vec::new() },
        false => selector(random),
    }
}

fn block(random: &mut Random) -> PolicyPeer {
    let cidr = prefix(random);
    let hole = |random: &mut Random| {
        let within = cidr.family().bits() - cidr.len();
        let len = cidr.len() + 1 + random.below(usize::from(within)) as u8;
        Prefix::new(near(cidr, random), len)
    };
    let except = match cidr.len() == cidr.family().bits() {
        true => Vec::new(),
        false => random.several(2, hole),
    };
    PolicyPeer::Block { cidr, except }
}

/// A prefix around the pods, the nodes and the services, of any size.
fn prefix(random: &mut Random) -> Prefix {
    let address = address(random.once_in(3), random);
    let lengths: &[u8] = match address.is_ipv4() {
        true => &[0, 1, 8, 16, 23, 24, 29, 30, 31, 32],
        false => &[0, 1, 16, 32, 64, 112, 124, 126, 127, 128],
    };
    Prefix::new(address, random.pick(lengths))
}

/// An address inside the prefix: one of the cluster's if possible, or else the first.
fn near(cidr: Prefix, random: &mut Random) -> IpAddr {
    let candidates: Vec<IpAddr> = (0..8).map(|_| address(!cidr.address().is_ipv4(), random)).collect();
    candidates.into_iter().find(|address| cidr.contains(*address)).unwrap_or(cidr.address())
}

/// An address of a pod, a node or a service, or one without an owner.
pub fn address(v6: bool, random: &mut Random) -> IpAddr {
    let any = random.below(256);
    match (random.below(6), v6) {
        (0..=2, false) => pod_v4(random.below(12)),
        (0..=2, true) => pod_v6(random.below(12)),
        (3, false) => node_v4(random.below(4)),
        (3, true) => node_v6(random.below(4)),
        (4, false) => service_v4(random.below(4)),
        (4, true) => Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, random.below(4) as u16).into(),
        (_, false) => random.pick(&[
            Ipv4Addr::new(198, 51, 100, 1).into(),
            Ipv4Addr::new(203, 0, 113, any as u8).into(),
            Ipv4Addr::new(203, 0, 113, 1).into(),
            Ipv4Addr::new(1, 0, 0, 1).into(),
            Ipv4Addr::new(255, 255, 255, 254).into(),
        ]),
        (_, true) => random.pick(&[
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, any as u16).into(),
            Ipv6Addr::new(0xffff, 0, 0, 0, 0, 0, 0, 1).into(),
            Ipv6Addr::LOCALHOST.into(),
        ]),
    }
}

fn policy_port(random: &mut Random) -> PolicyPort {
    let port = match random.below(5) {
        0 => PortMatch::Any,
        1 => PortMatch::Named(random.pick(&PORT_NAMES).to_owned()),
        2 => {
            let (one, other) = (random.pick(&PORTS), random.pick(&PORTS));
            PortMatch::Range(one.min(other), one.max(other))
        }
        _ => {
            let port = random.pick(&PORTS);
            PortMatch::Range(port, port)
        }
    };
    PolicyPort { protocol: random.pick(&PROTOCOLS), port }
}

/// A cluster-wide policy; its name ends in `index`. Few priorities, so that several policies have the same.
pub fn cluster_policy(index: usize, random: &mut Random) -> Object {
    let kind = match random.below(4) {
        2 => ClusterPolicyKind::AdminNetworkPolicy,
        3 if index == 0 => ClusterPolicyKind::BaselineAdminNetworkPolicy,
        _ => ClusterPolicyKind::ClusterNetworkPolicy,
    };
    let tier = match kind {
        ClusterPolicyKind::ClusterNetworkPolicy => random.pick(&Tier::ALL),
        ClusterPolicyKind::AdminNetworkPolicy => Tier::Admin,
        ClusterPolicyKind::BaselineAdminNetworkPolicy => Tier::Baseline,
    };
    let is_baseline_kind = kind == ClusterPolicyKind::BaselineAdminNetworkPolicy;
    let body = ClusterPolicy {
        kind,
        tier,
        priority: if is_baseline_kind { 0 } else { random.below(3) as u16 },
        subject_namespaces: namespace_selector(random),
        subject_pods: if random.once_in(2) { selector(random) } else { LabelSelector::default() },
        ingress: random.several(3, |random| cluster_rule(kind, false, random)),
        egress: random.several(3, |random| cluster_rule(kind, true, random)),
        mode: Mode::Enforce,
    };
    let name = if is_baseline_kind { "default".to_owned() } else { format!("tier-{index}") };
    object(meta("", &name), Body::ClusterPolicy(body.into()))
}

/// A rule of a cluster-wide policy.
pub fn cluster_rule(kind: ClusterPolicyKind, is_egress: bool, random: &mut Random) -> ClusterRule {
    let actions: &[RuleAction] = match kind {
        ClusterPolicyKind::BaselineAdminNetworkPolicy => &[RuleAction::Deny, RuleAction::Accept],
        _ => &[RuleAction::Deny, RuleAction::Accept, RuleAction::Pass],
    };
    let peers: Vec<ClusterPeer> = random.some(2, |_, random| cluster_peer(kind, is_egress, random));
    let has_names = peers.iter().all(|peer| matches!(peer, ClusterPeer::Pods { .. }));
    let ports =
        if random.once_in(3) { Vec::new() } else { random.several(3, |random| cluster_port(has_names, random)) };
    let name = random.once_in(3).then(|| "rule".to_owned());
    ClusterRule { name, action: random.pick(actions), peers, ports }
}

fn cluster_peer(kind: ClusterPolicyKind, is_egress: bool, random: &mut Random) -> ClusterPeer {
    let has_domain_names = kind != ClusterPolicyKind::BaselineAdminNetworkPolicy;
    match random.below(if is_egress { 12 } else { 6 }) {
        6..=8 => {
            let mut networks: Vec<Prefix> = random.some(2, |_, random| prefix(random));
            networks.dedup();
            ClusterPeer::Networks(networks)
        }
        9 | 10 => ClusterPeer::Nodes(selector(random)),
        11 if has_domain_names && random.once_in(4) => ClusterPeer::DomainNames(vec!["example.com".to_owned()]),
        _ => {
            let pods = if random.once_in(2) { selector(random) } else { LabelSelector::default() };
            ClusterPeer::Pods { namespaces: namespace_selector(random), pods }
        }
    }
}

fn cluster_port(has_names: bool, random: &mut Random) -> ClusterPort {
    let port = policy_port(random);
    match port.port {
        PortMatch::Named(name) if has_names => ClusterPort::Named(name),
        PortMatch::Named(_) | PortMatch::Any => {
            let number = random.pick(&PORTS);
            ClusterPort::Transport(PolicyPort { port: PortMatch::Range(number, number), ..port })
        }
        PortMatch::Range(..) => ClusterPort::Transport(port),
    }
}

fn list(index: usize, random: &mut Random) -> Object {
    let directions = random.below(4);
    let body = CidrList {
        action: random.pick(&[ListAction::Deny, ListAction::Deny, ListAction::Allow]),
        order: random.below(3) as i64,
        ingress: directions != 0,
        egress: directions != 1,
        namespaces: random.once_in(2).then(|| namespace_selector(random)),
        pods: random.once_in(3).then(|| selector(random)),
        entries: random.list(0..=3, entry),
    };
    object(meta("", &format!("list-{index}")), Body::CidrList(body.into()))
}

/// A list entry: a prefix, or any range.
fn entry(position: usize, random: &mut Random) -> ListEntry {
    let (v6, position) = (random.once_in(3), position as u32);
    let (one, other) = (address(v6, random), address(v6, random));
    let host = if v6 { 128 } else { 32 };
    match random.below(3) {
        0 => ListEntry { first: one.min(other), last: one.max(other), position },
        1 => ListEntry { first: one, last: one, position },
        _ => {
            let cidr = Prefix::new(one, random.pick(&[0, 8, 24, 30]).min(host));
            ListEntry { first: cidr.address(), last: last(cidr), position }
        }
    }
}

fn last(cidr: Prefix) -> IpAddr {
    match cidr.address() {
        IpAddr::V4(first) => {
            Ipv4Addr::from_bits(first.to_bits() | u32::MAX.checked_shr(cidr.len().into()).unwrap_or(0)).into()
        }
        IpAddr::V6(first) => {
            Ipv6Addr::from_bits(first.to_bits() | u128::MAX.checked_shr(cidr.len().into()).unwrap_or(0)).into()
        }
    }
}
