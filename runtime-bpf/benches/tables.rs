//! The cost of a look-up in the kernel, by structure and size, hot and random. The cost of the same program without the
//! look-up is subtracted.
//!
//! [`keys`] describes the method. Each row also shows the kernel's own map from the same run; × is its time divided by
//! ours.

#[path = "../tests/tables/kernel.rs"]
mod kernel;
#[path = "tables/keys.rs"]
mod keys;

use std::time::{Duration, Instant};

use kernel::lay_out;
use keys::{costs, misses, prefixes, singles};
use weir_artifact::structure::{LookupSet, Structure};
use weir_codegen::structures::StructureOptions;
use weir_ebpf::target::Target;
use weir_fuzz::generators::Random;
use weir_objects::address::Family;
use weir_runtime::sys::BpfKernel;

fn main() {
    let kernel = match BpfKernel::open() {
        Ok(kernel) => kernel,
        Err(error) => return eprintln!("no bpf system call: {error}"),
    };
    println!(
        "{:<10} {:>9} {:<16} {:>8} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9} {:>7}",
        "place", "entries", "structure", "hot ns", "hit ns", "miss ns", "× hit", "× miss", "bytes", "B/entry", "build"
    );
    for (place, family) in [
        (LookupSet::Exact4, Family::V4),
        (LookupSet::Exact6, Family::V6),
        (LookupSet::Prefixes4, Family::V4),
        (LookupSet::Prefixes6, Family::V6),
    ] {
        for count in [100, 1_000, 10_000, 100_000, 1_000_000] {
            size(&kernel, place, family, count);
        }
    }
}

fn size(kernel: &BpfKernel, place: LookupSet, family: Family, count: usize) {
    let mut random = Random::new(count as u64);
    let (map, hits) = match place {
        LookupSet::Exact4 | LookupSet::Exact6 => singles(&mut random, family, count),
        _ => prefixes(&mut random, family, count),
    };
    let misses = misses(&mut random, family, &map);
    let mut control: Option<[f64; 2]> = None;
    for structure in
        place.structures().iter().filter(|it| **it != Structure::Compares && **it != Structure::HashPerLength)
    {
        let forced = vec![(place, *structure)];
        let options =
            StructureOptions { most_value_bytes: Target::V4.most_value_bytes(), forced, ..StructureOptions::default() };
        let start = Instant::now();
        let tables = lay_out(map.clone(), &options);
        let built = start.elapsed();
        let note = tables.structures.notes.iter().find(|it| it.place == place).unwrap();
        if note.structure != *structure {
            continue;
        }
        let times = costs(kernel, &tables, &options, family, [&hits, &misses]);
        let [hit, miss] = control.get_or_insert([times[1], times[2]]).map(|it| it);
        let bytes = weir_codegen::map_images::address_maps(&tables, family)
            .iter()
            .map(|it| weir_artifact::memory::full(it).fixed)
            .sum::<u64>();
        row(place, count, *structure, times, [hit / times[1], miss / times[2]], bytes, built);
    }
}

fn row(
    place: LookupSet,
    count: usize,
    structure: Structure,
    [hot, hit, miss]: [f64; 3],
    ratios: [f64; 2],
    bytes: u64,
    built: Duration,
) {
    println!(
        "{:<10} {count:>9} {:<16} {hot:>8.1} {hit:>8.1} {miss:>8.1} {:>7.1} {:>7.1} {bytes:>9} {:>9.1} {:>5} ms",
        place.name(),
        structure.name(),
        ratios[0],
        ratios[1],
        bytes as f64 / count as f64,
        built.as_millis()
    );
}
