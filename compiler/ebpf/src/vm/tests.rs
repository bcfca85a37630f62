use super::*;
use crate::arbitrary;
use crate::asm::{Asm, MapRef};
use crate::context as field;
use crate::disasm::disassemble;
use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Cond, Imm64, Reg, Size, Width};
use crate::limits;
use crate::target::Target;
use Reg::{R0, R1, R2, R3, R4, R6, R7, R10};
use proptest::prelude::*;

/// Assembles and runs a program on a packet of 60 bytes, 40 of them linear.
fn run_on(vm: &mut Vm, body: impl FnOnce(&mut Asm)) -> Result<RunOutcome, Box<Trap>> {
    let mut asm = Asm::new(Target::V4, "test");
    body(&mut asm);
    let program = vm.load(&asm.assemble().unwrap().link(|map| map.0 as i32)).unwrap();
    let mut skb = Skb { linear: 40, ..Skb::new((0..60).collect()) };
    vm.run(program, &mut skb, &mut VmInputs { ktime_ns: 11, jiffies: 22, cpu: 1, random: 0 })
}

#[track_caller]
fn check(body: impl FnOnce(&mut Asm), r0: u64) {
    assert_eq!(run_on(&mut Vm::new(2), body).map(|outcome| outcome.r0), Ok(r0));
}

/// Checks that the program ends with this trap; `exit` is added.
#[track_caller]
fn check_trap(vm: &mut Vm, body: impl FnOnce(&mut Asm), message: &str) {
    let trap = run_on(vm, |asm| {
        body(asm);
        asm.exit();
    });
    assert_eq!(trap.unwrap_err().to_string(), message);
}

fn with_map(kind: MapKind, flags: MapFlags) -> Vm {
    let mut vm = Vm::new(2);
    vm.create_map(MapSpec { kind, key_size: 4, value_size: 8, max_entries: 1, flags }).unwrap();
    vm
}

#[test]
fn narrow_results_clear_the_upper_half() {
    let upper = |body: fn(&mut Asm)| {
        check(
            |asm| {
                asm.constant(R0, 0xffff_ffff_ffff_fff0);
                body(asm);
                asm.alu(AluOp::Rsh, R0, 32);
                asm.exit();
            },
            0,
        );
    };
    upper(|asm| asm.alu32(AluOp::Add, R0, 1));
    upper(|asm| asm.mov32(R0, -1));
    upper(|asm| asm.emit(Insn::Neg { width: Width::W32, dst: R0 }));
    upper(|asm| asm.emit(Insn::MovSx { extend: crate::insn::Extend::B32, dst: R0, src: R0 }));
    upper(|asm| {
        asm.store(Size::Dw, R10, -8, R0);
        asm.atomic(AtomicOp::Xchg, Width::W32, R10, -8, R0);
    });
    upper(|asm| {
        asm.store(Size::Dw, R10, -8, R0);
        asm.atomic(AtomicOp::Cmpxchg, Width::W32, R10, -8, R0);
    });
}

#[test]
fn constants_of_64_bit_operations_are_sign_extended() {
    check(
        |asm| {
            asm.mov(R0, -1);
            asm.store(Size::Dw, R10, -8, -1);
            asm.load(Size::Dw, R1, R10, -8);
            asm.alu(AluOp::Sub, R0, R1);
            asm.exit();
        },
        0,
    );
}

#[test]
fn the_host_answers_what_programs_ask() {
    for (helper, expected) in [
        (Helper::KTIME_GET_NS, 11),
        (Helper::KTIME_GET_COARSE_NS, 11),
        (Helper::JIFFIES64, 22),
        (Helper::GET_SMP_PROCESSOR_ID, 1),
    ] {
        check(
            |asm| {
                asm.call(helper);
                asm.exit();
            },
            expected,
        );
    }
}

#[test]
fn random_numbers_follow_from_the_hosts_state() {
    let mut host = VmInputs::default();
    let first = [host.next_random(), host.next_random()];
    let mut again = VmInputs::default();
    assert_eq!([again.next_random(), again.next_random()], first);
    assert_ne!(first[0], first[1]);
}

#[test]
fn a_call_clobbers_the_argument_registers() {
    check(
        |asm| {
            asm.call(Helper::JIFFIES64);
            asm.mov(R0, R3);
            asm.exit();
        },
        POISON,
    );
}

