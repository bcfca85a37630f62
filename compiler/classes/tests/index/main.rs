//! After any series of changes, the index's answers give every packet the verdict of a compile from scratch.

mod local;
mod namespaces;
mod objects;
mod services;
mod single;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use weir_classes::index::{Dirty, Generation, Index, Key, LocalChange};
use weir_classes::{Classes, Limits, PeerId, Scope, SubjectId, classify};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Direction, Protocol};
use weir_objects::k8s::{Body, Object, Phase};
use weir_objects::name::Name;
use weir_testing::Random;

use objects::{change, fixed};

/// The kinds of answers without a compile that a test must have seen.
#[derive(Debug, Default)]
struct SmallAnswers {
    /// A backend moved, and no verdict changed.
    moves: usize,
    /// A service changed that no packet reaches, or in fields that are not read.
    services: usize,
    /// The labels of a namespace changed.
    namespaces: usize,
    /// A local pod changed, or appeared without an address.
    local_pods: usize,
}

impl SmallAnswers {
    fn count(&mut self, index: &mut Index, before: Option<&Object>, after: &Object) {
        let is_changed = before.is_none_or(|before| (&before.meta, &before.body) != (&after.meta, &after.body));
        match &after.body {
            Body::Namespace => self.namespaces += usize::from(is_changed),
            Body::Service(_) if index.judges_services() => self.services += usize::from(is_changed),
            Body::Pod(pod) if pod.node.as_deref() == Some("near") => self.local_pods += usize::from(is_changed),
            _ => {}
        }
        let moved = index.take_moved();
        self.moves += moved.iter().filter(|it| !it.came.is_empty() || !it.left.is_empty()).count();
    }
}

fn addresses() -> Vec<IpAddr> {
    let pods = (0..18).map(|host| format!("10.0.0.{host}"));
    let others = [
        "10.96.0.1",
        "10.96.0.2",
        "10.97.0.1",
        "10.97.0.2",
        "172.16.0.1",
        "172.16.0.2",
        "8.8.8.8",
        "192.0.2.40",
        "192.1.0.0",
    ];
    let listed = (0..13).map(|host| format!("192.0.2.{host}")).chain((0..6).map(|host| format!("2001:db8::{host}")));
    pods.chain(others.map(str::to_owned)).chain(listed).map(|text| text.parse().expect("an address")).collect()
}

/// For some ports, whether a subject class allows them to a peer class.
fn allowed(classes: &Classes, direction: Direction, subject: SubjectId, peer: PeerId) -> Vec<bool> {
    let set = classes.allowed(direction, subject, peer);
    let ports = [53, 80, 8080, 8081, 9000, 9010, 9011];
    let atoms =
        [Protocol::Tcp, Protocol::Udp].into_iter().flat_map(|of| ports.map(|port| classes.atoms.find(of, port)));
    atoms.map(|atom| set.contains(atom)).collect()
}

/// The local pods that are enforced, with their subject classes.
#[derive(Default)]
struct LocalPods {
    subjects: BTreeMap<String, SubjectId>,
    of_generation: BTreeMap<String, SubjectId>,
    came: usize,
    left: usize,
}

impl LocalPods {
    /// Takes those of a new generation.
    fn take(&mut self, generation: &Generation) {
        let Generation { cluster, classes, .. } = generation;
        let of = classes.subject_of.iter().map(|(id, subject)| (cluster.endpoint_name(*id), *subject));
        self.subjects = of.collect();
        self.of_generation = self.subjects.clone();
    }

    /// Takes an answer to a change.
    fn change(&mut self, dirty: &Dirty) {
        let Dirty::Addresses(changes) = dirty else { return };
        for change in &changes.locals {
            match change {
                LocalChange::Came(it) => {
                    assert_eq!(self.of_generation.get(&it.like), Some(&it.subject), "the class of the other pod");
                    let before = self.subjects.insert(format!("{}/{}", it.pod.namespace, it.pod.name), it.subject);
                    assert_eq!(before, None, "it was not here");
                    self.came += 1;
                }
                LocalChange::Left { pod, .. } => {
                    let before = self.subjects.remove(&format!("{}/{}", pod.namespace, pod.name));
                    assert!(before.is_some(), "it was here");
                    self.left += 1;
                }
            }
        }
    }
}

#[track_caller]
fn check_agrees(index: &Index, generation: &Generation, local: &LocalPods, live: &[Object]) {
    let (cluster, _) = resolve(live, Assumptions::default());
    let scope = Scope::node(&cluster, "near").expect("the node is there");
    let scratch = classify(&cluster, &scope).expect("classes");
    let theirs = scratch.subject_of.iter().map(|(id, subject)| (cluster.endpoint_name(*id), *subject));
    let (ours, theirs) = (&local.subjects, theirs.collect::<BTreeMap<_, _>>());
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for ((name, own), (_, other)) in ours.iter().zip(&theirs) {
        for address in addresses() {
            for direction in Direction::ALL {
                let peer = index.peer_at(address).expect("compiled");
                let incremental = allowed(&generation.classes, direction, *own, peer);
                let expected = allowed(&scratch, direction, *other, scratch.peer_at(address));
                assert_eq!(incremental, expected, "{name} {direction:?} {address}");
            }
        }
    }
}

