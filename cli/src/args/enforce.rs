//! Arguments of the commands that enforce on interfaces and measure.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use weir_runtime::HookKind;

use super::observe::parse_pod;
use super::{BenchArgs, CniInstallArgs, PinArgs, TextOrJson, WatchArgs};
use crate::watch::serve::PageAddress;

/// Commands that need the runtime, which only builds for Linux.
#[derive(Debug, Subcommand)]
pub(crate) enum EnforcementCommand {
    /// Enforce an artifact on pods' interfaces, or switch to another artifact
    Attach(AttachArgs),
    /// Remove enforcement
    Detach(DetachArgs),
    /// Print the numbers of passed and dropped packets, by reason
    Counters(CountersArgs),
    /// Measure the cost of packets on this machine
    Bench(BenchArgs),
    /// Run the agent: enforce the policies of the Kubernetes API on this node's pods
    Watch(Box<WatchArgs>),
    /// Write everything that a bug report needs into one file, without secrets
    Bundle(BundleArgs),
    /// Add weir-cni to this node's chain of CNI plug-ins: new pods start when policy is in force on them
    CniInstall(CniInstallArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Returns when the artifact is in force. It stays in force after the command ends. The same command with another artifact \
is an atomic switch: one of the two artifacts judges each packet. Endpoints that are already attached stay attached.

The checksum in an artifact detects damage. It is not a signature: whoever changes an artifact can write a new one. \
If the artifact comes from elsewhere, check its signature with --key, or the policies that it enforces with --verify.

Exit codes: 0 in force at every local endpoint of the artifact, 1 --verify found a difference, or local endpoints of \
the artifact are not attached, 2 the command failed: the previous state stays in force, or the message describes the \
new state.")]
pub(crate) struct AttachArgs {
    /// The artifact
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: PathBuf,
    /// A pod and the host's end of its interface, in this network namespace (repeatable)
    #[arg(long = "endpoint", value_name = "NS/POD=IFNAME", value_parser = parse_endpoint, num_args = 1..)]
    pub(crate) endpoints: Vec<(String, String)>,
    /// Find the interfaces of all other local endpoints of the artifact, as the agent does
    #[arg(long)]
    pub(crate) discover: bool,
    /// Attach to the named interfaces although they cannot be those of their pods, or another installation of weir
    /// enforces at them
    #[arg(long)]
    pub(crate) force: bool,
    /// Directory in which the container runtime stores the results of CNI plug-ins
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/var/lib/cni/results")]
    pub(crate) cni_results: PathBuf,
    /// An uplink of the node: packets that lists deny to every pod in both directions are dropped there (repeatable)
    #[arg(long, value_name = "IFNAME", value_parser = parse_interface, num_args = 1..)]
    pub(crate) xdp: Vec<String>,
    /// Attach only if the artifact enforces these policies, with the programs and maps that this version of weir
    /// compiles (repeatable)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, num_args = 1..)]
    pub(crate) verify: Vec<PathBuf>,
    /// Attach only if ARTIFACT.minisig is a signature of the artifact that fits this minisign public key
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// How to attach programs to interfaces
    #[arg(long, value_enum, default_value_t, value_name = "HOOK")]
    pub(crate) hook: HookChoice,
    /// How to treat established flows that the new policies do not allow [default: as the artifact was compiled]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) established: Option<EstablishedFlows>,
    /// Output format (docs/schema/attach.json); warnings and errors are text on standard error
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum HookChoice {
    /// TCX if the kernel supports it, else clsact
    #[default]
    Auto,
    /// TCX links (Linux 6.6)
    Tcx,
    /// Filters on a clsact qdisc
    Clsact,
}

impl HookChoice {
    /// In the runtime's words; `None` is the best that there is.
    pub(crate) fn way(self) -> Option<HookKind> {
        match self {
            Self::Auto => None,
            Self::Tcx => Some(HookKind::Tcx),
            Self::Clsact => Some(HookKind::Clsact),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EstablishedFlows {
    /// End them
    Cut,
    /// Keep them
    Keep,
}

#[derive(Debug, Args)]
pub(crate) struct DetachArgs {
    /// Only this pod [default: everything]
    #[arg(long, value_name = "NS/POD", value_parser = parse_pod)]
    pub(crate) endpoint: Option<String>,
    /// Only the program at this uplink
    #[arg(long, value_name = "IFNAME", value_parser = parse_interface, conflicts_with = "endpoint")]
    pub(crate) xdp: Option<String>,
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// Output format (docs/schema/detach.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A part that cannot be collected, because a privilege is missing or no agent runs, is named, and the others are written. \
The bundle never contains kubeconfigs, tokens, environment variables or contents of packets; README.txt in it lists \
what it contains. Look at it before you publish it.

Exit codes: 0 the bundle is written, 2 the command failed.")]
pub(crate) struct BundleArgs {
    /// The file; `-` is standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, default_value = "weir-bundle.tar.gz")]
    pub(crate) output: PathBuf,
    /// Replace names and addresses, the same ones by the same words
    #[arg(long)]
    pub(crate) anonymize: bool,
    /// Include the artifact in force, which contains the policies
    #[arg(long, conflicts_with = "anonymize")]
    pub(crate) with_policies: bool,
    /// Where the agent of this node serves health pages, at ADDRESS:PORT or unix:PATH; without it, 127.0.0.1:9346 and
    /// unix:/run/weir/health.sock are tried
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) health_addr: Option<PageAddress>,
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CountersArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// Output format (docs/schema/counters.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

fn parse_endpoint(text: &str) -> Result<(String, String), String> {
    let (pod, interface) = text.split_once('=').ok_or("expected NAMESPACE/POD=INTERFACE")?;
    Ok((parse_pod(pod)?, parse_interface(interface)?))
}

fn parse_interface(text: &str) -> Result<String, String> {
    // IFNAMSIZ, with the zero at the end.
    match text.is_empty() || text.len() > 15 {
        true => Err(format!("`{text}` is not a valid interface name")),
        false => Ok(text.to_owned()),
    }
}
