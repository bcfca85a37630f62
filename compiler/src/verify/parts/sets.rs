//! What is in a set: as packets show it, each distinct one once.

use std::collections::HashMap;
use std::net::IpAddr;

use super::super::bits::{self, Sets, insert};
use super::super::prober::{Instance, Prober};
use super::super::slots::Port;
use super::super::{Part, Report};
use crate::engine::Broken;
use crate::model::eval::Verdict;
use crate::vm::{MapId, Spot};

/// What makes a set the same.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    /// In a table: its place.
    Place(MapId, u64),
    /// In a kernel's map: the bytes of the entry, and where in it.
    Bytes(MapId, Box<[u8]>, u64),
    /// No set is read: of this class and subject class alone.
    Nowhere(u32, u32),
}

/// The sets of one direction and family.
pub(super) struct Measured {
    /// What each set was asked about.
    pub(super) ports: Vec<Port>,
    numbers: HashMap<Key, u32>,
    spots: HashMap<Spot, u32>,
    sets: Sets,
}

impl Measured {
    pub(super) fn new(ports: Vec<Port>) -> Self {
        Self { ports, numbers: HashMap::new(), spots: HashMap::new(), sets: Sets::default() }
    }

    /// The ports, by their number, that a set has.
    pub(super) fn set(&self, number: u32) -> &[u64] {
        self.sets.list.get(number as usize).map_or(&[], |set| set)
    }

    /// The set that nobody finds for an address of a class, being of a subject class.
    pub(super) fn number(
        &mut self,
        prober: &mut Prober,
        report: &mut Report,
        instance: Instance,
        spot: Option<Spot>,
        address: IpAddr,
        (class, subject): (u32, u32),
    ) -> Result<u32, Broken> {
        if let Some(number) = spot.and_then(|spot| self.spots.get(&spot)) {
            return Ok(*number);
        }
        let key = match spot {
            None => Key::Nowhere(class, subject),
            Some(spot) if prober.is_table(spot.map) => Key::Place(spot.map, spot.offset),
            Some(spot) => Key::Bytes(spot.map, prober.bytes(spot).into(), spot.offset),
        };
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                let set = self.measure(prober, report, instance, address)?;
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

    fn measure(
        &self,
        prober: &mut Prober,
        report: &mut Report,
        instance: Instance,
        address: IpAddr,
    ) -> Result<Vec<u64>, Broken> {
        let mut set = vec![0; bits::words(self.ports.len())];
        for (number, port) in self.ports.iter().enumerate() {
            if prober.verdict(instance, address, *port)? == Verdict::Allow {
                insert(&mut set, number);
            }
        }
        report.count(Part::Sets, self.ports.len() as u64, self.ports.len() as u64);
        Ok(set)
    }
}
