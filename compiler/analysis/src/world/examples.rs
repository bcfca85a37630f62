//! Examples: one possible flow of a row, confirmed by the reference oracle on both sides.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::WorldError;
use super::diagram::Diagram;
use super::halves::{ClassPair, PossibleWorld};
use super::namespaces::NamespaceClass;
use super::variables::{ABSENT, Labelled, Meaning, Role};
use crate::diff::VerdictChange;
use weir_model::eval::{Basis, Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::{AddedPod, CidrList, Cluster, NamedPort, NamespaceId, PolicyId, Protocol};
use weir_objects::address::Family;
use weir_objects::k8s::Labels;

/// A pod that could exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossiblePod {
    /// Its namespace.
    pub namespace: String,
    /// Its labels; every other label is absent.
    pub labels: Labels,
    /// The labels of its namespace, if the input does not declare the namespace.
    pub namespace_labels: Option<Labels>,
    /// Names that it gives to the flow's port.
    pub ports: Vec<NamedPort>,
    /// Its address.
    pub address: IpAddr,
    /// Whether another address could give other verdicts.
    pub address_matters: bool,
}

/// An end of a possible flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PossibleEnd {
    /// A pod.
    Pod(PossiblePod),
    /// An address outside.
    Address(IpAddr),
}

impl PossibleEnd {
    fn address(&self) -> IpAddr {
        match self {
            Self::Pod(pod) => pod.address,
            Self::Address(address) => *address,
        }
    }
}

/// A flow between two ends of which at least one is a possible pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossibleFlow {
    /// The sender.
    pub source: PossibleEnd,
    /// The receiver.
    pub destination: PossibleEnd,
    /// The protocol.
    pub protocol: FlowProtocol,
    /// The destination port; 0 if the protocol has none.
    pub port: u16,
}

/// The most addresses that are tried for an example.
const MOST_TRIED: usize = 4096;

/// What examples need to know about the input.
pub(super) struct ExampleContext {
    /// Addresses of the input's objects, which would be misleading in an example.
    taken: HashSet<IpAddr>,
}

impl ExampleContext {
    pub(super) fn new(clusters: [&Cluster; 2]) -> Self {
        let of = |cluster: &Cluster| {
            let pods = cluster.endpoints.iter().flat_map(|it| it.addresses.clone());
            let nodes = cluster.nodes.iter().flat_map(|it| it.addresses.clone());
            pods.chain(nodes).chain(cluster.frontends.iter().map(|it| it.address)).collect::<Vec<_>>()
        };
        Self { taken: clusters.into_iter().flat_map(of).collect() }
    }

    /// A flow of a region, for which the oracle gives the verdicts that the change claims, with its judgements. `None` if both ends would
    /// have to be one pod: two pods cannot have one address, and a pod reaches itself.
    pub(super) fn confirmed(
        &self,
        world: &mut PossibleWorld<'_>,
        change: VerdictChange,
        pair: ClassPair,
        mut region: Diagram,
    ) -> Result<Option<(PossibleFlow, [Judgement; 2])>, WorldError> {
        let flow = loop {
            if region.is_empty() {
                return Ok(None);
            }
            let flow = self.flow(world, pair, region);
            let [source, destination] = [&flow.source, &flow.destination].map(PossibleEnd::address);
            if source != destination {
                break flow;
            }
            // Their class has no other address.
            let only = world.address_classes.set(Family::of(source), world.address_classes.class(source));
            let source = world.addresses(&only, Role::Source)?;
            let destination = world.addresses(&only, Role::Destination)?;
            let same = world.diagrams.and(source, destination)?;
            region = world.diagrams.and_not(region, same)?;
        };
        let expected = match change {
            VerdictChange::Added => [Verdict::Deny, Verdict::Allow],
            VerdictChange::Removed => [Verdict::Allow, Verdict::Deny],
        };
        let judged = [0, 1].map(|side| judgement(world, side, pair, &flow));
        let verdicts = judged.each_ref().map(Judgement::verdict);
        if verdicts != expected {
            return Err(WorldError::Contradiction(format!("{flow:?}: {verdicts:?}, not {expected:?}")));
        }
        Ok(Some((flow, judged)))
    }

