//! Artifact → ELF object → artifact.

use std::borrow::Cow;
use std::ops::Range;

use super::bytes::Sink;
use super::elf::{Elf, ElfWriter, Symbol, SymbolKind, flag, kind};
use super::{
    Artifact, ArtifactError, ArtifactProgram, Checksum, Digest, LICENCE, LineTable, LinkError, btf, images, objects,
};
use crate::layout::MapName;
use crate::layout::{AT_EDGE, program_name};
use crate::map_image::{MapImage, bucket_family};
use weir_ebpf::asm::{Assembled, Function, MapRef, MapUse, Tag};
use weir_ebpf::code::{ByteOrder, SLOT_BYTES, decode};
use weir_ebpf::insn::{Imm64, Insn};
use weir_objects::k8s::Direction;

const CODE: &str = "classifier";
const RELOCATIONS: &str = ".relclassifier";
/// Where loaders look for XDP programs.
const EDGE: &str = "xdp";
const EDGE_RELOCATIONS: &str = ".relxdp";
const MAPS: &str = ".maps";
/// Section names of the values that programs address, by the way loaders treat them: writable, frozen, and (one section
/// for all) zeros.
const DATA: &str = ".data.";
const READ_ONLY: &str = ".rodata.";
const ZEROS: &str = ".bss";
const BTF: &str = ".BTF";
const BTF_EXT: &str = ".BTF.ext";
const IMAGES: &str = ".weir.maps";
const ENDPOINTS: &str = ".weir.endpoints";
const OBJECTS: &str = ".weir.objects";
const MANIFEST: &str = ".weir.manifest";
const CHECKSUM: &str = ".weir.checksum";
/// In files of earlier versions: the SHA-256 digest of the rest.
const DIGEST: &str = ".weir.digest";

/// Writes the file in place of the content of `file`.
pub(super) fn write(artifact: &Artifact, file: &mut Vec<u8>) -> Result<(), LinkError> {
    let mut writer = ElfWriter::default();
    let codes = artifact.programs.each_ref().map(|program| program.code.insns.unlinked());
    let starts = [0, codes[0].len() as u64];
    let section = writer.section(CODE, kind::PROGBITS, flag::ALLOC | flag::EXEC, codes.concat());
    for ((program, code), offset) in artifact.programs.iter().zip(&codes).zip(starts) {
        writer.symbol(SymbolKind::Function, program_name(program.hook), [offset, code.len() as u64], section);
    }
    let mut types = btf::Btf::new();
    let symbols = maps(artifact, &mut writer, &mut types);
    let mut places = Vec::new();
    for (program, start) in artifact.programs.iter().zip(starts) {
        places.extend(relocations(&program.code, start, &symbols)?);
    }
    writer.relocations(section, RELOCATIONS, &places);
    if let Some(edge) = &artifact.edge {
        write_edge(edge, &mut writer, &symbols)?;
    }
    let ext = debug_info(artifact, &mut types, starts);
    writer.section("license", kind::PROGBITS, flag::ALLOC | flag::WRITE, [LICENCE.as_bytes(), &[0]].concat());
    writer.note(BTF, types.finish());
    writer.note(BTF_EXT, ext);
    writer.note_of(IMAGES, images::write_maps(&artifact.maps, &artifact.addressed())?);
    writer.note(ENDPOINTS, images::write_endpoints(&artifact.endpoints));
    if !artifact.objects.is_empty() {
        writer.note(OBJECTS, objects::pack(&artifact.objects));
    }
    writer.note(MANIFEST, artifact.manifest.as_bytes());
    writer.note(CHECKSUM, vec![0; Checksum::BYTES]);
    writer.finish(file);
    add_checksum(file);
    Ok(())
}

fn write_edge<'a>(
    edge: &'a Assembled,
    writer: &mut ElfWriter<'a>,
    symbols: &[(MapName, u32)],
) -> Result<(), LinkError> {
    let code = edge.insns.unlinked();
    let section = writer.section(EDGE, kind::PROGBITS, flag::ALLOC | flag::EXEC, code);
    writer.symbol(SymbolKind::Function, AT_EDGE, [0, code.len() as u64], section);
    writer.relocations(section, EDGE_RELOCATIONS, &relocations(edge, 0, symbols)?);
    Ok(())
}

/// Writes the checksum of the rest of the file into it.
fn add_checksum(file: &mut [u8]) {
    let around = Elf::read(file).and_then(|elf| elf.around(CHECKSUM));
    if let Some((offset, sum)) = around.map(|around| (around[0].len(), Checksum::of_parts(around))) {
        file[offset..][..Checksum::BYTES].copy_from_slice(&sum.0);
    }
}

