//! Which slots of ports each oracle class may use, for one kind of endpoint.

use std::collections::{BTreeMap, BTreeSet};

use weir_model::{
    Direction, ListAction, Policy, PortRule, Protocol, Rule, RuleAction, ServiceAddress, ServiceId, ServicePort, Tier,
};
use weir_objects::k8s::PortMatch;

use super::super::bits::{self, add, contains, insert, remove, words};
use super::super::slots::PortSlots;
use super::ExpectedVerdicts;
use super::oracle_classes::{OracleClass, PeerKey, PlainClass};

/// The claims on a port.
#[derive(Default)]
struct PortClaims {
    claims: BTreeSet<(ServiceId, usize)>,
    contested: bool,
}

/// Sets of slots by plain oracle class, one after the other.
pub(super) struct SlotRow {
    pub(super) words: usize,
    pub(super) sets: Vec<u64>,
}

impl SlotRow {
    pub(super) fn get(&self, plain: usize) -> &[u64] {
        self.sets.get(plain * self.words..(plain + 1) * self.words).unwrap_or_default()
    }

    pub(super) fn get_mut(&mut self, plain: usize) -> &mut [u64] {
        self.sets.get_mut(plain * self.words..(plain + 1) * self.words).unwrap_or_default()
    }
}

/// The plain oracle classes that each peer of a rule matches, and those that any list contains.
pub(crate) struct PeerMatches {
    by_peer: Vec<Vec<u32>>,
    listed: Vec<u32>,
}

impl PeerMatches {
    /// The plain oracle classes that a peer matches.
    pub(super) fn matching(&self, peer: u32) -> &[u32] {
        &self.by_peer[peer as usize]
    }
}

/// The rows that decide what leaves an endpoint.
struct LeavingRows<'r> {
    /// Policies and lists.
    plain: &'r SlotRow,
    /// Only the policies that apply where no NetworkPolicy and no list does: to the own node, and to the endpoint itself
    /// behind a service.
    exempt: SlotRow,
    /// The same for ingress: both directions decide about packets that the node sends back to the endpoint.
    arriving: SlotRow,
}

impl LeavingRows<'_> {
    /// Whether an endpoint's packet may leave for itself.
    fn allow_hairpin(&self, plain: usize, slot: usize) -> bool {
        contains(self.exempt.get(plain), slot) && contains(self.arriving.get(plain), slot)
    }
}

impl<'c> ExpectedVerdicts<'c> {
    /// To be made when every address has its oracle class.
    pub(crate) fn holders(&self) -> PeerMatches {
        let mut by_peer = vec![Vec::new(); self.oracle_classes.peer_count()];
        let mut listed = Vec::new();
        // Turned round once, from oracle classes with their peers to peers with their oracle classes. So a rule touches
        // only the oracle classes that it matches, and not all of them.
        for (number, plain) in (0u32..).zip(self.oracle_classes.plains()) {
            plain.peers.iter().for_each(|peer| by_peer[*peer as usize].push(number));
            listed.extend((!plain.lists.is_empty()).then_some(number));
        }
        PeerMatches { by_peer, listed }
    }

    /// The number of the set of each oracle class.
    pub(crate) fn row(&mut self, holders: &PeerMatches, kind: u32, direction: Direction) -> Vec<u32> {
        let row = self.plain_row(holders, kind, direction);
        let [arriving, exempt] = Direction::ALL.map(|of| self.exempt_row(holders, kind, of));
        let rows = LeavingRows { plain: &row, exempt, arriving };
        let mut numbers = Vec::with_capacity(self.oracle_classes.list().len());
        for index in 0..self.oracle_classes.list().len() {
            let oracle_class = self.oracle_classes.list()[index].clone();
            let plain = &self.oracle_classes.plains()[oracle_class.plain as usize];
            // Only packets that leave can have a service's or a node's address as their destination before kube-proxy
            // translates it. Packets that arrive are already addressed to the pod.
            let leaves = direction == Direction::Egress;
            let special = leaves && (oracle_class.family.is_some() || !plain.nodes.is_empty());
            let mut set = if special { self.special(holders, kind, &rows, &oracle_class) } else { None };
            // After the service's ports: a hostPort can only take away. If both claim a port, either may get the
            // packet, so both must be allowed.
            if leaves && !oracle_class.host_ports.is_empty() {
                let mut less = set.unwrap_or_else(|| row.get(oracle_class.plain as usize).to_vec());
                self.take_host_ports(kind, &rows, &oracle_class, &mut less);
                set = Some(less);
            }
            // The special sets are about ports of services and nodes. Errors about live flows leave for these addresses
            // as for all others.
            set.iter_mut().for_each(|set| insert(set, PortSlots::ICMP_ERRORS));
            let set = set.as_deref().unwrap_or_else(|| row.get(oracle_class.plain as usize));
            numbers.push(self.sets.number(set));
        }
        numbers
    }

