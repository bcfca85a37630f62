//! `weir attach`: from an artifact and interfaces to enforcement.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use weir_artifact::Artifact;
use weir_artifact::entries::MapEntries;
use weir_artifact::layout::{MapName, config, endpoint};

use super::endpoint_entries::{EndpointsByName, Values};
use super::endpoint_programs::FoundPrograms;
use super::hook_move::FEW;
use super::reconcile::Reconciled;
use super::{EdgeFailure, PinAccess, Runtime, UplinkState};
use crate::error::{Doing as _, Error, Failure, StateAfterFailure};
use crate::generation::{self, GenerationSource, LoadedGeneration, ReusedMaps, flows};
use crate::pins::Age;
use crate::point::{self, HookKind, HookNeighbour, ProgramSide};
use crate::record::{EnforcedEndpoint, EnforcedEndpoints, EnforcementRecord, KernelGeneration, Uplink};
use crate::sys::netlink::HostInterface;

/// The desired state.
#[derive(Debug)]
pub struct Request<'a> {
    /// The artifact.
    pub artifact: &'a Artifact,
    /// The file that it was read from.
    pub file: &'a [u8],
    /// Pods (`namespace/name`) and their interfaces; those that are attached already stay.
    pub endpoints: Vec<(String, String)>,
    /// Interfaces on which packets of other hosts arrive, to drop packets there that lists deny to every pod. Uplinks
    /// that are attached already stay.
    pub uplinks: Vec<String>,
    /// How to attach programs to interfaces; `None` is TCX if the kernel has it.
    pub way: Option<HookKind>,
    /// Whether flows of other generations continue without being judged again; `None` takes the artifact's setting.
    pub keep: Option<bool>,
    /// Given if `endpoints` names every pod of this host: further facts about these pods.
    pub exact: Option<ExactPods>,
    /// The row table of the last artifact, if this one's only has additions: no class of the last artifact leads to
    /// them, and its classes have the same numbers in this one. If the last artifact is in force, its tables may be
    /// extended.
    pub extends: Option<&'a MapEntries>,
}

/// Facts about the pods of this host, if a request names all of them. An attached endpoint that is not named is closed,
/// because it is not known to which pod it belongs. An endpoint that fails is reported, and the operation continues
/// with the others.
#[derive(Clone, Debug, Default)]
pub struct ExactPods {
    /// Interfaces to close, each with the pod that it was attributed to.
    pub closed: Vec<(String, String)>,
    /// The UIDs of all pods. A pod whose interface is not found stays where it is attached.
    pub uids: BTreeMap<String, String>,
}

/// The state that is in force now.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The generation.
    pub generation: KernelGeneration,
    /// The one before, if there was another.
    pub before: Option<KernelGeneration>,
    /// Whether the one before was extended, instead of replaced by other programs and maps.
    pub is_extended: bool,
    /// All endpoints.
    pub endpoints: EnforcedEndpoints,
    /// Endpoints whose interface was gone; they were removed from the record.
    pub gone: Vec<EnforcedEndpoint>,
    /// Differences from the record that were found and repaired, in words.
    pub repaired: Vec<String>,
    /// All uplinks with their states.
    pub uplinks: Vec<UplinkState>,
    /// Uplinks whose drivers did not take the program in this operation, and why: the kernel runs it instead.
    pub generic: Vec<EdgeFailure>,
    /// Uplinks that were attached before and now deviate from the record.
    pub edge_failures: Vec<EdgeFailure>,
}

impl Runtime {
    /// Puts an artifact in force and returns when it is.
    pub fn attach(&self, request: &Request<'_>) -> Result<Attached, Error> {
        let attached = self.kept_during(|| self.attach_here(request));
        attached.map_err(|error| self.because_of_age(error))
    }

