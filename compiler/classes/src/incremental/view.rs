//! The part of a cluster that the node's verdicts depend on once its peer classes are known.
//!
//! The agent keeps this from one generation to the next, so it must be small: pods of other nodes and policies that
//! select no local pod are most of a cluster, and they are left out. The rest gets new numbers.

use std::collections::HashMap;

use crate::peers::Peers;
use crate::rows::{LocalBackends, RowFacts};
use crate::subjects::{LocalEndpoint, SubjectDraft};
use crate::{Classes, Scope, StageParts, SubjectClass};
use weir_model::{Backend, Cluster, Endpoint, EndpointId, LeftOut, PolicyId};

/// A cluster without the objects of other nodes, and the new numbers.
pub(super) struct View {
    pub(super) cluster: Cluster,
    /// The old numbers of the endpoints that are kept, sorted.
    endpoints: Vec<EndpointId>,
    /// The old numbers of the policies that are kept, sorted.
    policies: Vec<PolicyId>,
}

impl View {
    pub(super) fn new(cluster: &Cluster, parts: &StageParts) -> Self {
        let endpoints = kept_endpoints(cluster, parts);
        let mut view = Self { cluster: Cluster::default(), endpoints, policies: parts.draft.policies.clone() };
        view.cluster = view.restricted(cluster);
        view
    }

    fn restricted(&self, cluster: &Cluster) -> Cluster {
        let endpoints: Vec<Endpoint> = self.endpoints.iter().map(|id| cluster.endpoints[id.index()].clone()).collect();
        let (mut policies, mut audit) = (Vec::new(), Vec::new());
        for id in &self.policies {
            let list = if cluster.is_audit(*id) { &mut audit } else { &mut policies };
            list.push(cluster.policy(*id).clone());
        }
        let mut services = cluster.services.clone();
        let ports = services.iter_mut().flat_map(|it| &mut it.ports);
        ports.flat_map(|it| &mut it.backends).for_each(|it| self.renumber(it));
        let mut host_ports = cluster.host_ports.clone();
        for port in &mut host_ports {
            port.pod = self.endpoint(port.pod);
            self.renumber(&mut port.backend);
        }
        let lost = cluster.lost_addresses.iter().map(|(id, addresses)| (self.endpoint(*id), addresses.clone()));
        // Rows need no entries of lists: they are in the peer classes. A list can have a million of them.
        let lists = cluster.lists.iter().map(|list| weir_model::CidrList {
            entries: Vec::new(),
            name: list.name.clone(),
            ..*list
        });
        Cluster {
            left_out: LeftOut {
                endpoints: cluster.endpoints.len() - endpoints.len(),
                policies: cluster.policies.len() - policies.len(),
                audit: cluster.audit.len() - audit.len(),
            },
            namespaces: cluster.namespaces.clone(),
            lost_addresses: lost.collect(),
            nodes: cluster.nodes.clone(),
            services,
            frontends: Vec::new(),
            lists: lists.collect(),
            tiers: cluster.tiers.clone(),
            labels: cluster.labels.clone(),
            assume: cluster.assume,
            endpoints,
            host_ports,
            policies,
            audit,
        }
    }

    fn renumber(&self, backend: &mut Backend) {
        // A backend that is not kept has an address, which is enough to find its class.
        backend.endpoint = backend.endpoint.and_then(|id| self.find(id));
    }

    fn find(&self, id: EndpointId) -> Option<EndpointId> {
        self.endpoints.binary_search(&id).ok().map(|index| EndpointId(index as u32))
    }

    fn endpoint(&self, id: EndpointId) -> EndpointId {
        EndpointId(self.endpoints.partition_point(|it| *it < id) as u32)
    }

    fn policy(&self, id: PolicyId) -> PolicyId {
        PolicyId(self.policies.partition_point(|it| *it < id) as u32)
    }

    pub(super) fn scope(&self, scope: &Scope) -> Scope {
        let local = scope.local.iter().map(|id| self.endpoint(*id)).collect();
        Scope { local, stand_ins: scope.stand_ins.clone() }
    }

    pub(super) fn draft(&self, mut draft: SubjectDraft) -> SubjectDraft {
        for LocalEndpoint { endpoint, policies, audit, .. } in &mut draft.local {
            *endpoint = self.endpoint(*endpoint);
            policies.iter_mut().chain(audit).for_each(|id| *id = self.policy(*id));
        }
        draft.policies.iter_mut().for_each(|id| *id = self.policy(*id));
        draft
    }

    pub(super) fn facts(&self, mut facts: RowFacts, draft: &SubjectDraft) -> RowFacts {
        facts.renew_local(&self.cluster, draft);
        facts
    }

    pub(super) fn peers(&self, peers: Peers) -> Peers {
        let without_address = peers.without_address.into_iter().map(|(id, peer)| (self.endpoint(id), peer));
        Peers { without_address: without_address.collect::<HashMap<_, _>>(), ..peers }
    }

    pub(super) fn classes(&self, mut classes: Classes) -> Classes {
        classes.subject_of.iter_mut().for_each(|(id, _)| *id = self.endpoint(*id));
        for SubjectClass { policies, audit, .. } in &mut classes.subjects {
            let audit = audit.iter_mut().flat_map(|audit| &mut audit.policies);
            policies.iter_mut().chain(audit).for_each(|id| *id = self.policy(*id));
        }
        classes.rules = classes.rules.renumbered(|id| Some(self.policy(id))).into();
        classes
    }
}

/// The endpoints that rows and reports ask for.
fn kept_endpoints(cluster: &Cluster, parts: &StageParts) -> Vec<EndpointId> {
    let local = parts.draft.local.iter().map(|local| local.endpoint);
    let lost = cluster.lost_addresses.iter().map(|(id, _)| *id);
    let host_ports = cluster.host_ports.iter().flat_map(|it| [Some(it.pod), it.backend.endpoint]).flatten();
    let beside_local = parts.facts.to_local().iter().flat_map(|LocalBackends { service, port, .. }| {
        let backends = &cluster.services[*service as usize].ports[*port as usize].backends;
        backends.iter().filter_map(|it| it.endpoint)
    });
    let without_address = parts.peers.without_address.keys().copied();
    let mut kept: Vec<_> = local.chain(lost).chain(host_ports).chain(beside_local).chain(without_address).collect();
    kept.sort_unstable();
    kept.dedup();
    kept
}
