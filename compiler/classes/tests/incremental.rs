//! Changes applied to a generation give the classes of a compile from scratch, apart from numbers; changes that need a
//! compile from scratch say so.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_artifact::Artifact;
use weir_classes::index::{Dirty, Generation, Index, Key, NeedsWhole};
use weir_classes::{AtomId, AtomSet, Classes, Limits, PeerId, Scope, SubjectId, classify};
use weir_codegen::compile::{CompileOptions, compile_after, compile_classes};
use weir_codegen::last::LastArtifact;
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Direction, Protocol};
use weir_objects::k8s::Object;
use weir_testing::Random;
use weir_testing::yaml::{NEAR_AND_FAR, objects};
use weir_verify::verify_within;

const FIXED: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: ops, labels: {team: b}}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop},
 spec: {clusterIP: 10.96.0.1, ports: [{name: a, port: 80, targetPort: 9005, nodePort: 30080}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice,
 metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}, addressType: IPv4,
 ports: [{name: a, port: 9005}],
 endpoints: [{addresses: [10.0.1.2], conditions: {ready: true}}, {addresses: [192.0.2.9], conditions: {ready: true}}]}
---
{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {name: denied}, spec: {action: Deny, directions: [Ingress], cidrs: [192.0.2.4/31]}}
---
{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: admin},
 spec: {priority: 5, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}},
 ingress: [{action: Deny, from: [{namespaces: {matchLabels: {team: b}}}],
 ports: [{portRange: {protocol: TCP, start: 9000, end: 9004}}]}]}}
";

/// Local pods: namespace, name, app.
const LOCAL: [(&str, &str, &str); 6] = [
    ("shop", "web-1", "web"),
    ("shop", "web-2", "web"),
    ("shop", "db", "db"),
    ("shop", "job", "job"),
    ("ops", "web", "web"),
    ("ops", "anchor", "anchor"),
];

const PEERS: [&str; 7] = [
    "[]",
    "[{podSelector: {matchLabels: {app: db}}}]",
    "[{podSelector: {matchExpressions: [{key: app, operator: In, values: [web, job]}]}}]",
    "[{namespaceSelector: {matchLabels: {team: b}}}]",
    "[{namespaceSelector: {}, podSelector: {matchLabels: {app: web}}}]",
    "[{ipBlock: {cidr: 10.0.0.0/28, except: [10.0.0.4/30]}}]",
    "[{ipBlock: {cidr: 192.0.2.0/28}}]",
];

const PORTS: [&str; 8] = [
    "[]",
    "[{port: http}]",
    "[{port: 80}]",
    "[{port: 9000, endPort: 9010}]",
    "[{port: 9005}]",
    "[{port: 53, protocol: UDP}]",
    "[{protocol: TCP}]",
    "[{port: 9003, endPort: 9007}, {port: 443}]",
];

fn pod(namespace: &str, name: &str, node: &str, app: &str, address: &str) -> Object {
    pod_with_port(namespace, name, node, app, address, 8080)
}

/// A pod whose port `http` has this number.
fn pod_with_port(namespace: &str, name: &str, node: &str, app: &str, address: &str, http: u16) -> Object {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}}}, \
         spec: {{nodeName: {node}, containers: [{{name: c, ports: [{{name: http, containerPort: {http}}}]}}]}}, \
         status: {{phase: Running, podIP: {address}}}}}"
    );
    objects(&text).remove(0)
}

fn network_policy(namespace: &str, name: &str, mode: &str, spec: &str) -> Object {
    let text = format!(
        "{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: {name}, namespace: {namespace}, \
         annotations: {{weir.dev/mode: {mode}}}}}, spec: {spec}}}"
    );
    objects(&text).remove(0)
}

