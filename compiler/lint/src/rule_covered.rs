//! A rule that other rules make redundant, whatever pods there are.

use std::collections::BTreeSet;

use super::context::LintContext;
use super::cover_index::{CoverIndex, RulePosition};
use super::words;
use weir_model::{Direction, IpBlockPods, Peer, Policy, Rule, rule_path};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Fix, Severity};

pub(super) static CODE: Code = Code::lint("rule-covered", Severity::Warning, include_str!("rule_covered.diff"))
    .what("A rule allows only what other rules for the same pods allow already.")
    .why(
        "The rule has no effect, and narrowing or removing it later will not deny anything. The other rules are in \
         the same policy, or in policies that select the same pods. A rule that needs another policy's rules to be \
         covered is only a note, because policies are often written to be complete on their own; it is a \
         warning if one of these rules allows everything. The lint reports only what holds for every pod that could \
         exist. All rules that it reports can be removed together. With `--world closed` it compares rules one by one \
         and by their form: equal or empty selectors, blocks inside blocks, ports inside ports.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    if let Some(coverage) = context.coverage() {
        for covered in &coverage.covered {
            let position = |place: &weir_analysis::world::RulePlace| RulePosition {
                policy: place.rule.policy,
                rule: place.rule.rule as usize,
            };
            let by: Vec<RulePosition> = covered.by.iter().map(position).collect();
            let described = describe(context, covered.rule.direction, position(&covered.rule), &by);
            described.into_iter().for_each(|it| found.push(it));
        }
        return;
    }
    for direction in Direction::ALL {
        let index = CoverIndex::new(context, direction);
        for place in &index.places {
            if context.is_spent(context.cluster.policy(place.policy).object) {
                return;
            }
            if let Some(other) = index.covering(*place) {
                describe(context, direction, *place, &[other]).into_iter().for_each(|it| found.push(it));
            }
        }
    }
}

fn describe(
    context: &LintContext<'_>,
    direction: Direction,
    place: RulePosition,
    by: &[RulePosition],
) -> Option<Diagnostic> {
    let cluster = context.cluster;
    let at = |place: RulePosition| -> Option<(&Policy, &Rule)> {
        let policy = cluster.policy(place.policy);
        Some((policy, policy.rules(direction)?.get(place.rule)?))
    };
    let (policy, rule) = at(place)?;
    let others: Vec<(&Policy, &Rule)> = by.iter().filter_map(|it| at(*it)).collect();
    let (path, name) = (rule_path(direction, place.rule).to_string(), words::policy(cluster, policy));
    let is_equal = others.iter().any(|(_, it)| *it == rule);
    let covering = match (by, &others[..]) {
        ([only], [(other, _)]) if only.policy != place.policy => {
            format!("{} of policy {}", rule_path(direction, only.rule), words::policy(cluster, other))
        }
        ([only], _) => rule_path(direction, only.rule).to_string(),
        _ => format!("{} other rules together", by.len()),
    };
    let verb = if is_equal { "repeats" } else { "allows nothing that is not allowed by" };
    let message = format!("{path} of policy {name} {verb} {covering}");
    let mut diagnostic = Diagnostic::at(&CODE, policy.rule_origin(direction, place.rule), message).label(if is_equal {
        "the same again"
    } else {
        "covered"
    });
    let part = if by.len() == 1 { "this rule allows all of that" } else { "this rule allows a part of that" };
    let mut named = BTreeSet::from([place.policy]);
    for (position, (other, _)) in by.iter().zip(&others) {
        diagnostic = diagnostic.also(other.rule_origin(direction, position.rule), part);
        if named.insert(position.policy) {
            let whom = match () {
                () if other.subjects == policy.subjects => "the same pods",
                () if super::cover::selects_all(&cluster.labels, other.subjects) => "every pod of the namespace",
                () if by.len() == 1 => "all of these pods",
                () => "some of these pods",
            };
            diagnostic = diagnostic.note(format!("policy {} selects {whom}", words::policy(cluster, other)));
        }
    }
    let is_own = by.iter().all(|it| it.policy == place.policy);
    let allows_everything = others.iter().any(|(_, it)| it.peers.is_empty() && it.ports.is_empty());
    // A rule repeated across policies is a harmless habit. A rule that another rule for all traffic overrides is not.
    if !is_own && !allows_everything {
        diagnostic.severity = Severity::Note;
    }
    if needs_blocks_for_pods(context, rule, &others) {
        diagnostic.severity = Severity::Note;
        diagnostic = diagnostic
            .note("blocks contain the addresses of pods; with `--assume ipblock-pods=ignore` this rule is needed");
    }
    // A policy that repeats the rule of another one may be meant to be complete on its own.
    if diagnostic.severity == Severity::Warning {
        diagnostic = diagnostic.fix(Fix::Remove);
    }
    Some(diagnostic.help("remove the covered rule and leave policyTypes as they are, or narrow the other one"))
}

/// Whether blocks cover pods that the rule selects by labels. Not all network plug-ins apply blocks to pods.
fn needs_blocks_for_pods(context: &LintContext<'_>, rule: &Rule, others: &[(&Policy, &Rule)]) -> bool {
    let has_pods = rule.peers.is_empty() || rule.peers.iter().any(|it| matches!(it, Peer::Pods { .. }));
    let is_block = |peer: &Peer| matches!(peer, Peer::Block { .. });
    let has_blocks = |it: &Rule| it.peers.iter().any(is_block);
    context.cluster.assume.ipblock_pods == IpBlockPods::Match
        && has_pods
        && others.iter().any(|(_, it)| has_blocks(it))
        && !others.iter().any(|(_, it)| super::cover::rule_covers(&context.cluster.labels, it, rule))
}
