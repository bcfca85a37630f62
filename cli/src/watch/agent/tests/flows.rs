//! Flows that are judged again, and flows that end.

use super::*;

/// A rig with a generation in force, and old enough that an epoch may begin at once.
fn rested() -> Rig {
    let mut rig = Rig::in_force();
    assert_eq!(rig.after(PAUSE), NONE);
    rig
}

fn far_pod_of(name: &str, uid: &str, app: &str, address: &str) -> String {
    far_pod(name, app, address).replace("namespace: shop,", &format!("namespace: shop, uid: {uid},"))
}

#[test]
fn flows_are_judged_again_at_once_and_then_at_the_end_of_the_pause() {
    let mut rig = rested();
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["write 10.0.1.6, again"]);
    rig.delete("Pod", "db-2");
    assert_eq!(rig.after(QUIET), ["remove 10.0.1.6"], "entries do not wait");
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["write 10.0.1.6"]);
    assert_eq!(rig.after(PAUSE - 4 * QUIET), NONE);
    assert_eq!(rig.after(QUIET), ["again"], "once for both");
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
}

#[test]
fn at_most_ten_epochs_a_second_begin_and_the_last_change_gets_one() {
    let mut rig = rested();
    let mut done = Vec::new();
    for turn in 0..200 {
        match turn % 2 {
            0 => rig.apply(&far_pod("db-2", "db", "10.0.1.6")),
            _ => rig.delete("Pod", "db-2"),
        }
        done.extend(rig.after(Duration::from_millis(10)));
    }
    done.extend(rig.after(PAUSE));
    let entries = done.iter().filter(|it| it.contains("10.0.1.6")).count();
    let epochs: Vec<usize> = done.iter().enumerate().filter(|(_, it)| it.contains("again")).map(|(at, _)| at).collect();
    assert_eq!(entries, 200);
    assert!((20..=21).contains(&epochs.len()), "{done:?}");
    assert_eq!(epochs.last(), Some(&(done.len() - 1)), "{done:?}");
}

#[test]
fn flows_are_judged_again_when_another_pod_gets_the_same_name_and_address() {
    let mut rig = rested();
    rig.apply(&far_pod_of("db-2", "a", "db", "10.0.1.6"));
    rig.after(PAUSE);
    rig.apply(&far_pod_of("db-2", "a", "db", "10.0.1.6"));
    assert_eq!(rig.after(PAUSE), NONE, "nothing has changed");
    rig.apply(&far_pod_of("db-2", "b", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["again"]);
}

#[test]
fn deleted_pods_flows_are_judged_again_after_failed_writes_and_an_unchanged_generation() {
    let mut rig = rested();
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    rig.after(PAUSE);
    (rig.seen().refuse_write, rig.seen().refuse_install) = (true, false);
    rig.seen().is_same = true;
    rig.delete("Pod", "db-2");
    assert_eq!(rig.after(QUIET / 2), ["remove 10.0.1.6, again"]);
    // A generation with the same number does not cause flows to be judged again.
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.after(RETRY.first), ["again"], "it is tried once");
    rig.seen().refuse_write = false;
    let done = rig.after(Duration::from_secs(5));
    assert_eq!(done.iter().filter(|it| *it == "again").count(), 1, "{done:?}");
}

#[test]
fn failed_entry_writes_are_retried_while_no_generation_can_be_compiled() {
    let mut rig = rested();
    rig.seen().refuse_write = true;
    rig.agent.pending.delay_generation(rig.now + Duration::from_secs(60));
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["write 10.0.1.6, again"]);
    rig.delete("Pod", "db-2");
    assert_eq!(rig.after(RETRY.first / 2), NONE, "it is not tried all the time");
    rig.seen().refuse_write = false;
    assert_eq!(rig.after(RETRY.first), ["remove 10.0.1.6, again"]);
}

#[test]
fn an_entry_does_not_wait_for_the_retry_of_an_epoch() {
    let mut rig = rested();
    rig.seen().refuse_write = true;
    rig.agent.pending.writes.judge_again(rig.now);
    assert_eq!(rig.after(QUIET), ["again"]);
    rig.seen().refuse_write = false;
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(RETRY.first / 4), ["write 10.0.1.6"], "the entry does not fail with the epoch");
    assert_eq!(rig.after(RETRY.first), ["again"]);
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
}

#[test]
fn new_generation_number_needs_no_extra_epoch() {
    let mut rig = rested();
    rig.apply(NARROW);
    let gone = [ApiEvent::Deleted(key("Pod", "db"))];
    let done = rig.compile_while(gone.into_iter());
    assert_eq!(done, ["remove 10.0.1.5, again", "install shop/web@veth7 isolated"]);
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
}