    fn flow(&self, world: &PossibleWorld<'_>, pair: ClassPair, region: Diagram) -> PossibleFlow {
        let variables = &world.variables;
        let mut family = Family::V4;
        let mut addresses: [Option<IpAddr>; 2] = [None, None];
        let path = world.diagrams.example(region, |var, intervals| {
            let Meaning::Address(role) = variables.meaning(var) else {
                return readable_number(variables.meaning(var), &mut family, intervals);
            };
            let other = match role {
                Role::Source => familiar(family, Role::Destination),
                Role::Destination => addresses[0].unwrap_or_else(|| familiar(family, Role::Source)),
            };
            let chosen = self.address(world, family, role, intervals, other);
            addresses[role as usize] = Some(chosen);
            world.address_classes.class(chosen)
        });
        let mut port = 0;
        let mut protocol = FlowProtocol::Icmp;
        let mut names = Vec::new();
        let mut labels = [Labels::new(), Labels::new()];
        let mut namespace_labels = [Labels::new(), Labels::new()];
        for (var, number) in path {
            match variables.meaning(var) {
                Meaning::Family => {}
                Meaning::Protocol => protocol = protocol_of(number),
                Meaning::Port => port = number as u16,
                Meaning::PortName(name) => names.extend((number != 0).then(|| name.to_owned())),
                Meaning::Label(role, of, key) => {
                    let Some(value) = variables.value(of, key, number) else { continue };
                    let known = match of {
                        Labelled::Namespace => &mut namespace_labels,
                        Labelled::Pod => &mut labels,
                    };
                    known[role as usize].insert(key, value);
                }
                Meaning::Address(_) => {}
            }
        }
        if world.shares_labels(pair) {
            namespace_labels[Role::Destination as usize] = namespace_labels[Role::Source as usize].clone();
        }
        // An end whose address does not matter avoids the other one's.
        let any = |role: Role| match addresses[1 - role as usize] {
            Some(other) if other == familiar(family, role) => spare(family),
            _ => familiar(family, role),
        };
        let [source, destination] = [Role::Source, Role::Destination].map(|role| {
            // Also where any address will do: a block that contains every address matches no pod without one.
            let address = addresses[role as usize].unwrap_or_else(|| any(role));
            let Some(class) = pair.class(role) else { return PossibleEnd::Address(address) };
            let free_labels = std::mem::take(&mut namespace_labels[role as usize]);
            let (namespace, namespace_labels) = match &world.classes[class] {
                NamespaceClass::Declared { name, .. } => (name.clone(), None),
                NamespaceClass::Mentioned(name) => (name.clone(), Some(free_labels)),
                NamespaceClass::Other => (fresh_namespace(&world.classes, role), Some(free_labels)),
            };
            let named = |name: &String| match protocol {
                FlowProtocol::Transport(protocol) if role == Role::Destination => {
                    Some(NamedPort { name: name.clone(), protocol, number: port })
                }
                _ => None,
            };
            PossibleEnd::Pod(PossiblePod {
                namespace,
                labels: std::mem::take(&mut labels[role as usize]),
                namespace_labels,
                ports: names.iter().filter_map(named).collect(),
                address,
                address_matters: addresses[role as usize].is_some(),
            })
        });
        PossibleFlow { source, destination, protocol, port }
    }

    /// An address of these classes that reads well in an example: reserved for documentation, or the second address of
    /// a block; and if there is a choice, none of the input's and not that of the other end.
    fn address(
        &self,
        world: &PossibleWorld<'_>,
        family: Family,
        role: Role,
        intervals: &[(u128, u128)],
        other: IpAddr,
    ) -> IpAddr {
        let usual = familiar(family, role);
        let usual_class = world.address_classes.class(usual);
        let usual = intervals.iter().any(|(first, last)| (*first..=*last).contains(&usual_class)).then_some(usual);
        let classes = || intervals.iter().flat_map(|(first, last)| (*first..=*last).take(MOST_TRIED));
        let of_classes = || classes().flat_map(|class| world.address_classes.addresses(family, class));
        let all = || usual.into_iter().chain(of_classes().take(MOST_TRIED));
        let free = all().find(|it| *it != other && !self.taken.contains(it));
        let address = free.or_else(|| all().find(|it| *it != other)).or_else(|| all().next());
        address.unwrap_or(other)
    }
}

