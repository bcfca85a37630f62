//! The cost of whole programs in the kernel, compared with a minimal program written by hand ([`minimal`]) on the same
//! packets: established flows (from one to half a million), new flows of pods and of outside addresses, and denials;
//! with 10 to 10,000 policies of one shape, 1,000 cluster-wide policies of 25 rules, and up to a million listed addresses.
//!
//! Nanoseconds are the least of several runs, minus those of a program that does nothing. Packets are made in the
//! kernel ([`weir_runtime::trial::driver`]), so that each can belong to another flow. The table is printed on standard
//! output; with `WEIR_BENCH_JSON`, the same figures are written to that file.

#[path = "programs/measure.rs"]
mod measure;
#[path = "programs/minimal.rs"]
mod minimal;

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Instant;

use weir_artifact::layout::{MapName, buckets};
use weir_artifact::map_image::{MapImage, bucket_family, with_few_flows};
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, Compiled, compile};
use weir_codegen::structures::StructureOptions as Structures;
use weir_ebpf::code::{ByteOrder, encode};
use weir_ebpf::target::Target;
use weir_ebpf::vm::MapFlags;
use weir_model::{Cluster, Direction};
use weir_objects::address::Family;
use weir_runtime::sys::{BpfKernel, KernelMap, KernelProgram, MapDefinition, MapType};
use weir_runtime::trial::driver::MOST_OTHERS as SOURCES;
use weir_runtime::trial::{self, INTERFACE};
use weir_testing::{shape, yaml};

use measure::{Ends, Figures, MeasuredProgram, Subject, baseline, measure};

/// The pod's port, and the port of servers outside.
pub(crate) const PORT: u16 = 8000;
pub(crate) const OUTSIDE: u16 = 8080;
/// Number of times that everything is measured.
const PASSES: usize = 2;

/// One row of the table.
struct Case {
    name: &'static str,
    policies: usize,
    cluster_wide: usize,
    listed: usize,
    family: Family,
    forced: Vec<(LookupSet, Structure)>,
}

fn cases() -> Vec<Case> {
    let kernel_maps = Structures::kernel_maps().forced;
    let case = |name, policies, listed| Case {
        name,
        policies,
        cluster_wide: 0,
        listed,
        family: Family::V4,
        forced: Vec::new(),
    };
    let mut cases: Vec<Case> = [10, 100, 1_000, 10_000].map(|policies| case("buckets", policies, 0)).into();
    cases.extend([10, 1_000, 100_000, 1_000_000].map(|listed| case("buckets", 100, listed)));
    cases.push(Case { cluster_wide: 1_000, ..case("buckets", 1_000, 0) });
    cases.push(Case { family: Family::V6, ..case("buckets", 100, 0) });
    cases.push(Case { forced: kernel_maps, ..case("kernel maps", 100, 0) });
    cases
}

fn main() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => return eprintln!("no bpf system call: {error}"),
    };
    let only = std::env::var("WEIR_BENCH_CASES").ok().and_then(|it| it.parse().ok()).unwrap_or(usize::MAX);
    println!("{}", measure::header());
    let mut rows = Vec::new();
    for family in [Family::V4, Family::V6] {
        rows.extend(family_rows(&kernel, family, only));
    }
    if let Some(path) = std::env::var_os("WEIR_BENCH_JSON") {
        let text = serde_json::to_string_pretty(&rows).expect("it can be written");
        std::fs::write(&path, text + "\n").expect("the file can be written");
    }
}

