//! The endpoints that are compiled at once: all of them in most clusters; in a large cluster, those that the next flows
//! need.
//!
//! Problem: a table for every pair of a hundred thousand endpoints' classes does not fit into memory, and a question
//! needs only two endpoints.
//! Strategy: take flows in their order until a part is full, and compile for their endpoints.
//! Invariants: every endpoint whose own verdict a flow needs is compiled before the flow is judged, so the division
//! into parts changes no answer; no state is kept from one part to the next.

use std::collections::BTreeSet;

use weir_model::eval::{Flow, Oracle};
use weir_model::{Cluster, EndpointId};

/// A cluster of at most this number of endpoints is compiled as a whole.
const WHOLE: usize = 10_000;
/// The number of endpoints in a part of a larger cluster: a few hundred megabytes.
const PART: usize = 2_048;

/// The endpoints whose verdicts can be asked for.
#[derive(Clone, Debug)]
pub(super) enum AskedEndpoints {
    /// Every endpoint.
    All,
    /// Only these; other endpoints of a flow are peers.
    These(BTreeSet<EndpointId>),
    /// Those of the flows to be judged next, up to a number.
    Part {
        /// The most endpoints at once, unless a single flow asks about more.
        most: usize,
        /// The endpoints that can be asked about now.
        now: BTreeSet<EndpointId>,
    },
}

impl AskedEndpoints {
    /// The best choice for a cluster.
    pub(super) fn suiting(cluster: &Cluster) -> Self {
        match cluster.endpoints.len() {
            // One compile for all questions is faster as long as it fits into memory.
            0..=WHOLE => Self::All,
            _ => Self::part(PART),
        }
    }

    /// An empty part.
    pub(super) fn part(most: usize) -> Self {
        Self::Part { most, now: BTreeSet::new() }
    }

    /// The endpoints that are compiled now; `None` for all.
    pub(super) fn now(&self) -> Option<&BTreeSet<EndpointId>> {
        match self {
            Self::All => None,
            Self::These(now) | Self::Part { now, .. } => Some(now),
        }
    }

    /// How many of the flows can be judged with one part, and the part, if it is not the present one.
    pub(super) fn next(
        &self,
        cluster: &Cluster,
        oracle: &Oracle<'_>,
        flows: &[Flow],
    ) -> (usize, Option<BTreeSet<EndpointId>>) {
        let Self::Part { most, now } = self else { return (flows.len(), None) };
        let (mut needed, mut taken) = (BTreeSet::new(), 0);
        for flow in flows {
            let more = ends(cluster, oracle, flow);
            let new = more.iter().filter(|id| !needed.contains(*id)).count();
            // A single flow may need more than a part holds (a service with thousands of backends). It is taken anyway:
            // refusing it would leave it without an answer.
            if taken > 0 && needed.len() + new > *most {
                break;
            }
            needed.extend(more);
            taken += 1;
        }
        // A part that is large enough already is kept, since a compile costs far more than a question.
        let other = !needed.is_subset(now);
        (taken, other.then_some(needed))
    }
}

/// The endpoints whose verdicts a flow needs: its ends, and the pods behind a service or hostPort.
fn ends(cluster: &Cluster, oracle: &Oracle<'_>, flow: &Flow) -> BTreeSet<EndpointId> {
    let ends = [flow.source, flow.destination].map(|end| oracle.complete(end).endpoint);
    let claimed = oracle.services_behind(flow).map_or_else(Vec::new, |behind| behind.claims);
    let behind = claimed.into_iter().filter_map(|(service, port)| {
        let service = cluster.services.get(service.index())?;
        service.ports.get(port as usize)
    });
    let claims = oracle.host_ports_of(flow).into_iter().filter_map(|index| cluster.host_ports.get(index));
    let backends = behind.flat_map(|port| &port.backends).chain(claims.map(|it| &it.backend));
    // By address too: a backend may name no pod, and the pod that has the address still judges what arrives.
    let owners = backends.flat_map(|it| [it.endpoint, it.address.and_then(|at| oracle.directory().endpoint_at(at))]);
    ends.into_iter().chain(owners).flatten().collect()
}