#[test]
fn pulling_data_makes_the_rest_of_the_packet_readable() {
    let read = |asm: &mut Asm| {
        asm.load(Size::W, R2, R1, field::DATA);
        asm.load(Size::B, R0, R2, 50);
    };
    let mut vm = Vm::new(1);
    check_trap(
        &mut vm,
        read,
        "program 0, slot 1 `r0 = *(u8 *)(r2 + 50)`: read of 1 bytes out of bounds at 0x300000000032: \
         byte 50 of the packet (element 0, 40 bytes)",
    );
    check(
        |asm| {
            asm.mov(R6, R1);
            asm.mov(R2, 51);
            asm.call(Helper::SKB_PULL_DATA);
            asm.mov(R1, R6);
            read(asm);
            asm.exit();
        },
        50,
    );
}

#[test]
fn a_packet_pointer_is_stale_after_a_pull() {
    check_trap(
        &mut Vm::new(1),
        |asm| {
            asm.load(Size::W, R6, R1, field::DATA);
            asm.mov(R2, 0);
            asm.call(Helper::SKB_PULL_DATA);
            asm.load(Size::B, R0, R6, 0);
        },
        "program 0, slot 3 `r0 = *(u8 *)(r6 + 0)`: read of 1 bytes out of bounds at 0x300000000000: \
         byte 0 of the packet before it moved (element 0, 40 bytes)",
    );
}

#[test]
fn load_bytes_reaches_fragments_and_its_relative_brother_does_not() {
    let load = |helper: Helper, offset: i32| {
        move |asm: &mut Asm| {
            asm.mov(R2, offset);
            asm.mov(R3, R10);
            asm.alu(AluOp::Add, R3, -8);
            asm.mov(R4, 4);
            asm.mov(Reg::R5, 1);
            asm.call(helper);
            asm.load(Size::W, R1, R10, -8);
            asm.alu(AluOp::Lsh, R1, 16);
            asm.alu(AluOp::Or, R0, R1);
            asm.exit();
        }
    };
    check(load(Helper::SKB_LOAD_BYTES, 45), 0x302f_2e2d_0000);
    check(load(Helper::SKB_LOAD_BYTES, 57), Errno::Fault.negative());
    check(load(Helper::SKB_LOAD_BYTES_RELATIVE, 22), 0x2726_2524_0000);
    check(load(Helper::SKB_LOAD_BYTES_RELATIVE, 23), Errno::Fault.negative());
}

#[test]
fn a_missing_null_check_traps() {
    check_trap(
        &mut with_map(MapKind::Hash, MapFlags::default()),
        |asm| {
            asm.store(Size::W, R10, -4, 0);
            asm.load_map(R1, MapRef(0));
            asm.mov(R2, R10);
            asm.alu(AluOp::Add, R2, -4);
            asm.call(Helper::MAP_LOOKUP_ELEM);
            asm.load(Size::Dw, R0, R0, 0);
        },
        "program 0, slot 6 `r0 = *(u64 *)(r0 + 0)`: read of 8 bytes out of bounds at 0x0: \
         byte 0 of nothing (element 0, 0 bytes)",
    );
}

#[test]
fn bytes_past_a_maps_value_trap() {
    check_trap(
        &mut with_map(MapKind::Array, MapFlags::default()),
        |asm| {
            asm.load_map_value(R1, MapRef(0), 4);
            asm.load(Size::Dw, R0, R1, 0);
        },
        "program 0, slot 2 `r0 = *(u64 *)(r1 + 0)`: read of 8 bytes out of bounds at 0x500000000004: \
         byte 4 of a value of map 0 (element 0, 8 bytes)",
    );
}

#[test]
fn maps_that_programs_may_only_read_trap_on_write() {
    let mut vm = with_map(MapKind::Array, MapFlags::RDONLY_PROG);
    check_trap(
        &mut vm,
        |asm| {
            asm.load_map_value(R1, MapRef(0), 0);
            asm.atomic(AtomicOp::Add, Width::W64, R1, 0, R1);
        },
        "program 0, slot 2 `lock *(u64 *)(r1 + 0) += r1`: write of 8 bytes to read-only memory at 0x500000000000: \
         byte 0 of a value of map 0 (element 0, 8 bytes)",
    );
    check_trap(
        &mut vm,
        |asm| {
            asm.load_map(R1, MapRef(0));
            asm.call(Helper::MAP_DELETE_ELEM);
        },
        "program 1, slot 2 `call map_delete_elem#3`: map_delete_elem#3 writes to map 0, which programs may only read",
    );
}

