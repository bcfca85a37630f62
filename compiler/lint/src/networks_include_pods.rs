//! Networks of cluster-wide policies that contain the addresses of pods.

use super::context::LintContext;
use super::cover;
use weir_model::{Direction, TierPeer, TierPolicyId, TierRule, TierRuleId};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};

pub(super) static CODE: Code = Code::lint(
    "networks-include-pods",
    Severity::Note,
    include_str!("networks_include_pods.diff"),
)
.what("A `networks` peer of a cluster-wide policy contains every address, so it matches pods too.")
.why(
    "`networks` matches addresses wherever they are: outside, of nodes and of pods. A rule that is meant for the \
             world outside the cluster also decides about traffic between pods, unless an earlier rule does.",
);

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    for (policy, tier) in (0..).map(TierPolicyId).zip(&context.cluster.tiers) {
        let rules = tier.rules(Direction::Egress);
        let earlier = rules.iter().position(|rule| is_about_all_pods(context, rule)).unwrap_or(rules.len());
        for (index, rule) in rules.iter().enumerate().take(earlier).filter(|_| !tier.is_audit) {
            context.spend(1);
            if context.is_spent(tier.object) {
                return;
            }
            let peers = rule.matched.iter().flat_map(|it| &it.peers);
            let networks = peers.flat_map(|peer| if let TierPeer::Networks(all) = peer { &all[..] } else { &[] });
            let Some(every) = networks.into_iter().find(|network| network.len() == 0) else { continue };
            let rule = TierRuleId { policy, direction: Direction::Egress, rule: index as u32 };
            let (name, place) = (context.cluster.tier_policy_name(policy), context.cluster.tier_rule_name(rule));
            let message = format!("{place} of {name} also matches pods: {every} contains their addresses");
            found.push(
                Diagnostic::at(&CODE, tier.rule_origin(Direction::Egress, index), message)
                    .label("matches pods, nodes and addresses outside")
                    .help("if pods are not meant, put a rule for them before it: `{action: Pass, to: [{namespaces: {}}]}`"),
            );
        }
    }
}

/// Whether the rule decides about all traffic to pods, so that no later rule of the policy does.
fn is_about_all_pods(context: &LintContext<'_>, rule: &TierRule) -> bool {
    let all = |selector| cover::selects_all(&context.cluster.labels, selector);
    let is_all =
        |peer: &TierPeer| matches!(peer, TierPeer::Pods { namespaces, pods } if all(*namespaces) && all(*pods));
    rule.matched.as_ref().is_some_and(|it| it.ports.is_empty() && (it.peers.is_empty() || it.peers.iter().any(is_all)))
}
