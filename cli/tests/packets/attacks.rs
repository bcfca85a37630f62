//! Attacks: each scene is a way past enforcement that worked once. Scenes are played with real packets in both layouts
//! (the routed one attaches with TCX where the kernel has it, the bridge with clsact) and in both families.
//!
//! The node tracks connections and translates addresses, as nodes with kube-proxy do: netfilter then reassembles
//! fragments and makes new ones, and several attacks depend on that. A scene collects its findings and fails at its
//! end, so that one run lists all layouts and families that are open.

mod errors;
mod forged;
mod fragments;
mod neighbours;
mod shares;
mod switches;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use crate::enforce::compile_to;
use crate::namespace::{Error, Namespace};
use crate::services::{Frontend, translate};
use crate::stage::{NODES, Stage, by_programs_in};
use crate::topology::Layout;
use crate::wire::Wire;
use weir_testing::packet::Packet;

/// The node port that leads to `server`, masqueraded.
const NODE_PORT: u16 = 30_053;

/// The findings of one scene in one layout and family.
#[derive(Default)]
struct Findings {
    stage: String,
    wrong: Vec<String>,
}

impl Findings {
    /// Records `what` as a finding unless `holds`.
    fn expect(&mut self, holds: bool, what: impl AsRef<str>) {
        if !holds {
            let finding = format!("{}: {}", self.stage, what.as_ref());
            println!("  {finding}");
            self.wrong.push(finding);
        }
    }
}

/// Where a scene applies: layouts, and families (whether it is IPv6).
type Where = (&'static [Layout], &'static [bool]);

const EVERYWHERE: Where = (&[Layout::Routed, Layout::Bridge], &[false, true]);
const IN_IPV6: Where = (EVERYWHERE.0, &[true]);
const ON_BRIDGES: Where = (&[Layout::Bridge], EVERYWHERE.1);
const ON_BRIDGES_IN_IPV6: Where = (&[Layout::Bridge], &[true]);
/// For a scene that plays both families itself.
const IN_BOTH_AT_ONCE: Where = (EVERYWHERE.0, &[false]);

/// Plays a scene, and fails if it found anything.
fn attack((layouts, families): Where, scene: impl Fn(&mut Stage, &mut Findings)) {
    let wrong = RefCell::new(Vec::new());
    by_programs_in(layouts, families, &|stage: &mut Stage| {
        let mut findings = Findings { stage: stage.name(), wrong: Vec::new() };
        scene(stage, &mut findings);
        wrong.borrow_mut().append(&mut findings.wrong);
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{} findings:\n  {}", wrong.len(), wrong.join("\n  "));
}

/// Checks that iptables rules can be made here. A guest of `cargo xtask kernels` has no iptables.
fn netfilter() -> Result<(), Error> {
    crate::privilege()?;
    Namespace::new()?.run("ip6tables-restore", &[], "*nat\nCOMMIT\n").map(drop)
}

/// As [`attack`], on a node that tracks connections and translates addresses.
fn attack_tracked(places: Where, scene: impl Fn(&mut Stage, &mut Findings)) {
    weir_runtime::skip!(unless netfilter());
    attack(places, |stage, findings| {
        track(stage).unwrap();
        scene(stage, findings);
    });
}

/// Connections are tracked, and a masqueraded node port leads to `server`, in both families.
fn track(stage: &Stage) -> Result<(), Error> {
    let servers = &stage.net.pod_named("default/server").addresses;
    let frontends = NODES[0].iter().zip(servers).map(|(node, server)| Frontend {
        at: SocketAddr::new(node.parse().unwrap(), NODE_PORT),
        protocol: "udp",
        backends: vec![SocketAddr::new(*server, 53)],
        masquerade: true,
    });
    translate(&stage.net.nodes[0], &frontends.collect::<Vec<_>>())?;
    // Packets by hand have no checksums.
    stage.net.nodes[0].space.set("netfilter/nf_conntrack_checksum", "0")
}

/// A pod's wire.
fn wire(stage: &Stage, pod: &str) -> Wire {
    Wire::pod(&stage.net, &format!("default/{pod}")).unwrap()
}

/// Sends a packet from pod to pod: directly on a bridge, through the gateway where pods are routed.
fn send(stage: &Stage, from: &Wire, to: &Wire, packet: &Packet) {
    let sent = if stage.net.layout == Layout::Bridge { from.send_to(to, packet) } else { from.send(packet) };
    sent.unwrap();
}

/// The cluster's objects without its policies.
pub(crate) fn pods() -> String {
    let text = include_str!("cluster.yaml");
    let kept: Vec<&str> = text.split("---\n").filter(|it| !it.contains("kind: NetworkPolicy")).collect();
    kept.join("---\n")
}

/// A policy for the pods with a label `app`.
pub(crate) fn policy(app: &str, types: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {app}}}
spec:\n  podSelector: {{matchLabels: {{app: {app}}}}}\n  policyTypes: [{types}]\n{rules}"
    )
}

/// An ingress rule for the pods with a label `app`.
pub(crate) fn from(app: &str) -> String {
    format!("  ingress: [{{from: [{{podSelector: {{matchLabels: {{app: {app}}}}}}}]}}]\n")
}

/// The pods under these policies, as an artifact for the first node.
pub(crate) fn generation(stage: &Stage, name: &str, policies: &str) -> PathBuf {
    let (input, artifact) = (stage.place.file(&format!("{name}.yaml")), stage.place.file(&format!("{name}.o")));
    std::fs::write(&input, pods() + policies).unwrap();
    compile_to(&artifact, &stage.net.nodes[0], &[input]).unwrap();
    artifact
}

/// Switches the first node to an artifact; its endpoints are attached already.
fn switch(stage: &Stage, artifact: &std::path::Path) {
    let node = &stage.net.nodes[0];
    let mut command = node.space.command(crate::enforce::weir());
    command.arg("attach").arg(artifact).arg("--bpffs").arg(crate::enforce::pins(&stage.place, node));
    crate::namespace::run(&mut command, "").unwrap();
}

/// A pod's flow as `weir flows` prints it, or `None` if the table has no such flow.
fn flow(stage: &Stage, pod: &str, remote: SocketAddr, local_port: u16) -> Option<Value> {
    let text = crate::enforce::ask(&stage.net.nodes[0], &stage.place, &["flows", "-o", "json"]).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    let (pod, ip) = (format!("default/{pod}"), remote.ip().to_string());
    let is_it = |it: &&Value| {
        it["pod"] == pod.as_str()
            && it["remote"]["ip"] == ip.as_str()
            && it["remote"]["port"] == remote.port()
            && it["local"]["port"] == local_port
    };
    found["flows"].as_array().unwrap().iter().find(is_it).cloned()
}
