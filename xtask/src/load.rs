//! Measures the agent's cost and latency on a large cluster that changes all the time.
//!
//! Problem: the figures must be those of real use: a released binary, programs attached to interfaces, objects as large
//! as a server's. Strategy: one network namespace contains everything: the simulated API server, the agent, and veths
//! for the local pods, both ends of them. Memory and CPU time are the kernel's figures for the process; latencies come
//! from the agent's own histograms.

mod agent;
mod node;

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use xtask::process::{cargo, run};
use xtask::simulated::{self, Scale, Simulated};

use agent::MeasuredAgent;
use node::LoadNamespace;

/// Number of changed pods per second.
const PODS_PER_SECOND: u32 = 100;
const POLICIES_PER_SECOND: u32 = 2;
/// Number of pods that are added and removed in turn.
const CHURNED: u32 = 500;

struct LoadOptions {
    scale: Scale,
    seconds: u32,
    /// Whether this is the child process inside of the namespace.
    inside: bool,
}

/// `cargo xtask load`
pub(crate) fn run_load(arguments: impl Iterator<Item = String>) -> Result<()> {
    let arguments: Vec<String> = arguments.collect();
    let options = options(&arguments)?;
    if options.inside {
        return measure(&options);
    }
    run(&mut cargo(&["build", "--release", "--locked", "-p", "weir"]))?;
    let node = LoadNamespace::new(options.scale.local)?;
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--net={}", node.path())).arg(std::env::current_exe()?).args(["load", "--inside"]);
    run(inside.args(&arguments))
}

fn options(arguments: &[String]) -> Result<LoadOptions> {
    let scale = Scale { pods: 10_000, local: 110, policies: 1_000, services: 200 };
    let mut options = LoadOptions { scale, seconds: 20, inside: false };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let mut number =
            || arguments.next().and_then(|it| it.parse().ok()).with_context(|| format!("{name} needs a number"));
        match name.as_str() {
            "--inside" => options.inside = true,
            "--pods" => options.scale.pods = number()?,
            "--local" => options.scale.local = number()?,
            "--policies" => options.scale.policies = number()?,
            "--services" => options.scale.services = number()?,
            "--secs" => options.seconds = number()?,
            other => bail!("unexpected argument {other}; expected --pods, --local, --policies, --services or --secs"),
        }
    }
    Ok(options)
}

fn measure(options: &LoadOptions) -> Result<()> {
    let server = Simulated::start()?;
    simulated::populate(&server, options.scale);
    let agent = MeasuredAgent::start(&server)?;
    let begun = Instant::now();
    agent.until_ready()?;
    println!("ready after               {:>8.2} s", begun.elapsed().as_secs_f64());
    println!("memory when ready         {}", agent.memory()?);
    sleep(Duration::from_secs(2));
    let (before, begun) = (agent.cpu()?, Instant::now());
    sleep(Duration::from_secs(options.seconds.into()));
    let idle = (agent.cpu()? - before) / begun.elapsed().as_secs_f64();
    println!("memory, idle              {}", agent.memory()?);
    println!("CPU, idle                 {:>8.2} %", idle * 100.0);
    let (before, begun) = (agent.cpu()?, Instant::now());
    churn(&server, options);
    let busy = (agent.cpu()? - before) / begun.elapsed().as_secs_f64();
    println!("memory, churned           {}", agent.memory()?);
    println!("CPU, churned              {:>8.2} %", busy * 100.0);
    sleep(Duration::from_secs(2));
    println!("memory, afterwards        {}", agent.memory()?);
    let metrics = agent.metrics()?;
    for (what, name) in [
        ("pod → enforced", "weir_pod_enforced_seconds"),
        ("policy → enforced", "weir_policy_enforced_seconds"),
        ("compile", "weir_compile_seconds"),
        ("install", "weir_install_seconds"),
    ] {
        println!("{what:25} {}", agent::quantiles(&metrics, name));
    }
    for name in ["weir_generations_total", "weir_address_writes_total"] {
        println!("{name:25} {:>8}", agent::value(&metrics, name));
    }
    agent.stop()
}

/// Adds and removes pods of other nodes, and changes the ports of policies.
fn churn(server: &Simulated, options: &LoadOptions) {
    let pause = Duration::from_secs(1) / PODS_PER_SECOND;
    let begun = Instant::now();
    for turn in 0..options.seconds * PODS_PER_SECOND {
        let index = options.scale.pods + turn / 3 % CHURNED;
        let node = format!("far{}", index % 90);
        match turn % 3 {
            0 => server.put("Pod", simulated::pod(index, &node, None)),
            1 => server.put("Pod", simulated::pod(index, &node, Some(simulated::far_address(index)))),
            _ => {
                let pod = simulated::pod(index, &node, None);
                let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default().to_owned();
                server.delete("Pod", &text("namespace"), &text("name"));
            }
        }
        if turn % (PODS_PER_SECOND / POLICIES_PER_SECOND) == 0 {
            let index = turn % options.scale.policies.max(1);
            server.put("NetworkPolicy", simulated::policy(index, 30 + turn % 20));
        }
        sleep((pause * (turn + 1)).saturating_sub(begun.elapsed()));
    }
}
