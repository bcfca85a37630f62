//! The findings about an input: docs/schema/check.json.

use std::collections::BTreeMap;

use super::IgnoredKind;

/// All findings about an input
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct CheckAnswer {
    /// In the order of files and lines
    pub diagnostics: Vec<Finding>,
    /// Counts
    pub summary: CheckSummary,
    /// Policies that weir does not read and --ignore-kind ignored; absent if there are none
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
    pub left_out: Vec<IgnoredKind>,
}

/// One finding
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct Finding {
    /// Stable; `weir explain-code` documents it
    pub code: String,
    /// `error`, `warning` or `note`
    pub severity: String,
    /// The finding in one sentence
    pub message: String,
    /// Null for an object without text
    pub location: Option<CheckLocation>,
    /// The object that it is about
    pub object: Option<CheckObject>,
    /// As the API server prints it: spec.ingress[0].ports[1].port
    pub field: Option<String>,
    /// What is to be said at the location; may be empty
    pub label: String,
    /// Other places that have to do with it
    pub related: Vec<CheckRelated>,
    /// More sentences
    pub notes: Vec<String>,
    /// One concrete next step
    pub help: Option<String>,
}

/// A place in a file
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct CheckLocation {
    /// As named on the command line; `-` is standard input
    pub file: String,
    /// From 1; null for text that never became an object
    pub document: Option<u32>,
    /// From 1
    pub line: usize,
    /// From 1; counts characters
    pub column: usize,
    /// From 1
    pub end_line: usize,
    /// One past the last character
    pub end_column: usize,
}

/// The name of an object, as written
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct CheckObject {
    /// Its kind
    pub kind: String,
    /// Its namespace
    pub namespace: Option<String>,
    /// Its name
    pub name: String,
}

/// Another place that has to do with a finding
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct CheckRelated {
    /// Null for an object without text
    pub location: Option<CheckLocation>,
    /// What is to be said there
    pub message: String,
}

/// Counts of findings and objects
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct CheckSummary {
    /// The findings
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub severities: SeverityCounts,
    /// How many diagnostics are listed; fewer than there are with --max
    pub shown: usize,
    /// Valid objects of the kinds that are read
    pub objects: usize,
    /// The objects of each kind
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub kinds: ObjectCounts,
    /// Objects of kinds that are not read
    pub skipped: BTreeMap<String, usize>,
    /// False if a part of the input was not read
    pub complete: bool,
}

/// The number of findings of each severity
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeverityCounts {
    /// Errors
    pub errors: usize,
    /// Warnings
    pub warnings: usize,
    /// Notes
    pub notes: usize,
}

/// The number of objects of each kind
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "camelCase"))]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectCounts {
    /// NetworkPolicies
    pub policies: usize,
    /// ClusterNetworkPolicy, AdminNetworkPolicy and BaselineAdminNetworkPolicy
    pub cluster_policies: usize,
    /// Lists of addresses
    pub lists: usize,
    /// Pods
    pub pods: usize,
    /// Deployments and other objects that create pods
    pub workloads: usize,
    /// Services
    pub services: usize,
    /// Namespaces
    pub namespaces: usize,
    /// Nodes
    pub nodes: usize,
}
