//! The effect of adding a rule or a policy: a rule only allows more; a policy isolates its pods, and then only allows
//! more.

use weir_fuzz::generators::cluster::{number, policy, rule};
use weir_fuzz::generators::{Random, flows};
use weir_model::eval::{Basis, EndVerdict, Flow, Judgement, Oracle, Verdict};
use weir_model::{Assumptions, Cluster, Direction};
use weir_objects::k8s::{Body, NetworkPolicy, Object, PolicyType};

use crate::{for_each_cluster, resolved};

const FLOWS: usize = 150;

/// Both judgements of every flow: before, after.
fn judged(before: &Cluster, after: &Cluster, flows: &[Flow]) -> Vec<(Judgement, Judgement)> {
    let (mut first, mut second) = (Oracle::new(before), Oracle::new(after));
    flows.iter().map(|flow| (first.judge(flow), second.judge(flow))).collect()
}

fn isolates(policy: &NetworkPolicy, direction: Direction) -> bool {
    let (named, default) = match direction {
        Direction::Ingress => (PolicyType::Ingress, true),
        Direction::Egress => (PolicyType::Egress, !policy.egress.is_empty()),
    };
    policy.policy_types.contains(&named) || (policy.policy_types.is_empty() && default)
}

/// Adds a rule to a policy that isolates in the rule's direction. Returns false if no policy does.
fn add_rule(objects: &mut [Object], random: &mut Random) -> bool {
    let direction = random.pick(&Direction::ALL);
    let mut policies: Vec<&mut NetworkPolicy> = objects
        .iter_mut()
        .filter_map(|object| match &mut object.body {
            Body::NetworkPolicy(policy) => Some(policy).filter(|it| isolates(it, direction)),
            _ => None,
        })
        .collect();
    if policies.is_empty() {
        return false;
    }
    let chosen = random.below(policies.len());
    let rules = match direction {
        Direction::Ingress => &mut policies[chosen].ingress,
        Direction::Egress => &mut policies[chosen].egress,
    };
    rules.push(rule(random));
    true
}

#[test]
fn one_more_rule_never_denies() {
    let (mut allowed, mut opened) = (0, 0);
    for_each_cluster(400, |mut objects, assume, mut random| {
        let before = resolved(&objects, assume);
        if !add_rule(&mut objects, &mut random) {
            return;
        }
        let after = resolved(&objects, assume);
        let flows = flows::flows(&before, FLOWS, &mut random);
        for ((first, second), flow) in judged(&before, &after, &flows).iter().zip(&flows) {
            for direction in Direction::ALL {
                let (first, second) = (first.side(direction), second.side(direction));
                assert!(second.verdict <= first.verdict, "{flow:?}\n  {first:?}\n  {second:?}");
                allowed += usize::from(first.verdict == Verdict::Allow);
                opened += usize::from(second.verdict < first.verdict);
            }
        }
    });
    assert!(allowed > 20_000 && opened > 300, "{allowed} flows were allowed before, {opened} only after");
}

/// The effect of one more policy on a side that is not a service's: a service's side consists of many sides.
fn check_policy(first: &EndVerdict, second: &EndVerdict) -> bool {
    match &first.basis {
        Basis::NotIsolated => second.verdict >= first.verdict,
        Basis::Rules(_) | Basis::Isolated(_) => second.verdict <= first.verdict,
        // The Baseline tier has no effect once the pod is isolated.
        Basis::Tier(_) | Basis::Service(_) | Basis::Claims(_) | Basis::HostPorts(_) => true,
        _ => first.verdict == second.verdict,
    }
}

fn with_policy(objects: &[Object], assume: Assumptions, random: &mut Random) -> Cluster {
    let mut objects = objects.to_vec();
    // The position of the policy's name among the others must not matter.
    let mut added = policy(100, random);
    if random.once_in(2) {
        added.meta.name = "a".to_owned();
    }
    objects.push(added);
    number(&mut objects);
    resolved(&objects, assume)
}

#[test]
fn one_more_policy_narrows_who_was_not_isolated_and_widens_who_was() {
    let (mut narrowed, mut widened) = (0, 0);
    for_each_cluster(400, |objects, assume, mut random| {
        let before = resolved(&objects, assume);
        let after = with_policy(&objects, assume, &mut random);
        // A namespace that only the new policy mentions would number the endpoints alike: it has none.
        let flows = flows::flows(&before, FLOWS, &mut random);
        for ((first, second), flow) in judged(&before, &after, &flows).iter().zip(&flows) {
            for direction in Direction::ALL {
                let (first, second) = (first.side(direction), second.side(direction));
                assert!(check_policy(first, second), "{flow:?}\n  {first:?}\n  {second:?}");
                narrowed += usize::from(second.verdict > first.verdict);
                widened += usize::from(second.verdict < first.verdict);
            }
        }
    });
    assert!(narrowed > 1_000 && widened > 300, "{narrowed} sides narrowed, {widened} widened");
}
