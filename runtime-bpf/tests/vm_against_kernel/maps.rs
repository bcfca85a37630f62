//! Maps: random operations from the program's side and from outside, in both machines, with every return value
//! compared.

use crate::bench::{DATA, KEY, asm, data_map, data_spec, ids, kernel, link, must_load, packet};
use crate::random::{Random, Values as _};
use Reg::{R0, R1, R2, R3, R4, R6, R7, R10};
use weir_ebpf::asm::{Asm, MapRef};
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Insn, Reg, Size};
use weir_ebpf::vm::{ANY, Errno, MapFlags, MapId, MapKind, MapSpec, ProgramId, Skb, Vm, VmInputs};
use weir_runtime::sys::{BpfKernel, KernelMap, KernelProgram};

const TESTED: MapRef = MapRef(1);
/// Layout of the control value: operation, flags, result, CPU, key, value.
const OPERATION: i16 = 0;
const FLAGS: i16 = 8;
const RESULT: i16 = 16;
const CPU: i16 = 24;
const KEY_AT: usize = 32;
const VALUE_AT: usize = 56;
const VALUE_BYTES: usize = 16;
const CONTROL_BYTES: usize = VALUE_AT + VALUE_BYTES;

fn address(asm: &mut Asm, dst: Reg, at: usize) {
    asm.mov(dst, R6);
    asm.alu(AluOp::Add, dst, at as i32);
}

/// Runs the operation that the control value selects: 0 look up, 1 update, 2 delete.
fn driver(can_delete: bool) -> Asm {
    let mut asm = asm();
    let (update, delete, done) = (asm.label("update"), asm.label("delete"), asm.label("done"));
    asm.load_map_value(R6, DATA, 0);
    asm.call(Helper::GET_SMP_PROCESSOR_ID);
    asm.store(Size::Dw, R6, CPU, R0);
    asm.load_map(R1, TESTED);
    address(&mut asm, R2, KEY_AT);
    asm.load(Size::Dw, R7, R6, OPERATION);
    asm.jump_if(Cond::Eq, R7, 1, update);
    asm.jump_if(Cond::Eq, R7, 2, delete);
    asm.call(Helper::MAP_LOOKUP_ELEM);
    asm.mov(R7, 0);
    asm.store(Size::Dw, R6, RESULT, R7);
    asm.jump_if(Cond::Eq, R0, 0, done);
    asm.store(Size::Dw, R6, RESULT, 1);
    for word in 0..VALUE_BYTES as i16 / 8 {
        asm.load(Size::Dw, R1, R0, word * 8);
        asm.store(Size::Dw, R6, VALUE_AT as i16 + word * 8, R1);
    }
    asm.jump(done);
    asm.bind(update);
    address(&mut asm, R3, VALUE_AT);
    asm.load(Size::Dw, R4, R6, FLAGS);
    asm.call(Helper::MAP_UPDATE_ELEM);
    asm.store(Size::Dw, R6, RESULT, R0);
    asm.jump(done);
    asm.bind(delete);
    if can_delete {
        asm.call(Helper::MAP_DELETE_ELEM);
        asm.store(Size::Dw, R6, RESULT, R0);
    }
    asm.bind(done);
    asm.mov(R0, 0);
    asm.exit();
    asm
}

/// The same map and program twice.
struct Pair {
    control: KernelMap,
    tested: KernelMap,
    program: KernelProgram,
    vm: Vm,
    vm_control: MapId,
    vm_tested: MapId,
    vm_program: ProgramId,
}

impl Pair {
    fn new(kernel: &BpfKernel, spec: MapSpec) -> Self {
        let asm = driver(true);
        let control = data_map(kernel, CONTROL_BYTES);
        let tested = kernel.create_map(&(&spec).into(), None).unwrap();
        let program = must_load(kernel, &link(&asm, &[control.descriptor(), tested.descriptor()]));
        let mut vm = Vm::new(kernel.possible_cpus() as u32);
        let vm_control = vm.create_map(data_spec(CONTROL_BYTES)).unwrap();
        let vm_tested = vm.create_map(spec).unwrap();
        let vm_program = vm.load(&link(&asm, &ids(&[vm_control, vm_tested]))).unwrap();
        Self { control, tested, program, vm, vm_control, vm_tested, vm_program }
    }

