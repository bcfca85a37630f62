//! Abstract packets → bytes on the wire.

use std::net::IpAddr;

use super::packet::{Arp, Body, FRAME_SOURCE, Fault, Ip, Neighbour, Packet, Upper};

const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The whole frame.
pub fn frame(packet: &Packet) -> Vec<u8> {
    let (number, body) = match &packet.body {
        Body::Ip(packet) | Body::Vlan(packet) if packet.source.is_ipv4() => (0x0800_u16, ip(packet)),
        Body::Ip(packet) | Body::Vlan(packet) => (0x86dd, ip(packet)),
        Body::Arp(packet) => return arp(packet),
        // LLDP.
        Body::UnknownFamily => (0x88cc, vec![0; 46]),
    };
    [&DESTINATION[..], &FRAME_SOURCE, &number.to_be_bytes(), &body].concat()
}

/// The whole frame of an ARP packet.
pub fn arp(arp: &Arp) -> Vec<u8> {
    let mut bytes = [&DESTINATION[..], &FRAME_SOURCE, &[8, 6]].concat();
    let protocol: [u8; 2] = if arp.is_ethernet { [8, 0] } else { [0x86, 0xdd] };
    bytes.extend([0, 1, protocol[0], protocol[1], 6, 4, 0, if arp.is_request { 1 } else { 2 }]);
    bytes.extend(arp.sender_hardware);
    bytes.extend(arp.sender.octets());
    bytes.extend([0; 6]);
    bytes.extend(arp.target.octets());
    bytes.resize(bytes.len() + arp.padding, 0);
    bytes
}

/// The total length that the IP header says.
pub fn length(packet: &Ip) -> usize {
    ip(packet).len()
}

/// Bytes after the IP header and its extensions.
pub fn upper_length(packet: &Ip) -> usize {
    upper(packet).len()
}

/// The bytes of a packet from the IP header on.
pub fn ip(packet: &Ip) -> Vec<u8> {
    let upper = upper(packet);
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            // A loose source route with one stop ahead, and padding.
            let options: &[u8] =
                if packet.fault == Some(Fault::SourceRoute) { &[131, 7, 4, 10, 9, 9, 9, 0] } else { &[] };
            let fragment = packet.fragment;
            let field = fragment.map_or(0, |it| it.offset | u16::from(it.more) << 13);
            let length = (20 + options.len() + upper.len()) as u16;
            let mut bytes = vec![0x45 + (options.len() / 4) as u8, 0];
            bytes.extend(length.to_be_bytes());
            bytes.extend(fragment.map_or(1, |it| it.identification).to_be_bytes());
            bytes.extend(field.to_be_bytes());
            bytes.extend([packet.hop_limit, packet.protocol(), 0, 0]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
            [bytes.as_slice(), options, &upper].concat()
        }
        (source, destination) => {
            let (first, chain) = extensions(packet);
            let mut bytes = vec![0x60, 0, 0, 0];
            bytes.extend(((chain.len() + upper.len()) as u16).to_be_bytes());
            bytes.extend([first, packet.hop_limit]);
            bytes.extend([source, destination].into_iter().flat_map(sixteen));
            [bytes, chain, upper].concat()
        }
    }
}

/// The first header's number, and the headers: routing, then fragment.
fn extensions(packet: &Ip) -> (u8, Vec<u8>) {
    let (mut first, mut chain) = (packet.protocol(), Vec::new());
    if let Some(fragment) = packet.fragment {
        let field = (fragment.offset << 3 | u16::from(fragment.more)).to_be_bytes();
        let identification = fragment.identification.to_be_bytes();
        chain = vec![first, 0, field[0], field[1], 0, 0, identification[0], identification[1]];
        first = 44;
    }
    if packet.fault == Some(Fault::SourceRoute) {
        // One segment left.
        let mut header = vec![first, 2, 2, 1, 0, 0, 0, 0];
        header.resize(24, 0);
        chain = [header, chain].concat();
        first = 43;
    }
    (first, chain)
}

fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn upper(packet: &Ip) -> Vec<u8> {
    let mut bytes = match packet.upper {
        // Bytes from the payload's middle, which no rule may read as a header.
        _ if packet.is_later_fragment() => vec![0xa5; 16],
        Upper::Tcp(source, destination, flags) => {
            let mut bytes = ports(source, destination, 20);
            (bytes[12], bytes[13]) = (0x50, flags);
            bytes
        }
        Upper::Udp(source, destination) => {
            let mut bytes = ports(source, destination, 16);
            bytes[5] = 16;
            bytes
        }
        Upper::Sctp(source, destination, chunk) => {
            let mut bytes = ports(source, destination, 16);
            (bytes[12], bytes[15]) = (chunk, 4);
            bytes
        }
        Upper::Other(_) => vec![0; 8],
        Upper::Icmp(kind, identifier) => {
            let [high, low] = identifier.to_be_bytes();
            vec![kind, 0, 0, 0, high, low, 0, 1]
        }
        Upper::Error(kind, ref quoted) => {
            let quoted = ip(quoted);
            [&[kind, 1, 0, 0, 0, 0, 0, 0], quoted.as_slice()].concat()
        }
        Upper::Neighbour(ref neighbour) => neighbour_bytes(neighbour),
    };
    bytes.resize(bytes.len() + packet.padding, 0);
    if packet.fault == Some(Fault::Short) {
        bytes.truncate(4);
    }
    bytes
}

fn neighbour_bytes(neighbour: &Neighbour) -> Vec<u8> {
    let mut bytes = vec![neighbour.kind, 0, 0, 0, 0, 0, 0, 0];
    match neighbour.kind {
        // Life time and timers.
        134 => bytes.extend([0; 8]),
        135 | 136 => bytes.extend(neighbour.target.octets()),
        137 => bytes.extend([neighbour.target.octets(), neighbour.target.octets()].concat()),
        _ => {}
    }
    if let Some(address) = neighbour.link_layer {
        bytes.extend([if neighbour.kind == 136 { 2 } else { 1 }, 1]);
        bytes.extend(address);
    }
    bytes.extend([14, 1, 1, 2, 3, 4, 5, 6].repeat(neighbour.nonces));
    bytes
}

fn ports(source: u16, destination: u16, bytes: usize) -> Vec<u8> {
    let mut header = vec![0; bytes];
    header[..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&destination.to_be_bytes());
    header
}
