//! Measures the way of a list from the API's text to programs in force on an interface, in the stages of the agent;
//! then that of the same list with one entry in a hundred replaced.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Instant;

use serde_json::{Value, json};
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::index::{Dirty, Index};
use weir_codegen::compile::{self, CompileOptions};
use weir_ebpf::target::Target;
use weir_fuzz::generators::Random;
use weir_model::Assumptions;
use weir_objects::address::{Family, to_address};
use weir_runtime::runtime::{PinAccess, Request, Runtime};
use weir_testing::yaml;

use super::{Kind, milliseconds, number};
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
status: {phase: Running, podIP: 10.9.0.16, podIPs: [{ip: 10.9.0.16}, {ip: 'fd09::10'}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: default}
spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}]}]}
";

/// Each time is the least of this number of runs.
const RUNS: usize = 5;

pub(super) fn rows(sets: &[(Kind, usize)]) -> Vec<Value> {
    let node = Node::new(Layout::Routed, 1);
    let mut rows = Vec::new();
    for family in [Family::V4, Family::V6] {
        for (kind, count) in sets {
            let mut best: Option<Stages> = None;
            for run in 0..RUNS {
                let now = stages(&node, family, *kind, *count, run as u64);
                best = Some(best.map_or(now, |before| before.least(now)));
            }
            rows.extend(best.map(|it| it.row(family, *kind, *count)));
        }
    }
    rows
}

/// Milliseconds: to read the list, to find classes, to lay out and link, to bring the result into force; then, for the
/// changed list, to read it, to find the changes that it requires, to bring these into force.
#[derive(Clone, Copy)]
struct Stages([f64; 7]);

impl Stages {
    fn least(self, other: Self) -> Self {
        let total = |it: &Self| it.0[1..4].iter().sum::<f64>();
        let changed = |it: &Self| it.0[5..].iter().sum::<f64>();
        let [mut first, second] = if total(&self) <= total(&other) { [self, other] } else { [other, self] };
        if changed(&second) < changed(&first) {
            first.0[4..].copy_from_slice(&second.0[4..]);
        }
        first
    }

    fn row(self, family: Family, kind: Kind, count: usize) -> Value {
        let Self([read, classify, lay_out, install, read_again, judge, write]) = self;
        let (total, changed) = (classify + lay_out + install, judge + write);
        println!(
            "IPv{} {count:>9} {:<17} read {read:6.1} │ classes {classify:6.1} + layout {lay_out:6.1} + in force {install:6.1} = \
             {total:6.1} ms │ 1 %: read {read_again:6.1} │ judge {judge:6.1} + in force {write:6.1} = {changed:6.1} ms",
            number(family),
            kind.name(),
        );
        json!({
            "what": "agent", "family": number(family), "set": kind.name(), "entries": count, "read_ms": read,
            "classify_ms": classify, "lay_out_ms": lay_out, "install_ms": install, "in_force_ms": total,
            "changed_read_ms": read_again, "judge_ms": judge, "write_ms": write, "changed_ms": changed,
        })
    }
}

fn stages(node: &Node, family: Family, kind: Kind, count: usize, seed: u64) -> Stages {
    let mut index = Index::new(Some("here".to_owned()), Assumptions::default());
    yaml::objects(CLUSTER).into_iter().for_each(|object| _ = index.apply(object));
    let texts = [0, count / 100].map(|skipped| list(family, kind, count, seed, skipped));
    let [(read, first), (read_again, changed)] = texts.map(|text| timed(|| yaml::objects(&text).remove(0)));
    index.apply(first);
    let [classify, lay_out, install] = generation(node, &mut index);
    let (judge, dirty) = timed(|| index.apply(changed));
    let (judge, write) = match dirty {
        Dirty::Addresses(changes) => {
            let changes: Vec<_> = changes.entries.iter().map(|(at, peer)| (*at, peer.map(|it| it.0))).collect();
            let write = || node.here(|| timed(|| runtime(node).write_addresses(&changes, true).unwrap()).0);
            (judge, write())
        }
        _ => {
            let [classify, lay_out, install] = generation(node, &mut index);
            (judge + classify + lay_out, install)
        }
    };
    Stages([read, classify, lay_out, install, read_again, judge, write])
}

/// Makes a generation in the same way as the agent.
fn generation(node: &Node, index: &mut Index) -> [f64; 3] {
    let (classify, generation) = timed(|| index.compile().unwrap());
    let (lay_out, (artifact, file)) = timed(|| {
        let forced = vec![(LookupSet::Exact4, Structure::Layered), (LookupSet::Exact6, Structure::Layered)];
        let options = CompileOptions { forced, target: Target::V4, ..CompileOptions::default() };
        let classes = generation.classes.clone();
        let compiled = compile::compile_classes(&generation.cluster, &generation.scope, classes, &options).unwrap();
        let artifact = compiled.artifact(&generation.cluster, &options, |_| {}).unwrap();
        let file = artifact.to_bytes().unwrap();
        (artifact, file)
    });
    let endpoints = vec![("default/p0".to_owned(), node.interface(0))];
    let request = Request {
        artifact: &artifact,
        file: &file,
        endpoints,
        uplinks: Vec::new(),
        way: None,
        keep: None,
        exact: None,
        extends: None,
    };
    let install = node.here(|| {
        let runtime = runtime(node);
        let (install, _) = timed(|| runtime.attach(&request).unwrap());
        // The replaced generation is removed outside of the measured time.
        runtime.reap().unwrap();
        install
    });
    [classify, lay_out, install]
}

fn runtime(node: &Node) -> Runtime {
    Runtime::open(&node.bpffs(), PinAccess::Change).unwrap()
}

fn timed<T>(what: impl FnOnce() -> T) -> (f64, T) {
    let begun = Instant::now();
    let made = what();
    (milliseconds(begun), made)
}

/// The entries after the first `skipped` ones of an endless sequence.
fn list(family: Family, kind: Kind, count: usize, seed: u64, skipped: usize) -> String {
    let mut random = Random::new(seed);
    let head = r#"{"apiVersion":"weir.dev/v1alpha1","kind":"CidrList","metadata":{"name":"bad"},"spec":{"action":"Deny","cidrs":["#;
    let mut text = head.to_owned();
    for index in 0..count + skipped {
        let wide = u128::from(random.number()) << 64 | u128::from(random.number());
        let number = match family {
            Family::V4 => 0x0b00_0000 + (wide & 0x7fff_ffff),
            Family::V6 => 0x2000 << 112 | wide >> 16,
        };
        if index < skipped {
            continue;
        }
        let comma = if index == skipped { "" } else { "," };
        _ = match (kind, to_address(family, number)) {
            (Kind::Singles, address) => write!(text, "{comma}\"{address}\""),
            (Kind::Prefixes, IpAddr::V4(_)) => write!(text, "{comma}\"{}/24\"", to_address(family, number & !0xff)),
            (Kind::Prefixes, IpAddr::V6(_)) => write!(text, "{comma}\"{}/48\"", to_address(family, number >> 80 << 80)),
        };
    }
    text + "]}}"
}
