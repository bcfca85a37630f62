//! The entries that other entries decide: addresses of services, node ports and hostPorts lead to backends.
//!
//! A service port is allowed if all of its backends are. Their entries are in the row already, so this step comes last.

use super::{BackendProperties, OpenRow, RowBuilder, entry_bytes, set_steps};
use crate::meter::ENTRY_BYTES;
use crate::ports::AtomSet;
use crate::predicates::{DraftRule, PredicateId};
use crate::vips::{OtherPorts, ServiceVip, VipPort};
use crate::{PeerId, SubjectClass};
use weir_model::{Direction, HostPort, ListAction, ListId, ServiceId, Tier};
use weir_objects::address::Family;

/// What decides about the special addresses of a subject. A cluster may have thousands of them, one for each service,
/// so their common parts are made once.
#[derive(Clone, Copy)]
struct SpecialRows<'r> {
    /// All policies and lists.
    open: &'r OpenRow,
    /// Only the policies that apply to the own node; `None` if everything is allowed.
    exempt: Option<&'r OpenRow>,
    /// The rules of NetworkPolicies that isolate; `None` if none does.
    rules: Option<&'r [&'r DraftRule]>,
    /// The atoms that rules without peers allow.
    without_peers: &'r AtomSet,
}

impl<'a> RowBuilder<'a> {
    /// Overwrites the entries of service addresses, of the pod's own node, and of hostPorts there.
    pub(super) fn overlay_special(&self, subject: &SubjectClass, open: &mut OpenRow) {
        // Then the rows below would be made for nothing.
        if self.special().is_empty() {
            return;
        }
        let exempt = self.exempt(Direction::Egress, subject);
        let rules = self.rules_of(Direction::Egress, subject);
        let rules = rules.as_deref();
        let without_peers = &self.without_peers(subject, rules, |_| true);
        let rows = SpecialRows { open, exempt: exempt.as_ref(), rules, without_peers };
        let mut special = Vec::with_capacity(self.special().len());
        for id in self.special() {
            let peer = self.peer(*id);
            // Only the own node is always reached. Other nodes are ordinary addresses.
            let own_node = subject.node.is_some_and(|node| peer.nodes.contains(&node));
            let vip = peer.vip.map(|vip| &self.peers.vips[vip as usize]);
            if own_node || vip.is_some() || self.claims(subject, *id).next().is_some() {
                // This also counts its entry in the finished row.
                let bytes = ENTRY_BYTES + entry_bytes(&open.default);
                if !self.meter.take_for_services(bytes, set_steps(self.atoms)) {
                    return;
                }
                special.push((*id, self.special_set(subject, rows, *id, vip, own_node)));
            }
        }
        open.overlay(special);
        self.meter.give_back(exempt.map_or(0, |row| row.bytes()));
    }

    fn special_set(
        &self,
        subject: &SubjectClass,
        rows: SpecialRows<'_>,
        id: PeerId,
        vip: Option<&ServiceVip>,
        own_node: bool,
    ) -> AtomSet {
        // No list can cut a pod off from its own node, and no NetworkPolicy. Cluster-wide policies can.
        let denied = !own_node && self.is_denied_by_list(subject, id);
        // First the ports that no service has, then each claim, then hostPorts: each step overrides the ones before.
        let mut set = match (own_node, vip.map(|vip| vip.rest)) {
            (true, _) => rows.exempt.map_or_else(|| AtomSet::all(self.atoms.count()), |row| row.get(id).clone()),
            (false, Some(OtherPorts::Closed)) if denied => AtomSet::none(self.atoms.count()),
            (false, Some(OtherPorts::Closed)) => self.without_service(subject, rows, id),
            (false, _) => rows.open.get(id).clone(),
        };
        for port in self.ports_at(vip, own_node) {
            let allowed = !denied && self.is_service_port_allowed(subject, rows, id, port);
            match (allowed, port.contested) {
                // A contested claim never adds anything. If it could, an `externalIPs` entry of any tenant would open
                // an address that policy denies: https://github.com/kubernetes/kubernetes/issues/97076
                (true, true) => {}
                (true, false) => set.insert(port.atom),
                (false, _) => set.remove(port.atom),
            }
        }
        // Last, because hostPorts only deny, also ports that a service claims.
        self.take_host_ports(subject, rows, id, &mut set);
        set
    }

    /// The claims on an address. On the pod's own node, they include the node ports of services.
    fn ports_at(&self, vip: Option<&ServiceVip>, own_node: bool) -> Vec<VipPort> {
        let mut ports: Vec<VipPort> = vip.map_or_else(Vec::new, |vip| vip.ports.clone());
        if own_node {
            ports.extend(&self.facts.node_ports);
        }
        ports.sort_unstable();
        // A service can claim a port of the node's address twice: as its node port, and as its port on an external
        // address that the node has. It does not contest itself.
        ports.dedup_by(|again, first| {
            let is_same = (again.atom, again.service, again.port) == (first.atom, first.service, first.port);
            first.contested |= is_same && again.contested;
            is_same
        });
        // The service proxy may use any of these services, so each of them may only deny. An atom is one port here:
        // claims have atoms of their own.
        for of_one in ports.chunk_by_mut(|a, b| a.atom == b.atom).filter(|it| it.len() > 1) {
            of_one.iter_mut().for_each(|it| it.contested = true);
        }
        ports
    }

