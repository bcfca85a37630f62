//! Flows that end with an attach: flows to services that have lost the flow's backend since the previous artifact.
//!
//! `weir_classes::departed` computes them. Without an agent that has watched the cluster, only the artifact that was
//! in force and the new one can be compared, by the objects in both. Backends that left earlier are not known.

use anyhow::{Context as _, Result};
use weir_artifact::Artifact;
use weir_classes::Scope;
use weir_classes::departed::{Departed, EndedService};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::k8s::Object;
use weir_runtime::runtime::{EndedFlows, Runtime};

/// Ends the flows; returns how many there were.
pub(super) fn end(runtime: &Runtime, before: &Artifact, now: &Artifact) -> Result<usize> {
    let flows: Vec<EndedFlows> = ended(before, now)?.into_iter().map(flows).collect();
    Ok(runtime.end_flows(&flows)?)
}

fn ended(before: &Artifact, now: &Artifact) -> Result<Vec<EndedService>> {
    // An artifact without objects contains no services.
    if before.objects.is_empty() || now.objects.is_empty() {
        return Ok(Vec::new());
    }
    let mut departed = Departed::default();
    let (cluster, scope) = cluster_of(before)?;
    departed.observe(&cluster, &scope);
    let (cluster, scope) = cluster_of(now)?;
    Ok(departed.observe(&cluster, &scope))
}

fn flows(EndedService { pod, address, port, protocol }: EndedService) -> EndedFlows {
    EndedFlows { pod, remote: address, port, protocol: protocol.number() }
}

/// The cluster that an artifact was made from, and its local endpoints.
pub(super) fn cluster_of(artifact: &Artifact) -> Result<(Cluster, Scope)> {
    let manifest: serde_json::Value =
        serde_json::from_str(&artifact.manifest).context("the artifact's manifest cannot be read")?;
    let mut assume = Assumptions::default();
    for (key, value) in manifest["assumptions"].as_object().into_iter().flatten() {
        assume.set(key, value.as_str().unwrap_or_default()).context("in the artifact's manifest")?;
    }
    let (cluster, _) = resolve(&objects_of(artifact)?, assume);
    let of_node = manifest["node"].as_str().and_then(|node| Scope::node(&cluster, node));
    let scope = of_node.unwrap_or_else(|| Scope::everything(&cluster));
    Ok((cluster, scope))
}

/// The objects that an artifact was made from.
pub(super) fn objects_of(artifact: &Artifact) -> Result<Vec<Object>> {
    let bytes = artifact.objects.clone().into_bytes();
    let input = Input { name: "artifact".to_owned(), bytes, kind: InputKind::Manifest };
    let (decoded, diagnostics) =
        decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: true });
    anyhow::ensure!(!diagnostics.has_errors(), "the artifact's objects cannot be read");
    Ok(decoded.objects)
}

#[cfg(test)]
mod tests {
    use weir_artifact::objects;
    use weir_codegen::compile::{self, compile};

    use super::*;

    const CLUSTER: &str = "
{apiVersion: v1, kind: Node, metadata: {name: near}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, uid: u1, labels: {app: web}},
  spec: {nodeName: near, containers: [{name: c, image: i}]}, status: {phase: Running, podIP: 10.0.0.5}}
---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, uid: u2, labels: {app: db}},
  spec: {nodeName: far, containers: [{name: c, image: i}]}, status: {phase: Running, podIP: 10.0.1.5}}
---
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: e, namespace: shop},
  spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop},
  spec: {clusterIP: 10.96.0.1, selector: {app: db}, ports: [{port: 80, targetPort: 8080}]}}
";

    fn artifact(text: &str) -> Artifact {
        let input = Input { name: "test".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
        let (decoded, found) =
            decode(vec![input], &DecodeOptions { default_namespace: "default".to_owned(), is_from_server: true });
        assert!(!found.has_errors(), "{:?}", found.into_vec());
        let (cluster, _) = resolve(&decoded.objects, Assumptions::default());
        let scope = Scope::node(&cluster, "near").expect("it is there");
        let options = compile::CompileOptions::default();
        let compiled = compile(&cluster, &scope, &options).expect("it compiles");
        let describe = |description: &mut weir_artifact::Description| {
            description.node = Some("near".to_owned());
            description.objects = objects(&decoded.objects);
        };
        compiled.artifact(&cluster, &options, describe).expect("it links")
    }

    #[test]
    fn backends_that_differ_between_two_artifacts_end_flows() {
        let before = artifact(CLUSTER);
        let quarantined = artifact(&CLUSTER.replace("labels: {app: db}}", "labels: {app: none}}"));
        let ended: Vec<String> = ended(&before, &quarantined)
            .expect("both are read")
            .iter()
            .map(|it| format!("{} {}:{}", it.pod, it.address, it.port))
            .collect();
        assert_eq!(ended, ["shop/web 10.96.0.1:80"]);
        assert!(super::ended(&before, &before).expect("it is read").is_empty());
        let mute = Artifact { objects: String::new(), ..before };
        assert!(super::ended(&mute, &quarantined).expect("nothing is read").is_empty());
    }
}
