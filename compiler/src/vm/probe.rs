//! Runs that stop on their way: to see what a program looks at, and to go on from there again and again.
//!
//! Problem: verification asks one program about very many combinations of a few things. Most of each run is the same.
//! Strategy: stop a run before it reads a certain byte of a map's value ([`Vm::run_to`]); the [`State`] there can be
//! resumed many times, each time after something in a map was changed. What is resumed can be cut down to some of the stack
//! ([`State::keep`]): reading anything else is then a trap, which proves that nothing else matters.
//! Invariants: a state holds no packet and no map: what it is resumed with is what the maps hold then.

use super::exec::{End, Machine, Saved, Watch};
use super::map::Content;
use super::memory::{FRAME, Memory, RegionId};
use super::{Errno, Host, MapId, Outcome, POISON, ProgramId, Skb, Trap, Vm};
use crate::ebpf::helper::Helper;

/// A byte of a value in a map: where a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    /// The map.
    pub map: MapId,
    /// The place of the entry.
    pub element: u64,
    /// The byte of its value.
    pub offset: u64,
}

/// What a run came to that was to stop.
#[derive(Clone, Debug)]
pub enum Stop {
    /// It is about to read there.
    Before(Box<State>),
    /// It never did.
    Ended(Outcome),
}

/// A run that was stopped, ready to go on.
#[derive(Clone, Debug)]
pub struct State(Saved);

/// Four bytes of the stack or a register: the parts of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// `R0` to `R9`.
    Register(u8),
    /// By the number of the word, from the lowest address on.
    Stack(u8),
}

impl Part {
    /// Every part that a program in its outermost function has.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..10).map(Self::Register).chain((0..(FRAME / 4) as u8).map(Self::Stack))
    }
}

/// The bits of a word of the stack: which of the eight in the frame, and the mask.
fn bits(word: u8) -> (usize, u64) {
    (usize::from(word) / 16, 0xf << (4 * (u32::from(word) % 16)))
}

impl State {
    /// What a part holds; `None` for stack that was not written.
    pub fn part(&self, part: Part) -> Option<u64> {
        match part {
            Part::Register(number) => self.0.registers.get(usize::from(number)).copied(),
            Part::Stack(word) => {
                let (index, mask) = bits(word);
                self.0.stack.written.get(index).filter(|written| *written & mask == mask)?;
                let bytes = self.0.stack.bytes.get(4 * usize::from(word)..)?.first_chunk()?;
                Some(u64::from(u32::from_le_bytes(*bytes)))
            }
        }
    }

    /// Forgets a part: a register holds nonsense, stack is as if nobody had written it.
    pub fn forget(&mut self, part: Part) {
        match part {
            Part::Register(number) => {
                if let Some(register) = self.0.registers.get_mut(usize::from(number)) {
                    *register = POISON;
                }
            }
            Part::Stack(word) => {
                let (index, mask) = bits(word);
                if let Some(written) = self.0.stack.written.get_mut(index) {
                    *written &= !mask;
                }
            }
        }
    }
}

/// Every read from a map's value passes `read`, every look-up in a map `look_up`; what says true stops the run.
struct Watcher<R, L> {
    read: R,
    look_up: L,
}

impl<R: FnMut(u64) -> bool, L: FnMut(Option<MapId>) -> bool> Watch for Watcher<R, L> {
    #[inline]
    fn reads(&mut self, address: u64) -> bool {
        RegionId::of(address).is_beyond_packets() && (self.read)(address)
    }

    #[inline]
    fn calls(&mut self, helper: Helper, memory: &Memory, argument: u64) -> bool {
        let map = if helper == Helper::MAP_LOOKUP_ELEM { memory.map(argument) } else { None };
        (self.look_up)(map)
    }
}

impl Vm {
    /// Runs a program until it is about to read at this offset of any value of a map. Where it read before that in the
    /// values of `note` is noted.
    pub fn run_to(
        &mut self,
        program: ProgramId,
        skb: &mut Skb,
        host: &mut Host,
        (map, offset): (MapId, u64),
        (note, noted): (Option<MapId>, &mut Vec<Spot>),
    ) -> Result<Stop, Box<Trap>> {
        let region = self.values(map);
        let note = note.and_then(|map| self.values(map));
        let mask = (1 << region.map_or(0, |region| self.memory.shift(region))) - 1;
        let mut addresses = Vec::new();
        let read = |address: u64| {
            let of = Some(RegionId::of(address));
            if note.is_some() && of == note {
                addresses.push(address);
            }
            of == region && address & mask == offset
        };
        let budget = self.budget;
        let mut machine = Machine::new(self, program, skb, host);
        machine.enter_frame();
        machine.enter_program(program);
        let result = machine.start(budget, &mut Watcher { read, look_up: |_| false });
        let saved = machine.save();
        machine.finish();
        noted.extend(addresses.into_iter().filter_map(|address| self.spot(address)));
        Ok(match (result?, saved) {
            ((_, End::Stopped), Some(saved)) => Stop::Before(Box::new(State(saved))),
            ((outcome, _), _) => Stop::Ended(outcome),
        })
    }

    /// Goes on from a state while the program touches only these maps, and values of `also`, which are not noted. Returns
    /// where it read last in them.
    pub fn follow(
        &mut self,
        state: &State,
        skb: &mut Skb,
        host: &mut Host,
        maps: [Option<MapId>; 2],
        also: [Option<MapId>; 2],
    ) -> Result<Option<Spot>, Box<Trap>> {
        let regions = maps.map(|map| self.values(map?));
        let also = also.map(|map| self.values(map?));
        let mut last = None;
        let read = |address: u64| {
            let region = Some(RegionId::of(address));
            let noted = region == regions[0] || region == regions[1];
            if noted {
                last = Some(address);
            }
            !noted && region != also[0] && region != also[1]
        };
        let look_up = |map: Option<MapId>| map.is_none() || !maps.contains(&map);
        let budget = self.budget;
        let mut machine = Machine::new(self, state.0.program, skb, host);
        machine.restore(&state.0);
        let result = machine.start(budget, &mut Watcher { read, look_up });
        machine.finish();
        result?;
        Ok(last.and_then(|address| self.spot(address)))
    }

    fn spot(&self, address: u64) -> Option<Spot> {
        self.memory.value(address).map(|(map, element, offset)| Spot { map, element, offset })
    }

    /// The bytes of a value, by the entry's place.
    pub fn value_at(&self, map: MapId, element: u64) -> &[u8] {
        self.values(map).map_or(&[], |region| self.memory.bytes(region, element))
    }

    /// Overwrites bytes of a value, also where programs may only read. Not a write that the kernel has.
    pub fn poke(&mut self, spot: Spot, bytes: &[u8]) -> Result<(), Errno> {
        let region = self.values(spot.map).ok_or(Errno::Inval)?;
        let value = self.memory.bytes_mut(region, spot.element);
        let end = (spot.offset as usize).saturating_add(bytes.len());
        value.get_mut(spot.offset as usize..end).ok_or(Errno::Inval)?.copy_from_slice(bytes);
        Ok(())
    }

    fn values(&self, map: MapId) -> Option<RegionId> {
        match self.maps.get(map.0 as usize)?.content {
            Content::Values(region) => Some(region),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
