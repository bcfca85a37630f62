//! The labels by which a policy should select a pod.

use weir_model::controllers::VOLATILE_LABELS;
use weir_objects::k8s::{LabelSelector, Labels, NAMESPACE_NAME_LABEL};

/// Labels that change with a release or a run, besides those that controllers give to single pods. A policy that names
/// them stops matching at the next rollout.
const OF_A_RELEASE: [&str; 5] = [
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "batch.kubernetes.io/job-name",
    "helm.sh/chart",
    "job-name",
];

/// The labels that stay the same for the pods of a workload. If a pod has no others, all of them.
pub(crate) fn lasting(labels: &Labels) -> Labels {
    let is_lasting = |key: &str| !VOLATILE_LABELS.contains(&key) && !OF_A_RELEASE.contains(&key);
    let kept: Labels = labels.iter().filter(|(key, _)| is_lasting(key)).collect();
    if kept.is_empty() { labels.clone() } else { kept }
}

/// A selector of pods that have all of these labels.
pub(crate) fn exactly(labels: Labels) -> LabelSelector {
    LabelSelector { match_labels: labels, match_expressions: Vec::new() }
}

/// A selector of one namespace, by its name.
pub(crate) fn namespace(name: &str) -> LabelSelector {
    exactly([(NAMESPACE_NAME_LABEL, name)].into())
}
