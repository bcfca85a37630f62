//! Artifacts for the pods of a [`crate::net::Node`].

use weir_artifact::{Artifact, Digest, InputFile as Named};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, compile};
use weir_codegen::structures::StructureOptions as Structures;
use weir_ebpf::target::Target;

use crate::net::{GATEWAY, pod_address};

/// `default/p0`, `default/p1`, … with label `pod: p0`, on the node `here`, whose address is the gateway's; and
/// policies.
pub(crate) fn cluster(pods: usize, policies: &str) -> String {
    let [v4, v6] = GATEWAY;
    let mut yaml = format!(
        "apiVersion: v1\nkind: Node\nmetadata: {{name: here}}\nstatus: {{addresses: [{{type: InternalIP, address: \
         {v4}}}, {{type: InternalIP, address: \"{v6}\"}}]}}\n---\n"
    );
    for index in 0..pods {
        let [v4, v6] = [false, true].map(|it| pod_address(index, it));
        yaml.push_str(&format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{index}, namespace: default, labels: {{pod: p{index}}}}}\n\
             spec: {{nodeName: here, containers: [{{name: c, image: i}}]}}\nstatus: {{phase: Running, podIP: {v4}, \
             podIPs: [{{ip: {v4}}}, {{ip: \"{v6}\"}}]}}\n---\n"
        ));
    }
    yaml + policies
}

/// A policy that isolates pod `index` in the directions `types`, with `rules`.
pub(crate) fn policy(index: usize, types: &str, rules: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: of-p{index}, namespace: default}}\n\
         spec: {{podSelector: {{matchLabels: {{pod: p{index}}}}}, policyTypes: [{types}], {rules}}}\n---\n"
    )
}

/// What `weir compile` would write.
pub(crate) fn artifact(yaml: &str) -> (Artifact, Vec<u8>) {
    made(yaml, &CompileOptions::default())
}

/// The artifact of an agent: a small change of the input leaves its programs as they are.
pub(crate) fn agents_artifact(yaml: &str) -> (Artifact, Vec<u8>) {
    made(yaml, &CompileOptions::for_changes(Target::BASE))
}

/// The same, with structures that are forced.
pub(crate) fn artifact_with(yaml: &str, structures: Structures) -> (Artifact, Vec<u8>) {
    made(yaml, &CompileOptions { forced: structures.forced, ..CompileOptions::default() })
}

fn made(yaml: &str, options: &CompileOptions) -> (Artifact, Vec<u8>) {
    let cluster = weir_testing::yaml::cluster(yaml);
    let scope = Scope::node(&cluster, "here").unwrap();
    let compiled = compile(&cluster, &scope, options).unwrap();
    let inputs = vec![Named { name: "cluster".into(), digest: Digest::of(yaml.as_bytes()) }];
    let artifact = compiled.artifact(&cluster, options, |description| description.inputs = inputs).unwrap();
    let bytes = artifact.to_bytes().unwrap();
    (Artifact::read(&bytes).unwrap(), bytes)
}
