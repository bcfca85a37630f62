//! A point of enforcement: one side of one interface, through TCX or clsact.
//!
//! Both ways can put a program before those of others, in place of ours if it is there already. Our programs let the
//! next program handle the packets that they allow, so that others keep working. A program that runs before ours and
//! ends the walk would bypass ours.

use serde::{Deserialize, Serialize};

use crate::error::{Doing as _, Error};
use crate::pins::Pins;
use crate::sys::netlink::{Filter, Put};
use crate::sys::{Hook, Link, Program};
use crate::system::System;

/// The way in which programs are attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Links (Linux 6.6).
    Tcx,
    /// Filters.
    Clsact,
}

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Packets to the pod leave the host through its interface.
    ToPod,
    /// Packets from the pod enter the host through its interface.
    FromPod,
}

impl Side {
    /// Both, `to_pod` first.
    pub const BOTH: [Self; 2] = [Self::ToPod, Self::FromPod];

    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::ToPod => "to_pod",
            Self::FromPod => "from_pod",
        }
    }

    pub(crate) fn hook(self) -> Hook {
        match self {
            Self::ToPod => Hook::Egress,
            Self::FromPod => Hook::Ingress,
        }
    }
}

/// The priority of our filters: the smallest possible, so they run first.
const PRIORITY: u16 = 1;
/// `weir` in ASCII: unlikely to be used by another program.
const HANDLE: u32 = 0x7765_6972;

/// The filter that drops all packets while our program is moved.
const GUARD: u32 = HANDLE + 1;

/// `r0 = TCX_NEXT; exit`: a program that does nothing.
pub(crate) const NOTHING: [u8; 16] = [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// A program that is not ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// The interface's name.
    pub interface: String,
    /// Which program of ours is on the same hook.
    pub beside: &'static str,
    /// Whether it runs before ours.
    pub before: bool,
    /// TCX or clsact.
    pub way: Way,
    /// Its number; 0 for a filter that is not a BPF program.
    pub program: u32,
    /// Its name.
    pub name: String,
}

/// One side of one interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point<'a> {
    pub(crate) system: &'a System,
    pub(crate) pins: &'a Pins,
    pub(crate) ifindex: u32,
    pub(crate) side: Side,
    pub(crate) way: Way,
}

fn filter(side: Side) -> Filter {
    Filter { priority: PRIORITY, handle: HANDLE, name: format!("weir_{}", side.program()), program: 0 }
}

/// The way that was asked for, or else the best that this kernel has.
pub(crate) fn choose(system: &System, asked: Option<Way>) -> Result<Way, Error> {
    const LOOPBACK: u32 = 1;
    if asked == Some(Way::Clsact) {
        return Ok(Way::Clsact);
    }
    match (system.query(LOOPBACK, Hook::Ingress), asked) {
        (Ok(_), _) => Ok(Way::Tcx),
        (Err(error), _) if error.raw_os_error() == Some(libc::EPERM) => Err(error).doing("ask for TCX hooks"),
        (Err(_), None) => Ok(Way::Clsact),
        (Err(_), Some(_)) => Err(Error::NoTcx),
    }
}

