//! A real cluster on this machine: one or two nodes with their own kubelet, containerd and kube-proxy.
//!
//! ```text
//!  node-0: etcd, kube-apiserver, controller-manager, scheduler ─┐ eth0   172.31.0.10
//!          containerd, kubelet, kube-proxy, pods 10.244.0.0/24 ─┤
//!  node-1: containerd, kubelet, kube-proxy, pods 10.244.1.0/24 ─┘ eth0   172.31.0.11
//! ```
//!
//! Problem: only a real cluster shows that pods start, that services reach them, and that the manifests' permissions
//! suffice; and the usual ways to get a cluster download images. Strategy: Kubernetes is built from its Go modules. The
//! container runtime is Debian's, unpacked but not installed. Images are packed here. A node is a process that holds
//! namespaces ([`node`]). Invariants: on the machine itself only control groups change, and `down` removes them; no
//! process listens outside of the nodes' namespaces.

mod cgroups;
mod chart;
mod conformance;
mod control;
mod images;
mod network;
mod node;
mod options;
mod runtime;
mod starts;
mod suite;
mod test;
mod tools;
mod traffic;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::{capture, wait};
use node::ClusterNode;
use options::ClusterOptions;
use tools::Tools;

const PATIENCE: Duration = Duration::from_secs(120);

/// A running cluster.
#[derive(Debug)]
struct LocalCluster {
    options: ClusterOptions,
    tools: Tools,
    nodes: Vec<ClusterNode>,
}

/// `cargo xtask cluster up|test|suite|conformance|starts|chart|down|kubectl|enter`
pub(crate) fn task(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    match arguments.next().as_deref() {
        Some("up") => LocalCluster::up(ClusterOptions::parse(arguments)?).map(|cluster| cluster.introduce()),
        Some("test") => test(ClusterOptions::parse(arguments)?),
        Some("suite") => suite::run(&LocalCluster::find()?, arguments.next().as_deref()),
        Some("conformance") => conformance::task(),
        Some("starts") => {
            let pods =
                arguments.next().map_or(Ok(200), |it| it.parse()).context("`cluster starts` needs a number of pods")?;
            starts::run(&LocalCluster::find()?, pods)
        }
        Some("chart") => chart::run(&LocalCluster::find()?),
        Some("down") => down(),
        Some("kubectl") => run(LocalCluster::find()?.kubectl_command().args(arguments)),
        Some("enter") => enter(arguments),
        _ => bail!(
            "expected `cluster up`, `test`, `suite`, `conformance`, `starts`, `chart`, `down`, `kubectl ARGUMENTS` or \
             `enter NODE PROGRAM ARGUMENTS`"
        ),
    }
}

/// An error names the first requirement that this machine lacks.
fn possible() -> Result<()> {
    ensure!(crate::packages::is_root(), "`cargo xtask cluster` needs root");
    for program in ["go", "apt-get", "unshare"] {
        ensure!(crate::packages::is_installed(program), "{program} is not installed");
    }
    Ok(())
}

/// The directory of the cluster's files.
fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/cluster")
}

impl LocalCluster {
    /// Builds everything that a cluster needs, and starts one.
    fn up(options: ClusterOptions) -> Result<Self> {
        ensure!(Self::find().is_err(), "a cluster is running already; `cargo xtask cluster down` stops it");
        let tools = Tools::build(&directory())?;
        let images = images::make(&tools)?;
        // Remove the logs of the previous cluster.
        _ = fs::remove_dir_all(tools.run());
        fs::create_dir_all(tools.run())?;
        fs::write(tools.run().join("options"), options.to_string())?;
        let started = Instant::now();
        let nodes = (0..options.nodes).map(|number| ClusterNode::start(number, &tools.run(), &tools));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let cluster = Self { options, tools, nodes };
        network::connect(&cluster.nodes, cluster.options.cni)?;
        control::start(&cluster.nodes, &cluster.tools)?;
        for node in &cluster.nodes {
            runtime::start(node, &cluster.tools, cluster.options.proxy)?;
        }
        for node in &cluster.nodes {
            images.iter().try_for_each(|image| runtime::import(node, &cluster.tools, image))?;
        }
        cluster.wait_ready()?;
        eprintln!("cluster {}: ready in {} s", cluster.options, started.elapsed().as_secs());
        Ok(cluster)
    }

