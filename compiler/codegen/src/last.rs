//! Parts of the last artifact that the next one shares, for a process that makes one after the other.
//!
//! Problem: after a small change nearly everything in the next artifact is equal: tables with a hundred thousand
//! addresses, descriptions of ten thousand policies, the programs. To make, compare, digest and copy it again costs
//! more than the change.
//! Strategy: equal tables are the same memory ([`weir_artifact::entries`]), tables of the same addresses are not made
//! again, and programs that are equal to the last ones have been measured already.
//! Invariant: the artifact is byte for byte the one that is made without this: `compiler/classes/tests/incremental`
//! compares every artifact of its series.

use std::sync::Arc;

use weir_artifact::Artifact;
use weir_artifact::layout::MapName;
use weir_artifact::map_image::MapImage;
use weir_classes::AddressMap;
use weir_ebpf::asm::Assembled;
use weir_ebpf::limits::LimitsReport;
use weir_objects::address::Family;

use crate::describe::provenance::LastDescriptions;
use crate::structures::StructureOptions;

/// Parts of the last artifact, for the next one.
#[derive(Debug, Default)]
pub struct LastArtifact {
    pub(crate) described: LastDescriptions,
    maps: Vec<MapImage>,
    programs: Vec<(Assembled, LimitsReport)>,
    /// The input of the structures of addresses.
    addresses: Option<(Arc<AddressMap>, StructureOptions)>,
    /// The memory of the last manifest.
    memory: String,
}

impl LastArtifact {
    /// How many descriptions of policies the last artifact took from the one before.
    pub fn taken(&self) -> usize {
        self.described.taken()
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
        self.programs.iter().find(|(known, _)| known.insns == code.insns).map(|(_, report)| report)
    }

    /// The maps in which a family's addresses are looked up, if the addresses are those of the last artifact.
    pub(crate) fn address_maps(
        &self,
        addresses: &Arc<AddressMap>,
        structures: &StructureOptions,
        family: Family,
    ) -> Option<Vec<MapImage>> {
        let is_same = |(last, of_last): &&(Arc<AddressMap>, StructureOptions)| {
            Arc::ptr_eq(last, addresses) && of_last == structures
        };
        self.addresses.as_ref().filter(is_same)?;
        let names = match family {
            Family::V4 => [MapName::Nodes4, MapName::Exact4, MapName::Listed4, MapName::Prefixes4],
            Family::V6 => [MapName::Nodes6, MapName::Exact6, MapName::Listed6, MapName::Prefixes6],
        };
        // Without the map of nodes, the last artifact had no endpoint of this family, and so no address maps.
        let has_family = self.maps.iter().any(|map| map.name == names[0]);
        let of_addresses = || self.maps.iter().filter(|map| names[1..].contains(&map.name)).cloned();
        has_family.then(|| of_addresses().collect())
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

    /// Keeps the parts of a compile. Later changes of its tables do not reach the copies here.
    pub(crate) fn keep<'a>(
        &mut self,
        maps: &[MapImage],
        programs: impl IntoIterator<Item = (&'a Assembled, &'a LimitsReport)>,
        addresses: &Arc<AddressMap>,
        structures: StructureOptions,
    ) {
        self.maps = maps.to_vec();
        self.programs = programs.into_iter().map(|(code, report)| (code.clone(), report.clone())).collect();
        self.addresses = Some((Arc::clone(addresses), structures));
    }
}
