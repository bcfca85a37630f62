//! Generates policies of one shape, in any number, for the same pods: for users without an artifact.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, anyhow, ensure};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, compile};
use weir_ebpf::target::Target;
use weir_model::Assumptions;
use weir_model::resolve::resolve;
use weir_objects::decode::{self, Input, InputKind, decode};

use super::MeasuredPrograms;

const PODS: usize = 1_000;
const NAMESPACES: usize = 20;
const APPS: usize = 40;
const TIERS: usize = 7;

/// Compiles the policies as the agent would for this kernel.
pub(super) fn programs(policies: usize) -> Result<MeasuredPrograms> {
    let input = Input { name: "made".to_owned(), bytes: text(policies).into_bytes(), kind: InputKind::Manifest };
    let (decoded, found) =
        decode(vec![input], &decode::DecodeOptions { default_namespace: "default".to_owned(), is_from_server: false });
    ensure!(!found.has_errors(), "the generated policies cannot be read");
    let (cluster, _) = resolve(&decoded.objects, Assumptions::default());
    let kernel = weir_runtime::sys::kernel_version().unwrap_or(Target::BASE.kernel);
    let target = Target { kernel };
    let options = CompileOptions { target: target.max(Target::BASE), ..CompileOptions::default() };
    let compiled = compile(&cluster, &Scope::everything(&cluster), &options).map_err(|error| anyhow!(error))?;
    let artifact = compiled.artifact(&cluster, &options, |_| ()).context("the artifact cannot be put together")?;
    Ok(MeasuredPrograms { artifact, classes: compiled.classes, cluster })
}

fn text(policies: usize) -> String {
    let mut text = String::new();
    for namespace in 0..NAMESPACES {
        _ = writeln!(
            text,
            "---\n{{apiVersion: v1, kind: Namespace, metadata: {{name: ns{namespace}, labels: {{team: t{}}}}}}}",
            namespace % 10
        );
    }
    for pod in 0..PODS {
        let (namespace, app, tier) = (pod % NAMESPACES, pod / NAMESPACES % APPS, pod % TIERS);
        let [high, low] = [pod / 250, pod % 250 + 1];
        let addresses = format!("[{{ip: 10.0.{high}.{low}}}, {{ip: 'fd00::{high:x}:{low:x}'}}]");
        _ = writeln!(
            text,
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: pod{pod}, namespace: ns{namespace}, \
             labels: {{app: a{app}, tier: t{tier}}}}}, status: {{phase: Running, podIPs: {addresses}}}}}"
        );
    }
    (0..policies).for_each(|policy| text.push_str(&policy_text(policy)));
    text
}

fn policy_text(policy: usize) -> String {
    let (namespace, app) = (policy % NAMESPACES, policy / NAMESPACES % APPS);
    let (tier, port, block) = ((policy + 1) % TIERS, 8_000 + policy % 100, policy % 4);
    let tier = format!("podSelector: {{matchLabels: {{tier: t{tier}}}}}");
    let from = format!("[{{{tier}}}, {{namespaceSelector: {{matchLabels: {{team: t{}}}}}, {tier}}}]", policy % 10);
    let to = format!(
        "[{{ipBlock: {{cidr: 10.{block}.0.0/16, except: [10.{block}.7.0/24]}}}}, {{ipBlock: {{cidr: 'fd1{block}::/16'}}}}]"
    );
    format!(
        "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: p{policy}, namespace: ns{namespace}}}, \
         spec: {{podSelector: {{matchLabels: {{app: a{app}}}}}, policyTypes: [Ingress, Egress], \
         ingress: [{{from: {from}, ports: [{{port: {port}, endPort: {}}}]}}], \
         egress: [{{to: {to}, ports: [{{port: 8080}}]}}, {{ports: [{{port: 53, protocol: UDP}}]}}]}}}}\n",
        port + 10
    )
}
