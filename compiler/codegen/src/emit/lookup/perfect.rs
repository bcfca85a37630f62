//! A look-up in a perfect hash: see [`crate::structures::perfect`] for the layout and the hash.

use crate::emit::{Emitter, map_ref};
use crate::structures::perfect::{KeyWidth, MIX, MIX_AGAIN, PerfectShape, SPREAD};
use weir_artifact::layout::MapName;
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};

impl Emitter<'_> {
    /// The key is in r1 (and r2). Falls through with the number in r1, or goes to `miss` with r1 and r2 unchanged.
    pub(super) fn perfect(&mut self, map: MapName, offset: usize, shape: PerfectShape, miss: Label) {
        self.hash(shape);
        self.asm.mov(Reg::R3, Reg::R0);
        self.scale(Reg::R3, shape.buckets);
        self.asm.alu(AluOp::Lsh, Reg::R3, 1);
        self.read(Size::H, Reg::R4, map, offset, Reg::R3);
        // r3 = pointer to the slot, computed below.
        self.asm.constant(Reg::R3, SPREAD);
        self.asm.alu(AluOp::Mul, Reg::R4, Reg::R3);
        self.asm.alu(AluOp::Xor, Reg::R4, Reg::R0);
        self.asm.constant(Reg::R3, MIX);
        self.asm.alu(AluOp::Mul, Reg::R4, Reg::R3);
        self.scale(Reg::R4, shape.slots);
        self.asm.alu(AluOp::Mul, Reg::R4, shape.width.slot_bytes() as i32);
        self.asm.load_map_value(Reg::R3, map_ref(map), (offset + shape.slots_at()) as i32);
        self.asm.alu(AluOp::Add, Reg::R3, Reg::R4);
        let size = if shape.width == KeyWidth::W4 { Size::W } else { Size::Dw };
        for (word, reg) in [Reg::R1, Reg::R2].into_iter().take(shape.width.words()).enumerate() {
            self.asm.load(size, Reg::R4, Reg::R3, 8 * word as i16);
            self.asm.jump_if(Cond::Ne, Reg::R4, reg, miss);
        }
        self.asm.load(Size::W, Reg::R1, Reg::R3, shape.width.key_bytes() as i16);
    }

    /// r0 = the hash of the key; r3 and r4 are overwritten.
    fn hash(&mut self, shape: PerfectShape) {
        self.asm.constant(Reg::R4, MIX);
        self.asm.mov(Reg::R0, shape.seed as i32);
        for reg in [Reg::R1, Reg::R2].into_iter().take(shape.width.words()) {
            self.asm.alu(AluOp::Xor, Reg::R0, reg);
            self.asm.alu(AluOp::Mul, Reg::R0, Reg::R4);
            self.asm.mov(Reg::R3, Reg::R0);
            self.asm.alu(AluOp::Rsh, Reg::R3, 32);
            self.asm.alu(AluOp::Xor, Reg::R0, Reg::R3);
        }
        self.asm.constant(Reg::R3, MIX_AGAIN);
        self.asm.alu(AluOp::Mul, Reg::R0, Reg::R3);
    }

    /// Scales the upper half of `reg` to a number below `count`.
    fn scale(&mut self, reg: Reg, count: u32) {
        self.asm.alu(AluOp::Rsh, reg, 32);
        self.asm.alu(AluOp::Mul, reg, count as i32);
        self.asm.alu(AluOp::Rsh, reg, 32);
    }
}
