//! The iptables engine and the reference oracle have the same verdicts for the same reasons, on random clusters.

use std::collections::BTreeMap;

use weir_fuzz::generators::{Random, cluster as generate, flows};
use weir_iptables::{IptablesEngine, Skip, WalkEnd, render};
use weir_model::eval::{Flow, Judgement, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::k8s::Object;
use weir_objects::origin::ObjectId;

const CLUSTERS: u64 = 1000;
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

/// Leaves out objects as long as the engines still differ.
fn smallest(mut objects: Vec<Object>, assume: Assumptions, seed: u64) -> (Vec<Object>, String) {
    let differs = |objects: &[Object]| {
        let cluster = resolve(objects, assume).0;
        let flows = flows::flows(&cluster, 2000, &mut Random::new(seed));
        difference(&cluster, &flows)
    };
    let mut index = 0;
    while index < objects.len() {
        let mut fewer = objects.clone();
        fewer.remove(index);
        match differs(&fewer) {
            Some(_) => objects = fewer,
            None => index += 1,
        }
    }
    let text = differs(&objects).unwrap_or_default();
    (objects, text)
}

#[test]
fn the_reference_and_the_rules_agree_on_verdicts_and_reasons() {
    for seed in 0..CLUSTERS {
        let mut random = Random::new(seed);
        let objects = generate::objects(&mut random);
        let assume = generate::assumptions(&mut random);
        let cluster = resolve(&objects, assume).0;
        let flows = flows::flows(&cluster, FLOWS, &mut random);
        if let Some(text) = difference(&cluster, &flows) {
            let (objects, smaller) = smallest(objects, assume, seed);
            panic!("seed {seed}: {text}\n\nsmaller, {assume:?}: {smaller}\n{objects:#?}");
        }
    }
}

/// If the flows had only one kind of verdict, agreement would prove nothing.
#[test]
fn the_flows_meet_every_kind_of_verdict_and_few_are_skipped() {
    let (mut reasons, mut skipped, mut total) = (BTreeMap::<String, usize>::new(), 0, 0);
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let objects = generate::objects(&mut random);
        let cluster = resolve(&objects, Assumptions::default()).0;
        let engine = IptablesEngine::new(&cluster).expect("what is rendered is read");
        for flow in flows::flows(&cluster, FLOWS, &mut random) {
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
    }
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
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let cluster = resolve(&generate::objects(&mut random), generate::assumptions(&mut random)).0;
        let engine = IptablesEngine::new(&cluster).expect("what is rendered is read");
        for flow in flows::flows(&cluster, FLOWS, &mut random) {
            let (Ok(judgement), Ok(packet)) = (engine.judge(&flow), engine.packet(&flow)) else { continue };
            let walk = engine.evaluator().walk("FORWARD", &packet).expect("the chain is there");
            let expected = match judgement.verdict() {
                Verdict::Allow => WalkEnd::Accept,
                Verdict::Deny => WalkEnd::Drop,
            };
            assert_eq!(walk.ending, expected, "seed {seed}: {flow:?}");
        }
    }
}

#[test]
fn the_order_of_objects_does_not_show_in_the_text() {
    for seed in 0..50 {
        let mut objects = generate::objects(&mut Random::new(seed));
        let text = |objects: &[Object]| {
            let rendering = render(&resolve(objects, Assumptions::default()).0);
            [rendering.v4, rendering.v6, rendering.sets]
        };
        let before = text(&objects);
        objects.reverse();
        for (index, object) in objects.iter_mut().enumerate() {
            object.id = ObjectId(index as u32);
        }
        assert_eq!(before, text(&objects), "seed {seed}");
    }
}

#[test]
fn flows_that_rules_cannot_express_are_skipped_with_a_reason() {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let cluster = resolve(&generate::objects(&mut random), generate::assumptions(&mut random)).0;
        let engine = IptablesEngine::new(&cluster).expect("what is rendered is read");
        for flow in flows::flows(&cluster, FLOWS, &mut random) {
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
    }
    assert_eq!(seen.len(), 5, "{seen:?}");
    assert!(seen["service address"].ends_with("of a service or hostPort, which is translated before iptables filters"));
}
