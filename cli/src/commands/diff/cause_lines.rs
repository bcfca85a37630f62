//! The rules, policies and lists of a comparison, with their lines.

use std::collections::{BTreeMap, BTreeSet};

use weir_analysis::diff::{EndReason, EndState, VerdictChange};
use weir_analysis::world::{CauseKind, RowCause};
use weir_model::eval::RuleId;
use weir_model::{Direction, ListId, PolicyId, TierRuleId};
use weir_objects::diagnostic::FindingPlace;
use weir_objects::origin::FieldOrigin;
use weir_policy::locator::Locator;

use super::Comparison;

/// A rule, policy or list that causes a verdict, on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum VerdictCause {
    Rule(Direction, RuleId),
    Policy(PolicyId),
    List(ListId),
    Tier(TierRuleId),
}

/// A line of a file; both from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CauseLine {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) end_line: usize,
}

/// The lines of everything that rows mention.
#[derive(Default)]
pub(super) struct CauseLines {
    lines: [BTreeMap<VerdictCause, CauseLine>; 2],
}

impl CauseLines {
    pub(super) fn find(compared: &Comparison) -> Self {
        let mut wanted = [BTreeSet::new(), BTreeSet::new()];
        for row in &compared.diff.rows {
            for direction in Direction::ALL {
                let Some(accounts) = row.accounts(direction) else { continue };
                for (wanted, account) in wanted.iter_mut().zip(accounts) {
                    wanted.extend(causes(direction, account));
                }
            }
        }
        for change in &compared.diff.isolation {
            wanted[usize::from(change.begins)].extend(change.policies.iter().map(|it| VerdictCause::Policy(*it)));
        }
        for (change, cause) in &compared.diff.without_effect {
            let (which, cause) = VerdictCause::of_row(*change, cause);
            wanted[which].insert(cause);
        }
        let mut wanted = wanted.into_iter();
        let lines = [0, 1].map(|which| lines(compared, which, wanted.next().unwrap_or_default()));
        Self { lines }
    }

    pub(super) fn line(&self, which: usize, cause: VerdictCause) -> Option<&CauseLine> {
        self.lines[which].get(&cause)
    }
}

/// The list, rules and policies that cause an end's verdict, on one side of the comparison.
pub(super) fn causes(direction: Direction, account: &EndReason) -> Vec<VerdictCause> {
    let list = match account.state {
        EndState::List(list) => Some(VerdictCause::List(list)),
        _ => None,
    };
    let rules = account.rules.iter().map(|it| VerdictCause::Rule(direction, *it));
    let tiers = account.tiers.iter().map(|it| VerdictCause::Tier(*it));
    tiers.chain(rules).chain(account.isolating.iter().map(|it| VerdictCause::Policy(*it))).chain(list).collect()
}

impl VerdictCause {
    /// What makes the difference of a row about possible pods, and the side that has it: 0 for the base, 1 for the head.
    pub(super) fn of_row(change: VerdictChange, cause: &RowCause) -> (usize, Self) {
        let allowing = usize::from(change == VerdictChange::Added);
        match &cause.kind {
            CauseKind::Rule { rule, .. } => (allowing, Self::Rule(cause.direction, *rule)),
            CauseKind::Isolation(policy) => (1 - allowing, Self::Policy(*policy)),
            CauseKind::List(list, _) => (1 - allowing, Self::List(*list)),
            CauseKind::Tier { rule, is_allowing: true } => (allowing, Self::Tier(*rule)),
            CauseKind::Tier { rule, is_allowing: false } => (1 - allowing, Self::Tier(*rule)),
        }
    }

    fn origin(self, compared: &Comparison, which: usize) -> FieldOrigin {
        let cluster = &compared.sides[which].cluster;
        match self {
            Self::Rule(direction, id) => cluster.policies[id.policy.index()].rule_origin(direction, id.rule as usize),
            Self::Policy(id) => FieldOrigin::object(cluster.policies[id.index()].object),
            Self::List(id) => FieldOrigin::object(cluster.lists[id.index()].object),
            Self::Tier(id) => cluster.tier_policy(id.policy).rule_origin(id.direction, id.rule as usize),
        }
    }

    /// `shop/db spec.ingress[0]`, `shop/db`, `CidrList x`
    pub(super) fn name(self, compared: &Comparison, which: usize) -> String {
        let cluster = &compared.sides[which].cluster;
        match self {
            Self::Rule(direction, id) => {
                format!("{} spec.{}[{}]", cluster.policy_name(id.policy), direction.name(), id.rule)
            }
            Self::Policy(id) => cluster.policy_name(id),
            Self::List(id) => format!("CidrList {}", cluster.lists[id.index()].name),
            Self::Tier(id) => format!("{} {}", cluster.tier_policy_name(id.policy), cluster.tier_rule_name(id)),
        }
    }
}

/// The lines of these causes. They are searched in the order of the objects, so that no document is parsed twice.
fn lines(compared: &Comparison, which: usize, wanted: BTreeSet<VerdictCause>) -> BTreeMap<VerdictCause, CauseLine> {
    let mut locator = Locator::new(&compared.sides[which].sources);
    let mut ordered: Vec<(FieldOrigin, VerdictCause)> =
        wanted.into_iter().map(|cause| (cause.origin(compared, which), cause)).collect();
    ordered.sort();
    let mut found = BTreeMap::new();
    for (origin, cause) in ordered {
        let Some(at) = locator.locate(&FindingPlace::Field(origin)) else { continue };
        let file = locator.sources().file(at.file).name.clone();
        let line = locator.position(at.file, at.span.start).line;
        let end_line = locator.position(at.file, at.span.end).line;
        found.insert(cause, CauseLine { file, line, end_line });
    }
    found
}
