//! Changes of pods and policies that need few entries or none.

use weir_classes::index::{Dirty, Index, Key, Late};
use weir_model::Assumptions;
use weir_objects::k8s::{Body, Object, Pod};
use weir_testing::Random;
use weir_testing::yaml::objects;

use crate::objects::{fixed, pod};

/// A pod on another node, in the namespace shop.
pub(crate) fn far(name: &str, uid: &str, app: &str, address: &str) -> Object {
    let text = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {uid}, labels: {{app: {app}}}}}, \
         spec: {{nodeName: far}}, status: {{phase: Running, podIP: {address}}}}}"
    );
    objects(&text).remove(0)
}

/// An index with a local pod, and one pod of each kind on another node.
pub(crate) fn compiled() -> Index {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let near = far("near", "u0", "web", "10.0.0.1");
    let near = match near.body {
        Body::Pod(pod) => Object { body: Body::Pod(Pod { node: Some("near".into()), ..pod }), ..near },
        _ => near,
    };
    let others = [far("db", "u1", "db", "10.1.0.1"), far("cron", "u2", "cron", "10.1.0.2")];
    fixed().into_iter().chain([near]).chain(others).for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    index
}

/// The number of single entries, and whether flows are judged again.
#[track_caller]
pub(crate) fn singly(dirty: Dirty) -> (usize, bool) {
    match dirty {
        Dirty::Nothing => (0, false),
        Dirty::Addresses(changes) => (changes.entries.len(), changes.judge_again),
        Dirty::Everything => panic!("it can be written singly"),
    }
}

#[test]
fn flows_are_judged_again_when_an_address_gets_another_class_or_another_owner() {
    let mut index = compiled();
    let new = |uid: &str, app: &str| far("new", uid, app, "10.1.0.9");
    assert_eq!(singly(index.apply(new("u3", "cron"))), (1, true), "it was no pod's");
    assert_eq!(singly(index.apply(new("u3", "cron"))), (0, false));
    assert_eq!(singly(index.apply(new("u3", "web"))), (1, true), "other labels");
    assert_eq!(singly(index.apply(new("u3", "cron"))), (1, true), "and back");
    assert_eq!(singly(index.apply(new("u3", "api"))), (0, false), "labels that nothing tells apart");
    assert_eq!(singly(index.apply(new("u4", "api"))), (0, true), "another pod of the same name");
    assert_eq!(singly(index.delete(&Key::of(&new("", "")))), (1, true), "it is no pod's again");
}

#[test]
fn a_pod_that_is_like_any_address_asks_for_nothing_until_it_goes() {
    let mut index = compiled();
    assert_eq!(singly(index.apply(far("new", "u3", "web", "10.1.0.9"))), (0, false));
    assert_eq!(singly(index.apply(far("new", "u4", "web", "10.1.0.9"))), (0, true), "another pod of the same name");
    assert_eq!(singly(index.apply(far("new", "u4", "web", "10.1.0.8"))), (0, true), "it has left an address");
    assert_eq!(singly(index.delete(&Key::of(&far("new", "", "web", "10.1.0.8")))), (0, true));
}

#[test]
fn a_pod_that_goes_while_a_generation_is_made_is_late_for_it() {
    let mut index = compiled();
    index.apply(far("new", "u3", "web", "10.1.0.9"));
    let draft = index.begin();
    index.delete(&Key::of(&far("new", "", "web", "10.1.0.9")));
    let late = index.adopt(&mut draft.classify().expect("classes"));
    assert_eq!(late, Late { judge_again: true, ..Late::default() });
}

#[test]
fn a_backend_of_another_class_changes_what_its_service_is_judged_by() {
    let mut index = compiled();
    index.apply(far("behind", "u3", "db", "10.0.0.5"));
    index.compile().expect("classes");
    assert_eq!(index.apply(far("behind", "u3", "cron", "10.0.0.5")), Dirty::Everything);
}

#[test]
fn a_policy_that_selects_no_local_pod_changes_nothing() {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    let policy = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: elsewhere, namespace: shop}
spec: {podSelector: {matchLabels: {app: nobody}}}
";
    let policy = objects(policy).remove(0);
    assert_eq!(index.apply(policy.clone()), Dirty::Nothing);
    assert_eq!(index.apply(policy.clone()), Dirty::Nothing);
    assert_eq!(index.delete(&Key::of(&policy)), Dirty::Nothing);
}

#[test]
fn a_pod_with_a_host_port_makes_a_generation_on_its_own_node_alone() {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().for_each(|object| _ = index.apply(object));
    let pod = |name: &str, node: &str, address: &str, port: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, labels: {{app: web}}}}, spec: \
             {{nodeName: {node}, containers: [{{name: c, ports: [{{containerPort: 80{port}}}]}}]}}, \
             status: {{phase: Running, podIP: {address}}}}}"
        );
        objects(&text).remove(0)
    };
    let port = ", hostPort: 9000, hostIP: 192.0.2.40";
    let (known, elsewhere) = (pod("known", "far", "10.0.0.1", ""), pod("elsewhere", "far", "10.0.0.2", port));
    let (client, near) = (pod("client", "near", "10.0.0.3", ""), pod("near", "near", "10.0.0.4", port));
    [known, client].into_iter().for_each(|it| _ = index.apply(it));
    index.compile().expect("classes");
    assert_ne!(index.apply(elsewhere), Dirty::Everything, "another node's hostPorts concern nothing here");
    assert_eq!(index.apply(near.clone()), Dirty::Everything);
    index.compile().expect("classes");
    let mut moved = near.clone();
    let Body::Pod(body) = &mut moved.body else { panic!("a pod") };
    body.host_ports.clear();
    assert_eq!(index.apply(moved), Dirty::Everything, "it is no hostPort any more");
    assert_eq!(index.apply(near.clone()), Dirty::Everything);
    index.compile().expect("classes");
    // A pod on another node takes the address of the hostPort, or the pod's own address.
    assert_eq!(index.apply(pod("taker", "far", "192.0.2.40", "")), Dirty::Everything);
    assert_eq!(index.delete(&Key::of(&near)), Dirty::Everything);
}

#[test]
fn a_reset_with_the_same_objects_changes_nothing() {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    fixed().into_iter().for_each(|object| _ = index.apply(object));
    let mut random = Random::new(7);
    let mut pods: Vec<Object> = (0..20).map(|_| pod(&mut random)).collect();
    pods.sort_by_key(Key::of);
    pods.dedup_by_key(|it| Key::of(it));
    assert_eq!(index.reset("Pod", pods.clone()), Dirty::Everything);
    index.compile().expect("classes");
    assert_eq!(index.reset("Pod", pods.clone()), Dirty::Nothing);
    pods.clear();
    assert_ne!(index.reset("Pod", pods), Dirty::Nothing);
}
