//! Instructions decoded for the interpreter: one [`DecodedOp`] for each slot, with absolute jump targets and map
//! addresses filled in.
//!
//! An operand is `registers[reg] + imm`, in a file of sixteen registers of which register 11 is always zero. So the
//! interpreter needs no branch to distinguish registers and constants.

use super::map::{MapId, VmMap};
use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Cond, Extend, Imm64, Insn, Operand, Reg, Size, Swap, SwapBits, Width};

/// The register that is always zero.
pub(super) const ZERO: u8 = 11;

/// The second operand of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceOperand {
    pub(super) reg: u8,
    pub(super) imm: i32,
}

impl From<Operand> for SourceOperand {
    fn from(operand: Operand) -> Self {
        match operand {
            // Adding zero is cheaper than a branch that the processor would have to predict for each instruction.
            Operand::Reg(reg) => Self { reg: reg.number(), imm: 0 },
            Operand::Imm(imm) => Self { reg: ZERO, imm },
        }
    }
}

/// One decoded slot.
#[derive(Clone, Copy, Debug)]
pub(super) enum DecodedOp {
    Alu64 {
        op: AluOp,
        dst: u8,
        src: SourceOperand,
    },
    Alu32 {
        op: AluOp,
        dst: u8,
        src: SourceOperand,
    },
    Neg64 {
        dst: u8,
    },
    Neg32 {
        dst: u8,
    },
    MovSx {
        extend: Extend,
        dst: u8,
        src: u8,
    },
    Swap {
        order: Swap,
        bits: SwapBits,
        dst: u8,
    },
    /// The following slot is skipped.
    Constant {
        dst: u8,
        value: u64,
    },
    Load {
        size: Size,
        dst: u8,
        base: u8,
        offset: i16,
    },
    LoadSx {
        size: Size,
        dst: u8,
        base: u8,
        offset: i16,
    },
    Store {
        size: Size,
        base: u8,
        offset: i16,
        src: SourceOperand,
    },
    Atomic32 {
        op: AtomicOp,
        base: u8,
        offset: i16,
        src: u8,
    },
    Atomic64 {
        op: AtomicOp,
        base: u8,
        offset: i16,
        src: u8,
    },
    Jump {
        to: u32,
    },
    JumpIf64 {
        cond: Cond,
        dst: u8,
        src: SourceOperand,
        to: u32,
    },
    JumpIf32 {
        cond: Cond,
        dst: u8,
        src: SourceOperand,
        to: u32,
    },
    Call {
        helper: Helper,
    },
    CallLocal {
        to: u32,
    },
    Kfunc {
        id: i32,
    },
    WritesFramePointer,
    Exit,
    /// The second slot of a 64-bit load. No jump can target it.
    Hole,
}

/// Why a program cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum VmLoadError {
    #[error("slot {slot} goes to {target}, where no instruction begins")]
    Target { slot: usize, target: i64 },
    #[error("slot {slot} names map {}, which does not exist", map.0)]
    NoMap { slot: usize, map: MapId },
    #[error("slot {slot} takes the address of byte {offset} of map {}, which has no such address", map.0)]
    NoDirectValue { slot: usize, map: MapId, offset: i32 },
    #[error("slot {slot}: `{insn}` is not modelled")]
    NotModelled { slot: usize, insn: Insn },
}

/// A loaded program: for each slot the decoded operation and the original instruction.
#[derive(Clone, Debug)]
pub(super) struct DecodedProgram {
    pub(super) ops: Vec<DecodedOp>,
    /// The instruction at each slot, for traps.
    pub(super) insns: Vec<Option<Insn>>,
    /// Whether the program runs with the context of XDP.
    pub(super) is_xdp: bool,
}

impl DecodedProgram {
    pub(super) fn new(insns: &[Insn], maps: &[VmMap], is_xdp: bool) -> Result<Self, VmLoadError> {
        let mut at = Vec::with_capacity(insns.len());
        for insn in insns {
            at.push(Some(*insn));
            // One entry for each slot and not for each instruction: jumps count slots, and so does the kernel in its
            // messages.
            at.extend((1..insn.slots()).map(|_| None));
        }
        let mut ops = Vec::with_capacity(at.len());
        for (slot, insn) in at.iter().enumerate() {
            ops.push(match insn {
                Some(insn) => decode(slot, insn, &at, maps)?,
                // A hole keeps the slots behind it in their places. It is executed only if this machine is wrong.
                None => DecodedOp::Hole,
            });
        }
        Ok(Self { ops, insns: at, is_xdp })
    }
}

fn target(slot: usize, distance: i32, at: &[Option<Insn>]) -> Result<u32, VmLoadError> {
    let target = slot as i64 + 1 + i64::from(distance);
    // Also rejects the second slot of a 64-bit load, where no instruction begins.
    let begins = usize::try_from(target).ok().and_then(|index| at.get(index)).is_some_and(Option::is_some);
    u32::try_from(target).ok().filter(|_| begins).ok_or(VmLoadError::Target { slot, target })
}

