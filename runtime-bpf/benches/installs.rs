//! The cost of bringing a generation into force on a node with 110 pods in a cluster of 10,000 pods and 1,000 policies:
//! after a change that leaves the programs as they are, after one that does not, and after a service has come, which
//! extends the generation in force. And the cost of a new pod that has the policies of another one.
//!
//! The figures are medians, and CPU time is that of this process, with the kernel's work in its system calls. With
//! `WEIR_BENCH_JSON`, they are written to that file; with `WEIR_BENCH_OPERATIONS`, the time of each kind of operation
//! is printed.

#![expect(clippy::print_stdout, reason = "a benchmark tells its figures")]

#[expect(dead_code, reason = "shared with tests, which need more of it")]
#[path = "../tests/enforce/net.rs"]
mod net;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use net::{Layout, Node};
use serde_json::{Value, json};
use weir_artifact::entries::MapEntries;
use weir_artifact::layout::endpoint;
use weir_artifact::{Artifact, Digest};
use weir_classes::Limits;
use weir_classes::index::{Generation, Index};
use weir_codegen::compile::{CompileOptions, compile_after};
use weir_codegen::last::LastArtifact;
use weir_codegen::structures::Room;
use weir_ebpf::target::Target;
use weir_model::Assumptions;
use weir_objects::k8s::Object;
use weir_runtime::HookKind;
use weir_runtime::runtime::{ComingPod, ExactPods, PinAccess, Request, Runtime};
use weir_runtime::sys::cpu_time;
use weir_runtime::sys::netlink::NetlinkSocket;
use weir_runtime::system::{Operation, System};
use weir_testing::yaml::objects;
use xtask::generate::{ClusterSize, snapshot};

const SIZE: ClusterSize = ClusterSize { pods: 10_000, policies: 1_000, namespaces: 20, tiers: 0 };
const NODE: &str = "node-5";
const PODS: std::ops::Range<usize> = 550..660;
/// The number of generations that take turns. With two, the spare would always have the programs of the next one.
const GENERATIONS: usize = 3;
const TURNS: usize = 24;
/// The first ones make the two banks.
const WARM_UP: usize = 4;

/// An artifact, its file, and the row table that it extends.
struct Made {
    artifact: Artifact,
    file: Vec<u8>,
    extends: Option<MapEntries>,
}

fn main() {
    if let Err(reason) = net::possible() {
        return eprintln!("nothing is brought into force: {reason}");
    }
    let mut index = Index::new(Some(NODE.to_owned()), Assumptions::default());
    objects(&snapshot(SIZE)).into_iter().for_each(|object| drop(index.apply(object)));
    let generations: [Generation; GENERATIONS] = std::array::from_fn(|number| {
        drop(index.apply(one_more(number)));
        index.compile().expect("it compiles")
    });
    let same = CompileOptions::for_changes(Target::V4);
    let other = CompileOptions { room: Room::Exact, ..same.clone() };
    let rows = [("other programs", &other), ("the same programs", &same)].map(|(what, options)| {
        let mut last = LastArtifact::default();
        let made = generations.each_ref().map(|generation| artifact_after(generation, options, &mut last));
        assert_eq!(codes(&made), if options.room == Room::Exact { GENERATIONS } else { 1 }, "{what}");
        row(what, &made)
    });
    let pods = local_pods(&artifact(&generations[0], &same));
    let rows = rows.into_iter().chain([row("extended tables", &services(&mut index, &same)), pods]).collect::<Vec<_>>();
    if let Some(path) = std::env::var_os("WEIR_BENCH_JSON") {
        std::fs::write(path, serde_json::to_string_pretty(&rows).expect("JSON") + "\n")
            .expect("the file can be written");
    }
}

/// A policy that isolates the pods of this node in one namespace.
fn one_more(number: usize) -> Object {
    let (namespace, port) = (10 + number, 20_000 + 10 * number);
    objects(&format!(
        r#"{{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{{"name":"more-{number}","namespace":"team-{namespace}"}},"spec":{{"podSelector":{{}},"ingress":[{{"from":[{{"podSelector":{{"matchLabels":{{"tier":"web"}}}}}}],"ports":[{{"port":{port}}}]}}]}}}}"#
    ))
    .remove(0)
}

fn artifact(generation: &Generation, options: &CompileOptions) -> Made {
    artifact_after(generation, options, &mut LastArtifact::default())
}

fn artifact_after(generation: &Generation, options: &CompileOptions, last: &mut LastArtifact) -> Made {
    let Generation { cluster, scope, classes, .. } = generation;
    let compiled = compile_after(cluster, scope, classes.clone(), options, last).expect("it compiles");
    let extends = compiled.extended_rows.clone().filter(|_| generation.is_incremental);
    let artifact = compiled.artifact(cluster, options, |_| ()).expect("an artifact");
    let file = artifact.to_bytes().expect("a file");
    Made { artifact, file, extends }
}

/// The number of different programs.
fn codes(made: &[Made]) -> usize {
    made.iter().map(|made| made.artifact.code_digest()).collect::<BTreeSet<Digest>>().len()
}

/// A generation for each of some services that come one after the other.
fn services(index: &mut Index, options: &CompileOptions) -> Vec<Made> {
    let mut last = LastArtifact::default();
    let made = (0..TURNS).map(|number| {
        objects(&service(number)).into_iter().for_each(|object| drop(index.apply(object)));
        let changed = index.begin_changes().and_then(|draft| draft.classify_within(Limits::NONE));
        let mut generation = changed.unwrap_or_else(|_| index.begin().classify().expect("it compiles"));
        let made = artifact_after(&generation, options, &mut last);
        index.adopt(&mut generation);
        made
    });
    let made: Vec<Made> = made.collect();
    assert_eq!(codes(&made), 1, "the services have the same ports");
    assert!(made.iter().skip(1).all(|it| it.extends.is_some()), "each service extends the generation before");
    made
}

