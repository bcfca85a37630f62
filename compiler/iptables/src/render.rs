//! A cluster → iptables-save and `ipset save` text.
//!
//! Problem: the text must have the same meaning as the policies, be short enough to read, and let the walk name every
//! rule that allows, not only the first.
//! Strategy:
//!
//! ```text
//! FORWARD ─▶ WEIR-EGRESS ─goto by source address──────▶ WEIR-PE-… (a pod) ─▶ WEIR-LE-… lists, in order
//!         └▶ WEIR-INGRESS ─goto by destination address▶ WEIR-PI-…         ├▶ WEIR-AE-… cluster-wide policies (tiers.rs)
//!                                                                         ├▶ WEIR-NE-… one chain a policy
//!                                                                         │      └▶ WEIR-RE-… ports of one rule
//!                                                                         └▶ DROP if isolated and no mark
//! INPUT ───▶ WEIR-EGRESS, only if cluster-wide policies judge packets from a pod to its own node
//! ```
//!
//! A packet is allowed by returning from the pod's chain, so that a packet between two pods goes through both stages. A
//! rule that allows sets a mark, and the remaining rules are still evaluated; the end of the pod's chain tests the
//! mark. A named port is a set of (pod, number), always matched against the destination, because every pod has its own
//! number.
//! Invariants: the same cluster gives the same text; nothing of the cluster is omitted without notice (endpoints
//! without addresses and service addresses, which these tables never see, are refused by
//! [`super::IptablesEngine::judge`]).

mod names;
mod sets;
mod tiers;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use names::ChainNames;
pub(super) use names::Meaning;
use sets::{NamespaceScope, SetTexts, protocol_name};

use super::facts::ClusterFacts;
use super::parse::MAX_MULTIPORT;
use weir_model::eval::RuleId;
use weir_model::{
    Cluster, Direction, EndpointId, Icmp, IpBlockPods, ListAction, ListId, Peer, PolicyId, PortMatch, PortRule,
    Protocol, Rule, Tier,
};
use weir_objects::address::{Family, Prefix};

/// The mark bit that is set once a rule has allowed the packet.
const ALLOWED: &str = "0x1/0x1";

/// Text for `iptables-restore`, `ip6tables-restore` and `ipset restore`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendering {
    /// iptables-save text.
    pub v4: String,
    /// ip6tables-save text.
    pub v6: String,
    /// `ipset save` text, for both.
    pub sets: String,
    /// The meaning of each comment.
    pub(super) meanings: BTreeMap<String, Meaning>,
}

/// Renders a cluster. All pods that have addresses are local.
pub fn render(cluster: &Cluster) -> Rendering {
    render_facts(ClusterFacts::new(cluster)).0
}

/// Like [`render`], but takes the facts and returns them for reuse.
pub(super) fn render_facts(facts: ClusterFacts<'_>) -> (Rendering, ClusterFacts<'_>) {
    let mut renderer = Renderer { facts, names: ChainNames::default(), sets: SetTexts::default() };
    let v4 = renderer.table(Family::V4);
    let v6 = renderer.table(Family::V6);
    let rendering = Rendering { v4, v6, sets: renderer.sets.write(), meanings: renderer.names.meanings };
    (rendering, renderer.facts)
}

/// The chain that judges one direction.
pub(super) fn stage(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "WEIR-INGRESS",
        Direction::Egress => "WEIR-EGRESS",
    }
}

struct Renderer<'c> {
    facts: ClusterFacts<'c>,
    names: ChainNames,
    sets: SetTexts,
}

/// One table and direction under construction.
struct TableWriter<'w, 'c> {
    renderer: &'w mut Renderer<'c>,
    chains: &'w mut Chains,
    family: Family,
    direction: Direction,
}

/// Chains in order of first use.
#[derive(Default)]
struct Chains {
    chains: Vec<(String, Vec<String>)>,
    by_name: HashMap<String, usize>,
    /// Whether cluster-wide policies judge packets from a pod to its own node, which the kernel does not forward.
    is_input_judged: bool,
}

