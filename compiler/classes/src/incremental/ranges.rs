//! Blocks, lists and `nodes` peers that begin or cease to contain ranges of addresses.
//!
//! Every address in such a range gets the class of its former key with the predicate added or removed. Addresses have few
//! different classes, so a key is made once for each class, and not for each address.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Effect, Maintained, NeedsWhole};
use crate::addresses::{self, Number, RangeMove, RangeMoves, SetId, difference, ranges_at, ranges_of, ranges_of_block};
use crate::meter::{CLASS_BYTES, Meter, PAIR_BYTES};
use crate::peers::Peers;
use crate::{PeerClass, PeerId, Predicate, PredicateId};
use weir_model::IpBlockPods;
use weir_model::labels::matches;
use weir_model::resolve::FoundNode;
use weir_objects::address::{Family, Prefix};
use weir_objects::k8s::{Labels, ListEntry};

/// The ranges for which a predicate holds now: sorted, disjoint.
#[derive(Clone, Debug)]
pub(crate) struct HeldRanges {
    predicate: PredicateId,
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl HeldRanges {
    pub(crate) fn of_list(predicate: PredicateId, entries: &[ListEntry]) -> Self {
        Self { predicate, v4: ranges_of(entries), v6: ranges_of(entries) }
    }
}

/// The changes of predicates of addresses since the generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeChanges {
    /// Lists and `nodes` peers with other ranges.
    pub(crate) held: Vec<HeldRanges>,
    /// The blocks and lists that contain single addresses now, if they differ from the generation's.
    pub(crate) relisted: Arc<BTreeMap<IpAddr, Vec<PredicateId>>>,
}

impl Maintained {
    /// Gives addresses the classes that they have with new predicates and with changed lists.
    pub(super) fn change_ranges(
        &mut self,
        new: &[PredicateId],
        changes: &RangeChanges,
        effect: &mut Effect,
        meter: &Meter,
    ) -> Result<(), NeedsWhole> {
        let mut moves = self.new_ranges(new)?;
        if !moves.is_empty() || !changes.held.is_empty() {
            self.relist(&changes.relisted, meter);
            moves.extend(self.moves_to(&changes.held));
            self.moves = Some(self.move_ranges(&moves, effect, meter)?);
        } else {
            self.moves = None;
        }
        Ok(())
    }

    /// The ranges in which new predicates hold.
    fn new_ranges(&self, new: &[PredicateId]) -> Result<Vec<RangeMove>, NeedsWhole> {
        let mut found = Vec::new();
        for id in new {
            let Predicate::Block { cidr, except } = &self.classes.rules.predicates[id.index()] else { continue };
            // The class of an address does not say whether a pod has it: a pod can be like any other address.
            if self.cluster.assume.ipblock_pods != IpBlockPods::Match {
                return Err(NeedsWhole::Peers);
            }
            let (v4, v6) = (ranges_in(*cidr, except), ranges_in(*cidr, except));
            found.push(RangeMove { predicate: *id, holds: true, is_metered: true, v4, v6 });
        }
        Ok(found)
    }

    /// Gives the segments the lists that contain single addresses now. Their entries have the classes already.
    fn relist(&mut self, relisted: &BTreeMap<IpAddr, Vec<PredicateId>>, meter: &Meter) {
        let mut found: BTreeMap<(PredicateId, bool), RangeMove> = BTreeMap::new();
        for (address, now) in relisted {
            let before = self.peers.lookup.predicates_at(*address);
            let only = |one: &[PredicateId], other: &[PredicateId], holds| {
                one.iter().filter(|id| other.binary_search(id).is_err()).map(|id| (*id, holds)).collect::<Vec<_>>()
            };
            for (predicate, holds) in only(now, before, true).into_iter().chain(only(before, now, false)) {
                let of_list = found.entry((predicate, holds)).or_insert_with(|| RangeMove::of_list(predicate, holds));
                match address {
                    IpAddr::V4(v4) => of_list.v4.push((v4.to_bits(), v4.to_bits())),
                    IpAddr::V6(v6) => of_list.v6.push((v6.to_bits(), v6.to_bits())),
                }
            }
        }
        if !found.is_empty() {
            let moves = RangeMoves::new(&found.into_values().collect::<Vec<_>>(), meter);
            Arc::make_mut(&mut self.peers.lookup).move_segments(&moves, meter);
        }
    }

