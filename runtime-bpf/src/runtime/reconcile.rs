//! Reconciles the kernel with the record: pins, points, entries. Does not touch objects that are as recorded.
//!
//! Order matters: an object in force is removed only after its successor is in place, and an endpoint's entry (without
//! which all packets are dropped) is written only after both of its programs are attached.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_artifact::layout::buckets::Slot;
use weir_artifact::layout::{AT_EDGE, MapName, config, endpoint, mark};
use weir_artifact::map_image::bucket_family;
use weir_artifact::{Artifact, NamedEndpoint};

use super::endpoint_table::EndpointTable;
use super::hook_move::FEW;
use super::{EdgeFailure, Runtime, uptime};
use crate::error::{Doing as _, Error, Failure, StateAfterFailure};
use crate::generation::{self, LoadedGeneration, is_shared, refused};
use crate::observe::word;
use crate::pins::{Age, Pins};
use crate::point::{HookKind, NOTHING, Point, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcementRecord, KernelGeneration};
use crate::sys::errno;
use crate::sys::netlink::HostInterface;
use crate::system::TypedCell;

/// The result of reconciling.
#[derive(Debug, Default)]
pub(crate) struct Reconciled {
    /// Endpoints that deviate from the record.
    pub(crate) failures: Vec<Failure>,
    /// Endpoints whose interface is gone; they are forgotten.
    pub(crate) gone: Vec<EnforcedEndpoint>,
    /// The deviations that were repaired, in words.
    pub(crate) repaired: Vec<String>,
    /// Uplinks that deviate from the record.
    pub(crate) edge_failures: Vec<EdgeFailure>,
    /// Uplinks whose drivers did not take the program in this operation, and why.
    pub(crate) generic: Vec<EdgeFailure>,
    /// This host's interfaces, if they were listed.
    pub(crate) interfaces: BTreeMap<u32, HostInterface>,
    /// The error, if the file of the generation in force cannot be read. Entries were not compared then.
    pub(crate) unreadable: Option<Error>,
}

/// Programs and maps have numbers of their own: the same number may belong to one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectKind {
    Program,
    Map,
}

/// A program or map, by the kernel's number. The kernel counts up, so a later object has another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelObjectId {
    pub(crate) kind: ObjectKind,
    pub(crate) number: u32,
}

/// An object in the record, and the path of its pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedPin {
    pub(crate) object: KernelObjectId,
    pub(crate) path: PathBuf,
}

/// The result of [`Runtime::place_pins`].
#[derive(Debug, Default)]
pub(crate) struct PlacedPins {
    /// Pins that were missing, and are there again.
    restored: Vec<PathBuf>,
    /// Pins whose objects no longer exist.
    lost: Vec<PathBuf>,
}

/// Weir's program at each side of each interface, as the latest query found it.
pub(crate) type FoundPrograms = BTreeMap<(u32, ProgramSide), Option<u32>>;

/// The endpoints of a generation: from the artifact at hand, or from the one that was kept in the kernel.
pub(crate) struct Values<'a> {
    given: Option<&'a Artifact>,
    table: OnceCell<Arc<EndpointTable>>,
}

impl<'a> Values<'a> {
    pub(crate) fn new(given: Option<&'a Artifact>) -> Self {
        Self { given, table: OnceCell::new() }
    }

    fn table(&self, runtime: &Runtime, loaded: &LoadedGeneration) -> Result<&EndpointTable, Error> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let table = runtime.endpoint_table(loaded, self.given)?;
        Ok(self.table.get_or_init(|| table))
    }
}

/// The result of [`Runtime::keep_keys`].
#[derive(Default)]
pub(crate) struct KeptKeys {
    pub(crate) removed: usize,
    pub(crate) written: usize,
    /// The error, if keys were left out.
    pub(crate) full: Option<Error>,
}

/// The endpoints of an artifact by namespace and name.
pub(crate) struct EndpointsByName<'a>(BTreeMap<(&'a str, &'a str), &'a endpoint::Value>);

impl<'a> EndpointsByName<'a> {
    pub(crate) fn new(named: &'a [NamedEndpoint]) -> Self {
        // The first one of a name counts.
        Self(named.iter().rev().map(|it| ((it.namespace.as_str(), it.name.as_str()), &it.value)).collect())
    }

