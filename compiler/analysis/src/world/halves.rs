//! Diagrams of products, and of the half of a verdict that one direction's policies decide.

use std::collections::HashMap;

use super::WorldError;
use super::address_classes::AddressClasses;
use super::diagram::{Diagram, Diagrams};
use super::groups::{EndSet, FlowProduct, PodSet, PortSet, TrafficSet, both, named_namespace, negated, not_named};
use super::namespaces::{NamespaceClass, classes, name_matches};
use super::variables::{FAMILY, Labelled, PORT, PROTOCOL, Role, Variables};
use crate::addresses::AddressSet;
use weir_model::labels::matches;
use weir_model::{
    Cluster, Direction, Icmp, IpBlockPods, ListAction, ListId, Peer, PolicyId, PortMatch, PortRule, Protocol, Rule,
    RuleAction, SelectorId, Tier, TierPeer, TierPolicyId, TierRuleId,
};
use weir_objects::address::Family;
use weir_objects::k8s::{LabelSelector, NAMESPACE_NAME_LABEL};

/// A class of ends: pods of a namespace class, or addresses outside.
pub(super) type EndClass = Option<usize>;

/// The classes of both ends of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassPair {
    pub(super) source: EndClass,
    pub(super) destination: EndClass,
}

impl ClassPair {
    /// The pair of a direction's subject and the other end.
    pub(super) fn of(direction: Direction, subject: EndClass, remote: EndClass) -> Self {
        match direction {
            Direction::Ingress => Self { source: remote, destination: subject },
            Direction::Egress => Self { source: subject, destination: remote },
        }
    }

    pub(super) fn class(self, role: Role) -> EndClass {
        match role {
            Role::Source => self.source,
            Role::Destination => self.destination,
        }
    }

    /// The class whose pods a direction's policies select.
    pub(super) fn subject(self, direction: Direction) -> EndClass {
        self.class(subject_role(direction))
    }
}

/// The role of the end that a direction's policies select.
pub(super) fn subject_role(direction: Direction) -> Role {
    match direction {
        Direction::Ingress => Role::Destination,
        Direction::Egress => Role::Source,
    }
}

/// The other direction.
pub(super) fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Ingress => Direction::Egress,
        Direction::Egress => Direction::Ingress,
    }
}

/// A product that a list denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeniedProduct {
    pub(super) list: ListId,
    pub(super) flows: FlowProduct,
}

/// The policies of one side in the form in which they are compared.
pub(super) struct SidePolicies {
    /// The enforced policies of each namespace class, by direction: those that isolate in it.
    pub(super) isolating: [Vec<Vec<PolicyId>>; 2],
    /// The products that lists deny, by direction.
    pub(super) denied: [Vec<DeniedProduct>; 2],
    /// The rules of cluster-wide policies by direction, in the order of evaluation.
    pub(super) tiers: [Vec<TierProduct>; 2],
}

/// The product that a rule of a cluster-wide policy matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TierProduct {
    pub(super) tier: Tier,
    pub(super) rule: TierRuleId,
    pub(super) action: RuleAction,
    pub(super) flows: FlowProduct,
}

/// Both sides, and all diagrams about them. Sides have the numbers 0 (base) and 1 (head).
pub(super) struct PossibleWorld<'c> {
    pub(super) clusters: [&'c Cluster; 2],
    pub(super) variables: Variables,
    pub(super) classes: Vec<NamespaceClass>,
    pub(super) diagrams: Diagrams,
    pub(super) sides: [SidePolicies; 2],
    /// Names of the namespaces whose labels the sides declare differently.
    disputed: Vec<String>,
    halves: HashMap<(usize, Direction, ClassPair), Diagram>,
    pub(super) address_classes: AddressClasses,
    /// Diagrams of [`Self::addresses`].
    address_diagrams: HashMap<(Role, AddressSet), Diagram>,
}

