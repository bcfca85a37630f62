//! Starts pods under a flood, to see which packets reach them before their policy is in force.
//!
//! A pod on each node sends to every address of the pods' subnets, all the time. Pods without any allowed ingress start
//! in waves. Each reports how many packets its network stack has received when its first process runs, and again a
//! while later. The first number may be above zero: the interface exists a moment before later plug-ins of the CNI
//! chain are called, but no process does. With `weir-cni`, a process never receives one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::traffic::{NAMESPACE, pod};
use super::{LocalCluster, node::ClusterNode};
use crate::process::wait;

const PATIENCE: Duration = Duration::from_secs(300);
/// Pods that start at once, on each node.
const WAVE: usize = 10;

/// Pings every address of the pods' subnets five times a second, with one process per address, whether or not the
/// address is in use.
const FLOOD: &str = r#"
for subnet in $SUBNETS; do
    for last in $(seq 2 254); do ping -q -i 0.2 "$subnet.$last" > /dev/null & done
done
echo flooding
wait
"#;
const VICTIM: &str = "cat /proc/net/snmp; sleep 2; cat /proc/net/snmp; echo end; exec sleep 3600";

/// The packets that a pod's network stack has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReceivedPackets {
    /// Before its first process ran: shows that the flood was there.
    early: u64,
    /// After that.
    late: u64,
}

/// Starts `pods` pods, and reports the packets that reached them.
pub(super) fn run(cluster: &LocalCluster, pods: usize) -> Result<()> {
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
        wait("the flood has begun", PATIENCE, floods)?;
    }
    let started = Instant::now();
    let mut seen = Vec::new();
    for first in (0..pods).step_by(WAVE * cluster.nodes.len()) {
        let wave: Vec<usize> = (first..pods.min(first + WAVE * cluster.nodes.len())).collect();
        seen.extend(start(cluster, &wave)?);
    }
    let seconds = started.elapsed().as_secs();
    let flooded = seen.iter().filter(|it| it.early > 0).count();
    let late: u64 = seen.iter().map(|it| it.late).sum();
    println!(
        "{} pods started in {seconds} s, {flooded} of them in the flood from their first moment; their processes saw {late} packets",
        seen.len()
    );
    cluster.kubectl(&["delete", "namespace", NAMESPACE])?;
    ensure!(flooded > 0, "no pod was flooded in its first moment");
    ensure!(
        !cluster.options.weir_cni || late == 0,
        "packets reached processes of pods, although weir-cni is installed"
    );
    Ok(())
}

/// Starts a wave of pods, and returns the packets that each received.
fn start(cluster: &LocalCluster, wave: &[usize]) -> Result<Vec<ReceivedPackets>> {
    let name = |number: usize| format!("victim-{number}");
    let node = |number: usize| cluster.nodes[number % cluster.nodes.len()].name();
    let objects: Vec<Value> =
        wave.iter().map(|number| pod(&name(*number), "victim", &node(*number), VICTIM, json!([]))).collect();
    cluster.apply("victims", &objects)?;
    let mut seen = Vec::new();
    for number in wave {
        let mut log = String::new();
        wait(&name(*number), PATIENCE, || {
            log = cluster.kubectl(&["logs", "-n", NAMESPACE, &name(*number)]).unwrap_or_default();
            log.contains("end\n")
        })?;
        seen.push(received(&log).context("/proc/net/snmp")?);
    }
    cluster.kubectl(&["delete", "pods", "-n", NAMESPACE, "-l", "app=victim", "--force", "--grace-period=0"])?;
    Ok(seen)
}

/// The count of received IP packets in the first output of /proc/net/snmp, and its increase until the last one.
fn received(snmp: &str) -> Option<ReceivedPackets> {
    let lines: Vec<&str> = snmp.lines().filter_map(|line| line.strip_prefix("Ip: ")).collect();
    let place = lines.first()?.split(' ').position(|name| name == "InReceives")?;
    let count = |line: &str| line.split(' ').nth(place)?.parse::<u64>().ok();
    let early = count(lines.get(1)?)?;
    Some(ReceivedPackets { early, late: count(lines.last()?)? - early })
}

fn flooder(node: &ClusterNode, nodes: &[ClusterNode]) -> Value {
    let subnets: Vec<String> = nodes.iter().map(|node| node.subnet().replace(".0/24", "")).collect();
    let environment = json!([{"name": "SUBNETS", "value": subnets.join(" ")}]);
    pod(&format!("flood-{}", node.name()), "flood", &node.name(), FLOOD, environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_before_and_after_the_first_process_are_counted_apart() {
        let snmp = "Ip: Forwarding InReceives\nIp: 1 2\nTcp: A\nTcp: 1\nIp: Forwarding InReceives\nIp: 1 7\nend\n";
        assert_eq!(received(snmp), Some(ReceivedPackets { early: 2, late: 5 }));
        assert_eq!(received("end\n"), None);
    }
}
