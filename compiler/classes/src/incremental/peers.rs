//! New peer classes: for pods whose key no address had before, and for predicates of changed policies.
//!
//! A new class adds an entry to each row that has a rule for it, and all other entries stay. This costs as much as the
//! node's rules, and a copy of the keys of all classes.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::terms::NewTerms;
use super::{Effect, Maintained, NamespaceChange, NeedsWhole};
use crate::addresses::RangeMoves;
use crate::meter::{CLASS_BYTES, Meter, PAIR_BYTES};
use crate::peers::{Peers, pod_key};
use crate::ports::PortSpec;
use crate::{PeerClass, PeerId, Predicate, PredicateId};
use weir_model::labels::matches;
use weir_model::{Direction, LabelSetId, NamedPort, NamespaceId};
use weir_objects::k8s::{Labels, PolicyPeer};

/// A pod whose addresses may get another class.
#[derive(Clone, Debug)]
pub(crate) struct PeerPod {
    pub(crate) namespace: String,
    pub(crate) labels: Arc<Labels>,
    pub(crate) ports: Vec<NamedPort>,
    /// The addresses that are this pod's alone, with the blocks and lists that contained them before the change.
    pub(crate) addresses: Vec<(IpAddr, Vec<PredicateId>)>,
}

impl Maintained {
    /// Whether a rule in force has this peer. Blocks do not select pods.
    pub(crate) fn knows(&self, namespace: &str, peer: &PolicyPeer) -> bool {
        let PolicyPeer::Pods { pods, namespaces } = peer else { return true };
        let labels = &self.cluster.labels;
        let pods = labels.find_selector(&pods.clone().unwrap_or_default());
        let known = match namespaces {
            None => self.names.find(namespace).zip(pods).map(|(own, pods)| (Some(own), None, pods)),
            Some(selector) => labels.find_selector(selector).zip(pods).map(|(of, pods)| (None, Some(of), pods)),
        };
        known.is_some_and(|(own, namespaces, pods)| self.ids.contains_key(&Predicate::Pods { own, namespaces, pods }))
    }

