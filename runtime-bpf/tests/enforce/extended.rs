//! A generation that is extended in force: a service or a pod with a class of its own comes, and no program is
//! exchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_artifact::Artifact;
use weir_artifact::entries::MapEntries;
use weir_artifact::layout::MapName;
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::Limits;
use weir_classes::index::Index;
use weir_codegen::compile::{CompileOptions, compile_after};
use weir_codegen::last::LastArtifact;
use weir_ebpf::target::Target;
use weir_model::Assumptions;
use weir_runtime::runtime::{Attached, ComingPod, EnforcementState, ExactPods, PinAccess, Request, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, HookKind, skip};
use weir_testing::yaml::objects;

use crate::attach::request;
use crate::faults::{all_is_well, errnos, places_to_test};
use crate::net::{Layout, Node, pod_address, possible};
use crate::pods::coming_like;
use crate::policy::{cluster, policy};
use crate::probe::{connect, is_alive, serve};
use crate::spare::{agent, pinned};
use crate::switch::converse_with;

const SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

/// Pod 0 is judged in both directions: it serves clients, and may reach servers and `default/steady`.
fn policies() -> String {
    let rules = "ingress: [{from: [{podSelector: {matchLabels: {client: a}}}], ports: [{port: 80}]}],
  egress: [{to: [{podSelector: {matchLabels: {server: a}}}, {podSelector: {matchLabels: {steady: a}}}],
    ports: [{port: 80}, {port: 7, protocol: UDP}]}]";
    policy(0, "Ingress, Egress", rules)
}

/// A pod of another node, at the addresses of this node's pod `index`.
fn remote(index: usize, name: &str, labels: &str) -> String {
    let [v4, v6] = [false, true].map(|it| pod_address(index, it));
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: default, labels: {{{labels}}}}}\nspec: {{nodeName: \
         there, containers: [{{name: c, image: i}}]}}\nstatus: {{phase: Running, podIP: {v4}, podIPs: [{{ip: {v4}}}, {{ip: \
         \"{v6}\"}}]}}\n---\n"
    )
}

/// A service whose only backend is pod 1.
fn service() -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: db, namespace: default}}\nspec: {{clusterIP: {SERVICE}, clusterIPs: \
         [{SERVICE}], ipFamilies: [IPv4], selector: {{server: a}}, ports: [{{port: 80, protocol: TCP}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: db-1, namespace: default, labels: \
         {{kubernetes.io/service-name: db}}}}\naddressType: IPv4\nports: [{{port: 80, protocol: TCP}}]\nendpoints: \
         [{{addresses: [{}], targetRef: {{kind: Pod, namespace: default, name: p1}}}}]\n---\n",
        pod_address(1, false)
    )
}

/// An artifact, its file, and the row table that it extends.
#[derive(Clone)]
struct Next {
    made: (Artifact, Vec<u8>),
    extends: Option<MapEntries>,
}

/// Ends other threads, also if this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Compiles one generation after the other, as the agent does.
struct Compiler {
    index: Index,
    options: CompileOptions,
    last: LastArtifact,
}

impl Compiler {
    fn new(yaml: &str) -> Self {
        let mut index = Index::new(Some("here".to_owned()), Assumptions::default());
        objects(yaml).into_iter().for_each(|object| drop(index.apply(object)));
        Self { index, options: CompileOptions::for_changes(Target::BASE), last: LastArtifact::default() }
    }

    /// The generation after these objects have come or changed.
    fn next(&mut self, yaml: &str) -> Next {
        objects(yaml).into_iter().for_each(|object| drop(self.index.apply(object)));
        let changed = self.index.begin_changes().and_then(|draft| draft.classify_within(Limits::NONE));
        let mut generation = changed.unwrap_or_else(|_| self.index.begin().classify().unwrap());
        let classes = generation.classes.clone();
        let made = compile_after(&generation.cluster, &generation.scope, classes, &self.options, &mut self.last);
        let mut compiled = made.unwrap();
        let extends = compiled.extended_rows.take().filter(|_| generation.is_incremental);
        self.index.adopt(&mut generation);
        let artifact = compiled.artifact(&generation.cluster, &self.options, |_| ()).unwrap();
        let file = artifact.to_bytes().unwrap();
        Next { made: (artifact, file), extends }
    }
}

/// The request for a generation at these pods.
fn asked<'n>(node: &Node, next: &'n Next, pods: &[usize]) -> Request<'n> {
    let endpoints = pods.iter().map(|pod| (format!("default/p{pod}"), node.interface(*pod))).collect();
    Request { endpoints, way: Some(HookKind::Tcx), extends: next.extends.as_ref(), ..request(&next.made) }
}

