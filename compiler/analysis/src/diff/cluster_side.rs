//! One of the two clusters, classified so that every endpoint has a peer class.
//!
//! Endpoints without addresses get placeholder addresses. The nodes of pods are left out: a pod and its own node always reach each
//! other, so the comparison does not include such pairs, and endpoints that differ only in their node stay in one
//! class.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use weir_classes::{Classes, ClassifyError, PeerId, Scope, SubjectId, classify, stand_ins};
use weir_model::directory::Directory;
use weir_model::{Cluster, Endpoint, EndpointId, FrontendPorts, ServiceAddress, ServiceId, Standing};
use weir_objects::address::Family;

/// A cluster and its classes.
pub(super) struct ClusterSide<'c> {
    pub(super) cluster: &'c Cluster,
    pub(super) classes: Classes,
    pub(super) directory: Directory<'c>,
    subjects: HashMap<EndpointId, SubjectId>,
    stand_ins: HashMap<(EndpointId, Family), PeerId>,
    given: HashSet<IpAddr>,
}

/// An endpoint as a peer of others, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerView {
    /// It has no address of this family, or only addresses that belong to others.
    Gone,
    /// It has no address at all: the class applies in both families.
    Any(PeerId),
    /// It has this address.
    At(IpAddr, PeerId),
}

impl PeerView {
    pub(super) fn peer(self) -> Option<PeerId> {
        match self {
            Self::Gone => None,
            Self::Any(peer) | Self::At(_, peer) => Some(peer),
        }
    }

    pub(super) fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address, _) => Some(address),
            Self::Gone | Self::Any(_) => None,
        }
    }
}

impl<'c> ClusterSide<'c> {
    pub(super) fn new(cluster: &'c Cluster) -> Result<Self, ClassifyError> {
        let mut seen = Cow::Borrowed(cluster);
        // Nodes out of the copy, for pods that differ only in their node would be classes of their own, and a large
        // cluster has thousands of nodes. `cluster` keeps them, for `is_own_node`. A pod on the host's network is its
        // node, and the peers `nodes` of cluster-wide policies ask about it.
        let is_left_out = |it: &Endpoint| it.node.is_some() && it.standing != Standing::HostNetwork;
        if cluster.endpoints.iter().any(is_left_out) {
            seen.to_mut().endpoints.iter_mut().filter(|it| is_left_out(it)).for_each(|it| it.node = None);
        }
        let given = stand_ins(&mut seen);
        let by_address: BTreeMap<IpAddr, EndpointId> = given.iter().map(|(id, address)| (*address, *id)).collect();
        // After the placeholders, because a scope contains only endpoints that have addresses.
        let scope = Scope::everything(&seen).with_stand_ins(by_address);
        let classes = classify(&seen, &scope)?;
        let stand_ins =
            given.iter().map(|(id, address)| ((*id, Family::of(*address)), classes.peer_at(*address))).collect();
        let subjects = classes.subject_of.iter().copied().collect();
        let given = given.into_iter().map(|(_, address)| address).collect();
        // The original cluster, without placeholders: in the copy no endpoint would be without an address.
        Ok(Self { cluster, directory: Directory::new(cluster), classes, subjects, stand_ins, given })
    }

    /// Its class as a subject; `None` if no policy applies to it.
    pub(super) fn subject(&self, id: EndpointId) -> Option<SubjectId> {
        self.subjects.get(&id).copied()
    }

    /// Its class as a peer.
    pub(super) fn view(&self, id: EndpointId, family: Family) -> PeerView {
        let endpoint = &self.cluster.endpoints[id.index()];
        // Also if the status lists an address: another pod may have it already, and then the flow is that pod's.
        if matches!(endpoint.standing, Standing::Finished | Standing::Pending) {
            return PeerView::Gone;
        }
        // One class in both families: it is known by its labels alone, and no block contains the placeholder.
        if endpoint.addresses.is_empty() {
            return self.stand_ins.get(&(id, family)).map_or(PeerView::Gone, |peer| PeerView::Any(*peer));
        }
        // The first own address represents all addresses of the family, because a program, too, enforces only one address
        // of each family.
        let is_own = |at: &&IpAddr| Family::of(**at) == family && self.has(id, **at);
        let own = endpoint.addresses.iter().find(is_own);
        own.map_or(PeerView::Gone, |at| PeerView::At(*at, self.classes.peer_at(*at)))
    }

    /// Whether an address counts as the endpoint's: not if it belongs to another pod now, and not if a service has the
    /// address of the endpoint's node.
    fn has(&self, id: EndpointId, address: IpAddr) -> bool {
        match self.cluster.endpoints[id.index()].standing {
            Standing::Member => self.directory.endpoint_at(address) == Some(id),
            _ => self.directory.endpoint_at(address).is_none() && self.services_at(address).is_empty(),
        }
    }

    /// The services on an address; empty if the assumptions treat service addresses as ordinary ones.
    pub(super) fn services_at(&self, address: IpAddr) -> &[ServiceId] {
        match self.cluster.assume.service_address {
            ServiceAddress::Backends => self.directory.services_at(address),
            ServiceAddress::Address => &[],
        }
    }

    /// The services at an address; `None` if the assumptions treat service addresses as ordinary ones.
    pub(super) fn frontend(&self, address: IpAddr) -> Option<&'c FrontendPorts> {
        let makes_a_difference = self.cluster.assume.service_address == ServiceAddress::Backends;
        self.cluster.frontend(address).filter(|_| makes_a_difference)
    }

    /// The class of an address that does not belong to an endpoint. Placeholder addresses of endpoints are skipped.
    pub(super) fn peer_outside(&self, address: IpAddr) -> PeerId {
        match self.given.contains(&address) {
            // The exact table has the endpoint's class for the placeholder. As an outside address it is like its
            // neighbours.
            true => self.classes.addresses.find_range(address),
            false => self.classes.peer_at(address),
        }
    }

    /// Whether an address is one of the node that the endpoint runs on.
    pub(super) fn is_own_node(&self, id: EndpointId, address: IpAddr) -> bool {
        let node = self.cluster.endpoints[id.index()].node;
        node.is_some_and(|node| self.cluster.is_of_node(node, address))
    }
}
