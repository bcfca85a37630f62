//! Headers → facts on the stack.
//!
//! Headers outside the linear area are pulled in, once at the start and again where options or extension headers reach
//! further; what is then still missing is malformed. IPv4 options are honoured through IHL, and walked for source routes; IPv6
//! extension headers up to a bound. A first fragment must hold its whole transport header: one that does not is made to deceive.

use super::Emitter;
use super::flows::{ACK, RST, SYN};
use super::frame::{Frame, Key, skb};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::helper::Helper;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size, SwapBits};
use crate::layout::Outcome;
use crate::model::Direction;

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: i32 = 14;
/// Extension headers that are followed; more are malformed.
const MOST_EXTENSIONS: usize = 6;
/// Beyond this, no header is looked for. Also bounds the offset for the verifier.
pub(super) const FARTHEST: i32 = 1_024;
/// How much is pulled in.
const PULLED: i32 = FARTHEST + 64;

pub(super) const ICMP: i32 = 1;
pub(super) const TCP: i32 = 6;
pub(super) const UDP: i32 = 17;
pub(super) const ICMPV6: i32 = 58;
pub(super) const SCTP: i32 = 132;

/// The least that a TCP header has.
const TCP_BYTES: i32 = 20;
/// What every SCTP packet begins with.
const SCTP_BYTES: i32 = 12;
/// And the header of its first chunk.
const CHUNK_BYTES: i32 = 4;
/// Types of chunks.
const INIT: i32 = 1;
const INIT_ACK: i32 = 2;
const ABORT: i32 = 6;

/// IPv6 headers that are stepped over: hop-by-hop, routing, fragment, authentication, destination, mobility.
pub(super) const ROUTING: i32 = 43;
pub(super) const FRAGMENT: i32 = 44;
const AUTHENTICATION: i32 = 51;
pub(super) const OPTIONS: [i32; 3] = [0, 60, 135];

