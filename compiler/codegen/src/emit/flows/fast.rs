//! The fast path: packets of established TCP and UDP flows that do not change the flow's state.
//!
//! Problem: the slow path keeps its facts on the stack, because it needs most of them only now and then. For an
//! established flow, clearing and filling the stack costs more than everything else. Strategy: check in registers,
//! before the stack is touched, and pass the packet if every check has the usual result. The header is plain and in the
//! linear area, and no flag begins or ends a connection. A slot holds this flow, which has not expired, is of this
//! generation, was not cut, has the packet's origin, and stays in its state. A packet that fails a check takes the slow
//! path from the start.
//! Invariants: a packet that passes here would pass on the slow path too, with the same counter and the same changes to
//! the slot. Nothing is written before all checks are done. [`weir_artifact::layout::buckets`] explains how a slot is
//! read.
//!
//! | register | holds |
//! | --- | --- |
//! | r2 | packet start |
//! | r7, r8, r9 | after the flow is found: the slot, its word, the time of its last packet |
//!
//! The registers up to there are those of [`super::slot`].

use super::slot::{self, SlotReader};
use super::{BEYOND_EPOCH, FIN_OR_RST, SYN};
use crate::emit::frame::skb;
use crate::emit::header::IpHeader;
use crate::emit::parse::{TCP, UDP};
use crate::emit::{Emitter, ether_type};
use weir_artifact::layout::buckets::{ANSWERED, BEGUN, CUT, EPOCH_BITS, EPOCH_SHIFT, ORIGIN_SHIFT, STATE_SHIFT, WAYS};
use weir_artifact::layout::{MapName, Origin, Outcome, config};
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_model::Direction;
use weir_objects::address::Family;

/// The offset of the flags in a TCP header, and by how many bytes TCP's shortest header is longer than UDP's.
const FLAGS: i16 = 13;
const MORE_OF_TCP: i32 = 12;
const UDP_BYTES: i32 = 8;

