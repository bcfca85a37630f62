//! The record: the desired state, as set by the last command that changed it.
//!
//! It is the value of a map that is pinned beside all other objects, so that it exists exactly as long as they do. A
//! new record is a new map that replaces the old one's pin in one atomic step: a reader sees either the old or the new
//! record, completely.
//!
//! It contains the kernel's numbers of programs and maps. The kernel never uses a number twice, so an object that
//! another process pinned under one of our names is detected.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use weir_artifact::NamedEndpoint;
use weir_artifact::layout::endpoint;

use crate::error::{Doing as _, Error};
use crate::pins::Pins;
use crate::point::HookKind;
use crate::sys::{MapDefinition, MapType};
use crate::system::System;

/// The format version of the record and of the maps that generations share. A reader that ignored what a newer record
/// contains could put earlier rules of a pod in force again, so every addition gets a new number. In form 1, generations
/// have no single pods, and there is no spare.
const FORM: u32 = 2;
/// Forms that this version reads.
const KNOWN_FORMS: std::ops::RangeInclusive<u32> = 1..=FORM;

/// The desired state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnforcementRecord {
    form: u32,
    /// The network namespace to which the interfaces belong.
    pub(crate) namespace: u64,
    /// Maps that all generations share: name → number.
    pub(crate) shared: BTreeMap<String, u32>,
    /// The generation in force.
    pub(crate) current: Option<KernelGeneration>,
    /// The generation to which a switch is under way.
    pub(crate) next: Option<KernelGeneration>,
    /// The previous generation, with the time (since boot, ms) of the switch.
    pub(crate) retired: Option<(KernelGeneration, u64)>,
    /// A generation before the one in force, or a copy of the one in force, through which no packet passes. The next
    /// generation may reuse its programs and maps.
    #[serde(default)]
    pub(crate) spare: Option<KernelGeneration>,
    /// The number of the last generation that was made, even if it never came into force.
    pub(crate) last_epoch: u32,
    /// The enforced endpoints, sorted by interface.
    pub(crate) endpoints: EnforcedEndpoints,
    /// Former endpoints whose programs, entries and flows are still to be removed.
    pub(crate) leaving: Vec<EnforcedEndpoint>,
    /// How many repairs have been made.
    pub(crate) repaired: u64,
    /// The seeds of the hash that places flows in the flow tables; none before the first generation.
    #[serde(default)]
    pub(crate) seeds: Vec<u64>,
    /// The uplinks, where packets are dropped before they reach a pod, sorted by interface.
    #[serde(default)]
    pub(crate) uplinks: Vec<Uplink>,
}

/// A record whose endpoints are JSON already.
#[derive(Serialize)]
struct StoredRecord<'r> {
    form: u32,
    namespace: u64,
    shared: &'r BTreeMap<String, u32>,
    current: &'r Option<KernelGeneration>,
    next: &'r Option<KernelGeneration>,
    retired: &'r Option<(KernelGeneration, u64)>,
    spare: &'r Option<KernelGeneration>,
    last_epoch: u32,
    endpoints: &'r [Box<RawValue>],
    leaving: &'r [EnforcedEndpoint],
    repaired: u64,
    seeds: &'r [u64],
    uplinks: &'r [Uplink],
}

/// A compile result in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelGeneration {
    /// Its number. Each flow has the number that was in force when it was judged last, and is judged again when the
    /// numbers differ.
    ///
    /// Slots of flow tables only have the lower 24 bits. They do not come round while a flow waits: a flow is gone
    /// after two hours without packets, and the agent makes at most ten numbers a second for single addresses and one
    /// for each generation, of which there are fewer than 1,000 a second (it waits for 1 ms without a change). That is
    /// 7,272,000 numbers in two hours, and there are 16,777,216.
    pub epoch: u32,
    /// The digest of the artifact that is enforced.
    pub digest: String,
    /// The digest of its programs; empty if no later generation may reuse them.
    #[serde(default)]
    pub(crate) code: String,
    /// The shared maps that its programs use: name → number.
    #[serde(default)]
    pub(crate) shared: BTreeMap<String, u32>,
    /// Whether flows of other generations continue without being judged again.
    pub keep: bool,
    /// The stamp that its programs write into packets: 1 to 3.
    pub(crate) stamp: u8,
    /// `to_pod`, `from_pod`.
    pub(crate) programs: [u32; 2],
    /// `at_edge`, if it has one and there are uplinks.
    #[serde(default)]
    pub(crate) edge: Option<u32>,
    /// Its own maps: name → number.
    pub(crate) maps: BTreeMap<String, u32>,
    /// Whether tables may differ from its artifact: single addresses, or all that an extension writes.
    #[serde(default)]
    pub(crate) patched: bool,
    /// The pods of this node that differ from its artifact.
    #[serde(default)]
    pub(crate) pods: SinglePods,
}