    /// One operation by the program; the control values must agree afterwards.
    #[track_caller]
    fn inside(&mut self, operation: u64, flags: u64, key: &[u8], value: &[u8]) {
        let mut control = vec![0; CONTROL_BYTES];
        control[..8].copy_from_slice(&operation.to_le_bytes());
        control[FLAGS as usize..][..8].copy_from_slice(&flags.to_le_bytes());
        control[KEY_AT..][..key.len()].copy_from_slice(key);
        control[VALUE_AT..].copy_from_slice(value);
        self.control.update(&KEY, &control, ANY).unwrap();
        self.vm.map_update(self.vm_control, &KEY, &control, ANY).unwrap();
        self.program.test_run(&packet(), &[], 1).unwrap();
        let expected = self.control.lookup(&KEY).unwrap();
        let mut host = VmInputs { cpu: u32::from(expected[CPU as usize]), ..VmInputs::default() };
        self.vm.run(self.vm_program, &mut Skb::new(packet()), &mut host).unwrap();
        let actual = self.vm.map_lookup(self.vm_control, &KEY).unwrap();
        assert_eq!(actual, expected, "operation {operation}, flags {flags}, key {key:?}: machine left, kernel right");
    }

    /// One operation by system call.
    #[track_caller]
    fn outside(&mut self, operation: u64, flags: u64, key: &[u8], value: &[u8]) {
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let number = |error: Errno| error as i32;
        let (expected, actual) = match operation {
            0 => (self.tested.lookup(key).map_err(errno), self.vm.map_lookup(self.vm_tested, key).map_err(number)),
            1 => (
                self.tested.update(key, value, flags).map(|()| Vec::new()).map_err(errno),
                self.vm.map_update(self.vm_tested, key, value, flags).map(|()| Vec::new()).map_err(number),
            ),
            _ => (
                self.tested.delete(key).map(|()| Vec::new()).map_err(errno),
                self.vm.map_delete(self.vm_tested, key).map(|()| Vec::new()).map_err(number),
            ),
        };
        assert_eq!(actual, expected, "operation {operation}, flags {flags}, key {key:?}: machine left, kernel right");
    }

    fn kernel_keys(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        while let Some(key) = self.tested.next_key(keys.last().map(Vec::as_slice)).unwrap() {
            keys.push(key);
        }
        if self.vm.map_spec(self.vm_tested).unwrap().kind == MapKind::LpmTrie {
            keys.iter_mut().for_each(|key| clear_host_bits(key));
        }
        keys.sort_unstable();
        keys
    }
}

/// The kernel gives prefixes back as they came, host bits included; the machine without.
fn clear_host_bits(key: &mut [u8]) {
    let (length, data) = key.split_at_mut(4);
    let length = u32::from_le_bytes(length.try_into().unwrap()) as usize;
    for bit in length..data.len() * 8 {
        data[bit / 8] &= !(0x80 >> (bit % 8));
    }
}

#[track_caller]
fn check(spec: MapSpec, steps: usize, mut key: impl FnMut(&mut Random) -> Vec<u8>) {
    let kernel = kernel!();
    let mut pair = Pair::new(&kernel, spec);
    let mut random = Random::new(u64::from(spec.max_entries));
    for _ in 0..steps {
        let (operation, key) = (random.pick(&[0, 1, 1, 2]), key(&mut random));
        let flags = random.pick(&[0, 0, 1, 2, 3]);
        if random.below(2) == 0 {
            let value = random.bytes(VALUE_BYTES);
            pair.inside(operation, flags, &key, &value);
        } else {
            let value = random.bytes(pair.tested.value_bytes());
            pair.outside(operation, flags, &key, &value);
        }
    }
    assert_eq!(pair.vm.map_keys(pair.vm_tested), pair.kernel_keys());
}

