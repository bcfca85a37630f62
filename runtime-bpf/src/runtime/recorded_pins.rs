//! The pins of the recorded objects: each at its path, and no others.
//!
//! Problem: a switch moves the pins of two generations to other paths, and the process can die between two moves.
//! Another process can move or remove pins at any time.
//! Strategy: a pin is recognised by the kernel's number of its object, not by its path. So [`Runtime::place_pins`]
//! makes the paths right from any state. An object whose pin is missing is looked up by its number and pinned again.
//! Invariant: afterwards each recorded object that exists is pinned at its path, and the directories have no other pins
//! of programs and maps.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use weir_artifact::layout::AT_EDGE;

use super::Runtime;
use crate::error::{Doing as _, Error};
use crate::pins::{Age, Pins};
use crate::point::ProgramSide;
use crate::record::EnforcementRecord;
use crate::sys::errno;

/// Programs and maps have numbers of their own: the same number may belong to one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Program,
    Map,
}

/// A program or map, by the kernel's number. The kernel counts up, so a later object has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelObjectId {
    pub(super) kind: ObjectKind,
    pub(super) number: u32,
}

/// An object in the record, and the path of its pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedPin {
    pub(super) object: KernelObjectId,
    pub(super) path: PathBuf,
}

/// The result of [`Runtime::place_pins`].
#[derive(Debug, Default)]
pub(super) struct PlacedPins {
    /// Pins that were missing and are there again, in words.
    pub(super) restored: Vec<String>,
    /// Pins whose objects no longer exist.
    lost: Vec<PathBuf>,
}

impl Runtime {
    /// All objects in the record, with the paths of their pins.
    pub(super) fn recorded_pins(&self, record: &EnforcementRecord) -> Vec<RecordedPin> {
        let mut pins = Vec::new();
        let mut add = |kind, number, path| pins.push(RecordedPin { object: KernelObjectId { kind, number }, path });
        let ages = [(&record.current, Age::Current), (&record.next, Age::Next)];
        // There is never a retired generation and a spare: a switch takes the spare, or drops it.
        let retired = record.retired.as_ref().map(|(generation, _)| generation).or(record.spare.as_ref());
        let retired = retired.map(|generation| (generation, Age::Old));
        let of_age = ages.into_iter().filter_map(|(it, age)| it.as_ref().map(|it| (it, age))).chain(retired);
        for (generation, age) in of_age {
            for (side, number) in ProgramSide::BOTH.into_iter().zip(generation.programs) {
                add(ObjectKind::Program, number, self.pins.program(age, side));
            }
            if let Some(number) = generation.edge {
                add(ObjectKind::Program, number, self.pins.edge_program(age));
            }
            generation.maps.iter().for_each(|(name, number)| add(ObjectKind::Map, *number, self.pins.map(age, name)));
        }
        record.shared.iter().for_each(|(name, it)| add(ObjectKind::Map, *it, self.pins.map(Age::Current, name)));
        pins
    }

    /// Like [`Self::place_pins`]. If an object of the spare no longer exists, the spare is dropped: unlike programs in
    /// force, nothing but its pins keeps it.
    pub(super) fn place_pins_or_drop_spare(&self, record: &mut EnforcementRecord) -> Result<Vec<String>, Error> {
        let placed = self.place_pins(record)?;
        if record.spare.is_some() && placed.lost.iter().any(|path| path.starts_with(self.pins.old())) {
            self.drop_spare(record)?;
        }
        Ok(placed.restored)
    }

    /// Moves every pin to its path and removes all others. A pin that occupies the path of another pin is moved
    /// first.
    pub(super) fn place_pins(&self, record: &EnforcementRecord) -> Result<PlacedPins, Error> {
        let recorded = self.recorded_pins(record);
        let (mut right, mut moves) = (BTreeSet::new(), BTreeMap::new());
        let mut known = BTreeMap::new();
        for (path, inode) in self.pinned()? {
            // A pin that cannot be opened as a program or map belongs to another process.
            let object = self.known_pin(inode).or_else(|| self.object_at(&path).ok().flatten());
            known.extend(object.map(|object| (inode, object)));
            let to = recorded.iter().find(|it| Some(it.object) == object).map(|it| it.path.as_os_str().to_owned());
            let from = path.into_os_string();
            match to {
                Some(to) if to == from => _ = right.insert(from),
                // Pinned more than once: one of the pins moves there.
                Some(to) if moves.values().any(|it| *it == to) => self.remove_pin(from.as_ref())?,
                Some(to) => _ = moves.insert(from, to),
                None => self.remove_pin(from.as_ref())?,
            }
        }
        self.know_pins(known);
        self.move_pins(moves, &mut right)?;
        let mut placed = PlacedPins::default();
        for RecordedPin { object, path } in recorded.into_iter().filter(|it| !right.contains(it.path.as_os_str())) {
            match self.pin_again(object, &path)? {
                true => placed.restored.push(format!("the pin {}", path.display())),
                false => placed.lost.push(path),
            }
        }
        Ok(placed)
    }

