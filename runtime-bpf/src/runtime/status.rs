//! `weir status`: the desired state, the kernel's state, and how full the maps are. Changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use weir_artifact::layout::{AT_EDGE, MapName, buckets, config, protected};
use weir_artifact::map_image::{MapBytes, bucket_family};
use weir_ebpf::vm::MapKind;

use super::reconcile::{EndpointsByName, FoundPrograms, RecordedPin};
use super::{EdgeState, OWN, Runtime, UnattachedEndpoint, of, unattached};
use crate::error::{Doing as _, Error};
use crate::generation::{self, LoadedGeneration, is_shared};
use crate::point::{HookNeighbour, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord, KernelGeneration, Uplink};
use crate::sys::MapType;

/// How often a difference that is read without the lock must be found again, and the time between two readings. A
/// switch takes some milliseconds, and maps are not reused before [`super::GRACE`] is over.
const MORE_READINGS: usize = 4;
const BETWEEN_READINGS: Duration = Duration::from_millis(37);

/// The report of `weir status`.
#[derive(Clone, Debug)]
pub struct EnforcementStatus {
    /// The generation in force; `None` if the first one never came into force.
    pub generation: Option<KernelGeneration>,
    /// The generation to which an interrupted switch was under way.
    pub switching_to: Option<KernelGeneration>,
    /// The endpoints at which the generation is enforced.
    pub endpoints: Vec<EndpointState>,
    /// The generation's local endpoints that are not attached: nothing filters their packets.
    pub unattached: Vec<UnattachedEndpoint>,
    /// The uplinks, where packets are dropped before they reach a pod.
    pub uplinks: Vec<UplinkState>,
    /// Differences between the kernel's state and the record.
    pub drift: Vec<String>,
    /// Programs of others on the same hooks.
    pub neighbours: Vec<HookNeighbour>,
    /// How full the maps are.
    pub maps: Vec<Fill>,
    /// How many repairs the runtime has made.
    pub repaired: u64,
}

/// An uplink and its state.
#[derive(Clone, Debug)]
pub struct UplinkState {
    /// The uplink, as in the record.
    pub uplink: Uplink,
    /// Its state in the kernel.
    pub state: EdgeState,
}

/// An endpoint and its state.
#[derive(Clone, Debug)]
pub struct EndpointState {
    /// The endpoint, as in the record.
    pub endpoint: EnforcedEndpoint,
    /// Its state in the kernel.
    pub state: EnforcementState,
}

/// The state of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementState {
    /// Both programs are of the generation in force, and its entry is there.
    Enforced,
    /// All packets are dropped: both programs are attached, but the endpoint has no entry.
    Closed,
    /// A program is of another generation.
    Other,
    /// One of our programs is missing, or both are: the packets of its direction pass.
    Open,
    /// Its interface is gone.
    Gone,
}

/// How full a map is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fill {
    /// Its name.
    pub name: String,
    /// How many entries it has.
    pub entries: u64,
    /// How many entries fit.
    pub max_entries: u32,
}

impl Runtime {
    /// Compares the record with the kernel's state. Without the lock, another process may change both meanwhile: only
    /// differences that are found several times count.
    pub fn status(&self) -> Result<EnforcementStatus, Error> {
        let mut status = self.read_status()?;
        for _ in 0..if self.has_lock() { 0 } else { MORE_READINGS } {
            if status.drift.is_empty() {
                break;
            }
            std::thread::sleep(BETWEEN_READINGS);
            let again = self.read_status()?;
            let drift = status.drift.into_iter().filter(|it| again.drift.contains(it)).collect();
            status = EnforcementStatus { drift, ..again };
        }
        Ok(status)
    }

