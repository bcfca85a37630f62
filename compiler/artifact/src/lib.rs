//! The artifact: one ELF object with the programs, the maps and their entries, and the reasons for each.
//!
//! Problem: standard tools (bpftool, tc, aya) must load the object unchanged, and `inspect`, `verify` and the runtime
//! must find everything else in the same file. Strategy: sections that loaders know, and sections named `.weir.…` that
//! they ignore.
//!
//! | section | holds |
//! | --- | --- |
//! | `classifier` | the programs `to_pod` and `from_pod`, as global functions; aya, libbpf and iproute2 share only this
//! name |
//! | `xdp` | the program `at_edge`, if lists deny any address to every endpoint |
//! | `.maps`, `.BTF` | the maps, as types |
//! | `.data.config`, … | the maps that programs address without a look-up: loaders make an array with one value |
//! | `.BTF.ext` | the line that each instruction came from |
//! | `license` | a licence that lets the kernel's helpers be called |
//! | `.weir.maps` | every map's type, sizes and flags, and the entries that are in no section of their own |
//! | `.weir.endpoints` | the entries of `endpoints`, by the endpoints' names |
//! | `.weir.objects` | JSON, packed by LZ4: the input objects, reduced to the fields that we read |
//! | `.weir.manifest` | JSON: inputs, counts, costs, provenance |
//! | `.weir.checksum` | XXH3 (128 bits) of all other bytes of the file: finds damage; it is not a signature. Earlier
//! versions wrote SHA-256 in `.weir.digest` |
//!
//! Invariants: the same parts give the same bytes; [`Artifact::read`] of [`Artifact::to_bytes`] is the artifact; a byte
//! that changed anywhere is an error; reading never panics and never reserves memory that the file does not have.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod layout;

mod btf;
mod bytes;
mod checksum;
mod debug;
mod digest;
mod elf;
pub mod entries;
mod images;
mod json;
mod line;
mod manifest;
pub mod map_image;
pub mod memory;
mod object;
mod objects;
pub mod packet;
pub mod provenance;
pub mod structure;
pub mod view;

pub use checksum::Checksum;
pub use debug::DebugInfo;
pub use digest::Digest;
pub use images::map_type;
pub use line::{LineTable, SourceLine};
pub use manifest::{Description, InputFile};
pub use object::with_checksum;
pub use objects::objects;
pub use provenance::Provenance;

use std::mem;
use std::ops::Range;

use crate::bytes::Sink;
use crate::layout::MapName;
use crate::map_image::MapImage;
use weir_ebpf::asm::{Assembled, MapRef};
use weir_ebpf::insn::{Imm64, Insn};
use weir_ebpf::limits::LimitsReport;
use weir_objects::k8s::Direction;

/// The license that is declared to the kernel: it allows some of its helpers only in GPL programs.
pub const LICENCE: &str = "Dual BSD/GPL";

/// A local endpoint's value in `endpoints`, under the name that the runtime finds its interface by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The value.
    pub value: layout::endpoint::Value,
}

impl NamedEndpoint {
    /// `namespace/name`
    pub fn pod(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// One program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactProgram {
    /// The direction of the packets that it sees.
    pub hook: Direction,
    /// Its code; tags are numbers of lines in [`Artifact::lines`].
    pub code: Assembled,
}

/// Everything that the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// `to_pod`, `from_pod`.
    pub programs: [ArtifactProgram; 2],
    /// `at_edge`, if lists deny any address to every endpoint. None of its instructions belongs to a policy line.
    pub edge: Option<Assembled>,
    /// The source positions of instructions.
    pub lines: LineTable,
    /// The maps, sorted by name.
    pub maps: Vec<MapImage>,
    /// The local endpoints.
    pub endpoints: Vec<NamedEndpoint>,
    /// The objects that it was made from, in the JSON of [`objects()`]; empty if they were not given.
    pub objects: String,
    /// The manifest, in JSON.
    pub manifest: String,
}

