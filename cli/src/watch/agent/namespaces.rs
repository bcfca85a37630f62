//! Namespaces that are deleted, and new namespaces with the same name.
//!
//! Problem: policies and namespaces arrive on different watch streams. Either stream may be late, or may lose events
//! when it is listed again. A policy of a deleted namespace must not allow anything in a new namespace of the same
//! name, and a policy of the new namespace must not be lost.
//! Strategy: when a namespace is deleted or has another UID, the known policies under its name lose their rules: they
//! still isolate their pods and allow nothing. The agent asks the API server for a new list, and a policy gets its
//! rules back when the server reports it again.

use std::time::Instant;

use weir_classes::index::{ChangeEffect, Key};
use weir_objects::k8s::{Body, NetworkPolicy, Object, PolicyType};

use super::{NodeAgent, Value};
use crate::watch::enforce::Enforce;

/// The kinds that live in namespaces and that the agent follows.
const NAMESPACED: [&str; 4] = ["NetworkPolicy", "Pod", "Service", "EndpointSlice"];

impl<E: Enforce> NodeAgent<E> {
    /// Whether an object of this name is known and has another UID.
    pub(super) fn is_another(&self, key: &Key, uid: Option<&str>) -> bool {
        let known = self.objects.index().get(key).and_then(|object| object.meta.uid.as_deref());
        known.zip(uid).is_some_and(|(known, uid)| known != uid)
    }

    /// Called when a namespace is gone or another namespace has its name. Removes the rules of its known policies and
    /// lists its objects again.
    pub(super) fn namespace_replaced(&mut self, namespace: &str, at: Instant) {
        for key in self.objects.policies.take_kept(namespace) {
            let dirty = self.objects.index_mut().delete(&key);
            self.note(dirty, ChangeEffect::Isolating, false, at);
        }
        let index = self.objects.index();
        let is_in = |object: &&Object| object.meta.namespace == namespace;
        let without_rules: Vec<Object> = index.of_kind("NetworkPolicy").filter(is_in).filter_map(isolating).collect();
        let is_empty = !NAMESPACED.iter().any(|kind| index.of_kind(kind).any(|object| is_in(&object)));
        if !is_empty {
            let why = "the namespace was deleted or replaced";
            let fields = [("namespace", Value::from(namespace)), ("why", Value::from(why))];
            self.reports.log.info("listing objects again", &fields);
            self.objects.relist(&NAMESPACED);
        }
        for object in without_rules {
            let dirty = self.objects.index_mut().apply(object);
            self.note(dirty, ChangeEffect::Isolating, false, at);
        }
    }
}

/// The policy without its rules. It isolates the same pods in the same directions.
pub(super) fn isolating(object: &Object) -> Option<Object> {
    let Body::NetworkPolicy(policy) = &object.body else { return None };
    let bare =
        NetworkPolicy { policy_types: directions(policy), ingress: Vec::new(), egress: Vec::new(), ..policy.clone() };
    Some(Object { body: Body::NetworkPolicy(bare), ..object.clone() })
}

/// The directions that a policy isolates. A policy without rules must name them: one that names none isolates egress
/// only because it has egress rules.
fn directions(policy: &NetworkPolicy) -> Vec<PolicyType> {
    match (policy.policy_types.is_empty(), policy.egress.is_empty()) {
        (false, _) => policy.policy_types.clone(),
        (true, true) => vec![PolicyType::Ingress],
        (true, false) => vec![PolicyType::Ingress, PolicyType::Egress],
    }
}
