//! Tables → map images: every map of a generation with its size and its contents.
//!
//! Sizes follow the input, with headroom for changes between two generations. No map is allocated for a maximum.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use weir_artifact::entries::MapEntries;
use weir_artifact::map_image::{MapBytes, MapEntry, MapImage, shape_of};

use crate::ir::DecisionTables;
use crate::structures::{AddressStructures, ExactTable, PortTable, Prefixes, RowTable};
use weir_artifact::layout::buckets::{self, shape};
use weir_artifact::layout::{
    self, AUDIT_SHIFT, FILTERS_EGRESS, FILTERS_INGRESS, FlowState, MapName, OUTCOMES, config, endpoint,
};
use weir_classes::edge_denials::EdgeDenials;
use weir_classes::{AtomSet, Classes, PeerId, Scope, SingleAddresses, SinglePiece};
use weir_ebpf::target::Target;
use weir_ebpf::vm::{MapFlags, MapKind, MapSpec};
use weir_model::{Cluster, Direction, EndpointId, Established};
use weir_objects::address::{Family, Prefix};

/// Settings that sizes depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The number of flows that an endpoint can have at the same time, on average.
    pub flows_per_endpoint: u32,
    /// The size of the event ring in bytes: a power of two that is a multiple of 64 KiB, because kernels with pages of
    /// that size refuse a smaller ring.
    pub ring_bytes: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { flows_per_endpoint: 1_024, ring_bytes: 1 << 16 }
    }
}

/// A local endpoint, as the runtime enters it under its interface's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointEntry {
    /// The endpoint.
    pub endpoint: EndpointId,
    /// The value in `endpoints`.
    pub value: endpoint::Value,
}

/// Every map. `endpoints` has no entries, because only the runtime knows its keys.
pub fn maps(cluster: &Cluster, scope: &Scope, tables: &DecisionTables, sizes: Sizes, target: Target) -> Vec<MapImage> {
    maps_with(cluster, scope, tables, (sizes, target), &|family| address_maps(tables, family))
}

/// The same; `of_addresses` makes the maps of a family's addresses.
pub(crate) fn maps_with(
    cluster: &Cluster,
    scope: &Scope,
    tables: &DecisionTables,
    (sizes, target): (Sizes, Target),
    of_addresses: &dyn Fn(Family) -> Vec<MapImage>,
) -> Vec<MapImage> {
    let local = scope.endpoints().len() as u32;
    // An endpoint whose interface is replaced has two entries until its old interface is gone.
    let places = headroom(local).max(local.saturating_mul(2));
    let mut maps = vec![
        empty(MapName::Endpoints, hash(4, endpoint::BYTES, places)),
        config_image(cluster),
        empty(MapName::Counters, array(MapKind::PercpuArray, 16, 2 * OUTCOMES)),
        empty(MapName::Events, ring(sizes.ring_bytes)),
        empty(MapName::EventLimit, array(MapKind::Array, 16, 1)),
        empty(MapName::Other, array(MapKind::ProgArray, 4, 1)),
        empty(MapName::Fragments, array(MapKind::Array, 8, places.saturating_mul(layout::fragments::PLACES))),
    ];
    for family in [Family::V4, Family::V6] {
        if has_family(cluster, scope, family) {
            maps.push(nodes(cluster, family));
            maps.extend(of_addresses(family));
            maps.push(flow_table(flows(scope, sizes), target, family));
        }
    }
    let shape = MapSpec { flags: MapFlags::RDONLY_PROG, ..array(MapKind::Array, shape::BYTES, 1) };
    maps.push(MapImage { name: MapName::FlowShape, spec: shape, entries: MapEntries::one(&shape_of(&maps)) });
    match &tables.structures.rows {
        RowTable::Maps => maps.extend([rows(tables), defaults(tables)]),
        RowTable::Compiled(table) => maps.push(compiled(MapName::Rows, &table.bytes)),
    }
    if let PortTable::Search(table) = &tables.structures.ports {
        maps.push(compiled(MapName::Ports, &table.bytes));
    }
    maps.sort_by_key(|map| map.name);
    maps
}

