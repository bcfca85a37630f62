//! The first two packets of an SCTP association, made by hand because few kernels support SCTP: INIT and INIT ACK.

use std::net::SocketAddr;

/// SCTP's protocol number.
pub(crate) const PROTOCOL: u8 = 132;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;

/// The packet that begins an association.
pub(crate) fn init(from: u16, to: u16) -> Vec<u8> {
    packet(from, to, 0, INIT)
}

/// The answer to a received packet at an address and port, if the packet begins an association.
pub(crate) fn answer(received: &[u8], at: &SocketAddr) -> Option<Vec<u8>> {
    let (from, to, chunk) = read(received, at.is_ipv6())?;
    (to == at.port() && chunk == INIT).then(|| packet(to, from, TAG, INIT_ACK))
}

/// Whether a received packet answers the INIT that was sent from port `from` to port `to`.
pub(crate) fn is_answer(received: &[u8], v6: bool, from: u16, to: u16) -> bool {
    read(received, v6) == Some((to, from, INIT_ACK))
}

/// Ports and kind. IPv4 sockets give the IP header too.
fn read(received: &[u8], v6: bool) -> Option<(u16, u16, u8)> {
    let begins = if v6 { 0 } else { usize::from(received.first()? & 0xf) * 4 };
    let packet = received.get(begins..)?;
    let port = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    Some((port(0)?, port(2)?, *packet.get(12)?))
}

const TAG: u32 = 7;

fn packet(from: u16, to: u16, tag: u32, chunk: u8) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(from.to_be_bytes());
    packet.extend(to.to_be_bytes());
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend([chunk, 0, 0, 20]);
    packet.extend(TAG.to_be_bytes());
    packet.extend(65_536_u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1_u32.to_be_bytes());
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut sum = !0_u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    !sum
}

#[test]
fn sctp_checksum_is_crc32c() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
