//! Two live pods on one address.

use std::net::IpAddr;

use crate::diagnostic::{Code, Diagnostic, Severity};
use crate::model::{Cluster, EndpointId};
use crate::origin::{FieldPath, Origin};

/// Two live pods on one address.
pub(crate) static CODE: Code = Code {
    name: "duplicate-address",
    severity: Severity::Warning,
    lint: true,
    what: "Two running pods have the same address.",
    why: "An address names one pod: the first by namespace and name is taken for both, so what is said about the other \
          is not what packets would meet. It happens when a snapshot is put together from several moments. Pods that \
          have finished and pods on the host's network do not count: their address is not theirs.",
    example: "\
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: shop}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: two, namespace: shop}
status: {phase: Running, podIP: 10.0.0.1}
",
    fixed: "\
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: shop}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: two, namespace: shop}
status: {phase: Succeeded, podIP: 10.0.0.1}
",
};

pub(in crate::resolve) fn found(
    cluster: &Cluster,
    holder: EndpointId,
    second: EndpointId,
    address: IpAddr,
) -> Diagnostic {
    let status = FieldPath::root().field("status");
    let origin = |id: EndpointId| Origin::new(cluster.endpoints[id.index()].object, status.field("podIP"));
    let (holder_name, second_name) = (cluster.endpoint_name(holder), cluster.endpoint_name(second));
    Diagnostic::at(&CODE, origin(second), format!("pod {second_name} has the address of pod {holder_name}, {address}"))
        .also(origin(holder), format!("{holder_name} is taken to have it"))
        .help("take one snapshot of all pods at one moment: kubectl get pods --all-namespaces -o json")
}
