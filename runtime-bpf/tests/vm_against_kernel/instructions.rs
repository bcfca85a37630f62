//! Every instruction with many operands.

use crate::bench::{DATA, alu, asm, compare, kernel, supports};
use crate::random::{Random, Values as _};
use Reg::{R0, R1, R2, R3, R9, R10};
use weir_ebpf::asm::Asm;
use weir_ebpf::insn::{AluOp, AtomicOp, Cond, Extend, Insn, Narrow, Operand, Reg, Size, Swap, SwapBits, Width};
use weir_ebpf::target::Feature;
use weir_runtime::skip;
use weir_runtime::sys::BpfKernel;

const WIDTHS: [Width; 2] = [Width::W32, Width::W64];
/// Cases in one program; each has four words of the data: two operands in, up to four results out.
const CASES: usize = 96;
const CASE_BYTES: usize = 32;

/// One program of many cases: `R1` and `R2` come from the data, `body` computes, `R0` to `R3` go back.
#[track_caller]
fn check(kernel: &BpfKernel, name: &str, random: &mut Random, mut body: impl FnMut(&mut Asm, &mut Random)) {
    let mut asm = asm();
    asm.load_map_value(R9, DATA, 0);
    for case in 0..CASES {
        let at = (case * CASE_BYTES) as i16;
        asm.load(Size::Dw, R1, R9, at);
        asm.load(Size::Dw, R2, R9, at + 8);
        asm.load(Size::Dw, R3, R9, at + 16);
        asm.load(Size::Dw, R0, R9, at + 24);
        body(&mut asm, random);
        for (index, reg) in [R1, R2, R3, R0].into_iter().enumerate() {
            asm.store(Size::Dw, R9, at + index as i16 * 8, reg);
        }
    }
    asm.mov32(R0, 0x1234);
    asm.exit();
    compare(kernel, name, &asm, &random.bytes(CASES * CASE_BYTES));
}

fn is_shift(op: AluOp) -> bool {
    matches!(op, AluOp::Lsh | AluOp::Rsh | AluOp::Arsh)
}

/// A constant that the verifier accepts for the operation.
fn constant(random: &mut Random, op: AluOp, width: Width) -> i32 {
    let bits = if width == Width::W32 { 31 } else { 63 };
    let value = random.value() as i32;
    match op {
        _ if is_shift(op) => value & bits,
        AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod if value == 0 => -1,
        _ => value,
    }
}

#[track_caller]
fn check_alu(kernel: &BpfKernel, ops: &[AluOp]) {
    let mut random = Random::new(1);
    for &op in ops {
        for width in WIDTHS {
            let name = format!("{op:?} {width:?}");
            check(kernel, &name, &mut random, |asm, _| asm.emit(alu(width, op, R1, R2)));
            check(kernel, &name, &mut random, |asm, _| asm.emit(alu(width, op, R1, R1)));
            check(kernel, &name, &mut random, |asm, random| {
                let imm = constant(random, op, width);
                asm.emit(alu(width, op, R1, imm));
            });
        }
    }
}

const V4_ALU: [AluOp; 2] = [AluOp::Sdiv, AluOp::Smod];

#[test]
fn arithmetic_is_the_kernels() {
    let kernel = kernel!();
    let base: Vec<AluOp> = AluOp::ALL.into_iter().filter(|op| !V4_ALU.contains(op)).collect();
    check_alu(&kernel, &base);
    let mut random = Random::new(2);
    for width in WIDTHS {
        check(&kernel, "neg", &mut random, |asm, _| asm.emit(Insn::Neg { width, dst: R1 }));
    }
}

/// A kernel with version 4 of the instruction set.
fn with_v4() -> Result<BpfKernel, String> {
    let kernel = BpfKernel::open().map_err(|error| format!("no bpf system call: {error}"))?;
    if supports(&kernel, Feature::V4) { Ok(kernel) } else { Err(format!("the kernel lacks {}", Feature::V4)) }
}

#[test]
fn signed_division_is_the_kernels() {
    let kernel = skip!(unless with_v4());
    check_alu(&kernel, &V4_ALU);
    // The one overflow: the lowest number by -1.
    let mut random = Random::new(3);
    for width in WIDTHS {
        for op in V4_ALU {
            check(&kernel, "lowest by -1", &mut random, |asm, _| {
                asm.constant(R1, if width == Width::W32 { 0x8000_0000 } else { 1 << 63 });
                asm.mov(R2, -1);
                asm.emit(alu(width, op, R1, R2));
                asm.constant(R3, if width == Width::W32 { 0x8000_0000 } else { 1 << 63 });
                asm.emit(alu(width, op, R3, -1));
            });
        }
    }
}

#[test]
fn sign_extending_moves_are_the_kernels() {
    let kernel = skip!(unless with_v4());
    let mut random = Random::new(4);
    for extend in Extend::ALL {
        let insn = Insn::MovSx { extend, dst: R1, src: R2 };
        check(&kernel, &insn.to_string(), &mut random, |asm, _| asm.emit(insn));
    }
}

