//! Traffic from a workload to itself is between two of its pods, unless it can have only one.

use weir_model::EndpointId;
use weir_model::eval::{Basis, Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, Protocol};
use weir_testing::yaml::cluster;

const CLOSED: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed, namespace: shop}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
---
";

fn workload(kind: &str, replicas: &str) -> Cluster {
    let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    cluster(&format!(
        "{CLOSED}apiVersion: {version}\nkind: {kind}\nmetadata: {{name: web, namespace: shop}}\nspec: \
         {{{replicas}template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}}}\n"
    ))
}

/// The basis of the verdict on traffic from the first endpoint to itself.
fn to_itself(cluster: &Cluster) -> Basis {
    let end = FlowEnd { endpoint: Some(EndpointId(0)), address: None };
    let flow = Flow { source: end, destination: end, protocol: FlowProtocol::Transport(Protocol::Tcp), port: 2380 };
    let judgement = Oracle::new(cluster).judge(&flow);
    assert_eq!(judgement.verdict() == Verdict::Allow, judgement.egress.basis == Basis::Itself);
    judgement.egress.basis
}

#[test]
fn policies_decide_about_two_pods_of_a_workload() {
    for (kind, replicas) in [
        ("Deployment", "replicas: 3, "),
        // A rolling update runs the old pod and the new one at the same time.
        ("Deployment", "replicas: 1, "),
        ("DaemonSet", ""),
        ("Job", ""),
        ("StatefulSet", "replicas: 3, "),
        // An autoscaler may choose the number.
        ("StatefulSet", ""),
    ] {
        let basis = to_itself(&workload(kind, replicas));
        assert!(matches!(basis, Basis::Isolated(_)), "{kind} {replicas}: {basis:?}");
    }
}

#[test]
fn one_pod_reaches_itself() {
    assert_eq!(to_itself(&workload("StatefulSet", "replicas: 1, ")), Basis::Itself);
    let pod = cluster(&format!(
        "{CLOSED}apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\nspec: {{containers: [{{name: c, \
         image: i}}]}}\n"
    ));
    assert_eq!(to_itself(&pod), Basis::Itself);
}
