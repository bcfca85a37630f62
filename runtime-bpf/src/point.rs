//! A point of enforcement: one side of one interface, through TCX or clsact.
//!
//! Both ways can put a program before those of others, in place of ours if it is there already. Our programs let the
//! next program handle the packets that they allow, so that others keep working. A program that runs before ours and
//! ends the walk would bypass ours.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::closed;
use crate::error::{Doing as _, Error};
use crate::generation::LoadedGeneration;
use crate::pins::Pins;
use crate::sys::netlink::{Filter, Put};
use crate::sys::{Hook, KernelLink, KernelProgram, LinkInfo, errno};
use crate::system::System;

/// The way in which programs are attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookKind {
    /// Links (Linux 6.6).
    Tcx,
    /// Filters.
    Clsact,
}

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProgramSide {
    /// Packets to the pod leave the host through its interface.
    ToPod,
    /// Packets from the pod enter the host through its interface.
    FromPod,
}

impl ProgramSide {
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
/// The name of the program that drops everything at an interface until policy is enforced there.
pub(crate) const CLOSED: &str = "weir_held";
/// `weir` in ASCII: unlikely to be used by another program.
const HANDLE: u32 = 0x7765_6972;

/// The filter that drops all packets while our program is moved. It needs a handle of its own, because two filters of
/// one priority are distinguished by their handles only.
const GUARD: u32 = HANDLE + 1;

/// The name of [`NOTHING`].
pub(crate) const WITHOUT_EFFECT: &str = "weir_nothing";
/// `r0 = TCX_NEXT; exit`: a program that does nothing. `TCX_NEXT` has the value of `TC_ACT_UNSPEC` (-1), which lets the
/// next program decide.
pub(crate) const NOTHING: [u8; 16] = [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x95, 0, 0, 0, 0, 0, 0, 0];

/// A program that is not ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HookNeighbour {
    /// The interface's name.
    pub interface: String,
    /// Which program of ours is on the same hook.
    pub beside: &'static str,
    /// Whether it runs before ours.
    pub before: bool,
    /// TCX or clsact.
    pub way: HookKind,
    /// Its number; 0 for a filter that is not a BPF program.
    pub program: u32,
    /// Its name.
    pub name: String,
}

/// One side of one interface.
#[derive(Clone, Debug)]
pub(crate) struct Point<'a> {
    pub(crate) system: &'a System,
    pub(crate) pins: &'a Pins,
    pub(crate) ifindex: u32,
    pub(crate) side: ProgramSide,
    pub(crate) way: HookKind,
    /// The agent's descriptor of the link here. It saves opening the pin, and finds the link if the pin was removed.
    pub(crate) held: Option<KernelLink>,
}

fn filter(side: ProgramSide) -> Filter {
    Filter { priority: PRIORITY, handle: HANDLE, name: format!("weir_{}", side.program()), program: 0 }
}

/// The guard of our filter.
fn guard(own: &Filter) -> Filter {
    Filter { handle: GUARD, name: CLOSED.to_owned(), ..own.clone() }
}

fn guard_among(filters: &[Filter]) -> Option<&Filter> {
    filters.iter().find(|it| (it.priority, it.handle) == (PRIORITY, GUARD))
}

/// The way that was asked for, or else the best that this kernel has.
pub(crate) fn choose(system: &System, asked: Option<HookKind>) -> Result<HookKind, Error> {
    const LOOPBACK: u32 = 1;
    if asked == Some(HookKind::Clsact) {
        return Ok(HookKind::Clsact);
    }
    match (system.query(LOOPBACK, Hook::Ingress), asked) {
        (Ok(_), _) => Ok(HookKind::Tcx),
        (Err(error), _) if errno(&error) == Some(libc::EPERM) => Err(error).doing("ask for TCX hooks"),
        (Err(_), None) => Ok(HookKind::Clsact),
        (Err(_), Some(_)) => Err(Error::NoTcx),
    }
}

