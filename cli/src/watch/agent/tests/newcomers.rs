//! Pods that are connected before their policy is in force, and reports after failed checks.

use std::sync::MutexGuard;
use std::time::SystemTime;

use super::*;

const MOMENT: Duration = Duration::from_millis(20);

impl Rig {
    /// Notifies the agent of a change; returns the interfaces that it closes.
    fn stir(&mut self) -> Vec<String> {
        self.agent.host_changed(ChangedInterfaces::Any, self.now);
        self.after(MOMENT);
        std::mem::take(&mut self.seen().closed)
    }

    /// The state of the host, as the agent reads it.
    fn host(&self) -> MutexGuard<'_, Inventory> {
        self.host.lock().expect("no test panics while it holds it")
    }

    fn starting(&mut self, name: &str, uid: &str) {
        self.starting_as("web", name, uid);
    }

    fn starting_as(&mut self, app: &str, name: &str, uid: &str) {
        self.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: shop, uid: {uid}, labels: {{app: {app}}}}},
              spec: {{nodeName: near}}, status: {{phase: Pending}}}}"
        ));
    }
}

#[test]
fn new_pod_is_closed_and_then_enforced_when_its_cni_result_appears() {
    let mut rig = Rig::in_force();
    rig.starting("web-2", "u7");
    // After this time, the pauses between searches are at their longest.
    rig.after(Duration::from_millis(9_700));
    assert_eq!(rig.seen().closed, NONE);
    rig.plug("web-2", "u7", "veth8", [10, 0, 0, 7]);
    rig.agent.host_changed(ChangedInterfaces::Any, rig.now);
    assert_eq!(rig.after(MOMENT), ["add shop/web-2@veth8 like shop/web"]);
    assert_eq!(std::mem::take(&mut rig.seen().closed), ["veth8"]);
    assert_eq!(rig.stir(), NONE, "an enforced interface is not closed again");
}

/// A notification just before this one delays the next read of the result cache. A generation must not start before
/// that read.
#[test]
fn new_pod_is_closed_before_its_generation_is_compiled() {
    let mut rig = Rig::in_force();
    // No local pod is like it, so it needs a generation.
    rig.starting_as("api", "api", "u7");
    rig.after(Duration::from_millis(700));
    rig.agent.host_changed(ChangedInterfaces::Any, rig.now);
    rig.agent.act(rig.now, &mut || None);
    rig.plug("api", "u7", "veth8", [10, 0, 0, 7]);
    rig.agent.host_changed(ChangedInterfaces::Any, rig.now);
    rig.agent.act(rig.now, &mut || None);
    assert_eq!(rig.seen().closed, NONE, "the pause after the last read is not over");
    assert_eq!(rig.after(GATHER).len(), 1, "one generation is installed");
    assert_eq!(rig.seen().closed, ["veth8"]);
}

#[test]
fn unknown_pod_is_closed_if_policy_may_apply_to_it() {
    let mut rig = Rig::in_force();
    rig.plug("static", "u9", "veth9", [10, 0, 0, 9]);
    assert_eq!(rig.stir(), ["veth9"]);
    assert_eq!(rig.stir(), NONE, "once");
    rig.delete("NetworkPolicy", "p");
    rig.plug("other", "u10", "veth10", [10, 0, 0, 10]);
    assert_eq!(rig.stir(), NONE, "no policy may apply to it");
    rig.apply("{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {name: bad}, spec: {action: Deny, cidrs: [192.0.2.1]}}");
    rig.plug("third", "u11", "veth11", [10, 0, 0, 11]);
    assert_eq!(rig.stir(), ["veth11"], "a list applies to every pod");
}