/// The conditions of a rule, in the order in which iptables-save writes them.
#[derive(Clone, Default)]
struct Conditions {
    address: String,
    protocol: String,
    extensions: String,
}

/// The types of ICMPv6 messages that pods send to find their neighbours: router solicitation, neighbour solicitation
/// and neighbour advertisement (RFC 4861).
const NEIGHBOUR_DISCOVERY: [u8; 3] = [133, 135, 136];

impl Renderer<'_> {
    fn table(&mut self, family: Family) -> String {
        let mut chains = Chains::default();
        for direction in [Direction::Egress, Direction::Ingress] {
            TableWriter { renderer: self, chains: &mut chains, family, direction }.stage();
        }
        chains.write(family)
    }
}

impl TableWriter<'_, '_> {
    /// Dispatches every address to its pod's chain.
    fn stage(&mut self) {
        let owned: Vec<_> = self.renderer.facts.owned(self.family).collect();
        self.chains.open(stage(self.direction));
        for (address, id) in owned {
            let pod = self.pod(id);
            let conditions = Conditions::address(self.flag(PacketEnd::Local), Prefix::host(address));
            let comment = self.comment(Meaning::Pod(id));
            self.chains.push(stage(self.direction), &conditions, &comment, &format!("-g {pod}"));
        }
    }

    fn pod(&mut self, id: EndpointId) -> String {
        let cluster = self.renderer.facts.cluster;
        let key = format!("{} {}", cluster.endpoint_name(id), cluster.endpoints[id.index()].kind);
        let name = self.chain_name('P', &key);
        if self.chains.open(&name) {
            self.chains.is_input_judged |= self.judges_own_node(id);
            self.beyond_policy(&name, id);
            self.lists(&name, id);
            self.tier(&name, id, Tier::Admin);
            match self.renderer.facts.isolating(self.direction, id) {
                none if none.is_empty() => {
                    self.tier(&name, id, Tier::Baseline);
                    self.own_node_after_tiers(&name, id);
                }
                isolating => {
                    self.own_node_after_tiers(&name, id);
                    self.policies(&name, isolating);
                }
            }
        }
        name
    }

    /// Traffic that no policy can forbid.
    fn beyond_policy(&mut self, chain: &str, id: EndpointId) {
        let (endpoint, assume) = (self.renderer.facts.endpoint(id), self.renderer.facts.cluster.assume);
        let family = self.family;
        for address in endpoint.addresses.iter().filter(|it| Family::of(**it) == family) {
            let own = Conditions::address(self.flag(PacketEnd::Remote), Prefix::host(*address));
            self.pass(chain, &own, Meaning::Itself);
        }
        if !self.judges_own_node(id) {
            self.own_node(chain, id);
        }
        if assume.icmp == Icmp::Allow {
            let icmp = Conditions::protocol(if self.family == Family::V4 { "icmp" } else { "ipv6-icmp" });
            if let Some(node) = endpoint.node.filter(|_| self.judges_own_node(id)) {
                let set = self.renderer.node_set(self.family, node);
                let node = Conditions::set(&set, self.flag(PacketEnd::Remote).set());
                self.pass(chain, &icmp.and(&node), Meaning::OwnNode);
            }
            self.pass(chain, &icmp, Meaning::Icmp);
        }
    }

    /// Whether cluster-wide policies apply to the traffic between a pod and its own node.
    fn judges_own_node(&mut self, id: EndpointId) -> bool {
        let facts = &mut self.renderer.facts;
        self.direction == Direction::Egress
            && Tier::ALL.into_iter().any(|tier| !facts.in_tier(Direction::Egress, tier, id).is_empty())
    }

    fn own_node(&mut self, chain: &str, id: EndpointId) {
        if let Some(node) = self.renderer.facts.endpoint(id).node {
            let set = self.renderer.node_set(self.family, node);
            let node = Conditions::set(&set, self.flag(PacketEnd::Remote).set());
            self.pass(chain, &node, Meaning::OwnNode);
        }
    }

