//! Arguments that choose nodes of a cluster, whose agents are asked through the API server.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// The nodes to ask, and how to reach their agents.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Nodes of a cluster (asked through the API server)")]
pub(crate) struct AgentArgs {
    /// Ask the agents of all nodes of the cluster
    #[arg(long, conflicts_with = "bpffs")]
    pub(crate) all_nodes: bool,
    /// Ask the agent of this node (repeatable)
    #[arg(long = "node", value_name = "NAME", conflicts_with_all = ["bpffs", "all_nodes"])]
    pub(crate) nodes: Vec<String>,
    /// Ask the agents of the nodes with these labels
    #[arg(long, value_name = "LABELS", conflicts_with_all = ["bpffs", "all_nodes", "nodes"])]
    pub(crate) node_selector: Option<String>,
    /// Namespace of the agents' pods
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    pub(crate) agent_namespace: String,
    /// Labels of the agents' pods
    #[arg(
        long,
        value_name = "LABELS",
        default_value = "app.kubernetes.io/name=weir,app.kubernetes.io/component=agent"
    )]
    pub(crate) agent_selector: String,
    /// Seconds that a node has for its answer, or for a sign of life
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) node_timeout: u64,
    /// Kubeconfig file [default: as for kubectl]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
}

impl AgentArgs {
    /// Whether nodes of a cluster are asked, and not this node.
    pub(crate) fn is_remote(&self) -> bool {
        self.all_nodes || !self.nodes.is_empty() || self.node_selector.is_some()
    }
}
