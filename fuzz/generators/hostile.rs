//! Hostile namespaces, whose owner tries to exhaust the compiler with valid objects whose costs multiply.
//!
//! Problem: random clusters are small, so none of them contains the product of two long lists.
//! Strategy: there is one [`Shape`] for each list that a tenant controls, and the caller chooses the size. A tenant
//! with the role `edit` in one namespace can create these objects. [`tenant`] makes the neighbours, which must not be
//! affected.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_model::Assumptions;
use weir_objects::address::Prefix;
use weir_objects::k8s::{
    Body, EndpointSlice, LabelSelector, Labels, Meta, Mode, NamedPort, NetworkPolicy, Node, Object, Operator, Phase,
    Pod, PolicyPeer, PolicyPort, PolicyRule, PolicyType, PortMatch, Protocol, Requirement, Service, ServicePort,
    SliceEndpoint, SlicePort, TargetPort,
};
use weir_objects::origin::ObjectId;

use super::cluster::ClusterCase;
use super::{Generated, Random};

/// The namespace of the hostile tenant.
pub const NAMESPACE: &str = "hostile";
/// The node of all pods.
pub const NODE: &str = "node-0";
/// The number of peers or ports in one policy.
const ITEMS: usize = 100;
/// The number of the hostile tenant's pods on the node.
const PODS: usize = 50;

/// The part of the objects that a hostile namespace makes large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Blocks that contain nearly all addresses, each with its own excepted blocks: every excepted block splits all
    /// other blocks.
    Excepts,
    /// IPv6 blocks that are nested as deeply as possible.
    Nested,
    /// Blocks that do not touch, each in a rule of its own.
    Scattered,
    /// Port ranges that overlap pairwise: every end of a range splits all other ranges.
    Ranges,
    /// Selectors with long lists of values that match almost every pod.
    Selectors,
    /// Many port names, for ingress and egress.
    Names,
    /// Each policy selects other pods, each rule other peers and other ports.
    Product,
    /// Services with many ports, whose endpoints have arbitrary addresses.
    Services,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 8] = [
        Self::Excepts,
        Self::Nested,
        Self::Scattered,
        Self::Ranges,
        Self::Selectors,
        Self::Names,
        Self::Product,
        Self::Services,
    ];
}

/// The objects of the hostile namespace: its pods, and `size` policies (or Services) of a hundred items each.
pub fn objects(shape: Shape, size: usize, random: &mut Random) -> Vec<Object> {
    let mut made = vec![object("", NAMESPACE, Body::Namespace)];
    made.extend((0..PODS).map(|index| pod(NAMESPACE, index)));
    for index in 0..size {
        match shape {
            Shape::Services => made.extend(service(index, random)),
            _ => made.push(policy(index, shape, random)),
        }
    }
    if shape == Shape::Services {
        let rule = PolicyRule { peers: Vec::new(), ports: vec![range(Protocol::Tcp, 80, 80)] };
        made.push(network_policy(NAMESPACE, "to-services", LabelSelector::default(), vec![rule]));
    }
    made
}

/// A harmless neighbour: two pods, and a policy with the rules that both ends of a connection need.
pub fn tenant(number: usize) -> Vec<Object> {
    let name = format!("tenant-{number}");
    let mut made = vec![object("", &name, Body::Namespace)];
    made.extend((0..2).map(|index| pod(&name, 100 + 2 * number + index)));
    let same_pod = PolicyPeer::Pods { pods: Some(LabelSelector::default()), namespaces: None };
    let block = PolicyPeer::Block { cidr: Prefix::new(Ipv4Addr::new(192, 0, 2, 0).into(), 24), except: Vec::new() };
    let ports = vec![range(Protocol::Tcp, 80, 80), range(Protocol::Tcp, 8_000, 8_100)];
    let rule = PolicyRule { peers: vec![same_pod, block], ports };
    made.push(network_policy(&name, "web", LabelSelector::default(), vec![rule]));
    made
}

/// The node, the neighbours and the hostile namespace together, numbered.
pub fn cluster(shape: Shape, size: usize, tenants: usize, random: &mut Random) -> Vec<Object> {
    let node = Node { addresses: vec![Ipv4Addr::new(172, 16, 0, 1).into()] };
    let mut made = vec![object("", NODE, Body::Node(node))];
    made.extend((0..tenants).flat_map(tenant));
    made.extend(objects(shape, size, random));
    super::cluster::number(&mut made);
    made
}

/// Hostile tenants of every shape with harmless neighbours, small enough for thousands of cases.
pub fn tenants() -> Generated<ClusterCase> {
    Generated::by(|random| {
        let (shape, tenants, size) = (random.pick(&Shape::ALL), random.below(4), 1 + random.below(12));
        let (objects, seed) = (cluster(shape, size, tenants, random), random.number());
        ClusterCase { objects, assume: Assumptions::default(), seed }
    })
}

fn object(namespace: &str, name: &str, body: Body) -> Object {
    let meta = Meta { name: name.to_owned(), namespace: namespace.into(), ..Meta::default() };
    Object { id: ObjectId(0), meta, body }
}

fn pod(namespace: &str, index: usize) -> Object {
    let body = Pod {
        node: Some(NODE.into()),
        phase: Some(Phase::Running),
        addresses: vec![Ipv4Addr::from_bits(0x0a00_0000 + index as u32 + 1).into()],
        ports: (0..4).map(|port| named_port(port * PODS + index)).collect(),
        ..Pod::default()
    };
    let mut made = object(namespace, &format!("pod-{index}"), Body::Pod(body));
    made.meta.labels = labels(index).into();
    made
}