    fn attach_here(&self, request: &Request<'_>) -> Result<Attached, Error> {
        debug_assert!(self.lock.lock().is_ok_and(|it| it.is_some()), "opened with {:?}", PinAccess::Change);
        self.make_directories()?;
        let digest = digest(request.artifact)?;
        let (mut record, mut reconciled) = self.adopt(&digest)?;
        let is_everywhere = reconciled.failures.is_empty() && reconciled.edge_failures.is_empty();
        // Endpoints that could not be repaired are tried again below, and reported if that fails too.
        reconciled.failures.clear();
        let wrong_tables = self.wrong_tables(&record, request, &digest)?;
        let recorded = record.endpoints.clone();
        let wanted = self.wanted(&mut record, request, &mut reconciled)?;
        let uplinks = self.wanted_uplinks(&record, &request.uplinks)?;
        let new_uplinks: Vec<Uplink> = uplinks.iter().filter(|it| !record.uplinks.contains(it)).cloned().collect();
        record.uplinks = uplinks;
        let before = record.current.clone();
        let keep = request.keep.unwrap_or_else(|| keeps(request.artifact));
        // The digest does not cover entries and pods that were written later, nor what another process has written.
        let is_unchanged = |it: &KernelGeneration| !it.patched && it.pods.is_empty() && wrong_tables.is_empty();
        let is_same = |it: &KernelGeneration| it.digest == digest && it.keep == keep && is_unchanged(it);
        let same = record.current.as_ref().is_some_and(is_same);
        reconciled.repaired.extend(wrong_tables);
        let enforced = record.endpoints.clone();
        let moves = merge(&mut record, wanted);
        let has_edge = record.current.as_ref().is_some_and(|it| it.edge.is_some());
        let is_at_edge = has_edge || request.artifact.edge.is_none() || record.uplinks.is_empty();
        let has_maps = is_at_edge && shared_maps(&record) == self.shared_maps(request.artifact);
        // An endpoint that is closed now loses its entry in a new generation.
        let has_endpoints = is_everywhere && record.endpoints == recorded && moves.is_empty();
        let mut is_extended = false;
        if same && has_maps {
            self.add_endpoints(&mut record, request.artifact, &enforced, &mut reconciled)?;
            self.keep_other_file(&mut record, request)?;
        } else if has_maps
            && has_endpoints
            && new_uplinks.is_empty()
            && self.extend_or_restore(&mut record, request, (&digest, keep))?
        {
            is_extended = true;
        } else {
            self.put_in_force(&mut record, request, &enforced, (digest, keep), &mut reconciled)?;
        }
        if let Some(loaded) = self.current(&record)?.filter(|_| !moves.is_empty()) {
            for (ifindex, way) in moves {
                self.move_over(&mut record, &loaded, ifindex, way, &mut reconciled)?;
            }
        }
        let (failed, edge_failures): (Vec<_>, Vec<_>) = std::mem::take(&mut reconciled.edge_failures)
            .into_iter()
            .partition(|it| new_uplinks.iter().any(|new| new.interface == it.interface));
        if let Some(EdgeFailure { interface, why }) = failed.first().cloned() {
            self.leave_uplinks(&mut record, |it| failed.iter().any(|failed| failed.interface == it.interface))?;
            return Err(Error::Edge { interface, why });
        }
        let Some(generation) = record.current.clone() else {
            return Err(Error::Nothing(self.pins.root().to_owned()));
        };
        if !reconciled.failures.is_empty() {
            self.report_later(reconciled.repaired);
            return Err(Error::Partial(reconciled.failures));
        }
        Ok(Attached {
            is_extended,
            before: before.filter(|it| it.epoch != generation.epoch),
            generation,
            uplinks: self.uplink_states(&record)?,
            endpoints: record.endpoints,
            gone: reconciled.gone,
            repaired: reconciled.repaired,
            generic: reconciled.generic,
            edge_failures,
        })
    }

