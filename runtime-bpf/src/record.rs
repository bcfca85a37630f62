//! The record: what should be so, as the last command that changed it has said.
//!
//! It is the value of a map that is pinned beside everything else, so that it lives and ends with it. A new record is a new map
//! that takes the old one's name in one step: whoever reads it sees all of one or all of the other.
//!
//! Kernel numbers of programs and maps are in it. They are never used twice, so that what is pinned under the right name but
//! is not what was put there is found out.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;

use serde::{Deserialize, Serialize};

use crate::error::{Doing as _, Error};
use crate::pins::Pins;
use crate::point::Way;
use crate::sys::{MapDefinition, MapType};
use crate::system::System;

/// The form of the record and of the maps that generations share.
const FORM: u32 = 1;

/// What should be so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    form: u32,
    /// The network namespace whose interfaces are meant.
    pub(crate) namespace: u64,
    /// Maps that all generations share: name → number.
    pub(crate) shared: BTreeMap<String, u32>,
    /// The generation in force.
    pub(crate) current: Option<Generation>,
    /// The one that is being switched to.
    pub(crate) next: Option<Generation>,
    /// The one before, with the time (since boot, ms) of the switch.
    pub(crate) retired: Option<(Generation, u64)>,
    /// The number of the last generation that was made, also if it never came into force.
    pub(crate) last_epoch: u32,
    /// Where it is enforced, sorted by interface.
    pub(crate) endpoints: Vec<Endpoint>,
    /// Where it was, and what it left there is to be removed.
    pub(crate) leaving: Vec<Endpoint>,
    /// How often something was found that was not so, and mended.
    pub(crate) repaired: u64,
    /// What flows stand by in tables of our own; none before the first generation.
    #[serde(default)]
    pub(crate) seeds: Vec<u64>,
    /// Where packets are dropped before there are any, sorted by interface.
    #[serde(default)]
    pub(crate) uplinks: Vec<Uplink>,
}

/// A compile result in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number; flows carry the number that was in force when they were judged last, and are judged again once it is
    /// another.
    ///
    /// Slots of flow tables only have the lower 24 bits. They do not come round while a flow waits: a flow is gone
    /// after two hours without packets, and the agent makes at most ten numbers a second for single addresses and one
    /// for each generation, of which there are at most 67 a second (it gathers changes for 15 ms). That is 554,400
    /// numbers in two hours, and there are 16,777,216.
    pub epoch: u32,
    /// The digest of what is enforced.
    pub digest: String,
    /// Whether flows of other generations go on unasked.
    pub keep: bool,
    /// What it marks packets with: 1 to 3.
    pub(crate) stamp: u8,
    /// `to_pod`, `from_pod`.
    pub(crate) programs: [u32; 2],
    /// `at_edge`, if it has one and there are uplinks.
    #[serde(default)]
    pub(crate) edge: Option<u32>,
    /// Its own maps: name → number.
    pub(crate) maps: BTreeMap<String, u32>,
    /// Whether single addresses are by now otherwise than in its artifact.
    #[serde(default)]
    pub(crate) patched: bool,
}

/// A pod at an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `namespace/name`
    pub pod: String,
    /// The pod's UID, if it is known. Names are reused, so a name does not identify a pod.
    #[serde(default)]
    pub uid: Option<String>,
    /// The interface's name when it was attached.
    pub interface: String,
    /// Its number.
    pub ifindex: u32,
    /// Its hardware address.
    pub(crate) address: Vec<u8>,
    /// The hardware address of the pod's end, if it was known when the endpoint was attached.
    #[serde(default)]
    pub(crate) pod_address: Option<[u8; 6]>,
    /// Its number on this node, from 0: no two endpoints have the same.
    #[serde(default)]
    pub(crate) number: u16,
    /// How programs got there.
    pub way: Way,
    /// It is that way because there were many at once, and can be moved.
    #[serde(default)]
    pub(crate) hurried: bool,
    /// All packets are dropped here: the programs are attached, but the map has no entry. Either it is not known to
    /// which pod the interface belongs, or the pod has no rules of its own.
    #[serde(default)]
    pub closed: bool,
}

/// An interface that packets of others come in through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uplink {
    /// Its name when it was attached.
    pub interface: String,
    /// Its number.
    pub ifindex: u32,
    /// Its hardware address.
    pub(crate) address: Vec<u8>,
    /// Whether the kernel runs the program, because the driver does not.
    pub generic: bool,
}

impl Record {
    pub(crate) fn new(namespace: u64) -> Self {
        Self {
            form: FORM,
            namespace,
            shared: BTreeMap::new(),
            current: None,
            next: None,
            retired: None,
            last_epoch: 0,
            endpoints: Vec::new(),
            leaving: Vec::new(),
            repaired: 0,
            seeds: Vec::new(),
            uplinks: Vec::new(),
        }
    }

    /// The record in force; `None` if nothing is.
    pub(crate) fn read(system: &System, pins: &Pins) -> Result<Option<Self>, Error> {
        let Some(map) = system.pinned_map(&pins.record()).doing("read the record")? else { return Ok(None) };
        let value = system.lookup(&map, &[0; 4]).doing("read the record")?.unwrap_or_default();
        let damaged = |what: String| Error::Damaged { path: pins.record(), what };
        let record: Self = serde_json::from_slice(&value).map_err(|error| damaged(error.to_string()))?;
        match record.form {
            FORM => Ok(Some(record)),
            other => Err(damaged(format!("its form is {other}, this weir knows {FORM}"))),
        }
    }

    /// From now on this is what should be so.
    pub(crate) fn write(&self, system: &System, pins: &Pins) -> Result<(), Error> {
        let writing = "write the record";
        let mut value = serde_json::to_vec(self).map_err(std::io::Error::other).doing(writing)?;
        // JSON may end in white space; the kernel's values are of whole words.
        value.resize(value.len().next_multiple_of(8), b' ');
        let definition = MapDefinition {
            map_type: MapType::Array,
            key_size: 4,
            value_size: value.len() as u32,
            max_entries: 1,
            flags: 0,
        };
        let map = system.create_map("weir_record", &definition).doing(writing)?;
        system.update(&map, &[0; 4], &value).doing(writing)?;
        // What a process that died has left.
        system.unpin(&pins.new_record()).doing(writing)?;
        system.pin(map.as_fd(), &pins.new_record()).doing(writing)?;
        system.rename(&pins.new_record(), &pins.record()).doing(writing)
    }
}
