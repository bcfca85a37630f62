//! The artifact as text, for `weir inspect`.

use std::fmt::Write as _;

use super::memory::{self, MemorySize};
use super::{Artifact, manifest};
use crate::layout::MapName;
use crate::layout::{AT_EDGE, program_name};
use weir_ebpf::asm::Assembled;
use weir_ebpf::{disasm, limits};
use weir_objects::escape;

/// A summary in a few lines; memory as on a machine with `cpus` possible CPUs.
pub fn summary(artifact: &Artifact, cpus: u64) -> String {
    let mut out = String::new();
    if let Ok(generation) = artifact.generation() {
        let _ = writeln!(out, "generation  {generation}");
    }
    let _ = writeln!(out, "endpoints   {}", artifact.endpoints.len());
    for (name, code) in programs(artifact) {
        let _ = writeln!(out, "{name:<11} {}", program_line(code));
    }
    let entries: usize = artifact.maps.iter().map(|map| map.entries.len()).sum();
    let bytes: MemorySize = artifact.maps.iter().map(memory::full).sum();
    let (maps, bytes) = (artifact.maps.len(), bytes.on(cpus));
    let _ = writeln!(out, "maps        {maps}, {entries} entries, {bytes} bytes with {cpus} CPUs");
    let _ =
        writeln!(out, "checksum    intact: the file is not damaged; a checksum is no signature (`weir attach --key`)");
    for note in manifest::notes(&artifact.manifest) {
        let _ = writeln!(out, "structure   {}", escape::line(&note.to_string()));
    }
    out
}

/// Every program, by name.
pub fn programs(artifact: &Artifact) -> impl Iterator<Item = (&'static str, &Assembled)> {
    let at_pods = artifact.programs.iter().map(|program| (program_name(program.hook), &program.code));
    at_pods.chain(artifact.edge.iter().map(|code| (AT_EDGE, code)))
}

fn program_line(code: &Assembled) -> String {
    let report = limits::check(&code.link(|_| 0));
    let longest = report.longest_path.map_or_else(|| "unbounded".to_owned(), |steps| steps.to_string());
    format!("{} instructions, longest path {longest}, stack {} bytes", report.slots, report.stack)
}

/// A table of the maps; memory as on a machine with `cpus` possible CPUs.
pub fn maps(artifact: &Artifact, cpus: u64) -> String {
    let mut out = String::new();
    let heads = ["map", "type", "key", "value", "entries", "max", "bytes", "charged"];
    let mut row = |cells: [&str; 8]| {
        let [name, kind, numbers @ ..] = cells;
        let _ = write!(out, "{name:<12} {kind:<13}");
        for number in numbers {
            let _ = write!(out, " {number:>10}");
        }
        out.push('\n');
    };
    row(heads);
    for map in &artifact.maps {
        let spec = &map.spec;
        let sizes = [u64::from(spec.key_size), u64::from(spec.value_size), map.entries.len() as u64];
        let costs = [u64::from(spec.max_entries), memory::full(map).on(cpus), memory::charged(map).on(cpus)];
        let [key, value, entries] = sizes.map(|number| number.to_string());
        let [most, full, charged] = costs.map(|number| number.to_string());
        row([map.name.name(), spec.kind.name(), &key, &value, &entries, &most, &full, &charged]);
    }
    out
}

/// A program's instructions. The source line precedes its instructions, and the name of a loaded map follows the load.
pub fn disassembly(artifact: &Artifact, code: &Assembled) -> String {
    let line = |index: usize| {
        let tag = code.tags.get(index)?;
        let changed = index.checked_sub(1).and_then(|before| code.tags.get(before)) != Some(tag);
        let line = artifact.lines.line(*tag).filter(|_| changed)?;
        // Both texts come from files: escaping keeps each on its line.
        Some(escape::line(&format!("{}:{}: {}", line.file, line.number, line.text)).into_owned())
    };
    let map = |index: usize| {
        let used = code.maps.binary_search_by_key(&index, |used| used.index).ok()?;
        let name = MapName::ALL.get(code.maps.get(used)?.map.0 as usize)?;
        Some(name.name().to_owned())
    };
    disasm::disassemble_with(&code.insns, line, map)
}
