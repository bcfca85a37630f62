//! A quick check that our programs are the first at every hook.
//!
//! Problem: any root process can remove our programs from an interface, replace them, put other programs before them,
//! or remove our pins.
//! Strategy: [`Runtime::check_hooks`] asks the kernel about every hook, entry and pin, and repairs deviations. Of the
//! maps, it reads only the endpoints' entries, so that the agent can run it every second; `status` reads all maps.
//! Invariant: the result is the state after the repair, read from the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use weir_artifact::layout::MapName;

use super::reconcile::text;
use super::{EnforcementState, Runtime};
use crate::closed;
use crate::error::{Doing as _, Error};
use crate::generation::LoadedGeneration;
use crate::pins::Pins;
use crate::point::{Point, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord, KernelGeneration};

/// The most moves to the front at one interface within [`CONTEST`]. There is a limit because another tool may insist on
/// being first.
const MOST_MOVES: u32 = 3;
const CONTEST: Duration = Duration::from_secs(60);

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookCheck {
    /// Repaired deviations.
    pub repaired: Vec<String>,
    /// Pods without our programs, or with another program before them, and why. Pods whose interface is gone are left
    /// out.
    pub astray: Vec<(String, String)>,
}

/// Counts moves to the front, by interface.
#[derive(Debug, Default)]
pub(crate) struct Contests {
    moves: BTreeMap<u32, (Instant, u32)>,
}

impl Contests {
    fn may_move(&mut self, ifindex: u32) -> bool {
        let now = Instant::now();
        let (since, moves) = self.moves.entry(ifindex).or_insert((now, 0));
        if now.saturating_duration_since(*since) > CONTEST {
            (*since, *moves) = (now, 0);
        }
        *moves += 1;
        *moves <= MOST_MOVES
    }
}

impl Runtime {
    /// Checks every hook and repairs deviations. If there are none, an agent moves one of the endpoints to TCX that
    /// were first attached through clsact because many came at once.
    pub fn check_hooks(&self) -> Result<HookCheck, Error> {
        self.bring_record_back()?;
        let record = match self.kept_record() {
            Some(record) => record,
            None => self.record_here()?,
        };
        let mut check = HookCheck { repaired: self.take_restored(), astray: Vec::new() };
        // A check of some interfaces may have read lists since the last check of all.
        self.system.forget_filters();
        if check.repaired.is_empty() && self.is_right(&record)? {
            self.move_one_hurried(&record)?;
            return Ok(check);
        }
        match self.repair() {
            Ok(repaired) => check.repaired.extend(repaired),
            // The endpoints' states are read below.
            Err(Error::Partial(_)) => {}
            Err(error) => return Err(error),
        }
        self.remove_guards(&mut check)?;
        self.check_endpoints(&mut check)?;
        self.hold_links()?;
        Ok(check)
    }

    /// The same after messages of the kernel about these interfaces. If their hooks are right, other hooks, pins and
    /// entries are left to the next [`Self::check_hooks`].
    pub fn check_hooks_of(&self, changed: &BTreeSet<u32>) -> Result<HookCheck, Error> {
        if let Some(record) = self.kept_record()
            && let Some(generation) = &record.current
            && self.begin_with_ours(record.endpoints.iter().filter(|it| changed.contains(&it.ifindex)), generation)?
        {
            return Ok(HookCheck::default());
        }
        self.check_hooks()
    }

