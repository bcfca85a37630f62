//! The agent's cost of an event: pods of known classes that come and go, policies that change, in clusters of several
//! sizes.
//!
//! `cargo xtask bench events`. Each figure is CPU-bound and single-threaded. A changed policy takes all of the agent's
//! steps except for the kernel's: the index, new classes for everything, tables, programs, the file. With
//! `WEIR_BENCH_JSON`, the same figures are written to that file.

#![expect(clippy::print_stdout, reason = "a benchmark tells its figures")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_classes::Limits;
use weir_classes::index::{Dirty, Generation, Index, Key};
use weir_codegen::compile;
use weir_codegen::last::LastArtifact;
use weir_model::Assumptions;
use weir_objects::address::Prefix;
use weir_objects::k8s::{
    Body, LabelSelector, NetworkPolicy, Object, Operator, PolicyPeer, PolicyPort, PortMatch, Protocol, Requirement,
    SliceEndpoint,
};
use weir_testing::yaml::objects;
use xtask::generate::{ClusterSize, snapshot};

const SIZES: [ClusterSize; 6] = [
    ClusterSize { pods: 2_000, policies: 1_000, namespaces: 20, tiers: 0 },
    ClusterSize { pods: 10_000, policies: 10, namespaces: 20, tiers: 0 },
    ClusterSize { pods: 10_000, policies: 100, namespaces: 20, tiers: 0 },
    ClusterSize { pods: 10_000, policies: 1_000, namespaces: 20, tiers: 0 },
    ClusterSize { pods: 10_000, policies: 10_000, namespaces: 20, tiers: 0 },
    ClusterSize { pods: 100_000, policies: 10_000, namespaces: 200, tiers: 0 },
];
const EVENTS: usize = 20_000;
const NODE: &str = "node-5";
/// The number of policies that change, one after the other.
const CHANGES: usize = 5;
/// The number of changes of each kind for which the whole time is measured.
const WHOLE: usize = 15;
const SERVICES: usize = 200;
/// The number of backends of a service.
const BACKENDS: usize = 50;

