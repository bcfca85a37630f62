//! Keeps a generation's artifact file in a map, so that the file lives as long as the generation.
//!
//! Problem: a list of a million addresses is a table of nine megabytes, and the file contains the same bytes. Strategy:
//! the values of maps that nothing writes are cut out of the stored file and inserted again when it is read. The
//! file's own checksum detects a wrong result, for example if another process has changed a value.
//!
//! ```text
//!  length: u64, CUT where pieces are missing │ count: u64, (name: 16 bytes, start: u64, length: u64) × count │ the rest of the file
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::AsFd as _;

use weir_artifact::Artifact;
use weir_artifact::layout::MapName;
use weir_ebpf::vm::MapFlags;

use super::FILE;
use crate::error::{Doing as _, Error};
use crate::pins::{Age, Pins};
use crate::sys::{KernelMap, MapDefinition, MapType};
use crate::system::System;

/// Bytes in each entry of the map that stores the file. One value could not hold the whole file: before 6.1 a value has
/// at most 4 MiB, and the kernel copies each value in one piece of memory.
const PIECE: usize = 1 << 16;
/// In the length: pieces follow.
const CUT: u64 = 1 << 63;
const NAME: usize = 16;

/// A value in the file that is not stored again, because a map of the generation holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileCut {
    /// The map's name.
    map: &'static str,
    /// The value's place in the file.
    range: Range<usize>,
}

/// Stores the file in a map, without the bytes that the generation's other maps hold. The map of an earlier file is
/// reused if it is large enough; a new one is pinned.
pub(crate) fn keep_file(
    system: &System,
    pins: &Pins,
    (artifact, file): (&Artifact, &[u8]),
    earlier: Option<KernelMap>,
) -> Result<KernelMap, Error> {
    let keeping = "keep the artifact";
    let cuts = cuts(artifact, file);
    let begin = begin(file, &cuts);
    let parts = parts(&begin, file, &cuts);
    let pieces = parts.iter().map(|part| part.len()).sum::<usize>().div_ceil(PIECE);
    let definition = MapDefinition {
        map_type: MapType::Array,
        key_size: 4,
        value_size: PIECE as u32,
        max_entries: pieces as u32,
        flags: 0,
    };
    let is_large_enough = |map: &KernelMap| {
        let there = map.definition();
        let room = definition.max_entries..=2 * definition.max_entries;
        room.contains(&there.max_entries) && there == MapDefinition { max_entries: there.max_entries, ..definition }
    };
    let earlier = earlier.filter(is_large_enough);
    let is_new = earlier.is_none();
    let map = earlier.map_or_else(|| system.create_map("weir_artifact", &definition).doing(keeping), Ok)?;
    let mut index: u32 = 0;
    let mut keep = |piece: &[u8]| {
        system.update(&map, &index.to_le_bytes(), piece).doing(keeping)?;
        index += 1;
        Ok(())
    };
    each_piece(&parts, &mut keep)?;
    if is_new {
        system.pin(map.as_fd(), &pins.map(Age::Next, FILE)).doing(keeping)?;
    }
    Ok(map)
}

/// Whether [`keep_file`] would store the bytes that the map has. The values that are cut out are not compared.
pub(crate) fn is_kept(system: &System, (artifact, file): (&Artifact, &[u8]), kept: &KernelMap) -> Result<bool, Error> {
    let cuts = cuts(artifact, file);
    let begin = begin(file, &cuts);
    let (mut index, mut is_same): (u32, bool) = (0, true);
    let mut compare = |piece: &[u8]| {
        if is_same {
            let there = system.lookup(kept, &index.to_le_bytes()).doing("read the artifact")?;
            is_same = there.is_some_and(|there| there == piece);
        }
        index += 1;
        Ok(())
    };
    each_piece(&parts(&begin, file, &cuts), &mut compare)?;
    Ok(is_same)
}

/// The values to cut out: large ones of maps that neither programs nor an extension of the generation write
/// (`runtime/extended.rs`), which would make the file unreadable meanwhile. The value of `flow_shape` depends on this
/// machine and differs from the file's.
fn cuts(artifact: &Artifact, file: &[u8]) -> Vec<FileCut> {
    let stays = |name: MapName| {
        let image = artifact.map(name).filter(|_| !matches!(name, MapName::FlowShape | MapName::Rows));
        image.is_some_and(|it| it.spec.flags.0 & MapFlags::RDONLY_PROG.0 != 0)
    };
    let values = Artifact::values(file).into_iter();
    values
        .filter(|(name, place)| place.len() >= PIECE && stays(*name))
        .map(|(name, range)| FileCut { map: name.name(), range })
        .collect()
}

/// The bytes in front of the file.
fn begin(file: &[u8], cuts: &[FileCut]) -> Vec<u8> {
    let length = file.len() as u64;
    if cuts.is_empty() {
        return length.to_le_bytes().to_vec();
    }
    let mut bytes = (length | CUT).to_le_bytes().to_vec();
    bytes.extend((cuts.len() as u64).to_le_bytes());
    for FileCut { map, range } in cuts {
        let mut padded = map.as_bytes().to_vec();
        padded.resize(NAME, 0);
        bytes.extend(padded);
        [range.start, range.len()].iter().for_each(|it| bytes.extend((*it as u64).to_le_bytes()));
    }
    bytes
}

/// The stored bytes, in parts. An agent stores a file for each generation, and a copy of a large file would cost more
/// than a small change of policy.
fn parts<'f>(begin: &'f [u8], file: &'f [u8], cuts: &[FileCut]) -> Vec<&'f [u8]> {
    let mut parts = vec![begin];
    let mut at = 0;
    for FileCut { range, .. } in cuts {
        parts.push(file.get(at..range.start).unwrap_or_default());
        at = range.end;
    }
    parts.push(file.get(at..).unwrap_or_default());
    parts
}