    /// Finds the running cluster.
    fn find() -> Result<Self> {
        let tools = Tools::at(&directory());
        let options = fs::read_to_string(tools.run().join("options")).unwrap_or_default();
        let options = ClusterOptions::parse(options.split_whitespace().map(str::to_owned))?;
        let nodes: Vec<ClusterNode> =
            (0..options::MOST_NODES).filter_map(|number| ClusterNode::find(number, &tools.run(), &tools)).collect();
        ensure!(!nodes.is_empty(), "no cluster is running; `cargo xtask cluster up` starts one");
        Ok(Self { options, tools, nodes })
    }

    /// The node with the control plane.
    fn first(&self) -> &ClusterNode {
        &self.nodes[0]
    }

    fn kubectl_command(&self) -> Command {
        let mut command = self.first().command(self.tools.bin("kubectl"));
        command.arg("--kubeconfig").arg(control::kubeconfig(&self.tools, "admin"));
        command
    }

    /// Runs kubectl and returns its output.
    fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        capture(self.kubectl_command().args(arguments))
    }

    fn wait_ready(&self) -> Result<()> {
        let ready = ["get", "nodes", "-o", "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"];
        let all = vec!["True"; self.nodes.len()].join(" ");
        let waited = wait("all nodes are ready", PATIENCE, || self.kubectl(&ready).is_ok_and(|said| said == all));
        waited.with_context(|| self.nodes.iter().map(|node| node.log("kubelet") + "\n").collect::<String>())?;
        // A controller creates the service account that pods need.
        let account = ["get", "serviceaccount", "default"];
        wait("the default service account", PATIENCE, || self.kubectl(&account).is_ok())
    }

    fn introduce(&self) {
        eprintln!("cargo xtask cluster kubectl get nodes   # asks the API server");
        eprintln!("cargo xtask cluster enter node-0 sh     # a shell on a node");
        eprintln!("cargo xtask cluster down                # stops it");
        eprintln!("logs: {}", self.tools.run().display());
    }
}

/// Runs the test on the running cluster, or on a new one that is removed afterwards.
fn test(options: ClusterOptions) -> Result<()> {
    if let Ok(cluster) = LocalCluster::find() {
        return test::run(&cluster);
    }
    let result = LocalCluster::up(options).and_then(|cluster| test::run(&cluster));
    // Remove the cluster in any case, and report the test's error before one from the removal.
    let ended = down();
    result.and(ended)
}

/// Runs the test on a new cluster. If Kubernetes cannot start here (missing packages, other control groups), the reason
/// is reported, and it is not a failure of the agent.
pub(crate) fn test_where_it_starts() -> Result<()> {
    let profile = xtask::image::BuildProfile::Ci;
    let options = ClusterOptions { profile, ..ClusterOptions::parse(std::iter::empty())? };
    match possible().and_then(|()| LocalCluster::up(options)) {
        Ok(cluster) => {
            let result = test::run(&cluster).and_then(|()| chart::run(&cluster));
            let ended = down();
            result.and(ended)
        }
        Err(reason) => {
            eprintln!("note: skipped the test on a real cluster: {reason:#}");
            down()
        }
    }
}

fn down() -> Result<()> {
    let stopped = LocalCluster::find().and_then(|cluster| cluster.nodes.into_iter().try_for_each(ClusterNode::stop));
    // Also for a node that failed before its process number was written.
    (0..options::MOST_NODES).try_for_each(|number| cgroups::remove(&cgroups::name(number)))?;
    stopped
}

fn enter(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let (name, program) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_else(|| "sh".to_owned()));
    let cluster = LocalCluster::find()?;
    let node = cluster.nodes.iter().find(|node| node.name() == name);
    let node = node.with_context(|| {
        format!("no node is called {name:?}; the nodes are node-0 to node-{}", cluster.nodes.len() - 1)
    })?;
    run(node.command(program).args(arguments))
}

/// Runs a command on our own terminal.
fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(std::process::Stdio::inherit()).status().context("could not start nsenter")?;
    ensure!(status.success(), "{status}");
    Ok(())
}