fn main() {
    println!(
        "{:<28} {:>12} {:>14} {:>14} {:>10} {:>12} {:>12}",
        "cluster", "compile ms", "pod comes, µs", "pod goes, µs", "single", "classify ms", "emit ms"
    );
    let mut rows = Vec::new();
    // `cargo bench` passes `--bench`. A number selects the clusters with this number of pods.
    let pods_wanted: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let wanted = |size: &ClusterSize| pods_wanted.is_empty() || pods_wanted.contains(&size.pods);
    for ClusterSize { pods, policies, namespaces, tiers } in SIZES.into_iter().filter(wanted) {
        let objects = objects(&snapshot(ClusterSize { pods, policies, namespaces, tiers }));
        let mut index = Index::new(Some(NODE.to_owned()), Assumptions::default());
        objects.iter().for_each(|object| drop(index.apply(object.clone())));
        let start = Instant::now();
        index.compile().expect("it compiles");
        let compile = start.elapsed().as_secs_f64() * 1e3;
        let (comes, goes, single) = events(&mut index, &objects);
        let [comes, goes] = [comes, goes].map(|it| it.as_secs_f64() * 1e6 / EVENTS as f64);
        let [classify, emit] = changes(&mut index, &objects).map(|it| it.as_secs_f64() * 1e3);
        let name = format!("{pods} pods, {policies} policies");
        println!(
            "{name:<28} {compile:>12.1} {comes:>14.2} {goes:>14.2} {:>9.1}% {classify:>12.1} {emit:>12.1}",
            100.0 * single
        );
        let edits = edits(&mut index, &objects).map(|(kind, [classes, emit])| {
            println!("{:<28} {classes:>12.2} {emit:>12.2}", format!("  {kind}: classes, emit, ms"));
            format!(r#""{kind}_classes_ms": {classes:.2}, "{kind}_emit_ms": {emit:.2}"#)
        });
        let edits = edits.join(", ");
        let whole = whole(&mut index, &objects).map(|(kind, [half, most])| {
            println!("{:<28} {half:>12.1} {most:>12.1}", format!("  {kind}: p50, p99, ms"));
            format!(r#""{kind}_p50_ms": {half:.2}, "{kind}_p99_ms": {most:.2}"#)
        });
        let more = applied_objects(&mut index, &objects).map(|(kind, [classes, emit])| {
            println!("{:<28} {classes:>12.2} {emit:>12.2}", format!("  {kind}: classes, emit, ms"));
            format!(r#""{kind}_classes_ms": {classes:.2}, "{kind}_emit_ms": {emit:.2}"#)
        });
        let edits = format!("{edits}, {}", more.join(", "));
        let small = small(&mut index, &objects).map(|(kind, time, share)| {
            println!("{:<28} {time:>12.2} {:>11.1}%", format!("  {kind}: µs, without compile"), 100.0 * share);
            format!(r#""{kind}_us": {time:.2}, "{kind}_small": {share:.4}"#)
        });
        let (whole, memory) = (whole.join(", "), resident());
        let whole = format!("{whole}, {}", small.join(", "));
        rows.push(format!(
            r#"{{"pods": {pods}, "policies": {policies}, "compile_ms": {compile:.2}, "pod_comes_us": {comes:.3}, "pod_goes_us": {goes:.3}, "single": {single:.4}, "classify_ms": {classify:.2}, "emit_ms": {emit:.2}, {edits}, {whole}, "memory_mib": {memory:.1}}}"#
        ));
    }
    if let Some(path) = std::env::var_os("WEIR_BENCH_JSON") {
        std::fs::write(path, format!("[\n{}\n]\n", rows.join(",\n"))).expect("the file can be written");
    }
}

/// Changes of other objects that are applied to the generation in force, in a cluster with services: a backend leaves a
/// service, a service comes, a pod of another node that is a backend gets other labels.
fn applied_objects(index: &mut Index, objects: &[Object]) -> [(&'static str, [f64; 2]); 3] {
    let slices: Vec<Object> = index.of_kind("EndpointSlice").map(without_one).collect();
    let services: Vec<Object> =
        services(objects).into_iter().filter(|it| matches!(it.body, Body::Service(_))).collect();
    let services = (0..).zip(&services).map(|(number, service)| {
        let mut service = service.clone();
        service.meta.name = format!("more-{number}");
        if let Body::Service(body) = &mut service.body {
            body.cluster_addresses = vec![[10, 97, 0, number].into()];
        }
        Change::Apply(service)
    });
    let elsewhere = objects.iter().filter(|it| matches!(&it.body, Body::Pod(pod) if pod.node.as_deref() != Some(NODE)));
    let labels: Vec<_> = elsewhere.clone().map(|it| it.meta.labels.clone()).take(1_000).collect();
    let relabelled = elsewhere.zip(labels.iter().cycle().skip(500)).map(|(pod, labels)| {
        let mut pod = pod.clone();
        pod.meta.labels = labels.clone();
        Change::Apply(pod)
    });
    [
        ("slice_applied", applied(index, slices.into_iter().map(Change::Apply))),
        ("service_applied", applied(index, services)),
        ("backend_relabelled", applied(index, relabelled)),
    ]
}

/// Changes that need no generation: the time of each kind in microseconds, and the fraction that indeed needed none.
/// The cluster has services now.
fn small(index: &mut Index, objects: &[Object]) -> [(&'static str, f64, f64); 3] {
    let moves = index.of_kind("EndpointSlice").filter_map(|slice| rolled(slice, objects)).collect::<Vec<_>>();
    let local = |it: &&Object| matches!(&it.body, Body::Pod(pod) if pod.node.as_deref() == Some(NODE));
    let reported = objects.iter().filter(local).map(|pod| {
        let mut pod = pod.clone();
        if let Body::Pod(pod) = &mut pod.body {
            pod.unready = !pod.unready;
        }
        pod
    });
    let namespaces = objects.iter().filter(|it| matches!(it.body, Body::Namespace)).map(|namespace| {
        let mut namespace = namespace.clone();
        let mut labels = (*namespace.meta.labels).clone();
        labels.insert("example.org/label", "of-no-policy");
        namespace.meta.labels = labels.into();
        namespace
    });
    let (reported, namespaces) = (reported.collect(), namespaces.collect());
    [("slice_moves", moves), ("local_pod_reported", reported), ("namespace_labelled", namespaces)].map(
        |(kind, changes): (_, Vec<Object>)| {
            let (count, start) = (changes.len() as f64, Instant::now());
            let small = changes.into_iter().map(|it| index.apply(it)).filter(|it| *it != Dirty::Everything).count();
            (kind, start.elapsed().as_secs_f64() * 1e6 / count, small as f64 / count)
        },
    )
}

/// The slice as after a step of a rolling update: a pod of another node with the same labels replaces its first
/// endpoint that is not local.
fn rolled(slice: &Object, objects: &[Object]) -> Option<Object> {
    let pods = || objects.iter().filter(|it| matches!(&it.body, Body::Pod(pod) if pod.node.as_deref() != Some(NODE)));
    let addresses = |it: &Object| match &it.body {
        Body::Pod(pod) => pod.addresses.clone(),
        _ => Vec::new(),
    };
    let mut slice = slice.clone();
    let Body::EndpointSlice(body) = &mut slice.body else { return None };
    let is_among = |it: &Object| body.endpoints.iter().any(|endpoint| endpoint.addresses == addresses(it));
    let at = |endpoint: &SliceEndpoint| pods().find(|pod| addresses(pod) == endpoint.addresses);
    let (index, old) = body.endpoints.iter().enumerate().find_map(|(index, it)| Some((index, at(it)?)))?;
    let kind = |it: &Object| (it.meta.namespace.clone(), it.meta.labels.clone());
    let new = pods().find(|it| kind(it) == kind(old) && !is_among(it))?;
    body.endpoints[index].addresses = addresses(new);
    body.endpoints[index].pod = Some((new.meta.namespace.clone(), new.meta.name.clone()));
    Some(slice)
}

/// Resident memory of this process, in MiB: the objects as text and as values, the index, and one generation.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|it| it.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1_024.0
}

/// Changes of each kind that need a generation, in a cluster with services: the median and the 99th percentile of the
/// time until the file is written, in milliseconds.
fn whole(index: &mut Index, objects: &[Object]) -> [(&'static str, [f64; 2]); 3] {
    let with_services = services(objects);
    with_services.iter().for_each(|object| drop(index.apply(object.clone())));
    index.compile().expect("it compiles");
    let slices: Vec<&Object> = with_services.iter().filter(|it| matches!(it.body, Body::EndpointSlice(_))).collect();
    let slices = (0..WHOLE).map(|turn| Change::Apply(without_one(slices[turn % slices.len()])));
    let local = |it: &&Object| matches!(&it.body, Body::Pod(pod) if pod.node.as_deref() == Some(NODE));
    let local = objects.iter().find(local).expect("the node has pods");
    let pods = (0..WHOLE).map(|turn| {
        let pod = copy(local, EVENTS + turn / 2);
        if turn % 2 == 0 { Change::Apply(pod) } else { Change::Delete(Key::of(&pod)) }
    });
    let all: Vec<&Object> = objects.iter().filter(|it| matches!(it.body, Body::NetworkPolicy(_))).collect();
    let policies = (0..WHOLE).map(|turn| {
        let (mut changed, other) = (all[turn % all.len()].clone(), all[(turn + 3) % all.len()]);
        changed.body = other.body.clone();
        Change::Apply(changed)
    });
    [
        ("slice", percentiles(index, slices)),
        ("local_pod", percentiles(index, pods)),
        ("policy", percentiles(index, policies)),
    ]
}

enum Change {
    Apply(Object),
    Delete(Key),
}

fn percentiles(index: &mut Index, changes: impl Iterator<Item = Change>) -> [f64; 2] {
    let mut times: Vec<Duration> = Vec::new();
    for change in changes {
        let start = Instant::now();
        match change {
            Change::Apply(object) => drop(index.apply(object)),
            Change::Delete(key) => drop(index.delete(&key)),
        }
        let Generation { cluster, scope, classes, .. } = index.compile().expect("it compiles");
        let options = compile::CompileOptions::default();
        let compiled = compile::compile_classes(&cluster, &scope, classes, &options).expect("it compiles");
        let artifact = compiled.artifact(&cluster, &options, |_| ()).expect("an artifact");
        std::hint::black_box(artifact.to_bytes().expect("a file"));
        times.push(start.elapsed());
    }
    times.sort();
    [times.len() / 2, times.len() * 99 / 100].map(|at| times[at].as_secs_f64() * 1e3)
}

/// Services with a slice each, whose backends are pods of the cluster.
fn services(objects: &[Object]) -> Vec<Object> {
    let address = |it: &Object| match &it.body {
        Body::Pod(pod) => Some((*pod.addresses.first()?, it.meta.namespace.to_string(), it.meta.name.clone())),
        _ => None,
    };
    let pods: Vec<_> = objects.iter().filter_map(address).collect();
    let of = |number: usize| {
        let backends = (0..BACKENDS).map(|it| &pods[(number * BACKENDS + it) * 31 % pods.len()]);
        let endpoint = |(at, namespace, name): &(IpAddr, String, String)| {
            format!(
                r#"{{"addresses":["{at}"],"targetRef":{{"kind":"Pod","namespace":"{namespace}","name":"{name}"}}}}"#
            )
        };
        let endpoints: Vec<String> = backends.map(endpoint).collect();
        let (namespace, name) = (format!("team-{}", number % 20), format!("s{number}"));
        format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"{namespace}"}},"spec":{{"clusterIP":"10.96.{}.{}","ports":[{{"port":80,"targetPort":8080}}]}}}}
{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"{name}-1","namespace":"{namespace}","labels":{{"kubernetes.io/service-name":"{name}"}}}},"addressType":"IPv4","ports":[{{"port":8080}}],"endpoints":[{}]}}"#,
            number / 250,
            number % 250 + 1,
            endpoints.join(",")
        )
    };
    weir_testing::yaml::objects(&(0..SERVICES).map(of).collect::<Vec<_>>().join("\n"))
}

