//! Decides which endpoints of a service port are its backends.
//!
//! Problem: kube-proxy uses the endpoints that are ready. If no endpoint is ready, it uses the terminating endpoints
//! that still serve. It decides this for the whole cluster, or with a `Local` traffic policy for each node separately.
//! So one node may send connections to an endpoint that no other node uses.
//! Strategy: evaluate the rule of kube-proxy's `CategorizeEndpoints` for all nodes at once. An endpoint is a backend if
//! the proxy of some node may use it.
//! Invariants: the backends are a superset of the endpoints that kube-proxy uses on any node. All backends must be
//! allowed, so an additional backend can only deny. Topology hints choose among the ready endpoints and always leave at
//! least one, so they are not read.

use std::collections::{BTreeMap, BTreeSet};

use crate::Backend;
use weir_objects::address::Family;

/// An endpoint as one EndpointSlice describes it, or a pod that the service's selector matches.
#[derive(Clone, Debug)]
pub(super) struct BackendCandidate<'o> {
    pub(super) backend: Backend,
    /// The name of its node.
    pub(super) node: Option<&'o str>,
    pub(super) ready: bool,
    /// Whether kube-proxy uses it where no endpoint is ready: it is terminating and still serves.
    pub(super) is_fallback: bool,
    /// Whether kube-proxy certainly uses it as an endpoint of this port. It does not if the slice's port has no number.
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
pub(super) fn backends<'o>(candidates: impl IntoIterator<Item = BackendCandidate<'o>>, local: bool) -> Vec<Backend> {
    let candidates: Vec<BackendCandidate<'o>> = candidates.into_iter().collect();
    // Nearly always. Then all are used, on every node, and nothing has to be compared: a cluster has a hundred thousand
    // of them.
    if candidates.iter().all(|it| it.ready && it.is_certain) {
        let mut found: Vec<Backend> = candidates.into_iter().map(|it| it.backend).collect();
        found.sort_unstable();
        found.dedup();
        return found;
    }
    by_readiness(candidates, local)
}

/// The same for candidates of which some may not be ready.
fn by_readiness<'o>(candidates: Vec<BackendCandidate<'o>>, local: bool) -> Vec<Backend> {
    let mut families: BTreeMap<Option<Family>, FamilyEndpoints<'o>> = BTreeMap::new();
    for candidate in candidates {
        let family = candidate.backend.address.map(Family::of);
        families.entry(family).or_default().add(candidate);
    }
    let mut found: Vec<Backend> = families.into_values().flat_map(|endpoints| endpoints.used(local)).collect();
    found.sort();
    found
}

/// The endpoints of one family. kube-proxy handles each family separately.
#[derive(Default)]
struct FamilyEndpoints<'o>(BTreeMap<Backend, Said<'o>>);

impl<'o> FamilyEndpoints<'o> {
    fn add(&mut self, candidate: BackendCandidate<'o>) {
        let BackendCandidate { backend, node, ready, is_fallback, is_certain } = candidate;
        // kube-proxy identifies an endpoint by its address and port. Endpoints without addresses differ by their
        // object.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EndpointId;

    #[test]
    fn candidates_that_are_all_ready_need_no_comparison() {
        let backend = |endpoint: u32, address: Option<&str>| Backend {
            endpoint: (endpoint > 0).then_some(EndpointId(endpoint)),
            address: address.map(|it| it.parse().expect("an address")),
            port: 80,
        };
        let all = [
            backend(1, Some("10.0.0.2")),
            backend(0, Some("2001:db8::1")),
            backend(2, None),
            backend(3, None),
            backend(1, Some("10.0.0.1")),
            // Slices may name an address twice, with or without its pod.
            backend(0, Some("10.0.0.1")),
            backend(1, Some("10.0.0.1")),
        ];
        let ready = |node| {
            let candidate = move |backend: &Backend| BackendCandidate {
                backend: backend.clone(),
                node,
                ready: true,
                is_fallback: false,
                is_certain: true,
            };
            all.iter().map(candidate).collect::<Vec<_>>()
        };
        for (node, local) in [(None, false), (Some("a"), false), (Some("a"), true)] {
            let found = backends(ready(node), local);
            assert_eq!(found.len(), 6);
            assert_eq!(found, by_readiness(ready(node), local));
        }
    }
}