/// Pods of this node that came or left since the artifact of a generation was made.
///
/// Invariant: `left` contains only names of the artifact, so it cannot grow while other pods come and go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinglePods {
    pub(crate) came: Vec<CamePod>,
    /// `namespace/name`. The artifact's value of such a pod does not count, even if the pod has come again.
    pub(crate) left: BTreeSet<String>,
}

/// A pod that is not in the artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CamePod {
    /// `namespace/name`
    pub(crate) pod: String,
    /// Its value in the map `endpoints`.
    pub(crate) value: Vec<u8>,
}

impl SinglePods {
    pub(crate) fn is_empty(&self) -> bool {
        self.came.is_empty() && self.left.is_empty()
    }

    pub(crate) fn come(&mut self, pod: &str, value: &endpoint::Value) {
        self.came.retain(|it| it.pod != pod);
        self.came.push(CamePod { pod: pod.to_owned(), value: value.to_vec() });
    }

    /// `is_named` says whether the artifact has a pod with this name.
    pub(crate) fn leave(&mut self, pod: &str, is_named: bool) {
        self.came.retain(|it| it.pod != pod);
        if is_named {
            self.left.insert(pod.to_owned());
        }
    }

    /// A pod that came, as an artifact would have it.
    pub(crate) fn named(&self, pod: &str) -> Option<NamedEndpoint> {
        self.came.iter().find(|it| it.pod == pod)?.named()
    }

    /// Changes the endpoints of the artifact to those of this node now.
    pub(crate) fn apply(&self, endpoints: &mut Vec<NamedEndpoint>) {
        let came: Vec<NamedEndpoint> = self.came.iter().filter_map(CamePod::named).collect();
        let is_replaced = |it: &NamedEndpoint| came.iter().any(|new| is_same_pod(new, it));
        endpoints.retain(|it| !self.left.contains(&it.pod()) && !is_replaced(it));
        endpoints.extend(came);
    }
}

impl CamePod {
    fn named(&self) -> Option<NamedEndpoint> {
        let (namespace, name) = self.pod.split_once('/')?;
        let value = self.value.first_chunk().copied().filter(|value| value.len() == self.value.len())?;
        Some(NamedEndpoint { namespace: namespace.to_owned(), name: name.to_owned(), value })
    }
}

fn is_same_pod(one: &NamedEndpoint, other: &NamedEndpoint) -> bool {
    (&one.namespace, &one.name) == (&other.namespace, &other.name)
}

impl KernelGeneration {
    /// How many programs and maps it has of its own.
    pub fn objects(&self) -> usize {
        self.programs.len() + usize::from(self.edge.is_some()) + self.maps.len()
    }
}

/// A pod at an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcedEndpoint {
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
    /// Its number on this node, from 0. No two endpoints have the same number.
    #[serde(default)]
    pub(crate) number: u16,
    /// How its programs are attached.
    pub way: HookKind,
    /// Whether this way was chosen because many endpoints were attached at once. It can be changed later.
    #[serde(default)]
    pub(crate) hurried: bool,
    /// All packets are dropped here: the programs are attached, but the map has no entry. Either it is not known to
    /// which pod the interface belongs, or the pod has no rules of its own.
    #[serde(default)]
    pub closed: bool,
    /// Whether `weir attach` attached it, not an agent. Uninstalling the agent leaves such endpoints alone.
    #[serde(default)]
    pub(crate) by_hand: bool,
}