    /// Reads the record and reconciles the kernel with it. Of a generation that an artifact with another digest will
    /// replace, an agent checks only this switch's needs. Returns an empty record if no record is pinned.
    fn adopt(&self, digest: &str) -> Result<(EnforcementRecord, Reconciled), Error> {
        let Some(mut record) = self.read_record()? else {
            let links = self.system.list(&self.pins.links()).doing("list links")?;
            if !links.is_empty() {
                return Err(Error::Damaged {
                    path: self.pins.root().to_owned(),
                    what: format!("{} links are pinned, but the record is missing", links.len()),
                });
            }
            let record = EnforcementRecord::new(self.system.namespace().doing("ask for the network namespace")?);
            self.place_pins(&record)?;
            return Ok((record, Reconciled::default()));
        };
        self.check_namespace(&record)?;
        let is_replaced = record.current.as_ref().is_some_and(|current| current.digest != digest);
        let checked = is_replaced.then(|| self.checked(&record)).flatten();
        match checked.map_or_else(|| self.reconcile(&mut record, None), Ok) {
            Ok(mut reconciled) => {
                // It is not known which programs run at such an endpoint or uplink.
                if !reconciled.failures.is_empty() || !reconciled.edge_failures.is_empty() {
                    self.drop_spare(&mut record)?;
                    record.retired.iter_mut().for_each(|(retired, _)| retired.code.clear());
                }
                // The generation stays the one in force, so that the next one is paired with it. But it does not count
                // as what its artifact says, not even if that artifact is attached again.
                if let Some(unreadable) = reconciled.unreadable.take() {
                    record.current.iter_mut().for_each(|current| current.patched = true);
                    reconciled.repaired.push(unreadable.to_string());
                }
                reconciled.repaired.extend(self.reap_retired(&mut record)?);
                Ok((record, reconciled))
            }
            // Objects of the generation in force are missing: a new generation takes its place.
            Err(Error::Damaged { what, .. }) => {
                record.current = None;
                record.next = None;
                record.retired = None;
                record.spare = None;
                Ok((record, Reconciled { repaired: vec![what], ..Reconciled::default() }))
            }
            Err(error) => Err(error),
        }
    }

    /// Compares the tables of the generation in force with its artifact, if it is the artifact of the request. An agent
    /// does this regularly: see [`Self::deviations`].
    fn wrong_tables(
        &self,
        record: &EnforcementRecord,
        request: &Request<'_>,
        digest: &str,
    ) -> Result<Vec<String>, Error> {
        let is_again = record.current.as_ref().is_some_and(|it| it.digest == digest && !it.patched);
        let Some(loaded) = self.current(record)?.filter(|_| is_again && self.kept.is_none()) else {
            return Ok(Vec::new());
        };
        let mut artifact = request.artifact.clone();
        loaded.generation.pods.apply(&mut artifact.endpoints);
        // Entries of endpoints and addresses have been reconciled. Those of an endpoint that failed are missing.
        let is_reconciled = |name| matches!(name, MapName::Endpoints | MapName::Local4 | MapName::Local6);
        artifact.maps.retain(|image| !is_reconciled(image.name));
        let mut wrong = Vec::new();
        self.check_contents(record, &loaded, &artifact, &mut wrong)?;
        Ok(wrong)
    }

    fn shared_maps(&self, artifact: &Artifact) -> usize {
        let is_shared = |name| generation::is_shared(name) && !generation::is_of_edge(name);
        artifact.maps.iter().filter(|it| is_shared(it.name)).count()
    }

    /// The endpoints of the request, with the facts known about their interfaces.
    fn wanted(
        &self,
        record: &mut EnforcementRecord,
        request: &Request<'_>,
        reconciled: &mut Reconciled,
    ) -> Result<Vec<EnforcedEndpoint>, Error> {
        let mut wanted = self.asked_for(record, request, reconciled)?;
        let known: BTreeSet<u32> = record.endpoints.iter().map(|it| it.ifindex).collect();
        let is_new = |it: &EnforcedEndpoint| !known.contains(&it.ifindex);
        if request.way.is_none() && wanted.iter().filter(|it| is_new(it)).count() > FEW {
            let hurried =
                |it: &&mut EnforcedEndpoint| is_new(it) && it.way == HookKind::Tcx && self.has_no_links(it.ifindex);
            wanted.iter_mut().filter(hurried).for_each(|it| (it.way, it.hurried) = (HookKind::Clsact, true));
        }
        let named = EndpointsByName::new(&request.artifact.endpoints);
        if let Some(exact) = &request.exact {
            close_unknown(record, &mut wanted, &named, exact, reconciled);
        }
        let named_here: BTreeSet<u32> = wanted.iter().map(|it| it.ifindex).collect();
        let all = record.endpoints.iter().filter(|it| !named_here.contains(&it.ifindex));
        let mut open = all.chain(&wanted).filter(|it| !it.closed);
        if let Some(unknown) = open.find(|it| named.value_of(it).is_none()) {
            return Err(Error::UnknownPod(unknown.pod.clone()));
        }
        Ok(wanted)
    }