/// The same file with the right checksum. Tests of damaged files use it to get past the checksum.
pub fn with_checksum(mut file: Vec<u8>) -> Vec<u8> {
    add_checksum(&mut file);
    file
}

/// Writes maps as types, or as sections if programs address the value; returns the symbol of each.
fn maps<'a>(artifact: &'a Artifact, writer: &mut ElfWriter<'a>, types: &mut btf::Btf) -> Vec<(MapName, u32)> {
    let addressed = artifact.addressed();
    let (sections, maps): (Vec<_>, Vec<_>) = artifact.maps.iter().partition(|map| addressed.contains(&map.name));
    let mut symbols = Vec::new();
    let mut variables = Vec::new();
    let mut definitions = Sink::default();
    for map in &maps {
        let variable = types.map(map.name.name(), &members(map), definitions.0.len() as u32);
        definitions.0.resize(definitions.0.len() + variable.size as usize, 0);
        variables.push((map.name, variable));
    }
    if !maps.is_empty() {
        let section = writer.section(MAPS, kind::PROGBITS, flag::ALLOC | flag::WRITE, definitions.0);
        for (name, variable) in &variables {
            symbols.push((*name, object_symbol(writer, *name, section, *variable)));
        }
        let variables: Vec<_> = variables.into_iter().map(|(_, variable)| variable).collect();
        types.data_section(MAPS, &variables);
    }
    let (tables, sections): (Vec<_>, Vec<_>) = sections.into_iter().partition(|map| bucket_family(map.name).is_some());
    for map in sections {
        symbols.push((map.name, data_section(map, writer, types)));
    }
    if !tables.is_empty() {
        symbols.extend(zeros(&tables, writer, types));
    }
    symbols
}

/// Flow tables begin empty. Older loaders support only one section of zeros, so all flow tables share it.
fn zeros(tables: &[&MapImage], writer: &mut ElfWriter<'_>, types: &mut btf::Btf) -> Vec<(MapName, u32)> {
    let bytes = tables.iter().map(|map| u64::from(map.spec.value_size)).sum();
    let section = writer.zeros(ZEROS, flag::ALLOC | flag::WRITE, bytes);
    let mut offset = 0;
    let mut symbols = Vec::new();
    let mut variables = Vec::new();
    for map in tables {
        let variable = btf::Variable { offset, ..types.bytes(map.name.name(), map.spec.value_size) };
        offset += map.spec.value_size;
        symbols.push((map.name, object_symbol(writer, map.name, section, variable)));
        variables.push(variable);
    }
    types.data_section(ZEROS, &variables);
    symbols
}

fn data_section<'a>(map: &'a MapImage, writer: &mut ElfWriter<'a>, types: &mut btf::Btf) -> u32 {
    // The sizes of flow tables must be frozen: then the verifier treats them as constants.
    let (prefix, flags) = match map.name {
        MapName::FlowShape => (READ_ONLY, flag::ALLOC),
        _ => (DATA, flag::ALLOC | flag::WRITE),
    };
    let name = format!("{prefix}{}", map.name.name());
    let zeros = || vec![0; map.spec.value_size as usize];
    let value = map.entries.first().map_or_else(|| Cow::Owned(zeros()), |(_, value)| Cow::Borrowed(value));
    let section = writer.section(&name, kind::PROGBITS, flags, value);
    let variable = types.bytes(map.name.name(), map.spec.value_size);
    types.data_section(&name, &[variable]);
    object_symbol(writer, map.name, section, variable)
}

fn object_symbol(writer: &mut ElfWriter<'_>, name: MapName, section: u16, variable: btf::Variable) -> u32 {
    writer.symbol(SymbolKind::Object, name.name(), [variable.offset, variable.size].map(u64::from), section)
}

/// The members that libbpf and aya make a map from. As in handwritten code, members that are zero are left out.
fn members(map: &MapImage) -> Vec<(&'static str, u32)> {
    let spec = &map.spec;
    let all = [
        ("type", images::map_type(spec.kind)),
        ("key_size", spec.key_size),
        ("value_size", spec.value_size),
        ("max_entries", spec.max_entries),
        ("map_flags", spec.flags.0),
    ];
    all.into_iter().filter(|(_, number)| *number != 0).collect()
}

/// Byte offsets of a program's map loads in its section, and the maps' symbols.
fn relocations(code: &Assembled, start: u64, symbols: &[(MapName, u32)]) -> Result<Vec<(u64, u32)>, LinkError> {
    let place = |used: &MapUse| {
        let symbol = symbols.iter().find(|(name, _)| *name as u32 == used.map.0);
        let (_, symbol) = symbol.ok_or(LinkError::NoMap(used.map))?;
        Ok((start + u64::from(used.slot) * SLOT_BYTES as u64, *symbol))
    };
    code.maps.iter().map(place).collect()
}

