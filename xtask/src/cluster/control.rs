//! The control plane, on the first node: etcd, the API server, its controllers, the scheduler. Clients authenticate
//! with tokens.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::node::ClusterNode;
use super::tools::Tools;
use crate::process::{capture, wait};

/// The address range of services.
const SERVICES: &str = "10.96.0.0/16";
const PATIENCE: Duration = Duration::from_secs(120);
pub(super) const APISERVER: &str = "kube-apiserver";

/// Starts the control plane and writes the clients' kubeconfig files.
pub(super) fn start(nodes: &[ClusterNode], tools: &Tools) -> Result<()> {
    let node = &nodes[0];
    fs::create_dir_all(directory(tools))?;
    write_tokens(nodes, tools)?;
    write_key(tools)?;
    start_etcd(node, tools)?;
    start_apiserver(node, tools)?;
    for name in clients(nodes) {
        write_kubeconfig(node, tools, &name)?;
    }
    wait_ready(node, tools)?;
    let kubeconfig = format!("--kubeconfig={}", kubeconfig(tools, "admin").display());
    for (name, flags) in [("kube-controller-manager", controllers(tools)), ("kube-scheduler", Vec::new())] {
        let mut command = node.command(tools.bin(name));
        command.args([&kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1"]).args(flags);
        node.daemon(name, command)?;
    }
    Ok(())
}

fn directory(tools: &Tools) -> PathBuf {
    tools.run().join("control")
}

fn file(tools: &Tools, name: &str) -> String {
    directory(tools).join(name).display().to_string()
}

/// The kubeconfig file of a client.
pub(super) fn kubeconfig(tools: &Tools, name: &str) -> PathBuf {
    directory(tools).join(format!("{name}.kubeconfig"))
}

/// The clients: an administrator, kube-proxy, and a kubelet for each node.
fn clients(nodes: &[ClusterNode]) -> Vec<String> {
    ["admin".to_owned(), "kube-proxy".to_owned()].into_iter().chain(nodes.iter().map(ClusterNode::name)).collect()
}

/// Each client's token is its name. This is safe because only the nodes' namespaces can reach the server.
fn write_tokens(nodes: &[ClusterNode], tools: &Tools) -> Result<()> {
    let line = |name: String| match name.as_str() {
        "admin" => "admin,admin,admin,system:masters\n".to_owned(),
        "kube-proxy" => "kube-proxy,system:kube-proxy,kube-proxy\n".to_owned(),
        node => format!("{node},system:node:{node},{node},system:nodes\n"),
    };
    Ok(fs::write(file(tools, "tokens.csv"), clients(nodes).into_iter().map(line).collect::<String>())?)
}

fn write_key(tools: &Tools) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.args(["genrsa", "-out", &file(tools, "service-account.key")]).stderr(Stdio::null());
    ensure!(openssl.status().context("could not start openssl")?.success(), "openssl genrsa failed");
    Ok(())
}

fn start_etcd(node: &ClusterNode, tools: &Tools) -> Result<()> {
    let mut command = node.command(tools.bin("etcd"));
    command.args(["--data-dir=/var/lib/etcd", "--name=weir", "--unsafe-no-fsync"]);
    node.daemon("etcd", command)
}

/// Starts the API server, also again after it was killed.
pub(super) fn start_apiserver(node: &ClusterNode, tools: &Tools) -> Result<()> {
    let mut command = node.command(tools.bin(APISERVER));
    command.args([
        format!("--advertise-address={}", node.address()),
        format!("--service-cluster-ip-range={SERVICES}"),
        format!("--cert-dir={}", file(tools, "certificates")),
        format!("--token-auth-file={}", file(tools, "tokens.csv")),
        format!("--service-account-key-file={}", file(tools, "service-account.key")),
        format!("--service-account-signing-key-file={}", file(tools, "service-account.key")),
    ]);
    command.args([
        "--etcd-servers=http://127.0.0.1:2379",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        // The nodes' names cannot be resolved.
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged",
    ]);
    node.daemon(APISERVER, command)
}

pub(super) fn wait_ready(node: &ClusterNode, tools: &Tools) -> Result<()> {
    let kubeconfig = kubeconfig(tools, "admin");
    let ask = || {
        let mut command = node.command(tools.bin("kubectl"));
        capture(command.arg("--kubeconfig").arg(&kubeconfig).args(["get", "--raw=/readyz"])).is_ok()
    };
    wait("the API server answers", PATIENCE, ask).with_context(|| node.log(APISERVER))
}

fn controllers(tools: &Tools) -> Vec<String> {
    vec![
        format!("--service-account-private-key-file={}", file(tools, "service-account.key")),
        format!("--root-ca-file={}", file(tools, "certificates/apiserver.crt")),
    ]
}

/// The certificate file contains the server's certificate and the authority that signed it.
fn write_kubeconfig(node: &ClusterNode, tools: &Tools, name: &str) -> Result<()> {
    let certificate = file(tools, "certificates/apiserver.crt");
    let made = || fs::metadata(&certificate).is_ok_and(|it| it.len() > 0);
    wait("the API server's certificate", PATIENCE, made).with_context(|| node.log(APISERVER))?;
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: weir\n\
         clusters: [{{name: weir, cluster: {{server: 'https://{}:6443', certificate-authority: '{certificate}'}}}}]\n\
         users: [{{name: '{name}', user: {{token: '{name}'}}}}]\n\
         contexts: [{{name: weir, context: {{cluster: weir, user: '{name}'}}}}]\n",
        node.address(),
    );
    Ok(fs::write(kubeconfig(tools, name), text)?)
}
