//! A policy that adds nothing to others.

use std::collections::BTreeSet;

use super::context::LintContext;
use super::words;
use weir_analysis::world::RedundantPolicy;
use weir_model::{Direction, PolicyId};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};

pub(super) static CODE: Code = Code::lint("policy-redundant", Severity::Note, include_str!("policy_redundant.diff"))
    .what("Other policies isolate the pods of a policy and allow all that it allows.")
    .why(
        "The policy has no effect for any pod that could exist: removing it, or narrowing its rules, denies nothing. \
         This is only a note, because policies are often written to be complete on their own; it is a warning if a \
         rule that allows everything makes the policy redundant. Policies without rules are not reported: they keep \
         pods isolated when other policies go. All policies that are reported can be removed together.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let Some(coverage) = context.coverage() else { return };
    coverage.redundant.iter().for_each(|it| found.push(describe(context, it)));
}

fn describe(context: &LintContext<'_>, redundant: &RedundantPolicy) -> Diagnostic {
    let cluster = context.cluster;
    let policy = cluster.policy(redundant.policy);
    let others = match redundant.by[..] {
        [only] => format!("policy {}", cluster.policy_name(only)),
        _ => format!("{} together", words::policies(redundant.by.len())),
    };
    let message = format!("policy {} adds nothing to {others}", words::policy(cluster, policy));
    let mut diagnostic = Diagnostic::at(&CODE, words::name_origin(policy), message)
        .label("its pods are isolated and its traffic is allowed without it");
    let mut allows_everything = false;
    let mut with_rules: BTreeSet<PolicyId> = BTreeSet::new();
    for place in &redundant.rules {
        let other = cluster.policy(place.rule.policy);
        let index = place.rule.rule as usize;
        let rule = other.rules(place.direction).and_then(|rules| rules.get(index));
        allows_everything |= rule.is_some_and(|it| it.peers.is_empty() && it.ports.is_empty());
        with_rules.insert(place.rule.policy);
        diagnostic = diagnostic.also(other.rule_origin(place.direction, index), "allows traffic of the policy");
    }
    for id in redundant.by.iter().filter(|id| !with_rules.contains(id)) {
        let other = cluster.policy(*id);
        let isolates = |it: &Direction| policy.rules(*it).is_some() && other.rules(*it).is_some();
        for direction in Direction::ALL.into_iter().filter(isolates).take(1) {
            diagnostic = diagnostic.also(words::direction_origin(other, direction), "isolates pods of the policy");
        }
    }
    if allows_everything {
        diagnostic.severity = Severity::Warning;
    }
    diagnostic.help("remove the policy, or narrow the others")
}
