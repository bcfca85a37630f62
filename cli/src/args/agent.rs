//! The agent, and what belongs to it on a node.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use weir_codegen::compile::Budget;

use super::compile::parse_budget;
use super::{HookChoice, Pinned};
use crate::watch::UnknownPods;
use crate::watch::log::LogFormat;
use crate::watch::serve::PageAddress;

#[derive(Debug, Args)]
#[command(after_help = "\
Pages: /metrics (Prometheus), /livez, /readyz (ready: all is known, and every pod of the node is enforced). Only at --health-addr
/readyz says why not, with names of pods.
SIGTERM and SIGINT stop the agent; what is in force stays in force, and the next agent takes it over.")]
pub(crate) struct Watch {
    /// How to reach the API server [default: as kubectl does, or as the pod that it runs in]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The node whose pods are enforced [default: $NODE_NAME, or the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Serve metrics at this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics_addr: Option<SocketAddr>,
    /// Serve health pages to this host only, at ADDRESS:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9346", conflicts_with = "no_health")]
    pub(crate) health_addr: PageAddress,
    /// Serve no health pages
    #[arg(long)]
    pub(crate) no_health: bool,
    /// Listen there for `weir-cni`, which holds new pods back until policy is in force on them
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) cni_socket: Option<PathBuf>,
    /// How to treat a new pod that the API has not reported
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) unknown_pods: UnknownPods,
    /// Where the container runtime keeps the results of CNI plug-ins
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/var/lib/cni/results")]
    pub(crate) cni_results: PathBuf,
    /// Annotate each pod with the generation in force on it (weir.dev/generation); needs the right to patch pods
    #[arg(long)]
    pub(crate) annotate_pods: bool,
    /// Limit on the cost of a generation; policies that do not fit isolate their pods and allow nothing
    /// [default: memory=a quarter of the container's limit, steps=1000000000]
    #[arg(long, value_name = "KEY=N", value_parser = parse_budget)]
    pub(crate) budget: Vec<(Budget, u64)>,
    /// How to log, on standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
    #[command(flatten)]
    pub(crate) pinned: Pinned,
    /// How to get onto interfaces
    #[arg(long, value_enum, default_value_t, value_name = "HOOK")]
    pub(crate) hook: HookChoice,
    /// Take everything out of force that an agent has left on this node, and end
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) uninstall: bool,
    /// Compile what would be in force, and enforce nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// With --dry-run: write each generation's artifact there
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "dry_run")]
    pub(crate) artifact: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The agent has to listen (`weir watch --cni-socket`). The chain is the first *.conflist of the directory.

Exit codes: 0 it is so, 2 could not do it.")]
pub(crate) struct CniInstall {
    /// Where the container runtime looks for plug-ins
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/opt/cni/bin")]
    pub(crate) bin_dir: PathBuf,
    /// Where it looks for their configuration
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/etc/cni/net.d")]
    pub(crate) conf_dir: PathBuf,
    /// Where the agent listens
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath, default_value = "/run/weir/cni.sock")]
    pub(crate) socket: PathBuf,
    /// How long a pod is held back
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) timeout: u32,
    /// What becomes of a pod on which policy is not in force by then
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) on_timeout: OnTimeout,
    #[command(flatten)]
    pub(crate) pinned: Pinned,
    /// Take it out of the chain again
    #[arg(long)]
    pub(crate) remove: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeout {
    /// It is not started; the kubelet tries again
    #[default]
    Fail,
    /// It is started, and nothing passes until policy is in force
    Deny,
    /// It is started, without policy
    Allow,
}

impl OnTimeout {
    /// In the chain.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}
