//! A client, a node and a server in network namespaces: the path of a packet between two pods.
//!
//! ```text
//!  client (10.77.0.1) eth0 ── veth-client │ node │ veth-server ── eth0 server (10.77.1.1)
//! ```
//!
//! Each path has its own three namespaces and its own programs or rules in the node, so that all paths exist at once
//! and are measured in turns. The names are visible to this process only: `/run/netns` is a file system in its mount
//! namespace.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

pub(super) const CLIENT: &str = "10.77.0.1";
pub(super) const SERVER: &str = "10.77.1.1";
/// The node's interfaces.
pub(super) const TO_CLIENT: &str = "veth-client";
pub(super) const TO_SERVER: &str = "veth-server";

/// Three connected namespaces.
#[derive(Clone, Debug)]
pub(super) struct PodPath {
    number: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PathNamespace {
    Client,
    Node,
    Server,
}

impl PodPath {
    pub(super) fn new(number: usize) -> Result<Self> {
        let it = Self { number };
        let [client, node, server] =
            [PathNamespace::Client, PathNamespace::Node, PathNamespace::Server].map(|place| it.name(place));
        run(
            Command::new("ip").args(["-batch", "-"]),
            &format!("netns add {client}\nnetns add {node}\nnetns add {server}\n"),
        )?;
        let lines = format!(
            "link set lo up\nlink add {TO_CLIENT} type veth peer name eth0 netns {client}
link add {TO_SERVER} type veth peer name eth0 netns {server}
addr add 10.77.0.254/24 dev {TO_CLIENT}\naddr add 10.77.1.254/24 dev {TO_SERVER}
link set {TO_CLIENT} up\nlink set {TO_SERVER} up\n"
        );
        run(it.command(PathNamespace::Node, "ip").args(["-batch", "-"]), &lines)?;
        for (place, address) in [(PathNamespace::Client, CLIENT), (PathNamespace::Server, SERVER)] {
            let gateway = address.trim_end_matches('1').to_owned() + "254";
            let lines = format!(
                "link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\nroute add default via {gateway}\n"
            );
            run(it.command(place, "ip").args(["-batch", "-"]), &lines)?;
            // Cubic does not pace packets, as some other congestion controls do. If it is not built in, the setting
            // stays as it is.
            let cubic = "echo cubic > /proc/sys/net/ipv4/tcp_congestion_control || true";
            run(it.command(place, "sh").args(["-c", cubic]), "")?;
        }
        run(it.command(PathNamespace::Node, "sh").args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]), "")?;
        Ok(it)
    }

    /// A command that runs in one of the namespaces.
    pub(super) fn command(&self, place: PathNamespace, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name(place))).arg(program);
        command
    }

    fn name(&self, place: PathNamespace) -> String {
        format!("wpk-{}-{place:?}", self.number).to_lowercase()
    }
}

/// Runs a command with input; an error contains its standard error.
pub(super) fn run(command: &mut Command, input: &str) -> Result<String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("could not start {command:?}"))?;
    let stdin = child.stdin.take();
    let output = std::thread::scope(|scope| {
        // Ignore write errors: a child may stop reading, and its exit status shows whether it failed.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{command:?}: {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
