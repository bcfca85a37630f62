//! Rules of the Admin tier that open what NetworkPolicies close.

use super::context::LintContext;
use super::{cover, words};
use weir_model::{
    Direction, NamespaceId, Peer, PolicyId, Rule, RuleAction, Tier, TierMatch, TierPeer, TierPolicyId, TierRuleId,
};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};

pub(super) static CODE: Code = Code::lint(
    "admin-accept-opens",
    Severity::Note,
    include_str!("admin_accept_opens.diff"),
)
.what("An Accept rule of the Admin tier applies to pods that NetworkPolicies isolate.")
.why(
    "Accept in the Admin tier is final: the NetworkPolicies of the pod are not evaluated, so the rule opens what \
             they close. This is what the Admin tier is for, and therefore only information. If the developers of the \
             pods are to decide, the rule must say Pass.",
);

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    if context.cluster.tiers.is_empty() || !context.cohorts().are_known(context) {
        return;
    }
    for (policy, tier) in (0..).map(TierPolicyId).zip(&context.cluster.tiers) {
        if tier.tier != Tier::Admin || tier.is_audit {
            continue;
        }
        let subjects = Peer::Pods { namespaces: Some(tier.namespaces), pods: tier.pods };
        let groups = context.peer_groups(NamespaceId(0), &subjects);
        for direction in Direction::ALL {
            for (index, rule) in tier.rules(direction).iter().enumerate() {
                let Some(matched) = rule.matched.as_ref().filter(|_| rule.action == RuleAction::Accept) else {
                    continue;
                };
                if context.is_spent(tier.object) {
                    return;
                }
                let isolated = groups.iter().find_map(|group| {
                    let isolating = context.cohorts().of(*group).isolating(direction);
                    context.spend(1 + isolating.len());
                    let is_closed = !isolating.is_empty() && !is_allowed(context, isolating, direction, matched);
                    is_closed.then(|| (*group, isolating[0]))
                });
                let Some((group, by)) = isolated else { continue };
                let pod = words::endpoint(context.cluster, context.group(group).first);
                found.push(describe(context, TierRuleId { policy, direction, rule: index as u32 }, by, &pod));
            }
        }
    }
}

/// Whether one rule of these policies allows all that a rule of a tier matches, as far as their form shows.
fn is_allowed(context: &LintContext<'_>, isolating: &[PolicyId], direction: Direction, matched: &TierMatch) -> bool {
    let peers = matched.peers.iter().flat_map(|peer| match peer {
        TierPeer::Pods { namespaces, pods } => vec![Peer::Pods { namespaces: Some(*namespaces), pods: *pods }],
        TierPeer::Networks(networks) => {
            networks.iter().map(|cidr| Peer::Block { cidr: *cidr, except: Vec::new() }).collect()
        }
        TierPeer::Nodes(_) => Vec::new(),
    });
    let narrow = Rule { peers: peers.collect(), ports: matched.ports.clone() };
    let has_nodes = matched.peers.iter().any(|peer| matches!(peer, TierPeer::Nodes(_)));
    isolating.iter().any(|id| {
        let rules = context.cluster.policy(*id).rules(direction).unwrap_or_default();
        let covers = |wide: &Rule| cover::rule_covers(&context.cluster.labels, wide, &narrow);
        rules.iter().any(|wide| (!has_nodes || wide.peers.is_empty()) && covers(wide))
    })
}

fn describe(context: &LintContext<'_>, rule: TierRuleId, by: PolicyId, pod: &str) -> Diagnostic {
    let cluster = context.cluster;
    let (tier, policy) = (cluster.tier_policy(rule.policy), cluster.policy(by));
    let (name, place) = (cluster.tier_policy_name(rule.policy), cluster.tier_rule_name(rule));
    let message = format!("{place} of {name} opens pods that NetworkPolicies isolate");
    Diagnostic::at(&CODE, tier.rule_origin(rule.direction, rule.rule as usize), message)
        .label("accepts before any NetworkPolicy is evaluated")
        .also(words::direction_origin(policy, rule.direction), format!("isolates {pod} for {}", rule.direction.name()))
        .help("if the NetworkPolicies are to decide, write `Pass`")
}
