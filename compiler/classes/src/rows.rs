//! Verdict rows: for a subject class, which atoms each peer class may use.
//!
//! A row's default is the set for a peer of class 0; its entries are the peer classes with other sets. The cost of a
//! row depends only on the matches of its own subject's rules: other subjects' policies are not examined.

mod facts;
mod open;
mod part;
mod provenance;
mod services;
mod tiers;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use facts::{BackendProperties, Matching, backend_ports};
pub(super) use facts::{LocalBackends, RowFacts, is_reached};
use open::{Entries, OpenRow, entry_bytes};
use part::RowPart;
pub(super) use part::{PartClasses, SpecialChanges};
pub(super) use provenance::{provenance, tier_decision};
use tiers::{HairpinRows, TierRows};

use super::meter::{ENTRY_BYTES, Meter, SET_COPIES};
use super::peers::Peers;
use super::ports::{self, AtomId, AtomSet, AtomSetId, Atoms};
use super::predicates::{DraftPorts, DraftRule, PredicateId, RulePredicates};
use super::subjects::{LocalEndpoint, SubjectDraft};
use super::{AuditEffect, OwnServicePort, PeerClass, PeerId, SubjectClass, SubjectId, VerdictRows};
use weir_model::{
    Backend, CidrList, Cluster, Direction, EndpointId, HostPort, Interner, ListAction, Protocol, ServiceId,
    ServicePort, Standing, Tier,
};
use weir_objects::address::Family;

/// The atoms that one subject class allows, in one direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// The set for every peer class without an entry.
    pub default: AtomSetId,
    /// The classes whose set differs from the default, sorted by peer class.
    pub entries: Arc<[(PeerId, AtomSetId)]>,
}

impl Row {
    /// The set for a peer class.
    pub fn find(&self, peer: PeerId) -> AtomSetId {
        let found = self.entries.binary_search_by_key(&peer, |(id, _)| *id);
        found.map_or(self.default, |index| self.entries[index].1)
    }
}

/// The verdicts of a cluster, with the data from which the rows of single subjects can be made again.
pub(super) struct BuiltRows {
    pub(super) subjects: Vec<SubjectClass>,
    pub(super) subject_of: Vec<(EndpointId, SubjectId)>,
    pub(super) rows: VerdictRows,
    pub(super) facts: RowFacts,
    pub(super) sets: Interner<AtomSet>,
}

pub(super) fn build(
    cluster: &Cluster,
    draft: &SubjectDraft,
    rules: &RulePredicates,
    atoms: &Atoms,
    peers: &Peers,
    meter: &Meter,
) -> BuiltRows {
    let facts = RowFacts::new(cluster, draft, rules, atoms, peers, meter);
    let mut builder = RowBuilder::new(cluster, rules, atoms, peers, meter, facts, Interner::default());
    let subject_of = builder.subjects(&draft.local);
    let mut subjects: Vec<SubjectClass> = subject_of.iter().map(|(_, subject)| subject.clone()).collect();
    // Sorted, so that the numbers of the classes depend on their content and not on the order of endpoints.
    subjects.sort();
    subjects.dedup();
    let ingress: Vec<Row> = subjects.iter().map(|subject| builder.row(Direction::Ingress, subject)).collect();
    let egress: Vec<Row> = subjects.iter().map(|subject| builder.row(Direction::Egress, subject)).collect();
    // Without audit policies there is no second table, and the programs get no second test.
    let is_audit = subjects.iter().any(|subject| subject.audit.is_some());
    let audit = is_audit.then(|| builder.audit(&subjects, [&ingress, &egress]));
    // Programs need this apart from the rows: an ICMP error passes because of the flow that it quotes, so only the
    // lists can still deny its sender. `None` leaves the test out of the programs.
    let denied: Vec<_> = subjects.iter().map(|it| builder.denied_by_lists(Direction::Ingress, it)).collect();
    let denied_by_lists = denied.iter().any(|peers| !peers.is_empty()).then_some(denied);
    let number = |subject: &SubjectClass| SubjectId(subjects.partition_point(|it| it < subject) as u32);
    let subject_of = subject_of.iter().map(|(id, subject)| (*id, number(subject))).collect();
    let RowBuilder { facts, sets, .. } = builder;
    let atom_sets = sets.to_vec();
    BuiltRows {
        subject_of,
        subjects,
        rows: VerdictRows { atom_sets, ingress, egress, audit, denied_by_lists },
        facts,
        sets,
    }
}