    fn remove_pin(&self, path: &Path) -> Result<(), Error> {
        self.system.unpin(path).doing(format!("remove {}", path.display()))
    }

    /// Moves pins from their paths (the keys) to others. A rename replaces the pin at its target, so a path is free
    /// before a pin moves there: its own pin moves first, or the two change places. After a switch to the spare, all
    /// pins of two generations do. A process that dies in between leaves only pins that the next call finds by their
    /// numbers.
    ///
    /// The paths are compared as bytes: to compare them as paths takes as long as moving them.
    fn move_pins(&self, mut moves: BTreeMap<OsString, OsString>, right: &mut BTreeSet<OsString>) -> Result<(), Error> {
        while let Some((from, to)) = moves.iter().find(|(_, to)| !moves.contains_key(*to)).or(moves.iter().next()) {
            let (from, to) = (from.clone(), to.clone());
            let moving = format_args!("move {} to {}", from.display(), to.display());
            moves.remove(&from);
            match moves.remove(&to) {
                None => self.system.rename(from.as_ref(), to.as_ref()).doing(moving)?,
                Some(others) => {
                    self.exchange_pins(from.as_ref(), to.as_ref()).doing(moving)?;
                    // The other pin is here now.
                    match others == from {
                        true => _ = right.insert(from),
                        false => _ = moves.insert(from, others),
                    }
                }
            }
            right.insert(to);
        }
        Ok(())
    }

    /// Exchanges two pins, at once if the kernel can.
    pub(super) fn exchange_pins(&self, one: &Path, other: &Path) -> std::io::Result<()> {
        match self.system.exchange_pins(one, other) {
            Ok(()) => Ok(()),
            Err(error) if errno(&error) == Some(libc::ENOENT) => Err(error),
            // The kernel is too old, or a filter of system calls refuses this one.
            Err(_) => {
                let between = self.pins.between();
                [(one, &*between), (other, one), (&*between, other)]
                    .into_iter()
                    .try_for_each(|(from, to)| self.system.rename(from, to))
            }
        }
    }

    /// The pins of programs and maps, and their inodes.
    pub(super) fn pinned(&self) -> Result<Vec<(PathBuf, u64)>, Error> {
        let mut pins = Vec::new();
        for directory in self.pins.directories().into_iter().filter(|it| *it != self.pins.links()) {
            let files = self.system.list(&directory).doing(format!("list {}", directory.display()))?;
            pins.extend(files.iter().map(|file| (directory.join(&file.name), file.inode)));
        }
        Ok(pins)
    }

    /// The program or map that is pinned there; `None` if there is no pin.
    pub(super) fn object_at(&self, path: &Path) -> Result<Option<KernelObjectId>, Error> {
        let opening = format!("open {}", path.display());
        let is_program =
            ProgramSide::BOTH.into_iter().any(|side| path.ends_with(side.program())) || path.ends_with(AT_EDGE);
        // There it can be either.
        let is_program = is_program || path == self.pins.between() && self.system.pinned_map(path).is_err();
        if is_program {
            let program = self.system.pinned_program(path).doing(&opening)?;
            let info = program.map(|it| self.system.program_info(&it)).transpose().doing(opening)?;
            Ok(info.map(|info| KernelObjectId { kind: ObjectKind::Program, number: info.id }))
        } else {
            let map = self.system.pinned_map(path).doing(&opening)?;
            let info = map.map(|it| self.system.map_info(&it)).transpose().doing(opening)?;
            Ok(info.map(|info| KernelObjectId { kind: ObjectKind::Map, number: info.id }))
        }
    }

    /// Another process has removed a pin. The object may still exist: it is found by its number and pinned again.
    /// Returns whether it was found.
    fn pin_again(&self, object: KernelObjectId, path: &Path) -> Result<bool, Error> {
        use std::os::fd::AsFd as _;
        let pinning = format!("pin {}", path.display());
        match object.kind {
            ObjectKind::Program => {
                let Some(program) = self.system.numbered_program(object.number).doing(&pinning)? else {
                    return Ok(false);
                };
                self.system.pin(program.as_fd(), path).doing(pinning)?;
            }
            ObjectKind::Map => {
                let Some(map) = self.system.numbered_map(object.number).doing(&pinning)? else { return Ok(false) };
                self.system.pin(map.as_fd(), path).doing(pinning)?;
            }
        }
        Ok(true)
    }

    /// Removes links of interfaces that are not in the record.
    pub(super) fn remove_stray_links(&self, record: &EnforcementRecord) -> Result<(), Error> {
        let links = self.pins.links();
        for name in self.system.list(&links).doing("list links")?.names() {
            let owned = Pins::link_of(name).is_some_and(|index| record.endpoints.iter().any(|it| it.ifindex == index))
                || Pins::uplink_of(name).is_some_and(|index| record.uplinks.iter().any(|it| it.ifindex == index));
            if !owned {
                let path = links.join(name);
                // The link ends when its pin is removed.
                self.system.unpin(&path).doing(format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }
}
