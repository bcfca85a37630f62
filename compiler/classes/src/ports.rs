//! Port atoms: sets of (protocol, port) pairs that no range in force distinguishes.

mod stable;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub(super) use stable::StableAtoms;

use super::meter::Meter;
use super::predicates::{RulePredicates, TermOrigins};
use super::shared_sets::{SharedSet, SharedSets};
use super::sources::RulePlace;
use super::subjects::SubjectDraft;
use super::vips;
use weir_model::{Cluster, Direction, NamedPort, PortMatch, PortRule, Protocol, Standing, id};
use weir_objects::origin::{FieldOrigin, FieldPath};

id!(/// A port atom. Prints as `atom3`; `atom0` is traffic without ports, and ports outside of all ranges.
    AtomId, "atom");
id!(/// A set of atoms. Prints as `set3`.
    AtomSetId, "set");

/// Bytes of a path of new nodes in [`SharedSets`], which each end of a range costs in a sweep.
const SWEEP_BYTES: u64 = 500;

/// A set of atoms, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AtomSet {
    words: Vec<u64>,
}

impl AtomSet {
    /// None of `count` atoms.
    pub fn none(count: usize) -> Self {
        Self { words: vec![0; Self::words_for(count)] }
    }

    fn words_for(count: usize) -> usize {
        count.div_ceil(64)
    }

    /// All of `count` atoms.
    pub fn all(count: usize) -> Self {
        // Bit by bit instead of whole words of ones: bits above `count` would make equal sets unequal, and sets are
        // interned by their words.
        let mut all = Self::none(count);
        (0..count).for_each(|atom| all.insert(AtomId(atom as u32)));
        all
    }

    /// The same atoms with room for `count`, which is not less than before.
    #[must_use]
    pub fn widened(&self, count: usize) -> Self {
        let mut words = self.words.clone();
        words.resize(Self::words_for(count), 0);
        Self { words }
    }

    /// Adds an atom.
    pub fn insert(&mut self, atom: AtomId) {
        if let Some(word) = self.words.get_mut(atom.index() / 64) {
            *word |= 1 << (atom.index() % 64);
        }
    }

    /// This set followed by another one, which begins in a word of its own.
    #[must_use]
    pub fn beside(&self, other: &Self) -> Self {
        Self { words: [self.words.as_slice(), &other.words].concat() }
    }

    /// Removes an atom.
    pub fn remove(&mut self, atom: AtomId) {
        if let Some(word) = self.words.get_mut(atom.index() / 64) {
            *word &= !(1 << (atom.index() % 64));
        }
    }

    /// Adds all of another set.
    pub fn add(&mut self, other: &Self) {
        // All sets of one compile have the same number of words, so `zip` leaves none out.
        self.words.iter_mut().zip(&other.words).for_each(|(word, more)| *word |= more);
    }

    /// Keeps the atoms that are in the other set too.
    pub fn intersect(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, kept)| *word &= kept);
    }

    /// Removes all atoms of another set.
    pub fn subtract(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, gone)| *word &= !gone);
    }

    /// Whether an atom is in it.
    pub fn contains(&self, atom: AtomId) -> bool {
        self.words.get(atom.index() / 64).is_some_and(|word| word >> (atom.index() % 64) & 1 == 1)
    }

    /// The atoms in the set, in order.
    pub fn atoms(&self) -> impl Iterator<Item = AtomId> {
        (0..).zip(&self.words).flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(AtomId(64 * at + bit))
            })
        })
    }

    /// Whether no atom is in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The bits, 64 atoms a word, the lowest first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}

/// A range of ports of one protocol, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSpec {
    /// The protocol.
    pub protocol: Protocol,
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

/// A range of ports that are one atom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInterval {
    /// The range.
    pub spec: PortSpec,
    /// Its atom.
    pub atom: AtomId,
}

