//! Verdict rows: a pointer to the set of a subject class and a peer class.

use crate::emit::Emitter;
use crate::emit::frame::StackFrame;
use crate::emit::shapes::RowTableShape;
use crate::structures::rows::{EntryIndex, RowShape};
use weir_artifact::layout::{MapName, Outcome, direction_number};
use weir_ebpf::asm::Label;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_model::Direction;

impl Emitter<'_> {
    /// Stores a pointer to the set of the entry or, without an entry, to the row's default set.
    pub(in crate::emit) fn row(&mut self, direction: Direction, subject: i16, peer: i16, to: i16) {
        match self.plan.shapes.rows {
            RowTableShape::Maps { subjects } => self.row_of_maps(subjects, direction, subject, peer, to),
            RowTableShape::Compiled(shape) => self.row_of_table(shape, direction, subject, peer, to),
        }
    }

    /// Stores a pointer to the set for peers that have no entry.
    pub(in crate::emit) fn default_row(&mut self, direction: Direction, subject: i16, to: i16) {
        match self.plan.shapes.rows {
            RowTableShape::Maps { subjects } => self.default_of_maps(subjects, direction, subject, to),
            RowTableShape::Compiled(shape) => {
                self.subject(shape, subject);
                self.default_number(shape, direction);
                self.set_pointer(shape, to);
            }
        }
    }

    fn row_of_maps(&mut self, subjects: u32, direction: Direction, subject: i16, peer: i16, to: i16) {
        let [found, done] = ["row entry", "row"].map(|name| self.asm.label(name));
        self.load_number(Reg::R1, peer);
        self.store_frame(StackFrame::SCRATCH, Reg::R1);
        self.load_number(Reg::R1, subject);
        if direction == Direction::Egress {
            // The direction is the subject's upper bit (`layout::row_key`), so both directions share one map.
            self.asm.alu32(AluOp::Or, Reg::R1, i32::MIN);
        }
        self.store_frame(StackFrame::SCRATCH + 4, Reg::R1);
        self.look_up(MapName::Rows, StackFrame::SCRATCH);
        self.asm.jump_if(Cond::Ne, Reg::R0, 0, found);
        self.default_of_maps(subjects, direction, subject, to);
        self.asm.jump(done);
        self.asm.bind(found);
        self.asm.store(Size::Dw, Reg::R10, to, Reg::R0);
        self.asm.bind(done);
    }

    fn default_of_maps(&mut self, subjects: u32, direction: Direction, subject: i16, to: i16) {
        self.load_number(Reg::R1, subject);
        self.asm.alu(AluOp::Add, Reg::R1, (direction_number(direction) * subjects) as i32);
        self.store_frame(StackFrame::SCRATCH, Reg::R1);
        self.look_up(MapName::Defaults, StackFrame::SCRATCH);
        // Every subject class has a default, but the verifier does not know this.
        let no_endpoint = self.end(Outcome::NoEndpoint);
        self.asm.jump_if(Cond::Eq, Reg::R0, 0, no_endpoint);
        self.asm.store(Size::Dw, Reg::R10, to, Reg::R0);
    }

    fn row_of_table(&mut self, shape: RowShape, direction: Direction, subject: i16, peer: i16, to: i16) {
        let [default, found] = ["row default", "row"].map(|name| self.asm.label(name));
        self.subject(shape, subject);
        self.load_number(Reg::R1, peer);
        // Larger classes have no entry in any row.
        self.asm.jump_if(Cond::Ge, Reg::R1, shape.peers as i32, default);
        match shape.index {
            EntryIndex::Defaults => {}
            EntryIndex::Matrix { wide } => {
                // A matrix has a cell for each pair, so there is no miss.
                self.cell(shape, direction, wide);
                self.asm.jump(found);
            }
            EntryIndex::Perfect(index) => {
                self.asm.mov(Reg::R3, Reg::R2);
                if direction == Direction::Egress {
                    self.asm.alu32(AluOp::Or, Reg::R3, i32::MIN);
                }
                self.asm.alu(AluOp::Lsh, Reg::R3, 32);
                self.asm.alu(AluOp::Or, Reg::R1, Reg::R3);
                self.perfect(MapName::Rows, shape.index_at(), index, default);
                self.asm.jump(found);
            }
        }
        self.asm.bind(default);
        self.default_number(shape, direction);
        self.asm.bind(found);
        self.set_pointer(shape, to);
    }

    /// r2 = the subject class.
    fn subject(&mut self, shape: RowShape, subject: i16) {
        self.load_number(Reg::R2, subject);
        // Every endpoint has a subject class, but the verifier does not know this.
        let no_endpoint = self.end(Outcome::NoEndpoint);
        self.asm.jump_if(Cond::Ge, Reg::R2, shape.subjects as i32, no_endpoint);
    }

    /// r1 = the number of the set for subject r2 and peer r1.
    fn cell(&mut self, shape: RowShape, direction: Direction, wide: bool) {
        let rows = direction_number(direction) * shape.subjects;
        let (size, shift) = if wide { (Size::W, 2) } else { (Size::H, 1) };
        self.asm.mov(Reg::R3, Reg::R2);
        self.asm.alu(AluOp::Mul, Reg::R3, shape.peers as i32);
        self.asm.alu(AluOp::Add, Reg::R3, Reg::R1);
        self.asm.alu(AluOp::Lsh, Reg::R3, shift);
        let before = (rows as usize * shape.peers as usize) << shift;
        self.read(size, Reg::R1, MapName::Rows, shape.index_at() + before, Reg::R3);
    }

    /// r1 = the number of the default set of subject r2.
    fn default_number(&mut self, shape: RowShape, direction: Direction) {
        let rows = (direction_number(direction) * shape.subjects) as usize;
        self.asm.alu(AluOp::Lsh, Reg::R2, 2);
        self.read(Size::W, Reg::R1, MapName::Rows, shape.defaults_at() + 4 * rows, Reg::R2);
    }

    /// Stores a pointer to the set whose number is r1.
    fn set_pointer(&mut self, shape: RowShape, to: i16) {
        let no_set: Label = self.end(Outcome::NoEndpoint);
        // Verifier: bounds the offset. No set number is larger.
        self.asm.jump_if(Cond::Ge, Reg::R1, shape.sets as i32, no_set);
        self.asm.alu(AluOp::Mul, Reg::R1, 8 * shape.words as i32);
        self.point_to(Reg::R3, MapName::Rows, 0);
        self.asm.alu(AluOp::Add, Reg::R3, Reg::R1);
        self.asm.store(Size::Dw, Reg::R10, to, Reg::R3);
    }
}