/// The additional maps of the program at the edge. The runtime enters the addresses of the pods that it protects.
pub fn edge_maps(cluster: &Cluster, scope: &Scope, edge: &EdgeDenials) -> Vec<MapImage> {
    let local = scope.endpoints().len() as u32;
    let families = [Family::V4, Family::V6].into_iter().filter(|it| has_family(cluster, scope, *it));
    let protected = families.map(|family| {
        let name = pick(family, MapName::Local4, MapName::Local6);
        empty(name, hash(u32::from(family.bits() / 8), 4, headroom(local)))
    });
    let counted = empty(MapName::EdgeDrops, array(MapKind::PercpuArray, 16, 1));
    protected.chain([compiled(MapName::Edge, &edge.bits()), counted]).collect()
}

/// Whether a local endpoint has an address of the family.
pub fn has_family(cluster: &Cluster, scope: &Scope, family: Family) -> bool {
    let addresses = scope.endpoints().iter().flat_map(|id| &cluster.endpoints[id.index()].addresses);
    addresses.into_iter().any(|address| Family::of(*address) == family)
}

/// The value in `endpoints` for every local endpoint.
pub fn endpoints(cluster: &Cluster, classes: &Classes, tables: &DecisionTables) -> Vec<EndpointEntry> {
    let entry = |(id, subject): &(EndpointId, weir_classes::SubjectId)| {
        let local = &cluster.endpoints[id.index()];
        let mut value = [0; endpoint::BYTES as usize];
        let mut put = |at: i16, bytes: &[u8]| value[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        put(endpoint::SUBJECT, &subject.0.to_le_bytes());
        put(endpoint::FLAGS, &flags(tables, subject.0).to_le_bytes());
        put(endpoint::NODE, &local.node.map_or(u32::MAX, |node| node.0).to_le_bytes());
        for address in &local.addresses {
            let at = if address.is_ipv4() { endpoint::V4 } else { endpoint::V6 };
            put(at, &layout::address_bytes(*address));
        }
        EndpointEntry { endpoint: *id, value }
    };
    classes.subject_of.iter().map(entry).collect()
}

/// The directions that a subject class filters, and those that it would filter if the audit policies were enforced.
fn flags(tables: &DecisionTables, subject: u32) -> u32 {
    let full = AtomSet::all(tables.atoms);
    let half = full.words().len();
    let filters = |direction, from: usize| {
        let row = &tables.rows(direction)[subject as usize];
        let mut sets = row.entries.iter().map(|(_, set)| *set).chain([row.default]);
        sets.any(|set| tables.sets[set.index()].words()[from..from + half] != *full.words())
    };
    let mut flags = 0;
    for (direction, flag) in [(Direction::Ingress, FILTERS_INGRESS), (Direction::Egress, FILTERS_EGRESS)] {
        flags |= if filters(direction, 0) { flag } else { 0 };
        flags |= if tables.is_audit && filters(direction, half) { flag << AUDIT_SHIFT } else { 0 };
    }
    flags
}

fn config_image(cluster: &Cluster) -> MapImage {
    const TICKS: u32 = 250;
    let mut value = vec![0; config::BYTES as usize];
    value[config::EPOCH as usize] = 1;
    value[config::KEEP_ESTABLISHED as usize] = u8::from(cluster.assume.established == Established::Keep);
    for (state, seconds) in FlowState::SECONDS.iter().enumerate() {
        let at = config::TIMEOUTS as usize + 4 * state;
        value[at..at + 4].copy_from_slice(&(seconds * TICKS).to_le_bytes());
    }
    for (at, seed) in (config::SEEDS as usize..).step_by(8).zip(buckets::KNOWN_SEEDS) {
        value[at..at + 8].copy_from_slice(&seed.to_le_bytes());
    }
    for (at, number) in [(config::TICKS, TICKS), (config::STAMP, 1), (config::OTHER, layout::mark::NONE)] {
        value[at as usize..at as usize + 4].copy_from_slice(&number.to_le_bytes());
    }
    MapImage { name: MapName::Config, spec: array(MapKind::Array, config::BYTES, 1), entries: MapEntries::one(&value) }
}

fn nodes(cluster: &Cluster, family: Family) -> MapImage {
    let key_size = 4 + u32::from(family.bits() / 8);
    let nodes = node_entries(cluster, family);
    let name = pick(family, MapName::Nodes4, MapName::Nodes6);
    filled(name, hash(key_size, 4, headroom(nodes.len() as u32)), nodes)
}

/// The number of flows that may exist at the same time.
fn flows(scope: &Scope, sizes: Sizes) -> u32 {
    sizes.flows_per_endpoint.saturating_mul(scope.endpoints().len().max(1) as u32)
}

fn flow_table(flows: u32, target: Target, family: Family) -> MapImage {
    let bytes = buckets::table_bytes(family, flows.into(), target.most_value_bytes());
    // Mappable, so that the value begins at a page and slots do not straddle cache lines.
    let spec = MapSpec { flags: MapFlags::MMAPABLE, ..array(MapKind::Array, bytes, 1) };
    empty(pick(family, MapName::FlowBuckets4, MapName::FlowBuckets6), spec)
}

/// The maps in which a family's addresses are looked up.
pub fn address_maps(tables: &DecisionTables, family: Family) -> Vec<MapImage> {
    address_maps_after(tables, family, None)
}

/// The same, with the maps that were made before.
pub(crate) fn address_maps_after(
    tables: &DecisionTables,
    family: Family,
    last: Option<LastAddresses<'_>>,
) -> Vec<MapImage> {
    let mut maps = exact_images(tables, family, last);
    let prefixes = tables.structures.addresses.prefixes(family);
    let same = last.filter(|last| Arc::ptr_eq(last.structures.prefixes(family), prefixes));
    let image = same.and_then(|last| last.map(pick(family, MapName::Prefixes4, MapName::Prefixes6)));
    maps.extend(image.cloned().or_else(|| prefix_image(tables, family)));
    maps
}

fn exact_images(tables: &DecisionTables, family: Family, last: Option<LastAddresses<'_>>) -> Vec<MapImage> {
    let [name, listed_name] =
        [pick(family, MapName::Exact4, MapName::Exact6), pick(family, MapName::Listed4, MapName::Listed6)];
    let addresses = &tables.addresses;
    let singles = addresses.singles(family);
    let hash = |of, more| {
        let last = last.and_then(|last| last.exact(family, of));
        exact_hash(name, family, exact_entries(family, of, singles, last), more)
    };
    match tables.structures.exact(family) {
        ExactTable::Empty | ExactTable::Compares => Vec::new(),
        ExactTable::Perfect(table) => vec![compiled(name, &table.bytes)],
        ExactTable::Hash | ExactTable::Layered(None) => vec![hash(HashedSingles::All, 0)],
        ExactTable::Layered(Some(table)) => {
            // Until the next generation, the hash overrides the listed table, so it needs room for changed list entries
            // too.
            let changes = addresses.count_listed(family) as u32 / LISTED_PER_CHANGE;
            let same = last
                .filter(|last| Arc::ptr_eq(last.structures.exact(family), tables.structures.addresses.exact(family)));
            let listed = same.and_then(|last| last.map(listed_name)).cloned();
            vec![hash(HashedSingles::Moving, changes), listed.unwrap_or_else(|| compiled(listed_name, &table.bytes))]
        }
    }
}

/// Changes entries of the exact address tables; `None` removes one. Returns whether all changes were made: it fails for
/// a table that cannot be changed in place and for one without room.
pub(crate) fn write_addresses(maps: &mut [MapImage], changes: &BTreeMap<IpAddr, Option<PeerId>>) -> bool {
    let mut all = true;
    for (address, peer) in changes {
        let family = Family::of(*address);
        // No local endpoint has an address of this family, so the programs never look one up.
        if !maps.iter().any(|map| map.name == pick(family, MapName::Nodes4, MapName::Nodes6)) {
            continue;
        }
        let name = pick(family, MapName::Exact4, MapName::Exact6);
        let map = maps.iter_mut().find(|map| map.name == name && map.spec.kind == MapKind::Hash);
        all &= map.is_some_and(|map| write_address(map, *address, *peer));
    }
    all
}

fn write_address(map: &mut MapImage, address: IpAddr, peer: Option<PeerId>) -> bool {
    let key = layout::address_bytes(address);
    let value = peer.map(class_bytes);
    let is_full = map.entries.len() as u64 >= u64::from(map.spec.max_entries);
    if is_full && value.is_some() && map.entries.get(&key).is_none() {
        return false;
    }
    map.entries.set(&key, value.as_deref());
    true
}

/// The single addresses that are in a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashedSingles {
    All,
    /// Those that are added and removed alone.
    Moving,
}

