//! The reasons for one side's verdict: rules that allow, policies that isolate, a list that denies.

use std::collections::BTreeSet;

use weir_model::eval::{Basis, EndVerdict, Judgement, Verdict};
use weir_model::{Cluster, Direction, ListId, PolicyId};

/// A list, or a policy with the rule that allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShownReason {
    List(ListId),
    Policy(PolicyId, Option<u32>),
}

/// The reasons in the order of policies, then of rules. Empty if neither a policy nor a list decides.
pub(crate) fn reasons(side: &EndVerdict) -> Vec<ShownReason> {
    match &side.basis {
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
pub(crate) fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}

/// The reasons for a judgement as text, one line for each.
pub(crate) fn lines(cluster: &Cluster, judgement: &Judgement) -> Vec<String> {
    let mut lines = Vec::new();
    for direction in [Direction::Egress, Direction::Ingress] {
        let name = direction.name();
        lines.extend(reasons(judgement.side(direction)).into_iter().map(|reason| match reason {
            ShownReason::List(id) => format!("{name} denied by CidrList {}", cluster.lists[id.index()].name),
            ShownReason::Policy(id, None) => format!("{name} denied by {}", cluster.policy_name(id)),
            ShownReason::Policy(id, Some(rule)) => {
                format!("{name} allowed by {} spec.{name}[{rule}]", cluster.policy_name(id))
            }
        }));
    }
    lines
}
