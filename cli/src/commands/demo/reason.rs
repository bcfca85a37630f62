//! Why a connection passes or is dropped: the policy and its line, from the reference and not from the programs.

use weir_model::eval::{Basis, EndVerdict, Flow, Judgement, Verdict};
use weir_model::{Cluster, Direction, PolicyId};
use weir_objects::origin::{FieldOrigin, FieldPath};

use super::shop::Shop;
use weir_policy::locator::Locator;
use weir_policy::rule_mismatch::mismatches;

/// The reasons for a verdict, one line for each. A connection that is dropped at its source has no reason at its
/// destination, because no packet gets there.
pub(super) fn lines(shop: &Shop, flow: &Flow, judgement: &Judgement) -> Vec<String> {
    let mut reasons = ReasonLines { shop, flow, locator: Locator::new(&shop.sources) };
    let sides = [Direction::Egress, Direction::Ingress].map(|direction| (direction, judgement.side(direction)));
    match sides.iter().find(|(_, side)| side.verdict == Verdict::Deny) {
        Some((direction, side)) => reasons.of_side(*direction, side),
        None => sides.iter().flat_map(|(direction, side)| reasons.of_side(*direction, side)).collect(),
    }
}

struct ReasonLines<'s> {
    shop: &'s Shop,
    /// With the pods at its ends.
    flow: &'s Flow,
    locator: Locator<'s>,
}

impl ReasonLines<'_> {
    fn of_side(&mut self, direction: Direction, side: &EndVerdict) -> Vec<String> {
        let shop = self.shop;
        let cluster = &shop.cluster;
        let name = direction.name();
        match &side.basis {
            Basis::Rules(rules) => {
                let allowed = rules.iter().map(|rule| {
                    let origin = cluster.policies[rule.policy.index()].rule_origin(direction, rule.rule as usize);
                    format!("{name}: {}", self.line(cluster, rule.policy, origin))
                });
                allowed.collect()
            }
            Basis::Isolated(policies) => {
                let names: Vec<String> = policies.iter().map(|id| self.isolating(cluster, *id)).collect();
                let isolated = format!("{name}: no rule allows it; isolated by {}", names.join(", "));
                std::iter::once(isolated).chain(self.nearest(policies, direction)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// A rule: its policy, and its line with the text.
    fn line(&mut self, cluster: &Cluster, policy: PolicyId, origin: FieldOrigin) -> String {
        let name = cluster.policy_name(policy);
        match self.locator.line(&origin) {
            Some(line) => format!("{name}, line {}: {}", line.number, line.text.trim().trim_start_matches("- ")),
            None => name,
        }
    }

    /// A policy with the line of its pod selector.
    fn isolating(&mut self, cluster: &Cluster, policy: PolicyId) -> String {
        let name = cluster.policy_name(policy);
        let selector = FieldPath::root().field("spec").field("podSelector");
        let origin = FieldOrigin::new(cluster.policies[policy.index()].object, selector);
        match self.locator.line(&origin) {
            Some(line) => format!("{name} (line {})", line.number),
            None => name,
        }
    }

    /// The rule that nearly allows the connection, and the difference. A rule with other peers and other ports is not
    /// near.
    fn nearest(&mut self, policies: &[PolicyId], direction: Direction) -> Option<String> {
        let shop = self.shop;
        let cluster = &shop.cluster;
        let nearest = mismatches(cluster, policies, direction, self.flow).into_iter().next()?;
        if !nearest.peers.is_empty() && !nearest.ports.is_empty() {
            return None;
        }
        let origin = cluster.policies[nearest.policy.index()].rule_origin(direction, nearest.rule as usize);
        let number = self.locator.line(&origin)?.number;
        let wrong: Vec<&str> = nearest.peers.iter().chain(&nearest.ports).map(String::as_str).collect();
        let policy = cluster.policy_name(nearest.policy);
        Some(format!("nearest rule: {policy}, line {number}: {}", wrong.join("; ")))
    }
}
