//! Rules of cluster-wide policies that earlier rules cover.

use super::context::LintContext;
use super::cover;
use weir_model::{Direction, PortRule, TierMatch, TierPeer, TierPolicy, TierPolicyId, TierRuleId};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};

pub(super) static CODE: Code =
    Code::lint("tier-rule-covered", Severity::Warning, include_str!("tier_rule_covered.diff"))
        .what("Earlier rules of the tier match all traffic that a rule of a cluster-wide policy matches.")
        .why(
            "The first rule that matches decides, so the rule has no effect, whatever its action is. Often a general \
             rule stands before the exception that was meant to come first.",
        );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let tiers = &context.cluster.tiers;
    for (policy, tier) in (0..).map(TierPolicyId).zip(tiers).filter(|(_, it)| !it.is_audit) {
        for direction in Direction::ALL {
            for (index, rule) in tier.rules(direction).iter().enumerate() {
                let Some(matched) = &rule.matched else { continue };
                if context.is_spent(tier.object) {
                    return;
                }
                let rule = TierRuleId { policy, direction, rule: index as u32 };
                if let Some(earlier) = covering(context, rule, matched) {
                    found.push(describe(context, rule, &earlier));
                }
            }
        }
    }
}

/// Earlier rules that match all traffic of a rule together, by its peers.
fn covering(context: &LintContext<'_>, rule: TierRuleId, matched: &TierMatch) -> Option<Vec<TierRuleId>> {
    let policy = context.cluster.tier_policy(rule.policy);
    let before = |id: &TierPolicyId| {
        let other = context.cluster.tier_policy(*id);
        *id == rule.policy || (!other.is_audit && is_before(other, policy) && applies_as_widely(context, other, policy))
    };
    let candidates: Vec<TierPolicyId> = (0..=rule.policy.0).map(TierPolicyId).filter(before).collect();
    context.spend(rule.policy.index() + 1);
    let find = |peer: Option<&TierPeer>| {
        candidates.iter().find_map(|id| {
            let rules = context.cluster.tier_policy(*id).rules(rule.direction);
            let end = if *id == rule.policy { rule.rule as usize } else { rules.len() };
            context.spend(end);
            let position = rules[..end].iter().position(|wide| {
                wide.matched.as_ref().is_some_and(|wide| covers(context, wide, peer, &matched.ports))
            })?;
            Some(TierRuleId { policy: *id, direction: rule.direction, rule: position as u32 })
        })
    };
    if matched.peers.is_empty() {
        return find(None).map(|it| vec![it]);
    }
    let mut found: Vec<TierRuleId> = matched.peers.iter().map(|peer| find(Some(peer))).collect::<Option<_>>()?;
    found.sort_unstable();
    found.dedup();
    Some(found)
}

/// Whether a policy is evaluated before another one of its tier. The order of equal priorities is open.
fn is_before(other: &TierPolicy, policy: &TierPolicy) -> bool {
    other.tier == policy.tier && other.priority < policy.priority
}

fn applies_as_widely(context: &LintContext<'_>, wide: &TierPolicy, policy: &TierPolicy) -> bool {
    let labels = &context.cluster.labels;
    cover::selector_covers(labels, wide.namespaces, policy.namespaces)
        && cover::selector_covers(labels, wide.pods, policy.pods)
}

/// Whether a rule matches all traffic to these ports of a peer, or of every peer if no peer is given.
fn covers(context: &LintContext<'_>, wide: &TierMatch, peer: Option<&TierPeer>, ports: &[PortRule]) -> bool {
    let peer_is_covered = |other: &TierPeer| peer.is_some_and(|peer| peer_covers(context, other, peer));
    (wide.peers.is_empty() || wide.peers.iter().any(peer_is_covered)) && cover::ports_cover(&wide.ports, ports)
}

fn peer_covers(context: &LintContext<'_>, wide: &TierPeer, narrow: &TierPeer) -> bool {
    let covers = |wide, narrow| cover::selector_covers(&context.cluster.labels, wide, narrow);
    match (wide, narrow) {
        (TierPeer::Pods { namespaces: wide_namespaces, pods: wide }, TierPeer::Pods { namespaces, pods }) => {
            covers(*wide_namespaces, *namespaces) && covers(*wide, *pods)
        }
        (TierPeer::Networks(wide), TierPeer::Networks(narrow)) => {
            narrow.iter().all(|inner| wide.iter().any(|outer| outer.covers(*inner)))
        }
        (TierPeer::Nodes(wide), TierPeer::Nodes(narrow)) => covers(*wide, *narrow),
        _ => false,
    }
}

fn describe(context: &LintContext<'_>, rule: TierRuleId, earlier: &[TierRuleId]) -> Diagnostic {
    let cluster = context.cluster;
    let name = |id: TierRuleId| format!("{} of {}", cluster.tier_rule_name(id), cluster.tier_policy_name(id.policy));
    let origin = |id: TierRuleId| cluster.tier_policy(id.policy).rule_origin(id.direction, id.rule as usize);
    let message = format!("{} has no effect: earlier rules match all of its traffic", name(rule));
    let action = |id: TierRuleId| cluster.tier_rule(id).action.name();
    let diagnostic = Diagnostic::at(&CODE, origin(rule), message).label("never decides");
    let shown = earlier.iter().take(3);
    let diagnostic = shown.fold(diagnostic, |it, id| it.also(origin(*id), format!("decides first: {}", action(*id))));
    diagnostic.help("remove the rule, or move it before the others")
}
