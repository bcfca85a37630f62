//! Two live pods on one address.

use std::net::IpAddr;

use crate::{Cluster, EndpointId};
use weir_objects::diagnostic::{Code, Diagnostic, Severity};
use weir_objects::origin::{FieldOrigin, FieldPath};

/// Two live pods on one address.
pub(crate) static CODE: Code =
    Code::lint("duplicate-address", Severity::Warning, include_str!("duplicate_address.diff"))
        .what("Two running pods have the same address.")
        .why(
            "An address should belong to one pod. Weir cannot tell which of the two pods has it, so neither counts: \
          packets from and to the address get only what is allowed for every address, and nothing that is allowed \
          by labels. This happens if a snapshot contains objects of several moments. A pod that is being deleted \
          loses the address to one that is not. Finished pods and pods on the host network do not count.",
        );

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
        .also(origin(holder), format!("{holder_name} claims it too, so it counts as the address of neither"))
        .help("take one snapshot of all pods at one moment: kubectl get pods --all-namespaces -o json")
}
