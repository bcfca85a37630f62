//! Cluster-wide policies on sets: the slots that the tiers decide, for each plain oracle class.

use std::collections::HashMap;
use std::rc::Rc;

use weir_model::{Direction, RuleAction, Tier, TierPolicyId};
use weir_objects::k8s::{NamedPort, PortMatch};

use super::super::bits::{self, add, words};
use super::ExpectedVerdicts;
use super::oracle_classes::PeerKey;
use super::rows::{PeerMatches, SlotRow};

/// The decisions of one tier: the slots of each plain oracle class that it accepts, and those that it denies.
pub(super) struct TierSlots {
    accepted: SlotRow,
    denied: SlotRow,
}

impl TierSlots {
    /// Applies the decisions about one plain oracle class to the traffic that the later tiers allow.
    pub(super) fn apply(&self, plain: usize, allowed: &mut [u64]) {
        add(allowed, self.accepted.get(plain));
        bits::subtract(allowed, self.denied.get(plain));
    }
}

/// The decisions that were already computed. Most endpoints have the same cluster-wide policies.
pub(super) type KnownTiers<'c> = HashMap<TierKey<'c>, Rc<TierSlots>>;

/// Everything that the decisions depend on.
pub(super) type TierKey<'c> = (Tier, Direction, Vec<TierPolicyId>, &'c [NamedPort]);

impl<'c> ExpectedVerdicts<'c> {
    /// The decisions of a tier for a kind of endpoint; `None` if no policy of the tier has rules for it.
    pub(super) fn tier(
        &self,
        holders: &PeerMatches,
        kind: u32,
        tier: Tier,
        direction: Direction,
    ) -> Option<Rc<TierSlots>> {
        let policies: Vec<TierPolicyId> = self.in_tier(kind, tier, direction).collect();
        if policies.is_empty() {
            return None;
        }
        // On egress a port name is the destination's.
        let named = if direction == Direction::Ingress { self.kinds[kind as usize].named } else { &[] };
        let key = (tier, direction, policies, named);
        let known = self.tiers.borrow().get(&key).cloned();
        Some(known.unwrap_or_else(|| {
            let decided = Rc::new(self.decide(holders, kind, direction, &key.2));
            self.tiers.borrow_mut().insert(key, Rc::clone(&decided));
            decided
        }))
    }

    /// Whether any enforced rule for the kind denies.
    pub(super) fn any_denial(&self, kind: u32, tier: Tier, direction: Direction) -> bool {
        let mut rules =
            self.in_tier(kind, tier, direction).flat_map(|id| self.cluster.tiers[id.index()].rules(direction));
        rules.any(|rule| rule.action == RuleAction::Deny)
    }

    fn in_tier(&self, kind: u32, tier: Tier, direction: Direction) -> impl Iterator<Item = TierPolicyId> {
        let of_kind = self.kinds[kind as usize].tiers.iter().copied();
        of_kind.filter(move |id| {
            let policy = &self.cluster.tiers[id.index()];
            policy.tier == tier && !policy.rules(direction).is_empty()
        })
    }

    // Spec: "a rule that appears at the top of the ingress rules would take the highest precedence": each rule decides
    // about the slots that no rule before it has matched.
    fn decide(&self, holders: &PeerMatches, kind: u32, direction: Direction, policies: &[TierPolicyId]) -> TierSlots {
        let (words, count) = (words(self.slots.count()), self.oracle_classes.plains().len());
        let nothing = || SlotRow { words, sets: vec![0; words * count] };
        let mut decided = TierSlots { accepted: nothing(), denied: nothing() };
        let mut open = SlotRow { words, sets: bits::full(self.slots.count()).repeat(count) };
        for rule in policies.iter().flat_map(|id| self.cluster.tiers[id.index()].rules(direction)) {
            // A rule that fails closed matches nothing, or (without peers) everything.
            let Some(matched) = &rule.matched else { continue };
            let same = self.numbered(kind, direction, &matched.ports);
            let has_names = matched.ports.iter().any(|port| matches!(port.port, PortMatch::Named(_)));
            let mut take = |plain: usize| {
                let mut taken = same.clone();
                if has_names && direction == Direction::Egress {
                    self.add_names(&matched.ports, &self.oracle_classes.plains()[plain], &mut taken);
                }
                bits::intersect(&mut taken, open.get(plain));
                bits::subtract(open.get_mut(plain), &taken);
                match rule.action {
                    RuleAction::Accept => add(decided.accepted.get_mut(plain), &taken),
                    RuleAction::Deny => add(decided.denied.get_mut(plain), &taken),
                    RuleAction::Pass => {}
                }
            };
            if matched.peers.is_empty() {
                (0..count).for_each(take);
                continue;
            }
            let peers = matched.peers.iter().filter_map(|peer| self.oracle_classes.peer(PeerKey::Tier(peer)));
            peers.flat_map(|peer| holders.matching(peer)).for_each(|plain| take(*plain as usize));
        }
        decided
    }
}
