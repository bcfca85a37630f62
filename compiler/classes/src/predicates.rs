//! The conditions of rules on the other end, each stored once.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;

use super::ports::{AtomSet, Atoms, NameIds};
use super::sources::RulePlace;
use super::subjects::SubjectDraft;
use weir_model::{
    Cluster, Direction, ListId, NamespaceId, Peer, PolicyId, PortMatch, PortRule, Protocol, Rule, RuleAction,
    SelectorId, TierMatch, TierPeer, TierPolicyId, TierRule, id,
};
use weir_objects::address::Prefix;
use weir_objects::origin::{FieldOrigin, FieldPath};

id!(/// A peer predicate. Prints as `is3`.
    PredicateId, "is");

/// A condition that holds for an address or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Predicate {
    /// The address is a pod's, with these labels.
    Pods {
        /// The namespace of the pod: this one …
        own: Option<NamespaceId>,
        /// … or of namespaces with these labels.
        namespaces: Option<SelectorId>,
        /// The pod's own labels.
        pods: SelectorId,
    },
    /// The address is in a block, and in none of its exceptions.
    Block {
        /// The block.
        cidr: Prefix,
        /// Its exceptions, sorted.
        except: Vec<Prefix>,
    },
    /// The address is in one of these networks of a cluster-wide policy, sorted. Unlike blocks, they always contain the
    /// addresses of pods.
    Networks(Vec<Prefix>),
    /// The address is one of the nodes with these labels, and no pod's.
    Nodes(SelectorId),
    /// The address is in a list.
    List(ListId),
}

/// The rules of the policies in force. Dereferences to the terms that they are made of.
///
/// The terms and each policy's rules are shared: a change of one policy copies pointers to the rules of the others.
#[derive(Clone, Debug, Default)]
pub(super) struct RulePredicates {
    terms: Arc<RuleTerms>,
    rules: RulesByPolicy,
    tiers: Arc<HashMap<(TierPolicyId, Direction), Vec<DraftTierRule>>>,
}

/// The predicates and port names that rules in force contain.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleTerms {
    pub(super) predicates: Vec<Predicate>,
    /// Named ports in ingress rules.
    pub(super) ingress_names: Vec<(Protocol, String)>,
    /// Named ports in egress rules.
    pub(super) egress_names: Vec<(Protocol, String)>,
    /// The numbers of named ports, by direction.
    pub(super) ids: [NameIds; 2],
}

/// For each term, its first position in the input.
#[derive(Clone, Debug, Default)]
pub(super) struct TermOrigins {
    pub(super) predicates: Vec<FieldOrigin>,
    pub(super) ingress_names: Vec<FieldOrigin>,
    pub(super) egress_names: Vec<FieldOrigin>,
}

impl TermOrigins {
    /// The first positions of the names of a direction.
    pub(super) fn names(&mut self, direction: Direction) -> &mut Vec<FieldOrigin> {
        if direction == Direction::Ingress { &mut self.ingress_names } else { &mut self.egress_names }
    }
}

/// The rules of the policies in force, with the data that only this stage and later changes need.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) rules: RulePredicates,
    pub(super) origins: TermOrigins,
    /// The number of each predicate.
    pub(super) ids: HashMap<Predicate, PredicateId>,
}

/// The rules of a policy: ingress and egress.
pub(super) type PolicyRules = [Option<Box<[DraftRule]>>; 2];

/// The rules of each policy by its number; those of a number without a policy are `None`.
///
/// Generations share the rules of a policy as long as it does not change. Policies with neighbouring numbers share a
/// block, so that a copy of all rules is cheap.
#[derive(Clone, Debug, Default)]
pub(super) struct RulesByPolicy {
    blocks: Vec<Arc<Vec<Option<Arc<PolicyRules>>>>>,
}

impl RulesByPolicy {
    /// The number of policies in a block.
    const BLOCK: usize = 16;

    pub(super) fn get(&self, id: PolicyId) -> Option<&Arc<PolicyRules>> {
        self.blocks.get(id.index() / Self::BLOCK)?.get(id.index() % Self::BLOCK)?.as_ref()
    }

