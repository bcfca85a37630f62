use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use weir_compiler::compile::{self, Options as CompileOptions};
use weir_compiler::decode::{Input, InputKind, Options, decode};
use weir_compiler::ebpf::target::Target;
use weir_compiler::index::Index;
use weir_compiler::model::Assumptions;
use weir_compiler::structures::{Place, Structure};
use weir_fuzz::generators::Random;
use weir_runtime::runtime::{Access, Request, Runtime};

use crate::net::{Layout, Node};

const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: here}
status: {addresses: [{type: InternalIP, address: 10.9.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: p0, namespace: default, labels: {pod: p0}}
spec: {nodeName: here, containers: [{name: c, image: i}]}
status: {phase: Running, podIP: 10.9.0.16, podIPs: [{ip: 10.9.0.16}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: default}
spec: {podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{ports: [{port: 80}]}], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}]}
";

fn list(count: usize, seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut text = "{\"apiVersion\":\"weir.dev/v1alpha1\",\"kind\":\"CidrList\",\"metadata\":{\"name\":\"bad\"},\"spec\":{\"action\":\"Deny\",\"cidrs\":[".to_owned();
    for index in 0..count {
        let number = random.number() as u32;
        let address = IpAddr::V4(Ipv4Addr::from_bits(number % 0xd000_0000 + 0x0b00_0000));
        _ = write!(text, "{}\"{address}\"", if index == 0 { "" } else { "," });
    }
    text + "]}}"
}

fn objects(text: String) -> Vec<weir_compiler::k8s::Object> {
    let input = Input { name: "test".to_owned(), bytes: text.into_bytes(), kind: InputKind::Manifest };
    let (decoded, diagnostics) = decode(vec![input], &Options { default_namespace: "default".to_owned() });
    assert!(!diagnostics.has_errors());
    decoded.objects
}

pub(crate) fn main() {
    let count = std::env::var("N").ok().and_then(|it| it.parse().ok()).unwrap_or(1_000_000);
    let rounds = std::env::var("ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(3);
    let node = Node::new(Layout::Routed, 1);
    for seed in 0..rounds {
        round(count, &node, seed);
    }
}

fn round(count: usize, node: &Node, seed: u64) {
    let mut index = Index::new(Some("here".to_owned()), Assumptions::default());
    objects(CLUSTER.to_owned()).into_iter().for_each(|object| _ = index.apply(object));
    let text = list(count, seed);
    let mut at = Instant::now();
    let mut lap = |what: &str| {
        eprint!("{what} {:.1}  ", at.elapsed().as_secs_f64() * 1e3);
        at = Instant::now();
    };
    let mut of_list = objects(text);
    lap("decode");
    index.apply(of_list.remove(0));
    lap("apply");
    let generation = index.compile().unwrap();
    lap("classify");
    let forced = match std::env::var("HASH") {
        Ok(_) => vec![(Place::Exact4, Structure::Hash)],
        _ => vec![],
    };
    let options = CompileOptions { forced, target: Target::V4, ..CompileOptions::default() };
    let classes = generation.classes.clone();
    lap("clone");
    let compiled = compile::compile_classes(&generation.cluster, &generation.scope, classes, &options).unwrap();
    lap("compile");
    let artifact = compiled.artifact(&generation.cluster, &options, |_| {}).unwrap();
    lap("artifact");
    let file = artifact.to_bytes().unwrap();
    lap("bytes");
    node.here(|| {
        let runtime = Runtime::open(&node.bpffs(), Access::Change).unwrap();
        let request = Request {
            artifact: &artifact,
            file: &file,
            endpoints: vec![("default/p0".into(), node.interface(0))],
            way: None,
            keep: None,
        };
        runtime.attach(&request).unwrap();
        lap("attach");
        runtime.reap().unwrap();
        lap("reap");
    });
    eprintln!();
}
