//! The command line, as clap sees it. Help, completions and man pages all come from here.

#[cfg(feature = "enforce")]
mod agent;
mod agents;
#[cfg(feature = "enforce")]
mod bench;
mod compile;
mod demo;
#[cfg(feature = "enforce")]
mod enforce;
pub(crate) mod help;
mod input;
mod observe;
mod propose;
mod views;

use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

#[cfg(feature = "enforce")]
pub(crate) use agent::{CniInstallArgs, LogArgs, WatchArgs};
pub(crate) use agents::AgentArgs;
#[cfg(feature = "enforce")]
pub(crate) use bench::BenchArgs;
pub(crate) use compile::{CompileArgs, CompileOutput, InspectArgs, InspectOutput, VerifyArgs, parse_target};
pub(crate) use demo::DemoArgs;
#[cfg(feature = "enforce")]
pub(crate) use enforce::{
    AttachArgs, BundleArgs, CountersArgs, DetachArgs, EnforcementCommand, EstablishedFlows, HookChoice,
};
pub(crate) use input::{InputOptions, InputPaths};
#[cfg(test)]
pub(crate) use observe::CONNECTION_REASONS;
#[cfg(feature = "enforce")]
pub(crate) use observe::{EventFilterArgs, EventPort, PinArgs};
pub(crate) use observe::{EventPeer, EventVerdict, FlowsArgs, MonitorArgs, MonitorFormat, ObserveCommand, StatusArgs};
pub(crate) use propose::{InitArgs, LearnArgs, SuggestArgs, SuggestFormat};
pub(crate) use views::{
    DeniedChange, DiffArgs, DiffFormat, ExposureArgs, ExposureFormat, ExposureKind, FilterArgs, FilterDirection,
    ViewArgs, ViewFormat, ViewLevel, World,
};

use crate::lints::LintFlags;

/// Network-policy compiler: check, query and explain Kubernetes NetworkPolicy and CIDR lists
#[derive(Debug, Parser)]
#[command(name = "weir", version, propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 clean, 1 findings or differences, 2 the command failed, 101 a bug in weir.
Every diagnostic has a code; `weir explain-code CODE` explains it.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

impl GlobalArgs {
    /// The namespace of objects and names without one. Of several, the first.
    pub(crate) fn default_namespace(&self) -> Option<&str> {
        self.namespace.first().map(String::as_str)
    }
}

/// The command line. `-A` is kubectl's `--all-namespaces`, but `weir check -A CODE` allows a lint, so `check` has only
/// the long form.
pub(crate) fn command() -> clap::Command {
    let short = |command: clap::Command| {
        let has_long = command.get_arguments().any(|it| it.get_id() == "all_namespaces");
        let has_short = has_long && command.get_name() != "check";
        if has_short { command.mut_arg("all_namespaces", |it| it.short('A')) } else { command }
    };
    Cli::command().mut_subcommands(short)
}

