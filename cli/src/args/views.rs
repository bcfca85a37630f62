//! Arguments of the commands that show reachability, and its changes.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use weir_codegen::compile::Budget;

use super::compile::parse_budget;
use super::{InputOptions, InputPaths};

/// Which part of the answer is shown. The exit code does not depend on it.
#[derive(Clone, Debug, Default, Args)]
#[command(
    next_help_heading = "What is shown, with -n NS only this namespace (exit codes are those of the whole input)"
)]
pub(crate) struct FilterArgs {
    /// Only traffic to or from this: a pod, a workload, a service, a namespace, an address, or NAMESPACE/KEY=VALUE
    #[arg(long, value_name = "END")]
    pub(crate) focus: Option<String>,
    /// Only traffic from this
    #[arg(long, value_name = "END")]
    pub(crate) from: Option<String>,
    /// Only traffic to this
    #[arg(long, value_name = "END")]
    pub(crate) to: Option<String>,
    /// Only traffic with this destination port: 80, 53/udp, or icmp
    #[arg(long, value_name = "PORT[/PROTO]")]
    pub(crate) port: Option<String>,
    /// Only traffic to or from pods with these labels: KEY=VALUE, KEY!=VALUE, KEY in (A, B), KEY, !KEY, separated by commas
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    /// Only ingress to, or only egress from what --focus, --selector or --namespace names
    #[arg(long, value_enum, value_name = "DIRECTION")]
    pub(crate) direction: Option<FilterDirection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FilterDirection {
    /// Traffic to it
    Ingress,
    /// Traffic from it
    Egress,
}

#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// What rows, columns and nodes represent [default: workloads up to forty, then namespaces; html has both]
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL", hide_default_value = true)]
    pub(crate) by: ViewLevel,
    /// Show at most N rows; 0 shows all [default: 40 for the text of a matrix, 100 for other text, all for other formats]
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    /// Show pods that could exist too: any other pod of each namespace, and pods of other namespaces
    #[arg(long, value_enum, default_value_t = World::Closed, value_name = "WORLD")]
    pub(crate) world: World,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: ViewFormat,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewLevel {
    /// Workloads up to forty, then namespaces
    #[default]
    Auto,
    /// Each workload
    Workload,
    /// Namespaces, with sums
    Namespace,
}

impl ViewLevel {
    /// In JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Workload => "workload",
            Self::Namespace => "namespace",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document, with a schema in docs/schema/
    Json,
    /// A Markdown table
    Md,
    /// For spreadsheets
    Csv,
    /// For Graphviz
    Dot,
    /// For Markdown files and pages that draw Mermaid
    Mermaid,
    /// A picture
    Svg,
    /// A report that opens in a browser, in one file
    Html,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 success, 1 a workload is exposed in a way that --deny names, 2 the command failed.")]
pub(crate) struct ExposureArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// Exit with 1 if a workload is exposed in this way (repeatable, or separated by commas)
    #[arg(long, value_enum, value_name = "HOW", value_delimiter = ',')]
    pub(crate) deny: Vec<ExposureKind>,
    /// Show pods that could exist too, or only the workloads of the input
    #[arg(long, value_enum, default_value_t, value_name = "WORLD")]
    pub(crate) world: World,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: ExposureFormat,
    /// Show at most N rows of each section; 0 shows all [default: 100 for text, all for other formats]
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExposureKind {
    /// Reachable from any address outside
    Outside,
    /// Reachable from another namespace
    Namespaces,
    /// Not isolated by any policy, in either direction
    NoPolicy,
}

impl ExposureKind {
    /// What such a workload is.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Outside => "reachable from outside",
            Self::Namespaces => "reachable from other namespaces",
            Self::NoPolicy => "without any policy",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExposureFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document (docs/schema/exposure.json)
    Json,
    /// Markdown
    Md,
    /// For spreadsheets
    Csv,
    /// A report that opens in a browser, in one file
    Html,
}

#[derive(Debug, Args)]
#[command(after_help = "\
BASE and HEAD are each:
  PATH[,PATH]...        files, directories, globs, or `-` for standard input
  git:REV[:PATH]        PATH in a git revision, relative to the repository's root (./PATH: to this directory)
  cluster:[CONTEXT]     the live cluster, read with kubectl's kubeconfig
  ARTIFACT              an artifact of `weir compile`: the objects that it was compiled from
BASE without HEAD:
  git:A..B[:PATH]       revision A against revision B; git:A...B[:PATH] compares B with the last common ancestor

`weir diff cluster: PATH` shows what `kubectl apply -f PATH` would change; with --prune, PATH is the whole state.

Exit codes: 0 no differences, 1 differences or an exceeded budget, 2 the command failed. With --deny or --approved,
1 only for changes that --deny names and --approved does not accept; with --write-approved, differences give 0.")]
pub(crate) struct DiffArgs {
    /// The current state
    pub(crate) base: String,
    /// The proposed state
    pub(crate) head: Option<String>,
    #[command(flatten)]
    pub(crate) input: InputOptions,
    /// Compare the cluster with HEAD as the whole state: objects that HEAD does not name count as removed
    #[arg(long)]
    pub(crate) prune: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: DiffFormat,
    /// Compare every pod that could exist, or only the pods and workloads of the input
    #[arg(long, value_enum, default_value_t, value_name = "WORLD")]
    pub(crate) world: World,
    /// Exit with 1 only for this change: newly allowed traffic, or traffic that is no longer allowed
    #[arg(long, value_enum, value_name = "CHANGE")]
    pub(crate) deny: Option<DeniedChange>,
    /// Changes that were accepted before: exit with 1 only for others
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) approved: Option<PathBuf>,
    /// Write the file for --approved: all changes, or only those that --deny names. Entries that still match stay as
    /// they are
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "approved")]
    pub(crate) write_approved: Option<PathBuf>,
    /// Why the changes are accepted, for new entries of --write-approved
    #[arg(long, value_name = "TEXT", requires = "write_approved")]
    pub(crate) reason: Option<String>,
    /// Show at most N rows; 0 shows all [default: 100 for text, all for other formats]
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    /// Show what enforcing each side costs: instructions, classes, entries and bytes
    #[arg(long)]
    pub(crate) cost: bool,
    /// Measure the cost for the pods of this node [default: for all pods together]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Limit on the cost of enforcing HEAD, as for `compile` (repeatable); shows the cost
    #[arg(long, value_name = "KEY=N", value_parser = parse_budget)]
    pub(crate) budget: Vec<(Budget, u64)>,
    /// Do not measure the cost; this is the default for text
    #[arg(long, conflicts_with_all = ["budget", "node", "cost"])]
    pub(crate) no_cost: bool,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
}

/// The pods that an answer is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    /// Every pod that could exist, with any namespace, labels, ports and address
    #[default]
    Open,
    /// Only the pods and workloads of the input
    Closed,
}

/// A change that a gate refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeniedChange {
    /// Traffic that is newly allowed, or isolation that ends
    Added,
    /// Traffic that is no longer allowed, or isolation that begins
    Removed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document (docs/schema/diff.json)
    Json,
    /// For a pull request's comment
    Md,
    /// SARIF 2.1.0, for code scanning: each row at the line that causes it
    Sarif,
    /// GitHub workflow annotations: each row at the line that causes it
    Github,
    /// A report that opens in a browser, in one file
    Html,
    /// A picture
    Svg,
    /// For Graphviz
    Dot,
    /// For Markdown files and pages that draw Mermaid
    Mermaid,
}