pub(super) struct RowBuilder<'a> {
    cluster: &'a Cluster,
    rules: &'a RulePredicates,
    atoms: &'a Atoms,
    peers: &'a Peers,
    meter: &'a Meter,
    facts: RowFacts,
    /// The entries that it makes; `None` if all.
    part: Option<RowPart>,
    sets: Interner<AtomSet>,
    tier_rows: RefCell<TierRows>,
}

/// Steps that it takes to go through a set of atoms.
fn set_steps(atoms: &Atoms) -> u64 {
    1 + atoms.count() as u64 / 256
}

impl<'a> RowBuilder<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        rules: &'a RulePredicates,
        atoms: &'a Atoms,
        peers: &'a Peers,
        meter: &'a Meter,
        facts: RowFacts,
        sets: Interner<AtomSet>,
    ) -> Self {
        Self { cluster, rules, atoms, peers, meter, facts, part: None, sets, tier_rows: RefCell::default() }
    }

    /// Ends the building of rows.
    pub(super) fn into_parts(self) -> (RowFacts, Interner<AtomSet>) {
        (self.facts, self.sets)
    }

    /// The facts after some services have changed, and those of these services that are judged by other backends now.
    pub(super) fn with_backends(mut self, services: &BTreeSet<ServiceId>) -> (RowFacts, BTreeSet<ServiceId>) {
        let mut others = BTreeSet::new();
        for id in services {
            let ports = self.cluster.services[id.index()].ports.iter();
            let behind: Vec<_> = ports.map(|port| self.behind(port)).collect();
            self.facts.backend_ports.extend(backend_ports([&self.cluster.services[id.index()]]));
            if self.facts.behind[id.index()] != behind {
                self.facts.behind[id.index()] = behind;
                others.insert(*id);
            }
        }
        (self.facts, others)
    }

    fn behind(&self, port: &ServicePort) -> [Vec<BackendProperties>; 2] {
        [Family::V4, Family::V6].map(|family| {
            // By family: a packet to an IPv6 address of a service never goes to an IPv4 backend.
            let backends = port.backends.iter().filter(|it| serves(it, family));
            if !self.meter.take_for_services(0, 4 * port.backends.len() as u64) {
                return Vec::new();
            }
            let mut behind: Vec<BackendProperties> = backends.map(|it| self.stands_behind(it, port.protocol)).collect();
            // Backends of one class cannot be distinguished by any rule. A service with thousands of pods is a few
            // classes, and each row asks about these.
            behind.sort_unstable();
            behind.dedup();
            let fits = self.meter.take_for_services(size_of_val(behind.as_slice()) as u64, 0);
            // An empty list would mean "no backends". It reaches no verdict, because the caller checks the meter.
            if fits { behind } else { Vec::new() }
        })
    }

    fn stands_behind(&self, backend: &Backend, protocol: Protocol) -> BackendProperties {
        let by_address = backend.address.map(|address| self.peers.addresses.find(address));
        let by_endpoint = backend.endpoint.and_then(|id| self.peers.without_address.get(&id).copied());
        let host = backend.endpoint.filter(|id| {
            backend.address.is_none() && self.cluster.endpoints[id.index()].standing == Standing::HostNetwork
        });
        BackendProperties {
            // The address before the endpoint: a slice can still list a terminating pod whose address is another pod's,
            // and the packet goes to the address. A backend with neither is an unknown peer, for which only rules
            // without peers hold.
            peer: by_address.or(by_endpoint).unwrap_or(PeerId(0)),
            port: backend.port,
            atom: self.atoms.find(protocol, backend.port),
            node: host.and_then(|id| self.cluster.endpoints[id.index()].node),
        }
    }

    /// The subject classes of local endpoints, with services and hostPorts. The endpoints are sorted.
    pub(super) fn subjects(&self, local: &[LocalEndpoint]) -> Vec<(EndpointId, SubjectClass)> {
        let mut subjects: Vec<_> = local.iter().map(|local| (local.endpoint, self.subject(local))).collect();
        let of_audit =
            |(id, it): &(EndpointId, SubjectClass)| it.audit.is_some().then(|| (*id, it.clone().with_audit_enforced()));
        // Audit variants are asked as subjects of their own: their policies change which backends they reach.
        let audit: Vec<_> = subjects.iter().filter_map(of_audit).collect();
        // Both look-ups come before the assignments below, because they share rows between subjects that lack these
        // fields.
        let [mut own_host_ports, mut audit_host_ports] = [&subjects, &audit].map(|of| self.own_host_ports(of));
        let [mut own_services, mut audit] = [&subjects, &audit].map(|of| self.own_services(of));
        for (endpoint, subject) in &mut subjects {
            subject.own_services = own_services.remove(endpoint).unwrap_or_default();
            subject.own_host_ports = own_host_ports.remove(endpoint).unwrap_or_default();
            if let Some(of_audit) = &mut subject.audit {
                of_audit.own_services = audit.remove(endpoint).unwrap_or_default();
                of_audit.own_host_ports = audit_host_ports.remove(endpoint).unwrap_or_default();
            }
        }
        subjects
    }

    fn subject(&self, local: &LocalEndpoint) -> SubjectClass {
        let endpoint = &self.cluster.endpoints[local.endpoint.index()];
        // Ignores named ports that none of its policies mention: they cannot affect its class.
        let mut spoken: Vec<u32> = local
            .policies
            .iter()
            .chain(&local.audit)
            .flat_map(|policy| self.rules.of(*policy, Direction::Ingress).unwrap_or_default())
            .chain(local.tiers.iter().chain(&local.audit_tiers).flat_map(|id| self.rules.ingress_of_tier(*id)))
            .filter_map(|rule| rule.ports.as_ref())
            .flat_map(|ports| ports.named.iter().copied())
            .collect();
        spoken.sort_unstable();
        let mut named = ports::named(&endpoint.named_ports, &self.rules.ids[Direction::Ingress as usize]);
        named.retain(|(name, _)| spoken.binary_search(name).is_ok());
        SubjectClass {
            policies: local.policies.clone(),
            tiers: local.tiers.clone(),
            lists: local.lists.clone(),
            named,
            node: local.node,
            own_services: Vec::new(),
            own_host_ports: Vec::new(),
            audit: (!local.audit.is_empty() || !local.audit_tiers.is_empty()).then(|| AuditEffect {
                policies: local.audit.clone(),
                tiers: local.audit_tiers.clone(),
                ..AuditEffect::default()
            }),
        }
    }

    /// Service ports that lead to the pod itself, where that changes the verdict: no NetworkPolicy and no list can keep
    /// a pod from itself, and cluster-wide policies judge it in both directions. Subjects are sorted by endpoint.
    fn own_services(&self, subjects: &[(EndpointId, SubjectClass)]) -> HashMap<EndpointId, Vec<OwnServicePort>> {
        let subject_of = |id| {
            let found = subjects.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            Some((id, &subjects[found].1))
        };
        // Rows by subject: here subjects still lack their own services, so most pods of a namespace share one row.
        let mut rows: HashMap<&SubjectClass, (OpenRow, HairpinRows)> = HashMap::new();
        let mut found: HashMap<EndpointId, Vec<OwnServicePort>> = HashMap::new();
        // From services to local pods. The other way round, every pod would ask about every service.
        for LocalBackends { service, port: index, endpoints } in &self.facts.to_local {
            let (service, index) = (*service, *index);
            let local: Vec<_> = endpoints.iter().filter_map(|id| subject_of(*id)).collect();
            if local.is_empty() {
                continue;
            }
            let port = &self.cluster.services[service as usize].ports[index as usize];
            let behind = |it: &Backend| self.stands_behind(it, port.protocol);
            for family in [Family::V4, Family::V6] {
                let backends = || port.backends.iter().filter(|it| serves(it, family));
                let of_family = local.iter().filter(|(id, _)| backends().any(|it| it.endpoint == Some(*id)));
                for &(own, subject) in of_family {
                    if !self.meter.take_for_services(0, 4 * port.backends.len() as u64) {
                        return found;
                    }
                    let (row, hairpin) = rows
                        .entry(subject)
                        .or_insert_with(|| (self.ordinary(Direction::Egress, subject), self.hairpin(subject)));
                    let reached = |it: BackendProperties| self.reaches(row, hairpin.leaving(), subject, it);
                    // Most pods reach every backend, and these are a few classes. Then only the own backends are left.
                    let reaches_all = self.facts.behind_port(service, index, family).iter().all(|it| reached(*it));
                    let is_allowed = backends().all(|it| match self.is_backend(it, own) {
                        true => hairpin.allow(behind(it)),
                        false => reaches_all || reached(behind(it)),
                    });
                    // Only where it changes the verdict. If the pod's own backend is allowed anyway, an entry would
                    // make every backend pod a subject class of its own, with a row of its own.
                    if is_allowed != reaches_all {
                        found.entry(own).or_default().push(OwnServicePort { service, port: index, family, is_allowed });
                    }
                }
            }
        }
        // `ordinary` has charged these rows, which end here.
        self.meter.give_back(rows.into_values().map(|(row, hairpin)| row.bytes() + hairpin.bytes()).sum());
        found
    }

    /// hostPorts that lead to the pod itself, where that changes the verdict. Subjects are sorted by endpoint.
    fn own_host_ports(&self, subjects: &[(EndpointId, SubjectClass)]) -> HashMap<EndpointId, Vec<(u32, bool)>> {
        let mut found: HashMap<EndpointId, Vec<(u32, bool)>> = HashMap::new();
        // Where no policy and no list applies to egress, no hostPort makes a difference.
        let is_judged =
            |it: &SubjectClass| self.is_judged(Direction::Egress, it) || self.has_tiers(Direction::Ingress, it);
        for (id, subject) in subjects.iter().filter(|(_, it)| is_judged(it)) {
            let claims = subject.node.into_iter().flat_map(|node| self.cluster.host_ports_of(node));
            let own: Vec<_> = claims.filter(|(_, it)| self.is_backend(&it.backend, *id)).collect();
            if own.is_empty() {
                continue;
            }
            let row = self.ordinary(Direction::Egress, subject);
            let hairpin = self.hairpin(subject);
            let behind = |it: &HostPort| self.stands_behind(&it.backend, it.protocol);
            let reached = |it: &HostPort| self.reaches(&row, hairpin.leaving(), subject, behind(it));
            let own = own.into_iter().map(|(index, it)| (index as u32, hairpin.allow(behind(it)), reached(it)));
            let changed = own.filter(|(_, is_allowed, reached)| is_allowed != reached);
            found.insert(*id, changed.map(|(index, is_allowed, _)| (index, is_allowed)).collect());
            self.meter.give_back(row.bytes() + hairpin.bytes());
        }
        found
    }

    /// Whether a backend is this pod: the backend may be a terminating pod whose address this pod has now.
    fn is_backend(&self, backend: &Backend, own: EndpointId) -> bool {
        let endpoint = &self.cluster.endpoints[own.index()];
        let at = |address| endpoint.addresses.contains(&address);
        // The address counts as well as the name, because the packet goes to the pod that has the address.
        // The service of a workload may lead to another pod of it.
        !endpoint.is_several && (backend.endpoint == Some(own) || backend.address.is_some_and(at))
    }

    /// The rows as they would be if the audit policies were enforced; most of them are equal to the enforced ones.
    pub(super) fn audit(&mut self, subjects: &[SubjectClass], enforced: [&[Row]; 2]) -> [Vec<Row>; 2] {
        let mut rows = |direction, enforced: &[Row]| {
            subjects.iter().zip(enforced).map(|(subject, it)| self.audit_row(direction, subject, it)).collect()
        };
        [rows(Direction::Ingress, enforced[0]), rows(Direction::Egress, enforced[1])]
    }

    pub(super) fn audit_row(&mut self, direction: Direction, subject: &SubjectClass, enforced: &Row) -> Row {
        match &subject.audit {
            Some(_) => self.row(direction, &subject.clone().with_audit_enforced()),
            // No audit policy selects this class, so the row cannot differ.
            None => enforced.clone(),
        }
    }

    pub(super) fn row(&mut self, direction: Direction, subject: &SubjectClass) -> Row {
        let mut open = self.ordinary(direction, subject);
        let bytes = open.bytes();
        // For ingress there is nothing to overlay: a source address is no evidence that the own node sent a packet (it
        // can be masqueraded or forged), so programs decide that by the packet, and services are no sources.
        if direction == Direction::Egress && self.has_special_addresses(subject) {
            self.overlay_special(subject, &mut open);
        }
        let default = self.intern(&open.default, false);
        let mut entries: Vec<(PeerId, AtomSetId)> = Vec::new();
        for (peer, set) in open.entries {
            // Others only decide about those of the part.
            if self.part.as_ref().is_some_and(|part| !part.contains(direction, peer)) {
                continue;
            }
            let is_special = self.special().binary_search(&peer).is_ok();
            let set = self.intern(&set, is_special);
            // An entry that equals the default would only make the table larger.
            if set == default {
                continue;
            }
            // Special entries have been charged to the account of Services already, in `overlay_special`.
            if !is_special && !self.meter.take(ENTRY_BYTES, 1) {
                break;
            }
            entries.push((peer, set));
        }
        // The open row ends here. Its finished entries and new sets are charged above, since they stay.
        self.meter.give_back(bytes);
        Row { default, entries: entries.into() }
    }

    /// Whether the egress row of a class can depend on the backends of services, or on the own node and hostPorts.
    pub(super) fn has_special_addresses(&self, subject: &SubjectClass) -> bool {
        // Where everything is allowed, all backends are.
        let leads_back = !subject.own_services.is_empty() || !subject.own_host_ports.is_empty();
        leads_back || self.is_judged(Direction::Egress, subject)
    }

    fn intern(&mut self, set: &AtomSet, is_special: bool) -> AtomSetId {
        let before = self.sets.len();
        let id = AtomSetId(self.sets.intern_ref(set));
        let new = (self.sets.len() - before) as u64;
        let (bytes, steps) = (new * SET_COPIES * entry_bytes(set), set_steps(self.atoms));
        // The result is ignored here: the caller asks the meter again at its next step.
        _ = if is_special { self.meter.take_for_services(bytes, steps) } else { self.meter.take(bytes, steps) };
        id
    }

    /// Whether any policy, cluster-wide or not, or list applies to it in this direction.
    fn is_judged(&self, direction: Direction, subject: &SubjectClass) -> bool {
        let lists = || subject.lists.iter().map(|id| &self.cluster.lists[id.index()]);
        subject.policies.iter().any(|id| self.rules.of(*id, direction).is_some())
            || self.has_tiers(direction, subject)
            || lists().any(|list| asks(list, direction))
    }

    /// The effect of policies and lists, without services, nodes and hostPorts.
    fn ordinary(&self, direction: Direction, subject: &SubjectClass) -> OpenRow {
        let mut open = match self.rules_of(direction, subject) {
            None => {
                let mut open = OpenRow { default: AtomSet::all(self.atoms.count()), entries: Vec::new() };
                self.overlay_tier(Tier::Baseline, direction, subject, &mut open);
                open
            }
            // NetworkPolicy is final for pods that it isolates, so the Baseline tier is not asked.
            Some(rules) => self.union(direction, subject, &rules),
        };
        self.overlay_tier(Tier::Admin, direction, subject, &mut open);
        // Lists last: they are decided before policies, so a denial has to replace what rules have allowed.
        self.overlay_lists(direction, subject, &mut open);
        open
    }

    /// Every rule of every policy that isolates; `None` if none does.
    fn rules_of(&self, direction: Direction, subject: &SubjectClass) -> Option<Vec<&'a DraftRule>> {
        let isolating: Vec<_> = subject.policies.iter().filter_map(|id| self.rules.of(*id, direction)).collect();
        // An isolating policy without rules gives `Some` of an empty list: nothing is allowed. `None` means that
        // everything is.
        (!isolating.is_empty()).then(|| isolating.into_iter().flatten().collect())
    }

    fn union(&self, direction: Direction, subject: &SubjectClass, rules: &[&DraftRule]) -> OpenRow {
        let mut default = AtomSet::none(self.atoms.count());
        // Rules without peers first: they make the default, from which every entry starts. So no rule has to visit all
        // classes.
        for rule in rules.iter().filter(|rule| rule.peers.is_none()) {
            default.add(&self.atoms_of(direction, subject, rule.ports.as_ref()));
        }
        let mut entries = Entries::new(&self.matching().classes, default);
        // As long as there are classes in the facts, however few rules the subject has, and so charged on its own.
        let scratch = size_of_val(entries.positions.as_slice()) as u64;
        let mut fits = self.meter.take(scratch, 0);
        for rule in rules {
            if !fits {
                break;
            }
            let before = entries.list.len();
            self.add_rule(direction, subject, rule, &mut entries);
            let new = (entries.list.len() - before) as u64;
            fits = self.meter.take(new * entry_bytes(&entries.default), 1);
        }
        self.meter.give_back(scratch);
        entries.sorted()
    }

    fn add_rule(&self, direction: Direction, subject: &SubjectClass, rule: &DraftRule, entries: &mut Entries<'_>) {
        // Its ranges are in the default already. Its named ports have another number on each peer, so they are entries.
        let Some(peers) = &rule.peers else { return self.add_names(direction, rule, None, entries) };
        // At most once for each rule, and only if a class matches: new classes match few rules.
        let mut atoms = None;
        for predicate in peers {
            let holding = self.matching().holding(*predicate);
            if holding.is_empty() {
                continue;
            }
            let atoms = atoms.get_or_insert_with(|| self.atoms_of(direction, subject, rule.ports.as_ref()));
            // Charged before the loop. A namespace that writes many rules for many classes reaches the limit here.
            if !self.meter.take(0, holding.len() as u64 * set_steps(self.atoms)) {
                return;
            }
            holding.iter().for_each(|peer| entries.of(*peer).add(atoms));
        }
        self.add_names(direction, rule, Some(peers), entries);
    }

    /// Adds the named ports of an egress rule: each peer has its own numbers.
    fn add_names(
        &self,
        direction: Direction,
        rule: &DraftRule,
        peers: Option<&[PredicateId]>,
        entries: &mut Entries<'_>,
    ) {
        self.each_name(direction, rule, peers, |peer, atom| entries.of(peer).insert(atom));
    }

    /// Calls `act` with each peer class that the named ports of an egress rule match, and with the atom there.
    fn each_name(
        &self,
        direction: Direction,
        rule: &DraftRule,
        peers: Option<&[PredicateId]>,
        mut act: impl FnMut(PeerId, AtomId),
    ) {
        // In ingress the subject is the destination; `atoms_of` has added its numbers.
        let named = rule.ports.as_ref().filter(|_| direction == Direction::Egress).map(|ports| &ports.named);
        for name in named.into_iter().flatten() {
            let protocol = self.rules.egress_names[*name as usize].0;
            let naming = self.matching().naming(*name);
            if !self.meter.take(0, naming.len() as u64 * (1 + 4 * peers.map_or(0, <[_]>::len) as u64)) {
                return;
            }
            for (peer, number) in naming {
                let holds = |predicate: &PredicateId| self.peer(*peer).predicates.binary_search(predicate).is_ok();
                // The peer has to match the rule too. A name alone would allow the port on pods that the rule does not
                // select.
                if peers.is_none_or(|peers| peers.iter().any(holds)) {
                    act(*peer, self.atoms.find(protocol, *number));
                }
            }
        }
    }

    /// The atoms of a rule's ports that do not depend on the peer.
    fn atoms_of(&self, direction: Direction, subject: &SubjectClass, ports: Option<&DraftPorts>) -> AtomSet {
        let Some(ports) = ports else { return AtomSet::all(self.atoms.count()) };
        let mut set = AtomSet::none(self.atoms.count());
        for (protocol, first, last) in &ports.ranges {
            if !self.meter.take(0, set_steps(self.atoms)) {
                return set;
            }
            if let Some(atoms) = self.atoms.of_range(*protocol, *first, *last) {
                set.add(atoms);
            }
        }
        // A named port is the destination's. In ingress that is this subject; in egress `add_names` asks each peer.
        if direction == Direction::Ingress {
            for (name, number) in subject.named.iter().filter(|(name, _)| ports.named.contains(name)) {
                set.insert(self.atoms.find(self.rules.ingress_names[*name as usize].0, *number));
            }
        }
        set
    }

    fn overlay_lists(&self, direction: Direction, subject: &SubjectClass, open: &mut OpenRow) {
        let denied = self.denied_by_lists(direction, subject).into_iter().map_while(|peer| {
            let fits = self.meter.take(entry_bytes(&open.default), set_steps(self.atoms));
            fits.then(|| (peer, AtomSet::none(self.atoms.count())))
        });
        let denied = denied.collect::<Vec<_>>();
        // Denials replace entries of the same classes, so fewer bytes remain than were charged.
        let before = open.bytes() + denied.len() as u64 * entry_bytes(&open.default);
        open.overlay(denied);
        self.meter.give_back(before - open.bytes());
    }

    /// The peer classes that the lists deny. The first list that contains an address decides; a list can deny a packet,
    /// but not allow one that policies deny.
    pub(super) fn denied_by_lists(&self, direction: Direction, subject: &SubjectClass) -> Vec<PeerId> {
        let mut decided: BTreeMap<PeerId, ListAction> = BTreeMap::new();
        for id in &subject.lists {
            let list = &self.cluster.lists[id.index()];
            let predicate = self.matching().of_list(*id).filter(|_| asks(list, direction));
            for peer in predicate.into_iter().flat_map(|predicate| self.matching().holding(predicate)) {
                // The subject's lists are in the order in which they decide, so the first entry stays.
                decided.entry(*peer).or_insert(list.action);
            }
        }
        let fits = self.meter.take((size_of::<PeerId>() * decided.len()) as u64, decided.len() as u64);
        // Classes that an allow list has decided are left out: policies judge them as usual.
        let denied = decided.into_iter().filter(|(_, action)| fits && *action == ListAction::Deny);
        denied.map(|(peer, _)| peer).collect()
    }

    fn peer(&self, id: PeerId) -> &'a PeerClass {
        &self.peers.list[id.index()]
    }

    /// The classes that are examined.
    fn matching(&self) -> &Matching {
        self.part.as_ref().map_or(&self.facts.matching, |part| &part.matching)
    }

    /// The special classes whose entries are made.
    fn special(&self) -> &[PeerId] {
        self.part.as_ref().map_or(&self.facts.special, |part| &part.special)
    }
}

/// Whether a list applies to packets in this direction.
fn asks(list: &CidrList, direction: Direction) -> bool {
    match direction {
        Direction::Ingress => list.ingress,
        Direction::Egress => list.egress,
    }
}

fn serves(backend: &Backend, family: Family) -> bool {
    // A backend that has no address yet may get one of either family, so it counts for both.
    backend.address.is_none_or(|address| Family::of(address) == family)
}
