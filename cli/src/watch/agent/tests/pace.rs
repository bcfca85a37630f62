//! The CPU budget: changes that only allow more wait for it, and changes that isolate do not wait for long.

use super::super::pace::{ISOLATION, LONGEST_WAIT};
use super::*;

/// The same pods as in [`CLUSTER`], and one more rule.
const WIDER: &str = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: shop},
  spec: {podSelector: {matchLabels: {app: web}},
    ingress: [{from: [{podSelector: {matchLabels: {app: db}}}]}, {ports: [{port: 443}]}]}}";

/// An agent that has used more than its budget.
fn in_debt() -> Rig {
    let mut rig = Rig::in_force();
    rig.seen().cpu = Duration::from_secs(3_600);
    assert_eq!(rig.after(Duration::from_millis(1)), NONE);
    rig
}

/// Lets time pass while the process uses a whole core.
fn busy(rig: &mut Rig, time: Duration) -> Vec<String> {
    let mut done = Vec::new();
    for _ in 0..time.as_millis() / 10 {
        rig.seen().cpu += Duration::from_millis(10);
        done.extend(rig.after(Duration::from_millis(10)));
    }
    done
}

fn gauge(rig: &Rig, name: &str) -> f64 {
    let text = rig.metrics.text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{name} is not in\n{text}"))
}

#[test]
fn allowance_waits_for_the_budget_and_not_for_ever() {
    let mut rig = in_debt();
    rig.apply(WIDER);
    assert_eq!(busy(&mut rig, LONGEST_WAIT - GATHER), NONE);
    assert_eq!(busy(&mut rig, 2 * GATHER), ["install shop/web@veth7 isolated"]);
}

#[test]
fn isolation_does_not_wait_for_the_budget() {
    let mut rig = in_debt();
    rig.apply(NARROW);
    assert_eq!(busy(&mut rig, ISOLATION), ["install shop/web@veth7 isolated"]);
}

#[test]
fn allowance_that_waits_is_in_the_generation_of_the_next_isolation() {
    let mut rig = in_debt();
    let other = WIDER.replace("name: p,", "name: q,").replace("app: web", "app: db");
    rig.apply(WIDER);
    assert_eq!(busy(&mut rig, ISOLATION), NONE);
    rig.apply(NARROW);
    rig.apply(&other);
    assert_eq!(busy(&mut rig, ISOLATION), ["install shop/web@veth7 isolated"]);
    assert_eq!(busy(&mut rig, LONGEST_WAIT), NONE, "nothing is left to do");
}

#[test]
fn agent_within_its_budget_does_not_wait() {
    let mut rig = Rig::in_force();
    rig.apply(WIDER);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
}

#[test]
fn waiting_changes_are_visible() {
    let mut rig = in_debt();
    rig.apply(WIDER);
    busy(&mut rig, Duration::from_secs(2));
    assert!(gauge(&rig, "weir_waiting_changes{effect=\"allowing\"}") == 1.0);
    assert!(gauge(&rig, "weir_waiting_seconds{effect=\"allowing\"}") > 1.9);
    assert!(gauge(&rig, "weir_cpu_budget_seconds") < 0.0);
    assert!(gauge(&rig, "weir_cpu_budget_cores") == 0.1);
    rig.apply(NARROW);
    rig.after(Duration::from_millis(1));
    assert!(gauge(&rig, "weir_waiting_changes{effect=\"isolating\"}") == 1.0);
    busy(&mut rig, LONGEST_WAIT);
    assert!(gauge(&rig, "weir_waiting_changes{effect=\"allowing\"}") == 0.0);
    assert!(gauge(&rig, "weir_waiting_seconds{effect=\"allowing\"}") == 0.0);
    assert!(gauge(&rig, "weir_waiting_changes{effect=\"isolating\"}") == 0.0);
}

/// A pod of this node like `web`.
const WEB_2: &str = "{apiVersion: v1, kind: Pod,
  metadata: {name: web-2, namespace: shop, uid: u-web-2, labels: {app: web}},
  spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.8}}";