/// The atoms of all ranges in force.
#[derive(Clone, Debug)]
pub struct Atoms {
    /// Sorted, disjoint; all other ports are atom 0.
    pub intervals: Vec<PortInterval>,
    /// Named ports in ingress rules.
    pub ingress_names: Vec<(Protocol, String)>,
    /// Named ports in egress rules.
    pub egress_names: Vec<(Protocol, String)>,
    count: usize,
    /// The atoms of each range in force, sorted by range.
    by_spec: Arc<[(PortSpec, AtomSet)]>,
}

impl Atoms {
    /// Whether every range that both have is the same atoms in both.
    pub fn keeps(&self, before: &Self) -> bool {
        let is_kept =
            |(spec, set): &(PortSpec, AtomSet)| self.of_spec(*spec).is_none_or(|now| now.atoms().eq(set.atoms()));
        Arc::ptr_eq(&self.by_spec, &before.by_spec) || before.by_spec.iter().all(is_kept)
    }

    /// All traffic without ports, and every port that no range covers.
    pub const REST: AtomId = AtomId(0);

    /// The number of atoms.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The atom of a port.
    pub fn find(&self, protocol: Protocol, port: u16) -> AtomId {
        find_in(&self.intervals, protocol, port)
    }

    /// The atoms of a range in force.
    pub(super) fn of_range(&self, protocol: Protocol, first: u16, last: u16) -> Option<&AtomSet> {
        self.of_spec(PortSpec { protocol, first, last })
    }

    fn of_spec(&self, spec: PortSpec) -> Option<&AtomSet> {
        let at = self.by_spec.binary_search_by_key(&spec, |(spec, _)| *spec).ok()?;
        Some(&self.by_spec[at].1)
    }
}

fn find_in(intervals: &[PortInterval], protocol: Protocol, port: u16) -> AtomId {
    let after = intervals.partition_point(|it| (it.spec.protocol, it.spec.first) <= (protocol, port));
    let before = after.checked_sub(1).map(|index| intervals[index]);
    match before {
        // One list has the intervals of all protocols, so the interval before the port may be another protocol's.
        // SCTP is never judged as TCP.
        Some(it) if it.spec.protocol == protocol && port <= it.spec.last => it.atom,
        _ => Atoms::REST,
    }
}

pub(super) fn atoms(specs: &PortSpecs, rules: &RulePredicates, meter: &Meter) -> Atoms {
    let specs: Vec<PortSpec> = specs.keys().copied().collect();
    let (intervals, count) = sweep(&specs, meter);
    of_intervals(&specs, intervals, count, rules, meter)
}

/// The atoms of these intervals. `specs` are sorted.
fn of_intervals(
    specs: &[PortSpec],
    intervals: Vec<PortInterval>,
    count: usize,
    rules: &RulePredicates,
    meter: &Meter,
) -> Atoms {
    // Made once for each range, because thousands of rules name the same few ranges. It stops at the limit, and the
    // caller then discards everything.
    let by_spec = specs.iter().map_while(|spec| Some((*spec, atoms_of(*spec, &intervals, count, meter)?)));
    let by_spec: Vec<(PortSpec, AtomSet)> = by_spec.collect();
    let (ingress_names, egress_names) = (rules.ingress_names.clone(), rules.egress_names.clone());
    Atoms { intervals, ingress_names, egress_names, count, by_spec: by_spec.into() }
}

/// The atoms of a range; `None` if listing them exceeds the meter's limits.
fn atoms_of(spec: PortSpec, intervals: &[PortInterval], count: usize, meter: &Meter) -> Option<AtomSet> {
    // Both ends of every range are cuts, so an interval is inside the range or outside of it, and never partly inside.
    let before = intervals.partition_point(|it| (it.spec.protocol, it.spec.last) < (spec.protocol, spec.first));
    let within = |it: &&PortInterval| it.spec.protocol == spec.protocol && it.spec.first <= spec.last;
    let covered = || intervals[before..].iter().take_while(within);
    let bytes = 8 * AtomSet::words_for(count) as u64;
    // Charged before the set is allocated. One namespace can write thousands of ranges over thousands of intervals:
    // this product is the reason for the meter.
    if !meter.take(bytes, bytes + covered().count() as u64) {
        return None;
    }
    let mut set = AtomSet::none(count);
    covered().for_each(|it| set.insert(it.atom));
    Some(set)
}

