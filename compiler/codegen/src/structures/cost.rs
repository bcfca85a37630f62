//! The cost model: which structure a set gets.
//!
//! `t = calls × cost + dependent cache lines × latency(footprint)`, with the figures of one machine (x86-64, Zen 4,
//! Safe RET on; `cargo xtask bench tables` measures them again). On other machines the ratios hold, but the absolute
//! figures do not. All figures are integers, in tenths of a nanosecond, so that the choice is the same everywhere. If
//! two structures cost the same, the smaller one is taken.

use super::perfect::{self, KeyWidth};
use super::rows::{DirectionRows, RowShape};
use super::search::Cut;
use super::{StructureOptions, dxr, width};
use weir_artifact::structure::{LookupSet, Structure, StructureNote};
use weir_classes::{AddressMap, ClassRange, MOST_COMPARES};
use weir_objects::address::Family;

/// A helper call and the work of a kernel hash.
const HASH: u64 = 240;
/// A helper call and a trie's root.
const TRIE: u64 = 240;
/// A node of a trie, without its cache line.
const NODE: u64 = 45;
/// Three multiplications that wait for each other, and two scalings.
const PERFECT: u64 = 35;
/// A level of a branch-free search.
const LEVEL: u64 = 25;
/// A compare with an immediate, with the average cost of mispredictions.
const COMPARE: u64 = 5;
/// A level of a tree of compares, with its share of mispredictions.
const BRANCH: u64 = 20;
/// The cost of each further compare in the instruction cache and for the kernel's verifier. It keeps programs small.
const CODE: u64 = 2;
/// The access to DXR's first table, and the jump to the right level.
const DXR: u64 = 45;

/// The bytes of an entry as the kernel charges them.
const HASH_ENTRY: u64 = 88;
const TRIE_ENTRY: u64 = 125;

/// (footprint, cost of a dependent cache line).
const LATENCY: [(u64, u64); 7] = [
    (32 << 10, 10),
    (256 << 10, 40),
    (1 << 20, 90),
    (4 << 20, 150),
    (16 << 20, 360),
    (64 << 20, 1520),
    (512 << 20, 1950),
];

fn latency(bytes: u64) -> u64 {
    // By size alone: a table that is read for every packet is assumed to be in the smallest cache that holds it. Beyond
    // the last line it is a miss of all of them.
    LATENCY.iter().find(|(footprint, _)| bytes <= *footprint).map_or(2_000, |(_, cost)| *cost)
}

/// A structure that could be chosen, with its estimated size and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct StructureCandidate {
    pub(super) structure: Structure,
    bytes: u64,
    tenths: u64,
    /// Whether the bytes are the value of one map.
    compiled: bool,
}

/// The candidates for a place, the best first.
pub(super) struct Ranked {
    pub(super) list: Vec<StructureCandidate>,
    /// The candidates that are larger than a map's value may be.
    too_large: Vec<Structure>,
    forced: Option<Structure>,
    entries: usize,
}

impl Ranked {
    fn new(place: LookupSet, entries: usize, candidates: Vec<StructureCandidate>, options: &StructureOptions) -> Self {
        if entries == 0 {
            // Before anything forced: a forced table without entries would be a map that every program reads in vain.
            let nothing = StructureCandidate { structure: Structure::Empty, bytes: 0, tenths: 0, compiled: false };
            return Self { list: vec![nothing], too_large: Vec::new(), forced: None, entries };
        }
        // Only compiled tables are one value. Kernel maps have a value for each entry and no such limit.
        let too_large = |it: &StructureCandidate| it.compiled && it.bytes > options.most_value_bytes;
        let (dropped, mut list): (Vec<_>, Vec<_>) = candidates.into_iter().partition(too_large);
        // The last one wins, as for repeated options on a command line.
        let forced = options.forced.iter().rev().find(|(at, _)| *at == place).map(|(_, structure)| *structure);
        // `false` sorts first, so a forced structure leads and the others keep their order behind it, as the way out if
        // it cannot be built. The sort is stable, so equal costs leave the order of the list.
        list.sort_by_key(|it| (Some(it.structure) != forced, it.tenths, it.bytes));
        Self { list, too_large: dropped.iter().map(|it| it.structure).collect(), forced, entries }
    }

    pub(super) fn note(&self, place: LookupSet, chosen: &StructureCandidate) -> StructureNote {
        let mut why = match self.forced {
            _ if chosen.structure == Structure::Empty => "nothing to look up".to_owned(),
            Some(forced) if forced == chosen.structure => "as asked".to_owned(),
            Some(forced) => format!("{} was asked for and cannot be; ", forced.name()) + &self.compared(chosen),
            None => self.compared(chosen),
        };
        for large in &self.too_large {
            why += &format!("; {} is larger than the target's map values", large.name());
        }
        StructureNote { place, structure: chosen.structure, entries: self.entries, bytes: chosen.bytes, why }
    }

    fn compared(&self, chosen: &StructureCandidate) -> String {
        let nanoseconds = |it: &StructureCandidate| format!("{}.{} ns", it.tenths / 10, it.tenths % 10);
        let others = self.list.iter().filter(|it| it.structure != chosen.structure);
        let others: Vec<String> = others.map(|it| format!("{} {}", it.structure.name(), nanoseconds(it))).collect();
        let rest = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
        format!("about {}{rest}", nanoseconds(chosen))
    }
}

