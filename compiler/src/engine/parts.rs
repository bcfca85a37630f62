//! Who is compiled at once: everybody in most clusters; in a large one those whom the next flows ask about.
//!
//! Problem: a table for every pair of a hundred thousand endpoints' classes does not fit into memory, and a question
//! asks about two of them.
//! Strategy: take flows in their order until a part is full, and compile for their endpoints.
//! Invariants: every endpoint whose own verdict a flow asks for is compiled before it is judged, so a part changes no
//! answer; what stays in force from one part to the next is nothing.

use std::collections::BTreeSet;

use crate::model::eval::{Flow, Oracle};
use crate::model::{Cluster, EndpointId};

/// A cluster of up to so many endpoints is compiled as one.
const WHOLE: usize = 10_000;
/// The endpoints of a part of a larger one: a few hundred megabytes.
const PART: usize = 2_048;

/// Who is asked.
#[derive(Clone, Debug)]
pub(super) enum Asked {
    /// Every endpoint.
    Everybody,
    /// These, whoever else takes part in a flow.
    These(BTreeSet<EndpointId>),
    /// Those of the flows that come next, up to so many.
    Part {
        /// The most endpoints at once, unless a single flow asks about more.
        most: usize,
        /// Who can be asked now.
        now: BTreeSet<EndpointId>,
    },
}

impl Asked {
    /// What suits a cluster.
    pub(super) fn suiting(cluster: &Cluster) -> Self {
        match cluster.endpoints.len() {
            0..=WHOLE => Self::Everybody,
            _ => Self::part(PART),
        }
    }

    /// Nobody yet.
    pub(super) fn part(most: usize) -> Self {
        Self::Part { most, now: BTreeSet::new() }
    }

    /// The endpoints that are compiled now; `None`: all.
    pub(super) fn now(&self) -> Option<&BTreeSet<EndpointId>> {
        match self {
            Self::Everybody => None,
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
            if taken > 0 && needed.len() + new > *most {
                break;
            }
            needed.extend(more);
            taken += 1;
        }
        let other = !needed.is_subset(now);
        (taken, other.then_some(needed))
    }
}

/// Whose verdicts a flow asks for: its ends', and those of the pods behind a service or hostPort.
fn ends(cluster: &Cluster, oracle: &Oracle<'_>, flow: &Flow) -> BTreeSet<EndpointId> {
    let ends = [flow.source, flow.destination].map(|end| oracle.complete(end).endpoint);
    let claimed = oracle.services_behind(flow).map_or_else(Vec::new, |behind| behind.claims);
    let behind = claimed.into_iter().filter_map(|(service, port)| {
        let service = cluster.services.get(service.index())?;
        service.ports.get(port as usize)
    });
    let claims = oracle.host_ports_of(flow).into_iter().filter_map(|index| cluster.host_ports.get(index));
    let backends = behind.flat_map(|port| &port.backends).chain(claims.map(|it| &it.backend));
    let owners = backends.flat_map(|it| [it.endpoint, it.address.and_then(|at| oracle.directory().endpoint_at(at))]);
    ends.into_iter().chain(owners).flatten().collect()
}
