//! Connects the nodes, and configures the network of their pods.

use std::process::Command;

use anyhow::Result;
use serde_json::json;

use super::node::ClusterNode;
use super::options::Cni;
use crate::process::capture;

/// Connects the nodes, and writes each node's CNI configuration.
pub(super) fn connect(nodes: &[ClusterNode], cni: Cni) -> Result<()> {
    link(nodes)?;
    for node in nodes {
        node.shell(&format!(
            "ip address add {}/24 dev eth0; ip link set eth0 up; ip route add default via 172.31.0.1",
            node.address()
        ))?;
        for other in nodes.iter().filter(|other| other.name() != node.name()) {
            node.shell(&format!("ip route add {} via {}", other.subnet(), other.address()))?;
        }
        configure(node, cni)?;
    }
    Ok(())
}

/// Writes a node's CNI configuration, without plug-ins of others.
pub(super) fn configure(node: &ClusterNode, cni: Cni) -> Result<()> {
    node.write("/etc/cni/net.d/10-pods.conflist", &configuration(node, cni).to_string())
}

/// `eth0` of two nodes are the ends of one veth; `eth0` of a single node is a dummy interface.
fn link(nodes: &[ClusterNode]) -> Result<()> {
    let mut ip = Command::new("ip");
    ip.args(["link", "add", "eth0", "netns", &nodes[0].init().to_string(), "type"]);
    match nodes.get(1) {
        Some(other) => ip.args(["veth", "peer", "name", "eth0", "netns", &other.init().to_string()]),
        None => ip.arg("dummy"),
    };
    capture(&mut ip).map(|_| ())
}

/// The chain of CNI plug-ins. There is no masquerading, so pods of other nodes keep their addresses.
fn configuration(node: &ClusterNode, cni: Cni) -> serde_json::Value {
    let ipam = json!({
        "type": "host-local",
        "ranges": [[{"subnet": node.subnet()}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let first = match cni {
        Cni::Bridge => {
            json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": ipam})
        }
        Cni::Ptp => json!({"type": "ptp", "ipam": ipam}),
    };
    let plugins = json!([first, {"type": "portmap", "capabilities": {"portMappings": true}}]);
    json!({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})
}