    fn asked_for(
        &self,
        record: &EnforcementRecord,
        request: &Request<'_>,
        reconciled: &mut Reconciled,
    ) -> Result<Vec<EnforcedEndpoint>, Error> {
        let mut wanted: Vec<EnforcedEndpoint> = Vec::new();
        // By interface: a node can have hundreds of pods, and each of them is looked up.
        let recorded: BTreeMap<u32, &EnforcedEndpoint> = record.endpoints.iter().map(|it| (it.ifindex, it)).collect();
        let mut places: BTreeMap<u32, usize> = BTreeMap::new();
        // The best way is needed only for new endpoints.
        let mut best = request.way.map(|_| point::choose(&self.system, request.way)).transpose()?;
        let closed = request.exact.as_ref().map_or(&[][..], |it| &it.closed);
        let asked = request.endpoints.iter().map(|it| (it, false)).chain(closed.iter().map(|it| (it, true)));
        let is_many = request.endpoints.len() + closed.len() > FEW;
        let mut listed = std::mem::take(&mut reconciled.interfaces);
        if is_many && listed.is_empty() {
            listed = self.system.interfaces().doing("list this host's interfaces")?;
        }
        let listed = listed.values().filter(|_| is_many);
        let listed: HashMap<&str, &HostInterface> = listed.map(|it| (it.name.as_str(), &**it)).collect();
        for ((pod, name), closed) in asked {
            let interface = match listed.get(name.as_str()) {
                Some(interface) => Some(Cow::Borrowed(*interface)),
                None => {
                    let asked = self.system.interface_named(name).doing(format!("ask for the interface {name}"))?;
                    asked.map(Cow::Owned)
                }
            };
            let Some(interface) = interface else {
                let missing = Error::NoInterface { pod: Some(pod.clone()), name: name.clone() };
                skip(request, reconciled, (pod, name), StateAfterFailure::Gone, missing)?;
                continue;
            };
            let ifindex = interface.ifindex;
            let other = places.get(&ifindex).and_then(|place| wanted.get_mut(*place));
            if let Some(other) = other.filter(|it| it.pod != *pod) {
                let (first, second) = (other.pod.clone(), pod.clone());
                other.closed = true;
                let two = Error::TwoPods { name: name.clone(), first, second };
                skip(request, reconciled, (pod, name), StateAfterFailure::Closed, two)?;
                continue;
            }
            let known = recorded.get(&ifindex).copied();
            let (way, hurried) = match (request.way, known) {
                (None, Some(known)) => (known.way, known.hurried),
                _ => {
                    let way = best.map_or_else(|| point::choose(&self.system, None), Ok)?;
                    best = Some(way);
                    (way, false)
                }
            };
            // The pod may change its hardware address later. The first one is the one that its CNI plug-in has set.
            let pod_address = known.filter(|it| it.pod == *pod && it.address == interface.address);
            let pod_address = pod_address.map_or_else(|| self.system.other_end(&interface), |it| it.pod_address);
            let number = known.map_or_else(|| free_number(record, &wanted), |it| it.number);
            let uid = request.exact.as_ref().and_then(|it| it.uids.get(pod).cloned());
            let (pod, interface, address) = (pod.clone(), name.clone(), interface.address.clone());
            places.entry(ifindex).or_insert(wanted.len());
            wanted.push(EnforcedEndpoint {
                pod,
                uid,
                interface,
                ifindex,
                address,
                pod_address,
                number,
                way,
                hurried,
                closed,
                by_hand: request.exact.is_none(),
            });
        }
        Ok(wanted)
    }

    /// Keeps the request's file for the generation that is in force already, if it is another one. The file has the
    /// names of policies. The tables do not, so they stay the same if a policy gets another name.
    fn keep_other_file(&self, record: &mut EnforcementRecord, request: &Request<'_>) -> Result<(), Error> {
        let Some(loaded) = self.current(record)? else { return Ok(()) };
        let file = (request.artifact, request.file);
        let kept = loaded.maps.get(generation::FILE);
        // The values that the map lacks are in the tables, whose digest is the request's.
        if kept.is_some_and(|kept| matches!(generation::is_kept(&self.system, file, kept), Ok(true))) {
            return Ok(());
        }
        // If the process dies, `place_pins` removes the map that the record does not have.
        let takes_spares_file = self.keep_file_of(record, request)?;
        self.write_record(record)?;
        self.place_file(record, takes_spares_file)
    }