#[test]
fn pod_that_comes_alone_does_not_wait_for_an_allowance() {
    let mut rig = in_debt();
    rig.plug("web-2", "u-web-2", "veth8", [10, 0, 0, 8]);
    rig.apply(WEB_2);
    rig.apply(WIDER);
    let done = busy(&mut rig, ISOLATION);
    assert!(done.iter().any(|it| it == "add shop/web-2@veth8 like shop/web"), "{done:?}");
    assert_eq!(busy(&mut rig, LONGEST_WAIT), ["install shop/web@veth7,shop/web-2@veth8 isolated"]);
}

#[test]
fn pod_whose_interface_is_found_late_does_not_wait_for_an_allowance() {
    let mut rig = Rig::in_force();
    rig.apply(WEB_2);
    rig.after(GATHER);
    rig.seen().cpu = Duration::from_secs(3_600);
    rig.after(Duration::from_millis(1));
    rig.apply(WIDER);
    assert_eq!(busy(&mut rig, ISOLATION), NONE);
    rig.plug("web-2", "u-web-2", "veth8", [10, 0, 0, 8]);
    let done = busy(&mut rig, 3 * ISOLATION);
    assert_eq!(done, ["install shop/web@veth7,shop/web-2@veth8 isolated"]);
}

#[test]
fn pod_that_comes_back_at_another_interface_does_not_wait_for_an_allowance() {
    let mut rig = in_debt();
    rig.apply(WIDER);
    assert_eq!(busy(&mut rig, ISOLATION), NONE);
    rig.unplug("veth7");
    rig.plug("web", "u1", "veth9", [10, 0, 0, 5]);
    let done = busy(&mut rig, 3 * ISOLATION);
    assert_eq!(done.last().map(String::as_str), Some("install shop/web@veth9 isolated"), "{done:?}");
}

#[test]
fn address_that_comes_after_a_failed_allowance_does_not_wait_for_the_budget() {
    let mut rig = Rig::in_force();
    rig.seen().refuse_install = true;
    rig.apply(WIDER);
    let install = "install shop/web@veth7 isolated";
    assert_eq!(rig.after(GATHER), [install], "it is refused");
    rig.seen().refuse_install = false;
    rig.seen().cpu = Duration::from_secs(3_600);
    assert_eq!(busy(&mut rig, ISOLATION), [install]);
}

#[test]
fn failed_isolation_is_retried_without_waiting_for_the_budget() {
    let mut rig = in_debt();
    rig.seen().refuse_install = true;
    rig.apply(NARROW);
    assert_eq!(busy(&mut rig, ISOLATION), ["install shop/web@veth7 isolated"]);
    rig.seen().refuse_install = false;
    assert_eq!(busy(&mut rig, ISOLATION), ["install shop/web@veth7 isolated"], "the retry is not an allowance");
}

/// An agent whose generations have failed so often that it retries each half minute.
fn after_failures() -> Rig {
    let mut rig = Rig::in_force();
    rig.apply(WIDER);
    until_it_retries_seldom(&mut rig);
    rig
}

fn until_it_retries_seldom(rig: &mut Rig) {
    rig.seen().refuse_install = true;
    rig.after(10 * RETRY.longest);
    while rig.after(Duration::from_millis(100)) == NONE {}
    rig.seen().refuse_install = false;
}

#[test]
fn isolation_does_not_wait_for_the_retry_of_an_earlier_generation() {
    let mut rig = after_failures();
    assert_eq!(rig.after(2 * ISOLATION), NONE, "the retry comes later");
    rig.apply(NARROW);
    assert_eq!(rig.after(ISOLATION), ["install shop/web@veth7 isolated"]);
}