/// The number of a variable's intervals that reads best in an example, for all variables but addresses. Notes the
/// family, which is the first variable.
pub(super) fn readable_number(meaning: Meaning<'_>, family: &mut Family, intervals: &[(u128, u128)]) -> u128 {
    let has = |number: &u128| intervals.iter().any(|(first, last)| (first..=last).contains(&number));
    let preferred: &[u128] = match meaning {
        // TCP before traffic without ports; an absent label before any value; no port name.
        Meaning::Protocol => &[1, 2, 3],
        Meaning::Label(..) => &[ABSENT],
        Meaning::Family | Meaning::Port | Meaning::PortName(_) | Meaning::Address(_) => &[0],
    };
    let firsts = intervals.iter().map(|(first, _)| *first);
    let listed = match meaning {
        // The last interval begins with a value that a selector mentions, unless all values are alike.
        Meaning::Label(..) => firsts.max(),
        _ => firsts.min(),
    };
    let chosen = preferred.iter().copied().find(has).or(listed).unwrap_or_default();
    if meaning == Meaning::Family {
        *family = if chosen == Family::V4 as u128 { Family::V4 } else { Family::V6 };
    }
    chosen
}

/// An address that is reserved for documentation.
pub(super) fn familiar(family: Family, role: Role) -> IpAddr {
    documentation(family, 1 + role as u8)
}

/// Another one.
fn spare(family: Family) -> IpAddr {
    documentation(family, 3)
}

fn documentation(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, last).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into(),
    }
}

fn protocol_of(number: u128) -> FlowProtocol {
    match number {
        0 => FlowProtocol::Icmp,
        1 => FlowProtocol::Transport(Protocol::Tcp),
        2 => FlowProtocol::Transport(Protocol::Udp),
        _ => FlowProtocol::Transport(Protocol::Sctp),
    }
}

fn fresh_namespace(classes: &[NamespaceClass], role: Role) -> String {
    let prefix = match role {
        Role::Source => "another",
        Role::Destination => "yet-another",
    };
    let mut names = std::iter::once(prefix.to_owned()).chain((2..).map(|number| format!("{prefix}-{number}")));
    let is_free = |name: &String| classes.iter().all(|it| it.name() != Some(name));
    names.find(is_free).unwrap_or_default()
}

/// A list with only those entries that contain an end's address: the others say nothing about the flow.
fn entries_at(list: &CidrList, flow: &PossibleFlow) -> CidrList {
    let ends = [flow.source.address(), flow.destination.address()];
    let entries = list.entries.iter().filter(|entry| ends.iter().any(|it| entry.contains(*it))).cloned().collect();
    CidrList { entries, name: list.name.clone(), ..*list }
}

/// The oracle's judgement on one side, with the possible pods as pods of the cluster.
fn judgement(world: &PossibleWorld<'_>, side: usize, pair: ClassPair, flow: &PossibleFlow) -> Judgement {
    let cluster = world.clusters[side];
    let mut small = Cluster {
        labels: cluster.labels.clone(),
        lists: cluster.lists.iter().map(|list| entries_at(list, flow)).collect(),
        tiers: cluster.tiers.clone(),
        nodes: cluster.nodes.clone(),
        assume: cluster.assume,
        ..Cluster::default()
    };
    let ends = [(Role::Source, &flow.source), (Role::Destination, &flow.destination)];
    let [source, destination] = ends.map(|(role, end)| match end {
        PossibleEnd::Address(address) => FlowEnd { endpoint: None, address: Some(*address) },
        PossibleEnd::Pod(pod) => {
            let declared = pair.class(role).and_then(|class| match &world.classes[class] {
                NamespaceClass::Declared { labels, .. } => Some(labels[side].clone()),
                NamespaceClass::Mentioned(_) | NamespaceClass::Other => None,
            });
            let endpoint = small.add_pod(AddedPod {
                namespace: pod.namespace.clone(),
                namespace_labels: declared.or_else(|| pod.namespace_labels.clone()),
                labels: pod.labels.clone(),
                ports: pod.ports.clone(),
                address: Some(pod.address),
            });
            FlowEnd { endpoint: Some(endpoint), address: Some(pod.address) }
        }
    });
    let mut numbers = Vec::new();
    for (id, policy) in (0..).map(PolicyId).zip(&cluster.policies) {
        let name = &cluster.namespaces[policy.namespace.index()].name;
        if let Some(namespace) = small.namespaces.iter().position(|it| it.name == *name) {
            small.policies.push(weir_model::Policy { namespace: NamespaceId(namespace as u32), ..policy.clone() });
            numbers.push(id);
        }
    }
    let flow = Flow { source, destination, protocol: flow.protocol, port: flow.port };
    let mut judged = Oracle::new(&small).judge(&flow);
    for side in [&mut judged.egress, &mut judged.ingress] {
        match &mut side.basis {
            Basis::Rules(rules) => rules.iter_mut().for_each(|it| it.policy = numbers[it.policy.index()]),
            Basis::Isolated(policies) => policies.iter_mut().for_each(|it| *it = numbers[it.index()]),
            _ => {}
        }
    }
    judged
}