/// The owners of addresses, as packets see them.
fn owners(live: &[Object]) -> BTreeSet<(IpAddr, Key, Option<Name>)> {
    let of = |object: &Object| {
        let Body::Pod(pod) = &object.body else { return Vec::new() };
        let is_away = pod.host_network || matches!(pod.phase, Some(Phase::Succeeded | Phase::Failed));
        let addresses = pod.addresses.iter().filter(|_| !is_away);
        addresses.map(|address| (*address, Key::of(object), object.meta.uid.clone())).collect()
    };
    live.iter().flat_map(of).collect()
}

/// The state that decides whether flows must be judged again: the class of each address, and the pods that have it.
struct Picture {
    classes: Vec<Option<PeerId>>,
    owners: BTreeSet<(IpAddr, Key, Option<Name>)>,
}

impl Picture {
    fn of(index: &Index, live: &[Object]) -> Self {
        let classes = addresses().into_iter().map(|address| index.peer_at(address)).collect();
        Self { classes, owners: owners(live) }
    }

    /// Whether a flow may have been allowed by a class or owner that its address no longer has.
    fn is_outdated(&self, now: &Self) -> bool {
        self.classes != now.classes || !self.owners.is_subset(&now.owners)
    }
}

#[test]
fn incremental_equals_from_scratch() {
    let (mut nothing, mut addresses, mut relisted, mut everything, mut late, mut later) = (0, 0, 0, 0, 0, 0);
    let (mut small, mut incremental, mut local) = (SmallAnswers::default(), 0, LocalPods::default());
    for seed in 0..240 {
        let mut random = Random::new(seed);
        let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
        fixed().into_iter().for_each(|object| _ = index.apply(object));
        let mut generation = index.compile().expect("classes");
        local.take(&generation);
        let mut live = fixed();
        let mut lists = [const { BTreeSet::new() }; 3];
        let mut change = |random: &mut Random, index: &mut Index, live: &mut Vec<Object>| {
            let object = change(random, &mut lists, live);
            let is_list = matches!(object.body, Body::CidrList(_));
            let key = Key::of(&object);
            let before = live.extract_if(.., |it| Key::of(it) == key).next();
            let rarely_goes = is_list || !matches!(object.body, Body::Pod(_) | Body::NetworkPolicy(_));
            let dirty = match random.below(if rarely_goes { 40 } else { 3 }) {
                0 => index.delete(&key),
                _ => {
                    live.push(object.clone());
                    let dirty = index.apply(object.clone());
                    if dirty == Dirty::Nothing {
                        small.count(index, before.as_ref(), &object);
                    }
                    dirty
                }
            };
            (dirty, is_list)
        };
        for _ in 0..100 {
            let before = Picture::of(&index, &live);
            let (dirty, is_list) = change(&mut random, &mut index, &mut live);
            let judges_again = match &dirty {
                Dirty::Nothing => false,
                Dirty::Addresses(changes) => changes.judge_again,
                Dirty::Everything => true,
            };
            let is_outdated = before.is_outdated(&Picture::of(&index, &live));
            assert!(judges_again || !is_outdated, "seed {seed}: {dirty:?}");
            // Judging again has a cost: the first packet of every flow takes the slow path.
            assert!(is_outdated || !judges_again || dirty == Dirty::Everything, "seed {seed}: {dirty:?}");
            local.change(&dirty);
            match (dirty, is_list) {
                (Dirty::Nothing, _) => nothing += 1,
                (Dirty::Addresses(_), true) => relisted += 1,
                (Dirty::Addresses(_), false) => addresses += 1,
                (Dirty::Everything, _) => {
                    everything += 1;
                    let applied = index.begin_changes().and_then(|draft| draft.classify_within(Limits::NONE));
                    incremental += usize::from(applied.is_ok());
                    let draft = applied.map_err(|_| index.begin());
                    // Changes during the compilation are not included in it.
                    for _ in 0..random.below(4) {
                        let (dirty, _) = change(&mut random, &mut index, &mut live);
                        let is_local = matches!(&dirty, Dirty::Addresses(it) if !it.locals.is_empty());
                        assert!(!is_local, "seed {seed}: the generation does not have it: {dirty:?}");
                    }
                    generation = draft.unwrap_or_else(|draft| draft.classify().expect("classes"));
                    let found = index.adopt(&mut generation);
                    late += usize::from(!found.addresses.is_empty() && !found.is_more);
                    if found.is_more {
                        later += 1;
                        generation = index.compile().expect("classes");
                    }
                    local.take(&generation);
                }
            }
            check_agrees(&index, &generation, &local, &live);
        }
    }
    // Each kind of answer must occur, otherwise the test proves nothing.
    let counts = format!("{nothing} {addresses} {relisted} {everything} {late} {later} {incremental}");
    assert!(
        nothing > 50
            && addresses > 200
            && relisted > 200
            && everything > 200
            && late > 100
            && later > 100
            && incremental > 50,
        "{counts}"
    );
    assert!(small.moves > 50 && small.services > 50 && small.namespaces > 50 && small.local_pods > 50, "{small:?}");
    assert!(local.came > 100 && local.left > 50, "{} {}", local.came, local.left);
}
