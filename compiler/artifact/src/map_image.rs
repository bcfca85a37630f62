//! A map before it is loaded: its name, kind, size and content.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::entries::MapEntries;
use crate::layout::MapName;
use crate::layout::buckets::{self, shape};
use weir_ebpf::bytes::put;
use weir_ebpf::vm::MapSpec;
use weir_objects::address::Family;

/// A key or a value. Addresses and classes are stored in place: a cluster has up to hundreds of thousands of them, and
/// each generation makes all of them.
pub type MapBytes = SmallVec<[u8; 16]>;

/// A key and its value.
pub type MapEntry = (MapBytes, MapBytes);

/// The image of one map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapImage {
    /// The map.
    pub name: MapName,
    /// The kernel's parameters of the map.
    pub spec: MapSpec,
    /// Keys and values, sorted.
    pub entries: MapEntries,
}

/// The value of `flow_shape` for these maps.
pub fn shape_of(maps: &[MapImage]) -> Vec<u8> {
    let mut value = vec![0; shape::BYTES as usize];
    for map in maps {
        if let Some((family, at)) = bucket_family(map.name) {
            let mask = buckets::mask(family, map.spec.value_size).to_le_bytes();
            put(&mut value, at as usize, &mask);
        }
    }
    value
}

/// The family of a flow table, and the offset of its mask in the value of `flow_shape`.
pub fn bucket_family(name: MapName) -> Option<(Family, i32)> {
    match name {
        MapName::FlowBuckets4 => Some((Family::V4, shape::V4)),
        MapName::FlowBuckets6 => Some((Family::V6, shape::V6)),
        _ => None,
    }
}

/// The number of slots in a flow table.
pub fn flow_room(map: &MapImage) -> u32 {
    bucket_family(map.name).map_or(0, |(family, _)| map.spec.value_size / buckets::slot_bytes(family))
}

/// A copy of the map, where a flow table has hardly any room: for machines that run one packet at a time.
pub fn with_few_flows(map: &MapImage, most: u32) -> Cow<'_, MapImage> {
    let few = |family| buckets::table_bytes(family, u64::from(most) / 2, u64::MAX);
    if map.name == MapName::FlowShape {
        let masks = [Family::V4, Family::V6].map(|family| buckets::mask(family, few(family)).to_le_bytes());
        return Cow::Owned(MapImage { entries: MapEntries::one(&masks.concat()), ..map.clone() });
    }
    let Some((family, _)) = bucket_family(map.name) else { return Cow::Borrowed(map) };
    let mut small = map.clone();
    small.spec.value_size = few(family);
    Cow::Owned(small)
}
