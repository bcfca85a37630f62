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
fn a_namespace_over_the_budget_is_held_and_the_changes_of_others_come_into_force() {
    let mut rig = Rig::with_budgets(Budgets(vec![(Budget::Memory, 400_000), (Budget::Steps, 1_000_000_000)]));
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.apply(&hostile(30));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    let told = rig.told();
    assert!(!told.is_empty() && told.len() <= budget::MOST_TOLD, "{told:?}");
    for told in told {
        assert!(told.starts_with("NotEnforced NetworkPolicy/h-"), "{told}");
        assert!(told.ends_with("it isolates its pods and allows nothing"), "{told}");
    }
    let text = rig.metrics.text();
    assert!(text.contains("weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"budget\"}"), "{text}");
    assert!(rig.metrics.unready().is_some_and(|why| why.contains("namespace hostile: ")));
    // The neighbour opens its pod to all. This needs a new generation, and its policy is not held.
    rig.apply(OPEN);
    let Some(generation) = rig.after(GATHER).pop() else { panic!("no generation") };
    assert!(generation.starts_with("install shop/web@veth7"), "{generation}");
    let held = rig.agent.budgeted.held();
    assert!(!held.is_empty() && held.keys().all(|key| key.namespace == "hostile"), "{held:?}");
    for number in 1..=30 {
        rig.agent.take(
            Event::Deleted(Key {
                kind: "NetworkPolicy".to_owned(),
                namespace: "hostile".to_owned(),
                name: format!("h-{number}"),
            }),
            rig.now,
        );
    }
    rig.after(GATHER);
    assert!(rig.metrics.unready().is_none_or(|why| !why.contains("budget")));
    assert!(!rig.metrics.text().contains("why=\"budget\""));
}

#[test]
fn an_estimate_that_is_too_low_leads_to_another_attempt() {
    // The estimate does not count classes, so only the finished tables exceed this limit.
    let mut rig = Rig::with_budgets(Budgets(vec![(Budget::Classes, 100)]));
    rig.plug("web", "u1", "veth7", [10, 0, 0, 5]);
    rig.list(CLUSTER);
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    rig.apply(&hostile(30));
    assert_eq!(rig.after(GATHER), ["install shop/web@veth7 isolated"]);
    assert!(rig.metrics.unready().is_some_and(|why| why.contains("do not fit the budget")));
    assert!(rig.agent.failure.is_none(), "{:?}", rig.agent.failure);
}