#[test]
fn the_frame_pointer_cannot_be_written() {
    check_trap(&mut Vm::new(1), |asm| asm.mov(R10, 0), "program 0, slot 0 `r10 = 0`: write to the frame pointer");
}

#[test]
fn helpers_check_what_they_are_given() {
    let mut vm = with_map(MapKind::Array, MapFlags::default());
    check_trap(
        &mut vm,
        |asm| asm.call(Helper::MAP_LOOKUP_ELEM),
        "program 0, slot 0 `call map_lookup_elem#1`: argument 1 of map_lookup_elem#1 is not a map",
    );
    check_trap(
        &mut vm,
        |asm| {
            asm.load_map(R2, MapRef(0));
            asm.call(Helper::TAIL_CALL);
        },
        "program 1, slot 2 `call tail_call#12`: tail_call#12 does not work on a map of type Array",
    );
    check_trap(&mut vm, |asm| asm.call(Helper(23)), "program 2, slot 0 `call helper#23`: helper#23 is not modelled");
}

#[test]
fn a_loop_without_end_runs_out_of_budget() {
    let mut vm = Vm::new(1);
    vm.set_budget(1_000);
    check_trap(
        &mut vm,
        |asm| {
            let top = asm.label("top");
            asm.bind(top);
            asm.jump(top);
        },
        "program 0, slot 0 `goto -1`: more than 1000 instructions",
    );
}

#[test]
fn calls_nest_eight_deep() {
    let nested = |depth: usize| {
        move |asm: &mut Asm| {
            for _ in 1..depth {
                let next = asm.label("next");
                asm.call_local(next);
                asm.exit();
                asm.begin_function(next);
            }
            asm.mov(R0, 5);
            asm.exit();
        }
    };
    check(nested(8), 5);
    let trap = run_on(&mut Vm::new(1), nested(9)).unwrap_err();
    assert_eq!((trap.cause, trap.slot), (Cause::CallDepth, 14));
}

#[test]
fn running_off_the_end_traps() {
    let trap = run_on(&mut Vm::new(1), |asm| asm.mov(R0, 0)).unwrap_err();
    assert_eq!(trap.to_string(), "program 0, slot 1: control left the program");
}

fn ring() -> Vm {
    let mut vm = Vm::new(1);
    let flags = MapFlags::default();
    vm.create_map(MapSpec { kind: MapKind::RingBuf, key_size: 0, value_size: 0, max_entries: 4096, flags }).unwrap();
    vm
}

fn reserve(asm: &mut Asm) {
    asm.load_map(R1, MapRef(0));
    asm.mov(R2, 16);
    asm.mov(R3, 0);
    asm.call(Helper::RINGBUF_RESERVE);
    asm.mov(R6, R0);
}

#[test]
fn a_record_must_be_released() {
    check_trap(
        &mut ring(),
        reserve,
        "program 0, slot 6 `exit`: 1 ring-buffer records were neither submitted nor discarded",
    );
}

#[test]
fn a_released_record_is_out_of_reach_and_its_bytes_come_out() {
    let mut vm = ring();
    let submit = |asm: &mut Asm| {
        reserve(asm);
        asm.store(Size::Dw, R6, 8, 7);
        asm.mov(R1, R6);
        asm.mov(R2, 0);
        asm.call(Helper::RINGBUF_SUBMIT);
    };
    check_trap(
        &mut vm,
        |asm| {
            submit(asm);
            asm.store(Size::Dw, R6, 0, 1);
        },
        "program 0, slot 10 `*(u64 *)(r6 + 0) = 1`: write of 8 bytes out of bounds at 0x600000000000: \
         byte 0 of a released record of ring 0 (element 0, 16 bytes)",
    );
    let mut record = vec![0; 16];
    record[8] = 7;
    assert_eq!(vm.drain(MapId(0)), [record]);
    assert!(vm.drain(MapId(0)).is_empty());
}

/// The kernel's verifier: "R3 min value is negative" or "unbounded memory access".
#[test]
fn a_negative_size_of_ringbuf_output_traps() {
    check_trap(
        &mut ring(),
        |asm| {
            asm.store(Size::Dw, R10, -8, 0);
            asm.load_map(R1, MapRef(0));
            asm.mov(R2, R10);
            asm.alu(AluOp::Add, R2, -8);
            asm.mov(R3, -1);
            asm.mov(R4, 0);
            asm.call(Helper::RINGBUF_OUTPUT);
        },
        "program 0, slot 7 `call ringbuf_output#130`: read of 18446744073709551615 bytes out of bounds at \
         0x1000000001f8: byte 504 of the stack (element 0, 512 bytes)",
    );
}