#[test]
fn unknown_pods_deny_closes_unknown_pods_without_any_policy() {
    let mut rig = Rig::with(UnknownPods::Deny, Budgets::default());
    rig.plug("old", "u8", "veth8", [10, 0, 0, 8]);
    rig.after(MOMENT);
    // The API has listed nothing yet: it may be unreachable.
    rig.plug("new", "u9", "veth9", [10, 0, 0, 9]);
    assert_eq!(rig.stir(), ["veth9"], "but no interface that existed before the agent");
    rig.list("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}");
    rig.starting("known", "u10");
    rig.plug("known", "u10", "veth10", [10, 0, 0, 10]);
    rig.plug("again", "u12", "veth11", [10, 0, 0, 11]);
    assert_eq!(rig.stir(), ["veth11"], "and no pod that is known");
}

/// What cannot be read for a moment, at the start or later, does not make old interfaces new ones.
#[test]
fn interfaces_that_were_there_before_a_failed_read_are_not_closed() {
    let mut rig = Rig::with(UnknownPods::Deny, Budgets::default());
    rig.plug("old", "u8", "veth8", [10, 0, 0, 8]);
    let blind = Inventory { is_blind: true, cached: rig.host().cached.clone(), ..Inventory::default() };
    let there = std::mem::replace(&mut *rig.host(), blind.clone());
    rig.after(MOMENT);
    *rig.host() = there.clone();
    assert_eq!(rig.stir(), NONE, "the first read did not find it");
    rig.host().cached.clear();
    assert_eq!(rig.stir(), NONE);
    *rig.host() = there.clone();
    assert_eq!(rig.stir(), NONE, "its result was away");
    *rig.host() = blind;
    assert_eq!(rig.stir(), NONE);
    *rig.host() = there.clone();
    assert_eq!(rig.stir(), NONE, "the interfaces were away");
    rig.plug("new", "u9", "veth9", [10, 0, 0, 9]);
    assert_eq!(rig.stir(), ["veth9"]);
    *rig.host() = there;
    assert_eq!(rig.stir(), NONE);
    rig.plug("new", "u9", "veth9", [10, 0, 0, 9]);
    assert_eq!(rig.stir(), ["veth9"], "an interface that comes back is a new one");
}

/// A result that the first read cannot read is old, or of a pod that just starts.
#[test]
fn interfaces_of_results_that_are_older_than_an_incomplete_first_read_are_not_closed() {
    let mut rig = Rig::with(UnknownPods::Deny, Budgets::default());
    rig.plug("old", "u8", "veth8", [10, 0, 0, 8]);
    rig.plug("starts", "u9", "veth9", [10, 0, 0, 9]);
    let minutes = |ago: bool| {
        let now = SystemTime::now();
        Some(if ago { now - Duration::from_secs(60) } else { now + Duration::from_secs(60) })
    };
    rig.host().cached.iter_mut().map(Arc::make_mut).for_each(|it| it.attached_at = minutes(it.name == "old"));
    let there = rig.host().clone();
    *rig.host() = Inventory { cached: Vec::new(), unread: vec!["results: no memory".to_owned()], ..there.clone() };
    rig.after(MOMENT);
    *rig.host() = there;
    assert_eq!(rig.stir(), ["veth9"]);
    assert_eq!(rig.stir(), NONE);
}

/// A later interface can have the number of one that is gone, and a name can be left in the result of another pod.
#[test]
fn another_pod_at_the_number_of_an_old_interface_is_closed() {
    let mut rig = Rig::with(UnknownPods::Deny, Budgets::default());
    rig.plug("old", "u8", "veth8", [10, 0, 0, 8]);
    rig.after(MOMENT);
    assert_eq!(rig.stir(), NONE);
    let result = rig.host().cached.pop().expect("it was plugged");
    let mut result = Attachment::clone(&result);
    result.uid = Some("u9".to_owned());
    rig.host().cached.push(Arc::new(result.clone()));
    assert_eq!(rig.stir(), ["veth8"], "a pod of the same name");
    result.name = "other".to_owned();
    rig.host().cached.push(Arc::new(result));
    assert_eq!(rig.stir(), ["veth8"], "the second result");
    assert_eq!(rig.stir(), NONE);
}

