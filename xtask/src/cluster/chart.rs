//! Installs, upgrades, rolls back and uninstalls the agent with Helm on the running cluster.
//!
//! Pods talk all the time: no step loses an allowed connection or lets a denied one through. After each step, pods
//! start on every node. After an uninstall nothing is left on the nodes, also on one that was away meanwhile, and after
//! an uninstall without Helm. While the agents are installed, `weir-cni` comes back into a chain that is written again.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use xtask::deploy;
use xtask::helm::{self, Helm};

use super::node::ClusterNode;
use super::traffic::{ClusterTraffic, NAMESPACE, is_kept_out, only_friends, passes, pod};
use super::{LocalCluster, control, network, runtime};
use crate::process::{capture, wait};

const PATIENCE: Duration = Duration::from_secs(180);
/// Time in which pods of the uninstaller would remove something, if they did.
const A_WHILE: Duration = Duration::from_secs(10);
const RELEASE: &str = "weir";
const SYSTEM: &str = "kube-system";
const UNINSTALLER: &str = "weir-uninstall";
/// The ConfigMap that exists while the agents are installed.
const INSTALLED: &str = "weir-installed";
const CNI: [&str; 2] = ["--set", "cni.enabled=true"];

/// Fails if anything of Weir is on a node, and names it.
const NOTHING_IS_LEFT: &str = r#"
for path in /sys/fs/bpf/weir /opt/cni/bin/weir-cni /run/weir/cni.sock /run/weir/health.sock; do
    if test -e "$path"; then echo "$path is left"; exit 1; fi
done
if grep -rl weir-cni /etc/cni/net.d; then echo "a chain names weir-cni"; exit 1; fi
if bpftool net show | grep -E 'from_pod|to_pod|weir_'; then echo "programs are left"; exit 1; fi
"#;

pub(super) fn run(cluster: &LocalCluster) -> Result<()> {
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"])?;
    // Helm refuses objects that another tool has created.
    let objects = "daemonset,serviceaccount,clusterrole,clusterrolebinding";
    cluster.kubectl(&["delete", objects, "-n", SYSTEM, RELEASE, "--ignore-not-found"])?;
    cluster.kubectl(&["delete", "configmap", "-n", SYSTEM, INSTALLED, "--ignore-not-found"])?;
    cluster.import_agent()?;
    cluster.apply(
        "chart",
        &[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}), policy()],
    )?;
    let release = Release { cluster, helm: helm::build()? };
    release.lives()?;
    if cluster.nodes.len() > 1 {
        release.ends_while_a_node_is_away()?;
    }
    release.ends_without_helm()?;
    cluster.kubectl(&["delete", "namespace", NAMESPACE]).map(|_| ())
}

/// Isolates the pods that [`Release::works`] starts.
fn policy() -> serde_json::Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "nothing", "namespace": NAMESPACE}, "spec": {"podSelector": {"matchLabels": {"app": "new"}}},
    })
}

struct Release<'c> {
    cluster: &'c LocalCluster,
    helm: Helm,
}