/// Every range that can distinguish two ports.
pub(super) type PortSpecs = BTreeMap<PortSpec, SpecUse>;

/// The uses of a range.
#[derive(Clone, Debug)]
pub(super) struct SpecUse {
    /// The first position in the input that requires the range.
    pub(super) origin: FieldOrigin,
    /// The number of positions that require it.
    pub(super) count: u32,
}

/// Collects every range that can distinguish two ports.
pub(super) fn specs(
    cluster: &Cluster,
    draft: &SubjectDraft,
    rules: &RulePredicates,
    origins: &TermOrigins,
) -> PortSpecs {
    let mut specs = PortSpecs::new();
    let mut add = |protocol, (first, last), from: &dyn Fn() -> FieldOrigin| {
        // The first origin stays. Policies are visited in the order of their names, so the line that an instruction
        // names does not depend on the order of the input.
        let spec = PortSpec { protocol, first, last };
        specs.entry(spec).or_insert_with(|| SpecUse { origin: from(), count: 0 }).count += 1;
    };
    for id in &draft.policies {
        let policy = cluster.policy(*id);
        for direction in Direction::ALL {
            for (rule, of_rule) in policy.rules(direction).unwrap_or_default().iter().enumerate() {
                add_ports(RulePlace::of_policy(policy, direction, rule), &of_rule.ports, &mut add);
            }
        }
    }
    for id in &draft.tiers {
        let policy = cluster.tier_policy(*id);
        for direction in Direction::ALL {
            for (rule, of_rule) in policy.rules(direction).iter().enumerate() {
                let ports = of_rule.matched.as_ref().map_or(&[][..], |it| &it.ports);
                add_ports(RulePlace::of_tier(policy, direction, rule, of_rule), ports, &mut add);
            }
        }
    }
    // For ingress the destination is the subject, so only local endpoints' numbers count. For egress any pod can be the
    // destination. Without an atom of its own, a named number would share the verdict of its neighbours.
    let local = draft.local.iter().map(|local| &cluster.endpoints[local.endpoint.index()]);
    for (name, number) in
        local.flat_map(|endpoint| named(&endpoint.named_ports, &rules.ids[Direction::Ingress as usize]))
    {
        let name = name as usize;
        add(rules.ingress_names[name].0, (number, number), &|| origins.ingress_names[name].clone());
    }
    let members = cluster.endpoints.iter().filter(|it| it.standing == Standing::Member);
    for (name, number) in
        members.flat_map(|endpoint| named(&endpoint.named_ports, &rules.ids[Direction::Egress as usize]))
    {
        let name = name as usize;
        add(rules.egress_names[name].0, (number, number), &|| origins.egress_names[name].clone());
    }
    // A packet to a service is judged by the backends' ports, not by the service's port, so the latter needs an atom of
    // its own even if no rule names it.
    if judges_egress(cluster, draft) {
        for service in &cluster.services {
            for (index, port) in service.ports.iter().enumerate() {
                let path = || FieldPath::root().field("spec").field("ports").index(index);
                // A headless service is reached at its pods' own ports.
                let at_address = Some(port.port).filter(|_| !service.addresses.is_empty());
                // The port at the address and the node port lead to the same backends, but at different addresses: two
                // atoms.
                for number in [at_address, port.node_port].into_iter().flatten() {
                    add(port.protocol, (number, number), &|| FieldOrigin::new(service.object, path()));
                }
            }
        }
        for (_, port) in vips::host_ports(cluster, draft) {
            let object = cluster.endpoints[port.pod.index()].object;
            add(port.protocol, (port.port, port.port), &|| FieldOrigin::new(object, FieldPath::root()));
        }
    }
    specs
}