    fn read_status(&self) -> Result<EnforcementStatus, Error> {
        let record = self.record_here()?;
        let mut drift = self.check(&record)?;
        let loaded = self.current(&record).or_else(|error| match error {
            Error::Damaged { what, .. } => {
                drift.push(what);
                Ok(None)
            }
            other => Err(other),
        })?;
        let mut endpoints = Vec::new();
        for local in &record.endpoints {
            let state = self.state(&record, loaded.as_ref(), local)?;
            endpoints.push(EndpointState { endpoint: local.clone(), state });
        }
        let artifact = loaded.as_ref().and_then(|loaded| self.artifact(loaded).ok());
        let unattached = artifact.map(|it| unattached(&it, &record.endpoints)).unwrap_or_default();
        let maps = loaded.as_ref().map(|loaded| self.fill_of(loaded)).transpose()?.unwrap_or_default();
        Ok(EnforcementStatus {
            neighbours: self.neighbours(&record.endpoints)?,
            uplinks: self.uplink_states(&record)?,
            generation: record.current.clone(),
            switching_to: record.next.clone(),
            endpoints,
            unattached,
            drift,
            maps,
            repaired: record.repaired,
        })
    }

    pub(crate) fn uplink_states(&self, record: &EnforcementRecord) -> Result<Vec<UplinkState>, Error> {
        let state =
            |uplink: &Uplink| Ok(UplinkState { uplink: uplink.clone(), state: self.edge_state(record, uplink)? });
        record.uplinks.iter().map(state).collect()
    }

    /// Compares the kernel's state with the record and returns the differences, in words.
    fn check(&self, record: &EnforcementRecord) -> Result<Vec<String>, Error> {
        let mut drift = Vec::new();
        if record.next.is_some() {
            drift.push("a switch to another generation was interrupted".to_owned());
        }
        if !record.leaving.is_empty() {
            drift.push("a detach was interrupted".to_owned());
        }
        for RecordedPin { object, path } in self.recorded_pins(record) {
            if self.object_at(&path).ok().flatten() != Some(object) {
                drift.push(format!("the pin {} is missing or holds another object", path.display()));
            }
        }
        let ours = record.programs();
        for local in &record.endpoints {
            for side in ProgramSide::BOTH {
                let there = self.point(local, side).program()?;
                let expected = record.current.as_ref().map(|it| it.programs[side as usize]);
                let is_right = there.is_some() && there == expected;
                // An interface that is gone by this time needs no program.
                if !is_right && !self.is_gone(local, &ours, &mut FoundPrograms::new())? {
                    let what = if there.is_some() { "another program runs" } else { "no program of ours runs" };
                    drift.push(format!("{what} as {} at {} ({})", side.program(), local.interface, local.pod));
                }
            }
        }
        for UplinkState { uplink, state } in self.uplink_states(record)? {
            let what = match state {
                EdgeState::Enforced | EdgeState::Idle => continue,
                EdgeState::Open => "no program of ours runs",
                EdgeState::Other => "another program runs",
            };
            drift.push(format!("{what} as {AT_EDGE} at {}", uplink.interface));
        }
        if let Ok(Some(loaded)) = self.current(record) {
            self.check_contents(record, &loaded, &mut drift)?;
        }
        Ok(drift)
    }

    /// The maps must contain exactly the entries that the compiler made.
    fn check_contents(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        drift: &mut Vec<String>,
    ) -> Result<(), Error> {
        let artifact = match self.artifact(loaded) {
            Err(Error::Unreadable { what, .. }) => {
                drift.push(format!("the artifact cannot be read from the maps: {what}"));
                return Ok(());
            }
            read => read?,
        };
        let named = EndpointsByName::new(&artifact.endpoints);
        let own = self.own_addresses(&artifact.endpoints, &record.endpoints)?;
        for image in artifact.maps.iter().filter(|image| !is_shared(image.name)) {
            let (name, Some(map)) = (image.name.name(), loaded.map(image.name)) else { continue };
            let there = self.entries_of(map, name)?;
            let expected: BTreeMap<MapBytes, MapBytes> = match image.name {
                // Each switch writes `other`. `flow_shape` is frozen, and its content is this machine's own.
                MapName::Other | MapName::FlowShape => continue,
                MapName::Exact4 | MapName::Exact6 if loaded.generation.patched => continue,
                MapName::Config => {
                    let value = there.get([0; 4].as_slice());
                    let epoch = value.and_then(|it| it.get(config::EPOCH as usize..)?.first_chunk());
                    if epoch.map(|it| u32::from_le_bytes(*it)) != Some(loaded.generation.epoch) {
                        drift.push("the map config has another generation's number".to_owned());
                    }
                    continue;
                }
                MapName::Endpoints => {
                    let entry = |local: &EnforcedEndpoint| {
                        Some((
                            MapBytes::from_slice(&local.ifindex.to_le_bytes()),
                            named.value_of(local)?.to_vec().into(),
                        ))
                    };
                    record.endpoints.iter().filter_map(entry).collect()
                }
                MapName::Local4 | MapName::Local6 => {
                    let values: Vec<_> = record.endpoints.iter().filter_map(|it| named.value_of(it)).collect();
                    protected(image.name, values.iter().map(|it| it.as_slice())).into_iter().collect()
                }
                name => {
                    let own = of(&own, name).map(|key| (MapBytes::from(key), MapBytes::from(&OWN[..])));
                    image.entries.iter().cloned().chain(own).collect()
                }
            };
            let missing = expected.iter().filter(|(key, value)| there.get(*key) != Some(value)).count();
            // An array has all of its entries, at least one, from the beginning: unused entries are zero.
            let is_unset = |value: &[u8]| image.spec.kind == MapKind::Array && value.iter().all(|byte| *byte == 0);
            let is_extra = |key: &MapBytes, value: &[u8]| !expected.contains_key(key) && !is_unset(value);
            let extra = there.iter().filter(|(key, value)| is_extra(key, value)).count();
            if missing + extra > 0 {
                drift.push(format!(
                    "the map {name} differs from the artifact: {missing} entries are missing or changed, {extra} are unexpected"
                ));
            }
        }
        Ok(())
    }