impl<'c> PossibleWorld<'c> {
    pub(super) fn new(clusters: [&'c Cluster; 2], most: usize) -> Self {
        let classes = classes(clusters);
        let disputed = classes.iter().filter(|it| it.is_disputed()).filter_map(|it| it.name());
        let disputed = disputed.map(str::to_owned).collect();
        let by_name: HashMap<&str, usize> =
            classes.iter().enumerate().filter_map(|(index, it)| Some((it.name()?, index))).collect();
        let isolating = |cluster: &Cluster, direction: Direction| {
            let mut of_class = vec![Vec::new(); by_name.len()];
            for (index, policy) in cluster.policies.iter().enumerate() {
                let class = by_name[cluster.namespaces[policy.namespace.index()].name.as_str()];
                of_class[class].extend(policy.rules(direction).map(|_| PolicyId(index as u32)));
            }
            of_class
        };
        let sides = clusters.map(|cluster| SidePolicies {
            isolating: [Direction::Ingress, Direction::Egress].map(|it| isolating(cluster, it)),
            denied: Default::default(),
            tiers: Default::default(),
        });
        let variables = Variables::of(clusters);
        let mut world = Self {
            clusters,
            variables,
            classes,
            diagrams: Diagrams::new(most),
            sides,
            disputed,
            halves: HashMap::new(),
            address_classes: AddressClasses::of(clusters),
            address_diagrams: HashMap::new(),
        };
        for side in 0..2 {
            world.sides[side].denied =
                [Direction::Ingress, Direction::Egress].map(|direction| world.denied_products(side, direction));
            world.sides[side].tiers =
                [Direction::Ingress, Direction::Egress].map(|direction| world.tier_products(side, direction));
        }
        world
    }

    /// Forgets all diagrams. No diagram from before may be used afterwards.
    pub(super) fn forget(&mut self, diagrams: Diagrams) {
        self.diagrams = diagrams;
        self.halves.clear();
        self.address_diagrams.clear();
    }

    /// Whether both ends are in one namespace of unknown labels: the destination's namespace labels are the source's.
    pub(super) fn shares_labels(&self, pair: ClassPair) -> bool {
        let is_mentioned = |class: usize| matches!(self.classes[class], NamespaceClass::Mentioned(_));
        pair.source == pair.destination && pair.source.is_some_and(is_mentioned)
    }

    /// The policies that isolate pods of a class.
    pub(super) fn isolating(&self, side: usize, direction: Direction, class: EndClass) -> &[PolicyId] {
        let of_class = &self.sides[side].isolating[direction as usize];
        class.and_then(|class| of_class.get(class)).map_or(&[], Vec::as_slice)
    }

    /// The pods that a policy selects.
    pub(super) fn subjects(&self, side: usize, policy: PolicyId) -> EndSet {
        EndSet::pods(PodSet::selected_by(self.clusters[side], policy))
    }

    /// The other ends that a rule's peer means.
    pub(super) fn peer(&self, side: usize, own: PolicyId, peer: &Peer) -> EndSet {
        let cluster = self.clusters[side];
        match peer {
            Peer::Pods { namespaces, pods } => {
                let pods = cluster.labels.selector(*pods);
                let namespaces = match namespaces {
                    Some(selector) => self.namespaces(side, cluster.labels.selector(*selector)),
                    None => {
                        let own = cluster.policy(own).namespace;
                        vec![named_namespace(&cluster.namespaces[own.index()].name)]
                    }
                };
                let set = |namespaces| PodSet { namespaces, pods: pods.clone(), addresses: None };
                EndSet { pods: namespaces.into_iter().map(set).collect(), ranges: AddressSet::default() }
            }
            Peer::Block { cidr, except } => {
                let ranges = AddressSet::of_block(*cidr, except);
                match cluster.assume.ipblock_pods {
                    IpBlockPods::Match if !ranges.is_empty() => EndSet::at(ranges),
                    IpBlockPods::Match | IpBlockPods::Ignore => EndSet { pods: Vec::new(), ranges },
                }
            }
        }
    }

    /// The namespaces that a selector matches on one side. Namespaces about whose labels the sides disagree are named,
    /// because the selector would mean something else on the other side.
    fn namespaces(&self, side: usize, selector: &LabelSelector) -> Vec<LabelSelector> {
        if self.disputed.is_empty() {
            return vec![selector.clone()];
        }
        let matching = self.classes.iter().filter_map(|class| match class {
            NamespaceClass::Declared { name, labels } if class.is_disputed() => {
                matches(selector, &labels[side]).then(|| named_namespace(name))
            }
            _ => None,
        });
        [both(selector, &not_named(&self.disputed))].into_iter().chain(matching).collect()
    }

    /// The products of the rules of cluster-wide policies, in the order of evaluation.
    fn tier_products(&self, side: usize, direction: Direction) -> Vec<TierProduct> {
        let cluster = self.clusters[side];
        let mut products = Vec::new();
        for tier in Tier::ALL {
            let policies = (0..).map(TierPolicyId).zip(&cluster.tiers);
            for (id, policy) in policies.filter(|(_, it)| it.tier == tier && !it.is_audit) {
                let subjects = self.pods(side, policy.namespaces, policy.pods);
                for (index, rule) in policy.rules(direction).iter().enumerate() {
                    let Some(matched) = &rule.matched else { continue };
                    let mut remote = EndSet::default();
                    match matched.peers[..] {
                        [] => remote = EndSet::everything(),
                        _ => matched.peers.iter().for_each(|it| remote.extend(self.tier_peer(side, it))),
                    }
                    remote.pods.sort_unstable();
                    let traffic = self.ports(side, &matched.ports);
                    products.push(TierProduct {
                        tier,
                        rule: TierRuleId { policy: id, direction, rule: index as u32 },
                        action: rule.action,
                        flows: product(direction, subjects.clone(), remote, traffic),
                    });
                }
            }
        }
        products
    }

    /// Pods by the labels of their namespaces and their own.
    fn pods(&self, side: usize, namespaces: SelectorId, pods: SelectorId) -> EndSet {
        let labels = &self.clusters[side].labels;
        let pods = labels.selector(pods);
        let set = |namespaces| PodSet { namespaces, pods: pods.clone(), addresses: None };
        let sets = self.namespaces(side, labels.selector(namespaces)).into_iter().map(set).collect();
        EndSet { pods: sets, ranges: AddressSet::default() }
    }

    fn tier_peer(&self, side: usize, peer: &TierPeer) -> EndSet {
        match peer {
            TierPeer::Pods { namespaces, pods } => self.pods(side, *namespaces, *pods),
            // Networks match pods too. The assumption about pods in an `ipBlock` does not apply to them.
            TierPeer::Networks(networks) => EndSet::at(AddressSet::of_networks(networks)),
            // A possible pod is no node. The nodes are those of the input.
            TierPeer::Nodes(nodes) => {
                EndSet { pods: Vec::new(), ranges: AddressSet::of_nodes(self.clusters[side], *nodes) }
            }
        }
    }

    /// The traffic of a rule.
    pub(super) fn traffic(&self, side: usize, rule: &Rule) -> TrafficSet {
        self.ports(side, &rule.ports)
    }

    fn ports(&self, side: usize, ports: &[PortRule]) -> TrafficSet {
        if ports.is_empty() {
            return self.all_traffic(side);
        }
        let ports = ports.iter().map(|port| {
            let (first, last, names) = match &port.port {
                PortMatch::Any => (1, u16::MAX, Vec::new()),
                PortMatch::Range(first, last) => (*first, *last, Vec::new()),
                PortMatch::Named(name) => (1, u16::MAX, vec![name.clone()]),
            };
            PortSet { protocol: port.protocol, first, last, names }
        });
        TrafficSet { portless: false, ports: ports.collect() }
    }

    /// All traffic that policies decide about.
    pub(super) fn all_traffic(&self, side: usize) -> TrafficSet {
        let portless = self.clusters[side].assume.icmp == Icmp::Policy;
        TrafficSet { portless, ..TrafficSet::everything() }
    }

    /// All traffic of one peer of a rule, or of all of its peers. The order of the ends follows the direction.
    pub(super) fn rule_products(&self, side: usize, direction: Direction, policy: PolicyId) -> Vec<FlowProduct> {
        let rules = self.clusters[side].policy(policy).rules(direction).unwrap_or_default();
        let subjects = self.subjects(side, policy);
        let product = |rule: &Rule| {
            product(direction, subjects.clone(), self.peers(side, policy, rule), self.traffic(side, rule))
        };
        rules.iter().map(product).collect()
    }

    /// The other ends of a rule.
    pub(super) fn peers(&self, side: usize, policy: PolicyId, rule: &Rule) -> EndSet {
        if rule.peers.is_empty() {
            return EndSet::everything();
        }
        let mut peers = EndSet::default();
        rule.peers.iter().for_each(|it| peers.extend(self.peer(side, policy, it)));
        peers
    }

    /// The products that lists deny: the first list that contains an address and applies to a pod decides.
    fn denied_products(&self, side: usize, direction: Direction) -> Vec<DeniedProduct> {
        let cluster = self.clusters[side];
        let mut denied = Vec::new();
        // Pods and addresses that earlier lists allow. A pod that only some of these lists apply to is in a product of
        // its own, so an exception within a product is never needed.
        let mut allowed: Vec<(Vec<PodSet>, Vec<PodSet>, AddressSet)> = Vec::new();
        for (index, list) in cluster.lists.iter().enumerate() {
            let applies = match direction {
                Direction::Ingress => list.ingress,
                Direction::Egress => list.egress,
            };
            if !applies {
                continue;
            }
            let ranges = AddressSet::of_list(list);
            let (namespaces, pods) =
                (cluster.labels.selector(list.namespaces), cluster.labels.selector(list.pods).clone());
            let set = |namespaces| PodSet { namespaces, pods: pods.clone(), addresses: None };
            let sets: Vec<PodSet> = self.namespaces(side, namespaces).into_iter().map(set).collect();
            if list.action == ListAction::Allow {
                // Negated first: disputed namespaces are then named by the labels that they have on this side.
                let elsewhere = negated(namespaces).into_iter().flat_map(|it| self.namespaces(side, &it));
                let elsewhere = elsewhere.map(|namespaces| PodSet { namespaces, ..PodSet::default() });
                let others = negated(&pods).into_iter().map(|pods| PodSet { pods, ..PodSet::default() });
                allowed.push((sets, elsewhere.chain(others).collect(), ranges));
                continue;
            }
            for set in sets {
                let mut pieces = vec![(set, ranges.clone())];
                for (exempt, not_exempt, addresses) in &allowed {
                    let split = |(set, ranges): (PodSet, AddressSet)| {
                        let rest = ranges.without(addresses);
                        let inside = exempt.iter().filter_map(|it| set.and(it)).map(|it| (it, rest.clone()));
                        let outside = not_exempt.iter().filter_map(|it| set.and(it)).map(|it| (it, ranges.clone()));
                        inside.chain(outside).collect::<Vec<_>>()
                    };
                    pieces = pieces.into_iter().flat_map(split).filter(|(_, ranges)| !ranges.is_empty()).collect();
                }
                denied.extend(pieces.into_iter().map(|(set, ranges)| {
                    let traffic = self.all_traffic(side);
                    let flows = product(direction, EndSet::pods(set), EndSet::at(ranges), traffic);
                    DeniedProduct { list: ListId(index as u32), flows }
                }));
            }
        }
        denied
    }

    /// The flows of a product between two classes of ends.
    pub(super) fn product(&mut self, product: &FlowProduct, pair: ClassPair) -> Result<Diagram, WorldError> {
        // The ends first: most products contain no pod of most namespaces.
        let destination = self.ends(&product.destination, Role::Destination, pair)?;
        if destination.is_empty() {
            return Ok(destination);
        }
        let source = self.ends(&product.source, Role::Source, pair)?;
        if source.is_empty() {
            return Ok(source);
        }
        let traffic = self.traffic_diagram(&product.traffic, pair)?;
        let ends = self.diagrams.and(source, destination)?;
        self.diagrams.and(traffic, ends)
    }

    /// The union of products.
    pub(super) fn union<'p>(
        &mut self,
        products: impl IntoIterator<Item = &'p FlowProduct>,
        pair: ClassPair,
    ) -> Result<Diagram, WorldError> {
        let mut all = Diagram::NONE;
        for product in products {
            let one = self.product(product, pair)?;
            all = self.diagrams.or(all, one)?;
        }
        Ok(all)
    }