/// Policies with all peers and names, for one local pod in each namespace. With them, no change of another policy begins
/// or ends the use of a peer.
fn anchors() -> Vec<Object> {
    let (peers, named) = (&PEERS[1..], PORTS[1]);
    let rules = |field: &str| {
        let rules: Vec<String> = peers.iter().map(|it| format!("{{{field}: {it}, ports: {named}}}")).collect();
        rules.join(", ")
    };
    let spec = format!(
        "{{podSelector: {{matchLabels: {{app: anchor}}}}, policyTypes: [Ingress, Egress], ingress: [{}], egress: [{}]}}",
        rules("from"),
        rules("to")
    );
    let audit = "{podSelector: {matchLabels: {app: anchor}}}";
    let shop = pod("shop", "anchor", "near", "anchor", "10.0.1.9");
    let of = |namespace| network_policy(namespace, "anchor", "enforce", &spec);
    vec![shop, of("shop"), of("ops"), network_policy("ops", "audited", "audit", audit)]
}

fn fixed() -> Vec<Object> {
    let shop = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}\n";
    let mut all = objects(&[NEAR_AND_FAR, shop, FIXED].join("---\n"));
    let local = (1..).zip(LOCAL);
    all.extend(
        local.map(|(host, (namespace, name, app))| pod(namespace, name, "near", app, &format!("10.0.1.{host}"))),
    );
    all.push(pod("shop", "far-db", "far", "db", "10.0.0.1"));
    all.push(pod("ops", "far-web", "far", "web", "10.0.0.2"));
    all
}

/// A policy with one of few names, selectors and rules.
fn policy(random: &mut Random) -> Object {
    let namespace = random.pick(&["shop", "shop", "ops", "ops", "dev"]);
    let name = format!("n{}", random.below(5));
    let mode = random.pick(&["enforce", "enforce", "enforce", "audit"]);
    let subjects =
        random.pick(&["{}", "{matchLabels: {app: web}}", "{matchLabels: {app: db}}", "{matchLabels: {app: nobody}}"]);
    let types = random.pick(&["[Ingress]", "[Egress]", "[Ingress, Egress]"]);
    let mut rules = |field: &str, peers: &str| {
        if !types.contains(field) {
            return String::new();
        }
        let count = random.below(3);
        let rule = |_| format!("{{{peers}: {}, ports: {}}}", random.pick(&PEERS), random.pick(&PORTS));
        let rules: Vec<String> = (0..count).map(rule).collect();
        format!(", {}: [{}]", field.to_lowercase(), rules.join(", "))
    };
    let (ingress, egress) = (rules("Ingress", "from"), rules("Egress", "to"));
    let spec = format!("{{podSelector: {subjects}, policyTypes: {types}{ingress}{egress}}}");
    network_policy(namespace, &name, mode, &spec)
}

fn far_pod(random: &mut Random) -> Object {
    let (namespace, app) = (random.pick(&["shop", "ops"]), random.pick(&["web", "db", "job", "other"]));
    let name = format!("p{}", random.below(6));
    let namespace = if random.below(8) == 0 { "dev" } else { namespace };
    // Numbers that ranges of rules have, and one that none has.
    let http = random.pick(&[8080, 8080, 8081, 80, 9005]);
    pod_with_port(namespace, &name, "far", app, &format!("10.0.0.{}", random.below(16)), http)
}

/// A local pod with one of few names; often with the address that another one had.
fn local_pod(random: &mut Random) -> Object {
    let (namespace, app) = (random.pick(&["shop", "ops", "dev"]), random.pick(&["web", "db", "job", "other"]));
    let name = random.pick(&["job", "l0", "l1", "l2"]);
    // Sometimes the address of a pod of another node.
    let address = match random.below(6) {
        0 => format!("10.0.0.{}", random.below(16)),
        _ => format!("10.0.1.{}", 10 + random.below(5)),
    };
    // Numbers of which some are in no rule and no service.
    pod_with_port(namespace, name, "near", app, &address, random.pick(&[8080, 8082, 8084, 9005]))
}

/// Services: namespace, name, ClusterIP, node port.
const SERVICES: [(&str, &str, &str, u16); 4] = [
    ("shop", "db", "10.96.0.1", 30080),
    ("shop", "api", "10.96.0.2", 30081),
    ("ops", "db", "10.96.0.3", 30082),
    ("dev", "web", "10.96.0.4", 30083),
];

