//! Finds flows to measure: an endpoint, a peer that it may talk to, and a peer that it may not talk to.
//!
//! The class tables contain every distinction that policies make, so the search is over classes: the first endpoint of
//! each subject class, a few addresses of each peer class, a port of each atom.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_artifact::NamedEndpoint;
use weir_classes::{Atoms, Classes, PeerId, SubjectId};
use weir_model::{Cluster, Direction, Protocol};
use weir_objects::address::{Family, to_address, to_number};
use weir_runtime::trial::driver::MOST_OTHERS;

/// Number of subject classes that are searched; then the best pair so far is taken. The limit bounds the
/// time in clusters where no endpoint has both flows.
const MOST_SUBJECTS: usize = 256;

/// The other end of packets: addresses of one peer class, and the server's TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MeasuredFlow {
    pub(super) others: Vec<IpAddr>,
    pub(super) port: u16,
}

/// The flows to measure for one program and family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlowPair {
    pub(super) direction: Direction,
    /// Its index among the artifact's endpoints.
    pub(super) endpoint: usize,
    pub(super) own: IpAddr,
    pub(super) allowed: Option<MeasuredFlow>,
    pub(super) denied: Option<MeasuredFlow>,
}

/// One pair for each program and family, of an endpoint with an allowed and a denied flow if there is one.
pub(super) fn pairs(cluster: &Cluster, classes: &Classes, endpoints: &[NamedEndpoint]) -> Vec<FlowPair> {
    let mut pairs = Vec::new();
    for family in [Family::V4, Family::V6] {
        let peers = peers(classes, family);
        for direction in Direction::ALL {
            let search = Search { cluster, classes, family, direction, peers: &peers };
            pairs.extend(search.best(endpoints.len()));
        }
    }
    pairs
}

/// A few addresses of each class.
fn peers(classes: &Classes, family: Family) -> BTreeMap<PeerId, Vec<IpAddr>> {
    let mut peers: BTreeMap<PeerId, Vec<IpAddr>> = BTreeMap::new();
    let mut note = |peer: PeerId, address: IpAddr| {
        let is_plain = classes
            .peers
            .get(peer.index())
            .is_some_and(|it| it.nodes.is_empty() && it.vip.is_none() && it.host_ports.is_empty());
        if is_plain && Family::of(address) == family && classes.peer_at(address) == peer {
            let known = peers.entry(peer).or_default();
            if known.len() <= MOST_OTHERS {
                known.push(address);
            }
        }
    };
    classes.addresses.exact().for_each(|(address, peer)| note(peer, address));
    for range in classes.addresses.ranges.iter().filter(|it| Family::of(it.first) == family) {
        let (first, last) = (to_number(range.first).1, to_number(range.last).1);
        // The first address of a block is rarely a host's.
        (first..=last).skip(1).take(MOST_OTHERS).for_each(|it| note(range.peer, to_address(family, it)));
    }
    // The peer class that no rule names: addresses reserved for documentation, unless a rule names them.
    let unnamed = match family {
        Family::V4 => 0xcb00_7101,
        Family::V6 => 0x2001_0db8 << 96 | 0xffff_0001,
    };
    (unnamed..unnamed + MOST_OTHERS as u128).for_each(|it| note(PeerId(0), to_address(family, it)));
    peers
}

struct Search<'a> {
    cluster: &'a Cluster,
    classes: &'a Classes,
    family: Family,
    direction: Direction,
    peers: &'a BTreeMap<PeerId, Vec<IpAddr>>,
}

impl Search<'_> {
    /// The first endpoint with an allowed and a denied flow, else the first with one of them.
    fn best(&self, endpoints: usize) -> Option<FlowPair> {
        let mut seen = vec![false; self.classes.subjects.len()];
        let mut best: Option<FlowPair> = None;
        let subjects = self.classes.subject_of.iter().enumerate().take(endpoints);
        let news = subjects.filter(|(_, (_, subject))| {
            seen.get_mut(subject.index()).is_some_and(|seen| !std::mem::replace(seen, true))
        });
        for (place, (id, subject)) in news.take(MOST_SUBJECTS) {
            let addresses = self.cluster.endpoints.get(id.index()).map(|it| it.addresses.as_slice());
            let own = addresses.unwrap_or_default().iter().copied().find(|it| Family::of(*it) == self.family);
            let Some(pair) = own.map(|own| self.pair(place, *subject, own)) else { continue };
            if pair.allowed.is_some() && pair.denied.is_some() {
                return Some(pair);
            }
            let has_one = pair.allowed.is_some() || pair.denied.is_some();
            best = best.or_else(|| has_one.then_some(pair));
        }
        best
    }

    fn pair(&self, endpoint: usize, subject: SubjectId, own: IpAddr) -> FlowPair {
        let mut pair = FlowPair { direction: self.direction, endpoint, own, allowed: None, denied: None };
        for (peer, addresses) in self.peers {
            let others = addresses.iter().copied().filter(|it| *it != own).take(MOST_OTHERS).collect::<Vec<_>>();
            if others.is_empty() {
                continue;
            }
            let set = self.classes.allowed(self.direction, subject, *peer);
            let port = |is_allowed: bool| {
                ports(&self.classes.atoms)
                    .find(|port| set.contains(self.classes.atoms.find(Protocol::Tcp, *port)) == is_allowed)
            };
            for (flow, is_allowed) in [(&mut pair.allowed, true), (&mut pair.denied, false)] {
                if flow.is_none() {
                    *flow = port(is_allowed).map(|port| MeasuredFlow { others: others.clone(), port });
                }
            }
            if pair.allowed.is_some() && pair.denied.is_some() {
                break;
            }
        }
        pair
    }
}

/// A TCP port of each atom, those in rules first.
fn ports(atoms: &Atoms) -> impl Iterator<Item = u16> {
    let named = atoms.intervals.iter().filter(|it| it.spec.protocol == Protocol::Tcp).map(|it| it.spec.first);
    let rest = (1..=u16::MAX).find(|port| atoms.find(Protocol::Tcp, *port) == Atoms::REST);
    named.filter(|port| *port > 0).chain(rest)
}