    /// The flows between two classes with this end in the set.
    pub(super) fn ends(&mut self, set: &EndSet, role: Role, pair: ClassPair) -> Result<Diagram, WorldError> {
        if pair.class(role).is_none() {
            return self.addresses(&set.ranges, role);
        }
        let mut all = Diagram::NONE;
        for pods in &set.pods {
            let namespaces = self.namespace_labels(&pods.namespaces, role, pair)?;
            if namespaces.is_empty() {
                continue;
            }
            let labels = self.pod_labels(&pods.pods, role)?;
            let mut one = self.diagrams.and(namespaces, labels)?;
            if let Some(ranges) = &pods.addresses {
                let addresses = self.addresses(ranges, role)?;
                one = self.diagrams.and(one, addresses)?;
            }
            all = self.diagrams.or(all, one)?;
        }
        Ok(all)
    }

    fn pod_labels(&mut self, selector: &LabelSelector, role: Role) -> Result<Diagram, WorldError> {
        let mut all = Diagram::ALL;
        for requirement in selector.requirements() {
            let accepted = self.variables.accepted(Labelled::Pod, &requirement);
            let Some(var) = self.variables.label(role, Labelled::Pod, &requirement.key) else { continue };
            let one = self.diagrams.within(var, &accepted)?;
            all = self.diagrams.and(all, one)?;
        }
        Ok(all)
    }

