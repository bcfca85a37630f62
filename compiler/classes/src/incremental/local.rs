//! Local pods that come, change and go.
//!
//! A local pod is a subject: it gets the policies, cluster-wide policies and lists that select it. Its addresses as a peer
//! are a change of their own ([`super::PeerPod`]). The caller adds the policies that begin to select a local pod with
//! it. Policies that select no local pod any more are found here.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::terms::NewTerms;
use super::{Effect, Maintained, NeedsWhole, PolicyChange};
use crate::ports::{self, PortSpec};
use crate::subjects::LocalEndpoint;
use crate::{Scope, SubjectId};
use weir_model::labels::matches;
use weir_model::resolve::{endpoint_of_pod, named_ports};
use weir_model::{Cluster, Direction, Endpoint, EndpointId, ListId, NamespaceId, NodeId, PolicyId, TierPolicyId};
use weir_objects::k8s::{Body, Object};

/// A pod that is local, or was.
#[derive(Clone, Debug)]
pub(crate) struct LocalChange {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `None` if it is not local any more.
    pub(crate) now: Option<Object>,
}

/// An endpoint, with its number before the changes.
struct Slot {
    endpoint: Endpoint,
    before: Option<EndpointId>,
    /// Whether it is a local pod that has come or changed.
    is_new: bool,
}

