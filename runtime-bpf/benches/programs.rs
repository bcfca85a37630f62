//! What whole programs cost in the kernel, from 10 policies to 10,000 of one shape: loading them, and packets.
//!
//! Nanoseconds are the least of several runs, less those of a program that does nothing. A new flow is one only once, so that its
//! runs are single ones, of packets from one port after the other; the others are means of many. Beside each stands what the
//! least program by hand costs ([`minimal`]), which has the same packets.

#[path = "programs/minimal.rs"]
mod minimal;
#[path = "../../compiler/tests/common/shape.rs"]
mod shape;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use weir_compiler::classify::{AtomId, Scope, SubjectId};
use weir_compiler::compile::{Compiled, Options, compile};
use weir_compiler::ebpf::code::{ByteOrder, encode};
use weir_compiler::ebpf::context as field;
use weir_compiler::ebpf::target::Target;
use weir_compiler::engine::packet;
use weir_compiler::layout::MapName;
use weir_compiler::model::eval::FlowProtocol;
use weir_compiler::model::{Cluster, Direction, Protocol};
use weir_compiler::structures::{Options as Structures, Place, Structure};
use weir_compiler::vm::{MapFlags, MapKind, MapSpec};
use weir_runtime::sys::{Kernel, Map, MapDefinition, MapType, Program, TestRun};

const CONTEXT_BYTES: usize = 192;
const INTERFACE: u32 = 1;
/// Where packets came in: what comes in through its own interface is the pod itself.
const UPLINK: u32 = 2;
const PORT: u16 = 8000;
/// The first port that packets come from.
const CLIENT: u16 = 20_000;
const NEW_FLOWS: u16 = 5_000;
const REPEAT: u32 = 200_000;
const RUNS: usize = 15;
/// `TC_ACT_SHOT`
const DROPPED: u32 = 2;

/// Policies, and what the programs look into.
type Case = (&'static str, Vec<(Place, Structure)>);

fn main() {
    let kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(error) => return eprintln!("no bpf system call: {error}"),
    };
    println!(
        "{:<22} {:>8} {:>12} {:>10} {:>8} {:>11} {:>9} {:>9}",
        "structures", "policies", "instructions", "walked", "load ms", "established", "denied", "new"
    );
    let empty = empty(&kernel);
    by_hand(&kernel, &empty);
    let lru = (Place::Flows, Structure::Lru);
    let mut kernel_maps = Structures::kernel_maps().forced;
    kernel_maps.push(lru);
    let cases: [Case; 3] = [
        ("chosen, buckets", vec![(Place::Flows, Structure::Buckets)]),
        ("chosen, lru", vec![lru]),
        ("kernel maps, lru", kernel_maps),
    ];
    for (name, forced) in cases {
        for policies in [10, 100, 1_000, 10_000] {
            let cluster = shape::cluster(policies);
            let target = Target { kernel: (6, 1) };
            let options = Options { forced: forced.clone(), target, ..Options::default() };
            let compiled = compile(&cluster, &Scope::everything(&cluster), &options).expect("it compiles");
            row(&kernel, (name, policies), &cluster, &compiled, &empty);
        }
    }
}

/// What the program costs that does nothing.
struct Empty {
    mean: u32,
    single: u32,
}

fn bench(own: IpAddr, program: Program) -> Bench {
    Bench { own, program }
}

fn empty(kernel: &Kernel) -> Empty {
    let code = encode(&minimal::empty(), ByteOrder::Little);
    let bench = bench(IpAddr::from([10, 0, 0, 1]), kernel.load(&code).expect("it loads"));
    let remote = IpAddr::from([10, 0, 0, 2]);
    Empty { mean: bench.mean(remote), single: bench.new_flow(remote) }
}

