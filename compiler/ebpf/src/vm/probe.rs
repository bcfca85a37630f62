//! Runs that stop early: to see which data a program reads, and to resume it many times from the same state.
//!
//! Problem: verification runs one program on very many combinations of a few inputs, and most of each run is the same.
//! Strategy: stop a run before it reads a certain byte of a map's value ([`Vm::run_to`]). The [`StoppedRun`] there can
//! be resumed many times, each time after a change in a map. A state can be reduced to some of its registers and stack
//! ([`StoppedRun::forget`]). A read of forgotten stack traps, which proves that the program needs no more than was
//! kept.
//! Invariants: a state contains no packet and no map; a resumed run reads the maps as they are then.

use super::exec::{Execution, MapWatch, RunEnd, Saved};
use super::map::MapContent;
use super::memory::{FRAME, Memory, RegionId};
use super::{Errno, MapId, POISON, ProgramId, RunOutcome, Skb, Trap, Vm, VmInputs};
use crate::helper::Helper;

/// A byte in a value of a map, which a program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapByte {
    /// The map.
    pub map: MapId,
    /// The number of the entry.
    pub element: u64,
    /// The byte within its value.
    pub offset: u64,
}

/// The end of a run that should stop at a read.
#[derive(Clone, Debug)]
pub enum Stop {
    /// The run has stopped before the read.
    Before(Box<StoppedRun>),
    /// The run has ended without the read.
    Ended(RunOutcome),
}

/// A run that was stopped and can be resumed.
#[derive(Clone, Debug)]
pub struct StoppedRun(Saved);

/// A part of a [`StoppedRun`]: a register, or four bytes of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunPart {
    /// `R0` to `R9`.
    Register(u8),
    /// A word of the stack, numbered from the lowest address.
    Stack(u8),
}

impl RunPart {
    /// Every part that a program in its outermost function has.
    pub fn all() -> impl Iterator<Item = Self> {
        // Without R10, which is the same in all states. In words of four bytes, as programs store classes: single bytes
        // would cost four times the runs.
        (0..10).map(Self::Register).chain((0..(FRAME / 4) as u8).map(Self::Stack))
    }
}

/// The position of a stack word in the bitmap of written bytes: the index of the 64-bit word, and the mask.
fn bits(word: u8) -> (usize, u64) {
    // Four bits for each word of the stack, sixteen words in each word of the bitmap.
    (usize::from(word) / 16, 0xf << (4 * (u32::from(word) % 16)))
}

impl StoppedRun {
    /// The value of a part; `None` for stack that was not written.
    pub fn part(&self, part: RunPart) -> Option<u64> {
        match part {
            RunPart::Register(number) => self.0.registers.get(usize::from(number)).copied(),
            RunPart::Stack(word) => {
                let (index, mask) = bits(word);
                // A word that is written in part has no value. A program that depends on such a part cannot be
                // followed, and verification reports that as a difference.
                self.0.stack.written.get(index).filter(|written| *written & mask == mask)?;
                let bytes = self.0.stack.bytes.get(4 * usize::from(word)..)?.first_chunk()?;
                Some(u64::from(u32::from_le_bytes(*bytes)))
            }
        }
    }

    /// Clears a part: a register gets [`POISON`], stack becomes unwritten.
    pub fn forget(&mut self, part: RunPart) {
        match part {
            RunPart::Register(number) => {
                if let Some(register) = self.0.registers.get_mut(usize::from(number)) {
                    // A register cannot be unwritten. Poison is in no region, so it traps as an address, and as a
                    // number it changes the result.
                    *register = POISON;
                }
            }
            RunPart::Stack(word) => {
                let (index, mask) = bits(word);
                if let Some(written) = self.0.stack.written.get_mut(index) {
                    // The bytes may stay: no read gets past the bit.
                    *written &= !mask;
                }
            }
        }
    }
}

/// Passes the address of each read outside of stack, context and packet to `read`, and the map of each look-up (`None`
/// for other helpers) to `look_up`. If either returns true, the run stops.
struct Watcher<R, L> {
    read: R,
    look_up: L,
}

impl<R: FnMut(u64) -> bool, L: FnMut(Option<MapId>) -> bool> MapWatch for Watcher<R, L> {
    #[inline]
    fn reads(&mut self, address: u64) -> bool {
        // Stack, context and packet are most of a program's reads and none of them is a map's. Sorted out first, they
        // cost one comparison.
        RegionId::of(address).is_beyond_packets() && (self.read)(address)
    }

    #[inline]
    fn calls(&mut self, helper: Helper, memory: &Memory, argument: u64) -> bool {
        // No other helper belongs to the look-up of a row, so to a follower they are all alike: `None`.
        let map = if helper == Helper::MAP_LOOKUP_ELEM { memory.map(argument) } else { None };
        (self.look_up)(map)
    }
}

impl Vm {
    /// Runs a program until it is about to read at this offset of any value of a map. Before that, records its reads
    /// from the values of `note` in `noted`.
    pub fn run_to(
        &mut self,
        program: ProgramId,
        skb: &mut Skb,
        host: &mut VmInputs,
        (map, offset): (MapId, u64),
        (note, noted): (Option<MapId>, &mut Vec<MapByte>),
    ) -> Result<Stop, Box<Trap>> {
        let region = self.values(map);
        let note = note.and_then(|map| self.values(map));
        // The byte within the element, for all elements of the map at once: which endpoint is looked up does not
        // matter.
        let mask = (1 << region.map_or(0, |region| self.memory.shift(region))) - 1;
        let mut addresses = Vec::new();
        let read = |address: u64| {
            let of = Some(RegionId::of(address));
            if note.is_some() && of == note {
                addresses.push(address);
            }
            // `region` is `None` for a map without values; then nothing is ever equal, and the run ends by itself.
            of == region && address & mask == offset
        };
        let stop = self.run_until(program, skb, host, read);
        // Addresses during the run, places after it: the machine has the memory borrowed until then.
        noted.extend(addresses.into_iter().filter_map(|address| self.spot(address)));
        stop
    }

