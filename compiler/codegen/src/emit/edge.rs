//! The program at the edge of the node (XDP). It drops packets whose source the deny lists block for every local pod,
//! and no others.
//!
//! ```text
//!  plain enough? ─▶ class of the source ─▶ denied for all? ─▶ flows are cut? ─▶ to a pod that is enforced? ─▶ drop
//!        └──no──────────────────────────────────no───────────────no────────────────no──▶ on to `to_pod`
//! ```
//!
//! Packets that do not match go on, and `to_pod` decides about them as about any packet: encapsulations, IPv6 extension
//! headers other than a fragment's, ICMP other than echo (an error may belong to an allowed flow, whatever its sender),
//! and packets of a pod to itself. So this program may miss packets, but it must never drop one that policy allows. The
//! register contract is that of [`super::frame`]; r9 is the packet's length.

use super::frame::{Frame, Key};
use super::parse::{ETHERNET, FRAGMENT, ICMP, ICMPV6, SCTP, TCP, UDP, address_bytes};
use super::{Emitter, ether_type, map_ref};
use crate::structures::ExactTable;
use weir_artifact::layout::{MapName, config};
use weir_classes::edge_denials::EdgeDenials;
use weir_ebpf::asm::Label;
use weir_ebpf::context::xdp;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size, SwapBits};
use weir_objects::address::Family;

/// `XDP_DROP`: the kernel drops the packet.
const DROP: i32 = 1;
/// `XDP_PASS`: the packet continues into the kernel.
const PASS: i32 = 2;
/// EtherTypes of VLAN tags. One tag is skipped.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
const TAG_BYTES: i32 = 4;
const V4: i32 = 20;
const V6: i32 = 40;
const TRANSPORTS: [i32; 3] = [TCP, UDP, SCTP];

