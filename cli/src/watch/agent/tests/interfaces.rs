//! Pods and their interfaces: an interface that comes late, comes again or is gone.

use super::*;

#[test]
fn deleted_pod_stays_enforced_until_its_interface_is_gone() {
    let mut rig = Rig::in_force();
    rig.delete("Pod", "web");
    rig.apply(OPEN);
    assert_eq!(rig.after(Duration::from_secs(5)), ["install shop/web@veth7"]);
    rig.unplug("veth7");
    assert_eq!(rig.after(CHECK + GATHER), ["again", "delete shop/web"]);
}

/// The order of the kubelet: the interface goes first, then the API reports the end of the pod.
#[test]
fn ending_pod_is_not_reported_as_a_failure() {
    let mut rig = Rig::in_force();
    let deleting = CLUSTER.replace("uid: u1,", "uid: u1, deletionTimestamp: '2026-01-01T00:00:00Z',");
    rig.apply(&deleting);
    rig.after(Duration::from_secs(3));
    rig.unplug("veth7");
    for _ in 0..3 {
        rig.after(Duration::from_secs(1));
        assert_eq!(rig.metrics.unready(), None);
        let text = rig.metrics.text();
        assert!(!text.contains("no_interface\"} 1") && !text.contains("weir_failures_total"), "{text}");
        assert!(text.contains("weir_endpoints{state=\"ending\"} 1\n"), "{text}");
    }
    rig.delete("Pod", "web");
    rig.after(Duration::from_secs(1));
    assert!(rig.metrics.text().contains("weir_endpoints{state=\"ending\"} 0\n"), "{}", rig.metrics.text());
}

/// The pod is not being deleted. The runtime may be replacing its network.
#[test]
fn pod_without_its_interface_is_reported_after_the_excused_time() {
    let mut rig = Rig::in_force();
    rig.unplug("veth7");
    rig.after(Duration::from_secs(10));
    assert_eq!(rig.metrics.unready(), None);
    rig.after(Duration::from_secs(60));
    assert!(rig.metrics.unready().is_some_and(|why| why.starts_with("pod shop/web: no interface")));
}

/// The interface of such a pod may exist without our knowledge.
#[test]
fn pod_that_was_never_found_is_reported_although_it_is_terminating() {
    let mut rig = Rig::new();
    rig.list(&CLUSTER.replace("uid: u1,", "uid: u1, deletionTimestamp: '2026-01-01T00:00:00Z',"));
    rig.after(Duration::from_secs(61));
    assert!(rig.metrics.unready().is_some_and(|why| why.starts_with("pod shop/web: no interface")));
}

#[test]
fn pod_is_found_at_a_recreated_interface() {
    let mut rig = Rig::in_force();
    rig.unplug("veth7");
    assert_eq!(rig.after(CHECK + GATHER), ["lose shop/web"]);
    rig.plug("web", "u1", "veth8", [10, 0, 0, 5]);
    assert_eq!(rig.after(Duration::from_secs(10)), ["install shop/web@veth8 isolated"]);
}

#[test]
fn pod_is_enforced_before_the_api_has_its_address() {
    let mut rig = Rig::in_force();
    let starting = |status: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: web-2, namespace: shop, uid: u7, labels: {{app: web}}}},
              spec: {{nodeName: near}}, status: {status}}}"
        )
    };
    rig.apply(&starting("{phase: Pending}"));
    rig.after(Duration::from_secs(3));
    // An earlier pod of this name has left its result in the cache.
    rig.plug("web-2", "u6", "veth6", [10, 0, 0, 6]);
    assert_eq!(rig.after(Duration::from_secs(3)), NONE);
    rig.plug("web-2", "u7", "veth8", [10, 0, 0, 7]);
    assert_eq!(rig.after(Duration::from_secs(1) + GATHER), ["add shop/web-2@veth8 like shop/web"]);
    // The next update of the API still has no address.
    rig.apply(&starting("{phase: Pending, conditions: [{type: PodScheduled, status: 'True'}]}"));
    assert_eq!(rig.after(Duration::from_secs(3)), NONE);
    rig.apply(&starting("{phase: Running, podIP: 10.0.0.7}"));
    assert_eq!(rig.after(Duration::from_secs(3)), NONE, "the generation has this address");
}