    /// The namespaces that a peer of a policy in `namespace` selects, after changes of namespaces.
    pub(crate) fn namespaces_of<'s>(
        &'s self,
        namespace: &'s str,
        peer: &'s PolicyPeer,
        changes: &'s [NamespaceChange],
    ) -> Vec<&'s str> {
        let PolicyPeer::Pods { namespaces, .. } = peer else { return Vec::new() };
        let Some(selector) = namespaces else { return vec![namespace] };
        let unchanged = self.cluster.namespaces.iter().filter(|it| changes.iter().all(|change| change.name != it.name));
        let selected = unchanged.filter(|it| matches(selector, self.cluster.labels.labels(it.labels)));
        let changed = changes.iter().filter(|it| matches(selector, &it.labels));
        selected.map(|it| it.name.as_str()).chain(changed.map(|it| it.name.as_str())).collect()
    }

    /// Gives pods the classes that their labels and ports have now, and new predicates the classes for which they hold.
    pub(super) fn rekey(
        &mut self,
        pods: &[PeerPod],
        new: &NewTerms,
        moves: Option<&RangeMoves>,
        effect: &mut Effect,
        meter: &Meter,
    ) -> Result<(), NeedsWhole> {
        let has_new_names = !new.names[Direction::Egress as usize].is_empty();
        if pods.is_empty() && new.predicates.is_empty() && !has_new_names {
            return Ok(());
        }
        // Backends without an address are found by their labels. Their classes are made by a compile from scratch.
        if !self.peers.without_address.is_empty() {
            return Err(NeedsWhole::Backends);
        }
        if !new.predicates.is_empty() {
            let (cluster, rules) = (Arc::clone(&self.cluster), Arc::clone(&self.classes.rules));
            Arc::make_mut(&mut self.peers.lookup).hold(&cluster, &rules, &new.predicates);
        }
        let mut keyed = Keyed::default();
        for pod in pods {
            self.key_pod(pod, moves, &mut keyed, meter)?;
        }
        let entries = self.number_keys(keyed, effect);
        self.take_entries(&entries, effect);
        Ok(())
    }

    fn key_pod(
        &mut self,
        pod: &PeerPod,
        moves: Option<&RangeMoves>,
        keyed: &mut Keyed,
        meter: &Meter,
    ) -> Result<(), NeedsWhole> {
        let namespace = self.names.find(&pod.namespace).ok_or(NeedsWhole::Objects)?;
        // Most pods have labels that the cluster has already. Then it is not copied.
        let known = self.cluster.labels.find_labels(&pod.labels);
        let labels = known.unwrap_or_else(|| Arc::make_mut(&mut self.cluster).labels.intern_labels(&pod.labels));
        let (rules, kind) = (&self.classes.rules, (namespace, labels));
        // Once for all pods with these labels: otherwise thousands of pods would ask each predicate.
        let ask = || self.peers.lookup.held_by(&self.cluster, rules, kind, meter);
        let held = keyed.held.entry(kind).or_insert_with(ask);
        meter.check()?;
        for (address, of_address) in &pod.addresses {
            let moved = moves.map(|moves| moves.apply(moves.at(*address), of_address));
            let of_address = moved.as_deref().unwrap_or(of_address);
            let key = pod_key(self.cluster.assume, rules, held.clone(), of_address, &pod.ports);
            // A service may claim the address of a pod.
            let old = self.peers.addresses.find(*address);
            let key = PeerClass { vip: self.peers.list[old.index()].vip, ..key };
            let length = key.predicates.len() as u64;
            if !meter.take(PAIR_BYTES * length + CLASS_BYTES, length) {
                meter.check()?;
            }
            keyed.keys.push((*address, key));
        }
        Ok(())
    }

    /// The entries that give addresses the classes of their keys. Keys that no address had before become classes.
    pub(super) fn number_keys(
        &mut self,
        Keyed { keys, held }: Keyed,
        effect: &mut Effect,
    ) -> BTreeMap<IpAddr, Option<PeerId>> {
        // The generation before shares it, unless it was copied for this one.
        if let Some(lookup) = Arc::get_mut(&mut self.peers.lookup) {
            held.iter().for_each(|(kind, held)| lookup.keep_held(*kind, held.clone()));
        }
        if keys.iter().any(|(_, key)| self.peers.lookup.find(key).is_none()) {
            let before = self.peers.list.len();
            let Peers { lookup, list, .. } = &mut self.peers;
            let (lookup, list) = (Arc::make_mut(lookup), Arc::make_mut(list));
            held.into_iter().for_each(|(kind, held)| lookup.keep_held(kind, held));
            keys.iter().for_each(|(_, key)| _ = lookup.intern(key.clone(), list));
            let new: Vec<PeerClass> = list[before..].to_vec();
            self.add_named(&new, effect);
            self.classes.peers = Arc::clone(&self.peers.list);
        }
        let map = &self.peers.addresses;
        let numbered = keys.iter().filter_map(|(address, key)| Some((*address, self.peers.lookup.find(key)?)));
        let changed = numbered.filter(|(address, peer)| map.find(*address) != *peer);
        changed.map(|(address, peer)| (address, map.entry_for(address, peer))).collect()
    }

    /// Adds the ranges that the named ports of new classes need.
    fn add_named(&mut self, new: &[PeerClass], effect: &mut Effect) {
        for (name, number) in new.iter().flat_map(|peer| &peer.named) {
            let (protocol, number) = (self.classes.rules.egress_names[*name as usize].0, *number);
            let spec = PortSpec { protocol, first: number, last: number };
            let origin = self.origins.egress_names[*name as usize].clone();
            // Counted also if a policy has the range: the class needs it after the policy is gone.
            self.add_spec(spec, origin, effect);
        }
    }
}

/// The keys that addresses have now.
#[derive(Default)]
pub(super) struct Keyed {
    pub(super) keys: Vec<(IpAddr, PeerClass)>,
    /// The predicates that hold for the labels of pods.
    held: BTreeMap<(NamespaceId, LabelSetId), Vec<PredicateId>>,
}
