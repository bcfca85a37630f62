//! The connections that policies allow between the workloads of the input, as expectations state them: from a workload,
//! to another one, on a range of ports.
//!
//! Workloads are those of `weir matrix`. Traffic inside of a workload is left out: an expectation from a workload to
//! itself is about a pod and itself, which no policy can deny.

use std::collections::HashMap;

use weir_analysis::reach::{CellCache, CellId, Passes, Reach, ReachEnd, ports};
use weir_classes::{Atoms, PortSpec};
use weir_model::eval::FlowProtocol;

/// An allowed connection between two workloads, as indices into [`Reach::parties`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) ports: ConnectionPorts,
}

/// The ports of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionPorts {
    /// All traffic, or all but a few ports.
    Nearly(CellId),
    /// One port, or a range of ports with no gap.
    Range(PortSpec),
}

impl ConnectionPorts {
    /// Whether a flow with this protocol and port is one of the connection's.
    pub(crate) fn contain(self, cells: &CellCache<'_>, atoms: &Atoms, protocol: FlowProtocol, port: u16) -> bool {
        match (self, protocol) {
            (Self::Nearly(cell), FlowProtocol::Transport(protocol)) => {
                cells.set(cell).contains(atoms.find(protocol, port))
            }
            (Self::Nearly(_), FlowProtocol::Icmp) => true,
            (Self::Range(range), FlowProtocol::Transport(protocol)) => {
                range.protocol == protocol && (range.first..=range.last).contains(&port)
            }
            (Self::Range(_), FlowProtocol::Icmp) => false,
        }
    }

    /// In words: `TCP 80`, `everything but UDP 53`.
    pub(crate) fn words(self, cells: &CellCache<'_>, atoms: &Atoms) -> String {
        match self {
            Self::Nearly(cell) => ports::words(atoms, cells.set(cell)),
            Self::Range(PortSpec { protocol, first, last }) if first == last => {
                format!("{} {first}", ports::name(protocol))
            }
            Self::Range(PortSpec { protocol, first, last }) => format!("{} {first}-{last}", ports::name(protocol)),
        }
    }
}

/// Calls `visit` for each connection, sorted by source and destination. A pair is visited once, with the traffic that
/// passes over IPv4 or IPv6. Nothing is collected, because large clusters have millions of pairs.
pub(crate) fn visit_all(
    reach: &Reach<'_>,
    cells: &mut CellCache<'_>,
    mut visit: impl FnMut(&CellCache<'_>, Connection),
) {
    let mut known: HashMap<Passes, Vec<ConnectionPorts>> = HashMap::new();
    for from in 0..reach.parties.len() {
        for to in (0..reach.parties.len()).filter(|to| *to != from) {
            let ends = [from, to].map(|index| ReachEnd::Party(index as u32));
            let Some(passes) = cells.passes(ends[0], ends[1]) else { continue };
            let ports = known.entry(passes).or_insert_with(|| ports_of(reach, cells, passes));
            ports.iter().for_each(|ports| visit(cells, Connection { from, to, ports: *ports }));
        }
    }
}

fn ports_of(reach: &Reach<'_>, cells: &mut CellCache<'_>, passes: Passes) -> Vec<ConnectionPorts> {
    let cell = match passes {
        Passes::Cell(cell) => cell,
        Passes::ByFamily(v4, v6) => {
            let mut either = cells.set(v4).clone();
            either.add(cells.set(v6));
            cells.intern(either)
        }
    };
    match ports::parts(&reach.classes.atoms, cells.set(cell)) {
        (true, _) => vec![ConnectionPorts::Nearly(cell)],
        (false, ranges) => ranges.into_iter().map(ConnectionPorts::Range).collect(),
    }
}