fn debug_info(artifact: &Artifact, types: &mut btf::Btf, starts: [u64; 2]) -> Vec<u8> {
    let names = artifact.programs.each_ref().map(|program| program_name(program.hook));
    let functions: Vec<_> = starts.into_iter().map(|start| start as u32).zip(types.functions(&names)).collect();
    let lines: Vec<btf::lines::LineAt<'_>> =
        artifact.programs.iter().zip(starts).flat_map(|(program, start)| changes(artifact, program, start)).collect();
    btf::lines::write(types, CODE, &functions, &lines)
}

/// The lines at the byte offsets where the line changes.
pub(super) fn changes<'a>(
    artifact: &'a Artifact,
    program: &'a ArtifactProgram,
    start: u64,
) -> Vec<btf::lines::LineAt<'a>> {
    let mut offset = start as u32;
    let mut last = None;
    let mut changes = Vec::new();
    for (insn, tag) in program.code.insns.iter().zip(&program.code.tags) {
        if last.replace(*tag) != Some(*tag) {
            changes.extend(artifact.lines.line(*tag).map(|line| (offset, line)));
        }
        offset += insn.slots() * SLOT_BYTES as u32;
    }
    changes
}

/// The content of the section of a map whose value programs address.
fn value<'a>(elf: &Elf<'a>, map: MapName) -> Option<&'a [u8]> {
    [DATA, READ_ONLY].iter().find_map(|prefix| elf.section(&format!("{prefix}{}", map.name())))
}

/// The byte ranges of the values that programs address, in order.
pub(super) fn values(file: &[u8]) -> Vec<(MapName, Range<usize>)> {
    let Some(elf) = Elf::read(file) else { return Vec::new() };
    let place = |map: MapName| {
        let value = value(&elf, map)?;
        let start = value.as_ptr().addr().checked_sub(file.as_ptr().addr())?;
        Some((map, start..start + value.len()))
    };
    let mut places: Vec<_> = MapName::ALL.into_iter().filter_map(place).collect();
    places.sort_by_key(|(_, place)| place.start);
    places
}

pub(super) fn read(file: &[u8]) -> Result<Artifact, ArtifactError> {
    let elf = Elf::read(file).ok_or(ArtifactError::NotAnObject)?;
    check(&elf)?;
    let section = |name| elf.section(name).ok_or(ArtifactError::Missing(name));
    let maps = images::read_maps(section(IMAGES)?, |map| value(&elf, map)).ok_or(ArtifactError::Malformed(IMAGES))?;
    let endpoints = images::read_endpoints(section(ENDPOINTS)?).ok_or(ArtifactError::Malformed(ENDPOINTS))?;
    let manifest = str::from_utf8(section(MANIFEST)?).map_err(|_| ArtifactError::Malformed(MANIFEST))?.to_owned();
    let objects = match elf.section(OBJECTS) {
        Some(stored) => objects::unpack(stored).ok_or(ArtifactError::Malformed(OBJECTS))?,
        None => String::new(),
    };
    let mut lines = LineTable::default();
    let places = btf::lines::read(section(BTF)?, section(BTF_EXT)?).ok_or(ArtifactError::Malformed(BTF_EXT))?;
    let places: Vec<(u32, Tag)> = places.into_iter().map(|(offset, line)| (offset, lines.tag(line))).collect();
    let code = CodeSections {
        bytes: section(CODE)?,
        symbols: elf.symbols().ok_or(ArtifactError::Malformed(".symtab"))?,
        relocations: elf.relocations(RELOCATIONS).ok_or(ArtifactError::Malformed(RELOCATIONS))?,
        places,
        elf: &elf,
    };
    let [to_pod, from_pod] = Direction::ALL.map(|hook| code.program(hook).ok_or(ArtifactError::Malformed(CODE)));
    let edge = elf.section(EDGE).map(|bytes| read_edge(bytes, &code).ok_or(ArtifactError::Malformed(EDGE)));
    Ok(Artifact { programs: [to_pod?, from_pod?], edge: edge.transpose()?, lines, maps, endpoints, objects, manifest })
}

/// The program has no line information: all of its instructions belong to the datapath.
fn read_edge(bytes: &[u8], code: &CodeSections<'_>) -> Option<Assembled> {
    let relocations = code.elf.relocations(EDGE_RELOCATIONS)?;
    let code =
        CodeSections { bytes, relocations, places: vec![(0, Tag(0))], symbols: code.symbols.clone(), elf: code.elf };
    code.function(AT_EDGE)
}

