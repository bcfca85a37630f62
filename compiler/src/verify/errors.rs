//! ICMP errors about live flows, as one more port.
//!
//! Lists are asked about the sender of such an error, policies are not. So errors have a slot and a bit of their own, like a port, and
//! every part of verification that goes through ports covers them. What differs is the packet: it quotes one of a flow, which has to
//! be in the flow table.

use std::net::IpAddr;

use super::prober::other_than;
use super::slots::Port;
use crate::engine::machine::{Inside, Loaded};
use crate::engine::{Broken, packet};
use crate::layout::MapName;
use crate::layout::buckets::Tuple;
use crate::model::Direction;

/// The port that stands for them. Other ports without a protocol are the numbers of IP protocols, up to 255.
pub(super) const ICMP_ERROR: Port = (None, 256);

const UDP: u8 = 17;
const SERVER_PORT: u16 = 53;

/// Writes an error to or from a pod, and begins the flow that it is about. An error from the pod goes to the other end of its flow; one to
/// the pod comes from a third address. False if there is no such packet.
pub(super) fn write(
    loaded: &mut Loaded,
    bytes: &mut Vec<u8>,
    hook: Direction,
    interface: u32,
    [own, remote]: [IpAddr; 2],
) -> Result<bool, Broken> {
    let peer = match hook {
        Direction::Egress => remote,
        Direction::Ingress => other_than(own),
    };
    let (outer, quoted, begun) = match hook {
        Direction::Egress => ([own, remote], [peer, own], Direction::Ingress),
        Direction::Ingress => ([remote, own], [own, peer], Direction::Egress),
    };
    if !packet::write_error(bytes, outer, quoted, SERVER_PORT) {
        return Ok(false);
    }
    let [remote_port, local_port] = match hook {
        Direction::Egress => [packet::CLIENT_PORT, SERVER_PORT],
        Direction::Ingress => [SERVER_PORT, packet::CLIENT_PORT],
    };
    let tuple = Tuple { ifindex: interface, protocol: UDP, remote: peer, local: own, remote_port, local_port };
    let config = loaded.map(MapName::Config);
    let Inside { vm, host } = loaded.inside_now();
    let epoch = config.and_then(|map| vm.value_at(map, 0).first_chunk().copied()).map_or(0, u32::from_le_bytes);
    let flow = tuple.begun(begun, epoch, host.jiffies);
    loaded.put_flow(&flow)?;
    Ok(true)
}
