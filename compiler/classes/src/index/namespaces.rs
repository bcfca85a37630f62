//! Decides which updates a change of a namespace requires.
//!
//! Only the labels of a namespace affect verdicts, in two ways: as a peer, through selectors of namespaces in rules,
//! and as a subject, through the selectors of cluster-wide policies and lists. If no such selector gives another answer
//! for the new labels, all rows and classes stay as they are. Tenants can often create namespaces, and controllers
//! write labels to them that no policy mentions.

use super::effect::CLUSTER_POLICY_KINDS;
use super::{Dirty, Index};
use weir_model::labels::matches;
use weir_model::resolve::namespace_labels;
use weir_objects::k8s::{Body, Labels, Object};

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
        if concerns_subjects || baseline.tells_namespaces_apart(&was, &is) {
            return Dirty::Everything;
        }
        // For later changes: a new cluster-wide policy is compared with the present labels.
        if let Some(baseline) = &mut self.baseline {
            baseline.relabel(name, is);
        }
        Dirty::Nothing
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