    /// The flows for which a namespace selector matches the end's class: all, none, or those with matching labels.
    pub(super) fn namespace_labels(
        &mut self,
        selector: &LabelSelector,
        role: Role,
        pair: ClassPair,
    ) -> Result<Diagram, WorldError> {
        let Some(class) = pair.class(role) else { return Ok(Diagram::NONE) };
        let role = if self.shares_labels(pair) { Role::Source } else { role };
        let mut all = Diagram::ALL;
        for requirement in selector.requirements() {
            let known = match &self.classes[class] {
                // `namespaces` has replaced selectors that the sides answer differently, except for names.
                NamespaceClass::Declared { labels, .. } => {
                    let one =
                        LabelSelector { match_expressions: vec![requirement.clone()], ..LabelSelector::default() };
                    Some(matches(&one, &labels[0]))
                }
                of if requirement.key == NAMESPACE_NAME_LABEL => {
                    Some(name_matches(requirement.operator, &requirement.values, of.name()))
                }
                _ => None,
            };
            let one = match known {
                Some(true) => continue,
                Some(false) => return Ok(Diagram::NONE),
                None => {
                    let accepted = self.variables.accepted(Labelled::Namespace, &requirement);
                    let Some(var) = self.variables.label(role, Labelled::Namespace, &requirement.key) else { continue };
                    self.diagrams.within(var, &accepted)?
                }
            };
            all = self.diagrams.and(all, one)?;
        }
        Ok(all)
    }