fn service(random: &mut Random) -> Object {
    let (namespace, name, address, node_port) = random.pick(&SERVICES);
    let ports = match random.below(5) {
        0 => "[{name: a, port: 80, targetPort: 9005}, {name: b, port: 443, targetPort: 80}]".to_owned(),
        1 => "[{name: a, port: 9005, targetPort: 8080}]".to_owned(),
        2 => "[{name: a, port: 80, targetPort: http}]".to_owned(),
        _ => format!("[{{name: a, port: 80, targetPort: 9005, nodePort: {node_port}}}]"),
    };
    let address = if random.below(8) == 0 { "None" } else { address };
    // An address outside, a pod's, and another service's ClusterIP.
    let external = match random.below(9) {
        0 => ", externalIPs: [192.0.2.5]",
        1 => ", externalIPs: [192.0.2.5, 192.0.2.11]",
        2 => ", externalIPs: [10.0.0.3]",
        3 => ", externalIPs: [10.96.0.1]",
        _ => "",
    };
    let selector = if random.below(3) == 0 { ", selector: {app: db}" } else { "" };
    let spec = format!("{{clusterIP: {address}, ports: {ports}{external}{selector}}}");
    let meta = format!("{{name: {name}, namespace: {namespace}}}");
    objects(&format!("{{apiVersion: v1, kind: Service, metadata: {meta}, spec: {spec}}}")).remove(0)
}

/// A slice of one of the services, which may not exist.
fn slice(random: &mut Random) -> Object {
    let (namespace, service, ..) = random.pick(&SERVICES);
    let endpoint = |random: &mut Random| {
        let address = match random.below(5) {
            0 | 1 => format!("10.0.0.{}", random.below(16)),
            2 | 3 => format!("10.0.1.{}", 1 + random.below(14)),
            _ => format!("192.0.2.{}", random.below(16)),
        };
        format!("{{addresses: [{address}], conditions: {{ready: {}}}}}", random.below(5) > 0)
    };
    let count = random.below(4);
    let endpoints: Vec<String> = (0..count).map(|_| endpoint(random)).collect();
    let port = random.pick(&[9005, 9005, 80, 8080]);
    let meta = format!(
        "{{name: {service}-{}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {service}}}}}",
        1 + random.below(2)
    );
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {meta}, addressType: IPv4, \
         ports: [{{name: a, port: {port}}}], endpoints: [{}]}}",
        endpoints.join(", ")
    );
    objects(&text).remove(0)
}

/// A namespace. Rules select by its first label, and no rule mentions the second one.
fn namespace(random: &mut Random) -> Object {
    let (name, team) = (random.pick(&["shop", "ops", "dev", "dev"]), random.pick(&["a", "b", "c"]));
    let labels = format!("{{team: {team}, other: v{}}}", random.below(3));
    objects(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {labels}}}}}")).remove(0)
}

/// Changes of which some always need a compile from scratch.
fn other(random: &mut Random) -> Object {
    let text = match random.below(4) {
        0 => format!(
            "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: denied}}, \
             spec: {{action: Deny, order: {}, directions: [Ingress], cidrs: [192.0.2.4/31]}}}}",
            random.below(3)
        ),
        1 => format!(
            "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: denied}}, \
             spec: {{action: Deny, directions: [Ingress], cidrs: [192.0.2.{}/31]}}}}",
            random.pick(&[4, 6, 8])
        ),
        2 => format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {}}}, \
             status: {{addresses: [{{type: InternalIP, address: 172.16.0.{}}}]}}}}",
            random.pick(&["near", "far", "third"]),
            1 + random.below(4)
        ),
        _ => format!(
            "{{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {{name: more}}, \
             spec: {{priority: {}, subject: {{namespaces: {{matchLabels: {{team: c}}}}}}, \
             egress: [{{action: Deny, to: [{{namespaces: {{matchLabels: {{team: b}}}}}}]}}]}}}}",
            random.below(3)
        ),
    };
    objects(&text).remove(0)
}

