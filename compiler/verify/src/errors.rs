//! Verification of ICMP errors about live flows.
//!
//! Problem: deny lists apply to the sender of such an error, policies do not. Strategy: an error is one more port, with
//! a slot and a bit of its own, so every part of verification that iterates over ports covers it. Only its packet is
//! made differently: it quotes a packet of a flow, and that flow must be in the flow table.

use std::net::IpAddr;

use super::prober::other_than;
use super::slots::SlotPort;
use weir_artifact::layout::buckets::Tuple;
use weir_artifact::packet;
use weir_machine::{Broken, LoadedPrograms};
use weir_model::Direction;

/// An ICMP error as a port. All other ports without a protocol are numbers of IP protocols, at most 255.
pub(super) const ICMP_ERROR: SlotPort = (None, 256);

const UDP: u8 = 17;
const SERVER_PORT: u16 = 53;

/// Writes an error to or from a pod, and begins the flow that it is about. An error from the pod goes to the other end
/// of its flow; one to the pod comes from a third address. False if there is no such packet.
pub(super) fn write(
    loaded: &mut LoadedPrograms,
    bytes: &mut Vec<u8>,
    hook: Direction,
    interface: u32,
    [own, remote]: [IpAddr; 2],
) -> Result<bool, Broken> {
    // Programs let a pod send an error only to the other end of the flow that it quotes. An error to a pod comes from a
    // router on the way, so its sender must be a third address: that is the one that lists are asked about.
    let peer = match hook {
        Direction::Egress => remote,
        Direction::Ingress => other_than(own),
    };
    let (outer, quoted, begun) = match hook {
        Direction::Egress => ([own, remote], [peer, own], Direction::Ingress),
        Direction::Ingress => ([remote, own], [own, peer], Direction::Egress),
    };
    // UDP, because its first packet makes a flow live without a handshake.
    if !packet::write_error(bytes, outer, quoted, SERVER_PORT) {
        return Ok(false);
    }
    let [remote_port, local_port] = match hook {
        Direction::Egress => [packet::CLIENT_PORT, SERVER_PORT],
        Direction::Ingress => [SERVER_PORT, packet::CLIENT_PORT],
    };
    let tuple = Tuple { ifindex: interface, protocol: UDP, remote: peer, local: own, remote_port, local_port };
    // Of the current generation: an older flow would have to be judged again, and the verdict could be about the flow
    // instead of the error.
    loaded.begin_flow(tuple, begun, 0)?;
    Ok(true)
}
