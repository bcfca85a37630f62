//! The network namespace, with interfaces for the local pods, and the results that CNI plug-ins leave.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use xtask::simulated::{self, near_address};

/// A network namespace that is removed on drop.
pub(crate) struct LoadNamespace {
    name: String,
}

impl LoadNamespace {
    /// Makes a namespace with a veth for each pod. The other ends are in the same namespace, because no pod sends
    /// packets; each pod's route names its interface.
    pub(crate) fn new(pods: u32) -> Result<Self> {
        let node = Self { name: format!("weirload{}", std::process::id()) };
        ip(&["netns", "add", &node.name], "")?;
        let mut batch = "link set lo up\n".to_owned();
        for index in 0..pods {
            _ = writeln!(batch, "link add v{index} type veth peer name e{index}\nlink set v{index} up");
            _ = writeln!(batch, "link set e{index} up\nroute add {}/32 dev v{index}", near_address(index));
        }
        ip(&["-n", &node.name, "-batch", "-"], &batch)?;
        Ok(node)
    }

    pub(crate) fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }
}

/// The results of CNI plug-ins, as a container runtime stores them: a file for each local pod.
pub(crate) struct CniResults(PathBuf);

impl CniResults {
    /// A directory under the one of this process, with the results of the first local pods.
    pub(crate) fn new(directory: &Path, pods: u32) -> Result<Self> {
        let results = Self(directory.join("results"));
        fs::create_dir_all(&results.0)?;
        (0..pods).try_for_each(|index| results.add(index, &simulated::pod(index, "near", None)))?;
        Ok(results)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The pod is attached to its network.
    pub(crate) fn add(&self, index: u32, pod: &Value) -> Result<()> {
        let of_pod = |field: &str| &pod["metadata"][field];
        let result = json!({
            "kind": "cniCacheV1", "ifName": "eth0", "networkName": "load",
            "cniArgs": [["K8S_POD_NAMESPACE", of_pod("namespace")], ["K8S_POD_NAME", of_pod("name")],
                ["K8S_POD_UID", of_pod("uid")]],
            "result": {"cniVersion": "1.0.0",
                "interfaces": [{"name": format!("v{index}")}, {"name": "eth0", "sandbox": "/run/netns/pod"}],
                "ips": [{"address": format!("{}/32", near_address(index)), "interface": 1}]},
        });
        Ok(fs::write(self.file(index), result.to_string())?)
    }

    /// The pod has left its network.
    pub(crate) fn remove(&self, index: u32) -> Result<()> {
        Ok(fs::remove_file(self.file(index))?)
    }

    fn file(&self, index: u32) -> PathBuf {
        self.0.join(format!("load-{index}-eth0"))
    }
}

impl Drop for LoadNamespace {
    fn drop(&mut self) {
        // Errors are ignored: there is no way to handle them here.
        _ = ip(&["netns", "delete", &self.name], "");
    }
}

fn ip(arguments: &[&str], input: &str) -> Result<()> {
    let mut ip = Command::new("ip").args(arguments).stdin(Stdio::piped()).spawn().context("could not start ip")?;
    if let Some(mut stdin) = ip.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    ensure!(ip.wait()?.success(), "ip {} failed", arguments.join(" "));
    Ok(())
}
