//! The program at the edge of the node (XDP). It drops packets whose source the deny lists block for every local pod,
//! and no others.
//!
//! ```text
//!  plain enough? ─▶ class of the source ─▶ denied for all? ─▶ flows are cut? ─▶ to a pod that is enforced? ─▶ drop
//!        └──no──────────────────────────────────no───────────────no────────────────no──▶ on to `to_pod`
//! ```
//!
//! Packets that do not match go on, and `to_pod` decides about them as about any packet: encapsulations, IPv6 extension
//! headers other than a fragment's, ICMP other than echo (any router may send an error about an allowed flow),
//! and packets of a pod to itself. So this program may miss packets, but it must never drop one that policy allows. The
//! register contract is that of [`super::frame`]; r9 is the packet's length.

use super::frame::{FlowKey, StackFrame};
use super::header::{IpHeader, OFFSET_OR_MORE, PLAIN_V4, extension};
use super::parse::{ETHERNET, FRAGMENT, ICMP, ICMPV6, SCTP, TCP, UDP, address_bytes};
use super::{Emitter, ether_type};
use crate::emit::shapes::ExactShape;
use weir_artifact::layout::{MapName, config};
use weir_classes::AddressMap;
use weir_classes::edge_denials::EdgeDenials;
use weir_ebpf::asm::Label;
use weir_ebpf::context::xdp;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_objects::address::Family;

/// `XDP_DROP`: the kernel drops the packet.
const DROP: i32 = 1;
/// `XDP_PASS`: the packet continues into the kernel.
const PASS: i32 = 2;
/// EtherTypes of VLAN tags. One tag is skipped.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const TAG_BYTES: i32 = 4;
const V4: i32 = IpHeader::bytes(Family::V4);
const V6: i32 = IpHeader::bytes(Family::V6);
const TRANSPORTS: [i32; 3] = [TCP, UDP, SCTP];