/// Flags that every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Namespace of objects and names that have none [default: that of weir.toml; else with `cluster:` that of the
    /// context, else `default`]. matrix, graph, exposure and diff also show only this namespace, unless -A is given
    /// (repeatable there)
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Vec<String>,
    /// Set an assumption about a point that the API leaves open (repeatable); docs/semantics.md lists the keys
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = parse_assumption)]
    pub(crate) assume: Vec<(String, String)>,
    /// A plain-text list of addresses, CIDRs and ranges to deny (repeatable)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) deny_list: Vec<PathBuf>,
    /// A plain-text list of addresses, CIDRs and ranges to exempt from deny lists (repeatable)
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) allow_list: Vec<PathBuf>,
    /// Answer without the policies of this kind, which weir does not read (repeatable); the answer says so
    #[arg(long, global = true, value_name = "GROUP/KIND")]
    pub(crate) ignore_kind: Vec<String>,
    /// Configuration file [default: weir.toml in this directory or a parent, up to the repository's root]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Colour the output
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: ColorChoice,
    /// Print less: no summary, no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print more: files that are read, the configuration file, skipped kinds; `explain`: more rules, classes, packets
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

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Report mistakes in the input, with file and line
    Check(CheckArgs),
    /// Print the verdicts of many flows, one JSON object per line
    Query(QueryArgs),
    /// Explain why one flow is allowed or denied, and what would have to change
    Explain(ExplainArgs),
    /// Propose the smallest change of a policy that allows or denies one flow
    Suggest(SuggestArgs),
    /// Write policies and expectations that allow recorded flows and little else
    Learn(LearnArgs),
    /// Check flows against a file of expected verdicts
    Test(TestArgs),
    /// Set up a repository of policies: weir.toml, expectations and a CI file
    Init(InitArgs),
    /// Compile policies into programs and maps for the kernel, and verify the result
    Compile(CompileArgs),
    /// Show the contents of an artifact
    Inspect(InspectArgs),
    /// Verify that an artifact enforces exactly the policies
    Verify(VerifyArgs),
    #[command(flatten)]
    Observe(ObserveCommand),
    #[cfg(feature = "enforce")]
    #[command(flatten)]
    Enforcement(EnforcementCommand),
    /// Show who can reach whom, as a table
    Matrix(ViewArgs),
    /// Show who can reach whom, as edges
    Graph(ViewArgs),
    /// Show which pods are reachable from outside or from other namespaces, and which have no policy
    Exposure(ExposureArgs),
    /// Show exactly the connections that a change newly allows, and those that it no longer allows
    Diff(DiffArgs),
    /// Build a small shop on this machine, enforce its policies, and show the verdict on each connection
    Demo(DemoArgs),
    /// Explain a diagnostic's code
    ExplainCode(ExplainCodeArgs),
    /// Print the version
    Version(VersionArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write man pages into a directory
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: CheckFormat,
    /// Judge policies for every pod that could exist, or only for the pods and workloads of the input
    #[arg(long, value_enum, default_value_t, value_name = "WORLD")]
    pub(crate) world: World,
    /// Show at most N findings; 0 shows all [default: 100 for text, all for other formats]
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    /// Exit with 1 for warnings too
    #[arg(long)]
    pub(crate) deny_warnings: bool,
    /// Fix the files where a fix is mechanical and changes no verdict
    #[arg(long)]
    pub(crate) fix: bool,
    /// With --fix: print the fixes as a patch and write nothing
    #[arg(long, requires = "fix")]
    pub(crate) diff: bool,
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

If a flow has no verdict, its answer has \"verdict\":\"skip\" and a reason, and the exit code is 1.")]
pub(crate) struct QueryArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// Flows, one JSON object per line; `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) flows: PathBuf,
    /// The engine that computes the verdicts
    #[arg(long, value_enum, default_value_t)]
    pub(crate) engine: EngineChoice,
    /// Answer for pods that are described, or only for pods of the input
    #[arg(long, value_enum, default_value_t, value_name = "WORLD")]
    pub(crate) world: World,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: QueryFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineChoice {
    /// The reference: a transcription of the text of the NetworkPolicy API
    #[default]
    Reference,
    /// The policies as iptables and ipset rules, evaluated as the kernel does
    Iptables,
    /// The compiled decision, interpreted before and after the optimization passes
    Ir,
    /// The emitted programs in Weir's own interpreter, without the kernel: needs no privileges
    Vm,
    /// The emitted programs in this machine's kernel (BPF_PROG_TEST_RUN): needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN
    #[cfg(feature = "enforce")]
    Kernel,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueryFormat {
    /// One JSON object per line (docs/schema/query.json)
    #[default]
    Jsonl,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Ends: NAME, NAMESPACE/NAME, KIND/NAMESPACE/NAME (deployment/shop/web, service/shop/api) or an address.
A pod that could exist: NAMESPACE/KEY=VALUE[,KEY=VALUE] (shop/app=web,tier=front; shop/= has no labels), or a JSON
object {\"namespace\", \"labels\", \"namespaceLabels\", \"ports\", \"ip\"}. The answer is for every pod that it describes.")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// The source of the connection: a pod, a workload or an address
    #[arg(long, value_name = "POD|IP")]
    pub(crate) from: String,
    /// The destination of the connection: a pod, a workload, a service or an address
    #[arg(long, value_name = "POD|IP|SERVICE")]
    pub(crate) to: String,
    /// Destination port: 80, 53/udp, or the name of a port of the destination
    #[arg(long, value_name = "PORT[/PROTO]", required_unless_present = "proto")]
    pub(crate) port: Option<String>,
    /// Protocol: tcp, udp, sctp or icmp
    #[arg(long, value_name = "PROTO")]
    pub(crate) proto: Option<String>,
    /// Exit with 1 if the verdict is not this one
    #[arg(long, value_enum, value_name = "VERDICT")]
    pub(crate) expect: Option<ExpectedVerdict>,
    /// Answer for pods that are described, or only for pods of the input
    #[arg(long, value_enum, default_value_t, value_name = "WORLD")]
    pub(crate) world: World,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExpectedVerdict {
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
      expect: allow
    - from: shop/app=job                        # every pod with these labels alone; or: {namespace, labels, …}
      to: shop/db
      port: 5432/tcp
      expect: deny")]
pub(crate) struct TestArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// The expected verdicts (YAML); `-` is standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) expectations: PathBuf,
    /// Answer for pods that are described, or only for pods of the input
    #[arg(long, value_enum, default_value_t, value_name = "WORLD")]
    pub(crate) world: World,
    /// List the allowed connections between workloads, and the isolated workloads, that no expectation covers
    #[arg(long)]
    pub(crate) coverage: bool,
    /// Show at most N expectations that fail, and with --coverage at most N items of each list; 0 shows all [default:
    /// for text, 100 and 20; all failures for other formats, and all items for JSON]
    #[arg(long, value_name = "N")]
    pub(crate) max: Option<usize>,
    /// Rewrite the file: failed expectations get the verdict that their flows have now; prints the change as a patch
    #[arg(long, conflicts_with_all = ["coverage", "output"])]
    pub(crate) bless: bool,
    /// Output format
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
pub(crate) struct ExplainCodeArgs {
    /// A diagnostic code, or the reason that `weir monitor` gives for a packet [default: list all]
    pub(crate) code: Option<String>,
    /// List all codes
    #[arg(long, conflicts_with = "code")]
    pub(crate) list: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory; it is created if it does not exist
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

fn parse_assumption(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
