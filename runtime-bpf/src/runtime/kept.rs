//! The agent's descriptors of all pinned objects.
//!
//! Problem: any root process can remove pins: one by one, all at once, or between two of our operations. A TCX link
//! ends with its last reference. So without its pin the pod would be open, and the flow tables would be lost too.
//! Strategy: the agent holds every link, program and map by descriptor, and the record as a value, so removing pins
//! ends none of them. Each operation first restores missing pins; [`Runtime::reconcile`] and each switch restore the
//! pins of programs and maps. Invariant: this is a copy of the record and its objects, taken after each operation. If
//! it cannot be taken, the next operation takes it first, and does not restore an earlier record in place of the one
//! that is there.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::Runtime;
use super::recorded_pins::{KernelObjectId, ObjectKind, RecordedPin};
use crate::error::{Doing as _, Error};
use crate::pins::Pins;
use crate::point::{HookKind, ProgramSide};
use crate::record::{EnforcementRecord, KernelGeneration};
use crate::sys::{KernelLink, KernelMap, KernelProgram, Lock};
use crate::system::ListedFiles;

/// Open programs and maps by number. The kernel uses no number twice, so an object that is found here is the right one.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldObjects {
    programs: BTreeMap<u32, KernelProgram>,
    maps: BTreeMap<u32, KernelMap>,
}

impl HeldObjects {
    pub(crate) fn program(&self, number: u32) -> Option<KernelProgram> {
        self.programs.get(&number).cloned()
    }

    pub(crate) fn map(&self, number: u32) -> Option<KernelMap> {
        self.maps.get(&number).cloned()
    }

    /// Whether these are all objects of the record, and no others.
    fn are_of(&self, record: &EnforcementRecord) -> bool {
        let programs = record.generations().flat_map(|it| it.programs.into_iter().chain(it.edge));
        let maps = record.generations().flat_map(|it| it.maps.values()).chain(record.shared.values());
        let (programs, maps): (BTreeSet<u32>, BTreeSet<u32>) = (programs.collect(), maps.copied().collect());
        self.programs.keys().eq(&programs) && self.maps.keys().eq(&maps)
    }
}

/// A link, the name of its pin, and the inode of its pin if it was seen to be this link's.
#[derive(Clone, Debug)]
struct HeldLink {
    link: KernelLink,
    name: String,
    pin: Option<u64>,
}

/// Links by interface and side.
type HeldLinks = BTreeMap<(u32, ProgramSide), HeldLink>;

/// The copy of the record and its objects.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The record, and the number of the map that contains it.
    record: Option<(Arc<EnforcementRecord>, u32)>,
    objects: Arc<HeldObjects>,
    links: HeldLinks,
    /// The list in which each of the links had its pin.
    links_pinned: Option<ListedFiles>,
    /// The objects of the pins that were opened, by inode. A pin's object never changes, so no pin is opened twice.
    pins: BTreeMap<u64, KernelObjectId>,
    /// Restored pins and other repairs, in words, since the last report.
    restored: Vec<String>,
}

/// A directory's device and number.
fn identity(directory: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(directory).ok().map(|it| (it.dev(), it.ino()))
}

/// A lock, and the directory that it is on.
#[derive(Debug)]
pub(crate) struct Locked {
    _lock: Lock,
    identity: Option<(u64, u64)>,
}

impl Locked {
    pub(crate) fn new(lock: Lock, directory: &Path) -> Self {
        Self { _lock: lock, identity: identity(directory) }
    }
}

impl Runtime {
    /// For the agent: holds all pinned objects by descriptor, and restores pins that other processes remove.
    pub fn keeping(self) -> Result<Self, Error> {
        let system = self.system.with_lists().doing("ask for messages about interfaces, addresses and filters")?;
        let runtime = Self {
            system,
            kept: Some(Default::default()),
            contests: Some(Default::default()),
            hurried_moves: Some(Default::default()),
            latest_table: Some(Default::default()),
            latest_code: Some(Default::default()),
            written: Some(Default::default()),
            ..self
        };
        let runtime = runtime.with_spare();
        runtime.remember()?;
        Ok(runtime)
    }

