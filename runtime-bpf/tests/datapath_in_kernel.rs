//! Runs the datapath's facts in the running kernel, the same that the compiler tests in the VM.
//!
//! The binary needs no file but /sys, so that a guest with nothing else can run it (`cargo xtask kernels`).

#[path = "sequences/in_kernel.rs"]
mod sequences;
#[path = "stress/flows.rs"]
mod stress;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use weir_artifact::layout::{MapName, Outcome};
use weir_artifact::map_image::bucket_family;
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::context as field;
use weir_ebpf::vm::MapFlags;
use weir_model::Direction;
use weir_runtime::skip;
use weir_runtime::sys::{BpfKernel, KernelMap, KernelProgram};
use weir_testing::Random;
use weir_testing::datapath::mutations::mutant;
use weir_testing::datapath::rig::{self, Arrival, Entries, INTERFACE, Parts, Rig};
use weir_testing::datapath::{Machines, vm};

/// Bytes of `struct __sk_buff`.
const CONTEXT_BYTES: usize = 192;

/// The running kernel as a machine for facts.
struct InKernel {
    maps: HashMap<MapName, KernelMap>,
    programs: [KernelProgram; 2],
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
    fn new(kernel: &BpfKernel, parts: &Parts) -> Self {
        let mut maps = HashMap::new();
        for image in &parts.maps {
            let map = kernel.create_map(&(&image.spec).into(), None).unwrap();
            for (key, value) in image.entries.iter() {
                map.update(key, value, 0).unwrap();
            }
            if image.spec.flags.contains(MapFlags::RDONLY_PROG) {
                map.freeze().unwrap();
            }
            maps.insert(image.name, map);
        }
        let descriptors: HashMap<u32, i32> =
            maps.iter().map(|(name, map): (&MapName, &KernelMap)| (*name as u32, map.descriptor())).collect();
        let programs = [0, 1].map(|hook| {
            let insns = parts.programs[hook].link(|map| descriptors[&map.0]);
            kernel.load(&encode(&insns, ByteOrder::Little)).unwrap_or_else(|error| {
                let end: Vec<_> = error.log.lines().rev().take(60).collect();
                panic!("{error}\n{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"))
            })
        });
        Self { maps, programs }
    }

    /// No flows, no fragments, the first generation.
    fn clear(&self, parts: &Parts) {
        for image in &parts.maps {
            let map = &self.maps[&image.name];
            if image.name == MapName::Fragments {
                (0..image.spec.max_entries).for_each(|at| map.update(&at.to_le_bytes(), &[0; 8], 0).unwrap());
            }
            if let Some((family, _)) = bucket_family(image.name) {
                map.flow_table(family).unwrap().remove(|_| true);
            }
            if image.name == MapName::Config {
                image.entries.iter().for_each(|(key, value)| map.update(key, value, 0).unwrap());
            }
        }
    }
}

/// The shared machine, for the time of a fact.
struct Lent(Arc<InKernel>);

impl rig::Machine for Lent {
    fn run(&mut self, hook: Direction, packet: &[u8], arrival: Arrival) -> i32 {
        let program = &self.0.programs[usize::from(hook == Direction::Egress)];
        program.test_run(packet, &context(arrival.interface), 1).unwrap().verdict as i32
    }

    fn knows_sockets(&self) -> bool {
        false
    }

    fn entries(&self, map: MapName) -> Entries {
        let Some(map) = self.0.maps.get(&map) else { return Entries::new() };
        let mut entries = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        while let Some(key) = map.next_key(last.as_deref()).unwrap() {
            entries.push((key.clone(), map.lookup(&key).unwrap()));
            last = Some(key);
        }
        entries
    }

    fn read(&self, map: MapName, key: &[u8]) -> Vec<u8> {
        self.0.maps[&map].lookup(key).unwrap()
    }

    fn write(&mut self, map: MapName, key: &[u8], value: &[u8]) {
        self.0.maps[&map].update(key, value, 0).unwrap();
    }

    fn remove(&mut self, map: MapName, key: &[u8]) {
        self.0.maps[&map].delete(key).unwrap();
    }

    fn advance(&mut self, _seconds: u64) {
        panic!("the kernel's clock cannot be moved");
    }
}

/// All facts share one machine, since loading is slow where the kernel is emulated. Each fact begins without flows.
static SHARED: Mutex<Option<InKernel>> = Mutex::new(None);

/// Facts run in the kernel, or are skipped if it refuses the system call.
struct OfKernel;

const MACHINES: OfKernel = OfKernel;

impl Machines for OfKernel {
    fn on_machine(&self, fact: &mut dyn FnMut(&mut Rig)) {
        let Some(kernel) = kernel() else { return };
        let parts = rig::parts();
        // A fact that failed may leave state in the machine; the next fact clears it.
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = shared.take().unwrap_or_else(|| InKernel::new(&kernel, &parts));
        machine.clear(&parts);
        let machine = Arc::new(machine);
        fact(&mut Rig::new(Box::new(Lent(Arc::clone(&machine))), parts.pods));
        *shared = Arc::into_inner(machine);
    }

    /// A machine of its own.
    fn on_parts(&self, parts: &Parts, fact: &mut dyn FnMut(&mut Rig)) {
        let Some(kernel) = kernel() else { return };
        let machine = Lent(Arc::new(InKernel::new(&kernel, parts)));
        fact(&mut Rig::new(Box::new(machine), parts.pods.clone()));
    }
}

weir_testing::datapath_tests!();

fn kernel() -> Option<BpfKernel> {
    match BpfKernel::open() {
        Ok(kernel) => Some(kernel),
        Err(error) => {
            skipped(&format!("no bpf system call: {error}"));
            None
        }
    }
}

fn skipped(why: &str) {
    skip!("{why}");
}

/// Random packets get the same verdicts and counters in both machines, while their flows fill the tables.
#[test]
fn mutated_packets_have_the_same_outcome_in_the_kernel_and_the_vm() {
    let Some(kernel) = kernel() else { return };
    let parts = rig::parts();
    let mut in_kernel = Rig::new(Box::new(Lent(Arc::new(InKernel::new(&kernel, &parts)))), parts.pods.clone());
    let mut in_vm = Rig::new(Box::new(vm::Machine::new(&parts)), parts.pods.clone());
    let mut random = Random::new(2);
    let mut outcomes = BTreeSet::<Outcome>::new();
    for _ in 0..5_000 {
        let (hook, bytes, arrival) = mutant(&mut random);
        let [expected, seen] = [&mut in_vm, &mut in_kernel].map(|rig| rig.send(hook, &bytes, arrival));
        assert_eq!(
            (seen.verdict(), seen.counted()),
            (expected.verdict(), expected.counted()),
            "{hook:?} {arrival:?}: {bytes:02x?}"
        );
        outcomes.extend(seen.counted());
    }
    assert!(outcomes.len() >= 9, "many ends are reached: {outcomes:?}");
}