/// The parts from which [`Artifact::link`] makes an artifact.
#[derive(Clone, Debug)]
pub struct ArtifactParts {
    /// The programs for ingress and egress, `to_pod` and `from_pod`.
    pub programs: [Assembled; 2],
    /// The program at the edge of the node, if there is one.
    pub edge: Option<Assembled>,
    /// The measures of all programs, in this order.
    pub reports: Vec<LimitsReport>,
    /// The lines that their tags refer to.
    pub lines: LineTable,
    /// The maps.
    pub maps: Vec<MapImage>,
    /// The local endpoints.
    pub endpoints: Vec<NamedEndpoint>,
    /// The content of the manifest that cannot be derived from the other parts.
    pub description: Description,
    /// Memory for the manifest, whose content is replaced: see [`Artifact::write_to`].
    pub memory: String,
}

/// Parts that do not fit together: a bug in the compiler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// A program uses a map that is not among the parts.
    #[error("a program uses map {}, which is not there", .0.0)]
    NoMap(MapRef),
    /// A map is addressed without a look-up and is no array of one value.
    #[error("a program addresses the value of {}, which is no array of one value", .0.name())]
    NotOneValue(MapName),
    /// A map is both looked up and addressed: no loader can make such a map.
    #[error("programs look up {} and address its value", .0.name())]
    TwoUses(MapName),
    /// An entry's key or value is of another size than its map's.
    #[error("an entry of {} is of another size than the map's", .0.name())]
    EntrySize(MapName),
    /// A tag that the line table does not have.
    #[error("an instruction's tag {0} has no line")]
    NoLine(u32),
    /// More than one function in a program.
    #[error("a program of several functions")]
    Functions,
    /// A program that no loader accepts.
    #[error("a program that cannot be loaded: {0}")]
    Limits(String),
}

