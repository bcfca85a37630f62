//! Our limit checker and the kernel's verifier agree just below and just above each limit.

use crate::bench::{asm, kernel, load};
use Reg::{R0, R1, R2, R10};
use weir_ebpf::asm::Asm;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Insn, Reg, Size};
use weir_ebpf::limits;

#[track_caller]
fn check(insns: &[Insn], sound: bool) {
    let kernel = kernel!();
    let accepted = load(&kernel, insns);
    let report = limits::check(insns);
    assert_eq!(accepted.is_ok(), sound, "the kernel: {accepted:?}");
    assert_eq!(report.violations.is_empty(), sound, "the checker: {:?}", report.violations);
}

fn build(body: impl FnOnce(&mut Asm)) -> Vec<Insn> {
    let mut asm = asm();
    body(&mut asm);
    asm.assemble().unwrap().insns.to_vec()
}

/// Branches on numbers that the verifier cannot know.
fn pending(branches: i32) -> Vec<Insn> {
    build(|asm| {
        let shared = asm.label("shared");
        asm.call(Helper::GET_PRANDOM_U32);
        (0..branches).for_each(|k| asm.jump_if(Cond::Eq, R0, k, shared));
        asm.bind(shared);
        asm.mov(R0, 0);
        asm.exit();
    })
}

#[test]
fn pending_branches() {
    check(&pending(8_192), true);
    check(&pending(8_193), false);
}

fn nested(functions: usize, stack: i16) -> Vec<Insn> {
    build(|asm| {
        for _ in 1..functions {
            let next = asm.label("next");
            asm.store(Size::B, R10, -stack, 0);
            asm.call_local(next);
            asm.exit();
            asm.begin_function(next);
        }
        asm.store(Size::B, R10, -stack, 0);
        asm.mov(R0, 0);
        asm.exit();
    })
}

#[test]
fn frames_and_stack() {
    check(&nested(8, 64), true);
    check(&nested(8, 65), false);
    check(&nested(9, 8), false);
    check(&nested(1, 512), true);
    check(&nested(1, 513), false);
    check(&nested(2, 256), true);
    check(&nested(2, 257), false);
}

#[test]
fn shape() {
    check(&[Insn::Exit, Insn::Exit], false);
    check(&build(|asm| asm.mov(R0, 0)), false);
    check(&[Insn::Jump { offset: 1 }, Insn::Exit], false);
    let recursive = build(|asm| {
        let again = asm.label("again");
        asm.call_local(again);
        asm.exit();
        asm.begin_function(again);
        asm.call_local(again);
        asm.exit();
    });
    check(&recursive, false);
    let above = build(|asm| {
        asm.store(Size::W, R10, 0, 0);
        asm.mov(R0, 0);
        asm.exit();
    });
    check(&above, false);
    let sound = build(|asm| {
        let end = asm.label("end");
        asm.load(Size::W, R2, R1, 0);
        asm.mov(R0, 1);
        asm.jump_if(Cond::Eq, R2, 64, end);
        asm.alu(AluOp::Add, R0, 1);
        asm.bind(end);
        asm.exit();
    });
    check(&sound, true);
}