impl Maintained {
    /// Replaces local pods, and adds policies that select none any more to `policies`. Returns the pods that have come or
    /// changed.
    pub(super) fn replace_local(
        &mut self,
        changes: Vec<LocalChange>,
        policies: &mut Vec<PolicyChange>,
        effect: &mut Effect,
    ) -> Result<Vec<EndpointId>, NeedsWhole> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        if !self.peers.without_address.is_empty() {
            // They are numbered like endpoints.
            return Err(NeedsWhole::Backends);
        }
        let endpoints = std::mem::take(&mut Arc::make_mut(&mut self.cluster).endpoints);
        let numbered = (0..).map(EndpointId).zip(endpoints);
        let mut slots: Vec<Slot> =
            numbered.map(|(id, endpoint)| Slot { endpoint, before: Some(id), is_new: false }).collect();
        for change in changes {
            self.replace_endpoint(&change, &mut slots, effect)?;
        }
        let arrived = self.renumber_endpoints(slots)?;
        let unused = self.unused_policies(policies);
        policies.extend(unused);
        // Backends may be local now, or cease to be.
        effect.changes_local_backends = true;
        Ok(arrived)
    }

    fn replace_endpoint(
        &mut self,
        change: &LocalChange,
        slots: &mut Vec<Slot>,
        effect: &mut Effect,
    ) -> Result<(), NeedsWhole> {
        let Some(namespace) = self.names.find(&change.namespace) else {
            // Only pods that are gone can be in a namespace that is not known.
            return if change.now.is_some() { Err(NeedsWhole::Objects) } else { Ok(()) };
        };
        let is_it = |slot: &Slot| {
            let it = &slot.endpoint;
            (it.namespace, it.name.as_str(), &*it.kind) == (namespace, change.name.as_str(), "Pod")
        };
        let old = slots.iter().position(is_it).map(|index| slots.remove(index));
        let is_local = |id: EndpointId| self.draft.local.iter().any(|local| local.endpoint == id);
        if let Some(old) = old.as_ref().filter(|it| it.before.is_some_and(is_local)) {
            self.ingress_names(&old.endpoint).into_iter().for_each(|(spec, _)| self.drop_spec(spec, effect));
        }
        let Some(object) = &change.now else { return Ok(()) };
        let endpoint = self.endpoint(namespace, object).ok_or(NeedsWhole::Objects)?;
        for (spec, name) in self.ingress_names(&endpoint) {
            let origin = self.origins.ingress_names[name].clone();
            self.add_spec(spec, origin, effect);
        }
        let namespaces = &self.cluster.namespaces;
        let key = |it: &Endpoint| (namespaces[it.namespace.index()].name.as_str(), it.name.clone());
        let at = slots.partition_point(|slot| key(&slot.endpoint) < key(&endpoint));
        slots.insert(at, Slot { endpoint, before: old.and_then(|it| it.before), is_new: true });
        Ok(())
    }

    fn endpoint(&mut self, namespace: NamespaceId, object: &Object) -> Option<Endpoint> {
        let Body::Pod(pod) = &object.body else { return None };
        let cluster = Arc::make_mut(&mut self.cluster);
        let labels = cluster.labels.intern_labels(&object.meta.labels);
        let name = pod.node.as_deref()?;
        let node = cluster.nodes.binary_search_by(|it| it.name.as_str().cmp(name)).ok().map(|at| NodeId(at as u32));
        let ports = named_ports(&pod.ports, cluster.assume).into();
        node.map(|node| endpoint_of_pod((object, pod), namespace, labels, Some(node), ports))
    }

    /// The ranges that the named ports of a local endpoint need, with the indices of their names.
    fn ingress_names(&self, endpoint: &Endpoint) -> Vec<(PortSpec, usize)> {
        let rules = &self.classes.rules;
        let named = ports::named(&endpoint.named_ports, &rules.ids[Direction::Ingress as usize]);
        let spec = |(name, number): (u32, u16)| {
            let protocol = rules.ingress_names[name as usize].0;
            (PortSpec { protocol, first: number, last: number }, name as usize)
        };
        named.into_iter().map(spec).collect()
    }

    /// Adds the ranges that local endpoints need for new names of ingress rules.
    pub(super) fn add_specs_of_names(&mut self, new: &NewTerms, effect: &mut Effect) {
        // The atoms have a list of all names, whether or not a pod has them.
        effect.changes_specs |= new.names.iter().any(|names| !names.is_empty());
        let new = &new.names[Direction::Ingress as usize];
        if new.is_empty() {
            return;
        }
        let local = self.draft.local.iter().map(|local| &self.cluster.endpoints[local.endpoint.index()]);
        let named = local.flat_map(|endpoint| self.ingress_names(endpoint));
        let named: Vec<_> = named.filter(|(_, name)| new.contains(&(*name as u32))).collect();
        for (spec, name) in named {
            let origin = self.origins.ingress_names[name].clone();
            self.add_spec(spec, origin, effect);
        }
    }

    /// Gives endpoints their new numbers, and the new ones what applies to them. Returns the new ones.
    fn renumber_endpoints(&mut self, slots: Vec<Slot>) -> Result<Vec<EndpointId>, NeedsWhole> {
        let mut numbers: Vec<Option<EndpointId>> = Vec::new();
        let mut arrived = Vec::new();
        for (id, slot) in (0..).map(EndpointId).zip(&slots) {
            if let Some(before) = slot.before {
                numbers.resize(numbers.len().max(before.index() + 1), None);
                numbers[before.index()] = Some(id);
            }
            arrived.extend(slot.is_new.then_some(id));
        }
        let number = |id: EndpointId| numbers.get(id.index()).copied().flatten();
        let cluster = Arc::make_mut(&mut self.cluster);
        cluster.endpoints = slots.into_iter().map(|slot| slot.endpoint).collect();
        renumber_references(cluster, &arrived, number)?;
        // All local pods are on one node.
        let node = self.draft.local.first().map(|local| local.node);
        let before =
            std::mem::take(&mut self.draft.local).into_iter().zip(std::mem::take(&mut self.classes.subject_of));
        let kept = before.filter_map(|(local, (_, subject))| Some((number(local.endpoint)?, local, subject)));
        let kept = kept.filter(|(id, ..)| !arrived.contains(id));
        let mut all: Vec<_> =
            kept.map(|(endpoint, local, subject)| (LocalEndpoint { endpoint, ..local }, subject)).collect();
        let node = node.ok_or(NeedsWhole::LocalPods)?;
        all.extend(arrived.iter().map(|id| (self.local_endpoint(*id, node), SubjectId(0))));
        if all.is_empty() {
            return Err(NeedsWhole::LocalPods);
        }
        all.sort_by_key(|(local, _)| local.endpoint);
        self.classes.subject_of = all.iter().map(|(local, subject)| (local.endpoint, *subject)).collect();
        self.draft.local = all.into_iter().map(|(local, _)| local).collect();
        let local = self.draft.local.iter().map(|local| local.endpoint).collect();
        self.scope = Scope { local, stand_ins: self.scope.stand_ins.clone() };
        Ok(arrived)
    }

    /// The policies and lists that apply to a local endpoint.
    fn local_endpoint(&self, endpoint: EndpointId, node: Option<NodeId>) -> LocalEndpoint {
        let cluster = &*self.cluster;
        let it = &cluster.endpoints[endpoint.index()];
        let (own, namespace) = (cluster.labels.labels(it.labels), &cluster.namespaces[it.namespace.index()]);
        let of_namespace = cluster.labels.labels(namespace.labels);
        let selects = |id: &PolicyId| {
            let policy = cluster.policy(*id);
            policy.namespace == it.namespace && matches(cluster.labels.selector(policy.subjects), own)
        };
        let selected = self.draft.policies.iter().copied().filter(selects);
        let (audit, policies) = selected.partition(|id| cluster.is_audit(*id));
        let both = |namespaces, pods| {
            matches(cluster.labels.selector(namespaces), of_namespace) && matches(cluster.labels.selector(pods), own)
        };
        let tiers = (0..).map(TierPolicyId).zip(&cluster.tiers);
        let tiers = tiers.filter(|(_, policy)| both(policy.namespaces, policy.pods));
        let (audit_tiers, tiers): (Vec<_>, Vec<_>) = tiers.partition(|(_, policy)| policy.is_audit);
        let [audit_tiers, tiers] = [audit_tiers, tiers].map(|of| of.into_iter().map(|(id, _)| id).collect());
        let lists = (0..).map(ListId).zip(&cluster.lists);
        let lists = lists.filter(|(_, list)| both(list.namespaces, list.pods)).map(|(id, _)| id).collect();
        LocalEndpoint { endpoint, policies, audit, tiers, audit_tiers, lists, node }
    }

    /// The policies that select no local pod any more, without those that have changed themselves.
    fn unused_policies(&self, changed: &[PolicyChange]) -> Vec<PolicyChange> {
        let used: BTreeSet<_> = self.draft.local.iter().flat_map(|it| it.policies.iter().chain(&it.audit)).collect();
        let unused = self.draft.policies.iter().filter(|id| !used.contains(id)).map(|id| {
            let policy = self.cluster.policy(*id);
            let namespace = self.cluster.namespaces[policy.namespace.index()].name.clone();
            PolicyChange { namespace, name: policy.name.clone(), now: None }
        });
        let is_new =
            |it: &PolicyChange| !changed.iter().any(|of| (&of.namespace, &of.name) == (&it.namespace, &it.name));
        unused.filter(is_new).collect()
    }

    /// The names of the local endpoints in a namespace.
    pub(crate) fn local_in(&self, namespace: &str) -> impl Iterator<Item = &str> {
        let id = self.names.find(namespace);
        let endpoints = self.draft.local.iter().map(|local| &self.cluster.endpoints[local.endpoint.index()]);
        endpoints.filter(move |it| Some(it.namespace) == id).map(|it| it.name.as_str())
    }

    /// The indices of local endpoints in the draft.
    pub(super) fn local_indices(&self, endpoints: &[EndpointId]) -> Vec<usize> {
        let find = |id: &EndpointId| self.draft.local.binary_search_by_key(id, |local| local.endpoint).ok();
        endpoints.iter().filter_map(find).collect()
    }
}

