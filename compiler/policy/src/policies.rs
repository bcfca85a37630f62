//! Texts → [`Policies`], and the inputs that have no answer.

use std::collections::BTreeSet;

use thiserror::Error;
use weir_model::{Assumptions, Cluster, resolve};
use weir_objects::decode::{self, DecodeOptions, ForeignPolicy, Input, InputKind};
use weir_objects::diagnostic::{Diagnostics, Severity};
use weir_objects::k8s::Object;
use weir_objects::source::SourceMap;

/// How texts are read.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The namespace of objects and names that have none: `default`, unless it is set.
    pub default_namespace: String,
    /// Points that the API leaves open.
    pub assumptions: Assumptions,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { default_namespace: "default".to_owned(), assumptions: Assumptions::default() }
    }
}

/// The objects of an input, resolved into a cluster.
#[derive(Debug)]
pub struct Policies {
    /// Valid objects, in the order of the texts.
    pub(crate) objects: Vec<Object>,
    /// The texts.
    pub(crate) sources: SourceMap,
    /// Mistakes in the texts, and objects that contradict each other.
    pub(crate) diagnostics: Diagnostics,
    /// The cluster that the valid objects describe.
    pub(crate) cluster: Cluster,
    /// The namespace of names that have none.
    pub(crate) default_namespace: String,
    /// Kinds that are not read, and the number of objects of each.
    pub(crate) skipped: Vec<(String, usize)>,
    /// Policies of kinds that are not read: there is no answer with them.
    pub(crate) unread: Vec<ForeignPolicy>,
}

impl Policies {
    /// Valid objects, in the order of the texts.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Mistakes in the texts, and objects that contradict each other.
    pub fn diagnostics(&self) -> &Diagnostics {
        &self.diagnostics
    }

    /// The cluster that the valid objects describe.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Kinds that are not read, and the number of objects of each.
    pub fn skipped(&self) -> &[(String, usize)] {
        &self.skipped
    }

    /// Policies of kinds that are not read: there is no answer with them.
    pub fn unread(&self) -> &[ForeignPolicy] {
        &self.unread
    }
}

/// Why there is no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The input has errors, which `check` lists.
    #[error("the input has errors, so there is no answer: {count}, the first one is: {first}")]
    Invalid {
        /// Their number.
        count: usize,
        /// The message of the first one.
        first: String,
    },
    /// The input has policies of kinds that Weir does not read.
    #[error("there is no answer, because weir does not read policies of the input: {0}")]
    Unread(String),
    /// The input has no objects: every answer would be "allowed", which would hide a wrong path.
    #[error("the input has no objects that weir reads, so there is no answer")]
    Empty,
    /// The question names something that the input does not have, or a text that is no port.
    #[error("{reason}{}", hint.as_ref().map(|it| format!("; {it}")).unwrap_or_default())]
    Question {
        /// The mistake.
        reason: String,
        /// What to do.
        hint: Option<String>,
    },
    /// The input has no node of this name.
    #[error("the input has no node {name}{}", similar.as_ref().map(|it| format!("; did you mean `{it}`?")).unwrap_or_default())]
    UnknownNode {
        /// The name.
        name: String,
        /// The most similar name of a node.
        similar: Option<String>,
    },
    /// Both sides were read with other assumptions, so that every difference might be theirs.
    #[error("the policies were read with different assumptions: load both with the same ones")]
    Assumptions,
    /// The policies cannot be compared.
    #[error("the policies cannot be compared: {0}")]
    Diff(#[from] weir_analysis::diff::DiffError),
    /// The policies cannot be compiled.
    #[error("the policies cannot be compiled: {0}")]
    Compile(#[from] weir_codegen::compile::CompileError),
    /// The artifact cannot be put together.
    #[error("the artifact cannot be put together: {0}")]
    Link(#[from] weir_artifact::LinkError),
}

/// A text with YAML or JSON objects. The name is for messages.
pub fn manifest(name: impl Into<String>, text: impl Into<Vec<u8>>) -> Input {
    Input { name: name.into(), bytes: text.into(), kind: InputKind::Manifest }
}

/// Reads and resolves texts. Mistakes are in [`Policies::diagnostics`].
///
/// ```
/// use weir_policy::{LoadOptions, load, manifest};
///
/// let text = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: Shop}, spec: {podSelector: {}}}";
/// let policies = load(vec![manifest("a.yaml", text)], &LoadOptions::default());
/// assert!(policies.diagnostics().has_errors());
/// ```
pub fn load(inputs: Vec<Input>, options: &LoadOptions) -> Policies {
    let default_namespace = options.default_namespace.clone();
    let decoding = DecodeOptions { default_namespace: default_namespace.clone(), is_from_server: false };
    let (decoded, mut diagnostics) = decode::decode(inputs, &decoding);
    let (cluster, found) = resolve::resolve(&decoded.objects, options.assumptions);
    diagnostics.extend(found);
    Policies {
        objects: decoded.objects,
        sources: decoded.sources,
        diagnostics,
        cluster,
        default_namespace,
        skipped: decoded.skipped.into_iter().collect(),
        unread: decoded.foreign,
    }
}

impl Policies {
    /// The policies, if there is an answer about them. An object with an error is not in the cluster, so an answer
    /// without it would be about weaker or other policies.
    pub(crate) fn answerable(&self) -> Result<&Self, PolicyError> {
        let mut errors = self.diagnostics.iter().filter(|it| it.severity == Severity::Error);
        if let Some(first) = errors.next() {
            return Err(PolicyError::Invalid { count: 1 + errors.count(), first: first.message.clone() });
        }
        if !self.unread.is_empty() {
            let kinds: BTreeSet<String> = self.unread.iter().map(|it| it.kind.name()).collect();
            return Err(PolicyError::Unread(kinds.into_iter().collect::<Vec<_>>().join(", ")));
        }
        if self.objects.is_empty() { Err(PolicyError::Empty) } else { Ok(self) }
    }
}