/// The slice without its first endpoint.
fn without_one(slice: &Object) -> Object {
    let mut slice = slice.clone();
    if let Body::EndpointSlice(body) = &mut slice.body {
        body.endpoints.remove(0);
    }
    slice
}

/// Changes policies. Returns the median time until the classes are known, and from then on until the file is written.
fn changes(index: &mut Index, objects: &[Object]) -> [Duration; 2] {
    let policies = objects.iter().filter(|it| matches!(it.body, Body::NetworkPolicy(_)));
    let (mut classified, mut emitted) = (Vec::new(), Vec::new());
    let policies: Vec<&Object> = policies.collect();
    for turn in 0..CHANGES {
        let (mut changed, other) = (policies[turn % policies.len()].clone(), policies[(turn + 1) % policies.len()]);
        changed.body = other.body.clone();
        let start = Instant::now();
        index.apply(changed);
        let generation = index.compile().expect("it compiles");
        classified.push(start.elapsed());
        let start = Instant::now();
        let options = compile::CompileOptions::default();
        let Generation { cluster, scope, classes, .. } = &generation;
        let compiled = compile::compile_classes(cluster, scope, classes.clone(), &options).expect("it compiles");
        let artifact = compiled.artifact(cluster, &options, |_| ()).expect("an artifact");
        std::hint::black_box(artifact.to_bytes().expect("a file"));
        emitted.push(start.elapsed());
    }
    [classified, emitted].map(|mut all| {
        all.sort();
        all[CHANGES / 2]
    })
}

