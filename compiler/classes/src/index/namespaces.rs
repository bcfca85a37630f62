//! Decides which updates a change of a namespace requires.
//!
//! Only the labels of a namespace affect verdicts, in two ways: as a peer, through selectors of namespaces in rules,
//! and as a subject, through the selectors of cluster-wide policies and lists. If no such selector gives another answer
//! for the new labels, all rows and classes stay as they are. Tenants can often create namespaces, and controllers
//! write labels to them that no policy mentions.
//!
//! If a rule's selector gives another answer, the pods of the namespace get other peer classes. If these classes exist,
//! the entries of the pods' addresses are enough, under these conditions:
//! * no pod of the namespace is local. Each address moves by itself, so a packet between two local pods could pass
//!   because the ingress of one is judged with the new labels and the egress of the other with the labels before. A
//!   packet from or to a pod of another node is judged here by one entry: the old one or the new one;
//! * no service or hostPort whose address is judged leads to a pod that moves, and none of the addresses is shared;
//! * at most [`MOST_MOVED`] addresses are visited. A namespace can have thousands of pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::effect::CLUSTER_POLICY_KINDS;
use super::pods::{addresses, as_pod, is_behind};
use super::{Dirty, Index};
use crate::PeerId;
use weir_model::labels::matches;
use weir_model::resolve::{named_ports, namespace_labels};
use weir_objects::k8s::{Body, Labels, Object, Pod};

/// The most addresses that are written singly for one change.
const MOST_MOVED: usize = 256;

impl Index {
    /// A namespace was created, changed or deleted.
    pub(super) fn namespace_changes(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        let Some(baseline) = &self.baseline else { return Dirty::Everything };
        let Some(name) = after.or(before).map(|it| it.meta.name.as_str()) else { return Dirty::Nothing };
        // No class depends on its labels: the first pod with an address there requires a compile.
        if !baseline.has_namespace(name) {
            return Dirty::Nothing;
        }
        let [was, is] = [before, after].map(|it| namespace_labels(name, it));
        let concerns_subjects = baseline.is_any_local_in(name) && self.selects_one_as_subject(&was, &is);
        let moves = baseline.tells_namespaces_apart(&was, &is);
        if moves {
            self.unbuilt.note_moved_namespace(name);
        }
        if concerns_subjects || (moves && baseline.is_any_local_in(name)) {
            return Dirty::Everything;
        }
        // For later changes: a new cluster-wide policy is compared with the present labels, and so is a new pod.
        if let Some(baseline) = &mut self.baseline {
            baseline.relabel(name, is, moves);
        }
        if moves { self.pods_of_namespace_move(name).unwrap_or(Dirty::Everything) } else { Dirty::Nothing }
    }

    /// The entries of a namespace's pods with its present labels; `None` if a compile is needed.
    fn pods_of_namespace_move(&self, name: &str) -> Option<Dirty> {
        let baseline = self.baseline.as_ref()?;
        let mut classes: BTreeMap<IpAddr, PeerId> = BTreeMap::new();
        for (object, pod) in self.pods_of(name) {
            // Such a service finds the pod by its labels, also while it has no address.
            if pod.node == self.node || baseline.selecting(object).next().is_some() {
                return None;
            }
            let ports = named_ports(&pod.ports, self.assume);
            for address in addresses(pod) {
                let peer = baseline.class_of(object, &ports, *address)?;
                let is_shared = self.is_taken(baseline, *address) || self.holders.get(address) != Some(&1);
                let is_judged_by = is_behind(baseline, *address) && baseline.peer_at(*address) != peer;
                if is_shared || is_judged_by || classes.len() == MOST_MOVED {
                    return None;
                }
                classes.insert(*address, peer);
            }
        }
        Some(baseline.changes(classes, false))
    }

    fn pods_of(&self, namespace: &str) -> impl Iterator<Item = (&Object, &Pod)> {
        self.objects.of_namespace("Pod", namespace).filter_map(as_pod)
    }

    /// Whether a cluster-wide policy or a list applies to pods of a namespace with only one of these sets of labels.
    /// All of them are asked, because a policy that selects no local pod yet is in no class.
    fn selects_one_as_subject(&self, one: &Labels, other: &Labels) -> bool {
        let kinds = CLUSTER_POLICY_KINDS.into_iter().chain(["CidrList"]);
        let mut selectors = kinds.flat_map(|kind| self.of_kind(kind)).filter_map(|object| match &object.body {
            Body::ClusterPolicy(policy) => Some(&policy.subject_namespaces),
            // A list without this selector applies to all namespaces.
            Body::CidrList(list) => list.namespaces.as_ref(),
            _ => None,
        });
        selectors.any(|selector| matches(selector, one) != matches(selector, other))
    }
}
