//! Cluster-wide policies whose order the API leaves open, and whose rules disagree.

use super::context::LintContext;
use super::cover;
use weir_model::{Direction, PortMatch, PortRule, TierPeer, TierPolicy, TierPolicyId, TierRule, TierRuleId};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Severity};

pub(super) static CODE: Code = Code::lint("tier-order-open", Severity::Warning, include_str!("tier_order_open.diff"))
    .what("Two policies of one tier have the same priority, and their rules disagree about the same traffic.")
    .why(
        "The API does not say which of them is evaluated first, so the verdict depends on the implementation. Weir \
         evaluates them in the order of their names; others may not. The lint compares rules by their form: it reports \
         two rules with different actions if a pod could be the subject of both policies, and traffic could match both \
         rules.",
    );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    let tiers: Vec<(TierPolicyId, &TierPolicy)> =
        (0..).map(TierPolicyId).zip(&context.cluster.tiers).filter(|(_, it)| !it.is_audit).collect();
    for run in tiers.chunk_by(|(_, a), (_, b)| (a.tier, a.priority) == (b.tier, b.priority)) {
        for (index, second) in run.iter().enumerate() {
            if context.is_spent(second.1.object) {
                return;
            }
            let disagreement = run[..index].iter().find_map(|first| disagreement(context, *first, *second));
            if let Some((first, second)) = disagreement {
                found.push(describe(context, first, second));
            }
        }
    }
}

fn disagreement(
    context: &LintContext<'_>,
    first: (TierPolicyId, &TierPolicy),
    second: (TierPolicyId, &TierPolicy),
) -> Option<(TierRuleId, TierRuleId)> {
    context.spend(1);
    let may_meet = |a, b| cover::may_meet(context.selector(a), context.selector(b));
    if !may_meet(first.1.namespaces, second.1.namespaces) || !may_meet(first.1.pods, second.1.pods) {
        return None;
    }
    Direction::ALL.into_iter().find_map(|direction| {
        let (a, b) = (first.1.rules(direction), second.1.rules(direction));
        context.spend(a.len() * b.len());
        let id = |policy, rule: usize| TierRuleId { policy, direction, rule: rule as u32 };
        (0..a.len()).find_map(|at| {
            let other = b.iter().position(|it| it.action != a[at].action && rules_meet(context, &a[at], it))?;
            Some((id(first.0, at), id(second.0, other)))
        })
    })
}

fn rules_meet(context: &LintContext<'_>, a: &TierRule, b: &TierRule) -> bool {
    let (Some(a), Some(b)) = (&a.matched, &b.matched) else { return false };
    let ports = a.ports.is_empty() || b.ports.is_empty() || pairs(&a.ports, &b.ports, ports_meet);
    let peers = || pairs(&a.peers, &b.peers, |a, b| peers_meet(context, a, b));
    ports && (a.peers.is_empty() || b.peers.is_empty() || peers())
}

fn pairs<T>(a: &[T], b: &[T], meet: impl Fn(&T, &T) -> bool) -> bool {
    a.iter().any(|a| b.iter().any(|b| meet(a, b)))
}

fn ports_meet(a: &PortRule, b: &PortRule) -> bool {
    a.protocol == b.protocol
        && match (&a.port, &b.port) {
            (PortMatch::Range(first, last), PortMatch::Range(from, to)) => first <= to && from <= last,
            _ => true,
        }
}

fn peers_meet(context: &LintContext<'_>, a: &TierPeer, b: &TierPeer) -> bool {
    let may_meet = |a, b| cover::may_meet(context.selector(a), context.selector(b));
    match (a, b) {
        (TierPeer::Pods { namespaces: a_namespaces, pods: a }, TierPeer::Pods { namespaces, pods }) => {
            may_meet(*a_namespaces, *namespaces) && may_meet(*a, *pods)
        }
        (TierPeer::Nodes(a), TierPeer::Nodes(b)) => may_meet(*a, *b),
        (TierPeer::Networks(a), TierPeer::Networks(b)) => pairs(a, b, |a, b| cover::meets(*a, *b)),
        (TierPeer::Pods { .. }, TierPeer::Nodes(_)) | (TierPeer::Nodes(_), TierPeer::Pods { .. }) => false,
        (TierPeer::Networks(_), _) | (_, TierPeer::Networks(_)) => true,
    }
}

fn describe(context: &LintContext<'_>, first: TierRuleId, second: TierRuleId) -> Diagnostic {
    let cluster = context.cluster;
    let origin = |id: TierRuleId| cluster.tier_policy(id.policy).rule_origin(id.direction, id.rule as usize);
    let name = |id: TierRuleId| cluster.tier_policy_name(id.policy);
    let message = format!(
        "{} and {} have the same priority, and their {} rules disagree",
        name(first),
        name(second),
        second.direction.name()
    );
    let label = |id: TierRuleId| format!("{} by {}", cluster.tier_rule(id).action.name(), name(id));
    Diagnostic::at(&CODE, origin(second), message)
        .label(label(second))
        .also(origin(first), label(first))
        .note(format!("the API leaves the order open; Weir evaluates {} first", name(first)))
        .help("give the two policies different priorities")
}
