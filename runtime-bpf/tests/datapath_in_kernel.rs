//! The datapath's facts, asked of the running kernel: the same files as the compiler's own test, on another machine.
//!
//! The binary needs no file but /sys, so that a guest with nothing else can run it (`cargo xtask kernels`).

#[path = "../../compiler/tests/datapath/flows.rs"]
mod flows;
#[path = "../../compiler/tests/datapath/fragments.rs"]
mod fragments;
#[path = "../../compiler/tests/datapath/icmp.rs"]
mod icmp;
#[path = "../../compiler/tests/datapath/mutations.rs"]
mod mutations;
#[path = "../../compiler/tests/datapath/node.rs"]
mod node;
#[path = "../../compiler/tests/common/packet.rs"]
mod packet;
#[path = "../../compiler/tests/datapath/parse.rs"]
mod parse;
#[expect(dead_code, reason = "the kernel's clock is not ours to move")]
#[path = "../../compiler/tests/datapath/rig.rs"]
mod rig;
#[path = "../../compiler/tests/datapath/source.rs"]
mod source;
#[expect(dead_code, reason = "the kernel's clock is not ours to move")]
#[path = "../../compiler/tests/datapath/vm.rs"]
mod vm;

use std::collections::{BTreeSet, HashMap};

use rig::{Entries, INTERFACE, Parts, Rig};
use weir_compiler::ebpf::code::{ByteOrder, encode};
use weir_compiler::ebpf::context as field;
use weir_compiler::layout::{MapName, Outcome};
use weir_compiler::model::Direction;
use weir_compiler::vm::{MapKind, MapSpec};
use weir_runtime::skip;
use weir_runtime::sys::{Kernel, Map, MapDefinition, MapType, Program};

/// Bytes of `struct __sk_buff`.
const CONTEXT_BYTES: usize = 192;

/// The running kernel as a machine for facts.
struct InKernel {
    maps: HashMap<MapName, Map>,
    programs: [Program; 2],
    knows_arrivals: bool,
}

fn definition(spec: &MapSpec) -> MapDefinition {
    let map_type = match spec.kind {
        MapKind::Array => MapType::Array,
        MapKind::PercpuArray => MapType::PercpuArray,
        MapKind::Hash => MapType::Hash,
        MapKind::PercpuHash => MapType::PercpuHash,
        MapKind::LruHash => MapType::LruHash,
        MapKind::LpmTrie => MapType::LpmTrie,
        MapKind::RingBuf => MapType::RingBuf,
        MapKind::ArrayOfMaps | MapKind::HashOfMaps | MapKind::ProgArray => panic!("not one of ours"),
    };
    let MapSpec { key_size, value_size, max_entries, flags, .. } = *spec;
    MapDefinition { map_type, key_size, value_size, max_entries, flags: flags.0 }
}

/// `struct __sk_buff` of a packet that came in through an interface, or through none.
fn context(arrived: u32) -> Vec<u8> {
    let mut context = vec![0; CONTEXT_BYTES];
    for (at, value) in [(field::IFINDEX, INTERFACE), (field::INGRESS_IFINDEX, arrived)] {
        context[at as usize..][..4].copy_from_slice(&value.to_le_bytes());
    }
    context
}

impl InKernel {
    fn new(kernel: &Kernel, parts: &Parts) -> Self {
        let mut maps = HashMap::new();
        for image in &parts.maps {
            let map = kernel.create_map(&definition(&image.spec), None).unwrap();
            for (key, value) in &image.entries {
                map.update(key, value, 0).unwrap();
            }
            maps.insert(image.name, map);
        }
        let descriptors: HashMap<u32, i32> =
            maps.iter().map(|(name, map): (&MapName, &Map)| (*name as u32, map.descriptor())).collect();
        let programs = [0, 1].map(|hook| {
            let insns = parts.programs[hook].link(|map| descriptors[&map.0]);
            kernel.load(&encode(&insns, ByteOrder::Little)).unwrap_or_else(|error| {
                let end: Vec<_> = error.log.lines().rev().take(60).collect();
                panic!("{error}\n{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"))
            })
        });
        let knows_arrivals = programs[0].test_run(&[0; 64], &context(INTERFACE), 1).is_ok();
        Self { maps, programs, knows_arrivals }
    }
}

impl rig::Machine for InKernel {
    fn run(&mut self, hook: Direction, packet: &[u8], arrived: u32) -> i32 {
        let program = &self.programs[usize::from(hook == Direction::Egress)];
        // 5.10 takes no other interface than 0.
        let context = context(if self.knows_arrivals { arrived } else { 0 });
        program.test_run(packet, &context, 1).unwrap().verdict as i32
    }

    fn knows_arrivals(&self) -> bool {
        self.knows_arrivals
    }

    fn entries(&self, map: MapName) -> Entries {
        let map = &self.maps[&map];
        let mut entries = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        while let Some(key) = map.next_key(last.as_deref()).unwrap() {
            entries.push((key.clone(), map.lookup(&key).unwrap()));
            last = Some(key);
        }
        entries
    }

    fn read(&self, map: MapName, key: &[u8]) -> Vec<u8> {
        self.maps[&map].lookup(key).unwrap()
    }

    fn write(&mut self, map: MapName, key: &[u8], value: &[u8]) {
        self.maps[&map].update(key, value, 0).unwrap();
    }

    fn remove(&mut self, map: MapName, key: &[u8]) {
        self.maps[&map].delete(key).unwrap();
    }

    fn advance(&mut self, _seconds: u64) {
        panic!("the kernel's clock cannot be moved");
    }
}

fn on_machine(fact: impl FnOnce(&mut Rig)) {
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    let parts = rig::parts();
    let machine = InKernel::new(&kernel, &parts);
    fact(&mut Rig::new(Box::new(machine), parts.pods));
}

/// Verdicts and counters of both machines, packet by packet, while the flows that they make pile up.
#[test]
fn mutants_fare_in_the_kernel_as_in_the_vm() {
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(error) => skip!("no bpf system call: {error}"),
    };
    let parts = rig::parts();
    let mut in_kernel = Rig::new(Box::new(InKernel::new(&kernel, &parts)), parts.pods.clone());
    let mut in_vm = Rig::new(Box::new(vm::Machine::new(&parts)), parts.pods.clone());
    let mut random = mutations::Random(2);
    let mut outcomes = BTreeSet::<Outcome>::new();
    for _ in 0..5_000 {
        let (hook, bytes, arrived) = mutations::mutant(&mut random);
        let arrived = if in_kernel.knows_arrivals() { arrived } else { 0 };
        let [expected, seen] = [&mut in_vm, &mut in_kernel].map(|rig| rig.send(hook, &bytes, arrived));
        assert_eq!(
            (seen.verdict(), seen.counted()),
            (expected.verdict(), expected.counted()),
            "{hook:?} arrived {arrived}: {bytes:02x?}"
        );
        outcomes.extend(seen.counted());
    }
    assert!(outcomes.len() >= 9, "many ends are reached: {outcomes:?}");
}
