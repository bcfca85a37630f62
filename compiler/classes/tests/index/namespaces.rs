//! Labels of namespaces that move pods of other nodes to other peer classes.

use weir_classes::Limits;
use weir_classes::index::{Dirty, Index};
use weir_model::Assumptions;
use weir_objects::k8s::{Body, Object};
use weir_testing::yaml::objects;

use crate::objects::fixed;
use crate::single::far;

fn namespace(team: &str) -> Object {
    let text = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: ops, labels: {{team: {team}}}}}}}");
    objects(&text).remove(0)
}

/// A pod of the namespace `ops`.
fn of_ops(name: &str, address: &str) -> Object {
    let mut pod = far(name, name, "cron", address);
    pod.meta.namespace = "ops".into();
    pod
}

fn local(mut pod: Object) -> Object {
    let Body::Pod(body) = &mut pod.body else { panic!("a pod") };
    body.node = Some("near".into());
    pod
}

/// Pods of other nodes in `ops`, whose label `team: b` a rule for a local pod of `shop` mentions. A namespace `more` has a
/// pod, so that the class of pods without this label exists.
fn compiled(pods: &[Object]) -> Index {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let has_slices = |it: &Object| !matches!(it.body, Body::Service(_)) || it.meta.name != "db";
    let mut other = far("other", "other", "cron", "10.3.0.1");
    other.meta.namespace = "more".into();
    let more = objects("{apiVersion: v1, kind: Namespace, metadata: {name: more, labels: {team: a}}}");
    let pods = pods.iter().cloned().chain([local(far("web", "web", "web", "10.2.0.1")), other]);
    fixed().into_iter().filter(has_slices).chain(more).chain(pods).for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    index
}

#[test]
fn pods_of_other_nodes_move_to_known_classes_without_a_compile() {
    let mut index = compiled(&[of_ops("one", "10.3.0.2"), of_ops("two", "10.3.0.3")]);
    let [one, other] = ["10.3.0.2", "10.3.0.1"].map(|it| it.parse().expect("an address"));
    let before = index.peer_at(one);
    assert_ne!(before, index.peer_at(other));
    let Dirty::Addresses(changes) = index.apply(namespace("a")) else { panic!("no compile") };
    assert_eq!((changes.entries.len(), changes.judge_again), (2, true));
    assert_eq!(index.peer_at(one), index.peer_at(other), "as every pod without the label");
    // A pod that comes later has the class of the new labels, although other pods had its labels before.
    assert_ne!(index.apply(of_ops("three", "10.3.0.4")), Dirty::Everything);
    assert_eq!(index.peer_at("10.3.0.4".parse().expect("an address")), index.peer_at(other));
    assert_ne!(index.apply(namespace("b")), Dirty::Everything);
    assert_eq!(index.peer_at(one), before, "and back");
    let draft = index.begin_changes().expect("the changes can be applied");
    let mut made = draft.classify_within(Limits::NONE).expect("classes");
    index.adopt(&mut made);
    assert_ne!(index.peer_at(one), index.peer_at(other), "the data has the present labels");
}

/// The namespace gets the label `team: a`, and the pods' entries that of its class. When it gets the label of the
/// generation again, it has too many pods, so a generation has to move them back.
#[test]
fn pods_move_back_with_a_generation_if_their_namespace_gets_its_former_labels() {
    let pods = |count: u32| (0..count).map(|it| of_ops(&format!("p{it}"), &format!("10.4.{}.{}", it / 200, it % 200)));
    let [first, more, other] = ["10.4.0.0", "10.4.1.56", "10.3.0.1"].map(|it| it.parse().expect("an address"));
    for (between, last) in [("a", "b"), ("a", "other"), ("b", "a"), ("b", "other")] {
        let start = if between == "a" { "b" } else { "a" };
        let mut index = compiled(&pods(256).collect::<Vec<_>>());
        index.apply(namespace("b"));
        index.compile().expect("classes");
        if start == "a" {
            // So that both classes exist.
            let mut with_label = far("with", "with", "cron", "10.3.0.9");
            with_label.meta.namespace = "labelled".into();
            let text = "{apiVersion: v1, kind: Namespace, metadata: {name: labelled, labels: {team: b}}}";
            objects(text).into_iter().chain([with_label]).for_each(|object| _ = index.apply(object));
            index.apply(namespace(start));
            index.compile().expect("classes");
        }
        assert!(matches!(index.apply(namespace(between)), Dirty::Addresses(_)), "{between}");
        assert_ne!(index.apply(pods(257).next_back().expect("a pod")), Dirty::Everything);
        let has_label = last == "b";
        if (between == "b") != has_label {
            assert_eq!(index.apply(namespace(last)), Dirty::Everything, "too many pods move");
        } else {
            index.apply(namespace(last));
        }
        let draft = index.begin_changes().expect("the changes can be applied");
        let mut made = draft.classify_within(Limits::NONE).expect("classes");
        index.adopt(&mut made);
        for address in [first, more] {
            assert_eq!(index.peer_at(address) == index.peer_at(other), !has_label, "{start}, {between}, {last}");
        }
    }
}

/// Both ends of a packet between two local pods of the namespace would change, one after the other.
#[test]
fn a_local_pod_of_the_namespace_requires_a_compile() {
    let mut index = compiled(&[of_ops("one", "10.3.0.2"), local(of_ops("two", "10.3.0.3"))]);
    assert_eq!(index.apply(namespace("a")), Dirty::Everything);
}

#[test]
fn shared_addresses_backends_and_many_pods_require_a_compile() {
    let many = |count: u32| {
        (0..count).map(|it| of_ops(&format!("p{it}"), &format!("10.4.{}.{}", it / 200, it % 200))).collect::<Vec<_>>()
    };
    assert_ne!(compiled(&many(256)).apply(namespace("a")), Dirty::Everything);
    assert_eq!(compiled(&many(257)).apply(namespace("a")), Dirty::Everything, "too many");
    let shared = [of_ops("one", "10.3.0.2"), of_ops("two", "10.3.0.2")];
    assert_eq!(compiled(&shared).apply(namespace("a")), Dirty::Everything, "two pods report one address");
    assert_eq!(compiled(&[of_ops("one", "10.0.0.5")]).apply(namespace("a")), Dirty::Everything, "a backend");
}

/// No pod had the label when the generation was compiled, so no row has verdicts for it.
#[test]
fn labels_of_an_unknown_class_require_a_compile() {
    let mut index = compiled(&[of_ops("one", "10.3.0.2")]);
    index.apply(namespace("a"));
    index.compile().expect("classes");
    assert_eq!(index.apply(namespace("b")), Dirty::Everything);
}
