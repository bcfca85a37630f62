//! What whole programs cost in the kernel, from 10 policies to 10,000 of one shape: loading them, and packets.
//!
//! Nanoseconds are the least of several runs. A new flow is one only once, so that its runs are single ones, with the
//! clock's own time in them; the others are means of many.

#[path = "../../compiler/tests/common/shape.rs"]
mod shape;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use weir_compiler::classify::{AtomId, Scope, SubjectId};
use weir_compiler::compile::{Compiled, Options, compile};
use weir_compiler::ebpf::code::{ByteOrder, encode};
use weir_compiler::ebpf::context as field;
use weir_compiler::engine::packet;
use weir_compiler::layout::MapName;
use weir_compiler::model::eval::FlowProtocol;
use weir_compiler::model::{Cluster, Direction, Protocol};
use weir_compiler::structures::Options as Structures;
use weir_compiler::vm::{MapKind, MapSpec};
use weir_runtime::sys::{Kernel, Map, MapDefinition, MapType, Program, TestRun};

const CONTEXT_BYTES: usize = 192;
const INTERFACE: u32 = 1;
/// Where packets came in: what comes in through its own interface is the pod itself.
const UPLINK: u32 = 2;
const PORT: u16 = 8000;
const REPEAT: u32 = 200_000;
const RUNS: usize = 9;
/// `TC_ACT_SHOT`
const DROPPED: u32 = 2;

fn main() {
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(error) => return eprintln!("no bpf system call: {error}"),
    };
    println!(
        "{:<12} {:>8} {:>12} {:>10} {:>8} {:>14} {:>10} {:>8}",
        "structures", "policies", "instructions", "walked", "load ms", "established ns", "denied ns", "new ns"
    );
    for (name, forced) in [("chosen", Vec::new()), ("kernel maps", Structures::kernel_maps().forced)] {
        for policies in [10, 100, 1_000, 10_000] {
            let cluster = shape::cluster(policies);
            let options = Options { forced: forced.clone(), ..Options::default() };
            let compiled = compile(&cluster, &Scope::everything(&cluster), &options).expect("it compiles");
            row(&kernel, name, policies, &cluster, &compiled);
        }
    }
}

fn row(kernel: &Kernel, name: &str, policies: usize, cluster: &Cluster, compiled: &Compiled) {
    let maps = maps(kernel, compiled);
    let insns = compiled.programs[0].link(|map| descriptor(&maps, map.0));
    let code = encode(&insns, ByteOrder::Little);
    let (program, walked) = kernel.load_counted(&code).expect("it loads");
    let load = least((0..5).map(|_| {
        let begun = Instant::now();
        let loaded = kernel.load(&code).expect("it loads");
        (begun.elapsed(), loaded).0
    }));
    let bench = Bench { own: own(cluster), program, maps };
    let [allowed, denied] = [true, false].map(|wanted| remote(compiled, wanted));
    assert!(bench.run(allowed, 1).verdict != DROPPED && bench.run(denied, 1).verdict == DROPPED, "as the policies say");
    let new = bench.new_flow(allowed);
    let [established, denied] = [allowed, denied].map(|remote| bench.mean(remote));
    println!(
        "{name:<12} {policies:>8} {:>12} {walked:>10} {:>8.2} {established:>14} {denied:>10} {new:>8}",
        compiled.reports[0].slots,
        load.as_secs_f64() * 1e3
    );
}

/// The address of the first endpoint, which the first policy selects.
fn own(cluster: &Cluster) -> IpAddr {
    let first = cluster.endpoints.iter().find(|it| it.name == "pod0");
    first.and_then(|it| it.addresses.first()).copied().expect("an address")
}

/// The address of a pod that may, or may not, begin a flow to the first one.
fn remote(compiled: &Compiled, wanted: bool) -> IpAddr {
    let atom: AtomId = compiled.classes.atoms.find(Protocol::Tcp, PORT);
    let may = |peer| compiled.classes.allowed(Direction::Ingress, subject(compiled), peer).contains(atom);
    let mut others = compiled.classes.addresses.exact.iter().skip(1);
    others.find(|(_, peer)| may(*peer) == wanted).map(|(address, _)| *address).expect("both sorts")
}

/// The first endpoint's.
fn subject(compiled: &Compiled) -> SubjectId {
    compiled.classes.subject_of[0].1
}

fn descriptor(maps: &HashMap<MapName, Map>, number: u32) -> i32 {
    MapName::ALL.get(number as usize).and_then(|name| maps.get(name)).map_or(-1, Map::descriptor)
}

fn maps(kernel: &Kernel, compiled: &Compiled) -> HashMap<MapName, Map> {
    let mut maps = HashMap::new();
    for image in &compiled.maps {
        let map = kernel.create_map(&definition(&image.spec), None).expect("a map");
        image.entries.iter().for_each(|(key, value)| map.update(key, value, 0).expect("an entry"));
        if image.name == MapName::Endpoints {
            map.update(&INTERFACE.to_le_bytes(), &compiled.endpoints[0].value, 0).expect("an endpoint");
        }
        maps.insert(image.name, map);
    }
    maps
}

fn definition(spec: &MapSpec) -> MapDefinition {
    let map_type = match spec.kind {
        MapKind::PercpuArray => MapType::PercpuArray,
        MapKind::Hash => MapType::Hash,
        MapKind::LruHash => MapType::LruHash,
        MapKind::LpmTrie => MapType::LpmTrie,
        MapKind::RingBuf => MapType::RingBuf,
        MapKind::ProgArray => MapType::ProgArray,
        _ => MapType::Array,
    };
    let MapSpec { key_size, value_size, max_entries, flags, .. } = *spec;
    MapDefinition { map_type, key_size, value_size, max_entries, flags: flags.0 }
}

struct Bench {
    own: IpAddr,
    program: Program,
    maps: HashMap<MapName, Map>,
}

impl Bench {
    /// Nanoseconds of the same packet again and again.
    fn mean(&self, remote: IpAddr) -> u32 {
        least((0..RUNS).map(|_| self.run(remote, REPEAT).nanoseconds))
    }

    /// Nanoseconds of a packet whose flow nobody knows.
    fn new_flow(&self, remote: IpAddr) -> u32 {
        least((0..2_000).map(|_| {
            for name in [MapName::Flows4, MapName::Fresh4] {
                let map = &self.maps[&name];
                while let Some(key) = map.next_key(None).expect("a walk") {
                    map.delete(&key).expect("a flow");
                }
            }
            self.run(remote, 1).nanoseconds
        }))
    }

    fn run(&self, remote: IpAddr, repeat: u32) -> TestRun {
        let protocol = FlowProtocol::Transport(Protocol::Tcp);
        let packet = packet::build(remote, self.own, protocol, PORT).expect("one family");
        let mut context = vec![0; CONTEXT_BYTES];
        for (at, interface) in [(field::IFINDEX, INTERFACE), (field::INGRESS_IFINDEX, UPLINK)] {
            context[at as usize..][..4].copy_from_slice(&interface.to_le_bytes());
        }
        self.program.test_run(&packet, &context, repeat).expect("a run")
    }
}

fn least<T: Ord + Default>(measured: impl Iterator<Item = T>) -> T {
    measured.min().unwrap_or_default()
}
