//! The generation before: paired with the one in force, then removed or kept as the spare.
//!
//! Problem: during a switch and for a moment after it, packets that one generation has stamped arrive at the other one.
//! Strategy: each of the two knows the other's stamp and program, until no packet that the retired one has stamped can
//! be under way. Then the pair is separated. The retired generation becomes the spare, which the next change fills
//! again instead of loading programs, or its pins are removed. Before it becomes the spare, programs of it that began
//! just before must end. That can take tens of milliseconds, so an agent lets a thread wait for it
//! ([`Runtime::separate`]).
//! Invariant: a spare's programs run nowhere, and no packet that they have stamped is under way.

use std::io;
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::Duration;

use weir_artifact::layout::{MapName, config, mark};

use super::{Runtime, uptime};
use crate::error::{Doing as _, Error};
use crate::generation::{self, LoadedGeneration};
use crate::pins::Age;
use crate::point::ProgramSide;
use crate::record::{EnforcementRecord, KernelGeneration};
use crate::system::TypedCell;

/// A retired generation that no packet enters any more, and the wait for the programs that ran at that time.
#[derive(Debug)]
pub(crate) struct SeparatedGeneration {
    stamp: u8,
    /// When it was retired.
    since: u64,
    wait: JoinHandle<io::Result<()>>,
}

impl Runtime {
    /// Gives each generation the other's stamp and program, from the time when packets of either can arrive.
    pub(super) fn pair(&self, one: &LoadedGeneration, other: &LoadedGeneration) -> Result<(), Error> {
        use std::os::fd::AsFd as _;
        // From here on, packets can enter either of them again.
        self.take_separated();
        let pairing = "pair two generations";
        for (this, that) in [(one, other), (other, one)] {
            let slot = this.map(MapName::Other);
            if let Some(slot) = slot {
                let program = that.program(ProgramSide::ToPod).as_fd();
                self.system.update_descriptor(slot, &[0; 4], program).doing(pairing)?;
            }
        }
        self.set_config(one, config::OTHER, u32::from(other.generation.stamp))?;
        self.set_config(other, config::OTHER, u32::from(one.generation.stamp))
    }

    /// Writes one number of a generation's configuration, such as the stamp of the other generation.
    pub(super) fn set_config(&self, loaded: &LoadedGeneration, at: i32, number: u32) -> Result<(), Error> {
        let Some(map) = loaded.map(MapName::Config) else { return Ok(()) };
        let setting = "write the map config";
        let map: TypedCell<config::Value> = self.system.typed(map).doing(setting)?;
        let mut value = self.system.load_cell(&map).doing(setting)?;
        let before = std::mem::replace(&mut value[at as usize / 4], number);
        if before == number { Ok(()) } else { self.system.store_cell(&map, &value).doing(setting) }
    }

    /// The objects of the previous generation, as long as it is kept.
    pub(super) fn retired(&self, record: &EnforcementRecord) -> Result<Option<LoadedGeneration>, Error> {
        let Some((retired, _)) = &record.retired else { return Ok(None) };
        generation::open(&self.objects(), record, retired, Age::Old)
    }

    pub(super) fn pair_with_retired(&self, record: &EnforcementRecord, loaded: &LoadedGeneration) -> Result<(), Error> {
        match self.retired(record)? {
            Some(retired) => self.pair(loaded, &retired),
            None => self.unpair(loaded),
        }
    }

    pub(super) fn unpair(&self, loaded: &LoadedGeneration) -> Result<(), Error> {
        self.set_config(loaded, config::OTHER, mark::NONE)?;
        let Some(slot) = loaded.map(MapName::Other) else { return Ok(()) };
        // The slot gets the program itself instead of being emptied: the kernel waits for every CPU before it empties a
        // slot.
        let itself = std::os::fd::AsFd::as_fd(loaded.program(ProgramSide::ToPod));
        self.system.update_descriptor(slot, &[0; 4], itself).doing("unpair two generations")
    }

