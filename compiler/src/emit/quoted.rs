//! ICMP: what it is about.
//!
//! An echo and its answer are a flow, told apart by their identifier. An error belongs to the flow of the packet it
//! quotes, whoever sent it: a router on the way must be able to say that the packet is too big. Neighbour discovery and
//! multicast listener reports are the link's own business and pass.

use super::Emitter;
use super::frame::{Frame, Key};
use super::parse::{address_bytes, key};
use crate::address::Family;
use crate::ebpf::asm::Label;
use crate::ebpf::insn::{AluOp, Cond, Reg, Size};
use crate::layout::Outcome;
use crate::model::Direction;

/// From the flow key's place to where the quoted packet's is made.
const MOVED: i16 = Frame::SCRATCH - Frame::KEY;

/// Types that carry an identifier: echo, time stamp, information, address mask, and their answers.
const WITH_ID_V4: [i32; 8] = [8, 0, 13, 14, 15, 16, 17, 18];
const WITH_ID_V6: [i32; 2] = [128, 129];
/// Unreachable, source quench, time exceeded, parameter problem.
const ERRORS_V4: [i32; 4] = [3, 4, 11, 12];
/// Unreachable, too big, time exceeded, parameter problem.
const ERRORS_V6: [i32; 4] = [1, 2, 3, 4];
/// Listener queries and reports; solicitations, advertisements, redirects.
const NEIGHBOUR_V6: [i32; 9] = [130, 131, 132, 133, 134, 135, 136, 137, 143];

