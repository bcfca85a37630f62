//! Answers as data: the documents that `weir … -o json` prints.
//!
//! Problem: programs that use the library and programs that read the output of `weir` need the same answers, and two
//! definitions of one format would drift apart. Strategy: each document is a type here; the command line prints it with
//! serde (feature `serde`), and the schemas in `docs/schema` are generated from it (feature `schema`).
//! Invariant: the order of the fields is the order in the document, so a change of a type is a change of a format. The
//! tests of the output's bytes are in `cli/tests`; `schemas::schemas_are_those_of_the_types` compares the schemas.

/// Declares an enum of words that a document uses.
macro_rules! words {
    ($(#[$comment:meta])* $name:ident $case:literal { $($word:ident),+ }) => {
        $(#[$comment])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = $case))]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[allow(missing_docs, reason = "the names say it; a comment would make each a schema of its own")]
        pub enum $name {
            $($word),+
        }
    };
}

mod check;
mod diff;
mod explain;
mod flow;
#[cfg(feature = "schema")]
mod schema;

pub use check::{
    CheckAnswer, CheckLocation, CheckObject, CheckRelated, CheckSummary, Finding, ObjectCounts, SeverityCounts,
};
pub use diff::{
    AddressSpan, Approval, ChangeWord, Cost, Costs, DecidesWord, DiffAccount, DiffAnswer, DiffEndpoints, DiffGroup,
    DiffProduct, DiffRowAnswer, DiffService, DiffSides, DiffSummary, DiffTraffic, DiffWitness, EndStateWord,
    FamilyWord, IsolationAnswer, IsolationWord, MapCost, OperatorWord, PodSetAnswer, PortRange, PresenceWord,
    ProtocolWord, Responsible, Selector, SelectorRequirement, WithoutEffect, WitnessWord,
};
pub use explain::{
    Audit, BackendSide, Basis, ClaimSide, ClassWords, DirectionWord, EndpointEnd, ExplainAnswer, ExplainedEnd,
    ExplainedFlow, ExplainedPacket, ExplainedSide, HostPortSide, ListReason, NearestRule, PolicyReason, Reason,
    SourceLocation, TierReason, VerdictOrDepends, VerdictWord, Witness, WitnessBytes,
};
pub use flow::{ContainerPort, FlowDescription, FlowSide, NamedEnd, PodDescription};

/// The part of an answer that a filter shows
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct ShownPart {
    /// --focus, --from, --to, --port, --selector, --namespace and --direction
    pub options: String,
    /// Rows and changes of isolation that are shown
    pub shown: usize,
    /// The same without the filter
    pub of: usize,
}

/// A kind of policies that an answer leaves out
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct IgnoredKind {
    /// GROUP/KIND
    pub kind: String,
    /// The number of its objects
    pub objects: usize,
}

#[cfg(feature = "schema")]
pub use schema::{document, generated};
