//! The cluster as packets can see it: every endpoint has an address, and every address has the owner that the flow
//! names.
//!
//! Problem: a workload, or a pod that is only a manifest, has no address, and programs see only addresses.
//! Strategy: such endpoints get addresses from ranges that no host uses ([`weir_classes::stand_ins`]).
//! Invariants: a cluster without such endpoints is compiled unchanged; no artifact contains these addresses.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use super::{Decide, EngineError, Make, Owners, QuestionPorts};
use crate::compile::{self, CompileOptions, Compiled};
use weir_classes::{Scope, SubjectId, stand_ins};
use weir_model::eval::{FlowEnd, FlowProtocol};
use weir_model::{Cluster, Endpoint, EndpointId, ServiceId, Standing};
use weir_objects::address::Family;

/// A compiled cluster, and the engine that decides in it.
pub(super) struct CompiledWorld<'c> {
    pub(super) cluster: Cow<'c, Cluster>,
    pub(super) compiled: Compiled,
    pub(super) decide: Box<dyn Decide>,
    places: HashMap<EndpointId, (usize, SubjectId)>,
    stand_ins: HashMap<(EndpointId, Family), IpAddr>,
    /// For a workload, an endpoint that is another pod of it.
    siblings: HashMap<EndpointId, EndpointId>,
}

impl<'c> CompiledWorld<'c> {
    /// `asked` lists the enforced endpoints; `None` means all of them.
    pub(super) fn new(
        cluster: &'c Cluster,
        owners: &Owners,
        asked: Option<&BTreeSet<EndpointId>>,
        make: &Make,
    ) -> Result<Self, EngineError> {
        // Borrowed as long as nothing changes: nearly every world is the cluster itself, and a copy of a large one is
        // expensive.
        let mut cluster = Cow::Borrowed(cluster);
        for (address, owner) in owners {
            own(cluster.to_mut(), *address, *owner);
        }
        let siblings = siblings(&mut cluster);
        let stand_ins = stand_ins(&mut cluster);
        let by_address: BTreeMap<IpAddr, EndpointId> = stand_ins.iter().map(|(id, address)| (*address, *id)).collect();
        // The compiler must know which addresses are stand-ins: it classifies them by labels alone. Otherwise an
        // `ipBlock` of everything would contain them.
        let scope = Scope::everything(&cluster).with_stand_ins(by_address);
        let scope = match asked {
            Some(asked) => scope.among(asked),
            // Without a restriction every endpoint is enforced, so both ends of each flow can be asked.
            None => scope,
        };
        let compiled = compile::compile(&cluster, &scope, &CompileOptions::default())?;
        let decide = make(&compiled)?;
        let places = compiled.classes.subject_of.iter().enumerate();
        let places = places.map(|(place, (endpoint, subject))| (*endpoint, (place, *subject))).collect();
        let stand_ins = stand_ins.into_iter().map(|(id, address)| ((id, Family::of(address)), address)).collect();
        Ok(Self { cluster, compiled, decide, places, stand_ins, siblings })
    }

    /// The index of a local endpoint, and its subject class.
    pub(super) fn place(&self, endpoint: EndpointId) -> Option<(usize, SubjectId)> {
        self.places.get(&endpoint).copied()
    }

    /// The endpoint with an index.
    pub(super) fn endpoint(&self, place: usize) -> Option<EndpointId> {
        self.compiled.classes.subject_of.get(place).map(|(endpoint, _)| *endpoint)
    }

    pub(super) fn stand_in(&self, endpoint: EndpointId, family: Family) -> Option<IpAddr> {
        self.stand_ins.get(&(endpoint, family)).copied()
    }

    /// The stand-in address of another pod of a workload.
    pub(super) fn sibling(&self, endpoint: EndpointId, family: Family) -> Option<IpAddr> {
        self.stand_in(*self.siblings.get(&endpoint)?, family)
    }

    pub(super) fn is_own_node(&self, place: usize, address: IpAddr) -> bool {
        let endpoint = self.endpoint(place).and_then(|id| self.cluster.endpoints.get(id.index()));
        let node = endpoint.and_then(|it| it.node).and_then(|node| self.cluster.nodes.get(node.index()));
        node.is_some_and(|node| node.addresses.contains(&address))
    }

    /// The pods behind hostPorts, and their ports.
    pub(super) fn claims(&self, claims: &[usize]) -> Vec<(usize, FlowEnd, u16)> {
        let found = claims.iter().filter_map(|index| Some((*index, &self.cluster.host_ports.get(*index)?.backend)));
        found.map(|(index, it)| (index, FlowEnd { endpoint: it.endpoint, address: it.address }, it.port)).collect()
    }

    /// The ready backends of a service port, with their ports.
    pub(super) fn backends(
        &self,
        service: ServiceId,
        port: Option<u32>,
        family: Option<Family>,
        target: QuestionPorts,
    ) -> Vec<(FlowEnd, QuestionPorts)> {
        let service = self.cluster.services.get(service.index());
        let port = service.zip(port).and_then(|(service, port)| service.ports.get(port as usize));
        let backends = port.map_or(&[][..], |port| &port.backends);
        let of_family = |address: &IpAddr| family.is_none_or(|family| Family::of(*address) == family);
        let serving = backends.iter().filter(|it| it.address.as_ref().is_none_or(of_family));
        serving
            .map(|it| {
                (FlowEnd { endpoint: it.endpoint, address: it.address }, QuestionPorts { port: it.port, ..target })
            })
            .collect()
    }
}

/// Adds another pod to every workload without an address, so that a packet can go from the one to the other.
fn siblings(cluster: &mut Cow<'_, Cluster>) -> HashMap<EndpointId, EndpointId> {
    let is_asked = |it: &Endpoint| it.is_several && it.addresses.is_empty() && it.standing == Standing::Member;
    let workloads = cluster.endpoints.iter().enumerate().filter(|(_, it)| is_asked(it));
    let workloads: Vec<EndpointId> = workloads.map(|(index, _)| EndpointId(index as u32)).collect();
    let mut added = HashMap::new();
    for id in workloads {
        let endpoints = &mut cluster.to_mut().endpoints;
        // Behind all others, whose numbers stay.
        added.insert(id, EndpointId(endpoints.len() as u32));
        let sibling = endpoints[id.index()].clone();
        endpoints.push(sibling);
    }
    added
}

/// Gives an address to `owner` and takes it from every other endpoint.
fn own(cluster: &mut Cluster, address: IpAddr, owner: Option<EndpointId>) {
    for endpoint in &mut cluster.endpoints {
        // Taken from all others first: two owners of one address would make the result depend on the order of the
        // endpoints.
        endpoint.addresses.retain(|it| *it != address);
    }
    if let Some(endpoint) = owner.and_then(|id| cluster.endpoints.get_mut(id.index())) {
        endpoint.addresses.push(address);
    }
}

/// The transport protocol, if it is one that policies can name.
pub(super) fn transport(protocol: FlowProtocol) -> Option<weir_model::Protocol> {
    match protocol {
        FlowProtocol::Transport(protocol) => Some(protocol),
        FlowProtocol::Icmp => None,
    }
}
