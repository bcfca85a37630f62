//! Objects and clusters from YAML. A diagnostic with the severity of an error fails the test.

use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::decode::{DecodeOptions, Decoded, Input, InputKind, decode};
use weir_objects::k8s::Object;

/// A small cluster: both families, prefixes, port ranges. `job` may reach some ports of `web`.
pub const SHOP: &str = "
apiVersion: v1
kind: Node
metadata: {name: one}
status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: one, containers: [{name: web, ports: [{name: http, containerPort: 8080}]}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: shop, labels: {app: job}}
spec: {nodeName: one, containers: [{name: job}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {app: job}}}]
    ports: [{port: http}, {port: 9000, endPort: 9010}]
  - from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}, {ipBlock: {cidr: '2001:db8::/32'}}]
";

/// The objects of two nodes, `near` and `far`.
pub const NEAR_AND_FAR: &str = "
{apiVersion: v1, kind: Node, metadata: {name: near}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: far}, status: {addresses: [{type: InternalIP, address: 172.16.0.2}]}}
";

/// Decodes a manifest, as a file named `input.yaml`.
#[track_caller]
pub fn decoded(yaml: &str) -> Decoded {
    let input = Input { name: "input.yaml".to_owned(), bytes: yaml.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (decoded, found) =
        decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
    assert!(!found.has_errors(), "{:#?}\n{yaml}", found.into_vec());
    decoded
}

/// The objects of a manifest.
#[track_caller]
pub fn objects(yaml: &str) -> Vec<Object> {
    decoded(yaml).objects
}

/// The cluster of a manifest, with the default assumptions. Diagnostics of `resolve` are ignored.
#[track_caller]
pub fn cluster(yaml: &str) -> Cluster {
    resolve(&objects(yaml), Assumptions::default()).0
}