/// Endpoints, of which a copy costs nothing until it is changed: every operation copies the record, and few of them
/// change an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EnforcedEndpoints(Arc<Vec<EnforcedEndpoint>>);

impl Deref for EnforcedEndpoints {
    type Target = Vec<EnforcedEndpoint>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for EnforcedEndpoints {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl From<Vec<EnforcedEndpoint>> for EnforcedEndpoints {
    fn from(endpoints: Vec<EnforcedEndpoint>) -> Self {
        Self(endpoints.into())
    }
}

impl<'a> IntoIterator for &'a EnforcedEndpoints {
    type Item = &'a EnforcedEndpoint;
    type IntoIter = std::slice::Iter<'a, EnforcedEndpoint>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl EnforcedEndpoint {
    /// Whether it is removed when the agent is uninstalled. An agent closes endpoints that it does not know, also those
    /// that were attached by hand. No other process would ever open these.
    pub fn is_agents(&self) -> bool {
        !self.by_hand || self.closed
    }
}

/// An interface on which packets of other hosts arrive.
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

impl EnforcementRecord {
    /// All generations in it.
    pub(crate) fn generations(&self) -> impl Iterator<Item = &KernelGeneration> {
        let retired = self.retired.as_ref().map(|(generation, _)| generation);
        [self.current.as_ref(), self.next.as_ref(), retired, self.spare.as_ref()].into_iter().flatten()
    }

    /// The programs at pods of all generations in it.
    pub(crate) fn programs(&self) -> BTreeSet<u32> {
        self.generations().flat_map(|it| it.programs).collect()
    }

    pub(crate) fn new(namespace: u64) -> Self {
        Self {
            form: FORM,
            namespace,
            shared: BTreeMap::new(),
            current: None,
            next: None,
            retired: None,
            spare: None,
            last_epoch: 0,
            endpoints: EnforcedEndpoints::default(),
            leaving: Vec::new(),
            repaired: 0,
            seeds: Vec::new(),
            uplinks: Vec::new(),
        }
    }

    /// The pinned record as it is stored; `None` if no record is pinned.
    fn stored(system: &System, pins: &Pins) -> Result<Option<Vec<u8>>, Error> {
        let Some(map) = system.pinned_map(&pins.record()).doing("read the record")? else { return Ok(None) };
        Ok(Some(system.lookup(&map, &[0; 4]).doing("read the record")?.unwrap_or_default()))
    }

    fn parse(value: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(value).map_err(|error| error.to_string())?;
        if !KNOWN_FORMS.contains(&record.form) {
            return Err(format!("its form is {}, this weir knows {FORM}", record.form));
        }
        Ok(Self { form: FORM, ..record })
    }

    /// The bytes to store. `endpoints` are its endpoints as JSON.
    fn to_value(&self, endpoints: &[Box<RawValue>]) -> Result<Vec<u8>, serde_json::Error> {
        let Self {
            form,
            namespace,
            ref shared,
            ref current,
            ref next,
            ref retired,
            ref spare,
            last_epoch,
            endpoints: _,
            ref leaving,
            repaired,
            ref seeds,
            ref uplinks,
        } = *self;
        let stored = StoredRecord {
            form,
            namespace,
            shared,
            current,
            next,
            retired,
            spare,
            last_epoch,
            endpoints,
            leaving,
            repaired,
            seeds,
            uplinks,
        };
        // With room for the endpoints, which are most of it, and for the rest of a usual record.
        const REST: usize = 1 << 13;
        let room = endpoints.iter().map(|it| it.get().len() + 1).sum::<usize>() + REST;
        let mut value = Vec::with_capacity(room);
        serde_json::to_writer(&mut value, &stored)?;
        // JSON may end in white space, and the kernel's values consist of whole words.
        value.resize(value.len().next_multiple_of(8), b' ');
        Ok(value)
    }

    /// Stores these bytes as the record in force. Returns the number of the map that has them.
    fn store(value: &[u8], system: &System, pins: &Pins) -> Result<u32, Error> {
        let writing = "write the record";
        let definition = MapDefinition {
            map_type: MapType::Array,
            key_size: 4,
            value_size: value.len() as u32,
            max_entries: 1,
            flags: 0,
        };
        let map = system.create_map("weir_record", &definition).doing(writing)?;
        system.update(&map, &[0; 4], value).doing(writing)?;
        // A new map instead of an update of the old one: an array's value is copied word by word, so a reader could see
        // half of each record. A rename within a bpf file system replaces the old pin in one step. The pin of the new
        // record exists already if a process died before its rename.
        system.unpin(&pins.new_record()).doing(writing)?;
        system.pin(map.as_fd(), &pins.new_record()).doing(writing)?;
        // Before the rename: once the record is in force, nothing can fail any more.
        let number = system.map_info(&map).doing(writing)?.id;
        system.rename(&pins.new_record(), &pins.record()).doing(writing)?;
        Ok(number)
    }
}

/// The record that was read or written last. It is parsed again only if the stored bytes differ.
#[derive(Debug, Default)]
pub(crate) struct LatestRecord(Option<ReadRecord>);

#[derive(Debug)]
struct ReadRecord {
    value: Vec<u8>,
    record: Arc<EnforcementRecord>,
    /// Its endpoints as JSON, if this process has written it: most writes change one endpoint at most.
    endpoints: Arc<[Box<RawValue>]>,
    /// The number of the map that has it, if this process has written it.
    number: Option<u32>,
}

impl LatestRecord {
    /// The pinned record; `None` if no record is pinned.
    pub(crate) fn read(&mut self, system: &System, pins: &Pins) -> Result<Option<Arc<EnforcementRecord>>, Error> {
        let Some(value) = EnforcementRecord::stored(system, pins)? else { return Ok(None) };
        let damaged = |what: String| Error::Damaged { path: pins.record(), what };
        self.parsed(value).map(Some).map_err(damaged)
    }

    fn parsed(&mut self, value: Vec<u8>) -> Result<Arc<EnforcementRecord>, String> {
        if let Some(known) = self.0.as_ref().filter(|known| known.value == value) {
            return Ok(Arc::clone(&known.record));
        }
        let record = Arc::new(EnforcementRecord::parse(&value)?);
        self.0 = Some(ReadRecord { value, record: Arc::clone(&record), endpoints: Arc::default(), number: None });
        Ok(record)
    }

    /// Makes this the record in force.
    pub(crate) fn write(&mut self, system: &System, pins: &Pins, record: &EnforcementRecord) -> Result<(), Error> {
        let made = self.made(record).map_err(std::io::Error::other).doing("write the record")?;
        let number = Some(EnforcementRecord::store(&made.value, system, pins)?);
        self.0 = Some(ReadRecord { number, ..made });
        Ok(())
    }

    /// The record that this process has written, and the number of its map, if it was the last one that was read or
    /// written.
    pub(crate) fn written(&self) -> Option<(Arc<EnforcementRecord>, u32)> {
        let latest = self.0.as_ref()?;
        Some((Arc::clone(&latest.record), latest.number?))
    }

    /// Whether this record was read or written last.
    pub(crate) fn is(&self, record: &EnforcementRecord) -> bool {
        self.0.as_ref().is_some_and(|latest| *latest.record == *record)
    }

    /// The record with its bytes. Takes the JSON of endpoints from the latest record, which are in the same order.
    fn made(&self, record: &EnforcementRecord) -> Result<ReadRecord, serde_json::Error> {
        let same = self.0.as_ref().filter(|latest| latest.record.endpoints == record.endpoints);
        let same = same.map(|latest| &latest.endpoints).filter(|known| known.len() == record.endpoints.len());
        let endpoints = match same {
            Some(known) => Arc::clone(known),
            None => self.endpoints_of(record)?.into(),
        };
        let value = record.to_value(&endpoints)?;
        Ok(ReadRecord { value, record: Arc::new(record.clone()), endpoints, number: None })
    }

    fn endpoints_of(&self, record: &EnforcementRecord) -> Result<Vec<Box<RawValue>>, serde_json::Error> {
        let known = self.0.iter().flat_map(|latest| latest.record.endpoints.iter().zip(latest.endpoints.iter()));
        let mut known = known.peekable();
        let mut endpoints = Vec::with_capacity(record.endpoints.len());
        for endpoint in &record.endpoints {
            while known.next_if(|(it, _)| it.ifindex < endpoint.ifindex).is_some() {}
            endpoints.push(match known.next_if(|(it, _)| *it == endpoint) {
                Some((_, json)) => json.clone(),
                None => to_raw_value(endpoint)?,
            });
        }
        Ok(endpoints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_the_form_before_is_read_and_a_later_one_refused() {
        let record = EnforcementRecord::new(7);
        let as_form = |form: u32| {
            let mut value = serde_json::to_value(&record).unwrap();
            value["form"] = form.into();
            value.as_object_mut().unwrap().remove("spare");
            EnforcementRecord::parse(&serde_json::to_vec(&value).unwrap())
        };
        assert_eq!(as_form(1).unwrap(), record, "it is written again in the present form");
        assert_eq!(as_form(FORM + 1).unwrap_err(), "its form is 3, this weir knows 2");
        assert_eq!(as_form(0).unwrap_err(), "its form is 0, this weir knows 2");
    }

    #[test]
    fn only_a_record_of_another_process_is_parsed() {
        let (own, other) = (EnforcementRecord::new(7), EnforcementRecord::new(8));
        let mut latest = LatestRecord::default();
        latest.0 = Some(latest.made(&own).unwrap());
        let value = |record: &EnforcementRecord| LatestRecord::default().made(record).unwrap().value;
        let written = latest.0.as_ref().map(|it| Arc::clone(&it.record)).unwrap();
        let read = latest.parsed(value(&own)).unwrap();
        assert!(Arc::ptr_eq(&read, &written) && *read == own);
        assert_eq!(*latest.parsed(value(&other)).unwrap(), other);
        assert_eq!(*latest.parsed(value(&own)).unwrap(), own);
        assert!(latest.parsed(b"{}".to_vec()).is_err());
        assert_eq!(*latest.parsed(value(&own)).unwrap(), own);
    }

    fn endpoint(ifindex: u32, number: u16) -> EnforcedEndpoint {
        EnforcedEndpoint {
            pod: format!("shop/\u{e4}\"{ifindex}"),
            uid: number.is_multiple_of(2).then(|| "u1".to_owned()),
            interface: format!("veth{ifindex}"),
            ifindex,
            address: vec![2, 0, 0, 0, 0, 1],
            pod_address: None,
            number,
            way: HookKind::Tcx,
            hurried: false,
            closed: false,
            by_hand: false,
        }
    }

    #[test]
    fn a_record_is_written_as_from_nothing_whatever_was_written_before() {
        // Whether endpoints come, leave, change, or get another order.
        let lists: [&[(u32, u16)]; 8] = [
            &[],
            &[(3, 1), (5, 2), (9, 3)],
            &[(3, 1), (4, 7), (5, 2), (9, 3)],
            &[(4, 7), (5, 4), (9, 3)],
            &[(9, 3), (5, 4), (3, 1)],
            &[(5, 4), (5, 4)],
            &[(3, 1)],
            &[(2, 1), (3, 1), (9, 3)],
        ];
        let records = lists.map(|list| {
            let endpoints: Vec<_> = list.iter().map(|(ifindex, number)| endpoint(*ifindex, *number)).collect();
            EnforcementRecord {
                endpoints: endpoints.into(),
                seeds: vec![1, 2],
                last_epoch: list.len() as u32,
                ..EnforcementRecord::new(7)
            }
        });
        for (before, after) in records.iter().flat_map(|before| records.iter().map(move |after| (before, after))) {
            let mut latest = LatestRecord::default();
            latest.0 = Some(latest.made(before).unwrap());
            let made = latest.made(after).unwrap();
            let whole = serde_json::to_string(after).unwrap();
            assert_eq!(String::from_utf8(made.value.clone()).unwrap().trim_end(), whole);
            assert!(made.value.len().is_multiple_of(8) && made.endpoints.len() == after.endpoints.len());
            // Of a record that another process has written, only the parsed form is known.
            latest.parsed(LatestRecord::default().made(before).unwrap().value).unwrap();
            assert_eq!(latest.made(after).unwrap().value, made.value);
        }
    }
}
