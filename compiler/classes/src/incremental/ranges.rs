//! Blocks, lists and `nodes` peers that begin or cease to contain ranges of addresses.
//!
//! Every address in such a range gets the class of its former key with the predicate added or removed. Addresses have
//! few different classes, so a key is made once for each class, and not for each address.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::{Effect, Maintained, NeedsWhole};
use crate::addresses::{self, RangeMove, RangeMoves, Ranges, SetId};
use crate::meter::{CLASS_BYTES, Meter, PAIR_BYTES};
use crate::peers::Peers;
use crate::{PeerClass, PeerId, Predicate, PredicateId};
use weir_model::IpBlockPods;
use weir_model::labels::matches;
use weir_model::resolve::FoundNode;
use weir_objects::address::Family;
use weir_objects::k8s::Labels;

/// The ranges for which a predicate holds now.
#[derive(Clone, Debug)]
pub(crate) struct HeldRanges {
    pub(crate) predicate: PredicateId,
    pub(crate) ranges: Ranges,
}

/// The changes of predicates of addresses since the generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct RangeChanges {
    /// Lists and `nodes` peers with other ranges.
    pub(crate) held: Vec<HeldRanges>,
    /// Whether a pod has the address of a node, and rules have `nodes` peers. To them, the pod is a pod.
    pub(crate) has_pods_at_nodes: bool,
    /// The blocks and lists that contain single addresses now, if they differ from the generation's.
    pub(crate) relisted: Arc<BTreeMap<IpAddr, Vec<PredicateId>>>,
}

impl Maintained {
    /// Gives addresses the classes that they have with new predicates and with changed lists. `None` if no ranges
    /// change.
    pub(super) fn change_ranges(
        &mut self,
        new: &[PredicateId],
        changes: &RangeChanges,
        effect: &mut Effect,
        meter: &Meter,
    ) -> Result<Option<RangeMoves>, NeedsWhole> {
        let mut moves = self.new_ranges(new)?;
        if moves.is_empty() && changes.held.is_empty() {
            return Ok(None);
        }
        self.relist(&changes.relisted, meter);
        moves.extend(self.moves_to(&changes.held));
        // A list of which only the action has changed has the same ranges.
        if moves.is_empty() && changes.relisted.is_empty() {
            return Ok(None);
        }
        // The class of an address does not say whether a pod has it: a pod can be like any other address. So every
        // predicate at an address has to hold for a pod there, too.
        if changes.has_pods_at_nodes {
            return Err(NeedsWhole::Objects);
        }
        if self.cluster.assume.ipblock_pods != IpBlockPods::Match {
            return Err(NeedsWhole::Peers);
        }
        self.move_ranges(&moves, effect, meter).map(Some)
    }

    /// The ranges in which new predicates hold.
    fn new_ranges(&self, new: &[PredicateId]) -> Result<Vec<RangeMove>, NeedsWhole> {
        let mut found = Vec::new();
        for id in new {
            let (is_metered, ranges) = match &self.classes.rules.predicates[id.index()] {
                Predicate::Pods { .. } => continue,
                Predicate::Block { cidr, except } => (true, Ranges::of_block(*cidr, except)),
                Predicate::Networks(networks) => (false, Ranges::of_networks(networks)),
                Predicate::Nodes(_) | Predicate::List(_) => return Err(NeedsWhole::Peers),
            };
            found.push(RangeMove { predicate: *id, holds: true, is_metered, ranges });
        }
        Ok(found)
    }

    /// Gives the segments the lists that contain single addresses now. Their entries have the classes already.
    fn relist(&mut self, relisted: &BTreeMap<IpAddr, Vec<PredicateId>>, meter: &Meter) {
        let mut found: BTreeMap<(PredicateId, bool), Vec<IpAddr>> = BTreeMap::new();
        for (address, now) in relisted {
            let before = self.peers.lookup.predicates_at(*address);
            for (one, other, holds) in [(&now[..], before, true), (before, now, false)] {
                for predicate in one.iter().filter(|id| other.binary_search(id).is_err()) {
                    found.entry((*predicate, holds)).or_default().push(*address);
                }
            }
        }
        let moves = found.into_iter().map(|((predicate, holds), addresses)| RangeMove {
            predicate,
            holds,
            is_metered: false,
            ranges: Ranges::of_addresses(&addresses),
        });
        let moves: Vec<_> = moves.collect();
        if !moves.is_empty() {
            Arc::make_mut(&mut self.peers.lookup).move_segments(&RangeMoves::new(&moves, meter), meter);
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
            let addresses: Vec<&IpAddr> = selected.flat_map(|(_, addresses)| addresses).collect();
            Some(HeldRanges { predicate: id, ranges: Ranges::of_addresses(addresses.iter().copied()) })
        };
        Ok(predicates.filter_map(of_predicate).collect())
    }

    /// The ranges that predicates lose and get.
    fn moves_to(&self, held: &[HeldRanges]) -> Vec<RangeMove> {
        let moves = held.iter().flat_map(|HeldRanges { predicate, ranges }| {
            let before = self.peers.lookup.ranges_where(*predicate);
            let of = |holds, ranges| RangeMove { predicate: *predicate, holds, is_metered: false, ranges };
            [of(false, before.without(ranges)), of(true, ranges.without(&before))]
        });
        moves.filter(|it| !it.ranges.is_empty()).collect()
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
        // Many classes share their set of predicates, such as those of services.
        let mut sets: HashMap<(*const PredicateId, SetId), Arc<[PredicateId]>> = HashMap::new();
        let mut renamed = |(address, peer): (IpAddr, PeerId)| {
            let moved = moves.at(address);
            if moved == SetId::EMPTY {
                return (address, peer);
            }
            let after = known.entry((peer, moved)).or_insert_with(|| {
                let key = list[peer.index()].clone();
                let predicates = sets.entry((key.predicates.as_ptr(), moved)).or_insert_with(|| {
                    let after: Arc<[PredicateId]> = moves.apply(moved, &key.predicates).into();
                    // The result is discarded if a limit is exceeded.
                    _ = meter.take(PAIR_BYTES * after.len() as u64, after.len() as u64);
                    after
                });
                // Then any class will do.
                let fits = meter.take(CLASS_BYTES, 1);
                let key = PeerClass { predicates: Arc::clone(predicates), ..key };
                if fits { lookup.intern(key, list) } else { peer }
            });
            (address, *after)
        };
        let families = [Family::V4, Family::V6];
        let moving = families.iter().flat_map(|family| addresses.moving(*family)).map(&mut renamed).collect();
        *addresses = addresses::assemble(lookup.ranges(&of_sets), moving).into();
        meter.check()?;
        // The new classes need no ranges of ports: their named ports are those of the classes that they come from.
        self.classes.peers = Arc::clone(&self.peers.list);
        self.classes.addresses = Arc::clone(&self.peers.addresses);
        effect.changes_addresses = true;
        // The entries of addresses with hostPorts depend on the classes of their pods.
        let mut of_host_ports = self.cluster.host_ports.iter().filter_map(|it| it.backend.address);
        effect.changes_facts |= of_host_ports.any(|address| moves.at(address) != SetId::EMPTY);
        Ok(moves)
    }
}
