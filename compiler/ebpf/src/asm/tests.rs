use super::*;
use crate::disasm::disassemble;
use Reg::{R0, R1, R2};

fn asm() -> Asm {
    Asm::new(Target::BASE, "entry")
}

#[track_caller]
fn check(asm: &Asm, expected: &str) {
    assert_eq!(disassemble(&asm.assemble().unwrap().insns), expected);
}

#[track_caller]
fn check_error(asm: &Asm, expected: &str) {
    assert_eq!(asm.assemble().unwrap_err().to_string(), expected);
}

#[test]
fn distances_count_a_wide_load_as_two_slots() {
    let mut asm = asm();
    let (top, end) = (asm.label("top"), asm.label("end"));
    asm.bind(top);
    asm.jump_if32(Cond::Eq, R1, 5, end);
    asm.load_map(R2, MapRef(0));
    asm.constant(R0, 0x1_0000_0000);
    asm.jump(top);
    asm.bind(end);
    asm.exit();
    let insns = asm.assemble().unwrap().insns;
    assert_eq!(insns[0].jump(), Some(5));
    assert_eq!(insns[3].jump(), Some(-6));
}

#[test]
fn constants_take_one_slot_where_they_can() {
    let mut asm = asm();
    asm.constant(R1, 5);
    asm.constant(R1, 0xffff_ffff);
    asm.constant(R1, u64::MAX);
    asm.constant(R1, 0x8000_0000_0000);
    check(&asm, "       0: w1 = 5\n       1: w1 = -1\n       2: r1 = -1\n       3: r1 = 0x800000000000 ll\n");
}

#[test]
fn maps_stay_symbolic_until_they_are_linked() {
    let mut asm = asm();
    asm.mov(R0, 0);
    asm.load_map(R1, MapRef(7));
    asm.load_map_value(R2, MapRef(9), 16);
    asm.exit();
    let assembled = asm.assemble().unwrap();
    let uses: Vec<_> = assembled.maps.iter().map(|used| (used.index, used.slot, used.map.0)).collect();
    assert_eq!(uses, [(1, 1, 7), (2, 3, 9)]);
    let linked = assembled.link(|map| map.0 as i32 + 100);
    assert_eq!(linked[1].to_string(), "r1 = map[fd:107]");
    assert_eq!(linked[2].to_string(), "r2 = map[fd:109][0]+16");
}

#[test]
fn every_instruction_keeps_the_tag_it_was_emitted_under() {
    let mut asm = asm();
    asm.mov(R0, 0);
    let before = asm.set_tag(Tag(4));
    asm.load_map(R1, MapRef(0));
    asm.set_tag(before);
    asm.exit();
    assert_eq!(asm.assemble().unwrap().tags, [Tag(0), Tag(4), Tag(0)]);
}

#[test]
fn functions_are_listed_with_their_first_slot() {
    let mut asm = asm();
    let double = asm.label("double");
    asm.call_local(double);
    asm.exit();
    asm.begin_function(double);
    asm.mov(R0, R1);
    asm.exit();
    let assembled = asm.assemble().unwrap();
    let functions: Vec<_> = assembled.functions.iter().map(|f| (f.name.as_str(), f.slot)).collect();
    assert_eq!(functions, [("entry", 0), ("double", 2)]);
    assert_eq!(assembled.insns[0], Insn::CallLocal { offset: 1 });
}

/// A jump over `filler` slots.
fn jump_over(target: Target, filler: usize, conditional: bool) -> Asm {
    let mut asm = Asm::new(target, "entry");
    let end = asm.label("deny");
    if conditional {
        asm.jump_if(Cond::Eq, R1, 0, end)
    } else {
        asm.jump(end)
    }
    (0..filler).for_each(|_| asm.mov(R0, 0));
    asm.bind(end);
    asm.exit();
    asm
}

#[test]
fn a_jump_reaches_32767_slots_and_no_further() {
    let at_limit = jump_over(Target::BASE, 32_767, true).assemble().unwrap();
    assert_eq!(at_limit.insns[0].jump(), Some(32_767));
    let message = "the jump at slot 0 to label L0 (deny) is 32768 slots, the limit is 32767";
    check_error(&jump_over(Target::BASE, 32_768, true), message);
    check_error(&jump_over(Target::BASE, 32_768, false), message);
    check_error(&jump_over(Target::V4, 32_768, true), message);
}

#[test]
fn an_unconditional_jump_becomes_long_only_where_it_must() {
    let far = jump_over(Target::V4, 32_768, false).assemble().unwrap();
    assert_eq!(far.insns[0], Insn::JumpLong { offset: 32_768 });
    let near = jump_over(Target::V4, 32_767, false).assemble().unwrap();
    assert_eq!(near.insns[0], Insn::Jump { offset: 32_767 });
}

#[test]
fn a_label_must_stand_in_exactly_one_place() {
    let mut unbound = asm();
    let nowhere = unbound.label("nowhere");
    unbound.mov(R0, 0);
    unbound.jump(nowhere);
    check_error(&unbound, "label L0 (nowhere) is used at slot 1 and never bound");
    let mut twice = asm();
    let label = twice.label("here");
    twice.bind(label);
    twice.bind(label);
    check_error(&twice, "label L0 (here) is bound twice");
}

#[test]
fn instruction_that_the_target_lacks_is_refused() {
    let mut asm = Asm::new(Target { kernel: (5, 10) }, "entry");
    asm.mov(R0, 0);
    asm.atomic(AtomicOp::Cmpxchg, Width::W64, R1, 0, R2);
    check_error(
        &asm,
        "slot 1: `r0 = cmpxchg_64(r1 + 0, r0, r2)` needs atomic operations other than add (kernel 5.12), \
         the target is kernel 5.10",
    );
}

#[test]
fn a_program_of_more_than_a_million_slots_is_refused() {
    let mut asm = asm();
    // Loads of two slots: a limit that counted instructions would let twice the kernel's maximum through.
    (0..500_001).for_each(|_| asm.load_map(R1, MapRef(0)));
    check_error(&asm, "the program has 1000002 slots, the limit is 1000000");
}
