//! Pods that come to this node or leave it between two generations.
//!
//! Problem: most new pods have the policies of a pod that is here already. A generation for each of them would write
//! all tables again. Strategy: a new pod gets the subject class of a pod in the artifact, and the programs in force. The
//! record names the pods that differ from the artifact ([`crate::record::SinglePods`]), so every reader of the artifact
//! sees the pods that are here.
//!
//! Order of operations for a pod that comes. The caller has written the peer classes of its addresses before.
//!
//! ```text
//!  before                   its interface is closed by a program that drops everything, or no policy closes it
//!  record: the pod          the same; from here on, a repair completes the rest
//!  nothing, nothing         if the interface is not closed, a program that does nothing is attached twice: packets
//!                           pass, as before
//!  program, program         a packet in the direction of an attached program is dropped: the pod has no entry; each
//!                           takes the place of the program that does nothing, or with TCX of the closing one
//!  entry in `endpoints`     packets are judged by the pod's policy
//!  end of the closing       the same
//! ```
//!
//! A pod leaves when its interface is gone, so no packet sees an order: the record first, then pins, entry and flows.
//!
//! Invariants: no state in between lets a packet pass that the states before and after both drop. If a process dies
//! anywhere, the pod is as before until the next operation, or packets in at least one direction are dropped. Tests:
//! `runtime-bpf/tests/enforce/pods.rs`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_artifact::layout::{MapName, address_bytes, endpoint, fragments};

use super::attach::free_number;
use super::endpoint_entries::EndpointsByName;
use super::endpoint_programs::FoundPrograms;
use super::new_endpoints::NewEndpoints;
use super::reconcile::Reconciled;
use super::{EnforcementState, Runtime};
use crate::closed;
use crate::error::{Doing as _, Error, StateAfterFailure};
use crate::generation::LoadedGeneration;
use crate::point::{self, HookKind};
use crate::record::{EnforcedEndpoint, EnforcementRecord, KernelGeneration};

/// How long an interface that is not listed may take to end, and the time between two looks at it.
const ENDING: Duration = Duration::from_millis(50);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// A pod that comes to this node, at its interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComingPod {
    /// `namespace/name`
    pub pod: String,
    /// The pod's UID.
    pub uid: Option<String>,
    /// The name of its interface.
    pub interface: String,
    /// The number of its interface: since the caller looked, another interface may have got the same name.
    pub ifindex: u32,
    /// Its addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// `namespace/name` of a pod in the artifact that has the same policies.
    pub like: String,
    /// The subject class of both.
    pub subject: u32,
}

/// A pod whose interface is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeavingPod {
    /// `namespace/name`
    pub pod: String,
    /// Whether the pod is gone too. Otherwise it may come back at another interface.
    pub is_gone: bool,
}

impl Runtime {
    /// Puts the generation in force on a pod that its artifact does not contain. After an error, the pod is closed or as
    /// before, and needs a new generation.
    pub fn add_pod(&self, pod: &ComingPod, way: Option<HookKind>) -> Result<KernelGeneration, Error> {
        self.bring_record_back()?;
        let added = self.add_pod_here(pod, way);
        self.remember()?;
        added
    }