    fn set(&mut self, id: PolicyId, rules: Arc<PolicyRules>) {
        let (block, at) = (id.index() / Self::BLOCK, id.index() % Self::BLOCK);
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, || Arc::new(vec![None; Self::BLOCK]));
        }
        Arc::make_mut(&mut self.blocks[block])[at] = Some(rules);
    }

    fn iter(&self) -> impl Iterator<Item = (PolicyId, &Arc<PolicyRules>)> {
        // All blocks are full.
        let all = (0..).map(PolicyId).zip(self.blocks.iter().flat_map(|block| block.iter()));
        all.filter_map(|(id, rules)| Some((id, rules.as_ref()?)))
    }
}

impl Deref for RulePredicates {
    type Target = RuleTerms;

    fn deref(&self) -> &RuleTerms {
        &self.terms
    }
}

/// A rule of a cluster-wide policy with predicates and names replaced by their numbers.
#[derive(Clone, Debug)]
pub(super) struct DraftTierRule {
    pub(super) action: RuleAction,
    /// `None` if the rule matches nothing.
    pub(super) matched: Option<DraftRule>,
}

impl DraftTierRule {
    /// A rule made of known terms; `None` if a term is not known.
    pub(super) fn of_known(
        rule: &TierRule,
        direction: Direction,
        terms: &RuleTerms,
        ids: &HashMap<Predicate, PredicateId>,
    ) -> Option<Self> {
        let draft = |it: &TierMatch| {
            DraftRule::of_known_terms(it.peers.iter().map(tier_predicate), &it.ports, direction, terms, ids)
        };
        let matched = match &rule.matched {
            Some(matched) => Some(draft(matched)?),
            None => None,
        };
        Some(Self { action: rule.action, matched })
    }
}

/// A rule with predicates and names replaced by their numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftRule {
    /// `None` for every peer.
    pub(super) peers: Option<Vec<PredicateId>>,
    /// `None` for every port and protocol.
    pub(super) ports: Option<DraftPorts>,
}

/// A rule in numbers, as the tables have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleParts {
    /// Any of these has to hold; `None` if the rule applies to every peer.
    pub predicates: Option<Vec<PredicateId>>,
    /// The atoms of its numbered ports; `None` if it allows everything.
    pub atoms: Option<AtomSet>,
    /// Indices into the direction's names in [`Atoms`]: ports with these names are allowed too.
    pub names: Vec<u32>,
}

impl DraftRule {
    /// A rule made of known terms; `None` if a term is not known.
    pub(super) fn of_known(
        rule: &Rule,
        namespace: NamespaceId,
        direction: Direction,
        terms: &RuleTerms,
        ids: &HashMap<Predicate, PredicateId>,
    ) -> Option<Self> {
        let peers = rule.peers.iter().map(|peer| peer_predicate(Some(namespace), peer));
        Self::of_known_terms(peers, &rule.ports, direction, terms, ids)
    }

    fn of_known_terms(
        peers: impl Iterator<Item = Predicate>,
        ports: &[PortRule],
        direction: Direction,
        terms: &RuleTerms,
        ids: &HashMap<Predicate, PredicateId>,
    ) -> Option<Self> {
        let peers = peers.map(|predicate| ids.get(&predicate).copied()).collect::<Option<Vec<_>>>()?;
        let mut drafted = DraftPorts::default();
        for port in ports {
            match DraftPort::of(port) {
                DraftPort::Range(first, last) => drafted.ranges.push((port.protocol, first, last)),
                DraftPort::Named(name) => {
                    drafted.named.push(terms.ids[direction as usize].get(name, port.protocol)?);
                }
            }
        }
        Some(Self::new(peers, (!ports.is_empty()).then_some(drafted)))
    }

    fn new(mut peers: Vec<PredicateId>, ports: Option<DraftPorts>) -> Self {
        // A peer that a rule names twice must not cost twice in every row.
        peers.sort();
        peers.dedup();
        Self { peers: (!peers.is_empty()).then_some(peers), ports }
    }

