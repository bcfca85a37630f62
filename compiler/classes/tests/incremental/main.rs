//! Changes applied to a generation give the classes of a compile from scratch, apart from numbers; changes that need a
//! compile from scratch say so.

mod nodes;
mod objects;
mod quiet;
mod services;
mod single;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_artifact::Artifact;
use weir_classes::index::{Dirty, Generation, Index, Key, NeedsWhole};
use weir_classes::{AtomId, AtomSet, Classes, Limits, PeerId, Scope, SubjectId, classify};
use weir_codegen::compile::{CompileOptions, compile_after, compile_classes};
use weir_codegen::last::LastArtifact;
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Direction, Protocol};
use weir_objects::k8s::{Body, Object};
use weir_testing::Random;
use weir_verify::verify_within;

use objects::{
    anchors, cluster_policy, far_pod, fixed, list, local_pod, namespace, node, other, policy, service, slice, to_nodes,
    with_host_ports,
};

fn addresses() -> Vec<IpAddr> {
    let pods = (0..33).map(|host| format!("10.0.0.{host}")).chain((1..16).map(|host| format!("10.0.1.{host}")));
    let listed = (0..33).map(|host| format!("192.0.2.{host}"));
    let services = (1..10).map(|host| format!("10.96.0.{host}"));
    let others =
        ["8.8.8.8", "0.0.0.0", "255.255.255.254", "255.255.255.255", "::", "2001:db8::", "2001:db8::1", "2001:db8::2"];
    let nodes = (1..9).map(|host| format!("172.16.0.{host}"));
    let others = others.into_iter().map(str::to_owned).chain(services).chain(nodes);
    pods.chain(listed).chain(others).map(|text| text.parse().expect("an address")).collect()
}

/// The objects of the API server, as the index has them.
struct Server {
    live: BTreeMap<Key, Object>,
    /// The kinds of objects whose changes the generation in force does not have.
    changed: BTreeSet<&'static str>,
    /// The state of these objects in the generation.
    before: BTreeMap<Key, Option<Object>>,
    numbers: BTreeMap<Key, weir_objects::origin::ObjectId>,
}

impl Server {
    fn new(objects: Vec<Object>, index: &mut Index) -> Self {
        let mut server =
            Self { live: BTreeMap::new(), changed: BTreeSet::new(), before: BTreeMap::new(), numbers: BTreeMap::new() };
        objects.into_iter().for_each(|object| _ = server.apply(object, index));
        server.before.clear();
        server
    }

    /// Objects keep their number, as in the agent.
    fn apply(&mut self, mut object: Object, index: &mut Index) -> Dirty {
        let key = Key::of(&object);
        let next = weir_objects::origin::ObjectId(self.numbers.len() as u32);
        object.id = *self.numbers.entry(key.clone()).or_insert(next);
        let before = self.live.insert(key.clone(), object.clone());
        self.before.entry(key).or_insert(before);
        index.apply(object)
    }

    fn delete(&mut self, key: &Key, index: &mut Index) -> Dirty {
        let before = self.live.remove(key);
        self.before.entry(key.clone()).or_insert(before);
        index.delete(key)
    }

    /// Whether an object has changed since the generation.
    fn can_go_back(&self) -> bool {
        !self.before.is_empty()
    }

    /// Gives an object the state that it has in the generation.
    fn go_back(&mut self, random: &mut Random, index: &mut Index) -> Dirty {
        let at = random.below(self.before.len());
        let (key, before) = self.before.iter().nth(at).expect("one of them");
        match (key.clone(), before.clone()) {
            (_, Some(object)) => self.apply(object, index),
            (key, None) => self.delete(&key, index),
        }
    }

    /// A generation has all changes.
    fn forget_before(&mut self) {
        self.before.clear();
    }

    /// A random change of policies or remote pods, or of other objects whose changes are applied.
    fn change(&mut self, random: &mut Random, index: &mut Index) -> Dirty {
        if self.can_go_back() && random.below(6) == 0 {
            return self.go_back(random, index);
        }
        let (kind, object) = match random.below(11) {
            10 => ("cluster policy", cluster_policy(random)),
            9 => ("node", node(random)),
            8 => ("list", list(random)),
            0 => ("pod", far_pod(random)),
            1 => ("local pod", local_pod(random)),
            2 => ("service", service(random)),
            3 => ("slice", self.with_pods(slice(random), random)),
            4 => ("namespace", namespace(random)),
            _ => ("policy", policy(random)),
        };
        self.changed.insert(kind);
        match random.below(5) {
            0 if object.meta.name != "near" => self.delete(&Key::of(&object), index),
            _ => self.apply(object, index),
        }
    }

