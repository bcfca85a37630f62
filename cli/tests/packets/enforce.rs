//! Puts policies in force: with the built binary, or with the control, which has the same policies as iptables rules.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::namespace::{Error, run};
use crate::place::Place;
use crate::topology::{Layout, Net, Node};

/// The implementation that enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Programs,
    Rules,
}

/// The binary under test; in a guest it has another path.
pub(crate) fn weir() -> PathBuf {
    std::env::var_os("WEIR_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_weir").into(), PathBuf::from)
}

/// Enforces the policies of the files on all nodes.
pub(crate) fn enforce(by: By, net: &Net, place: &Place, files: &[PathBuf]) -> Result<(), Error> {
    match by {
        By::Programs => {
            // Both kinds of hooks are used, if the kernel has both.
            let hook = if net.layout == Layout::Bridge { "clsact" } else { "auto" };
            let mut with_pods = net.nodes.iter().filter(|node| !node.pods.is_empty());
            with_pods
                .try_for_each(|node| attach(node, place, &compile(place, node, files)?, &["--hook", hook]).map(drop))
        }
        By::Rules => {
            let rules = run(
                Command::new(weir()).args(["compile", "--no-verify", "--emit", "iptables"]).args(OTHERS).args(files),
                "",
            )?;
            net.nodes.iter().try_for_each(|node| restore(node, net.layout, &rules))
        }
    }
}

/// The corpus has policies of other groups, about which it expects nothing.
const OTHERS: [&str; 6] = [
    "--ignore-kind",
    "crd.projectcalico.org/NetworkPolicy",
    "--ignore-kind",
    "crd.antrea.io/ClusterNetworkPolicy",
    "--ignore-kind",
    "projectcalico.org/NetworkPolicy",
];

/// Compiles the files for a node; returns the artifact's path.
pub(crate) fn compile(place: &Place, node: &Node, files: &[PathBuf]) -> Result<PathBuf, Error> {
    let artifact = place.file(&format!("{}.o", node.name));
    compile_to(&artifact, node, files).map(|()| artifact)
}

pub(crate) fn compile_to(artifact: &Path, node: &Node, files: &[PathBuf]) -> Result<(), Error> {
    let mut command = Command::new(weir());
    command.args(["-q", "compile", "--no-verify", "--node", &node.name]).args(OTHERS).args(files);
    run(command.arg("-o").arg(artifact), "").map(drop)
}

/// Attaches to all pods of a node.
pub(crate) fn attach(node: &Node, place: &Place, artifact: &Path, more: &[&str]) -> Result<String, Error> {
    let mut command = node.space.command(weir());
    command.arg("attach").arg(artifact).arg("--bpffs").arg(pins(place, node)).args(more);
    for pod in &node.pods {
        command.arg("--endpoint").arg(format!("{}={}", pod.name, pod.interface));
    }
    run(&mut command, "")
}

/// A command of `weir` about a node.
pub(crate) fn ask(node: &Node, place: &Place, arguments: &[&str]) -> Result<String, Error> {
    run(node.space.command(weir()).args(arguments).arg("--bpffs").arg(pins(place, node)), "")
}

/// Each node has its own pins.
pub(crate) fn pins(place: &Place, node: &Node) -> PathBuf {
    place.bpffs().join(&node.name)
}

fn restore(node: &Node, layout: Layout, rules: &str) -> Result<(), Error> {
    let (sets, rest) = rules.split_once("# iptables-restore\n").ok_or("no rules")?;
    let (v4, v6) = rest.split_once("# ip6tables-restore\n").ok_or("no rules for IPv6")?;
    node.space.run("ipset", &["restore"], sets)?;
    node.space.run("iptables-restore", &["-w", "10"], v4)?;
    node.space.run("ip6tables-restore", &["-w", "10"], v6)?;
    // The rules judge ICMPv6 as a whole, and neighbour discovery is a part of it: between a pod and its node, and on a
    // bridge also between pods.
    let chains: &[&str] = if layout == Layout::Bridge { &["INPUT", "FORWARD"] } else { &["INPUT"] };
    for chain in chains {
        for kind in ["135", "136"] {
            let pass = ["-w", "10", "-I", *chain, "-p", "ipv6-icmp", "--icmpv6-type", kind, "-j", "ACCEPT"];
            node.space.run("ip6tables", &pass, "")?;
        }
    }
    // Packets made by hand have no checksums.
    node.space.set("netfilter/nf_conntrack_checksum", "0")
}