    /// Applies hostPorts, which can only deny. If several pods or a service claim the same port, all of them must be
    /// allowed.
    fn take_host_ports(&self, subject: &SubjectClass, rows: SpecialRows<'_>, id: PeerId, set: &mut AtomSet) {
        for (index, claim) in self.claims(subject, id) {
            // No NetworkPolicy keeps a pod from itself, also when the node translates the packet back to it.
            let own = subject.own_host_ports.binary_search_by_key(&index, |(index, _)| *index);
            let behind = self.stands_behind(&claim.backend, claim.protocol);
            let is_allowed = match own {
                Ok(at) => subject.own_host_ports[at].1,
                Err(_) => self.reaches(rows.open, rows.exempt, subject, behind),
            };
            if !is_allowed {
                set.remove(self.atoms.find(claim.protocol, claim.port));
            }
        }
    }

    /// The hostPorts on a peer's address that the subject's own node translates.
    pub(super) fn claims(&self, subject: &SubjectClass, id: PeerId) -> impl Iterator<Item = (u32, &'a HostPort)> {
        let (node, claims) = (subject.node, &self.cluster.host_ports);
        let claims = self.peer(id).host_ports.iter().map(|index| (*index, &claims[*index as usize]));
        // Two nodes can share an address, but only the own node translates the pod's packets.
        claims.filter(move |(_, claim)| node == Some(claim.node))
    }

    /// The atoms that are allowed to a service address at ports that the service lacks. No backend gets such a packet,
    /// so NetworkPolicies match it by rules without peers only. To cluster-wide policies it is an address like others.
    fn without_service(&self, subject: &SubjectClass, rows: SpecialRows<'_>, id: PeerId) -> AtomSet {
        let mut set = rows.without_peers.clone();
        let baseline =
            rows.rules.is_none().then(|| self.tier_row(Tier::Baseline, Direction::Egress, subject)).flatten();
        let admin = self.tier_row(Tier::Admin, Direction::Egress, subject);
        [baseline, admin].iter().flatten().for_each(|tier| tier.get(id).apply(&mut set));
        set
    }

    /// The atoms that rules without peers allow.
    fn without_peers(
        &self,
        subject: &SubjectClass,
        rules: Option<&[&DraftRule]>,
        keep: impl Fn(&DraftRule) -> bool,
    ) -> AtomSet {
        let Some(rules) = rules else { return AtomSet::all(self.atoms.count()) };
        let mut set = AtomSet::none(self.atoms.count());
        // Skipped rules cost steps too, because each of them is examined.
        if !self.meter.take_for_services(0, rules.len() as u64 / 4) {
            return set;
        }
        for rule in rules.iter().filter(|rule| rule.peers.is_none() && keep(rule)) {
            set.add(&self.atoms_of(Direction::Egress, subject, rule.ports.as_ref()));
        }
        set
    }

    fn is_denied_by_list(&self, subject: &SubjectClass, peer: PeerId) -> bool {
        let predicates = &self.peer(peer).predicates;
        let contains = |list: &&ListId| {
            let holds = |id: PredicateId| predicates.binary_search(&id).is_ok();
            self.cluster.lists[list.index()].egress && self.matching().of_list(**list).is_some_and(holds)
        };
        // The row does not show this: an entry without atoms can come from a list or from rules.
        let first = subject.lists.iter().find(contains);
        first.is_some_and(|list| self.cluster.lists[list.index()].action == ListAction::Deny)
    }

    fn is_service_port_allowed(
        &self,
        subject: &SubjectClass,
        rows: SpecialRows<'_>,
        address: PeerId,
        port: VipPort,
    ) -> bool {
        let ServiceId(service) = port.service;
        let of_service = &self.cluster.services[service as usize].ports[port.port as usize];
        let family = self.family_of(address);
        let behind = self.facts.behind_port(service, port.port, family);
        if behind.is_empty() {
            // If the service port may get backends with any port, only a rule that allows all ports reaches it.
            let allows_all =
                |rule: &DraftRule| rule.ports.as_ref().is_none_or(|ports| ports.cover(of_service.protocol));
            return !self.denies_unknown_backends(subject, rows.rules.is_some())
                && self.without_peers(subject, rows.rules, allows_all).contains(port.atom);
        }
        if !self.meter.take_for_services(0, 4 * behind.len() as u64) {
            return false;
        }
        let key = (service, port.port, family);
        let own = subject.own_services.binary_search_by_key(&key, |it| (it.service, it.port, it.family));
        match own {
            Ok(at) => subject.own_services[at].is_allowed,
            // All of them: the proxy picks a backend at random, and a service that fails now and then is worse than one
            // that always fails. `weir check` reports services that are allowed in part.
            Err(_) => behind.iter().all(|it| self.reaches(rows.open, rows.exempt, subject, *it)),
        }
    }

    pub(super) fn reaches(
        &self,
        open: &OpenRow,
        exempt: Option<&OpenRow>,
        subject: &SubjectClass,
        behind: BackendProperties,
    ) -> bool {
        let BackendProperties { peer, atom, node, .. } = behind;
        debug_assert!(self.matching().classes.contains(peer), "the rows have no verdict about other classes");
        // A backend on the network of the pod's own node is the own node. `open` does not know that yet: it has no
        // special entries.
        let own_node = subject.node.is_some_and(|own| self.peer(peer).nodes.contains(&own) || node == Some(own));
        match own_node {
            true => exempt.is_none_or(|row| row.get(peer).contains(atom)),
            false => open.get(peer).contains(atom),
        }
    }

    fn family_of(&self, peer: PeerId) -> Family {
        let peer = self.peer(peer);
        // The default is never used: an address has claims only as a service VIP or as the own node's, and both know
        // the family.
        peer.family.or(peer.vip.map(|vip| self.peers.vips[vip as usize].family)).unwrap_or(Family::V4)
    }
}