impl HashedSingles {
    fn count(self, piece: &SinglePiece) -> usize {
        match self {
            Self::All => piece.addresses().len(),
            Self::Moving => piece.moving(),
        }
    }
}

/// The structures for addresses of the last artifact, and the maps that were made from them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastAddresses<'l> {
    pub(crate) structures: &'l AddressStructures,
    pub(crate) maps: &'l [MapImage],
}

impl<'l> LastAddresses<'l> {
    fn map(self, name: MapName) -> Option<&'l MapImage> {
        self.maps.iter().find(|map| map.name == name)
    }

    /// The hash of a family's single addresses, if it has these.
    fn exact(self, family: Family, of: HashedSingles) -> Option<LastExact<'l>> {
        let hashed = match &**self.structures.exact(family) {
            ExactTable::Hash | ExactTable::Layered(None) => HashedSingles::All,
            ExactTable::Layered(Some(_)) => HashedSingles::Moving,
            ExactTable::Empty | ExactTable::Compares | ExactTable::Perfect(_) => return None,
        };
        // The last artifact may have had no endpoint of the family.
        let map = self.map(pick(family, MapName::Exact4, MapName::Exact6)).filter(|_| hashed == of)?;
        Some(LastExact { singles: self.structures.map.singles(family), of, entries: &map.entries })
    }
}

