//! Ports, divided into slots by the cluster alone: within a slot no rule and no service distinguishes ports.

use std::ops::Range;

use super::errors::ICMP_ERROR;
use weir_model::{Cluster, PortRule, Protocol};
use weir_objects::k8s::PortMatch;

/// A port, or (without a protocol) 0 for ICMP, the number of an IP protocol, or [`ICMP_ERROR`].
pub(super) type SlotPort = (Option<Protocol>, u16);

/// The protocols that have ports.
pub(super) const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Slot 0 is for all packets without ports, slot 1 for ICMP errors about live flows; then follow the ranges of
/// ports, protocol by protocol.
#[derive(Debug)]
pub(super) struct PortSlots {
    /// The first port of each range, sorted.
    starts: [Vec<u16>; 3],
}

impl PortSlots {
    /// The slot of [`ICMP_ERROR`].
    pub(super) const ICMP_ERRORS: usize = 1;
    const FIRST_PORT: usize = 2;

    /// Cut by the rules and names in force, by every service, and by every hostPort.
    pub(super) fn new<'r>(cluster: &Cluster, ports: impl Iterator<Item = &'r PortRule>) -> Self {
        // Every protocol has a range from port 0 on. So `of` always finds a range, and its `- 1` cannot underflow.
        let mut slots = Self { starts: [vec![0], vec![0], vec![0]] };
        let mut names = std::collections::BTreeSet::new();
        for port in ports {
            match &port.port {
                PortMatch::Range(first, last) => slots.cut(port.protocol, *first, *last),
                // With the protocol: the same name may be one number for TCP and another one for UDP.
                PortMatch::Named(name) => _ = names.insert((name.as_str(), port.protocol as usize)),
                PortMatch::Any => {}
            }
        }
        // Ports of services are boundaries even if no policy names them: whether a packet may leave for a service
        // address depends on the backends behind the port.
        for port in cluster.services.iter().flat_map(|service| &service.ports) {
            slots.cut(port.protocol, port.port, port.port);
            port.node_port.into_iter().for_each(|number| slots.cut(port.protocol, number, number));
        }
        cluster.host_ports.iter().for_each(|it| slots.cut(it.protocol, it.port, it.port));
        for port in cluster.endpoints.iter().flat_map(|endpoint| endpoint.named_ports.iter()) {
            // Only names that a policy uses. A cut for each named port of each pod would make every set as wide as the
            // cluster has ports, without any difference between them.
            if names.contains(&(port.name.as_str(), port.protocol as usize)) {
                slots.cut(port.protocol, port.number, port.number);
            }
        }
        for starts in &mut slots.starts {
            starts.sort_unstable();
            starts.dedup();
        }
        slots
    }

    fn cut(&mut self, protocol: Protocol, first: u16, last: u16) {
        let starts = &mut self.starts[protocol as usize];
        starts.push(first);
        // Port 65,535 is the end: no range begins after it.
        starts.extend(last.checked_add(1));
    }

    /// The number of slots.
    pub(super) fn count(&self) -> usize {
        Self::FIRST_PORT + self.starts.iter().map(Vec::len).sum::<usize>()
    }

    /// The slot of a port.
    pub(super) fn of(&self, (protocol, port): SlotPort) -> usize {
        let Some(protocol) = protocol else {
            return if (protocol, port) == ICMP_ERROR { Self::ICMP_ERRORS } else { 0 };
        };
        let before: usize = self.starts[..protocol as usize].iter().map(Vec::len).sum();
        Self::FIRST_PORT + before + self.starts[protocol as usize].partition_point(|start| *start <= port) - 1
    }

    /// The slots of a range of ports, whose ends are cuts.
    pub(super) fn range(&self, protocol: Protocol, first: u16, last: u16) -> Range<usize> {
        self.of((Some(protocol), first))..self.of((Some(protocol), last)) + 1
    }

    /// The first and the last port of every slot.
    pub(super) fn ends(&self) -> Vec<SlotPort> {
        let mut ends = vec![(None, 0), ICMP_ERROR];
        for (protocol, starts) in PROTOCOLS.into_iter().zip(&self.starts) {
            // Both ends of each range. A boundary that is off by one moves exactly one end into the neighbouring
            // range; a port from the middle would not notice.
            let lasts = starts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
            ends.extend(starts.iter().copied().chain(lasts).map(|port| (Some(protocol), port)));
        }
        ends.sort_unstable_by_key(|(protocol, port)| (protocol.map(|it| it as usize), *port));
        // A range of one port has two equal ends.
        ends.dedup();
        ends
    }
}