    /// Whether any policy or denying list is in force.
    pub(crate) fn can_deny(&self, kind: u32, direction: Direction) -> bool {
        let kind = &self.kinds[kind as usize];
        // A list that allows can deny nothing, not even together with others: addresses that no list denies are left to
        // the policies.
        let denies = |list: &weir_model::CidrList| asked(list, direction) && list.action == ListAction::Deny;
        let tier_denies = |id: &weir_model::TierPolicyId| {
            let rules = self.cluster.tiers[id.index()].rules(direction);
            rules.iter().any(|rule| rule.action == RuleAction::Deny)
        };
        kind.policies.iter().any(|id| self.cluster.policies[id.index()].rules(direction).is_some())
            || kind.tiers.iter().any(tier_denies)
            // An ingress rule can deny what the node sends back to the endpoint.
            || (direction == Direction::Egress && self.any_denial_of_hairpin(kind))
            || kind.lists.iter().any(|id| denies(&self.cluster.lists[id.index()]))
    }

    fn any_denial_of_hairpin(&self, kind: &super::OracleSubject<'_>) -> bool {
        let leads_back = !kind.behind.is_empty() || !kind.claims.is_empty();
        leads_back && kind.tiers.iter().any(|id| self.cluster.tiers[id.index()].judges_leaving())
    }

    /// The number of the set of all slots.
    pub(crate) fn everything(&mut self) -> u32 {
        let full = bits::full(self.slots.count());
        self.sets.number(&full)
    }

    /// Policies and lists, as if every address were only an address.
    fn plain_row(&self, holders: &PeerMatches, kind: u32, direction: Direction) -> SlotRow {
        let words = words(self.slots.count());
        let isolating = self.isolating(kind, direction);
        let count = self.oracle_classes.plains().len();
        // Spec: "By default, a pod is non-isolated for egress; all outbound connections are allowed." (ingress
        // likewise)
        // Not isolated means everything, also packets without ports. The sets of rules could not express that: a rule
        // with ports never includes them.
        let begin = if isolating.is_empty() { bits::full(self.slots.count()) } else { vec![0; words] };
        let mut row = SlotRow { words, sets: begin.repeat(count) };
        let is_isolated = !isolating.is_empty();
        for policy in isolating {
            for rule in policy.rules(direction).unwrap_or_default() {
                self.add_rule(holders, kind, direction, policy, rule, &mut row);
            }
        }
        self.apply_tiers(holders, kind, direction, is_isolated, &mut row);
        // After the rules: lists are a tier before policies, so no rule can allow an address that a list denies.
        for plain in &holders.listed {
            if self.is_denied(kind, direction, &self.oracle_classes.plains()[*plain as usize]) {
                row.get_mut(*plain as usize).fill(0);
            }
        }
        // Last, because the loop above clears whole sets, and isolation begins with empty ones.
        self.add_errors(kind, direction, &mut row);
        row
    }

    /// Applies the cluster-wide policies to what NetworkPolicies allow.
    // Spec: "v1.NetworkPolicy always makes a final decision for selected pods. Further evaluation only happens for Pods
    // not selected by a v1.NetworkPolicy."
    fn apply_tiers(
        &self,
        holders: &PeerMatches,
        kind: u32,
        direction: Direction,
        is_isolated: bool,
        row: &mut SlotRow,
    ) {
        let baseline = (!is_isolated).then(|| self.tier(holders, kind, Tier::Baseline, direction)).flatten();
        let admin = self.tier(holders, kind, Tier::Admin, direction);
        // The Admin tier last: its decisions replace those of all later tiers.
        for tier in [baseline, admin].into_iter().flatten() {
            (0..self.oracle_classes.plains().len()).for_each(|plain| tier.apply(plain, row.get_mut(plain)));
        }
    }

    /// What cluster-wide policies allow where no NetworkPolicy and no list applies.
    fn exempt_row(&self, holders: &PeerMatches, kind: u32, direction: Direction) -> SlotRow {
        let full = bits::full(self.slots.count());
        let sets = full.repeat(self.oracle_classes.plains().len());
        let mut row = SlotRow { words: words(self.slots.count()), sets };
        let is_isolated = !self.isolating(kind, direction).is_empty();
        self.apply_tiers(holders, kind, direction, is_isolated, &mut row);
        row
    }

