//! Tests the agent as it is released (image, manifests, permissions) on a real cluster. While pods talk, the agent is
//! killed, upgraded and left without an API server.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::{deploy, image};

use super::node::ClusterNode;
use super::traffic::{ClusterTraffic, NAMESPACE, is_kept_out, only_friends, passes};
use super::{LocalCluster, control, images, runtime};
use crate::process::{capture, wait};

const PATIENCE: Duration = Duration::from_secs(120);
/// Time for which the API server is down.
const AWAY: Duration = Duration::from_secs(10);
/// The image to which the agent is upgraded: the same image under another name.
const NEXT: &str = "docker.io/library/weir:next";

/// Runs all tests, one after the other.
pub(super) fn run(cluster: &LocalCluster) -> Result<()> {
    // A failed run leaves its pods for inspection; remove them now.
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"])?;
    cluster.deploy()?;
    let traffic = ClusterTraffic::start(cluster)?;
    cluster.apply("policy", &[only_friends()])?;
    traffic.until("strangers are kept out", |it| passes(it, "friend") && is_kept_out(it, "stranger"))?;
    every_node_answers(cluster)?;
    traffic.during("agents are killed", || cluster.kill_agents())?;
    traffic.during("agents are upgraded", || cluster.upgrade_agents())?;
    traffic.during("the API server is away", || cluster.restart_apiserver())?;
    cluster.kubectl(&["delete", "networkpolicy", "web", "-n", NAMESPACE])?;
    traffic.until("strangers are let in again", |it| passes(it, "friend") && passes(it, "stranger"))?;
    cluster.kubectl(&["delete", "namespace", NAMESPACE])?;
    Ok(())
}

/// Asks the agents of all nodes through the API server, while pods of each node talk: each node must have rows.
fn every_node_answers(cluster: &LocalCluster) -> Result<()> {
    let names: Vec<String> = cluster.nodes.iter().map(ClusterNode::name).collect();
    let document = |text: &str| serde_json::from_str::<Value>(text).with_context(|| format!("not JSON: {text}"));
    let status = document(&cluster.weir(&["status", "--all-nodes", "-o", "json"])?)?;
    let flows = document(&cluster.weir(&["flows", "--all-nodes", "-o", "json"])?)?;
    let last = ["monitor", "--all-nodes", "--last", "1000", "-o", "jsonl"];
    let drops = cluster.weir(&last)?.lines().map(document).collect::<Result<Vec<_>>>()?;
    let new = ["monitor", "--all-nodes", "--verdict", "allowed", "--duration", "5", "-o", "jsonl"];
    let connections = cluster.weir(&new)?.lines().map(document).collect::<Result<Vec<_>>>()?;
    let rows = |list: &Value| list.as_array().cloned().unwrap_or_default();
    for (what, rows) in [
        ("status", rows(&status["statuses"])),
        ("flows", rows(&flows["flows"])),
        ("monitor of drops", drops),
        ("monitor of connections", connections.clone()),
    ] {
        for node in &names {
            let of_node = rows.iter().filter(|it| it["node"] == node.as_str() && it.get("error").is_none()).count();
            ensure!(of_node > 0, "{what} --all-nodes has no rows of {node}: {rows:?}");
            eprintln!("{what} --all-nodes: {of_node} rows of {node}");
        }
    }
    let has_rule = |it: &Value| it["rule"].as_str().is_some_and(|it| it.starts_with("weir-test/web spec.ingress["));
    ensure!(connections.iter().any(has_rule), "no connection names the rule that allows it: {connections:?}");
    cluster.no_monitor_is_left()
}

impl LocalCluster {
    /// Runs the weir of this build on the first node, with the administrator's kubeconfig.
    fn weir(&self, arguments: &[&str]) -> Result<String> {
        let mut command = self.first().command(image::path(self.options.profile));
        command.args(arguments).arg("--kubeconfig").arg(control::kubeconfig(&self.tools, "admin"));
        capture(&mut command)
    }

    /// Checks that each node runs one process of weir, the agent.
    fn no_monitor_is_left(&self) -> Result<()> {
        let list = "for it in /proc/[0-9]*; do
            if [ \"$(cat $it/comm 2> /dev/null)\" = weir ]; then cat $it/cmdline | tr '\\0' ' '; echo; fi
        done";
        for node in &self.nodes {
            let is_gone = || node.shell(list).is_ok_and(|it| !it.contains("monitor"));
            wait("the monitors on the nodes end", PATIENCE, is_gone)?;
        }
        Ok(())
    }

    /// Installs the agent on every node, and waits until each enforces its pods.
    pub(super) fn deploy(&self) -> Result<()> {
        self.import_agent()?;
        let choices: &[(&str, &str)] = if self.options.weir_cni { &[("cni.enabled", "true")] } else { &[] };
        self.apply_text("weir", &deploy::with(&xtask::helm::build()?, choices)?)?;
        self.wait_rollout()
    }

    /// Imports the agent's image on every node, under two names.
    pub(super) fn import_agent(&self) -> Result<()> {
        let binary = image::binary(self.options.profile)?;
        for (name, file) in [(image::name(), "weir"), (NEXT.to_owned(), "weir-next")] {
            let path = images::write(&self.tools, file, &image::of_agent(&name, &binary)?)?;
            self.nodes.iter().try_for_each(|node| runtime::import(node, &self.tools, &path))?;
        }
        Ok(())
    }

    pub(super) fn wait_rollout(&self) -> Result<()> {
        let rollout = self.kubectl(&["rollout", "status", "daemonset/weir", "-n", "kube-system", "--timeout=120s"]);
        rollout.map(|_| ()).with_context(|| self.agents_log())
    }

    pub(super) fn agents_log(&self) -> String {
        let select = ["-n", "kube-system", "-l", "app.kubernetes.io/name=weir"];
        let ask = |arguments: &[&str]| self.kubectl(&[arguments, &select].concat()).unwrap_or_else(|it| it.to_string());
        format!("{}\n{}", ask(&["describe", "pods"]), ask(&["logs", "--prefix", "--tail=20"]))
    }

    fn restarts(&self) -> Result<u64> {
        let path = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
        let ask = ["get", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=weir", "-o", path];
        Ok(self.kubectl(&ask)?.split_whitespace().filter_map(|it| it.parse::<u64>().ok()).sum())
    }

    /// Kills every agent, as a crash would; the kubelets start them again.
    fn kill_agents(&self) -> Result<()> {
        let before = self.restarts()?;
        for node in &self.nodes {
            let killed = node.shell(
                "for it in /proc/[0-9]*; do
                    if [ \"$(cat $it/comm 2> /dev/null)\" = weir ]; then kill -KILL ${it#/proc/}; echo $it; fi
                done",
            )?;
            ensure!(!killed.is_empty(), "no agent runs on {}", node.name());
        }
        let wanted = before + self.nodes.len() as u64;
        wait("agents are restarted", PATIENCE, || self.restarts().is_ok_and(|it| it >= wanted))?;
        self.wait_rollout()
    }

    fn upgrade_agents(&self) -> Result<()> {
        self.kubectl(&["set", "image", "daemonset/weir", "-n", "kube-system", &format!("*={NEXT}")])?;
        self.wait_rollout()
    }

    fn restart_apiserver(&self) -> Result<()> {
        self.first().kill(control::APISERVER)?;
        std::thread::sleep(AWAY);
        control::start_apiserver(self.first(), &self.tools)?;
        control::wait_ready(self.first(), &self.tools)
    }
}
