//! Instructions decoded for the interpreter: one [`Op`] for each slot, with absolute jump targets and map addresses
//! filled in.
//!
//! An operand is `registers[reg] + imm`, in a file of sixteen registers of which register 11 is always zero. So the
//! interpreter needs no branch to distinguish registers and constants.

use super::map::{Map, MapId};
use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Cond, Extend, Imm64, Insn, Operand, Reg, Size, Swap, SwapBits, Width};

/// The register that is always zero.
pub(super) const ZERO: u8 = 11;

/// The second operand of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) reg: u8,
    pub(super) imm: i32,
}

impl From<Operand> for Source {
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
pub(super) enum Op {
    Alu64 {
        op: AluOp,
        dst: u8,
        src: Source,
    },
    Alu32 {
        op: AluOp,
        dst: u8,
        src: Source,
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
        src: Source,
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
        src: Source,
        to: u32,
    },
    JumpIf32 {
        cond: Cond,
        dst: u8,
        src: Source,
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
pub enum LoadError {
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
pub(super) struct Program {
    pub(super) ops: Vec<Op>,
    /// The instruction at each slot, for traps.
    pub(super) insns: Vec<Option<Insn>>,
    /// Whether the program runs with the context of XDP.
    pub(super) is_xdp: bool,
}

impl Program {
    pub(super) fn new(insns: &[Insn], maps: &[Map], is_xdp: bool) -> Result<Self, LoadError> {
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
                None => Op::Hole,
            });
        }
        Ok(Self { ops, insns: at, is_xdp })
    }
}

fn target(slot: usize, distance: i32, at: &[Option<Insn>]) -> Result<u32, LoadError> {
    let target = slot as i64 + 1 + i64::from(distance);
    // Also rejects the second slot of a 64-bit load, where no instruction begins.
    let begins = usize::try_from(target).ok().and_then(|index| at.get(index)).is_some_and(Option::is_some);
    u32::try_from(target).ok().filter(|_| begins).ok_or(LoadError::Target { slot, target })
}

fn constant(slot: usize, value: Imm64, insn: &Insn, maps: &[Map]) -> Result<u64, LoadError> {
    let find = |fd: i32| {
        let id = MapId(fd as u32);
        // The linker writes this machine's ids where the kernel expects descriptors. `-1`, for a map that the image
        // lacks, becomes an index that no map has.
        maps.get(fd as usize).ok_or(LoadError::NoMap { slot, map: id })
    };
    match value {
        Imm64::Value(value) => Ok(value),
        // The handle is a region of no bytes: its address identifies the map to helpers, and every access to it traps.
        Imm64::MapFd(fd) => Ok(find(fd)?.handle.base()),
        Imm64::MapValue { fd, offset } => {
            let map = find(fd)?;
            map.direct(offset).ok_or(LoadError::NoDirectValue { slot, map: map.id, offset })
        }
        // Refused when the program is loaded, not when it runs: if it depended on the packet whether the instruction is
        // reached, verification would prove nothing about other packets.
        _ => Err(LoadError::NotModelled { slot, insn: *insn }),
    }
}

/// The register that an instruction writes as its destination.
fn written(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. }
        | Insn::LoadSx { dst, .. } => Some(dst),
        Insn::Atomic { op, src, .. } => match op {
            // Compare-and-exchange writes R0, which is never the frame pointer.
            AtomicOp::Add | AtomicOp::Or | AtomicOp::And | AtomicOp::Xor | AtomicOp::Cmpxchg => None,
            AtomicOp::FetchAdd | AtomicOp::FetchOr | AtomicOp::FetchAnd | AtomicOp::FetchXor | AtomicOp::Xchg => {
                Some(src)
            }
        },
        _ => None,
    }
}

fn decode(slot: usize, insn: &Insn, at: &[Option<Insn>], maps: &[Map]) -> Result<Op, LoadError> {
    // The verifier rejects it wherever it is ("frame pointer is read only"). Here it is an operation of its own, so
    // that only a program that gets there traps and the check costs the others nothing.
    if written(insn) == Some(Reg::R10) {
        return Ok(Op::WritesFramePointer);
    }
    Ok(match *insn {
        Insn::Alu { width: Width::W64, op, dst, src } => Op::Alu64 { op, dst: dst.number(), src: src.into() },
        Insn::Alu { width: Width::W32, op, dst, src } => Op::Alu32 { op, dst: dst.number(), src: src.into() },
        Insn::Neg { width: Width::W64, dst } => Op::Neg64 { dst: dst.number() },
        Insn::Neg { width: Width::W32, dst } => Op::Neg32 { dst: dst.number() },
        Insn::MovSx { extend, dst, src } => Op::MovSx { extend, dst: dst.number(), src: src.number() },
        Insn::Swap { order, bits, dst } => Op::Swap { order, bits, dst: dst.number() },
        Insn::LoadImm64 { dst, value } => Op::Constant { dst: dst.number(), value: constant(slot, value, insn, maps)? },
        Insn::Load { size, dst, base, offset } => Op::Load { size, dst: dst.number(), base: base.number(), offset },
        Insn::LoadSx { size, dst, base, offset } => {
            Op::LoadSx { size: size.size(), dst: dst.number(), base: base.number(), offset }
        }
        Insn::Store { size, base, offset, src } => Op::Store { size, base: base.number(), offset, src: src.into() },
        Insn::Atomic { width: Width::W32, op, base, offset, src } => {
            Op::Atomic32 { op, base: base.number(), offset, src: src.number() }
        }
        Insn::Atomic { width: Width::W64, op, base, offset, src } => {
            Op::Atomic64 { op, base: base.number(), offset, src: src.number() }
        }
        // Absolute targets: adding a distance to the slot would be one more operation for each jump, and its overflow
        // would have to be checked each time.
        Insn::Jump { offset } => Op::Jump { to: target(slot, i32::from(offset), at)? },
        Insn::JumpLong { offset } => Op::Jump { to: target(slot, offset, at)? },
        Insn::JumpIf { width, cond, dst, src, offset } => {
            let (dst, src, to) = (dst.number(), src.into(), target(slot, i32::from(offset), at)?);
            match width {
                Width::W64 => Op::JumpIf64 { cond, dst, src, to },
                Width::W32 => Op::JumpIf32 { cond, dst, src, to },
            }
        }
        Insn::CallHelper(helper) => Op::Call { helper },
        Insn::CallLocal { offset } => Op::CallLocal { to: target(slot, offset, at)? },
        Insn::CallKfunc { btf_id, .. } => Op::Kfunc { id: btf_id },
        Insn::Exit => Op::Exit,
    })
}