    fn kept(&self) -> Option<MutexGuard<'_, Kept>> {
        // A panic leaves descriptors behind, never a wrong record.
        self.kept.as_ref().map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Restores missing pins, runs an operation, then updates the copy.
    pub(crate) fn kept_during<T>(&self, operation: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.bring_back()?;
        let result = operation();
        // After a failure, the record shows how far the operation came.
        let remembered = self.remember();
        result.and_then(|value| remembered.map(|()| value))
    }

    /// Called after a detach of all endpoints, when there is nothing to restore.
    pub(crate) fn forget_kept(&self) {
        self.kept().into_iter().for_each(|mut kept| *kept = Kept::default());
    }

    /// Forgets the content of all tables: the next switch reads the tables that it reuses.
    pub(crate) fn forget_written(&self) {
        self.written.iter().for_each(|written| written.retain(|_| false));
    }

    /// Closes the descriptors of a generation that is no longer needed.
    pub(crate) fn release(&self, generation: &KernelGeneration) {
        self.written.iter().for_each(|written| written.retain(|map| !generation.maps.values().any(|it| *it == map)));
        let Some(mut kept) = self.kept() else { return };
        let HeldObjects { programs, maps } = Arc::make_mut(&mut kept.objects);
        programs.retain(|number, _| !generation.programs.contains(number) && generation.edge != Some(*number));
        maps.retain(|number, _| !generation.maps.values().any(|it| it == number));
    }

    /// The pins that were restored since the last call.
    pub(crate) fn take_restored(&self) -> Vec<String> {
        self.kept().map(|mut kept| std::mem::take(&mut kept.restored)).unwrap_or_default()
    }

    /// Adds repairs, in words, to an agent's next report.
    pub(crate) fn report_later(&self, mut repaired: Vec<String>) {
        self.kept().into_iter().for_each(|mut kept| kept.restored.append(&mut repaired));
    }

    /// The record as it was written last, if it is kept.
    pub(crate) fn kept_record(&self) -> Option<Arc<EnforcementRecord>> {
        self.kept().and_then(|kept| kept.record.as_ref().map(|(record, _)| Arc::clone(record)))
    }

    /// Restores directories, lock, record and links. `place_pins` restores programs and maps.
    pub(crate) fn bring_back(&self) -> Result<(), Error> {
        self.bring_record_back()?;
        let Some(mut kept) = self.kept() else { return Ok(()) };
        let there = self.link_pins()?;
        if kept.has_seen(&there) {
            return Ok(());
        }
        let Kept { links, restored, .. } = &mut *kept;
        for ((ifindex, side), held) in &mut *links {
            // Opening every pin would take more than half of the system calls of a switch.
            let pin = there.inode_of(&held.name);
            if held.pin.is_none() || held.pin != pin {
                held.pin = None;
                let place = self.pins.link(*ifindex, *side);
                let is_right = self.bring_link_back(&place, &held.link, restored)?;
                held.pin = pin.filter(|_| is_right);
            }
        }
        kept.links_pinned = kept.links.values().all(|held| held.pin.is_some()).then_some(there);
        Ok(())
    }

    /// The pins of links.
    pub(super) fn link_pins(&self) -> Result<ListedFiles, Error> {
        self.system.list(&self.pins.links()).doing("list links")
    }

    /// The open programs and maps; none for a command.
    pub(crate) fn held_objects(&self) -> Arc<HeldObjects> {
        self.kept().map(|kept| Arc::clone(&kept.objects)).unwrap_or_default()
    }

    /// The agent's link at an interface.
    pub(crate) fn held_link(&self, ifindex: u32, side: ProgramSide) -> Option<KernelLink> {
        self.kept()?.links.get(&(ifindex, side)).map(|held| held.link.clone())
    }

    /// The interfaces at which the agent has both links, sorted.
    pub(super) fn held_interfaces(&self) -> Vec<u32> {
        let Some(kept) = self.kept() else { return Vec::new() };
        let interfaces: Vec<u32> = kept.links.keys().map(|(ifindex, _)| *ifindex).collect();
        interfaces.chunk_by(|one, other| one == other).filter(|it| it.len() == 2).map(|it| it[0]).collect()
    }

