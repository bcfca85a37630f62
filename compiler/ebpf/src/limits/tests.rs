use super::*;
use crate::asm::Asm;
use crate::insn::{AluOp, Cond, Imm64, Reg, Size};
use crate::target::Target;
use Reg::{R0, R1, R2, R10};

fn build(body: impl FnOnce(&mut Asm)) -> Vec<Insn> {
    let mut asm = Asm::new(Target::V4, "entry");
    body(&mut asm);
    asm.assemble().unwrap().insns.to_vec()
}

#[track_caller]
fn check_violations(insns: &[Insn], expected: &[&str]) {
    let found: Vec<String> = check(insns).violations.iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_sound_program_has_no_violations_and_exact_measures() {
    let insns = build(|asm| {
        let end = asm.label("end");
        asm.mov(R0, 0);
        asm.jump_if(Cond::Eq, R1, 0, end);
        asm.store(Size::Dw, R10, -40, R1);
        asm.jump_if(Cond::Eq, R1, 1, end);
        asm.mov(R0, 1);
        asm.bind(end);
        asm.exit();
    });
    let expected = LimitsReport {
        slots: 6,
        stack: 64,
        frames: 1,
        longest_path: Some(6),
        pending: Some(2),
        violations: Vec::new(),
    };
    assert_eq!(check(&insns), expected);
}

#[test]
fn nothing_is_no_program() {
    check_violations(&[], &["the program has no instructions"]);
}

#[test]
fn jumps_land_on_instructions_of_their_function() {
    let wide = Insn::LoadImm64 { dst: R0, value: Imm64::Value(1) };
    let jump_if =
        |offset| Insn::JumpIf { width: super::super::insn::Width::W64, cond: Cond::Eq, dst: R1, src: 0.into(), offset };
    check_violations(&[jump_if(5), wide, Insn::Exit], &["slot 0 jumps to 6, outside the program"]);
    check_violations(&[jump_if(-2), wide, Insn::Exit], &["slot 0 jumps to -1, outside the program"]);
    check_violations(&[jump_if(1), wide, Insn::Exit], &["slot 0 jumps to 2, the second half of a 64-bit load"]);
    let into_callee = [Insn::CallLocal { offset: 2 }, jump_if(1), Insn::Exit, wide, Insn::Exit];
    check_violations(&into_callee, &["slot 1 jumps to 3, in another function"]);
}

#[test]
fn control_must_not_run_off_the_end() {
    let mov = Insn::Alu { width: super::super::insn::Width::W64, op: AluOp::Mov, dst: R0, src: 0.into() };
    check_violations(&[mov], &["control runs past the end of the function at slot 0"]);
    let into_callee = [Insn::CallLocal { offset: 1 }, mov, mov, Insn::Exit];
    check_violations(&into_callee, &["control runs past the end of the function at slot 1"]);
}

#[test]
fn code_that_no_path_reaches_is_found() {
    check_violations(&[Insn::Exit, Insn::Jump { offset: -2 }], &["slot 1 cannot be reached"]);
    let callback = build(|asm| {
        let back = asm.label("back");
        asm.load_function(R2, back);
        asm.exit();
        asm.begin_function(back);
        asm.exit();
    });
    check_violations(&callback, &[]);
}

/// A function that uses this many bytes of stack, and calls another one with this body.
fn caller(bytes: i16, callee: impl Fn(&mut Asm)) -> Vec<Insn> {
    build(|asm| {
        let label = asm.label("callee");
        asm.store(Size::B, R10, -bytes, 0);
        asm.call_local(label);
        asm.exit();
        asm.begin_function(label);
        callee(asm);
        asm.exit();
    })
}

#[test]
fn stack_is_counted_over_the_call_chain() {
    let chain = |bytes: i16| caller(256, |asm| asm.store(Size::B, R10, -bytes, 0));
    // 257 bytes are rounded up to 288, so one byte more costs a whole unit.
    check_violations(&chain(256), &[]);
    check_violations(&chain(257), &["544 bytes of stack, the limit is 512"]);
}

/// Before 6.9 the kernel rounds the stack of such a function up from one byte.
#[test]
fn a_function_without_stack_counts_32_bytes() {
    let caller_of_empty = |bytes: i16| caller(bytes, |_| {});
    assert_eq!(check(&caller_of_empty(480)).stack, 512);
    check_violations(&caller_of_empty(480), &[]);
    check_violations(&caller_of_empty(481), &["544 bytes of stack, the limit is 512"]);
}

#[test]
fn callers_of_a_tail_call_leave_it_room() {
    let caller_with = |bytes: i16| caller(bytes, |asm| asm.call(super::super::helper::Helper::TAIL_CALL));
    check_violations(&caller_with(224), &[]);
    let message = "256 bytes of stack in the callers of a function with a tail call, the limit is 255";
    check_violations(&caller_with(225), &[message]);
}

#[test]
fn a_pointer_into_the_frame_counts_even_if_only_passed_on() {
    let insns = build(|asm| {
        asm.mov(R2, R10);
        asm.alu(AluOp::Add, R2, -516);
        asm.call(super::super::helper::Helper::MAP_LOOKUP_ELEM);
        asm.exit();
    });
    check_violations(&insns, &["544 bytes of stack, the limit is 512"]);
    let above = build(|asm| {
        asm.store(Size::W, R10, -2, 0);
        asm.exit();
    });
    check_violations(&above, &["slot 0 touches memory above its stack frame"]);
}

#[test]
fn recursion_and_deep_nesting_are_found() {
    let recursive = build(|asm| {
        let again = asm.label("again");
        asm.call_local(again);
        asm.exit();
        asm.begin_function(again);
        asm.call_local(again);
        asm.exit();
    });
    assert!(check(&recursive).violations.contains(&Violation::Recursion { function: 2 }));
    let nested = |functions: usize| {
        build(|asm| {
            for _ in 1..functions {
                let next = asm.label("next");
                asm.call_local(next);
                asm.exit();
                asm.begin_function(next);
            }
            asm.exit();
        })
    };
    check_violations(&nested(8), &[]);
    check_violations(&nested(9), &["9 nested calls, the limit is 8"]);
}

/// A chain of `if x == k goto shared`: each branch leaves the jump pending.
fn chain_to_shared(length: usize) -> Vec<Insn> {
    build(|asm| {
        let shared = asm.label("shared");
        // Every jump leaves the chain for the same place, so no branch is finished before the end of the chain.
        (0..length).for_each(|k| asm.jump_if(Cond::Eq, R1, k as i32, shared));
        asm.bind(shared);
        asm.exit();
    })
}

#[test]
fn more_than_8192_pending_branches_are_too_many() {
    check_violations(&chain_to_shared(8_192), &[]);
    check_violations(&chain_to_shared(8_193), &["8193 branches pending on one path, the limit is 8192"]);
}

#[test]
fn a_chain_that_exits_on_the_fall_through_leaves_one_pending() {
    let insns = build(|asm| {
        for k in 0..9_000 {
            let next = asm.label("next");
            // The fall-through ends at once, so the verifier takes its one pending branch before it meets the next.
            asm.jump_if(Cond::Ne, R1, k, next);
            asm.exit();
            asm.bind(next);
        }
        asm.exit();
    });
    assert_eq!(check(&insns).pending, Some(1));
    check_violations(&insns, &[]);
}

#[test]
fn a_call_adds_its_callees_worst_cases() {
    let insns = build(|asm| {
        let (callee, end, done) = (asm.label("callee"), asm.label("end"), asm.label("done"));
        asm.jump_if(Cond::Eq, R1, 0, end);
        asm.call_local(callee);
        asm.bind(end);
        asm.exit();
        asm.begin_function(callee);
        asm.jump_if(Cond::Eq, R1, 0, done);
        asm.jump_if(Cond::Eq, R1, 1, done);
        asm.bind(done);
        asm.exit();
    });
    let report = check(&insns);
    assert_eq!((report.longest_path, report.pending, report.frames), (Some(6), Some(3), 2));
}

#[test]
fn a_loop_has_no_longest_path() {
    let insns = build(|asm| {
        let top = asm.label("top");
        asm.bind(top);
        asm.jump_if(Cond::Eq, R1, 0, top);
        asm.exit();
    });
    let report = check(&insns);
    assert_eq!((report.longest_path, report.pending, report.violations.len()), (None, None, 0));
}

#[test]
fn a_diamond_is_no_loop() {
    let insns = build(|asm| {
        let (right, join) = (asm.label("right"), asm.label("join"));
        asm.jump_if(Cond::Eq, R1, 0, right);
        asm.jump(join);
        asm.bind(right);
        asm.mov(R0, 1);
        asm.bind(join);
        asm.exit();
    });
    assert_eq!(check(&insns).longest_path, Some(3));
}