/// Gives services, hostPorts and lost addresses the new numbers of endpoints. A backend belongs to the local pod that has
/// its address.
fn renumber_references(
    cluster: &mut Cluster,
    arrived: &[EndpointId],
    number: impl Fn(EndpointId) -> Option<EndpointId>,
) -> Result<(), NeedsWhole> {
    let Cluster { endpoints, services, host_ports, lost_addresses, .. } = cluster;
    let new = arrived.iter().flat_map(|id| endpoints[id.index()].addresses.iter().map(|address| (*address, *id)));
    let new: HashMap<_, _> = new.collect();
    let backends = services.iter_mut().flat_map(|it| &mut it.ports).flat_map(|port| &mut port.backends);
    for backend in backends.chain(host_ports.iter_mut().map(|it| &mut it.backend)) {
        let at = backend.address.and_then(|address| new.get(&address).copied());
        let before = backend.endpoint.and_then(&number);
        // A pod that is still there may have lost the address.
        let keeps = |id: &EndpointId| match backend.address {
            Some(address) => endpoints[id.index()].addresses.contains(&address),
            None => true,
        };
        backend.endpoint = at.or(before.filter(keeps));
    }
    for port in host_ports {
        port.pod = number(port.pod).ok_or(NeedsWhole::Objects)?;
    }
    lost_addresses.retain_mut(|(id, _)| number(*id).map(|new| *id = new).is_some());
    Ok(())
}