/// Measures all cases of a family several times, in turn, because the load of the machine varies.
fn family_rows(kernel: &BpfKernel, family: Family, only: usize) -> Vec<serde_json::Value> {
    let cases: Vec<Case> = cases().into_iter().filter(|it| it.family == family).take(only).collect();
    let made: Vec<Compiled> = cases.iter().map(made).collect();
    let ends = ends(family);
    let empty = trial::empty(kernel).expect("it loads");
    let mut base = baseline(kernel, &ends, &empty);
    let mut figures: Vec<Option<Figures>> = vec![None; cases.len() + 1];
    let mut loads = vec![(0, f64::INFINITY); cases.len() + 1];
    for _ in 0..PASSES {
        let mut measured = |index: usize, subject: &mut dyn Subject| {
            let now = measure(kernel, &ends, subject);
            let least = figures[index].take().map_or(now.clone(), |before| before.least(&now));
            figures[index] = Some(least);
        };
        let mut by_hand = ByHand { kernel, family, ends: &ends, maps: Vec::new(), programs: Vec::new() };
        measured(0, &mut by_hand);
        for (index, made) in made.iter().enumerate() {
            let mut ours = Ours::new(kernel, made, family);
            measured(index + 1, &mut ours);
            let (walked, load_ms) = &mut loads[index + 1];
            (*walked, *load_ms) = (ours.walked, load_ms.min(ours.load_ms));
        }
        base = base.least(&baseline(kernel, &ends, &empty));
    }
    let figures: Vec<Figures> = figures.iter().flatten().map(|it| it.over(&base)).collect();
    let show = |name: &str, numbers: [usize; 5], load: f64, of: &Figures| {
        let measured = MeasuredProgram { name, family, numbers, load, figures: of, by_hand: &figures[0] };
        println!("{}", measure::row(&measured));
        measure::json(&measured)
    };
    let mut rows = vec![show("by hand", [0; 5], 0.0, &figures[0])];
    for (index, (case, made)) in cases.iter().zip(&made).enumerate() {
        let insns = made.reports.iter().map(|it| it.slots).max().unwrap_or_default() as usize;
        let (walked, load) = loads[index + 1];
        let numbers = [case.policies, case.cluster_wide, case.listed, insns, walked as usize];
        rows.push(show(case.name, numbers, load, &figures[index + 1]));
    }
    rows
}

/// The pod's address and the addresses that it talks to. They do not depend on the number of policies.
fn ends(family: Family) -> Ends {
    let v4 = |a: u8, b: u8| IpAddr::from([10, 0, a, b]);
    let v6 = |group: u16, number: u16| IpAddr::from([group, 0, 0, 0, 0, 0, 0, number]);
    // Pods of tier 1 of the pod's own team are allowed, those of other teams are not. The addresses in 10.0.0.0/16 and
    // fd10::/16 that belong to no pod may be reached.
    let pods = |team: usize| (0..1_000).filter(move |pod| pod % 7 == 1 && pod % 10 == team).take(SOURCES);
    let of_pods = |team: usize| pods(team).map(|pod| pod_address(pod, family)).collect();
    let outside = (1..=SOURCES).map(|number| match family {
        Family::V4 => v4(200, number as u8),
        Family::V6 => v6(0xfd10, number as u16),
    });
    Ends { own: pod_address(0, family), allowed: of_pods(0), denied: of_pods(3), outside: outside.collect() }
}

fn pod_address(pod: usize, family: Family) -> IpAddr {
    let (high, low) = (pod / 250, pod % 250 + 1);
    match family {
        Family::V4 => IpAddr::from([10, 0, high as u8, low as u8]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, high as u16, low as u16]),
    }
}

fn cluster(case: &Case) -> Cluster {
    let mut text = shape::text(case.policies) + &shape::tiers_text(case.cluster_wide);
    if case.family == Family::V6 {
        text = text.replace("{to: [", "{to: [{ipBlock: {cidr: 'fd10::/16'}}, ");
        for pod in 0..1_000 {
            let [v4, v6] = [Family::V4, Family::V6].map(|family| pod_address(pod, family));
            text = text.replacen(&format!("[{{ip: {v4}}}]"), &format!("[{{ip: {v4}}}, {{ip: '{v6}'}}]"), 1);
        }
    }
    if case.listed > 0 {
        text.push_str("---\n{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {name: listed}, spec: {action: Deny, order: 100, cidrs: [");
        for number in 0..case.listed as u32 {
            // Spread over addresses that no pod has.
            let address = std::net::Ipv4Addr::from((number.wrapping_mul(0x9e37_79b1) >> 8) | 0x2d00_0000);
            let comma = if number > 0 { ", " } else { "" };
            _ = write!(text, "{comma}{address}");
        }
        text.push_str("]}}\n");
    }
    yaml::cluster(&text)
}

fn made(case: &Case) -> Compiled {
    let cluster = cluster(case);
    let options =
        CompileOptions { forced: case.forced.clone(), target: Target { kernel: (6, 1) }, ..CompileOptions::default() };
    compile(&cluster, &Scope::everything(&cluster), &options).expect("it compiles")
}

/// The compiled programs, loaded into the kernel.
struct Ours<'a> {
    kernel: &'a BpfKernel,
    made: &'a Compiled,
    family: Family,
    /// For the last program: instructions that the verifier processed, and milliseconds to load.
    walked: u64,
    load_ms: f64,
    maps: HashMap<MapName, KernelMap>,
    programs: Vec<KernelProgram>,
    is_filled: Cell<bool>,
}

impl<'a> Ours<'a> {
    fn new(kernel: &'a BpfKernel, made: &'a Compiled, family: Family) -> Self {
        Self {
            kernel,
            made,
            family,
            walked: 0,
            load_ms: 0.0,
            maps: HashMap::new(),
            programs: Vec::new(),
            is_filled: Cell::new(false),
        }
    }
}