impl Emitter<'_> {
    pub(super) fn edge(&mut self, edge: &EdgeDenials) {
        let [pass, drop, tagged, plain] = ["pass", "drop", "tagged", "untagged"].map(|name| self.asm.label(name));
        self.asm.load(Size::W, Reg::R7, Reg::R1, xdp::DATA);
        self.asm.load(Size::W, Reg::R8, Reg::R1, xdp::DATA_END);
        self.need(ETHERNET + V4, pass);
        self.asm.load(Size::H, Reg::R2, Reg::R7, 12);
        for tag in TAGS {
            self.asm.jump_if(Cond::Eq, Reg::R2, i32::from(tag.to_be()), tagged);
        }
        self.asm.jump(plain);
        self.asm.bind(tagged);
        self.asm.alu(AluOp::Add, Reg::R7, TAG_BYTES);
        self.need(ETHERNET + V4, pass);
        self.asm.load(Size::H, Reg::R2, Reg::R7, 12);
        self.asm.bind(plain);
        for family in self.plan.families.clone() {
            let next = self.asm.label("another family");
            self.asm.jump_if(Cond::Ne, Reg::R2, ether_type(family), next);
            self.at_a_glance(family, pass);
            self.denied_to_all(family, edge, pass);
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
        let (bytes, source) = (address_bytes(family), if family == Family::V4 { 12 } else { 8 });
        for offset in (0..bytes).step_by(4) {
            for (from, to) in [(source, Key::REMOTE), (source + bytes, Frame::LOCAL)] {
                self.asm.load(Size::W, Reg::R1, Reg::R7, ETHERNET as i16 + from + offset);
                self.asm.store(Size::W, Reg::R10, to + offset, Reg::R1);
            }
        }
    }

    /// r9 = the packet's length: the length in its IP header and Ethernet's 14 bytes. `at` is the offset of the field,
    /// `beside` the number of bytes that it does not count.
    fn length(&mut self, at: i32, beside: i32) {
        self.asm.load(Size::H, Reg::R9, Reg::R7, (ETHERNET + at) as i16);
        self.asm.swap_be(SwapBits::B16, Reg::R9);
        self.asm.alu(AluOp::Add, Reg::R9, ETHERNET + beside);
    }

    fn glance_v4(&mut self, known: Label, pass: Label) {
        self.asm.load(Size::B, Reg::R3, Reg::R7, ETHERNET as i16);
        self.asm.mov(Reg::R1, Reg::R3);
        self.asm.alu(AluOp::Rsh, Reg::R1, 4);
        self.asm.jump_if(Cond::Ne, Reg::R1, 4, pass);
        self.length(2, 0);
        self.asm.load(Size::B, Reg::R1, Reg::R7, ETHERNET as i16 + 9);
        self.jump_if_transport(known);
        self.asm.jump_if(Cond::Ne, Reg::R1, ICMP, pass);
        // With options or in fragments, the ICMP type is not at the usual place.
        self.asm.jump_if(Cond::Ne, Reg::R3, 0x45, pass);
        self.asm.load(Size::H, Reg::R1, Reg::R7, ETHERNET as i16 + 6);
        self.asm.alu(AluOp::And, Reg::R1, i32::from(0x3fff_u16.to_be()));
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, pass);
        self.echo(ETHERNET + V4, [8, 0], known, pass);
    }

    fn glance_v6(&mut self, known: Label, pass: Label) {
        let fragment = self.asm.label("fragment");
        self.need(ETHERNET + V6, pass);
        self.asm.load(Size::B, Reg::R1, Reg::R7, ETHERNET as i16);
        self.asm.alu(AluOp::Rsh, Reg::R1, 4);
        self.asm.jump_if(Cond::Ne, Reg::R1, 6, pass);
        self.length(4, V6);
        self.asm.load(Size::B, Reg::R1, Reg::R7, ETHERNET as i16 + 6);
        self.jump_if_transport(known);
        self.asm.jump_if(Cond::Eq, Reg::R1, FRAGMENT, fragment);
        self.asm.jump_if(Cond::Ne, Reg::R1, ICMPV6, pass);
        self.echo(ETHERNET + V6, [128, 129], known, pass);
        self.asm.bind(fragment);
        self.need(ETHERNET + V6 + 8, pass);
        self.asm.load(Size::B, Reg::R1, Reg::R7, (ETHERNET + V6) as i16);
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
    fn denied_to_all(&mut self, family: Family, edge: &EdgeDenials, pass: Label) {
        let denied = self.asm.label("denied to everybody");
        self.unless_itself(family, pass);
        // Single addresses without a table are few enough to be compared one by one.
        if *self.plan.tables.structures.exact(family) == ExactTable::Compares {
            let tables = self.plan.tables;
            for (address, peer) in &tables.addresses.exact {
                self.is_address(family, *address, if edge.denies(*peer) { denied } else { pass });
            }
        }
        self.class(family, Frame::VALUES);
        self.test_class(edge, pass);
        self.asm.bind(denied);
        // If established flows are kept, those of older generations may continue, and this program cannot read flows.
        self.asm.load_map_value(Reg::R1, map_ref(MapName::Config), config::KEEP_ESTABLISHED);
        self.asm.load(Size::W, Reg::R1, Reg::R1, 0);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, pass);
        self.look_up(if family == Family::V4 { MapName::Local4 } else { MapName::Local6 }, Frame::LOCAL);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, pass);
    }

    fn unless_itself(&mut self, family: Family, pass: Label) {
        let other = self.asm.label("not itself");
        for offset in (0..address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R1, Reg::R10, Key::REMOTE + offset);
            self.asm.load(Size::W, Reg::R2, Reg::R10, Frame::LOCAL + offset);
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
        self.asm.load_map_value(Reg::R2, map_ref(MapName::Edge), 0);
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
        self.store_constant(Frame::SCRATCH, 0);
        self.look_up(MapName::EdgeDrops, Frame::SCRATCH);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, done);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 0);
        self.asm.alu(AluOp::Add, Reg::R1, 1);
        self.asm.store(Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 8);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R9);
        self.asm.store(Size::Dw, Reg::R0, 8, Reg::R1);
        self.asm.bind(done);
    }
}
