//! The whole pipeline behind one call: from a cluster and a scope to everything that an artifact consists of.
//!
//! Strategy: one stage after the other, as in the picture of the crate; then measure the result and check it against
//! the limits of the kernel and the caller's budgets.
//! Invariants: every exceeded limit is an error that names the limit, the actual size and the permitted size; nothing
//! is left out to make the result fit.

mod budget;

use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_artifact::entries::MapEntries;
use weir_artifact::map_image::{MapImage, bucket_family, flow_room};

use crate::describe::lines::{line_of_object, line_table};
use crate::describe::provenance::Positions;
use crate::describe::{describe, named_endpoint};
use crate::emit::shapes::TableShapes;
use crate::emit::{self, EmitError, Plan};
use crate::ir::{DecisionProgram, DecisionTables};
use crate::last::{LastArtifact, MeasuredProgram};
use crate::lower;
use crate::map_images::{self, EndpointEntry, Sizes};
use crate::passes::{self, PassError};
use crate::structures::{Room, StructureOptions};
use weir_artifact::layout::{AT_EDGE, MapName, program_name};
use weir_artifact::structure::{LookupSet, Structure, StructureNote};
use weir_artifact::{Artifact, ArtifactParts, Description, LinkError, SourceLine, memory};
use weir_classes as classify;
use weir_classes::edge_denials::EdgeDenials;
use weir_classes::{Classes, ClassifyError, PeerId, Scope};
use weir_ebpf::asm::Assembled;
use weir_ebpf::limits::{self, LimitsReport, Violation};
use weir_ebpf::target::Target;
use weir_model::{Cluster, Direction};
use weir_objects::address::Family;
use weir_objects::origin::FieldOrigin;

pub use budget::{Budget, BudgetError, Budgets};

/// Options of a compile.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// The oldest kernel that the programs must load on.
    pub target: Target,
    /// The figures besides the input that map sizes depend on.
    pub sizes: Sizes,
    /// Limits of the caller.
    pub budgets: Budgets,
    /// Structures to take instead of the cost model's choice, where it can be done.
    pub forced: Vec<(LookupSet, Structure)>,
    /// How the sizes of compiled tables follow their content. With room, a small change of the input usually leaves the
    /// programs as they are.
    pub room: Room,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            target: Target::BASE,
            sizes: Sizes::default(),
            budgets: Budgets::default(),
            forced: Vec::new(),
            room: Room::Exact,
        }
    }
}

impl CompileOptions {
    /// Options for a process that often replaces one generation by another, such as the agent. Entries of single
    /// addresses can be changed in place, and after a small change the programs are usually the same as before.
    pub fn for_changes(target: Target) -> Self {
        Self { target, forced: CHANGEABLE.to_vec(), room: Room::Rounded, ..Self::default() }
    }
}

/// Structures whose content is not part of the programs. Single addresses: a kernel hash, which can be changed in
/// place, in front of the compiled table of listed addresses. Ports: a search, because compares contain the ports. All
/// other structures are chosen by cost.
const CHANGEABLE: [(LookupSet, Structure); 3] = [
    (LookupSet::Exact4, Structure::Layered),
    (LookupSet::Exact6, Structure::Layered),
    (LookupSet::Ports, Structure::Search),
];

/// The result of a compile.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Classes and rows, with provenance.
    pub classes: Classes,
    /// The tables that the decisions look up.
    pub tables: DecisionTables,
    /// The decisions as lowered: ingress, egress.
    pub general: [DecisionProgram; 2],
    /// The decisions after the passes.
    pub decisions: [DecisionProgram; 2],
    /// `to_pod`, `from_pod`.
    pub programs: [Assembled; 2],
    /// Their measures.
    pub reports: [LimitsReport; 2],
    /// `at_edge` and its measures, if lists deny addresses to every pod.
    pub edge: Option<(Assembled, LimitsReport)>,
    /// The maps, `endpoints` without entries.
    pub maps: Vec<MapImage>,
    /// The value in the map `endpoints` for each local endpoint, in the order of the scope.
    pub endpoints: Vec<EndpointEntry>,
    /// The row table of the last compile, if this one only has additions to which no class of the last compile leads.
    /// Classes have the same numbers in both only if this compile applied changes to the last one's classes.
    pub extended_rows: Option<MapEntries>,
}

