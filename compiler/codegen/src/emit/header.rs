//! IP headers: where their fields are, and how each field is read. Nothing else knows an offset in an IP header.
//!
//! Problem: four emitters read IP headers: the parser, the fast path, the quoted packet of an ICMP error and the
//! program at the edge. They use different registers, and treat packets with options or fragments differently.
//! Strategy: an [`IpHeader`] says where the header is; each function here reads one field of it, into the caller's register.
//! Invariant: the caller has compared the header's end with the end of the packet.

use super::Emitter;
use super::frame::{FlowKey, StackFrame};
use super::parse::ETHERNET;
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size, SwapBits};
use weir_model::Direction;
use weir_objects::address::Family;

/// Offsets in an IPv4 header.
mod v4 {
    pub(super) const TOTAL_LENGTH: i16 = 2;
    pub(super) const IDENTIFICATION: i16 = 4;
    pub(super) const FRAGMENT: i16 = 6;
    pub(super) const PROTOCOL: i16 = 9;
    pub(super) const SOURCE: i16 = 12;
    pub(super) const DESTINATION: i16 = 16;
}

/// Offsets in an IPv6 header.
mod v6 {
    pub(super) const PAYLOAD_LENGTH: i16 = 4;
    pub(super) const NEXT_HEADER: i16 = 6;
    pub(super) const HOP_LIMIT: i16 = 7;
    pub(super) const SOURCE: i16 = 8;
    pub(super) const DESTINATION: i16 = 24;
}

/// Offsets in an IPv6 extension header.
pub(super) mod extension {
    pub(crate) const NEXT_HEADER: i16 = 0;
    /// In units of eight bytes (of four for the authentication header), without the first eight bytes.
    pub(crate) const LENGTH: i16 = 1;
    /// In a routing header.
    pub(crate) const SEGMENTS_LEFT: i16 = 3;
    /// In a fragment header: the offset, two reserved bits, and whether more fragments follow.
    pub(crate) const FRAGMENT: i16 = 2;
    /// In a fragment header.
    pub(crate) const IDENTIFICATION: i16 = 4;
    /// The length of a fragment header, and the shortest length of the others.
    pub(crate) const BYTES: i32 = 8;
}

/// In IPv4's fragment field: the fragment's offset.
pub(super) const OFFSET: u16 = 0x1fff;
/// In IPv4's fragment field: the offset, and the flag that says that more fragments follow. The flag "don't fragment"
/// does not matter.
pub(super) const OFFSET_OR_MORE: u16 = 0x3fff;
/// In an IPv6 fragment header: the fragment's offset.
pub(super) const OFFSET_V6: u16 = 0xfff8;
/// In an IPv6 fragment header: the offset, and the flag that says that more fragments follow.
pub(super) const OFFSET_OR_MORE_V6: u16 = 0xfff9;

/// The first byte of an IPv4 header without options: version 4, and five words.
pub(super) const PLAIN_V4: i32 = 0x45;

/// An IP header in memory.
#[derive(Clone, Copy)]
pub(super) struct IpHeader {
    family: Family,
    /// The register that the offset is from.
    base: Reg,
    at: i16,
}

impl IpHeader {
    /// The header of the packet whose Ethernet header `base` points to.
    pub(super) fn of_packet(family: Family, base: Reg) -> Self {
        Self { family, base, at: ETHERNET as i16 }
    }

    /// The header of the packet that an ICMP error quotes; `base` points to the ICMP header.
    pub(super) fn quoted(family: Family, base: Reg) -> Self {
        // Errors of both families have eight bytes before the quoted packet.
        Self { family, base, at: 8 }
    }

    /// Its length without options or extension headers.
    pub(super) const fn bytes(family: Family) -> i32 {
        match family {
            Family::V4 => 20,
            Family::V6 => 40,
        }
    }

    /// The offset of what follows the header, without options or extension headers.
    pub(super) fn transport(self) -> i16 {
        self.at + Self::bytes(self.family) as i16
    }

    /// The offsets of the pod's address and of the other end's, in a packet that goes in this direction.
    pub(super) fn ends(self, direction: Direction) -> [i16; 2] {
        let (source, destination) = match self.family {
            Family::V4 => (v4::SOURCE, v4::DESTINATION),
            Family::V6 => (v6::SOURCE, v6::DESTINATION),
        };
        match direction {
            Direction::Ingress => [destination, source].map(|it| self.at + it),
            Direction::Egress => [source, destination].map(|it| self.at + it),
        }
    }
}

