//! Budgets: the policies of a namespace that cost too much are held, and other namespaces are not affected.

use super::super::budget;
use super::*;

/// A pod of another namespace on the node, and `policies` policies, each with its own ports and excepted blocks.
fn hostile(policies: usize) -> String {
    let mut text = "
{apiVersion: v1, kind: Namespace, metadata: {name: hostile}}
---
{apiVersion: v1, kind: Pod, metadata: {name: h, namespace: hostile, uid: h, labels: {app: h}},
  spec: {nodeName: near}, status: {phase: Running, podIP: 10.0.0.9}}
"
    .to_owned();
    for number in 1..=policies {
        let blocks =
            (0..20).map(|hole| format!("{{ipBlock: {{cidr: 0.0.0.0/0, except: [192.0.{number}.{hole}/32]}}}}"));
        let rules =
            blocks.zip(1..).map(|(block, port)| format!("{{from: [{block}], ports: [{{port: {number}{port}}}]}}"));
        text += &format!(
            "---\n{{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {{name: h-{number}, namespace: hostile}},
  spec: {{podSelector: {{}}, ingress: [{}]}}}}\n",
            rules.collect::<Vec<_>>().join(", ")
        );
    }
    text
}

#[test]
fn namespace_over_the_budget_is_held_and_others_are_updated() {
    let mut rig = Rig::with_budgets(Budgets(vec![(Budget::Memory, 400_000), (Budget::Steps, 1_000_000_000)]));
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.apply(&hostile(30));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    let notices = rig.notices();
    assert!(!notices.is_empty() && notices.len() <= budget::MOST_EVENTS, "{notices:?}");
    for notice in notices {
        assert!(notice.starts_with("NotEnforced NetworkPolicy/h-"), "{notice}");
        assert!(notice.ends_with("Use fewer or simpler rules, or start the agent with a larger --budget"), "{notice}");
    }
    let text = rig.metrics.text();
    assert!(text.contains("weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"budget\"}"), "{text}");
    let notes = rig.metrics.notes();
    assert!(notes.len() == 1 && notes[0].starts_with("namespace hostile: "), "{notes:?}");
    // The pod of the other namespace has no interface here.
    assert!(rig.metrics.unready().is_some_and(|why| !why.contains("budget")));
    // The neighbour opens its pod to all. This needs a new generation, and its policy is not held. Only the pod of the
    // other namespace is isolated then: a held policy allows nothing, but still isolates.
    rig.apply(OPEN);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    let held = rig.agent.compile.budget.held();
    assert!(!held.is_empty() && held.keys().all(|key| key.namespace == "hostile"), "{held:?}");
    for number in 1..=30 {
        rig.agent.handle_event(
            ApiEvent::Deleted(Key {
                kind: "NetworkPolicy".to_owned(),
                namespace: "hostile".to_owned(),
                name: format!("h-{number}"),
            }),
            rig.now,
        );
    }
    rig.after(GATHER);
    assert_eq!(rig.metrics.notes(), Vec::<String>::new());
    assert!(!rig.metrics.text().contains("why=\"budget\""));
}

#[test]
fn too_low_estimate_leads_to_another_attempt() {
    // The estimate does not count classes, so only the finished tables exceed this limit.
    let mut rig = Rig::with_budgets(Budgets(vec![(Budget::Classes, 100)]));
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.apply(&hostile(30));
    // The second attempt has the changes that come during the first one.
    let done = rig.compile_while_receiving(OPEN);
    assert_eq!(done, ["install shop/web@veth7 isolated"]);
    assert_eq!(rig.after(Duration::from_millis(400)), NONE);
    assert!(rig.metrics.text().contains("weir_policy_enforced_seconds_count 1\n"), "{}", rig.metrics.text());
    assert!(rig.metrics.notes().concat().contains("do not fit the budget"), "{:?}", rig.metrics.notes());
    assert_eq!(rig.agent.pending.error(), None);
}
