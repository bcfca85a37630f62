//! The edge of the node: an XDP program at uplinks that drops packets from addresses that lists deny to all pods,
//! before the kernel allocates a socket buffer for them.
//!
//! Problem: with the edge, two programs judge a packet, and a switch changes one after the other. Strategy: `to_pod`
//! judges every packet that reaches it as if there were no edge. The edge program only drops, and it only drops packets
//! that `to_pod` of the same generation denies too. So a switch can replace the edge program first: no packet that the
//! next generation allows meets the edge program of the previous one once the next is in force at any pod. The edge
//! protects only endpoints that have an entry, and an endpoint loses this protection before its programs are removed.
//!
//! Some drivers do not support XDP. There the kernel runs the program itself ([`XdpMode::Generic`]): later, but on any
//! interface.

use std::io;

use weir_artifact::layout::{MapName, PROTECTED, protected};

use super::Runtime;
use super::reconcile::{Reconciled, text};
use crate::error::{Doing as _, Error};
use crate::generation::LoadedGeneration;
use crate::record::{EnforcementRecord, Uplink};
use crate::sys::netlink::HostInterface;
use crate::sys::{XdpMode, errno};

/// An uplink on which an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeFailure {
    /// The uplink's name.
    pub interface: String,
    /// The cause, in one line.
    pub why: String,
}

/// The state of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeState {
    /// The program of the generation in force.
    Enforced,
    /// No program, and none is needed: the generation has no XDP program.
    Idle,
    /// The program of another generation.
    Other,
    /// None of our programs, although the generation has one.
    Open,
}

impl Runtime {
    /// The recorded uplinks and those that were asked for, with interface number and address.
    pub(crate) fn wanted_uplinks(&self, record: &EnforcementRecord, names: &[String]) -> Result<Vec<Uplink>, Error> {
        let mut wanted = record.uplinks.clone();
        for name in names {
            let asking = format!("ask for the interface {name}");
            let interface = self.system.interface_named(name).doing(asking)?;
            let missing = || Error::NoInterface { pod: None, name: name.clone() };
            let HostInterface { ifindex, address, .. } = interface.ok_or_else(missing)?;
            if wanted.iter().all(|it| it.ifindex != ifindex) {
                wanted.push(Uplink { interface: name.clone(), ifindex, address, generic: false });
            }
        }
        wanted.sort_by_key(|it| it.ifindex);
        Ok(wanted)
    }

    /// Places the generation's program at every uplink, or removes the program if the generation has none. An uplink
    /// that fails is reported in `reconciled` and affects nothing else: the programs at the pods still judge every
    /// packet.
    pub(crate) fn place_edge(
        &self,
        record: &mut EnforcementRecord,
        loaded: &LoadedGeneration,
        reconciled: &mut Reconciled,
    ) {
        let mut uplinks = std::mem::take(&mut record.uplinks);
        uplinks.retain_mut(|uplink| match self.place_at_uplink(uplink, loaded, reconciled) {
            Ok(is_there) => is_there,
            Err(error) => {
                let (interface, why) = (uplink.interface.clone(), text(&error));
                reconciled.edge_failures.push(EdgeFailure { interface, why });
                true
            }
        });
        record.uplinks = uplinks;
    }

    /// Returns false if the interface is gone.
    fn place_at_uplink(
        &self,
        uplink: &mut Uplink,
        loaded: &LoadedGeneration,
        reconciled: &mut Reconciled,
    ) -> io::Result<bool> {
        let path = self.pins.edge_link(uplink.ifindex);
        let link = self.system.pinned_link(&path)?;
        let info = link.as_ref().map(|link| self.system.link_info(link)).transpose()?;
        let link = link.zip(info).filter(|(_, info)| info.ifindex == uplink.ifindex);
        let Some(program) = &loaded.edge else {
            self.remove_from_uplink(uplink.ifindex)?;
            return Ok(true);
        };
        if let Some((link, info)) = link {
            if Some(info.program) != loaded.generation.edge {
                // The old program may drop packets that this generation allows. If it cannot be replaced, it is
                // removed.
                self.system.replace(&link, program).or_else(|error| {
                    self.remove_from_uplink(uplink.ifindex)?;
                    Err(error)
                })?;
                reconciled.repaired.push(format!("at_edge at {}", uplink.interface));
            }
            return Ok(true);
        }
        let interface = self.system.interface_numbered(uplink.ifindex)?;
        if interface.is_none_or(|it| (&it.name, &it.address) != (&uplink.interface, &uplink.address)) {
            self.system.unpin(&path)?;
            reconciled.repaired.push(format!("removed the uplink {}, whose interface is gone", uplink.interface));
            return Ok(false);
        }
        // A pin may be left of an earlier interface with this number.
        self.system.unpin(&path)?;
        let attached = self.system.attach_xdp(program, uplink.ifindex, XdpMode::Native);
        let (link, generic) = match attached {
            Err(error) if may_be_generic(&error) => {
                let link = self.system.attach_xdp(program, uplink.ifindex, XdpMode::Generic)?;
                (link, Some(error.to_string()))
            }
            attached => (attached?, None),
        };
        self.system.pin(std::os::fd::AsFd::as_fd(&link), &path)?;
        uplink.generic = generic.is_some();
        reconciled.generic.extend(generic.map(|why| EdgeFailure { interface: uplink.interface.clone(), why }));
        reconciled.repaired.push(format!("at_edge at {}", uplink.interface));
        Ok(true)
    }