    /// The endpoint's value in the artifact, with its number and its pod's hardware address filled in; `None` if the
    /// endpoint is closed.
    pub(crate) fn value_of(&self, local: &EnforcedEndpoint) -> Option<endpoint::Value> {
        if local.closed {
            return None;
        }
        let mut value = **self.0.get(&local.pod.split_once('/')?)?;
        let mut put = |at: i16, bytes: &[u8]| {
            value.iter_mut().skip(at as usize).zip(bytes).for_each(|(to, from)| *to = *from);
        };
        put(endpoint::NUMBER, &local.number.to_le_bytes());
        put(endpoint::MAC, &local.pod_address.unwrap_or_default());
        Some(value)
    }
}

impl Runtime {
    pub(crate) fn point<'a>(&'a self, local: &EnforcedEndpoint, side: ProgramSide) -> Point<'a> {
        let held = self.held_link(local.ifindex, side).filter(|_| local.way == HookKind::Tcx);
        Point { system: &self.system, pins: &self.pins, ifindex: local.ifindex, side, way: local.way, held }
    }

    /// Reconciles the kernel with the record. Changes of the record itself are written.
    pub(crate) fn reconcile(
        &self,
        record: &mut EnforcementRecord,
        given: Option<&Artifact>,
    ) -> Result<Reconciled, Error> {
        let mut reconciled = Reconciled::default();
        // The interrupted switch comes first, because it decides which generation all later steps put in force.
        if record.next.is_some() {
            reconciled.repaired.push("a switch that was interrupted".to_owned());
            self.go_forward(record, &mut reconciled)?;
        }
        let loaded = self.current(record)?;
        let restored = self.place_pins_or_drop_spare(record)?;
        reconciled.repaired.extend(restored.iter().map(|path| format!("the pin {}", path.display())));
        if let Some(loaded) = &loaded {
            self.pair_with_retired(record, loaded)?;
            self.set_config(loaded, config::EPOCH, loaded.generation.epoch)?;
            let found = self.find_gone(record, &mut reconciled)?;
            self.place_edge(record, loaded, &mut reconciled);
            self.place_programs(record, loaded, &found, &mut reconciled);
        }
        // Entries of leaving endpoints go before entries are written: a new endpoint can have the same interface
        // number.
        self.remove_leaving(record, loaded.as_ref(), &reconciled.failures)?;
        // Entries come after the programs. In the other order, packets in the direction of a program that is not
        // attached yet would pass while the other direction already lets connections through.
        if let Some(loaded) = &loaded {
            match self.open_endpoints(record, loaded, &Values::new(given), &mut reconciled) {
                // Its programs and maps are in force nevertheless.
                Err(unreadable @ Error::Unreadable { .. }) => reconciled.unreadable = Some(unreadable),
                other => other?,
            }
        }
        self.remove_stray_links(record)?;
        if !reconciled.repaired.is_empty() {
            record.repaired += reconciled.repaired.len() as u64;
            self.write_record(record)?;
        }
        Ok(reconciled)
    }

    /// All objects in the record, with the paths of their pins.
    pub(crate) fn recorded_pins(&self, record: &EnforcementRecord) -> Vec<RecordedPin> {
        let mut pins = Vec::new();
        let mut add = |kind, number, path| pins.push(RecordedPin { object: KernelObjectId { kind, number }, path });
        let ages = [(&record.current, Age::Current), (&record.next, Age::Next)];
        // There is never a retired generation and a spare: a switch takes the spare, or drops it.
        let retired = record.retired.as_ref().map(|(generation, _)| generation).or(record.spare.as_ref());
        let retired = retired.map(|generation| (generation, Age::Old));
        let of_age = ages.into_iter().filter_map(|(it, age)| it.as_ref().map(|it| (it, age))).chain(retired);
        for (generation, age) in of_age {
            for (side, number) in ProgramSide::BOTH.into_iter().zip(generation.programs) {
                add(ObjectKind::Program, number, self.pins.program(age, side));
            }
            if let Some(number) = generation.edge {
                add(ObjectKind::Program, number, self.pins.edge_program(age));
            }
            generation.maps.iter().for_each(|(name, number)| add(ObjectKind::Map, *number, self.pins.map(age, name)));
        }
        record.shared.iter().for_each(|(name, it)| add(ObjectKind::Map, *it, self.pins.map(Age::Current, name)));
        pins
    }

    /// Like [`Self::place_pins`]. If an object of the spare no longer exists, the spare is dropped: unlike programs in
    /// force, nothing but its pins keeps it.
    fn place_pins_or_drop_spare(&self, record: &mut EnforcementRecord) -> Result<Vec<PathBuf>, Error> {
        let placed = self.place_pins(record)?;
        if record.spare.is_some() && placed.lost.iter().any(|path| path.starts_with(self.pins.old())) {
            self.drop_spare(record)?;
        }
        Ok(placed.restored)
    }

    /// Moves every pin to its path and removes all others. A pin that occupies the path of another pin is moved
    /// first.
    pub(crate) fn place_pins(&self, record: &EnforcementRecord) -> Result<PlacedPins, Error> {
        let recorded = self.recorded_pins(record);
        let mut right = BTreeSet::new();
        let mut moves = Vec::new();
        let mut known = BTreeMap::new();
        for (path, inode) in self.pinned()? {
            // A pin that cannot be opened as a program or map belongs to another process.
            let object = self.known_pin(inode).or_else(|| self.object_at(&path).ok().flatten());
            known.extend(object.map(|object| (inode, object)));
            let to = recorded.iter().find(|it| Some(it.object) == object).map(|it| it.path.clone());
            match to {
                Some(to) if to == path => _ = right.insert(path),
                Some(to) => moves.push((path, to)),
                None => self.system.unpin(&path).doing(format!("remove {}", path.display()))?,
            }
        }
        self.know_pins(known);
        // To old first, then from next: a rename replaces the pin at its target, so the previous generation has to
        // leave before the next one takes its paths. A process that dies in between leaves only pins that the next call
        // finds by their numbers.
        moves.sort_by_key(|(_, to)| !to.starts_with(self.pins.old()));
        for (from, to) in moves {
            self.system.rename(&from, &to).doing(format!("move {} to {}", from.display(), to.display()))?;
            right.insert(to);
        }
        let mut placed = PlacedPins::default();
        for RecordedPin { object, path } in recorded.into_iter().filter(|it| !right.contains(&it.path)) {
            let list = if self.pin_again(object, &path)? { &mut placed.restored } else { &mut placed.lost };
            list.push(path);
        }
        Ok(placed)
    }

    /// The pins of programs and maps, and their inodes.
    pub(crate) fn pinned(&self) -> Result<Vec<(PathBuf, u64)>, Error> {
        let mut pins = Vec::new();
        for directory in self.pins.directories().into_iter().filter(|it| *it != self.pins.links()) {
            let files = self.system.list_files(&directory).doing(format!("list {}", directory.display()))?;
            pins.extend(files.into_iter().map(|file| (directory.join(file.name), file.inode)));
        }
        Ok(pins)
    }

    /// The program or map that is pinned there; `None` if there is no pin.
    pub(crate) fn object_at(&self, path: &Path) -> Result<Option<KernelObjectId>, Error> {
        let opening = format!("open {}", path.display());
        let is_program =
            ProgramSide::BOTH.into_iter().any(|side| path.ends_with(side.program())) || path.ends_with(AT_EDGE);
        if is_program {
            let program = self.system.pinned_program(path).doing(&opening)?;
            let info = program.map(|it| self.system.program_info(&it)).transpose().doing(opening)?;
            Ok(info.map(|info| KernelObjectId { kind: ObjectKind::Program, number: info.id }))
        } else {
            let map = self.system.pinned_map(path).doing(&opening)?;
            let info = map.map(|it| self.system.map_info(&it)).transpose().doing(opening)?;
            Ok(info.map(|info| KernelObjectId { kind: ObjectKind::Map, number: info.id }))
        }
    }

    /// Another process has removed a pin. The object may still exist: it is found by its number and pinned again.
    /// Returns whether it was found.
    fn pin_again(&self, object: KernelObjectId, path: &Path) -> Result<bool, Error> {
        use std::os::fd::AsFd as _;
        let pinning = format!("pin {}", path.display());
        match object.kind {
            ObjectKind::Program => {
                let Some(program) = self.system.numbered_program(object.number).doing(&pinning)? else {
                    return Ok(false);
                };
                self.system.pin(program.as_fd(), path).doing(pinning)?;
            }
            ObjectKind::Map => {
                let Some(map) = self.system.numbered_map(object.number).doing(&pinning)? else { return Ok(false) };
                self.system.pin(map.as_fd(), path).doing(pinning)?;
            }
        }
        Ok(true)
    }

    /// Finds endpoints whose interfaces are gone. A new interface can have the name or the number of an old one, but
    /// never the programs of a generation. So while these run on an interface, it is the same one, even if its name or
    /// hardware address has changed: the record takes the new ones.
    fn find_gone(&self, record: &mut EnforcementRecord, reconciled: &mut Reconciled) -> Result<FoundPrograms, Error> {
        let mut found = FoundPrograms::new();
        let interfaces = self.system.interfaces().doing("list this host's interfaces")?;
        let interfaces: BTreeMap<u32, HostInterface> = interfaces.into_iter().map(|it| (it.ifindex, it)).collect();
        let (mut gone, mut changed) = (Vec::new(), false);
        let ours = record.programs();
        for local in &mut record.endpoints {
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

    /// `ours` are the programs of all recorded generations. With clsact, a new interface that was closed before its first
    /// packet has a filter of ours with another program.
    pub(crate) fn is_gone(
        &self,
        local: &EnforcedEndpoint,
        ours: &BTreeSet<u32>,
        found: &mut FoundPrograms,
    ) -> Result<bool, Error> {
        for side in ProgramSide::BOTH {
            let there = self.point(local, side).program()?;
            found.insert((local.ifindex, side), there);
            if there.is_none_or(|it| local.way == HookKind::Clsact && !ours.contains(&it)) {
                let asking = format!("ask for interface {}", local.ifindex);
                let interface = self.system.interface_numbered(local.ifindex).doing(asking)?;
                return Ok(interface.is_none_or(|it| (&it.name, &it.address) != (&local.interface, &local.address)));
            }
        }
        Ok(false)
    }

    /// Places our programs at every point. An endpoint where one cannot be placed fails: it loses its entry, so that
    /// the program of its other direction drops all packets, and the failure reports what runs there.
    pub(crate) fn place_programs(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        found: &FoundPrograms,
        reconciled: &mut Reconciled,
    ) {
        for local in &record.endpoints {
            self.place_programs_at(record, local, loaded, found, reconciled);
        }
    }

    /// The same at one endpoint.
    pub(crate) fn place_programs_at(
        &self,
        record: &EnforcementRecord,
        local: &EnforcedEndpoint,
        loaded: &LoadedGeneration,
        found: &FoundPrograms,
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
                        reconciled.repaired.push(format!("{} at {}", side.program(), local.interface));
                    }
                    Ok(()) => {}
                    Err(error) => errors.push(format!("{}: {error}", side.program())),
                },
            }
        }
        let is_there = |(side, number)| matches!(self.point(local, side).program(), Ok(Some(it)) if it == number);
        let all_are_there = || ProgramSide::BOTH.into_iter().zip(loaded.generation.programs).all(is_there);
        if !errors.is_empty() && !all_are_there() {
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
    pub(crate) fn fail_closed(
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

    /// Removes an endpoint's entries from these generations, so that their programs drop all packets there. Returns what
    /// failed. Every generation is tried, because an error in one must not keep the entry in another.
    pub(crate) fn remove_entries(&self, local: &EnforcedEndpoint, generations: &[&LoadedGeneration]) -> Vec<String> {
        let interface = BTreeSet::from([local.ifindex]);
        let errors = generations.iter().filter_map(|loaded| self.close(loaded, &interface).err());
        errors.map(|error| text(&error)).collect()
    }

    /// The state of an endpoint that has no entry in these generations: their programs drop all packets there. A
    /// program judges the packets of one direction only, so if one is missing, the packets of its direction pass.
    pub(crate) fn state_without_entry(
        &self,
        local: &EnforcedEndpoint,
        generations: &[&LoadedGeneration],
    ) -> StateAfterFailure {
        let is_known = |number: u32| generations.iter().any(|it| it.generation.programs.contains(&number));
        match ProgramSide::BOTH.map(|side| self.point(local, side).program()) {
            // The interface can disappear after `find_gone` has seen it, because pods end at any time. Only its number
            // counts here: an interface that was renamed still carries the pod's packets, so it is not gone.
            [Ok(None), _] | [_, Ok(None)] if matches!(self.system.interface_numbered(local.ifindex), Ok(None)) => {
                StateAfterFailure::Gone
            }
            [Ok(None), Ok(None)] => StateAfterFailure::Open,
            [Ok(None), Ok(Some(_))] | [Ok(Some(_)), Ok(None)] => StateAfterFailure::HalfOpen,
            [Ok(Some(one)), Ok(Some(other))] if is_known(one) && is_known(other) => StateAfterFailure::Closed,
            [Ok(Some(_)), Ok(Some(_))] => StateAfterFailure::Other,
            _ => StateAfterFailure::Unknown,
        }
    }

    /// Removes the programs, entries and flows of endpoints that leave, because a later interface can get the same
    /// number. If an endpoint is attached in a new way and that fails, the programs of the old way stay.
    pub(crate) fn remove_leaving(
        &self,
        record: &mut EnforcementRecord,
        loaded: Option<&LoadedGeneration>,
        failures: &[Failure],
    ) -> Result<(), Error> {
        let is_needed = |left: &EnforcedEndpoint| {
            let moves = record.endpoints.iter().any(|it| (it.ifindex, &it.pod) == (left.ifindex, &left.pod));
            moves && failures.iter().any(|it| (&it.interface, &it.pod) == (&left.interface, &left.pod))
        };
        let (mut needed, leaving): (Vec<_>, Vec<_>) = record.leaving.iter().cloned().partition(is_needed);
        if leaving.is_empty() {
            return Ok(());
        }
        if let Some(loaded) = loaded {
            // The edge must not drop packets for an address whose pod is no longer enforced.
            self.protect(record, loaded)?;
        }
        let stays = |left: &EnforcedEndpoint, same: fn(&EnforcedEndpoint, &EnforcedEndpoint) -> bool| {
            record.endpoints.iter().any(|it| it.ifindex == left.ifindex && same(it, left))
        };
        let has_many_links = leaving.iter().filter(|it| it.way == HookKind::Tcx).count() > FEW;
        let nothing = has_many_links.then(|| self.system.load("weir_nothing", &NOTHING, None).ok()).flatten();
        for local in &leaving {
            if !stays(local, |it, left| it.way == left.way) {
                for side in ProgramSide::BOTH {
                    let removing = format!("remove {} from {}", side.program(), local.interface);
                    let point = self.point(local, side);
                    // A new interface with the number of one that is gone stays closed.
                    if point.is_closed_filter() {
                        continue;
                    }
                    match point.remove(nothing.as_ref()) {
                        // The interface is gone, and the program with it.
                        Err(error) if errno(&error) == Some(libc::ENODEV) => {}
                        // The endpoint has no entry any more, so its packets are dropped. The next change removes the
                        // program.
                        Err(_) if self.apart => needed.push(local.clone()),
                        other => other.doing(removing)?,
                    }
                }
            }
        }
        let leaving = leaving.iter().filter(|it| !stays(it, |it, left| it.pod == left.pod));
        let leaving: BTreeSet<u32> = leaving.map(|it| it.ifindex).collect();
        if let Some(loaded) = loaded.filter(|_| !leaving.is_empty()) {
            self.close(loaded, &leaving)?;
            self.purge(loaded, &leaving)?;
        }
        // Last: if the process dies before this write, the next command finds the endpoints here and repeats the
        // removal.
        record.leaving = needed;
        self.write_record(record)
    }

    /// Removes the entries of interfaces. Without an entry, all packets are dropped.
    pub(crate) fn close(&self, loaded: &LoadedGeneration, interfaces: &BTreeSet<u32>) -> Result<(), Error> {
        let Some((_, map)) = loaded.endpoints() else { return Ok(()) };
        for ifindex in interfaces {
            self.system.remove(map, ifindex).doing("remove from the map endpoints")?;
        }
        Ok(())
    }

    /// Removes the flows of interfaces.
    fn purge(&self, loaded: &LoadedGeneration, interfaces: &BTreeSet<u32>) -> Result<(), Error> {
        for name in MapName::ALL.into_iter().filter(|name| is_shared(*name)) {
            let purging = format!("remove flows from the map {}", name.name());
            if let Some(((family, _), map)) = bucket_family(name).zip(loaded.map(name)) {
                let gone = |slot: &Slot| interfaces.contains(&slot.ifindex());
                self.system.remove_slots(map, family, gone).doing(&purging)?;
            }
        }
        Ok(())
    }

    /// Writes entries for the endpoints whose programs are in place, and removes all others.
    pub(crate) fn open_endpoints(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        values: &Values<'_>,
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let table = values.table(self, loaded)?;
        self.keep_addresses(loaded, table, &record.endpoints, reconciled)?;
        let Some((entries, map)) = loaded.endpoints() else { return Ok(()) };
        let writing = "write the map endpoints";
        let there: BTreeMap<Vec<u8>, Vec<u8>> = self.system.entries(entries).doing(writing)?.into_iter().collect();
        let named = EndpointsByName::new(&table.endpoints);
        for local in &record.endpoints {
            if reconciled.failures.iter().any(|it| it.interface == local.interface) {
                continue;
            }
            let key = local.ifindex.to_le_bytes();
            let Some(value) = named.value_of(local) else { continue };
            if there.get(key.as_slice()).is_some_and(|known| *known == value) {
                continue;
            }
            self.write_entry(loaded, local, &value)?;
            reconciled.repaired.push(format!("the entry of {}", local.pod));
        }
        let open = record.endpoints.iter().filter(|it| !it.closed);
        let open: BTreeSet<u32> = open.map(|it| it.ifindex).collect();
        for ifindex in there.keys().map(|key| word(key, 0)).filter(|it| !open.contains(it)) {
            self.system.remove(map, &ifindex).doing(writing)?;
            reconciled.repaired.push("an entry of no endpoint".to_owned());
        }
        self.protect(record, loaded)
    }

    pub(crate) fn write_entry(
        &self,
        loaded: &LoadedGeneration,
        local: &EnforcedEndpoint,
        value: &endpoint::Value,
    ) -> Result<(), Error> {
        let Some((entries, map)) = loaded.endpoints() else { return Ok(()) };
        let written = self.system.insert(map, &local.ifindex, value);
        written.map_err(|error| refused(entries, MapName::Endpoints, Some(local.pod.clone()), error))
    }

    /// Makes a map have exactly these keys. If it is full, the other keys are left out.
    pub(crate) fn keep_keys<const N: usize>(
        &self,
        loaded: &LoadedGeneration,
        name: MapName,
        wanted: &BTreeSet<[u8; N]>,
        value: [u8; 4],
    ) -> Result<KeptKeys, Error> {
        let mut kept = KeptKeys::default();
        let Some(map) = loaded.map(name) else { return Ok(kept) };
        let writing = format!("write the map {}", name.name());
        let there = self.system.flat_entries(map).doing(&writing)?;
        let there: BTreeSet<[u8; N]> = there.iter().filter_map(|(key, _)| key.first_chunk().copied()).collect();
        for key in there.difference(wanted) {
            self.system.delete(map, key).doing(&writing)?;
            kept.removed += 1;
        }
        for key in wanted.difference(&there) {
            match self.system.update(map, key, &value).map_err(|error| refused(map, name, None, error)) {
                Ok(()) => kept.written += 1,
                Err(full @ Error::Full { .. }) => return Ok(KeptKeys { full: Some(full), ..kept }),
                Err(error) => return Err(error),
            }
        }
        Ok(kept)
    }

    /// Removes links of interfaces that are not in the record.
    fn remove_stray_links(&self, record: &EnforcementRecord) -> Result<(), Error> {
        let links = self.pins.links();
        for name in self.system.list(&links).doing("list links")? {
            let owned = Pins::link_of(&name).is_some_and(|index| record.endpoints.iter().any(|it| it.ifindex == index))
                || Pins::uplink_of(&name).is_some_and(|index| record.uplinks.iter().any(|it| it.ifindex == index));
            if !owned {
                let path = links.join(name);
                // The link ends when its pin is removed.
                self.system.unpin(&path).doing(format!("remove {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Gives each generation the other's stamp and program, from the time when packets of either can arrive.
    pub(crate) fn pair(&self, one: &LoadedGeneration, other: &LoadedGeneration) -> Result<(), Error> {
        use std::os::fd::AsFd as _;
        let pairing = "pair two generations";
        for (this, that) in [(one, other), (other, one)] {
            let slot = this.map(MapName::Other);
            if let Some(slot) = slot {
                let program = that.program(ProgramSide::ToPod).as_fd();
                self.system.update_descriptor(slot, &[0; 4], program).doing(pairing)?;
            }
        }
        self.set_config(one, config::OTHER, u32::from(other.generation.stamp))?;
        self.set_config(other, config::OTHER, u32::from(one.generation.stamp))
    }

    /// Writes one number of a generation's configuration, such as the stamp of the other generation.
    pub(crate) fn set_config(&self, loaded: &LoadedGeneration, at: i32, number: u32) -> Result<(), Error> {
        let Some(map) = loaded.map(MapName::Config) else { return Ok(()) };
        let setting = "write the map config";
        let map: TypedCell<config::Value> = self.system.typed(map).doing(setting)?;
        let mut value = self.system.load_cell(&map).doing(setting)?;
        let before = std::mem::replace(&mut value[at as usize / 4], number);
        if before == number { Ok(()) } else { self.system.store_cell(&map, &value).doing(setting) }
    }

    /// The objects of the previous generation, as long as it is kept.
    fn retired(&self, record: &EnforcementRecord) -> Result<Option<LoadedGeneration>, Error> {
        let Some((retired, _)) = &record.retired else { return Ok(None) };
        generation::open(&self.objects(), record, retired, Age::Old)
    }

    fn pair_with_retired(&self, record: &EnforcementRecord, loaded: &LoadedGeneration) -> Result<(), Error> {
        match self.retired(record)? {
            Some(retired) => self.pair(loaded, &retired),
            None => self.unpair(loaded),
        }
    }

    pub(crate) fn unpair(&self, loaded: &LoadedGeneration) -> Result<(), Error> {
        self.set_config(loaded, config::OTHER, mark::NONE)?;
        let Some(slot) = loaded.map(MapName::Other) else { return Ok(()) };
        // The slot gets the program itself instead of being emptied: the kernel waits for every CPU before it empties a
        // slot.
        let itself = std::os::fd::AsFd::as_fd(loaded.program(ProgramSide::ToPod));
        self.system.update_descriptor(slot, &[0; 4], itself).doing("unpair two generations")
    }

    /// Removes the previous generation, or makes it the spare, after waiting until no packet that it has stamped can be
    /// under way.
    pub fn reap(&self) -> Result<(), Error> {
        self.kept_during(|| self.reap_retired(&mut self.record()?))
    }

    pub(crate) fn reap_retired(&self, record: &mut EnforcementRecord) -> Result<(), Error> {
        let Some((_, since)) = &record.retired else { return Ok(()) };
        let age = Duration::from_millis(uptime().saturating_sub(*since));
        std::thread::sleep(self.grace.saturating_sub(age));
        // First the current generation forgets the retired one, then the record does, then the pins go. A process that
        // dies in between leaves at most pins that the next `place_pins` removes.
        if let Some(loaded) = self.current(record)? {
            self.unpair(&loaded)?;
        }
        let is_reusable = self.is_reusable(record);
        record.spare = record.retired.take().map(|(retired, _)| retired).filter(|_| is_reusable);
        self.write_record(record)?;
        self.place_pins_or_drop_spare(record).map(|_| ())
    }

    /// Whether the retired generation can become the spare: no program of it runs any more, nor ever will.
    fn is_reusable(&self, record: &EnforcementRecord) -> bool {
        let has_code = record.retired.as_ref().is_some_and(|(retired, _)| !retired.code.is_empty());
        // Programs of an endpoint that is leaving may be those of the retired generation.
        let runs_nowhere = self.spares && has_code && record.leaving.is_empty();
        // A packet can have entered the retired generation just before the two were unpaired.
        runs_nowhere && self.system.wait_for_programs().is_ok()
    }

    /// Removes a spare's pins, also those that were moved to `next`, and lets its objects go.
    pub(crate) fn remove_spare(&self, spare: &KernelGeneration) -> Result<(), Error> {
        for age in [Age::Old, Age::Next] {
            let maps = spare.maps.keys().map(|name| self.pins.map(age, name));
            let programs = ProgramSide::BOTH.map(|side| self.pins.program(age, side));
            for path in maps.chain(programs).chain([self.pins.edge_program(age)]) {
                self.system.unpin(&path).doing(format!("remove {}", path.display()))?;
            }
        }
        self.release(spare);
        Ok(())
    }

    /// Forgets the spare and removes its pins.
    pub(crate) fn drop_spare(&self, record: &mut EnforcementRecord) -> Result<(), Error> {
        if record.spare.take().is_some() {
            self.write_record(record)?;
            self.place_pins(record)?;
        }
        Ok(())
    }
}

/// An error with its causes, in one line.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

impl KernelGeneration {
    /// A stamp that no generation in force has.
    pub(crate) fn free_stamp(record: &EnforcementRecord) -> u8 {
        let taken = |stamp: &u8| {
            let all = record.current.iter().chain(record.retired.iter().map(|(it, _)| it));
            all.into_iter().any(|it| it.stamp == *stamp)
        };
        (1..=3).find(|stamp| !taken(stamp)).unwrap_or(1)
    }
}