/// Calls `keep` with the bytes of all parts, as pieces of equal size. The last one ends with zeros.
fn each_piece(parts: &[&[u8]], keep: &mut dyn FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
    let mut piece = Vec::with_capacity(PIECE);
    for part in parts {
        // The first bytes fill the piece that another part began. The rest has whole pieces, which are not copied.
        let (first, rest) = part.split_at(part.len().min((PIECE - piece.len()) % PIECE));
        piece.extend(first);
        if piece.len() == PIECE {
            keep(&piece)?;
            piece.clear();
        }
        if !piece.is_empty() {
            continue;
        }
        let (whole, last) = rest.as_chunks::<PIECE>();
        whole.iter().try_for_each(|whole| keep(whole))?;
        piece.extend(last);
    }
    if !piece.is_empty() {
        piece.resize(PIECE, 0);
        keep(&piece)?;
    }
    Ok(())
}

/// Reads the file that [`keep_file`] stored and inserts the values that were cut out. If the maps are not that
/// generation's, the result is not a valid artifact.
pub(crate) fn kept_file(
    system: &System,
    maps: &BTreeMap<String, KernelMap>,
    kept: &KernelMap,
) -> Result<Vec<u8>, Error> {
    let reading = "read the artifact";
    let mut bytes = Vec::new();
    for index in 0..kept.definition().max_entries {
        bytes.extend(system.lookup(kept, &index.to_le_bytes()).doing(reading)?.unwrap_or_default());
    }
    let mut value = |name: &str| match maps.get(name) {
        Some(map) => system.lookup(map, &[0; 4]).doing(reading),
        None => Ok(None),
    };
    whole(&bytes, &mut value)
}

/// A map's value; `None` if there is no such map.
type StoredValue = Result<Option<Vec<u8>>, Error>;

fn whole(bytes: &[u8], value: &mut dyn FnMut(&str) -> StoredValue) -> Result<Vec<u8>, Error> {
    let mut rest = UnreadBytes(bytes);
    let length = rest.number();
    if length & CUT == 0 {
        return Ok(rest.take(length as usize).to_vec());
    }
    let mut cuts = Vec::new();
    for _ in 0..rest.number() {
        if rest.0.is_empty() {
            break;
        }
        cuts.push((rest.take(NAME), rest.number() as usize, rest.number() as usize));
    }
    let length = (length & !CUT) as usize;
    let mut file = Vec::with_capacity(length.min(1 << 30));
    for (name, start, missing) in cuts {
        file.extend(rest.take(start.saturating_sub(file.len())));
        let name = name.split(|byte| *byte == 0).next().and_then(|name| str::from_utf8(name).ok());
        let there = value(name.unwrap_or_default())?.unwrap_or_default();
        // The kernel rounds values up.
        file.extend(there.get(..missing).unwrap_or_default());
    }
    file.extend(rest.take(length.saturating_sub(file.len())));
    Ok(file)
}

/// The bytes that have not been read yet.
struct UnreadBytes<'a>(&'a [u8]);

impl<'a> UnreadBytes<'a> {
    /// Takes `length` bytes, or all that are left.
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at_checked(length).unwrap_or((self.0, &[]));
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        self.take(8).first_chunk().map_or(0, |it| u64::from_le_bytes(*it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_values_are_inserted_again() {
        let file: Vec<u8> = (0..=255).collect();
        let places = [("exact4", 10..20), ("prefixes4", 20..100), ("rows", 250..256)];
        let places = places.map(|(map, range)| FileCut { map, range });
        for count in 0..=places.len() {
            let kept = parts(&begin(&file, &places[..count]), &file, &places[..count]).concat();
            let missing: usize = places[..count].iter().map(|it| it.range.len()).sum();
            assert_eq!(kept.len() + missing, file.len() + 8 + usize::from(count > 0) * 8 + 32 * count);
            let mut value = |name: &str| {
                let place = places.iter().find(|it| it.map == name).map(|it| it.range.clone());
                Ok(place.and_then(|place| file.get(place)).map(|it| [it, &[0; 2]].concat()))
            };
            assert_eq!(whole(&kept, &mut value).ok(), Some(file.clone()));
        }
    }

    #[test]
    fn pieces_hold_the_bytes_of_all_parts() {
        let bytes: Vec<u8> = (0..5 * PIECE).map(|index| (index % 251) as u8).collect();
        let lengths = [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 7];
        for (a, b) in lengths.into_iter().flat_map(|a| lengths.map(|b| (a, b))) {
            let parts = [&bytes[..a], &bytes[a..a + b], &bytes[a + b..a + b + 3]];
            let mut kept: Vec<Vec<u8>> = Vec::new();
            each_piece(&parts, &mut |piece| {
                kept.push(piece.to_vec());
                Ok(())
            })
            .expect("nothing fails");
            assert!(kept.iter().all(|piece| piece.len() == PIECE));
            assert_eq!(kept.len(), (a + b + 3).div_ceil(PIECE));
            let kept = kept.concat();
            assert!(kept.starts_with(&bytes[..a + b + 3]));
            assert!(kept[a + b + 3..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn a_truncated_file_is_read_without_panic() {
        let file: Vec<u8> = (0..=255).collect();
        let cuts = [("exact4", 10..20), ("rows", 200..220)].map(|(map, range)| FileCut { map, range });
        let kept = parts(&begin(&file, &cuts), &file, &cuts).concat();
        for length in 0..kept.len() {
            assert!(whole(&kept[..length], &mut |_| Ok(None)).is_ok_and(|it| it != file));
        }
    }
}
