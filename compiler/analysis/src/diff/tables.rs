//! One direction of both sides at once: for (subject, peer), the traffic that each side allows, and the rules that
//! allow it.
//!
//! An entry is a pair of sets with the reasons for the differences. Entries are numbered, so that whole rows and
//! columns can be compared by their numbers: endpoints with equal rows and columns are one class.

use std::collections::HashMap;
use std::net::IpAddr;

use super::EndState;
use super::atoms::{JointAtoms, SetId};
use super::cluster_side::ClusterSide;
use super::universe::PeerPair;
use weir_classes::{AtomSet, Classes, PeerId, SubjectId};
use weir_model::eval::RuleId;
use weir_model::{Cluster, Direction, EndpointId, Interner, RuleAction, TierRuleId};
use weir_objects::address::Family;

number!(
    /// An entry.
    EntryId
);
number!(
    /// A reason.
    ReasonId
);

/// An end of a flow as the subject of its own policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum SubjectEnd {
    /// It does not exist on this side.
    Absent,
    /// No policy applies to it.
    Free,
    /// Its subject class.
    Subject(SubjectId),
}

/// Everything that decides at one end: the end itself on both sides, and the backends of the services that claim ports
/// of its address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Gate {
    pub(super) ends: [SubjectEnd; 2],
    /// For destinations: the address on each side, if services have or claim it.
    pub(super) frontends: [Option<IpAddr>; 2],
}

/// The sets of both sides for one pair of ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PairEntry {
    pub(super) sets: [SetId; 2],
    /// The reason for the difference.
    pub(super) reason: ReasonId,
}

/// The reasons for the sets of both sides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SetReason {
    pub(super) states: [EndState; 2],
    /// The rules that allow traffic which the other side denies, each with the part of that traffic that it allows.
    pub(super) rules: [Vec<(RuleId, SetId)>; 2],
    /// The rules of cluster-wide policies that decide about traffic which differs, each with that traffic: they accept
    /// traffic that the other side denies, or deny traffic that the other side allows.
    pub(super) tiers: [Vec<(TierRuleId, SetId)>; 2],
}

/// All entries, sets and reasons, each once.
pub(super) struct EntryTables<'s, 'c> {
    pub(super) sides: &'s [Option<ClusterSide<'c>>; 2],
    pub(super) atoms: JointAtoms,
    entries: Interner<PairEntry>,
    reasons: Interner<SetReason>,
}

