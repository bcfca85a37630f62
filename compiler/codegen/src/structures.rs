//! The data structures for single addresses, prefixes, ports and verdict rows, and their bytes.
//!
//! Problem: a look-up in the kernel's maps costs a call and several cache lines. A compiler knows its sets beforehand.
//! Strategy: two layers. *Kernel maps* (hash, hash per prefix length, trie) can be changed in place. *Compiled tables*
//! (perfect hash, branch-free search, DXR, matrix) are the value of a read-only array that programs read without a
//! call. [`cost`] chooses, for each [`LookupSet`] by itself, and says why; [`StructureOptions::forced`] overrides it.
//! Invariants: every structure answers as [`AddressMap::find`] and [`Row::find`] do; the choice depends on the input
//! alone; a structure that does not fit is not built, and the note says so.

mod aggregate;
mod cost;
pub mod dxr;
pub mod perfect;
pub mod room;
pub mod rows;
pub mod search;

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use perfect::{HashKey, KeyWidth};
pub use room::Room;
use rows::DirectionRows;
use search::Cut;
use weir_artifact::structure::{LookupSet, Structure, StructureNote};
use weir_classes::{AddressMap, ClassRange, PeerId, PortInterval};
use weir_objects::address::{Family, Prefix, to_number};

/// Parameters of the choice besides the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructureOptions {
    /// The maximum size of a map's value on the target.
    pub most_value_bytes: u64,
    /// Structures that override the cost model, where they can be built.
    pub forced: Vec<(LookupSet, Structure)>,
    /// How the sizes of compiled tables follow their content.
    pub room: Room,
}

impl StructureOptions {
    // `KMALLOC_MAX_SIZE`: https://github.com/torvalds/linux/blob/v5.14/kernel/bpf/arraymap.c (`array_map_alloc_check`).
    // The default is the oldest kernel's, so that an artifact loads wherever it may be taken.
    /// The maximum size of a map's value on the oldest kernels.
    pub const VALUE_BYTES_BASE: u64 = 4 << 20;

    /// Only kernel maps, for tests and benchmarks.
    pub fn kernel_maps() -> Self {
        // The kernel's own structures are the control: they are simple, and a bug in a compiled table shows as a
        // difference between the two.
        let forced = vec![
            (LookupSet::Exact4, Structure::Hash),
            (LookupSet::Prefixes4, Structure::Lpm),
            (LookupSet::Exact6, Structure::Hash),
            (LookupSet::Prefixes6, Structure::Lpm),
            (LookupSet::Rows, Structure::Hash),
        ];
        Self { forced, ..Self::default() }
    }
}

impl Default for StructureOptions {
    fn default() -> Self {
        Self { most_value_bytes: Self::VALUE_BYTES_BASE, forced: Vec::new(), room: Room::Exact }
    }
}

/// Why a text is not a list of overrides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not PLACE=STRUCTURE, such as {}", examples())]
pub struct OverrideParseError {
    text: String,
}

fn examples() -> String {
    let of = |place: LookupSet| place.structures().iter().map(move |it| format!("{}={}", place.name(), it.name()));
    LookupSet::ALL.into_iter().flat_map(of).collect::<Vec<_>>().join(", ")
}

/// Parses a list of overrides such as `exact4=hash,prefixes4=lpm`.
pub fn parse_forced(text: &str) -> Result<Vec<(LookupSet, Structure)>, OverrideParseError> {
    let one = |text: &str| {
        let (place, structure) = text.split_once('=')?;
        // Only structures that the place can have. An override that is accepted and then ignored would make a benchmark
        // measure something else.
        let place = LookupSet::named(place.trim())?;
        Some((place, *place.structures().iter().find(|it| it.name() == structure.trim())?))
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts.map(|part| one(part).ok_or_else(|| OverrideParseError { text: part.to_owned() })).collect()
}

impl FromStr for StructureOptions {
    type Err = OverrideParseError;

    fn from_str(text: &str) -> Result<Self, OverrideParseError> {
        Ok(Self { forced: parse_forced(text)?, ..Self::default() })
    }
}

/// The structure for a family's single addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExactTable {
    /// There are no single addresses.
    #[default]
    Empty,
    /// Compares in the program; there is no table.
    Compares,
    /// Kernel hash.
    Hash,
    /// Perfect hash.
    Perfect(perfect::PerfectTable),
    /// Kernel hash, then a perfect hash of the addresses from blocks and lists. Without the second, the kernel hash has
    /// all.
    Layered(Option<perfect::PerfectTable>),
}

