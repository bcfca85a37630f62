//! The seam: *emit a look-up of this set*. Only this module and its children know how a set is stored.
//!
//! Contract: a look-up may use r0 to r5 and [`StackFrame::SCRATCH`]. Address look-ups leave the class in r1; row
//! look-ups leave a pointer to the set in the value's slot. Compiled tables are read through `ld_imm64` of the map's
//! value.
//!
//! `// Verifier:` every offset into a table is bounded by arithmetic that the verifier can follow: it knows that a
//! scaled number `(x >> 32) * n >> 32` is below `n`; a step of a search adds a masked constant; a number that was read
//! from a table is compared.

mod perfect;
mod ranges;
mod rows;

use super::Emitter;
use super::frame::{FlowKey, StackFrame};
use super::parse::address_bytes;
use crate::emit::shapes::{ExactShape, PrefixShape};
use crate::structures::perfect::PerfectShape;
use weir_artifact::layout::MapName;
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Operand, Reg, Size};
use weir_objects::address::Family;

impl Emitter<'_> {
    /// Looks up the other end's peer class: single addresses first, then prefixes. A miss is class 0.
    pub(super) fn class(&mut self, family: Family, to: i16) {
        let done = self.asm.label("class");
        let (exact, listed) = match family {
            Family::V4 => (MapName::Exact4, MapName::Listed4),
            Family::V6 => (MapName::Exact6, MapName::Listed6),
        };
        match self.plan.shapes.exact(family) {
            ExactShape::Empty | ExactShape::Compares => {}
            ExactShape::Hash => self.exact_hash(exact, done),
            ExactShape::Perfect(shape) => self.exact_table(family, exact, shape, done),
            ExactShape::Layered(shape) => {
                self.exact_hash(exact, done);
                shape.into_iter().for_each(|shape| self.exact_table(family, listed, shape, done));
            }
        }
        // A single address is more specific than any prefix that contains it, so it is looked up first.
        self.prefix_class(family, done);
        self.asm.bind(done);
        self.store_number(to, Reg::R1);
    }

    /// Goes to `done` with the class in r1, or falls through.
    fn exact_hash(&mut self, map: MapName, done: Label) {
        let miss = self.asm.label("no single address");
        self.look_up(map, FlowKey::REMOTE);
        self.found(miss, done);
    }

    /// Like [`Self::exact_hash`], in a perfect hash.
    fn exact_table(&mut self, family: Family, map: MapName, shape: PerfectShape, done: Label) {
        let miss = self.asm.label("no single address");
        self.remote_words(family);
        self.perfect(map, 0, shape, miss);
        self.asm.jump(done);
        self.asm.bind(miss);
    }

    /// Looks up the class of an address that is not among the single ones.
    pub(super) fn prefix(&mut self, family: Family, to: i16) {
        let done = self.asm.label("class of a prefix");
        self.prefix_class(family, done);
        self.asm.bind(done);
        self.store_number(to, Reg::R1);
    }

    /// Leaves the class in r1. Goes to `done` or falls through.
    fn prefix_class(&mut self, family: Family, done: Label) {
        let prefixes = if family == Family::V4 { MapName::Prefixes4 } else { MapName::Prefixes6 };
        match self.plan.shapes.prefixes(family) {
            PrefixShape::Empty => self.hidden_zero_of_key(Reg::R1),
            PrefixShape::Lpm => {
                let miss = self.asm.label("no prefix");
                self.prefix_key(family, i32::from(family.bits()));
                self.look_up(prefixes, StackFrame::SCRATCH);
                self.found(miss, done);
                self.hidden_zero_of_key(Reg::R1);
            }
            PrefixShape::HashPerLength(lengths) => {
                // One look-up for each length, the longest first: the first hit is the longest match.
                for length in lengths.iter().rev() {
                    let miss = self.asm.label("no prefix of this length");
                    self.prefix_key(family, i32::from(*length));
                    self.look_up(prefixes, StackFrame::SCRATCH);
                    self.found(miss, done);
                }
                self.hidden_zero_of_key(Reg::R1);
            }
            PrefixShape::Search(shape) => self.search_remote(prefixes, *shape),
            PrefixShape::Dxr(shape) => self.dxr(prefixes, *shape),
        }
    }

    /// Looks up the atom of a protocol and a port. Returns `false` if a pass should have turned the look-up into
    /// compares.
    pub(super) fn atom(&mut self, protocol: i16, port: i16, to: i16) -> bool {
        let Some(shape) = self.plan.shapes.ports else { return false };
        self.search(MapName::Ports, shape, |emitter, _| {
            emitter.load_number(Reg::R1, protocol);
            emitter.load_number(Reg::R2, port);
            emitter.asm.alu(AluOp::Lsh, Reg::R1, 16);
            emitter.asm.alu(AluOp::Or, Reg::R1, Reg::R2);
        });
        self.store_number(to, Reg::R1);
        true
    }

    /// After a look-up in a kernel map: a hit goes to `done` with the number in r1; a miss goes to `miss`, which is
    /// bound here.
    fn found(&mut self, miss: Label, done: Label) {
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, miss);
        self.asm.load(Size::W, Reg::R1, Reg::R0, 0);
        self.asm.jump(done);
        self.asm.bind(miss);
    }

    /// Stores the key of a prefix look-up: a length, and this many bits of the other end's address.
    fn prefix_key(&mut self, family: Family, length: i32) {
        self.store_frame(StackFrame::SCRATCH, length);
        for (index, offset) in (0..address_bytes(family)).step_by(4).enumerate() {
            // The key has the host bits cleared, because a hash compares whole keys. The trie ignores them.
            let kept = (length - 32 * index as i32).clamp(0, 32) as u32;
            let mask = u32::MAX.checked_shl(32 - kept).unwrap_or(0).to_be();
            self.load_frame(Reg::R1, FlowKey::REMOTE + offset);
            if mask != u32::MAX {
                self.asm.alu32(AluOp::And, Reg::R1, mask as i32);
            }
            self.store_frame(StackFrame::SCRATCH + 4 + offset, Reg::R1);
        }
    }

    /// r1 (and r2) = the other end's address in the form of [`crate::structures::key`].
    fn remote_words(&mut self, family: Family) {
        let words = if family == Family::V4 { 1 } else { 4 };
        for (index, reg) in [Reg::R1, Reg::R0, Reg::R2, Reg::R3].into_iter().take(words).enumerate() {
            self.load_frame(reg, FlowKey::REMOTE + 4 * index as i16);
        }
        if family == Family::V6 {
            for (low, high) in [(Reg::R1, Reg::R0), (Reg::R2, Reg::R3)] {
                self.asm.alu(AluOp::Lsh, high, 32);
                self.asm.alu(AluOp::Or, low, high);
            }
        }
    }

    /// `dst = *(map's value + offset + index)`.
    fn read(&mut self, size: Size, dst: Reg, map: MapName, offset: usize, index: impl Into<Operand>) {
        self.point_to(dst, map, offset as i32);
        self.asm.alu(AluOp::Add, dst, index);
        self.asm.load(size, dst, dst, 0);
    }
}
