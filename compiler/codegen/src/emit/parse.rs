//! Header parsing: from the packet's headers to facts on the stack.
//!
//! Headers outside of the linear area are pulled in, once at the start and again where options or extension headers
//! reach further. A packet whose headers are still out of reach is malformed. IPv4 options are skipped with the help of
//! IHL, and walked to find source routes. IPv6 extension headers are followed up to a bound. A first fragment must
//! contain its whole transport header: a sender that splits the header tries to hide it from filters.

use super::Emitter;
use super::flows::{ACK, RST, SYN};
use super::frame::{FlowKey, StackFrame, skb};
use super::header::{IpHeader, OFFSET, OFFSET_OR_MORE, OFFSET_OR_MORE_V6, OFFSET_V6, extension};
use weir_artifact::layout::Outcome;
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size, SwapBits};
use weir_model::Direction;
use weir_objects::address::Family;

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: i32 = 14;
/// The number of extension headers that are followed. A packet with more is malformed.
const MOST_EXTENSIONS: usize = 6;
/// The largest offset at which a header is read. It also bounds the offset for the verifier.
pub(super) const FARTHEST: i32 = 1_024;
/// How many bytes are pulled in.
const PULLED: i32 = FARTHEST + 64;

pub(super) const ICMP: i32 = 1;
pub(super) const TCP: i32 = 6;
pub(super) const UDP: i32 = 17;
pub(super) const ICMPV6: i32 = 58;
pub(super) const SCTP: i32 = 132;

/// The length of a TCP header without options.
const TCP_BYTES: i32 = 20;
/// The length of the common header of every SCTP packet.
const SCTP_BYTES: i32 = 12;
/// The length of an SCTP chunk's header.
const CHUNK_BYTES: i32 = 4;
/// SCTP chunk types.
const INIT: i32 = 1;
const INIT_ACK: i32 = 2;
const ABORT: i32 = 6;

/// IPv6 extension headers that are skipped: hop-by-hop, routing, fragment, authentication, destination options,
/// mobility.
pub(super) const ROUTING: i32 = 43;
pub(super) const FRAGMENT: i32 = 44;
const AUTHENTICATION: i32 = 51;
pub(super) const OPTIONS: [i32; 3] = [0, 60, 135];

