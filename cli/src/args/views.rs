//! Who can reach whom, and what a change does to that.

use clap::{Args, ValueEnum};
use weir_codegen::compile::Budget;

use super::Paths;
use super::compile::parse_budget;

#[derive(Debug, Args)]
pub(crate) struct View {
    #[command(flatten)]
    pub(crate) input: Paths,
    /// What rows, columns and nodes stand for [default: workloads up to forty, then namespaces; html has both]
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL", hide_default_value = true)]
    pub(crate) by: Level,
    /// How to print
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: ViewFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Workloads up to forty, then namespaces
    #[default]
    Auto,
    /// Each workload
    Workload,
    /// Namespaces, with sums
    Namespace,
}

impl Level {
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
    /// A picture
    Svg,
    /// A report that opens in a browser, in one file
    Html,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 shown, 1 there is something of what --deny names, 2 could not do it.")]
pub(crate) struct Exposure {
    #[command(flatten)]
    pub(crate) input: Paths,
    /// Exit with 1 if a workload is open in this way (repeatable, or separated by commas)
    #[arg(long, value_enum, value_name = "HOW", value_delimiter = ',')]
    pub(crate) deny: Vec<Exposed>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: ExposureFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Exposed {
    /// Reachable from any address outside
    Outside,
    /// Reachable from another namespace
    Namespaces,
    /// Isolated by no policy, in neither direction
    NoPolicy,
}

impl Exposed {
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
}

#[derive(Debug, Args)]
#[command(after_help = "\
BASE and HEAD are each:
  PATH[,PATH]...        files, directories, or `-` for standard input
  git:REV:PATH          what a git revision has at PATH (as in `git show`: from the repository's root, ./PATH from here)
  cluster:[CONTEXT]     the live cluster, as `kubectl get` shows it
  ARTIFACT              what `weir compile` wrote: the objects that it was made from

Exit codes: 0 nothing changes, 1 something changes or a budget is exceeded, 2 could not do it.")]
pub(crate) struct Diff {
    /// What there is
    pub(crate) base: String,
    /// What there shall be
    pub(crate) head: String,
    /// How to print the difference
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: DiffFormat,
    /// Show at most this many rows; 0 is all [default: 100 for text, all for other formats]
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    /// Measure the cost for the pods of this node [default: for all pods together]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// What enforcing HEAD may cost at most, as for `compile` (repeatable)
    #[arg(long, value_name = "KEY=N", value_parser = parse_budget)]
    pub(crate) budget: Vec<(Budget, u64)>,
    /// Do not measure the cost
    #[arg(long, conflicts_with_all = ["budget", "node"])]
    pub(crate) no_cost: bool,
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
    /// SARIF 2.1.0, for code scanning: rows at the lines that are responsible
    Sarif,
    /// GitHub workflow annotations, likewise
    Github,
    /// A report that opens in a browser, in one file
    Html,
    /// A picture
    Svg,
    /// For Graphviz
    Dot,
}
