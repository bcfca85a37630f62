//! The context and the packet as programs see them.

use crate::bench::{DATA, KEY, asm, data_map, data_spec, ids, kernel, link, load, must_load};
use crate::random::{Random, Values as _};
use Reg::{R0, R1, R2, R3, R4, R5, R6, R7, R8};
use weir_ebpf::asm::Asm;
use weir_ebpf::context as field;
use weir_ebpf::helper::Helper;
use weir_ebpf::insn::{AluOp, Cond, Reg, Size};
use weir_ebpf::vm::{ANY, Skb, Vm, VmInputs};
use weir_runtime::sys::BpfKernel;

/// Bytes of `struct __sk_buff`.
const CONTEXT_BYTES: usize = 192;
const DATA_BYTES: usize = 1024;

/// A packet, and the context of the same packet for either machine.
struct Case {
    packet: Vec<u8>,
    context: Vec<u8>,
    skb: Skb,
}

impl Case {
    fn new(random: &mut Random) -> Self {
        let length = 14 + random.below(300);
        let mut packet = random.bytes(length.max(40));
        // To this host, IPv4: the kernel derives type and protocol from the frame.
        packet[..14].fill(0);
        packet[12] = 8;
        let mut skb =
            Skb { mark: random.number() as u32, priority: random.number() as u32, ..Skb::new(packet.clone()) };
        skb.cb = [0; 5].map(|_: u32| random.number() as u32);
        skb.tstamp = random.number();
        (skb.ifindex, skb.ingress_ifindex) = (1, random.pick(&[0, 1]));
        let mut context = vec![0; CONTEXT_BYTES];
        let mut put = |at: i16, bytes: &[u8]| context[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(field::MARK, &skb.mark.to_le_bytes());
        put(field::PRIORITY, &skb.priority.to_le_bytes());
        put(field::IFINDEX, &skb.ifindex.to_le_bytes());
        put(field::INGRESS_IFINDEX, &skb.ingress_ifindex.to_le_bytes());
        put(field::TSTAMP, &skb.tstamp.to_le_bytes());
        (0..5).for_each(|index| put(field::CB + index as i16 * 4, &skb.cb[index].to_le_bytes()));
        Self { packet, context, skb }
    }
}

/// Runs a program with one data map in both machines; verdict, data, packet and context must agree.
#[track_caller]
fn check(kernel: &BpfKernel, asm: &Asm, random: &mut Random) {
    let mut case = Case::new(random);
    let map = data_map(kernel, DATA_BYTES);
    let run = must_load(kernel, &link(asm, &[map.descriptor()])).test_run(&case.packet, &case.context, 1).unwrap();
    let mut vm = Vm::new(1);
    let vm_map = vm.create_map(data_spec(DATA_BYTES)).unwrap();
    vm.map_update(vm_map, &KEY, &vec![0; DATA_BYTES], ANY).unwrap();
    let program = vm.load(&link(asm, &ids(&[vm_map]))).unwrap();
    let outcome = vm.run(program, &mut case.skb, &mut VmInputs::default()).unwrap();
    assert_eq!(outcome.verdict() as u32, run.verdict, "verdict");
    let (actual, expected) = (vm.map_lookup(vm_map, &KEY).unwrap(), map.lookup(&KEY).unwrap());
    for (index, (actual, expected)) in actual.chunks(8).zip(expected.chunks(8)).enumerate() {
        assert_eq!(actual, expected, "word {index}: machine left, kernel right");
    }
    assert_eq!(case.skb.packet, run.packet, "packet");
    let word = |at: i16| u32::from_le_bytes(*run.context[at as usize..].first_chunk().unwrap());
    assert_eq!(case.skb.mark, word(field::MARK), "mark");
    assert_eq!(case.skb.priority, word(field::PRIORITY), "priority");
    let cb: Vec<u32> = (0..5).map(|index| word(field::CB + index * 4)).collect();
    assert_eq!(case.skb.cb.to_vec(), cb, "cb");
}

/// Fields that both machines fill from the same source.
const FIELDS: [i16; 16] = [
    field::LEN,
    field::PKT_TYPE,
    field::MARK,
    field::QUEUE_MAPPING,
    field::PROTOCOL,
    field::VLAN_PRESENT,
    field::VLAN_TCI,
    field::PRIORITY,
    field::INGRESS_IFINDEX,
    field::IFINDEX,
    field::TC_INDEX,
    field::CB,
    field::CB + 16,
    field::TC_CLASSID,
    field::WIRE_LEN,
    field::GSO_SEGS,
];

/// The beginning of a program: r7 is the context, r6 the value of the data map.
fn with_context() -> Asm {
    let mut asm = asm();
    asm.mov(R7, R1);
    asm.load_map_value(R6, DATA, 0);
    asm
}

#[test]
fn context_fields_are_the_kernels_at_every_width() {
    let kernel = kernel!();
    let mut asm = with_context();
    let mut at = 0;
    for field in FIELDS {
        for (size, part) in [(Size::W, 0), (Size::H, 0), (Size::H, 2), (Size::B, 0), (Size::B, 3)] {
            if part >= i16::from(field::kept_bytes(field)) {
                continue;
            }
            asm.load(size, R1, R7, field + part);
            asm.store(Size::Dw, R6, at, R1);
            at += 8;
        }
    }
    asm.load(Size::Dw, R1, R7, field::TSTAMP);
    asm.store(Size::Dw, R6, at, R1);
    asm.load(Size::Dw, R1, R7, field::CB + 8);
    asm.store(Size::Dw, R6, at + 8, R1);
    asm.load(Size::W, R1, R7, field::DATA);
    asm.load(Size::W, R2, R7, field::DATA_END);
    asm.load(Size::W, R3, R7, field::DATA_META);
    asm.alu(AluOp::Sub, R2, R1);
    asm.store(Size::Dw, R6, at + 16, R2);
    asm.alu(AluOp::Sub, R3, R1);
    asm.store(Size::Dw, R6, at + 24, R3);
    asm.mov(R0, -1);
    asm.exit();
    (0..20).for_each(|seed| check(&kernel, &asm, &mut Random::new(seed)));
}

#[test]
fn context_writes_are_the_kernels() {
    let kernel = kernel!();
    let mut asm = with_context();
    asm.constant(R1, 0x1234_5678_9abc_def0);
    let fields = [field::MARK, field::PRIORITY, field::QUEUE_MAPPING, field::TC_INDEX, field::TC_CLASSID];
    fields.into_iter().for_each(|field| asm.store(Size::W, R7, field, R1));
    asm.store(Size::B, R7, field::CB + 1, R1);
    asm.store(Size::H, R7, field::CB + 6, R1);
    asm.store(Size::Dw, R7, field::CB + 8, R1);
    asm.store(Size::Dw, R7, field::TSTAMP, R1);
    for (index, field) in fields.into_iter().enumerate() {
        asm.load(Size::W, R1, R7, field);
        asm.store(Size::Dw, R6, index as i16 * 8, R1);
    }
    asm.load(Size::Dw, R1, R7, field::TSTAMP);
    asm.store(Size::Dw, R6, 48, R1);
    asm.mov(R0, 0);
    asm.exit();
    check(&kernel, &asm, &mut Random::new(3));
}

/// Each access alone: where the verifier refuses, the machine traps.
#[test]
fn forbidden_context_accesses_are_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(4);
    for offset in (0..196).filter(|offset| !(168..176).contains(offset)) {
        for size in Size::ALL {
            for write in [false, true] {
                let mut asm = asm();
                asm.mov(R2, 0);
                if write {
                    asm.store(size, R1, offset, R2)
                } else {
                    asm.load(size, R2, R1, offset)
                }
                asm.mov(R0, 0);
                asm.exit();
                // Two things are not modelled: the newest fields, and reads beyond the bytes that the kernel keeps of a
                // field.
                let expected = load(&kernel, &link(&asm, &[])).is_ok();
                let mut vm = Vm::new(1);
                let program = vm.load(&link(&asm, &[])).unwrap();
                let result = vm.run(program, &mut Case::new(&mut random).skb, &mut VmInputs::default());
                let beyond = !write && offset % 4 >= i16::from(field::kept_bytes(offset & !3));
                let modelled = !(180..192).contains(&offset) && !beyond;
                if modelled {
                    assert_eq!(result.is_ok(), expected, "{size} at {offset}, write {write}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn packet_bytes_are_the_kernels() {
    let kernel = kernel!();
    let mut asm = asm();
    let short = asm.label("short");
    asm.load_map_value(R6, DATA, 0);
    asm.load(Size::W, R7, R1, field::DATA);
    asm.load(Size::W, R8, R1, field::DATA_END);
    asm.mov(R2, R7);
    asm.alu(AluOp::Add, R2, 40);
    asm.jump_if(Cond::Gt, R2, R8, short);
    for (index, size) in Size::ALL.into_iter().enumerate() {
        asm.load(size, R3, R7, 16);
        asm.store(Size::Dw, R6, index as i16 * 8, R3);
        asm.store(size, R7, 24 + index as i16 * 2, R3);
    }
    asm.bind(short);
    asm.mov(R0, 2);
    asm.exit();
    (0..20).for_each(|seed| check(&kernel, &asm, &mut Random::new(seed)));
}

/// `skb_load_bytes` and its relative brother at one place.
fn load_bytes(offset: i32, length: i32, start: Option<i32>) -> Asm {
    let mut asm = asm();
    asm.load_map_value(R6, DATA, 0);
    // The load helper must clear its buffer when it fails, so fill it first.
    (1..9).for_each(|word| asm.store(Size::Dw, R6, word * 8, -1));
    asm.mov(R2, offset);
    asm.mov(R3, R6);
    asm.alu(AluOp::Add, R3, 8);
    asm.mov(R4, length);
    match start {
        Some(start) => {
            asm.mov(R5, start);
            asm.call(Helper::SKB_LOAD_BYTES_RELATIVE);
        }
        None => asm.call(Helper::SKB_LOAD_BYTES),
    }
    asm.store(Size::Dw, R6, 0, R0);
    asm.mov(R0, 0);
    asm.exit();
    asm
}

#[test]
fn helpers_read_packets_as_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(6);
    for start in [None, Some(0), Some(1), Some(2)] {
        for offset in [0, 1, 14, 20, 100, 250, 313, 0xffff, 0x1_0000, i32::MAX, -1] {
            for length in [1, 2, 16, 60] {
                check(&kernel, &load_bytes(offset, length, start), &mut random);
            }
        }
    }
}

#[test]
fn pulling_data_is_the_kernels() {
    let kernel = kernel!();
    let mut random = Random::new(7);
    for length in [0, 1, 40, 5_000, -1] {
        let mut asm = asm();
        asm.mov(R7, R1);
        asm.load_map_value(R6, DATA, 0);
        asm.mov(R2, length);
        asm.call(Helper::SKB_PULL_DATA);
        asm.store(Size::Dw, R6, 0, R0);
        asm.load(Size::W, R1, R7, field::DATA);
        asm.load(Size::W, R2, R7, field::DATA_END);
        asm.alu(AluOp::Sub, R2, R1);
        asm.store(Size::Dw, R6, 8, R2);
        asm.mov(R0, 0);
        asm.exit();
        check(&kernel, &asm, &mut random);
    }
}