    pub(super) fn parts(&self, atoms: &Atoms) -> RuleParts {
        let numbered = self.ports.as_ref().map(|ports| {
            let mut set = AtomSet::none(atoms.count());
            let ranges =
                ports.ranges.iter().filter_map(|(protocol, first, last)| atoms.of_range(*protocol, *first, *last));
            ranges.for_each(|of_range| set.add(of_range));
            set
        });
        let names = self.ports.as_ref().map_or_else(Vec::new, |ports| ports.named.clone());
        RuleParts { predicates: self.peers.clone(), atoms: numbered, names }
    }
}

/// The ports of a rule.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftPorts {
    pub(super) ranges: Vec<(Protocol, u16, u16)>,
    /// Indices into the direction's names.
    pub(super) named: Vec<u32>,
}

impl DraftPorts {
    /// Whether the rule allows every port of the protocol.
    pub(super) fn cover(&self, protocol: Protocol) -> bool {
        // The API has no port 0, so `1-65535` is every port that a backend can have.
        self.ranges.iter().any(|(of, first, last)| *of == protocol && *first <= 1 && *last == u16::MAX)
    }
}

impl RulePredicates {
    /// The rules of a policy; `None` if it does not isolate in this direction.
    pub(super) fn of(&self, policy: PolicyId, direction: Direction) -> Option<&[DraftRule]> {
        self.rules.get(policy)?[direction as usize].as_deref()
    }

    /// The rules of all policies.
    pub(super) fn by_policy(&self) -> &RulesByPolicy {
        &self.rules
    }

    /// The rules of a cluster-wide policy.
    pub(super) fn of_tier(&self, policy: TierPolicyId, direction: Direction) -> &[DraftTierRule] {
        self.tiers.get(&(policy, direction)).map_or(&[], Vec::as_slice)
    }

    /// The ingress rules of a cluster-wide policy, without those that match nothing.
    pub(super) fn ingress_of_tier(&self, policy: TierPolicyId) -> impl Iterator<Item = &DraftRule> {
        self.of_tier(policy, Direction::Ingress).iter().filter_map(|rule| rule.matched.as_ref())
    }

    /// The same rules with other numbers of policies, without those for which `number` returns `None`.
    pub(super) fn renumbered(&self, number: impl Fn(PolicyId) -> Option<PolicyId>) -> Self {
        let mut rules = RulesByPolicy::default();
        for (id, of_policy) in self.rules.iter() {
            if let Some(id) = number(id) {
                rules.set(id, Arc::clone(of_policy));
            }
        }
        Self { terms: Arc::clone(&self.terms), rules, tiers: Arc::clone(&self.tiers) }
    }

    /// Replaces the rules of a policy, or adds them.
    pub(super) fn replace(&mut self, policy: PolicyId, rules: PolicyRules) {
        self.rules.set(policy, Arc::new(rules));
    }

    /// The same rules with other numbers of cluster-wide policies, without those for which `number` returns `None`.
    pub(super) fn with_renumbered_tiers(&self, number: impl Fn(TierPolicyId) -> Option<TierPolicyId>) -> Self {
        let tiers =
            self.tiers.iter().filter_map(|((id, direction), rules)| Some(((number(*id)?, *direction), rules.clone())));
        Self { terms: Arc::clone(&self.terms), rules: self.rules.clone(), tiers: Arc::new(tiers.collect()) }
    }

    /// Adds the rules of a cluster-wide policy in a direction.
    pub(super) fn add_tier(&mut self, id: TierPolicyId, direction: Direction, rules: Vec<DraftTierRule>) {
        Arc::make_mut(&mut self.tiers).insert((id, direction), rules);
    }

    /// Takes away the rules of a cluster-wide policy.
    pub(super) fn remove_tier(&mut self, id: TierPolicyId) {
        Arc::make_mut(&mut self.tiers).retain(|(of, _), _| *of != id);
    }

    /// Adds a predicate.
    pub(super) fn add_predicate(&mut self, predicate: Predicate) -> PredicateId {
        let terms = Arc::make_mut(&mut self.terms);
        terms.predicates.push(predicate);
        PredicateId(terms.predicates.len() as u32 - 1)
    }

    /// Gives a number another predicate.
    pub(super) fn set_predicate(&mut self, id: PredicateId, predicate: Predicate) {
        Arc::make_mut(&mut self.terms).predicates[id.index()] = predicate;
    }