/// A hash of single addresses, and the addresses that it was made from.
#[derive(Clone, Copy, Debug)]
struct LastExact<'l> {
    singles: &'l SingleAddresses,
    of: HashedSingles,
    entries: &'l MapEntries,
}

impl<'l> LastExact<'l> {
    /// Each piece of the addresses with its entries.
    fn pieces(self, size: usize) -> impl Iterator<Item = (&'l SinglePiece, &'l [u8])> {
        self.singles.pieces().iter().scan(self.entries.bytes(), move |rest, piece| {
            let (entries, later) = rest.split_at_checked(self.of.count(piece) * size)?;
            *rest = later;
            Some((piece, entries))
        })
    }
}

/// The entries of single addresses, in their order. Those of pieces that the last table was made from too are copied.
fn exact_entries(
    family: Family,
    of: HashedSingles,
    singles: &SingleAddresses,
    last: Option<LastExact<'_>>,
) -> MapEntries {
    let key_size = usize::from(family.bits() / 8);
    let size = key_size + 4;
    let count: usize = singles.pieces().iter().map(|piece| of.count(piece)).sum();
    let mut bytes: Vec<u8> = Vec::with_capacity(count * size);
    let mut known = last.into_iter().flat_map(|last| last.pieces(size)).peekable();
    for piece in singles.pieces() {
        let first = piece.addresses()[0].address;
        while known.next_if(|(old, _)| old.addresses()[0].address < first).is_some() {}
        if let Some((_, entries)) = known.next_if(|(old, _)| old.is(piece)) {
            bytes.extend_from_slice(entries);
            continue;
        }
        for it in piece.addresses().iter().filter(|it| of == HashedSingles::All || it.moves) {
            bytes.extend_from_slice(&layout::address_bytes(it.address));
            bytes.extend_from_slice(&it.peer.0.to_le_bytes());
        }
    }
    MapEntries::written(key_size, 4, bytes)
}

/// A hash with the usual headroom and room for `more` further entries.
fn exact_hash(name: MapName, family: Family, entries: MapEntries, more: u32) -> MapImage {
    let room = headroom(entries.len() as u32).saturating_add(more);
    MapImage { name, spec: hash(u32::from(family.bits() / 8), 4, room), entries }
}

fn prefix_image(tables: &DecisionTables, family: Family) -> Option<MapImage> {
    let name = pick(family, MapName::Prefixes4, MapName::Prefixes6);
    let key_size = 4 + u32::from(family.bits() / 8);
    match tables.structures.prefixes(family) {
        Prefixes::Empty => None,
        Prefixes::Search(table) => Some(compiled(name, &table.bytes)),
        Prefixes::Dxr(table) => Some(compiled(name, &table.bytes)),
        Prefixes::Lpm(prefixes) => {
            let flags = MapFlags::NO_PREALLOC;
            let spec = MapSpec { kind: MapKind::LpmTrie, flags, ..hash(key_size, 4, headroom(prefixes.len() as u32)) };
            Some(filled(name, spec, prefix_entries(prefixes)))
        }
        Prefixes::HashPerLength(prefixes) => {
            Some(filled(name, hash(key_size, 4, headroom(prefixes.len() as u32)), prefix_entries(prefixes)))
        }
    }
}