impl Release<'_> {
    /// Runs Helm in the first node, where the API server is.
    fn helm(&self, arguments: &[&str]) -> Result<String> {
        let tools = &self.cluster.tools;
        let mut command: Command = self.cluster.first().command(self.helm.program());
        command.env("HOME", tools.run()).arg("--kubeconfig").arg(control::kubeconfig(tools, "admin"));
        capture(command.args(["--namespace", SYSTEM]).args(arguments))
    }

    /// Installs or upgrades the release, and waits until all agents are ready.
    fn put(&self, what: &str, more: &[&str]) -> Result<()> {
        let chart = deploy::chart().canonicalize()?.display().to_string();
        let wait = ["--wait", "--timeout", "180s"];
        let put = self.helm(&[&[what, RELEASE, chart.as_str()], &CNI[..], &wait, more].concat());
        put.with_context(|| self.cluster.agents_log())?;
        self.works(what, true)
    }

    fn lives(&self) -> Result<()> {
        let traffic = ClusterTraffic::start(self.cluster)?;
        traffic.without_loss("install", || self.put("install", &[]))?;
        self.comes_back_into_the_chain()?;
        self.cluster.apply("policy", &[only_friends()])?;
        traffic.until("strangers are kept out", |it| passes(it, "friend") && is_kept_out(it, "stranger"))?;
        let other = "image.tag=next,cni.onTimeout=deny,health.probe=exec,metrics.listen=loopback";
        traffic.during("upgrade", || self.put("upgrade", &["--set", other]))?;
        traffic.during("rollback", || {
            self.helm(&["rollback", RELEASE, "1", "--wait", "--timeout", "180s"])?;
            self.works("rollback", true)
        })?;
        traffic.during("upgrade without weir-cni", || self.put("upgrade", &["--set", "cni.enabled=false"]))?;
        traffic.without_loss("uninstall", || self.helm(&["uninstall", RELEASE, "--timeout", "180s"]).map(|_| ()))?;
        self.is_gone("uninstall")?;
        traffic.until("strangers are let in again", |it| passes(it, "friend") && passes(it, "stranger"))?;
        self.cluster.kubectl(&["delete", "networkpolicy", "-n", NAMESPACE, "web"])?;
        traffic.stop()
    }

    /// The CNI configuration is written again, as an upgrade of the cluster's CNI plug-in does.
    fn comes_back_into_the_chain(&self) -> Result<()> {
        for node in &self.cluster.nodes {
            network::configure(node, self.cluster.options.cni)?;
            let is_back = || node.shell("grep -q weir-cni /etc/cni/net.d/10-pods.conflist").is_ok();
            wait(&format!("weir-cni is in the chain of {} again", node.name()), PATIENCE, is_back)?;
        }
        self.works("the CNI configuration is written again", true)
    }

    /// The kubelet of a node is dead while Helm uninstalls; the agent there runs on.
    fn ends_while_a_node_is_away(&self) -> Result<()> {
        self.put("install", &["--set", "uninstall.timeoutSeconds=20"])?;
        let away = &self.cluster.nodes[1];
        away.kill(runtime::KUBELET)?;
        let condition = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        let ready = || self.cluster.kubectl(&["get", "node", &away.name(), "-o", condition]);
        wait("the node is away", PATIENCE, || ready().is_ok_and(|it| it != "True"))?;
        let ended = self.helm(&["uninstall", RELEASE, "--timeout", "120s"]);
        ensure!(ended.is_err(), "Helm does not report a node that was away");
        let log = self.cluster.kubectl(&["logs", "-n", SYSTEM, &format!("job/{UNINSTALLER}")])?;
        ensure!(log.contains(&format!("nodes are not clean after 20 s: {}", away.name())), "{log}");
        let again = self.put("install", &[]).err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(again.contains("of an earlier uninstall still cleans nodes"), "installed again: {again}");
        check_clean(self.cluster.first())?;
        ensure!(check_clean(away).is_err(), "nothing has cleaned the node that is away");
        runtime::start_kubelet(away, &self.cluster.tools)?;
        wait("the node that was away is clean", PATIENCE, || check_clean(away).is_ok())?;
        self.cluster.kubectl(&["delete", "daemonset,job", "-n", SYSTEM, UNINSTALLER])?;
        wait("the node is back", PATIENCE, || ready().is_ok_and(|it| it == "True"))?;
        self.is_gone("uninstall while a node was away")
    }

    fn ends_without_helm(&self) -> Result<()> {
        let text = deploy::with(&self.helm, &[("cni.enabled", "true")])?;
        self.cluster.apply_text("weir", &text)?;
        self.cluster.wait_rollout()?;
        self.works("kubectl apply", true)?;
        self.respects_agents()?;
        let manifests = self.cluster.tools.run().join("weir.yaml").display().to_string();
        self.cluster.kubectl(&["delete", "-f", &manifests])?;
        self.cluster.apply_text("uninstall", &deploy::read("uninstall.yaml")?)?;
        let rollout = ["rollout", "status", "-n", SYSTEM, "daemonset/weir-uninstall", "--timeout=120s"];
        self.cluster.kubectl(&rollout)?;
        self.cluster.kubectl(&["delete", "daemonset", "-n", SYSTEM, UNINSTALLER])?;
        self.is_gone("kubectl delete")
    }

    /// Applying the manifest for uninstalling while agents are installed removes nothing.
    fn respects_agents(&self) -> Result<()> {
        self.cluster.apply_text("uninstall", &deploy::read("uninstall.yaml")?)?;
        std::thread::sleep(A_WHILE);
        self.works("uninstall.yaml over installed agents", true)?;
        self.cluster.kubectl(&["delete", "daemonset", "-n", SYSTEM, UNINSTALLER])?;
        self.cluster.wait_rollout()
    }

    /// Pods start on every node. Pods of other nodes reach them, or not: packets of the own node always pass.
    fn works(&self, after: &str, is_isolated: bool) -> Result<()> {
        let (cluster, nodes) = (self.cluster, &self.cluster.nodes);
        let name = |node: &ClusterNode| format!("new-{}", node.name());
        let serve = "mkdir -p /tmp/w; echo hello > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w";
        let pods: Vec<_> = nodes.iter().map(|it| pod(&name(it), "new", &it.name(), serve, json!([]))).collect();
        cluster.apply("new", &pods)?;
        let ask = |node: &ClusterNode, path: &str| {
            cluster.kubectl(&["get", "pod", "-n", NAMESPACE, &name(node), "-o", &format!("jsonpath={path}")])
        };
        for node in nodes {
            let runs = || ask(node, "{.status.phase}").is_ok_and(|it| it == "Running");
            wait(&format!("a pod starts on {} after {after}", node.name()), PATIENCE, runs)?;
        }
        for (from, to) in nodes.iter().zip(nodes.iter().skip(1)).flat_map(|(one, other)| [(one, other), (other, one)]) {
            let address = ask(to, "{.status.podIP}")?;
            let connect = ["timeout", "3", "nc", "-w", "2", &address, "8080"];
            let from = name(from);
            let exec = [&["exec", "-n", NAMESPACE, &from, "--"], &connect[..]].concat();
            let what =
                format!("a pod of {} is {} after {after}", to.name(), if is_isolated { "isolated" } else { "open" });
            wait(&what, PATIENCE, || cluster.kubectl(&exec).is_ok() != is_isolated)?;
        }
        eprintln!("after {after}: pods start on {} nodes; they are isolated: {is_isolated}", nodes.len());
        cluster.kubectl(&["delete", "pods", "-n", NAMESPACE, "-l", "app=new", "--now"]).map(|_| ())
    }

    fn is_gone(&self, after: &str) -> Result<()> {
        self.cluster.nodes.iter().try_for_each(check_clean).with_context(|| format!("after {after}"))?;
        let left = self.cluster.kubectl(&[
            "get",
            "daemonset,job,pod,serviceaccount,role,configmap",
            "-n",
            SYSTEM,
            "-o",
            "name",
        ])?;
        let left: Vec<&str> = left.lines().filter(|name| name.contains("/weir")).collect();
        // Pods end a moment after their owners.
        ensure!(left.iter().all(|name| name.starts_with("pod/")), "after {after} there are {left:?}");
        eprintln!("after {after}: nothing is left on {} nodes", self.cluster.nodes.len());
        self.works(after, false)
    }
}

fn check_clean(node: &ClusterNode) -> Result<()> {
    node.shell(NOTHING_IS_LEFT).map(|_| ()).with_context(|| format!("{} is not clean", node.name()))
}
