//! Atoms with the numbers of earlier atoms, so that sets of atoms stay as they are where ports do not change.

use super::{AtomId, AtomSet, Atoms, PortInterval, PortSpec, PortSpecs, find_in, of_intervals, sweep};
use crate::meter::Meter;
use crate::predicates::RulePredicates;
use weir_model::Protocol;

/// The atoms after a change, with the old atom behind each of them.
pub(crate) struct StableAtoms {
    pub(crate) atoms: Atoms,
    /// For each atom that is not the old one of its number, the old atom that its ports were in.
    ///
    /// A number that no port has any more is treated as [`Atoms::REST`]. Every set is made of all atoms, of none, and of
    /// ranges and single ports. None of these distinguishes an unused number from the atom of the other ports.
    moved: Vec<(AtomId, AtomId)>,
}

impl StableAtoms {
    /// The atoms of `specs`, with the numbers of `old` atoms where an atom has the first port of an old one.
    pub(crate) fn new(old: &Atoms, specs: &PortSpecs, rules: &RulePredicates, meter: &Meter) -> Self {
        let specs: Vec<PortSpec> = specs.keys().copied().collect();
        let (mut intervals, found) = sweep(&specs, meter);
        let mut numbers: Vec<Option<AtomId>> = vec![None; found];
        let mut is_used = vec![false; old.count];
        (numbers[0], is_used[0]) = (Some(Atoms::REST), true);
        for (index, first) in first_ports(&old.intervals, old.count).into_iter().enumerate() {
            let new = first.map_or(Atoms::REST, |(protocol, port)| find_in(&intervals, protocol, port)).index();
            if numbers[new].is_none() {
                (numbers[new], is_used[index]) = (Some(AtomId(index as u32)), true);
            }
        }
        let mut sources: Vec<AtomId> = (0..).map(AtomId).take(old.count).collect();
        let unused: Vec<usize> = (0..old.count).filter(|index| !is_used[*index]).collect();
        unused.iter().for_each(|index| sources[*index] = Atoms::REST);
        let mut unused = unused.into_iter();
        for (new, first) in first_ports(&intervals, found).into_iter().enumerate() {
            let Some((protocol, port)) = first.filter(|_| numbers[new].is_none()) else { continue };
            let number = unused.next().unwrap_or(sources.len());
            sources.resize(sources.len().max(number + 1), Atoms::REST);
            sources[number] = old.find(protocol, port);
            numbers[new] = Some(AtomId(number as u32));
        }
        for interval in &mut intervals {
            interval.atom = numbers[interval.atom.index()].unwrap_or(Atoms::REST);
        }
        let atoms = of_intervals(&specs, intervals, sources.len(), rules, meter);
        let numbered = (0..).map(AtomId).zip(sources);
        Self { atoms, moved: numbered.filter(|(number, source)| number != source).collect() }
    }

    /// A set of old atoms, as a set of these atoms: it has the same ports. `None` if it is the same set.
    ///
    /// Only for sets that do not depend on a changed range. For the others, the ports of a new atom may have different
    /// verdicts than the old atom that they were in.
    pub(crate) fn translated(&self, old: &AtomSet) -> Option<AtomSet> {
        let changes = || self.moved.iter().filter(|(number, source)| old.contains(*number) != old.contains(*source));
        let is_as_wide = old.words.len() == AtomSet::words_for(self.atoms.count);
        if is_as_wide && changes().next().is_none() {
            return None;
        }
        let mut set = old.widened(self.atoms.count);
        for (number, source) in changes() {
            match old.contains(*source) {
                true => set.insert(*number),
                false => set.remove(*number),
            }
        }
        Some(set)
    }
}

/// The first port of each atom; `None` for atom 0 and numbers that no port has.
fn first_ports(intervals: &[PortInterval], count: usize) -> Vec<Option<(Protocol, u16)>> {
    let mut first = vec![None; count];
    for interval in intervals {
        first[interval.atom.index()].get_or_insert((interval.spec.protocol, interval.spec.first));
    }
    first
}
