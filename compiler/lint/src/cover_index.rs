//! Finds a rule that covers another one from form alone, without diagrams: for the closed world.

use std::collections::HashMap;

use super::context::LintContext;
use super::cover::rule_covers;
use super::prefixes::PrefixIndex;
use weir_model::{Direction, NamespaceId, Peer, Policy, PolicyId, Rule, SelectorId};
use weir_objects::k8s::LabelSelector;

/// A rule with its position. Ordered as in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RulePosition {
    pub(super) policy: PolicyId,
    pub(super) rule: usize,
}

/// The rules that could cover others, by the properties that both must share.
pub(super) struct CoverIndex<'q, 'c> {
    pub(super) places: Vec<RulePosition>,
    /// By namespace, subjects and a peer; the peer `None` means any peer.
    by_peer: HashMap<(NamespaceId, SelectorId, Option<PeerSelectors>), Vec<u32>>,
    by_block: HashMap<(NamespaceId, SelectorId), PrefixIndex>,
    /// The id of the empty selector, if there is one.
    everything: Option<SelectorId>,
    context: &'q LintContext<'c>,
    direction: Direction,
}

type PeerSelectors = (Option<SelectorId>, SelectorId);

impl<'q, 'c> CoverIndex<'q, 'c> {
    pub(super) fn new(context: &'q LintContext<'c>, direction: Direction) -> Self {
        let labels = &context.cluster.labels;
        let selectors = (0..labels.selector_count() as u32).map(SelectorId);
        let mut it = Self {
            places: Vec::new(),
            by_peer: HashMap::new(),
            by_block: HashMap::new(),
            everything: selectors.into_iter().find(|id| *labels.selector(*id) == LabelSelector::default()),
            context,
            direction,
        };
        for (index, policy) in context.cluster.policies.iter().enumerate() {
            for (rule, body) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
                it.add(policy, RulePosition { policy: PolicyId(index as u32), rule }, body);
            }
        }
        it
    }

    fn add(&mut self, policy: &Policy, place: RulePosition, rule: &Rule) {
        let number = self.places.len() as u32;
        self.places.push(place);
        let subjects = (policy.namespace, policy.subjects);
        if rule.peers.is_empty() {
            self.by_peer.entry((subjects.0, subjects.1, None)).or_default().push(number);
        }
        for peer in &rule.peers {
            match peer {
                Peer::Pods { namespaces, pods } => {
                    let key = (subjects.0, subjects.1, Some((*namespaces, *pods)));
                    self.by_peer.entry(key).or_default().push(number);
                }
                Peer::Block { cidr, .. } => self.by_block.entry(subjects).or_default().insert(*cidr, number),
            }
        }
    }

    /// The first rule that covers this one. Of two rules that cover each other, the first is kept.
    pub(super) fn covering(&self, place: RulePosition) -> Option<RulePosition> {
        let (policy, rule) = self.at(place)?;
        let labels = &self.context.cluster.labels;
        let wider = self.everything.filter(|id| *id != policy.subjects);
        let candidates = std::iter::once(policy.subjects)
            .chain(wider)
            .flat_map(|subjects| self.candidates(policy.namespace, subjects, rule))
            .filter_map(|number| self.places.get(number as usize).copied());
        let covers = |other: &RulePosition| {
            self.context.spend(1 + rule.peers.len() + rule.ports.len());
            let Some((other_policy, other_rule)) = self.at(*other) else { return false };
            let mutual = || other_policy.subjects == policy.subjects && rule_covers(labels, rule, other_rule);
            *other != place && rule_covers(labels, other_rule, rule) && (*other < place || !mutual())
        };
        candidates.take_while(|_| !self.context.is_spent(policy.object)).filter(covers).min()
    }

    /// Rules that could cover this one: they must cover its first peer, so they have the same peer, a wider one, or
    /// none.
    fn candidates(&self, namespace: NamespaceId, subjects: SelectorId, rule: &Rule) -> Vec<u32> {
        let mut keys = vec![None];
        let mut found = Vec::new();
        match rule.peers.first() {
            None => {}
            Some(Peer::Pods { namespaces, pods }) => {
                let wider = |id: SelectorId| std::iter::once(id).chain(self.everything.filter(|it| *it != id));
                let across = self.everything.filter(|it| Some(*it) != *namespaces);
                for pods in wider(*pods) {
                    keys.push(Some((*namespaces, pods)));
                    keys.extend(across.map(|all| Some((Some(all), pods))));
                }
            }
            Some(Peer::Block { cidr, .. }) => {
                found.extend(self.by_block.get(&(namespace, subjects)).into_iter().flat_map(|it| it.covering(*cidr)));
            }
        }
        let lists = keys.into_iter().filter_map(|peer| self.by_peer.get(&(namespace, subjects, peer)));
        found.extend(lists.flatten());
        found
    }

    fn at(&self, place: RulePosition) -> Option<(&'c Policy, &'c Rule)> {
        let policy = self.context.cluster.policies.get(place.policy.index())?;
        Some((policy, policy.rules(self.direction)?.get(place.rule)?))
    }
}