    /// ICMP errors about live flows pass ingress from every address that no list denies, and pass egress to the other
    /// end of the flow.
    fn add_errors(&self, kind: u32, direction: Direction, row: &mut SlotRow) {
        for (number, plain) in self.oracle_classes.plains().iter().enumerate() {
            if direction == Direction::Egress || !self.is_denied(kind, direction, plain) {
                insert(row.get_mut(number), PortSlots::ICMP_ERRORS);
            }
        }
    }

    // Spec: "A pod is isolated for egress if there is any NetworkPolicy that both selects the pod and has "Egress" in
    // its policyTypes" (ingress likewise).
    fn isolating(&self, kind: u32, direction: Direction) -> Vec<&'c Policy> {
        let policies = self.kinds[kind as usize].policies.iter().map(|id| &self.cluster.policies[id.index()]);
        policies.filter(|policy| policy.rules(direction).is_some()).collect()
    }

    // Spec: "Each rule allows traffic which matches both the `from` and `ports` sections."
    fn add_rule(
        &self,
        holders: &PeerMatches,
        kind: u32,
        direction: Direction,
        policy: &'c Policy,
        rule: &'c Rule,
        row: &mut SlotRow,
    ) {
        // Once for each rule and not for each oracle class: only named ports on egress depend on the other end.
        let same = self.numbered(kind, direction, &rule.ports);
        let has_names = rule.ports.iter().any(|port| matches!(port.port, PortMatch::Named(_)));
        // On ingress the name is looked up in the pod's own ports, which `numbered` has done.
        let names = has_names && direction == Direction::Egress;
        let mut allow = |plain: u32| {
            let set = row.get_mut(plain as usize);
            add(set, &same);
            if names {
                self.add_names(&rule.ports, &self.oracle_classes.plains()[plain as usize], set);
            }
        };
        // Spec: "If this field is empty or missing, this rule matches all sources (traffic not restricted by source)."
        if rule.peers.is_empty() {
            (0..self.oracle_classes.plains().len() as u32).for_each(allow);
            return;
        }
        let peers =
            rule.peers.iter().filter_map(|peer| self.oracle_classes.peer(PeerKey::of_policy(policy.namespace, peer)));
        peers.flat_map(|peer| holders.matching(peer)).for_each(|plain| allow(*plain));
    }

    /// What of a rule's ports does not depend on the other end. A name is the destination's: coming in, the pod's own.
    pub(super) fn numbered(&self, kind: u32, direction: Direction, ports: &[PortRule]) -> Vec<u64> {
        // Spec: "If this field is empty or missing, this rule matches all ports (traffic not restricted by port)."
        if ports.is_empty() {
            return bits::full(self.slots.count());
        }
        let mut set = vec![0; words(self.slots.count())];
        for port in ports {
            match &port.port {
                PortMatch::Any => self.add_range(port, 0, u16::MAX, &mut set),
                PortMatch::Range(first, last) => self.add_range(port, *first, *last, &mut set),
                PortMatch::Named(name) if direction == Direction::Ingress => {
                    let own = self.kinds[kind as usize].named.iter();
                    let of_name = own.filter(|it| it.name == *name && it.protocol == port.protocol);
                    of_name.for_each(|it| self.add_range(port, it.number, it.number, &mut set));
                }
                // On egress it is the destination's name; see `add_names`.
                PortMatch::Named(_) => {}
            }
        }
        set
    }

    fn add_range(&self, port: &PortRule, first: u16, last: u16, set: &mut [u64]) {
        self.slots.range(port.protocol, first, last).for_each(|slot| insert(set, slot));
    }

    pub(super) fn add_names(&self, ports: &[PortRule], plain: &PlainClass, set: &mut [u64]) {
        for port in ports {
            let PortMatch::Named(name) = &port.port else { continue };
            let of_name = plain.named.iter().filter(|it| it.0 == *name && it.1 == port.protocol);
            of_name.for_each(|it| self.add_range(port, it.2, it.2, set));
        }
    }

    /// The first list that contains it decides; all it can do is deny.
    fn is_denied(&self, kind: u32, direction: Direction, plain: &PlainClass) -> bool {
        let lists = self.kinds[kind as usize].lists.iter().filter(|id| plain.lists.contains(id));
        let mut lists = lists.map(|id| &self.cluster.lists[id.index()]);
        lists.find(|list| asked(list, direction)).is_some_and(|list| list.action == ListAction::Deny)
    }

    /// What leaves for a service's address, or for a node's; `None` if that is an address like others.
    fn special(
        &self,
        holders: &PeerMatches,
        kind: u32,
        rows: &LeavingRows<'_>,
        oracle_class: &OracleClass<'c>,
    ) -> Option<Vec<u64>> {
        let plain = &self.oracle_classes.plains()[oracle_class.plain as usize];
        let node = self.kinds[kind as usize].node;
        // Spec: "Traffic to and from the node where a Pod is running is always allowed, regardless of the IP address of
        // the Pod or the node." Only the endpoint's own node: other nodes' addresses are ordinary ones to policy.
        let own_node = node.is_some_and(|node| plain.nodes.contains(&node));
        let denied = !own_node && self.is_denied(kind, Direction::Egress, plain);
        if !own_node && oracle_class.frontend.is_none() {
            return None;
        }
        // A ClusterIP leads to nothing but its service. At a port that the service lacks there is no pod that a rule
        // could select, so only rules without peers can allow it.
        let is_closed = !oracle_class.on_pod && oracle_class.frontend.is_some_and(|it| it.owner.is_some());
        let mut set = match () {
            // The order of these cases is the order of precedence: the first that holds decides.
            () if is_closed && denied => vec![0; words(self.slots.count())],
            () if is_closed => self.closed_ports(holders, kind, oracle_class),
            () if own_node => rows.exempt.get(oracle_class.plain as usize).to_vec(),
            () => rows.plain.get(oracle_class.plain as usize).to_vec(),
        };
        for ((protocol, number), PortClaims { claims, contested }) in self.ports_at(oracle_class, own_node) {
            let slot = self.slots.of((Some(protocol), number));
            let reached = |claim: &(ServiceId, usize)| self.reaches_service(kind, rows, oracle_class, *claim, slot);
            let allowed = !denied && claims.iter().all(reached);
            match (allowed, contested || claims.len() > 1) {
                // A contested port may also lead to the address itself, so the address's own rules must allow it too.
                // They are in `set` already; inserting the port would overrule them.
                (true, true) => {}
                (true, false) => insert(&mut set, slot),
                (false, _) => remove(&mut set, slot),
            }
        }
        Some(set)
    }

    /// The service ports at an address, each with all claims on it, and whether the address itself must be allowed too.
    fn ports_at(&self, oracle_class: &OracleClass<'c>, own_node: bool) -> BTreeMap<(Protocol, u16), PortClaims> {
        let mut found: BTreeMap<(Protocol, u16), PortClaims> = BTreeMap::new();
        for port in oracle_class.frontend.into_iter().flat_map(|it| &it.ports) {
            let at = found.entry((port.protocol, port.port)).or_default();
            at.contested = port.contested || oracle_class.on_pod;
            at.claims.extend(port.claims.iter().map(|(service, index)| (*service, *index as usize)));
        }
        // Node ports of every service: kube-proxy opens them on all nodes, whichever node the backends are on.
        if own_node && oracle_class.family.is_some() && self.cluster.assume.service_address == ServiceAddress::Backends
        {
            for (id, service) in self.cluster.services.iter().enumerate() {
                for (index, port) in service.ports.iter().enumerate() {
                    let at = port.node_port.map(|number| found.entry((port.protocol, number)).or_default());
                    at.into_iter().for_each(|at| _ = at.claims.insert((ServiceId(id as u32), index)));
                }
            }
        }
        found
    }

    /// The ports of a service address that the service lacks. There is no pod behind them: to cluster-wide policies they
    /// are ports of an address like others.
    fn closed_ports(&self, holders: &PeerMatches, kind: u32, oracle_class: &OracleClass<'c>) -> Vec<u64> {
        let mut set = self.without_peers(kind, |_| true);
        let is_isolated = !self.isolating(kind, Direction::Egress).is_empty();
        let baseline = (!is_isolated).then(|| self.tier(holders, kind, Tier::Baseline, Direction::Egress)).flatten();
        let admin = self.tier(holders, kind, Tier::Admin, Direction::Egress);
        for tier in [baseline, admin].into_iter().flatten() {
            tier.apply(oracle_class.plain as usize, &mut set);
        }
        set
    }

    /// Whether a `Deny` rule may be about backends that a service port has not got yet.
    fn denies_unknown_backends(&self, kind: u32) -> bool {
        let is_isolated = !self.isolating(kind, Direction::Egress).is_empty();
        self.any_denial(kind, Tier::Admin, Direction::Egress)
            || (!is_isolated && self.any_denial(kind, Tier::Baseline, Direction::Egress))
    }

    /// A service port is allowed if all of its ready backends are.
    fn reaches_service(
        &self,
        kind: u32,
        rows: &LeavingRows<'_>,
        oracle_class: &OracleClass<'c>,
        (service, index): (ServiceId, usize),
        slot: usize,
    ) -> bool {
        let port = &self.cluster.services[service.index()].ports[index];
        let me = self.models[kind as usize];
        let node = self.kinds[kind as usize].node;
        let own = &self.cluster.endpoints[me.index()].addresses;
        let plains = &self.backends[service.index()][index];
        let serves = |address: std::net::IpAddr| {
            oracle_class.family.is_none_or(|it| weir_objects::address::Family::of(address) == it)
        };
        // kube-proxy translates within one family: the IPv6 backends of a dual-stack service never get a packet to its
        // IPv4 address.
        let serving = port.backends.iter().zip(plains).filter(|(it, _)| it.address.is_none_or(serves));
        let serving: Vec<_> = serving.collect();
        if serving.is_empty() {
            // While nothing is known of the ports to come behind it, only a rule that allows them all reaches it.
            let allows_all = |rule: &Rule| rule.ports.is_empty() || rule.ports.iter().any(|it| is_all(it, port));
            return !self.denies_unknown_backends(kind) && contains(&self.without_peers(kind, allows_all), slot);
        }
        // `all` and not `any`: the packet is judged before kube-proxy chooses a backend, and the service proxy chooses
        // at random. A service that works now and then is worse than one that never works.
        serving.into_iter().all(|(backend, plain)| {
            // Spec: "A Pod cannot block access to itself." Cluster-wide policies can, if it is behind a service.
            let itself = backend.endpoint == Some(me) || backend.address.is_some_and(|at| own.contains(&at));
            let own_node = node.is_some_and(|node| self.oracle_classes.plains()[*plain as usize].nodes.contains(&node));
            let at = self.slots.of((Some(port.protocol), backend.port));
            match () {
                () if itself => rows.allow_hairpin(*plain as usize, at),
                () if own_node => contains(rows.exempt.get(*plain as usize), at),
                () => contains(rows.plain.get(*plain as usize), at),
            }
        })
    }

    /// A hostPort of the endpoint's node leads to a pod, and is allowed only as far as that pod is.
    fn take_host_ports(&self, kind: u32, rows: &LeavingRows<'_>, oracle_class: &OracleClass<'c>, set: &mut [u64]) {
        let of = &self.kinds[kind as usize];
        for index in &oracle_class.host_ports {
            let claim = &self.cluster.host_ports[*index];
            let plain = self.claimants[*index] as usize;
            // Spec: "A Pod cannot block access to itself." Cluster-wide policies can, if the node translates the packet.
            let itself = of.claims.contains(index);
            let own_node = of.node.is_some_and(|node| self.oracle_classes.plains()[plain].nodes.contains(&node));
            let at = self.slots.of((Some(claim.protocol), claim.backend.port));
            // Other nodes' hostPorts are ordinary ports here. The policies of the pod behind them judge the packet
            // where it arrives.
            let is_allowed = match () {
                () if itself => rows.allow_hairpin(plain, at),
                () if own_node => contains(rows.exempt.get(plain), at),
                () => contains(rows.plain.get(plain), at),
            };
            if of.node == Some(claim.node) && !is_allowed {
                remove(set, self.slots.of((Some(claim.protocol), claim.port)));
            }
        }
    }

    /// What rules that name no peer allow, where nothing is known of the other end.
    fn without_peers(&self, kind: u32, keep: impl Fn(&Rule) -> bool) -> Vec<u64> {
        // Only egress: a service's address is a destination.
        let isolating = self.isolating(kind, Direction::Egress);
        if isolating.is_empty() {
            return bits::full(self.slots.count());
        }
        let mut set = vec![0; words(self.slots.count())];
        let rules = isolating.iter().flat_map(|policy| policy.rules(Direction::Egress).unwrap_or_default());
        for rule in rules.filter(|rule| rule.peers.is_empty() && keep(rule)) {
            add(&mut set, &self.numbered(kind, Direction::Egress, &rule.ports));
        }
        set
    }
}

fn asked(list: &weir_model::CidrList, direction: Direction) -> bool {
    match direction {
        Direction::Ingress => list.ingress,
        Direction::Egress => list.egress,
    }
}

/// Whether a rule's port is every port of a service port's protocol.
fn is_all(rule: &PortRule, port: &ServicePort) -> bool {
    rule.protocol == port.protocol
        && match rule.port {
            PortMatch::Any => true,
            // From 1, because the API knows no port 0: `1-65535` is how manifests write "every port".
            PortMatch::Range(first, last) => first <= 1 && last == u16::MAX,
            PortMatch::Named(_) => false,
        }
}
