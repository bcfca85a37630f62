//! What an event costs the agent's index: pods of known classes that come and go, in clusters of two sizes.
//!
//! `cargo xtask bench events`. Each figure is CPU-bound and single-threaded; the time of a compile of the same cluster stands
//! beside it as the yardstick of the same run.

#![expect(clippy::print_stdout, reason = "a benchmark tells its figures")]

use std::time::{Duration, Instant};

use generate::{Size, snapshot};
use weir_compiler::decode::{Input, InputKind, Options, decode};
use weir_compiler::index::{Dirty, Index, Key};
use weir_compiler::k8s::{Body, Object};
use weir_compiler::model::Assumptions;

#[expect(dead_code, reason = "shared with xtask, which needs more of it")]
#[path = "../../xtask/src/generate.rs"]
mod generate;

const SIZES: [Size; 2] =
    [Size { pods: 2_000, policies: 1_000, namespaces: 20 }, Size { pods: 100_000, policies: 10_000, namespaces: 200 }];
const EVENTS: usize = 20_000;
const NODE: &str = "node-5";

fn main() {
    println!("{:<28} {:>12} {:>14} {:>14} {:>10}", "cluster", "compile ms", "pod comes, µs", "pod goes, µs", "single");
    for size in SIZES {
        let objects = objects(size);
        let mut index = Index::new(Some(NODE.to_owned()), Assumptions::default());
        objects.iter().for_each(|object| drop(index.apply(object.clone())));
        let start = Instant::now();
        index.compile().expect("it compiles");
        let compile = start.elapsed();
        let (comes, goes, single) = events(&mut index, &objects);
        let name = format!("{} pods, {} policies", size.pods, size.policies);
        let [comes, goes] = [comes, goes].map(|it| it.as_secs_f64() * 1e6 / EVENTS as f64);
        let compile = compile.as_secs_f64() * 1e3;
        println!("{name:<28} {compile:>12.1} {comes:>14.2} {goes:>14.2} {:>9.1}%", 100.0 * single);
    }
}

fn objects(size: Size) -> Vec<Object> {
    let bytes = snapshot(size).into_bytes();
    let input = Input { name: "snapshot".to_owned(), bytes, kind: InputKind::Manifest };
    decode(vec![input], &Options { default_namespace: "default".to_owned() }).0.objects
}

/// Copies of pods of other nodes, each with a name and an address of its own: how long they took to come and to go, and
/// how many of them were single entries.
fn events(index: &mut Index, objects: &[Object]) -> (Duration, Duration, f64) {
    let elsewhere = |it: &&Object| matches!(&it.body, Body::Pod(pod) if pod.node.as_deref() != Some(NODE));
    let pods: Vec<&Object> = objects.iter().filter(elsewhere).collect();
    let copies: Vec<Object> = (0..EVENTS).map(|number| copy(pods[number * 7_919 % pods.len()], number)).collect();
    let keys: Vec<Key> = copies.iter().map(Key::of).collect();
    let mut single = 0;
    let start = Instant::now();
    for object in copies {
        single += usize::from(matches!(index.apply(object), Dirty::Addresses(_)));
    }
    let comes = start.elapsed();
    let start = Instant::now();
    for key in &keys {
        single += usize::from(matches!(index.delete(key), Dirty::Addresses(_)));
    }
    (comes, start.elapsed(), single as f64 / (2 * EVENTS) as f64)
}

fn copy(pod: &Object, number: usize) -> Object {
    let mut object = pod.clone();
    object.meta.name = format!("copy-{number}");
    if let Body::Pod(pod) = &mut object.body {
        pod.addresses = vec![[172, 20, (number >> 8) as u8, number as u8].into()];
    }
    object
}
