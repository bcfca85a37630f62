//! Measures the agent's cost and latency on a large cluster that changes all the time.
//!
//! Problem: the figures must be those of real use: a released binary, programs attached to interfaces, objects as large
//! as a server's. Strategy: one network namespace contains everything: the simulated API server, the agent, and veths
//! for the local pods, both ends of them. Memory and CPU time are the kernel's figures for the process; latencies come
//! from the agent's own histograms.

mod agent;
mod feeds;
mod node;
mod phases;

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use xtask::process::{cargo, run};
use xtask::simulated::{self, Scale, Simulated};

use agent::MeasuredAgent;
use node::{CniResults, LoadNamespace};
use phases::MeasuredNode;

/// The name for `--only` if nothing but the start is measured.
const NO_CHANGES: &str = "none";

struct LoadOptions {
    scale: Scale,
    seconds: u32,
    /// Seconds between the start and the first measurement. In its first minute, an agent moves its pods to TCX.
    settle: u32,
    /// The kinds of changes to measure: those whose names begin with this.
    only: String,
    /// Number of changed pods per second.
    pod_changes: u32,
    /// Whether no policy has rules for egress.
    ingress_only: bool,
    /// The agent's CPU budget, if it is not the default.
    cpu_budget: Option<String>,
    /// Whether to simulate the forms in which pods could be sent, instead of an agent.
    feeds: bool,
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
    if options.feeds {
        feeds::print(&options);
        return Ok(());
    }
    run(&mut cargo(&["build", "--release", "--locked", "-p", "weir"]))?;
    let node = LoadNamespace::new(options.scale.local)?;
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--net={}", node.path())).arg(std::env::current_exe()?).args(["load", "--inside"]);
    run(inside.args(&arguments))
}

fn options(arguments: &[String]) -> Result<LoadOptions> {
    let scale = Scale { pods: 10_000, local: 110, policies: 1_000, services: 200 };
    let mut options = LoadOptions {
        scale,
        seconds: 20,
        settle: 2,
        only: String::new(),
        pod_changes: 100,
        ingress_only: false,
        cpu_budget: None,
        feeds: false,
        inside: false,
    };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let mut number =
            || arguments.next().and_then(|it| it.parse().ok()).with_context(|| format!("{name} needs a number"));
        match name.as_str() {
            "--inside" => options.inside = true,
            "--feeds" => options.feeds = true,
            "--ingress-only" => options.ingress_only = true,
            "--only" => {
                options.only =
                    arguments.next().cloned().context("--only needs the beginning of the name of a kind of changes")?
            }
            "--cpu-budget" => options.cpu_budget = arguments.next().cloned(),
            "--pod-changes" => options.pod_changes = number()?,
            "--pods" => options.scale.pods = number()?,
            "--local" => options.scale.local = number()?,
            "--policies" => options.scale.policies = number()?,
            "--services" => options.scale.services = number()?,
            "--secs" => options.seconds = number()?,
            "--settle" => options.settle = number()?,
            other => bail!(
                "unexpected argument {other}; expected --pods, --local, --policies, --services, --secs, --settle, \
                 --only, --pod-changes, --ingress-only, --cpu-budget or --feeds"
            ),
        }
    }
    let names: Vec<&str> = phases::phases(&options).iter().map(|it| it.name).collect();
    let is_known = options.only == NO_CHANGES || names.iter().any(|it| it.starts_with(&options.only));
    ensure!(is_known, "--only {}: expected the beginning of {}, or {NO_CHANGES}", options.only, names.join(", "));
    Ok(options)
}

impl LoadOptions {
    /// A policy as [`simulated::policy`] makes it, without its part for egress if no policy has one.
    fn policy(&self, index: u32, port: u32) -> Value {
        let mut policy = simulated::policy(index, port);
        if self.ingress_only {
            policy["spec"]["policyTypes"] = json!(["Ingress"]);
            policy["spec"]["egress"] = Value::Null;
        }
        policy
    }
}

fn measure(options: &LoadOptions) -> Result<()> {
    let server = Simulated::start()?;
    simulated::populate(&server, options.scale);
    if options.ingress_only {
        (0..options.scale.policies).for_each(|index| server.put("NetworkPolicy", options.policy(index, index % 30)));
    }
    let directory = std::env::temp_dir().join(format!("weir-load-{}", std::process::id()));
    let results = CniResults::new(&directory, options.scale.local)?;
    let agent = MeasuredAgent::start(&server, directory, results.path(), options.cpu_budget.as_deref())?;
    let begun = Instant::now();
    agent.until_ready()?;
    println!("ready after               {:>8.2} s", begun.elapsed().as_secs_f64());
    println!("CPU until ready           {:>8.2} s", agent.cpu()?);
    println!("memory when ready         {}", agent.memory()?);
    for (kind, bytes) in phases::sent(&server) {
        println!("{:25} {:>8.2} MB", format!("list of {kind}"), bytes as f64 / 1e6);
    }
    sleep(Duration::from_secs(options.settle.into()));
    let (before, begun) = (agent.cpu()?, Instant::now());
    sleep(Duration::from_secs(options.seconds.into()));
    let idle = (agent.cpu()? - before) / begun.elapsed().as_secs_f64();
    println!("memory, idle              {}", agent.memory()?);
    println!("CPU, idle                 {:>8.2} %", idle * 100.0);
    let node = MeasuredNode { server: &server, results: &results };
    for phase in phases::phases(options).iter().filter(|it| it.name.starts_with(&options.only)) {
        phase.measure(&node, &agent, options, idle)?;
    }
    println!("memory, afterwards        {}", agent.memory()?);
    let metrics = agent.metrics()?;
    for (what, name) in [("compile", "weir_compile_seconds"), ("install", "weir_install_seconds")] {
        println!("{what:25} {}", agent::quantiles_since("", &metrics, name));
    }
    let generations = ["weir_generations_total", "weir_extended_generations_total"];
    let others = ["weir_address_writes_total", "weir_drift", "weir_drift_repairs_total"];
    for name in generations.into_iter().chain(others) {
        println!("{name:31} {:>8}", agent::value(&metrics, name));
    }
    // Each of them takes as long as a start, and other changes wait for it.
    for line in metrics.lines().filter(|line| line.starts_with("weir_whole_generations_total{")) {
        println!("{line}");
    }
    agent.stop()
}