/// Why a compile failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// Classification failed: programs cannot enforce an assumption, or a limit is exceeded.
    #[error(transparent)]
    Classify(#[from] ClassifyError),
    /// A bug in Weir.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// A limit of the assembler or of the stack frame is exceeded.
    #[error("program {program}: {error}")]
    Emit {
        /// The program's name.
        program: &'static str,
        /// The limit, in words.
        error: EmitError,
    },
    /// The kernel would refuse the program.
    #[error("program {program}: {violation}")]
    Program {
        /// The program's name.
        program: &'static str,
        /// The rule of the kernel that the program breaks.
        violation: Violation,
    },
    /// The kernel has no maps of this size.
    #[error("map {}: {entries} entries, the limit is {limit}", map.name())]
    Map {
        /// The map.
        map: MapName,
        /// How many entries it has.
        entries: u64,
        /// How many entries it may have.
        limit: u64,
    },
    /// Numbers of classes have 31 bits in keys.
    #[error("{count} {what}, the limit is {limit}")]
    Classes {
        /// The kind of classes.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A budget of the caller is exceeded.
    #[error(transparent)]
    Budget(#[from] BudgetError),
}

/// The kernel rounds the number of buckets up to a power of two that must fit 32 bits.
const MOST_ENTRIES: u64 = 1 << 31;
/// The upper bit of a row's key is the direction.
const MOST_CLASSES: u64 = 1 << 31;

/// Compiles a cluster for the endpoints in scope.
pub fn compile(cluster: &Cluster, scope: &Scope, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let classes = classify::classify_within(cluster, scope, options.budgets.limits())?;
    compile_classes(cluster, scope, classes, options)
}

/// The same, for classes that are known already.
pub fn compile_classes(
    cluster: &Cluster,
    scope: &Scope,
    classes: Classes,
    options: &CompileOptions,
) -> Result<Compiled, CompileError> {
    compile_after(cluster, scope, classes, options, &mut LastArtifact::default())
}

/// The same result, for a process that makes one artifact after the other: it takes equal parts from `last`.
pub fn compile_after(
    cluster: &Cluster,
    scope: &Scope,
    classes: Classes,
    options: &CompileOptions,
    last: &mut LastArtifact,
) -> Result<Compiled, CompileError> {
    check_classes(&classes)?;
    let CompileOptions { target, forced, room, .. } = options;
    let structures =
        StructureOptions { most_value_bytes: target.most_value_bytes(), forced: forced.clone(), room: *room };
    let tables = lower::tables_after(&classes, &structures, last.structures());
    let general = Direction::ALL.map(|direction| lower::lower(direction, &tables));
    let mut decisions = general.clone();
    for decision in &mut decisions {
        passes::optimize(decision, &tables)?;
    }
    let families =
        [Family::V4, Family::V6].into_iter().filter(|it| map_images::has_family(cluster, scope, *it)).collect();
    let shapes = TableShapes::of(&tables);
    let plan = Plan { target: options.target, decisions: decisions.each_ref(), shapes, families };
    let [(to_pod, to_pod_report), (from_pod, from_pod_report)] = programs(&plan, last)?;
    let address_maps = |family| {
        let known = last.address_maps(&tables.addresses, &structures, family);
        known.unwrap_or_else(|| map_images::address_maps_after(&tables, family, last.addresses()))
    };
    let mut maps = map_images::maps_with(cluster, scope, &tables, (options.sizes, options.target), &address_maps);
    let mut at_edge = None;
    if let Some(edge) = EdgeDenials::of(cluster, &classes) {
        at_edge = Some(checked(AT_EDGE, emit::emit_edge(&plan, &tables.addresses, &edge), last)?);
        maps.extend(map_images::edge_maps(cluster, scope, &edge));
        maps.sort_by_key(|map| map.name);
    }
    check_maps(&maps)?;
    last.share(&mut maps);
    let endpoints = map_images::endpoints(cluster, &classes, &tables);
    let extended_rows = last.extended_rows(&tables);
    let compiled = Compiled {
        programs: [to_pod, from_pod],
        reports: [to_pod_report, from_pod_report],
        edge: at_edge,
        classes,
        tables,
        general,
        decisions,
        maps,
        endpoints,
        extended_rows,
    };
    options.budgets.check(&compiled)?;
    last.keep(&compiled);
    Ok(compiled)
}

impl Compiled {
    /// Writes changes of addresses since the cluster was compiled; `None` removes an address. Returns whether all of
    /// them could be written.
    pub fn write_addresses(&mut self, changes: &BTreeMap<IpAddr, Option<PeerId>>) -> bool {
        map_images::write_addresses(&mut self.maps, changes)
    }

    /// Links everything into the content of the artifact's file. `complete` adds the facts that only the caller knows:
    /// inputs, the node.
    pub fn artifact(
        &self,
        cluster: &Cluster,
        options: &CompileOptions,
        complete: impl FnOnce(&mut Description),
    ) -> Result<Artifact, LinkError> {
        self.clone().into_artifact(cluster, options, &mut LastArtifact::default(), complete)
    }

    /// The same, byte for byte, for a process that makes one artifact after the other: it takes descriptions of policies
    /// from `last`, and replaces those in `last`.
    pub fn into_artifact(
        self,
        cluster: &Cluster,
        options: &CompileOptions,
        last: &mut LastArtifact,
        complete: impl FnOnce(&mut Description),
    ) -> Result<Artifact, LinkError> {
        let mut description =
            describe(cluster, &self.classes, options.target, &mut Positions::None(&mut last.described));
        complete(&mut description);
        self.linked(cluster, description, last.take_memory(), &mut |_| None)
    }

    /// The same for objects that came from files; `locate` finds the line of an origin.
    pub fn artifact_of_files(
        &self,
        cluster: &Cluster,
        options: &CompileOptions,
        locate: &mut dyn FnMut(&FieldOrigin) -> Option<SourceLine>,
        complete: impl FnOnce(&mut Description),
    ) -> Result<Artifact, LinkError> {
        let mut place = |origin: &FieldOrigin| locate(origin).map(|line| format!("{}:{}", line.file, line.number));
        let mut description = describe(cluster, &self.classes, options.target, &mut Positions::Of(&mut place));
        complete(&mut description);
        self.clone().linked(cluster, description, String::new(), locate)
    }

    fn linked(
        self,
        cluster: &Cluster,
        mut description: Description,
        memory: String,
        locate: &mut dyn FnMut(&FieldOrigin) -> Option<SourceLine>,
    ) -> Result<Artifact, LinkError> {
        description.structures = self.structures();
        let mut programs = self.programs;
        let (edge, of_edge) = self.edge.unzip();
        let reports = self.reports.into_iter().chain(of_edge).collect();
        let mut line = |origin: &FieldOrigin| locate(origin).unwrap_or_else(|| line_of_object(cluster, origin));
        let lines = line_table(&mut programs, &self.tables.sources, &mut line);
        Artifact::link(ArtifactParts {
            programs,
            edge,
            reports,
            lines,
            maps: self.maps,
            endpoints: self.endpoints.iter().map(|entry| named_endpoint(cluster, entry)).collect(),
            description,
            memory,
        })
    }

    /// The structure of each set that the programs look up, and the reason for it.
    pub fn structures(&self) -> Vec<StructureNote> {
        let used = |map: &MapImage| {
            let uses = self.programs.iter().flat_map(|program| &program.maps);
            uses.into_iter().any(|used| used.map.0 == map.name as u32)
        };
        let mut notes = Vec::new();
        for note in &self.tables.structures.notes {
            let maps = || self.maps.iter().filter(|map| place_of(map.name) == Some(note.place));
            let in_program = note.structure == Structure::Compares && self.has_endpoints_of_family(note.place);
            if in_program || maps().any(used) {
                let bytes = if in_program { note.bytes } else { maps().map(|map| memory::full(map).fixed).sum() };
                notes.push(StructureNote { bytes, ..note.clone() });
            }
        }
        notes.push(self.flow_table());
        notes
    }

    /// The flow tables of both families together.
    fn flow_table(&self) -> StructureNote {
        let tables = self.maps.iter().filter(|map| bucket_family(map.name).is_some());
        let (mut entries, mut bytes) = (0, 0);
        for map in tables {
            entries += flow_room(map) as usize;
            bytes += memory::full(map).fixed;
        }
        let why = "read without a call".to_owned();
        StructureNote { place: LookupSet::Flows, structure: Structure::Buckets, entries, bytes, why }
    }

    /// Whether a local endpoint has addresses of the family that a set is of.
    fn has_endpoints_of_family(&self, place: LookupSet) -> bool {
        let nodes = match place {
            LookupSet::Exact4 | LookupSet::Prefixes4 => MapName::Nodes4,
            LookupSet::Exact6 | LookupSet::Prefixes6 => MapName::Nodes6,
            LookupSet::Ports | LookupSet::Rows | LookupSet::Flows => return true,
        };
        self.maps.iter().any(|map| map.name == nodes)
    }
}

/// The set that a map is of.
fn place_of(map: MapName) -> Option<LookupSet> {
    Some(match map {
        MapName::Exact4 | MapName::Listed4 => LookupSet::Exact4,
        MapName::Prefixes4 => LookupSet::Prefixes4,
        MapName::Exact6 | MapName::Listed6 => LookupSet::Exact6,
        MapName::Prefixes6 => LookupSet::Prefixes6,
        MapName::Ports => LookupSet::Ports,
        MapName::Rows => LookupSet::Rows,
        _ => return None,
    })
}

/// The programs at pods: those of the last compile, if they were emitted from an equal plan.
fn programs(plan: &Plan<'_>, last: &mut LastArtifact) -> Result<[MeasuredProgram; 2], CompileError> {
    if let Some(known) = last.take_programs(plan) {
        return Ok(known);
    }
    let program = |hook| checked(program_name(hook), emit::emit(plan, hook), last);
    let programs = [program(Direction::Ingress)?, program(Direction::Egress)?];
    last.keep_programs(plan, programs.clone());
    Ok(programs)
}

/// A program as the kernel takes it, and its measures.
fn checked(
    program: &'static str,
    emitted: Result<Assembled, EmitError>,
    last: &LastArtifact,
) -> Result<MeasuredProgram, CompileError> {
    let assembled = emitted.map_err(|error| CompileError::Emit { program, error })?;
    let report = last.report(&assembled).cloned().unwrap_or_else(|| limits::check(&assembled.insns));
    match report.violations.first() {
        Some(violation) => Err(CompileError::Program { program, violation: violation.clone() }),
        None => Ok((assembled, report)),
    }
}

fn check_classes(classes: &Classes) -> Result<(), CompileError> {
    let counts = [("subject classes", classes.subjects.len()), ("peer classes", classes.peers.len())];
    for (what, count) in counts {
        if count as u64 > MOST_CLASSES {
            return Err(CompileError::Classes { what, count: count as u64, limit: MOST_CLASSES });
        }
    }
    Ok(())
}

fn check_maps(maps: &[MapImage]) -> Result<(), CompileError> {
    for map in maps {
        let entries = (map.entries.len() as u64).max(u64::from(map.spec.max_entries));
        if entries > MOST_ENTRIES || map.entries.len() as u64 > u64::from(map.spec.max_entries) {
            return Err(CompileError::Map { map: map.name, entries, limit: MOST_ENTRIES });
        }
    }
    Ok(())
}