impl Emitter<'_> {
    /// Parses an IPv4 packet and continues at `parsed`.
    pub(super) fn parse_v4(&mut self, parsed: Label) {
        let malformed = self.drop_unless_open(Outcome::Malformed);
        let header = IpHeader::of_packet(Family::V4, Reg::R7);
        self.need_linear(ETHERNET + IpHeader::bytes(Family::V4));
        // The addresses are copied before the other checks, so that the record of a malformed packet names its sender,
        // and its source is checked.
        self.addresses(header, Family::V4);
        self.load_version(header, Reg::R9);
        self.asm.mov(Reg::R1, Reg::R9);
        self.unless_version(Family::V4, Reg::R1, malformed);
        self.header_length(Reg::R9, malformed);
        self.load_protocol(header, Reg::R2);
        self.store_frame(StackFrame::PROTOCOL, Reg::R2);
        // Options before fragments: every fragment of a source-routed packet carries the route (RFC 791), so each is
        // recognised by itself.
        self.options_v4();
        self.fragment_v4(header, parsed);
        self.asm.alu(AluOp::Add, Reg::R9, ETHERNET);
        self.transport(Family::V4, parsed);
    }

    /// Handles fragmentation: later fragments take their ports from the first one. r2 is the protocol, r9 the header
    /// length.
    fn fragment_v4(&mut self, header: IpHeader, parsed: Label) {
        let (fragment, whole) = (self.drop_unless_open(Outcome::Fragment), self.asm.label("whole"));
        let later = self.asm.label("later fragment");
        self.load_fragment_field(header, Reg::R1);
        self.asm.swap_be(SwapBits::B16, Reg::R1);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(AluOp::And, Reg::R3, i32::from(OFFSET_OR_MORE));
        self.asm.jump_if(Cond::Eq, Reg::R3, 0, whole);
        self.load_identification(header, Reg::R4);
        self.store_frame(StackFrame::FRAGMENT_ID, Reg::R4);
        // Verifier: again, because it must be the last store to its slot on every path (see `StackFrame`).
        self.store_frame(StackFrame::PROTOCOL, Reg::R2);
        self.asm.alu(AluOp::And, Reg::R1, i32::from(OFFSET));
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, later);
        self.store_constant(StackFrame::FRAGMENT, StackFrame::FIRST as u32);
        // The total length less the header's length: how much of the transport header is in this fragment.
        self.load_length(header, Reg::R3);
        self.asm.alu(AluOp::Sub, Reg::R3, Reg::R9);
        self.whole_header(fragment);
        self.asm.jump(whole);
        self.asm.bind(later);
        // A fragment at offset 1 (8 bytes) would overwrite TCP's flags at reassembly.
        let not_tcp = self.asm.label("no tiny overlap");
        self.asm.jump_if(Cond::Ne, Reg::R2, TCP, not_tcp);
        self.asm.jump_if(Cond::Eq, Reg::R1, 1, fragment);
        self.asm.bind(not_tcp);
        self.recall_fragment(Family::V4, parsed);
        self.asm.bind(whole);
    }

    /// r3 is the number of bytes after the IP header, r2 the protocol. Goes to `fragment` if they do not contain the
    /// whole transport header.
    fn whole_header(&mut self, fragment: Label) {
        let [enough, not_sctp] = ["whole header", "no sctp header"].map(|it| self.asm.label(it));
        // Signed: the length in the header may be less than the header's own length.
        self.asm.jump_if(Cond::Slt, Reg::R3, 8, fragment);
        self.asm.jump_if(Cond::Ne, Reg::R2, SCTP, not_sctp);
        self.asm.jump_if(Cond::Slt, Reg::R3, SCTP_BYTES + CHUNK_BYTES, fragment);
        self.asm.bind(not_sctp);
        self.asm.jump_if(Cond::Ne, Reg::R2, TCP, enough);
        self.asm.jump_if(Cond::Slt, Reg::R3, TCP_BYTES, fragment);
        self.asm.bind(enough);
    }

    /// Parses an IPv6 packet and continues at `parsed`.
    pub(super) fn parse_v6(&mut self, parsed: Label) {
        let malformed = self.drop_unless_open(Outcome::Malformed);
        let header = IpHeader::of_packet(Family::V6, Reg::R7);
        self.need_linear(ETHERNET + IpHeader::bytes(Family::V6));
        self.load_version(header, Reg::R1);
        self.unless_version(Family::V6, Reg::R1, malformed);
        self.addresses(header, Family::V6);
        self.load_length(header, Reg::R3);
        self.store_frame(StackFrame::PAYLOAD, Reg::R3);
        self.load_hop_limit(header, Reg::R3);
        self.store_frame(StackFrame::HOP_LIMIT, Reg::R3);
        self.load_protocol(header, Reg::R2);
        self.asm.mov(Reg::R9, ETHERNET + IpHeader::bytes(Family::V6));
        let upper = self.asm.label("upper header");
        // Unrolled. Loops are possible in programs since Linux 5.3, but the verifier walks each round anyway.
        for _ in 0..MOST_EXTENSIONS {
            self.extension(upper, parsed);
        }
        let too_many = self.too_many_headers();
        self.asm.jump(too_many);
        self.asm.bind(upper);
        self.store_frame(StackFrame::PROTOCOL, Reg::R2);
        self.transport(Family::V6, parsed);
    }

    /// Skips one extension header; r2 is its type. Goes to `upper` if r2 is not an extension header.
    fn extension(&mut self, upper: Label, parsed: Label) {
        let [options, routing, fragment, next] =
            ["options", "routing header", "fragment header", "next header"].map(|name| self.asm.label(name));
        let malformed = self.too_many_headers();
        for header in OPTIONS {
            self.asm.jump_if(Cond::Eq, Reg::R2, header, options);
        }
        self.asm.jump_if(Cond::Eq, Reg::R2, ROUTING, routing);
        self.asm.jump_if(Cond::Eq, Reg::R2, FRAGMENT, fragment);
        // ESP is no header to skip: what follows it is encrypted, so the packet is judged as protocol 50, without
        // ports.
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
        // Verifier: the verifier walks the code that follows only once for all lengths of the headers (see
        // `forget_where`).
        self.store_frame(StackFrame::SCRATCH + 4, Reg::R9);
        self.load_frame(Reg::R9, StackFrame::SCRATCH + 4);
        self.asm.jump_if(Cond::Gt, Reg::R9, FARTHEST, malformed);
    }

    /// The label for packets whose headers are too many or too long. Such a packet from a pod is always dropped:
    /// neighbour discovery could be hidden behind the headers.
    fn too_many_headers(&mut self) -> Label {
        match self.hook {
            Direction::Egress => self.end(Outcome::Malformed),
            Direction::Ingress => self.drop_unless_open(Outcome::Malformed),
        }
    }

    /// If segments are left, the destination address in the header is not the final destination.
    fn routing_header(&mut self) {
        let source_route = self.drop_unless_open(Outcome::SourceRoute);
        self.need_at(extension::BYTES);
        self.asm.load(Size::B, Reg::R2, Reg::R1, extension::SEGMENTS_LEFT);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, source_route);
    }

    /// r2 = type of the next header, r9 += length of this header. Its length field counts units beyond the first eight
    /// bytes.
    fn extension_header(&mut self, unit: i32) {
        self.need_at(extension::BYTES);
        self.asm.load(Size::B, Reg::R2, Reg::R1, extension::NEXT_HEADER);
        self.asm.load(Size::B, Reg::R3, Reg::R1, extension::LENGTH);
        self.asm.alu(AluOp::Mul, Reg::R3, unit);
        self.asm.alu(AluOp::Add, Reg::R3, extension::BYTES);
        self.asm.alu(AluOp::Add, Reg::R9, Reg::R3);
    }

    fn fragment_v6(&mut self, parsed: Label) {
        let fragment = self.drop_unless_open(Outcome::Fragment);
        let [first, whole] = ["first fragment", "atomic fragment"].map(|name| self.asm.label(name));
        self.need_at(extension::BYTES);
        self.asm.load(Size::B, Reg::R2, Reg::R1, extension::NEXT_HEADER);
        self.asm.load(Size::W, Reg::R4, Reg::R1, extension::IDENTIFICATION);
        self.store_frame(StackFrame::FRAGMENT_ID, Reg::R4);
        self.store_constant(StackFrame::FRAGMENT, StackFrame::LATER as u32);
        self.asm.load(Size::H, Reg::R3, Reg::R1, extension::FRAGMENT);
        self.asm.swap_be(SwapBits::B16, Reg::R3);
        self.asm.alu(AluOp::Add, Reg::R9, extension::BYTES);
        self.asm.mov(Reg::R4, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R4, i32::from(OFFSET_OR_MORE_V6));
        self.asm.jump_if(Cond::Eq, Reg::R4, 0, whole);
        self.asm.alu(AluOp::And, Reg::R3, i32::from(OFFSET_V6));
        self.asm.jump_if(Cond::Eq, Reg::R3, 0, first);
        // The first fragment gives the type of the upper header; a later fragment only repeats the number. The number
        // is part of the hash, so a fragment with another number does not find the ports.
        self.store_frame(StackFrame::PROTOCOL, Reg::R2);
        self.recall_fragment(Family::V6, parsed);
        self.asm.bind(first);
        self.store_constant(StackFrame::FRAGMENT, StackFrame::FIRST as u32);
        // The ports must be in this fragment. A further extension header could continue in the second fragment, and the
        // ports with it.
        for header in OPTIONS.into_iter().chain([ROUTING, FRAGMENT, AUTHENTICATION]) {
            self.asm.jump_if(Cond::Eq, Reg::R2, header, fragment);
        }
        // The payload length less the length of the extension headers.
        self.load_frame(Reg::R3, StackFrame::PAYLOAD);
        self.asm.alu(AluOp::Add, Reg::R3, ETHERNET + IpHeader::bytes(Family::V6));
        self.asm.alu(AluOp::Sub, Reg::R3, Reg::R9);
        self.whole_header(fragment);
        self.asm.bind(whole);
    }

    /// Stores ports, flags and ICMP facts; r2 is the protocol, r9 the offset of the transport header. Continues at
    /// `parsed`.
    fn transport(&mut self, family: Family, parsed: Label) {
        let [tcp, udp, sctp, icmp] = ["tcp", "udp", "sctp", "icmp"].map(|name| self.asm.label(name));
        self.asm.jump_if(Cond::Eq, Reg::R2, TCP, tcp);
        self.asm.jump_if(Cond::Eq, Reg::R2, UDP, udp);
        self.asm.jump_if(Cond::Eq, Reg::R2, SCTP, sctp);
        self.asm.jump_if(Cond::Eq, Reg::R2, icmp_number(family), icmp);
        self.no_ports(family, Reg::R2);
        self.asm.jump(parsed);
        self.asm.bind(tcp);
        self.need_at(TCP_BYTES);
        self.asm.load(Size::B, Reg::R2, Reg::R1, 13);
        self.store_frame(StackFrame::TCP_FLAGS, Reg::R2);
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

    /// Stores zeros as the packet's ports; r3 is overwritten. `unknown` holds a number that the verifier does not know.
    // The entry has cleared them, with other bytes in one store. Verifier: without a store of the ports alone, their
    // slot would be in another state than on paths with ports (see `StackFrame`).
    pub(super) fn no_ports(&mut self, family: Family, unknown: Reg) {
        self.hidden_zero(Reg::R3, unknown);
        self.store_frame(key(family).remote_port, Reg::R3);
    }

    /// r1 points to an SCTP packet. Stores the effect of its first chunk on the association, expressed in TCP's flags.
    fn sctp_flags(&mut self) {
        let known = self.asm.label("sctp chunk");
        self.asm.load(Size::B, Reg::R2, Reg::R1, SCTP_BYTES as i16);
        // SCTP packets begin with their control chunks, and INIT must be alone in its packet (RFC 9260), so the first
        // chunk shows whether an association begins.
        for (chunk, flags) in [(INIT, SYN), (INIT_ACK, SYN | ACK), (ABORT, RST | ACK)] {
            self.asm.mov(Reg::R3, flags);
            self.asm.jump_if(Cond::Eq, Reg::R2, chunk, known);
        }
        self.asm.mov(Reg::R3, ACK);
        self.asm.bind(known);
        self.store_frame(StackFrame::TCP_FLAGS, Reg::R3);
    }

    /// r1 points to the source port; the destination port follows it. In the key the remote port comes first.
    fn read_ports(&mut self, family: Family, parsed: Label) {
        // One load and one store for both ports. Two stores and a later load of both would stall: the CPU cannot
        // forward them.
        self.asm.load(Size::W, Reg::R2, Reg::R1, 0);
        if self.hook == Direction::Egress {
            self.asm.mov32(Reg::R3, Reg::R2);
            self.asm.alu32(AluOp::Rsh, Reg::R2, 16);
            self.asm.alu32(AluOp::Lsh, Reg::R3, 16);
            self.asm.alu32(AluOp::Or, Reg::R2, Reg::R3);
        }
        self.store_frame(key(family).remote_port, Reg::R2);
        self.asm.jump(parsed);
    }

    /// Copies the source and the destination address to their places on the stack for this hook. Sets `FAMILY`, which
    /// says that the frame holds addresses: before, there is no source address to check.
    fn addresses(&mut self, header: IpHeader, family: Family) {
        self.store_constant(StackFrame::FAMILY, family_number(family));
        self.copy_addresses(header);
    }

    /// r7, r8 = start and end of the packet's linear area, with at least `bytes` bytes between them.
    pub(super) fn need_linear(&mut self, bytes: i32) {
        let there = self.asm.label("linear");
        self.load_packet();
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R1, bytes);
        // Drivers usually put all headers into the linear area. A pull may allocate memory and copies, so it is tried
        // only where it is needed.
        self.asm.jump_if(Cond::Le, Reg::R1, Reg::R8, there);
        self.pull();
        let malformed = self.drop_unless_open(Outcome::Malformed);
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R1, bytes);
        self.asm.jump_if(Cond::Gt, Reg::R1, Reg::R8, malformed);
        self.asm.bind(there);
    }

    /// r1 = packet start + r9, with at least `bytes` bytes after it. A pull destroys r2 to r5, so they must not hold
    /// live values.
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

    /// Pulls the headers into the linear area, up to [`PULLED`] bytes.
    fn pull(&mut self) {
        let whole = self.asm.label("short packet");
        self.load_context(Reg::R2, skb::LEN);
        // The helper fails if it is asked for more bytes than the packet has.
        self.asm.jump_if(Cond::Le, Reg::R2, PULLED, whole);
        self.asm.mov(Reg::R2, PULLED);
        self.asm.bind(whole);
        self.asm.mov(Reg::R1, Reg::R6);
        self.asm.call(Helper::SKB_PULL_DATA);
        self.load_packet();
    }

    fn load_packet(&mut self) {
        self.load_context(Reg::R7, skb::DATA);
        self.load_context(Reg::R8, skb::DATA_END);
    }
}

/// The offsets in a family's flow key.
pub(super) fn key(family: Family) -> FlowKey {
    FlowKey::of(address_bytes(family))
}

/// The protocol number of ICMP for a family.
pub(super) fn icmp_number(family: Family) -> i32 {
    if family == Family::V4 { ICMP } else { ICMPV6 }
}

/// The family's number in events and on the stack.
pub(super) fn family_number(family: Family) -> u32 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

pub(super) fn address_bytes(family: Family) -> i16 {
    i16::from(family.bits()) / 8
}