fn attach(runtime: &Runtime, node: &Node, next: &Next) -> Result<Attached, Error> {
    node.here(|| runtime.attach(&asked(node, next, &[0])))
}

/// The programs and maps in force.
fn in_force(node: &Node) -> BTreeSet<(bool, u32)> {
    &pinned(node, "progs") | &pinned(node, "maps")
}

/// A node on which pod 1 has the service's address, and pods 1 and 2 answer. Pod 2 is `default/steady`.
fn node() -> Node {
    let node = Node::new(Layout::Routed, 3);
    (0..3).for_each(|pod| serve(&node, pod, 80));
    node.ip(&format!("route add {SERVICE} dev {}", node.interface(1)));
    node.in_pod(1, || crate::net::must(&format!("ip addr add {SERVICE}/32 dev lo")));
    node
}

/// Everything that is in force from the beginning. There is a client, so the programs look for clients.
fn base() -> String {
    cluster(1, &policies()) + &remote(2, "steady", "steady: a") + &remote(9, "client", "client: a")
}

fn reaches(node: &Node, from: usize, to: IpAddr) -> bool {
    connect(node, from, to, 80).is_some()
}

#[test]
fn classes_that_come_extend_the_generation_in_force() {
    skip!(unless possible());
    let node = &node();
    let mut compiler = Compiler::new(&base());
    let (p0, p1, p2) = (pod_address(0, false), pod_address(1, false), pod_address(2, false));
    let (runtime, loads) = node.here(|| agent(node));
    attach(&runtime, node, &compiler.next("")).unwrap();
    let mut stream = connect(node, 0, p2, 80).expect("a steady peer is allowed");
    let (before, loaded) = (in_force(node), loads.load(Ordering::Relaxed));
    let mut epoch = runtime.epoch().unwrap();
    let expected = [
        // A change, and whether p0 then reaches pod 1 and the service, and pod 1 reaches p0.
        (remote(1, "p1", "server: a"), [true, false, false]),
        (service(), [true, true, false]),
        (remote(1, "p1", "server: a, client: a"), [true, true, true]),
        (remote(1, "p1", "client: a"), [false, false, true]),
    ];
    assert_eq!([reaches(node, 0, p1), reaches(node, 0, SERVICE), reaches(node, 1, p0)], [false; 3]);
    for (turn, (change, reached)) in expected.into_iter().enumerate() {
        let next = compiler.next(&change);
        let is_extended = next.extends.is_some();
        // The host may always send to its pods, also from an address that is new.
        node.ip(&format!("addr add 10.77.0.{turn}/32 dev lo"));
        let attached = attach(&runtime, node, &next).unwrap();
        assert_eq!([reaches(node, 0, p1), reaches(node, 0, SERVICE), reaches(node, 1, p0)], reached, "{turn}");
        assert!(is_alive(&mut stream) && reaches(node, 0, p2), "{turn}: a steady peer is allowed as before");
        assert!(attached.generation.epoch > epoch, "{turn}: flows are judged again");
        epoch = attached.generation.epoch;
        let now = node.here(|| runtime.status()).unwrap();
        assert_eq!((now.drift, now.generation.unwrap().epoch), (Vec::new(), epoch), "{turn}");
        assert_eq!(node.here(|| runtime.deviations()).unwrap().drift, Vec::<String>::new(), "{turn}");
        assert_eq!(runtime.artifact_in_force().unwrap(), Some(next.made.0), "{turn}");
        // The last change takes rights away from the service, whose class stays.
        assert_eq!(is_extended, turn < 3, "{turn}");
        if is_extended {
            assert_eq!(in_force(node), before, "{turn}: the programs and maps are the same");
            assert_eq!(loads.load(Ordering::Relaxed), loaded, "{turn}: no program is loaded");
        }
        node.here(|| runtime.reap()).unwrap();
        all_is_well(node, &format!("{turn}"));
    }
}