    /// Runs a program until `read` returns true for the address that it is about to read.
    fn run_until(
        &mut self,
        program: ProgramId,
        skb: &mut Skb,
        host: &mut VmInputs,
        read: impl FnMut(u64) -> bool,
    ) -> Result<Stop, Box<Trap>> {
        let budget = self.budget;
        let mut machine = Execution::new(self, program, skb, host);
        machine.enter_frame();
        machine.enter_program(program);
        let result = machine.start(budget, &mut Watcher { read, look_up: |_| false });
        // Before `finish`, which takes the packet away. After a trap the state is useless, but saving it costs less
        // than asking.
        let saved = machine.save();
        machine.finish();
        Ok(match (result?, saved) {
            ((_, RunEnd::Stopped), Some(saved)) => Stop::Before(Box::new(StoppedRun(saved))),
            ((outcome, _), _) => Stop::Ended(outcome),
        })
    }

    /// Resumes a state and runs while the program touches only `maps`, and values of `also`. Returns the last byte that
    /// it read in `maps`; reads in `also` are not recorded.
    pub fn follow(
        &mut self,
        state: &StoppedRun,
        skb: &mut Skb,
        host: &mut VmInputs,
        maps: [Option<MapId>; 2],
        also: [Option<MapId>; 2],
    ) -> Result<Option<MapByte>, Box<Trap>> {
        let regions = maps.map(|map| self.values(map?));
        let also = also.map(|map| self.values(map?));
        let mut last = None;
        let read = |address: u64| {
            let region = Some(RegionId::of(address));
            // Both maps of a row look-up: a miss in the rows is followed by a read of the defaults, and the last read
            // counts.
            let noted = region == regions[0] || region == regions[1];
            if noted {
                last = Some(address);
            }
            // A read of any other map means that the look-up is over. Without this end, the rest of the program would
            // run, and its reads of flows and counters would be taken for the set.
            !noted && region != also[0] && region != also[1]
        };
        // Calls end it too, except look-ups in the row's own maps.
        let look_up = |map: Option<MapId>| map.is_none() || !maps.contains(&map);
        let budget = self.budget;
        let mut machine = Execution::new(self, state.0.program, skb, host);
        // The packet is the caller's and not the one of the stopped run: a state holds none, and a row look-up reads
        // none.
        machine.restore(&state.0);
        let result = machine.start(budget, &mut Watcher { read, look_up });
        machine.finish();
        // After `finish`, so that the packet is back in its `Skb` also after a trap.
        result?;
        Ok(last.and_then(|address| self.spot(address)))
    }

    /// Runs a program until it is about to read a value of one of these maps for the `nth` time, from 0 on. Ring-buffer
    /// records that it has reserved are discarded.
    pub fn run_to_read(
        &mut self,
        program: ProgramId,
        skb: &mut Skb,
        host: &mut VmInputs,
        maps: &[MapId],
        nth: usize,
    ) -> Result<Stop, Box<Trap>> {
        let regions: Vec<RegionId> = maps.iter().filter_map(|map| self.values(*map)).collect();
        let mut reads = 0;
        let read = |address| {
            reads += usize::from(regions.contains(&RegionId::of(address)));
            reads > nth
        };
        self.run_until(program, skb, host, read)
    }

    /// Resumes a state and runs to the end. The packet must be the one that the run had when it stopped.
    pub fn resume(&mut self, state: &StoppedRun, skb: &mut Skb, host: &mut VmInputs) -> Result<RunOutcome, Box<Trap>> {
        let budget = self.budget;
        let mut machine = Execution::new(self, state.0.program, skb, host);
        machine.restore(&state.0);
        let result = machine.start(budget, &mut super::exec::Unwatched);
        machine.finish();
        result.map(|(outcome, _)| outcome)
    }

    fn spot(&self, address: u64) -> Option<MapByte> {
        self.memory.value(address).map(|(map, element, offset)| MapByte { map, element, offset })
    }

    /// The bytes of a value, by the number of its entry.
    pub fn value_at(&self, map: MapId, element: u64) -> &[u8] {
        self.values(map).map_or(&[], |region| self.memory.bytes(region, element))
    }

    /// Overwrites bytes of a value, even if programs may only read it. The kernel has no such operation.
    pub fn poke(&mut self, spot: MapByte, bytes: &[u8]) -> Result<(), Errno> {
        let region = self.values(spot.map).ok_or(Errno::Inval)?;
        // Past the checks for programs, because the map may be frozen and read-only: verification must observe the
        // program with other bytes.
        let value = self.memory.bytes_mut(region, spot.element);
        let end = (spot.offset as usize).saturating_add(bytes.len());
        value.get_mut(spot.offset as usize..end).ok_or(Errno::Inval)?.copy_from_slice(bytes);
        Ok(())
    }

    fn values(&self, map: MapId) -> Option<RegionId> {
        match self.maps.get(map.0 as usize)?.content {
            MapContent::Values(region) => Some(region),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
