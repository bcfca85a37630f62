//! The generation before: paired with the one in force, then removed or kept as the spare.
//!
//! Problem: during a switch and for a moment after it, packets that one generation has stamped arrive at the other one.
//! Strategy: each of the two knows the other's stamp and program, until no packet that the retired one has stamped can
//! be under way. Then the pair is separated. The retired generation becomes the spare, which the next change fills
//! again instead of loading programs, or its pins are removed.
//!
//! Two waits are needed, of 10 to 30 ms each. A packet goes from hook to hook in one read-side critical section of RCU,
//! unless something queues it: so the pair is separated after a grace period, and after [`GRACE`](super::GRACE) for
//! packets in queues. Then programs of the retired generation that began just before must end. An agent lets threads
//! wait ([`Runtime::separate`]), because a pod that comes meanwhile would wait with it.
//! Invariant: a spare's programs run nowhere, and no packet that they have stamped is under way, except in a queue for
//! longer than that. Tests: `runtime-bpf/tests/enforce/retired.rs`.

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

/// A thread that waits for the programs of a retired generation.
#[derive(Debug)]
pub(crate) struct RetiredWait {
    /// The generation's stamp, and when it was retired.
    of: (u8, u64),
    /// Whether no packet can enter the generation since the wait began.
    is_separated: bool,
    thread: JoinHandle<io::Result<()>>,
}

impl Runtime {
    /// Gives each generation the other's stamp and program, from the time when packets of either can arrive.
    pub(super) fn pair(&self, one: &LoadedGeneration, other: &LoadedGeneration) -> Result<(), Error> {
        use std::os::fd::AsFd as _;
        // From here on, packets can enter either of them again.
        self.take_wait();
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
        self.bring_record_back()?;
        let record = self.record()?;
        let Some((_, since)) = record.retired.as_ref().filter(|_| self.can_become_spare(&record)) else {
            return Ok(());
        };
        let wait = self.take_wait_of(&record);
        if wait.as_ref().is_some_and(|it| it.is_separated) {
            self.keep_wait(wait);
            return Ok(());
        }
        self.wait_for_packets(*since, wait);
        let Some(loaded) = self.current(&record)? else { return Ok(()) };
        self.unpair(&loaded)?;
        self.begin_wait(&record, true);
        Ok(())
    }

    /// For an agent: begins to wait for the packets that the retired generation has stamped.
    pub(super) fn begin_to_retire(&self, record: &EnforcementRecord) {
        if self.kept.is_some() && !self.grace.is_zero() {
            self.begin_wait(record, false);
        }
    }

    fn begin_wait(&self, record: &EnforcementRecord, is_separated: bool) {
        let Some(of) = retired(record) else { return };
        // An error is no reason to fail: then `reap` waits itself.
        let thread = self.system.begin_wait_for_programs().ok();
        self.keep_wait(thread.map(|thread| RetiredWait { of, is_separated, thread }));
    }

    fn keep_wait(&self, wait: Option<RetiredWait>) {
        *self.retired_wait.lock().unwrap_or_else(PoisonError::into_inner) = wait;
    }

    fn take_wait(&self) -> Option<RetiredWait> {
        self.retired_wait.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn take_wait_of(&self, record: &EnforcementRecord) -> Option<RetiredWait> {
        self.take_wait().filter(|wait| Some(wait.of) == retired(record))
    }

    /// Waits until no packet can be under way that was stamped before this time.
    fn wait_for_packets(&self, since: u64, wait: Option<RetiredWait>) {
        let until_age = |age| {
            let now = Duration::from_millis(uptime().saturating_sub(since));
            std::thread::sleep(Duration::saturating_sub(age, now));
        };
        until_age(self.grace);
        // Where the kernel cannot wait for programs, there is only the time.
        if !self.grace.is_zero() && !self.have_programs_ended(wait) {
            until_age(2 * self.grace);
        }
    }

    /// Whether a thread still waits. Then [`Self::separate`] and [`Self::reap`] would wait for it.
    pub fn is_retired_in_use(&self) -> bool {
        let wait = self.retired_wait.lock().unwrap_or_else(PoisonError::into_inner);
        wait.as_ref().is_some_and(|it| !it.thread.is_finished())
    }

    /// Waits for the programs that ran when this wait began; without one, for those that run now. Returns `false` if
    /// the kernel cannot.
    fn have_programs_ended(&self, wait: Option<RetiredWait>) -> bool {
        match wait {
            Some(RetiredWait { thread, .. }) => thread.join().is_ok_and(|waited| waited.is_ok()),
            None => self.system.wait_for_programs().is_ok(),
        }
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
        let Some((_, since)) = &record.retired else { return Ok(Vec::new()) };
        let (separated, earlier) = match self.take_wait_of(record) {
            Some(wait) if wait.is_separated => (Some(wait), None),
            earlier => (None, earlier),
        };
        // First the current generation forgets the retired one, then the record does, then the pins go. A process that
        // dies in between leaves at most pins that the next `place_pins` removes.
        if separated.is_none() {
            self.wait_for_packets(*since, earlier);
            self.current(record)?.map_or(Ok(()), |loaded| self.unpair(&loaded))?;
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

/// The stamp of the retired generation, and when it was retired.
fn retired(record: &EnforcementRecord) -> Option<(u8, u64)> {
    record.retired.as_ref().map(|(generation, since)| (generation.stamp, *since))
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