    /// The object of a pin that was opened before.
    pub(crate) fn known_pin(&self, inode: u64) -> Option<KernelObjectId> {
        self.kept()?.pins.get(&inode).copied()
    }

    /// Remembers the objects of exactly these pins.
    pub(crate) fn know_pins(&self, pins: BTreeMap<u64, KernelObjectId>) {
        self.kept().into_iter().for_each(|mut kept| kept.pins = pins.clone());
    }

    /// Calls `work` with a held map.
    pub(crate) fn with_kept_map<T>(&self, number: u32, work: impl FnOnce(&KernelMap) -> T) -> Option<T> {
        self.held_objects().maps.get(&number).map(work)
    }

    /// Whether there is a pin with the name of each held link.
    pub(super) fn has_kept_links(&self, there: &ListedFiles) -> bool {
        let is_there = |held: &HeldLink| there.inode_of(&held.name).is_some();
        self.kept().is_none_or(|kept| kept.has_seen(there) || kept.links.values().all(is_there))
    }

    /// Restores the record, for operations that are frequent and need no links.
    ///
    /// The record in place may be one that this process has written but could not remember, because a call failed after
    /// the write. Then it is remembered now: to restore the one before it would undo an operation.
    pub(crate) fn bring_record_back(&self) -> Result<(), Error> {
        let Some(mut kept) = self.kept() else { return Ok(()) };
        self.lock_again(&mut kept.restored)?;
        let Some((record, number)) = kept.record.clone() else { return Ok(()) };
        let there = self.number_of_record()?;
        if there == Some(number) {
            return Ok(());
        }
        let (latest, its_number) = self.latest_record().written().unwrap_or((record, number));
        if there != Some(its_number) {
            self.write_record(&latest)?;
            kept.restored.push("the record".to_owned());
        }
        drop(kept);
        self.remember()
    }

