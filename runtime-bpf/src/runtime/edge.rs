//! The edge of the node: a program at uplinks (XDP) that drops what lists deny to everybody, before the kernel has made packets of it.
//!
//! Problem: there are two places then that judge a packet, and they change one after the other. Strategy: `to_pod` judges whatever
//! comes so far, as if there were no edge; what is at the edge only drops, and only what the generation that it is of denies at the
//! pod as well. So the order is free to be the one that loses nothing: at a switch the edge is first, so that nothing that the
//! next generation allows meets the edge of the one before once the next is in force anywhere. Whom it protects are the endpoints
//! that have an entry, and these leave it before their programs go.
//!
//! An uplink whose driver takes no programs gets it from the kernel ([`XdpMode::Generic`]): later, and for any interface.

use std::collections::BTreeSet;
use std::io;

use weir_compiler::engine::edge::{PROTECTED, protected};
use weir_compiler::layout::MapName;

use super::Runtime;
use super::settle::{Settled, text};
use crate::error::{Doing as _, Error};
use crate::generation::{Loaded, refused};
use crate::record::{Record, Uplink};
use crate::sys::XdpMode;
use crate::sys::netlink::Interface;

/// The maps of protected addresses.
const LOCALS: [MapName; 2] = [MapName::Local4, MapName::Local6];

/// An uplink that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeFailure {
    /// Its name.
    pub interface: String,
    /// Why.
    pub why: String,
}

/// What there is at an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeState {
    /// The program of the generation in force.
    Enforced,
    /// Nothing, and nothing is to be there: no list denies anything to everybody.
    Idle,
    /// The program of another generation.
    Other,
    /// No program of ours.
    Open,
}

impl Runtime {
    /// The uplinks that were asked for, with what is known of them.
    pub(crate) fn wanted_uplinks(&self, record: &Record, names: &[String]) -> Result<Vec<Uplink>, Error> {
        let mut wanted = record.uplinks.clone();
        for name in names {
            let asking = format!("ask for the interface {name}");
            let interface = self.system.interface_named(name).doing(asking)?;
            let missing = || Error::NoInterface { pod: None, name: name.clone() };
            let Interface { ifindex, address, .. } = interface.ok_or_else(missing)?;
            if wanted.iter().all(|it| it.ifindex != ifindex) {
                wanted.push(Uplink { interface: name.clone(), ifindex, address, generic: false });
            }
        }
        wanted.sort_by_key(|it| it.ifindex);
        Ok(wanted)
    }

    /// The generation's program at every uplink, or none if it has none. What cannot be done is told of, and changes nothing else:
    /// at pods, everything is judged all the same.
    pub(crate) fn place_edge(&self, record: &mut Record, loaded: &Loaded, settled: &mut Settled) {
        let mut uplinks = std::mem::take(&mut record.uplinks);
        uplinks.retain_mut(|uplink| match self.place_at_uplink(uplink, loaded, settled) {
            Ok(is_there) => is_there,
            Err(error) => {
                let (interface, why) = (uplink.interface.clone(), text(&error));
                settled.edge_failures.push(EdgeFailure { interface, why });
                true
            }
        });
        record.uplinks = uplinks;
    }

    /// False if the interface is gone.
    fn place_at_uplink(&self, uplink: &mut Uplink, loaded: &Loaded, settled: &mut Settled) -> io::Result<bool> {
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
                // That of another generation drops what this one may allow: rather none at all.
                self.system.replace(&link, program).or_else(|error| {
                    self.remove_from_uplink(uplink.ifindex)?;
                    Err(error)
                })?;
                settled.mended.push(format!("at_edge at {}", uplink.interface));
            }
            return Ok(true);
        }
        let interface = self.system.interface_numbered(uplink.ifindex)?;
        if interface.is_none_or(|it| (&it.name, &it.address) != (&uplink.interface, &uplink.address)) {
            self.system.unpin(&path)?;
            settled.mended.push(format!("the uplink {} is gone and forgotten", uplink.interface));
            return Ok(false);
        }
        // What is left of an interface that is gone, and had its number.
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
        settled.generic.extend(generic.map(|why| EdgeFailure { interface: uplink.interface.clone(), why }));
        settled.mended.push(format!("at_edge at {}", uplink.interface));
        Ok(true)
    }

    fn remove_from_uplink(&self, ifindex: u32) -> io::Result<()> {
        let path = self.pins.edge_link(ifindex);
        if let Some(link) = self.system.pinned_link(&path)? {
            match self.system.detach(&link) {
                // A link whose interface is gone says so.
                Err(error) if error.raw_os_error() != Some(libc::ENOLINK) => return Err(error),
                _ => {}
            }
        }
        self.system.unpin(&path)
    }

    /// Takes uplinks out, or all.
    pub(crate) fn leave_uplinks(&self, record: &mut Record, leaves: impl Fn(&Uplink) -> bool) -> Result<(), Error> {
        let (leaving, staying): (Vec<_>, Vec<_>) = record.uplinks.drain(..).partition(leaves);
        record.uplinks = staying;
        record.write(&self.system, &self.pins)?;
        for uplink in leaving {
            self.remove_from_uplink(uplink.ifindex).doing(format!("remove at_edge from {}", uplink.interface))?;
        }
        Ok(())
    }

    /// Nothing is dropped any more at an uplink, before the pods.
    pub fn detach_uplink(&self, name: &str) -> Result<(), Error> {
        let mut record = self.record()?;
        if record.uplinks.iter().all(|it| it.interface != name) {
            return Err(Error::NotAnUplink(name.to_owned()));
        }
        self.leave_uplinks(&mut record, |it| it.interface == name)
    }

    /// Protects the endpoints that have an entry, and no others. A map that has no room protects fewer.
    pub(crate) fn protect(&self, record: &Record, loaded: &Loaded) -> Result<(), Error> {
        let Some(endpoints) = loaded.map(MapName::Endpoints).filter(|_| loaded.edge.is_some()) else { return Ok(()) };
        let entries = self.system.entries(endpoints).doing("read the map endpoints")?;
        let is_here = |key: &[u8]| record.endpoints.iter().any(|it| key == it.ifindex.to_le_bytes());
        let values: Vec<&[u8]> =
            entries.iter().filter(|(key, _)| is_here(key)).map(|(_, value)| value.as_slice()).collect();
        for name in LOCALS {
            let Some(map) = loaded.map(name) else { continue };
            let writing = format!("write the map {}", name.name());
            let there = self.system.entries(map).doing(&writing)?;
            let there: BTreeSet<Vec<u8>> = there.into_iter().map(|(key, _)| key).collect();
            let wanted = protected(name, values.iter().copied()).into_iter().map(|(key, _)| key);
            let wanted: BTreeSet<Vec<u8>> = wanted.collect();
            for key in there.difference(&wanted) {
                self.system.delete(map, key).doing(&writing)?;
            }
            for key in wanted.difference(&there) {
                self.system.update(map, key, &PROTECTED).map_err(|error| refused(map, name, None, error))?;
            }
        }
        Ok(())
    }

    /// What there is at an uplink, and what should be.
    pub(crate) fn edge_state(&self, record: &Record, uplink: &Uplink) -> Result<EdgeState, Error> {
        let asking = format!("ask what runs at {}", uplink.interface);
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

/// Whether it is the driver that does not take it, and not somebody else's program, or us.
fn may_be_generic(error: &io::Error) -> bool {
    let others = [libc::EBUSY, libc::EEXIST, libc::EPERM, libc::EACCES, libc::ENODEV, libc::ENOMEM];
    error.raw_os_error().is_none_or(|number| !others.contains(&number))
}