/// Finds damage to the file.
fn check(elf: &Elf<'_>) -> Result<(), ArtifactError> {
    let section = |name| elf.section(name).zip(elf.around(name));
    let (expected, actual) = if let Some((sum, around)) = section(CHECKSUM) {
        let sum = sum.try_into().map_err(|_| ArtifactError::Malformed(CHECKSUM))?;
        (Checksum(sum).to_string(), Checksum::of_parts(around).to_string())
    } else {
        // The generation in force may be of an earlier version.
        let (digest, around) = section(DIGEST).ok_or(ArtifactError::Missing(CHECKSUM))?;
        let digest = digest.try_into().map_err(|_| ArtifactError::Malformed(DIGEST))?;
        (Digest(digest).to_string(), Digest::of_parts(&around).to_string())
    };
    if actual == expected { Ok(()) } else { Err(ArtifactError::Damaged { expected, actual }) }
}

/// The sections from which programs are read.
struct CodeSections<'a> {
    bytes: &'a [u8],
    symbols: Vec<Symbol>,
    relocations: Vec<(u64, u32)>,
    /// Lines by byte offset in the section.
    places: Vec<(u32, Tag)>,
    elf: &'a Elf<'a>,
}

impl CodeSections<'_> {
    fn program(&self, hook: Direction) -> Option<ArtifactProgram> {
        Some(ArtifactProgram { hook, code: self.function(program_name(hook))? })
    }

    fn function(&self, name: &str) -> Option<Assembled> {
        let symbol = self.symbols.iter().find(|it| it.kind == SymbolKind::Function && it.name == name)?;
        let (start, size) = (usize::try_from(symbol.offset).ok()?, usize::try_from(symbol.size).ok()?);
        let bytes = self.bytes.get(start..start.checked_add(size)?)?;
        let mut insns = decode(bytes, ByteOrder::Little).ok()?;
        let (mut tags, mut maps) = (Vec::with_capacity(insns.len()), Vec::new());
        let mut offset = symbol.offset;
        for (index, insn) in insns.iter_mut().enumerate() {
            tags.push(self.tag(offset)?);
            if let Ok(at) = self.relocations.binary_search_by_key(&offset, |(at, _)| *at) {
                let map = self.relocate(insn, self.relocations.get(at)?.1)?;
                let slot = u32::try_from((offset - symbol.offset) / SLOT_BYTES as u64).ok()?;
                maps.push(MapUse { index, slot, map });
            } else if matches!(insn, Insn::LoadImm64 { value: Imm64::MapFd(_) | Imm64::MapValue { .. }, .. }) {
                // A descriptor of another process. Only relocations name maps.
                return None;
            }
            offset += u64::from(insn.slots()) * SLOT_BYTES as u64;
        }
        let functions = vec![Function { name: name.to_owned(), slot: 0 }];
        Some(Assembled { insns: insns.into(), tags, maps, functions })
    }

    /// The line of the last change at or before `offset`.
    fn tag(&self, offset: u64) -> Option<Tag> {
        let after = self.places.partition_point(|(at, _)| u64::from(*at) <= offset);
        self.places.get(after.checked_sub(1)?).map(|(_, tag)| *tag)
    }

    /// Undoes what [`Instructions::unlinked`](weir_ebpf::instructions::Instructions::unlinked) does to one load, and
    /// returns its map.
    fn relocate(&self, insn: &mut Insn, symbol: u32) -> Option<MapRef> {
        let symbol = self.symbols.get((symbol as usize).checked_sub(1)?)?;
        let map = MapName::named(&symbol.name)?;
        let Insn::LoadImm64 { value, .. } = insn else {
            return None;
        };
        let Imm64::Value(offset) = *value else {
            return None;
        };
        let section = self.elf.section_name(symbol.section)?;
        *value = match [DATA, READ_ONLY, ZEROS].iter().any(|it| section.starts_with(it)) {
            true => Imm64::MapValue { fd: 0, offset: u32::try_from(offset).ok()? as i32 },
            false => Imm64::MapFd(0),
        };
        Some(MapRef(map as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found_in_files_of_earlier_versions_too() {
        let mut writer = ElfWriter::default();
        writer.note(MANIFEST, vec![7; 100]);
        writer.note(DIGEST, vec![0; 32]);
        let mut file = Vec::new();
        writer.finish(&mut file);
        let around = Elf::read(&file).and_then(|elf| elf.around(DIGEST)).expect("a file");
        let (place, digest) = (around[0].len(), Digest::of_parts(&around));
        file[place..][..32].copy_from_slice(&digest.0);
        assert_eq!(check(&Elf::read(&file).expect("a file")), Ok(()));
        let damaged = file.iter().position(|byte| *byte == 7).expect("the manifest");
        file[damaged] = 8;
        let found = check(&Elf::read(&file).expect("a file"));
        assert!(matches!(found, Err(ArtifactError::Damaged { .. })), "{found:?}");
    }
}