    /// Adds endpoints to the generation that is in force already.
    fn add_endpoints(
        &self,
        record: &mut EnforcementRecord,
        artifact: &Artifact,
        enforced: &[EnforcedEndpoint],
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let Some(loaded) = self.current(record)? else { return Ok(()) };
        // The record first: a clsact filter at an interface that no record names would never be removed.
        self.write_record(record)?;
        let mut added = Reconciled::default();
        self.place_edge(record, &loaded, &mut added);
        self.place_new_programs(record, &loaded, artifact, enforced, &mut added)?;
        self.remove_others(record, &loaded, enforced, &added)?;
        self.open_endpoints(record, &loaded, &Values::new(Some(artifact)), &mut added)?;
        reconciled.add(added);
        Ok(())
    }

    /// Places the programs of the generation in force, at new endpoints too.
    fn place_new_programs(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        artifact: &Artifact,
        enforced: &[EnforcedEndpoint],
        added: &mut Reconciled,
    ) -> Result<(), Error> {
        let table = self.endpoint_table(loaded, Some(artifact))?;
        self.keep_addresses(loaded, &table, &record.endpoints, added)?;
        let new = self.new_endpoints(record, &table.endpoints, enforced);
        self.prepare(record, &new);
        for local in new.ordered(&record.endpoints) {
            self.place_programs_at(record, local, loaded, (&FoundPrograms::new(), &new), added);
        }
        Ok(())
    }

    fn put_in_force(
        &self,
        record: &mut EnforcementRecord,
        request: &Request<'_>,
        enforced: &[EnforcedEndpoint],
        (digest, keep): (String, bool),
        reconciled: &mut Reconciled,
    ) -> Result<(), Error> {
        let current = self.current(record)?;
        record.last_epoch += 1;
        let source = GenerationSource {
            artifact: request.artifact,
            file: request.file,
            digest,
            code: self.code_of(request.artifact),
            keep,
            epoch: record.last_epoch,
            stamp: KernelGeneration::free_stamp(record),
            endpoints: record.endpoints.len() as u32,
            has_uplinks: !record.uplinks.is_empty(),
            own: self.own_addresses(&request.artifact.endpoints, &record.endpoints)?,
            open: open_entries(record, request.artifact, enforced),
            written: self.written.as_ref(),
        };
        let next = self.make(record, &source)?;
        self.protect(record, &next)?;
        // Everything is ready before the record names the next generation: from this write on, recovery goes forward
        // and must not meet a map that is only half filled. If the process dies before it, the pins under `next` belong
        // to no generation, and `place_pins` removes them. A spare that was reused is still the record's.
        record.next = Some(next.generation.clone());
        self.write_record(record)?;
        let mut switched = Reconciled::default();
        let new = self.new_endpoints(record, &request.artifact.endpoints, enforced);
        let result = self.switch(record, current.as_ref(), &next, &new, &mut switched);
        reconciled.repaired.append(&mut switched.met);
        // The error has no room for the repairs.
        result.inspect_err(|_| self.report_later(std::mem::take(&mut reconciled.repaired)))?;
        flows::forget_unknown(record);
        self.write_changed_record(record)?;
        let restored = self.place_pins(record)?.restored;
        record.repaired += restored.len() as u64;
        reconciled.repaired.extend(restored);
        let are_leaving = !record.leaving.is_empty();
        self.remove_others(record, &next, enforced, &switched)?;
        // For an agent's later operations. To read it from the kernel would cost more than the rest of them.
        self.stored_table(&next, Some(request.artifact))?;
        // The entries of endpoints that were enforced before are there, unless one of them failed, or one that left
        // took the entry of its interface with it.
        let are_all_enforced = record.endpoints.iter().all(|it| is_among(enforced, it));
        if are_leaving || !switched.failures.is_empty() || !are_all_enforced {
            self.open_endpoints(record, &next, &Values::new(Some(request.artifact)), &mut switched)?;
        }
        reconciled.add(switched);
        Ok(())
    }