/// A compiler's first generation, and the next one with pod 1, which extends it.
fn pair() -> [Next; 2] {
    let mut compiler = Compiler::new(&base());
    let before = compiler.next("");
    let next = compiler.next(&(remote(1, "p1", "server: a") + &service()));
    assert!(next.extends.is_some());
    [before, next]
}

/// The next generation replaces the present one if it does not extend the one in force.
#[test]
fn only_the_generation_that_the_compiler_names_is_extended() {
    skip!(unless possible());
    let node = &node();
    let [before, next] = pair();
    // The same programs and one more class.
    let elsewhere = Compiler::new(&(base() + &remote(8, "both", "steady: a, client: a"))).next("");
    let without_name = Next { extends: None, ..next.clone() };
    let p1 = pod_address(1, false);
    let (runtime, _) = node.here(|| agent(node));
    let switch = |first: &Next, then: &Next| {
        attach(&runtime, node, first).unwrap();
        node.here(|| runtime.reap()).unwrap();
        assert!(!reaches(node, 0, p1));
        let there = in_force(node);
        attach(&runtime, node, then).unwrap();
        assert!(reaches(node, 0, p1) && reaches(node, 0, SERVICE));
        let is_extended = in_force(node) == there;
        node.here(|| runtime.reap()).unwrap();
        all_is_well(node, "after the switch");
        is_extended
    };
    assert!(switch(&before, &next));
    assert!(!switch(&elsewhere, &next), "the generation in force has other rows");
    assert!(!switch(&before, &without_name), "the compiler does not say that this one is extended");
    assert!(switch(&before, &next), "again, with a spare");

    // A single address was written and taken back, and another one stays: both are made as the artifact says.
    attach(&runtime, node, &before).unwrap();
    node.here(|| runtime.reap()).unwrap();
    node.here(|| runtime.write_addresses(&[(p1, Some(1)), (SERVICE, Some(1))], true)).unwrap();
    node.here(|| runtime.write_addresses(&[(p1, None), ([192, 0, 2, 1].into(), Some(1))], false)).unwrap();
    let there = in_force(node);
    attach(&runtime, node, &next).unwrap();
    assert!(in_force(node) == there && reaches(node, 0, p1) && reaches(node, 0, SERVICE));
    all_is_well(node, "after single writes");
    assert_eq!(node.here(|| runtime.deviations()).unwrap().drift, Vec::<String>::new());

    // Another process does not know what the tables have.
    attach(&runtime, node, &before).unwrap();
    node.here(|| runtime.reap()).unwrap();
    drop(runtime);
    let there = in_force(node);
    let (runtime, _) = node.here(|| agent(node));
    attach(&runtime, node, &next).unwrap();
    assert!(in_force(node) != there && reaches(node, 0, p1));
    node.here(|| runtime.reap()).unwrap();
    all_is_well(node, "after a restart");
}

