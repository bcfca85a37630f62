//! The labels by which a policy should select a pod.

use weir_objects::k8s::{LabelSelector, Labels, NAMESPACE_NAME_LABEL};

/// Labels that a controller writes for one pod or one revision of its template. A policy that names them stops
/// matching at the next rollout.
const TRANSIENT: [&str; 12] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "helm.sh/chart",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
];
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// The labels that stay the same for the pods of a workload. If a pod has no others, all of them.
pub(crate) fn lasting(labels: &Labels) -> Labels {
    let is_lasting = |key: &str| !TRANSIENT.contains(&key) && key != POD_NAME;
    let kept: Labels = labels.iter().filter(|(key, _)| is_lasting(key)).map(|(a, b)| (a.clone(), b.clone())).collect();
    if kept.is_empty() { labels.clone() } else { kept }
}

/// A selector of pods that have all of these labels.
pub(crate) fn exactly(labels: Labels) -> LabelSelector {
    LabelSelector { match_labels: labels, match_expressions: Vec::new() }
}

/// A selector of one namespace, by its name.
pub(crate) fn namespace(name: &str) -> LabelSelector {
    exactly([(NAMESPACE_NAME_LABEL.to_owned(), name.to_owned())].into())
}