impl Emitter<'_> {
    pub(super) fn edge(&mut self, addresses: &AddressMap, edge: &EdgeDenials) {
        let [pass, drop, tagged, plain] = ["pass", "drop", "tagged", "untagged"].map(|name| self.asm.label(name));
        self.asm.load(Size::W, Reg::R7, Reg::R1, xdp::DATA);
        self.asm.load(Size::W, Reg::R8, Reg::R1, xdp::DATA_END);
        // The shortest header that is judged. A shorter packet passes here, and `to_pod` drops it as malformed.
        self.need(ETHERNET + V4, pass);
        self.asm.load(Size::H, Reg::R2, Reg::R7, 12);
        for tag in TAGS {
            self.asm.jump_if(Cond::Eq, Reg::R2, i32::from(tag.to_be()), tagged);
        }
        self.asm.jump(plain);
        self.asm.bind(tagged);
        // r7 moves over the tag, so all offsets behind stay those of an untagged packet. Two tags are not skipped: the
        // second EtherType is no family, and the packet passes.
        self.asm.alu(AluOp::Add, Reg::R7, TAG_BYTES);
        self.need(ETHERNET + V4, pass);
        self.asm.load(Size::H, Reg::R2, Reg::R7, 12);
        self.asm.bind(plain);
        for family in self.plan.families.clone() {
            let next = self.asm.label("another family");
            self.asm.jump_if(Cond::Ne, Reg::R2, ether_type(family), next);
            // Every check that fails goes to `pass`. The program may miss packets, because `to_pod` judges them again,
            // but a packet that is dropped here has no second judge.
            self.at_a_glance(family, pass);
            self.denied_to_all(family, addresses, edge, pass);
            self.asm.jump(drop);
            self.asm.bind(next);
        }
        self.asm.bind(pass);
        self.asm.mov(Reg::R0, PASS);
        self.asm.exit();
        self.asm.bind(drop);
        self.count_drop();
        self.asm.mov(Reg::R0, DROP);
        self.asm.exit();
    }

    /// Goes to `pass` unless the packet has this many bytes from r7 on.
    fn need(&mut self, bytes: i32, pass: Label) {
        self.asm.mov(Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Add, Reg::R1, bytes);
        self.asm.jump_if(Cond::Gt, Reg::R1, Reg::R8, pass);
    }

    /// Goes to `pass` unless the source alone can decide about the packet. Copies the addresses to the stack; r9 = the
    /// packet's length.
    fn at_a_glance(&mut self, family: Family, pass: Label) {
        let known = self.asm.label("transport");
        match family {
            Family::V4 => self.glance_v4(known, pass),
            Family::V6 => self.glance_v6(known, pass),
        }
        self.asm.bind(known);
        self.copy_addresses(IpHeader::of_packet(family, Reg::R7));
    }

    /// r9 = the packet's length: the length in its IP header and Ethernet's 14 bytes. `beside` is the number of bytes
    /// that the field does not count.
    // The context of XDP has no length, and the linear area may end before a large packet does.
    fn length(&mut self, header: IpHeader, beside: i32) {
        self.load_length(header, Reg::R9);
        self.asm.alu(AluOp::Add, Reg::R9, ETHERNET + beside);
    }

    fn glance_v4(&mut self, known: Label, pass: Label) {
        let header = IpHeader::of_packet(Family::V4, Reg::R7);
        self.load_version(header, Reg::R3);
        self.asm.mov(Reg::R1, Reg::R3);
        self.unless_version(Family::V4, Reg::R1, pass);
        self.length(header, 0);
        self.load_protocol(header, Reg::R1);
        // Options and fragments do not matter for these protocols: only the source decides, and it is in the fixed
        // header of every fragment.
        self.jump_if_transport(known);
        self.asm.jump_if(Cond::Ne, Reg::R1, ICMP, pass);
        // With options or in fragments, the ICMP type is not at the usual place.
        self.asm.jump_if(Cond::Ne, Reg::R3, PLAIN_V4, pass);
        self.load_fragment_field(header, Reg::R1);
        self.asm.alu(AluOp::And, Reg::R1, i32::from(OFFSET_OR_MORE.to_be()));
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, pass);
        self.echo(ETHERNET + V4, [8, 0], known, pass);
    }

    fn glance_v6(&mut self, known: Label, pass: Label) {
        let fragment = self.asm.label("fragment");
        self.need(ETHERNET + V6, pass);
        let header = IpHeader::of_packet(Family::V6, Reg::R7);
        self.load_version(header, Reg::R1);
        self.unless_version(Family::V6, Reg::R1, pass);
        self.length(header, V6);
        self.load_protocol(header, Reg::R1);
        self.jump_if_transport(known);
        self.asm.jump_if(Cond::Eq, Reg::R1, FRAGMENT, fragment);
        self.asm.jump_if(Cond::Ne, Reg::R1, ICMPV6, pass);
        self.echo(ETHERNET + V6, [128, 129], known, pass);
        self.asm.bind(fragment);
        // One fragment header is followed. Longer chains of headers pass.
        self.need(ETHERNET + V6 + extension::BYTES, pass);
        self.asm.load(Size::B, Reg::R1, Reg::R7, (ETHERNET + V6) as i16 + extension::NEXT_HEADER);
        self.jump_if_transport(known);
        self.asm.jump(pass);
    }

    fn jump_if_transport(&mut self, known: Label) {
        for protocol in TRANSPORTS {
            self.asm.jump_if(Cond::Eq, Reg::R1, protocol, known);
        }
    }

    /// Goes to `known` for echo requests and replies. Other ICMP could be about another host's flow.
    fn echo(&mut self, at: i32, types: [i32; 2], known: Label, pass: Label) {
        self.need(at + 1, pass);
        self.asm.load(Size::B, Reg::R1, Reg::R7, at as i16);
        for number in types {
            self.asm.jump_if(Cond::Eq, Reg::R1, number, known);
        }
        self.asm.jump(pass);
    }

    /// Goes to `pass` unless the source is denied for every local pod and the destination is an enforced pod.
    fn denied_to_all(&mut self, family: Family, addresses: &AddressMap, edge: &EdgeDenials, pass: Label) {
        let denied = self.asm.label("denied to every pod");
        // A pod's packet to itself is allowed, even if a list denies the pod's address.
        self.unless_itself(family, pass);
        // Single addresses without a table are few enough to be compared one by one.
        if self.plan.shapes.exact(family) == ExactShape::Compares {
            // A single address that is not denied must not fall through to the prefixes: it has a class of its own.
            for (address, peer) in addresses.exact() {
                self.is_address(family, address, if edge.denies(peer) { denied } else { pass });
            }
        }
        self.class(family, StackFrame::VALUES);
        self.test_class(edge, pass);
        self.asm.bind(denied);
        // If established flows are kept, those of older generations may continue, and this program cannot read flows.
        self.load_config(Reg::R1, config::KEEP_ESTABLISHED);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, pass);
        self.look_up_or(if family == Family::V4 { MapName::Local4 } else { MapName::Local6 }, StackFrame::LOCAL, pass);
    }

    fn unless_itself(&mut self, family: Family, pass: Label) {
        let other = self.asm.label("not itself");
        for offset in (0..address_bytes(family)).step_by(4) {
            self.load_frame(Reg::R1, FlowKey::REMOTE + offset);
            self.load_frame(Reg::R2, StackFrame::LOCAL + offset);
            self.asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, other);
        }
        self.asm.jump(pass);
        self.asm.bind(other);
    }

    /// r1 is the peer class. Goes to `pass` unless the class is denied.
    fn test_class(&mut self, edge: &EdgeDenials, pass: Label) {
        // Verifier: bounds the offset. No class is larger.
        self.asm.jump_if(Cond::Ge, Reg::R1, edge.classes() as i32, pass);
        self.asm.mov(Reg::R3, Reg::R1);
        self.asm.alu(AluOp::Rsh, Reg::R3, 3);
        self.point_to(Reg::R2, MapName::Edge, 0);
        // One bit for each class: the whole table is a few cache lines even with thousands of classes.
        self.asm.alu(AluOp::Add, Reg::R2, Reg::R3);
        self.asm.load(Size::B, Reg::R2, Reg::R2, 0);
        self.asm.alu(AluOp::And, Reg::R1, 7);
        self.asm.alu(AluOp::Rsh, Reg::R2, Reg::R1);
        self.asm.alu(AluOp::And, Reg::R2, 1);
        self.asm.jump_if(Cond::Eq, Reg::R2, 0, pass);
    }

    /// Counts one packet and its r9 bytes as dropped.
    fn count_drop(&mut self) {
        let done = self.asm.label("counted");
        // Passed packets are counted by `to_pod`, so this program has one counter.
        self.store_constant(StackFrame::SCRATCH, 0);
        self.look_up_or(MapName::EdgeDrops, StackFrame::SCRATCH, done);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 0);
        self.asm.alu(AluOp::Add, Reg::R1, 1);
        self.asm.store(Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 8);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R9);
        self.asm.store(Size::Dw, Reg::R0, 8, Reg::R1);
        self.asm.bind(done);
    }
}
