//! The ports in a set: each distinct set is read once.
//!
//! [`super::ports`] already found which bit decides about which port, so most of a set is read from its bytes. Packets
//! through the whole program confirm those bits, one for each word of each set. Ports that no bit decides about get one
//! packet each.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::super::bits::{self, BitSets, insert};
use super::super::prober::{Instance, Prober};
use super::super::slots::SlotPort;
use super::super::{VerifyPart, VerifyReport};
use super::ports::Asks;
use weir_ebpf::vm::{MapByte, MapId};
use weir_machine::Broken;
use weir_model::eval::Verdict;

/// Identifies a set: reads with equal keys find the same set.
#[derive(PartialEq, Eq, Hash)]
enum SetRead {
    /// Read from a table: the map and the offset.
    Place(MapId, u64),
    /// Read from a kernel map: the bytes of the entry, and the offset in it.
    Bytes(MapId, Box<[u8]>, u64),
    /// No set is read: the class and the subject class.
    Nowhere(u32, u32),
}

/// The sets of one direction and family.
pub(super) struct MeasuredSets {
    /// The ports that each set is checked for.
    pub(super) ports: Vec<SlotPort>,
    /// For each of these ports the bit that decides about it, if a single bit does.
    bits: Vec<Option<(i64, u32)>>,
    /// Ports by the word that has their bit. Successive sets are checked with successive ports of a word.
    words: Vec<Vec<usize>>,
    /// The ports that no bit decides about.
    others: Vec<usize>,
    turn: usize,
    numbers: HashMap<SetRead, u32>,
    spots: HashMap<MapByte, u32>,
    sets: BitSets,
}

impl MeasuredSets {
    pub(super) fn new(ports: &[(SlotPort, Option<Asks>)]) -> Self {
        let bit = |(_, asks): &(SlotPort, Option<Asks>)| match asks {
            Some(Asks::Bit(word, bit)) => Some((*word, *bit)),
            _ => None,
        };
        let bits: Vec<Option<(i64, u32)>> = ports.iter().map(bit).collect();
        let mut words: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        let mut others = Vec::new();
        for (number, bit) in bits.iter().enumerate() {
            bit.map_or(&mut others, |(word, _)| words.entry(word).or_default()).push(number);
        }
        Self {
            ports: ports.iter().map(|(port, _)| *port).collect(),
            bits,
            words: words.into_values().collect(),
            others,
            turn: 0,
            numbers: HashMap::new(),
            spots: HashMap::new(),
            sets: BitSets::default(),
        }
    }

    /// The ports in a set, as indices into `ports`.
    pub(super) fn set(&self, number: u32) -> &[u64] {
        self.sets.list.get(number as usize).map_or(&[], |set| set)
    }

    /// The number of the set that the probe endpoint, with this subject class, finds for an address of a class.
    pub(super) fn number(
        &mut self,
        prober: &mut Prober,
        report: &mut VerifyReport,
        instance: Instance,
        spot: Option<MapByte>,
        address: IpAddr,
        (class, subject): (u32, u32),
    ) -> Result<u32, Broken> {
        // Most entries of a row lead to the same few places, so this answers nearly all of the questions.
        if let Some(number) = spot.and_then(|spot| self.spots.get(&spot)) {
            return Ok(*number);
        }
        let key = match spot {
            None => SetRead::Nowhere(class, subject),
            // Compiled tables store each set once, so the place is the set. Kernel maps have a copy in each entry, so
            // there the bytes are compared.
            Some(spot) if prober.is_table(spot.map) => SetRead::Place(spot.map, spot.offset),
            Some(spot) => SetRead::Bytes(spot.map, prober.bytes(spot).into(), spot.offset),
        };
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                let set = match spot {
                    Some(spot) => self.read(prober, report, instance, (spot, address))?,
                    None => None,
                };
                // Sets whose bytes cannot be trusted are measured port by port. That is slow, and it is the same way as
                // for programs without bits at all.
                let set = match set {
                    Some(set) => set,
                    None => self.measure(prober, report, instance, address)?,
                };
                // Two keys may have the same set. One number for both keeps the cache of comparisons small.
                let number = self.sets.number(&set);
                self.numbers.insert(key, number);
                number
            }
        };
        if let Some(spot) = spot {
            self.spots.insert(spot, number);
        }
        Ok(number)
    }

    /// Reads the ports that a bit decides about from the set's bytes, and asks the programs about the others. To
    /// confirm the bytes, the programs are also asked about one port of each word, a different one for each set. A
    /// single disagreement makes the bytes unusable: `None`.
    fn read(
        &mut self,
        prober: &mut Prober,
        report: &mut VerifyReport,
        instance: Instance,
        (spot, address): (MapByte, IpAddr),
    ) -> Result<Option<Vec<u64>>, Broken> {
        let Some(mut set) = self.bits_at(prober.bytes(spot), spot.offset) else { return Ok(None) };
        // Another port of each word with each set: over all sets every bit is confirmed by packets again and again, and
        // no set costs more than one packet for each of its words.
        self.turn += 1;
        let sample = self.words.iter().filter_map(|word| word.get(self.turn % word.len()));
        for number in sample.chain(&self.others) {
            let Some(port) = self.ports.get(*number) else { continue };
            let allows = prober.verdict(instance, address, *port)? == Verdict::Allow;
            report.count(VerifyPart::Sets, 1, 1);
            match self.bits.get(*number) {
                // Ports without a bit have no other source than the packet.
                Some(None) if allows => insert(&mut set, *number),
                // One contradiction is enough: then the bytes have another meaning here than in the set with which the
                // bits were found.
                Some(Some(_)) if allows != bits::contains(&set, *number) => return Ok(None),
                _ => {}
            }
        }
        Ok(Some(set))
    }

    /// The ports whose bit is set; `None` if the bytes do not contain one of the bits.
    fn bits_at(&self, bytes: &[u8], offset: u64) -> Option<Vec<u64>> {
        let mut set = vec![0; bits::words(self.ports.len())];
        for (number, bit) in self.bits.iter().enumerate() {
            let Some((delta, bit)) = bit else { continue };
            // Checked, because both numbers come from an artifact that may be damaged: a place outside of the bytes is
            // no set.
            let at = i64::try_from(offset).ok()?.checked_add(*delta)?;
            let word = u64::from_le_bytes(*bytes.get(usize::try_from(at).ok()?..)?.first_chunk()?);
            if word >> bit & 1 == 1 {
                insert(&mut set, number);
            }
        }
        Some(set)
    }

    fn measure(
        &self,
        prober: &mut Prober,
        report: &mut VerifyReport,
        instance: Instance,
        address: IpAddr,
    ) -> Result<Vec<u64>, Broken> {
        let mut set = vec![0; bits::words(self.ports.len())];
        for (number, port) in self.ports.iter().enumerate() {
            if prober.verdict(instance, address, *port)? == Verdict::Allow {
                insert(&mut set, number);
            }
        }
        report.count(VerifyPart::Sets, self.ports.len() as u64, self.ports.len() as u64);
        Ok(set)
    }
}
