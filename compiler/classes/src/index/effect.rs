//! Whether a change may wait: whether it can deny anything that the generation in force allows.
//!
//! Problem: under a storm of changes an agent cannot compile for each of them. A change that only allows more can wait.
//! A change that denies more must not, because packets pass until it is in force.
//! Strategy: a change counts as [`ChangeEffect::Isolating`] unless it belongs to a short list of cases that are proved
//! to allow only. The proofs compare the two states of one object and never rely on other objects' rules: another
//! policy on the same pods can turn a removed rule into a denial.
//! Invariant: no answer here changes the content of a generation, only the time at which it begins.

use super::pods::addresses;
use super::store::KeyRef;
use super::{Index, Key};
use weir_model::IpBlockPods;
use weir_model::resolve::is_audit;
use weir_objects::k8s::{Body, EndpointSlice, NetworkPolicy, Object, Pod, PolicyRule};

/// The kinds of cluster-wide policies.
pub(super) const CLUSTER_POLICY_KINDS: [&str; 3] =
    ["ClusterNetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy"];

/// The direction in which a change can move the verdicts of the generation in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeEffect {
    /// It may deny packets that are allowed now.
    Isolating,
    /// It only allows more. It may wait.
    Allowing,
}

impl Index {
    /// The effect of an object that is about to be applied.
    pub fn effect_of(&self, after: &Object) -> ChangeEffect {
        self.effect(self.objects.get(&Key::of(after)), Some(after))
    }

    /// The effect of an object that is about to be deleted.
    pub fn effect_of_deletion(&self, key: &Key) -> ChangeEffect {
        self.effect(self.objects.get(key), None)
    }

    fn effect(&self, before: Option<&Object>, after: Option<&Object>) -> ChangeEffect {
        let allows_only = match (before.map(|it| &it.body), after.map(|it| &it.body)) {
            (Some(Body::NetworkPolicy(old)), Some(Body::NetworkPolicy(new))) => {
                (self.is_audit(old) && self.is_audit(new)) || only_allows_more(old, new)
            }
            (None, Some(Body::NetworkPolicy(policy))) => self.is_audit(policy),
            // A policy with rules may be the only one that allows something to a pod that other policies isolate.
            (Some(Body::NetworkPolicy(policy)), None) => {
                self.is_audit(policy) || (policy.ingress.is_empty() && policy.egress.is_empty())
            }
            // Programs see the address of a service before it is translated, so any other change of services can close
            // an address: a new backend that policy denies, and also a service that goes, whose address is an ordinary
            // one again. A tenant can create and delete services with addresses outside of the cluster.
            (Some(Body::EndpointSlice(old)), Some(Body::EndpointSlice(new))) => {
                // Labels decide whether the slice is read at all.
                let has_same_labels =
                    before.zip(after).is_some_and(|(one, other)| one.meta.labels == other.meta.labels);
                has_same_labels
                    && only_loses_endpoints(old, new)
                    && after.is_some_and(|object| self.cannot_fall_back(object, new))
            }
            (before @ (None | Some(Body::Pod(_))), Some(Body::Pod(pod))) => {
                let had_addresses = matches!(before, Some(Body::Pod(old)) if !addresses(old).is_empty());
                !had_addresses && after.is_some_and(|object| self.is_new_peer(object, pod))
            }
            _ => false,
        };
        if allows_only { ChangeEffect::Allowing } else { ChangeEffect::Isolating }
    }

    fn is_audit(&self, policy: &NetworkPolicy) -> bool {
        is_audit(policy, self.assume)
    }

    /// Whether no slice of the service has an endpoint that is ending. Such an endpoint becomes a backend when the
    /// service, or its part on a node, has no ready one any more.
    fn cannot_fall_back(&self, object: &Object, new: &EndpointSlice) -> bool {
        let is_ending = |slice: &EndpointSlice| slice.endpoints.iter().any(|it| it.serving && it.terminating);
        let service = new.service.as_deref().unwrap_or_default();
        let service =
            Key { kind: String::new(), namespace: object.meta.namespace.to_string(), name: service.to_owned() };
        let mut others = self.slices.of(&service).filter(|name| **name != *object.meta.name).filter_map(|name| {
            self.objects.get(&KeyRef { kind: "EndpointSlice", namespace: &service.namespace, name })
        });
        !is_ending(new) && !others.any(|it| matches!(&it.body, Body::EndpointSlice(slice) if is_ending(slice)))
    }

    /// Whether a pod is another node's, and its addresses have no other part yet. Then its labels can only match more
    /// rules that allow, with three exceptions: a cluster-wide policy, whose rules can deny; a service that finds its
    /// backends by labels, and whose address the pod can close; and the reading of the API in which blocks do not contain
    /// pods, so that an address is denied when a pod gets it.
    fn is_new_peer(&self, object: &Object, pod: &Pod) -> bool {
        let Some(baseline) = &self.baseline else { return false };
        if self.assume.ipblock_pods != IpBlockPods::Match || baseline.selecting(object).next().is_some() {
            return false;
        }
        let is_elsewhere = self.node.is_some() && pod.node.is_some() && pod.node != self.node;
        let is_unused = |address: &std::net::IpAddr| {
            !self.holders.contains_key(address)
                && !self.is_taken(baseline, *address)
                && !baseline.is_backing(*address)
                && baseline.class_without_pod(*address) == Some(baseline.peer_at(*address))
        };
        let has_cluster_policies = || CLUSTER_POLICY_KINDS.into_iter().any(|kind| self.of_kind(kind).next().is_some());
        is_elsewhere && addresses(pod).iter().all(is_unused) && !has_cluster_policies()
    }
}

/// Whether the new state of a slice has only endpoints that the old one has, in the same order, and one of them is
/// ready. A service without any backend is another thing: its address is an ordinary one.
fn only_loses_endpoints(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    // Without the order, each endpoint would be compared with all others.
    let mut others = old.endpoints.iter();
    old.service == new.service
        && old.ports == new.ports
        && new.endpoints.iter().all(|it| others.any(|other| other == it))
        && new.endpoints.iter().any(|it| it.ready)
}

/// Whether the new state of a policy isolates the same pods in the same directions and keeps every rule, or has a wider
/// one instead.
fn only_allows_more(old: &NetworkPolicy, new: &NetworkPolicy) -> bool {
    let is_wider =
        |old: &[PolicyRule], new: &[PolicyRule]| old.iter().all(|rule| new.iter().any(|it| covers(it, rule)));
    let directions =
        |it: &NetworkPolicy| (it.policy_types.clone(), it.policy_types.is_empty() && !it.egress.is_empty());
    old.mode == new.mode
        && old.pod_selector == new.pod_selector
        && directions(old) == directions(new)
        && is_wider(&old.ingress, &new.ingress)
        && is_wider(&old.egress, &new.egress)
}

/// Whether a rule allows everything that another rule allows, as far as that follows from equal peers and ports.
fn covers(wide: &PolicyRule, narrow: &PolicyRule) -> bool {
    // An empty list means every peer or every port.
    covers_list(&wide.peers, &narrow.peers) && covers_list(&wide.ports, &narrow.ports)
}

fn covers_list<T: PartialEq>(wide: &[T], narrow: &[T]) -> bool {
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(|it| wide.contains(it)))
}
