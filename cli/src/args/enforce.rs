//! Arguments of the commands that enforce on interfaces and observe the datapath.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use weir_artifact::layout::Outcome;
use weir_objects::address::Prefix;
use weir_runtime::HookKind;

use super::{BenchArgs, CniInstallArgs, TextOrJson, WatchArgs};
use crate::watch::serve::PageAddress;

/// Commands that need the runtime, which only builds for Linux.
#[derive(Debug, Subcommand)]
pub(crate) enum EnforcementCommand {
    /// Enforce an artifact on pods' interfaces, or switch to another artifact
    Attach(AttachArgs),
    /// Remove enforcement
    Detach(DetachArgs),
    /// Show the state of each interface, and whether the kernel still agrees with the record
    Status(StatusArgs),
    /// List the flows in the datapath's tables
    Flows(FlowsArgs),
    /// Print dropped packets as they occur, and packets that policies in audit mode would drop
    Monitor(MonitorArgs),
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

/// Where pins are.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// Directory for pins, in a bpf file system
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/sys/fs/bpf/weir")]
    pub(crate) bpffs: PathBuf,
}
#[derive(Debug, Args)]
#[command(after_help = "\
Returns when the artifact is in force. It stays in force after the command ends. The same command with another artifact \
is an atomic switch: one of the two artifacts judges each packet. Endpoints that are already attached stay attached.

The digest in an artifact detects damage. It is not a signature: a changed artifact with a new digest is accepted. \
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
    /// Attach to the named interfaces although they cannot be those of their pods
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
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 the kernel's state agrees with the record, 1 it differs, 2 the command failed.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// Output format (docs/schema/status.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// Output format (docs/schema/flows.json)
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
#[command(after_help = "\
Runs until it is interrupted. The kernel writes at most 200 records per second. Further packets are only counted, and \
the monitor prints their number. Run one monitor at a time: two monitors would each get a part of the records.")]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: MonitorFormat,
    #[command(flatten)]
    pub(crate) filter: EventFilterArgs,
    /// Stop after this many packets
    #[arg(long, value_name = "N", conflicts_with = "top")]
    pub(crate) count: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) duration: Option<u64>,
    /// Show the last N packets whose records are waiting in the kernel, and stop
    #[arg(long, value_name = "N", conflicts_with_all = ["count", "duration", "top"])]
    pub(crate) last: Option<usize>,
    /// Show a table of the pairs with most packets; on a terminal, it refreshes every second
    #[arg(long, conflicts_with = "output")]
    pub(crate) top: bool,
    /// Also show neighbour discovery and group membership of IPv6, which text output only counts
    #[arg(long)]
    pub(crate) all: bool,
}

/// The packets that `weir monitor` shows, beside the global `--namespace`. Each option can be repeated; a packet needs
/// one value of each option.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Filters (with --namespace; a packet must match one value of each option that is given)")]
pub(crate) struct EventFilterArgs {
    /// Only packets of this pod of the node
    #[arg(long = "pod", value_name = "NS/POD", value_parser = parse_pod)]
    pub(crate) pods: Vec<String>,
    /// Only packets to or from this pod, address or CIDR
    #[arg(long = "peer", value_name = "NS/POD|CIDR", value_parser = EventPeer::read)]
    pub(crate) peers: Vec<EventPeer>,
    /// Only packets to this destination port: 53, 53/udp, icmp
    #[arg(long = "port", value_name = "PORT[/PROTOCOL]", value_parser = EventPort::read)]
    pub(crate) ports: Vec<EventPort>,
    /// Only packets with this outcome; `weir explain-code REASON` describes it
    #[arg(long = "reason", value_name = "REASON", value_parser = reasons())]
    pub(crate) reasons: Vec<String>,
    /// Only packets that were dropped, or only packets that passed
    #[arg(long, value_enum, value_name = "VERDICT")]
    pub(crate) verdict: Option<EventVerdict>,
}

/// The other end of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EventPeer {
    Pod(String),
    Block(Prefix),
}

impl EventPeer {
    fn read(text: &str) -> Result<Self, String> {
        let error = || "expected NAMESPACE/POD, an address or a CIDR".to_owned();
        if let Some(block) = Prefix::read_strictly(text) {
            return Ok(Self::Block(block));
        }
        // A namespace is no address: this is a CIDR with a mistake.
        let is_address = text.split('/').next().is_some_and(|it| it.parse::<IpAddr>().is_ok());
        parse_pod(text).ok().filter(|_| !is_address).map(Self::Pod).ok_or_else(error)
    }
}

/// A destination port, a protocol, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventPort {
    pub(crate) port: Option<u16>,
    /// In upper case.
    pub(crate) protocol: Option<String>,
}

impl EventPort {
    fn read(text: &str) -> Result<Self, String> {
        const PROTOCOLS: [&str; 4] = ["TCP", "UDP", "SCTP", "ICMP"];
        let error = || "expected a port from 1 to 65535, PORT/PROTOCOL, or one of tcp, udp, sctp, icmp".to_owned();
        let (port, protocol) = match text.split_once('/') {
            Some((port, protocol)) => (Some(port), Some(protocol)),
            None if text.starts_with(|it: char| it.is_ascii_digit()) => (Some(text), None),
            None => (None, Some(text)),
        };
        let port = port.map(|it| it.parse().ok().filter(|port| *port > 0).ok_or_else(error)).transpose()?;
        let protocol = protocol.map(str::to_ascii_uppercase);
        let is_known = protocol.as_deref().is_none_or(|it| PROTOCOLS.contains(&it));
        let has_ports = port.is_none() || protocol.as_deref() != Some("ICMP");
        if is_known && has_ports { Ok(Self { port, protocol }) } else { Err(error()) }
    }
}

/// Whether a packet passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventVerdict {
    /// Dropped packets
    Deny,
    /// Packets that passed, and would be dropped if policies in audit mode were enforced
    Allow,
}

/// The names of the outcomes of which the programs write records.
fn reasons() -> PossibleValuesParser {
    PossibleValuesParser::new(Outcome::ALL.into_iter().filter(|it| it.is_recorded()).map(Outcome::name))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MonitorFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line (docs/schema/monitor.json)
    Jsonl,
}

#[derive(Debug, Args)]
pub(crate) struct CountersArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// Output format (docs/schema/counters.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

fn parse_pod(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => Ok(text.into()),
        _ => Err("expected NAMESPACE/POD".into()),
    }
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
