//! What may be dropped at the edge of the node, by its source alone, before the kernel has made a packet of it.
//!
//! Problem: what a list denies to everybody need not come as far as a pod's interface. But the edge knows no flows, no ports, and
//! not what the host translates.
//! Strategy: of the peer classes, those whose every address the lists deny to every local endpoint, to it and from it. No flow that
//! is allowed can have such a remote end, so that there is none to be asked for. The program ([`crate::emit::emit_edge`]) finds the
//! class as the others do, in the same tables.
//! Invariants: what is denied here, the rows deny; a list of one direction, or for some pods, or behind an exemption, is none of the
//! edge's; nor is a node's own address, or a service's.

use std::collections::BTreeSet;

use crate::classify::{Classes, Peer, PeerId, Predicate};
use crate::model::{Cluster, Direction, ListAction, ListId};

/// The peer classes that are denied to everybody, both ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    denied: Vec<bool>,
}

impl Edge {
    /// Of a cluster; `None` if nothing may be dropped there.
    pub fn of(cluster: &Cluster, classes: &Classes) -> Option<Self> {
        let subjects: BTreeSet<&[ListId]> = classes.subjects.iter().map(|it| it.lists.as_slice()).collect();
        let is_denied = |peer: &Peer| {
            let is_plain = peer.nodes.is_empty() && peer.front.is_none();
            let lists = lists_of(classes, peer);
            is_plain && !lists.is_empty() && subjects.iter().all(|it| both_ways(cluster, it, &lists))
        };
        let denied: Vec<bool> = classes.peers.iter().map(is_denied).collect();
        (!subjects.is_empty() && denied.contains(&true)).then_some(Self { denied })
    }

    /// Whether a class is denied.
    pub fn denies(&self, peer: PeerId) -> bool {
        self.denied.get(peer.index()).copied().unwrap_or(false)
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.denied.len()
    }

    /// A bit for each class, the first one lowest.
    pub fn bits(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.denied.len().div_ceil(64) * 8];
        for (byte, bits) in bytes.iter_mut().zip(self.denied.chunks(8)) {
            *byte = bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        }
        bytes
    }
}

/// The lists that contain a class.
fn lists_of(classes: &Classes, peer: &Peer) -> BTreeSet<ListId> {
    let of = |id: &crate::classify::PredicateId| match classes.predicates().get(id.index()) {
        Some(Predicate::List(list)) => Some(*list),
        _ => None,
    };
    peer.predicates.iter().filter_map(of).collect()
}

/// Whether the first of a subject's lists that contains the remote end denies, in each direction.
fn both_ways(cluster: &Cluster, subject: &[ListId], containing: &BTreeSet<ListId>) -> bool {
    Direction::ALL.into_iter().all(|direction| {
        let lists = subject.iter().filter(|id| containing.contains(id)).map(|id| &cluster.lists[id.index()]);
        let mut asked = lists.filter(|list| match direction {
            Direction::Ingress => list.ingress,
            Direction::Egress => list.egress,
        });
        asked.next().is_some_and(|list| list.action == ListAction::Deny)
    })
}
