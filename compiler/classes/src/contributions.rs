//! The rules behind an entry, with the ports that each rule adds to it.

use super::ports::AtomSet;
use super::predicates::{DraftPorts, DraftRule, Predicate, PredicateId};
use super::{Classes, PeerClass, PeerId, SubjectClass, SubjectId};
use weir_model::eval::RuleId;
use weir_model::{Cluster, Direction, ListAction, ListId, RuleAction, Tier, TierRuleId};

impl Classes {
    /// The rules that allow anything between a subject class and a peer class that is no service, each with the traffic
    /// that it allows.
    pub fn contributions(&self, direction: Direction, subject: SubjectId, peer: PeerId) -> Vec<(RuleId, AtomSet)> {
        let (subject, peer) = (&self.subjects[subject.index()], &self.peers[peer.index()]);
        let mut found = Vec::new();
        for policy in &subject.policies {
            for (index, rule) in self.rules.of(*policy, direction).unwrap_or_default().iter().enumerate() {
                if is_meant(rule, peer) {
                    let atoms = self.atoms_of(direction, subject, peer, rule.ports.as_ref());
                    found.push((RuleId { policy: *policy, rule: index as u32 }, atoms));
                }
            }
        }
        // A rule can match the peer and still allow nothing: if its only port is a name that the destination does not
        // have. It is no reason for a verdict.
        found.retain(|(_, atoms)| !atoms.is_empty());
        found
    }

    /// The rules of cluster-wide policies that decide anything between a subject class and a peer class that is no
    /// service, each with its action and the traffic that it decides: no earlier rule of its tier matches it, and no
    /// earlier tier decides it.
    pub fn tier_contributions(
        &self,
        cluster: &Cluster,
        direction: Direction,
        subject: SubjectId,
        peer: PeerId,
    ) -> Vec<(TierRuleId, RuleAction, AtomSet)> {
        let (subject, peer) = (&self.subjects[subject.index()], &self.peers[peer.index()]);
        let is_isolated = subject.policies.iter().any(|id| self.rules.of(*id, direction).is_some());
        let mut found = Vec::new();
        // The traffic that no tier has decided yet.
        let mut undecided = AtomSet::all(self.atoms.count());
        for tier in Tier::ALL.into_iter().filter(|tier| *tier == Tier::Admin || !is_isolated) {
            let mut open = undecided.clone();
            for policy in subject.tiers.iter().filter(|id| cluster.tier_policy(**id).tier == tier) {
                for (rule, of_tier) in (0..).zip(self.rules.of_tier(*policy, direction)) {
                    let Some(matched) = of_tier.matched.as_ref().filter(|it| is_meant(it, peer)) else { continue };
                    let mut atoms = self.atoms_of(direction, subject, peer, matched.ports.as_ref());
                    atoms.intersect(&open);
                    open.subtract(&atoms);
                    if of_tier.action != RuleAction::Pass {
                        undecided.subtract(&atoms);
                    }
                    if !atoms.is_empty() {
                        found.push((TierRuleId { policy: *policy, direction, rule }, of_tier.action, atoms));
                    }
                }
            }
        }
        found
    }

    /// The list that denies everything between a subject class and a peer class. The first list that contains the peer
    /// decides, so the result is `None` if that is an allow list.
    pub fn denying_list(
        &self,
        cluster: &Cluster,
        direction: Direction,
        subject: SubjectId,
        peer: PeerId,
    ) -> Option<ListId> {
        let predicates = &self.peers[peer.index()].predicates;
        let contains = |list: &&ListId| {
            let is_it = |id: &PredicateId| self.rules.predicates[id.index()] == Predicate::List(**list);
            let asked = match direction {
                Direction::Ingress => cluster.lists[list.index()].ingress,
                Direction::Egress => cluster.lists[list.index()].egress,
            };
            // A list for the other direction only must not end the search: a later list may deny in this one.
            asked && predicates.iter().any(is_it)
        };
        let first = self.subjects[subject.index()].lists.iter().find(contains)?;
        // An allow list ends the search too: it exempts the address from all lists after it.
        (cluster.lists[first.index()].action == ListAction::Deny).then_some(*first)
    }

    fn atoms_of(
        &self,
        direction: Direction,
        subject: &SubjectClass,
        peer: &PeerClass,
        ports: Option<&DraftPorts>,
    ) -> AtomSet {
        let Some(ports) = ports else { return AtomSet::all(self.atoms.count()) };
        let mut set = AtomSet::none(self.atoms.count());
        for (protocol, first, last) in &ports.ranges {
            if let Some(atoms) = self.atoms.of_range(*protocol, *first, *last) {
                set.add(atoms);
            }
        }
        // A named port is resolved on the destination, pod by pod. To join the numbers of all pods that have the name
        // would open ports that the author of the policy did not mean: https://github.com/cilium/cilium/issues/30003
        let (numbers, names) = match direction {
            Direction::Ingress => (&subject.named, &self.rules.ingress_names),
            Direction::Egress => (&peer.named, &self.rules.egress_names),
        };
        for (name, number) in numbers.iter().filter(|(name, _)| ports.named.contains(name)) {
            set.insert(self.atoms.find(names[*name as usize].0, *number));
        }
        set
    }
}

fn is_meant(rule: &DraftRule, peer: &PeerClass) -> bool {
    let holds = |predicate: &PredicateId| peer.predicates.binary_search(predicate).is_ok();
    // Spec: "If this field is empty or missing, this rule matches all sources".
    // https://github.com/kubernetes/kubernetes/blob/45d0fddaf1f2/staging/src/k8s.io/api/networking/v1/types.go#L121
    rule.peers.as_ref().is_none_or(|peers| peers.iter().any(holds))
}