/// A pod has come without a generation. The next artifact has it, and extends the generation with it.
#[test]
fn pods_that_came_alone_stay_when_their_generation_is_extended() {
    skip!(unless possible());
    let mut node = node();
    let pod = node.add_pod();
    serve(&node, pod, 80);
    let node = &node;
    let (p1, new) = (pod_address(1, false), pod_address(pod, false));
    let mut compiler = Compiler::new(&base());
    let before = compiler.next("");
    let (runtime, _) = node.here(|| agent(node));
    let install = |next: &Next, pods: &[usize]| {
        let exact = Some(ExactPods::default());
        node.here(|| runtime.attach(&Request { exact, ..asked(node, next, pods) })).unwrap()
    };
    install(&before, &[0]);
    let came = ComingPod { uid: None, ..coming_like(node, &before.made, pod, 0) };
    node.here(|| runtime.add_pod(&came, Some(HookKind::Tcx))).unwrap();
    let change = remote(pod, &format!("p{pod}"), "pod: p0").replace("nodeName: there", "nodeName: here");
    let next = compiler.next(&(change + &remote(1, "p1", "server: a")));
    assert!(!reaches(node, pod, p1) && !reaches(node, 1, new) && reaches(node, pod, pod_address(2, false)));
    assert!(install(&next, &[0, pod]).is_extended);
    assert!(reaches(node, 0, p1) && reaches(node, pod, p1), "both have the policy");
    assert!(!reaches(node, 1, new) && reaches(node, pod, pod_address(2, false)));
    all_is_well(node, "with the pod that came");
    let names = runtime.artifact_in_force().unwrap().unwrap().endpoints.into_iter().map(|it| it.name);
    assert_eq!(names.collect::<BTreeSet<_>>(), BTreeSet::from(["p0".to_owned(), format!("p{pod}")]));
}

/// A change of endpoints needs the switch: another interface of a pod, and a pod that is another one now.
#[test]
fn a_generation_with_other_endpoints_is_not_extended() {
    skip!(unless possible());
    let node = &node();
    let [before, next] = pair();
    let (runtime, _) = node.here(|| agent(node));
    let exact = |uid: &str| {
        Some(ExactPods { closed: Vec::new(), uids: BTreeMap::from([("default/p0".to_owned(), uid.to_owned())]) })
    };
    let install = |next: &Next, interface: Option<&str>, uid: &str| {
        let endpoints = interface.map(|it| ("default/p0".to_owned(), it.to_owned())).into_iter().collect();
        let asked = Request { endpoints, exact: exact(uid), ..asked(node, next, &[]) };
        let attached = node.here(|| runtime.attach(&asked)).unwrap();
        node.here(|| runtime.reap()).unwrap();
        attached.is_extended
    };
    let at = node.interface(0);
    assert!(!install(&before, Some(&at), "u0") && install(&next, Some(&at), "u0"));
    assert!(!install(&before, Some(&at), "u0") && !install(&next, None, "u1"), "its interface is not found yet");
    let state = crate::attach::status(node).unwrap().endpoints[0].state;
    assert_eq!(state, EnforcementState::Closed, "the interface belongs to the pod before");
    node.ip("link add other0 type veth peer name other1");
    assert!(!install(&before, Some(&at), "u0") && !install(&next, Some("other0"), "u0"), "another interface");
}

/// A pod gets the policies of another one. Only its own entry in the table of endpoints differs.
#[test]
fn a_pod_that_gets_other_policies_needs_a_switch() {
    skip!(unless possible());
    let node = &node();
    let free = |label: &str| remote(2, "p2", label).replace("nodeName: there", "nodeName: here");
    let others = remote(8, "steady", "steady: a") + &remote(9, "client", "client: a");
    let mut compiler = Compiler::new(&(cluster(2, &policies()) + &free("pod: free") + &others));
    let (before, next) = (compiler.next(""), compiler.next(&free("pod: p0")));
    assert!(next.extends.is_some());
    let (runtime, _) = node.here(|| agent(node));
    let install = |next| node.here(|| runtime.attach(&asked(node, next, &[0, 2]))).unwrap().is_extended;
    assert!(!install(&before) && reaches(node, 2, pod_address(1, false)));
    assert!(!install(&next) && !reaches(node, 2, pod_address(1, false)));
}

