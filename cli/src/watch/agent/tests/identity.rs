//! A pod is identified by its UID and its interface. Addresses and names of pods, interfaces and namespaces are reused.

use weir_runtime::sys::links::NetworkNamespace;

use super::*;
use crate::watch::discover::MountedNamespace;

fn near_pod(name: &str, uid: &str, app: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {uid}, labels: {{app: {app}}}}},
          spec: {{nodeName: near}}, status: {{phase: Running, podIP: {address}}}}}"
    )
}

/// A pod's interface that only the pod's own network namespace shows.
fn plug_untold(rig: &Rig, veth: &str, addresses: &[[u8; 4]]) {
    let mut host = rig.host.lock().expect("no test panics while it holds it");
    let ifindex = host.interfaces.iter().count() as u32 + 20;
    let end = |ifindex, name: &str, peer| NamespaceInterface {
        ifindex,
        name: name.to_owned(),
        kind: "veth".to_owned(),
        peer: Some(peer),
    };
    host.change_interfaces(|all| all.push(end(ifindex, veth, 2)));
    let addresses = addresses.iter().map(|it| (2, IpAddr::from(*it))).collect();
    let namespace = NetworkNamespace { interfaces: vec![end(2, "eth0", ifindex)], addresses };
    host.namespaces.push(MountedNamespace { name: format!("cni-{veth}"), content: namespace });
}

/// An agent that has seen the successor of a pod with the same address, but not the deletion of the pod.
fn replaced() -> Rig {
    let mut rig = Rig::in_force();
    rig.unplug("veth7");
    rig.plug("new", "u8", "veth8", [10, 0, 0, 5]);
    rig.apply(&near_pod("new", "u8", "web", "10.0.0.5"));
    rig
}

#[test]
fn late_deletion_does_not_block_the_new_pod_with_the_same_address() {
    let mut rig = replaced();
    let closed = rig.after(Duration::from_secs(1));
    assert!(closed.iter().all(|it| !it.contains("web@veth8")), "{closed:?}");
    rig.delete("Pod", "web");
    assert_eq!(rig.after(Duration::from_secs(1)), ["install shop/new@veth8 isolated"]);
    assert!(!rig.agent.local.is_any_leaving());
    assert_eq!(rig.metrics.unready(), None);
}

#[test]
fn deletion_missing_from_the_stream_does_not_block_the_new_pod() {
    let mut rig = replaced();
    rig.after(Duration::from_secs(1));
    rig.agent.handle_event(
        ApiEvent::Listed { kind: "Pod", names: [key("Pod", "new"), key("Pod", "db")].iter().collect(), order: 0 },
        rig.now,
    );
    assert_eq!(rig.after(Duration::from_secs(1)), ["install shop/new@veth8 isolated"]);
    assert_eq!(rig.metrics.unready(), None);
}

#[test]
fn deleted_pod_loses_its_address_to_the_next_pod() {
    let mut rig = Rig::in_force();
    rig.delete("Pod", "web");
    rig.plug("new", "u8", "veth8", [10, 0, 0, 5]);
    rig.apply(&near_pod("new", "u8", "api", "10.0.0.5"));
    let done = rig.after(GATHER + QUIET);
    assert_eq!(done.last().map(String::as_str), Some("install shop/new@veth8 closed shop/web@veth7"), "{done:?}");
    assert_eq!(rig.metrics.unready(), None, "it is normal");
    rig.unplug("veth7");
    let done = rig.after(CHECK + GATHER);
    assert_eq!(done.last().map(String::as_str), Some("install shop/new@veth8"), "{done:?}");
}

/// An agent that has seen two new pods with one address.
fn with_shared_address() -> Rig {
    let mut rig = Rig::in_force();
    for (name, uid, veth) in [("a", "u8", "veth8"), ("b", "u9", "veth9")] {
        rig.plug(name, uid, veth, [10, 0, 0, 8]);
        rig.apply(&near_pod(name, uid, "api", "10.0.0.8"));
    }
    rig
}

#[test]
fn pods_that_share_an_address_are_closed_and_reported_and_others_enforced() {
    let mut rig = with_shared_address();
    let done = rig.after(GATHER + QUIET);
    let last = "install shop/web@veth7 closed shop/a@veth8,shop/b@veth9 isolated";
    assert_eq!(done.last().map(String::as_str), Some(last), "{done:?}");
    assert_eq!(rig.metrics.unready(), None, "the objects contradict each other, and not on this node alone");
    let why = "all packets at its interface are dropped: another pod reports the same address";
    assert_eq!(rig.metrics.notes(), [format!("pod shop/a: {why}"), format!("pod shop/b: {why}")]);
    assert!(rig.metrics.text().contains("weir_endpoints{state=\"closed\"} 2\n"), "{}", rig.metrics.text());
    assert!(rig.notices().iter().any(|it| it.starts_with("NotEnforced Pod/a")));
}