impl Point<'_> {
    /// The number of our program that runs here, if one does.
    pub(crate) fn program(&self) -> Result<Option<u32>, Error> {
        let asking = format!("ask what runs at interface {}", self.ifindex);
        match self.way {
            Way::Tcx => {
                let link = self.system.pinned_link(&self.pins.link(self.ifindex, self.side)).doing(&asking)?;
                let info = link.map(|link| self.system.link_info(&link)).transpose().doing(asking)?;
                Ok(info.filter(|info| info.ifindex == self.ifindex).map(|info| info.program))
            }
            Way::Clsact => {
                let filters = self.system.filters(self.ifindex, self.side.hook()).doing(asking)?;
                let ours = filters.into_iter().find(|it| (it.priority, it.handle) == (PRIORITY, HANDLE));
                Ok(ours.filter(|it| it.name == filter(self.side).name).map(|it| it.program))
            }
        }
    }

    /// Puts the program here, in place of the present one.
    pub(crate) fn place(&self, program: &Program) -> std::io::Result<()> {
        match self.way {
            Way::Tcx => self.place_link(program),
            Way::Clsact => self.place_filter(program),
        }
    }

    /// If our filter does not exist yet, makes sure that there is a clsact qdisc, and not a qdisc of another kind in
    /// its place.
    fn place_filter(&self, program: &Program) -> std::io::Result<()> {
        let (hook, filter) = (self.side.hook(), filter(self.side));
        match self.system.put_filter(self.ifindex, hook, &filter, program, Put::Instead) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                self.system.add_clsact(self.ifindex)?;
                let put = self.system.put_filter(self.ifindex, hook, &filter, program, Put::New);
                put.map_err(|error| self.explained(error))
            }
            other => other,
        }
    }

    /// Explains why a filter was refused: all filters of one priority must be of one kind and one protocol, and no
    /// other priority is as early as ours.
    fn explained(&self, error: std::io::Error) -> std::io::Error {
        let filters = self.system.filters(self.ifindex, self.side.hook()).unwrap_or_default();
        let other = filters.iter().find(|it| it.priority == PRIORITY && it.handle != HANDLE);
        match other.filter(|_| error.raw_os_error() == Some(libc::EINVAL)) {
            Some(other) => std::io::Error::other(format!(
                "{} has priority {PRIORITY} there, and is of another kind or for one protocol alone; give it a larger number \
                 (tc filter … pref)",
                other.name
            )),
            None => error,
        }
    }

    fn place_link(&self, program: &Program) -> std::io::Result<()> {
        let path = self.pins.link(self.ifindex, self.side);
        if let Some(link) = self.system.pinned_link(&path)? {
            let info = self.system.link_info(&link)?;
            if info.ifindex == self.ifindex {
                return self.system.replace(&link, program);
            }
            // The interface that the link was made for is gone; another has its number.
            self.system.unpin(&path)?;
        }
        let link = self.system.attach(program, self.ifindex, self.side.hook())?;
        self.system.pin(std::os::fd::AsFd::as_fd(&link), &path)
    }

    /// Whether the first program that runs here is ours and has this number. A program cannot be on one TCX hook twice.
    pub(crate) fn begins_with(&self, number: u32) -> Result<bool, Error> {
        let asking = format!("ask what runs at interface {}", self.ifindex);
        let first = match self.system.query(self.ifindex, self.side.hook()) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => None,
            links => links.doing(&asking)?.first().copied(),
        };
        if self.way == Way::Tcx || first.is_some() {
            return Ok(self.way == Way::Tcx && first.is_some_and(|(program, _)| program == number));
        }
        match self.system.filters(self.ifindex, self.side.hook()) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            filters => {
                let first = filters.doing(asking)?.into_iter().next();
                Ok(first.is_some_and(|it| (it.priority, it.handle, it.program) == (PRIORITY, HANDLE, number)))
            }
        }
    }

    /// The number and name of the program that runs before ours; `None` if ours is the first. TCX programs run before
    /// clsact filters.
    pub(crate) fn first(&self) -> Result<Option<(u32, String)>, Error> {
        let asking = format!("ask what runs at interface {}", self.ifindex);
        let links = match self.system.query(self.ifindex, self.side.hook()) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => Vec::new(),
            links => links.doing(&asking)?,
        };
        let first = links.first().copied();
        if self.way == Way::Tcx {
            let own = self.system.pinned_link(&self.pins.link(self.ifindex, self.side)).doing(&asking)?;
            let own = own.map(|own| self.system.link_info(&own)).transpose().doing(asking)?;
            let other = first.filter(|(_, link)| own.is_none_or(|own| own.id != *link));
            return Ok(other.map(|(program, _)| (program, self.name_of(program))));
        }
        if let Some((program, _)) = first {
            return Ok(Some((program, self.name_of(program))));
        }
        let filters = match self.system.filters(self.ifindex, self.side.hook()) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Vec::new(),
            filters => filters.doing(asking)?,
        };
        let first = filters.into_iter().next().filter(|it| (it.priority, it.handle) != (PRIORITY, HANDLE));
        Ok(first.map(|it| (it.program, it.name)))
    }

    /// Moves our program before all others. The kernel cannot move a program, and refuses a program that the hook
    /// already has, so our program is removed and added again. Meanwhile `closed`, at `guard`, drops all packets.
    pub(crate) fn move_to_front(&self, program: &Program, guard: &Point<'_>, closed: &Program) -> std::io::Result<()> {
        match self.way {
            Way::Tcx => {
                guard.remove(None)?;
                guard.place(closed)?;
                self.remove(None)?;
                self.place(program)?;
                guard.remove(None)
            }
            Way::Clsact => {
                let (hook, own) = (self.side.hook(), filter(self.side));
                let guard = Filter { handle: GUARD, name: "weir_held".to_owned(), ..own.clone() };
                self.system.delete_filter(self.ifindex, hook, &guard)?;
                self.system.put_filter(self.ifindex, hook, &guard, closed, Put::New)?;
                self.system.delete_filter(self.ifindex, hook, &own)?;
                // The kernel puts a new filter before the others of its priority.
                self.system.put_filter(self.ifindex, hook, &own, program, Put::New)?;
                self.system.delete_filter(self.ifindex, hook, &guard)
            }
        }
    }

    /// Removes our program. `nothing` is a program that does nothing, if there is one.
    pub(crate) fn remove(&self, nothing: Option<&Program>) -> std::io::Result<()> {
        match self.way {
            Way::Tcx => {
                let path = self.pins.link(self.ifindex, self.side);
                if let Some(link) = self.system.pinned_link(&path)? {
                    // The kernel reports `ENOLINK` if the interface of a link is gone.
                    match self.end(&link, nothing) {
                        Err(error) if error.raw_os_error() != Some(libc::ENOLINK) => return Err(error),
                        _ => {}
                    }
                }
                self.system.unpin(&path)
            }
            Way::Clsact => self.system.delete_filter(self.ifindex, self.side.hook(), &filter(self.side)),
        }
    }

    /// To detach a link takes some milliseconds, in which the kernel waits for every CPU and blocks all changes of
    /// interfaces. Replacing its program by one that does nothing takes no such time; the kernel removes the link
    /// itself once it is not pinned.
    fn end(&self, link: &Link, nothing: Option<&Program>) -> std::io::Result<()> {
        match nothing.map(|nothing| self.system.replace(link, nothing)) {
            Some(Ok(())) => Ok(()),
            _ => self.system.detach(link),
        }
    }

    /// Programs of others, before and after ours. The walk is TCX first, then clsact.
    pub(crate) fn neighbours(&self, interface: &str) -> Result<Vec<Neighbour>, Error> {
        let asking = format!("ask what runs at interface {interface}");
        let ours = self.program()?;
        let links = match self.system.query(self.ifindex, self.side.hook()) {
            Ok(links) => links,
            // No TCX, or no interface any more: nothing there.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV)) => Vec::new(),
            Err(error) => return Err(error).doing(asking),
        };
        let filters = match self.system.filters(self.ifindex, self.side.hook()) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Vec::new(),
            filters => filters.doing(asking)?,
        };
        let links = links.into_iter().map(|(program, _)| (Way::Tcx, program, String::new(), true));
        let filters = filters.into_iter().map(|it| {
            let may_be_ours = (it.priority, it.handle) == (PRIORITY, HANDLE);
            (Way::Clsact, it.program, it.name, may_be_ours)
        });
        let (mut before, mut found) = (true, Vec::new());
        for (way, program, name, may_be_ours) in links.chain(filters) {
            if may_be_ours && way == self.way && Some(program) == ours {
                before = false;
                continue;
            }
            let name = if name.is_empty() { self.name_of(program) } else { name };
            let beside = self.side.program();
            found.push(Neighbour { interface: interface.to_owned(), beside, before, way, program, name });
        }
        Ok(found)
    }

    fn name_of(&self, program: u32) -> String {
        let program = self.system.numbered_program(program).ok().flatten();
        program.and_then(|it| self.system.program_info(&it).ok()).map(|it| it.name).unwrap_or_default()
    }
}
