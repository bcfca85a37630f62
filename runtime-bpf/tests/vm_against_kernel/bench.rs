//! One program, two machines: a one-element array is the program's input and output.

use weir_ebpf::asm::{Asm, MapRef};
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::disasm::disassemble;
use weir_ebpf::insn::{AluOp, AtomicOp, Insn, Operand, Reg, Width};
use weir_ebpf::target::{Feature, Target};
use weir_ebpf::vm::{ANY, MapFlags, MapId, MapKind, MapSpec, Skb, Vm, VmInputs};
use weir_runtime::sys::{Kernel, Map, MapDefinition, MapType, Program};

/// The map that programs under test read and write.
pub(crate) const DATA: MapRef = MapRef(0);

/// A packet that the kernel accepts for a test run.
pub(crate) fn packet() -> Vec<u8> {
    let mut packet = vec![0; 64];
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    packet[14] = 0x45;
    packet
}

/// The kernel, or a loud skip of the calling test.
macro_rules! kernel {
    () => {
        match weir_runtime::sys::Kernel::open() {
            Ok(kernel) => kernel,
            Err(error) => weir_runtime::skip!("no bpf system call: {error}"),
        }
    };
}
pub(crate) use kernel;

pub(crate) fn asm() -> Asm {
    Asm::new(Target { kernel: (u16::MAX, 0) }, "test")
}

/// Whether the running kernel knows a part of the instruction set.
pub(crate) fn supports(kernel: &Kernel, feature: Feature) -> bool {
    let mut asm = asm();
    asm.mov(Reg::R0, 1);
    match feature {
        Feature::V4 => asm.alu(AluOp::Sdiv, Reg::R0, 1),
        Feature::Atomics => {
            asm.store(weir_ebpf::insn::Size::Dw, Reg::R10, -8, 0);
            asm.atomic(AtomicOp::Xchg, Width::W64, Reg::R10, -8, Reg::R0);
        }
        _ => {}
    }
    asm.exit();
    load(kernel, &asm.assemble().unwrap().insns).is_ok()
}

pub(crate) fn load(kernel: &Kernel, insns: &[Insn]) -> Result<Program, weir_runtime::sys::LoadError> {
    kernel.load(&encode(insns, ByteOrder::Little))
}

/// Loads a program that the kernel must accept.
#[track_caller]
pub(crate) fn must_load(kernel: &Kernel, insns: &[Insn]) -> Program {
    load(kernel, insns).unwrap_or_else(|error| panic!("{error}\n{}\n{}", error.log, disassemble(insns)))
}

/// The result of a run: the verdict and the data that it wrote.
#[derive(Debug, PartialEq)]
pub(crate) struct Left {
    pub(crate) verdict: u32,
    pub(crate) data: Vec<u8>,
}

pub(crate) fn data_map(kernel: &Kernel, bytes: usize) -> Map {
    let definition =
        MapDefinition { map_type: MapType::Array, key_size: 4, value_size: bytes as u32, max_entries: 1, flags: 0 };
    kernel.create_map(&definition, None).unwrap()
}

pub(crate) fn data_spec(bytes: usize) -> MapSpec {
    MapSpec { kind: MapKind::Array, key_size: 4, value_size: bytes as u32, max_entries: 1, flags: MapFlags::default() }
}

pub(crate) const KEY: [u8; 4] = [0; 4];

#[track_caller]
fn in_kernel(kernel: &Kernel, asm: &Asm, input: &[u8]) -> Left {
    let map = data_map(kernel, input.len());
    map.update(&KEY, input, ANY).unwrap();
    let program = must_load(kernel, &asm.assemble().unwrap().link(|_| map.descriptor()));
    let run = program.test_run(&packet(), &[], 1).unwrap();
    Left { verdict: run.verdict, data: map.lookup(&KEY).unwrap() }
}

#[track_caller]
fn in_vm(asm: &Asm, input: &[u8]) -> Left {
    let mut vm = Vm::new(1);
    let map = vm.create_map(data_spec(input.len())).unwrap();
    vm.map_update(map, &KEY, input, ANY).unwrap();
    let program = vm.load(&asm.assemble().unwrap().link(|_| map.0 as i32)).unwrap();
    let outcome = vm.run(program, &mut Skb::new(packet()), &mut VmInputs::default());
    let outcome = outcome.unwrap_or_else(|trap| panic!("{trap}\n{}", disassemble(&asm.assemble().unwrap().insns)));
    Left { verdict: outcome.verdict() as u32, data: vm.map_lookup(map, &KEY).unwrap() }
}

/// Runs a program that knows one map, [`DATA`], in both machines.
#[track_caller]
pub(crate) fn compare(kernel: &Kernel, name: &str, asm: &Asm, input: &[u8]) {
    let (expected, actual) = (in_kernel(kernel, asm, input), in_vm(asm, input));
    assert_eq!(expected.verdict, actual.verdict, "{name}: verdict of\n{}", text(asm));
    let words = |data: &[u8]| data.chunks(8).map(<[u8]>::to_vec).collect::<Vec<_>>();
    for (index, (expected, actual)) in words(&expected.data).iter().zip(words(&actual.data)).enumerate() {
        let before = words(input)[index].clone();
        assert_eq!(
            expected,
            &actual,
            "{name}: word {index} (before: {before:02x?}): kernel left, machine right\n{}",
            text(asm)
        );
    }
}

fn text(asm: &Asm) -> String {
    disassemble(&asm.assemble().unwrap().insns)
}

/// Links the program to maps by number: `MapRef(n)` becomes the n-th of `maps` (ids of our machine's maps, or
/// descriptors of the kernel's).
pub(crate) fn link(asm: &Asm, maps: &[i32]) -> Vec<Insn> {
    asm.assemble().unwrap().link(|map| maps[map.0 as usize])
}

pub(crate) fn ids(maps: &[MapId]) -> Vec<i32> {
    maps.iter().map(|map| map.0 as i32).collect()
}

pub(crate) fn alu(width: Width, op: AluOp, dst: Reg, src: impl Into<Operand>) -> Insn {
    Insn::Alu { width, op, dst, src: src.into() }
}