#[test]
fn pods_that_share_an_address_stay_known_while_another_pod_is_searched() {
    let mut rig = with_shared_address();
    rig.apply(&near_pod("missing", "u10", "api", "10.0.0.10"));
    let done = rig.after(GATHER + QUIET);
    let last = "install shop/web@veth7 closed shop/a@veth8,shop/b@veth9 isolated";
    assert_eq!(done.last().map(String::as_str), Some(last), "{done:?}");
    let done = rig.after(Duration::from_secs(30));
    assert!(done.iter().all(|it| !it.starts_with("install")), "nothing has changed: {done:?}");
}

#[test]
fn pod_that_takes_its_neighbours_address_does_not_block_other_pods() {
    let mut rig = Rig::new();
    plug_untold(&rig, "veth7", &[[10, 0, 0, 5]]);
    plug_untold(&rig, "veth8", &[[10, 0, 0, 8], [10, 0, 0, 5]]);
    plug_untold(&rig, "veth9", &[[10, 0, 0, 9]]);
    let more = [near_pod("evil", "u8", "api", "10.0.0.8"), near_pod("calm", "u9", "web", "10.0.0.9")].join("\n---\n");
    rig.list(&format!("{CLUSTER}\n---\n{more}"));
    let done = rig.after(GATHER);
    assert_eq!(done.len(), 1, "{done:?}");
    assert!(
        done[0].starts_with("install shop/calm@veth9 closed ")
            && done[0].contains("@veth7")
            && done[0].contains("@veth8"),
        "{done:?}"
    );
    assert!(
        rig.metrics.unready().is_some_and(|why| why.contains("shop/web: all packets at its interface are dropped"))
    );
}

#[test]
fn pod_found_before_a_neighbour_took_its_address_stays_enforced() {
    let mut rig = Rig::new();
    plug_untold(&rig, "veth7", &[[10, 0, 0, 5]]);
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    plug_untold(&rig, "veth8", &[[10, 0, 0, 8], [10, 0, 0, 5]]);
    rig.apply(&near_pod("evil", "u8", "api", "10.0.0.8"));
    let done = rig.after(GATHER + QUIET);
    assert_eq!(done.last().map(String::as_str), Some("install shop/evil@veth8,shop/web@veth7 isolated"), "{done:?}");
}

#[test]
fn older_cni_result_with_another_pods_veth_is_ignored() {
    let mut rig = Rig::new();
    rig.plug("gone", "u8", "veth7", [10, 0, 0, 8]);
    rig.host.lock().expect("no test panics while it holds it").change_interfaces(Vec::clear);
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(&format!("{CLUSTER}\n---\n{}", near_pod("gone", "u8", "api", "10.0.0.8")));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
}

#[test]
fn kept_policies_are_removed_when_a_namespace_of_the_same_name_is_listed() {
    let namespace = |uid: &str, more: &str| {
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, uid: {uid}{more}}}}}")
    };
    let mut rig = Rig::in_force();
    rig.apply(&namespace("n1", ", deletionTimestamp: '2026-01-01T00:00:00Z'"));
    rig.apply(OPEN);
    rig.delete("NetworkPolicy", "p");
    rig.after(GATHER);
    assert!(rig.agent.objects.index().get(&key("NetworkPolicy", "p")).is_some(), "it is kept");
    rig.apply(&namespace("n2", ""));
    assert_eq!(rig.agent.objects.index().get(&key("NetworkPolicy", "p")), None);
}

#[test]
fn policies_of_a_replaced_namespace_allow_nothing_until_they_are_listed_again() {
    let namespace = |uid: &str| format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: shop, uid: {uid}}}}}");
    let mut rig = Rig::in_force();
    rig.apply(&namespace("n1"));
    rig.apply(OPEN);
    assert_eq!(rig.after(GATHER + QUIET), ["install shop/web@veth7"]);
    rig.apply(&namespace("n2"));
    assert_eq!(rig.after(GATHER + QUIET), ["install shop/web@veth7 isolated"]);
    rig.apply(OPEN);
    assert_eq!(rig.after(GATHER + QUIET), ["install shop/web@veth7"]);
}

#[test]
fn unreadable_object_does_not_keep_the_content_of_another_uid() {
    let mut rig = Rig::in_force();
    rig.apply(&OPEN.replace("name: p,", "name: p, uid: a,"));
    rig.after(GATHER);
    let event = malformed(key("NetworkPolicy", "p"), Some("b"), "odd");
    rig.agent.handle_event(event, rig.now);
    assert_eq!(rig.agent.objects.index().get(&key("NetworkPolicy", "p")), None);
}

#[test]
fn readable_parts_of_an_object_are_in_force_and_the_error_is_reported() {
    let mut rig = Rig::in_force();
    let object = objects(OPEN).remove(0);
    rig.agent.handle_event(ApiEvent::Partial { object, message: "odd".to_owned() }, rig.now);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7"]);
    assert_eq!((rig.metrics.unready(), rig.metrics.notes()), (None, vec!["NetworkPolicy shop/p: odd".to_owned()]));
    assert_eq!(rig.notices().len(), 1);
    rig.apply(CLUSTER);
    rig.after(GATHER);
    assert_eq!((rig.metrics.unready(), rig.metrics.notes()), (None, vec![]));
}

