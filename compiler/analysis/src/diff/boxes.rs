//! Cells → boxes: for each part, the (source, destination) pairs as few products of sets.
//!
//! Problem: a difference is a set of (source class, destination class) pairs; people read "these → those".
//! Strategy: sources that differ towards the same destinations form one box. If that gives fewer boxes, destinations
//! that differ for the same sources form one box instead. Boxes of one part never overlap, and together they contain
//! exactly its pairs.

use std::collections::BTreeMap;

use super::cells::{CellTable, PartId};
use super::grid::{Destination, Grid, SourceClass};
use super::tables::{EntryId, EntryTables};

/// Source classes and destination classes, as indices into their lists.
pub(super) type ClassBox = (Vec<u32>, Vec<u32>);

/// Every difference between the sources and the destinations.
pub(super) fn relate(
    tables: &mut EntryTables<'_, '_>,
    cells: &mut CellTable,
    grid: &Grid,
    sources: &[SourceClass],
    destinations: &[Destination],
) -> BTreeMap<PartId, Vec<ClassBox>> {
    // The fewest boxes of all would be a smallest partition into bicliques, which is NP-hard. Two groupings and the
    // better one of them are enough, because classes have merged most of the equal ends before.
    let mut found: BTreeMap<PartId, BTreeMap<Vec<u32>, Vec<u32>>> = BTreeMap::new();
    for (source, of_source) in sources.iter().enumerate() {
        let (egress, ingress) = grid.of(*of_source);
        let mut reached: BTreeMap<PartId, Vec<u32>> = BTreeMap::new();
        for (destination, of_destination) in destinations.iter().enumerate() {
            let (look, entrance) = of_destination.places();
            // Two reads for each pair of classes: this is the innermost loop, so everything else is numbered before.
            let (out, into) = (egress[look], ingress[entrance]);
            // Where neither end differs, their intersection does not differ. Nearly all cells of a small change end
            // here.
            if is_same(tables, out) && is_same(tables, into) {
                continue;
            }
            // A new end and a vanished end never meet: neither side has both, so their cell is empty on both.
            let presence = of_source.presence.max(of_destination.presence);
            for part in cells.parts(tables, out, into, presence) {
                reached.entry(*part).or_default().push(destination as u32);
            }
        }
        for (part, destinations) in reached {
            // The whole list of destinations is the key: a source that reaches one more of them is in another box. So
            // boxes of a part cannot overlap.
            found.entry(part).or_default().entry(destinations).or_default().push(source as u32);
        }
    }
    found.into_iter().map(|(part, by_destinations)| (part, fewest(by_destinations))).collect()
}

fn is_same(tables: &EntryTables<'_, '_>, entry: EntryId) -> bool {
    let [base, head] = tables.entry(entry).sets;
    base == head
}

/// The boxes grouped by destinations or by sources, whichever are fewer.
fn fewest(by_destinations: BTreeMap<Vec<u32>, Vec<u32>>) -> Vec<ClassBox> {
    let boxes: Vec<ClassBox> = by_destinations.into_iter().map(|(to, from)| (from, to)).collect();
    let mut towards: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, (_, to)) in boxes.iter().enumerate() {
        to.iter().for_each(|destination| towards.entry(*destination).or_default().push(index as u32));
    }
    let mut by_sources: BTreeMap<Vec<u32>, Vec<u32>> = BTreeMap::new();
    for (destination, indices) in towards {
        by_sources.entry(indices).or_default().push(destination);
        // It cannot become fewer any more, and the rest of a large change would be grouped in vain.
        if by_sources.len() >= boxes.len() {
            return boxes;
        }
    }
    let sources = |indices: Vec<u32>| -> Vec<u32> {
        // Without removing duplicates: each source is in one box of a part.
        let mut all: Vec<u32> = indices.iter().flat_map(|index| &boxes[*index as usize].0).copied().collect();
        all.sort_unstable();
        all
    };
    by_sources.into_iter().map(|(indices, to)| (sources(indices), to)).collect()
}