impl Subject for Ours<'_> {
    fn load(&mut self, slots: u32) {
        self.programs.clear();
        self.maps.clear();
        self.maps = maps(self.kernel, self.made, slots);
        let descriptor = |number: u32| {
            MapName::ALL.get(number as usize).and_then(|name| self.maps.get(name)).map_or(-1, KernelMap::descriptor)
        };
        for program in &self.made.programs {
            let code = encode(program.link(|map| descriptor(map.0)), ByteOrder::Little);
            let begun = Instant::now();
            self.programs.push(self.kernel.load(&code).unwrap_or_else(|error| panic!("{}: {error}", error.log)));
            self.load_ms = begun.elapsed().as_secs_f64() * 1e3;
            self.walked = self.kernel.load_counted(&code).map_or(0, |(_, walked)| walked);
        }
    }

    fn forget_flows(&self) -> bool {
        let name = if self.family == Family::V4 { MapName::FlowBuckets4 } else { MapName::FlowBuckets6 };
        match self.maps.get(&name) {
            Some(table) => table.update(&[0; 4], &vec![0; table.value_bytes()], 0).is_ok(),
            // The kernel's maps are filled once with the flows of each hook, which are others.
            None => !self.is_filled.replace(!self.is_filled.get()),
        }
    }

    fn programs(&self) -> &[KernelProgram] {
        &self.programs
    }
}

fn maps(kernel: &BpfKernel, compiled: &Compiled, slots: u32) -> HashMap<MapName, KernelMap> {
    let mut maps = HashMap::new();
    for image in &compiled.maps {
        let sized = if image.name == MapName::FlowShape || bucket_family(image.name).is_some() {
            with_few_flows(image, slots).into_owned()
        } else {
            MapImage::clone(image)
        };
        let map = kernel.create_map(&(&sized.spec).into(), None).expect("a map");
        sized.entries.iter().for_each(|(key, value)| map.update(key, value, 0).expect("an entry"));
        if sized.spec.flags.contains(MapFlags::RDONLY_PROG) {
            map.freeze().expect("it freezes");
        }
        if sized.name == MapName::Endpoints {
            map.update(&INTERFACE.to_le_bytes(), &compiled.endpoints[0].value, 0).expect("an endpoint");
        }
        maps.insert(sized.name, map);
    }
    maps
}

/// The minimal program, loaded into the kernel.
struct ByHand<'a> {
    kernel: &'a BpfKernel,
    family: Family,
    ends: &'a Ends,
    maps: Vec<KernelMap>,
    programs: Vec<KernelProgram>,
}

impl Subject for ByHand<'_> {
    fn load(&mut self, slots: u32) {
        use minimal::{CONFIG_BYTES, ENDPOINT_BYTES, TABLE_BYTES};
        let flow_bytes = slots * buckets::slot_bytes(self.family);
        let map = |map_type, value_size, max_entries| {
            let definition = MapDefinition { map_type, key_size: 4, value_size, max_entries, flags: 0 };
            self.kernel.create_map(&definition, None).expect("a map")
        };
        let maps = vec![
            map(MapType::Array, flow_bytes, 1),
            map(MapType::Hash, ENDPOINT_BYTES, 1_024),
            map(MapType::Array, TABLE_BYTES, 1),
            map(MapType::PercpuArray, 16, 2),
            map(MapType::Array, CONFIG_BYTES, 1),
        ];
        maps[1].update(&INTERFACE.to_le_bytes(), &minimal::endpoint(self.ends.own), 0).expect("an endpoint");
        let may: Vec<IpAddr> = self.ends.allowed.iter().chain(&self.ends.outside).copied().collect();
        maps[2].update(&[0; 4], &minimal::tables(&may), 0).expect("tables");
        maps[4].update(&[0; 4], &minimal::config(), 0).expect("a configuration");
        let descriptor = |map: weir_ebpf::asm::MapRef| maps[map.0 as usize].descriptor();
        let load = |hook| {
            let insns = minimal::minimal(hook, self.family, flow_bytes, descriptor);
            let loaded = self.kernel.load(&encode(&insns, ByteOrder::Little));
            loaded.unwrap_or_else(|error| panic!("{}", error.log))
        };
        self.programs = Direction::ALL.map(load).into();
        self.maps = maps;
    }

    fn forget_flows(&self) -> bool {
        let table = &self.maps[0];
        table.update(&[0; 4], &vec![0; table.value_bytes()], 0).is_ok()
    }

    fn programs(&self) -> &[KernelProgram] {
        &self.programs
    }
}
