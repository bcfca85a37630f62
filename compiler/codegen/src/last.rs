//! Parts of the last artifact that the next one shares, for a process that makes one after the other.
//!
//! Problem: after a small change nearly everything in the next artifact is equal: tables with a hundred thousand
//! addresses, descriptions of ten thousand policies, the programs. To make, compare, digest and copy it again costs
//! more than the change.
//! Strategy: equal tables are the same memory ([`weir_artifact::entries`]), tables of the same addresses or ranges are
//! not made again, and neither are programs from an equal [`Plan`].
//! Invariant: the artifact is byte for byte the one that is made without this: `compiler/classes/tests/incremental`
//! compares every artifact of its series.

use std::sync::Arc;

use weir_artifact::Artifact;
use weir_artifact::entries::MapEntries;
use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapImage;
use weir_classes::AddressMap;
use weir_ebpf::asm::Assembled;
use weir_ebpf::limits::LimitsReport;
use weir_ebpf::target::Target;
use weir_objects::address::Family;

use crate::compile::Compiled;
use crate::describe::provenance::LastDescriptions;
use crate::emit::Plan;
use crate::emit::shapes::TableShapes;
use crate::ir::{DecisionProgram, DecisionTables};
use crate::map_images::LastAddresses;
use crate::structures::rows::RowShape;
use crate::structures::{AddressStructures, RowTable, StructureOptions};

/// Parts of the last artifact, for the next one.
#[derive(Debug, Default)]
pub struct LastArtifact {
    pub(crate) described: LastDescriptions,
    maps: Vec<MapImage>,
    emitted: Option<EmittedPrograms>,
    has_taken_programs: bool,
    edge: Option<MeasuredProgram>,
    addresses: Option<AddressStructures>,
    rows: Option<LastRows>,
    /// The memory of the last manifest.
    memory: String,
}

/// A program and its measures.
pub(crate) type MeasuredProgram = (Assembled, LimitsReport);

/// The programs at pods, and the plan that they were emitted from.
#[derive(Debug)]
struct EmittedPrograms {
    target: Target,
    decisions: [DecisionProgram; 2],
    shapes: TableShapes,
    families: Vec<Family>,
    programs: [MeasuredProgram; 2],
}

/// The row table of the last compile, beside its bytes.
#[derive(Clone, Copy, Debug)]
struct LastRows {
    shape: RowShape,
    sets: usize,
    peers: usize,
}

impl LastRows {
    fn new(tables: &DecisionTables, peers: usize) -> Option<Self> {
        let RowTable::Compiled(table) = &tables.structures.rows else { return None };
        Some(Self { shape: table.shape, sets: tables.sets.len(), peers })
    }
}

impl EmittedPrograms {
    fn new(plan: &Plan<'_>, programs: [MeasuredProgram; 2]) -> Self {
        let Plan { target, decisions, shapes, families } = plan.clone();
        Self { target, decisions: decisions.map(Clone::clone), shapes, families, programs }
    }

    fn plan(&self) -> Plan<'_> {
        let Self { target, ref decisions, ref shapes, ref families, .. } = *self;
        Plan { target, decisions: decisions.each_ref(), shapes: shapes.clone(), families: families.clone() }
    }
}

impl LastArtifact {
    /// How many descriptions of policies the last artifact took from the one before.
    pub fn taken(&self) -> usize {
        self.described.taken()
    }

    /// Whether the last artifact took the programs at pods from the one before.
    pub fn has_taken_programs(&self) -> bool {
        self.has_taken_programs
    }

    /// Keeps the memory of an artifact that is not needed any more, for the next one.
    pub fn reuse(&mut self, artifact: Artifact) {
        self.memory = artifact.manifest;
    }

    pub(crate) fn take_memory(&mut self) -> String {
        std::mem::take(&mut self.memory)
    }

    /// The measures of a program that is equal to one of the last artifact.
    pub(crate) fn report(&self, code: &Assembled) -> Option<&LimitsReport> {
        let emitted = self.emitted.iter().flat_map(|emitted| &emitted.programs);
        emitted.chain(&self.edge).find(|(known, _)| known.insns == code.insns).map(|(_, report)| report)
    }

    /// The programs at pods, if they were emitted from an equal plan.
    pub(crate) fn take_programs(&mut self, plan: &Plan<'_>) -> Option<[MeasuredProgram; 2]> {
        let known = self.emitted.as_ref().filter(|emitted| emitted.plan() == *plan);
        self.has_taken_programs = known.is_some();
        known.map(|emitted| emitted.programs.clone())
    }

    /// Keeps the programs at pods that were emitted from this plan.
    pub(crate) fn keep_programs(&mut self, plan: &Plan<'_>, programs: [MeasuredProgram; 2]) {
        self.emitted = Some(EmittedPrograms::new(plan, programs));
    }

    /// The maps in which a family's addresses are looked up, if the addresses are those of the last artifact.
    pub(crate) fn address_maps(
        &self,
        addresses: &Arc<AddressMap>,
        structures: &StructureOptions,
        family: Family,
    ) -> Option<Vec<MapImage>> {
        self.addresses.as_ref().filter(|last| last.is_of(addresses, structures))?;
        let names = match family {
            Family::V4 => [MapName::Nodes4, MapName::Exact4, MapName::Listed4, MapName::Prefixes4],
            Family::V6 => [MapName::Nodes6, MapName::Exact6, MapName::Listed6, MapName::Prefixes6],
        };
        // Without the map of nodes, the last artifact had no endpoint of this family, and so no address maps.
        let has_family = self.maps.iter().any(|map| map.name == names[0]);
        let of_addresses = || self.maps.iter().filter(|map| names[1..].contains(&map.name)).cloned();
        has_family.then(|| of_addresses().collect())
    }

    /// The structures for addresses of the last artifact.
    pub(crate) fn structures(&self) -> Option<&AddressStructures> {
        self.addresses.as_ref()
    }

    /// The same, with the maps that were made from them.
    pub(crate) fn addresses(&self) -> Option<LastAddresses<'_>> {
        Some(LastAddresses { structures: self.addresses.as_ref()?, maps: &self.maps })
    }

    /// Shares the memory of equal tables.
    pub(crate) fn share(&self, maps: &mut [MapImage]) {
        for map in maps {
            let last = self.maps.iter().find(|last| last.name == map.name && last.entries == map.entries);
            if let Some(last) = last {
                map.entries = last.entries.clone();
            }
        }
    }

    /// The last row table, if the new one only has additions to which no class of the last compile leads.
    pub(crate) fn extended_rows(&self, tables: &DecisionTables) -> Option<MapEntries> {
        let RowTable::Compiled(table) = &tables.structures.rows else { return None };
        let LastRows { sets, peers, .. } = self.rows.filter(|last| last.shape == table.shape)?;
        let entries = &self.maps.iter().find(|map| map.name == MapName::Rows)?.entries;
        let (_, before) = entries.first()?;
        table.shape.only_adds((before, sets, peers), &table.bytes).then(|| entries.clone())
    }

    /// Keeps the other parts of a compile. Later changes of its tables do not reach the copies here.
    pub(crate) fn keep(&mut self, compiled: &Compiled) {
        self.maps = compiled.maps.clone();
        self.edge = compiled.edge.clone();
        self.addresses = Some(compiled.tables.structures.addresses.clone());
        self.rows = LastRows::new(&compiled.tables, compiled.classes.peers.len());
    }
}