fn constant(slot: usize, value: Imm64, insn: &Insn, maps: &[VmMap]) -> Result<u64, VmLoadError> {
    let find = |fd: i32| {
        let id = MapId(fd as u32);
        // The linker writes this machine's ids where the kernel expects descriptors. `-1`, for a map that the image
        // lacks, becomes an index that no map has.
        maps.get(fd as usize).ok_or(VmLoadError::NoMap { slot, map: id })
    };
    match value {
        Imm64::Value(value) => Ok(value),
        // The handle is a region of no bytes: its address identifies the map to helpers, and every access to it traps.
        Imm64::MapFd(fd) => Ok(find(fd)?.handle.base()),
        Imm64::MapValue { fd, offset } => {
            let map = find(fd)?;
            map.direct(offset).ok_or(VmLoadError::NoDirectValue { slot, map: map.id, offset })
        }
        // Refused when the program is loaded, not when it runs: if it depended on the packet whether the instruction is
        // reached, verification would prove nothing about other packets.
        _ => Err(VmLoadError::NotModelled { slot, insn: *insn }),
    }
}

/// The register that an instruction writes, other than R0.
fn written(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Atomic { op, src, .. } => match op {
            // Compare-and-exchange writes R0, which is never the frame pointer.
            AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor | AtomicOp::Cmpxchg => None,
            AtomicOp::FetchAdd | AtomicOp::FetchOr | AtomicOp::FetchAnd | AtomicOp::FetchXor | AtomicOp::Xchg => {
                Some(src)
            }
        },
        _ => insn.destination(),
    }
}

fn decode(slot: usize, insn: &Insn, at: &[Option<Insn>], maps: &[VmMap]) -> Result<DecodedOp, VmLoadError> {
    // The verifier rejects it wherever it is ("frame pointer is read only"). Here it is an operation of its own, so
    // that only a program that gets there traps and the check costs the others nothing.
    if written(insn) == Some(Reg::R10) {
        return Ok(DecodedOp::WritesFramePointer);
    }
    Ok(match *insn {
        Insn::Alu { width: Width::W64, op, dst, src } => DecodedOp::Alu64 { op, dst: dst.number(), src: src.into() },
        Insn::Alu { width: Width::W32, op, dst, src } => DecodedOp::Alu32 { op, dst: dst.number(), src: src.into() },
        Insn::Neg { width: Width::W64, dst } => DecodedOp::Neg64 { dst: dst.number() },
        Insn::Neg { width: Width::W32, dst } => DecodedOp::Neg32 { dst: dst.number() },
        Insn::MovSx { extend, dst, src } => DecodedOp::MovSx { extend, dst: dst.number(), src: src.number() },
        Insn::Swap { order, bits, dst } => DecodedOp::Swap { order, bits, dst: dst.number() },
        Insn::LoadImm64 { dst, value } => {
            DecodedOp::Constant { dst: dst.number(), value: constant(slot, value, insn, maps)? }
        }
        Insn::Load { size, dst, base, offset } => {
            DecodedOp::Load { size, dst: dst.number(), base: base.number(), offset }
        }
        Insn::LoadSx { size, dst, base, offset } => {
            DecodedOp::LoadSx { size: size.size(), dst: dst.number(), base: base.number(), offset }
        }
        Insn::Store { size, base, offset, src } => {
            DecodedOp::Store { size, base: base.number(), offset, src: src.into() }
        }
        Insn::Atomic { width: Width::W32, op, base, offset, src } => {
            DecodedOp::Atomic32 { op, base: base.number(), offset, src: src.number() }
        }
        Insn::Atomic { width: Width::W64, op, base, offset, src } => {
            DecodedOp::Atomic64 { op, base: base.number(), offset, src: src.number() }
        }
        // Absolute targets: adding a distance to the slot would be one more operation for each jump, and its overflow
        // would have to be checked each time.
        Insn::Jump { offset } => DecodedOp::Jump { to: target(slot, i32::from(offset), at)? },
        Insn::JumpLong { offset } => DecodedOp::Jump { to: target(slot, offset, at)? },
        Insn::JumpIf { width, cond, dst, src, offset } => {
            let (dst, src, to) = (dst.number(), src.into(), target(slot, i32::from(offset), at)?);
            match width {
                Width::W64 => DecodedOp::JumpIf64 { cond, dst, src, to },
                Width::W32 => DecodedOp::JumpIf32 { cond, dst, src, to },
            }
        }
        Insn::CallHelper(helper) => DecodedOp::Call { helper },
        Insn::CallLocal { offset } => DecodedOp::CallLocal { to: target(slot, offset, at)? },
        Insn::CallKfunc { btf_id, .. } => DecodedOp::Kfunc { id: btf_id },
        Insn::Exit => DecodedOp::Exit,
    })
}