impl Emitter<'_> {
    /// `reg` = the header's first byte: version, and IPv4's header length.
    pub(super) fn load_version(&mut self, header: IpHeader, reg: Reg) {
        self.asm.load(Size::B, reg, header.base, header.at);
    }

    /// `first` holds the header's first byte and is overwritten. Goes to `otherwise` unless the version is the
    /// family's.
    pub(super) fn unless_version(&mut self, family: Family, first: Reg, otherwise: Label) {
        // The EtherType alone is no proof: the sender chooses both, and hosts drop the packet if they differ.
        self.asm.alu(AluOp::Rsh, first, 4);
        self.asm.jump_if(Cond::Ne, first, if family == Family::V4 { 4 } else { 6 }, otherwise);
    }

    /// Goes to `otherwise` unless the header is whole in the usual way: without options or fragmentation. `scratch` is
    /// overwritten. IPv6 extension headers, a fragment's too, show in the protocol.
    pub(super) fn unless_plain(&mut self, header: IpHeader, scratch: Reg, otherwise: Label) {
        self.load_version(header, scratch);
        match header.family {
            Family::V4 => {
                self.asm.jump_if(Cond::Ne, scratch, PLAIN_V4, otherwise);
                self.load_fragment_field(header, scratch);
                self.asm.jump_if(Cond::Set, scratch, i32::from(OFFSET_OR_MORE.to_be()), otherwise);
            }
            Family::V6 => self.unless_version(Family::V6, scratch, otherwise),
        }
    }

    /// `first` holds the first byte of an IPv4 header and becomes the header's length. Goes to `short` if that is less
    /// than the length without options.
    pub(super) fn header_length(&mut self, first: Reg, short: Label) {
        self.asm.alu(AluOp::And, first, 15);
        self.asm.alu(AluOp::Lsh, first, 2);
        self.asm.jump_if(Cond::Lt, first, IpHeader::bytes(Family::V4), short);
    }

    /// `reg` = the number of the protocol, for IPv6 of the next header.
    pub(super) fn load_protocol(&mut self, header: IpHeader, reg: Reg) {
        let at = if header.family == Family::V4 { v4::PROTOCOL } else { v6::NEXT_HEADER };
        self.asm.load(Size::B, reg, header.base, header.at + at);
    }

    /// `reg` = the length in the header: for IPv4 the packet's, for IPv6 the payload's.
    pub(super) fn load_length(&mut self, header: IpHeader, reg: Reg) {
        let at = if header.family == Family::V4 { v4::TOTAL_LENGTH } else { v6::PAYLOAD_LENGTH };
        self.asm.load(Size::H, reg, header.base, header.at + at);
        self.asm.swap_be(SwapBits::B16, reg);
    }

    /// `reg` = IPv4's flags and fragment offset, in network order.
    pub(super) fn load_fragment_field(&mut self, header: IpHeader, reg: Reg) {
        self.asm.load(Size::H, reg, header.base, header.at + v4::FRAGMENT);
    }

    /// `reg` = IPv4's identification, in network order: it is only compared.
    pub(super) fn load_identification(&mut self, header: IpHeader, reg: Reg) {
        self.asm.load(Size::H, reg, header.base, header.at + v4::IDENTIFICATION);
    }

    /// `reg` = IPv6's hop limit.
    pub(super) fn load_hop_limit(&mut self, header: IpHeader, reg: Reg) {
        self.asm.load(Size::B, reg, header.base, header.at + v6::HOP_LIMIT);
    }

    /// Copies both addresses to their places on the stack; r1 is overwritten.
    pub(super) fn copy_addresses(&mut self, header: IpHeader) {
        let [local, remote] = header.ends(self.hook);
        // IPv6 addresses are copied in halves. They are not aligned in the packet, which is cheap on the architectures
        // that Weir supports. The stack places are aligned: the verifier insists on that.
        let (size, step) = if header.family == Family::V4 { (Size::W, 4) } else { (Size::Dw, 8) };
        for offset in (0..super::parse::address_bytes(header.family)).step_by(step) {
            for (from, to) in [(local, StackFrame::LOCAL), (remote, FlowKey::REMOTE)] {
                self.asm.load(size, Reg::R1, header.base, from + offset);
                self.asm.store(size, Reg::R10, to + offset, Reg::R1);
            }
        }
    }
}
