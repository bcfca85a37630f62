//! Pods of this node that come and leave without a generation.

use super::*;

fn near_pod(name: &str, app: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: u-{name}, labels: {{app: {app}}}}},
          spec: {{nodeName: near}}, status: {{phase: Running, podIP: {address}}}}}"
    )
}

/// A rig with a local pod `db-near`, whose addresses have a peer class of their own.
fn with_db() -> Rig {
    let mut rig = Rig::in_force();
    rig.plug("db-near", "u-db-near", "veth8", [10, 0, 0, 8]);
    rig.apply(&near_pod("db-near", "db", "10.0.0.8"));
    assert_eq!(rig.after(GATHER), ["install shop/db-near@veth8,shop/web@veth7 isolated"]);
    rig.after(PAUSE);
    rig
}

#[test]
fn address_of_a_new_pod_is_written_before_its_interface_opens() {
    let mut rig = with_db();
    rig.plug("db-2", "u-db-2", "veth9", [10, 0, 0, 9]);
    rig.apply(&near_pod("db-2", "db", "10.0.0.9"));
    assert_eq!(rig.after(QUIET), ["write 10.0.0.9, again", "add shop/db-2@veth9 like shop/db-near"]);
    assert_eq!(rig.metrics.unready(), None);
    let text = rig.metrics.text();
    assert!(text.contains("weir_single_pods_total{change=\"came\"} 1\n"), "{text}");
    assert!(text.contains("weir_endpoints{state=\"enforced\"} 3\n"), "{text}");
    // The next generation contains it.
    rig.apply(NARROW);
    let all = "install shop/db-2@veth9,shop/db-near@veth8,shop/web@veth7 isolated";
    assert_eq!(rig.after(GATHER), [all]);
    rig.unplug("veth9");
    rig.delete("Pod", "db-2");
    rig.after(PAUSE);
    assert!(rig.metrics.text().contains("weir_single_pods_total{change=\"left\"} 1\n"), "{}", rig.metrics.text());
    assert_eq!(rig.metrics.unready(), None);
}

#[test]
fn pod_that_the_kernel_refuses_alone_is_in_a_generation() {
    let mut rig = Rig::in_force();
    rig.plug("web-2", "u-web-2", "veth8", [10, 0, 0, 8]);
    rig.seen().refuse_single = true;
    rig.apply(&near_pod("web-2", "web", "10.0.0.8"));
    let done = ["add shop/web-2@veth8 like shop/web", "install shop/web@veth7,shop/web-2@veth8 isolated"];
    assert_eq!(rig.after(GATHER), done);
    rig.unplug("veth8");
    rig.delete("Pod", "web-2");
    assert_eq!(rig.after(GATHER), ["delete shop/web-2", "install shop/web@veth7 isolated"]);
}

#[test]
fn pod_without_an_interface_is_in_a_generation() {
    let mut rig = Rig::in_force();
    rig.apply(&near_pod("web-2", "web", "10.0.0.8"));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert!(rig.metrics.unready().is_some_and(|why| why.starts_with("pod shop/web-2: no interface")));
    rig.plug("web-2", "u-web-2", "veth8", [10, 0, 0, 8]);
    assert_eq!(rig.after(Duration::from_secs(10)), ["install shop/web@veth7,shop/web-2@veth8 isolated"]);
}

/// The policy is known before the pod, so the pod must not start with the rules from before.
#[test]
fn pod_waits_for_a_policy_that_is_not_in_force_yet() {
    let mut rig = Rig::in_force();
    rig.plug("web-2", "u-web-2", "veth8", [10, 0, 0, 8]);
    rig.apply(NARROW);
    rig.apply(&near_pod("web-2", "web", "10.0.0.8"));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7,shop/web-2@veth8 isolated"]);
}

#[test]
fn lost_interface_that_the_kernel_still_has_makes_a_generation() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_single = true;
    rig.unplug("veth7");
    assert_eq!(rig.after(CHECK + GATHER), ["lose shop/web", "install  isolated"]);
}

/// Then the reason why the pod has no interface is another one, and nothing that is in force depends on it.
#[test]
fn result_that_goes_after_its_interface_makes_no_generation() {
    let mut rig = Rig::in_force();
    rig.unplug("veth7");
    assert_eq!(rig.after(CHECK + GATHER), ["lose shop/web"]);
    let why = |rig: &Rig| rig.agent.local.interfaces().missing().values().map(ToString::to_string).collect::<String>();
    let before = why(&rig);
    rig.host.lock().expect("no test panics while it holds it").cached.clear();
    rig.agent.host_changed(ChangedInterfaces::Any, rig.now);
    assert_eq!(rig.after(CHECK + GATHER), NONE);
    assert_ne!(why(&rig), before);
    rig.delete("Pod", "web");
    assert_eq!(rig.after(CHECK + GATHER), ["again", "delete shop/web"]);
}

/// A retry sees it first.
#[test]
fn interface_that_is_lost_while_another_pod_is_missing_makes_no_generation() {
    let mut rig = Rig::in_force();
    rig.apply(&near_pod("web-2", "web", "10.0.0.8"));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.unplug("veth7");
    rig.agent.host_changed(ChangedInterfaces::Any, rig.now);
    assert_eq!(rig.after(CHECK + GATHER), ["lose shop/web"]);
}
