//! The programs at the interfaces of endpoints: finds interfaces that are gone, and places missing programs.
//!
//! Problem: pods end at any time, and a new interface can get the name or the number of an old one. A hook can refuse a
//! program.
//! Strategy: an interface is recognised by our programs on it. An endpoint where a program cannot be placed loses its
//! entries, so that the program that is still there drops all packets.
//! Invariant: each failure names the state in which the endpoint is left, as the kernel reports it.

use std::collections::{BTreeMap, BTreeSet};

use super::Runtime;
use super::new_endpoints::NewEndpoints;
use super::reconcile::{Reconciled, text};
use super::switch::hook_name;
use crate::error::{Doing as _, Error, Failure, StateAfterFailure};
use crate::generation::LoadedGeneration;
use crate::point::{HookKind, Point, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord};

/// Weir's program at each side of each interface, as the latest query found it.
pub(super) type FoundPrograms = BTreeMap<(u32, ProgramSide), Option<u32>>;

impl Runtime {
    pub(super) fn point<'a>(&'a self, local: &EnforcedEndpoint, side: ProgramSide) -> Point<'a> {
        let held = self.held_link(local.ifindex, side).filter(|_| local.way == HookKind::Tcx);
        Point { system: &self.system, pins: &self.pins, ifindex: local.ifindex, side, way: local.way, held }
    }

    /// Finds endpoints whose interfaces are gone. A new interface can have the name or the number of an old one, but
    /// never the programs of a generation. So while these run on an interface, it is the same one, even if its name or
    /// hardware address has changed: the record takes the new ones.
    pub(super) fn find_gone(
        &self,
        record: &mut EnforcementRecord,
        reconciled: &mut Reconciled,
    ) -> Result<FoundPrograms, Error> {
        let mut found = FoundPrograms::new();
        let interfaces = self.system.interfaces().doing("list this host's interfaces")?;
        let (mut gone, mut changed) = (Vec::new(), false);
        let ours = record.programs();
        for local in record.endpoints.iter_mut() {
            // If the query fails, the endpoint does not count as gone. Whether its programs are there is checked when
            // they are placed.
            let is_gone =
                self.is_gone(local, &ours, &mut found).or_else(|error| if self.apart { Ok(false) } else { Err(error) });
            if is_gone? {
                gone.push(local.clone());
            } else if let Some(now) = interfaces.get(&local.ifindex) {
                changed |= (&local.interface, &local.address) != (&now.name, &now.address);
                (local.interface, local.address) = (now.name.clone(), now.address.clone());
            }
        }
        if changed || !gone.is_empty() {
            record.endpoints.retain(|it| !gone.contains(it));
            record.leaving.extend(gone.iter().cloned());
            self.write_record(record)?;
            reconciled.gone.extend(gone);
        }
        reconciled.interfaces = interfaces;
        Ok(found)
    }

    /// `ours` are the programs of all recorded generations. With clsact, an interface that was closed before its first
    /// packet has one of our filters, but with another program.
    pub(super) fn is_gone(
        &self,
        local: &EnforcedEndpoint,
        ours: &BTreeSet<u32>,
        found: &mut FoundPrograms,
    ) -> Result<bool, Error> {
        let mut sides = [None; 2];
        for (side, there) in ProgramSide::BOTH.into_iter().zip(&mut sides) {
            *there = self.point(local, side).program()?;
            found.insert((local.ifindex, side), *there);
        }
        let is_ours = |there: Option<u32>| there.is_some_and(|it| local.way == HookKind::Tcx || ours.contains(&it));
        // A link ends with its interface, so one is enough. The other one is missing if a process died that attached
        // them, or if another process has removed it.
        let is_there = match local.way {
            HookKind::Tcx => sides.into_iter().any(is_ours),
            HookKind::Clsact => sides.into_iter().all(is_ours),
        };
        if is_there {
            return Ok(false);
        }
        let asking = format!("ask for interface {}", local.ifindex);
        let interface = self.system.interface_numbered(local.ifindex).doing(asking)?;
        Ok(interface.is_none_or(|it| (&it.name, &it.address) != (&local.interface, &local.address)))
    }

    /// Places our programs at every point. An endpoint where one cannot be placed fails: it loses its entry, so that
    /// the program of its other direction drops all packets, and the failure reports what runs there.
    pub(super) fn place_programs(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        found: &FoundPrograms,
        reconciled: &mut Reconciled,
    ) {
        let new = self.interrupted_endpoints(record, loaded);
        self.prepare(record, &new);
        for local in new.ordered(&record.endpoints) {
            self.place_programs_at(record, local, loaded, (found, &new), reconciled);
        }
    }

    /// The same at one endpoint. If it is new, it gets its entry too.
    pub(super) fn place_programs_at(
        &self,
        record: &EnforcementRecord,
        local: &EnforcedEndpoint,
        loaded: &LoadedGeneration,
        (found, new): (&FoundPrograms, &NewEndpoints),
        reconciled: &mut Reconciled,
    ) {
        let mut errors = Vec::new();
        for (side, number) in ProgramSide::BOTH.into_iter().zip(loaded.generation.programs) {
            let point = self.point(local, side);
            let there = found.get(&(local.ifindex, side)).map_or_else(|| point.program(), |there| Ok(*there));
            match there {
                Ok(Some(there)) if there == number => {}
                // The query failed, but placing the program again does no harm.
                there => match point.place(loaded.program(side)) {
                    Ok(()) if there.is_ok() => {
                        reconciled.repaired.push(hook_name(local, side));
                    }
                    Ok(()) => {}
                    Err(error) => errors.push(format!("{}: {error}", side.program())),
                },
            }
        }
        let is_there = |(side, number)| matches!(self.point(local, side).program(), Ok(Some(it)) if it == number);
        let all_are_there = || ProgramSide::BOTH.into_iter().zip(loaded.generation.programs).all(is_there);
        if errors.is_empty() || all_are_there() {
            if self.open_new(local, loaded, new) {
                reconciled.repaired.push(format!("the entry of {}", local.pod));
            }
        } else {
            self.undo_preparation(local);
            let retired = self.retired(record).unwrap_or_else(|error| {
                errors.push(format!("its entry in the retired generation stays: {}", text(&error)));
                None
            });
            let generations: Vec<&LoadedGeneration> = retired.iter().chain([loaded]).collect();
            reconciled.failures.push(self.fail_closed(local, &generations, errors.join("; ")));
        }
    }

    /// Removes the entries of an endpoint on which an operation failed, and reports the state that this leaves.
    ///
    /// If the kernel does not report which programs are attached, the entries stay: usually both programs are still
    /// there, and an error of a query must not interrupt the pod's connections.
    pub(super) fn fail_closed(
        &self,
        local: &EnforcedEndpoint,
        generations: &[&LoadedGeneration],
        mut why: String,
    ) -> Failure {
        let mut now = self.state_without_entry(local, generations);
        if now != StateAfterFailure::Unknown {
            let errors = self.remove_entries(local, generations);
            if !errors.is_empty() {
                why.push_str(&format!("; its entry stays: {}", errors.join("; ")));
                // With an entry, each program still applies its own generation's policy.
                now = if now == StateAfterFailure::Closed { StateAfterFailure::Other } else { now };
            }
        }
        Failure { pod: local.pod.clone(), interface: local.interface.clone(), now, why }
    }

    /// Removes an endpoint's entries from these generations, so that their programs drop all packets there. Returns
    /// what failed. Every generation is tried, because an error in one must not keep the entry in another.
    pub(super) fn remove_entries(&self, local: &EnforcedEndpoint, generations: &[&LoadedGeneration]) -> Vec<String> {
        let interface = BTreeSet::from([local.ifindex]);
        let errors = generations.iter().filter_map(|loaded| self.close(loaded, &interface).err());
        errors.map(|error| text(&error)).collect()
    }

    /// The state of an endpoint that has no entry in these generations: their programs drop all packets there. A
    /// program judges the packets of one direction only, so if one is missing, the packets of its direction pass.
    pub(super) fn state_without_entry(
        &self,
        local: &EnforcedEndpoint,
        generations: &[&LoadedGeneration],
    ) -> StateAfterFailure {
        let known: BTreeSet<u32> = generations.iter().flat_map(|it| it.generation.programs).collect();
        match ProgramSide::BOTH.map(|side| self.judging(local, side, &known)) {
            // The interface can disappear after `find_gone` has seen it, because pods end at any time. Only its number
            // counts here: an interface that was renamed still carries the pod's packets, so it is not gone.
            [Ok(None), _] | [_, Ok(None)] if matches!(self.system.interface_numbered(local.ifindex), Ok(None)) => {
                StateAfterFailure::Gone
            }
            [Ok(None), Ok(None)] => StateAfterFailure::Open,
            [Ok(None), Ok(Some(_))] | [Ok(Some(_)), Ok(None)] => StateAfterFailure::HalfOpen,
            [Ok(Some(one)), Ok(Some(other))] if known.contains(&one) && known.contains(&other) => {
                StateAfterFailure::Closed
            }
            [Ok(Some(_)), Ok(Some(_))] => StateAfterFailure::Other,
            _ => StateAfterFailure::Unknown,
        }
    }
}
