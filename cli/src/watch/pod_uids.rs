//! The UIDs by which the API server and the container runtime know a pod.
//!
//! Problem: CNI results and the questions of the CNI plug-in have the UID that the kubelet gave the container runtime.
//! For a static pod this is a hash of its manifest. The API server shows a mirror pod with a UID of its own and the
//! hash in an annotation, so a comparison of UIDs alone would never find a static pod's interface.
//! Strategy: data of the runtime are about a pod if they have the UID of its object or, for a mirror pod, the UID in
//! the annotation.
//! Invariant: any user who may create pods can write the annotation, so it never decides alone. Callers compare
//! namespace and name first: the API server has one object of a name at a time. Thus a pod cannot claim the interface
//! or addresses of a pod with another name. It cannot claim those of an earlier pod with its name either: that pod's
//! UID came from the API server, and a value of that form is not read (`decode/metadata.rs` in `weir-objects`). Only a
//! static pod of the same namespace and name can be claimed, by a user who may delete and create pods in its namespace.
//! The kubelet accepts such an object as the static pod's mirror, too. The kubelet never starts a pod that has the
//! annotation. If something else did, the runtime would have the UID of the pod's object, which still counts.

use weir_objects::k8s::{Body, Object};

/// The UIDs of a pod that the API server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodUids<'p> {
    /// The UID of its object.
    pub(crate) of_object: Option<&'p str>,
    /// The UID of the static pod whose mirror it is.
    pub(crate) of_static_pod: Option<&'p str>,
}

impl<'p> PodUids<'p> {
    pub(crate) fn of(object: &'p Object) -> Self {
        let of_static_pod = match &object.body {
            Body::Pod(pod) => pod.static_uid.as_deref(),
            _ => None,
        };
        Self { of_object: object.meta.uid.as_deref(), of_static_pod }
    }

    /// Whether the container runtime knows the pod by this UID.
    pub(crate) fn include(self, runtime: &str) -> bool {
        [self.of_object, self.of_static_pod].contains(&Some(runtime))
    }

    /// Whether data of the runtime with this UID may be about the pod. If the object or the data have no UID, only the
    /// names decide.
    pub(crate) fn allow(self, runtime: Option<&str>) -> bool {
        self.of_object.is_none() || runtime.is_none_or(|runtime| self.include(runtime))
    }
}