impl Emitter<'_> {
    /// Facts of an IPv4 packet; goes on at `parsed`.
    pub(super) fn parse_v4(&mut self, parsed: Label) {
        let malformed = self.drop_unless_open(Outcome::Malformed);
        self.need_linear(ETHERNET + 20);
        self.addresses(Family::V4, ETHERNET as i16 + 12, ETHERNET as i16 + 16);
        self.asm.load(Size::B, Reg::R9, Reg::R7, ETHERNET as i16);
        self.asm.mov(Reg::R1, Reg::R9);
        self.asm.alu(AluOp::Rsh, Reg::R1, 4);
        self.asm.jump_if(Cond::Ne, Reg::R1, 4, malformed);
        self.asm.alu(AluOp::And, Reg::R9, 15);
        self.asm.alu(AluOp::Lsh, Reg::R9, 2);
        self.asm.jump_if(Cond::Lt, Reg::R9, 20, malformed);
        self.asm.load(Size::B, Reg::R2, Reg::R7, ETHERNET as i16 + 9);
        self.store_protocol(Family::V4, Reg::R2);
        self.options_v4();
        self.fragment_v4(parsed);
        self.asm.alu(AluOp::Add, Reg::R9, ETHERNET);
        self.transport(Family::V4, parsed);
    }

    /// r2 holds the protocol and keeps it.
    fn store_protocol(&mut self, family: Family, reg: Reg) {
        self.asm.store(Size::W, Reg::R10, Frame::PROTOCOL, reg);
        self.asm.store(Size::W, Reg::R10, key(family).protocol, reg);
    }

    /// Non-first fragments take their ports from the first one; r2 is the protocol, r9 the header length.
    fn fragment_v4(&mut self, parsed: Label) {
        let (fragment, whole) = (self.drop_unless_open(Outcome::Fragment), self.asm.label("whole"));
        let later = self.asm.label("later fragment");
        self.asm.load(Size::H, Reg::R1, Reg::R7, ETHERNET as i16 + 6);
        self.asm.swap_be(SwapBits::B16, Reg::R1);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(AluOp::And, Reg::R3, 0x3fff);
        self.asm.jump_if(Cond::Eq, Reg::R3, 0, whole);
        self.asm.load(Size::H, Reg::R4, Reg::R7, ETHERNET as i16 + 4);
        self.asm.store(Size::W, Reg::R10, Frame::FRAGMENT_ID, Reg::R4);
        self.asm.alu(AluOp::And, Reg::R1, 0x1fff);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, later);
        self.store_constant(Frame::FRAGMENT, Frame::FIRST as u32);
        // The total length less the header's: what of the transport header this fragment holds.
        self.asm.load(Size::H, Reg::R3, Reg::R7, ETHERNET as i16 + 2);
        self.asm.swap_be(SwapBits::B16, Reg::R3);
        self.asm.alu(AluOp::Sub, Reg::R3, Reg::R9);
        self.whole_header(fragment);
        self.asm.jump(whole);
        self.asm.bind(later);
        // An offset of one unit overlaps TCP's flags.
        let not_tcp = self.asm.label("no tiny overlap");
        self.asm.jump_if(Cond::Ne, Reg::R2, TCP, not_tcp);
        self.asm.jump_if(Cond::Eq, Reg::R1, 1, fragment);
        self.asm.bind(not_tcp);
        self.recall_fragment(Family::V4, parsed);
        self.asm.bind(whole);
    }

    /// r3 is how much there is after the IP header, r2 the protocol: too little for a transport header deceives.
    fn whole_header(&mut self, fragment: Label) {
        let [enough, not_sctp] = ["whole header", "no sctp header"].map(|it| self.asm.label(it));
        self.asm.jump_if(Cond::Slt, Reg::R3, 8, fragment);
        self.asm.jump_if(Cond::Ne, Reg::R2, SCTP, not_sctp);
        self.asm.jump_if(Cond::Slt, Reg::R3, SCTP_BYTES + CHUNK_BYTES, fragment);
        self.asm.bind(not_sctp);
        self.asm.jump_if(Cond::Ne, Reg::R2, TCP, enough);
        self.asm.jump_if(Cond::Slt, Reg::R3, TCP_BYTES, fragment);
        self.asm.bind(enough);
    }

    /// Facts of an IPv6 packet; goes on at `parsed`.
    pub(super) fn parse_v6(&mut self, parsed: Label) {
        let malformed = self.drop_unless_open(Outcome::Malformed);
        self.need_linear(ETHERNET + 40);
        self.asm.load(Size::B, Reg::R1, Reg::R7, ETHERNET as i16);
        self.asm.alu(AluOp::Rsh, Reg::R1, 4);
        self.asm.jump_if(Cond::Ne, Reg::R1, 6, malformed);
        self.addresses(Family::V6, ETHERNET as i16 + 8, ETHERNET as i16 + 24);
        self.asm.load(Size::H, Reg::R3, Reg::R7, ETHERNET as i16 + 4);
        self.asm.swap_be(SwapBits::B16, Reg::R3);
        self.asm.store(Size::W, Reg::R10, Frame::PAYLOAD, Reg::R3);
        self.asm.load(Size::B, Reg::R3, Reg::R7, ETHERNET as i16 + 7);
        self.asm.store(Size::W, Reg::R10, Frame::HOP_LIMIT, Reg::R3);
        self.asm.load(Size::B, Reg::R2, Reg::R7, ETHERNET as i16 + 6);
        self.asm.mov(Reg::R9, ETHERNET + 40);
        let upper = self.asm.label("upper header");
        for _ in 0..MOST_EXTENSIONS {
            self.extension(upper, parsed);
        }
        let too_many = self.too_many_headers();
        self.asm.jump(too_many);
        self.asm.bind(upper);
        self.store_protocol(Family::V6, Reg::R2);
        self.transport(Family::V6, parsed);
    }

    /// Steps over one extension header (r2 says which); goes to `upper` if it is none.
    fn extension(&mut self, upper: Label, parsed: Label) {
        let [options, routing, fragment, next] =
            ["options", "routing header", "fragment header", "next header"].map(|name| self.asm.label(name));
        let malformed = self.too_many_headers();
        for header in OPTIONS {
            self.asm.jump_if(Cond::Eq, Reg::R2, header, options);
        }
        self.asm.jump_if(Cond::Eq, Reg::R2, ROUTING, routing);
        self.asm.jump_if(Cond::Eq, Reg::R2, FRAGMENT, fragment);
        self.asm.jump_if(Cond::Ne, Reg::R2, AUTHENTICATION, upper);
        self.extension_header(4);
        self.asm.jump(next);
        self.asm.bind(routing);
        self.routing_header();
        self.asm.bind(options);
        self.extension_header(8);
        self.asm.jump(next);
        self.asm.bind(fragment);
        self.fragment_v6(parsed);
        self.asm.bind(next);
        // Verifier: what follows is walked once, however long the headers were (see `forget_where`).
        self.asm.store(Size::W, Reg::R10, Frame::SCRATCH + 4, Reg::R9);
        self.asm.load(Size::W, Reg::R9, Reg::R10, Frame::SCRATCH + 4);
        self.asm.jump_if(Cond::Gt, Reg::R9, FARTHEST, malformed);
    }

    /// Where a packet goes whose headers are too many, or too long. From a pod it is dropped always: neighbour discovery could be behind
    /// them.
    fn too_many_headers(&mut self) -> Label {
        match self.hook {
            Direction::Egress => self.end(Outcome::Malformed),
            Direction::Ingress => self.drop_unless_open(Outcome::Malformed),
        }
    }

    /// With segments left, the destination that we see is not where the packet ends.
    fn routing_header(&mut self) {
        let source_route = self.drop_unless_open(Outcome::SourceRoute);
        self.need_at(8);
        self.asm.load(Size::B, Reg::R2, Reg::R1, 3);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, source_route);
    }

    /// r2 = the header after this one, r9 += its length, which counts in units beyond the first eight bytes.
    fn extension_header(&mut self, unit: i32) {
        self.need_at(8);
        self.asm.load(Size::B, Reg::R2, Reg::R1, 0);
        self.asm.load(Size::B, Reg::R3, Reg::R1, 1);
        self.asm.alu(AluOp::Mul, Reg::R3, unit);
        self.asm.alu(AluOp::Add, Reg::R3, 8);
        self.asm.alu(AluOp::Add, Reg::R9, Reg::R3);
    }

    fn fragment_v6(&mut self, parsed: Label) {
        let fragment = self.drop_unless_open(Outcome::Fragment);
        let [first, whole] = ["first fragment", "atomic fragment"].map(|name| self.asm.label(name));
        self.need_at(8);
        self.asm.load(Size::B, Reg::R2, Reg::R1, 0);
        self.asm.load(Size::W, Reg::R4, Reg::R1, 4);
        self.asm.store(Size::W, Reg::R10, Frame::FRAGMENT_ID, Reg::R4);
        self.store_constant(Frame::FRAGMENT, Frame::LATER as u32);
        self.asm.load(Size::H, Reg::R3, Reg::R1, 2);
        self.asm.swap_be(SwapBits::B16, Reg::R3);
        self.asm.alu(AluOp::Add, Reg::R9, 8);
        self.asm.mov(Reg::R4, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R4, 0xfff9);
        self.asm.jump_if(Cond::Eq, Reg::R4, 0, whole);
        self.asm.alu(AluOp::And, Reg::R3, 0xfff8);
        self.asm.jump_if(Cond::Eq, Reg::R3, 0, first);
        // The first fragment said what the upper header is; a later one only says what it was told.
        self.store_protocol(Family::V6, Reg::R2);
        self.recall_fragment(Family::V6, parsed);
        self.asm.bind(first);
        self.store_constant(Frame::FRAGMENT, Frame::FIRST as u32);
        // The ports must be here: a chain of headers that goes on could end in the second fragment, or behind the payload.
        for header in OPTIONS.into_iter().chain([ROUTING, FRAGMENT, AUTHENTICATION]) {
            self.asm.jump_if(Cond::Eq, Reg::R2, header, fragment);
        }
        // The payload length less what the extension headers took.
        self.asm.load(Size::W, Reg::R3, Reg::R10, Frame::PAYLOAD);
        self.asm.alu(AluOp::Add, Reg::R3, ETHERNET + 40);
        self.asm.alu(AluOp::Sub, Reg::R3, Reg::R9);
        self.whole_header(fragment);
        self.asm.bind(whole);
    }

    /// Ports, flags, ICMP; r2 is the protocol, r9 the offset. Goes on at `parsed`.
    fn transport(&mut self, family: Family, parsed: Label) {
        let [tcp, udp, sctp, icmp] = ["tcp", "udp", "sctp", "icmp"].map(|name| self.asm.label(name));
        self.asm.jump_if(Cond::Eq, Reg::R2, TCP, tcp);
        self.asm.jump_if(Cond::Eq, Reg::R2, UDP, udp);
        self.asm.jump_if(Cond::Eq, Reg::R2, SCTP, sctp);
        self.asm.jump_if(Cond::Eq, Reg::R2, icmp_number(family), icmp);
        self.asm.jump(parsed);
        self.asm.bind(tcp);
        self.need_at(TCP_BYTES);
        self.asm.load(Size::B, Reg::R2, Reg::R1, 13);
        self.asm.store(Size::W, Reg::R10, Frame::TCP_FLAGS, Reg::R2);
        self.read_ports(family, parsed);
        self.asm.bind(udp);
        self.need_at(8);
        self.read_ports(family, parsed);
        self.asm.bind(sctp);
        self.need_at(SCTP_BYTES + CHUNK_BYTES);
        self.sctp_flags();
        self.read_ports(family, parsed);
        self.asm.bind(icmp);
        self.need_at(8);
        self.icmp(family, parsed);
    }

    /// r1 points to an SCTP packet: what its first chunk does to the association, as TCP's flags say it.
    fn sctp_flags(&mut self) {
        let known = self.asm.label("sctp chunk");
        self.asm.load(Size::B, Reg::R2, Reg::R1, SCTP_BYTES as i16);
        for (chunk, flags) in [(INIT, SYN), (INIT_ACK, SYN | ACK), (ABORT, RST | ACK)] {
            self.asm.mov(Reg::R3, flags);
            self.asm.jump_if(Cond::Eq, Reg::R2, chunk, known);
        }
        self.asm.mov(Reg::R3, ACK);
        self.asm.bind(known);
        self.asm.store(Size::W, Reg::R10, Frame::TCP_FLAGS, Reg::R3);
    }

    /// r1 points to the source port, which the destination port follows; the remote one comes first in the key.
    fn read_ports(&mut self, family: Family, parsed: Label) {
        // Both in one piece: a load of two stores waits until they are out.
        self.asm.load(Size::W, Reg::R2, Reg::R1, 0);
        if self.hook == Direction::Egress {
            self.asm.mov32(Reg::R3, Reg::R2);
            self.asm.alu32(AluOp::Rsh, Reg::R2, 16);
            self.asm.alu32(AluOp::Lsh, Reg::R3, 16);
            self.asm.alu32(AluOp::Or, Reg::R2, Reg::R3);
        }
        self.asm.store(Size::W, Reg::R10, key(family).remote_port, Reg::R2);
        self.asm.jump(parsed);
    }

    /// Copies source and destination address to where this hook has them. From here on the family is known: before, there
    /// is no source to be checked.
    fn addresses(&mut self, family: Family, source: i16, destination: i16) {
        self.store_constant(Frame::FAMILY, family_number(family));
        let bytes = address_bytes(family);
        let (local, remote) = match self.hook {
            Direction::Ingress => (destination, source),
            Direction::Egress => (source, destination),
        };
        let (size, step) = if family == Family::V4 { (Size::W, 4) } else { (Size::Dw, 8) };
        for offset in (0..bytes).step_by(step) {
            for (from, to) in [(local, Frame::LOCAL), (remote, Key::REMOTE)] {
                self.asm.load(size, Reg::R1, Reg::R7, from + offset);
                self.asm.store(size, Reg::R10, to + offset, Reg::R1);
            }
        }
    }

    /// r7, r8 = packet start and end, with at least `bytes` between.
    pub(super) fn need_linear(&mut self, bytes: i32) {
        let there = self.asm.label("linear");
        self.load_packet();
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R1, bytes);
        self.asm.jump_if(Cond::Le, Reg::R1, Reg::R8, there);
        self.pull();
        let malformed = self.drop_unless_open(Outcome::Malformed);
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R1, bytes);
        self.asm.jump_if(Cond::Gt, Reg::R1, Reg::R8, malformed);
        self.asm.bind(there);
    }

    /// r1 = packet start + r9, with at least `bytes` after it. r2 to r5 are lost if it has to be pulled in, so nothing
    /// may live there.
    pub(super) fn need_at(&mut self, bytes: i32) {
        let there = self.asm.label("in reach");
        let malformed = self.drop_unless_open(Outcome::Malformed);
        self.point_at(bytes);
        self.asm.jump_if(Cond::Le, Reg::R3, Reg::R8, there);
        self.pull();
        self.point_at(bytes);
        self.asm.jump_if(Cond::Gt, Reg::R3, Reg::R8, malformed);
        self.asm.bind(there);
    }

    fn point_at(&mut self, bytes: i32) {
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R9);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(AluOp::Add, Reg::R3, bytes);
    }

    /// Makes the headers linear, as far as the packet goes.
    fn pull(&mut self) {
        let whole = self.asm.label("short packet");
        self.asm.load(Size::W, Reg::R2, Reg::R6, skb::LEN);
        self.asm.jump_if(Cond::Le, Reg::R2, PULLED, whole);
        self.asm.mov(Reg::R2, PULLED);
        self.asm.bind(whole);
        self.asm.mov(Reg::R1, Reg::R6);
        self.asm.call(Helper::SKB_PULL_DATA);
        self.load_packet();
    }

    fn load_packet(&mut self) {
        self.asm.load(Size::W, Reg::R7, Reg::R6, skb::DATA);
        self.asm.load(Size::W, Reg::R8, Reg::R6, skb::DATA_END);
    }
}

/// Offsets in a family's flow key.
pub(super) fn key(family: Family) -> Key {
    Key::of(address_bytes(family))
}

/// The protocol number of a family's ICMP.
pub(super) fn icmp_number(family: Family) -> i32 {
    if family == Family::V4 { ICMP } else { ICMPV6 }
}

/// As events and the frame have it.
pub(super) fn family_number(family: Family) -> u32 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

pub(super) fn address_bytes(family: Family) -> i16 {
    i16::from(family.bits()) / 8
}