    fn remove_from_uplink(&self, ifindex: u32) -> io::Result<()> {
        let path = self.pins.edge_link(ifindex);
        if let Some(link) = self.system.pinned_link(&path)? {
            match self.system.detach(&link) {
                // `ENOLINK`: the interface is gone, and the link is detached already.
                Err(error) if errno(&error) != Some(libc::ENOLINK) => return Err(error),
                _ => {}
            }
        }
        self.system.unpin(&path)
    }

    /// Removes the uplinks for which `leaves` is true from the record, and their programs.
    pub(crate) fn leave_uplinks(
        &self,
        record: &mut EnforcementRecord,
        leaves: impl Fn(&Uplink) -> bool,
    ) -> Result<(), Error> {
        let (leaving, staying): (Vec<_>, Vec<_>) = record.uplinks.drain(..).partition(leaves);
        record.uplinks = staying;
        self.write_record(record)?;
        for uplink in leaving {
            self.remove_from_uplink(uplink.ifindex).doing(format!("remove at_edge from {}", uplink.interface))?;
        }
        Ok(())
    }

    /// Removes the XDP program from an uplink. Packets are then judged only at the pods.
    pub fn detach_uplink(&self, name: &str) -> Result<(), Error> {
        let mut record = self.record()?;
        if record.uplinks.iter().all(|it| it.interface != name) {
            return Err(Error::NotAnUplink(name.to_owned()));
        }
        self.leave_uplinks(&mut record, |it| it.interface == name)
    }

    /// Protects exactly the endpoints that have an entry. If a map is full, fewer are protected.
    pub(crate) fn protect(&self, record: &EnforcementRecord, loaded: &LoadedGeneration) -> Result<(), Error> {
        let Some(endpoints) = loaded.map(MapName::Endpoints).filter(|_| loaded.edge.is_some()) else { return Ok(()) };
        let entries = self.system.entries(endpoints).doing("read the map endpoints")?;
        let is_here = |key: &[u8]| record.endpoints.iter().any(|it| key == it.ifindex.to_le_bytes());
        let values: Vec<&[u8]> =
            entries.iter().filter(|(key, _)| is_here(key)).map(|(_, value)| value.as_slice()).collect();
        self.protect_family::<4>(MapName::Local4, &values, loaded)?;
        self.protect_family::<16>(MapName::Local6, &values, loaded)
    }

    fn protect_family<const N: usize>(
        &self,
        name: MapName,
        values: &[&[u8]],
        loaded: &LoadedGeneration,
    ) -> Result<(), Error> {
        let wanted = protected(name, values.iter().copied()).into_iter();
        let wanted = wanted.filter_map(|(key, _)| key.first_chunk().copied()).collect();
        self.keep_keys::<N>(loaded, name, &wanted, PROTECTED)?.full.map_or(Ok(()), Err)
    }

    /// Compares the program at an uplink with the one that should be there.
    pub(crate) fn edge_state(&self, record: &EnforcementRecord, uplink: &Uplink) -> Result<EdgeState, Error> {
        let asking = format!("read the XDP program of {}", uplink.interface);
        let link = self.system.pinned_link(&self.pins.edge_link(uplink.ifindex)).doing(&asking)?;
        let info = link.map(|link| self.system.link_info(&link)).transpose().doing(asking)?;
        let there = info.filter(|info| info.ifindex == uplink.ifindex).map(|info| info.program);
        let expected = record.current.as_ref().and_then(|it| it.edge);
        Ok(match (there, expected) {
            (None, None) => EdgeState::Idle,
            (None, Some(_)) => EdgeState::Open,
            (Some(there), Some(expected)) if there == expected => EdgeState::Enforced,
            _ => EdgeState::Other,
        })
    }
}

/// Whether the driver does not support the program. False if another program is there, or if the error has another
/// cause.
fn may_be_generic(error: &io::Error) -> bool {
    let others = [libc::EBUSY, libc::EEXIST, libc::EPERM, libc::EACCES, libc::ENODEV, libc::ENOMEM];
    errno(error).is_none_or(|number| !others.contains(&number))
}
