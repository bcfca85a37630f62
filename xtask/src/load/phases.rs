//! The kinds of changes that are measured, each for some seconds and at its own rate.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use xtask::simulated::{self, Simulated, near_address};

use super::LoadOptions;
use super::agent::{self, MeasuredAgent};
use super::node::CniResults;

/// Number of pods that are added and removed in turn.
const CHURNED: u32 = 500;
const SLICES_PER_SECOND: u32 = 50;
const LOCAL_PER_SECOND: u32 = 2;
/// Number of local pods that come, and then leave. The first generation has room for more than these.
const LOCALS: u32 = 40;
const POLICIES_PER_SECOND: u32 = 2;

/// Changes in a round of all kinds together: one policy, and then a slice after every two pods.
const ROUND: u32 = 76;
const ROUND_PODS: u32 = 50;
const ROUND_SLICES: u32 = 25;

/// The kinds whose bytes are counted.
const KINDS: [&str; 6] = ["Namespace", "Node", "Pod", "Service", "EndpointSlice", "NetworkPolicy"];

/// Where changes are made: at the API server, and on the node.
pub(super) struct MeasuredNode<'a> {
    pub(super) server: &'a Simulated,
    pub(super) results: &'a CniResults,
}

/// A kind of changes.
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// Number of changes per second.
    rate: u32,
    /// Number of all changes.
    count: u32,
    /// The metric that has the times until they are in force.
    metric: &'static str,
    change: fn(&MeasuredNode<'_>, &LoadOptions, u32) -> Result<()>,
}

/// All kinds of changes.
pub(super) fn phases(options: &LoadOptions) -> Vec<Phase> {
    let (pods, others) = ("weir_pod_enforced_seconds", "weir_policy_enforced_seconds");
    let together = options.pod_changes * ROUND / ROUND_PODS;
    let timed = |name, rate, metric, change| Phase { name, rate, count: options.seconds * rate, metric, change };
    let local = |name, change| Phase { name, rate: LOCAL_PER_SECOND, count: LOCALS, metric: pods, change };
    vec![
        timed("pods elsewhere", options.pod_changes, pods, change_pod),
        local("local pods come", add_local),
        local("local pods leave", remove_local),
        timed("EndpointSlices", SLICES_PER_SECOND, others, change_slice),
        timed("policies", POLICIES_PER_SECOND, others, change_policy),
        timed("together", together, others, change_all),
    ]
}

/// The bytes of objects that the server has sent, by kind.
pub(super) fn sent(server: &Simulated) -> Vec<(&'static str, u64)> {
    KINDS.iter().map(|kind| (*kind, server.sent(kind))).collect()
}

impl Phase {
    /// Makes the changes, and prints their cost. `idle` is the share of a core that the agent takes without changes.
    pub(super) fn measure(
        &self,
        node: &MeasuredNode<'_>,
        agent: &MeasuredAgent,
        options: &LoadOptions,
        idle: f64,
    ) -> Result<()> {
        let total = || sent(node.server).iter().map(|(_, bytes)| bytes).sum::<u64>();
        let (metrics, cpu, bytes, begun) = (agent.metrics()?, agent.cpu()?, total(), Instant::now());
        let pause = Duration::from_secs(1) / self.rate;
        for turn in 0..self.count {
            (self.change)(node, options, turn)?;
            sleep((pause * (turn + 1)).saturating_sub(begun.elapsed()));
        }
        let seconds = begun.elapsed().as_secs_f64();
        let cores = (agent.cpu()? - cpu) / seconds;
        let rate = (total() - bytes) as f64 / seconds / 1_000.0;
        let Self { name, rate: changes, metric, .. } = self;
        println!("{:25} {changes} a second", format!("{name}: changes"));
        let each = (cores - idle).max(0.0) * seconds / f64::from(self.count) * 1_000.0;
        println!("{:25} {:.2} % of a core; beyond idle, {each:.2} ms a change", format!("{name}: CPU"), cores * 100.0);
        println!("{:25} {rate:.1} kB a second", format!("{name}: API"));
        println!("{:25} {}", format!("{name}: memory"), agent.memory()?);
        // Changes that wait for the CPU budget are in force after at most this time.
        sleep(Duration::from_secs(12));
        println!("{:25} {}", format!("{name}: in force"), agent::quantiles_since(&metrics, &agent.metrics()?, metric));
        Ok(())
    }
}

