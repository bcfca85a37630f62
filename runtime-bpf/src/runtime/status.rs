//! `weir status`: the desired state, the kernel's state, and how full the maps are. Changes nothing.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use weir_artifact::Artifact;
use weir_artifact::layout::AT_EDGE;

use super::contents::EntryCounts;
use super::endpoint_programs::FoundPrograms;
use super::recorded_pins::RecordedPin;
use super::{EdgeState, PinAccess, Runtime, UnattachedEndpoint, unattached};
use crate::error::{Doing as _, Error};
use crate::generation::LoadedGeneration;
use crate::point::{HookNeighbour, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord, KernelGeneration, Uplink};

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

/// The differences between the kernel's state and the record, and how full the maps are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deviations {
    /// The differences, in words.
    pub drift: Vec<String>,
    /// How full the maps are.
    pub maps: Vec<Fill>,
    /// Whether a table differs from the artifact. Then the next attach makes a new generation, even of the same
    /// artifact, and reads every table that it reuses.
    pub wrong_tables: bool,
}

/// The generation in force, compared with its artifact.
struct ComparedState {
    loaded: Option<LoadedGeneration>,
    artifact: Option<Artifact>,
    drift: Vec<String>,
    wrong_tables: bool,
    maps: Vec<Fill>,
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
        let ComparedState { loaded, artifact, drift, maps, .. } = self.compare(&record)?;
        let mut endpoints = Vec::new();
        for local in &record.endpoints {
            let state = self.state(&record, loaded.as_ref(), local)?;
            endpoints.push(EndpointState { endpoint: local.clone(), state });
        }
        let unattached = artifact.map(|it| unattached(&it, &record.endpoints)).unwrap_or_default();
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

    /// Compares the record with the kernel's state, as [`Self::status`] does, without the states of the endpoints. The
    /// caller holds the lock.
    pub fn deviations(&self) -> Result<Deviations, Error> {
        debug_assert!(self.has_lock(), "opened with {:?}", PinAccess::Change);
        let ComparedState { drift, maps, wrong_tables, .. } = self.compare(&*self.record_here()?)?;
        if wrong_tables {
            self.distrust()?;
        }
        Ok(Deviations { drift, maps, wrong_tables })
    }

    /// Another process has changed a table. What this process has written to tables is not relied on any more, and the
    /// generation in force does not count as what its artifact says.
    pub(crate) fn distrust(&self) -> Result<(), Error> {
        self.forget_written();
        let mut record = self.record()?;
        record.current.iter_mut().for_each(|current| current.patched = true);
        self.write_record(&record)?;
        self.remember()
    }

    fn compare(&self, record: &EnforcementRecord) -> Result<ComparedState, Error> {
        let mut drift = self.check(record)?;
        let loaded = self.current(record).or_else(|error| match error {
            Error::Damaged { what, .. } => {
                drift.push(what);
                Ok(None)
            }
            other => Err(other),
        })?;
        let Some(loaded) = loaded else {
            return Ok(ComparedState { loaded: None, artifact: None, drift, wrong_tables: false, maps: Vec::new() });
        };
        let (artifact, counts, wrong_tables) = match self.artifact(&loaded) {
            Err(Error::Unreadable { what, .. }) => {
                drift.push(format!("the artifact cannot be read from the maps: {what}"));
                (None, EntryCounts::new(), true)
            }
            read => {
                let artifact = read?;
                let known = drift.len();
                let counts = self.check_contents(record, &loaded, &artifact, &mut drift)?;
                (Some(artifact), counts, drift.len() > known)
            }
        };
        let maps = self.fill_of(&loaded, &counts)?;
        Ok(ComparedState { loaded: Some(loaded), artifact, drift, wrong_tables, maps })
    }

    pub(crate) fn uplink_states(&self, record: &EnforcementRecord) -> Result<Vec<UplinkState>, Error> {
        let state =
            |uplink: &Uplink| Ok(UplinkState { uplink: uplink.clone(), state: self.edge_state(record, uplink)? });
        record.uplinks.iter().map(state).collect()
    }

    /// Compares pins and hooks with the record and returns the differences, in words.
    fn check(&self, record: &EnforcementRecord) -> Result<Vec<String>, Error> {
        let mut drift = Vec::new();
        if record.next.is_some() {
            drift.push("a switch to another generation was interrupted".to_owned());
        }
        if !record.leaving.is_empty() {
            drift.push("a detach was interrupted".to_owned());
        }
        for RecordedPin { object, path } in self.recorded_pins(record) {
            let is_at = |path: &Path| self.object_at(path).ok().flatten() == Some(object);
            // Until a switch is over, the next generation's pins can be the spare's.
            let of_spare = path.strip_prefix(self.pins.next()).map(|name| self.pins.old().join(name));
            if !is_at(&path) && !of_spare.is_ok_and(|path| is_at(&path)) {
                drift.push(format!("the pin {} is missing or holds another object", path.display()));
            }
        }
        let ours = record.programs();
        for local in &record.endpoints {
            for side in ProgramSide::BOTH {
                let there = self.judging(local, side, &ours)?;
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
        Ok(drift)
    }

    pub(crate) fn state(
        &self,
        record: &EnforcementRecord,
        loaded: Option<&LoadedGeneration>,
        local: &EnforcedEndpoint,
    ) -> Result<EnforcementState, Error> {
        let mut right = 0;
        let mut there = 0;
        let ours = record.programs();
        for side in ProgramSide::BOTH {
            let program = self.judging(local, side, &ours)?;
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
            (0, _, _) if self.is_gone(local, &ours, &mut FoundPrograms::new())? => EnforcementState::Gone,
            // The other program cannot replace the missing one: it sees the packets of its own direction only.
            (_, 0 | 1, _) => EnforcementState::Open,
            (2, _, None) => EnforcementState::Closed,
            _ => EnforcementState::Other,
        })
    }
}
