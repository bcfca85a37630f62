//! The reasons for one side's verdict: rules that allow, policies that isolate, a list that denies, rules of cluster-wide
//! policies.

use std::collections::BTreeSet;

use weir_model::eval::{Basis, EndVerdict, Judgement, Verdict};
use weir_model::{Cluster, Direction, ListId, PolicyId, RuleAction, TierRuleId};

/// A list, a policy with the rule that allows, or a rule of a cluster-wide policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShownReason {
    /// A list that denies.
    List(ListId),
    /// A rule of a cluster-wide policy: it decides, or passes the flow on to the next tier.
    Tier(TierRuleId),
    /// A policy that isolates, or its rule that allows.
    Policy(PolicyId, Option<u32>),
}

/// The reasons in the order in which they decided: rules that passed the flow on, then policies in order, then rules.
/// Empty if neither a policy nor a list decides.
pub fn reasons(side: &EndVerdict) -> Vec<ShownReason> {
    let passed = side.passed.iter().map(|rule| ShownReason::Tier(*rule));
    passed.chain(of_basis(side)).collect()
}

fn of_basis(side: &EndVerdict) -> Vec<ShownReason> {
    match &side.basis {
        Basis::Tier(rule) => vec![ShownReason::Tier(*rule)],
        Basis::Rules(rules) => rules.iter().map(|id| ShownReason::Policy(id.policy, Some(id.rule))).collect(),
        Basis::Isolated(policies) => policies.iter().map(|id| ShownReason::Policy(*id, None)).collect(),
        Basis::List(list) => vec![ShownReason::List(*list)],
        // The reasons are those of the backends that have the same verdict as the whole service.
        Basis::Service(service) => {
            let agreeing = service.backends.iter().filter(|backend| backend.verdict == side.verdict);
            agreeing.flat_map(reasons).collect::<BTreeSet<_>>().into_iter().collect()
        }
        Basis::Claims(claimed) => {
            claimed.deciding(side.verdict).flat_map(reasons).collect::<BTreeSet<_>>().into_iter().collect()
        }
        Basis::HostPorts(claimed) => {
            claimed.deciding(side.verdict).flat_map(reasons).collect::<BTreeSet<_>>().into_iter().collect()
        }
        Basis::NotSubject | Basis::Itself | Basis::OwnNode | Basis::IcmpAssumed | Basis::NotIsolated => Vec::new(),
    }
}

/// `allow` or `deny`
pub fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}

/// The reasons for a judgement as text, one line for each.
pub fn lines(cluster: &Cluster, judgement: &Judgement) -> Vec<String> {
    let mut lines = Vec::new();
    for direction in [Direction::Egress, Direction::Ingress] {
        let name = direction.name();
        lines.extend(reasons(judgement.side(direction)).into_iter().map(|reason| match reason {
            ShownReason::List(id) => format!("{name} denied by CidrList {}", cluster.lists[id.index()].name),
            ShownReason::Tier(rule) => {
                let what = match cluster.tier_rule(rule).action {
                    RuleAction::Accept => "accepted",
                    RuleAction::Deny => "denied",
                    RuleAction::Pass => "passed on",
                };
                let policy = cluster.tier_policy_name(rule.policy);
                format!("{name} {what} by {policy} {}", cluster.tier_rule_name(rule))
            }
            ShownReason::Policy(id, None) => format!("{name} denied by {}", cluster.policy_name(id)),
            ShownReason::Policy(id, Some(rule)) => {
                format!("{name} allowed by {} spec.{name}[{rule}]", cluster.policy_name(id))
            }
        }));
    }
    lines
}