/// Calls `add` with the ranges of a rule's ports.
pub(super) fn add_ports(
    place: RulePlace<'_>,
    ports: &[PortRule],
    add: &mut impl FnMut(Protocol, (u16, u16), &dyn Fn() -> FieldOrigin),
) {
    for (index, port) in ports.iter().enumerate() {
        let range = match port.port {
            // All ports of one protocol, not "everything": only a rule without `ports` matches ICMP, which is in atom
            // 0.
            PortMatch::Any => (0, u16::MAX),
            PortMatch::Range(first, last) => (first, last),
            // The numbers differ from pod to pod. The caller adds them, from the pods that have the name.
            PortMatch::Named(_) => continue,
        };
        add(port.protocol, range, &|| place.port(index));
    }
}

/// Whether any policy or list applies to egress of a local endpoint. Otherwise a service's ports need no atoms of their
/// own.
pub(super) fn judges_egress(cluster: &Cluster, draft: &SubjectDraft) -> bool {
    draft.policies.iter().any(|id| cluster.policy(*id).egress.is_some())
        || draft.tiers.iter().any(|id| cluster.tier_policy(*id).judges_leaving())
        || draft.lists.iter().any(|id| cluster.lists[id.index()].egress)
}

/// The numbers of port names, by name and protocol. The ports of every pod are looked up here.
#[derive(Clone, Debug, Default)]
pub(super) struct NameIds(HashMap<String, [Option<u32>; 3]>);

impl NameIds {
    pub(super) fn get(&self, name: &str, protocol: Protocol) -> Option<u32> {
        // The name alone is the key: with (name, protocol) as the key, each look-up would have to copy the name, for
        // every port of every pod.
        self.0.get(name)?[protocol as usize]
    }

    /// Returns the number of a name. A new name gets the number `next`.
    pub(super) fn number(&mut self, name: &str, protocol: Protocol, next: u32) -> u32 {
        if let Some(known) = self.get(name, protocol) {
            return known;
        }
        self.0.entry(name.to_owned()).or_default()[protocol as usize] = Some(next);
        next
    }
}

/// The numbers of a pod's named ports: (index of the name, number), sorted.
pub(super) fn named(ports: &[NamedPort], names: &NameIds) -> Vec<(u32, u16)> {
    // Without named ports in any rule, the ports of thousands of pods are not looked at.
    if names.0.is_empty() {
        return Vec::new();
    }
    let find = |port: &NamedPort| Some((names.get(&port.name, port.protocol)?, port.number));
    let mut found: Vec<_> = ports.iter().filter_map(find).collect();
    // The result is part of a class's key: the order of a pod's containers must not make two classes of one. A name
    // with two numbers keeps both, unless `named-port-twice=first` has removed one while the objects were resolved.
    found.sort_unstable();
    found.dedup();
    found
}

/// Cuts the port space at both ends of every range, and gives ranges inside the same ranges the same atom. Returns
/// the number of atoms.
fn sweep(specs: &[PortSpec], meter: &Meter) -> (Vec<PortInterval>, usize) {
    // One set for each interval, as a list of its ranges, was tried first: 20,000 overlapping ranges took gigabytes. A
    // range's number is unique to its protocol, so intervals of two protocols never have equal sets.
    let mut active = ActiveRanges::new(specs.len());
    let mut atoms: HashMap<RangeSet, AtomId> = HashMap::from([(active.set(), Atoms::REST)]);
    let mut intervals: Vec<PortInterval> = Vec::new();
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        // Where a range begins or ends, the set of ranges that contain a port changes by that range.
        let mut changes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.protocol == protocol) {
            // 32 bits, because a range that ends at 65535 has its second cut at 65536.
            for cut in [u32::from(spec.first), u32::from(spec.last) + 1] {
                changes.entry(cut).or_default().push(index as u32);
            }
        }
        // The last cut begins no interval, because every range has ended there.
        let ends = changes.keys().copied().skip(1).collect::<Vec<_>>();
        for ((first, changed), end) in changes.iter().zip(ends) {
            if !meter.take(SWEEP_BYTES * active.paths(changed.len()) as u64, 1) {
                return (intervals, atoms.len());
            }
            // Beginning and ending are the same operation: at its first cut a range is absent from the set, at its
            // second it is present.
            changed.iter().for_each(|index| active.toggle(*index));
            // No range covers this gap. It is atom 0 and needs no interval, because `find` returns atom 0 between
            // intervals.
            if active.is_empty() {
                continue;
            }
            let next = AtomId(atoms.len() as u32);
            // Intervals that are far apart share an atom if the same ranges contain them: `1-100`, cut by another
            // rule's `50`, is one atom for `1-49` and `51-100`. Fewer atoms mean fewer words in every set.
            let atom = *atoms.entry(active.set()).or_insert(next);
            // The interval before it never has the same atom: a range is toggled once at a cut, because it has at least
            // one port, so the sets on both sides of a cut differ.
            let spec = PortSpec { protocol, first: *first as u16, last: (end - 1) as u16 };
            intervals.push(PortInterval { spec, atom });
        }
        // The last cut, where the last ranges end, was not visited.
        active.clear();
    }
    (intervals, atoms.len())
}