    /// Takes the lock again if the directory was removed: our lock is on the removed directory, and another process
    /// could lock the new one.
    fn lock_again(&self, restored: &mut Vec<String>) -> Result<(), Error> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let root = self.pins.root();
        if lock.as_ref().is_some_and(|lock| lock.identity.is_none() || lock.identity != identity(root)) {
            self.system.make_directory(root).doing(format!("make {} again", root.display()))?;
            *lock = Some(Locked::new(self.take_lock()?, root));
            restored.push(format!("the directory {}", root.display()));
        }
        self.make_directories()
    }

    fn number_of_record(&self) -> Result<Option<u32>, Error> {
        let map = self.system.pinned_map(&self.pins.record());
        // If an object of another kind is in its place, the record counts as missing.
        Ok(map
            .ok()
            .flatten()
            .map(|map| self.system.map_info(&map))
            .transpose()
            .doing("read the record")?
            .map(|it| it.id))
    }

    /// Pins a link again if its pin is missing or holds another object. Returns whether the pin was right.
    fn bring_link_back(&self, place: &Path, link: &KernelLink, restored: &mut Vec<String>) -> Result<bool, Error> {
        let doing = format!("restore {}", place.display());
        let info = self.system.link_info(link).doing(&doing)?;
        // The interface is gone, or another process detached the link. `reconcile` makes a new link if necessary.
        if info.ifindex == 0 {
            return Ok(false);
        }
        let there = self.system.pinned_link(place).ok().flatten();
        let there = there.and_then(|there| self.system.link_info(&there).ok());
        if there.is_some_and(|there| there.id == info.id) {
            return Ok(true);
        }
        self.system.unpin(place).doing(&doing)?;
        self.system.pin(link.as_fd(), place).doing(&doing)?;
        restored.push(format!("the pin {}", place.display()));
        Ok(false)
    }

    /// Updates the copy if there is a new record.
    pub(crate) fn remember(&self) -> Result<(), Error> {
        let Some(mut kept) = self.kept() else { return Ok(()) };
        let number = self.number_of_record()?;
        // If the record is gone, the next operation restores it.
        let Some(number) = number.filter(|number| kept.record.as_ref().is_none_or(|(_, known)| known != number)) else {
            return Ok(());
        };
        // A record that this process has written need not be read again.
        let written = self.latest_record().written().filter(|(_, its_number)| *its_number == number);
        let record = match written {
            Some((record, _)) => Some(record),
            None => self.shared_record()?,
        };
        let Some(record) = record else { return Ok(()) };
        // An agent that is busy changes the epoch ten times a second, and nothing else.
        if !kept.objects.are_of(&record) {
            kept.objects = Arc::new(self.objects_of(&record, &kept.objects)?);
        }
        // A generation can go in many ways. Its tables are needed as long as it is in the record.
        let maps = &kept.objects.maps;
        self.written.iter().for_each(|written| written.retain(|map| maps.contains_key(&map)));
        let before = kept.record.as_ref().map(|(before, _)| (before.repaired, &before.endpoints));
        if before != Some((record.repaired, &record.endpoints)) {
            kept.links_pinned = None;
            kept.links_pinned = self.hold_links_of(&record, &mut kept.links)?;
        }
        kept.record = Some((record, number));
        Ok(())
    }

    /// Holds links that were made again without a new record.
    pub(crate) fn hold_links(&self) -> Result<(), Error> {
        let Some(mut kept) = self.kept() else { return Ok(()) };
        let Kept { record: Some((record, _)), links, links_pinned, .. } = &mut *kept else { return Ok(()) };
        *links_pinned = None;
        *links_pinned = self.hold_links_of(record, links)?;
        Ok(())
    }

    fn objects_of(&self, record: &EnforcementRecord, before: &HeldObjects) -> Result<HeldObjects, Error> {
        let mut held = HeldObjects::default();
        for RecordedPin { object: KernelObjectId { kind, number }, path } in self.recorded_pins(record) {
            let holding = || format!("open {}", path.display());
            if kind == ObjectKind::Program {
                let known =
                    before.program(number).map_or_else(|| self.system.numbered_program(number), |it| Ok(Some(it)));
                held.programs.extend(known.doing(holding())?.map(|it| (number, it)));
            } else {
                let known = before.map(number).map_or_else(|| self.system.numbered_map(number), |it| Ok(Some(it)));
                held.maps.extend(known.doing(holding())?.map(|it| (number, it)));
            }
        }
        Ok(held)
    }

    /// Makes `links` the links of the record's endpoints. Returns the list of pins if each of them has its pin there.
    /// Only pins that were not seen before are opened. After an error, some links are still missing.
    fn hold_links_of(&self, record: &EnforcementRecord, links: &mut HeldLinks) -> Result<Option<ListedFiles>, Error> {
        let (there, mut are_all_pinned) = (self.link_pins()?, true);
        let tcx = record.endpoints.iter().filter(|it| it.way == HookKind::Tcx);
        let wanted: BTreeSet<_> = tcx.flat_map(|local| ProgramSide::BOTH.map(|side| (local.ifindex, side))).collect();
        links.retain(|key, _| wanted.contains(key));
        for key @ (ifindex, side) in wanted {
            let known = links.get(&key);
            if known.is_some_and(|held| held.pin.is_some() && held.pin == there.inode_of(&held.name)) {
                continue;
            }
            let name = Pins::link_name(ifindex, side);
            let pin = there.inode_of(&name);
            let opened = match self.pinned_link_at(&self.pins.link(ifindex, side), ifindex) {
                // Another process has put something else there. The next comparison pins the known link again.
                Err(_) if known.is_some() => None,
                opened => opened?,
            };
            are_all_pinned &= opened.is_some() && pin.is_some();
            links.extend(opened.map(|link| (key, HeldLink { link, name, pin })));
        }
        Ok(are_all_pinned.then_some(there))
    }

    /// The link that is pinned there, unless it is another interface's.
    fn pinned_link_at(&self, place: &Path, ifindex: u32) -> Result<Option<KernelLink>, Error> {
        let opening = format!("open {}", place.display());
        let Some(link) = self.system.pinned_link(place).doing(&opening)? else { return Ok(None) };
        let info = self.system.link_info(&link).doing(opening)?;
        Ok(Some(link).filter(|_| info.ifindex == ifindex))
    }
}

impl Kept {
    /// Whether each link had its pin in this list.
    fn has_seen(&self, there: &ListedFiles) -> bool {
        self.links_pinned.as_ref().is_some_and(|seen| seen.is_same(there))
    }
}
