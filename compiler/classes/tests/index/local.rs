//! Pods of this node that come and leave without a compile, and the conditions under which they need one.

use std::net::IpAddr;
use std::sync::Arc;

use weir_classes::Limits;
use weir_classes::index::{Dirty, Index, Key, LocalArrival, LocalChange};
use weir_model::Assumptions;
use weir_objects::k8s::{Body, Object};
use weir_testing::yaml::objects;

use crate::objects::fixed;
use crate::single::far;

/// A pod on this node, in the namespace shop.
fn near(name: &str, app: &str, address: &str) -> Object {
    with(far(name, name, app, address), |pod| pod.node = Some("near".into()))
}

fn with(mut object: Object, change: impl FnOnce(&mut weir_objects::k8s::Pod)) -> Object {
    let Body::Pod(pod) = &mut object.body else { panic!("a pod") };
    change(pod);
    object
}

fn labelled(mut object: Object, key: &str, value: &str) -> Object {
    Arc::make_mut(&mut object.meta.labels).insert(key, value);
    object
}

/// An index of services with slices only, with a local pod `web` that policies isolate and `api`, which none does.
fn compiled() -> Index {
    let mut index = Index::new(Some("near".to_owned()), Assumptions::default());
    let has_slices = |it: &Object| !matches!(it.body, Body::Service(_)) || it.meta.name != "db";
    let pods = [near("web", "web", "10.2.0.1"), near("api", "api", "10.2.0.2"), far("db", "u", "db", "10.1.0.1")];
    fixed().into_iter().filter(has_slices).chain(pods).for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    index
}

fn arrival(dirty: &Dirty) -> Option<&LocalArrival> {
    match dirty {
        Dirty::Addresses(changes) => match changes.locals.as_slice() {
            [LocalChange::Came(arrival)] => Some(arrival),
            _ => None,
        },
        _ => None,
    }
}

fn key(object: &Object) -> Key {
    Key::of(object)
}

#[test]
fn a_pod_comes_without_a_compile_if_the_same_policies_select_a_local_pod() {
    let new = labelled(near("web-2", "web", "10.2.0.3"), "pod-template-hash", "abc");
    let mut index = compiled();
    let dirty = index.apply(new.clone());
    let found = arrival(&dirty).expect("no compile");
    assert_eq!((found.like.as_str(), found.addresses.as_slice()), ("shop/web", &["10.2.0.3".parse().unwrap()][..]));
    assert_eq!(index.apply(new.clone()), Dirty::Nothing, "once");
    // The other local pod has another class.
    let other = index.apply(near("api-2", "api", "10.2.0.4"));
    assert_eq!(arrival(&other).map(|it| it.like.as_str()), Some("shop/api"));
    assert_ne!(arrival(&other).map(|it| it.subject), arrival(&dirty).map(|it| it.subject));
    let Dirty::Addresses(left) = index.delete(&key(&new)) else { panic!("no compile") };
    assert_eq!(left.locals, [LocalChange::Left { pod: key(&new), uid: new.meta.uid.clone() }]);
    assert!(left.judge_again, "flows to its address");
}

#[test]
fn an_address_that_a_local_pod_has_left_can_be_another_pods() {
    let mut index = compiled();
    assert_ne!(index.delete(&key(&near("web", "", "10.2.0.1"))), Dirty::Everything);
    assert_ne!(index.apply(far("db-2", "u9", "db", "10.2.0.1")), Dirty::Everything, "on another node");
    assert_ne!(index.delete(&key(&far("db-2", "", "", "10.2.0.1"))), Dirty::Everything);
    assert!(arrival(&index.apply(near("api-2", "api", "10.2.0.1"))).is_some());
    assert_eq!(index.apply(far("db-2", "u9", "db", "10.2.0.1")), Dirty::Everything, "two pods have it");
}

/// The policy selects no local pod, so it is not in the generation.
#[test]
fn a_policy_that_selected_no_local_pod_applies_to_a_pod_that_comes() {
    let mut index = compiled();
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: late, namespace: shop}, \
                  spec: {podSelector: {matchLabels: {tier: back}}}}";
    assert_eq!(index.apply(objects(policy).remove(0)), Dirty::Nothing);
    assert_eq!(index.apply(labelled(near("web-2", "web", "10.2.0.3"), "tier", "back")), Dirty::Everything);
    index.compile().expect("classes");
    let twin = labelled(near("web-3", "web", "10.2.0.5"), "tier", "back");
    assert_eq!(arrival(&index.apply(twin)).map(|it| it.like.as_str()), Some("shop/web-2"));
}

#[test]
fn cluster_policies_and_lists_that_select_the_new_pod_alone_require_a_compile() {
    let rule = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: a}, spec: \
                {priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {tier: back}}}}, \
                ingress: [{action: Deny, from: [{namespaces: {}}]}]}}";
    let list = "{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {name: l}, spec: {action: Deny, \
                appliesTo: {podSelector: {matchLabels: {tier: back}}}, cidrs: [192.0.2.1]}}";
    for text in [rule, list] {
        let mut index = compiled();
        index.apply(objects(text).remove(0));
        index.compile().expect("classes");
        assert_eq!(
            index.apply(labelled(near("web-2", "web", "10.2.0.3"), "tier", "back")),
            Dirty::Everything,
            "{text}"
        );
    }
}