fn map(structure: Structure, bytes: u64, tenths: u64) -> StructureCandidate {
    StructureCandidate { structure, bytes, tenths, compiled: false }
}

fn table(structure: Structure, bytes: u64, tenths: u64) -> StructureCandidate {
    StructureCandidate { structure, bytes, tenths, compiled: true }
}

pub(super) fn exact(addresses: &AddressMap, family: Family, options: &StructureOptions) -> Ranked {
    let entries = addresses.singles(family).len();
    let listed = addresses.count_listed(family);
    let [hash, moving] = [entries, entries - listed].map(|it| HASH_ENTRY * it as u64);
    let [perfect, behind] = [entries, listed].map(|it| perfect::predict(width(family), it, options.room) as u64);
    let mut candidates = vec![
        map(Structure::Hash, hash, HASH + 2 * latency(hash)),
        table(Structure::Perfect, perfect, PERFECT + 2 * latency(perfect)),
    ];
    // Offered only if asked for: only the agent, which changes entries in place, needs it.
    if options.forced.contains(&(LookupSet::exact(family), Structure::Layered)) {
        // Most addresses are in the second layer, so both look-ups are paid for: the price of changes in place.
        let tenths = HASH + 2 * latency(moving) + PERFECT + 2 * latency(behind);
        candidates.push(map(Structure::Layered, moving + behind, tenths));
    }
    if entries <= MOST_COMPARES {
        // Linear, and only up to a few: each compare is an instruction that all packets run, and a branch that the
        // verifier follows.
        candidates.push(map(Structure::Compares, 0, 10 + COMPARE * entries as u64));
    }
    Ranked::new(LookupSet::exact(family), entries, candidates, options)
}

pub(super) fn prefixes(ranges: &[ClassRange], cuts: &[Cut], family: Family, options: &StructureOptions) -> Ranked {
    let count = ranges.iter().filter(|it| Family::of(it.first) == family).count() as u64;
    let depth = u64::from(count.max(1).ilog2());
    let [trie, hash] = [TRIE_ENTRY * count, HASH_ENTRY * count];
    // The prefix lengths are not known before the prefixes are computed; a dozen is usual.
    let lengths = count.min(12);
    let levels = u64::from((cuts.len() as u64 + 1).next_power_of_two().ilog2());
    let groups = u64::from(family.bits() / 32);
    let search = 16 * cuts.len() as u64;
    let mut candidates = vec![
        map(Structure::Lpm, trie, TRIE + depth * (NODE + latency(trie))),
        // A miss asks every length, and the model compares worst cases.
        map(Structure::HashPerLength, hash, lengths * (HASH + latency(hash))),
        // Only some levels miss the cache: the upper ones of a search are shared by all packets.
        table(Structure::Search, search, levels * LEVEL + groups.min(levels / 3 + 1) * latency(search)),
    ];
    let (bytes, tenths) = match family {
        // A chunk holds the changes within one value of the upper 16 bits: a few levels unless the input is lopsided.
        Family::V4 => {
            let bytes = dxr::FIRST_BYTES as u64 + 8 * cuts.len() as u64;
            (bytes, DXR + 2 * latency(bytes) + (1 + levels.saturating_sub(14)) * LEVEL)
        }
        // The first table takes about half of the levels.
        Family::V6 => {
            let bytes = search + search / 4;
            (bytes, DXR + levels / 2 * LEVEL + (1 + groups.min(levels / 6)) * latency(bytes))
        }
    };
    candidates.push(table(Structure::Dxr, bytes, tenths));
    Ranked::new(LookupSet::prefixes(family), cuts.len(), candidates, options)
}

/// Ranks the structures for ports. The kernel has no map for port ranges.
pub(super) fn ports(cuts: &[Cut], options: &StructureOptions) -> Ranked {
    let levels = u64::from((cuts.len() as u64 + 1).next_power_of_two().ilog2());
    let (count, bytes) = (cuts.len() as u64, 8 * (cuts.len() as u64 + 1).next_power_of_two() * 2);
    let candidates = vec![
        // A tree, so the time grows with the levels; but the code grows with the count, and all of it must pass the
        // verifier.
        map(Structure::Compares, 0, BRANCH * levels + CODE * count),
        table(Structure::Search, bytes, LEVEL * levels + 2 * latency(bytes)),
    ];
    Ranked::new(LookupSet::Ports, cuts.len(), candidates, options)
}

/// Ranks the structures for rows. The kernel's maps are always possible.
pub(super) fn rows(rows: DirectionRows<'_>, options: &StructureOptions) -> Ranked {
    let shape: RowShape = rows.shape();
    let entries = rows.entries();
    let sets = shape.index_at() as u64;
    let hash = HASH_ENTRY * entries as u64;
    let perfect = sets + perfect::predict(KeyWidth::W8, entries, options.room) as u64;
    let matrix = sets + shape.matrix_bytes() as u64;
    let candidates = vec![
        map(Structure::Hash, hash, HASH + 2 * latency(hash)),
        // Three lines that wait for each other: displacement, slot, set. A matrix has two.
        table(Structure::Perfect, perfect, PERFECT + 3 * latency(perfect)),
        // The fastest by far, and the size is its only price: subjects times peers, whatever differs.
        table(Structure::Matrix, matrix, 10 + 2 * latency(matrix)),
    ];
    Ranked::new(LookupSet::Rows, entries + 2 * shape.subjects as usize, candidates, options)
}
