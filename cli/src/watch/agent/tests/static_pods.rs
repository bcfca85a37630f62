//! Static pods: the container runtime knows them by another UID than the API server. See `pod_uids.rs`.

use super::*;
use crate::cni::wire::{CniAnswer, CniPod, CniQuestion, Verb};

/// The UID that the kubelet makes of a manifest.
const HASH: &str = "0123456789abcdef0123456789abcdef";
/// A UID as an API server makes them.
const UUID: &str = "9b2f0c1e-7d43-4b8a-9a51-0e6d2c4f8a77";

/// A pod of this node with the annotation of mirror pods. Without an address, it is starting.
fn mirror(name: &str, uid: &str, static_uid: &str, address: Option<&str>) -> String {
    let status = address.map_or("{phase: Pending}".to_owned(), |it| format!("{{phase: Running, podIP: {it}}}"));
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {uid}, labels: {{app: web}},
            annotations: {{kubernetes.io/config.mirror: {static_uid}}}}}, spec: {{nodeName: near}}, status: {status}}}"
    )
}

/// Asks about a pod that the container runtime has attached. Returns the answer after a second.
fn ask(rig: &mut Rig, verb: Verb, name: &str, uid: &str, veth: &str) -> Option<CniAnswer> {
    let (reply, answer) = std::sync::mpsc::channel();
    let pod = CniPod { namespace: "shop".to_owned(), name: name.to_owned(), uid: Some(uid.to_owned()) };
    let wait = Duration::from_secs(3_600);
    let question =
        CniQuestion { verb, pod, interfaces: vec![veth.to_owned()], addresses: vec![[10, 0, 0, 9].into()], wait };
    rig.agent.handle(AgentMessage::Question(PendingQuestion { question, since: rig.now, reply }));
    rig.after(Duration::from_secs(1));
    answer.try_recv().ok()
}

#[test]
fn static_pod_is_found_by_the_uid_that_its_mirror_names() {
    let mut rig = Rig::in_force();
    rig.plug("static", HASH, "veth9", [10, 0, 0, 9]);
    rig.apply(&mirror("static", "m1", HASH, Some("10.0.0.9")));
    assert_eq!(rig.after(Duration::from_secs(1)), ["add shop/static@veth9 like shop/web"]);
    rig.apply(OPEN);
    assert_eq!(rig.after(GATHER), ["install shop/static@veth9,shop/web@veth7"]);
    assert_eq!(rig.metrics.unready(), None);
    assert!(matches!(ask(&mut rig, Verb::Check, "static", HASH, "veth9"), Some(Ok(_))));
    assert!(matches!(ask(&mut rig, Verb::Check, "static", "another", "veth9"), Some(Err(_))));
}

#[test]
fn static_pod_is_enforced_before_the_api_has_its_address() {
    let mut rig = Rig::in_force();
    rig.apply(&mirror("static", "m1", HASH, None));
    assert_eq!(rig.after(Duration::from_secs(1)), NONE);
    rig.plug("static", HASH, "veth9", [10, 0, 0, 9]);
    assert_eq!(rig.after(Duration::from_secs(2)), ["add shop/static@veth9 like shop/web"]);
}

#[test]
fn static_pod_starts_when_its_policy_is_in_force() {
    let mut rig = Rig::in_force();
    rig.apply(&mirror("static", "m1", HASH, None));
    rig.after(Duration::from_secs(1));
    let mut host = rig.host.lock().expect("no test panics while it holds it").clone();
    host.change_interfaces(|all| {
        all.push(NamespaceInterface { ifindex: 9, name: "veth9".to_owned(), kind: "veth".to_owned(), peer: Some(2) });
    });
    *rig.host.lock().expect("no test panics while it holds it") = host;
    assert!(matches!(ask(&mut rig, Verb::Add, "static", HASH, "veth9"), Some(Ok(_))));
}