    /// The addresses that `nodes` peers match.
    pub(crate) fn ranges_of_nodes(
        &self,
        nodes: &BTreeMap<Cow<'_, str>, FoundNode<'_>>,
    ) -> Result<Vec<HeldRanges>, NeedsWhole> {
        // Backends on the network of a node without an address are found by the labels of the node.
        if !self.peers.without_address.is_empty() {
            return Err(NeedsWhole::Backends);
        }
        let nodes = || nodes.values().map(|node| (node.object.map(|it| &*it.meta.labels), &node.addresses));
        let predicates = (0..).map(PredicateId).zip(&self.classes.rules.predicates);
        let of_predicate = |(id, predicate): (PredicateId, &Predicate)| {
            let Predicate::Nodes(selector) = predicate else { return None };
            let (selector, none) = (self.cluster.labels.selector(*selector), Labels::default());
            let selected = nodes().filter(|(labels, _)| matches(selector, labels.unwrap_or(&none)));
            let addresses: Vec<IpAddr> = selected.flat_map(|(_, addresses)| addresses).copied().collect();
            Some(HeldRanges { predicate: id, v4: ranges_at(&addresses), v6: ranges_at(&addresses) })
        };
        Ok(predicates.filter_map(of_predicate).collect())
    }

    /// The ranges that predicates lose and get.
    fn moves_to(&self, held: &[HeldRanges]) -> Vec<RangeMove> {
        let moves = held.iter().flat_map(|HeldRanges { predicate, v4, v6 }| {
            let (old_v4, old_v6) = self.peers.lookup.ranges_where(*predicate);
            let of = |holds, v4, v6| RangeMove { v4, v6, ..RangeMove::of_list(*predicate, holds) };
            let left = of(false, difference(&old_v4, v4), difference(&old_v6, v6));
            [left, of(true, difference(v4, &old_v4), difference(v6, &old_v6))]
        });
        moves.filter(|it| !it.v4.is_empty() || !it.v6.is_empty()).collect()
    }

    /// Gives addresses the classes that they have after the moves.
    fn move_ranges(
        &mut self,
        list: &[RangeMove],
        effect: &mut Effect,
        meter: &Meter,
    ) -> Result<RangeMoves, NeedsWhole> {
        let moves = RangeMoves::new(list, meter);
        // If a limit is exceeded, the moves are incomplete.
        meter.check()?;
        let Peers { lookup, list, addresses, .. } = &mut self.peers;
        let (lookup, list) = (Arc::make_mut(lookup), Arc::make_mut(list));
        lookup.move_segments(&moves, meter);
        meter.check()?;
        let of_sets = lookup.classes_of_sets(list);
        let mut known: HashMap<(PeerId, SetId), PeerId> = HashMap::new();
        let mut renamed = |(address, peer): (IpAddr, PeerId)| {
            let moved = moves.at(address);
            let after = *known.entry((peer, moved)).or_insert_with(|| {
                let key = &list[peer.index()];
                let predicates = moves.apply(moved, &key.predicates).into();
                let length = key.predicates.len() as u64;
                _ = meter.take(PAIR_BYTES * length + CLASS_BYTES, length);
                lookup.intern(PeerClass { predicates, ..key.clone() }, list)
            });
            (address, after)
        };
        let families = [Family::V4, Family::V6];
        let moving = families.iter().flat_map(|family| addresses.moving(*family)).map(&mut renamed).collect();
        *addresses = addresses::assemble(lookup.ranges(&of_sets), moving).into();
        meter.check()?;
        // The new classes need no ranges of ports: their named ports are those of the classes that they come from.
        self.classes.peers = Arc::clone(&self.peers.list);
        self.classes.addresses = Arc::clone(&self.peers.addresses);
        (effect.changes_facts, effect.changes_addresses) = (true, true);
        Ok(moves)
    }
}

/// The addresses of a block in a family.
fn ranges_in<N: Number>(cidr: Prefix, except: &[Prefix]) -> Vec<(N, N)> {
    if cidr.family() == N::FAMILY { ranges_of_block(cidr, except) } else { Vec::new() }
}
