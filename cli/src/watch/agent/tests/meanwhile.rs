//! Changes that arrive while the agent compiles or checks the kernel.

use super::*;

#[test]
fn pod_added_during_a_compile_is_in_both_generations() {
    let mut rig = Rig::in_force();
    let late = far_pod("db-2", "db", "10.0.1.6");
    rig.apply(NARROW);
    let done = rig.compile_while_receiving(&late);
    assert_eq!(done, ["write 10.0.1.6", "install shop/web@veth7 isolated with 10.0.1.6"]);
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
    let text = rig.metrics.text();
    for once in ["weir_pod_enforced_seconds_count 1\n", "weir_policy_enforced_seconds_count 1\n"] {
        assert!(text.contains(once), "{text}");
    }
}

#[test]
fn pod_that_arrives_during_checks_does_not_wait_for_their_end() {
    let mut rig = Rig::in_force();
    let late = objects(&far_pod("db-2", "db", "10.0.1.6")).into_iter().map(ApiEvent::Applied);
    assert_eq!(rig.act_while(hook_checks::INTERVAL, late), ["write 10.0.1.6, again"]);
}

#[test]
fn policy_changed_during_a_compile_is_in_the_next_generation() {
    let mut rig = Rig::in_force();
    rig.apply(NARROW);
    let done = rig.compile_while_receiving(OPEN);
    assert_eq!(done, ["install shop/web@veth7 isolated"]);
    let text = rig.metrics.text();
    assert!(text.contains("weir_policy_enforced_seconds_count 1\n"), "{text}");
    assert_eq!(rig.after(GATHER + QUIET), ["install shop/web@veth7"]);
    let text = rig.metrics.text();
    assert!(text.contains("weir_policy_enforced_seconds_count 2\n"), "{text}");
}

#[test]
fn policy_without_pods_before_the_compile_applies_to_a_pod_added_during_it() {
    let mut rig = Rig::in_force();
    rig.plug("api", "u3", "veth8", [10, 0, 0, 8]);
    rig.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, uid: u3, labels: {app: api}},
          spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.8}}",
    );
    // In the generation in force, this policy selects no pod.
    let late = NARROW.replace("name: p", "name: q").replace("app: web", "app: api");
    let done = rig.compile_while_receiving(&late);
    let both = ["install shop/api@veth8,shop/web@veth7 isolated"];
    assert_eq!(done, both);
    assert_eq!(rig.after(GATHER + QUIET), both);
}

#[test]
fn late_changes_are_in_the_generation_after_a_failed_one() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_install = true;
    let late = far_pod("db-2", "db", "10.0.1.6");
    rig.apply(NARROW);
    let done = rig.compile_while_receiving(&late);
    assert_eq!(done, ["write 10.0.1.6", "install shop/web@veth7 isolated with 10.0.1.6"]);
    rig.seen().refuse_install = false;
    // The pod is no late change of this generation, so only the compile can have put its address there.
    // The attempt that failed has taken real time.
    assert_eq!(rig.after(2 * RETRY.first), ["install shop/web@veth7 isolated with 10.0.1.6"]);
}

#[test]
fn generation_begins_when_no_packet_is_under_way_in_the_one_before_the_last() {
    const PAUSE_OF_KERNEL: Duration = Duration::from_millis(500);
    let mut rig = Rig::in_force();
    rig.seen().pause = PAUSE_OF_KERNEL;
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.apply(OPEN);
    assert_eq!(rig.after(GATHER), NONE, "the kernel would wait, and the agent with it");
    let late = far_pod("db-2", "db", "10.0.1.6");
    rig.apply(&late);
    assert_eq!(rig.after(Duration::ZERO), ["write 10.0.1.6"], "single entries do not wait");
    let done = ["again", "separate", "install shop/web@veth7 with 10.0.1.6"];
    // The compiles take real time.
    assert_eq!(rig.after(PAUSE_OF_KERNEL * 3 / 2), done, "the wait for its programs has begun before the compile");
    assert_eq!(rig.after(Duration::from_secs(60)), ["separate"]);
}

/// A thread waits for packets and programs; the agent does not wait for the thread.
#[test]
fn a_generation_in_use_is_looked_at_again() {
    let mut rig = Rig::in_force();
    (rig.seen().pause, rig.seen().is_in_use) = (Duration::from_millis(50), true);
    rig.apply(NARROW);
    assert_eq!(rig.after(Duration::from_secs(1)), ["install shop/web@veth7 isolated"]);
    rig.apply(OPEN);
    assert_eq!(rig.after(Duration::from_secs(1)), NONE);
    rig.seen().is_in_use = false;
    assert_eq!(rig.after(Duration::from_millis(10)), ["separate", "install shop/web@veth7"]);
}

/// Packets can be under way in the replaced generation from the end of the installation on.
#[test]
fn the_pause_of_the_kernel_begins_when_the_generation_is_in_force() {
    let mut rig = Rig::in_force();
    (rig.seen().pause, rig.seen().install_takes) = (Duration::from_millis(50), Duration::from_millis(100));
    rig.apply(NARROW);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.apply(OPEN);
    assert_eq!(rig.after(Duration::from_millis(100)), NONE);
    assert_eq!(rig.after(Duration::from_secs(1)), ["separate", "install shop/web@veth7", "separate"]);
}