fn addresses() -> Vec<IpAddr> {
    let pods = (0..17).map(|host| format!("10.0.0.{host}")).chain((1..16).map(|host| format!("10.0.1.{host}")));
    let listed = (0..17).map(|host| format!("192.0.2.{host}"));
    let others =
        ["10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "172.16.0.1", "172.16.0.2", "172.16.0.3", "8.8.8.8"];
    let others = others.map(str::to_owned);
    pods.chain(listed).chain(others).map(|text| text.parse().expect("an address")).collect()
}

/// The objects of the API server, as the index has them.
struct Server {
    live: BTreeMap<Key, Object>,
    /// The kinds of objects whose changes the generation in force does not have.
    changed: BTreeSet<&'static str>,
    numbers: BTreeMap<Key, weir_objects::origin::ObjectId>,
}

impl Server {
    fn new(objects: Vec<Object>, index: &mut Index) -> Self {
        let mut server = Self { live: BTreeMap::new(), changed: BTreeSet::new(), numbers: BTreeMap::new() };
        objects.into_iter().for_each(|object| _ = server.apply(object, index));
        server
    }

    /// Objects keep their number, as in the agent.
    fn apply(&mut self, mut object: Object, index: &mut Index) -> Dirty {
        let key = Key::of(&object);
        let next = weir_objects::origin::ObjectId(self.numbers.len() as u32);
        object.id = *self.numbers.entry(key.clone()).or_insert(next);
        self.live.insert(key, object.clone());
        index.apply(object)
    }

    fn delete(&mut self, key: &Key, index: &mut Index) -> Dirty {
        self.live.remove(key);
        index.delete(key)
    }

    /// A random change of policies or remote pods, or of other objects whose changes are applied.
    fn change(&mut self, random: &mut Random, index: &mut Index) -> Dirty {
        let (kind, object) = match random.below(8) {
            0 => ("pod", far_pod(random)),
            1 => ("local pod", local_pod(random)),
            2 => ("service", service(random)),
            3 => ("slice", slice(random)),
            4 => ("namespace", namespace(random)),
            _ => ("policy", policy(random)),
        };
        self.changed.insert(kind);
        match random.below(5) {
            0 => self.delete(&Key::of(&object), index),
            _ => self.apply(object, index),
        }
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
        let is_denied = rows.denied_by_lists.as_ref().map(|denied| denied[subject.index()].contains(&peer));
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

/// Makes the artifacts of a series of generations; each takes equal parts from the one before.
struct Artifacts {
    last: LastArtifact,
    /// How many descriptions were taken from the artifact before.
    taken: usize,
}

impl Artifacts {
    /// Makes an artifact, and checks that it is byte for byte the one that is made without the artifact before.
    #[track_caller]
    fn make(&mut self, generation: &Generation) -> Artifact {
        let options = CompileOptions::default();
        let Generation { cluster, scope, classes, .. } = generation;
        let compiled = compile_classes(cluster, scope, classes.clone(), &options).expect("compiled");
        let after = compile_after(cluster, scope, classes.clone(), &options, &mut self.last).expect("compiled");
        let node = |description: &mut weir_artifact::Description| description.node = Some("near".to_owned());
        let alone = compiled.artifact(cluster, &options, node).expect("an artifact");
        let after = after.into_artifact(cluster, &options, &mut self.last, node).expect("an artifact");
        self.taken += self.last.taken();
        assert_eq!(after.to_bytes().expect("a file"), alone.to_bytes().expect("a file"));
        after
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
    let mut artifacts = Artifacts { last: LastArtifact::default(), taken: 0 };
    for seed in 0..16 {
        let mut random = Random::new(seed);
        let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
        let mut all = fixed();
        match seed % 4 {
            // Then more changes have new peers and names, and egress is judged only if a policy does so.
            0 => all.retain(|it| it.meta.name != "admin"),
            _ => all.extend(anchors()),
        }
        let mut server = Server::new(all, &mut index);
        let mut peers = index.compile().expect("classes").classes.peers.len();
        let mut last: Option<Generation> = None;
        for step in 0..30 {
            let mut is_whole = false;
            for _ in 0..1 + random.below(2) {
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
            if !is_late {
                let is_same = check_agrees(&index, &made, &server);
                same += usize::from(is_same && why.is_none());
                assert!(is_same || why.is_none(), "a compile from scratch distinguishes too much");
                if why.is_none() && step % 5 == 0 {
                    check_programs(&artifact, &server);
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
    for why in ["Objects", "ClusterWide", "Peers", "Egress", "Audit"] {
        assert!(reasons.get(why).copied().unwrap_or_default() > 0, "{why}: {counts}");
    }
    assert!(kinds.len() == 6 && kinds.values().all(|count| *count > 40), "{counts}");
    assert!(artifacts.taken > 200, "{} descriptions were taken: {counts}", artifacts.taken);
    assert!(incremental > 200 && verified > 25 && same > 100 && classes > 30, "{counts}");
}

/// A local client that may reach pods with `app: db`, and pods of another node.
const CLIENT: &str = "
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: to-db, namespace: shop},
 spec: {podSelector: {matchLabels: {app: client}}, policyTypes: [Egress],
 egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}
";

fn slice_of(service: &str, addresses: &[&str]) -> Object {
    slice_with_port(service, addresses, 80)
}

fn slice_with_port(service: &str, addresses: &[&str], port: u16) -> Object {
    let endpoint = |it: &&str| {
        let pods = [("10.0.0.1", "db-1"), ("10.0.0.2", "db-2"), ("10.0.0.3", "web"), ("10.0.1.2", "db-own")];
        let pod = BTreeMap::from(pods)[it];
        let target = format!("{{kind: Pod, namespace: shop, name: {pod}}}");
        format!("{{addresses: [{it}], conditions: {{ready: true}}, targetRef: {target}}}")
    };
    let endpoints: Vec<String> = addresses.iter().map(endpoint).collect();
    let text = format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
         metadata: {{name: {service}-1, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}, \
         addressType: IPv4, ports: [{{port: {port}}}], endpoints: [{}]}}",
        endpoints.join(", ")
    );
    objects(&text).remove(0)
}

/// A cluster with a local client, and backends of a service on another node.
fn client() -> (Server, Index) {
    let mut all = objects(&[NEAR_AND_FAR, CLIENT].join("---"));
    all.push(pod("shop", "client", "near", "client", "10.0.1.1"));
    all.push(pod("shop", "db-1", "far", "db", "10.0.0.1"));
    all.push(pod("shop", "db-2", "far", "db", "10.0.0.2"));
    all.push(pod("shop", "web", "far", "web", "10.0.0.3"));
    all.push(slice_of("db", &["10.0.0.1"]));
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let server = Server::new(all, &mut index);
    index.compile().expect("classes");
    (server, index)
}

/// Applies a change that needs a generation, which must not be a compile from scratch.
#[track_caller]
fn applied(server: &mut Server, index: &mut Index, object: Object) -> Generation {
    assert_eq!(server.apply(object, index), Dirty::Everything);
    let (made, why) = generation(index, |_| ());
    assert_eq!(why, None);
    check_agrees(index, &made, server);
    let mut artifacts = Artifacts { last: LastArtifact::default(), taken: 0 };
    check_programs(&artifacts.make(&made), server);
    made
}

#[test]
fn a_backend_that_came_without_a_generation_is_judged_when_its_pod_changes() {
    let (mut server, mut index) = client();
    let moved = slice_of("db", &["10.0.0.2"]);
    assert_eq!(server.apply(moved, &mut index), Dirty::Nothing, "a backend of the same class");
    let policy = network_policy("shop", "more", "enforce", "{podSelector: {}, policyTypes: [Ingress]}");
    applied(&mut server, &mut index, policy);
    // Its class is known. Only the service's address has another verdict now.
    applied(&mut server, &mut index, pod("shop", "db-2", "far", "web", "10.0.0.2"));
    applied(&mut server, &mut index, pod("shop", "db-2", "far", "db", "10.0.0.2"));
}

#[test]
fn a_rule_can_name_a_port_that_backends_have_had_since_an_earlier_generation() {
    let (mut server, mut index) = client();
    applied(&mut server, &mut index, slice_with_port("db", &["10.0.0.1"], 9_100));
    let spec = "{podSelector: {matchLabels: {app: client}}, policyTypes: [Egress], \
                egress: [{to: [{podSelector: {matchLabels: {app: db}}}], ports: [{port: 9100}]}]}";
    applied(&mut server, &mut index, network_policy("shop", "to-db", "enforce", spec));
}

/// An author of policies can edit the peer of a rule without end.
#[test]
fn peers_that_edits_leave_behind_are_limited() {
    let (mut server, mut index) = client();
    let mut edit = |number: u32| {
        let spec = format!(
            "{{podSelector: {{matchLabels: {{app: client}}}}, policyTypes: [Egress], \
             egress: [{{to: [{{podSelector: {{matchLabels: {{app: peer-{number}}}}}}}]}}]}}"
        );
        server.apply(network_policy("shop", "to-db", "enforce", &spec), &mut index);
        generation(&mut index, |_| ()).1
    };
    let whole: Vec<(u32, NeedsWhole)> = (0..100).filter_map(|number| Some((number, edit(number)?))).collect();
    assert_eq!(whole, [(64, NeedsWhole::Unused)], "64 unused peers are kept, and the next edit removes them");
}

/// A pod always reaches itself. Through its service, it may reach other backends instead.
#[test]
fn a_local_backend_is_judged_by_backends_of_its_class_that_come_and_go() {
    let (mut server, mut index) = client();
    server.apply(pod("shop", "db-own", "near", "db", "10.0.1.2"), &mut index);
    let spec = "{podSelector: {matchLabels: {app: db}}, policyTypes: [Egress]}";
    server.apply(network_policy("shop", "closed", "enforce", spec), &mut index);
    index.compile().expect("classes");
    for backends in [&["10.0.1.2"][..], &["10.0.1.2", "10.0.0.1"], &["10.0.1.2"], &["10.0.0.1"]] {
        applied(&mut server, &mut index, slice_of("db", backends));
    }
}

#[test]
fn a_slice_that_precedes_its_service_counts_when_the_service_comes() {
    let (mut server, mut index) = client();
    assert_eq!(server.apply(slice_of("api", &["10.0.0.3"]), &mut index), Dirty::Nothing);
    let text = "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, \
                spec: {clusterIP: 10.96.0.2, externalIPs: [192.0.2.11], ports: [{port: 80}]}}";
    applied(&mut server, &mut index, objects(text).remove(0));
    // The pod would have the address of a service.
    assert_eq!(server.apply(pod("shop", "new", "far", "db", "192.0.2.11"), &mut index), Dirty::Everything);
    let (made, why) = generation(&mut index, |_| ());
    assert_eq!(why, Some(NeedsWhole::Objects));
    check_agrees(&index, &made, &server);
}

#[test]
fn a_service_without_slices_follows_the_labels_of_its_pods() {
    let (mut server, mut index) = client();
    let text = "{apiVersion: v1, kind: Service, metadata: {name: api, namespace: shop}, \
                spec: {clusterIP: 10.96.0.2, selector: {app: db}, ports: [{port: 80}]}}";
    applied(&mut server, &mut index, objects(text).remove(0));
    applied(&mut server, &mut index, pod("shop", "web", "far", "db", "10.0.0.3"));
    applied(&mut server, &mut index, pod("shop", "web", "far", "web", "10.0.0.3"));
    applied(&mut server, &mut index, slice_of("api", &["10.0.0.3"]));
}

#[test]
fn a_new_named_port_or_block_needs_a_compile_from_scratch() {
    for (rule, expected) in
        [("{ports: [{port: http}]}", NeedsWhole::Names), ("{to: [{ipBlock: {cidr: 192.0.2.0/24}}]}", NeedsWhole::Peers)]
    {
        let (mut server, mut index) = client();
        let spec = format!("{{podSelector: {{}}, policyTypes: [Egress], egress: [{rule}]}}");
        server.apply(network_policy("shop", "more", "enforce", &spec), &mut index);
        let (made, why) = generation(&mut index, |_| ());
        assert_eq!(why, Some(expected));
        check_agrees(&index, &made, &server);
    }
}
