//! Large address sets: time of a look-up and size in memory, compared with the kernel's own maps of the same set in the
//! same run; and the time to build a set, to bring it into force, and to change one entry in a hundred.
//!
//! The table is printed on standard output; with `WEIR_BENCH_JSON`, the same figures are written to that file.

#[path = "sets/agent.rs"]
mod agent;
#[path = "../tests/tables/kernel.rs"]
mod kernel;
#[path = "tables/keys.rs"]
mod keys;
#[expect(dead_code, reason = "shared with tests, which need more of it")]
#[path = "../tests/enforce/net.rs"]
mod net;

use std::time::Instant;

use kernel::{lay_out, make};
use keys::{costs, misses, prefixes, singles};
use serde_json::{Value, json};
use weir_artifact::structure::{LookupSet, Structure};
use weir_codegen::map_images::address_maps;
use weir_codegen::structures::StructureOptions;
use weir_ebpf::target::Target;
use weir_fuzz::generators::Random;
use weir_objects::address::Family;
use weir_runtime::sys::{BpfKernel, KernelMap};

/// The kind of a set's entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Singles,
    Prefixes,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        if self == Self::Singles { "single addresses" } else { "prefixes" }
    }
}

const SETS: [(Kind, usize); 3] = [(Kind::Singles, 100_000), (Kind::Singles, 1_000_000), (Kind::Prefixes, 100_000)];

fn main() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => return eprintln!("no bpf system call: {error}"),
    };
    let mut rows = Vec::new();
    for family in [Family::V4, Family::V6] {
        for (kind, count) in SETS {
            look_ups(&kernel, family, kind, count, &mut rows);
        }
    }
    match net::possible() {
        Ok(()) => rows.extend(agent::rows(&SETS)),
        Err(reason) => eprintln!("nothing is brought into force: {reason}"),
    }
    if let Some(path) = std::env::var_os("WEIR_BENCH_JSON") {
        let text = serde_json::to_string_pretty(&rows).expect("it can be written");
        std::fs::write(&path, text + "\n").expect("the file can be written");
    }
}

pub(crate) fn number(family: Family) -> u8 {
    if family == Family::V4 { 4 } else { 6 }
}

pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// Measures one set in each structure that supports it.
fn look_ups(kernel: &BpfKernel, family: Family, kind: Kind, count: usize, rows: &mut Vec<Value>) {
    let mut random = Random::new(count as u64);
    let (place, structures, (map, hits)) = match kind {
        Kind::Singles => {
            // A trie takes single addresses too; many programs use one for both.
            let structures = [Structure::Perfect, Structure::Layered, Structure::Hash].as_slice();
            (LookupSet::exact(family), structures, singles(&mut random, family, count))
        }
        Kind::Prefixes => {
            let structures = [Structure::Dxr, Structure::Search, Structure::Lpm].as_slice();
            (LookupSet::prefixes(family), structures, prefixes(&mut random, family, count))
        }
    };
    let misses = misses(&mut random, family, &map);
    for structure in structures {
        let forced = vec![(place, *structure)];
        let options =
            StructureOptions { most_value_bytes: Target::V4.most_value_bytes(), forced, ..StructureOptions::default() };
        let begun = Instant::now();
        let tables = lay_out(map.clone(), &options);
        let build = milliseconds(begun);
        let images = address_maps(&tables, family);
        let begun = Instant::now();
        let maps: Vec<KernelMap> = images.iter().map(|image| make(kernel, image)).collect();
        let load = milliseconds(begun);
        let bytes: u64 = maps.iter().map(charged).sum();
        let begun = Instant::now();
        drop(maps);
        let free = milliseconds(begun);
        let [hot, hit, miss] = costs(kernel, &tables, &options, family, [&hits, &misses]);
        println!(
            "IPv{} {count:>9} {:<17} {:<9} hot {hot:6.1}  hit {hit:7.1}  miss {miss:7.1} ns  {:6.1} B/entry  build {build:6.1}  load \
             {load:6.1}  free {free:5.1} ms",
            number(family),
            kind.name(),
            structure.name(),
            bytes as f64 / count as f64,
        );
        rows.push(json!({
            "what": "look-up", "family": number(family), "set": kind.name(), "entries": count, "structure": structure.name(),
            "hot_ns": hot, "hit_ns": hit, "miss_ns": miss, "bytes": bytes, "build_ms": build, "load_ms": load, "free_ms": free,
        }));
    }
}

/// The kernel's charge for the map, which bpftool also shows.
fn charged(map: &KernelMap) -> u64 {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.descriptor())).unwrap_or_default();
    let value = about.lines().find_map(|line| line.strip_prefix("memlock:"));
    value.and_then(|it| it.trim().parse().ok()).unwrap_or_default()
}