    /// Whether our programs are the first at the hooks of these endpoints.
    fn begin_with_ours<'e>(
        &self,
        endpoints: impl Iterator<Item = &'e EnforcedEndpoint>,
        generation: &KernelGeneration,
    ) -> Result<bool, Error> {
        for local in endpoints {
            for (side, number) in ProgramSide::BOTH.into_iter().zip(generation.programs) {
                if !self.point(local, side).begins_with(number)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether there are no deviations. This takes one system call for each hook. It does not notice a
    /// pin that was replaced by another object; `repair` repairs that.
    fn is_right(&self, record: &EnforcementRecord) -> Result<bool, Error> {
        let Some(generation) = record.current.as_ref() else { return Ok(false) };
        if record.next.is_some()
            || !record.leaving.is_empty()
            || !self.has_all_pins(record)?
            || !self.has_no_guards(record)?
        {
            return Ok(false);
        }
        if !self.begin_with_ours(record.endpoints.iter(), generation)? {
            return Ok(false);
        }
        let Some(number) = generation.maps.get(MapName::Endpoints.name()) else { return Ok(true) };
        let entries = self.with_kept_map(*number, |map| self.system.flat_entries(map));
        let Some(entries) = entries.transpose().doing("read the map endpoints")? else { return Ok(false) };
        let there: BTreeSet<&[u8]> = entries.iter().map(|(key, _)| key).collect();
        // A closed endpoint has no entry, so its programs drop everything.
        let is_right = |local: &EnforcedEndpoint| there.contains(&local.ifindex.to_le_bytes()[..]) != local.closed;
        Ok(record.endpoints.iter().all(is_right))
    }

    /// Whether no closing link is pinned for an endpoint that is not closed.
    fn has_no_guards(&self, record: &EnforcementRecord) -> Result<bool, Error> {
        let closing = self.system.list(&closed::pins(self.pins.root()).links()).doing("list closed interfaces")?;
        let mut closed = closing.names().filter_map(Pins::link_of);
        Ok(!closed.any(|ifindex| record.endpoints.iter().any(|it| it.ifindex == ifindex && !it.closed)))
    }

    /// Removes the filters and links that an interrupted move to the front has left. They drop all packets, also those
    /// that our program allows.
    fn remove_guards(&self, check: &mut HookCheck) -> Result<(), Error> {
        let record = self.record_here()?;
        for local in &record.endpoints {
            for side in ProgramSide::BOTH {
                match self.point(local, side).remove_left_guard() {
                    Ok(true) => {
                        check.repaired.push(format!("a filter that dropped all packets at {}", local.interface))
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let why = format!("a filter that drops all packets may be left at its interface: {error}");
                        check.astray.push((local.pod.clone(), why));
                    }
                }
            }
        }
        let opened: BTreeSet<u32> = self.open_closed_interfaces()?.into_iter().collect();
        let opened = record.endpoints.iter().filter(|it| opened.contains(&it.ifindex));
        check.repaired.extend(opened.map(|it| format!("a link that dropped all packets at {}", it.interface)));
        Ok(())
    }

    fn has_all_pins(&self, record: &EnforcementRecord) -> Result<bool, Error> {
        let there: BTreeSet<PathBuf> = self.pinned()?.into_iter().map(|(path, _)| path).collect();
        Ok(self.has_kept_links(&self.link_pins()?)
            && self.recorded_pins(record).iter().all(|it| there.contains(&it.path)))
    }

    fn check_endpoints(&self, check: &mut HookCheck) -> Result<(), Error> {
        let record = self.record_here()?;
        let loaded = self.current(&record)?;
        for local in &record.endpoints {
            let why = match self.state(&record, loaded.as_ref(), local)? {
                EnforcementState::Enforced => self.restore_order(local, loaded.as_ref(), check)?,
                EnforcementState::Gone => None,
                EnforcementState::Closed if local.closed => None,
                EnforcementState::Closed => {
                    Some("all packets are dropped: its entry in the map endpoints is missing".to_owned())
                }
                EnforcementState::Open => {
                    Some("to_pod or from_pod is not attached to its interface, so packets pass unfiltered".to_owned())
                }
                EnforcementState::Other => {
                    Some("a program of another generation is attached to its interface".to_owned())
                }
            };
            check.astray.extend(why.map(|why| (local.pod.clone(), why)));
        }
        Ok(())
    }

    /// Puts our program in front again if another program runs before it, because that program can let packets pass
    /// without ours. If ours does not stay in front, the endpoint is reported.
    fn restore_order(
        &self,
        local: &EnforcedEndpoint,
        loaded: Option<&LoadedGeneration>,
        check: &mut HookCheck,
    ) -> Result<Option<String>, Error> {
        let mut behind = None;
        for side in ProgramSide::BOTH {
            let point = self.point(local, side);
            let Some(first) = point.before_ours()? else { continue };
            let may_move = match &self.contests {
                Some(contests) => contests.lock().is_ok_and(|mut it| it.may_move(local.ifindex)),
                None => true,
            };
            let moved = loaded.filter(|_| may_move).map_or(Ok(()), |loaded| {
                closed::move_to_front(&self.system, self.pins.root(), &point, loaded.program(side))
            });
            match (point.before_ours()?, moved) {
                (None, Ok(())) => {
                    check.repaired.push(format!("{} at {} was behind {first}", side.program(), local.interface));
                }
                (None, Err(error)) => {
                    let error = text(&error);
                    behind = Some(format!("all packets may be dropped where {} should run: {error}", side.program()));
                }
                (Some(first), _) => {
                    behind = Some(format!("{first} runs before {} and can let packets pass", side.program()))
                }
            }
        }
        Ok(behind)
    }
}

impl Point<'_> {
    /// The program that runs before ours, in words; `None` if ours is the first.
    fn before_ours(&self) -> Result<Option<String>, Error> {
        let Some(first) = self.first()? else { return Ok(None) };
        let name = if first.1.is_empty() { "a filter".to_owned() } else { first.1 };
        Ok(Some(format!("{name} (program {})", first.0)))
    }
}