/// Where flows are kept, they would keep a verdict that was made of two entries.
#[test]
fn a_generation_that_keeps_flows_is_not_extended() {
    skip!(unless possible());
    let node = &node();
    let [before, next] = pair();
    let (runtime, _) = node.here(|| agent(node));
    let install = |next: &Next, keep: bool| {
        let asked = Request { keep: Some(keep), ..asked(node, next, &[0]) };
        node.here(|| runtime.attach(&asked)).unwrap().is_extended
    };
    assert!(!install(&before, true) && !install(&next, true));
    assert!(!install(&before, true) && !install(&next, false), "the generation in force keeps flows");
    assert!(!install(&before, false) && install(&next, false));
    assert!(reaches(node, 0, pod_address(1, false)));
}

/// A peer gets another class, and is allowed before and after: also between any two operations.
#[test]
fn a_peer_that_gets_another_class_is_judged_by_whole_rows_at_each_moment() {
    skip!(unless possible());
    let node = Arc::new(node());
    let mut compiler = Compiler::new(&(base() + &remote(1, "p1", "server: a")));
    let (before, next) = (compiler.next(""), compiler.next(&remote(1, "p1", "server: a, new: a, client: a")));
    assert!(next.extends.is_some());
    let looks = Arc::new(AtomicUsize::new(usize::MAX));
    let (seen, of) = (Arc::clone(&looks), Arc::clone(&node));
    let look = move |_| {
        if seen.load(Ordering::Relaxed) != usize::MAX {
            seen.fetch_add(1, Ordering::Relaxed);
            assert!(reaches(&of, 0, pod_address(1, false)), "a server");
            assert!(!reaches(&of, 2, pod_address(0, false)), "no client");
        }
        None
    };
    let runtime = node.here(|| {
        let system = System::with_faults(Box::new(look)).unwrap();
        Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap()
    });
    attach(&runtime, &node, &before).unwrap();
    looks.store(0, Ordering::Relaxed);
    assert!(attach(&runtime, &node, &next).unwrap().is_extended);
    let looked = looks.swap(usize::MAX, Ordering::Relaxed);
    assert!(looked > 20 && reaches(&node, 1, pod_address(0, false)), "{looked}");
}

/// Beside an extension, a reader finds the artifact from before or the new one, also if its rows are a large table.
#[test]
fn a_reader_beside_extensions_finds_whole_artifacts() {
    skip!(unless possible());
    let node = &node();
    let others: String = (0..2_400).map(|it| format!("{{podSelector: {{matchLabels: {{o{it}: a}}}}}}, ")).collect();
    let policies = policies().replace("ingress: [{from: [", &format!("ingress: [{{from: [{others}"));
    let pods = (0..2_400_u32).map(|it| {
        let at = std::net::Ipv4Addr::from(0x0ac8_0000 + it);
        remote(9, &format!("o{it}"), &format!("o{it}: a")).replace(&pod_address(9, false).to_string(), &at.to_string())
    });
    let pods: String = pods.map(|pod| pod.replace(&format!(", {{ip: \"{}\"}}", pod_address(9, true)), "")).collect();
    let mut compiler = Compiler::new(&(cluster(1, &policies) + &remote(2, "steady", "steady: a") + &pods));
    compiler.options.forced.push((LookupSet::Rows, Structure::Matrix));
    compiler.next("");
    // One after the other, so that the file of each is soon replaced by that of the next but one.
    let later = (2..9).map(|number| {
        service().replace("10.96.0.1", &format!("10.96.0.{number}")).replace("db", &format!("d{number}"))
    });
    let changes = [String::new(), remote(1, "p1", "server: a")].into_iter().chain(later);
    let all: Vec<Next> = changes.map(|change| compiler.next(&change)).collect();
    let rows = all[0].made.0.map(MapName::Rows).unwrap().spec.value_size;
    assert!(rows > 1 << 16 && all[1..].iter().all(|next| next.extends.is_some()), "{rows}");
    let (runtime, _) = node.here(|| agent(node));
    attach(&runtime, node, &all[0]).unwrap();
    let (stop, read) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _guard = Stop(&stop);
        scope.spawn(|| {
            let runtime = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let artifact = runtime.artifact_in_force().unwrap().unwrap();
                assert!(all.iter().any(|next| next.made.0 == artifact));
                read.fetch_add(1, Ordering::Relaxed);
            }
        });
        for turn in 0.. {
            for (place, next) in all.iter().enumerate() {
                assert_eq!(attach(&runtime, node, next).unwrap().is_extended, place > 0, "{turn} {place}");
            }
            node.here(|| runtime.reap()).unwrap();
            if turn >= 60 && read.load(Ordering::Relaxed) > 100 || turn > 1_000 {
                break;
            }
        }
    });
    assert!(read.into_inner() > 100);
}