/// Adds and removes pods of other nodes. Each pod has no address at first.
fn change_pod(node: &MeasuredNode<'_>, options: &LoadOptions, turn: u32) -> Result<()> {
    let index = options.scale.pods + turn / 3 % CHURNED;
    let far = format!("far{}", index % simulated::far_nodes(options.scale));
    match turn % 3 {
        0 => node.server.put("Pod", simulated::pod(index, &far, None)),
        1 => node.server.put("Pod", simulated::pod(index, &far, Some(simulated::far_address(index)))),
        _ => delete(node.server, "Pod", &simulated::pod(index, &far, None)),
    }
    Ok(())
}

/// A pod of the agent's node, and the number of its interface.
fn local_pod(options: &LoadOptions, turn: u32) -> (Value, u32) {
    let index = options.scale.local + turn;
    // The numbers of other pods begin after those of the local ones.
    let number = options.scale.pods + CHURNED + turn;
    let mut pod = simulated::pod(number, "near", Some(near_address(index)));
    pod["status"]["podIPs"] = json!([{"ip": near_address(index).to_string()}]);
    (pod, index)
}

/// Adds a local pod with its interface and the result of the CNI plug-in.
fn add_local(node: &MeasuredNode<'_>, options: &LoadOptions, turn: u32) -> Result<()> {
    let (pod, index) = local_pod(options, turn);
    let route = format!("route add {}/32 dev v{index}", near_address(index));
    ip(&format!("link add v{index} type veth peer name e{index}\nlink set v{index} up\n{route}\n"))?;
    node.results.add(index, &pod)?;
    node.server.put("Pod", pod);
    Ok(())
}

/// Removes a pod that [`add_local`] has added.
fn remove_local(node: &MeasuredNode<'_>, options: &LoadOptions, turn: u32) -> Result<()> {
    let (pod, index) = local_pod(options, turn);
    ip(&format!("link delete v{index}\n"))?;
    node.results.remove(index)?;
    delete(node.server, "Pod", &pod);
    Ok(())
}

/// Removes a member from a slice, or adds it again.
fn change_slice(node: &MeasuredNode<'_>, options: &LoadOptions, turn: u32) -> Result<()> {
    let index = turn / 2 % options.scale.services.max(1);
    let members = options.scale.pods / options.scale.services.max(1);
    let without = turn.is_multiple_of(2).then_some(turn / 2 * 7 % members.max(1));
    node.server.put("EndpointSlice", simulated::service(index, options.scale, without).1);
    Ok(())
}

/// Changes the port of a policy, which allows one port and denies another.
fn change_policy(node: &MeasuredNode<'_>, options: &LoadOptions, turn: u32) -> Result<()> {
    edit_policy(node, options, turn, 30)
}

/// The ports begin at `first`. Each phase has its own ones: the policies keep those of the phase before.
fn edit_policy(node: &MeasuredNode<'_>, options: &LoadOptions, turn: u32, first: u32) -> Result<()> {
    let index = turn * 7 % options.scale.policies.max(1);
    node.server.put("NetworkPolicy", options.policy(index, first + turn % 20));
    Ok(())
}

/// Changes pods of other nodes, slices and policies: 100, 50 and 2 a second if 100 pods change.
fn change_all(node: &MeasuredNode<'_>, options: &LoadOptions, turn: u32) -> Result<()> {
    let (round, at) = (turn / ROUND, turn % ROUND);
    match at {
        0 => edit_policy(node, options, round, 50),
        at if at.is_multiple_of(3) => change_slice(node, options, round * ROUND_SLICES + at / 3 - 1),
        at => change_pod(node, options, round * ROUND_PODS + at - at / 3 - 1),
    }
}

fn delete(server: &Simulated, kind: &str, object: &Value) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    server.delete(kind, &text("namespace"), &text("name"));
}

/// Runs commands of `ip` in the present network namespace.
fn ip(commands: &str) -> Result<()> {
    let mut ip =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().context("could not start ip")?;
    if let Some(mut stdin) = ip.stdin.take() {
        stdin.write_all(commands.as_bytes())?;
    }
    ensure!(ip.wait()?.success(), "ip failed: {commands}");
    Ok(())
}