    /// The flows with this end's address in a set, which is a union of the classes of addresses.
    pub(super) fn addresses(&mut self, set: &AddressSet, role: Role) -> Result<Diagram, WorldError> {
        let key = (role, set.clone());
        if let Some(known) = self.address_diagrams.get(&key) {
            return Ok(*known);
        }
        let var = self.variables.address(role);
        let [v4, v6] = [Family::V4, Family::V6].map(|family| self.address_classes.within(family, set));
        let v4 = self.diagrams.within(var, &v4)?;
        let v6 = self.diagrams.within(var, &v6)?;
        let all = self.diagrams.node(FAMILY, [(Family::V4 as u128, v4), (Family::V6 as u128, v6)])?;
        self.address_diagrams.insert(key, all);
        Ok(all)
    }

    /// The flows of a set in one family.
    pub(super) fn within_family(&mut self, flows: Diagram, family: Family) -> Result<Diagram, WorldError> {
        let number = family as u128;
        let last = if family == Family::V4 { number } else { u128::MAX };
        let of_family = self.diagrams.within(FAMILY, &[(number, last)])?;
        self.diagrams.and(flows, of_family)
    }

    fn traffic_diagram(&mut self, traffic: &TrafficSet, pair: ClassPair) -> Result<Diagram, WorldError> {
        let mut all = match traffic.portless {
            true => self.diagrams.within(PROTOCOL, &[(0, 0)])?,
            false => Diagram::NONE,
        };
        for ports in &traffic.ports {
            let mut one = self.diagrams.within(PORT, &[(ports.first.into(), ports.last.into())])?;
            for name in &ports.names {
                // An address outside gives no names to its ports.
                let var = self.variables.port_name(name).filter(|_| pair.destination.is_some());
                let named = match var {
                    Some(var) => self.diagrams.within(var, &[(1, u128::MAX)])?,
                    None => Diagram::NONE,
                };
                one = self.diagrams.and(one, named)?;
            }
            let number = protocol_number(ports.protocol);
            let last = if ports.protocol == Protocol::Sctp { u128::MAX } else { number };
            let protocol = self.diagrams.within(PROTOCOL, &[(number, last)])?;
            let one = self.diagrams.and(protocol, one)?;
            all = self.diagrams.or(all, one)?;
        }
        Ok(all)
    }

    /// The pods of the subject's class that policies isolate.
    pub(super) fn isolated(
        &mut self,
        side: usize,
        direction: Direction,
        pair: ClassPair,
    ) -> Result<Diagram, WorldError> {
        let policies = self.isolating(side, direction, pair.subject(direction)).to_vec();
        let mut all = Diagram::NONE;
        for policy in policies {
            let subjects = self.subjects(side, policy);
            let one = self.ends(&subjects, subject_role(direction), pair)?;
            all = self.diagrams.or(all, one)?;
        }
        Ok(all)
    }