/// The kernel's verifier: "tail_call would lead to reference leak", whether or not the entry is empty.
#[test]
fn a_tail_call_with_a_reserved_record_traps() {
    for is_filled in [false, true] {
        let mut vm = ring();
        let flags = MapFlags::default();
        let spec = MapSpec { kind: MapKind::ProgArray, key_size: 4, value_size: 4, max_entries: 1, flags };
        vm.create_map(spec).unwrap();
        if is_filled {
            let callee = vm.load(&[Insn::Exit]).unwrap();
            vm.set_program(MapId(1), 0, Some(callee)).unwrap();
        }
        let trap = run_on(&mut vm, |asm| {
            asm.mov(R7, R1);
            reserve(asm);
            asm.mov(R1, R7);
            asm.load_map(R2, MapRef(1));
            asm.mov(R3, 0);
            asm.call(Helper::TAIL_CALL);
            asm.mov(R0, 0);
            asm.exit();
        });
        let trap = trap.unwrap_err();
        assert_eq!((trap.cause, trap.insn), (Cause::LeakedRecords(1), Some(Insn::CallHelper(Helper::TAIL_CALL))));
    }
}

#[test]
fn programs_that_go_nowhere_do_not_load() {
    let mut vm = Vm::new(1);
    let load = |vm: &mut Vm, insn| vm.load(&[insn, Insn::Exit]).map(|_| ()).unwrap_err().to_string();
    assert_eq!(load(&mut vm, Insn::Jump { offset: 1 }), "slot 0 goes to 2, where no instruction begins");
    assert_eq!(load(&mut vm, Insn::Jump { offset: -2 }), "slot 0 goes to -1, where no instruction begins");
    let wide = |value| Insn::LoadImm64 { dst: R1, value };
    assert_eq!(load(&mut vm, wide(Imm64::MapFd(3))), "slot 0 names map 3, which does not exist");
    assert_eq!(load(&mut vm, wide(Imm64::Func(0))), "slot 0: `r1 = func[+0]` is not modelled");
    let mut vm = with_map(MapKind::Array, MapFlags::default());
    assert_eq!(
        load(&mut vm, wide(Imm64::MapValue { fd: 0, offset: 8 })),
        "slot 0 takes the address of byte 8 of map 0, which has no such address"
    );
}

#[test]
fn a_program_reads_values_written_by_another_cpu_only_through_its_own_slot() {
    let mut vm = with_map(MapKind::PercpuArray, MapFlags::default());
    vm.map_update(MapId(0), &[0; 4], &[[1; 8], [2; 8]].concat(), ANY).unwrap();
    let outcome = run_on(&mut vm, |asm| {
        let none = asm.label("none");
        asm.store(Size::W, R10, -4, 0);
        asm.load_map(R1, MapRef(0));
        asm.mov(R2, R10);
        asm.alu(AluOp::Add, R2, -4);
        asm.call(Helper::MAP_LOOKUP_ELEM);
        asm.jump_if(Cond::Eq, R0, 0, none);
        asm.load(Size::B, R0, R0, 0);
        asm.bind(none);
        asm.exit();
    });
    assert_eq!(outcome.unwrap().r0, 2);
}

#[test]
fn a_tail_call_starts_the_other_program_in_a_fresh_frame() {
    let mut vm = Vm::new(1);
    let spec =
        MapSpec { kind: MapKind::ProgArray, key_size: 4, value_size: 4, max_entries: 1, flags: MapFlags::default() };
    vm.create_map(spec).unwrap();
    let callee = vm.load(&[Insn::Load { size: Size::B, dst: R0, base: R10, offset: -1 }, Insn::Exit]).unwrap();
    vm.set_program(MapId(0), 0, Some(callee)).unwrap();
    let trap = run_on(&mut vm, |asm| {
        asm.store(Size::B, R10, -1, 7);
        asm.load_map(R2, MapRef(0));
        asm.mov(R3, 0);
        asm.call(Helper::TAIL_CALL);
        asm.mov(R7, 0);
        asm.exit();
    });
    let trap = trap.unwrap_err();
    assert_eq!((trap.program, trap.slot), (callee, 0));
    assert!(matches!(trap.cause, Cause::Uninitialised { bytes: 1, .. }));
}