#[test]
fn pod_deleted_during_an_unchanged_generation_gets_its_flows_judged_again() {
    let mut rig = rested();
    rig.seen().is_same = true;
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(rig.after(QUIET), ["write 10.0.1.6, again"]);
    rig.apply(NARROW);
    let gone = [ApiEvent::Deleted(key("Pod", "db-2"))];
    let mut done = rig.compile_while(gone.into_iter());
    assert!(done.iter().any(|it| it.starts_with("remove 10.0.1.6")), "{done:?}");
    // Whether this happens during the compile or afterwards depends on the machine's speed.
    done.extend(rig.after(Duration::from_secs(5)));
    assert!(done.iter().any(|it| it.contains("again")), "{done:?}");
}

#[test]
fn unchanged_generation_judges_flows_again() {
    let mut rig = rested();
    rig.seen().is_same = true;
    // Another pod of the same name at the same interface.
    rig.apply(&CLUSTER.replace("uid: u1", "uid: u9"));
    let done = rig.after(GATHER + QUIET);
    assert_eq!(done.last().map(String::as_str), Some("again"), "{done:?}");
    assert_eq!(rig.after(Duration::from_secs(5)), NONE);
}

/// web may only reach pods labelled `app: db`; they have a service.
const SERVICE: &str = "
{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: e, namespace: shop},
  spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress],
    egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop},
  spec: {clusterIP: 10.96.0.1, selector: {app: db}, ports: [{port: 80, targetPort: 8080}]}}
";

fn ends(done: &[String]) -> Vec<&str> {
    done.iter().map(String::as_str).filter(|it| it.starts_with("end ")).collect()
}

/// A rig with a service of two backends in force.
fn serving() -> Rig {
    let mut rig = Rig::in_force();
    rig.apply(SERVICE);
    rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
    assert_eq!(ends(&rig.after(Duration::from_secs(1))), NONE);
    rig
}

#[test]
fn flows_to_a_service_end_when_a_backend_is_quarantined() {
    let mut rig = serving();
    rig.apply(&far_pod("db-2", "none", "10.0.1.6"));
    let done = rig.after(Duration::from_secs(1));
    assert_eq!(done, ["install shop/web@veth7 isolated", "end shop/web 10.96.0.1:80"]);
    rig.apply(NARROW);
    assert_eq!(ends(&rig.after(Duration::from_secs(5))), NONE, "once");
}

/// The kernel refuses the generation in which the service has its backends, or that in which it has lost one. The next
/// generation is the first one that is in force after that.
#[test]
fn flows_to_a_quarantined_backend_end_although_a_generation_was_refused() {
    for has_backend_before in [false, true] {
        let mut rig = if has_backend_before { serving() } else { Rig::in_force() };
        rig.seen().refuse_install = true;
        if has_backend_before {
            rig.apply(&SERVICE.replace("selector: {app: db}", "selector: {app: new}"));
        } else {
            rig.apply(SERVICE);
            rig.apply(&far_pod("db-2", "db", "10.0.1.6"));
        }
        rig.after(RETRY.first / 2);
        rig.seen().refuse_install = false;
        assert_eq!(ends(&rig.after(Duration::from_secs(5))), NONE);
        if !has_backend_before {
            rig.apply(&SERVICE.replace("selector: {app: db}", "selector: {app: new}"));
            assert_eq!(ends(&rig.after(Duration::from_secs(5))), NONE);
        }
        rig.apply(&far_pod("db-2", "none", "10.0.1.6"));
        let done = rig.after(Duration::from_secs(5));
        assert_eq!(ends(&done), ["end shop/web 10.96.0.1:80"], "{has_backend_before}: {done:?}");
    }
}

#[test]
fn ending_flows_is_retried_after_an_error() {
    let mut rig = serving();
    rig.seen().refuse_end = true;
    rig.apply(&far_pod("db-2", "none", "10.0.1.6"));
    assert_eq!(ends(&rig.after(QUIET + GATHER)).len(), 1);
    rig.seen().refuse_end = false;
    assert_eq!(ends(&rig.after(RETRY.first)).len(), 1);
    assert_eq!(ends(&rig.after(Duration::from_secs(60))), NONE);
}

#[test]
fn backend_relabelled_after_it_left_its_service_ends_its_flows() {
    let mut rig = serving();
    // The service has another selector, the pods have the labels that they had.
    rig.apply(&SERVICE.replace("selector: {app: db}", "selector: {app: new}"));
    assert_eq!(ends(&rig.after(Duration::from_secs(1))), NONE);
    rig.apply(&far_pod("db-2", "none", "10.0.1.6"));
    let done = rig.after(Duration::from_secs(1));
    assert_eq!(ends(&done), ["end shop/web 10.96.0.1:80"], "{done:?}");
}