    fn own_node_after_tiers(&mut self, chain: &str, id: EndpointId) {
        if self.judges_own_node(id) {
            self.own_node(chain, id);
        }
    }

    fn pass(&mut self, chain: &str, conditions: &Conditions, meaning: Meaning) {
        let comment = self.comment(meaning);
        self.chains.push(chain, conditions, &comment, "-j RETURN");
    }

    /// One chain for all pods that the same lists apply to: the first list that contains the address decides.
    fn lists(&mut self, pod: &str, id: EndpointId) {
        let (cluster, direction) = (self.renderer.facts.cluster, self.direction);
        let all = (0..cluster.lists.len()).map(|index| ListId(index as u32));
        let facts = &mut self.renderer.facts;
        let lists: Vec<ListId> =
            all.filter(|list| facts.list_applies(&cluster.lists[list.index()], direction, id)).collect();
        if lists.is_empty() {
            return;
        }
        let name = self.chain_name('L', &format!("{lists:?}"));
        if self.chains.open(&name) {
            for list in lists {
                let set = self.renderer.list_set(self.family, list);
                let conditions = Conditions::set(&set, self.flag(PacketEnd::Remote).set());
                let target = match cluster.lists[list.index()].action {
                    ListAction::Deny => "-j DROP",
                    ListAction::Allow => "-j RETURN",
                };
                let comment = self.comment(Meaning::List(list));
                self.chains.push(&name, &conditions, &comment, target);
            }
        }
        let mut asked = Conditions::default();
        // No list can cut a pod off from its own node. Where that was not decided before, the condition is here.
        if let Some(node) = self.renderer.facts.endpoint(id).node.filter(|_| self.judges_own_node(id)) {
            let set = self.renderer.node_set(self.family, node);
            asked = Conditions::not_in_set(&set, self.flag(PacketEnd::Remote).set());
        }
        self.chains.push(pod, &asked, "lists", &format!("-j {name}"));
    }

    /// For an isolated pod, all policies are evaluated, even if one has already allowed the packet; then the mark is
    /// tested.
    fn policies(&mut self, pod: &str, isolating: Vec<PolicyId>) {
        let anything = Conditions::default();
        self.chains.push(pod, &anything, "nothing has allowed yet", "-j MARK --set-xmark 0x0/0x1");
        for id in isolating {
            let chain = self.policy(id);
            let comment = self.comment(Meaning::Policy(id));
            self.chains.push(pod, &anything, &comment, &format!("-j {chain}"));
        }
        let unmarked = Conditions::extension(format!("-m mark ! --mark {ALLOWED} "));
        let comment = self.comment(Meaning::Isolated);
        self.chains.push(pod, &unmarked, &comment, "-j DROP");
    }

    fn policy(&mut self, id: PolicyId) -> String {
        let cluster = self.renderer.facts.cluster;
        let name = self.chain_name('N', &cluster.policy_name(id));
        if self.chains.open(&name) {
            let rules = cluster.policies[id.index()].rules(self.direction).unwrap_or_default();
            for (index, rule) in rules.iter().enumerate() {
                self.rule(&name, RuleId { policy: id, rule: index as u32 }, rule);
            }
        }
        name
    }

    /// One rule for each pair of peer and ports. If there are several of both, the ports get a chain of their own.
    fn rule(&mut self, chain: &str, id: RuleId, rule: &Rule) {
        let comment = self.comment(Meaning::Rule(id, self.direction));
        let peers = self.peers(id.policy, rule);
        let ports = self.ports(&rule.ports);
        let allow = format!("-j MARK --set-xmark {ALLOWED}");
        if peers.len() <= 1 || ports.len() <= 1 {
            for (peer, port) in peers.iter().flat_map(|peer| ports.iter().map(move |port| (peer, port))) {
                self.chains.push(chain, &peer.and(port), &comment, &allow);
            }
            return;
        }
        let name = self.chain_name('R', &comment);
        self.chains.open(&name);
        for port in &ports {
            self.chains.push(&name, port, &comment, &allow);
        }
        for peer in &peers {
            self.chains.push(chain, peer, "peer", &format!("-j {name}"));
        }
    }

