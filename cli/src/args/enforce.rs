//! Enforcement on interfaces, and what it does.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use weir_runtime::HookKind;

use super::TextOrJson;

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

The digest in an artifact finds damage. It is no signature: a changed artifact with a new digest is read like any other.
If the artifact comes from elsewhere, say with --key whose it must be, or with --verify what it must enforce.

Exit codes: 0 in force, 1 --verify found a difference, 2 could not do it: what was in force stays so, or the message
says what is so.")]
pub(crate) struct Attach {
    /// The artifact
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: PathBuf,
    /// A pod and the host's end of its interface, in this network namespace (repeatable)
    #[arg(long = "endpoint", value_name = "NS/POD=IFNAME", value_parser = parse_endpoint, num_args = 1..)]
    pub(crate) endpoints: Vec<(String, String)>,
    /// An interface that others' packets come in through: what lists deny to every pod, both ways, is dropped there (repeatable)
    #[arg(long, value_name = "IFNAME", value_parser = parse_interface, num_args = 1..)]
    pub(crate) xdp: Vec<String>,
    /// Attach only if the artifact enforces these policies, and if its programs and maps are those that this weir makes of them (repeatable)
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, num_args = 1..)]
    pub(crate) verify: Vec<PathBuf>,
    /// Attach only if ARTIFACT.minisig is a signature of the artifact by this public key of minisign
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key: Option<PathBuf>,
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
    pub(crate) fn way(self) -> Option<HookKind> {
        match self {
            Self::Auto => None,
            Self::Tcx => Some(HookKind::Tcx),
            Self::Clsact => Some(HookKind::Clsact),
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
    /// Only what is dropped at this interface before the pods
    #[arg(long, value_name = "IFNAME", value_parser = parse_interface, conflicts_with = "endpoint")]
    pub(crate) xdp: Option<String>,
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
        true => Err(format!("`{text}` is no name of an interface")),
        false => Ok(text.to_owned()),
    }
}