    /// Mostly names the pods that have the addresses of a slice, as the controller of slices does.
    fn with_pods(&self, mut slice: Object, random: &mut Random) -> Object {
        let Body::EndpointSlice(body) = &mut slice.body else { return slice };
        for endpoint in body.endpoints.iter_mut().filter(|_| random.below(4) > 0) {
            let has_it = |object: &&Object| match &object.body {
                Body::Pod(pod) => endpoint.addresses.first().is_some_and(|address| pod.addresses.contains(address)),
                _ => false,
            };
            let pod = self.live.values().find(has_it);
            endpoint.pod = pod.map(|pod| (pod.meta.namespace.clone(), pod.meta.name.clone()));
        }
        slice
    }

    fn cluster(&self) -> Cluster {
        resolve(self.live.values(), Assumptions::default()).0
    }
}

/// One side of a comparison.
struct Side<'a> {
    cluster: &'a Cluster,
    classes: &'a Classes,
    class_of: &'a dyn Fn(IpAddr) -> PeerId,
}

impl Side<'_> {
    fn subjects(&self) -> Vec<(String, SubjectId)> {
        self.classes.subject_of.iter().map(|(id, subject)| (self.cluster.endpoint_name(*id), *subject)).collect()
    }

    /// The ports of a set, as atoms of a port list that both sides share.
    fn ports(&self, set: &AtomSet) -> Vec<bool> {
        ports().into_iter().map(|port| set.contains(self.atom(port))).collect()
    }

    fn atom(&self, port: Option<(Protocol, u16)>) -> AtomId {
        port.map_or(weir_classes::Atoms::REST, |(protocol, port)| self.classes.atoms.find(protocol, port))
    }

    /// Everything that the rows say about a subject class and an address, with the reasons.
    fn verdicts(&self, direction: Direction, subject: SubjectId, address: IpAddr) -> String {
        let peer = (self.class_of)(address);
        let rows = &self.classes.rows;
        let allowed = self.ports(self.classes.allowed(direction, subject, peer));
        let audit = rows.audit.as_ref().map(|rows_of| {
            let row = &rows_of[direction as usize][subject.index()];
            self.ports(&rows.atom_sets[row.find(peer).index()])
        });
        // After changes of lists, rows may have the test although no address needs it.
        let is_denied = rows.denied_by_lists.as_ref().is_some_and(|denied| denied[subject.index()].contains(&peer));
        let list = self.classes.denying_list(self.cluster, direction, subject, peer);
        let list = list.map(|id| &self.cluster.lists[id.index()].name);
        let rules = self.classes.contributions(direction, subject, peer).into_iter().map(|(rule, set)| {
            let again = self.classes.provenance(direction, subject, peer, self.atom(ports()[1]));
            let again = again.iter().map(|id| (self.cluster.policy_name(id.policy), id.rule)).collect::<Vec<_>>();
            (self.cluster.policy_name(rule.policy), rule.rule, self.ports(&set), again)
        });
        let rules: Vec<_> = rules.collect();
        let tiers = self.classes.tier_contributions(self.cluster, direction, subject, peer).into_iter();
        let tiers: Vec<_> = tiers
            .map(|(rule, action, set)| {
                (self.cluster.tier_policy_name(rule.policy), rule.rule, action, self.ports(&set))
            })
            .collect();
        let vip = self.classes.peers[peer.index()].vip.map(|vip| {
            let vip = &self.classes.vips[vip as usize];
            let port = |it: &weir_classes::VipPort| {
                let of_service = &self.cluster.services[it.service.index()].ports[it.port as usize];
                let is_its_atom = it.atom == self.atom(Some((of_service.protocol, of_service.port)));
                assert!(is_its_atom, "the claim names the atom of its port");
                (self.cluster.service_name(it.service), of_service.port, it.contested)
            };
            (vip.rest, vip.ports.iter().map(port).collect::<Vec<_>>())
        });
        format!("{allowed:?} {audit:?} {is_denied:?} {list:?} {rules:?} {tiers:?} {vip:?}")
    }
}

/// Ports at and around all ends of ranges; `None` is traffic without ports.
fn ports() -> Vec<Option<(Protocol, u16)>> {
    let numbers = [
        1, 52, 53, 80, 443, 444, 8080, 8081, 8082, 8083, 8084, 8999, 9000, 9002, 9003, 9004, 9005, 9006, 9007, 9008,
        9010, 9011, 30080, 30082,
    ];
    let with = |protocol| numbers.map(|number| Some((protocol, number)));
    [None].into_iter().chain(with(Protocol::Tcp)).chain(with(Protocol::Udp)).chain(with(Protocol::Sctp)).collect()
}

