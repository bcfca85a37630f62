//! Arguments of the agent and of the installation of `weir-cni`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use weir_codegen::compile::Budget;

use super::compile::parse_budget;
use super::{HookChoice, PinArgs};
use crate::watch::log::{LogFilter, LogFormat};
use crate::watch::serve::PageAddress;
use crate::watch::{CpuShare, UnknownPods};

#[derive(Debug, Args)]
#[command(after_help = "\
HTTP paths: /metrics (Prometheus), /livez, /readyz (ready: all objects are known, and policy is in force on every pod of \
the node). Only at --health-addr, /readyz prints the reasons with the names of pods, and notes about objects that are
not enforced as they are written.
SIGTERM and SIGINT stop the agent. The policies in force stay in force, and the next agent takes over.
--uninstall fails while an agent runs on the node: it would put everything back. With --wait-for-agent, an agent that is
ending is waited for. If it does not end in time, the command stays and reports it until a signal comes: an agent that
crashes later, or that an upgrade restarts, is not uninstalled.")]
pub(crate) struct WatchArgs {
    /// Kubeconfig file for the API server [default: as for kubectl, else the service account of the agent's pod]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Without Kubernetes: enforce the objects in the YAML and JSON files of this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["kubeconfig", "annotate_pods"])]
    pub(crate) files: Option<PathBuf>,
    /// The node whose pods are enforced [default: $NODE_NAME, or the host's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) http: HttpArgs,
    #[command(flatten)]
    pub(crate) cni: CniArgs,
    /// Annotate each pod with the generation in force on it (weir.dev/generation); needs the right to patch pods
    #[arg(long)]
    pub(crate) annotate_pods: bool,
    /// Limit on the cost of a generation; policies that do not fit isolate their pods and allow nothing
    /// [default: memory=a quarter of the container's limit, steps=1000000000]
    #[arg(long, value_name = "KEY=N", value_parser = parse_budget)]
    pub(crate) budget: Vec<(Budget, u64)>,
    /// CPU time that the agent may use on average, as a share of a core. Beyond it, changes that only allow more wait
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    pub(crate) cpu_budget: CpuShare,
    #[command(flatten)]
    pub(crate) logging: LogArgs,
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    /// How to attach programs to interfaces
    #[arg(long, value_enum, default_value_t, value_name = "HOOK")]
    pub(crate) hook: HookChoice,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
}

// No doc comments on flattened structs: clap would print them as the description of `weir watch`.
#[derive(Debug, Args)]
pub(crate) struct HttpArgs {
    /// Serve metrics at this address
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics_addr: Option<SocketAddr>,
    /// Serve health pages to this host only, at ADDRESS:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9346", conflicts_with = "no_health")]
    pub(crate) health_addr: PageAddress,
    /// Serve no health pages
    #[arg(long)]
    pub(crate) no_health: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
    /// Lowest level of the log: error, warn, info, debug or trace, or a list with levels of libraries such as info,kube=debug
    /// [default: $WEIR_LOG, or info]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogFilter>,
}

#[derive(Debug, Args)]
pub(crate) struct CniArgs {
    /// Socket for `weir-cni`, which delays the start of new pods until policy is in force on them
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) cni_socket: Option<PathBuf>,
    /// How to treat a new pod whose object the agent has not received
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) unknown_pods: UnknownPods,
    /// Directory in which the container runtime stores the results of CNI plug-ins
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/var/lib/cni/results")]
    pub(crate) cni_results: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ModeArgs {
    /// Remove everything that an agent has left on this node, also weir-cni, and exit
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) uninstall: bool,
    #[command(flatten)]
    pub(crate) uninstalling: UninstallArgs,
    /// Ask an agent of this node for a page at --health-addr, and exit: 0 if the answer is 200
    #[arg(long, value_enum, value_name = "PAGE", conflicts_with_all = ["dry_run", "uninstall"])]
    pub(crate) probe: Option<ProbedPage>,
    /// Compile each generation, but enforce nothing. Events about objects say that they are of a dry run
    #[arg(long, conflicts_with_all = ["annotate_pods", "cni_socket"])]
    pub(crate) dry_run: bool,
    /// With --dry-run: write each generation's artifact to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "dry_run")]
    pub(crate) artifact: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Uninstalling")]
