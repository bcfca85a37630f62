//! The fast path: packets of established TCP and UDP flows that do not change the flow's state.
//!
//! Problem: the slow path keeps its facts on the stack, because it needs most of them only now and then. For an
//! established flow, clearing and filling the stack costs more than everything else. Strategy: check in registers,
//! before the stack is touched, and pass the packet if every check has the usual result. The header is plain and in the
//! linear area, and no flag begins or ends a connection. A slot holds this flow, which has not expired, is of this
//! generation, was not cut, has the packet's origin, and stays in its state. A packet that fails a check takes the slow
//! path from the start.
//! Invariants: a packet that passes here would pass on the slow path too, with the same counter and the same changes to
//! the slot. Nothing is written before all checks are done. [`weir_artifact::layout::buckets`] explains how a slot is read.
//!
//! | register | holds |
//! | --- | --- |
//! | r0 | the place of the slot, then the time |
//! | r1 | interface and ports, as a slot has them |
//! | r2 | packet start |
//! | r3 | for IPv4, the other end's address, and the pod's in the upper half |
//! | r5 | the bits that the word must have: the protocol, and that the slot is live |
//! | r7, r8, r9 | after the flow is found: the slot, its word, the time of its last packet |

use super::{BEYOND_EPOCH, FIN_OR_RST, SYN};
use weir_objects::address::Family;
use weir_ebpf::asm::Label;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Reg, Size, Width};
use crate::emit::frame::skb;
use crate::emit::parse::{ETHERNET, TCP, UDP};
use crate::emit::{Emitter, ether_type, map_ref};
use weir_artifact::layout::buckets::{ANSWERED, BEGUN, CUT, EPOCH_BITS, EPOCH_SHIFT, LIVE, ORIGIN_SHIFT, SEQUENCE_SHIFT, STATE_SHIFT, WAYS, WORD, self};
use weir_artifact::layout::{MapName, Origin, Outcome, config};
use weir_model::Direction;

/// Packet offsets in an IPv4 header without options or an IPv6 header without extensions.
struct Header {
    /// The next header's protocol number.
    next: i16,
    remote: i16,
    local: i16,
    /// The transport header.
    transport: i16,
}

/// The offset of the flags in a TCP header, and by how many bytes TCP's shortest header is longer than UDP's.
const FLAGS: i16 = 13;
const MORE_OF_TCP: i32 = 12;
const UDP_BYTES: i32 = 8;