fn labels(index: usize) -> Labels {
    let label = |(key, value): (&str, usize)| (key.to_owned(), value.to_string());
    [("pod", index), ("even", index % 2), ("third", index % 3), ("fifth", index % 5)].map(label).into_iter().collect()
}

fn named_port(index: usize) -> NamedPort {
    NamedPort { name: format!("name-{index}"), protocol: Protocol::Tcp, number: 10_000 + index as u16 }
}

fn policy(index: usize, shape: Shape, random: &mut Random) -> Object {
    let rules = (0..ITEMS).map(|item| rule(index * ITEMS + item, shape, random)).collect();
    let selector = match shape {
        Shape::Product => requirement(Operator::NotIn, random),
        _ => LabelSelector::default(),
    };
    network_policy(NAMESPACE, &format!("policy-{index}"), selector, rules)
}

fn network_policy(namespace: &str, name: &str, pods: LabelSelector, rules: Vec<PolicyRule>) -> Object {
    let body = NetworkPolicy {
        pod_selector: pods,
        pod_selector_written: true,
        policy_types: vec![PolicyType::Ingress, PolicyType::Egress],
        ingress: rules.clone(),
        egress: rules,
        mode: Mode::Enforce,
    };
    object(namespace, name, Body::NetworkPolicy(body))
}

fn rule(item: usize, shape: Shape, random: &mut Random) -> PolicyRule {
    let own_port = vec![range(Protocol::Tcp, (item % 60_000) as u16 + 1, (item % 60_000) as u16 + 1)];
    let anything = Vec::new;
    let (peers, ports) = match shape {
        Shape::Excepts => (vec![with_holes(random)], own_port),
        Shape::Nested => (vec![nested(item)], own_port),
        Shape::Scattered => (vec![scattered(item)], own_port),
        Shape::Ranges => (anything(), vec![overlapping(item)]),
        Shape::Selectors => (vec![everywhere(random)], own_port),
        Shape::Names => (anything(), vec![by_name(item)]),
        Shape::Product => (vec![everywhere(random), with_holes(random)], vec![overlapping(item)]),
        Shape::Services => (anything(), own_port),
    };
    PolicyRule { peers, ports }
}

fn with_holes(random: &mut Random) -> PolicyPeer {
    let hole = |_| Prefix::new(Ipv4Addr::from_bits(random.number() as u32).into(), 32);
    let except = (0..4).map(hole).collect();
    PolicyPeer::Block { cidr: Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0), except }
}

fn nested(item: usize) -> PolicyPeer {
    let chain = (item / 128) as u128;
    let length = (item % 128) as u8 + 1;
    let address = IpAddr::from(Ipv6Addr::from_bits((0x2001_u128 << 112) | (chain << 1) | (chain << 64)));
    PolicyPeer::Block { cidr: Prefix::new(address, length), except: Vec::new() }
}

fn scattered(item: usize) -> PolicyPeer {
    let address = Ipv4Addr::from_bits(0x2000_0000 + 16 * item as u32);
    PolicyPeer::Block { cidr: Prefix::new(address.into(), 30), except: Vec::new() }
}

fn everywhere(random: &mut Random) -> PolicyPeer {
    let namespaces = Some(LabelSelector::default());
    PolicyPeer::Pods { pods: Some(requirement(Operator::NotIn, random)), namespaces }
}

/// Excludes a few pods, by a list of values that mostly exclude none.
fn requirement(operator: Operator, random: &mut Random) -> LabelSelector {
    let values = (0..20).map(|_| random.below(10 * PODS).to_string()).collect();
    let requirement = Requirement { key: "pod".to_owned(), operator, values };
    LabelSelector { match_labels: Labels::new(), match_expressions: vec![requirement] }
}

/// A range from port `item` up to a port that is `item` below the last: all ranges overlap, and all ends differ.
fn overlapping(item: usize) -> PolicyPort {
    let (first, protocol) = ((item % 30_000) as u16, if item < 30_000 { Protocol::Tcp } else { Protocol::Udp });
    range(protocol, first, u16::MAX - first - 1)
}

fn by_name(item: usize) -> PolicyPort {
    PolicyPort { protocol: Protocol::Tcp, port: PortMatch::Named(format!("name-{}", item % 20_000)) }
}

fn range(protocol: Protocol, first: u16, last: u16) -> PolicyPort {
    PolicyPort { protocol, port: PortMatch::Range(first, last) }
}

fn service(index: usize, random: &mut Random) -> [Object; 2] {
    let name = format!("service-{index}");
    let number = |port: usize| ((index * ITEMS + port) % 60_000) as u16 + 1;
    let ports = (0..ITEMS).map(|port| ServicePort {
        name: format!("port-{port}"),
        protocol: Protocol::Tcp,
        port: number(port),
        target: TargetPort::Number(number(port)),
        node_port: None,
    });
    let body = Service {
        cluster_addresses: vec![Ipv4Addr::from_bits(0x0a60_0000 + index as u32).into()],
        ports: ports.collect(),
        ..Service::default()
    };
    let slice = EndpointSlice {
        service: Some(name.clone()),
        endpoints: (0..1_000).map(|_| endpoint(random)).collect(),
        ports: (0..ITEMS)
            .map(|port| SlicePort { name: format!("port-{port}"), protocol: Protocol::Tcp, number: Some(number(port)) })
            .collect(),
    };
    let slice_name = format!("{name}-slice");
    [object(NAMESPACE, &name, Body::Service(body)), object(NAMESPACE, &slice_name, Body::EndpointSlice(slice))]
}

fn endpoint(random: &mut Random) -> SliceEndpoint {
    let addresses = vec![Ipv4Addr::from_bits(random.number() as u32).into()];
    SliceEndpoint { addresses, node: None, ready: true, serving: true, terminating: false, pod: None }
}
