//! Reconciles the kernel with the record: pins, points, entries. Does not touch objects that are as recorded.
//!
//! Order matters: an object in force is removed only after its successor is in place, and an endpoint's entry (without
//! which all packets are dropped) is written only after both of its programs are attached.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use weir_artifact::Artifact;
use weir_artifact::map_image::bucket_family;
use weir_artifact::layout::AT_EDGE;
use weir_artifact::layout::buckets::Slot;
use weir_artifact::layout::{MapName, config, endpoint, mark};

use super::ways::FEW;
use super::{EdgeFailure, Runtime, uptime};
use crate::error::{Doing as _, Error, Failure, Now};
use crate::generation::{self, Loaded, is_shared, refused};
use crate::pins::{Age, Pins};
use crate::point::{NOTHING, Point, Side, Way};
use crate::record::{Endpoint, Generation, Record};
use crate::sys::{Map, Program};

/// The result of settling.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Endpoints that deviate from the record.
    pub(crate) failures: Vec<Failure>,
    /// Endpoints whose interface is gone; they are forgotten.
    pub(crate) gone: Vec<Endpoint>,
    /// The deviations that were repaired, in words.
    pub(crate) mended: Vec<String>,
    /// Uplinks that deviate from the record.
    pub(crate) edge_failures: Vec<EdgeFailure>,
    /// Uplinks whose drivers did not take the program in this operation, and why.
    pub(crate) generic: Vec<EdgeFailure>,
}

/// Which of our programs was found at each side of each interface a moment ago.
pub(crate) type Seen = BTreeMap<(u32, Side), Option<u32>>;

/// The value in `endpoints` for each pod: from the artifact at hand, or from the one that was kept in the kernel.
pub(crate) struct Values<'a> {
    given: Option<&'a Artifact>,
    kept: OnceCell<Artifact>,
}

impl<'a> Values<'a> {
    pub(crate) fn new(given: Option<&'a Artifact>) -> Self {
        Self { given, kept: OnceCell::new() }
    }

    /// The value for an endpoint.
    pub(crate) fn of(&self, runtime: &Runtime, loaded: &Loaded, local: &Endpoint) -> Result<Option<Vec<u8>>, Error> {
        Ok(value_of(self.artifact(runtime, loaded)?, local))
    }

    fn artifact(&self, runtime: &Runtime, loaded: &Loaded) -> Result<&Artifact, Error> {
        match (self.given, self.kept.get()) {
            (Some(artifact), _) | (None, Some(artifact)) => Ok(artifact),
            (None, None) => {
                let artifact = runtime.artifact(loaded)?;
                Ok(self.kept.get_or_init(|| artifact))
            }
        }
    }
}

/// The endpoint's value in the artifact, with its number and its pod's hardware address filled in; `None` if the
/// endpoint is closed.
pub(crate) fn value_of(artifact: &Artifact, local: &Endpoint) -> Option<Vec<u8>> {
    if local.closed {
        return None;
    }
    let (namespace, name) = local.pod.split_once('/')?;
    let named = artifact.endpoints.iter().find(|it| (it.namespace.as_str(), it.name.as_str()) == (namespace, name))?;
    let mut value = named.value.clone();
    let mut put = |at: i16, bytes: &[u8]| {
        value.iter_mut().skip(at as usize).zip(bytes).for_each(|(to, from)| *to = *from);
    };
    put(endpoint::NUMBER, &local.number.to_le_bytes());
    put(endpoint::MAC, &local.pod_address.unwrap_or_default());
    Some(value)
}