    /// Adds the name of a port. Returns its number.
    pub(super) fn add_name(&mut self, direction: Direction, name: &str, protocol: Protocol) -> u32 {
        let RuleTerms { ingress_names, egress_names, ids, .. } = Arc::make_mut(&mut self.terms);
        let names = if direction == Direction::Ingress { ingress_names } else { egress_names };
        let next = names.len() as u32;
        let number = ids[direction as usize].number(name, protocol, next);
        if number == next {
            names.push((protocol, name.to_owned()));
        }
        number
    }

    /// Every rule, in no order, with its direction.
    pub(super) fn all(&self) -> impl Iterator<Item = (Direction, &DraftRule)> {
        let of_policies = self.rules.iter().flat_map(|(_, of_policy)| Direction::ALL.into_iter().zip(&**of_policy));
        let of_policies = of_policies.flat_map(|(direction, rules)| {
            rules.iter().flat_map(|rules| rules.iter()).map(move |rule| (direction, rule))
        });
        let of_tiers = self.tiers.iter().flat_map(|((_, direction), rules)| rules.iter().map(|it| (*direction, it)));
        of_policies.chain(of_tiers.filter_map(|(direction, rule)| Some((direction, rule.matched.as_ref()?))))
    }

    /// The predicate of each list.
    pub(super) fn of_lists(&self) -> BTreeMap<ListId, PredicateId> {
        let lists = self.predicates.iter().enumerate().filter_map(|(index, predicate)| match predicate {
            Predicate::List(list) => Some((*list, PredicateId(index as u32))),
            _ => None,
        });
        lists.collect()
    }
}

pub(super) fn collect(cluster: &Cluster, draft: &SubjectDraft) -> Collected {
    let mut collector = Collector::default();
    let (mut rules, mut tiers) = (RulesByPolicy::default(), HashMap::new());
    for id in &draft.policies {
        let policy = cluster.policy(*id);
        let mut in_numbers = PolicyRules::default();
        for direction in Direction::ALL {
            let Some(of_policy) = policy.rules(direction) else { continue };
            let drafted = of_policy.iter().enumerate().map(|(rule, of_rule)| {
                let place = RulePlace::of_policy(policy, direction, rule);
                collector.rule(place, of_rule)
            });
            // A direction that the policy does not name has no entry; a direction without rules has an empty one. Only
            // the latter isolates.
            in_numbers[direction as usize] = Some(drafted.collect());
        }
        rules.set(*id, Arc::new(in_numbers));
    }
    for id in &draft.tiers {
        let policy = cluster.tier_policy(*id);
        for direction in Direction::ALL {
            let drafted = policy.rules(direction).iter().enumerate().map(|(rule, of_rule)| {
                let place = RulePlace::of_tier(policy, direction, rule, of_rule);
                let matched = of_rule.matched.as_ref().map(|it| collector.tier_match(place, it));
                DraftTierRule { action: of_rule.action, matched }
            });
            let drafted = drafted.collect();
            tiers.insert((*id, direction), drafted);
        }
    }
    for list in &draft.lists {
        let from = || FieldOrigin::new(cluster.lists[list.index()].object, FieldPath::root());
        collector.predicate(Predicate::List(*list), &from);
    }
    let Collector { terms, origins, ids } = collector;
    Collected { rules: RulePredicates { terms: terms.into(), rules, tiers: tiers.into() }, origins, ids }
}

/// The predicate of a peer of a cluster-wide policy.
pub(super) fn tier_predicate(peer: &TierPeer) -> Predicate {
    match peer {
        TierPeer::Pods { namespaces, pods } => {
            Predicate::Pods { own: None, namespaces: Some(*namespaces), pods: *pods }
        }
        TierPeer::Networks(networks) => {
            // Networks have no order, so peers that differ only in their order are one predicate.
            let mut networks = networks.clone();
            networks.sort();
            networks.dedup();
            Predicate::Networks(networks)
        }
        TierPeer::Nodes(nodes) => Predicate::Nodes(*nodes),
    }
}

#[derive(Default)]
struct Collector {
    terms: RuleTerms,
    origins: TermOrigins,
    ids: HashMap<Predicate, PredicateId>,
}

