//! One packet at one endpoint of the artifact: the programs and the oracle, side by side.

use std::net::IpAddr;

use super::errors::{self, ICMP_ERROR};
use super::prober::{Instance, write};
use super::slots::SlotPort;
use super::{Difference, MOST_DIFFERENCES, VerifyPart, VerifyReport};
use weir_artifact::layout::direction_number;
use weir_machine::{Broken, LoadedPrograms, arrived, interface};
use weir_model::eval::{Basis, Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, Direction, EndpointId};

use super::endpoints::ArtifactEndpoint;

pub(super) struct Asker<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) oracle: Oracle<'a>,
}

impl<'a> Asker<'a> {
    /// The endpoint's address in one family. Skips an address that another endpoint owns in the directory: it is asked
    /// about at its owner.
    pub(super) fn own(&self, id: EndpointId, is_v4: bool) -> Option<IpAddr> {
        let directory = self.oracle.directory();
        let is_own = |own: &&IpAddr| own.is_ipv4() == is_v4 && directory.endpoint_at(**own) == Some(id);
        self.cluster.endpoints[id.index()].addresses.iter().find(is_own).copied()
    }

    /// Whether the programs and the oracle agree; `None` if there is no such packet.
    pub(super) fn ask(
        &mut self,
        loaded: &mut LoadedPrograms,
        report: &mut VerifyReport,
        local: &ArtifactEndpoint,
        instance: Instance,
        remote: IpAddr,
        port: SlotPort,
    ) -> Result<Option<bool>, Broken> {
        let Some(own) = self.own(local.id, remote.is_ipv4()) else { return Ok(None) };
        let direction = instance.direction;
        let ends = if direction == Direction::Egress { [own, remote] } else { [remote, own] };
        let mut bytes = Vec::with_capacity(80);
        // Before the packet is written: an ICMP error brings its flow along, and that one must live.
        loaded.expire_flows();
        let is_written = match port == ICMP_ERROR {
            true => errors::write(loaded, &mut bytes, direction, interface(local.place), [own, remote])?,
            false => write(&mut bytes, ends[0], ends[1], port),
        };
        if !is_written {
            return Ok(None);
        }
        let mut packet = arrived(direction, local.place, bytes, self.began_here(local.id, remote));
        let emitted = loaded.run_now(direction, &mut packet)?;
        // The oracle hears of the packet only, never of the classes: otherwise a wrong class would be wrong on both
        // sides and agree with itself.
        let flow = self.flow(local.id, direction, own, remote, port);
        let expected = self.expected(&flow, direction, port);
        let agreed = emitted == expected;
        report.count(VerifyPart::Packets, 1, u64::from(agreed));
        // The count above is exact and decides whether the artifact is verified. Only the list of differences is
        // bounded.
        if !agreed && report.differences.len() < MOST_DIFFERENCES {
            let (protocol, port) = port;
            report.differences.push(Difference::Verdict {
                direction,
                endpoint: self.cluster.endpoint_name(local.id),
                own,
                remote,
                protocol,
                port,
                emitted,
                expected,
                packet: packet.packet,
            });
        }
        Ok(Some(agreed))
    }

    /// Only lists decide about an ICMP error about a live flow, and only on ingress.
    fn expected(&mut self, flow: &Flow, direction: Direction, port: SlotPort) -> Verdict {
        let judgement = self.oracle.judge(flow);
        let side = judgement.side(direction);
        // The oracle judges new flows and knows no ICMP errors. Policies must not stop them, since path MTU discovery
        // needs them (RFC 1191, RFC 8201); only a deny list names the sender itself as unwanted.
        match (port == ICMP_ERROR, direction, &side.basis) {
            (false, _, _) => side.verdict,
            (true, Direction::Ingress, Basis::List(_)) => Verdict::Deny,
            (true, _, _) => Verdict::Allow,
        }
    }

    /// The oracle gets only the remote's address: it finds the owner itself.
    fn flow(
        &self,
        id: EndpointId,
        direction: Direction,
        own: IpAddr,
        remote: IpAddr,
        (protocol, port): SlotPort,
    ) -> Flow {
        let me = FlowEnd { endpoint: Some(id), address: Some(own) };
        let other = FlowEnd { endpoint: None, address: Some(remote) };
        let [source, destination] = if direction == Direction::Egress { [me, other] } else { [other, me] };
        let has_ports = protocol.is_some();
        // To policies all protocols without ports are alike: only rules without `ports` match them.
        let protocol = protocol.map_or(FlowProtocol::Icmp, FlowProtocol::Transport);
        Flow { source, destination, protocol, port: if has_ports { port } else { 0 } }
    }

    fn began_here(&self, id: EndpointId, remote: IpAddr) -> bool {
        // A pod may have the address of a node. Its packets come through its own interface, so they are never packets
        // that this host began.
        let is_pod = self.oracle.directory().endpoint_at(remote).is_some();
        let node = self.cluster.endpoints[id.index()].node.and_then(|node| self.cluster.nodes.get(node.index()));
        !is_pod && node.is_some_and(|node| node.addresses.contains(&remote))
    }
}

/// Both directions of a family.
pub(super) fn instances(is_v4: bool) -> [Instance; 2] {
    let instances = Direction::ALL.map(|direction| Instance { direction, is_v4 });
    debug_assert!(instances.iter().enumerate().all(|(at, it)| direction_number(it.direction) as usize == at));
    instances
}
