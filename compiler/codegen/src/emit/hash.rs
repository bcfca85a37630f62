//! The hash of the datapath: a sum of products of (part + seed), mixed once. Flows and fragments use it, and
//! [`weir_artifact::layout::buckets`] computes the same hash in Rust.
//!
//! Problem: a sender that knows the places of keys could fill one bucket and evict other pods' flows. Strategy: the
//! seeds are random, and only this host knows them. A sum of products of sums is universal: for any two keys, few seeds
//! make them collide. It also needs the fewest instructions: one multiplication for every two parts of a key.
//!
//! r0 is the sum and r4 points to the seeds, throughout.

use super::Emitter;
use weir_artifact::layout::{MapName, buckets, config};
use weir_ebpf::insn::{AluOp, Reg, Size};

/// The sum.
const SUM: Reg = Reg::R0;
/// Points to the seeds.
const SEEDS: Reg = Reg::R4;

/// A part of a key, to which a seed is added. Says which register gets the result.
#[derive(Clone, Copy)]
pub(super) enum HashPart {
    /// The part's own register: the caller does not need the part any more.
    Spent(Reg),
    /// Another register, because the part is compared with a slot later.
    Kept { part: Reg, into: Reg },
    /// The key has an odd number of parts: the last one is multiplied by a seed alone.
    Absent { into: Reg },
}

impl Emitter<'_> {
    /// r4 = the seeds.
    pub(super) fn load_seeds(&mut self) {
        self.point_to(SEEDS, MapName::Config, config::SEEDS);
    }

    /// r0 = the first product. `scratch` is overwritten if a part is [`HashPart::Spent`].
    pub(super) fn first_product(&mut self, parts: [HashPart; 2], scratch: Reg) {
        let [first, second] = self.add_seeds(0, parts, scratch);
        debug_assert!(first == SUM, "the first product begins the sum");
        self.asm.alu(AluOp::Mul, first, second);
    }

    /// r0 += the product of this pair of parts.
    pub(super) fn add_product(&mut self, pair: i16, parts: [HashPart; 2], scratch: Reg) {
        let [first, second] = self.add_seeds(pair, parts, scratch);
        self.asm.alu(AluOp::Mul, first, second);
        self.asm.alu(AluOp::Add, SUM, first);
    }

    /// The registers that hold both parts, each with its seed added.
    fn add_seeds(&mut self, pair: i16, parts: [HashPart; 2], scratch: Reg) -> [Reg; 2] {
        let [first, second] = parts;
        [self.add_seed(16 * pair, first, scratch), self.add_seed(16 * pair + 8, second, scratch)]
    }

    fn add_seed(&mut self, seed: i16, part: HashPart, scratch: Reg) -> Reg {
        match part {
            HashPart::Spent(part) => {
                self.asm.load(Size::Dw, scratch, SEEDS, seed);
                self.asm.alu(AluOp::Add, part, scratch);
                part
            }
            // The seed is loaded into the result, so that no instruction is needed to copy the part.
            HashPart::Kept { part, into } => {
                self.asm.load(Size::Dw, into, SEEDS, seed);
                self.asm.alu(AluOp::Add, into, part);
                into
            }
            HashPart::Absent { into } => {
                self.asm.load(Size::Dw, into, SEEDS, seed);
                into
            }
        }
    }

    /// Mixes the sum once. `scratch` is overwritten.
    // If keys differ in one part alone, the sum is linear in that part: without this step, consecutive ports would give
    // equidistant places. The upper half goes into the lower half first, because a product carries upwards only, and
    // the upper half of the last product depends on all bits.
    pub(super) fn mix_sum(&mut self, scratch: Reg) {
        self.asm.mov(scratch, SUM);
        self.asm.alu(AluOp::Rsh, scratch, 32);
        self.asm.alu(AluOp::Xor, SUM, scratch);
        self.asm.constant(scratch, buckets::MIX);
        self.asm.alu(AluOp::Mul, SUM, scratch);
    }
}