    /// For an agent: separates the previous generation from the one in force, after waiting until no packet that it has
    /// stamped can be under way. [`Self::reap`] then waits only until the programs that run now have ended.
    pub fn separate(&self) -> Result<(), Error> {
        let record = self.record()?;
        let Some((retired, since)) = &record.retired else { return Ok(()) };
        let Some(loaded) = self.current(&record)?.filter(|_| self.can_become_spare(&record)) else { return Ok(()) };
        self.wait_for_packets(*since);
        self.unpair(&loaded)?;
        // An error is no reason to fail: `reap` tries again.
        let wait = self.system.begin_wait_for_programs().ok();
        let separated = wait.map(|wait| SeparatedGeneration { stamp: retired.stamp, since: *since, wait });
        *self.separated.lock().unwrap_or_else(PoisonError::into_inner) = separated;
        Ok(())
    }

    fn take_separated(&self) -> Option<SeparatedGeneration> {
        self.separated.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits until no packet can be under way that was stamped before this time.
    fn wait_for_packets(&self, since: u64) {
        let age = Duration::from_millis(uptime().saturating_sub(since));
        std::thread::sleep(self.grace.saturating_sub(age));
    }

    /// Removes the previous generation, or makes it the spare, after waiting until no packet that it has stamped can be
    /// under way.
    pub fn reap(&self) -> Result<(), Error> {
        let restored = self.kept_during(|| self.reap_retired(&mut self.record()?))?;
        self.report_later(restored);
        Ok(())
    }

    /// Returns, in words, the pins that were missing.
    pub(super) fn reap_retired(&self, record: &mut EnforcementRecord) -> Result<Vec<String>, Error> {
        let Some((retired, since)) = &record.retired else { return Ok(Vec::new()) };
        let is_it = |it: &SeparatedGeneration| (it.stamp, it.since) == (retired.stamp, *since);
        let separated = self.take_separated().filter(is_it);
        self.wait_for_packets(*since);
        // First the current generation forgets the retired one, then the record does, then the pins go. A process that
        // dies in between leaves at most pins that the next `place_pins` removes.
        if separated.is_none()
            && let Some(loaded) = self.current(record)?
        {
            self.unpair(&loaded)?;
        }
        let is_reusable = self.can_become_spare(record) && self.have_programs_ended(separated);
        record.spare = record.retired.take().map(|(retired, _)| retired).filter(|_| is_reusable);
        self.write_record(record)?;
        let restored = self.place_pins_or_drop_spare(record)?;
        if !restored.is_empty() {
            record.repaired += restored.len() as u64;
            self.write_record(record)?;
        }
        Ok(restored)
    }

    /// Whether the retired generation can become the spare once the programs have ended that run now.
    fn can_become_spare(&self, record: &EnforcementRecord) -> bool {
        let has_code = record.retired.as_ref().is_some_and(|(retired, _)| !retired.code.is_empty());
        // Programs of an endpoint that is leaving may be those of the retired generation.
        self.spares && has_code && record.leaving.is_empty()
    }

    /// Waits for the programs that ran when the two generations were separated: a packet can have entered the retired
    /// one just before.
    fn have_programs_ended(&self, separated: Option<SeparatedGeneration>) -> bool {
        match separated {
            Some(SeparatedGeneration { wait, .. }) => wait.join().is_ok_and(|waited| waited.is_ok()),
            None => self.system.wait_for_programs().is_ok(),
        }
    }

    /// Removes a spare's pins, also that of a file for the generation that was to take its place, and lets its objects
    /// go.
    pub(super) fn remove_spare(&self, spare: &KernelGeneration) -> Result<(), Error> {
        for age in [Age::Old, Age::Next] {
            let maps = spare.maps.keys().map(|name| self.pins.map(age, name));
            let programs = ProgramSide::BOTH.map(|side| self.pins.program(age, side));
            for path in maps.chain(programs).chain([self.pins.edge_program(age)]) {
                self.system.unpin(&path).doing(format!("remove {}", path.display()))?;
            }
        }
        self.release(spare);
        Ok(())
    }

    /// Forgets the spare and removes its pins.
    pub(super) fn drop_spare(&self, record: &mut EnforcementRecord) -> Result<(), Error> {
        if record.spare.take().is_some() {
            self.write_record(record)?;
            self.place_pins(record)?;
        }
        Ok(())
    }
}

impl KernelGeneration {
    /// A stamp that no generation in force has.
    pub(super) fn free_stamp(record: &EnforcementRecord) -> u8 {
        let taken = |stamp: &u8| {
            let all = record.current.iter().chain(record.retired.iter().map(|(it, _)| it));
            all.into_iter().any(|it| it.stamp == *stamp)
        };
        (1..=3).find(|stamp| !taken(stamp)).unwrap_or(1)
    }
}
