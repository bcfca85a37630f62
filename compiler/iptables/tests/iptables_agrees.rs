//! The iptables engine and the reference oracle have the same verdicts for the same reasons, on random clusters.

use std::collections::BTreeMap;

use weir_fuzz::generators::cluster::{ClusterCase, clusters};
use weir_fuzz::generators::{flows, for_each};
use weir_iptables::{IptablesEngine, Skip, WalkEnd, render};
use weir_model::directory::Directory;
use weir_model::eval::{Flow, Judgement, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::k8s::Object;
use weir_objects::origin::ObjectId;

const CLUSTERS: u32 = 1000;
const FLOWS: usize = 100;

/// The first flow on which the engines differ, with both answers.
fn difference(cluster: &Cluster, flows: &[Flow]) -> Option<String> {
    let engine = IptablesEngine::new(cluster).expect("what is rendered is read");
    let mut oracle = Oracle::new(cluster);
    flows.iter().find_map(|flow| {
        let found = engine.judge(flow).ok()?;
        let expected = oracle.judge(flow);
        (found != expected).then(|| format!("{flow:?}\n  iptables:  {found:?}\n  reference: {expected:?}"))
    })
}

#[test]
fn the_reference_and_the_rules_agree_on_verdicts_and_reasons() {
    for_each(CLUSTERS, &clusters(), |case| {
        let cluster = resolve(&case.objects, case.assume).0;
        let flows = flows::flows(&cluster, FLOWS, &mut case.random());
        assert_eq!(difference(&cluster, &flows), None);
    });
}

/// If the flows had only one kind of verdict, agreement would prove nothing.
#[test]
fn the_flows_meet_every_kind_of_verdict_and_few_are_skipped() {
    let (mut reasons, mut skipped, mut total) = (BTreeMap::<String, usize>::new(), 0, 0);
    for_each(100, &clusters(), |case| {
        let cluster = resolve(&case.objects, Assumptions::default()).0;
        let engine = IptablesEngine::new(&cluster).expect("what is rendered is read");
        for flow in flows::flows(&cluster, FLOWS, &mut case.random()) {
            total += 1;
            match engine.judge(&flow) {
                Ok(Judgement { egress, ingress }) => {
                    for (name, side) in [("egress", egress), ("ingress", ingress)] {
                        let basis = format!("{:?}", side.basis);
                        let kind = basis.split('(').next().unwrap_or_default();
                        *reasons.entry(format!("{name} {kind} {:?}", side.verdict)).or_default() += 1;
                    }
                }
                Err(_) => skipped += 1,
            }
        }
    });
    for name in ["egress", "ingress"] {
        for kind in [
            "NotSubject Allow",
            "Itself Allow",
            "OwnNode Allow",
            "NotIsolated Allow",
            "List Deny",
            "Rules Allow",
            "Isolated Deny",
        ] {
            let seen = reasons.get(&format!("{name} {kind}")).copied().unwrap_or_default();
            assert!(seen >= 20, "{name} {kind} only {seen} times: {reasons:?}");
        }
    }
    assert!(skipped * 2 < total, "{skipped} of {total} flows skipped");
}

#[test]
fn both_stages_together_are_the_forward_chain() {
    for_each(100, &clusters(), |case| {
        let cluster = resolve(&case.objects, case.assume).0;
        let engine = IptablesEngine::new(&cluster).expect("what is rendered is read");
        for flow in flows::flows(&cluster, FLOWS, &mut case.random()) {
            let (Ok(judgement), Ok(packet)) = (engine.judge(&flow), engine.packet(&flow)) else { continue };
            let walk = engine.evaluator().walk("FORWARD", &packet).expect("the chain is there");
            let expected = match judgement.verdict() {
                Verdict::Allow => WalkEnd::Accept,
                Verdict::Deny => WalkEnd::Drop,
            };
            assert_eq!(walk.ending, expected, "{flow:?}");
        }
    });
}

#[test]
fn packets_to_the_own_node_are_judged_in_the_input_chain() {
    let mut denied = 0;
    for_each(500, &clusters(), |case| {
        let cluster = resolve(&case.objects, case.assume).0;
        let engine = IptablesEngine::new(&cluster).expect("what is rendered is read");
        for flow in flows::flows(&cluster, FLOWS, &mut case.random()) {
            let Some(node) = flow.source.endpoint.and_then(|id| cluster.endpoints[id.index()].node) else { continue };
            let (Ok(judgement), Ok(packet)) = (engine.judge(&flow), engine.packet(&flow)) else { continue };
            // A pod that has an address of the node makes it impossible to say which of the two is meant.
            let is_pods = Directory::new(&cluster).endpoint_at(packet.destination).is_some();
            if is_pods || !cluster.nodes[node.index()].addresses.contains(&packet.destination) {
                continue;
            }
            let walk = engine.evaluator().walk("INPUT", &packet).expect("the chain is there");
            let expected = match judgement.egress.verdict {
                Verdict::Allow => WalkEnd::Accept,
                Verdict::Deny => WalkEnd::Drop,
            };
            assert_eq!(walk.ending, expected, "{flow:?}");
            denied += usize::from(expected == WalkEnd::Drop);
        }
    });
    assert!(denied >= 5, "only {denied} denied packets");
}

#[test]
fn the_order_of_objects_does_not_show_in_the_text() {
    for_each(50, &clusters(), |ClusterCase { mut objects, .. }| {
        let text = |objects: &[Object]| {
            let rendering = render(&resolve(objects, Assumptions::default()).0);
            [rendering.v4, rendering.v6, rendering.sets]
        };
        let before = text(&objects);
        objects.reverse();
        for (index, object) in objects.iter_mut().enumerate() {
            object.id = ObjectId(index as u32);
        }
        assert_eq!(before, text(&objects));
    });
}

#[test]
fn flows_that_rules_cannot_express_are_skipped_with_a_reason() {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    for_each(100, &clusters(), |case| {
        let cluster = resolve(&case.objects, case.assume).0;
        let engine = IptablesEngine::new(&cluster).expect("what is rendered is read");
        for flow in flows::flows(&cluster, FLOWS, &mut case.random()) {
            let Err(skip) = engine.judge(&flow) else { continue };
            let kind = match skip {
                Skip::NoAddress(_) => "no address",
                Skip::NotItsAddress { .. } => "not its address",
                Skip::HostNetwork(_) => "host network",
                Skip::TwoFamilies => "two families",
                Skip::ServiceAddress(_) => "service address",
            };
            seen.entry(kind).or_insert_with(|| skip.to_string());
        }
    });
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert!(seen["service address"].ends_with("of a service or hostPort, which is translated before iptables filters"));
}
