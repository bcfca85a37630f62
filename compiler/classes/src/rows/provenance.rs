//! The rules behind a verdict of the table, found by evaluating them again.

use crate::ports::{AtomId, Atoms};
use crate::predicates::{DraftPorts, DraftRule, PredicateId};
use crate::{Classes, PeerClass, PeerId, SubjectClass, SubjectId, TierDecision};
use weir_model::eval::RuleId;
use weir_model::{Cluster, Direction, RuleAction, Tier, TierRuleId};

/// The decisions of cluster-wide policies about an entry of a peer class without services.
pub(crate) fn tier_decision(
    classes: &Classes,
    cluster: &Cluster,
    direction: Direction,
    subject: SubjectId,
    peer: PeerId,
    atom: AtomId,
) -> TierDecision {
    let question = RowQuestion {
        classes,
        direction,
        subject: &classes.subjects[subject.index()],
        peer: &classes.peers[peer.index()],
        atom,
    };
    let mut found = TierDecision::default();
    for tier in Tier::ALL {
        // NetworkPolicy is between the two tiers, and final for pods that it isolates.
        if tier == Tier::Baseline && question.is_isolated() {
            break;
        }
        match question.first_of_tier(cluster, tier) {
            Some((rule, RuleAction::Pass)) => found.passed.push(rule),
            Some(decided) => {
                found.decided = Some(decided);
                break;
            }
            None => {}
        }
    }
    found
}

/// The rules behind an entry of a peer class without services.
pub(crate) fn provenance(
    classes: &Classes,
    direction: Direction,
    subject: SubjectId,
    peer: PeerId,
    atom: AtomId,
) -> Vec<RuleId> {
    let question = RowQuestion {
        classes,
        direction,
        subject: &classes.subjects[subject.index()],
        peer: &classes.peers[peer.index()],
        atom,
    };
    let mut found = Vec::new();
    // Asked only when it is needed. To store the rules behind each entry would make rows as large as the product of
    // rules and classes.
    for policy in &question.subject.policies {
        for (index, rule) in classes.rules.of(*policy, direction).unwrap_or_default().iter().enumerate() {
            if question.is_allowed_by(rule) {
                found.push(RuleId { policy: *policy, rule: index as u32 });
            }
        }
    }
    found
}

struct RowQuestion<'a> {
    classes: &'a Classes,
    direction: Direction,
    subject: &'a SubjectClass,
    peer: &'a PeerClass,
    atom: AtomId,
}

impl RowQuestion<'_> {
    fn is_isolated(&self) -> bool {
        self.subject.policies.iter().any(|id| self.classes.rules.of(*id, self.direction).is_some())
    }

    /// The first rule of a tier that matches.
    fn first_of_tier(&self, cluster: &Cluster, tier: Tier) -> Option<(TierRuleId, RuleAction)> {
        let policies = self.subject.tiers.iter().filter(|id| cluster.tier_policy(**id).tier == tier);
        let rules =
            policies.flat_map(|id| (0..).zip(self.classes.rules.of_tier(*id, self.direction)).map(|it| (*id, it)));
        let mut matching =
            rules.filter(|(_, (_, rule))| rule.matched.as_ref().is_some_and(|it| self.is_allowed_by(it)));
        matching
            .next()
            .map(|(policy, (rule, of_tier))| (TierRuleId { policy, direction: self.direction, rule }, of_tier.action))
    }

    fn is_allowed_by(&self, rule: &DraftRule) -> bool {
        let holds = |predicate: &PredicateId| self.peer.predicates.binary_search(predicate).is_ok();
        rule.peers.as_ref().is_none_or(|peers| peers.iter().any(holds))
            && rule.ports.as_ref().is_none_or(|ports| self.is_among(ports))
    }

    fn is_among(&self, ports: &DraftPorts) -> bool {
        let atoms = &self.classes.atoms;
        let (numbers, names) = match self.direction {
            Direction::Ingress => (&self.subject.named, &atoms.ingress_names),
            Direction::Egress => (&self.peer.named, &atoms.egress_names),
        };
        let in_range = |(protocol, first, last): &(_, u16, u16)| {
            atoms.of_range(*protocol, *first, *last).is_some_and(|set| set.contains(self.atom))
        };
        let is_named = |(name, number): &(u32, u16)| {
            ports.named.contains(name) && atoms.find(names[*name as usize].0, *number) == self.atom
        };
        // Atom 0 is traffic without ports and ports outside of all ranges. Only a rule without `ports` allows it, and
        // such a rule does not get here.
        self.atom != Atoms::REST && (ports.ranges.iter().any(in_range) || numbers.iter().any(is_named))
    }
}