impl Collector {
    fn rule(&mut self, place: RulePlace<'_>, rule: &Rule) -> DraftRule {
        // Spec: "If this field is empty or missing, this rule matches all sources".
        // https://github.com/kubernetes/kubernetes/blob/45d0fddaf1f2/staging/src/k8s.io/api/networking/v1/types.go#L121
        let peers = rule.peers.iter().enumerate().map(|(index, peer)| self.peer(place, index, peer)).collect();
        self.draft(place, peers, &rule.ports)
    }

    fn tier_match(&mut self, place: RulePlace<'_>, matched: &TierMatch) -> DraftRule {
        let peers = matched.peers.iter().enumerate();
        let peers = peers.map(|(index, peer)| self.predicate(tier_predicate(peer), &|| place.peer(index))).collect();
        self.draft(place, peers, &matched.ports)
    }

    fn draft(&mut self, place: RulePlace<'_>, peers: Vec<PredicateId>, ports: &[PortRule]) -> DraftRule {
        let ports = (!ports.is_empty()).then(|| self.ports(place, ports));
        DraftRule::new(peers, ports)
    }

    fn peer(&mut self, place: RulePlace<'_>, index: usize, peer: &Peer) -> PredicateId {
        self.predicate(peer_predicate(place.namespace, peer), &|| place.peer(index))
    }

    fn predicate(&mut self, predicate: Predicate, from: &dyn Fn() -> FieldOrigin) -> PredicateId {
        if let Some(id) = self.ids.get(&predicate) {
            return *id;
        }
        let id = PredicateId(self.terms.predicates.len() as u32);
        self.terms.predicates.push(predicate.clone());
        // `from` is called for new predicates only: an origin is a path of strings, and most peers occur in many rules.
        self.origins.predicates.push(from());
        self.ids.insert(predicate, id);
        id
    }

    fn ports(&mut self, place: RulePlace<'_>, ports: &[PortRule]) -> DraftPorts {
        let RuleTerms { ingress_names, egress_names, ids, .. } = &mut self.terms;
        let (names, from) = match place.direction {
            Direction::Ingress => (ingress_names, &mut self.origins.ingress_names),
            Direction::Egress => (egress_names, &mut self.origins.egress_names),
        };
        let mut drafted = DraftPorts::default();
        for (index, port) in ports.iter().enumerate() {
            match DraftPort::of(port) {
                DraftPort::Range(first, last) => drafted.ranges.push((port.protocol, first, last)),
                DraftPort::Named(name) => {
                    let next = names.len() as u32;
                    let number = ids[place.direction as usize].number(name, port.protocol, next);
                    // A number for each (name, protocol): `http` over TCP and over UDP are two names, because a pod can
                    // have either.
                    drafted.named.push(number);
                    if number == next {
                        names.push((port.protocol, name.to_owned()));
                        from.push(place.port(index));
                    }
                }
            }
        }
        drafted
    }
}

/// A port of a rule.
enum DraftPort<'r> {
    Range(u16, u16),
    Named(&'r str),
}

impl<'r> DraftPort<'r> {
    fn of(port: &'r PortRule) -> Self {
        match &port.port {
            // The same range as in `ports::specs`, otherwise `Atoms::of_range` would not find it.
            PortMatch::Any => Self::Range(0, u16::MAX),
            PortMatch::Range(first, last) => Self::Range(*first, *last),
            PortMatch::Named(name) => Self::Named(name),
        }
    }
}

/// The predicate of a NetworkPolicy's peer.
pub(super) fn peer_predicate(namespace: Option<NamespaceId>, peer: &Peer) -> Predicate {
    match peer {
        // Spec: "Otherwise it selects the pods matching podSelector in the policy's own namespace." So the namespace
        // is part of the predicate: the same selector of two tenants is two predicates.
        Peer::Pods { namespaces: None, pods } => Predicate::Pods { own: namespace, namespaces: None, pods: *pods },
        Peer::Pods { namespaces, pods } => Predicate::Pods { own: None, namespaces: *namespaces, pods: *pods },
        Peer::Block { cidr, except } => {
            let mut except = except.clone();
            // Exceptions have no order, so blocks that differ only in their order are one predicate.
            except.sort();
            except.dedup();
            Predicate::Block { cidr: *cidr, except }
        }
    }
}