    /// The flows that a direction's rules allow, whether or not policies isolate the pod.
    pub(super) fn ruled(&mut self, side: usize, direction: Direction, pair: ClassPair) -> Result<Diagram, WorldError> {
        let policies = self.isolating(side, direction, pair.subject(direction)).to_vec();
        let products: Vec<FlowProduct> =
            policies.into_iter().flat_map(|policy| self.rule_products(side, direction, policy)).collect();
        self.union(&products, pair)
    }

    /// The flows that lists deny in a direction.
    pub(super) fn denied(&mut self, side: usize, direction: Direction, pair: ClassPair) -> Result<Diagram, WorldError> {
        let products: Vec<FlowProduct> =
            self.sides[side].denied[direction as usize].iter().map(|it| it.flows.clone()).collect();
        self.union(&products, pair)
    }

    /// The flows that a direction allows: all of them if its subject is outside.
    pub(super) fn half(&mut self, side: usize, direction: Direction, pair: ClassPair) -> Result<Diagram, WorldError> {
        if pair.subject(direction).is_none() {
            return Ok(Diagram::ALL);
        }
        if let Some(known) = self.halves.get(&(side, direction, pair)) {
            return Ok(*known);
        }
        let allowed = self.without_lists(side, direction, pair)?;
        let denied = self.denied(side, direction, pair)?;
        let half = self.diagrams.and_not(allowed, denied)?;
        self.halves.insert((side, direction, pair), half);
        Ok(half)
    }

    /// The flows that policies of all tiers allow in a direction, whatever lists say.
    pub(super) fn without_lists(
        &mut self,
        side: usize,
        direction: Direction,
        pair: ClassPair,
    ) -> Result<Diagram, WorldError> {
        let isolated = self.isolated(side, direction, pair)?;
        let ruled = self.ruled(side, direction, pair)?;
        let baseline = self.fold_tier(side, Tier::Baseline, direction, pair, Diagram::ALL)?;
        let open = self.diagrams.and_not(baseline, isolated)?;
        let below = self.diagrams.or(open, ruled)?;
        let mut allowed = self.fold_tier(side, Tier::Admin, direction, pair, below)?;
        if self.clusters[side].assume.icmp == Icmp::Allow {
            let portless = self.diagrams.within(PROTOCOL, &[(0, 0)])?;
            allowed = self.diagrams.or(allowed, portless)?;
        }
        Ok(allowed)
    }
}

impl PossibleWorld<'_> {
    /// Applies a tier to the flows that the later tiers allow: the rules in reverse order, so that the first one that matches
    /// decides.
    fn fold_tier(
        &mut self,
        side: usize,
        tier: Tier,
        direction: Direction,
        pair: ClassPair,
        below: Diagram,
    ) -> Result<Diagram, WorldError> {
        let mut allowed = below;
        for index in (0..self.sides[side].tiers[direction as usize].len()).rev() {
            let rule = &self.sides[side].tiers[direction as usize][index];
            if rule.tier != tier {
                continue;
            }
            let (action, flows) = (rule.action, rule.flows.clone());
            let matched = self.product(&flows, pair)?;
            if matched.is_empty() {
                continue;
            }
            allowed = match action {
                RuleAction::Accept => self.diagrams.or(allowed, matched)?,
                RuleAction::Deny => self.diagrams.and_not(allowed, matched)?,
                RuleAction::Pass => {
                    let others = self.diagrams.and_not(allowed, matched)?;
                    let passed = self.diagrams.and(below, matched)?;
                    self.diagrams.or(others, passed)?
                }
            };
        }
        Ok(allowed)
    }
}

/// The product of a direction's subjects and the other ends.
pub(super) fn product(direction: Direction, subjects: EndSet, remote: EndSet, traffic: TrafficSet) -> FlowProduct {
    match direction {
        Direction::Ingress => FlowProduct { source: remote, destination: subjects, traffic },
        Direction::Egress => FlowProduct { source: subjects, destination: remote, traffic },
    }
}

fn protocol_number(protocol: Protocol) -> u128 {
    match protocol {
        Protocol::Tcp => 1,
        Protocol::Udp => 2,
        Protocol::Sctp => 3,
    }
}
