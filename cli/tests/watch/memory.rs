//! The agent's memory with a large cluster, and with one hostile namespace.

use std::net::Ipv4Addr;
use std::time::Instant;

use serde_json::{Value, json};
use xtask::apiserver::Settings;
use xtask::simulated::{Scale, Simulated, policy, populate};

use crate::rig::{Agent, Directory, until};

/// The limit for the agent's own (anonymous) memory. The pages of the binary are not counted, because the kernel
/// decides whether to keep them. With them, the agent should need less than 40 MiB. Two of these are data that changes of
/// policies are applied to, and the table of endpoints, which would otherwise be decoded for each change.
const MOST_MEBIBYTES: f64 = 31.0;

#[test]
fn ten_thousand_pods_and_a_thousand_policies_fit() {
    let directory = Directory::new();
    let server = Simulated::start().expect("loopback is there");
    populate(&server, Scale { pods: 10_000, local: 110, policies: 1_000, services: 200 });
    let kubeconfig = directory.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig).expect("the directory is ours");
    let agent = Agent::start(&directory, &kubeconfig, &Settings::default(), &["--dry-run"]);
    until("everything is compiled", || agent.metric("weir_generations_total") > 0.0);
    until("every pod is counted", || agent.metric("weir_objects{kind=\"Pod\"}") == 10_000.0);
    let mut own = f64::MAX;
    until(&format!("the agent needs at most {MOST_MEBIBYTES} MiB"), || {
        own = mebibytes(&agent, "RssAnon:");
        own < MOST_MEBIBYTES
    });
    eprintln!("{own:.1} MiB of its own");
}

/// A value in `/proc/PID/status` about the agent's memory.
fn mebibytes(agent: &Agent, what: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("the kernel reports it");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1_024.0
}

/// A policy of about ten kilobytes. Its blocks contain nearly all addresses, and each excepted address of one block
/// splits all other blocks.
fn with_holes(index: u32) -> Value {
    let hole = |number: u32| Ipv4Addr::from_bits(number.wrapping_mul(2_654_435_761)).to_string() + "/32";
    let rule = |number: u32| {
        let holes: Vec<String> = (0..4).map(|it| hole((index * 40 + number) * 4 + it)).collect();
        let block = json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": holes}}]);
        (block, json!([{"port": index * 40 + number + 1, "protocol": "TCP"}]))
    };
    let (ingress, egress): (Vec<Value>, Vec<Value>) = (0..40)
        .map(rule)
        .map(|(block, ports)| (json!({"from": block, "ports": ports}), json!({"to": block, "ports": ports})))
        .unzip();
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": format!("h{index}"), "namespace": "hostile", "uid": format!("h{index}")},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": ingress, "egress": egress}})
}

#[test]
fn two_megabytes_of_policies_of_one_namespace_fit_the_memory_limit_and_block_no_other() {
    // The memory limit in the shipped manifest. The budget is a quarter of it, as by default.
    const CONTAINER: u64 = 512 << 20;
    let directory = Directory::new();
    let server = Simulated::start().expect("loopback is there");
    populate(&server, Scale { pods: 200, local: 20, policies: 40, services: 10 });
    server.put("Namespace", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "hostile"}}));
    server.put(
        "Pod",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "h", "namespace": "hostile", "uid": "h"},
            "spec": {"nodeName": "near", "containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Running", "podIP": "10.199.9.9", "podIPs": [{"ip": "10.199.9.9"}]}}),
    );
    let kubeconfig = directory.path().join("kubeconfig");
    server.write_kubeconfig(&kubeconfig).expect("the directory is ours");
    let budget = format!("memory={}", CONTAINER / 4);
    let agent = Agent::start(&directory, &kubeconfig, &Settings::default(), &["--dry-run", "--budget", &budget]);
    let generations = || agent.metric("weir_generations_total");
    until("everything is compiled", || generations() > 0.0);
    let before = mebibytes(&agent, "VmHWM:");

    let policies: Vec<Value> = (0..200).map(with_holes).collect();
    let bytes: usize = policies.iter().map(|it| it.to_string().len()).sum();
    policies.into_iter().for_each(|it| server.put("NetworkPolicy", it));
    let held = || agent.metric("weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"budget\"}");
    until("policies are held", || held() > 0.0);
    assert!(agent.health("/readyz").1.contains("note: namespace hostile: "), "{}", agent.health("/readyz").1);

    // The policies of another namespace can still change.
    let (generation, at) = (generations(), Instant::now());
    server.put("NetworkPolicy", policy(3, 99));
    until("the change of another namespace is in force", || generations() > generation);
    let most = mebibytes(&agent, "VmHWM:");
    eprintln!(
        "{} kB of policies: {before:.0} MiB before, at most {most:.0} MiB with them, {} of 200 are held, another namespace's \
         change took {:.1} s",
        bytes >> 10,
        held(),
        at.elapsed().as_secs_f64()
    );
    assert!(most < (CONTAINER >> 20) as f64, "{most} MiB");
    assert!(agent.metric("weir_panics_total") == 0.0);
}
