//! The command line, as clap sees it. Help, completions and man pages all come from here.

mod agent;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use weir_compiler::compile::Budget;
use weir_compiler::ebpf::target::Target;
use weir_compiler::structures::{self, Place, Structure};
use weir_runtime::Way;

pub(crate) use agent::{CniInstall, Watch};

use crate::lints::LintFlags;

/// Network-policy compiler: check, query and explain Kubernetes NetworkPolicy and CIDR lists
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 clean, 1 findings or differences, 2 could not do it, 101 our bug.
Every diagnostic has a code; `weir explain-code CODE` says what it means.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Namespace of objects and pod names that name none [default: `default`]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Read what the API leaves open in another way (repeatable); docs/semantics.md lists the keys
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = parse_assumption)]
    pub(crate) assume: Vec<(String, String)>,
    /// A plain-text list of addresses, CIDRs and ranges to deny (repeatable)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) deny_list: Vec<PathBuf>,
    /// A plain-text list of addresses, CIDRs and ranges to exempt from deny lists (repeatable)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) allow_list: Vec<PathBuf>,
    /// Configuration [default: weir.toml here or in a parent directory, up to the repository's root]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Colour the output
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: ColorChoice,
    /// Say less: no summary, no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more: files read, configuration used, kinds skipped
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to read.
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// Files, directories (searched for *.yaml, *.yml and *.json) or `-` for standard input
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what is wrong with the input, and where
    Check(Check),
    /// Judge many flows, one JSON object a line
    Query(Query),
    /// Say why one flow is allowed or denied, and what would have to change
    Explain(Explain),
    /// Run a file of expectations about flows
    Test(Test),
    /// Compile policies into programs and maps for the kernel, and prove that they say the same
    Compile(Compile),
    /// Show what an artifact holds
    Inspect(Inspect),
    /// Prove that an artifact says what the policies say
    Verify(Verify),
    /// Enforce an artifact on pods' interfaces, or switch to another one
    Attach(Attach),
    /// Take enforcement away
    Detach(Detach),
    /// Say what is enforced where, and whether the kernel still has it so
    Status(Status),
    /// List the flows that the datapath knows
    Flows(Flows),
    /// Print what is dropped, as it happens, with the policy that denied it
    Monitor(Monitor),
    /// Print how many packets passed and were dropped, and why
    Counters(Counters),
    /// Show who can reach whom, as a table
    Matrix(View),
    /// Show who can reach whom, as edges
    Graph(View),
    /// Show what is open to the outside, to other namespaces, and for want of any policy
    Exposure(Exposure),
    /// Keep this node's pods enforced: the agent, fed by the Kubernetes API
    Watch(Watch),
    /// Add weir-cni to this node's chain of CNI plug-ins: it holds new pods back until policy is in force on them
    CniInstall(CniInstall),
    /// Say exactly what a change lets through, and what it no longer does
    Diff(Diff),
    /// Say what a diagnostic's code means
    ExplainCode(ExplainCode),
    /// Print the version
    Version(Version),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Write man pages into a directory
    Man(Man),
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) input: Paths,
    /// How to print findings
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: CheckFormat,
    /// Show at most this many findings; 0 is all [default: 100 for text, all for other formats]
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    /// Exit with 1 for warnings too
    #[arg(long)]
    pub(crate) deny_warnings: bool,
    #[command(flatten)]
    pub(crate) lints: LintFlags,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document (docs/schema/check.json)
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// GitHub workflow annotations
    Github,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A flow:    {\"id\": 1, \"src\": {\"pod\": \"shop/web\"}, \"dst\": {\"ip\": \"192.0.2.7\"}, \"proto\": \"TCP\", \"port\": 443}
An answer: {\"id\":1,\"verdict\":\"allow\",\"egress\":\"allow\",\"ingress\":\"allow\",\"because\":[…]}

A flow that cannot be judged is answered with \"verdict\":\"skip\" and a reason; the exit code is then 1.")]
pub(crate) struct Query {
    #[command(flatten)]
    pub(crate) input: Paths,
    /// Flows, one JSON object a line; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) flows: PathBuf,
    /// Who answers
    #[arg(long, value_enum, default_value_t)]
    pub(crate) engine: Engine,
    /// How to print answers
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: QueryFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// The text of the NetworkPolicy API, transcribed
    #[default]
    Reference,
    /// The policies as iptables and ipset rules, walked as the kernel does
    Iptables,
    /// The compiled decision, interpreted, before and after the passes
    Ir,
    /// The emitted programs in a userspace machine: needs no privilege
    Vm,
    /// The emitted programs in this machine's kernel (BPF_PROG_TEST_RUN): needs CAP_BPF and CAP_NET_ADMIN
    Kernel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueryFormat {
    /// One JSON object a line (docs/schema/query.json)
    #[default]
    Jsonl,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Ends: NAME, NAMESPACE/NAME, KIND/NAMESPACE/NAME (deployment/shop/web, service/shop/api) or an address.")]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) input: Paths,
    /// Who begins the connection: a pod, a workload or an address
    #[arg(long, value_name = "POD|IP")]
    pub(crate) from: String,
    /// Who it goes to: a pod, a workload, a service or an address
    #[arg(long, value_name = "POD|IP|SERVICE")]
    pub(crate) to: String,
    /// Destination port: 80, 53/udp, or a name that the destination gives to one of its ports
    #[arg(long, value_name = "PORT[/PROTO]", required_unless_present = "proto")]
    pub(crate) port: Option<String>,
    /// Protocol: tcp, udp, sctp or icmp
    #[arg(long, value_name = "PROTO")]
    pub(crate) proto: Option<String>,
    /// Exit with 1 unless the verdict is this
    #[arg(long, value_enum, value_name = "VERDICT")]
    pub(crate) expect: Option<Expected>,
    /// How to print the explanation
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Expected {
    /// The flow passes
    Allow,
    /// The flow is dropped
    Deny,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextOrJson {
    /// For people
    #[default]
    Text,
    /// One JSON document, with a schema in docs/schema/
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "\
An expectations file:

  expectations:
    - name: the web tier reaches the database   # optional
      from: shop/web
      to: shop/db
      port: 5432/tcp                            # or: proto: icmp
      expect: allow")]
pub(crate) struct Test {
    #[command(flatten)]
    pub(crate) input: Paths,
    /// What should be so (YAML); `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) expectations: PathBuf,
    /// How to print results
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TestFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestFormat {
    /// For people
    #[default]
    Text,
    /// One JSON document (docs/schema/test.json)
    Json,
    /// JUnit XML, for CI systems
    Junit,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Budgets: instructions (of both programs), map-bytes (without what comes once for every CPU), entries, classes.
Exit codes: 0 written, 1 a budget is exceeded or the verification found a difference, 2 could not do it.")]
pub(crate) struct Compile {
    #[command(flatten)]
    pub(crate) input: Paths,
    /// Only the pods of this node are local [default: every pod with an address]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Where to write the artifact
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "emit")]
    pub(crate) output: Option<PathBuf>,
    /// What the result may cost at most (repeatable)
    #[arg(long, value_name = "KEY=N", value_parser = parse_budget)]
    pub(crate) budget: Vec<(Budget, u64)>,
    /// Do not verify
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// The oldest kernel that the programs must load on
    #[arg(long, value_name = "MAJOR.MINOR", default_value = "5.10", value_parser = parse_target)]
    pub(crate) target: Target,
    /// Where a set lives, instead of what the cost model chooses (repeatable), such as exact4=hash
    #[arg(long, value_name = "PLACE=STRUCTURE", value_parser = parse_structure, value_delimiter = ',')]
    pub(crate) structure: Vec<(Place, Structure)>,
    /// What to print; without `-o`, nothing is written
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) emit: Option<Emit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emit {
    /// Counts, costs, choices
    Summary,
    /// The decisions, after the passes
    Ir,
    /// The programs' instructions
    Asm,
    /// The policies as iptables-save, ip6tables-save and ipset save text
    Iptables,
    /// Every map with its sizes
    Maps,
    /// The manifest (JSON)
    Manifest,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// The artifact
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: PathBuf,
    /// What to print
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) emit: Show,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Show {
    /// Counts and costs
    #[default]
    Summary,
    /// The programs' instructions
    Asm,
    /// Every map with its sizes
    Maps,
    /// The manifest (JSON)
    Manifest,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The artifact
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: PathBuf,
    #[command(flatten)]
    pub(crate) input: Paths,
}

/// Where pins are.
#[derive(Debug, Args)]
pub(crate) struct Pinned {
    /// Where everything is pinned: a directory in a bpf file system
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/sys/fs/bpf/weir")]
    pub(crate) bpffs: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Returns when enforcement is in force; it stays in force after the command ends. The same command with another artifact
is an atomic switch, in which each packet sees one of the two. Endpoints that are attached already stay.

Exit codes: 0 in force, 2 could not do it: what was in force stays so, or the message says what is so.")]
pub(crate) struct Attach {
    /// The artifact
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: PathBuf,
    /// A pod and the host's end of its interface, in this network namespace (repeatable)
    #[arg(long = "endpoint", value_name = "NS/POD=IFNAME", value_parser = parse_endpoint, num_args = 1..)]
    pub(crate) endpoints: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) pinned: Pinned,
    /// How to get onto interfaces
    #[arg(long, value_enum, default_value_t, value_name = "HOOK")]
    pub(crate) hook: HookChoice,
    /// What becomes of established flows that the new policies do not allow [default: as the artifact was compiled]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) established: Option<Established>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HookChoice {
    /// TCX where the kernel has it, else clsact
    #[default]
    Auto,
    /// TCX links (Linux 6.6)
    Tcx,
    /// Filters on a clsact qdisc
    Clsact,
}

impl HookChoice {
    /// In the runtime's words; `None` is the best that there is.
    pub(crate) fn way(self) -> Option<Way> {
        match self {
            Self::Auto => None,
            Self::Tcx => Some(Way::Tcx),
            Self::Clsact => Some(Way::Clsact),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Established {
    /// They are cut
    Cut,
    /// They go on
    Keep,
}

#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// Only this pod [default: everything]
    #[arg(long, value_name = "NS/POD", value_parser = parse_pod)]
    pub(crate) endpoint: Option<String>,
    #[command(flatten)]
    pub(crate) pinned: Pinned,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 all is as it should be, 1 something is not, 2 could not look.")]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) pinned: Pinned,
    /// How to print (docs/schema/status.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

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

#[derive(Debug, Args)]
pub(crate) struct Flows {
    #[command(flatten)]
    pub(crate) pinned: Pinned,
    /// How to print (docs/schema/flows.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Runs until it is interrupted. The kernel writes at most 200 records a second and counts the rest, which is printed as
lost. One monitor at a time: two share the records between them.")]
pub(crate) struct Monitor {
    #[command(flatten)]
    pub(crate) pinned: Pinned,
    /// How to print
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: MonitorFormat,
    /// End after so many events
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) duration: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MonitorFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line (docs/schema/monitor.json)
    Jsonl,
}

#[derive(Debug, Args)]
pub(crate) struct Counters {
    #[command(flatten)]
    pub(crate) pinned: Pinned,
    /// How to print (docs/schema/counters.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainCode {
    /// The code; without one, all are listed
    pub(crate) code: Option<String>,
    /// List all codes
    #[arg(long, conflicts_with = "code")]
    pub(crate) list: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
pub(crate) struct Version {
    /// How to print
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory; made if it is not there
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

fn parse_pod(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => Ok(text.into()),
        _ => Err("expected NAMESPACE/POD".into()),
    }
}

fn parse_endpoint(text: &str) -> Result<(String, String), String> {
    let (pod, interface) = text.split_once('=').ok_or("expected NAMESPACE/POD=INTERFACE")?;
    // IFNAMSIZ, with the zero at the end.
    if interface.is_empty() || interface.len() > 15 {
        return Err(format!("`{interface}` is no name of an interface"));
    }
    Ok((parse_pod(pod)?, interface.to_owned()))
}

fn parse_budget(text: &str) -> Result<(Budget, u64), String> {
    let (key, limit) = text.split_once('=').ok_or("expected KEY=N")?;
    let known = || Budget::ALL.map(Budget::key).join(", ");
    let budget = Budget::named(key).ok_or_else(|| format!("no budget is called `{key}`; there are: {}", known()))?;
    Ok((budget, limit.parse().map_err(|_| format!("`{limit}` is no number"))?))
}

fn parse_structure(text: &str) -> Result<(Place, Structure), String> {
    let parsed = structures::parse_forced(text).map_err(|error| error.to_string())?;
    parsed.first().copied().ok_or_else(|| "expected PLACE=STRUCTURE".to_owned())
}

fn parse_target(text: &str) -> Result<Target, String> {
    let parsed = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let target = Target { kernel: parsed.ok_or("expected MAJOR.MINOR, such as 6.1")? };
    let (major, minor) = Target::BASE.kernel;
    if target < Target::BASE { Err(format!("the oldest kernel is {major}.{minor}")) } else { Ok(target) }
}

fn parse_assumption(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