impl<'s, 'c> EntryTables<'s, 'c> {
    pub(super) fn new(sides: &'s [Option<ClusterSide<'c>>; 2], atoms: JointAtoms) -> Self {
        Self { sides, atoms, entries: Interner::default(), reasons: Interner::default() }
    }

    pub(super) fn entry(&self, id: EntryId) -> PairEntry {
        self.entries[id.index()]
    }

    pub(super) fn reason(&self, id: ReasonId) -> &SetReason {
        &self.reasons[id.index()]
    }

    /// A row: the entries of a gate for each of the peers.
    pub(super) fn row(&mut self, direction: Direction, gate: &Gate, peers: &[PeerPair]) -> Vec<EntryId> {
        // A whole row at a time: the class table's row is converted once, not once for each peer.
        let base = self.sets(0, direction, gate, peers);
        let head = self.sets(1, direction, gate, peers);
        let mut row = Vec::with_capacity(peers.len());
        for (peer, sets) in peers.iter().zip(base.into_iter().zip(head)) {
            let sets = [sets.0, sets.1];
            let reason =
                // Reasons only for differences. To find them, every rule of the subject is evaluated, and equal entries
                // with different reasons would be different columns, so ends that do not differ would not be joined.
                if sets[0] == sets[1] { SetReason::none() } else { self.reasons_for(direction, gate, peer, sets) };
            let reason = self.intern_reason(reason);
            row.push(self.intern(PairEntry { sets, reason }));
        }
        row
    }

    /// The sets of one side.
    fn sets(&mut self, which: usize, direction: Direction, gate: &Gate, peers: &[PeerPair]) -> Vec<SetId> {
        // A survey's base: nothing exists there.
        let Some(side) = &self.sides[which] else { return vec![SetId::NONE; peers.len()] };
        let with = |mut find: Box<dyn FnMut(PeerId) -> SetId + '_>| -> Vec<SetId> {
            // A peer that does not exist on this side has no traffic, even if a rule selects its labels.
            peers.iter().map(|peer| peer[which].map_or(SetId::NONE, &mut find)).collect()
        };
        let mut found = match gate.ends[which] {
            SubjectEnd::Absent => with(Box::new(|_| SetId::NONE)),
            SubjectEnd::Free => with(Box::new(|_| SetId::ALL)),
            SubjectEnd::Subject(subject) => {
                let row = side.classes.row(direction, subject);
                let atoms = &mut self.atoms;
                // An array over all classes, because nearly every class of the side is asked for; searching the row's
                // entries would cost a search for each.
                let mut dense = vec![atoms.of_side(which, side, row.default); side.classes.peers.len()];
                for (peer, set) in row.entries.iter() {
                    dense[peer.index()] = atoms.of_side(which, side, *set);
                }
                with(Box::new(move |peer| dense[peer.index()]))
            }
        };
        // Only here: the source's row has the egress verdicts on the backends already (`weir_classes::rows::services`), but
        // a service has no policies, so the backends' ingress has to be asked here.
        if let Some(address) = gate.frontends[which].filter(|_| direction == Direction::Ingress) {
            let ports = service_ports(side, address);
            let atoms = &mut self.atoms;
            let mut known: HashMap<(SetId, PeerId), SetId> = HashMap::new();
            for (set, peer) in found.iter_mut().zip(peers).filter_map(|(set, peer)| Some((set, peer[which]?))) {
                let key = (*set, peer);
                // Thousands of peers of few classes: each class asks all backends once.
                *set = *known.entry(key).or_insert_with(|| behind(atoms, &side.classes, &ports, key));
            }
        }
        found
    }

    fn reasons_for(&mut self, direction: Direction, gate: &Gate, peers: &PeerPair, sets: [SetId; 2]) -> SetReason {
        let mut reason = SetReason::none();
        for which in [0, 1] {
            let Some((side, peer)) = self.sides[which].as_ref().zip(peers[which]) else { continue };
            // Rules of hundreds of backends are no readable reason. The example flow shows one of them.
            if gate.frontends[which].is_some() && direction == Direction::Ingress {
                reason.states[which] = EndState::Service;
                continue;
            }
            let subject = match gate.ends[which] {
                SubjectEnd::Absent => continue,
                SubjectEnd::Free => {
                    reason.states[which] = EndState::Free;
                    continue;
                }
                SubjectEnd::Subject(subject) => subject,
            };
            if side.classes.peers[peer.index()].vip.is_some() && direction == Direction::Egress {
                reason.states[which] = EndState::Service;
                continue;
            }
            reason.states[which] = state(side, direction, subject, peer);
            let mut gained = self.atoms.get(sets[which]).clone();
            gained.subtract(self.atoms.get(sets[1 - which]));
            let mut lost = self.atoms.get(sets[1 - which]).clone();
            lost.subtract(self.atoms.get(sets[which]));
            if !matches!(reason.states[which], EndState::List(_)) {
                for (rule, action, of_side) in side.classes.tier_contributions(side.cluster, direction, subject, peer) {
                    let mut atoms = self.atoms.joint(which, &of_side);
                    match action {
                        RuleAction::Accept => atoms.intersect(&gained),
                        RuleAction::Deny => atoms.intersect(&lost),
                        // The tier after it decides.
                        RuleAction::Pass => continue,
                    }
                    gained.subtract(&atoms);
                    if !atoms.is_empty() {
                        reason.tiers[which].push((rule, self.atoms.intern(atoms)));
                    }
                }
            }
            // Without isolation no rule is needed, and a list that denies leaves no rules to name.
            if gained.is_empty() || reason.states[which] != EndState::Isolated {
                continue;
            }
            for (rule, of_side) in side.classes.contributions(direction, subject, peer) {
                // Cut down to the difference: a rule that allows only traffic that both sides allow is no reason.
                let mut atoms = self.atoms.joint(which, &of_side);
                atoms.intersect(&gained);
                if !atoms.is_empty() {
                    reason.rules[which].push((rule, self.atoms.intern(atoms)));
                }
            }
        }
        reason
    }

    fn intern(&mut self, entry: PairEntry) -> EntryId {
        EntryId(self.entries.intern(entry))
    }

    pub(super) fn intern_reason(&mut self, reason: SetReason) -> ReasonId {
        ReasonId(self.reasons.intern(reason))
    }
}

