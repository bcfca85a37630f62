//! Two live pods on one address.

use std::net::IpAddr;

use crate::{Cluster, EndpointId};
use weir_objects::diagnostic::{Code, Diagnostic, Example, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

/// Two live pods on one address.
pub(crate) static CODE: Code = Code {
    name: "duplicate-address",
    severity: Severity::Warning,
    lint: true,
    what: "Two running pods have the same address.",
    why: "An address names one pod. Which of the two has it cannot be told, so neither does: packets from and to the \
          address get only what every address gets, nothing that a policy allows by labels. It happens when a snapshot \
          is put together from several moments. Pods that are being deleted lose the address to one that is not. Pods \
          that have finished and pods on the host's network do not count: their address is not theirs.",
    example: Example(include_str!("duplicate_address.diff")),
};

pub(in crate::resolve) fn found(
    cluster: &Cluster,
    holder: EndpointId,
    second: EndpointId,
    address: IpAddr,
) -> Diagnostic {
    let status = FieldPath::root().field("status");
    let origin = |id: EndpointId| FieldOrigin::new(cluster.endpoints[id.index()].object, status.field("podIP"));
    let (holder_name, second_name) = (cluster.endpoint_name(holder), cluster.endpoint_name(second));
    Diagnostic::at(&CODE, origin(second), format!("pod {second_name} has the address of pod {holder_name}, {address}"))
        .also(origin(holder), format!("{holder_name} says that it has it too, so neither is taken to have it"))
        .help("take one snapshot of all pods at one moment: kubectl get pods --all-namespaces -o json")
}
