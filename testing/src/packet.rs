//! Builders for packets; `bytes` returns the bytes on the wire.

use std::net::IpAddr;

/// TCP: the sender has no more data.
pub const FIN: u8 = 0x01;
/// TCP: the first packet of each end.
pub const SYN: u8 = 0x02;
/// TCP: the connection is aborted.
pub const RST: u8 = 0x04;
/// TCP: the acknowledgement number is valid.
pub const ACK: u8 = 0x10;

/// A type of SCTP chunks.
pub const INIT: u8 = 1;

/// An Ethernet packet of either family.
#[derive(Clone, Debug)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    /// IPv4 options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv6 extension headers before the upper header: the number, and the bytes after the first one (which is the next
    /// header's number).
    pub extensions: Vec<(u8, Vec<u8>)>,
    pub hop_limit: u8,
    pub payload: Vec<u8>,
    /// Identification, offset in units of eight bytes, and the flag for more fragments.
    pub fragment: Option<(u16, u16, bool)>,
    /// Bytes at the end of the frame that the length in the header does not count.
    pub trailer: Vec<u8>,
}

impl Packet {
    /// A packet with the payload of any protocol behind its IP header.
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, payload: Vec<u8>) -> Self {
        let (options, extensions, trailer) = Default::default();
        Self { source, destination, protocol, options, extensions, hop_limit: 64, payload, fragment: None, trailer }
    }

    /// A TCP packet with these flags.
    pub fn tcp(from: (IpAddr, u16), to: (IpAddr, u16), flags: u8) -> Self {
        let mut header = ports(from.1, to.1, 20);
        (header[12], header[13]) = (0x50, flags);
        Self::new(from.0, to.0, 6, header)
    }

    /// A UDP packet with 16 bytes of data.
    pub fn udp(from: (IpAddr, u16), to: (IpAddr, u16)) -> Self {
        let mut header = ports(from.1, to.1, 24);
        header[5] = 24;
        Self::new(from.0, to.0, 17, header)
    }

    /// An SCTP packet whose first chunk begins an association.
    pub fn sctp(from: (IpAddr, u16), to: (IpAddr, u16)) -> Self {
        Self::sctp_chunk(from, to, INIT)
    }

    /// An SCTP packet whose first chunk has this type.
    pub fn sctp_chunk(from: (IpAddr, u16), to: (IpAddr, u16), chunk: u8) -> Self {
        let mut bytes = ports(from.1, to.1, 16);
        bytes[12] = chunk;
        Self::new(from.0, to.0, 132, bytes)
    }

    /// An ICMP or ICMPv6 message with a type and an identifier.
    pub fn icmp(source: IpAddr, destination: IpAddr, kind: u8, identifier: u16) -> Self {
        let mut message = vec![kind, 0, 0, 0];
        message.extend(identifier.to_be_bytes());
        message.extend([0, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
        Self::new(source, destination, if source.is_ipv4() { 1 } else { 58 }, message)
    }

    /// An echo request.
    pub fn ping(source: IpAddr, destination: IpAddr, identifier: u16) -> Self {
        Self::icmp(source, destination, if source.is_ipv4() { 8 } else { 128 }, identifier)
    }

    /// An echo reply.
    pub fn pong(source: IpAddr, destination: IpAddr, identifier: u16) -> Self {
        Self::icmp(source, destination, if source.is_ipv4() { 0 } else { 129 }, identifier)
    }

    /// A neighbour solicitation to the neighbour itself, with the sender's hardware address.
    pub fn solicitation(source: IpAddr, target: IpAddr) -> Self {
        Self::neighbour(135, source, target, target, 1)
    }

    /// A neighbour advertisement for the sender's own address.
    pub fn advertisement(source: IpAddr, destination: IpAddr) -> Self {
        Self::neighbour(136, source, destination, source, 2)
    }

    /// A message of neighbour discovery with an option: the hardware address from which frames of [`Self::bytes`] are
    /// sent.
    pub fn neighbour(kind: u8, source: IpAddr, destination: IpAddr, target: IpAddr, option: u8) -> Self {
        let IpAddr::V6(target) = target else { panic!("neighbour discovery is of IPv6") };
        let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        message.extend(target.octets());
        message.extend([option, 1, 2, 0, 0, 0, 0, 2]);
        Self::new(source, destination, 58, message).with_hop_limit(255)
    }

    /// A "destination unreachable" error from `source` to the sender of `quoted`.
    pub fn unreachable(source: IpAddr, quoted: &Self) -> Self {
        let mut message = vec![if source.is_ipv4() { 3 } else { 1 }, 1, 0, 0, 0, 0, 0, 0];
        let inner = &quoted.bytes()[14..];
        let extensions: usize = quoted.extensions.iter().map(|(_, rest)| 1 + rest.len()).sum();
        message.extend(&inner[..inner.len().min(28 + quoted.options.len() + extensions + 20)]);
        Self::new(source, quoted.source, if source.is_ipv4() { 1 } else { 58 }, message)
    }

    /// Makes the packet a fragment: identification, offset in units of eight bytes, whether more fragments follow.
    pub fn with_fragment(mut self, identification: u16, offset: u16, more: bool) -> Self {
        self.fragment = Some((identification, offset, more));
        self
    }

    /// Adds an IPv6 extension header: its number, and the bytes after the next header's number.
    pub fn with_extension(mut self, number: u8, rest: &[u8]) -> Self {
        self.extensions.push((number, rest.to_vec()));
        self
    }

    /// Replaces the hop limit, or the TTL of IPv4.
    pub fn with_hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// Adds IPv4 options, a multiple of four bytes.
    pub fn with_options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// Keeps only the first `bytes` bytes after the IP header.
    pub fn cut(mut self, bytes: usize) -> Self {
        self.payload.truncate(bytes);
        self
    }

    /// The Ethernet frame. No checksum is computed, because the programs check none.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let length = 20 + self.options.len() + self.payload.len();
                let (identification, offset, more) = self.fragment.unwrap_or((1, 0, false));
                bytes.extend([8, 0, 0x45 + (self.options.len() / 4) as u8, 0]);
                bytes.extend((length as u16).to_be_bytes());
                bytes.extend(identification.to_be_bytes());
                bytes.extend((offset | if more { 0x2000 } else { 0 }).to_be_bytes());
                bytes.extend([self.hop_limit, self.protocol, 0, 0]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
                bytes.extend(&self.options);
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let chain = self.chain();
                let first = self.headers().first().map_or(self.protocol, |(number, _)| *number);
                bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                bytes.extend(((chain.len() + self.payload.len()) as u16).to_be_bytes());
                bytes.extend([first, self.hop_limit]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
                bytes.extend(chain);
            }
            _ => panic!("two families in one packet"),
        }
        bytes.extend(&self.payload);
        bytes.extend(&self.trailer);
        bytes
    }

    /// IPv6 extension headers; the fragment header is before destination options and after all others.
    fn headers(&self) -> Vec<(u8, Vec<u8>)> {
        let mut headers = self.extensions.clone();
        if let Some((identification, offset, more)) = self.fragment {
            let field = (offset << 3 | u16::from(more)).to_be_bytes();
            let mut rest = vec![0, field[0], field[1], 0, 0];
            rest.extend(identification.to_be_bytes());
            let at = headers.iter().position(|(number, _)| *number == 60).unwrap_or(headers.len());
            headers.insert(at, (44, rest));
        }
        headers
    }

    fn chain(&self) -> Vec<u8> {
        let headers = self.headers();
        let following = headers.iter().skip(1).map(|(number, _)| *number).chain([self.protocol]);
        headers.iter().zip(following).flat_map(|((_, rest), next)| [vec![next], rest.clone()].concat()).collect()
    }
}

fn ports(source: u16, destination: u16, bytes: usize) -> Vec<u8> {
    let mut header = vec![0; bytes];
    header[..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&destination.to_be_bytes());
    header
}