#[test]
fn interfaces_without_a_cni_result_are_never_closed() {
    let mut rig = Rig::with(UnknownPods::Deny, Budgets::default());
    rig.after(MOMENT);
    {
        let mut host = rig.host.lock().expect("no test panics while it holds it");
        let veth = |ifindex, name: &str, kind: &str| {
            let (name, kind) = (name.to_owned(), kind.to_owned());
            NamespaceInterface { ifindex, name, kind, peer: Some(2) }
        };
        host.change_interfaces(|all| all.extend([veth(70, "docker0", "bridge"), veth(71, "vethd0c", "veth")]));
    }
    assert_eq!(rig.stir(), NONE);
}

#[test]
fn pods_count_as_enforced_only_after_a_successful_check() {
    let mut rig = Rig::in_force();
    let says =
        |rig: &Rig, state: &str| rig.metrics.text().contains(&format!("weir_endpoints{{state=\"{state}\"}} 1\n"));
    assert!(says(&rig, "enforced") && rig.metrics.unready().is_none());
    rig.seen().astray = vec!["shop/web".to_owned()];
    rig.after(hook_checks::INTERVAL);
    assert!(says(&rig, "astray") && !says(&rig, "enforced"), "{}", rig.metrics.text());
    assert_eq!(rig.metrics.unready().as_deref(), Some("pod shop/web: no program of ours runs"));
    rig.seen().refuse_check = true;
    rig.after(hook_checks::INTERVAL);
    assert!(says(&rig, "unknown") && !says(&rig, "enforced"), "{}", rig.metrics.text());
    assert!(rig.metrics.unready().is_some_and(|why| why.contains("no bpf file system")));
    rig.seen().refuse_check = false;
    rig.seen().astray.clear();
    rig.after(hook_checks::INTERVAL);
    assert!(says(&rig, "enforced") && rig.metrics.unready().is_none(), "{}", rig.metrics.text());
}

#[test]
fn a_notification_checks_the_interfaces_that_it_names_and_all_if_a_pod_is_astray() {
    let mut rig = Rig::in_force();
    let these = |interfaces: &[u32]| ChangedInterfaces::These(interfaces.iter().copied().collect());
    // Between two regular checks.
    rig.after(hook_checks::INTERVAL);
    let checks = |rig: &mut Rig, changes: &[ChangedInterfaces]| {
        rig.seen().checked.clear();
        for changed in changes {
            rig.agent.host_changed(changed.clone(), rig.now);
        }
        rig.after(Duration::from_millis(60));
        std::mem::take(&mut rig.seen().checked)
    };
    assert_eq!(checks(&mut rig, &[]), []);
    assert_eq!(checks(&mut rig, &[ChangedInterfaces::NONE]), [], "only files have changed");
    assert_eq!(checks(&mut rig, &[these(&[7]), these(&[8, 9])]), [these(&[7, 8, 9])]);
    assert_eq!(checks(&mut rig, &[these(&[7]), ChangedInterfaces::Any]), [ChangedInterfaces::Any]);
    rig.seen().astray = vec!["shop/web".to_owned()];
    assert_eq!(checks(&mut rig, &[these(&[7])]), [these(&[7])]);
    assert!(rig.metrics.unready().is_some(), "a check of some interfaces that finds a deviation reports it");
    rig.seen().astray.clear();
    assert_eq!(checks(&mut rig, &[these(&[7])]), [ChangedInterfaces::Any]);
    assert_eq!(rig.metrics.unready(), None);
    rig.seen().checked.clear();
    (0..10).for_each(|_| {
        rig.agent.host_changed(these(&[7]), rig.now);
        rig.after(Duration::from_millis(60));
    });
    assert!(rig.seen().checked.contains(&ChangedInterfaces::Any), "notifications do not delay regular checks");
}