/// Panics if one class of this side is two classes of the other side. Returns whether no class of the other side is two
/// classes of this one.
#[track_caller]
fn check_refines<A: Ord + Copy + std::fmt::Debug, B: Ord + Copy + std::fmt::Debug>(
    pairs: &[(A, B)],
    what: &str,
) -> bool {
    let (mut there, mut back) = (BTreeMap::new(), BTreeMap::new());
    for (a, b) in pairs {
        assert_eq!(there.entry(*a).or_insert(*b), b, "{what}: {a:?} is two classes of the other side");
    }
    pairs.iter().all(|(a, b)| back.entry(*b).or_insert(*a) == a)
}

/// Compares a generation with a compile from scratch. Returns whether it distinguishes no more than that.
#[track_caller]
fn check_agrees(index: &Index, generation: &Generation, server: &Server) -> bool {
    let cluster = server.cluster();
    let scope = Scope::node(&cluster, "near").expect("the node is there");
    let scratch = classify(&cluster, &scope).expect("classes");
    let class_of = |address| index.peer_at(address).expect("compiled");
    let scratch_class_of = |address| scratch.peer_at(address);
    let ours = Side { cluster: &generation.cluster, classes: &generation.classes, class_of: &class_of };
    let theirs = Side { cluster: &cluster, classes: &scratch, class_of: &scratch_class_of };
    let (own, other) = (ours.subjects(), theirs.subjects());
    assert_eq!(own.iter().map(|it| &it.0).collect::<Vec<_>>(), other.iter().map(|it| &it.0).collect::<Vec<_>>());
    let subjects: Vec<_> = own.iter().zip(&other).map(|(a, b)| (a.1, b.1)).collect();
    assert!(check_refines(&subjects, "subjects"), "one subject class is two");
    assert_eq!(generation.classes.subjects.len(), scratch.subjects.len());
    let peers: Vec<_> = addresses().into_iter().map(|it| (class_of(it), scratch_class_of(it))).collect();
    let atoms: Vec<_> = ports().into_iter().map(|it| (ours.atom(it), theirs.atom(it))).collect();
    let is_same = check_refines(&peers, "peers") && check_refines(&atoms, "atoms");
    assert_eq!(generation.classes.rows.audit.is_some(), scratch.rows.audit.is_some());
    for ((name, own), (_, other)) in own.iter().zip(&other) {
        for address in addresses() {
            for direction in Direction::ALL {
                let (incremental, expected) =
                    (ours.verdicts(direction, *own, address), theirs.verdicts(direction, *other, address));
                assert_eq!(incremental, expected, "{name} {direction:?} {address}");
            }
        }
    }
    is_same
}

/// Makes the artifacts of a series of generations; each takes equal parts and memory from the one before.
struct Artifacts {
    options: CompileOptions,
    last: LastArtifact,
    file: Vec<u8>,
    made: usize,
    /// How many descriptions were taken from the artifact before.
    taken: usize,
    /// How often the programs were taken from the artifact before.
    programs_taken: usize,
}

impl Artifacts {
    fn new(options: CompileOptions) -> Self {
        let (last, file) = (LastArtifact::default(), Vec::new());
        Self { options, last, file, made: 0, taken: 0, programs_taken: 0 }
    }

    /// Makes an artifact, and checks that it is byte for byte the one that is made without the artifact before.
    #[track_caller]
    fn make(&mut self, generation: &Generation) -> Artifact {
        let options = self.options.clone();
        let Generation { cluster, scope, classes, .. } = generation;
        let compiled = compile_classes(cluster, scope, classes.clone(), &options).expect("compiled");
        let after = compile_after(cluster, scope, classes.clone(), &options, &mut self.last).expect("compiled");
        let node = |description: &mut weir_artifact::Description| description.node = Some("near".to_owned());
        let alone = compiled.artifact(cluster, &options, node).expect("an artifact");
        let after = after.into_artifact(cluster, &options, &mut self.last, node).expect("an artifact");
        self.made += 1;
        self.taken += self.last.taken();
        self.programs_taken += usize::from(self.last.has_taken_programs());
        after.write_to(&mut self.file).expect("a file");
        assert!(self.file == alone.to_bytes().expect("a file"), "another file");
        self.last.reuse(after);
        alone
    }
}

