//! What an agent keeps of a large cluster.

use xtask::apiserver::Settings;
use xtask::simulated::{Scale, Simulated, populate};

use crate::rig::{Agent, Directory, until};

/// Of its own: not of the binary's pages, which are the system's to keep or drop. With those it is to be less than 40 MiB.
const MOST_MEBIBYTES: f64 = 28.0;

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
    until(&format!("it is content with {MOST_MEBIBYTES} MiB"), || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the kernel says it");
        own = line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1_024.0;
        own < MOST_MEBIBYTES
    });
    eprintln!("{own:.1} MiB of its own");
}
