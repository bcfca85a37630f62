use super::*;
use crate::helper::Helper;
use crate::insn::SwapBits;
use Reg::{R0, R1, R2, R10};

#[track_caller]
fn check(insn: Insn, text: &str) {
    assert_eq!(insn.to_string(), text);
}

#[test]
fn arithmetic_names_the_width_by_the_register() {
    let alu = |width, op, src| Insn::Alu { width, op, dst: R1, src };
    check(alu(Width::W64, AluOp::Add, R2.into()), "r1 += r2");
    check(alu(Width::W32, AluOp::Arsh, 3.into()), "w1 s>>= 3");
    check(alu(Width::W32, AluOp::Mov, R2.into()), "w1 = w2");
    check(alu(Width::W64, AluOp::Sdiv, (-7).into()), "r1 s/= -7");
    check(alu(Width::W64, AluOp::Smod, R10.into()), "r1 s%= r10");
    check(Insn::Neg { width: Width::W32, dst: R1 }, "w1 = -w1");
    check(Insn::MovSx { extend: Extend::B32, dst: R1, src: R2 }, "w1 = (s8)w2");
    check(Insn::MovSx { extend: Extend::W64, dst: R1, src: R2 }, "r1 = (s32)r2");
    check(Insn::Swap { order: Swap::ToBe, bits: SwapBits::B16, dst: R1 }, "r1 = be16 r1");
    check(Insn::Swap { order: Swap::Always, bits: SwapBits::B64, dst: R1 }, "r1 = bswap64 r1");
}

#[test]
fn memory_is_a_typed_dereference() {
    check(Insn::Load { size: Size::W, dst: R0, base: R1, offset: 4 }, "r0 = *(u32 *)(r1 + 4)");
    check(Insn::Load { size: Size::B, dst: R0, base: R10, offset: i16::MIN }, "r0 = *(u8 *)(r10 - 32768)");
    check(Insn::LoadSx { size: Narrow::H, dst: R0, base: R1, offset: 0 }, "r0 = *(s16 *)(r1 + 0)");
    check(Insn::Store { size: Size::Dw, base: R10, offset: -8, src: R1.into() }, "*(u64 *)(r10 - 8) = r1");
    check(Insn::Store { size: Size::H, base: R1, offset: 2, src: 7.into() }, "*(u16 *)(r1 + 2) = 7");
}

#[test]
fn atomics_read_as_their_functions() {
    let atomic = |op, width| Insn::Atomic { op, width, base: R1, offset: 8, src: R2 };
    check(atomic(AtomicOp::Add, Width::W64), "lock *(u64 *)(r1 + 8) += r2");
    check(atomic(AtomicOp::Xor, Width::W32), "lock *(u32 *)(r1 + 8) ^= w2");
    check(atomic(AtomicOp::FetchAnd, Width::W64), "r2 = atomic_fetch_and((u64 *)(r1 + 8), r2)");
    check(atomic(AtomicOp::Xchg, Width::W64), "r2 = xchg_64(r1 + 8, r2)");
    check(atomic(AtomicOp::Cmpxchg, Width::W32), "w0 = cmpxchg_32(r1 + 8, w0, w2)");
}

#[test]
fn loads_of_addresses_name_what_they_load() {
    let load = |value| Insn::LoadImm64 { dst: R1, value };
    check(load(Imm64::Value(0x1234)), "r1 = 0x1234 ll");
    check(load(Imm64::MapFd(7)), "r1 = map[fd:7]");
    check(load(Imm64::MapValue { fd: 7, offset: 16 }), "r1 = map[fd:7][0]+16");
    check(load(Imm64::Func(-3)), "r1 = func[-3]");
}

#[test]
fn calls_name_the_helper() {
    check(Insn::CallHelper(Helper::MAP_LOOKUP_ELEM), "call map_lookup_elem#1");
    check(Insn::CallHelper(Helper(9999)), "call helper#9999");
    check(Insn::CallLocal { offset: 12 }, "call +12");
    check(Insn::CallKfunc { btf_id: 5, module: 0 }, "call kernel-function 5");
}

#[test]
fn a_program_has_labels_at_its_targets() {
    let jump_if = |offset| Insn::JumpIf { width: Width::W32, cond: Cond::Eq, dst: R1, src: 5.into(), offset };
    let program = [
        Insn::LoadImm64 { dst: R0, value: Imm64::Value(1) },
        jump_if(1),
        Insn::Jump { offset: -4 },
        Insn::CallLocal { offset: 1 },
        Insn::Exit,
        Insn::Exit,
        Insn::Jump { offset: 100 },
    ];
    let expected = "\
L0:
       0: r0 = 0x1 ll
       2: if w1 == 5 goto L1
       3: goto L0
L1:
       4: call L2
       5: exit
L2:
       6: exit
       7: goto +100
";
    assert_eq!(disassemble(&program), expected);
}