pub(crate) struct UninstallArgs {
    /// With --uninstall: also remove what `weir attach` attached
    #[arg(long, requires = "uninstall")]
    pub(crate) by_hand_too: bool,
    /// With --uninstall: how long to wait for a running agent to end; then nothing is removed, also if it ends later
    #[arg(long, value_name = "SECONDS", requires = "uninstall", default_value_t = 0)]
    pub(crate) wait_for_agent: u64,
    /// With --uninstall: fail while this file exists, which says that agents are installed
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "uninstall")]
    pub(crate) installed_file: Option<PathBuf>,
    /// With --uninstall: remove nothing, and fail when something of an agent appears
    #[arg(long, requires = "uninstall", conflicts_with = "wait_for_agent")]
    pub(crate) stay: bool,
    /// With --uninstall: the container runtime's directory of plug-ins
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,
    /// With --uninstall: the container runtime's directory of CNI configurations
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,
    /// With --uninstall: leave the weir-cni binary, which CRI-O calls when pods end that were started with it
    #[arg(long, requires = "uninstall")]
    pub(crate) keep_cni_plugin: bool,
    /// Wait until this DaemonSet, whose pods run --uninstall, is ready on every node, delete it, and exit
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = parse_object, conflicts_with_all = ["uninstall", "dry_run"])]
    pub(crate) wait_for_uninstall: Option<(String, String)>,
    /// With --wait-for-uninstall: how long to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    pub(crate) wait_seconds: u64,
}

fn parse_object(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    parts.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())).ok_or("expected NAMESPACE/NAME".to_owned())
}

/// A page that says whether the agent works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProbedPage {
    /// Whether the agent makes progress
    Livez,
    /// Whether policy is in force on every pod of the node
    Readyz,
}

impl ProbedPage {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Livez => "/livez",
            Self::Readyz => "/readyz",
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
The agent must run with `weir watch --cni-socket`. The chain is the first configuration of the directory by name,
which must be a *.conflist.
--keep waits if there is no chain yet. SIGTERM and SIGINT end it, and weir-cni stays in the chain. While it runs, no
other command can install or remove weir-cni in the same directory: `weir watch --uninstall` waits or fails.

Exit codes: 0 installed, removed or ended by a signal, 1 --check found no entry or no binary, 2 the command failed.")]
pub(crate) struct CniInstallArgs {
    /// The container runtime's directory of plug-ins
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/opt/cni/bin")]
    pub(crate) bin_dir: PathBuf,
    /// The container runtime's directory of CNI configurations
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = "/etc/cni/net.d")]
    pub(crate) conf_dir: PathBuf,
    /// The agent's socket
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath, default_value = "/run/weir/cni.sock")]
    pub(crate) socket: PathBuf,
    /// How long the start of a pod is delayed at most
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) timeout: u32,
    /// How to treat a pod on which policy is not in force by then
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) on_timeout: OnTimeoutChoice,
    #[command(flatten)]
    pub(crate) pinned: PinArgs,
    #[command(flatten)]
    pub(crate) mode: CniInstallModeArgs,
    #[command(flatten)]
    pub(crate) logging: LogArgs,
}

// No doc comment: clap would print it as the description of the command.
#[derive(Debug, Args)]
pub(crate) struct CniInstallModeArgs {
    /// Keep running: add weir-cni and its binary again whenever another program removes or changes them
    #[arg(long, conflicts_with_all = ["check", "remove"])]
    pub(crate) keep: bool,
    /// Change nothing; exit with 0 if the chain has weir-cni and the binary exists, with 1 if not
    #[arg(long, conflicts_with = "remove")]
    pub(crate) check: bool,
    /// Remove weir-cni from every chain of the directory, and its binary
    #[arg(long)]
    pub(crate) remove: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeoutChoice {
    /// Do not start the pod; the kubelet retries
    #[default]
    Fail,
    /// Start the pod, but drop all its packets until policy is in force
    Deny,
    /// Start the pod without policy
    Allow,
}

impl OnTimeoutChoice {
    /// In the chain.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}
