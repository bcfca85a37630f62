//! Which packets may be dropped at the edge of the node, by their source alone, before the kernel builds an skb for
//! them.
//!
//! Problem: packets whose source the lists deny for every pod need not travel as far as a pod's interface. But the edge
//! has no flows and no ports, and it does not know which addresses the host translates.
//! Strategy: drop packets from the peer classes that the lists deny for every local endpoint in both directions. No
//! allowed flow can have such a remote end, so the edge needs no flow table. The program
//! (`weir_codegen::emit::emit_edge`) looks the class up as the other programs do, in the same tables.
//! Invariants: the rows deny every packet that is denied here. Lists for one direction, for some pods or behind an
//! exemption are left to the other programs, and so are the addresses of nodes and services.

use std::collections::BTreeSet;

use crate::{Classes, PeerClass, PeerId, Predicate};
use weir_model::{Cluster, Direction, ListAction, ListId};

/// The peer classes that lists deny for every local endpoint, in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeDenials {
    denied: Vec<bool>,
}

impl EdgeDenials {
    /// The denied classes of a cluster; `None` if the edge may drop nothing.
    pub fn of(cluster: &Cluster, classes: &Classes) -> Option<Self> {
        let subjects: BTreeSet<&[ListId]> = classes.subjects.iter().map(|it| it.lists.as_slice()).collect();
        let is_denied = |peer: &PeerClass| {
            let is_plain = peer.nodes.is_empty() && peer.vip.is_none();
            let lists = lists_of(classes, peer);
            is_plain && !lists.is_empty() && subjects.iter().all(|it| both_ways(cluster, it, &lists))
        };
        let denied: Vec<bool> = classes.peers.iter().map(is_denied).collect();
        (!subjects.is_empty() && denied.contains(&true)).then_some(Self { denied })
    }

    /// Whether packets of a class are dropped.
    pub fn denies(&self, peer: PeerId) -> bool {
        self.denied.get(peer.index()).copied().unwrap_or(false)
    }

    /// The number of peer classes.
    pub fn classes(&self) -> usize {
        self.denied.len()
    }

    /// One bit per class; the first class is the lowest bit.
    pub fn bits(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.denied.len().div_ceil(64) * 8];
        for (byte, bits) in bytes.iter_mut().zip(self.denied.chunks(8)) {
            *byte = bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        }
        bytes
    }
}

/// The lists that contain a class.
fn lists_of(classes: &Classes, peer: &PeerClass) -> BTreeSet<ListId> {
    let of = |id: &crate::PredicateId| match classes.predicates().get(id.index()) {
        Some(Predicate::List(list)) => Some(*list),
        _ => None,
    };
    peer.predicates.iter().filter_map(of).collect()
}

/// Whether in each direction the first of the subject's lists that contains the remote end denies it.
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
