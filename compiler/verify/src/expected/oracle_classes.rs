//! The properties of an address that policies can depend on.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;

use super::AnyRule;
use weir_model::directory::Directory;
use weir_model::labels::matches;
use weir_model::{
    Cluster, Endpoint, EndpointId, FrontendPorts, Interner, IpBlockPods, LabelSetId, ListId, NamespaceId, NodeId, Peer,
    PortMatch, Protocol, SelectorId, ServiceAddress, Standing, TierPeer,
};
use weir_objects::address::{Family, Prefix, to_address, to_number};

/// An address as a peer of rules and lists. An address without services has no other properties.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PlainClass {
    /// The peers of rules that match.
    pub(super) peers: Vec<u32>,
    /// The lists that contain it.
    pub(super) lists: Vec<ListId>,
    /// Its named ports that rules use.
    pub(super) named: Vec<(String, Protocol, u16)>,
    /// The nodes whose address it is, of those with local endpoints.
    pub(super) nodes: Vec<NodeId>,
}

/// All properties of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OracleClass<'c> {
    pub(super) plain: u32,
    /// The services that have or claim the address.
    pub(super) frontend: Option<&'c FrontendPorts>,
    /// For an address that services claim: whether it is also a pod's own address.
    pub(super) on_pod: bool,
    /// The hostPorts on it, of nodes with local endpoints: indices into [`Cluster::host_ports`].
    pub(super) host_ports: Vec<usize>,
    /// For an address with services or a node's address: the family of the backends that it leads to.
    pub(super) family: Option<Family>,
}

/// The oracle classes of one cluster.
pub(super) struct OracleClasses<'c> {
    cluster: &'c Cluster,
    directory: &'c Directory<'c>,
    /// The number of each peer of rules in force.
    peers: HashMap<PeerKey<'c>, u32>,
    pods: PodPeers<'c>,
    blocks: Blocks<'c>,
    /// The networks of cluster-wide policies. Unlike blocks, they always contain the addresses of pods.
    networks: Blocks<'c>,
    /// The nodes that cluster-wide policies select as peers.
    node_peers: Vec<(u32, Vec<NodeId>)>,
    lists: Vec<(ListId, Vec<(IpAddr, IpAddr)>)>,
    names: BTreeSet<(&'c str, usize)>,
    /// The nodes of local endpoints, also those without an address: a host-network pod there is its node.
    nodes: Vec<NodeId>,
    plains: Interner<PlainClass>,
    oracle_classes: Interner<OracleClass<'c>>,
}

/// The peers of rules that select pods.
struct PodPeers<'c> {
    list: Vec<PodPeer>,
    projection: Projection<'c>,
    /// The matching peers, by namespace and the labels that selectors depend on.
    held: HashMap<(NamespaceId, u32), Vec<u32>>,
}

struct PodPeer {
    number: u32,
    /// The policy's namespace, if the peer names none.
    own: Option<NamespaceId>,
    namespaces: Option<SelectorId>,
    pods: SelectorId,
}

