//! The decision space, cut by the cluster alone: which endpoints, addresses and ports the oracle can tell apart.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::address::Family;
use crate::classify::{to_address, to_number};
use crate::k8s::NamedPort;
use crate::model::directory::Directory;
use crate::model::{
    Cluster, Direction, EndpointId, LabelSetId, NamespaceId, NodeId, Peer, PortMatch, Protocol, Standing,
};

/// What the oracle can see of an endpoint.
pub(super) type Kind<'c> = (NamespaceId, LabelSetId, &'c [NamedPort], Option<NodeId>);

/// What the oracle can see of an address: its pod, its services, its node, and which blocks contain it (as a sum of random
/// numbers, one a block: two sets have the same with a probability of 2⁻¹²⁸).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Nature<'c> {
    pub(super) pod: Option<(NamespaceId, LabelSetId, &'c [NamedPort])>,
    services: &'c [crate::model::ServiceId],
    nodes: Option<NodeId>,
    blocks: u128,
}

/// A port, or what has none.
pub(super) type Port = (Option<Protocol>, u16);

/// The cuts.
pub(super) struct Space {
    /// Every address at which something begins or ends, and every one that is somebody's.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Where a block begins or ends: what from there on is added or taken away.
    changes: [BTreeMap<u128, u128>; 2],
    /// Both ends of every range of ports, and their neighbours.
    pub(super) ports: BTreeSet<Port>,
}

impl Space {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let mut space =
            Self { addresses: BTreeSet::new(), changes: [BTreeMap::new(), BTreeMap::new()], ports: BTreeSet::new() };
        space.add_blocks(cluster);
        space.accumulate();
        let owned = cluster.endpoints.iter().flat_map(|it| &it.addresses);
        let owned = owned.chain(cluster.services.iter().flat_map(|it| &it.addresses));
        space.addresses.extend(owned.chain(cluster.nodes.iter().flat_map(|it| &it.addresses)));
        space.add_ports(cluster);
        space
    }

    fn add_blocks(&mut self, cluster: &Cluster) {
        let mut random = 0;
        let rules = cluster.policies.iter().flat_map(|policy| policy.ingress.iter().chain(&policy.egress)).flatten();
        let mut known = BTreeSet::new();
        for peer in rules.flat_map(|rule| &rule.peers) {
            let Peer::Block { cidr, except } = peer else { continue };
            for block in std::iter::once(cidr).chain(except).filter(|block| known.insert(**block)) {
                self.add_range(block.address(), block.last(), next(&mut random));
            }
        }
        for list in &cluster.lists {
            // Touching and overlapping entries are one: only the list's own bounds count.
            let mut entries: Vec<_> = list.entries.iter().map(|entry| (entry.first, entry.last)).collect();
            entries.sort_unstable();
            let number = next(&mut random);
            let mut merged: Vec<(IpAddr, IpAddr)> = Vec::new();
            for (first, last) in entries {
                match merged.last_mut() {
                    Some(before) if Family::of(before.1) == Family::of(first) && first <= before.1 => {
                        before.1 = before.1.max(last);
                    }
                    _ => merged.push((first, last)),
                }
            }
            merged.into_iter().for_each(|(first, last)| self.add_range(first, last, number));
        }
        for family in [Family::V4, Family::V6] {
            self.addresses.extend([to_address(family, 0), to_address(family, highest(family))]);
        }
    }

    fn add_range(&mut self, first: IpAddr, last: IpAddr, number: u128) {
        let (family, low) = to_number(first);
        let high = to_number(last).1;
        let changes = &mut self.changes[family as usize];
        *changes.entry(low).or_default() ^= number;
        let after = (high < highest(family)).then(|| high + 1);
        if let Some(after) = after {
            *changes.entry(after).or_default() ^= number;
        }
        let before = low.checked_sub(1);
        let around = [before, Some(low), Some(high), after].into_iter().flatten();
        self.addresses.extend(around.map(|number| to_address(family, number)));
    }

    /// From what changes at an address to what holds from there on.
    fn accumulate(&mut self) {
        for changes in &mut self.changes {
            let mut sum = 0;
            for change in changes.values_mut() {
                sum ^= *change;
                *change = sum;
            }
        }
    }

    fn add_ports(&mut self, cluster: &Cluster) {
        self.ports.insert((None, 0));
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            self.add_port_range(protocol, 0, u16::MAX);
        }
        for policy in &cluster.policies {
            let rules = Direction::ALL.into_iter().filter_map(|direction| policy.rules(direction)).flatten();
            for port in rules.flat_map(|rule| &rule.ports) {
                if let PortMatch::Range(first, last) = port.port {
                    self.add_port_range(port.protocol, first, last);
                }
            }
        }
        for port in cluster.services.iter().flat_map(|service| &service.ports) {
            self.add_port_range(port.protocol, port.port, port.port);
            port.node_port.into_iter().for_each(|number| self.add_port_range(port.protocol, number, number));
        }
        for port in cluster.endpoints.iter().flat_map(|endpoint| &endpoint.named_ports) {
            self.add_port_range(port.protocol, port.number, port.number);
        }
    }

    fn add_port_range(&mut self, protocol: Protocol, first: u16, last: u16) {
        let around = [first.checked_sub(1), Some(first), Some(last), last.checked_add(1)];
        self.ports.extend(around.into_iter().flatten().map(|port| (Some(protocol), port)));
    }

    /// What the oracle can see of an address.
    pub(super) fn nature<'c>(&self, cluster: &'c Cluster, directory: &'c Directory<'c>, address: IpAddr) -> Nature<'c> {
        let (family, number) = to_number(address);
        let blocks = self.changes[family as usize].range(..=number).next_back().map_or(0, |(_, sum)| *sum);
        let owner = directory.endpoint_at(address).and_then(|id| cluster.endpoints.get(id.index()));
        Nature {
            pod: owner.map(|it| (it.namespace, it.labels, it.named_ports.as_slice())),
            services: directory.services_at(address),
            nodes: directory.node_at(address),
            blocks,
        }
    }
}

/// What the oracle can see of an endpoint.
pub(super) fn kind(cluster: &Cluster, id: EndpointId) -> Option<Kind<'_>> {
    let endpoint = cluster.endpoints.get(id.index()).filter(|it| it.standing == Standing::Member)?;
    Some((endpoint.namespace, endpoint.labels, &endpoint.named_ports, endpoint.node))
}

fn highest(family: Family) -> u128 {
    match family {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    }
}

/// SplitMix64, twice.
fn next(state: &mut u64) -> u128 {
    let mut half = || {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u128::from(mixed ^ (mixed >> 31))
    };
    half() << 64 | half()
}