/// Verifies the programs of a generation against the objects.
#[track_caller]
fn check_programs(artifact: &Artifact, server: &Server) {
    let report = verify_within(artifact, &server.cluster(), 0);
    assert!(report.is_verified(), "{report:#?}");
}

/// Makes a generation of the objects as they are now: from changes where that is possible.
fn generation(index: &mut Index, late: impl FnOnce(&mut Index)) -> (Generation, Option<NeedsWhole>) {
    let changed = index.begin_changes().and_then(|draft| draft.classify_within(Limits::NONE));
    let (mut generation, why) = match changed {
        Ok(generation) => (generation, None),
        Err(why) => (index.begin().classify().expect("classes"), Some(why)),
    };
    late(index);
    if index.adopt(&mut generation).is_more {
        // A change arrived meanwhile that the generation does not have.
        return (generation, why);
    }
    (generation, why)
}

#[test]
fn applied_changes_give_the_classes_of_a_compile_from_scratch() {
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut incremental, mut verified, mut same, mut classes) = (0, 0, 0, 0);
    let mut artifacts = Artifacts::new(CompileOptions::default());
    let mut of_agent = Artifacts::new(CompileOptions::for_changes(CompileOptions::default().target));
    for seed in 0..24 {
        let mut random = Random::new(seed);
        let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
        let mut all = fixed();
        match seed % 4 {
            // Then more changes have new peers and names, and egress is judged only if a policy does so.
            0 => all.retain(|it| !["admin", "blocked"].contains(&it.meta.name.as_str())),
            1 => all.extend(anchors().into_iter().chain([to_nodes()])),
            2 => all.extend(anchors().into_iter().chain([with_host_ports()])),
            _ => all.extend(anchors()),
        }
        let mut server = Server::new(all, &mut index);
        let mut peers = index.compile().expect("classes").classes.peers.len();
        let mut last: Option<Generation> = None;
        for step in 0..30 {
            let mut is_whole = false;
            for _ in 0..1 + random.below(4) {
                let dirty = server.change(&mut random, &mut index);
                is_whole |= dirty == Dirty::Everything;
                // The generation before has no subject for a pod that came alone, and one for a pod that left.
                last = last.filter(|_| !matches!(&dirty, Dirty::Addresses(changes) if !changes.locals.is_empty()));
            }
            if random.below(12) == 0 {
                is_whole |= server.apply(other(&mut random), &mut index) == Dirty::Everything;
            }
            // Also without need: then only addresses have changed.
            if !is_whole && random.below(3) > 0 {
                if let Some(last) = last.as_ref().filter(|_| random.below(2) == 0) {
                    check_agrees(&index, last, &server);
                }
                continue;
            }
            let (is_late, before) = (random.below(4) == 0, peers);
            let changed = std::mem::take(&mut server.changed);
            server.forget_before();
            let (made, why) = generation(&mut index, |index| {
                if is_late {
                    server.change(&mut random, index);
                }
            });
            peers = made.classes.peers.len();
            last = None;
            match &why {
                None => {
                    incremental += 1;
                    changed.into_iter().for_each(|kind| *kinds.entry(kind).or_default() += 1);
                    classes += usize::from(peers > before);
                }
                Some(why) => *reasons.entry(format!("{why:?}")).or_default() += 1,
            }
            let artifact = artifacts.make(&made);
            let of_agent = of_agent.make(&made);
            if !is_late {
                let is_same = check_agrees(&index, &made, &server);
                same += usize::from(is_same && why.is_none());
                assert!(is_same || why.is_none(), "a compile from scratch distinguishes too much");
                if why.is_none() && step % 5 == 0 {
                    check_programs(&artifact, &server);
                    check_programs(&of_agent, &server);
                    verified += 1;
                }
                last = Some(made);
            }
        }
    }
    // Every way must occur, otherwise the test proves nothing.
    let counts = format!(
        "{incremental} incremental: {verified} verified, {same} same, {classes} with new classes; {kinds:?}; {reasons:?}"
    );
    println!("{counts}");
    for why in ["Objects", "Egress", "Audit"] {
        assert!(reasons.get(why).copied().unwrap_or_default() > 0, "{why}: {counts}");
    }
    assert!(kinds.len() == 9 && kinds.values().all(|count| *count > 40), "{counts}");
    assert!(artifacts.taken > 200, "{} descriptions were taken: {counts}", artifacts.taken);
    let Artifacts { made, programs_taken, .. } = of_agent;
    assert!(programs_taken > 50 && made - programs_taken > 50, "programs were taken {programs_taken} of {made} times");
    assert!(incremental > 200 && verified > 25 && same > 100 && classes > 30, "{counts}");
}
