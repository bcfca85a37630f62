//! Arguments of the commands that propose changes of policies.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::InputPaths;

#[derive(Debug, Args)]
#[command(after_help = "\
Ends: NAME, NAMESPACE/NAME, KIND/NAMESPACE/NAME (deployment/shop/web, service/shop/api) or an address.
The files are not changed. To apply the change: weir suggest … -o patch | git apply")]
pub(crate) struct SuggestArgs {
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
    /// Propose a change that denies the flow, not one that allows it
    #[arg(long)]
    pub(crate) deny: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: SuggestFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Writes weir.toml, expectations.yaml with verdicts of today, and a CI file for GitHub or GitLab if the repository uses it.
The policies must be in a directory of their own, because expectations.yaml is no Kubernetes object.")]
pub(crate) struct InitArgs {
    /// The repository
    #[arg(default_value = ".", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// The directory of the policies, below DIR [default: the only one that contains policies]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath)]
    pub(crate) policies: Option<PathBuf>,
    /// Overwrite files that exist
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the files, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SuggestFormat {
    /// For people: the change, and what else it changes
    #[default]
    Text,
    /// A patch of the files, for `git apply` and `patch -p1`
    Patch,
    /// The changed and new objects
    Yaml,
    /// One JSON document (docs/schema/suggest.json)
    Json,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Flows are the output of `weir flows -o json`, `weir monitor -o jsonl` or `hubble observe -o jsonpb`, or a table with
the columns src, dst, dport and proto (CSV, VPC flow logs).
The policies are in audit mode; docs/learn.md has the next steps.")]
pub(crate) struct LearnArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// Recorded flows (repeatable)
    #[arg(long, required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) flows: Vec<PathBuf>,
    /// The directory to write to; it is created if it does not exist
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,
    /// Overwrite files of an earlier run
    #[arg(long)]
    pub(crate) force: bool,
    /// Widen IPv4 addresses outside of the cluster to blocks of this length
    #[arg(long, default_value_t = 32, value_name = "LEN", value_parser = clap::value_parser!(u8).range(0..=32))]
    pub(crate) cidr_floor: u8,
    /// Widen IPv6 addresses outside of the cluster to blocks of this length
    #[arg(long, default_value_t = 128, value_name = "LEN", value_parser = clap::value_parser!(u8).range(0..=128))]
    pub(crate) cidr_floor_v6: u8,
}