fn by_hand(kernel: &Kernel, empty: &Empty) {
    use minimal::{COUNTERS, ENDPOINTS, FLOW_BYTES, FLOWS, TABLE_BYTES, TABLES};
    let map = |map_type, value_size, flags| {
        let definition = MapDefinition { map_type, key_size: 4, value_size, max_entries: 1, flags };
        kernel.create_map(&definition, None).expect("a map")
    };
    let maps = [
        (FLOWS, map(MapType::Array, FLOW_BYTES, MapFlags::MMAPABLE.0)),
        (ENDPOINTS, map(MapType::Hash, 8, 0)),
        (TABLES, map(MapType::Array, TABLE_BYTES, 0)),
        (COUNTERS, map(MapType::PercpuArray, 16, 0)),
    ];
    let remote = [10, 0, 0, 2];
    maps[1].1.update(&INTERFACE.to_le_bytes(), &[0; 8], 0).expect("an endpoint");
    maps[2].1.update(&[0; 4], &minimal::tables(u32::from_le_bytes(remote)), 0).expect("tables");
    let find = |map| maps.iter().find(|(it, _)| *it == map).map_or(-1, |(_, map)| map.descriptor());
    let insns = minimal::minimal(find);
    let (program, walked) = kernel.load_counted(&encode(&insns, ByteOrder::Little)).expect("it loads");
    let bench = bench(IpAddr::from([10, 0, 0, 1]), program);
    let new = bench.new_flow(remote.into()) - empty.single;
    assert!(bench.run(remote.into(), CLIENT, 1).verdict != DROPPED, "it passes");
    let established = bench.mean(remote.into()) - empty.mean;
    let none = "-";
    println!(
        "{:<22} {none:>8} {:>12} {walked:>10} {none:>8} {established:>11} {none:>9} {new:>9}",
        "by hand",
        insns.len()
    );
}

fn row(kernel: &Kernel, (name, policies): (&str, usize), cluster: &Cluster, compiled: &Compiled, empty: &Empty) {
    let maps = maps(kernel, compiled);
    let insns = compiled.programs[0].link(|map| descriptor(&maps, map.0));
    let code = encode(&insns, ByteOrder::Little);
    let (program, walked) = kernel.load_counted(&code).expect("it loads");
    let load = least((0..5).map(|_| {
        let begun = Instant::now();
        let loaded = kernel.load(&code).expect("it loads");
        (begun.elapsed(), loaded).0
    }));
    let bench = bench(own(cluster), program);
    let [allowed, denied] = [true, false].map(|wanted| remote(compiled, wanted));
    let dropped = |remote| bench.run(remote, CLIENT, 1).verdict == DROPPED;
    assert!(!dropped(allowed) && dropped(denied), "as the policies say");
    let new = bench.new_flow(allowed) - empty.single;
    let [established, denied] = [allowed, denied].map(|remote| bench.mean(remote) - empty.mean);
    println!(
        "{name:<22} {policies:>8} {:>12} {walked:>10} {:>8.2} {established:>11} {denied:>9} {new:>9}",
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
        if image.spec.flags.contains(MapFlags::RDONLY_PROG) {
            map.freeze().expect("it freezes");
        }
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
}

impl Bench {
    /// Nanoseconds of the same packet again and again.
    fn mean(&self, remote: IpAddr) -> u32 {
        least((0..RUNS).map(|_| self.run(remote, CLIENT, REPEAT).nanoseconds))
    }

    /// Nanoseconds of a packet whose flow nobody knows.
    fn new_flow(&self, remote: IpAddr) -> u32 {
        least((1..NEW_FLOWS).map(|port| self.run(remote, CLIENT + port, 1).nanoseconds))
    }

    fn run(&self, remote: IpAddr, client: u16, repeat: u32) -> TestRun {
        let protocol = FlowProtocol::Transport(Protocol::Tcp);
        let mut packet = packet::build(remote, self.own, protocol, PORT).expect("one family");
        packet[34..36].copy_from_slice(&client.to_be_bytes());
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
