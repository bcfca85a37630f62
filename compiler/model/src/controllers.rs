//! The workload behind a pod: its controller, or the controller's controller if names show it.
//!
//! A ReplicaSet belongs to a Deployment, and a Job to a CronJob. The input need not contain any of them: the pod's
//! owner and its labels are enough.

use weir_objects::k8s::Labels;

use crate::{Cluster, Endpoint};

/// Labels that controllers give to single pods or revisions. Pods of one workload differ in them.
pub const VOLATILE_LABELS: [&str; 8] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
];

/// A workload that a pod belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerName<'n> {
    /// Such as `Deployment`.
    pub kind: &'n str,
    /// Its name, in the pod's namespace.
    pub name: &'n str,
}

/// The workload that an endpoint belongs to; `None` for a pod without a controller.
pub fn controller_of<'c>(cluster: &'c Cluster, endpoint: &'c Endpoint) -> Option<ControllerName<'c>> {
    let (kind, name) = endpoint.owner.as_deref()?.split_once('/')?;
    Some(controller(kind, name, cluster.labels.labels(endpoint.labels)))
}

/// The workload behind a controller, as far as its name shows it.
fn controller<'n>(kind: &'n str, name: &'n str, labels: &Labels) -> ControllerName<'n> {
    let Some((stem, tail)) = name.rsplit_once('-') else { return ControllerName { kind, name } };
    match kind {
        // Only if the suffix is the hash in the labels: people name ReplicaSets with dashes too, and the name of a
        // Deployment that does not exist could group unrelated pods.
        "ReplicaSet" if labels.get("pod-template-hash").is_some_and(|hash| hash == tail) => {
            ControllerName { kind: "Deployment", name: stem }
        }
        // The suffix is the scheduled time in minutes since 1970.
        // https://github.com/kubernetes/kubernetes/blob/67a06c20568d/pkg/controller/cronjob/cronjob_controllerv2.go
        "Job" if tail.len() >= 8 && tail.bytes().all(|it| it.is_ascii_digit()) => {
            ControllerName { kind: "CronJob", name: stem }
        }
        _ => ControllerName { kind, name },
    }
}