/// Changes that are applied to the generation in force: the median times until the classes are known, and from then on
/// until the file is written, in milliseconds.
fn edits(index: &mut Index, objects: &[Object]) -> [(&'static str, [f64; 2]); 8] {
    let policies = || objects.iter().filter(|it| matches!(it.body, Body::NetworkPolicy(_)));
    policies().for_each(|policy| _ = index.apply(policy.clone()));
    index.compile().expect("it compiles");
    let with_port = (0..).zip(policies()).map(|(number, policy)| {
        edited(policy, |body| {
            let port = PolicyPort { protocol: Protocol::Tcp, port: PortMatch::Range(7_000 + number, 7_000 + number) };
            body.egress.last_mut().expect("a rule").ports.push(port);
        })
    });
    let new = |number: usize, policy: &Object| {
        let mut policy = edited(policy, |body| {
            let values = vec![format!("app-{}", number % 40), "none".to_owned()];
            let requirement = Requirement { key: "app".to_owned(), operator: Operator::In, values };
            let pods = Some(LabelSelector { match_expressions: vec![requirement], ..LabelSelector::default() });
            body.ingress.last_mut().expect("a rule").peers = vec![PolicyPeer::Pods { pods, namespaces: None }];
        });
        policy.meta.name = format!("new-{number}");
        policy
    };
    let new: Vec<Object> = policies().enumerate().map(|(number, policy)| new(number, policy)).collect();
    let deleted = new.iter().map(|policy| Change::Delete(Key::of(policy)));
    let moved = objects.iter().filter(|it| matches!(&it.body, Body::Pod(pod) if pod.node.as_deref() != Some(NODE)));
    let moved = (0..).zip(moved).map(|(number, pod)| {
        let mut pod = copy(pod, 2 * EVENTS + number);
        // The labels of one namespace in another: most of these pods are unlike all others.
        pod.meta.namespace = format!("team-{}", number % 20).into();
        Change::Apply(pod)
    });
    [
        ("port", applied(index, with_port.map(Change::Apply))),
        ("new_policy", applied(index, new.iter().cloned().map(Change::Apply))),
        ("deleted_policy", applied(index, deleted)),
        ("new_class", applied(index, moved)),
        ("block", applied(index, with_blocks(objects))),
        ("named_port", applied(index, with_names(objects))),
        ("list", {
            // All changes that are measured exchange a block.
            index.apply(list("ranges", 0));
            index.compile().expect("it compiles");
            applied(index, (1..).map(|number| Change::Apply(list("ranges", number))))
        }),
        ("new_list", applied(index, (0..).map(|number| Change::Apply(list(&format!("new-{number}"), number))))),
    ]
}

/// Policies with an egress rule for a new block, which contains pods.
fn with_blocks(objects: &[Object]) -> impl Iterator<Item = Change> {
    let policies = objects.iter().filter(|it| matches!(it.body, Body::NetworkPolicy(_)));
    (0..).zip(policies).map(|(number, policy)| {
        Change::Apply(edited(policy, |body| {
            let cidr = Prefix::new([10, number, 0, 0].into(), 17);
            let rule = body.egress.last_mut().expect("a rule");
            rule.peers.push(PolicyPeer::Block { cidr, except: Vec::new() });
        }))
    })
}

/// Policies with an egress rule for a new named port, which no pod has.
fn with_names(objects: &[Object]) -> impl Iterator<Item = Change> {
    let policies = objects.iter().filter(|it| matches!(it.body, Body::NetworkPolicy(_)));
    policies.enumerate().map(|(number, policy)| {
        Change::Apply(edited(policy, |body| {
            let port = PolicyPort { protocol: Protocol::Tcp, port: PortMatch::Named(format!("port-{number}")) };
            body.egress.last_mut().expect("a rule").ports.push(port);
        }))
    })
}

/// A list of 1,000 blocks. One of them is different for each number, and has too many addresses for single entries.
fn list(name: &str, number: u32) -> Object {
    let blocks = (1..1_000).map(|place| format!("\"198.{}.{}.0/25\"", 16 + place / 256, place % 256));
    let other = format!("\"172.{}.0.0/15\"", 2 * (number % 128));
    let cidrs: Vec<String> = blocks.chain([other]).collect();
    let spec = format!(r#"{{"action": "Deny", "cidrs": [{}]}}"#, cidrs.join(","));
    weir_testing::yaml::objects(&format!(
        r#"{{"apiVersion":"weir.dev/v1alpha1","kind":"CidrList","metadata":{{"name":"{name}"}},"spec":{spec}}}"#
    ))
    .remove(0)
}

fn edited(policy: &Object, edit: impl FnOnce(&mut NetworkPolicy)) -> Object {
    let mut policy = policy.clone();
    if let Body::NetworkPolicy(body) = &mut policy.body {
        edit(body);
    }
    policy
}

/// The median times of the changes that need a generation. As in the agent, each artifact takes equal parts from the one
/// before.
fn applied(index: &mut Index, changes: impl Iterator<Item = Change>) -> [f64; 2] {
    let (mut classified, mut emitted) = (Vec::new(), Vec::new());
    let (mut last, mut file) = (LastArtifact::default(), Vec::new());
    for change in changes {
        let start = Instant::now();
        let dirty = match change {
            Change::Apply(object) => index.apply(object),
            Change::Delete(key) => index.delete(&key),
        };
        if dirty != Dirty::Everything {
            continue;
        }
        let made = index.begin_changes().and_then(|draft| draft.classify_within(Limits::NONE));
        let Ok(mut generation) = made else {
            index.compile().expect("it compiles");
            continue;
        };
        index.adopt(&mut generation);
        classified.push(start.elapsed());
        let start = Instant::now();
        let options = agent_options();
        let Generation { cluster, scope, classes, .. } = &generation;
        let compiled = compile::compile_after(cluster, scope, classes.clone(), &options, &mut last);
        let artifact = compiled.expect("it compiles").into_artifact(cluster, &options, &mut last, |_| ());
        let artifact = artifact.expect("an artifact");
        artifact.write_to(&mut file).expect("a file");
        std::hint::black_box(&file);
        last.reuse(artifact);
        emitted.push(start.elapsed());
        if emitted.len() == WHOLE {
            break;
        }
    }
    [classified, emitted].map(|mut all| {
        all.sort();
        all.get(all.len() / 2).map_or(f64::NAN, |it| it.as_secs_f64() * 1e3)
    })
}

/// Adds and removes copies of pods of other nodes, each with a name and an address of its own. Returns the time to add
/// and to remove them, and the fraction that were single entries.
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

/// The agent's options.
fn agent_options() -> compile::CompileOptions {
    compile::CompileOptions::for_changes(compile::CompileOptions::default().target)
}
