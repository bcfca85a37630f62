//! The rules behind a verdict of the table, found by evaluating them again.

use crate::ports::{AtomId, Atoms};
use crate::predicates::{DraftPorts, DraftRule, PredicateId};
use crate::{Classes, PeerClass, PeerId, SubjectClass, SubjectId};
use weir_model::Direction;
use weir_model::eval::RuleId;

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
