//! The programs that run pods and implement services on a node: containerd, kubelet, kube-proxy.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::options::Proxy;
use super::tools::Tools;
use super::{control, images, node::ClusterNode};
use crate::process::{capture, wait};

const SOCKET: &str = "/run/containerd/containerd.sock";
pub(super) const KUBELET: &str = "kubelet";
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts all three.
pub(super) fn start(node: &ClusterNode, tools: &Tools, proxy: Proxy) -> Result<()> {
    node.shell(&format!("ln -s {}/* /opt/cni/bin/", tools.debian("usr/lib/cni").display()))?;
    start_containerd(node, tools)?;
    start_kubelet(node, tools)?;
    let mut command = node.command(tools.bin("kube-proxy"));
    command.arg("--kubeconfig").arg(control::kubeconfig(tools, "kube-proxy"));
    command.args(["--proxy-mode", proxy.name(), "--hostname-override", &node.name(), "--cluster-cidr=10.244.0.0/16"]);
    // kube-proxy would change these settings for the whole machine.
    command.args(["--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0"]);
    command.args(["--conntrack-tcp-timeout-close-wait=0", "--oom-score-adj=0"]);
    node.daemon("kube-proxy", command)
}

fn start_containerd(node: &ClusterNode, tools: &Tools) -> Result<()> {
    let configuration = format!(
        "version = 2\n\
         [plugins.'io.containerd.grpc.v1.cri']\n\
         sandbox_image = '{}'\n\
         # Lowering it takes a right that containers' hosts may lack.\n\
         restrict_oom_score_adj = true\n\
         [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.runc]\n\
         runtime_type = 'io.containerd.runc.v2'\n\
         options = {{ BinaryName = '{}', SystemdCgroup = false }}\n",
        images::BUSYBOX,
        tools.debian("usr/sbin/runc").display(),
    );
    let path = node.directory().join("containerd.toml");
    fs::write(&path, configuration)?;
    let mut command = node.command(tools.debian("usr/bin/containerd"));
    command.arg("--config").arg(path);
    node.daemon("containerd", command)?;
    let ctr = tools.debian("usr/bin/ctr");
    let answers = || capture(node.command(&ctr).args(["--address", SOCKET, "version"])).is_ok();
    wait("containerd answers", PATIENCE, answers).with_context(|| node.log("containerd"))
}

/// Starts the kubelet, also again after it was killed.
pub(super) fn start_kubelet(node: &ClusterNode, tools: &Tools) -> Result<()> {
    let path = node.directory().join("kubelet.yaml");
    fs::write(&path, kubelet(&node.group()))?;
    let mut command = node.command(tools.bin("kubelet"));
    command.arg("--config").arg(&path).arg("--kubeconfig").arg(control::kubeconfig(tools, &node.name()));
    command.args(["--hostname-override", &node.name(), "--node-ip", &node.address()]);
    node.daemon(KUBELET, command)
}

/// The kubelet's configuration. Only the nodes can reach its port, so it needs no authentication; evictions are
/// switched off.
fn kubelet(group: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\n\
         kind: KubeletConfiguration\n\
         authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}\n\
         authorization: {{mode: AlwaysAllow}}\n\
         containerRuntimeEndpoint: unix://{SOCKET}\n\
         cgroupDriver: cgroupfs\n\
         cgroupRoot: /{group}\n\
         clusterDNS: [10.96.0.10]\n\
         failCgroupV1: false\n\
         failSwapOn: false\n\
         oomScoreAdj: 0\n\
         maxPods: 250\n\
         evictionHard: {{memory.available: '0%', nodefs.available: '0%', imagefs.available: '0%'}}\n\
         imageGCHighThresholdPercent: 100\n\
         localStorageCapacityIsolation: false\n\
         shutdownGracePeriod: 0s\n"
    )
}

/// Imports an image into a node's containerd.
pub(super) fn import(node: &ClusterNode, tools: &Tools, image: &Path) -> Result<()> {
    let mut ctr = node.command(tools.debian("usr/bin/ctr"));
    capture(ctr.args(["--address", SOCKET, "--namespace", "k8s.io", "images", "import"]).arg(image)).map(|_| ())
}
