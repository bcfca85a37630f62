//! Two clusters → the traffic that one allows and the other does not, exactly.
//!
//! Problem: a change of a policy is read as text, and its effect on traffic is guessed. Asking about every pair of pods
//! is slow, and the answer is too long to read.
//! Strategy: classify both clusters, cut their ports and addresses by each other, and compare entries of the tables
//! instead of flows ([`tables`]). Ends with equal rows and columns are one class ([`grid`]); differing pairs of classes
//! become boxes "all of these → all of those" ([`boxes`]), with the rules behind them ([`cells`]); boxes of both
//! families become rows ([`rows`]), and each row gets a flow that the reference oracle judges differently on the two
//! sides ([`witness`]).
//! Scope: flows between endpoints, and between endpoints and outside addresses, as both ends together judge them;
//! endpoints are the same if namespace, name and kind are equal. Left out, since nothing can forbid them: flows from a
//! pod to itself; between a pod and its own node (its addresses, its host-network pods); and from a pod to a service
//! that leads to one of these.
//! Invariants: rows are exact: a flow within a row differs as the row shows, and every flow that differs is in a row;
//! no step examines pods one by one, and nothing depends on the order of the input.

/// An index type of this module.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) struct $name(pub(super) u32);

        impl $name {
            pub(super) fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

mod atoms;
mod boxes;
mod cells;
mod cluster_side;
mod grid;
mod isolation;
mod names;
mod open;
mod possible;
pub(crate) mod ranges;
mod regions;
mod rows;
mod tables;
mod universe;
mod witness;

use std::net::IpAddr;

pub use crate::addresses::{AddressRange, AddressSet};
pub use names::Namer;
pub use open::row_traffic;
pub use open::{compare_open, compare_open_watched};
pub use possible::{ends as possible_ends, flow as possible_words};

use crate::world::{PodSet, PossibleFlow, RowCause, WorldError};
use weir_classes::{ClassifyError, PortSpec};
use weir_model::eval::{Flow, RuleId, Verdict};
use weir_model::{Cluster, Direction, EndpointId, ListId, PolicyId, ServiceId, TierRuleId};
use weir_objects::address::Family;

/// What differs between two clusters: the base, and the head that is to replace it.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// Every endpoint of either side, sorted by namespace and name.
    pub endpoints: Vec<DiffEndpoint>,
    /// Every address of a service of either side, sorted.
    pub services: Vec<ServiceAddress>,
    /// Differences of allowed traffic, in the order in which they are best read.
    pub rows: Vec<DiffRow>,
    /// Isolation that begins or ends.
    pub isolation: Vec<IsolationChange>,
    /// Changes that no flow can observe, because the other direction denies all of their traffic.
    pub without_effect: Vec<(VerdictChange, RowCause)>,
}

/// An endpoint, identified by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffEndpoint {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `Pod`, or the workload's kind.
    pub kind: String,
    /// Its ids in the base and in the head.
    pub ids: [Option<EndpointId>; 2],
}

/// An address of services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    /// The address.
    pub address: IpAddr,
    /// The services on it, in the base and in the head.
    pub services: [Vec<ServiceId>; 2],
}

/// A region: traffic from all of the sources to all of the destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffRow {
    /// Whether all of its endpoints exist on both sides.
    pub presence: Presence,
    /// Allowed now, or no longer.
    pub change: VerdictChange,
    /// Which end causes the difference.
    pub decides: Decides,
    /// The sources.
    pub source: RowEnd,
    /// The destinations.
    pub destination: RowEnd,
    /// The traffic between them that differs.
    pub traffic: RowTraffic,
    /// Set if the difference exists in this family alone, though endpoints of both families take part.
    pub family: Option<Family>,
    /// The source's account in the base and in the head; `None` if the source does not decide.
    pub egress: Option<[EndReason; 2]>,
    /// The destination's account in the base and in the head; `None` if the destination does not decide.
    pub ingress: Option<[EndReason; 2]>,
    /// Flows of the row that do not change. Only rows about possible pods have any.
    pub except: Vec<RowProduct>,
    /// If set, the row contains only flows that this direction allows: of the head if the row is newly allowed, of the
    /// base if it no longer is.
    pub given: Option<Direction>,
    /// An example flow of this row.
    pub witness: FlowWitness,
}

/// All traffic of a kind from all of the sources to all of the destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowProduct {
    /// The sources.
    pub source: RowEnd,
    /// The destinations.
    pub destination: RowEnd,
    /// The traffic.
    pub traffic: RowTraffic,
}

impl DiffRow {
    /// The account of the end that a direction belongs to, if that end decides.
    pub fn accounts(&self, direction: Direction) -> Option<&[EndReason; 2]> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }
}

/// The sources or the destinations of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowEnd {
    /// Indexes into [`Diff::endpoints`], sorted.
    pub endpoints: Vec<u32>,
    /// Outside addresses.
    pub ranges: AddressSet,
    /// Indexes into [`Diff::services`], sorted.
    pub services: Vec<u32>,
    /// Pods that could exist. `endpoints` lists those of the input that are among them.
    pub pods: Vec<PodSet>,
}