impl Point<'_> {
    /// The number of our program that runs here, if one does.
    pub(crate) fn program(&self) -> Result<Option<u32>, Error> {
        let asking = format!("read the programs of interface {}", self.ifindex);
        match self.way {
            HookKind::Tcx => Ok(self.link().doing(asking)?.map(|(_, info)| info.program)),
            HookKind::Clsact => {
                let filters = self.system.filters(self.ifindex, self.side.hook()).doing(asking)?;
                let ours = filters.into_iter().find(|it| (it.priority, it.handle) == (PRIORITY, HANDLE));
                Ok(ours.filter(|it| it.name == filter(self.side).name).map(|it| it.program))
            }
        }
    }

    /// Whether the filter here drops everything until policy is enforced. With TCX, such a link is another one.
    pub(crate) fn is_closed_filter(&self) -> bool {
        let there = self.program().ok().flatten().filter(|_| self.way == HookKind::Clsact);
        there.is_some_and(|it| self.name_of(it) == CLOSED)
    }

    /// Our link at this interface.
    fn link(&self) -> std::io::Result<Option<(KernelLink, LinkInfo)>> {
        if let Some(held) = &self.held {
            let info = self.system.link_info(held)?;
            // Otherwise its interface is gone, or another process has detached it.
            if info.ifindex == self.ifindex {
                return Ok(Some((held.clone(), info)));
            }
        }
        let Some(link) = self.system.pinned_link(&self.pins.link(self.ifindex, self.side))? else { return Ok(None) };
        let info = self.system.link_info(&link)?;
        Ok(Some((link, info)).filter(|(_, info)| info.ifindex == self.ifindex))
    }

    /// Puts the next generation's program in place of the one in force. With a held link, this is one system call,
    /// which compares the program that is there. Returns false if it was another one: neither of the two, nor one of
    /// those that an interrupted attach leaves.
    pub(crate) fn switch(&self, before: Option<&LoadedGeneration>, next: &LoadedGeneration) -> std::io::Result<bool> {
        let program = next.program(self.side);
        let held = self.held.as_ref().filter(|_| self.way == HookKind::Tcx);
        let Some((held, before)) = held.zip(before) else { return self.place(program).map(|()| true) };
        match self.system.exchange(held, before.program(self.side), program) {
            // The link is not attached any more, or has another program.
            Err(error) if matches!(errno(&error), Some(libc::ENOLINK | libc::EPERM)) => {
                let there = self.program().ok().flatten();
                let is_ours = |there: u32| {
                    there == next.number(self.side) || [CLOSED, WITHOUT_EFFECT].contains(&&*self.name_of(there))
                };
                let is_expected = there.is_some_and(is_ours);
                self.place(program).map(|()| is_expected)
            }
            other => other.map(|()| true),
        }
    }

    /// Puts the program here, in place of the present one.
    pub(crate) fn place(&self, program: &KernelProgram) -> std::io::Result<()> {
        match self.way {
            HookKind::Tcx => self.place_link(program),
            HookKind::Clsact => self.place_filter(program),
        }
    }

    /// If our filter does not exist yet, makes sure that there is a clsact qdisc, and not a qdisc of another kind in
    /// its place.
    fn place_filter(&self, program: &KernelProgram) -> std::io::Result<()> {
        let (hook, filter) = (self.side.hook(), filter(self.side));
        // First only a replacement: in nearly all calls the filter exists. A request that may create a filter would
        // also create it in an `ingress` qdisc, whose only list has no sides; `add_clsact` refuses such a qdisc.
        match self.system.put_filter(self.ifindex, hook, &filter, program, Put::Instead) {
            Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::ENOENT)) => {
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
        match other.filter(|_| errno(&error) == Some(libc::EINVAL)) {
            Some(other) => std::io::Error::other(format!(
                "the filter {} with priority {PRIORITY} is of another kind or for one protocol only; give it a larger \
                 priority number (`tc filter … pref`)",
                other.name
            )),
            None => error,
        }
    }

    fn place_link(&self, program: &KernelProgram) -> std::io::Result<()> {
        if let Some((link, _)) = self.link()? {
            // The link stays at its place in the order of the hook, and there is no moment without a program.
            // Detaching and attaching again would leave such a moment, and put the program before others.
            return self.system.replace(&link, program);
        }
        let path = self.unpinned()?;
        // If the closing link cannot become ours, it ends once ours judges the packets.
        if let Ok(Some(link)) = self.take_over_closing_link(&path) {
            return self.system.replace(&link, program);
        }
        self.attach_link(program, &path)
    }

    /// Attaches a program that does nothing where our program will be, unless one is there already.
    pub(crate) fn attach_nothing(&self, nothing: &KernelProgram) -> Result<(), Error> {
        let preparing = format!("prepare interface {}", self.ifindex);
        match (self.program()?, self.way) {
            (Some(_), _) => Ok(()),
            (None, HookKind::Tcx) => self.unpinned().and_then(|path| self.attach_link(nothing, &path)).doing(preparing),
            (None, HookKind::Clsact) => self.add_filter(nothing).doing(preparing),
        }
    }

    /// Adds our filter. Another process may have closed the interface meanwhile: then its filter stays.
    fn add_filter(&self, program: &KernelProgram) -> std::io::Result<()> {
        self.system.add_clsact(self.ifindex)?;
        match self.system.put_filter(self.ifindex, self.side.hook(), &filter(self.side), program, Put::Only) {
            Err(error) if errno(&error) == Some(libc::EEXIST) => Ok(()),
            other => other,
        }
    }

    /// Whether this program is the one that does nothing.
    pub(crate) fn is_without_effect(&self, program: u32) -> bool {
        self.name_of(program) == WITHOUT_EFFECT
    }

    /// Whether one of our links or filters drops all packets here until policy is enforced; also if the query fails.
    pub(crate) fn is_closed(&self) -> bool {
        !matches!(self.closing_link(), Ok(None)) || self.is_closed_filter()
    }

    /// The link that closes this interface, and its pin.
    fn closing_link(&self) -> std::io::Result<Option<(KernelLink, LinkInfo, PathBuf)>> {
        let pin = closed::pins(self.pins.root()).link(self.ifindex, self.side);
        let Some(link) = self.system.pinned_link(&pin)? else { return Ok(None) };
        let info = self.system.link_info(&link)?;
        // Otherwise it was made for an interface that is gone.
        Ok(Some((link, info, pin)).filter(|(_, info, _)| info.ifindex == self.ifindex))
    }

    /// The path for the pin of a new link. A link that is pinned there was made for an interface that is gone, or
    /// another process has detached it.
    fn unpinned(&self) -> std::io::Result<PathBuf> {
        let path = self.pins.link(self.ifindex, self.side);
        self.system.unpin(&path).map(|()| path)
    }

    fn attach_link(&self, program: &KernelProgram, path: &Path) -> std::io::Result<()> {
        // The link exists before its pin. If the process dies in between, the kernel closes the last descriptor and
        // removes the link, so no program stays that has no pin.
        let link = self.system.attach(program, self.ifindex, self.side.hook())?;
        self.system.pin(std::os::fd::AsFd::as_fd(&link), path)
    }

    /// Makes the link that closes this interface ours, if there is one and its program runs first, as that of a new
    /// link would. To attach a link and to detach one take the kernel some milliseconds each; another program in a link
    /// that exists takes none. If the process dies after this, our link has a program that drops everything.
    fn take_over_closing_link(&self, path: &Path) -> std::io::Result<Option<KernelLink>> {
        let Some((link, info, closing)) = self.closing_link()? else { return Ok(None) };
        let running = self.system.query(self.ifindex, self.side.hook())?;
        if running.first().is_none_or(|(_, first)| *first != info.id) {
            return Ok(None);
        }
        self.system.rename(&closing, path)?;
        Ok(Some(link))
    }

    /// Whether the first program that runs here is ours and has this number. A program cannot be on one TCX hook twice.
    pub(crate) fn begins_with(&self, number: u32) -> Result<bool, Error> {
        let asking = format!("read the programs of interface {}", self.ifindex);
        let first = match self.system.query(self.ifindex, self.side.hook()) {
            Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::ENODEV)) => None,
            links => links.doing(&asking)?.first().copied(),
        };
        if self.way == HookKind::Tcx || first.is_some() {
            return Ok(self.way == HookKind::Tcx && first.is_some_and(|(program, _)| program == number));
        }
        match self.system.filters(self.ifindex, self.side.hook()) {
            Err(error) if errno(&error) == Some(libc::ENODEV) => Ok(false),
            filters => {
                let filters = filters.doing(asking)?;
                let is_first = |it: &Filter| (it.priority, it.handle, it.program) == (PRIORITY, HANDLE, number);
                Ok(filters.first().is_some_and(is_first) && guard_among(&filters).is_none())
            }
        }
    }

    /// The number and name of the program that runs before ours; `None` if ours is the first. TCX programs run before
    /// clsact filters.
    pub(crate) fn first(&self) -> Result<Option<(u32, String)>, Error> {
        let asking = format!("read the programs of interface {}", self.ifindex);
        let links = match self.system.query(self.ifindex, self.side.hook()) {
            Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::ENODEV)) => Vec::new(),
            links => links.doing(&asking)?,
        };
        let first = links.first().copied();
        if self.way == HookKind::Tcx {
            let own = self.link().doing(asking)?;
            let other = first.filter(|(_, link)| own.as_ref().is_none_or(|(_, own)| own.id != *link));
            return Ok(other.map(|(program, _)| (program, self.name_of(program))));
        }
        if let Some((program, _)) = first {
            return Ok(Some((program, self.name_of(program))));
        }
        let filters = match self.system.filters(self.ifindex, self.side.hook()) {
            Err(error) if errno(&error) == Some(libc::ENODEV) => Vec::new(),
            filters => filters.doing(asking)?,
        };
        let first = filters.into_iter().next().filter(|it| (it.priority, it.handle) != (PRIORITY, HANDLE));
        Ok(first.map(|it| (it.program, it.name)))
    }

    /// Removes the guard that an interrupted move has left: behind our filter, it drops all packets that ours allows.
    /// Returns whether there was one. With TCX, the guard is a closing link ([`Runtime::open_closed_interfaces`]).
    ///
    /// [`Runtime::open_closed_interfaces`]: crate::runtime::Runtime::open_closed_interfaces
    pub(crate) fn remove_left_guard(&self) -> std::io::Result<bool> {
        let is_there = self.way == HookKind::Clsact && {
            let filters = self.system.filters(self.ifindex, self.side.hook())?;
            guard_among(&filters).is_some()
        };
        if is_there {
            self.system.delete_filter(self.ifindex, self.side.hook(), &guard(&filter(self.side)))?;
        }
        Ok(is_there)
    }

    /// Removes Weir's filters that drop all packets, and no other filters.
    pub(crate) fn remove_closing_filters(&self) -> std::io::Result<()> {
        let own = filter(self.side);
        for there in self.system.filters(self.ifindex, self.side.hook())? {
            let is_closing = match there.handle {
                GUARD => true,
                HANDLE => there.name == own.name && self.name_of(there.program) == CLOSED,
                _ => false,
            };
            if is_closing && there.priority == PRIORITY {
                self.system.delete_filter(self.ifindex, self.side.hook(), &there)?;
            }
        }
        Ok(())
    }

    /// Moves our program before all others. The kernel cannot move a program, and refuses a program that the hook
    /// already has, so our program is removed and added again. Meanwhile `closed`, at `guard`, drops all packets.
    pub(crate) fn move_to_front(
        &self,
        program: &KernelProgram,
        guard: &Point<'_>,
        closed: &KernelProgram,
    ) -> std::io::Result<()> {
        match self.way {
            HookKind::Tcx => {
                guard.remove(None)?;
                guard.place(closed)?;
                self.remove(None)?;
                self.place(program)?;
                guard.remove(None)
            }
            HookKind::Clsact => {
                let (hook, own) = (self.side.hook(), filter(self.side));
                let guard = self::guard(&own);
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
    pub(crate) fn remove(&self, nothing: Option<&KernelProgram>) -> std::io::Result<()> {
        match self.way {
            HookKind::Tcx => {
                let path = self.pins.link(self.ifindex, self.side);
                let held = self.link()?.map(|(link, _)| link);
                let pinned = held.map_or_else(|| self.system.pinned_link(&path), |link| Ok(Some(link)))?;
                if let Some(link) = pinned {
                    // The kernel reports `ENOLINK` if the interface of a link is gone.
                    match self.end(&link, nothing) {
                        Err(error) if errno(&error) != Some(libc::ENOLINK) => return Err(error),
                        _ => {}
                    }
                }
                self.system.unpin(&path)
            }
            HookKind::Clsact => {
                let own = filter(self.side);
                self.system.delete_filter(self.ifindex, self.side.hook(), &guard(&own))?;
                self.system.delete_filter(self.ifindex, self.side.hook(), &own)
            }
        }
    }

    /// To detach a link takes some milliseconds, in which the kernel waits for every CPU and blocks all changes of
    /// interfaces. Replacing its program by one that does nothing takes no such time; the kernel removes the link
    /// itself once it is not pinned.
    fn end(&self, link: &KernelLink, nothing: Option<&KernelProgram>) -> std::io::Result<()> {
        match nothing.map(|nothing| self.system.replace(link, nothing)) {
            Some(Ok(())) => Ok(()),
            _ => self.system.detach(link),
        }
    }

    /// Programs of others, before and after ours. The walk is TCX first, then clsact.
    pub(crate) fn neighbours(&self, interface: &str) -> Result<Vec<HookNeighbour>, Error> {
        let asking = format!("read the programs of interface {interface}");
        let ours = self.program()?;
        let links = match self.system.query(self.ifindex, self.side.hook()) {
            Ok(links) => links,
            // No TCX, or no interface any more: nothing there.
            Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::ENODEV)) => Vec::new(),
            Err(error) => return Err(error).doing(asking),
        };
        let filters = match self.system.filters(self.ifindex, self.side.hook()) {
            Err(error) if errno(&error) == Some(libc::ENODEV) => Vec::new(),
            filters => filters.doing(asking)?,
        };
        let links = links.into_iter().map(|(program, _)| (HookKind::Tcx, program, String::new(), true));
        let filters = filters.into_iter().map(|it| {
            let may_be_ours = (it.priority, it.handle) == (PRIORITY, HANDLE);
            (HookKind::Clsact, it.program, it.name, may_be_ours)
        });
        let (mut before, mut found) = (true, Vec::new());
        for (way, program, name, may_be_ours) in links.chain(filters) {
            if may_be_ours && way == self.way && Some(program) == ours {
                before = false;
                continue;
            }
            let name = if name.is_empty() { self.name_of(program) } else { name };
            let beside = self.side.program();
            found.push(HookNeighbour { interface: interface.to_owned(), beside, before, way, program, name });
        }
        Ok(found)
    }

    /// Programs that enforce policy here, by their names, where this installation has no endpoint. A filter in the place
    /// that attaching would use counts, too.
    pub(crate) fn enforcing(&self, interface: &str) -> Result<Vec<HookNeighbour>, Error> {
        let in_our_place = self.program()?.filter(|_| self.way == HookKind::Clsact);
        let in_our_place = in_our_place.map(|program| HookNeighbour {
            interface: interface.to_owned(),
            beside: self.side.program(),
            before: false,
            way: self.way,
            program,
            name: filter(self.side).name,
        });
        let all = self.neighbours(interface)?.into_iter().chain(in_our_place);
        // By the program's name, not the filter's: a filter can have a program that closes the interface.
        Ok(all.filter(|it| self.name_of(it.program) == self.side.program()).collect())
    }

    fn name_of(&self, program: u32) -> String {
        let program = self.system.numbered_program(program).ok().flatten();
        program.and_then(|it| self.system.program_info(&it).ok()).map(|it| it.name).unwrap_or_default()
    }
}