    /// The conditions of each peer. A rule without `from` or `to` matches every peer.
    fn peers(&mut self, policy: PolicyId, rule: &Rule) -> Vec<Conditions> {
        if rule.peers.is_empty() {
            return vec![Conditions::default()];
        }
        rule.peers.iter().filter_map(|peer| self.peer(policy, peer)).collect()
    }

    /// `None` for a block of the other family.
    fn peer(&mut self, policy: PolicyId, peer: &Peer) -> Option<Conditions> {
        let remote = self.flag(PacketEnd::Remote);
        match peer {
            Peer::Pods { namespaces, pods } => {
                let own = NamespaceScope::Own(self.renderer.facts.cluster.policies[policy.index()].namespace);
                let scope = namespaces.map_or(own, NamespaceScope::Selected);
                let set = self.renderer.peer_set(self.family, scope, *pods);
                Some(Conditions::set(&set, remote.set()))
            }
            Peer::Block { cidr, except } if cidr.family() == self.family => {
                let mut conditions = Conditions::address(remote, *cidr);
                if !except.is_empty() {
                    let holes = self.renderer.except_set(self.family, except);
                    conditions = conditions.and(&Conditions::not_in_set(&holes, remote.set()));
                }
                if self.renderer.facts.cluster.assume.ipblock_pods == IpBlockPods::Ignore {
                    let pods = self.renderer.pod_set(self.family);
                    conditions = conditions.and(&Conditions::not_in_set(&pods, remote.set()));
                }
                Some(conditions)
            }
            Peer::Block { .. } => None,
        }
    }

    /// Splits ports into conditions, because one match takes a limited number of ports. A rule without `ports` matches
    /// every port and protocol.
    fn ports(&mut self, ports: &[PortRule]) -> Vec<Conditions> {
        if ports.is_empty() {
            return vec![Conditions::default()];
        }
        let mut conditions = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let of_protocol = Conditions::protocol(protocol_name(protocol));
            let mut ranges = Vec::new();
            for port in ports.iter().filter(|port| port.protocol == protocol) {
                match &port.port {
                    PortMatch::Any => conditions.push(of_protocol.clone()),
                    PortMatch::Range(first, last) => ranges.push((*first, *last)),
                    PortMatch::Named(name) => {
                        let set = self.renderer.port_set(self.family, protocol, name);
                        conditions.push(of_protocol.and(&Conditions::set(&set, "dst,dst")));
                    }
                }
            }
            conditions.extend(multiport(&ranges).into_iter().map(|ports| of_protocol.and(&ports)));
        }
        conditions
    }

    fn flag(&self, end: PacketEnd) -> Flag {
        match (self.direction, end) {
            (Direction::Egress, PacketEnd::Local) | (Direction::Ingress, PacketEnd::Remote) => Flag::Source,
            (Direction::Egress, PacketEnd::Remote) | (Direction::Ingress, PacketEnd::Local) => Flag::Destination,
        }
    }

    /// `WEIR-NE-…`: 24 characters of the 28 that the kernel allows.
    fn chain_name(&mut self, kind: char, key: &str) -> String {
        let direction = if self.direction == Direction::Egress { 'E' } else { 'I' };
        self.renderer.names.hashed(&format!("WEIR-{kind}{direction}-"), key)
    }

    fn comment(&mut self, meaning: Meaning) -> String {
        self.renderer.names.comment(self.renderer.facts.cluster, meaning)
    }
}

/// An end of the packet, from the pod's view.
#[derive(Clone, Copy)]
enum PacketEnd {
    Local,
    Remote,
}