/// The slice of [`SERVICE`], with pods of the node `far`.
fn slice(pods: &[(&str, &str)]) -> String {
    let endpoint = |(name, address): &(&str, &str)| {
        format!("{{addresses: [{address}], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: {name}}}}}")
    };
    let endpoints = pods.iter().map(endpoint).collect::<Vec<_>>().join(", ");
    format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: db-1, namespace: shop, \
          labels: {{kubernetes.io/service-name: db}}}}, addressType: IPv4, ports: [{{port: 8080}}], \
          endpoints: [{endpoints}]}}"
    )
}

#[test]
fn a_moved_backend_needs_no_generation_until_it_is_quarantined() {
    let mut rig = serving();
    rig.apply(&far_pod("db-3", "db", "10.0.1.7"));
    rig.apply(&slice(&[("db", "10.0.1.5"), ("db-2", "10.0.1.6")]));
    rig.after(Duration::from_secs(1));
    // A rolling update: another pod with the same labels comes and goes again.
    rig.apply(&slice(&[("db", "10.0.1.5"), ("db-3", "10.0.1.7")]));
    rig.apply(&slice(&[("db", "10.0.1.5")]));
    assert_eq!(rig.after(Duration::from_secs(1)), NONE);
    assert!(rig.metrics.text().contains("weir_backend_moves_total 2\n"), "{}", rig.metrics.text());
    rig.apply(&far_pod("db-3", "none", "10.0.1.7"));
    let done = rig.after(Duration::from_secs(1));
    assert_eq!(ends(&done), ["end shop/web 10.96.0.1:80"], "{done:?}");
}

#[test]
fn a_backend_that_moves_during_a_compile_needs_no_other_generation() {
    for refused in [false, true] {
        let mut rig = serving();
        rig.apply(&far_pod("db-3", "db", "10.0.1.7"));
        rig.apply(&slice(&[("db", "10.0.1.5"), ("db-2", "10.0.1.6")]));
        rig.after(Duration::from_secs(1));
        rig.apply(NARROW);
        rig.seen().refuse_install = refused;
        let done = rig.compile_while_receiving(&slice(&[("db", "10.0.1.5"), ("db-3", "10.0.1.7")]));
        assert_eq!(done, ["install shop/web@veth7 isolated with 10.0.1.6"]);
        rig.seen().refuse_install = false;
        let again = rig.after(Duration::from_secs(5));
        assert_eq!(again.iter().filter(|it| it.starts_with("install")).count(), usize::from(refused), "{again:?}");
        rig.apply(&far_pod("db-2", "none", "10.0.1.6"));
        let done = rig.after(Duration::from_secs(1));
        assert_eq!(ends(&done), ["end shop/web 10.96.0.1:80"], "{done:?}");
    }
}

#[test]
fn events_about_slices_that_wait_for_a_generation_are_handled_in_their_order() {
    let backends = [("db", "10.0.1.5"), ("db-2", "10.0.1.6")];
    let with_other = [("db", "10.0.1.5"), ("job", "10.0.1.9")];
    let applied = |backends: &[(&str, &str)]| ApiEvent::Applied(objects(&slice(backends)).remove(0));
    let deleted = || ApiEvent::Deleted(Key::of(&objects(&slice(&backends)).remove(0)));
    let listed = |names: ListedNames| ApiEvent::Listed { kind: "EndpointSlice", names, order: 0 };
    let installs = |done: &[String]| done.iter().filter(|it| it.starts_with("install")).count();
    let same = || applied(&backends);
    // The events, how many generations follow that they need, and whether the slice is there afterwards as before.
    let cases: [(&str, Vec<ApiEvent>, usize, bool); 5] = [
        ("the same", vec![same()], 0, true),
        ("a backend of another class", vec![applied(&with_other)], 1, false),
        ("it goes again", vec![applied(&with_other), same()], 1, true),
        ("the slice goes and comes again", vec![deleted(), same()], 1, true),
        ("a list does not have the slice", vec![same(), listed(ListedNames::default())], 1, false),
    ];
    for (case, events, needed, is_as_before) in cases {
        let mut rig = serving();
        rig.apply(&far_pod("job", "job", "10.0.1.9"));
        rig.apply(&slice(&backends));
        rig.after(Duration::from_secs(1));
        rig.apply(NARROW);
        let done = rig.compile_while(events.into_iter());
        assert_eq!(installs(&done), 1, "{case}: {done:?}");
        let done = rig.after(Duration::from_secs(1));
        assert_eq!(installs(&done), needed, "{case}: {done:?}");
        rig.apply(&slice(&backends));
        let done = rig.after(Duration::from_secs(1));
        assert_eq!(installs(&done) == 0, is_as_before, "{case}: {done:?}");
    }
}