/// The most ranges of a set that is a list of them. A list needs no nodes in [`SharedSets`], and in most clusters a port
/// is in a few ranges.
const FEW: usize = 4;

/// A set of ranges. Equal sets are equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RangeSet {
    /// Sorted; unused places are [`u32::MAX`].
    Few([u32; FEW]),
    Many(SharedSet),
}

/// The ranges that contain the port at which a sweep is.
struct ActiveRanges {
    ranges: BTreeSet<u32>,
    sets: SharedSets,
    /// The same ranges, if they are more than [`FEW`].
    many: SharedSet,
}

impl ActiveRanges {
    /// Ranges with numbers below `bound`.
    fn new(bound: usize) -> Self {
        Self { ranges: BTreeSet::new(), sets: SharedSets::new(bound), many: SharedSet::EMPTY }
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The most paths of new nodes that these toggles make. Each of them may make all paths of a set that is no list.
    fn paths(&self, toggles: usize) -> usize {
        let size = self.ranges.len();
        if size + toggles > FEW && size <= FEW + toggles { toggles * (FEW + 1) } else { toggles }
    }

    fn clear(&mut self) {
        self.ranges.clear();
        self.many = SharedSet::EMPTY;
    }

    /// Adds the range if it is not there, and removes it otherwise.
    fn toggle(&mut self, range: u32) {
        let Self { ranges, sets, many } = self;
        if !ranges.remove(&range) {
            ranges.insert(range);
        }
        if ranges.len() <= FEW {
            *many = SharedSet::EMPTY;
        } else if *many == SharedSet::EMPTY {
            *many = ranges.iter().fold(*many, |set, range| sets.toggle(set, *range));
        } else {
            *many = sets.toggle(*many, range);
        }
    }

    fn set(&self) -> RangeSet {
        if self.ranges.len() > FEW {
            return RangeSet::Many(self.many);
        }
        let mut few = [u32::MAX; FEW];
        few.iter_mut().zip(&self.ranges).for_each(|(place, range)| *place = *range);
        RangeSet::Few(few)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A walk that passes the size of a list many times in both directions, and reaches many sets again.
    #[test]
    fn sets_of_active_ranges_are_equal_if_their_members_are() {
        for bound in [1, 3, FEW, FEW + 1, 9] {
            let (mut active, mut members) = (ActiveRanges::new(bound), BTreeSet::new());
            let mut seen = BTreeMap::from([(members.clone(), active.set())]);
            for step in 0..5_000_u32 {
                let number = (step * step / 3 + step / 7) % bound as u32;
                active.toggle(number);
                if !members.remove(&number) {
                    members.insert(number);
                }
                if step % 1_000 == 999 {
                    active.clear();
                    members.clear();
                }
                assert_eq!(active.is_empty(), members.is_empty());
                assert_eq!(*seen.entry(members.clone()).or_insert(active.set()), active.set(), "{members:?}");
            }
            let mut distinct: Vec<RangeSet> = Vec::new();
            for set in seen.values() {
                assert!(!distinct.contains(set), "{set:?} stands for two sets");
                distinct.push(*set);
            }
            assert!(bound <= FEW || seen.keys().any(|it| it.len() > FEW));
        }
    }
}
