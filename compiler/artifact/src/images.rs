//! `.weir.maps` and `.weir.endpoints`: the entries of the maps, as counts and raw bytes, little-endian.
//!
//! A map is name, type, key size, value size, maximum number of entries, flags, number of entries, entries; an endpoint
//! is namespace, name, value. A text is its length and its bytes. If the only value of a map has a section of its own,
//! [`ELSEWHERE`] replaces the number of entries: tables of many megabytes are not stored twice.

use std::borrow::Cow;

use super::bytes::{ByteReader, Sink};
use super::{LinkError, NamedEndpoint};
use crate::entries::MapEntries;
use crate::layout::MapName;
use crate::map_image::MapImage;
use weir_ebpf::vm::{MapFlags, MapKind, MapSpec};

/// The kernel's number of each kind.
const KINDS: [(MapKind, u32); 6] = [
    (MapKind::Hash, 1),
    (MapKind::Array, 2),
    (MapKind::ProgArray, 3),
    (MapKind::PercpuArray, 6),
    (MapKind::LpmTrie, 11),
    (MapKind::RingBuf, 27),
];

/// The kernel's number of a map's kind.
pub fn map_type(kind: MapKind) -> u32 {
    // Every kind is in the list: a test checks that.
    KINDS.iter().find(|(it, _)| *it == kind).map_or(0, |(_, number)| *number)
}

fn map_kind(number: u32) -> Option<MapKind> {
    KINDS.iter().find(|(_, it)| *it == number).map(|(kind, _)| *kind)
}

/// Replaces the number of entries if the value is in another section.
const ELSEWHERE: u32 = u32::MAX;

/// The bytes of the maps in pieces; maps of `elsewhere` without their only value. The entries, which can be megabytes,
/// are not copied.
pub(super) fn write_maps<'a>(maps: &'a [MapImage], elsewhere: &[MapName]) -> Result<Vec<Cow<'a, [u8]>>, LinkError> {
    let mut pieces = Vec::new();
    let mut out = Sink::default();
    out.count(maps.len());
    for map in maps {
        write_spec(&mut out, map)?;
        if elsewhere.contains(&map.name) && map.entries.len() == 1 && map.entries.entry(0).0 == FIRST {
            out.u32(ELSEWHERE);
            continue;
        }
        out.count(map.entries.len());
        pieces.extend([std::mem::take(&mut out.0).into(), map.entries.bytes().into()]);
    }
    pieces.push(out.0.into());
    Ok(pieces)
}

/// Writes the maps with the digests of their entries instead of the entries: two lists of maps are equal if these bytes
/// are. Maps that are shared with another generation have their digest already.
pub(super) fn write_digests(maps: &[MapImage]) -> Result<Vec<u8>, LinkError> {
    let mut out = Sink::default();
    out.count(maps.len());
    for map in maps {
        write_spec(&mut out, map)?;
        out.count(map.entries.len());
        out.0.extend(map.entries.digest().0);
    }
    Ok(out.0)
}

fn write_spec(out: &mut Sink, map: &MapImage) -> Result<(), LinkError> {
    let MapSpec { kind, key_size, value_size, max_entries, flags } = map.spec;
    if !map.entries.are_of(key_size, value_size) {
        return Err(LinkError::EntrySize(map.name));
    }
    out.text(map.name.name());
    for number in [map_type(kind), key_size, value_size, max_entries, flags.0] {
        out.u32(number);
    }
    Ok(())
}

/// The key of the only value of an array.
const FIRST: [u8; 4] = [0; 4];

/// Reads the maps; `elsewhere` returns the values that have sections of their own.
pub(super) fn read_maps<'a>(bytes: &[u8], elsewhere: impl Fn(MapName) -> Option<&'a [u8]>) -> Option<Vec<MapImage>> {
    const SMALLEST: usize = 28;
    let mut source = ByteReader(bytes);
    let count = source.count(SMALLEST)?;
    let maps = (0..count).map(|_| read_map(&mut source, &elsewhere)).collect::<Option<_>>()?;
    source.0.is_empty().then_some(maps)
}

fn read_map<'a>(source: &mut ByteReader<'_>, elsewhere: impl Fn(MapName) -> Option<&'a [u8]>) -> Option<MapImage> {
    let name = MapName::named(source.text()?)?;
    let spec = MapSpec {
        kind: map_kind(source.u32()?)?,
        key_size: source.u32()?,
        value_size: source.u32()?,
        max_entries: source.u32()?,
        flags: MapFlags(source.u32()?),
    };
    let (key, value) = (spec.key_size as usize, spec.value_size as usize);
    if source.0.starts_with(&ELSEWHERE.to_le_bytes()) {
        source.u32()?;
        let only = elsewhere(name).filter(|it| it.len() == value && key == FIRST.len())?;
        return Some(MapImage { name, spec, entries: MapEntries::one(only) });
    }
    let size = key.checked_add(value)?;
    let count = source.count(size.max(1))?;
    let bytes = source.take(size.checked_mul(count)?)?.to_vec();
    Some(MapImage { name, spec, entries: MapEntries::from_bytes(key, value, count, bytes)? })
}

pub(super) fn write_endpoints(endpoints: &[NamedEndpoint]) -> Vec<u8> {
    let mut out = Sink::default();
    out.count(endpoints.len());
    for endpoint in endpoints {
        out.text(&endpoint.namespace);
        out.text(&endpoint.name);
        out.count(endpoint.value.len());
        out.0.extend(&endpoint.value);
    }
    out.0
}

pub(super) fn read_endpoints(bytes: &[u8]) -> Option<Vec<NamedEndpoint>> {
    const SMALLEST: usize = 12;
    let mut source = ByteReader(bytes);
    let count = source.count(SMALLEST)?;
    let endpoint = |_| {
        let (namespace, name) = (source.text()?.to_owned(), source.text()?.to_owned());
        let length = source.count(1)?;
        Some(NamedEndpoint { namespace, name, value: source.take(length)?.try_into().ok()? })
    };
    let endpoints = (0..count).map(endpoint).collect::<Option<_>>()?;
    source.0.is_empty().then_some(endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_map_has_the_kernels_number() {
        for kind in KINDS.map(|(kind, _)| kind) {
            assert_eq!(map_kind(map_type(kind)), Some(kind));
        }
        assert_eq!((map_type(MapKind::Array), map_type(MapKind::RingBuf)), (2, 27));
    }

    #[test]
    fn every_map_is_found_by_its_name() {
        assert!(MapName::ALL.into_iter().all(|map| MapName::named(map.name()) == Some(map)));
    }

    #[test]
    fn a_count_that_cannot_be_is_refused() {
        assert_eq!(read_maps(&u32::MAX.to_le_bytes(), |_| None), None);
        assert_eq!(read_endpoints(&u32::MAX.to_le_bytes()), None);
    }

    #[test]
    fn an_endpoint_with_a_value_of_another_length_is_malformed() {
        let endpoint = NamedEndpoint { namespace: "shop".to_owned(), name: "web".to_owned(), value: [1; _] };
        let mut bytes = write_endpoints(std::slice::from_ref(&endpoint));
        let length = bytes.len() - endpoint.value.len() - 4;
        assert_eq!(read_endpoints(&bytes), Some(vec![endpoint]));
        bytes.pop();
        bytes[length] -= 1;
        assert_eq!(read_endpoints(&bytes), None);
    }
}
