//! The network namespace, with interfaces for the local pods.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use xtask::simulated::near_address;

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