    fn add_pod_here(&self, pod: &ComingPod, way: Option<HookKind>) -> Result<KernelGeneration, Error> {
        let mut record = self.record()?;
        let mut loaded = self.settled(&record, &pod.pod)?;
        let value = self.value_like(&loaded, pod)?;
        let local = self.coming_endpoint(&record, &loaded, pod, way)?;
        let is_first = record.endpoints.iter().all(|it| it.closed);
        let others = record.endpoints.clone();
        record.endpoints.push(local.clone());
        record.endpoints.sort_by_key(|it| it.ifindex);
        loaded.generation.pods.come(&pod.pod, &value);
        record.current = Some(loaded.generation.clone());
        self.write_record(&record)?;
        let mut done = Reconciled::default();
        if is_first {
            // Without an endpoint, the generation has no addresses of this host.
            let table = self.endpoint_table(&loaded, None)?;
            self.keep_addresses(&loaded, &table, &record.endpoints, &mut done)?;
        }
        let named = loaded.generation.pods.named(&pod.pod).into_iter().collect::<Vec<_>>();
        self.prepare(&record, &self.new_endpoints(&record, &named, &others));
        self.place_programs_at(&record, &local, &loaded, (&FoundPrograms::new(), &NewEndpoints::default()), &mut done);
        if !done.failures.is_empty() {
            return Err(self.not_added(&mut record, &local, done)?);
        }
        if let Some(value) = EndpointsByName::new(&named).value_of(&local) {
            self.write_entry(&loaded, &local, &value)?;
        }
        self.protect(&record, &loaded)?;
        self.end_closing(&record, &loaded, &local)?;
        Ok(loaded.generation)
    }

    /// The generation in force, if no other change is under way.
    fn settled(&self, record: &EnforcementRecord, pod: &str) -> Result<LoadedGeneration, Error> {
        let unsettled = |why: &'static str| Error::NotSinglePod { pod: pod.to_owned(), why };
        if record.next.is_some() || !record.leaving.is_empty() {
            return Err(unsettled("another change was interrupted"));
        }
        self.current(record)?.ok_or_else(|| Error::Nothing(self.pins.root().to_owned()))
    }

