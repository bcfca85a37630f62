use super::*;
use crate::asm::{Asm, MapRef};
use crate::helper::Helper;
use crate::insn::{AluOp, Reg, Size};
use crate::target::Target;
use crate::vm::{Cause, MapFlags, MapKind, MapSpec};
use Reg::{R0, R1, R2, R6, R7, R10};

/// A machine with two maps of one value each. The program reads byte 0 of the first map, adds a number on the stack to
/// select a byte of the second map, reads that byte and returns it.
fn machine() -> (Vm, ProgramId, [MapId; 2]) {
    let mut vm = Vm::new(1);
    let spec =
        MapSpec { kind: MapKind::Array, key_size: 4, value_size: 8, max_entries: 1, flags: MapFlags::RDONLY_PROG };
    let maps = [0, 1].map(|_| vm.create_map(spec).unwrap());
    vm.map_update(maps[0], &[0; 4], &[2, 0, 0, 0, 0, 0, 0, 0], 0).unwrap();
    vm.map_update(maps[1], &[0; 4], &[10, 11, 12, 13, 14, 15, 16, 17], 0).unwrap();
    let mut asm = Asm::new(Target::BASE, "test");
    asm.mov(R7, 7);
    asm.store(Size::W, R10, -4, 1);
    asm.store(Size::W, R10, -8, 99);
    asm.load_map_value(R6, MapRef(0), 0);
    asm.load(Size::B, R1, R6, 0);
    asm.load(Size::W, R2, R10, -4);
    asm.alu(AluOp::Add, R1, R2);
    asm.load_map_value(R0, MapRef(1), 0);
    asm.alu(AluOp::Add, R0, R1);
    asm.load(Size::B, R0, R0, 0);
    asm.exit();
    let program = vm.load(&asm.assemble().unwrap().link(|map| map.0 as i32)).unwrap();
    (vm, program, maps)
}

fn stopped(vm: &mut Vm, program: ProgramId, map: MapId, note: Option<MapId>) -> (StoppedRun, Vec<MapByte>) {
    let mut noted = Vec::new();
    let mut skb = Skb::new(vec![0; 60]);
    let stop = vm.run_to(program, &mut skb, &mut VmInputs::default(), (map, 0), (note, &mut noted)).unwrap();
    assert_eq!(skb.packet.len(), 60, "the packet is back");
    match stop {
        Stop::Before(state) => (*state, noted),
        Stop::Ended(outcome) => panic!("{outcome:?}"),
    }
}

fn follow(vm: &mut Vm, state: &StoppedRun, maps: [MapId; 2]) -> Result<Option<MapByte>, Box<Trap>> {
    vm.follow(state, &mut Skb::new(vec![0; 60]), &mut VmInputs::default(), [Some(maps[1]), None], [Some(maps[0]), None])
}

#[test]
fn a_run_stops_before_it_reads() {
    let (mut vm, program, maps) = machine();
    let (state, noted) = stopped(&mut vm, program, maps[0], None);
    assert_eq!(noted, []);
    assert_eq!(state.part(RunPart::Register(7)), Some(7));
    assert_eq!(state.part(RunPart::Stack(127)), Some(1));
    assert_eq!(state.part(RunPart::Stack(0)), None, "nobody wrote there");
}

#[test]
fn a_run_that_never_reads_there_ends() {
    let (mut vm, program, maps) = machine();
    let mut noted = Vec::new();
    let mut skb = Skb::new(vec![0; 60]);
    let place = (maps[0], 5);
    let stop = vm.run_to(program, &mut skb, &mut VmInputs::default(), place, (Some(maps[1]), &mut noted)).unwrap();
    assert!(matches!(stop, Stop::Ended(RunOutcome { r0: 13, .. })), "{stop:?}");
    assert_eq!(noted, [MapByte { map: maps[1], element: 0, offset: 3 }]);
}

#[test]
fn resumed_run_reads_the_maps_as_they_are_then() {
    let (mut vm, program, maps) = machine();
    let (state, _) = stopped(&mut vm, program, maps[0], None);
    let at = |offset| Some(MapByte { map: maps[1], element: 0, offset });
    assert_eq!(follow(&mut vm, &state, maps), Ok(at(3)));
    vm.poke(MapByte { map: maps[0], element: 0, offset: 0 }, &[5]).unwrap();
    assert_eq!(follow(&mut vm, &state, maps), Ok(at(6)));
    assert_eq!(vm.value_at(maps[0], 0)[0], 5);
}

#[test]
fn reading_a_forgotten_value_is_a_trap() {
    let (mut vm, program, maps) = machine();
    let (state, _) = stopped(&mut vm, program, maps[0], None);
    let mut needed = Vec::new();
    for part in RunPart::all().filter(|part| state.part(*part).is_some()) {
        let mut without = state.clone();
        without.forget(part);
        match follow(&mut vm, &without, maps) {
            Ok(Some(MapByte { offset: 3, .. })) => {}
            // Without the part the run ended without the expected read, so the part is needed too.
            Ok(None) => needed.push((part, false)),
            Ok(other) => panic!("{part:?}: {other:?}"),
            Err(trap) => needed.push((part, matches!(trap.cause, Cause::Uninitialised { .. }))),
        }
    }
    assert_eq!(needed, [(RunPart::Register(6), false), (RunPart::Stack(127), true)]);
}

#[test]
fn poking_a_missing_value_is_an_error() {
    let (mut vm, _, maps) = machine();
    assert_eq!(vm.poke(MapByte { map: maps[0], element: 0, offset: 6 }, &[0; 4]), Err(Errno::Inval));
    assert_eq!(vm.poke(MapByte { map: maps[0], element: 1, offset: 0 }, &[0; 4]), Err(Errno::Inval));
}

#[test]
fn a_look_up_elsewhere_ends_what_is_followed() {
    let (mut vm, _, maps) = machine();
    let mut asm = Asm::new(Target::BASE, "test");
    asm.load_map_value(R6, MapRef(0), 0);
    asm.load(Size::B, R1, R6, 0);
    asm.store(Size::W, R10, -4, 0);
    asm.load_map(R1, MapRef(2));
    asm.mov(R2, R10);
    asm.alu(AluOp::Add, R2, -4);
    asm.call(Helper::MAP_LOOKUP_ELEM);
    asm.mov(R0, 0);
    asm.exit();
    let spec = MapSpec { kind: MapKind::Array, key_size: 4, value_size: 8, max_entries: 1, flags: MapFlags::default() };
    vm.create_map(spec).unwrap();
    let program = vm.load(&asm.assemble().unwrap().link(|map| map.0 as i32)).unwrap();
    let (state, _) = stopped(&mut vm, program, maps[0], None);
    assert_eq!(follow(&mut vm, &state, maps), Ok(None));
}
