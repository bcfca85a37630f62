//! New peer classes: for pods whose key no address had before, and for predicates of changed policies.
//!
//! A new class changes every row that has a rule for it, so all rows of the node are made again. That costs as much as
//! the node's policies and peer classes, and nothing for the other pods of the cluster.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{Maintained, NeedsWhole};
use crate::meter::{CLASS_BYTES, Meter, PAIR_BYTES};
use crate::peers::{PeerLookup, pod_key};
use crate::ports::{PortSpec, SpecUse};
use crate::{PeerClass, PeerId, Predicate, PredicateId};
use weir_model::labels::matches;
use weir_model::{Cluster, LabelSetId, NamedPort, NamespaceId};
use weir_objects::k8s::{Labels, PolicyPeer};

/// A pod whose addresses may get another class.
#[derive(Clone, Debug)]
pub(crate) struct PeerPod {
    pub(crate) namespace: String,
    pub(crate) labels: Arc<Labels>,
    pub(crate) ports: Vec<NamedPort>,
    /// The addresses that are this pod's alone.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Maintained {
    /// Whether a rule in force has this peer. Blocks are decided when the change is applied.
    pub(crate) fn knows(&self, namespace: &str, peer: &PolicyPeer) -> bool {
        let PolicyPeer::Pods { pods, namespaces } = peer else { return true };
        let labels = &self.cluster.labels;
        let pods = labels.find_selector(&pods.clone().unwrap_or_default());
        let known = match namespaces {
            None => super::policies::namespace_of(&self.cluster, namespace)
                .zip(pods)
                .map(|(own, pods)| (Some(own), None, pods)),
            Some(selector) => labels.find_selector(selector).zip(pods).map(|(of, pods)| (None, Some(of), pods)),
        };
        known.is_some_and(|(own, namespaces, pods)| self.ids.contains_key(&Predicate::Pods { own, namespaces, pods }))
    }

    /// The namespaces that a peer of a policy in `namespace` selects.
    pub(crate) fn namespaces_of<'s>(&'s self, namespace: &'s str, peer: &'s PolicyPeer) -> Vec<&'s str> {
        let PolicyPeer::Pods { namespaces, .. } = peer else { return Vec::new() };
        let Some(selector) = namespaces else { return vec![namespace] };
        let selected = self.cluster.namespaces.iter();
        let selected = selected.filter(|it| matches(selector, self.cluster.labels.labels(it.labels)));
        selected.map(|it| it.name.as_str()).collect()
    }

    /// Gives pods the classes that their labels and ports have now. Returns whether there is a new class.
    pub(super) fn rekey(&mut self, pods: &[PeerPod], new: &[PredicateId], meter: &Meter) -> Result<bool, NeedsWhole> {
        if pods.is_empty() && new.is_empty() {
            return Ok(false);
        }
        // Backends without an address are found by their labels. Their classes are made by a compile from scratch.
        if !self.peers.without_address.is_empty() {
            return Err(NeedsWhole::Peers);
        }
        let before = self.peers.list.len();
        let mut keyed = Keyed {
            lookup: PeerLookup::clone(&self.peers.lookup),
            list: Vec::clone(&self.peers.list),
            entries: BTreeMap::new(),
        };
        keyed.lookup.hold(&self.cluster, &self.classes.rules, new);
        for pod in pods {
            self.key_pod(pod, &mut keyed, meter)?;
        }
        self.add_named(&keyed.list[before..]);
        let Keyed { lookup, list, entries } = keyed;
        self.peers.addresses = self.peers.addresses.with_entries(&entries).into();
        (self.peers.lookup, self.peers.list) = (lookup.into(), list.into());
        let classes = &mut self.classes;
        classes.peers = Arc::clone(&self.peers.list);
        classes.addresses = Arc::clone(&self.peers.addresses);
        classes.lookup = Arc::clone(&self.peers.lookup);
        Ok(true)
    }

    fn key_pod(&mut self, pod: &PeerPod, keyed: &mut Keyed, meter: &Meter) -> Result<(), NeedsWhole> {
        let namespace = super::policies::namespace_of(&self.cluster, &pod.namespace).ok_or(NeedsWhole::Namespace)?;
        let cluster = Arc::make_mut(&mut self.cluster);
        let labels = cluster.labels.intern_labels(&pod.labels);
        let rules = &self.classes.rules;
        let held = keyed.lookup.held_by(cluster, rules, namespace, labels);
        for address in &pod.addresses {
            let old = self.peers.addresses.find(*address);
            let key = pod_key(cluster.assume, rules, held.clone(), keyed.lookup.predicates_at(*address), &pod.ports);
            // A service may claim the address of a pod.
            let key = PeerClass { vip: keyed.list[old.index()].vip, ..key };
            let length = key.predicates.len() as u64;
            if !meter.take(PAIR_BYTES * length + CLASS_BYTES, length) {
                meter.check()?;
            }
            let peer = keyed.lookup.intern(key, &mut keyed.list);
            if peer != old {
                let map = &self.peers.addresses;
                let is_said = map.find_range(*address) == peer && !map.is_listed(*address);
                keyed.entries.insert(*address, (!is_said).then_some(peer));
            }
        }
        Ok(())
    }

    /// Adds the ranges that the named ports of new classes need.
    fn add_named(&mut self, new: &[PeerClass]) {
        for (name, number) in new.iter().flat_map(|peer| &peer.named) {
            let (protocol, number) = (self.classes.rules.egress_names[*name as usize].0, *number);
            let spec = PortSpec { protocol, first: number, last: number };
            let origin = || self.origins.egress_names[*name as usize].clone();
            // Counted also if a policy has the range: the class needs it after the policy is gone.
            self.specs.entry(spec).or_insert_with(|| SpecUse { origin: origin(), count: 0 }).count += 1;
        }
    }
}

/// The classes while pods get theirs.
struct Keyed {
    lookup: PeerLookup,
    list: Vec<PeerClass>,
    entries: BTreeMap<IpAddr, Option<PeerId>>,
}

/// Whether a pod predicate holds for pods with these labels.
pub(crate) fn holds(cluster: &Cluster, predicate: &Predicate, namespace: NamespaceId, labels: LabelSetId) -> bool {
    let Predicate::Pods { own, namespaces, pods } = predicate else { return false };
    let of_namespace = cluster.namespaces[namespace.index()].labels;
    let it = &cluster.labels;
    own.is_none_or(|own| own == namespace)
        && namespaces.is_none_or(|selector| matches(it.selector(selector), it.labels(of_namespace)))
        && matches(it.selector(*pods), it.labels(labels))
}
