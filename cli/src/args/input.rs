//! The arguments that select inputs, of every command that reads objects.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// The paths of the input.
#[derive(Debug, Args)]
pub(crate) struct InputPaths {
    /// Files, directories, globs, git:REV[:PATH], cluster:[CONTEXT], or `-` for standard input
    ///
    /// A directory is searched for *.yaml, *.yml and *.json; one with a kustomization or a Helm chart is rendered with
    /// kubectl or helm. docs/inputs.md describes all of them.
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) options: InputOptions,
}

/// How the inputs are read.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Input options")]
pub(crate) struct InputOptions {
    /// Kubeconfig file for `cluster:` [default: as for kubectl]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context for `cluster:` [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Read and show all namespaces, also with -n: -n is then only the namespace of names without one [short: -A, except
    /// for `check`]
    #[arg(long)]
    pub(crate) all_namespaces: bool,
    /// Values for Helm charts (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) helm_values: Vec<PathBuf>,
}