#[test]
fn unreadable_pod_of_the_node_is_a_reason_and_others_are_notes() {
    let mut rig = Rig::in_force();
    let pod = |name: &str, node: Option<&str>| {
        let (key, node) = (key("Pod", name), node.map(str::to_owned));
        ApiEvent::Malformed(MalformedObject { key, uid: None, node, message: "odd".to_owned() })
    };
    rig.agent.handle_event(pod("elsewhere", Some("far")), rig.now);
    rig.agent.handle_event(pod("waiting", None), rig.now);
    // Its last content is in force.
    rig.agent.handle_event(pod("web", Some("near")), rig.now);
    rig.after(Duration::ZERO);
    assert_eq!((rig.metrics.unready(), rig.metrics.notes().len()), (None, 3));
    rig.agent.handle_event(pod("new", Some("near")), rig.now);
    rig.after(Duration::ZERO);
    assert_eq!((rig.metrics.unready().as_deref(), rig.metrics.notes().len()), (Some("Pod shop/new: odd"), 3));
    rig.delete("Pod", "new");
    rig.after(Duration::ZERO);
    assert_eq!(rig.metrics.unready(), None);
}

#[test]
fn unreadable_objects_are_notes_but_do_not_hide_that_no_generation_is_in_force() {
    let mut rig = Rig::new();
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    let odd = |namespace: &str, number: u32| Key {
        namespace: namespace.to_owned(),
        ..key("NetworkPolicy", &format!("odd-{number}"))
    };
    let of_shop = (0..60).map(|number| odd("shop", number));
    for key in of_shop.chain((0..60).map(|number| odd(&format!("team-{number:02}"), number))) {
        rig.agent.handle_event(malformed(key, None, "odd"), rig.now);
    }
    let readable = objects(CLUSTER);
    for kind in KINDS {
        let names = rig.agent.objects.unreadable().keys().cloned().chain(readable.iter().map(Key::of));
        let names: Vec<Key> = names.filter(|key| key.kind == kind).collect();
        let of_kind = readable.iter().filter(|object| Key::of(object).kind == kind);
        of_kind.for_each(|object| rig.agent.handle_event(ApiEvent::Applied(object.clone()), rig.now));
        rig.agent.handle_event(ApiEvent::Listed { kind, names: names.iter().collect(), order: 0 }, rig.now);
    }
    rig.after(Duration::ZERO);
    assert_eq!(rig.metrics.unready().as_deref(), Some("no generation is in force yet"));
    rig.after(GATHER);
    assert_eq!(rig.metrics.unready(), None, "each user who may write policies can write such objects");
    let notes = rig.metrics.notes();
    assert_eq!((notes.len(), notes[0].as_str()), (51, "NetworkPolicy shop/odd-0: odd"));
    assert_eq!(notes[1], "NetworkPolicy team-00/odd-0: odd", "a namespace does not hide others");
    assert_eq!(notes[50], "70 other objects cannot be read; the log names them");
    let line = "weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"malformed\"} 120";
    assert!(rig.metrics.text().contains(line), "{}", rig.metrics.text());
}

#[test]
fn denied_entry_stays_denied_while_its_list_is_partly_unreadable() {
    let list = |addresses: &str| {
        let text = format!(
            "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: bad, uid: l}}, spec: {{action: Deny, cidrs: [{addresses}]}}}}"
        );
        objects(&text).remove(0)
    };
    let entries = |rig: &Rig| match &rig.agent.objects.index().get(&key("CidrList", "bad")).expect("it is there").body {
        Body::CidrList(list) => list.entries.len(),
        other => panic!("{other:?}"),
    };
    let mut rig = Rig::in_force();
    rig.agent.handle_event(ApiEvent::Applied(list("203.0.113.1, 203.0.113.2")), rig.now);
    rig.agent.handle_event(
        ApiEvent::Partial { object: list("203.0.113.1, 203.0.113.9"), message: "odd".to_owned() },
        rig.now,
    );
    assert_eq!(entries(&rig), 3);
    rig.agent.handle_event(ApiEvent::Applied(list("203.0.113.1")), rig.now);
    assert_eq!(entries(&rig), 1);
}

#[test]
fn fault_of_one_pod_does_not_keep_other_pods_from_starting() {
    let mut rig = Rig::in_force();
    rig.apply(&near_pod("lost", "u8", "api", "10.0.0.8"));
    rig.after(GATHER);
    assert!(rig.metrics.unready().is_some());
    let (reply, answer) = std::sync::mpsc::channel();
    let question = crate::cni::wire::CniQuestion {
        verb: crate::cni::wire::Verb::Status,
        pod: crate::cni::wire::CniPod::default(),
        interfaces: Vec::new(),
        addresses: Vec::new(),
        wait: Duration::from_secs(1),
    };
    rig.agent.handle(AgentMessage::Question(PendingQuestion { question, since: rig.now, reply }));
    assert!(matches!(answer.try_recv(), Ok(Ok(_))));
}
