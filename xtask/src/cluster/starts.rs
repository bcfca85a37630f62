//! Pods that start under a flood: what reaches them before policy is in force.
//!
//! A pod on each node sends to every address of every node's pods, all the time. Pods into which nothing may come start in waves and
//! say how many packets their stack has seen when their first process runs, and again a while later: with `weir-cni`, none.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::traffic::{NAMESPACE, pod};
use super::{Cluster, node::Node};
use crate::process::wait;

const PATIENCE: Duration = Duration::from_secs(300);
/// Pods that start at once, on each node.
const WAVE: usize = 10;

/// One process sends to an address, ten times a second, whether or not anybody is there.
const FLOOD: &str = r#"
for subnet in $SUBNETS; do
    for last in $(seq 2 254); do ping -q -i 0.1 "$subnet.$last" > /dev/null & done
done
echo flooding
wait
"#;
const VICTIM: &str = "cat /proc/net/snmp; sleep 2; cat /proc/net/snmp; echo end; exec sleep 3600";

/// Starts so many pods; how many packets reached how many of them.
pub(super) fn run(cluster: &Cluster, pods: usize) -> Result<()> {
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--ignore-not-found"])?;
    cluster.deploy()?;
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "nothing", "namespace": NAMESPACE},
            "spec": {"podSelector": {"matchLabels": {"app": "victim"}}}}),
    ];
    objects.extend(cluster.nodes.iter().map(|node| flooder(node, &cluster.nodes)));
    cluster.apply("flood", &objects)?;
    for node in &cluster.nodes {
        let name = format!("flood-{}", node.name());
        let floods = || cluster.kubectl(&["logs", "-n", NAMESPACE, &name]).is_ok_and(|it| it.contains("flooding"));
        wait("the flood", PATIENCE, floods)?;
    }
    let started = Instant::now();
    let (mut seen, mut reached) = (0, 0);
    for first in (0..pods).step_by(WAVE * cluster.nodes.len()) {
        let wave: Vec<usize> = (first..pods.min(first + WAVE * cluster.nodes.len())).collect();
        for packets in start(cluster, &wave)? {
            seen += 1;
            reached += usize::from(packets > 0);
        }
    }
    let seconds = started.elapsed().as_secs();
    println!(
        "{seen} pods started under a flood in {seconds} s: packets reached {reached} of them before or after policy was in force"
    );
    cluster.kubectl(&["delete", "namespace", NAMESPACE])?;
    ensure!(!cluster.options.weir_cni || reached == 0, "packets reached pods that weir-cni held back");
    ensure!(
        cluster.options.weir_cni || reached > 0,
        "there is no flood: it reaches nobody where nothing holds pods back"
    );
    Ok(())
}

/// The packets that each of these has seen.
fn start(cluster: &Cluster, wave: &[usize]) -> Result<Vec<u64>> {
    let name = |number: usize| format!("victim-{number}");
    let node = |number: usize| cluster.nodes[number % cluster.nodes.len()].name();
    let objects: Vec<Value> =
        wave.iter().map(|number| pod(&name(*number), "victim", &node(*number), VICTIM, json!([]))).collect();
    cluster.apply("victims", &objects)?;
    let mut packets = Vec::new();
    for number in wave {
        let mut log = String::new();
        wait(&name(*number), PATIENCE, || {
            log = cluster.kubectl(&["logs", "-n", NAMESPACE, &name(*number)]).unwrap_or_default();
            log.contains("end\n")
        })?;
        packets.push(received(&log).context("/proc/net/snmp")?);
    }
    cluster.kubectl(&["delete", "pods", "-n", NAMESPACE, "-l", "app=victim", "--force", "--grace-period=0"])?;
    Ok(packets)
}

/// IP's packets, the last time that it says them: they only become more.
fn received(snmp: &str) -> Option<u64> {
    let lines: Vec<&str> = snmp.lines().filter_map(|line| line.strip_prefix("Ip: ")).collect();
    let place = lines.first()?.split(' ').position(|name| name == "InReceives")?;
    lines.last()?.split(' ').nth(place)?.parse().ok()
}

fn flooder(node: &Node, nodes: &[Node]) -> Value {
    let subnets: Vec<String> = nodes.iter().map(|node| node.subnet().replace(".0/24", "")).collect();
    let environment = json!([{"name": "SUBNETS", "value": subnets.join(" ")}]);
    pod(&format!("flood-{}", node.name()), "flood", &node.name(), FLOOD, environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_those_that_were_said_last() {
        let snmp = "Ip: Forwarding InReceives\nIp: 1 0\nTcp: A\nTcp: 1\nIp: Forwarding InReceives\nIp: 1 7\nend\n";
        assert_eq!(received(snmp), Some(7));
        assert_eq!(received("end\n"), None);
    }
}