    /// The value of a pod in the artifact, with the addresses of the new pod.
    fn value_like(&self, loaded: &LoadedGeneration, pod: &ComingPod) -> Result<endpoint::Value, Error> {
        let refused = |why: &'static str| Error::NotSinglePod { pod: pod.pod.clone(), why };
        let table = self.stored_table(loaded, None)?;
        let like = table.endpoints.iter().find(|it| it.pod() == pod.like);
        let mut value = like.ok_or_else(|| refused("the artifact has no pod like it"))?.value;
        if value.get(endpoint::SUBJECT as usize..).and_then(|it| it.first_chunk()) != Some(&pod.subject.to_le_bytes()) {
            return Err(refused("the artifact has other classes"));
        }
        value[endpoint::V4 as usize..endpoint::MAC as usize].fill(0);
        for address in &pod.addresses {
            let (at, nodes) = match address {
                IpAddr::V4(_) => (endpoint::V4, MapName::Nodes4),
                IpAddr::V6(_) => (endpoint::V6, MapName::Nodes6),
            };
            if loaded.map(nodes).is_none() {
                return Err(refused("the programs do not know its address family"));
            }
            let bytes = address_bytes(*address);
            value[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        }
        Ok(value)
    }

    /// The endpoint of a pod that comes.
    fn coming_endpoint(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        pod: &ComingPod,
        way: Option<HookKind>,
    ) -> Result<EnforcedEndpoint, Error> {
        let refused = |why: &'static str| Error::NotSinglePod { pod: pod.pod.clone(), why };
        let asking = format!("ask for the interface {}", pod.interface);
        let found = self.system.interface_named(&pod.interface).doing(asking)?;
        let found = found.filter(|it| it.ifindex == pod.ifindex);
        let missing = || Error::NoInterface { pod: Some(pod.pod.clone()), name: pod.interface.clone() };
        let interface = found.ok_or_else(missing)?;
        if record.endpoints.iter().any(|it| it.ifindex == pod.ifindex || it.pod == pod.pod) {
            return Err(refused("the pod or its interface is enforced already"));
        }
        let number = free_number(record, &[]);
        let room = |name, of_each: u32| loaded.map(name).map_or(u32::MAX, |map| map.definition().max_entries / of_each);
        let places = room(MapName::Endpoints, 1).min(room(MapName::Fragments, fragments::PLACES));
        // Before the first write: a pod that the record names without an entry would stay closed.
        if record.endpoints.len() as u32 >= places || u32::from(number) >= places {
            return Err(refused("the tables have no room for another pod"));
        }
        Ok(EnforcedEndpoint {
            pod: pod.pod.clone(),
            uid: pod.uid.clone(),
            interface: pod.interface.clone(),
            ifindex: pod.ifindex,
            pod_address: self.system.other_end(&interface),
            address: interface.address,
            number,
            way: point::choose(&self.system, way)?,
            hurried: false,
            closed: false,
            by_hand: false,
        })
    }

    /// Handles programs that could not be attached. A pod without any of our programs leaves the record, as after an
    /// attach. Returns the error.
    fn not_added(
        &self,
        record: &mut EnforcementRecord,
        local: &EnforcedEndpoint,
        done: Reconciled,
    ) -> Result<Error, Error> {
        if done.failures.iter().any(|it| it.now == StateAfterFailure::Open) {
            record.endpoints.retain(|it| it != local);
            record.current.iter_mut().for_each(|it| it.pods.leave(&local.pod, false));
            self.write_record(record)?;
        }
        Ok(Error::Partial(done.failures))
    }

    /// Removes the program that closes the interface of a new pod, if the generation is in force there.
    fn end_closing(
        &self,
        record: &EnforcementRecord,
        loaded: &LoadedGeneration,
        local: &EnforcedEndpoint,
    ) -> Result<(), Error> {
        let is_enforced = self.state(record, Some(loaded), local)? == EnforcementState::Enforced;
        closed::open_interfaces(&self.system, self.pins.root(), |ifindex| is_enforced && ifindex == local.ifindex)?;
        Ok(())
    }

    /// Removes pods whose interface is gone: their entries, flows and pins.
    pub fn remove_pods(&self, pods: &[LeavingPod]) -> Result<(), Error> {
        self.bring_record_back()?;
        let removed = self.remove_pods_here(pods);
        self.remember()?;
        removed
    }

    /// Whether the interface is gone, now or within [`ENDING`]: while the kernel ends an interface, it does not list it
    /// any more, but the link at it still names it. An interface that was moved to another namespace is not listed
    /// either. It still carries the pod's packets, so it keeps its programs.
    fn is_gone_soon(&self, local: &EnforcedEndpoint, ours: &BTreeSet<u32>) -> Result<bool, Error> {
        let begun = Instant::now();
        loop {
            let is_last = begun.elapsed() > ENDING;
            if self.is_gone(local, ours, &mut FoundPrograms::new())? {
                return Ok(true);
            }
            let asking = format!("ask for interface {}", local.ifindex);
            let is_listed = self.system.interface_numbered(local.ifindex).doing(asking)?.is_some();
            if is_listed || is_last {
                return Ok(false);
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn remove_pods_here(&self, pods: &[LeavingPod]) -> Result<(), Error> {
        let mut record = self.record()?;
        let Some(first) = pods.first() else { return Ok(()) };
        let mut loaded = self.settled(&record, &first.pod)?;
        let leaves = |it: &EnforcedEndpoint| pods.iter().any(|pod| pod.pod == it.pod);
        let (leaving, staying): (Vec<_>, Vec<_>) = record.endpoints.iter().cloned().partition(leaves);
        let ours = record.programs();
        for local in &leaving {
            if !self.is_gone_soon(local, &ours)? {
                let (pod, why) = (local.pod.clone(), "its interface is still there");
                return Err(Error::NotSinglePod { pod, why });
            }
        }
        let table = self.stored_table(&loaded, None)?;
        for pod in pods.iter().filter(|it| it.is_gone) {
            let is_named = table.endpoints.iter().any(|it| it.pod() == pod.pod);
            loaded.generation.pods.leave(&pod.pod, is_named);
        }
        record.current = Some(loaded.generation.clone());
        record.endpoints = staying.into();
        record.leaving = leaving;
        self.write_record(&record)?;
        self.remove_leaving(&mut record, Some(&loaded), &[])
    }
}