    /// Makes the next generation from the spare, or from its tables and other programs, if that is possible; else anew.
    pub(super) fn make(
        &self,
        record: &mut EnforcementRecord,
        source: &GenerationSource<'_>,
    ) -> Result<LoadedGeneration, Error> {
        // An error is no reason to fail: making the generation anew may succeed, and meets the same error if not.
        if let Ok(Some(next)) = generation::take_over(&self.objects(), record, source) {
            record.spare = None;
            return Ok(next);
        }
        // First the rest of the spare goes, so that there are never the maps of three generations. The record is not
        // written yet, because it already has the new endpoints. A process that dies here leaves a spare without pins,
        // which the next one drops.
        let reused = generation::reusable(&self.objects(), record, source).unwrap_or_default();
        if let Some(spare) = record.spare.as_ref().filter(|_| !reused.is_empty()) {
            let mut rest = spare.clone();
            rest.maps.retain(|name, _| !reused.keys().any(|it| it.name() == name));
            self.remove_spare(&rest)?;
            if let Ok(next) = generation::load(&self.objects(), record, source, reused) {
                record.spare = None;
                return Ok(next);
            }
            self.remove_unfinished(source)?;
        }
        if let Some(spare) = record.spare.take() {
            self.remove_spare(&spare)?;
        }
        generation::load(&self.objects(), record, source, ReusedMaps::new())
    }

    /// Removes the pins of a generation that could not be made.
    fn remove_unfinished(&self, source: &GenerationSource<'_>) -> Result<(), Error> {
        let maps = source.artifact.maps.iter().map(|image| image.name.name()).chain([generation::FILE]);
        let maps = maps.map(|name| self.pins.map(Age::Next, name));
        let programs = ProgramSide::BOTH.map(|side| self.pins.program(Age::Next, side));
        for path in maps.chain(programs).chain([self.pins.edge_program(Age::Next)]) {
            self.system.unpin(&path).doing(format!("remove {}", path.display()))?;
        }
        Ok(())
    }

    /// The programs are in place: removes endpoints that leave, and new ones that none of them reached.
    fn remove_others(
        &self,
        record: &mut EnforcementRecord,
        loaded: &LoadedGeneration,
        enforced: &[EnforcedEndpoint],
        done: &Reconciled,
    ) -> Result<(), Error> {
        // An endpoint that was enforced before stays in the record, and the next operation tries it again.
        let lost = |it: &EnforcedEndpoint| {
            let is_open = done.failures.iter().any(|f| f.interface == it.interface && f.now == StateAfterFailure::Open);
            is_open && !is_among(enforced, it)
        };
        if record.endpoints.iter().any(lost) {
            record.endpoints.retain(|it| !lost(it));
        }
        self.remove_leaving(record, Some(loaded), &done.failures)?;
        self.write_changed_record(record)
    }

    /// Programs of others on the hooks of endpoints.
    pub fn neighbours(&self, endpoints: &[EnforcedEndpoint]) -> Result<Vec<HookNeighbour>, Error> {
        let mut all = Vec::new();
        for local in endpoints {
            for side in ProgramSide::BOTH {
                all.extend(self.point(local, side).neighbours(&local.interface)?);
            }
        }
        Ok(all)
    }
}

/// Handles an endpoint that failed. If the request is exact, the endpoint is reported and the operation continues;
/// otherwise the operation fails.
fn skip(
    request: &Request<'_>,
    reconciled: &mut Reconciled,
    (pod, interface): (&str, &str),
    now: StateAfterFailure,
    why: Error,
) -> Result<(), Error> {
    if request.exact.is_none() {
        return Err(why);
    }
    let (pod, interface, why) = (pod.to_owned(), interface.to_owned(), why.to_string());
    reconciled.failures.push(Failure { pod, interface, now, why });
    Ok(())
}

/// Closes endpoints without rules in this artifact: attached endpoints that the request does not name and that may not
/// be the same pod's, and named endpoints that the artifact does not contain.
fn close_unknown(
    record: &mut EnforcementRecord,
    wanted: &mut [EnforcedEndpoint],
    named: &EndpointsByName<'_>,
    exact: &ExactPods,
    reconciled: &mut Reconciled,
) {
    let interfaces: BTreeSet<u32> = wanted.iter().map(|it| it.ifindex).collect();
    let is_unknown = |local: &EnforcedEndpoint| {
        let pod = local.pod.as_str();
        let is_elsewhere = || wanted.iter().any(|it| it.pod == *pod && it.ifindex != local.ifindex);
        let is_same = || local.uid.is_some() && exact.uids.get(&local.pod) == local.uid.as_ref();
        let is_named = interfaces.contains(&local.ifindex);
        !is_named && (is_elsewhere() || !is_same() || named.value_of(local).is_none())
    };
    let unknown = record.endpoints.iter().filter(|it| !it.closed && is_unknown(it)).map(|it| it.ifindex);
    let unknown: BTreeSet<u32> = unknown.collect();
    if !unknown.is_empty() {
        let closing = record.endpoints.iter_mut().filter(|it| unknown.contains(&it.ifindex));
        closing.for_each(|local| local.closed = true);
    }
    for local in wanted.iter_mut().filter(|it| !it.closed && named.value_of(it).is_none()) {
        local.closed = true;
        let (pod, interface) = (local.pod.clone(), local.interface.clone());
        let why = Error::UnknownPod(pod.clone()).to_string();
        reconciled.failures.push(Failure { pod, interface, now: StateAfterFailure::Closed, why });
    }
}