impl SetReason {
    fn none() -> Self {
        Self { states: [EndState::Absent; 2], rules: [Vec::new(), Vec::new()], tiers: [Vec::new(), Vec::new()] }
    }
}

/// The state of a subject class towards a peer class.
fn state(side: &ClusterSide<'_>, direction: Direction, subject: SubjectId, peer: PeerId) -> EndState {
    // Lists before policies, as they are decided.
    if let Some(list) = side.classes.denying_list(side.cluster, direction, subject, peer) {
        return EndState::List(list);
    }
    match isolating(side.cluster, &side.classes, direction, subject).next() {
        Some(_) => EndState::Isolated,
        None => EndState::Open,
    }
}

/// The policies that isolate a subject class.
pub(super) fn isolating<'a>(
    cluster: &'a Cluster,
    classes: &'a Classes,
    direction: Direction,
    subject: SubjectId,
) -> impl Iterator<Item = weir_model::PolicyId> + 'a {
    let policies = classes.subjects[subject.index()].policies.iter().copied();
    // A class's `policies` are the enforced ones; those in audit mode isolate nothing.
    policies.filter(move |id| cluster.policies[id.index()].rules(direction).is_some())
}

/// A service port with its backends: (subject class, port there).
struct EntryServicePort {
    protocol: weir_model::Protocol,
    number: u16,
    backends: Vec<(SubjectId, u16)>,
}

/// The service ports at an address, each with the backends of all claims on it. All of them must be allowed.
fn service_ports(side: &ClusterSide<'_>, address: IpAddr) -> Vec<EntryServicePort> {
    let family = Family::of(address);
    let mut ports: Vec<EntryServicePort> = Vec::new();
    // Every claim on a port counts: the service proxy may send the packet to any of the services.
    for port in side.frontend(address).into_iter().flat_map(|it| &it.ports) {
        let claims =
            port.claims.iter().map(|(id, index)| &side.cluster.services[id.index()].ports[*index as usize].backends);
        let serving = claims.flatten().filter(|it| it.address.is_none_or(|at| Family::of(at) == family));
        let subject = |id: EndpointId| side.subject(id);
        let mut backends: Vec<(SubjectId, u16)> =
            // Outside addresses and host-network pods are left out: as destinations they allow everything.
            serving.filter_map(|it| Some((subject(it.endpoint?)?, it.port))).collect();
        backends.sort_unstable();
        backends.dedup();
        ports.push(EntryServicePort { protocol: port.protocol, number: port.port, backends });
    }
    ports
}

/// The ports on which the address itself and all backends allow a peer's packets.
fn behind(
    atoms: &mut JointAtoms,
    classes: &Classes,
    ports: &[EntryServicePort],
    (own, peer): (SetId, PeerId),
) -> SetId {
    // From the address's own set, so that claims only take away here: the address can be a pod's, which has policies
    // itself.
    let mut set: AtomSet = atoms.get(own).clone();
    for port in ports {
        let lets_in = |(subject, number): &(SubjectId, u16)| {
            let allowed = classes.allowed(Direction::Ingress, *subject, peer);
            allowed.contains(classes.atoms.find(port.protocol, *number))
        };
        if !port.backends.iter().all(lets_in) {
            set.remove(atoms.find(port.protocol, port.number));
        }
    }
    atoms.intern(set)
}
