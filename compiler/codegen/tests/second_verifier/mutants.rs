//! Programs with one mistake each, which a verifier must refuse.
//!
//! A mutant has the length of its program, so no jump changes. The mistake is made in the linked program, before the
//! translation for PREVAIL.

use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapImage;
use weir_ebpf::context as field;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, Width};

use crate::prevail::descriptor;

/// A kind of mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mistake {
    /// The result of a look-up, or a reserved record, is used without the compare with 0.
    NoNullCheck,
    /// The packet is read without the compare with its end.
    NoPacketBounds,
    /// The offset into a table is not masked.
    NoMask,
    /// A stack slot is read on a path that did not write it.
    StackNotWritten,
    /// A register is read that nothing has written.
    RegisterNotWritten,
    /// An address behind the end of a map's value.
    BehindTheValue,
}

impl Mistake {
    pub(crate) const ALL: [Self; 6] = [
        Self::NoNullCheck,
        Self::NoPacketBounds,
        Self::NoMask,
        Self::StackNotWritten,
        Self::RegisterNotWritten,
        Self::BehindTheValue,
    ];
}

const NOTHING: Insn = Insn::Jump { offset: 0 };

/// All mutants of a linked program with this mistake: the changed instruction, and the program.
pub(crate) fn mutants(insns: &[Insn], maps: &[MapImage], mistake: Mistake) -> Vec<(usize, Vec<Insn>)> {
    let changed = (0..insns.len()).filter_map(|at| Some((at, change(insns, maps, mistake, at)?)));
    let mutant = |(at, insn)| {
        let mut mutant = insns.to_vec();
        mutant[at] = insn;
        (at, mutant)
    };
    changed.map(mutant).collect()
}

fn change(insns: &[Insn], maps: &[MapImage], mistake: Mistake, at: usize) -> Option<Insn> {
    match mistake {
        Mistake::NoNullCheck => null_check(insns, at).then_some(NOTHING),
        Mistake::NoPacketBounds => without_packet_bounds(insns, at),
        Mistake::NoMask => is_mask(insns, at).then_some(NOTHING),
        Mistake::StackNotWritten => clears(insns, at).then_some(NOTHING),
        Mistake::RegisterNotWritten => reads_unwritten(insns, at),
        Mistake::BehindTheValue => behind(insns, maps, at),
    }
}

/// A compare of a result with 0 that is followed by a use of the pointer. Some results are only compared.
fn null_check(insns: &[Insn], at: usize) -> bool {
    let found = at > 0 && matches!(insns[at - 1], Insn::CallHelper(Helper::MAP_LOOKUP_ELEM | Helper::RINGBUF_RESERVE));
    let zero = Operand::Imm(0);
    let is_compare = matches!(insns[at], Insn::JumpIf { cond: Cond::Eq, dst: Reg::R0, src, .. } if src == zero);
    found && is_compare && matches!(insns.get(at + 1), Some(Insn::Load { base: Reg::R0, .. }))
}

/// The branch of a compare with the packet's end on which the packet is long enough.
fn without_packet_bounds(insns: &[Insn], at: usize) -> Option<Insn> {
    let Insn::JumpIf { cond, src: Operand::Reg(end), offset, .. } = insns[at] else { return None };
    // The register holds the packet's end if the last load into it was of that field.
    let last = insns[..at].iter().rev().find(|insn| written(insn) == Some(end))?;
    let is_end = matches!(last, Insn::Load { size: Size::W, base: Reg::R6, offset: field::DATA_END, .. })
        || matches!(last, Insn::Load { size: Size::W, base: Reg::R1, offset: field::xdp::DATA_END, .. });
    match cond {
        Cond::Gt if is_end => Some(NOTHING),
        Cond::Le if is_end => Some(Insn::Jump { offset }),
        _ => None,
    }
}

fn written(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Alu { dst, .. } | Insn::Load { dst, .. } | Insn::LoadImm64 { dst, .. } => Some(dst),
        _ => None,
    }
}

/// The mask that bounds the place of a flow's home slot, which was just loaded from the sizes of the tables.
fn is_mask(insns: &[Insn], at: usize) -> bool {
    let Insn::Alu { op: AluOp::And, src: Operand::Reg(mask), .. } = insns[at] else { return false };
    let Some([Insn::LoadImm64 { value: Imm64::MapValue { fd, .. }, .. }, Insn::Load { dst, .. }]) =
        at.checked_sub(2).and_then(|start| insns.get(start..at))
    else {
        return false;
    };
    *fd == descriptor(MapName::FlowShape) && *dst == mask
}

/// A store of the register that clears the stack at the entry.
fn clears(insns: &[Insn], at: usize) -> bool {
    let clear =
        |insn: &Insn| matches!(insn, Insn::Store { size: Size::Dw, base: Reg::R10, src: Operand::Reg(Reg::R1), .. });
    // `r1 ^= r2` begins the row of stores.
    let begins = |insn: &Insn| {
        matches!(insn, Insn::Alu { op: AluOp::Xor, dst: Reg::R1, src: Operand::Reg(Reg::R2), width: Width::W64 })
    };
    let row = insns[..at].iter().rev().find(|insn| !clear(insn));
    clear(&insns[at]) && row.is_some_and(begins)
}

/// The first instruction reads r2, which has no value at the entry, and not the context in r1.
fn reads_unwritten(insns: &[Insn], at: usize) -> Option<Insn> {
    match insns[at] {
        _ if at != 0 => None,
        Insn::Alu { width, op, dst, src: Operand::Reg(Reg::R1) } => {
            Some(Insn::Alu { width, op, dst, src: Operand::Reg(Reg::R2) })
        }
        Insn::Load { size, dst, base: Reg::R1, offset } => Some(Insn::Load { size, dst, base: Reg::R2, offset }),
        _ => None,
    }
}

fn behind(insns: &[Insn], maps: &[MapImage], at: usize) -> Option<Insn> {
    let Insn::LoadImm64 { dst, value: Imm64::MapValue { fd, .. } } = insns[at] else { return None };
    let map = maps.iter().find(|map| descriptor(map.name) == fd)?;
    // A load from the sizes of the tables is a constant for PREVAIL, and so is a difference of pointers.
    let is_read = map.name != MapName::FlowShape && !matches!(insns.get(at + 1)?, Insn::Alu { op: AluOp::Sub, .. });
    let offset = map.spec.value_size as i32;
    is_read.then_some(Insn::LoadImm64 { dst, value: Imm64::MapValue { fd, offset } })
}
