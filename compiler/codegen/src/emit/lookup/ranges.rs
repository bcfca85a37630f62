//! Look-ups in [`crate::structures::search`] and [`crate::structures::dxr`]: searches without a branch.
//!
//! r1 is the key, in host order; r2 is the byte offset among the starts of the element that the search has reached. A
//! level is five instructions around one load: `start - key`, its sign bit moved to the position of the step, added.
//! Verifier: a compare and a jump would make two states per level, and `2^levels` at the end.

use crate::emit::Emitter;
use crate::emit::frame::FlowKey;
use crate::structures::dxr::{self, FIRST_BYTES};
use crate::structures::search;
use weir_artifact::layout::MapName;
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size, SwapBits};

/// Masks the leaf bit, which marks a reference as a number.
const NUMBER: i32 = i32::MAX;

impl Emitter<'_> {
    /// r1 = the class of the other end.
    pub(super) fn search_remote(&mut self, map: MapName, shape: search::SearchShape) {
        self.search(map, shape, Self::remote_group);
    }

    /// r1 = the number that the table has for a key. `group_of` leaves 32 bits of the key in r1, in host order.
    pub(super) fn search(&mut self, map: MapName, shape: search::SearchShape, group_of: impl Fn(&mut Self, usize)) {
        let [leaf, lost, outside] = ["leaf", "no such node", "outside"].map(|name| self.asm.label(name));
        for group in 0..shape.groups {
            let levels = shape.most_levels[group];
            // No node compares this group of 32 bits. IPv4 has only one group.
            if group > 0 && levels == 0 {
                break;
            }
            group_of(self, group);
            if group == 0 {
                match shape.first {
                    None => self.root(map, shape),
                    Some(first) => self.first(map, shape, first, [leaf, lost, outside]),
                }
            } else {
                self.node(map, shape, levels, lost);
            }
            self.asm.jump_if32(Cond::Slt, Reg::R3, 0, leaf);
        }
        if let Some(first) = shape.first.filter(|it| it.beyond != 0) {
            self.asm.jump(lost);
            self.asm.bind(outside);
            self.asm.jump_if32(Cond::Lt, Reg::R1, first.base as i32, lost);
            self.asm.mov(Reg::R3, first.beyond as i32);
            self.asm.jump(leaf);
        }
        self.number_of_leaf(leaf, lost);
    }

    /// r1 = the number in the reference in r3, or 0 at `lost`, where r1 still holds the key.
    fn number_of_leaf(&mut self, leaf: Label, lost: Label) {
        self.asm.bind(lost);
        self.hidden_zero(Reg::R3, Reg::R1);
        self.asm.bind(leaf);
        self.asm.mov(Reg::R1, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R1, NUMBER);
    }

    /// r3 = the reference for r1 in the first node.
    fn root(&mut self, map: MapName, shape: search::SearchShape) {
        let root = 4 * shape.root as usize;
        self.asm.mov(Reg::R2, 0);
        (0..shape.root_levels).rev().for_each(|level| self.level(map, Size::W, root, level));
        self.read(Size::W, Reg::R3, map, shape.references_at() + root, Reg::R2);
    }

    /// Like [`Self::root`], with the first table. A key below the table's base wraps around to an index beyond its end.
    fn first(
        &mut self,
        map: MapName,
        shape: search::SearchShape,
        first: search::First,
        [leaf, lost, outside]: [Label; 3],
    ) {
        let outside = if first.beyond == 0 { lost } else { outside };
        // In 32 bits the subtraction wraps around to a large number, so one unsigned compare finds keys on both sides
        // of the table.
        self.asm.alu32(AluOp::Mov, Reg::R2, Reg::R1);
        self.asm.alu32(AluOp::Sub, Reg::R2, first.base as i32);
        self.asm.alu32(AluOp::Rsh, Reg::R2, first.shift as i32);
        self.asm.jump_if(Cond::Ge, Reg::R2, first.count as i32, outside);
        self.asm.alu(AluOp::Lsh, Reg::R2, 2);
        self.read(Size::W, Reg::R3, map, shape.first_at(), Reg::R2);
        if shape.most_levels[0] > 0 {
            self.asm.jump_if32(Cond::Slt, Reg::R3, 0, leaf);
            self.node(map, shape, shape.most_levels[0], lost);
        }
    }

    /// r3 = the reference for r1 in the node that r3 refers to.
    fn node(&mut self, map: MapName, shape: search::SearchShape, levels: u32, lost: Label) {
        self.begin(shape.used, 2, lost);
        self.levels(map, Size::W, 0, levels);
        self.read(Size::W, Reg::R3, map, shape.references_at(), Reg::R2);
    }

    /// r1 = the class of the other end.
    pub(super) fn dxr(&mut self, map: MapName, shape: dxr::DxrShape) {
        let [leaf, lost, done] = ["leaf", "no such chunk", "range"].map(|name| self.asm.label(name));
        self.remote_group(0);
        self.asm.mov(Reg::R2, Reg::R1);
        self.asm.alu(AluOp::Rsh, Reg::R2, 16);
        self.asm.alu(AluOp::Lsh, Reg::R2, 2);
        self.read(Size::W, Reg::R3, map, 0, Reg::R2);
        self.asm.jump_if32(Cond::Slt, Reg::R3, 0, leaf);
        if shape.most_levels > 0 {
            self.asm.alu(AluOp::And, Reg::R1, 0xffff);
            self.begin(shape.used, 1, lost);
            self.levels(map, Size::H, FIRST_BYTES, shape.most_levels);
            let size = match shape.width {
                1 => Size::B,
                2 => Size::H,
                _ => Size::W,
            };
            // Starts have two bytes; scales the offset to the width of the numbers.
            match size {
                Size::B => self.asm.alu(AluOp::Rsh, Reg::R2, 1),
                Size::W => self.asm.alu(AluOp::Lsh, Reg::R2, 1),
                _ => {}
            }
            self.read(size, Reg::R1, map, shape.numbers_at(), Reg::R2);
            self.asm.jump(done);
        }
        self.number_of_leaf(leaf, lost);
        self.asm.bind(done);
    }

    /// r1 = 32 bits of the other end's address, in host order.
    fn remote_group(&mut self, group: usize) {
        self.load_frame(Reg::R1, FlowKey::REMOTE + 4 * group as i16);
        self.asm.swap_be(SwapBits::B32, Reg::R1);
    }

    /// r3 is a reference. r2 = the offset of its first element, r4 = its number of levels.
    fn begin(&mut self, used: u32, shift: i32, lost: Label) {
        self.asm.mov(Reg::R4, Reg::R3);
        self.asm.alu(AluOp::And, Reg::R4, 31);
        self.asm.mov(Reg::R2, Reg::R3);
        self.asm.alu(AluOp::Rsh, Reg::R2, 5);
        // Verifier: bounds the offset. No reference is larger.
        self.asm.jump_if(Cond::Ge, Reg::R2, used as i32, lost);
        self.asm.alu(AluOp::Lsh, Reg::R2, shift);
    }

    /// Emits a search of r4 levels, from 1 to `most`.
    fn levels(&mut self, map: MapName, size: Size, starts: usize, most: u32) {
        let labels: Vec<Label> = (1..most).map(|level| self.asm.label(format!("{level} levels"))).collect();
        // A jump into the middle of the unrolled levels: a loop would need a counter, and the verifier would walk each
        // of its rounds.
        for (index, label) in labels.iter().enumerate() {
            self.asm.jump_if(Cond::Eq, Reg::R4, index as i32 + 1, *label);
        }
        for level in (0..most).rev() {
            if let Some(label) = labels.get(level as usize) {
                self.asm.bind(*label);
            }
            self.level(map, size, starts, level);
        }
    }

    /// Advances `2^level` elements if that element starts at or before the key.
    fn level(&mut self, map: MapName, size: Size, starts: usize, level: u32) {
        let step = size.bytes() << level;
        self.read(size, Reg::R5, map, starts + step as usize, Reg::R2);
        self.asm.alu(AluOp::Sub, Reg::R5, Reg::R1);
        // Verifier: 0 or 1, shifted to 0 or the step. Kernels that have `maybe_fork_scalars` (6.18 among them) would
        // walk the code twice if the sign were spread by `s>>=` and masked.
        self.asm.alu(AluOp::Rsh, Reg::R5, 63);
        self.asm.alu(AluOp::Lsh, Reg::R5, step.trailing_zeros() as i32);
        self.asm.alu(AluOp::Add, Reg::R2, Reg::R5);
    }
}