/// Bytes that are not an artifact, or were changed after it was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// Not an ELF object of the kind that we write.
    #[error("this is no object file of weir's")]
    NotAnObject,
    /// A section is missing.
    #[error("section {0} is missing; was it written by another version of weir?")]
    Missing(&'static str),
    /// The file was changed after it was written.
    #[error("the file is damaged: its checksum is {actual}, it should be {expected}")]
    Damaged {
        /// The checksum in the file.
        expected: String,
        /// The checksum of the file's bytes.
        actual: String,
    },
    /// A section that cannot be read, although its bytes are as they were written.
    #[error("section {0} cannot be read; was it written by another version of weir?")]
    Malformed(&'static str),
}

impl Artifact {
    /// Puts the parts together and writes the manifest.
    pub fn link(parts: ArtifactParts) -> Result<Self, LinkError> {
        let ArtifactParts { mut programs, edge, reports, lines, mut maps, endpoints, mut description, memory } = parts;
        maps.sort_by_key(|map| map.name);
        let tags = programs.iter_mut().map(|program| &mut program.tags);
        let lines = LineTable::numbered(tags, &mut |tag| lines.line(tag).cloned());
        let lines = lines.map_err(|tag| LinkError::NoLine(tag.0))?;
        let [to_pod, from_pod] = programs;
        let programs = [(Direction::Ingress, to_pod), (Direction::Egress, from_pod)];
        let programs = programs.map(|(hook, code)| ArtifactProgram { hook, code });
        let mut artifact = Self {
            programs,
            edge,
            lines,
            maps,
            endpoints,
            objects: mem::take(&mut description.objects),
            manifest: String::new(),
        };
        artifact.check()?;
        artifact.manifest = manifest::write(&artifact, &reports, &description, memory)?;
        Ok(artifact)
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, LinkError> {
        let mut file = Vec::new();
        self.write_to(&mut file)?;
        Ok(file)
    }

    /// Writes the file in place of the content of `file`, for a process that makes one file after the other: the kernel
    /// takes longer to give it new memory for megabytes than it takes to write them.
    pub fn write_to(&self, file: &mut Vec<u8>) -> Result<(), LinkError> {
        object::write(self, file)
    }

    /// Reads the artifact in a file, if no byte of it has changed since it was written.
    pub fn read(file: &[u8]) -> Result<Self, ArtifactError> {
        object::read(file)
    }

    /// The byte ranges in a file that hold the values which programs address, in order. A caller that has the maps from
    /// elsewhere can leave them out.
    pub fn values(file: &[u8]) -> Vec<(MapName, Range<usize>)> {
        object::values(file)
    }

    /// A map by name.
    pub fn map(&self, name: MapName) -> Option<&MapImage> {
        self.maps.iter().find(|map| map.name == name)
    }

    /// The program of a hook.
    pub fn program(&self, hook: Direction) -> &ArtifactProgram {
        let [to_pod, from_pod] = &self.programs;
        match hook {
            Direction::Ingress => to_pod,
            Direction::Egress => from_pod,
        }
    }

    /// The digest of the enforced parts: code, maps, endpoints. Names of files and line numbers do not change it.
    pub fn generation(&self) -> Result<Digest, LinkError> {
        let digest = |code: &Assembled| code.insns.digest(|bytes| Digest::of(bytes).0);
        let [to_pod, from_pod] = self.programs.each_ref().map(|program| digest(&program.code));
        let edge = self.edge.as_ref().map(digest);
        let edge = edge.as_ref().map_or(&[][..], |digest| digest);
        let (maps, endpoints) = (images::write_digests(&self.maps)?, images::write_endpoints(&self.endpoints));
        Ok(Digest::of_parts(&[&to_pod, &from_pod, &maps, &endpoints, edge]))
    }

    /// The digest of the programs as the kernel gets them: their code, with the names of maps, and their lines. If two
    /// artifacts have the same, and their maps the same definitions, the programs of one run on the maps of the other.
    pub fn code_digest(&self) -> Digest {
        let uses = self.code().map(uses_bytes).collect::<Vec<_>>();
        let debug = self.programs.each_ref().map(|program| self.debug_info(program.hook));
        let code = self.code().zip(&uses).flat_map(|(code, uses)| [code.insns.unlinked(), uses]);
        let debug = debug.iter().flat_map(|DebugInfo { types, functions, lines }| [types.as_slice(), functions, lines]);
        let parts: Vec<&[u8]> = code.chain(debug).collect();
        Digest::of_parts(&parts)
    }

    /// The code of every program.
    fn code(&self) -> impl Iterator<Item = &Assembled> {
        self.programs.iter().map(|program| &program.code).chain(&self.edge)
    }

    /// The maps that programs address without a look-up.
    fn addressed(&self) -> Vec<MapName> {
        let mut names: Vec<MapName> = self.code().flat_map(uses).filter(|it| it.1).filter_map(|it| it.0).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn check(&self) -> Result<(), LinkError> {
        let addressed = self.addressed();
        for code in self.code() {
            if code.functions.len() > 1 {
                return Err(LinkError::Functions);
            }
            for (used, (name, by_value)) in code.maps.iter().zip(uses(code)) {
                let map = name.and_then(|name| self.map(name)).ok_or(LinkError::NoMap(used.map))?;
                if !by_value && addressed.contains(&map.name) {
                    return Err(LinkError::TwoUses(map.name));
                }
                let one_value = map.spec.kind == weir_ebpf::vm::MapKind::Array && map.spec.max_entries == 1;
                if by_value && !one_value {
                    return Err(LinkError::NotOneValue(map.name));
                }
            }
        }
        Ok(())
    }
}

/// The places where a program uses maps, in bytes: the part of its code that [`Instructions::unlinked`] lacks.
///
/// [`Instructions::unlinked`]: weir_ebpf::instructions::Instructions::unlinked
fn uses_bytes(code: &Assembled) -> Vec<u8> {
    let mut bytes = Sink::default();
    for (used, (_, by_value)) in code.maps.iter().zip(uses(code)) {
        [used.slot, used.map.0, by_value.into()].into_iter().for_each(|it| bytes.u32(it));
    }
    bytes.0
}

/// The maps that a program uses, in order, and whether it addresses the value.
fn uses(code: &Assembled) -> impl Iterator<Item = (Option<MapName>, bool)> {
    code.maps.iter().map(|used| {
        let name = MapName::ALL.get(used.map.0 as usize).copied();
        let insn = code.insns.get(used.index);
        (name, matches!(insn, Some(Insn::LoadImm64 { value: Imm64::MapValue { .. }, .. })))
    })
}