impl Emitter<'_> {
    /// r6 is the context, and the stack is not in use. Packets that need the slow path fall through.
    pub(in crate::emit) fn pass_at_once(&mut self) {
        let whole = self.asm.label("the whole way");
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::VLAN_PRESENT);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, whole);
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::PROTOCOL);
        for family in self.plan.families.clone() {
            let other = self.asm.label("another family, at once");
            self.asm.jump_if(Cond::Ne, Reg::R1, ether_type(family), other);
            self.plain_header(family, whole);
            self.home_of_flow(family);
            self.find_slot(family, whole);
            self.slot_in_force(whole);
            self.touch_and_pass(family);
            self.asm.bind(other);
        }
        self.asm.bind(whole);
    }

    fn header(&self, family: Family) -> Header {
        let (next, source, destination, transport) = match family {
            Family::V4 => (9, 12, 16, 20),
            Family::V6 => (6, 8, 24, 40),
        };
        let (remote, local) =
            if self.hook == Direction::Ingress { (source, destination) } else { (destination, source) };
        let [next, remote, local, transport] = [next, remote, local, transport].map(|it| it + ETHERNET as i16);
        Header { next, remote, local, transport }
    }

    /// r1 = the interface, r7 = the ports, r5 = the protocol, r2 = packet start. Goes to `whole` unless the header is
    /// plain.
    fn plain_header(&mut self, family: Family, whole: Label) {
        let ports = self.asm.label("ports, at once");
        let header = self.header(family);
        self.asm.load(Size::W, Reg::R2, Reg::R6, skb::DATA);
        self.asm.load(Size::W, Reg::R4, Reg::R6, skb::DATA_END);
        self.asm.mov(Reg::R0, Reg::R2);
        self.asm.alu(AluOp::Add, Reg::R0, i32::from(header.transport) + UDP_BYTES);
        self.asm.jump_if(Cond::Gt, Reg::R0, Reg::R4, whole);
        self.asm.load(Size::B, Reg::R1, Reg::R2, ETHERNET as i16);
        match family {
            Family::V4 => {
                self.asm.jump_if(Cond::Ne, Reg::R1, 0x45, whole);
                self.asm.load(Size::H, Reg::R1, Reg::R2, ETHERNET as i16 + 6);
                self.asm.jump_if(Cond::Set, Reg::R1, i32::from(0x3fff_u16.to_be()), whole);
            }
            Family::V6 => {
                self.asm.alu(AluOp::Rsh, Reg::R1, 4);
                self.asm.jump_if(Cond::Ne, Reg::R1, 6, whole);
            }
        }
        self.asm.load(Size::B, Reg::R5, Reg::R2, header.next);
        self.asm.jump_if(Cond::Eq, Reg::R5, UDP, ports);
        self.asm.jump_if(Cond::Ne, Reg::R5, TCP, whole);
        self.asm.alu(AluOp::Add, Reg::R0, MORE_OF_TCP);
        self.asm.jump_if(Cond::Gt, Reg::R0, Reg::R4, whole);
        self.asm.load(Size::B, Reg::R1, Reg::R2, header.transport + FLAGS);
        self.asm.jump_if(Cond::Set, Reg::R1, SYN | FIN_OR_RST, whole);
        self.asm.bind(ports);
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::IFINDEX);
        match self.hook {
            Direction::Ingress => self.asm.load(Size::W, Reg::R7, Reg::R2, header.transport),
            Direction::Egress => {
                self.asm.load(Size::H, Reg::R7, Reg::R2, header.transport);
                self.asm.alu(AluOp::Lsh, Reg::R7, 16);
                self.asm.load(Size::H, Reg::R3, Reg::R2, header.transport + 2);
                self.asm.alu(AluOp::Or, Reg::R7, Reg::R3);
            }
        }
    }

    /// r0 = the home slot's place; r1, r3 and r5 as in the table above.
    fn home_of_flow(&mut self, family: Family) {
        let header = self.header(family);
        self.asm.load_map_value(Reg::R4, map_ref(MapName::Config), config::SEEDS);
        self.asm.load(Size::Dw, Reg::R0, Reg::R4, 0);
        self.asm.alu(AluOp::Add, Reg::R0, Reg::R1);
        self.asm.load(Size::Dw, Reg::R8, Reg::R4, 8);
        self.asm.alu(AluOp::Add, Reg::R8, Reg::R7);
        self.asm.alu(AluOp::Mul, Reg::R0, Reg::R8);
        match family {
            Family::V4 => {
                self.asm.load(Size::W, Reg::R3, Reg::R2, header.remote);
                self.add_product(1, Some(Reg::R3), Some(Reg::R5));
            }
            Family::V6 => {
                for pair in 1..=2 {
                    let at = header.remote + 8 * (pair - 1);
                    self.asm.load(Size::W, Reg::R3, Reg::R2, at);
                    self.asm.load(Size::W, Reg::R9, Reg::R2, at + 4);
                    self.add_product(pair, Some(Reg::R3), Some(Reg::R9));
                }
                self.add_product(3, Some(Reg::R5), None);
            }
        }
        self.mix_hash(family);
        self.asm.alu(AluOp::Lsh, Reg::R7, 32);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R7);
        self.asm.alu(AluOp::Or, Reg::R5, LIVE as i32);
        if family == Family::V4 {
            self.asm.load(Size::W, Reg::R9, Reg::R2, header.local);
            self.asm.alu(AluOp::Lsh, Reg::R9, 32);
            self.asm.alu(AluOp::Or, Reg::R3, Reg::R9);
        }
    }

    /// r0 += (one + seed) × (other + seed). r4 points to the seeds; r8 and r9 are overwritten.
    fn add_product(&mut self, pair: i16, one: Option<Reg>, other: Option<Reg>) {
        self.asm.load(Size::Dw, Reg::R8, Reg::R4, 16 * pair);
        if let Some(one) = one {
            self.asm.alu(AluOp::Add, Reg::R8, one);
        }
        match other {
            Some(Reg::R9) => {
                self.asm.load(Size::Dw, Reg::R3, Reg::R4, 16 * pair + 8);
                self.asm.alu(AluOp::Add, Reg::R9, Reg::R3);
            }
            other => {
                self.asm.load(Size::Dw, Reg::R9, Reg::R4, 16 * pair + 8);
                if let Some(other) = other {
                    self.asm.alu(AluOp::Add, Reg::R9, other);
                }
            }
        }
        self.asm.alu(AluOp::Mul, Reg::R8, Reg::R9);
        self.asm.alu(AluOp::Add, Reg::R0, Reg::R8);
    }

    /// r7 = the flow's slot, r8 = its word, r9 = the time of its last packet. Goes to `whole` if the flow is not found.
    fn find_slot(&mut self, family: Family, whole: Label) {
        let found = self.asm.label("ends, at once");
        for way in 0..WAYS {
            self.step_to(Reg::R0, Reg::R4, family, way);
            self.asm.load(Size::Dw, Reg::R7, Reg::R4, buckets::IFINDEX);
            self.asm.jump_if(Cond::Eq, Reg::R7, Reg::R1, found);
        }
        self.asm.jump(whole);
        self.asm.bind(found);
        self.asm.load(Size::Dw, Reg::R7, Reg::R4, WORD);
        self.asm.mov(Reg::R8, Reg::R7);
        self.asm.alu(AluOp::And, Reg::R8, (LIVE | 0xff) as i32);
        self.asm.jump_if(Cond::Ne, Reg::R8, Reg::R5, whole);
        // The address of the following loads depends on the word, and the address of the word's second load depends on
        // all of them.
        self.asm.mov(Reg::R9, Reg::R7);
        self.asm.alu(AluOp::And, Reg::R9, 0);
        self.asm.alu(AluOp::Add, Reg::R9, Reg::R4);
        self.asm.load(Size::Dw, Reg::R8, Reg::R9, buckets::IFINDEX);
        self.asm.alu(AluOp::Xor, Reg::R8, Reg::R1);
        self.compare_addresses(family);
        self.asm.load(Size::Dw, Reg::R9, Reg::R9, buckets::last(family));
        self.asm.jump_if(Cond::Ne, Reg::R8, 0, whole);
        self.asm.alu(AluOp::Or, Reg::R8, Reg::R9);
        self.asm.alu(AluOp::And, Reg::R8, 0);
        self.asm.alu(AluOp::Add, Reg::R8, Reg::R4);
        self.asm.load(Size::Dw, Reg::R8, Reg::R8, WORD);
        self.asm.alu(AluOp::Xor, Reg::R7, Reg::R8);
        self.asm.alu(AluOp::Rsh, Reg::R7, SEQUENCE_SHIFT as i32);
        self.asm.jump_if(Cond::Ne, Reg::R7, 0, whole);
        self.asm.mov(Reg::R7, Reg::R4);
    }

    /// r8 |= the difference between the addresses of the slot r9 and the packet's.
    fn compare_addresses(&mut self, family: Family) {
        if family == Family::V4 {
            self.asm.load(Size::Dw, Reg::R2, Reg::R9, buckets::REMOTE);
            self.asm.alu(AluOp::Xor, Reg::R2, Reg::R3);
            self.asm.alu(AluOp::Or, Reg::R8, Reg::R2);
            return;
        }
        let header = self.header(family);
        for (of_packet, of_slot) in [(header.remote, buckets::REMOTE), (header.local, buckets::local(family))] {
            for offset in [0, 8] {
                self.asm.load(Size::Dw, Reg::R0, Reg::R9, of_slot + offset);
                self.asm.load(Size::Dw, Reg::R3, Reg::R2, of_packet + offset);
                self.asm.alu(AluOp::Xor, Reg::R0, Reg::R3);
                self.asm.alu(AluOp::Or, Reg::R8, Reg::R0);
            }
        }
    }

    /// Goes to `whole` if the flow has expired or is not in force, or if the packet changes its state. r0 = the time.
    fn slot_in_force(&mut self, whole: Label) {
        let settled = self.asm.label("settled");
        self.asm.call(Helper::JIFFIES64);
        self.asm.load_map_value(Reg::R3, map_ref(MapName::Config), 0);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Rsh, Reg::R2, STATE_SHIFT as i32 - 2);
        self.asm.alu(AluOp::And, Reg::R2, 7 << 2);
        self.asm.alu(AluOp::Add, Reg::R2, Reg::R3);
        self.asm.load(Size::W, Reg::R2, Reg::R2, config::TIMEOUTS as i16);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu(AluOp::Sub, Reg::R1, Reg::R9);
        self.asm.jump_if(Cond::Sgt, Reg::R1, Reg::R2, whole);
        // One compare checks that the epoch is the one in force, that the flow was not cut and that it has no FIN (the
        // three bits above the epoch).
        const _: () = assert!(CUT == EPOCH_SHIFT + EPOCH_BITS + 2);
        self.asm.load(Size::W, Reg::R1, Reg::R3, config::EPOCH as i16);
        self.asm.alu(AluOp::And, Reg::R1, (1 << EPOCH_BITS) - 1);
        self.asm.mov(Reg::R2, Reg::R8);
        self.asm.alu(AluOp::Rsh, Reg::R2, EPOCH_SHIFT as i32);
        self.asm.alu(AluOp::Xor, Reg::R1, Reg::R2);
        self.asm.alu(AluOp::Lsh, Reg::R1, BEYOND_EPOCH - 3);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, whole);
        if self.hook == Direction::Ingress {
            self.same_origin(whole);
        }
        // A confirmed flow stays confirmed. In a fresh flow the side that began it may send until there is an answer,
        // and the other side may send after the first answer: these packets change nothing.
        self.asm.jump_if(Cond::Set, Reg::R8, 1 << STATE_SHIFT, settled);
        self.asm.mov(Reg::R1, Reg::R8);
        self.asm.alu(AluOp::Rsh, Reg::R1, (ANSWERED / BEGUN).trailing_zeros() as i32);
        self.asm.alu(AluOp::Xor, Reg::R1, Reg::R8);
        match self.hook {
            Direction::Ingress => self.asm.jump_if(Cond::Set, Reg::R1, BEGUN as i32, whole),
            Direction::Egress => {
                self.asm.jump_if(Cond::Set, Reg::R1, BEGUN as i32, settled);
                self.asm.jump(whole);
            }
        }
        self.asm.bind(settled);
    }

    /// Goes to `whole` unless the packet has the flow's origin. Packets of flows that began on this host must have come
    /// in through no interface. Packets of a pod that reaches itself take the slow path. (IPv6 fragments do not get
    /// here.)
    fn same_origin(&mut self, whole: Label) {
        let [same, itself] = ["same origin, at once", "of this host, at once"].map(|name| self.asm.label(name));
        self.asm.mov(Reg::R1, Reg::R8);
        self.asm.alu(AluOp::And, Reg::R1, 3 << ORIGIN_SHIFT);
        self.asm.jump_if(Cond::Eq, Reg::R1, 0, same);
        self.asm.jump_if(Cond::Eq, Reg::R1, (Origin::Host as i32) << ORIGIN_SHIFT, itself);
        self.asm.jump_if(Cond::Eq, Reg::R1, (Origin::MidStream as i32) << ORIGIN_SHIFT, same);
        self.asm.jump(whole);
        self.asm.bind(itself);
        self.asm.load(Size::W, Reg::R1, Reg::R6, skb::INGRESS_IFINDEX);
        self.asm.jump_if(Cond::Ne, Reg::R1, 0, whole);
        self.unless_stamped(whole);
        self.asm.bind(same);
    }

    /// Sets the time of the last packet to now, counts the packet and passes it.
    fn touch_and_pass(&mut self, family: Family) {
        let seen = self.asm.label("seen, at once");
        self.asm.jump_if(Cond::Eq, Reg::R9, Reg::R0, seen);
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.mov(Reg::R0, Reg::R9);
        self.asm.atomic(AtomicOp::Cmpxchg, Width::W64, Reg::R7, buckets::last(family), Reg::R1);
        self.asm.bind(seen);
        self.count_constant(Outcome::Established);
        self.next();
    }
}