#[test]
fn static_pod_is_known_when_its_cni_result_appears() {
    let mut rig = Rig::with(UnknownPods::Deny, Budgets::default());
    rig.list("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}");
    rig.apply(&mirror("static", "m1", HASH, None));
    rig.after(Duration::from_secs(1));
    rig.plug("static", HASH, "veth9", [10, 0, 0, 9]);
    rig.agent.host_changed(ChangedInterfaces::Any, rig.now);
    rig.after(Duration::from_millis(20));
    assert_eq!(rig.seen().closed, NONE);
}

/// `kubectl delete` of a mirror pod does not end the static pod. The kubelet makes another mirror.
#[test]
fn static_pod_stays_enforced_when_its_mirror_is_replaced() {
    let mut rig = Rig::in_force();
    rig.plug("static", HASH, "veth9", [10, 0, 0, 9]);
    rig.apply(&mirror("static", "m1", HASH, Some("10.0.0.9")));
    rig.after(Duration::from_secs(1));
    rig.delete("Pod", "static");
    rig.after(Duration::from_secs(1));
    rig.apply(&mirror("static", "m2", HASH, Some("10.0.0.9")));
    let done = rig.after(Duration::from_secs(1));
    assert_eq!(done, ["install shop/static@veth9,shop/web@veth7 isolated"]);
    assert_eq!(rig.metrics.unready(), None);
}

/// Any user who may create pods can write the annotation.
#[test]
fn pod_cannot_claim_another_pods_interface_or_address_by_its_uid() {
    let mut rig = Rig::in_force();
    rig.plug("static", HASH, "veth9", [10, 0, 0, 9]);
    rig.apply(&mirror("static", "m1", HASH, Some("10.0.0.9")));
    assert_eq!(rig.after(Duration::from_secs(1)), ["add shop/static@veth9 like shop/web"]);
    for (name, of) in [("evil-1", "u1"), ("evil-2", HASH)] {
        rig.apply(&mirror(name, name, of, None));
        assert_eq!(rig.after(Duration::from_secs(3)), NONE, "it gets no address of the pod {of}");
        let own = rig.agent.objects.index().get(&key("Pod", name)).expect("it is known");
        assert!(matches!(&own.body, Body::Pod(pod) if pod.addresses.is_empty()), "{own:?}");
        assert!(ask(&mut rig, Verb::Check, name, "u9", "veth9").is_some_and(|answer| answer.is_err()));
    }
    // An address that no policy treats like another pod's makes a generation.
    rig.apply(&mirror("evil-3", "e3", HASH, Some("10.0.0.6")));
    rig.apply(OPEN);
    assert_eq!(rig.after(GATHER + QUIET), ["install shop/static@veth9,shop/web@veth7"]);
}

/// The object of a pod that was deleted by force, and that still runs, is replaced by one that names its UID.
#[test]
fn pod_cannot_claim_the_interface_of_an_earlier_pod_with_its_name() {
    let mut rig = Rig::new();
    rig.plug("web", UUID, "veth7", [10, 0, 0, 5]);
    rig.list(&CLUSTER.replace("u1", UUID));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.delete("Pod", "web");
    rig.apply(&mirror("web", "e1", UUID, None));
    rig.apply(OPEN);
    let done = rig.after(Duration::from_secs(5));
    assert!(!done.is_empty() && done.iter().all(|it| !it.contains("shop/web@veth7")), "{done:?}");
}

#[test]
fn uid_of_a_pods_own_object_counts_in_spite_of_the_annotation() {
    let mut rig = Rig::in_force();
    rig.plug("odd", "u9", "veth9", [10, 0, 0, 9]);
    rig.apply(&mirror("odd", "u9", HASH, Some("10.0.0.9")));
    assert_eq!(rig.after(Duration::from_secs(1)), ["add shop/odd@veth9 like shop/web"]);
}

#[test]
fn annotation_of_a_pod_on_another_node_is_not_kept() {
    let mut rig = Rig::in_force();
    rig.apply(&mirror("far", "m1", HASH, Some("10.0.1.9")).replace("nodeName: near", "nodeName: far"));
    let far = rig.agent.objects.index().get(&key("Pod", "far")).expect("it is known");
    assert!(matches!(&far.body, Body::Pod(pod) if pod.static_uid.is_none()), "{far:?}");
}