#[test]
fn byte_order_is_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(5);
    let v4 = supports(&kernel, Feature::V4);
    for order in Swap::ALL.into_iter().filter(|&order| v4 || order != Swap::Always) {
        for bits in SwapBits::ALL {
            let insn = Insn::Swap { order, bits, dst: R1 };
            check(&kernel, &insn.to_string(), &mut random, |asm, _| asm.emit(insn));
        }
    }
    if !v4 {
        skip!("the kernel lacks {}: bswap not compared", Feature::V4);
    }
}

#[test]
fn constants_are_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(6);
    check(&kernel, "constants", &mut random, |asm, random| {
        let (wide, any) = (random.value(), random.value());
        asm.emit(Insn::LoadImm64 { dst: R1, value: weir_ebpf::insn::Imm64::Value(wide) });
        asm.constant(R2, any);
    });
}

fn jump_if(asm: &mut Asm, width: Width, cond: Cond, src: Operand) {
    let taken = asm.label("taken");
    asm.mov32(R3, 1);
    match width {
        Width::W32 => asm.jump_if32(cond, R1, src, taken),
        Width::W64 => asm.jump_if(cond, R1, src, taken),
    }
    asm.mov32(R3, 0);
    asm.bind(taken);
}

#[test]
fn conditional_jumps_are_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(7);
    for cond in Cond::ALL {
        for width in WIDTHS {
            let name = format!("{cond:?} {width:?}");
            check(&kernel, &name, &mut random, |asm, _| jump_if(asm, width, cond, R2.into()));
            check(&kernel, &name, &mut random, |asm, random| jump_if(asm, width, cond, (random.value() as i32).into()));
            // Equal operands, and operands equal in their lower halves only.
            check(&kernel, &name, &mut random, |asm, _| {
                asm.mov(R2, R1);
                jump_if(asm, width, cond, R2.into());
            });
            check(&kernel, &name, &mut random, |asm, _| {
                asm.mov32(R2, R1);
                jump_if(asm, width, cond, R2.into());
            });
        }
    }
}

#[test]
fn loads_and_stores_are_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(8);
    for size in Size::ALL {
        for operand in 0..2 {
            check(&kernel, &format!("{size}"), &mut random, |asm, random| {
                let src = if operand == 0 { R1.into() } else { Operand::Imm(random.value() as i32) };
                asm.store(Size::Dw, R10, -8, R2);
                asm.store(size, R10, -8, src);
                asm.load(Size::Dw, R2, R10, -8);
                asm.load(size, R3, R10, -8);
                asm.store(Size::Dw, R10, -16, R1);
                asm.load(size, R1, R10, -16);
            });
        }
    }
}

#[test]
fn sign_extending_loads_are_the_kernels() {
    let kernel = skip!(unless with_v4());
    let mut random = Random::new(9);
    for size in Narrow::ALL {
        check(&kernel, &format!("{size:?}"), &mut random, |asm, _| {
            asm.emit(Insn::LoadSx { size, dst: R1, base: R9, offset: 8 });
            asm.store(Size::Dw, R10, -8, R2);
            asm.emit(Insn::LoadSx { size, dst: R3, base: R10, offset: -8 });
        });
    }
}

/// The atomic operation on a stack slot. `R0` sometimes equals the slot's value, so that compare-and-exchange can
/// succeed.
fn atomic(asm: &mut Asm, random: &mut Random, op: AtomicOp, width: Width) {
    match random.below(3) {
        0 => asm.mov(R0, R1),
        1 => asm.mov32(R0, R1),
        _ => {}
    }
    asm.store(Size::Dw, R10, -8, R1);
    asm.atomic(op, width, R10, -8, R2);
    asm.load(Size::Dw, R3, R10, -8);
}

#[test]
fn atomics_are_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(10);
    let all = supports(&kernel, Feature::Atomics);
    for op in AtomicOp::ALL.into_iter().filter(|&op| all || op == AtomicOp::Add) {
        for width in WIDTHS {
            let name = format!("{op:?} {width:?}");
            check(&kernel, &name, &mut random, |asm, random| atomic(asm, random, op, width));
            // In a map's value.
            let mut asm_map = crate::bench::asm();
            asm_map.load_map_value(R9, DATA, 0);
            asm_map.load(Size::Dw, R2, R9, 8);
            asm_map.load(Size::Dw, R0, R9, 16);
            asm_map.atomic(op, width, R9, 0, R2);
            asm_map.store(Size::Dw, R9, 24, R2);
            asm_map.store(Size::Dw, R9, 32, R0);
            asm_map.exit();
            (0..8).for_each(|_| compare(&kernel, &name, &asm_map, &random.bytes(40)));
        }
    }
    if !all {
        skip!("the kernel lacks {}: only add compared", Feature::Atomics);
    }
}
