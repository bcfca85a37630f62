//! What differs between the policies of two clusters, for every pod that could exist.
//!
//! Problem: a comparison of the pods in the input says nothing about the pods that a cluster will have tomorrow, and
//! nothing at all if the input holds policies alone.
//! Strategy: a *possible pod* has any namespace, labels, container ports and address. Policies observe it only through
//! selectors, blocks and port names, so the set of flows that a rule allows is a decision diagram over these tests
//! ([`diagram`], [`variables`]). Whether anything changes is asked of diagrams, for each pair of namespaces that matters
//! ([`halves`], [`namespaces`]); the answer is given in the policies' own selectors ([`groups`]), as one row for each
//! changed rule and for each isolation that begins or ends ([`rows`]); where cluster-wide policies are in force, as a few
//! rows for each ([`tier_rows`]).
//! A row is the product of sources, destinations and traffic, without the products in `except`, and only where the
//! direction in `given` allows the flow. It needs no enumeration of pods or of pairs of namespaces.
//! Invariants: a flow between two possible ends changes if and only if a row of its change contains it. Every row has an
//! example that the reference oracle has confirmed. A comparison that does not fit its budget is an error, never a
//! shorter answer.

mod address_classes;
mod asked;
mod conflicts;
mod coverage;
mod diagram;
mod examples;
mod exposed;
mod groups;
mod halves;
mod namespaces;
mod rows;
mod tier_rows;
mod variables;

pub use asked::{
    AskedEnd, AskedTarget, DescribedPod, FlowExample, OpenAnswer, OpenProperty, OpenQuestion, OpenQuestionError, ask,
    labels_text,
};
pub use conflicts::{SelectorConflict, SelectorConflicts, block_is_empty};
pub use coverage::{
    Coverage, CoverageScope, CoveredRule, DeniedRule, DuplicatePolicy, RedundantPolicy, RulePlace, coverage,
};
pub use examples::{PossibleEnd, PossibleFlow, PossiblePod};
pub use exposed::{ExposedBy, ExposedGroup, exposed};
pub use groups::{EndSet, FlowProduct, PodSet, PortSet, TrafficSet};

use crate::diff::VerdictChange;
use weir_model::eval::{EndVerdict, RuleId};
use weir_model::{Cluster, Direction, ListId, PolicyId, TierRuleId};
use weir_objects::address::Family;

/// The budget of a comparison: the number of nodes of all diagrams, about 150 bytes each.
pub const MOST_NODES: usize = 4_000_000;

/// What changes for possible pods.
#[derive(Clone, Debug, Default)]
pub struct WorldDiff {
    /// The rows, those that allow more before those that allow less.
    pub rows: Vec<WorldRow>,
    /// Changes that no flow can observe, because the other end denies all of their traffic.
    pub without_effect: Vec<(VerdictChange, RowCause)>,
}

/// Traffic whose verdict changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldRow {
    /// Allowed now, or no longer.
    pub change: VerdictChange,
    /// The reason for the change.
    pub cause: RowCause,
    /// Sources, destinations and traffic.
    pub flows: FlowProduct,
    /// Flows among these that do not change.
    pub except: Vec<FlowProduct>,
    /// If set, the row contains only flows that this direction allows: of the head if the row is newly allowed, of the
    /// base if it no longer is.
    pub given: Option<Direction>,
    /// The family of the row's flows. Set only if an endpoint of the input has addresses of both: it may be in a group
    /// with one of them alone.
    pub family: Option<Family>,
    /// A flow of the row.
    pub example: PossibleFlow,
    /// The verdicts of the cause's direction about the example, on both sides. Set only where cluster-wide policies
    /// are in force: without them, the cause says it.
    pub decided: Option<[EndVerdict; 2]>,
}

/// The reason for a row: what one direction decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowCause {
    /// The direction.
    pub direction: Direction,
    /// What allows the row, and what denies it on the other side.
    pub kind: CauseKind,
}

/// What makes a difference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CauseKind {
    /// A rule of one side allows traffic that policies of the other side deny.
    Rule {
        /// The rule.
        rule: RuleId,
        /// The policies of the other side that isolate the pods.
        isolating: Vec<PolicyId>,
    },
    /// A policy isolates pods on the side that denies the row, and no policy isolates them on the other side.
    Isolation(PolicyId),
    /// An address list denies the row on one side. On the other side a rule allows it, or no policy isolates the pods.
    List(ListId, Option<RuleId>),
    /// A rule of a cluster-wide policy that the other side lacks, or has at another place.
    Tier {
        /// The rule.
        rule: TierRuleId,
        /// Whether it is a rule of the side that allows the row.
        is_allowing: bool,
    },
}

/// Why possible pods could not be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// The diagrams do not fit the budget.
    #[error(
        "cannot compare {} for every possible pod: the policies there combine too many selectors",
        if policies.is_empty() { "the policies".to_owned() } else { policies.join(", ") }
    )]
    TooLarge {
        /// The policies and lists that were compared when the budget ended, `namespace/name`.
        policies: Vec<String>,
    },
    /// A bug in Weir: the reference contradicts a row.
    #[error("the reference contradicts a row about possible pods: {0}")]
    Contradiction(String),
}

/// Compares two clusters for every possible pod.
pub fn compare(base: &Cluster, head: &Cluster) -> Result<WorldDiff, WorldError> {
    compare_watched(base, head, &|_, _| ())
}

/// The same. `watch` gets the number of finished steps and the number of all steps.
pub fn compare_watched(base: &Cluster, head: &Cluster, watch: &dyn Fn(u64, u64)) -> Result<WorldDiff, WorldError> {
    rows::rows([base, head], MOST_NODES, watch)
}
