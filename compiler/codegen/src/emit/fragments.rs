//! Ports of fragmented packets: the first fragment writes them when it passes, the fragments after it read them.
//! [`weir_artifact::layout::fragments`] has the layout.

use super::frame::{Frame, Key};
use super::parse::{address_bytes, family_number, key};
use super::{Emitter, map_ref};
use weir_objects::address::Family;
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_artifact::layout::{MapName, Outcome, buckets, config, direction_number, endpoint, fragments};

/// Where the hash is kept while the endpoint's places are looked up.
const HASH: i16 = Frame::SCRATCH + 8;

impl Emitter<'_> {
    /// Copies the first fragment's ports into the key and jumps to `parsed`.
    pub(super) fn recall_fragment(&mut self, family: Family, parsed: Label) {
        let fragment = self.drop_unless_open(Outcome::Fragment);
        self.look_up_place(family, fragment);
        self.asm.load(Size::Dw, Reg::R1, Reg::R0, 0);
        self.asm.load(Size::Dw, Reg::R2, Reg::R10, HASH);
        self.asm.alu(AluOp::Xor, Reg::R2, Reg::R1);
        self.asm.alu(AluOp::Rsh, Reg::R2, 32);
        self.asm.jump_if(Cond::Ne, Reg::R2, 0, fragment);
        self.asm.store(Size::W, Reg::R10, key(family).remote_port, Reg::R1);
        self.asm.jump(parsed);
    }

    /// Stores the ports of the flow's key for the packet's later fragments.
    pub(super) fn remember_fragment(&mut self, family: Family) {
        let no_place = self.asm.label("no place for ports");
        self.look_up_place(family, no_place);
        self.asm.load(Size::Dw, Reg::R1, Reg::R10, HASH);
        self.asm.alu(AluOp::Rsh, Reg::R1, 32);
        self.asm.alu(AluOp::Lsh, Reg::R1, 32);
        self.asm.load(Size::W, Reg::R2, Reg::R10, key(family).remote_port);
        self.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        self.asm.store(Size::Dw, Reg::R0, 0, Reg::R1);
        self.asm.bind(no_place);
    }

    /// r0 = the place of this packet's ports, `HASH` = the packet's hash. Goes to `nowhere` if the endpoint has no
    /// places.
    fn look_up_place(&mut self, family: Family, nowhere: Label) {
        self.hash_fragment(family);
        self.asm.store(Size::Dw, Reg::R10, HASH, Reg::R0);
        self.look_up(MapName::Endpoints, Key::IFINDEX);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, nowhere);
        self.asm.load(Size::H, Reg::R1, Reg::R0, endpoint::NUMBER);
        self.asm.alu(AluOp::Mul, Reg::R1, fragments::PLACES as i32);
        self.asm.load(Size::Dw, Reg::R2, Reg::R10, HASH);
        self.asm.alu(AluOp::And, Reg::R2, fragments::PLACES as i32 - 1);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R2);
        self.asm.store(Size::W, Reg::R10, Frame::SCRATCH, Reg::R1);
        self.look_up(MapName::Fragments, Frame::SCRATCH);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, nowhere);
    }

    /// r0 = the hash of all fields that the fragments of this packet share.
    fn hash_fragment(&mut self, family: Family) {
        self.asm.load_map_value(Reg::R4, map_ref(MapName::Config), config::SEEDS);
        let kind = family_number(family) << 16 | direction_number(self.hook) << 8;
        self.asm.load(Size::W, Reg::R1, Reg::R10, Frame::FRAGMENT_ID);
        self.asm.load(Size::W, Reg::R2, Reg::R10, Frame::PROTOCOL);
        self.asm.alu(AluOp::Or, Reg::R2, kind as i32);
        self.asm.mov(Reg::R0, 0);
        self.add_pair(0);
        let (size, step) = if family == Family::V4 { (Size::W, 4) } else { (Size::Dw, 8) };
        for (pair, offset) in (1..).zip((0..address_bytes(family)).step_by(step)) {
            self.asm.load(size, Reg::R1, Reg::R10, Key::REMOTE + offset);
            self.asm.load(size, Reg::R2, Reg::R10, Frame::LOCAL + offset);
            self.add_pair(pair);
        }
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu(AluOp::Rsh, Reg::R1, 32);
        self.asm.alu(AluOp::Xor, Reg::R0, Reg::R1);
        self.asm.constant(Reg::R1, buckets::MIX);
        self.asm.alu(AluOp::Mul, Reg::R0, Reg::R1);
        // A product's best mixed bits are the upper ones. They are the tag, and the lowest of them also choose the
        // place.
        self.asm.mov(Reg::R1, Reg::R0);
        self.asm.alu(AluOp::Rsh, Reg::R1, 32);
        self.asm.alu(AluOp::Xor, Reg::R0, Reg::R1);
    }

    /// r0 += (r1 + seed) × (r2 + seed); r4 points to the seeds.
    fn add_pair(&mut self, pair: i16) {
        self.asm.load(Size::Dw, Reg::R3, Reg::R4, 16 * pair);
        self.asm.alu(AluOp::Add, Reg::R1, Reg::R3);
        self.asm.load(Size::Dw, Reg::R3, Reg::R4, 16 * pair + 8);
        self.asm.alu(AluOp::Add, Reg::R2, Reg::R3);
        self.asm.alu(AluOp::Mul, Reg::R1, Reg::R2);
        self.asm.alu(AluOp::Add, Reg::R0, Reg::R1);
    }
}