/// The entries of the endpoints that are in force already. New ones get theirs when both of their programs are there.
pub(super) fn open_entries(
    record: &EnforcementRecord,
    artifact: &Artifact,
    enforced: &[EnforcedEndpoint],
) -> BTreeMap<[u8; 4], endpoint::Value> {
    let named = EndpointsByName::new(&artifact.endpoints);
    let open = record.endpoints.iter().filter(|it| is_among(enforced, it));
    open.filter_map(|local| Some((local.ifindex.to_le_bytes(), named.value_of(local)?))).collect()
}

/// The shared maps of the programs at pods.
fn shared_maps(record: &EnforcementRecord) -> usize {
    record.shared.keys().filter(|name| *name != MapName::EdgeDrops.name()).count()
}

/// Adds endpoints. An endpoint that belonged to another pod leaves first. An endpoint that is to be attached in another
/// way is moved afterwards: the interfaces to move and their new ways are returned.
fn merge(record: &mut EnforcementRecord, mut wanted: Vec<EnforcedEndpoint>) -> Vec<(u32, HookKind)> {
    // Most switches change no endpoint.
    wanted.sort_by_key(|it| it.ifindex);
    if *record.endpoints == wanted {
        return Vec::new();
    }
    let mut moves = Vec::new();
    let before = record.endpoints.clone();
    let before: BTreeMap<u32, &EnforcedEndpoint> = before.iter().map(|it| (it.ifindex, it)).collect();
    let mut all: BTreeMap<u32, EnforcedEndpoint> = BTreeMap::new();
    for mut new in wanted {
        // A request can name a pod and its interface twice.
        if let Some(first) = all.get_mut(&new.ifindex) {
            first.closed |= new.closed;
            continue;
        }
        if let Some(old) = before.get(&new.ifindex) {
            if old.pod != new.pod {
                record.leaving.push((*old).clone());
            } else if old.way != new.way {
                moves.push((new.ifindex, new.way));
                (new.way, new.hurried) = (old.way, old.hurried);
            }
        }
        all.insert(new.ifindex, new);
    }
    for (ifindex, old) in before {
        all.entry(ifindex).or_insert_with(|| old.clone());
    }
    if !record.endpoints.iter().eq(all.values()) {
        record.endpoints = all.into_values().collect::<Vec<_>>().into();
    }
    moves
}

/// Whether the list has the same pod at the same interface. The interface may have a new name.
fn is_among(endpoints: &[EnforcedEndpoint], it: &EnforcedEndpoint) -> bool {
    endpoints.iter().any(|known| (known.ifindex, &known.pod) == (it.ifindex, &it.pod))
}

pub(super) fn digest(artifact: &Artifact) -> Result<String, Error> {
    let digest = artifact.generation().map_err(std::io::Error::other).doing("read the artifact")?;
    Ok(digest.to_string())
}

/// The setting in the artifact: whether established flows are kept.
fn keeps(artifact: &Artifact) -> bool {
    let image = artifact.map(MapName::Config).and_then(|image| image.entries.first());
    image.and_then(|(_, value)| value.get(config::KEEP_ESTABLISHED as usize)).is_some_and(|it| *it != 0)
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Partial(vec![failure])
    }
}

/// The lowest number that no endpoint has.
pub(super) fn free_number(record: &EnforcementRecord, wanted: &[EnforcedEndpoint]) -> u16 {
    let taken: BTreeSet<u16> = record.endpoints.iter().chain(wanted).map(|it| it.number).collect();
    (0..=u16::MAX).find(|number| !taken.contains(number)).unwrap_or(u16::MAX)
}
