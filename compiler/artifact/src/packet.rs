//! Builds the first packet of a flow as bytes: Ethernet, IPv4 or IPv6, and the transport header.

use std::net::IpAddr;

use weir_ebpf::bytes::put;
use weir_objects::k8s::{FlowProtocol, Protocol};

/// The client's port.
pub const CLIENT_PORT: u16 = 40_000;

const TCP_SYN: u8 = 2;
const SCTP_INIT: u8 = 1;

/// Whether a packet's source and destination address are equal.
pub fn is_to_itself(packet: &[u8]) -> bool {
    // Offsets of the addresses behind 14 bytes of Ethernet: IPv4 has them at 12 and 16, IPv6 at 8 and 24.
    let (from, to) = if packet.get(12..14) == Some(&[0x08, 0x00]) { (26..30, 30..34) } else { (22..38, 38..54) };
    packet.get(from).is_some_and(|from| Some(from) == packet.get(to))
}

/// A packet that begins a flow; `None` if the addresses are of two families.
pub fn build(source: IpAddr, destination: IpAddr, protocol: FlowProtocol, port: u16) -> Option<Vec<u8>> {
    let mut packet = Vec::with_capacity(80);
    write(&mut packet, source, destination, protocol, port).then_some(packet)
}

/// Writes the same packet into `packet`, replacing its content; false if the addresses are of two families.
pub fn write(packet: &mut Vec<u8>, source: IpAddr, destination: IpAddr, protocol: FlowProtocol, port: u16) -> bool {
    let (number, length) = header(source.is_ipv4(), protocol);
    packet.clear();
    packet.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([0x08, 0x00, 0x45, 0]);
            packet.extend((20 + length).to_be_bytes());
            // "Don't fragment" and no checksum: programs check neither, but a fragment would take another way through
            // them.
            packet.extend([0, 1, 0x40, 0, 64, number, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend([number, 64]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        _ => return false,
    }
    transport(packet, source.is_ipv4(), protocol, port);
    true
}

/// Writes an ICMP error from one address to another. It quotes a UDP packet to `port` between the addresses `quoted`.
pub fn write_error(packet: &mut Vec<u8>, [source, destination]: [IpAddr; 2], quoted: [IpAddr; 2], port: u16) -> bool {
    const ETHERNET: usize = 14;
    const ICMP_HEADER: usize = 8;
    /// Destination unreachable, fragmentation needed; packet too big.
    const TOO_BIG: [[u8; 2]; 2] = [[3, 4], [2, 0]];
    let is_v4 = source.is_ipv4();
    let mut inner = Vec::new();
    let udp = FlowProtocol::Transport(Protocol::Udp);
    if !write(&mut inner, quoted[0], quoted[1], udp, port) || !write(packet, source, destination, FlowProtocol::Icmp, 0)
    {
        return false;
    }
    // The packet was written with an echo request. Its ICMP header is cut off again and replaced by that of an error.
    let header = packet.len() - ETHERNET - ICMP_HEADER;
    let inner = inner.get(ETHERNET..).unwrap_or_default();
    // The IPv4 length field includes the header, the IPv6 field does not.
    let (at, counted) = if is_v4 { (ETHERNET + 2, header) } else { (ETHERNET + 4, 0) };
    let length = (counted + ICMP_HEADER + inner.len()) as u16;
    put(packet, at, &length.to_be_bytes());
    packet.truncate(ETHERNET + header);
    packet.extend(TOO_BIG[usize::from(!is_v4)]);
    packet.extend([0; ICMP_HEADER - 2]);
    packet.extend(inner);
    true
}

/// The protocol's number, and the number of bytes that [`transport`] writes.
fn header(is_v4: bool, protocol: FlowProtocol) -> (u8, u16) {
    match protocol {
        FlowProtocol::Transport(Protocol::Tcp) => (6, 20),
        FlowProtocol::Transport(Protocol::Udp) => (17, 8),
        FlowProtocol::Transport(Protocol::Sctp) => (132, 32),
        FlowProtocol::Icmp => (if is_v4 { 1 } else { 58 }, 8),
    }
}

fn transport(packet: &mut Vec<u8>, is_v4: bool, protocol: FlowProtocol, port: u16) {
    let FlowProtocol::Transport(transport) = protocol else {
        // Echo requests.
        // An echo request begins a flow. A reply would have to belong to one.
        packet.extend([if is_v4 { 8 } else { 128 }, 0, 0, 0, 0, 7, 0, 1]);
        return;
    };
    packet.extend(CLIENT_PORT.to_be_bytes());
    packet.extend(port.to_be_bytes());
    match transport {
        Protocol::Tcp => packet.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, TCP_SYN, 0xff, 0xff, 0, 0, 0, 0]),
        Protocol::Udp => packet.extend([0, 8, 0, 0]),
        // The verification tag and the checksum, then an INIT of the shortest length.
        Protocol::Sctp => {
            packet.extend([0; 8]);
            packet.extend([SCTP_INIT, 0, 0, 20]);
            packet.extend([0; 16]);
        }
    }
}
