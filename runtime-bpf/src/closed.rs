//! Closes an interface until policy is enforced on it.
//!
//! Strategy: a program that drops everything, on both sides. With TCX it has links of its own. If they run first, they
//! become those of a generation's programs ([`Point::place`]); others are removed once a generation is in force there.
//! With clsact it is the filter that the generation's program replaces.
//! Invariant: at every moment, one of the two programs is attached.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Doing as _, Error};
use crate::pins::Pins;
use crate::point::{self, HookKind, Point, ProgramSide};
use crate::runtime::{self, EnforcementState, Runtime};
use crate::sys::{KernelProgram, errno};
use crate::system::System;

/// `r0 = TC_ACT_SHOT; exit`
const DROP: [u8; 16] = [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// A directory under the directory of pins.
const DIRECTORY: &str = "held";

pub(crate) fn pins(bpffs: &Path) -> Pins {
    Pins::new(&bpffs.join(DIRECTORY))
}

/// Closes an interface of this network namespace.
pub fn close_interface(bpffs: &Path, interface: &str) -> Result<(), Error> {
    let system = System::open().map_err(Error::NoBpf)?;
    let (bpffs, _root) = runtime::reach(&system, bpffs)?;
    close(&system, &bpffs, interface, &load(&system)?)
}

/// The program that drops everything.
fn load(system: &System) -> Result<KernelProgram, Error> {
    system.load(point::CLOSED, &DROP, None).map_err(|error| Error::Refused { program: point::CLOSED, error })
}

fn close(system: &System, bpffs: &Path, interface: &str, program: &KernelProgram) -> Result<(), Error> {
    let (pins, closing) = (pins(bpffs), format!("close {interface}"));
    system.make_directory(&pins.links()).doing(&closing)?;
    let found = system.interface_named(interface).doing(&closing)?;
    let ifindex = found.ok_or_else(|| Error::NoInterface { pod: None, name: interface.to_owned() })?.ifindex;
    let way = point::choose(system, None)?;
    // With TCX, these links have pins of their own: the link of a generation's program, if there is one, keeps its
    // program and its place. With clsact, there is one filter for both.
    for side in ProgramSide::BOTH {
        Point { system, pins: &pins, ifindex, side, way, held: None }.place(program).doing(&closing)?;
    }
    Ok(())
}

/// Moves a generation's program before all other programs at a point. All packets are dropped meanwhile. If the process
/// dies, the interface stays closed until the next check of hooks removes what drops them.
pub(crate) fn move_to_front(
    system: &System,
    bpffs: &Path,
    point: &Point<'_>,
    program: &KernelProgram,
) -> Result<(), Error> {
    let (pins, moving) = (pins(bpffs), format!("move {} to the front", point.side.program()));
    system.make_directory(&pins.links()).doing(&moving)?;
    point.move_to_front(program, &Point { pins: &pins, held: None, ..point.clone() }, &load(system)?).doing(moving)
}

/// Opens the closed interfaces on which a generation is in force now (`is_done`), and forgets those that are gone.
/// Returns both.
pub(crate) fn open_interfaces(system: &System, bpffs: &Path, is_done: impl Fn(u32) -> bool) -> Result<Vec<u32>, Error> {
    let (pins, opening) = (pins(bpffs), "open closed interfaces");
    let mut opened = BTreeSet::new();
    for name in system.list(&pins.links()).doing(opening)?.names() {
        let Some(ifindex) = Pins::link_of(name) else { continue };
        let is_there = system.interface_numbered(ifindex).doing(opening)?.is_some();
        if is_done(ifindex) || !is_there {
            // The link ends when its pin is removed.
            system.unpin(&pins.links().join(name)).doing(opening)?;
            opened.insert(ifindex);
        }
    }
    Ok(opened.into_iter().collect())
}

/// Opens all closed interfaces for an uninstall. A closing filter has no pin that names its interface, so every
/// interface of this network namespace is looked at.
pub(crate) fn open_all(system: &System, bpffs: &Path) -> Result<(), Error> {
    open_interfaces(system, bpffs, |_| true)?;
    let (pins, opening) = (pins(bpffs), "open closed interfaces");
    for ifindex in system.interfaces().doing(opening)?.keys() {
        for side in ProgramSide::BOTH {
            let point = Point { system, pins: &pins, ifindex: *ifindex, side, way: HookKind::Clsact, held: None };
            match point.remove_closing_filters() {
                // The interface is gone, and the filter with it.
                Err(error) if errno(&error) == Some(libc::ENODEV) => {}
                other => other.doing(opening)?,
            }
        }
    }
    Ok(())
}

/// Removes the directories of closed interfaces, which must be empty.
pub(crate) fn remove_directories(system: &System, bpffs: &Path) -> Result<(), Error> {
    let pins = pins(bpffs);
    for directory in [pins.links(), pins.root().to_owned()] {
        system.remove_directory(&directory).doing(format!("remove {}", directory.display()))?;
    }
    Ok(())
}

impl Runtime {
    /// Closes an interface of this network namespace. The program for this is loaded once.
    pub fn close_interface(&self, interface: &str) -> Result<(), Error> {
        let program = match self.closing.get() {
            Some(program) => program,
            None => {
                let loaded = load(&self.system)?;
                self.closing.get_or_init(|| loaded)
            }
        };
        close(&self.system, self.pins.root(), interface, program)
    }

    /// Opens the closed interfaces on which a generation is in force now.
    pub fn open_closed_interfaces(&self) -> Result<Vec<u32>, Error> {
        if self.system.list(&pins(self.pins.root()).links()).doing("list closed interfaces")?.is_empty() {
            return Ok(Vec::new());
        }
        self.bring_back()?;
        let record = self.record_here()?;
        let loaded = self.current(&record)?;
        let mut done = Vec::new();
        for local in &record.endpoints {
            if self.state(&record, loaded.as_ref(), local)? == EnforcementState::Enforced {
                done.push(local.ifindex);
            }
        }
        open_interfaces(&self.system, self.pins.root(), |ifindex| done.contains(&ifindex))
    }
}