#[test]
fn a_policy_added_after_a_pod_came_selects_it() {
    let mut index = compiled();
    assert!(arrival(&index.apply(labelled(near("web-2", "web", "10.2.0.3"), "tier", "back"))).is_some());
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: late, namespace: shop}, \
                  spec: {podSelector: {matchLabels: {tier: back}}}}";
    assert_eq!(index.apply(objects(policy).remove(0)), Dirty::Everything);
    let made = index.begin_changes().and_then(|draft| draft.classify_within(Limits::NONE)).expect("applied");
    let subject = |name: &str| {
        let found = made.classes.subject_of.iter().find(|(id, _)| made.cluster.endpoints[id.index()].name == name);
        found.map(|(_, subject)| *subject).expect("a subject")
    };
    assert_ne!(subject("web-2"), subject("web"), "the policy selects only the pod that came");
}

/// A policy that isolates must be in force before a pod starts that it selects.
#[test]
fn a_pod_waits_for_changes_that_need_a_compile() {
    let policy = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: late, namespace: shop}, \
                  spec: {podSelector: {}}}";
    let (policy, new) = (objects(policy).remove(0), near("web-2", "web", "10.2.0.3"));
    let mut index = compiled();
    assert_eq!(index.apply(policy.clone()), Dirty::Everything);
    assert_eq!(index.apply(new.clone()), Dirty::Everything, "before the compile");
    let mut index = compiled();
    let draft = index.begin();
    assert_eq!(index.apply(new.clone()), Dirty::Everything, "during a compile");
    assert!(index.adopt(&mut draft.classify().expect("classes")).is_more);
    assert_eq!(index.apply(near("web-3", "web", "10.2.0.5")), Dirty::Everything, "the next one is not made yet");
    index.compile().expect("classes");
    assert!(arrival(&index.apply(near("web-3", "web", "10.2.0.6"))).is_none(), "another address");
    assert!(arrival(&index.apply(near("web-4", "web", "10.2.0.7"))).is_none(), "the change before needs a compile");
    index.compile().expect("classes");
    assert!(arrival(&index.apply(near("web-5", "web", "10.2.0.8"))).is_some());
}

#[test]
fn conditions_that_require_a_compile() {
    let web = || near("web-2", "web", "10.2.0.3");
    let at = |addresses: &[&str]| {
        let addresses: Vec<IpAddr> = addresses.iter().map(|it| it.parse().expect("an address")).collect();
        with(web(), |pod| pod.addresses = addresses)
    };
    let with_port = |text: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: web-2, namespace: shop, labels: {{app: web}}}}, spec: \
             {{nodeName: near, containers: [{{name: c, ports: [{text}]}}]}}, status: {{phase: Running, podIP: 10.2.0.3}}}}"
        );
        objects(&text).remove(0)
    };
    // The policy `everyone` of this namespace selects no local pod.
    let mut in_ops = near("web-2", "web", "10.2.0.3");
    in_ops.meta.namespace = "ops".into();
    for (what, new) in [
        ("a new set of policies", in_ops),
        ("a hostPort", with_port("{containerPort: 80, hostPort: 80}")),
        ("a port that an ingress rule names", with_port("{name: http, containerPort: 8080}")),
        ("an address family that the programs do not know", at(&["10.2.0.3", "2001:db8::99"])),
        ("two addresses of a family", at(&["10.2.0.3", "10.2.0.4"])),
        ("a local pod's address", at(&["10.2.0.2"])),
        ("a remote pod's address", at(&["10.1.0.1"])),
        ("a service's address", at(&["10.97.0.1"])),
        ("a node's address", at(&["172.16.0.1"])),
        ("a backend's address", at(&["192.0.2.9"])),
        ("a new address of its node", with(web(), |pod| pod.node_addresses = ["172.16.0.77".parse().unwrap()].into())),
    ] {
        assert_eq!(compiled().apply(new), Dirty::Everything, "{what}");
    }
    let selecting = "{apiVersion: v1, kind: Service, metadata: {name: new, namespace: shop}, \
                     spec: {clusterIP: 10.97.0.9, selector: {app: web}, ports: [{port: 80}]}}";
    let mut index = compiled();
    index.apply(objects(selecting).remove(0));
    index.compile().expect("classes");
    assert_eq!(index.apply(web()), Dirty::Everything, "a service without slices selects it");
    let mut index = Index::new(None, Assumptions::default());
    fixed().into_iter().chain([near("web", "web", "10.2.0.1")]).for_each(|object| _ = index.apply(object));
    index.compile().expect("classes");
    assert_eq!(index.apply(web()), Dirty::Everything, "every pod of the cluster is local");
}

#[test]
fn a_pod_that_a_service_leads_to_leaves_with_a_compile() {
    let mut index = compiled();
    let slice = "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, \
                 metadata: {name: s, namespace: shop, labels: {kubernetes.io/service-name: sliced}}, \
                 addressType: IPv4, ports: [{name: a, port: 80}], endpoints: [{addresses: [10.2.0.1]}]}";
    assert_eq!(index.apply(objects(slice).remove(0)), Dirty::Everything);
    index.compile().expect("classes");
    assert_eq!(index.delete(&key(&near("web", "", "10.2.0.1"))), Dirty::Everything);
}