impl Emitter<'_> {
    /// r6 is the context, and the stack is not in use. Packets that need the slow path fall through.
    pub(in crate::emit) fn pass_at_once(&mut self) {
        let slow_path = self.asm.label("slow path");
        // A tag that the device removed belongs to the packet: inside it the same addresses are another network's.
        self.load_context(Reg::R1, skb::VLAN_PRESENT);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, slow_path);
        self.load_context(Reg::R1, skb::PROTOCOL);
        // A family that no local endpoint has needs no fast path.
        for family in self.plan.families.clone() {
            let other = self.asm.label("another family, at once");
            self.asm.jump_if(Cond::Ne, Reg::R1, ether_type(family), other);
            let header = IpHeader::of_packet(family, Reg::R2);
            self.plain_header(header, slow_path);
            self.find_slot(family, header, slow_path);
            self.slot_in_force(slow_path);
            self.touch_and_pass(family);
            self.asm.bind(other);
        }
        self.asm.bind(slow_path);
    }

    /// r1 = the interface, r7 = the ports, r5 = the protocol, r2 = packet start. Goes to `slow_path` unless the header
    /// is plain.
    fn plain_header(&mut self, header: IpHeader, slow_path: Label) {
        let ports = self.asm.label("ports, at once");
        let transport = header.transport();
        self.load_context(Reg::R2, skb::DATA);
        self.load_context(Reg::R4, skb::DATA_END);
        self.asm.mov(Reg::R0, Reg::R2);
        // Verifier: one compare with the packet's end covers all headers up to the ports. The access to TCP's flags
        // needs a second one, for TCP only, so that a short UDP packet stays on the fast path.
        self.asm.alu(AluOp::Add, Reg::R0, i32::from(transport) + UDP_BYTES);
        self.asm.jump_if(Cond::Gt, Reg::R0, Reg::R4, slow_path);
        self.unless_plain(header, Reg::R1, slow_path);
        self.load_protocol(header, Reg::R5);
        self.asm.jump_if(Cond::Eq, Reg::R5, UDP, ports);
        self.asm.jump_if(Cond::Ne, Reg::R5, TCP, slow_path);
        self.asm.alu(AluOp::Add, Reg::R0, MORE_OF_TCP);
        self.asm.jump_if(Cond::Gt, Reg::R0, Reg::R4, slow_path);
        self.asm.load(Size::B, Reg::R1, Reg::R2, transport + FLAGS);
        // These flags begin or end connections, which changes the flow's word.
        self.asm.jump_if(Cond::Set, Reg::R1, SYN | FIN_OR_RST, slow_path);
        self.asm.bind(ports);
        self.load_context(Reg::R1, skb::IFINDEX);
        match self.hook {
            // To the pod, the source port is the remote one, and it comes first in the packet as in the slot: one load
            // is enough.
            Direction::Ingress => self.asm.load(Size::W, Reg::R7, Reg::R2, transport),
            Direction::Egress => {
                // From the pod the two ports are the other way round.
                self.asm.load(Size::H, Reg::R7, Reg::R2, transport);
                self.asm.alu(AluOp::Lsh, Reg::R7, 16);
                self.asm.load(Size::H, Reg::R3, Reg::R2, transport + 2);
                self.asm.alu(AluOp::Or, Reg::R7, Reg::R3);
            }
        }
    }

    /// r7 = the flow's slot, r8 = its word, r9 = the time of its last packet. Goes to `slow_path` if the flow is not
    /// found.
    fn find_slot(&mut self, family: Family, header: IpHeader, slow_path: Label) {
        let found = self.asm.label("ends, at once");
        let [local, remote] = header.ends(self.hook);
        let reader = SlotReader::in_packet(family, remote, local);
        self.find_home(reader);
        // Only the first slot with these ends is read. Another flow with the same interface and ports in the same
        // bucket is rare, and the slow path finds it. So one reader is enough here, and the slow path needs eight.
        for way in 0..WAYS {
            self.compare_ends(reader, way, Cond::Eq, found);
        }
        self.asm.jump(slow_path);
        self.asm.bind(found);
        self.accept_slot(reader, slow_path);
        self.asm.mov(Reg::R7, slot::SLOT);
    }

    /// Goes to `slow_path` if the flow has expired or is not in force, or if the packet changes its state. r0 = the
    /// time.
    fn slot_in_force(&mut self, slow_path: Label) {
        let settled = self.asm.label("settled");
        // The call overwrites r1 to r5. Nothing in them is needed any more: the slot, its word and its time are in r7
        // to r9.
        self.asm.call(Helper::JIFFIES64);
        self.point_to(Reg::R3, MapName::Config, 0);
        self.asm.mov(Reg::R2, Reg::R8);
        self.timeout_of(Reg::R2, Reg::R3, config::TIMEOUTS as i16);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu(AluOp::Sub, Reg::R1, Reg::R9);
        self.asm.jump_if(Cond::Sgt, Reg::R1, Reg::R2, slow_path);
        // One compare checks that the epoch is the one in force, that the flow was not cut and that it has no FIN (the
        // three bits above the epoch).
        const _: () = assert!(CUT == EPOCH_SHIFT + EPOCH_BITS + 2);
        self.load_config_at(Reg::R1, Reg::R3, config::EPOCH);
        self.asm.alu(AluOp::And, Reg::R1, (1 << EPOCH_BITS) - 1);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Rsh, Reg::R2, EPOCH_SHIFT as i32);
        self.asm.alu(AluOp::Xor, Reg::R1, Reg::R2);
        self.asm.alu(AluOp::Lsh, Reg::R1, BEYOND_EPOCH - 3);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, slow_path);
        if self.hook == Direction::Ingress {
            self.same_origin(slow_path);
        }
        // A confirmed flow stays confirmed. In a fresh flow the side that began it may send until there is an answer,
        // and the other side may send after the first answer: these packets change nothing.
        self.asm.jump_if(Cond::Set, Reg::R8, 1 << STATE_SHIFT, settled);
        self.asm.mov(Reg::R1, Reg::R8);
        self.asm.alu(AluOp::Rsh, Reg::R1, (ANSWERED / BEGUN).trailing_zeros() as i32);
        self.asm.alu(AluOp::Xor, Reg::R1, Reg::R8);
        match self.hook {
            Direction::Ingress => self.asm.jump_if(Cond::Set, Reg::R1, BEGUN as i32, slow_path),
            Direction::Egress => {
                self.asm.jump_if(Cond::Set, Reg::R1, BEGUN as i32, settled);
                self.asm.jump(slow_path);
            }
        }
        self.asm.bind(settled);
    }

    /// Goes to `slow_path` unless the packet has the flow's origin. Packets of flows that began on this host must have
    /// come in through no interface. Packets of a pod that reaches itself take the slow path. (IPv6 fragments do not
    /// get here.)
    fn same_origin(&mut self, slow_path: Label) {
        let [same, itself] = ["same origin, at once", "of this host, at once"].map(|name| self.asm.label(name));
        self.asm.mov(Reg::R1, Reg::R8);
        self.asm.alu(AluOp::And, Reg::R1, 3 << ORIGIN_SHIFT);
        // Most flows began elsewhere (0), so this compare comes first.
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, same);
        self.asm.jump_if(Cond::Eq, Reg::R1, (Origin::Host as i32) << ORIGIN_SHIFT, itself);
        self.asm.jump_if(Cond::Eq, Reg::R1, (Origin::MidStream as i32) << ORIGIN_SHIFT, same);
        self.asm.jump(slow_path);
        self.asm.bind(itself);
        self.load_context(Reg::R1, skb::INGRESS_IFINDEX);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, slow_path);
        self.unless_stamped(slow_path);
        self.asm.bind(same);
    }

    /// Sets the time of the last packet to now, counts the packet and passes it.
    fn touch_and_pass(&mut self, family: Family) {
        self.touch_slot(family, Reg::R0);
        // Counted like on the slow path: counters must not depend on the path.
        self.count_constant(Outcome::Established);
        self.next();
    }
}