impl Runtime {
    pub(crate) fn point<'a>(&'a self, local: &Endpoint, side: Side) -> Point<'a> {
        Point { system: &self.system, pins: &self.pins, ifindex: local.ifindex, side, way: local.way }
    }

    /// Reconciles the kernel with the record. Changes of the record itself are written.
    pub(crate) fn settle(&self, record: &mut Record, given: Option<&Artifact>) -> Result<Settled, Error> {
        let mut settled = Settled::default();
        if record.next.is_some() {
            settled.mended.push("a switch that was interrupted".to_owned());
            self.go_forward(record, &mut settled)?;
        }
        let loaded = self.current(record)?;
        let again = self.place_pins(record)?;
        settled.mended.extend(again.iter().map(|place| format!("the pin {}", place.display())));
        if let Some(loaded) = &loaded {
            self.pair_with_retired(record, loaded)?;
            self.set_config(loaded, config::EPOCH, loaded.generation.epoch)?;
            let seen = self.find_gone(record, &mut settled)?;
            self.place_edge(record, loaded, &mut settled);
            self.place_programs(record, loaded, &seen, &mut settled);
        }
        self.remove_leaving(record, loaded.as_ref(), &settled.failures)?;
        if let Some(loaded) = &loaded {
            self.open_endpoints(record, loaded, &Values::new(given), &mut settled)?;
        }
        self.remove_stray_links(record)?;
        if !settled.mended.is_empty() {
            record.repaired += settled.mended.len() as u64;
            record.write(&self.system, &self.pins)?;
        }
        Ok(settled)
    }

    /// The kernel's numbers of all objects in the record, with the paths where they belong.
    pub(crate) fn places(&self, record: &Record) -> Vec<(bool, u32, PathBuf)> {
        let mut places = Vec::new();
        let ages = [(&record.current, Age::Current), (&record.next, Age::Next)];
        let retired = record.retired.as_ref().map(|(generation, _)| (generation, Age::Old));
        let of_age = ages.into_iter().filter_map(|(it, age)| it.as_ref().map(|it| (it, age))).chain(retired);
        for (generation, age) in of_age {
            for (side, number) in Side::BOTH.into_iter().zip(generation.programs) {
                places.push((true, number, self.pins.program(age, side)));
            }
            places.extend(generation.edge.map(|number| (true, number, self.pins.edge_program(age))));
            places.extend(generation.maps.iter().map(|(name, number)| (false, *number, self.pins.map(age, name))));
        }
        places.extend(record.shared.iter().map(|(name, it)| (false, *it, self.pins.map(Age::Current, name))));
        places
    }

    /// Moves every pin to its place and removes all others. A pin that occupies the place of another pin is moved
    /// first. Returns the pins that were missing.
    pub(crate) fn place_pins(&self, record: &Record) -> Result<Vec<PathBuf>, Error> {
        let places = self.places(record);
        let mut right = BTreeSet::new();
        let mut moves = Vec::new();
        for path in self.pinned()? {
            // A pin that cannot be opened as a program or map belongs to another process.
            let (is_program, number) = self.number_at(&path).unwrap_or((false, 0));
            let place = places.iter().find(|it| (it.0, it.1) == (is_program, number)).map(|it| it.2.clone());
            match place {
                Some(place) if place == path => _ = right.insert(path),
                Some(place) => moves.push((path, place)),
                None => self.system.unpin(&path).doing(format!("remove {}", path.display()))?,
            }
        }
        // To old first, then from next.
        moves.sort_by_key(|(_, to)| !to.starts_with(self.pins.root().join("old")));
        for (from, to) in moves {
            self.system.rename(&from, &to).doing(format!("move {} to {}", from.display(), to.display()))?;
            right.insert(to);
        }
        let mut again = Vec::new();
        for (is_program, number, place) in places {
            if !right.contains(&place) {
                self.pin_again(is_program, number, &place)?;
                again.push(place);
            }
        }
        Ok(again)
    }

    pub(crate) fn pinned(&self) -> Result<Vec<PathBuf>, Error> {
        let mut paths = Vec::new();
        for directory in self.pins.directories().into_iter().filter(|it| *it != self.pins.links()) {
            let names = self.system.list(&directory).doing(format!("list {}", directory.display()))?;
            paths.extend(names.into_iter().map(|name| directory.join(name)));
        }
        Ok(paths)
    }

    /// Whether a program is pinned there, and the kernel's number.
    pub(crate) fn number_at(&self, path: &std::path::Path) -> Result<(bool, u32), Error> {
        let asking = format!("open {}", path.display());
        let is_program = Side::BOTH.into_iter().any(|side| path.ends_with(side.program())) || path.ends_with(AT_EDGE);
        let number = if is_program {
            let program = self.system.pinned_program(path).doing(&asking)?;
            program.map(|it| self.system.program_info(&it)).transpose().doing(asking)?.map(|info| info.id)
        } else {
            let map = self.system.pinned_map(path).doing(&asking)?;
            map.map(|it| self.system.map_info(&it)).transpose().doing(asking)?.map(|info| info.id)
        };
        Ok((is_program, number.unwrap_or(0)))
    }

    /// Another process has removed a pin. The object may still exist: it is found by its number and pinned again.
    fn pin_again(&self, is_program: bool, number: u32, place: &std::path::Path) -> Result<(), Error> {
        use std::os::fd::AsFd as _;
        let pinning = format!("pin {}", place.display());
        if is_program {
            let Some(program) = self.system.numbered_program(number).doing(&pinning)? else { return Ok(()) };
            self.system.pin(program.as_fd(), place).doing(pinning)
        } else {
            let Some(map) = self.system.numbered_map(number).doing(&pinning)? else { return Ok(()) };
            self.system.pin(map.as_fd(), place).doing(pinning)
        }
    }

    /// Finds endpoints whose interfaces are gone. A new interface can have the name or the number of an old one, but
    /// never our programs. So while our programs run on an interface, it is the same one, even if its name or hardware
    /// address has changed: the record takes the new ones.
    fn find_gone(&self, record: &mut Record, settled: &mut Settled) -> Result<Seen, Error> {
        let mut seen = Seen::new();
        let interfaces = self.system.interfaces().doing("list this host's interfaces")?;
        let (mut gone, mut changed) = (Vec::new(), false);
        for local in &mut record.endpoints {
            // If the query fails, the endpoint does not count as gone. Whether its programs are there is checked when
            // they are placed.
            let is_gone =
                self.is_gone(local, &mut seen).or_else(|error| if self.apart { Ok(false) } else { Err(error) });
            if is_gone? {
                gone.push(local.clone());
            } else if let Some(now) = interfaces.iter().find(|it| it.ifindex == local.ifindex) {
                changed |= (&local.interface, &local.address) != (&now.name, &now.address);
                (local.interface, local.address) = (now.name.clone(), now.address.clone());
            }
        }
        if changed || !gone.is_empty() {
            record.endpoints.retain(|it| !gone.contains(it));
            record.leaving.extend(gone.iter().cloned());
            record.write(&self.system, &self.pins)?;
            settled.gone.extend(gone);
        }
        Ok(seen)
    }

    pub(crate) fn is_gone(&self, local: &Endpoint, seen: &mut Seen) -> Result<bool, Error> {
        for side in Side::BOTH {
            let there = self.point(local, side).program()?;
            seen.insert((local.ifindex, side), there);
            if there.is_none() {
                let asking = format!("ask for interface {}", local.ifindex);
                let interface = self.system.interface_numbered(local.ifindex).doing(asking)?;
                return Ok(interface.is_none_or(|it| (&it.name, &it.address) != (&local.interface, &local.address)));
            }
        }
        Ok(false)
    }

    /// Places our programs at every point. An endpoint where one cannot be placed fails, and gets no new entry. It is
    /// reported as closed if one of its programs may run, and else as open.
    pub(crate) fn place_programs(&self, record: &Record, loaded: &Loaded, seen: &Seen, settled: &mut Settled) {
        for local in &record.endpoints {
            // A program may run at a point that cannot be queried.
            let (mut may_run, mut why) = (0, None);
            for (side, number) in Side::BOTH.into_iter().zip(loaded.generation.programs) {
                let point = self.point(local, side);
                let there = seen.get(&(local.ifindex, side)).map_or_else(|| point.program(), |there| Ok(*there));
                match self.place_at(&point, there, number, loaded.program(side)) {
                    Ok(false) => may_run += 1,
                    Ok(true) => {
                        may_run += 1;
                        settled.mended.push(format!("{} at {}", side.program(), local.interface));
                    }
                    Err((is_unseen, error)) => {
                        may_run += usize::from(is_unseen);
                        why = Some(error);
                    }
                }
            }
            if let Some(why) = why {
                let now = if may_run == 0 { Now::Open } else { Now::Closed };
                settled.failures.push(Failure { pod: local.pod.clone(), interface: local.interface.clone(), now, why });
            }
        }
    }

    /// Places a program at a point. Returns whether it was missing. On failure, returns whether another program of ours
    /// may still run there, and the reason.
    fn place_at(
        &self,
        point: &Point<'_>,
        there: Result<Option<u32>, Error>,
        number: u32,
        program: &Program,
    ) -> Result<bool, (bool, String)> {
        let there = there.map_err(|error| (true, text(&error)))?;
        if there == Some(number) {
            return Ok(false);
        }
        point.place(program).map(|()| true).map_err(|error| (there.is_some(), error.to_string()))
    }

    /// Removes the programs, entries and flows of endpoints that leave, because a later interface can get the same
    /// number. If an endpoint is attached in a new way and that fails, the programs of the old way stay.
    pub(crate) fn remove_leaving(
        &self,
        record: &mut Record,
        loaded: Option<&Loaded>,
        failures: &[Failure],
    ) -> Result<(), Error> {
        let is_needed = |left: &Endpoint| {
            let moves = record.endpoints.iter().any(|it| (it.ifindex, &it.pod) == (left.ifindex, &left.pod));
            moves && failures.iter().any(|it| (&it.interface, &it.pod) == (&left.interface, &left.pod))
        };
        let (mut needed, leaving): (Vec<_>, Vec<_>) = record.leaving.iter().cloned().partition(is_needed);
        if leaving.is_empty() {
            return Ok(());
        }
        if let Some(loaded) = loaded {
            self.protect(record, loaded)?;
        }
        let stays = |left: &Endpoint, same: fn(&Endpoint, &Endpoint) -> bool| {
            record.endpoints.iter().any(|it| it.ifindex == left.ifindex && same(it, left))
        };
        let has_many_links = leaving.iter().filter(|it| it.way == Way::Tcx).count() > FEW;
        let nothing = has_many_links.then(|| self.system.load("weir_nothing", &NOTHING, None).ok()).flatten();
        for local in &leaving {
            if !stays(local, |it, left| it.way == left.way) {
                for side in Side::BOTH {
                    let removing = format!("remove {} from {}", side.program(), local.interface);
                    match self.point(local, side).remove(nothing.as_ref()) {
                        // The interface is gone, and the program with it.
                        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
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
        record.leaving = needed;
        record.write(&self.system, &self.pins)
    }

    /// Removes the entries of interfaces. Without an entry, all packets are dropped.
    pub(crate) fn close(&self, loaded: &Loaded, interfaces: &BTreeSet<u32>) -> Result<(), Error> {
        let Some(map) = loaded.map(MapName::Endpoints) else { return Ok(()) };
        for ifindex in interfaces {
            self.system.delete(map, &ifindex.to_le_bytes()).doing("remove from the map endpoints")?;
        }
        Ok(())
    }

    /// Removes the flows and fragments of interfaces.
    fn purge(&self, loaded: &Loaded, interfaces: &BTreeSet<u32>) -> Result<(), Error> {
        for name in MapName::ALL.into_iter().filter(|name| is_shared(*name)) {
            let purging = format!("remove flows from the map {}", name.name());
            if let Some(((family, _), map)) = bucket_family(name).zip(loaded.map(name)) {
                let gone = |slot: &Slot| interfaces.contains(&slot.ifindex());
                self.system.remove_slots(map, family, gone).doing(&purging)?;
            }
            let Some(map) = loaded.map(name).filter(|map| map.definition().key_size >= 16) else { continue };
            for (key, _) in self.system.entries(map).doing(&purging)? {
                let ifindex = key.first_chunk().map(|it| u32::from_le_bytes(*it));
                if ifindex.is_some_and(|it| interfaces.contains(&it)) {
                    self.system.delete(map, &key).doing(&purging)?;
                }
            }
        }
        Ok(())
    }

    /// Writes entries for the endpoints whose programs are in place, and removes all others.
    pub(crate) fn open_endpoints(
        &self,
        record: &Record,
        loaded: &Loaded,
        values: &Values<'_>,
        settled: &mut Settled,
    ) -> Result<(), Error> {
        self.keep_addresses(loaded, values.artifact(self, loaded)?, &record.endpoints, settled)?;
        let Some(map) = loaded.map(MapName::Endpoints) else { return Ok(()) };
        let writing = "write the map endpoints";
        let there = self.system.entries(map).doing(writing)?;
        for local in &record.endpoints {
            if settled.failures.iter().any(|it| it.interface == local.interface) {
                continue;
            }
            let key = local.ifindex.to_le_bytes();
            let Some(value) = values.of(self, loaded, local)? else { continue };
            if there.iter().any(|(it, known)| it[..] == key && *known == value) {
                continue;
            }
            self.write_entry(map, local, &value)?;
            settled.mended.push(format!("the entry of {}", local.pod));
        }
        let known = |key: &[u8]| record.endpoints.iter().any(|it| !it.closed && key == it.ifindex.to_le_bytes());
        for (key, _) in there.into_iter().filter(|(key, _)| !known(key)) {
            self.system.delete(map, &key).doing(writing)?;
            settled.mended.push("an entry that nobody owns".to_owned());
        }
        self.protect(record, loaded)
    }

    pub(crate) fn write_entry(&self, map: &Map, local: &Endpoint, value: &[u8]) -> Result<(), Error> {
        let written = self.system.update(map, &local.ifindex.to_le_bytes(), value);
        written.map_err(|error| refused(map, MapName::Endpoints, Some(local.pod.clone()), error))
    }

    /// Removes links of interfaces that are not in the record.
    fn remove_stray_links(&self, record: &Record) -> Result<(), Error> {
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
    pub(crate) fn pair(&self, one: &Loaded, other: &Loaded) -> Result<(), Error> {
        use std::os::fd::AsFd as _;
        let pairing = "pair two generations";
        for (this, that) in [(one, other), (other, one)] {
            let slot = this.map(MapName::Other);
            if let Some(slot) = slot {
                let program = that.program(Side::ToPod).as_fd();
                self.system.update_descriptor(slot, &[0; 4], program).doing(pairing)?;
            }
        }
        self.set_config(one, config::OTHER, u32::from(other.generation.stamp))?;
        self.set_config(other, config::OTHER, u32::from(one.generation.stamp))
    }

    /// Writes one number of a generation's configuration, such as the stamp of the other generation.
    pub(crate) fn set_config(&self, loaded: &Loaded, at: i32, number: u32) -> Result<(), Error> {
        let Some(map) = loaded.map(MapName::Config) else { return Ok(()) };
        let setting = "write the map config";
        let Some(mut value) = self.system.lookup(map, &[0; 4]).doing(setting)? else { return Ok(()) };
        let before = value.clone();
        value.iter_mut().skip(at as usize).zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
        if value == before { Ok(()) } else { self.system.update(map, &[0; 4], &value).doing(setting) }
    }

    fn pair_with_retired(&self, record: &Record, loaded: &Loaded) -> Result<(), Error> {
        let Some((retired, _)) = &record.retired else { return self.unpair(loaded) };
        match generation::open(&self.system, &self.pins, record, retired, Age::Old)? {
            Some(retired) => self.pair(loaded, &retired),
            None => self.unpair(loaded),
        }
    }

    pub(crate) fn unpair(&self, loaded: &Loaded) -> Result<(), Error> {
        self.set_config(loaded, config::OTHER, mark::NONE)?;
        let Some(slot) = loaded.map(MapName::Other) else { return Ok(()) };
        // The slot gets the program itself instead of being emptied: the kernel waits for every CPU before it empties a
        // slot.
        let itself = std::os::fd::AsFd::as_fd(loaded.program(Side::ToPod));
        self.system.update_descriptor(slot, &[0; 4], itself).doing("unpair two generations")
    }

    /// Removes the previous generation, after waiting until no packet that it has stamped can be under way.
    pub fn reap(&self) -> Result<(), Error> {
        self.kept_during(|| self.reap_retired(&mut self.record()?))
    }

    pub(crate) fn reap_retired(&self, record: &mut Record) -> Result<(), Error> {
        let Some((_, since)) = &record.retired else { return Ok(()) };
        let age = Duration::from_millis(uptime().saturating_sub(*since));
        std::thread::sleep(self.grace.saturating_sub(age));
        if let Some(loaded) = self.current(record)? {
            self.unpair(&loaded)?;
        }
        record.retired = None;
        record.write(&self.system, &self.pins)?;
        self.place_pins(record).map(|_| ())
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

impl Generation {
    /// A stamp that no generation in force has.
    pub(crate) fn free_stamp(record: &Record) -> u8 {
        let taken = |stamp: &u8| {
            let all = record.current.iter().chain(record.retired.iter().map(|(it, _)| it));
            all.into_iter().any(|it| it.stamp == *stamp)
        };
        (1..=3).find(|stamp| !taken(stamp)).unwrap_or(1)
    }
}