// Every packet asks the kernel hash first anyway. A few hundred entries more leave it in the same cache, so a second
// table would only add its own look-up.
/// With fewer listed addresses, a second look-up is not worth its cost.
const LEAST_LISTED: usize = 256;

/// The structure for a family's prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prefixes {
    /// There are no prefixes.
    #[default]
    Empty,
    /// Kernel trie with these entries.
    Lpm(Vec<(Prefix, PeerId)>),
    /// Kernel hash with these entries.
    HashPerLength(Vec<(Prefix, PeerId)>),
    /// Branch-free binary search.
    Search(search::SearchTable),
    /// DXR: a first table and short searches.
    Dxr(dxr::DxrTable),
}

/// The structure for ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PortTable {
    /// A tree of compares in the program.
    #[default]
    Compares,
    /// Branch-free binary search over [`port_key`].
    Search(search::SearchTable),
}

/// The structure for verdict rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RowTable {
    /// Kernel hash, and an array of defaults.
    #[default]
    Maps,
    /// Matrix or perfect hash.
    Compiled(rows::RowTableBytes),
}

/// The structures for addresses, with their input. Copies share the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressStructures {
    /// The addresses.
    pub map: Arc<AddressMap>,
    options: StructureOptions,
    /// By family.
    exact: [Arc<ExactTable>; 2],
    prefixes: [Arc<Prefixes>; 2],
    notes: Vec<StructureNote>,
}

/// The layout of all tables that a decision reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structures {
    /// The structures for addresses.
    pub addresses: AddressStructures,
    /// The structure for ports.
    pub ports: PortTable,
    /// The structure for verdict rows.
    pub rows: RowTable,
    /// The structure that was chosen for each set, and why.
    pub notes: Vec<StructureNote>,
}

impl AddressStructures {
    /// Chooses the structures and builds them. A table of `last` is taken if its content is that of the new one: a deny
    /// list of a million addresses is not laid out again because a pod has come.
    pub fn build(map: &Arc<AddressMap>, options: &StructureOptions, last: Option<&Self>) -> Self {
        let last = last.filter(|last| last.options == *options);
        if let Some(last) = last.filter(|last| last.is_of(map, options)) {
            return last.clone();
        }
        let mut made = Self { map: Arc::clone(map), options: options.clone(), ..Self::default() };
        for (index, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let ranked = cost::exact(map, family, options);
            // The table behind a kernel hash has the addresses of blocks and lists alone.
            let layered = last.map(|last| (&last.exact[index], last.map.singles(family))).filter(|(table, singles)| {
                matches!(***table, ExactTable::Layered(_)) && singles.has_listed_of(map.singles(family))
            });
            made.exact[index] = first(&mut made.notes, LookupSet::exact(family), ranked, |it| match layered {
                Some((table, _)) if it == Structure::Layered => Some(Arc::clone(table)),
                _ => exact(map, family, it, options).map(Arc::new),
            });
            let place = LookupSet::prefixes(family);
            if let Some(last) = last.filter(|last| last.map.has_ranges_of(map, family)) {
                made.notes.extend(last.notes.iter().find(|it| it.place == place).cloned());
                made.prefixes[index] = Arc::clone(&last.prefixes[index]);
                continue;
            }
            // Computed once: the cost model and two of the builders need them.
            let cuts = cuts(&map.ranges, family);
            let ranked = cost::prefixes(&map.ranges, &cuts, family, options);
            made.prefixes[index] = first(&mut made.notes, place, ranked, |it| {
                prefixes(&map.ranges, &cuts, family, it, options.room).map(Arc::new)
            });
        }
        made
    }