/// Whether an endpoint exists on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// On both sides.
    Kept,
    /// In the head alone: everything it may do is new.
    Appeared,
    /// In the base alone: everything it could do is gone.
    Disappeared,
}

/// How the verdict on the traffic changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VerdictChange {
    /// The head allows it, the base did not.
    Added,
    /// The base allowed it, the head does not.
    Removed,
}

/// Whose policies make the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decides {
    /// The source's.
    Egress,
    /// The destination's.
    Ingress,
    /// Both: each of them alone would have been enough to forbid it.
    Both,
}

/// A set of ports and of traffic without ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowTraffic {
    /// Sorted, disjoint, never touching; port 0 is left out.
    pub ranges: Vec<PortSpec>,
    /// Whether traffic without ports is included: ICMP, and every protocol but TCP, UDP and SCTP.
    pub portless: bool,
    /// Ports that the destination must give each of these names.
    pub named: Vec<(PortSpec, Vec<String>)>,
}

/// The state of one end towards the other, on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndState {
    /// One of the two is not there.
    Absent,
    /// No policy applies to it: it is on the host's network.
    Free,
    /// No policy isolates it in this direction.
    Open,
    /// Policies isolate it: only traffic that rules allow passes.
    Isolated,
    /// A list denies the other one's address.
    List(ListId),
    /// Cluster-wide policies decide all traffic of the row.
    Tier,
    /// The backends of a service's address decide; the witness shows how.
    Service,
}

/// The reason for the verdict of one end on a row, on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndReason {
    /// The state of this end.
    pub state: EndState,
    /// The rules that allow traffic of the row, each at least some of it; only where this side allows it.
    pub rules: Vec<RuleId>,
    /// The rules of cluster-wide policies that decide, each at least some traffic of the row: they accept it where this
    /// side allows it, and deny it elsewhere.
    pub tiers: Vec<TierRuleId>,
    /// The policies that isolate the row's endpoints, where this side does not allow the traffic. If some of them are
    /// missing or different on the other side, only those.
    pub isolating: Vec<PolicyId>,
}

/// A flow that the two sides judge differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowWitness {
    /// The sender: an index into [`Diff::endpoints`]; `None` for an outside address.
    pub source: Option<u32>,
    /// The receiver, likewise.
    pub destination: Option<u32>,
    /// The flow in the terms of the base and of the head; `None` if an end does not exist there.
    pub flows: [Option<Flow>; 2],
    /// The verdicts of the base and of the head. A flow that cannot be sent counts as denied.
    pub verdicts: [Verdict; 2],
    /// The flow, if one of its ends is a pod that could exist; then the other fields name no ends.
    pub possible: Option<Box<PossibleFlow>>,
}

/// Endpoints whose isolation begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsolationChange {
    /// The direction of the isolation.
    pub direction: Direction,
    /// Whether it begins.
    pub begins: bool,
    /// The endpoints: indexes into [`Diff::endpoints`], sorted.
    pub endpoints: Vec<u32>,
    /// The isolating policies, of the side where the isolation is in force.
    pub policies: Vec<PolicyId>,
}

/// Why the comparison failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiffError {
    /// An assumption that classes cannot express.
    #[error(transparent)]
    Classify(#[from] ClassifyError),
    /// Possible pods could not be compared.
    #[error(transparent)]
    World(#[from] WorldError),
    /// A bug in Weir: the reference contradicts the comparison.
    #[error("the reference says otherwise than the comparison: {0}")]
    Witness(String),
}

/// Compares two clusters.
pub fn compare(base: &Cluster, head: &Cluster) -> Result<Diff, DiffError> {
    between([Some(cluster_side::ClusterSide::new(base)?), Some(cluster_side::ClusterSide::new(head)?)])
}

fn between(sides: [Option<cluster_side::ClusterSide<'_>>; 2]) -> Result<Diff, DiffError> {
    let endpoints = universe::endpoints(&sides);
    let services = universe::services(&sides);
    // By family, since an endpoint can have addresses of both, and blocks of one say nothing about the other. `rows`
    // joins the results where they agree.
    let frames = [Family::V4, Family::V6].map(|it| universe::FamilyEnds::new(&sides, &endpoints, &services, it));
    // Sets of the two sides can be compared only if both are sets of the same atoms.
    let atoms = atoms::JointAtoms::new(&sides);
    let mut tables = tables::EntryTables::new(&sides, atoms);
    // Both families share `tables` and `cells`: equal differences get equal numbers, by which `rows` recognizes them.
    let mut cells = cells::CellTable::default();
    let found = frames.each_ref().map(|it| regions::regions(&mut tables, &mut cells, it, &endpoints, &services));
    let isolation = isolation::changes(&sides, &endpoints);
    let context = rows::RowContext { sides: &sides, endpoints: &endpoints, services: &services, frames: &frames };
    let rows = rows::rows(&context, &tables, &cells, found)?;
    Ok(Diff { endpoints, services, rows, isolation, without_effect: Vec::new() })
}