/// An end of the packet, from the kernel's view.
#[derive(Clone, Copy)]
enum Flag {
    Source,
    Destination,
}

impl Flag {
    fn address(self) -> &'static str {
        match self {
            Self::Source => "-s",
            Self::Destination => "-d",
        }
    }

    fn set(self) -> &'static str {
        match self {
            Self::Source => "src",
            Self::Destination => "dst",
        }
    }
}

/// Packs ports and ranges into as few matches as possible; a range counts as two ports.
fn multiport(ranges: &[(u16, u16)]) -> Vec<Conditions> {
    let mut matches: Vec<(usize, String)> = Vec::new();
    for (first, last) in ranges {
        let (places, text) = if first == last { (1, first.to_string()) } else { (2, format!("{first}:{last}")) };
        match matches.last_mut() {
            Some((used, ports)) if *used + places <= MAX_MULTIPORT => {
                *used += places;
                let _ = write!(ports, ",{text}");
            }
            _ => matches.push((places, text)),
        }
    }
    matches.into_iter().map(|(_, ports)| Conditions::extension(format!("-m multiport --dports {ports} "))).collect()
}

impl Conditions {
    fn address(flag: Flag, prefix: Prefix) -> Self {
        // Length 0 means every address of the table's family, which iptables-save leaves out.
        let address = match prefix.len() {
            0 => String::new(),
            _ => format!("{} {prefix} ", flag.address()),
        };
        Self { address, ..Self::default() }
    }

    fn protocol(name: &str) -> Self {
        Self { protocol: format!("-p {name} "), ..Self::default() }
    }

    fn extension(extensions: String) -> Self {
        Self { extensions, ..Self::default() }
    }

    fn set(set: &str, flags: &str) -> Self {
        Self::extension(format!("-m set --match-set {set} {flags} "))
    }

    fn not_in_set(set: &str, flags: &str) -> Self {
        Self::extension(format!("-m set ! --match-set {set} {flags} "))
    }

    /// Both conditions.
    fn and(&self, other: &Self) -> Self {
        Self {
            address: self.address.clone() + &other.address,
            protocol: self.protocol.clone() + &other.protocol,
            extensions: self.extensions.clone() + &other.extensions,
        }
    }
}

impl Chains {
    /// Adds a chain; false if it exists already.
    fn open(&mut self, name: &str) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        self.by_name.insert(name.to_owned(), self.chains.len());
        self.chains.push((name.to_owned(), Vec::new()));
        true
    }

    fn push(&mut self, chain: &str, conditions: &Conditions, comment: &str, target: &str) {
        let Some((name, rules)) = self.by_name.get(chain).and_then(|index| self.chains.get_mut(*index)) else { return };
        let Conditions { address, protocol, extensions } = conditions;
        rules.push(format!("-A {name} {address}{protocol}{extensions}-m comment --comment \"{comment}\" {target}"));
    }

    fn write(&self, family: Family) -> String {
        let mut text = String::from("*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n");
        for (name, _) in &self.chains {
            let _ = writeln!(text, ":{name} - [0:0]");
        }
        if self.is_input_judged {
            text.push_str("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n");
            // Neighbour discovery of IPv6 arrives in INPUT too, without a connection: if a pod's answers to the node were
            // dropped, no packet would reach this pod. In IPv4 this is ARP, which iptables does not see.
            for kind in NEIGHBOUR_DISCOVERY.iter().filter(|_| family == Family::V6) {
                let _ = writeln!(text, "-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type {kind} -j ACCEPT");
            }
            let _ = writeln!(text, "-A INPUT -j {}", stage(Direction::Egress));
        }
        text.push_str("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n");
        for direction in [Direction::Egress, Direction::Ingress] {
            let _ = writeln!(text, "-A FORWARD -j {}", stage(direction));
        }
        for rule in self.chains.iter().flat_map(|(_, rules)| rules) {
            text.push_str(rule);
            text.push('\n');
        }
        text.push_str("COMMIT\n");
        text
    }
}