fn spec(kind: MapKind, key_size: u32, max_entries: u32, flags: MapFlags) -> MapSpec {
    MapSpec { kind, key_size, value_size: VALUE_BYTES as u32, max_entries, flags }
}

const STEPS: usize = 3_000;
const NONE: MapFlags = MapFlags(0);

fn small_number(random: &mut Random) -> Vec<u8> {
    (random.below(8) as u32).to_le_bytes().to_vec()
}

#[test]
fn arrays_are_the_kernels() {
    check(spec(MapKind::Array, 4, 5, NONE), STEPS, small_number);
    check(spec(MapKind::PercpuArray, 4, 5, NONE), STEPS, small_number);
}

#[test]
fn hashes_are_the_kernels() {
    let key = |random: &mut Random| [small_number(random), vec![7; 8]].concat();
    check(spec(MapKind::Hash, 12, 4, NONE), STEPS, key);
    check(spec(MapKind::Hash, 12, 5, MapFlags::NO_PREALLOC), STEPS, key);
}

fn prefix(random: &mut Random) -> Vec<u8> {
    let length = random.pick(&[0_u32, 1, 7, 8, 9, 15, 16, 24, 31, 32, 33]);
    let address = [10, random.pick(&[0, 1, 128, 255]), random.pick(&[0, 1]), random.pick(&[0, 1, 255])];
    [length.to_le_bytes(), address].concat()
}

#[test]
fn prefix_tries_are_the_kernels() {
    check(spec(MapKind::LpmTrie, 8, 12, MapFlags::NO_PREALLOC), STEPS, prefix);
    check(spec(MapKind::LpmTrie, 8, 500, MapFlags::NO_PREALLOC), STEPS, prefix);
    let long = |random: &mut Random| {
        let length = random.pick(&[0_u32, 3, 64, 65, 127, 128, 129]);
        let mut key = length.to_le_bytes().to_vec();
        key.extend((0..16).map(|_| random.pick(&[0, 0, 0, 0, 0x80])));
        key
    };
    check(spec(MapKind::LpmTrie, 20, 100, MapFlags::NO_PREALLOC), STEPS, long);
}

#[test]
fn maps_that_the_kernel_refuses_are_refused() {
    let kernel = kernel!();
    let mut vm = Vm::new(1);
    for kind in
        [MapKind::Array, MapKind::PercpuArray, MapKind::Hash, MapKind::LpmTrie, MapKind::RingBuf, MapKind::ProgArray]
    {
        for key_size in [0, 4, 5, 260, 261] {
            for (value_size, max_entries) in [(0, 1), (4, 0), (4, 1), (8, 16), (0, 4096), (0, 6144), (0, 1024)] {
                for flags in [NONE, MapFlags::NO_PREALLOC] {
                    let spec = MapSpec { kind, key_size, value_size, max_entries, flags };
                    let expected = kernel.create_map(&(&spec).into(), None).map(|_| ());
                    let expected = expected.map_err(|error| error.raw_os_error().unwrap_or(0));
                    let actual = vm.create_map(spec).map(|_| ()).map_err(|error| error as i32);
                    assert_eq!(actual, expected, "{spec:?}: machine left, kernel right");
                }
            }
        }
    }
}

#[test]
fn a_frozen_map_refuses_the_outside_only() {
    let kernel = kernel!();
    let mut pair = Pair::new(&kernel, spec(MapKind::Hash, 4, 4, NONE));
    pair.outside(1, 0, &KEY, &[1; VALUE_BYTES]);
    pair.tested.freeze().unwrap();
    pair.vm.map_freeze(pair.vm_tested);
    for operation in 0..3 {
        pair.outside(operation, 0, &KEY, &[2; VALUE_BYTES]);
        pair.inside(operation, 0, &KEY, &[3; VALUE_BYTES]);
    }
}

