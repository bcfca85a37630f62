//! Random instructions for property tests.

use super::helper::Helper;
use super::insn::{AluOp, AtomicOp, Cond, Extend, Imm64, Insn, Narrow, Operand, Reg, Size, Swap, SwapBits, Width};
use proptest::prelude::*;
use proptest::sample::select;

fn reg() -> impl Strategy<Value = Reg> {
    select(Reg::ALL.as_slice())
}

fn width() -> impl Strategy<Value = Width> {
    select([Width::W32, Width::W64].as_slice())
}

fn operand() -> impl Strategy<Value = Operand> {
    prop_oneof![reg().prop_map(Operand::Reg), any::<i32>().prop_map(Operand::Imm)]
}

fn imm64() -> impl Strategy<Value = Imm64> {
    prop_oneof![
        any::<u64>().prop_map(Imm64::Value),
        any::<i32>().prop_map(Imm64::MapFd),
        any::<(i32, i32)>().prop_map(|(fd, offset)| Imm64::MapValue { fd, offset }),
        any::<(i32, i32)>().prop_map(|(id, module)| Imm64::BtfId { id, module }),
        any::<i32>().prop_map(Imm64::Func),
        any::<i32>().prop_map(Imm64::MapIndex),
        any::<(i32, i32)>().prop_map(|(index, offset)| Imm64::MapIndexValue { index, offset }),
    ]
}

fn compute() -> impl Strategy<Value = Insn> {
    prop_oneof![
        // More of these than of the others, because a program of nothing but swaps and constants computes too little to
        // go wrong.
        4 => (width(), select(AluOp::ALL.as_slice()), reg(), operand())
            .prop_map(|(width, op, dst, src)| Insn::Alu { width, op, dst, src }),
        1 => (width(), reg()).prop_map(|(width, dst)| Insn::Neg { width, dst }),
        1 => (select(Extend::ALL.as_slice()), reg(), reg())
            .prop_map(|(extend, dst, src)| Insn::MovSx { extend, dst, src }),
        1 => (select(Swap::ALL.as_slice()), select(SwapBits::ALL.as_slice()), reg())
            .prop_map(|(order, bits, dst)| Insn::Swap { order, bits, dst }),
        1 => (reg(), imm64()).prop_map(|(dst, value)| Insn::LoadImm64 { dst, value }),
    ]
}

fn memory() -> impl Strategy<Value = Insn> {
    prop_oneof![
        (select(Size::ALL.as_slice()), reg(), reg(), any::<i16>()).prop_map(|(size, dst, base, offset)| Insn::Load {
            size,
            dst,
            base,
            offset
        }),
        (select(Narrow::ALL.as_slice()), reg(), reg(), any::<i16>())
            .prop_map(|(size, dst, base, offset)| Insn::LoadSx { size, dst, base, offset }),
        (select(Size::ALL.as_slice()), reg(), any::<i16>(), operand())
            .prop_map(|(size, base, offset, src)| Insn::Store { size, base, offset, src }),
        (select(AtomicOp::ALL.as_slice()), width(), reg(), any::<i16>(), reg())
            .prop_map(|(op, width, base, offset, src)| Insn::Atomic { op, width, base, offset, src }),
    ]
}

fn control() -> impl Strategy<Value = Insn> {
    prop_oneof![
        any::<i16>().prop_map(|offset| Insn::Jump { offset }),
        any::<i32>().prop_map(|offset| Insn::JumpLong { offset }),
        (width(), select(Cond::ALL.as_slice()), reg(), operand(), any::<i16>())
            .prop_map(|(width, cond, dst, src, offset)| Insn::JumpIf { width, cond, dst, src, offset }),
        // Any number, also those of helpers that do not exist: encoding must not depend on the list of names.
        any::<i32>().prop_map(|number| Insn::CallHelper(Helper(number))),
        any::<i32>().prop_map(|offset| Insn::CallLocal { offset }),
        any::<(i32, i16)>().prop_map(|(btf_id, module)| Insn::CallKfunc { btf_id, module }),
        Just(Insn::Exit),
    ]
}

/// Any instruction.
pub(crate) fn insn() -> impl Strategy<Value = Insn> {
    prop_oneof![compute(), memory(), control()]
}

const HELPERS: [Helper; 15] = [
    Helper::MAP_LOOKUP_ELEM,
    Helper::MAP_UPDATE_ELEM,
    Helper::MAP_DELETE_ELEM,
    Helper::KTIME_GET_NS,
    Helper::GET_PRANDOM_U32,
    Helper::TAIL_CALL,
    Helper::SKB_LOAD_BYTES,
    Helper::SKB_PULL_DATA,
    Helper::SKB_LOAD_BYTES_RELATIVE,
    Helper::RINGBUF_OUTPUT,
    Helper::RINGBUF_RESERVE,
    Helper::RINGBUF_SUBMIT,
    Helper::RINGBUF_DISCARD,
    Helper::RINGBUF_QUERY,
    // One helper that no list knows, so that the trap for it occurs.
    Helper(999),
];

/// Any instruction, adapted so that a program of them runs for a while: near jumps, small offsets, known helpers, maps
/// 0 to 3.
pub(crate) fn tame_insn() -> impl Strategy<Value = Insn> {
    insn().prop_map(|mut insn| {
        match &mut insn {
            // Offsets of 16 random bits nearly always miss the object, and then every program would end at its first
            // access.
            Insn::Load { offset, .. } | Insn::LoadSx { offset, .. } => *offset %= 64,
            Insn::Store { offset, .. } | Insn::Atomic { offset, .. } => *offset %= 64,
            // Both signs remain: loops must occur, and the budget must end them.
            Insn::Jump { offset } | Insn::JumpIf { offset, .. } => *offset %= 6,
            Insn::JumpLong { offset } | Insn::CallLocal { offset } => *offset %= 6,
            Insn::CallHelper(Helper(number)) => {
                let index = number.unsigned_abs() as usize % HELPERS.len();
                *number = HELPERS[index].0;
            }
            Insn::LoadImm64 { value, .. } => match value {
                Imm64::Value(_) => {}
                // The machine models no indices and no function pointers. As they are, they would make most programs
                // fail to load.
                Imm64::MapFd(fd) | Imm64::MapIndex(fd) | Imm64::Func(fd) => *value = Imm64::MapFd(*fd & 3),
                Imm64::MapValue { fd: offset, .. }
                | Imm64::BtfId { id: offset, .. }
                | Imm64::MapIndexValue { index: offset, .. } => *value = Imm64::MapValue { fd: 0, offset: *offset & 7 },
            },
            _ => {}
        }
        insn
    })
}