#[test]
fn allowance_waits_for_the_retry_of_an_earlier_generation() {
    let mut rig = after_failures();
    rig.apply(&WIDER.replace("{port: 443}", "{port: 443}, {port: 444}"));
    assert_eq!(rig.after(5 * ISOLATION), NONE);
    assert_eq!(rig.after(RETRY.longest), ["install shop/web@veth7 isolated"]);
}

#[test]
fn retries_that_fail_are_not_repeated_for_the_same_isolation() {
    let mut rig = after_failures();
    rig.seen().refuse_install = true;
    rig.apply(NARROW);
    assert_eq!(rig.after(ISOLATION).len(), 1);
    assert_eq!(rig.after(5 * ISOLATION), NONE);
}

/// `db` without the label that lets it reach `web`.
const RELABELLED: &str = "{apiVersion: v1, kind: Pod,
  metadata: {name: db, namespace: shop, uid: u2, labels: {app: other}},
  spec: {nodeName: far}, status: {phase: Running, podIP: 10.0.1.5}}";

#[test]
fn isolating_entry_does_not_wait_for_the_retry_of_an_earlier_generation() {
    let mut rig = after_failures();
    rig.apply(RELABELLED);
    assert_eq!(rig.after(ISOLATION), ["install shop/web@veth7 isolated"]);
}

#[test]
fn isolating_entry_does_not_wait_for_the_retry_of_the_first_generation() {
    let mut rig = Rig::new();
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(CLUSTER);
    // The generation of an agent before is in force.
    until_it_retries_seldom(&mut rig);
    rig.apply(RELABELLED);
    assert_eq!(rig.after(ISOLATION), ["install shop/web@veth7 isolated"]);
}

/// The requests to the kernel in the second after a generation that failed, during which this came.
fn after_failure_with(text: &str) -> Vec<String> {
    let mut rig = after_failures();
    rig.seen().refuse_install = true;
    let failed = rig.act_while(RETRY.longest, objects(text).into_iter().map(ApiEvent::Applied));
    assert_eq!(failed, ["install shop/web@veth7 isolated"]);
    rig.seen().refuse_install = false;
    rig.now += RETRY.longest;
    // The generation has taken some time.
    rig.after(ISOLATION + Duration::from_millis(500))
}

#[test]
fn isolation_that_comes_while_a_generation_fails_does_not_wait_for_its_retry() {
    for isolating in [NARROW, RELABELLED] {
        assert_eq!(after_failure_with(isolating), ["install shop/web@veth7 isolated"]);
    }
    assert_eq!(after_failure_with(&WIDER.replace("{port: 443}", "{port: 443}, {port: 444}")), NONE);
}

#[test]
fn retries_for_isolation_that_fail_stay_within_the_budget() {
    let mut rig = after_failures();
    rig.seen().refuse_install = true;
    let mut tries = 0;
    for number in 0..60 {
        rig.apply(if number % 2 == 0 { NARROW } else { WIDER });
        let tried = rig.after(ISOLATION).len();
        // Each try is a compile from scratch.
        rig.seen().cpu += Duration::from_millis(500) * tried as u32;
        tries += tried;
    }
    assert!((8..=16).contains(&tries), "{tries} in a minute");
}

#[test]
fn entry_does_not_wait_for_the_retry_of_an_earlier_write() {
    let mut rig = Rig::in_force();
    rig.agent.pending.delay_generation(rig.now + 100 * RETRY.longest);
    rig.seen().refuse_write = true;
    rig.apply(RELABELLED);
    rig.after(10 * RETRY.longest);
    while rig.after(Duration::from_millis(100)) == NONE {}
    rig.seen().refuse_write = false;
    assert_eq!(rig.after(2 * ISOLATION), NONE, "the retry comes later");
    rig.apply(&WEB_2.replace("near", "far").replace("app: web", "app: db"));
    let done = rig.after(ISOLATION);
    assert!(done.iter().any(|it| it.starts_with("remove 10.0.1.5")), "{done:?}");
    assert!(done.iter().any(|it| it.starts_with("write 10.0.0.8")), "{done:?}");
}