impl Emitter<'_> {
    /// r1 points to the ICMP header, r9 is its offset. Goes on at `parsed`, or passes.
    pub(super) fn icmp(&mut self, family: Family, parsed: Label) {
        let [with_id, quoted] = ["icmp with identifier", "icmp error"].map(|name| self.asm.label(name));
        self.asm.load(Size::B, Reg::R2, Reg::R1, 0);
        let (ids, errors): (&[i32], &[i32]) = match family {
            Family::V4 => (&WITH_ID_V4, &ERRORS_V4),
            Family::V6 => (&WITH_ID_V6, &ERRORS_V6),
        };
        self.jump_if_any(ids, with_id);
        self.jump_if_any(errors, quoted);
        if family == Family::V6 {
            let neighbour = self.end(Outcome::Neighbour);
            self.jump_if_any(&NEIGHBOUR_V6, neighbour);
        }
        self.asm.jump(parsed);
        self.asm.bind(with_id);
        self.asm.load(Size::H, Reg::R2, Reg::R1, 4);
        self.asm.store(Size::H, Reg::R10, key(family).local_port, Reg::R2);
        self.asm.jump(parsed);
        self.asm.bind(quoted);
        self.quoted(family, parsed);
    }

    fn jump_if_any(&mut self, types: &[i32], to: Label) {
        for number in types {
            self.asm.jump_if(Cond::Eq, Reg::R2, *number, to);
        }
    }

    /// r9 is the offset of an ICMP error: passes if the packet in it is of a live flow, else goes on at `parsed`.
    fn quoted(&mut self, family: Family, parsed: Label) {
        self.quoted_addresses(family, parsed);
        self.quoted_ports(family, parsed);
        let [in_fresh, found] = ["quoted flow, fresh", "quoted flow"].map(|name| self.asm.label(name));
        let (open, fresh) = self.flow_maps(family);
        self.look_up(open, Frame::SCRATCH);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, in_fresh);
        self.asm.jump(found);
        self.asm.bind(in_fresh);
        self.look_up(fresh, Frame::SCRATCH);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, parsed);
        self.asm.bind(found);
        self.asm.mov(Reg::R7, Reg::R0);
        self.now();
        self.jump_if_expired(parsed);
        let related = self.end(Outcome::Related);
        self.asm.jump(related);
    }

    /// The quoted packet's key but for its ports; r9 becomes the offset of its transport header.
    fn quoted_addresses(&mut self, family: Family, parsed: Label) {
        let (bytes, protocol, source, destination) = match family {
            Family::V4 => (20, 9, 12, 16),
            Family::V6 => (40, 6, 8, 24),
        };
        self.need_at(8 + bytes);
        let inner = |offset: i16| 8 + offset;
        // What came to the pod quotes what the pod sent, and the other way round.
        let remote = match self.hook {
            Direction::Ingress => destination,
            Direction::Egress => source,
        };
        for offset in (0..address_bytes(family)).step_by(4) {
            self.asm.load(Size::W, Reg::R2, Reg::R1, inner(remote) + offset);
            self.asm.store(Size::W, Reg::R10, Key::REMOTE + MOVED + offset, Reg::R2);
        }
        self.asm.load(Size::W, Reg::R2, Reg::R10, Key::IFINDEX);
        self.asm.store(Size::W, Reg::R10, Key::IFINDEX + MOVED, Reg::R2);
        self.asm.load(Size::B, Reg::R2, Reg::R1, inner(protocol));
        self.asm.store(Size::W, Reg::R10, key(family).protocol + MOVED, Reg::R2);
        self.asm.store(Size::W, Reg::R10, key(family).remote_port + MOVED, 0);
        match family {
            Family::V6 => self.asm.alu(AluOp::Add, Reg::R9, 8 + bytes),
            Family::V4 => {
                // A later fragment has no ports.
                self.asm.load(Size::H, Reg::R2, Reg::R1, inner(6));
                self.asm.alu(AluOp::And, Reg::R2, i32::from(0x1fffu16.to_be()));
                self.asm.jump_if(Cond::Ne, Reg::R2, 0, parsed);
                self.asm.load(Size::B, Reg::R2, Reg::R1, inner(0));
                self.asm.alu(AluOp::And, Reg::R2, 15);
                self.asm.alu(AluOp::Lsh, Reg::R2, 2);
                self.asm.jump_if(Cond::Lt, Reg::R2, 20, parsed);
                self.asm.alu(AluOp::Add, Reg::R9, 8);
                self.asm.alu(AluOp::Add, Reg::R9, Reg::R2);
            }
        }
    }

    fn quoted_ports(&mut self, family: Family, parsed: Label) {
        let [ports, icmp, done] = ["quoted ports", "quoted icmp", "quoted key"].map(|name| self.asm.label(name));
        self.need_at(8);
        self.asm.load(Size::W, Reg::R2, Reg::R10, key(family).protocol + MOVED);
        self.jump_if_any(&[6, 17, 132], ports);
        let icmp_number = if family == Family::V4 { 1 } else { 58 };
        self.asm.jump_if(Cond::Eq, Reg::R2, icmp_number, icmp);
        self.asm.jump(done);
        self.asm.bind(icmp);
        self.asm.load(Size::B, Reg::R2, Reg::R1, 0);
        let with_id = self.asm.label("quoted identifier");
        let ids: &[i32] = if family == Family::V4 { &WITH_ID_V4 } else { &WITH_ID_V6 };
        self.jump_if_any(ids, with_id);
        // An error about an error: nobody answers those.
        self.asm.jump(parsed);
        self.asm.bind(with_id);
        self.asm.load(Size::H, Reg::R2, Reg::R1, 4);
        self.asm.store(Size::H, Reg::R10, key(family).local_port + MOVED, Reg::R2);
        self.asm.jump(done);
        self.asm.bind(ports);
        let (source, destination) = match self.hook {
            Direction::Ingress => (key(family).local_port, key(family).remote_port),
            Direction::Egress => (key(family).remote_port, key(family).local_port),
        };
        self.asm.load(Size::H, Reg::R2, Reg::R1, 0);
        self.asm.store(Size::H, Reg::R10, source + MOVED, Reg::R2);
        self.asm.load(Size::H, Reg::R2, Reg::R1, 2);
        self.asm.store(Size::H, Reg::R10, destination + MOVED, Reg::R2);
        self.asm.bind(done);
    }
}