/// A service whose backends are some pods of a namespace.
fn service(number: usize) -> String {
    let namespace = format!("team-{}", number % SIZE.namespaces);
    format!(
        r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"more-{number}","namespace":"{namespace}"}},"spec":{{"clusterIP":"10.96.0.{}","selector":{{"tier":"web"}},"ports":[{{"port":80,"targetPort":8080}}]}}}}"#,
        number + 1
    )
}

/// The number and the CPU time of the operations of each kind. An operation lasts until the next one begins.
#[derive(Default)]
struct Operations {
    of: BTreeMap<Operation, (usize, Duration)>,
    last: Option<(Operation, Duration)>,
}

impl Operations {
    fn begin(&mut self, operation: Option<Operation>) {
        if let Some((before, since)) = self.last.take() {
            let (count, time) = self.of.entry(before).or_default();
            *count += 1;
            *time += cpu_time() - since;
        }
        self.last = operation.map(|it| (it, cpu_time()));
    }

    fn add(&mut self, mut other: Self) {
        other.begin(None);
        for (operation, (count, time)) in other.of {
            let (all, total) = self.of.entry(operation).or_default();
            *all += count;
            *total += time;
        }
    }
}

/// Generations that come into force in turn.
fn row(what: &str, made: &[Made]) -> Value {
    measure(what, PODS, |runtime, turn| attach(runtime, &made[turn % made.len()]))
}

/// Pods that come one after the other.
fn local_pods(made: &Made) -> Value {
    let comes = |runtime: &Runtime, number: usize| {
        let interface = format!("bare{number}");
        let found = NetlinkSocket::open().and_then(|netlink| netlink.interface_named(&interface));
        let like = &made.artifact.endpoints[number % made.artifact.endpoints.len()];
        let subject = like.value[endpoint::SUBJECT as usize..].first_chunk().expect("it has a class");
        let pod = ComingPod {
            pod: format!("team-0/new-{number}"),
            uid: Some(format!("uid-{number}")),
            ifindex: found.expect("it exists").ifindex,
            interface,
            addresses: vec![Ipv4Addr::from(0x0a80_0000 + number as u32).into()],
            like: like.pod(),
            subject: u32::from_le_bytes(*subject),
        };
        runtime.add_pod(&pod, Some(HookKind::Tcx)).expect("it comes");
    };
    measure("a local pod", PODS.start..PODS.end + TURNS, |runtime, turn| match turn {
        0 => attach(runtime, made),
        _ => comes(runtime, PODS.end + turn),
    })
}

/// The times of some steps on a new node with these interfaces.
fn measure(what: &str, interfaces: std::ops::Range<usize>, mut step: impl FnMut(&Runtime, usize) + Send) -> Value {
    let node = Node::new(Layout::Routed, 0);
    let links =
        interfaces.map(|pod| format!("link add bare{pod} type veth peer name other{pod}\nlink set bare{pod} up\n"));
    node.batch(&links.collect::<String>());
    let operations = Arc::new(Mutex::new(Operations::default()));
    let (mut cpu, mut wall, mut reap, mut measured) = (Vec::new(), Vec::new(), Vec::new(), Operations::default());
    node.here(|| {
        let seen = Arc::clone(&operations);
        let watch = move |operation| {
            seen.lock().expect("no panic").begin(Some(operation));
            None
        };
        // The watch takes as long as a short system call.
        let is_watched = std::env::var_os("WEIR_BENCH_OPERATIONS").is_some();
        let system = if is_watched { System::with_faults(Box::new(watch)) } else { System::open() };
        let system = system.expect("the kernel");
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).expect("a directory");
        let runtime = runtime.one_by_one().keeping().expect("no record");
        for turn in 0..TURNS {
            let (begun, used) = (Instant::now(), cpu_time());
            step(&runtime, turn);
            let seen = std::mem::take(&mut *operations.lock().expect("no panic"));
            if turn >= WARM_UP {
                cpu.push(cpu_time() - used);
                wall.push(begun.elapsed());
                measured.add(seen);
            }
            let used = cpu_time();
            runtime.reap().expect("it is removed");
            *operations.lock().expect("no panic") = Operations::default();
            reap.push(cpu_time() - used);
        }
        runtime.detach(None).expect("everything is removed");
    });
    if std::env::var_os("WEIR_BENCH_OPERATIONS").is_some() {
        for (operation, (count, time)) in &measured.of {
            let turns = TURNS - WARM_UP;
            println!("  {operation:?}: {} times, {:.2} ms", count / turns, milliseconds(*time) / turns as f64);
        }
    }
    let [cpu, wall, reap] = [cpu, wall, reap].map(median);
    println!("{what}: {cpu:.2} ms of CPU time, {wall:.1} ms; afterwards {reap:.1} ms of CPU time");
    json!({"what": what, "cpu_ms": cpu, "wall_ms": wall, "after_ms": reap})
}

fn attach(runtime: &Runtime, made: &Made) {
    let Made { artifact, file, extends } = made;
    let endpoints: Vec<_> =
        PODS.map(|pod| (format!("team-{}/pod-{pod}", pod % SIZE.namespaces), format!("bare{pod}"))).collect();
    let uids = endpoints.iter().map(|(pod, _)| (pod.clone(), pod.clone())).collect();
    let exact = Some(ExactPods { closed: Vec::new(), uids });
    let way = Some(HookKind::Tcx);
    let request =
        Request { artifact, file, endpoints, uplinks: Vec::new(), way, keep: None, exact, extends: extends.as_ref() };
    runtime.attach(&request).expect("it comes into force");
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    milliseconds(times[times.len() / 2])
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
