//! Which endpoints of a service port are its backends.
//!
//! Problem: kube-proxy uses the endpoints that are ready. If no endpoint is ready, it uses those that are terminating
//! and still serve. It decides this for the whole cluster, and with a `Local` traffic policy for each node by itself, so one node
//! may send connections to an endpoint that no other node uses.
//! Strategy: the rule of kube-proxy's `CategorizeEndpoints`, asked for every node at once. An endpoint is a backend if
//! there is a node whose proxy may use it.
//! Invariants: the backends are a superset of what kube-proxy uses on any node. All of them must be allowed, so one too
//! many only denies. Hints of topology choose among the ready endpoints and never leave none, so they are not read.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::Family;
use crate::model::Backend;

/// An endpoint as one slice, or a pod as its service's selector, has it.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'o> {
    pub(super) backend: Backend,
    /// Its node, by name.
    pub(super) node: Option<&'o str>,
    pub(super) ready: bool,
    /// Whether it is used where no endpoint is ready: it is terminating and still serves.
    pub(super) is_fallback: bool,
    /// Whether kube-proxy takes it for an endpoint of this port. It does not if the slice's port has no number.
    pub(super) is_certain: bool,
}

/// Everything that slices say about one address and port. If they contradict each other, kube-proxy keeps one of them.
#[derive(Default)]
struct Said<'o> {
    backends: BTreeSet<Backend>,
    nodes: BTreeSet<Option<&'o str>>,
    may_be_ready: bool,
    may_be_fallback: bool,
    may_be_unready: bool,
}

/// The backends among the candidates; `local` if a traffic policy is `Local`.
pub(super) fn backends<'o>(candidates: impl IntoIterator<Item = Candidate<'o>>, local: bool) -> Vec<Backend> {
    let mut families: BTreeMap<Option<Family>, Endpoints<'o>> = BTreeMap::new();
    for candidate in candidates {
        let family = candidate.backend.address.map(Family::of);
        families.entry(family).or_default().add(candidate);
    }
    let mut found: Vec<Backend> = families.into_values().flat_map(|endpoints| endpoints.used(local)).collect();
    found.sort();
    found
}

/// The endpoints of one family: kube-proxy knows nothing of those of the other one.
#[derive(Default)]
struct Endpoints<'o>(BTreeMap<Backend, Said<'o>>);

impl<'o> Endpoints<'o> {
    fn add(&mut self, candidate: Candidate<'o>) {
        let Candidate { backend, node, ready, is_fallback, is_certain } = candidate;
        // kube-proxy knows an endpoint by its address and port. Those without addresses differ by their object.
        let which = Backend { endpoint: backend.endpoint.filter(|_| backend.address.is_none()), ..backend.clone() };
        let said = self.0.entry(which).or_default();
        said.backends.insert(backend);
        said.nodes.insert(node);
        said.may_be_ready |= ready;
        said.may_be_fallback |= is_fallback;
        said.may_be_unready |= !ready || !is_certain;
    }

    fn used(self, local: bool) -> Vec<Backend> {
        let is_ready = |it: &&Said<'o>| it.may_be_ready && !it.may_be_unready;
        let any_ready = self.0.values().any(|it| is_ready(&it));
        let mut with_ready: BTreeSet<&'o str> = BTreeSet::new();
        for said in self.0.values().filter(is_ready) {
            // If slices name two nodes, either may be the right one.
            if let [Some(node)] = said.nodes.iter().copied().collect::<Vec<_>>()[..] {
                with_ready.insert(node);
            }
        }
        let lacks_ready = |node: &Option<&'o str>| node.is_none_or(|node| !with_ready.contains(node));
        let falls_back = |it: &Said<'o>| !any_ready || local && it.nodes.iter().any(lacks_ready);
        let is_used = |it: &Said<'o>| it.may_be_ready || it.may_be_fallback && falls_back(it);
        self.0.into_values().filter(is_used).flat_map(|it| it.backends).collect()
    }
}