/// A packet between two local pods is judged by the addresses of both, which are not written at once.
#[test]
fn a_generation_that_moves_a_local_pod_is_not_extended() {
    skip!(unless possible());
    let node = &node();
    let others = remote(2, "steady", "steady: a") + &remote(9, "client", "client: a");
    let mut compiler = Compiler::new(&(cluster(2, &policies()) + &others));
    let before = compiler.next("");
    let p1 = remote(1, "p1", "pod: p1, server: a").replace("nodeName: there", "nodeName: here");
    let next = compiler.next(&p1);
    assert!(next.extends.is_some(), "its address gets a new class");
    let (runtime, _) = node.here(|| agent(node));
    attach(&runtime, node, &before).unwrap();
    assert!(!reaches(node, 0, pod_address(1, false)));
    let there = in_force(node);
    attach(&runtime, node, &next).unwrap();
    assert!(reaches(node, 0, pod_address(1, false)));
    assert!(in_force(node) != there, "the programs are exchanged");
}

/// No packet that both generations allow is lost, and no connection that both deny is made, while the generation is
/// extended again and again.
#[test]
fn an_extension_concerns_no_other_packet() {
    skip!(unless possible());
    let node = &node();
    let [before, next] = pair();
    let (runtime, _) = node.here(|| agent(node));
    attach(&runtime, node, &before).unwrap();
    let stop = AtomicBool::new(false);
    let extended = std::thread::scope(|scope| {
        let guard = Stop(&stop);
        let steady = scope.spawn(|| converse_with(node, 2, &stop));
        let denied = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(!reaches(node, 2, pod_address(0, false)), "no client");
            }
        });
        let mut extended = 0;
        for turn in 0..60 {
            let attached = attach(&runtime, node, if turn % 2 == 0 { &next } else { &before });
            extended += usize::from(attached.is_ok_and(|it| it.is_extended));
            _ = node.here(|| runtime.reap());
        }
        drop(guard);
        denied.join().unwrap();
        let (answered, lost) = steady.join().unwrap();
        assert!(answered > 20 && lost == 0, "{lost} of {answered}");
        extended
    });
    assert_eq!(extended, 30);
}