/// Fills a ring with records of different sizes and says what became of each.
fn ring_program() -> Asm {
    let mut asm = asm();
    asm.load_map_value(R6, DATA, 0);
    for (index, bytes) in [8, 2000, 1, 1500, 900, 500, 40, 8, 100].into_iter().enumerate() {
        let (full, done) = (asm.label("full"), asm.label("done"));
        let at = index as i16 * 16;
        asm.load_map(R1, TESTED);
        asm.mov(R2, bytes);
        asm.mov(R3, 0);
        asm.call(Helper::RINGBUF_RESERVE);
        asm.jump_if(Cond::Eq, R0, 0, full);
        asm.store(Size::B, R0, 0, index as i32);
        asm.mov(R1, R0);
        asm.mov(R2, 0);
        asm.call(if index % 3 == 2 { Helper::RINGBUF_DISCARD } else { Helper::RINGBUF_SUBMIT });
        asm.store(Size::Dw, R6, at, 1);
        asm.jump(done);
        asm.bind(full);
        asm.store(Size::Dw, R6, at, 2);
        asm.bind(done);
        asm.store(Size::Dw, R10, -8, index as i32);
        asm.load_map(R1, TESTED);
        asm.mov(R2, R10);
        asm.alu(AluOp::Add, R2, -8);
        asm.mov(R3, 8);
        asm.mov(R4, 0);
        asm.call(Helper::RINGBUF_OUTPUT);
        asm.store(Size::Dw, R6, at + 8, R0);
    }
    for what in 0..4 {
        asm.load_map(R1, TESTED);
        asm.mov(R2, what);
        asm.call(Helper::RINGBUF_QUERY);
        asm.store(Size::Dw, R6, 144 + what as i16 * 8, R0);
    }
    asm.mov(R0, 0);
    asm.exit();
    asm
}

#[test]
fn a_ring_buffer_fills_up_as_the_kernels() {
    let kernel = kernel!();
    let ring = MapSpec { kind: MapKind::RingBuf, key_size: 0, value_size: 0, max_entries: 4096, flags: NONE };
    let (control, asm) = (data_map(&kernel, 176), ring_program());
    let tested = kernel.create_map(&(&ring).into(), None).unwrap();
    let program = must_load(&kernel, &link(&asm, &[control.descriptor(), tested.descriptor()]));
    let mut vm = Vm::new(1);
    let maps = [vm.create_map(data_spec(176)).unwrap(), vm.create_map(ring).unwrap()];
    let vm_program = vm.load(&link(&asm, &ids(&maps))).unwrap();
    for round in 0..2 {
        program.test_run(&packet(), &[], 1).unwrap();
        vm.run(vm_program, &mut Skb::new(packet()), &mut VmInputs::default()).unwrap();
        let (expected, actual) = (control.lookup(&KEY).unwrap(), vm.map_lookup(maps[0], &KEY).unwrap());
        assert_eq!(actual, expected, "round {round}: machine left, kernel right");
    }
    let first: Vec<u8> = vm.drain(maps[1]).iter().map(|record| record[0]).collect();
    assert_eq!(first[..4], [0, 0, 1, 1]);
}

#[test]
fn a_read_only_map_refuses_programs() {
    let kernel = kernel!();
    let spec = MapSpec { max_entries: 1, ..spec(MapKind::Array, 4, 1, MapFlags::RDONLY_PROG) };
    let map = kernel.create_map(&(&spec).into(), None).unwrap();
    let mut asm = asm();
    asm.load_map_value(R1, DATA, 8);
    asm.store(Size::Dw, R1, 0, 1);
    asm.mov(R0, 0);
    asm.exit();
    let refused = crate::bench::load(&kernel, &link(&asm, &[map.descriptor()]));
    assert!(refused.is_err_and(|error| error.log.contains("write into map forbidden")));
    let mut vm = Vm::new(1);
    let map = vm.create_map(spec).unwrap();
    let program = vm.load(&link(&asm, &ids(&[map]))).unwrap();
    let trap = vm.run(program, &mut Skb::new(packet()), &mut VmInputs::default()).unwrap_err();
    assert_eq!(trap.insn, Some(Insn::Store { size: Size::Dw, base: R1, offset: 0, src: 1.into() }));
    assert!(trap.to_string().contains("read-only"), "{trap}");
}