impl<'c> OracleClasses<'c> {
    pub(super) fn new(
        cluster: &'c Cluster,
        directory: &'c Directory<'c>,
        rules: &[AnyRule<'c>],
        lists: Vec<ListId>,
        nodes: BTreeSet<NodeId>,
    ) -> Self {
        let mut peers = HashMap::new();
        let mut names = BTreeSet::new();
        let mut pods = Vec::new();
        let (mut blocks, mut networks, mut node_peers) = (Vec::new(), Vec::new(), Vec::new());
        for rule in rules {
            names.extend(rule.ports().iter().filter_map(|port| match &port.port {
                PortMatch::Named(name) => Some((name.as_str(), port.protocol as usize)),
                _ => None,
            }));
            for key in rule.peers() {
                let number = peers.len() as u32;
                // Equal peers of different rules are one. The oracle classes of addresses then depend on which peers
                // exist and not on how often they are written, and clusters repeat a few peers in most of their
                // policies.
                if *peers.entry(key).or_insert(number) != number {
                    continue;
                }
                match key {
                    PeerKey::Policy(own, Peer::Pods { namespaces, pods: of }) => {
                        pods.push(PodPeer { number, own, namespaces: *namespaces, pods: *of });
                    }
                    PeerKey::Policy(_, Peer::Block { cidr, except }) => blocks.push((number, *cidr, except.as_slice())),
                    PeerKey::Tier(TierPeer::Pods { namespaces, pods: of }) => {
                        pods.push(PodPeer { number, own: None, namespaces: Some(*namespaces), pods: *of });
                    }
                    PeerKey::Tier(TierPeer::Networks(of)) => {
                        networks.extend(of.iter().map(|network| (number, *network, &[][..])));
                    }
                    PeerKey::Tier(TierPeer::Nodes(selector)) => {
                        node_peers.push((number, nodes_with(cluster, *selector)));
                    }
                }
            }
        }
        Self {
            cluster,
            directory,
            peers,
            pods: PodPeers { projection: Projection::new(cluster, &pods), list: pods, held: HashMap::new() },
            blocks: Blocks::new(blocks),
            networks: Blocks::new(networks),
            node_peers,
            lists: lists.into_iter().map(|id| (id, ranges(cluster, id))).collect(),
            names,
            nodes: nodes.into_iter().collect(),
            plains: Interner::default(),
            oracle_classes: Interner::default(),
        }
    }

    /// The oracle classes that addresses have had so far, by number.
    pub(super) fn list(&self) -> &[OracleClass<'c>] {
        &self.oracle_classes
    }

    /// The properties as peers of rules and lists, by number.
    pub(super) fn plains(&self) -> &[PlainClass] {
        &self.plains
    }

    /// The number of a rule's peer.
    pub(super) fn peer(&self, peer: PeerKey<'c>) -> Option<u32> {
        self.peers.get(&peer).copied()
    }

    /// How many peers the rules have.
    pub(super) fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// The number of an address's oracle class.
    pub(super) fn of(&mut self, address: IpAddr) -> u32 {
        // The directory decides who owns an address, as it does for the oracle itself. A second rule for that here
        // could agree with a mistake of the compiler.
        let endpoint = self.directory.endpoint_at(address);
        let plain = self.plain(endpoint, Some(address));
        // A hostPort is on the node's addresses. A packet to a pod's own address never meets it.
        let host_ports = if endpoint.is_none() { self.host_ports_at(address) } else { Vec::new() };
        let mut oracle_class = OracleClass { plain, frontend: None, on_pod: false, host_ports, family: None };
        // With `service-address=address`, a service's address is an address like any other, and all of this must not
        // split oracle classes.
        if self.cluster.assume.service_address == ServiceAddress::Backends {
            // For a pod's address, only claims on ports matter: it counts as the pod's address otherwise.
            let matters = |it: &&FrontendPorts| endpoint.is_none() || !it.ports.is_empty();
            oracle_class.frontend = self.cluster.frontend(address).filter(matters);
            oracle_class.on_pod = oracle_class.frontend.is_some() && endpoint.is_some();
            // The family matters only for backends, and only these addresses have some. Elsewhere it would double the
            // oracle classes for nothing.
            let leads = oracle_class.frontend.is_some() || !self.plains()[plain as usize].nodes.is_empty();
            oracle_class.family = leads.then(|| Family::of(address));
        }
        self.oracle_classes.intern(oracle_class)
    }

    fn host_ports_at(&self, address: IpAddr) -> Vec<usize> {
        let claims = self.nodes.iter().flat_map(|node| self.cluster.host_ports_of(*node));
        claims.filter(|(_, it)| it.is_at(self.cluster, address)).map(|(index, _)| index).collect()
    }

    /// The lists that contain an address; `None` if the address is a service's or a node's.
    pub(super) fn lists_of_plain(&self, oracle_class: u32) -> Option<&[ListId]> {
        // A service's address is judged by its backends, and traffic of a pod with its own node is always allowed. So a
        // list alone does not decide about either address.
        let oracle_class = self.list().get(oracle_class as usize).filter(|it| it.frontend.is_none())?;
        let plain = self.plains().get(oracle_class.plain as usize).filter(|it| it.nodes.is_empty())?;
        Some(&plain.lists)
    }

    /// The number of the properties of an endpoint, an address, or both as a peer of rules and lists.
    pub(super) fn plain(&mut self, endpoint: Option<EndpointId>, address: Option<IpAddr>) -> u32 {
        let cluster = self.cluster;
        let endpoint = endpoint.map(|id| &cluster.endpoints[id.index()]);
        // A pod on the host's network has the node's address and is not selected by labels; the same holds for pods
        // that have finished.
        let member = endpoint.filter(|it| it.standing == Standing::Member);
        let mut peers = member.map_or_else(Vec::new, |pod| self.pods.matching(cluster, pod).to_vec());
        // Spec: "Selects particular IPBlocks to allow": also of addresses of pods, unless the assumption is otherwise.
        if member.is_none() || cluster.assume.ipblock_pods == IpBlockPods::Match {
            peers.extend(address.map_or(&[][..], |address| self.blocks.containing(address)));
        }
        // Spec: "cluster-internal traffic will be checked against the rule as well."
        peers.extend(address.map_or(&[][..], |address| self.networks.containing(address)));
        if member.is_none() {
            let is_peer = |(_, of): &&(u32, Vec<NodeId>)| of.iter().any(|id| is_node(cluster, *id, endpoint, address));
            peers.extend(self.node_peers.iter().filter(is_peer).map(|(number, _)| *number));
        }
        let contains = |(_, ranges): &&(ListId, Vec<(IpAddr, IpAddr)>)| address.is_some_and(|it| is_in(ranges, it));
        let lists = self.lists.iter().filter(contains).map(|(id, _)| *id).collect();
        // A pod that has the address of a node counts as the pod: its packets come through its own interface.
        let nodes = if member.is_some() { Vec::new() } else { self.nodes_of(endpoint, address) };
        // Ports that no rule names would give almost every pod an oracle class of its own.
        let spoken =
            |port: &&weir_objects::k8s::NamedPort| self.names.contains(&(port.name.as_str(), port.protocol as usize));
        let named = member.map_or(&[][..], |pod| &pod.named_ports).iter().filter(spoken);
        let named = named.map(|port| (port.name.clone(), port.protocol, port.number)).collect();
        self.plains.intern(PlainClass { peers, lists, named, nodes })
    }

    fn nodes_of(&self, endpoint: Option<&Endpoint>, address: Option<IpAddr>) -> Vec<NodeId> {
        self.nodes.iter().copied().filter(|id| is_node(self.cluster, *id, endpoint, address)).collect()
    }

    /// The ends of blocks and lists with the addresses just outside, and all addresses of endpoints, services and
    /// nodes.
    pub(super) fn cuts(&self) -> BTreeSet<IpAddr> {
        let cluster = self.cluster;
        let owned = cluster.endpoints.iter().flat_map(|it| &it.addresses);
        let owned = owned.chain(cluster.frontends.iter().map(|it| &it.address));
        let owned = owned.chain(cluster.nodes.iter().flat_map(|it| &it.addresses));
        let owned = owned.chain(cluster.host_ports.iter().filter_map(|it| it.address.as_ref()));
        let mut cuts: BTreeSet<IpAddr> = owned.copied().collect();
        let blocks = self
            .blocks
            .list
            .iter()
            .chain(&self.networks.list)
            .flat_map(|(_, cidr, except)| std::iter::once(cidr).chain(*except));
        let blocks = blocks.map(|block| (block.address(), block.last()));
        let lists = self.lists.iter().flat_map(|(_, ranges)| ranges.iter().copied());
        for (first, last) in blocks.chain(lists) {
            cuts.extend(around(first, last));
        }
        // Without a single block or pod there is still the rest of the address space, and a program may be wrong about
        // it.
        for family in [Family::V4, Family::V6] {
            cuts.extend([to_address(family, 0), to_address(family, highest(family))]);
        }
        cuts
    }
}

impl<'c> PodPeers<'c> {
    /// The numbers of the peers that match a pod.
    fn matching(&mut self, cluster: &'c Cluster, pod: &Endpoint) -> &[u32] {
        // Field by field, because the closure needs `projection` mutably while `held` is borrowed.
        let Self { held, list, projection } = self;
        let labels = projection.of(cluster, pod.labels);
        held.entry((pod.namespace, labels)).or_insert_with(|| {
            // Spec: "If namespaceSelector is also set, then the NetworkPolicyPeer as a whole selects the pods matching
            // podSelector in the namespaces selected by namespaceSelector. Otherwise it selects the pods matching
            // podSelector in the policy's own namespace."
            let mut matching: Vec<u32> = Vec::new();
            for peer in list.iter() {
                let in_namespace = match (peer.namespaces, peer.own) {
                    (Some(selector), _) => projection.namespace_matches(cluster, selector, pod.namespace),
                    (None, own) => own == Some(pod.namespace),
                };
                if in_namespace && projection.pods_match(cluster, peer.pods, labels, pod.labels) {
                    matching.push(peer.number);
                }
            }
            matching
        })
    }
}

/// A peer of a rule. Equal peers have equal keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PeerKey<'c> {
    /// Of a NetworkPolicy, with the namespace of the policy if the peer selects pods and names no namespace.
    Policy(Option<NamespaceId>, &'c Peer),
    /// Of a cluster-wide policy.
    Tier(&'c TierPeer),
}

impl<'c> PeerKey<'c> {
    /// The key of a NetworkPolicy's peer.
    pub(super) fn of_policy(own: NamespaceId, peer: &'c Peer) -> Self {
        Self::Policy(matches!(peer, Peer::Pods { namespaces: None, .. }).then_some(own), peer)
    }
}

/// Whether an end that is no pod of its own is a node.
fn is_node(cluster: &Cluster, node: NodeId, endpoint: Option<&Endpoint>, address: Option<IpAddr>) -> bool {
    // A pod on the host's network is its node, even if the node has no address. Otherwise the address decides.
    let host = endpoint.filter(|it| it.standing == Standing::HostNetwork).and_then(|it| it.node);
    host == Some(node) || address.is_some_and(|address| cluster.nodes[node.index()].addresses.contains(&address))
}

/// The nodes with these labels.
fn nodes_with(cluster: &Cluster, selector: SelectorId) -> Vec<NodeId> {
    let is_selected = |(_, node): &(NodeId, &weir_model::Node)| {
        matches(cluster.labels.selector(selector), cluster.labels.labels(node.labels))
    };
    (0..).map(NodeId).zip(&cluster.nodes).filter(is_selected).map(|(id, _)| id).collect()
}

/// The last address of a family, as a number.
pub(crate) fn highest(family: Family) -> u128 {
    match family {
        Family::V4 => u128::from(u32::MAX),
        Family::V6 => u128::MAX,
    }
}

/// Both ends of a range, and the addresses next to them outside.
pub(crate) fn around(first: IpAddr, last: IpAddr) -> impl Iterator<Item = IpAddr> {
    let (family, low) = to_number(first);
    let high = to_number(last).1;
    let after = (high < highest(family)).then(|| high + 1);
    // The outer neighbours as well: a block that is one address too long is right everywhere inside.
    [low.checked_sub(1), Some(low), Some(high), after].into_iter().flatten().map(move |it| to_address(family, it))
}

/// A list's entries, sorted; overlapping entries are merged.
fn ranges(cluster: &Cluster, id: ListId) -> Vec<(IpAddr, IpAddr)> {
    let mut entries: Vec<_> = cluster.lists[id.index()].entries.iter().map(|it| (it.first, it.last)).collect();
    // `IpAddr` orders all IPv4 addresses before all IPv6 ones, so one sorted list serves both and no range reaches from
    // one into the other.
    entries.sort_unstable();
    let mut merged: Vec<(IpAddr, IpAddr)> = Vec::with_capacity(entries.len());
    for (first, last) in entries {
        match merged.last_mut() {
            // `max`, because an entry may lie inside the one before. Ranges that only touch may stay apart: the search
            // below needs disjoint ranges, not the fewest.
            Some(before) if first <= before.1 => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

fn is_in(ranges: &[(IpAddr, IpAddr)], address: IpAddr) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= address);
    after.checked_sub(1).and_then(|index| ranges.get(index)).is_some_and(|(_, last)| address <= *last)
}

/// Blocks with their exceptions. All addresses between two cuts are in the same blocks.
struct Blocks<'c> {
    list: Vec<(u32, Prefix, &'c [Prefix])>,
    cuts: Vec<IpAddr>,
    /// A cache, by family and the number of cuts at or before an address.
    known: HashMap<(bool, usize), Vec<u32>>,
}

impl<'c> Blocks<'c> {
    fn new(list: Vec<(u32, Prefix, &'c [Prefix])>) -> Self {
        let prefixes = list.iter().flat_map(|(_, cidr, except)| std::iter::once(cidr).chain(*except));
        let ends = prefixes.map(|prefix| (prefix.address(), prefix.last()));
        // Pieces begin at a block's first address and after its last. The last address itself is one cut more than
        // needed, which changes no result; the address before the first must not be one, since nothing changes there.
        let ends = ends.flat_map(|(first, last)| around(first, last).filter(move |it| *it >= first));
        let mut cuts: Vec<IpAddr> = ends.collect();
        cuts.sort_unstable();
        cuts.dedup();
        Self { list, cuts, known: HashMap::new() }
    }

    fn containing(&mut self, address: IpAddr) -> &[u32] {
        let Self { list, cuts, known } = self;
        // The family belongs to the key: addresses of IPv4 and IPv6 around the border between the two may have the same
        // number of cuts before them.
        let place = (address.is_ipv4(), cuts.partition_point(|cut| *cut <= address));
        known.entry(place).or_insert_with(|| {
            // Spec: "Except is a slice of CIDRs that should not be included within an IPBlock."
            let contains = |(_, cidr, except): &&(u32, Prefix, &[Prefix])| {
                cidr.contains(address) && !except.iter().any(|hole| hole.contains(address))
            };
            let mut numbers: Vec<u32> = list.iter().filter(contains).map(|(number, ..)| *number).collect();
            // Networks of one peer can overlap.
            numbers.dedup();
            numbers
        })
    }
}

/// Labels reduced to the keys that selectors name.
struct Projection<'c> {
    keys: BTreeSet<&'c str>,
    numbers: HashMap<Vec<Option<&'c str>>, u32>,
    of: HashMap<LabelSetId, u32>,
    pods: HashMap<(SelectorId, u32), bool>,
    namespaces: HashMap<(SelectorId, NamespaceId), bool>,
}

impl<'c> Projection<'c> {
    fn new(cluster: &'c Cluster, pods: &[PodPeer]) -> Self {
        let selectors: BTreeSet<SelectorId> = pods.iter().map(|peer| peer.pods).collect();
        let selectors = selectors.into_iter().map(|id| cluster.labels.selector(id));
        // Two label sets that agree on every key that some selector names are matched by the same selectors. Clusters
        // have thousands of label sets, mostly through `pod-template-hash` and names of jobs, but few keys in
        // selectors.
        let keys = selectors.flat_map(|selector| {
            let written = selector.match_expressions.iter().map(|it| it.key.as_str());
            selector.match_labels.keys().chain(written)
        });
        Self {
            keys: keys.collect(),
            numbers: HashMap::new(),
            of: HashMap::new(),
            pods: HashMap::new(),
            namespaces: HashMap::new(),
        }
    }

    fn of(&mut self, cluster: &'c Cluster, labels: LabelSetId) -> u32 {
        let Self { keys, numbers, of, .. } = self;
        *of.entry(labels).or_insert_with(|| {
            let set = cluster.labels.labels(labels);
            // In the order of the keys' set, which is fixed. A missing key is `None` and not an empty value: `Exists`
            // distinguishes them.
            let seen = keys.iter().map(|key| set.get(key)).collect();
            let next = numbers.len() as u32;
            *numbers.entry(seen).or_insert(next)
        })
    }

    fn pods_match(&mut self, cluster: &Cluster, selector: SelectorId, projected: u32, labels: LabelSetId) -> bool {
        let ask = || matches(cluster.labels.selector(selector), cluster.labels.labels(labels));
        // Kept by the projection, so that thousands of label sets share one answer. The full labels are needed only to
        // ask.
        *self.pods.entry((selector, projected)).or_insert_with(ask)
    }

    fn namespace_matches(&mut self, cluster: &Cluster, selector: SelectorId, namespace: NamespaceId) -> bool {
        let labels = cluster.namespaces[namespace.index()].labels;
        let ask = || matches(cluster.labels.selector(selector), cluster.labels.labels(labels));
        *self.namespaces.entry((selector, namespace)).or_insert_with(ask)
    }
}