/// An extension with a fault at each of its operations. What both generations allow stays allowed, and the next
/// installation succeeds: that of the same agent, or of the next one if it died.
fn extensions_with_faults(dies: bool, has_spare: bool) {
    skip!(unless possible());
    let node = &node();
    let pair = pair();
    let [before, next] = &pair;
    // As after a failure: the agent compiles everything again.
    let again = Next { extends: None, ..next.clone() };
    let (p1, p2) = (pod_address(1, false), pod_address(2, false));
    let (asked, failing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let (seen, failed) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let start = || {
        let (count, place) = (Arc::clone(&asked), Arc::clone(&failing));
        let (seen, failed) = (Arc::clone(&seen), Arc::clone(&failed));
        let faults = move |operation: Operation| {
            let (number, place) = (count.fetch_add(1, Ordering::Relaxed), place.load(Ordering::Relaxed));
            let answers = errnos(operation);
            let fails = number == place || dies && number > place;
            seen.lock().unwrap().push(operation);
            if fails {
                failed.lock().unwrap().push(operation);
            }
            fails.then(|| answers[number % answers.len()])
        };
        node.here(|| {
            let system = System::with_faults(Box::new(faults)).unwrap();
            Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().without_grace().keeping().unwrap()
        })
    };
    let settle = |runtime: &Runtime, next: &Next| {
        attach(runtime, node, next).unwrap();
        node.here(|| runtime.separate().and_then(|()| runtime.reap())).unwrap();
    };
    let mut runtime = start();
    let (mut written, mut refused, mut reported) = (BTreeSet::new(), Vec::new(), Vec::new());
    let begin = |runtime: &Runtime| {
        settle(runtime, &again);
        settle(runtime, before);
        if !has_spare {
            // Nothing is kept of the generation before.
            node.here(|| runtime.detach(None)).unwrap();
            settle(runtime, before);
        }
        assert_eq!(runtime.spare().unwrap().is_some(), has_spare);
        seen.lock().unwrap().clear();
    };
    begin(&runtime);
    attach(&runtime, node, next).unwrap();
    let operations = std::mem::take(&mut *seen.lock().unwrap());
    for nth in places_to_test(&operations) {
        begin(&runtime);
        let there = in_force(node);
        asked.store(0, Ordering::Relaxed);
        failing.store(nth, Ordering::Relaxed);
        let result = attach(&runtime, node, next);
        let is_felt = asked.load(Ordering::Relaxed) > nth;
        failing.store(usize::MAX, Ordering::Relaxed);
        let failure = std::mem::take(&mut *failed.lock().unwrap()).first().copied();
        written.extend(failure);
        assert!(reaches(node, 0, p2), "both allow it: {nth}");
        assert!(!reaches(node, 1, pod_address(0, false)), "both deny it: {nth}");
        match &result {
            Ok(attached) => {
                assert!(reaches(node, 0, p1) && reaches(node, 0, SERVICE), "it said that it is in force: {nth}");
                if !attached.is_extended {
                    reported.extend(node.here(|| runtime.repair()).unwrap());
                }
            }
            Err(Error::Partial(_)) => panic!("no endpoint is concerned: {nth}"),
            Err(error) => refused.push((failure, error.to_string())),
        }
        if !is_felt {
            assert_eq!(in_force(node), there, "without a fault, it is extended");
            break;
        }
        if dies {
            drop(runtime);
            runtime = start();
            // Another process restores the state of the record.
            node.here(|| runtime.repair()).unwrap();
            assert!(reaches(node, 0, p2), "both allow it: {nth}");
        }
        settle(&runtime, &again);
        assert!(reaches(node, 0, p1) && reaches(node, 0, SERVICE), "after place {nth}");
        all_is_well(node, &format!("place {nth}"));
    }
    let writes = [Operation::CreateMap, Operation::Pin, Operation::Rename, Operation::Update];
    assert!(writes.iter().all(|it| written.contains(it)), "{written:?}");
    let refused = refused.iter().filter(|(operation, _)| !dies && writes.iter().any(|it| Some(*it) == *operation));
    assert_eq!(refused.collect::<Vec<_>>(), Vec::<&(_, String)>::new(), "a switch succeeds instead");
    let is_reported = reported.iter().any(|it| it.starts_with("tables that could not be extended: cannot "));
    assert!(dies || is_reported, "{reported:?}");
}

#[test]
fn an_extension_survives_every_fault() {
    extensions_with_faults(false, true);
}

#[test]
fn an_extension_without_a_spare_survives_every_fault() {
    extensions_with_faults(false, false);
}

#[test]
fn an_extension_survives_death_at_every_operation() {
    extensions_with_faults(true, true);
}
