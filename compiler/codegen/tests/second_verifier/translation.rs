//! Rewrites the instructions that PREVAIL cannot follow, although the kernel's verifier can.
//!
//! It computes an interval for each register, once for all paths together. The kernel's verifier also knows single
//! bits, walks each path by itself, and reads frozen maps. Each of the five replacements below covers one of these
//! differences and changes no other check:
//!
//! 1. *Sizes of the flow tables.* A load from the frozen map `flow_shape` becomes the number that is in it, as in the
//!    kernel.
//! 2. *The place of a slot.* The difference of two pointers into a flow table becomes an unknown number, as in the
//!    kernel. PREVAIL refuses it.
//! 3. *Ways of a bucket.* `place ^= 32` and `place &= -256` keep a place inside of the table because its low bits are
//!    known. For an interval, the place may now be one bucket further. So each flow table is declared one bucket longer.
//! 4. *Facts about the flow* (24 bytes of the stack frame) are written only on those paths that read them. PREVAIL joins
//!    the paths, so these bytes are written at the entry.
//! 5. *Four bytes that are swapped, or loaded and then compared.* PREVAIL forgets that the upper half is zero. The same
//!    register is moved to itself with 32 bits, which changes nothing.
//!
//! So PREVAIL says nothing about the first bytes behind a flow table, and nothing about an unwritten fact about a flow.

use std::collections::HashMap;

use weir_artifact::layout::MapName;
use weir_artifact::layout::buckets::{WAYS, slot_bytes};
use weir_artifact::map_image::{MapImage, bucket_family};
use weir_ebpf::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, SwapBits, Width};

use crate::prevail::descriptor;

/// The facts about the flow (`StackFrame::SLOT` to `StackFrame::TAKES`), eight bytes each.
const FACTS: [i16; 3] = [-88, -80, -72];

/// A program with only the instructions that PREVAIL understands.
pub(crate) struct Translation {
    pub(crate) insns: Vec<Insn>,
    /// How many loads of sizes, differences of pointers and results of four bytes were replaced.
    pub(crate) replaced: [usize; 3],
}

impl Translation {
    /// Translates a program whose maps have their [`descriptor`].
    pub(crate) fn of(insns: &[Insn], maps: &[MapImage]) -> Self {
        let shape = maps.iter().find(|map| map.name == MapName::FlowShape).expect("every artifact has a flow_shape");
        let shape = &shape.entries.first().expect("its only value").1;
        let (mut changed, mut replaced) = (insns.to_vec(), [0; 3]);
        for at in 1..insns.len() {
            if let Some(insn) = size(insns[at - 1], insns[at], shape) {
                (changed[at], replaced[0]) = (insn, replaced[0] + 1);
            }
            if let Some(insn) = difference(insns[at - 1], insns[at]) {
                (changed[at], replaced[1]) = (insn, replaced[1] + 1);
            }
        }
        let (insns, truncated) = truncate(&changed);
        replaced[2] = truncated;
        let zero = |offset| Insn::Store { size: Size::Dw, base: Reg::R10, offset, src: Operand::Imm(0) };
        // At the very beginning, where no jump leads.
        Self { insns: FACTS.into_iter().map(zero).chain(insns).collect(), replaced }
    }
}

/// The size of a map's value that PREVAIL gets: see 3 above.
pub(crate) fn declared_bytes(map: &MapImage) -> u32 {
    let more = bucket_family(map.name).map_or(0, |(family, _)| WAYS * slot_bytes(family));
    map.spec.value_size + more
}

fn size(before: Insn, insn: Insn, shape: &[u8]) -> Option<Insn> {
    let Insn::LoadImm64 { dst: pointer, value: Imm64::MapValue { fd, offset } } = before else { return None };
    let Insn::Load { size: Size::Dw, dst, base, offset: 0 } = insn else { return None };
    if fd != descriptor(MapName::FlowShape) || base != pointer {
        return None;
    }
    let bytes = shape.get(offset as usize..)?.first_chunk()?;
    let number = i32::try_from(u64::from_le_bytes(*bytes)).ok()?;
    Some(Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Imm(number) })
}

/// A load from the table in place of the difference: PREVAIL knows as little about its result.
fn difference(before: Insn, insn: Insn) -> Option<Insn> {
    let Insn::LoadImm64 { dst: base, value: Imm64::MapValue { fd, .. } } = before else { return None };
    let Insn::Alu { width: Width::W64, op: AluOp::Sub, dst, src } = insn else { return None };
    let is_table = [MapName::FlowBuckets4, MapName::FlowBuckets6].map(descriptor).contains(&fd);
    (is_table && src == Operand::Reg(base)).then_some(Insn::Load { size: Size::Dw, dst, base, offset: 0 })
}

/// The move that follows an instruction whose result has a zero upper half, where PREVAIL must know it.
fn move_after(insn: Insn, next: Option<&Insn>) -> Option<Insn> {
    let dst = match insn {
        Insn::Load { size: Size::W, dst, .. } => {
            let compared = |next: &Insn| matches!(next, Insn::JumpIf { cond: Cond::Ge, dst: it, .. } if *it == dst);
            next.is_some_and(compared).then_some(dst)?
        }
        Insn::Swap { bits: SwapBits::B32, dst, .. } => dst,
        _ => return None,
    };
    Some(Insn::Alu { width: Width::W32, op: AluOp::Mov, dst, src: Operand::Reg(dst) })
}

/// Adds the moves, and adapts all jumps. Returns the program and the number of moves.
fn truncate(insns: &[Insn]) -> (Vec<Insn>, usize) {
    let (mut longer, mut moves) = (Vec::new(), 0);
    // The slot of each instruction in the longer program, by its slot in the program.
    let mut slots = HashMap::new();
    let (mut old, mut new) = (0, 0);
    for (at, insn) in insns.iter().enumerate() {
        slots.insert(old, new);
        old += insn.slots() as i32;
        new += insn.slots() as i32;
        longer.push((*insn, old, new));
        if let Some(added) = move_after(*insn, insns.get(at + 1)) {
            new += added.slots() as i32;
            longer.push((added, old, new));
            moves += 1;
        }
    }
    let adapt = |(insn, old, new): (Insn, i32, i32)| {
        let distance = |offset: i16| i16::try_from(slots[&(old + i32::from(offset))] - new).expect("a short jump");
        match insn {
            Insn::Jump { offset } => Insn::Jump { offset: distance(offset) },
            Insn::JumpIf { width, cond, dst, src, offset } => {
                Insn::JumpIf { width, cond, dst, src, offset: distance(offset) }
            }
            other => other,
        }
    };
    (longer.into_iter().map(adapt).collect(), moves)
}