    /// Whether these are the structures for this map.
    pub(crate) fn is_of(&self, map: &Arc<AddressMap>, options: &StructureOptions) -> bool {
        Arc::ptr_eq(&self.map, map) && self.options == *options
    }

    /// The single addresses of a family.
    pub(crate) fn exact(&self, family: Family) -> &Arc<ExactTable> {
        &self.exact[usize::from(family == Family::V6)]
    }

    /// The prefixes of a family.
    pub(crate) fn prefixes(&self, family: Family) -> &Arc<Prefixes> {
        &self.prefixes[usize::from(family == Family::V6)]
    }
}

impl Structures {
    /// The single addresses of a family.
    pub fn exact(&self, family: Family) -> &ExactTable {
        self.addresses.exact(family)
    }

    /// The prefixes of a family.
    pub fn prefixes(&self, family: Family) -> &Prefixes {
        self.addresses.prefixes(family)
    }

    /// Chooses the structures and builds them.
    pub fn build(
        addresses: &AddressMap,
        ports: &[PortInterval],
        rows: DirectionRows<'_>,
        options: &StructureOptions,
    ) -> Self {
        let addresses = AddressStructures::build(&Arc::new(addresses.clone()), options, None);
        Self::with_addresses(addresses, ports, rows, options)
    }

    /// Chooses the other structures and builds them.
    pub fn with_addresses(
        addresses: AddressStructures,
        ports: &[PortInterval],
        rows: DirectionRows<'_>,
        options: &StructureOptions,
    ) -> Self {
        let mut notes = addresses.notes.clone();
        let cuts = port_cuts(ports);
        // Every place is decided by itself. The structures share a cache, so the costs are not really independent, but
        // a choice over all combinations would depend on details of one machine.
        let ports = first(&mut notes, LookupSet::Ports, cost::ports(&cuts, options), |it| match it {
            Structure::Search => search::build(1, &cuts, options.room).map(PortTable::Search),
            _ => Some(PortTable::Compares),
        });
        let rows = first(&mut notes, LookupSet::Rows, cost::rows(rows, options), |it| match it {
            Structure::Matrix => rows::matrix(rows).map(RowTable::Compiled),
            Structure::Perfect => rows::hash(rows).map(RowTable::Compiled),
            _ => Some(RowTable::Maps),
        });
        Self { addresses, ports, rows, notes }
    }
}

/// Builds the best-ranked structure that can be built, and notes it. Every place has one that can always be built.
fn first<T: Default>(
    notes: &mut Vec<StructureNote>,
    place: LookupSet,
    ranked: cost::Ranked,
    build: impl Fn(Structure) -> Option<T>,
) -> T {
    // Ranked and tried in order, because an estimate cannot promise that a table can be built: a perfect hash may find
    // no displacement.
    let found = ranked.list.iter().find_map(|it| Some((it, build(it.structure)?)));
    let Some((chosen, built)) = found else { return T::default() };
    // With the structure that was built, which may not be the one that was ranked first.
    notes.push(ranked.note(place, chosen));
    built
}

fn exact(
    addresses: &AddressMap,
    family: Family,
    structure: Structure,
    options: &StructureOptions,
) -> Option<ExactTable> {
    match structure {
        Structure::Empty => Some(ExactTable::Empty),
        Structure::Compares => Some(ExactTable::Compares),
        Structure::Perfect => perfect_of(addresses.of_family(family), family, options.room).map(ExactTable::Perfect),
        Structure::Layered => {
            let listed = addresses.count_listed(family);
            let fits = perfect::predict(width(family), listed, options.room) as u64 <= options.most_value_bytes;
            // Without the table the kernel hash has all entries. So the agent's way to change entries in place works
            // for every size.
            let table =
                (listed >= LEAST_LISTED && fits).then(|| perfect_of(addresses.listed(family), family, options.room));
            Some(ExactTable::Layered(table.flatten()))
        }
        _ => Some(ExactTable::Hash),
    }
}

