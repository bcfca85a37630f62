//! Decides which updates a change of a list requires.
//!
//! A list that applies to no local pod requires none. If a list comes or goes, or if anything but its entries changes,
//! all of its addresses may get another verdict, so a generation is made. For entries there is a smaller way. Take an
//! address that a list begins or ceases to contain, and that belongs to nothing else (no pod, service, node or backend
//! of a service). The change affects only the set of blocks and lists that contain it. If there is already a class for
//! the new set, every row has its verdicts, and one entry of the exact table is the only update. This also works for
//! ranges, as long as they contain few addresses: each gets an exact entry of its own, which has precedence over all
//! prefixes that contain the address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::baseline::Baseline;
use super::{Dirty, Index};
use crate::addresses::{difference, ranges_of};
use crate::{Number, PeerId, PredicateId};
use weir_objects::address::to_address;
use weir_objects::k8s::{Body, CidrList, ListAction, Object};

/// For more addresses since the last generation a new one is made: it takes no longer, programs find the addresses
/// faster, and it frees the memory for these differences.
const MOST_RELISTED: u128 = 65_536;

impl Index {
    /// A list came, changed or went.
    pub(super) fn list_changes(&mut self, before: Option<&Object>, after: Option<&Object>) -> Dirty {
        let Some(baseline) = &self.baseline else { return Dirty::Everything };
        // A list that the generation applies counts even if it selects no local pod now: labels of a namespace can
        // change back before the next generation.
        let applies =
            |list: &Object| baseline.predicate_of_list(&list.meta.name).is_some() || self.concerns_local(list);
        if ![before, after].into_iter().flatten().any(applies) {
            return Dirty::Nothing;
        }
        let Some((name, old, new)) = only_entries(before, after) else { return Dirty::Everything };
        // The rows are those of the list before, so that a new entry would get the action of that one.
        if self.unbuilt.has_other_list(name) {
            return Dirty::Everything;
        }
        let Some(predicate) = baseline.predicate_of_list(name) else { return Dirty::Everything };
        let is_few = |it: &Vec<_>| (baseline.relisted().len() + it.len()) as u128 <= MOST_RELISTED;
        let Some(differing) = differing(old, new).filter(is_few) else { return Dirty::Everything };
        // While a generation is pending, a change that allows more waits for it: another list may deny the address in
        // that generation. If that list changes after this one, the address is open until its generation.
        let allows = new.action == ListAction::Allow;
        if self.is_outdated && differing.iter().any(|(_, is_listed)| *is_listed == allows) {
            return Dirty::Everything;
        }
        let relisted = differing.into_iter().map(|(address, is_listed)| {
            let (set, peer) = self.relist(baseline, address, predicate, is_listed)?;
            Some((address, set, peer))
        });
        // All or nothing: if one address needs a compile, the compile contains the others too.
        let Some(relisted) = relisted.collect::<Option<Vec<_>>>() else { return Dirty::Everything };
        let classes: BTreeMap<IpAddr, PeerId> = relisted.iter().map(|(address, _, peer)| (*address, *peer)).collect();
        // No owner changes: no pod has any of these addresses.
        let dirty = baseline.changes(classes, false);
        // Kept for the next change: a pod that gets one of these addresses, or a second list with it, builds on this
        // set.
        if let Some(baseline) = &mut self.baseline {
            baseline.note_relisted(relisted.into_iter().map(|(address, set, _)| (address, set)));
        }
        dirty
    }

    /// The blocks and lists that contain an address after the change, and the class for them. `None` if the address
    /// belongs to anything else, or there is no such class.
    fn relist(
        &self,
        baseline: &Baseline,
        address: IpAddr,
        list: PredicateId,
        is_listed: bool,
    ) -> Option<(Vec<PredicateId>, PeerId)> {
        // Then the key of its class has more than predicates, or the verdicts on a service depend on the class of this
        // address.
        let is_more = self.is_taken(baseline, address)
            || baseline.is_backing(address)
            || self.holders.get(&address).is_some_and(|count| *count > 0);
        if is_more {
            return None;
        }
        let mut set = baseline.predicates_at(address).to_vec();
        // In the last arm the set is right already: the opposite change was answered with a compile, so it is not in
        // `relisted`.
        match (set.binary_search(&list), is_listed) {
            (Err(at), true) => set.insert(at, list),
            (Ok(at), false) => _ = set.remove(at),
            _ => {}
        }
        let peer = baseline.class_of_predicates(&set)?;
        Some((set, peer))
    }
}

/// The name and two states of a list that differ at most in their entries.
pub(super) fn only_entries<'o>(
    before: Option<&'o Object>,
    after: Option<&'o Object>,
) -> Option<(&'o str, &'o CidrList, &'o CidrList)> {
    let (before, after) = before.zip(after)?;
    match (&before.body, &after.body) {
        // Action, order, directions and selectors decide about every address of the list, so a change of them concerns
        // all rows.
        (Body::CidrList(old), Body::CidrList(new)) if shallow(old) == shallow(new) => {
            Some((&before.meta.name, old, new))
        }
        _ => None,
    }
}

/// A copy of the list without its entries.
pub(super) fn shallow(list: &CidrList) -> CidrList {
    // Field by field: if a field is added, this line does not compile until it is decided whether the field concerns
    // all addresses.
    let CidrList { action, order, ingress, egress, namespaces, pods, entries: _ } = list;
    CidrList {
        action: *action,
        order: *order,
        ingress: *ingress,
        egress: *egress,
        namespaces: namespaces.clone(),
        pods: pods.clone(),
        entries: Vec::new(),
    }
}

/// The addresses that only one of two lists contains, and whether that is the new one; `None` if there are too many.
fn differing(old: &CidrList, new: &CidrList) -> Option<Vec<(IpAddr, bool)>> {
    let mut found = Vec::new();
    of_family::<u32>(old, new, &mut found)?;
    of_family::<u128>(old, new, &mut found)?;
    Some(found)
}

fn of_family<N: Number>(old: &CidrList, new: &CidrList, found: &mut Vec<(IpAddr, bool)>) -> Option<()> {
    // United first: an entry inside another one comes and goes without a difference.
    let [old, new] = [old, new].map(|list| ranges_of::<N>(&list.entries));
    for (ranges, is_new) in [(difference(&old, &new), false), (difference(&new, &old), true)] {
        for (first, last) in ranges {
            let (first, last) = (first.wide(), last.wide());
            // Counted before any address is listed: `::/0` as a new entry would not end.
            if last - first >= MOST_RELISTED.saturating_sub(found.len() as u128) {
                return None;
            }
            found.extend((first..=last).map(|number| (to_address(N::FAMILY, number), is_new)));
        }
    }
    Some(())
}
