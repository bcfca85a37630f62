//! Arguments of the commands that show the state of nodes: of this one, or of all nodes of a cluster.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use weir_artifact::layout::Outcome;
use weir_objects::address::Prefix;

use super::{AgentArgs, TextOrJson};

/// Commands about this node or, through the API server, about other nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum ObserveCommand {
    /// Show the state of each interface, and whether the kernel still agrees with the record
    Status(StatusArgs),
    /// List the flows in the datapath's tables
    Flows(FlowsArgs),
    /// Print dropped packets as they occur, packets that policies in audit mode would drop, and new connections
    Monitor(MonitorArgs),
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
Exit codes: 0 the kernel's state agrees with the record, and every local endpoint of the artifact is attached; 1 the \
state differs, a local endpoint is not attached, or a node did not answer; 2 the command failed, or no node answered.")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    #[command(flatten)]
    pub(crate) agents: AgentArgs,
    /// Output format (docs/schema/status.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 all nodes answered, 1 a node did not answer, 2 the command failed, or no node answered."
)]
pub(crate) struct FlowsArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    #[command(flatten)]
    pub(crate) agents: AgentArgs,
    /// Output format (docs/schema/flows.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Runs until it is interrupted. The kernel writes at most 200 records per second. Further packets are only counted, and \
the monitor prints their number. About 900 records wait in the kernel until they are read. When its buffer is full, \
later packets have no records: the monitor says so, and reading makes room for new ones. Reading consumes the records \
of dropped packets: two monitors of a node would each get a part of them. Any number of monitors can show new \
connections.

Exit codes: 0 all nodes answered, 1 a node did not answer, 2 the command failed, or no node answered.")]
pub(crate) struct MonitorArgs {
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    #[command(flatten)]
    pub(crate) agents: AgentArgs,
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
    /// Show the last N packets whose records are waiting in the kernel, and stop; packets that text output only counts
    /// do not use up N
    #[arg(long, value_name = "N", conflicts_with_all = ["count", "duration", "top"])]
    pub(crate) last: Option<usize>,
    /// Show a table of the pairs with most packets; on a terminal, it refreshes every second
    #[arg(long, conflicts_with = "output")]
    pub(crate) top: bool,
    /// Also show neighbour discovery and group membership of IPv6, which text output only counts
    #[arg(long)]
    pub(crate) all: bool,
    /// Stop when standard input ends, and with `-o jsonl` print `{"lost":0}` every few seconds: so a program that starts
    /// the monitor on another machine leaves no process behind
    #[arg(long)]
    pub(crate) until_eof: bool,
}

impl MonitorArgs {
    /// Whether new connections are shown too. The last ones of the past are not known.
    pub(crate) fn shows_connections(&self) -> bool {
        self.asks_for_connections() && self.last.is_none()
    }

    /// Whether the filters take new connections.
    pub(crate) fn asks_for_connections(&self) -> bool {
        let is_of_connections = |it: &String| CONNECTION_REASONS.iter().any(|reason| reason.name() == it);
        matches!(self.filter.verdict, Some(EventVerdict::Allow | EventVerdict::All))
            || self.filter.reasons.iter().any(is_of_connections)
    }
}

/// The outcomes of the first packet of a connection that passes. The programs write no records of these packets; the
/// monitor finds the connections in the flow tables.
pub(crate) const CONNECTION_REASONS: [Outcome; 4] =
    [Outcome::Allowed, Outcome::Unfiltered, Outcome::OwnNode, Outcome::Itself];

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
    /// Only packets that were dropped, only packets that passed and new connections, or all of these [default: dropped
    /// packets, and packets that policies in audit mode would drop]
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
    #[value(alias = "dropped")]
    Deny,
    /// New connections that passed, and packets that would be dropped if policies in audit mode were enforced
    #[value(alias = "allowed")]
    Allow,
    /// Both
    All,
}

/// The names of the outcomes that the monitor can show.
fn reasons() -> PossibleValuesParser {
    let is_shown = |it: &Outcome| it.is_recorded() || CONNECTION_REASONS.contains(it);
    PossibleValuesParser::new(Outcome::ALL.into_iter().filter(is_shown).map(Outcome::name))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MonitorFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object per line (docs/schema/monitor.json)
    Jsonl,
}

/// `NAMESPACE/POD`
pub(super) fn parse_pod(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => Ok(text.into()),
        _ => Err("expected NAMESPACE/POD".into()),
    }
}
