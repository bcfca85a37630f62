//! The command line, as clap sees it. Help, completions and man pages all come from here.

mod agent;
mod bench;
mod compile;
mod enforce;
mod views;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

pub(crate) use agent::{CniInstall, Watch};
pub(crate) use bench::Bench;
pub(crate) use compile::{Compile, Emit, Inspect, Show, Verify, parse_target};
pub(crate) use enforce::{
    Attach, Counters, Detach, Established, Flows, HookChoice, Monitor, MonitorFormat, Pinned, Status,
};
pub(crate) use views::{Diff, DiffFormat, Exposed, Exposure, ExposureFormat, Level, View, ViewFormat};

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
    /// Measure what packets cost on this machine
    Bench(Bench),
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

fn parse_assumption(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