    fn entries_of(&self, map: &crate::sys::KernelMap, name: &str) -> Result<BTreeMap<MapBytes, MapBytes>, Error> {
        let reading = format!("read the map {name}");
        if map.definition().max_entries == 1 {
            let value = self.system.lookup(map, &[0; 4]).doing(reading)?;
            return Ok(value.into_iter().map(|value| (MapBytes::from_elem(0, 4), value.into())).collect());
        }
        let entries = self.system.flat_entries(map).doing(reading)?;
        Ok(entries.iter().map(|(key, value)| (key.into(), value.into())).collect())
    }

    pub(crate) fn state(
        &self,
        record: &EnforcementRecord,
        loaded: Option<&LoadedGeneration>,
        local: &EnforcedEndpoint,
    ) -> Result<EnforcementState, Error> {
        let mut right = 0;
        let mut there = 0;
        for side in ProgramSide::BOTH {
            let program = self.point(local, side).program()?;
            there += usize::from(program.is_some());
            let expected = record.current.as_ref().map(|it| it.programs[side as usize]);
            right += usize::from(program.is_some() && program == expected);
        }
        let entry = match loaded.and_then(LoadedGeneration::endpoints) {
            Some((_, map)) => self.system.get(map, &local.ifindex).doing("read the map endpoints")?,
            None => None,
        };
        Ok(match (right, there, entry) {
            (2, _, Some(_)) => EnforcementState::Enforced,
            (0, _, _) if self.is_gone(local, &record.programs(), &mut FoundPrograms::new())? => EnforcementState::Gone,
            // The other program cannot replace the missing one: it sees the packets of its own direction only.
            (_, 0 | 1, _) => EnforcementState::Open,
            (2, _, None) => EnforcementState::Closed,
            _ => EnforcementState::Other,
        })
    }

    /// Only for maps that grow at run time: the compiler sized the others to their content.
    fn fill_of(&self, loaded: &LoadedGeneration) -> Result<Vec<Fill>, Error> {
        let mut fills = Vec::new();
        for (name, map) in &loaded.maps {
            let definition = map.definition();
            let known = MapName::named(name);
            if let Some((family, _)) = known.and_then(bucket_family) {
                let entries = self.system.slots(map, family).doing(format!("read the map {name}"))?.len() as u64;
                let max_entries = definition.value_size / buckets::slot_bytes(family);
                fills.push(Fill { name: name.clone(), entries, max_entries });
                continue;
            }
            let counts = matches!(definition.map_type, MapType::Hash | MapType::LruHash | MapType::LpmTrie);
            if counts && name != generation::FILE {
                let entries = self.system.count(map).doing(format!("read the map {name}"))?;
                fills.push(Fill { name: name.clone(), entries, max_entries: definition.max_entries });
            }
        }
        Ok(fills)
    }
}