fn class_bytes(PeerId(peer): PeerId) -> MapBytes {
    MapBytes::from_slice(&peer.to_le_bytes())
}

/// (length, address) → class
fn prefix_entries(prefixes: &[(Prefix, PeerId)]) -> Vec<MapEntry> {
    let entry = |(prefix, peer): &(Prefix, PeerId)| {
        let mut key = MapBytes::from_slice(&u32::from(prefix.len()).to_le_bytes());
        key.extend(layout::address_bytes(prefix.address()));
        (key, class_bytes(*peer))
    };
    prefixes.iter().map(entry).collect()
}

/// A table that programs read directly.
fn compiled(name: MapName, bytes: &[u8]) -> MapImage {
    let spec = MapSpec { flags: MapFlags::RDONLY_PROG, ..array(MapKind::Array, bytes.len() as u32, 1) };
    MapImage { name, spec, entries: MapEntries::one(bytes) }
}

fn node_entries(cluster: &Cluster, family: Family) -> Vec<MapEntry> {
    let mut entries = Vec::new();
    for (node, of_node) in cluster.nodes.iter().enumerate() {
        for address in of_node.addresses.iter().filter(|at| Family::of(**at) == family) {
            entries.push((node_key(node as u32, *address), MapBytes::from_slice(&[1, 0, 0, 0])));
        }
    }
    entries
}

fn node_key(node: u32, address: IpAddr) -> MapBytes {
    let mut key = MapBytes::from_slice(&node.to_le_bytes());
    key.extend(layout::address_bytes(address));
    key
}

fn rows(tables: &DecisionTables) -> MapImage {
    let mut entries = Vec::new();
    for direction in Direction::ALL {
        for (subject, row) in tables.rows(direction).iter().enumerate() {
            for (peer, set) in row.entries.iter() {
                entries.push((
                    MapBytes::from_slice(&layout::row_key(direction, subject as u32, peer.0)),
                    set_bytes(tables, set.index()),
                ));
            }
        }
    }
    let spec = hash(8, set_size(tables), headroom(entries.len() as u32));
    filled(MapName::Rows, spec, entries)
}

fn defaults(tables: &DecisionTables) -> MapImage {
    let sets = Direction::ALL.into_iter().flat_map(|direction| tables.rows(direction)).map(|row| row.default);
    let entries: Vec<_> = sets
        .enumerate()
        .map(|(index, set)| (MapBytes::from_slice(&(index as u32).to_le_bytes()), set_bytes(tables, set.index())))
        .collect();
    let spec = array(MapKind::Array, set_size(tables), entries.len().max(1) as u32);
    MapImage { name: MapName::Defaults, spec, entries: entries.into() }
}

fn set_size(tables: &DecisionTables) -> u32 {
    8 * tables.words() as u32
}

fn set_bytes(tables: &DecisionTables, set: usize) -> MapBytes {
    tables.sets[set].words().iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pick<T>(family: Family, v4: T, v6: T) -> T {
    if family == Family::V4 { v4 } else { v6 }
}

/// Adds a quarter, for entries that arrive before the next generation.
fn headroom(entries: u32) -> u32 {
    entries.saturating_add(entries / 4).saturating_add(16)
}

/// One in this many entries of a list can change in the hash before the next generation must include the changes. An
/// entry of the hash is eight times as large as an entry of the table.
const LISTED_PER_CHANGE: u32 = 16;

fn hash(key_size: u32, value_size: u32, max_entries: u32) -> MapSpec {
    MapSpec { kind: MapKind::Hash, key_size, value_size, max_entries, flags: MapFlags::default() }
}

fn array(kind: MapKind, value_size: u32, max_entries: u32) -> MapSpec {
    MapSpec { kind, key_size: 4, value_size, max_entries, flags: MapFlags::default() }
}

fn ring(bytes: u32) -> MapSpec {
    MapSpec { kind: MapKind::RingBuf, key_size: 0, value_size: 0, max_entries: bytes, flags: MapFlags::default() }
}

fn empty(name: MapName, spec: MapSpec) -> MapImage {
    MapImage { name, spec, entries: MapEntries::default() }
}

fn filled(name: MapName, spec: MapSpec, mut entries: Vec<MapEntry>) -> MapImage {
    entries.sort();
    MapImage { name, spec, entries: entries.into() }
}