/// Not compared with the kernel, which accepts a tail call in a function only with BTF.
#[test]
fn a_tail_call_in_a_function_returns_to_the_functions_caller() {
    let mut vm = Vm::new(1);
    let spec =
        MapSpec { kind: MapKind::ProgArray, key_size: 4, value_size: 4, max_entries: 1, flags: MapFlags::default() };
    vm.create_map(spec).unwrap();
    let mov = |dst, imm: i32| Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: imm.into() };
    let callee = vm.load(&[mov(R6, 3), mov(R0, 7), Insn::Exit]).unwrap();
    vm.set_program(MapId(0), 0, Some(callee)).unwrap();
    let outcome = run_on(&mut vm, |asm| {
        let inner = asm.label("inner");
        asm.mov(R6, 100);
        asm.call_local(inner);
        asm.alu(AluOp::Add, R0, R6);
        asm.exit();
        asm.begin_function(inner);
        asm.load_map(R2, MapRef(0));
        asm.mov(R3, 0);
        asm.call(Helper::TAIL_CALL);
        asm.mov(R0, 50);
        asm.exit();
    });
    assert_eq!(outcome.unwrap().r0, 107);
}

#[test]
fn a_clone_is_a_snapshot() {
    let mut vm = with_map(MapKind::Hash, MapFlags::default());
    vm.map_update(MapId(0), &[0; 4], &[1; 8], ANY).unwrap();
    let mut before = vm.clone();
    vm.map_delete(MapId(0), &[0; 4]).unwrap();
    assert_eq!(before.map_lookup(MapId(0), &[0; 4]), Ok(vec![1; 8]));
    before.map_update(MapId(0), &[0; 4], &[2; 8], EXIST).unwrap();
    assert_eq!(vm.map_lookup(MapId(0), &[0; 4]), Err(Errno::NoEnt));
}

/// A machine with an array, a hash, a ring and a program array, in this order.
fn furnished() -> Vm {
    let mut vm = with_map(MapKind::Array, MapFlags::default());
    let flags = MapFlags::default();
    for (kind, key_size, value_size, max_entries) in
        [(MapKind::Hash, 4, 8, 2), (MapKind::RingBuf, 0, 0, 4096), (MapKind::ProgArray, 4, 4, 2)]
    {
        vm.create_map(MapSpec { kind, key_size, value_size, max_entries, flags }).unwrap();
    }
    vm
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Every program ends with a verdict or a trap, and leaves the machine usable.
    #[test]
    fn no_program_breaks_the_machine(
        insns in proptest::collection::vec(arbitrary::tame_insn(), 1..24),
        values in any::<[i32; 4]>(),
    ) {
        let mut vm = furnished();
        vm.set_budget(2_000);
        // Registers hold pointers and small numbers where helpers expect them.
        let setup = |dst, src: crate::insn::Operand| Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src };
        let mut program = vec![setup(R6, R10.into()), setup(R7, R1.into()), setup(R2, R10.into()), setup(R3, R10.into())];
        program.push(Insn::Alu { width: Width::W64, op: AluOp::Sub, dst: R2, src: (values[0] & 0x3f8).into() });
        program.push(Insn::Alu { width: Width::W64, op: AluOp::Sub, dst: R3, src: (values[1] & 0x1f8).into() });
        program.push(setup(R4, (values[2] & 0xff).into()));
        program.push(setup(Reg::R5, (values[3] & 3).into()));
        program.extend(insns);
        program.push(Insn::Exit);
        let report = limits::check(&program);
        let text = disassemble(&program);
        prop_assert!(text.lines().count() >= program.len());
        if let Ok(id) = vm.load(&program) {
            vm.set_program(MapId(3), 0, Some(id)).unwrap();
            let mut skb = Skb { linear: 40, ..Skb::new((0..60).collect()) };
            for _ in 0..2 {
                let result = vm.run(id, &mut skb, &mut VmInputs::default());
                prop_assert_eq!(skb.packet.len(), 60);
                let left = matches!(&result, Err(trap) if trap.cause == Cause::OffTheEnd);
                let sound = report.violations.is_empty();
                prop_assert!(!(left && sound), "left a program that the limit checker passed:\n{text}");
            }
            vm.drain(MapId(2));
            let exit = vm.load(&[Insn::Exit]).unwrap();
            prop_assert!(vm.run(exit, &mut skb, &mut VmInputs::default()).is_ok());
        } else {
            prop_assert!(!report.violations.is_empty(), "the limit checker passed what does not load:\n{text}");
        }
    }
}