fn perfect_of(of: impl Iterator<Item = (IpAddr, PeerId)>, family: Family, room: Room) -> Option<perfect::PerfectTable> {
    let entries: Vec<(HashKey, u32)> = of.map(|(at, peer)| (key(at), peer.0)).collect();
    perfect::build(width(family), &entries, room)
}

fn width(family: Family) -> KeyWidth {
    if family == Family::V4 { KeyWidth::W4 } else { KeyWidth::W16 }
}

fn prefixes(ranges: &[ClassRange], cuts: &[Cut], family: Family, structure: Structure, room: Room) -> Option<Prefixes> {
    match structure {
        Structure::Empty => Some(Prefixes::Empty),
        Structure::Search => search::build(usize::from(family.bits() / 32), cuts, room).map(Prefixes::Search),
        Structure::Dxr if family == Family::V4 => dxr::build(cuts, room).map(Prefixes::Dxr),
        // The idea of DXR for IPv6. A table over the upper 16 bits would be useless: addresses in use share them.
        Structure::Dxr => search::build_with_first(4, cuts).map(Prefixes::Search),
        Structure::HashPerLength => Some(Prefixes::HashPerLength(aggregate::aggregate(ranges, family))),
        // The trie takes anything, so the choice cannot end without a structure.
        _ => Some(Prefixes::Lpm(aggregate::aggregate(ranges, family))),
    }
}

/// An address as a key: its bytes as on the wire, the first byte lowest.
pub fn key(address: IpAddr) -> HashKey {
    match address {
        // As a program loads it from the packet, without a byte swap: a hash does not care about the order, and each
        // swap would be an instruction for every packet.
        IpAddr::V4(v4) => [u64::from(u32::from_le_bytes(v4.octets())), 0],
        IpAddr::V6(v6) => {
            let number = u128::from_le_bytes(v6.octets());
            [number as u64, (number >> 64) as u64]
        }
    }
}

/// The addresses at which the class changes, from the first address with a class other than 0.
pub fn cuts(ranges: &[ClassRange], family: Family) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = Vec::new();
    // The last address of the family. A range that ends there has nothing behind it to cut.
    let last = to_number(Prefix::new(weir_objects::address::to_address(family, 0), 0).last()).1;
    let mut push = |at: u128, class: u32| {
        // The end of one range is the beginning of the next if they touch: the 0 that was pushed for the gap gives
        // way.
        cuts.pop_if(|cut| cut.0 == at);
        // Neighbours of one class are one range. Tables are as long as the classes change, not as long as the input.
        if cuts.last().map_or(0, |cut| cut.1) != class {
            cuts.push((at, class));
        }
    };
    for range in ranges.iter().filter(|it| Family::of(it.first) == family) {
        push(to_number(range.first).1, range.peer.0);
        let end = to_number(range.last).1;
        if end < last {
            push(end + 1, 0);
        }
    }
    cuts
}

/// The ports at which the atom changes, as [`port_key`]. Before the first, the atom is 0.
pub fn port_cuts(ports: &[PortInterval]) -> Vec<Cut> {
    let mut sorted: Vec<(u32, u32, u32)> = Vec::with_capacity(ports.len());
    for interval in ports {
        let key = |port| port_key(interval.spec.protocol.number().into(), port);
        sorted.push((key(interval.spec.first), key(interval.spec.last), interval.atom.0));
    }
    // By protocol and port, because the key has the protocol in its upper half.
    sorted.sort_unstable();
    let mut cuts: Vec<Cut> = Vec::new();
    for (first, last, atom) in sorted {
        cuts.pop_if(|cut| cut.0 == u128::from(first));
        if cuts.last().map_or(0, |cut| cut.1) != atom {
            cuts.push((first.into(), atom));
        }
        // In 128 bits: behind port 65,535 of one protocol the next key belongs to another protocol, which begins with
        // atom 0 as well.
        cuts.push((u128::from(last) + 1, 0));
    }
    cuts
}

/// A protocol number and a port as one number.
pub fn port_key(protocol: u32, port: u16) -> u32 {
    protocol << 16 | u32::from(port)
}

#[cfg(test)]
mod tests;
