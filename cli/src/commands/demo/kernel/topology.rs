//! The network of the demo.
//!
//! ```text
//!  web ─ pod0 ┐
//!  api ─ pod1 ┤ node ─ inet ─ internet
//!   db ─ pod2 ┤
//!  dns ─ pod3 ┘
//! ```
//!
//! Every pod has one host route, as with most CNI plug-ins, so all packets pass the node's ends of the pods' interfaces.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::PODS;
use super::sandbox::{ROLES, Sandbox};
use super::signals::StopSignals;
use crate::commands::demo::shop::{DemoEnd, INTERNET};

/// The node's address on each link. It is link-local, and no policy names it.
const GATEWAY: &str = "169.254.1.1";

/// The node's end of a pod's interface.
pub(super) fn interface(index: usize) -> String {
    format!("pod{index}")
}

/// Builds all links, addresses and routes.
pub(super) fn build(sandbox: &Sandbox, signals: &StopSignals) -> Result<()> {
    for role in ROLES {
        signals.check()?;
        // The demo is about IPv4. Without IPv6, no neighbour discovery is among the dropped packets.
        set(sandbox, role, "ipv6/conf/all/disable_ipv6", "1")
            .or_else(|error| if has_ipv6() { Err(error) } else { Ok(()) })?;
        sandbox.ip(role, "link set lo up\n")?;
    }
    set(sandbox, "node", "ipv4/ip_forward", "1")?;
    for (index, pod) in PODS.iter().enumerate() {
        signals.check()?;
        link(sandbox, &interface(index), pod)?;
    }
    link(sandbox, "inet", &INTERNET)
}

/// Connects an end to the node.
fn link(sandbox: &Sandbox, interface: &str, end: &DemoEnd) -> Result<()> {
    let (address, peer) = (end.address, sandbox.namespace(end.name));
    let mut node = String::new();
    writeln!(node, "link add {interface} type veth peer name eth0 netns {peer}")?;
    writeln!(node, "link set {interface} up\naddr add {GATEWAY}/32 dev {interface} scope link")?;
    writeln!(node, "route add {address} dev {interface}")?;
    sandbox.ip("node", &node)?;
    let inside = format!(
        "link set eth0 up\naddr add {address}/32 dev eth0\nroute add {GATEWAY} dev eth0\n\
         route add default via {GATEWAY} dev eth0\n"
    );
    sandbox.ip(end.name, &inside)
}

fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// Writes under `/proc/sys/net`.
fn set(sandbox: &Sandbox, role: &str, setting: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/net/{setting}");
    sandbox.enter(role, || std::fs::write(&path, value))?.with_context(|| format!("cannot write {path}"))
}
