//! `cargo xtask bench packets`: the cost of real packets between two pods of a node without any policy, with our
//! programs, and with netfilter rules as other implementations write them.
//!
//! Problem: we look for a few hundred nanoseconds in ten thousand, on a machine that does other work too. Strategy: all
//! [`paths`] exist at once, each with its [`guards`], and take turns in short slices, round after round. Only CPU time
//! for packets is counted (see [`traffic`]), and the least of all slices counts. A second path without rules shows how
//! much two identical paths differ.
//!
//! Everything is in network namespaces, a mount namespace and a bpf file system of this process, so nothing is left
//! even if it is killed.

mod guards;
mod paths;
mod report;
mod traffic;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use xtask::process::{cargo, run};

use super::isolated::{BenchDirectory, isolated, release};
use guards::{EnforceTools, Enforcer};
use paths::PodPath;
use traffic::{Load, TrafficEnds};

const RULES: [usize; 4] = [10, 100, 1_000, 10_000];
/// Streams are measured in one round out of this number.
const STREAM_EVERY: usize = 3;
const INSIDE: &str = "--inside";

struct PacketBenchOptions {
    rounds: usize,
    slice: Duration,
    cpu: usize,
    /// Only rules of these numbers; all numbers if empty.
    rules: Vec<usize>,
    /// Only implementations whose names contain this text, and the path without rules.
    only: String,
    is_inside: bool,
}

/// A path that is measured.
struct MeasuredPath {
    by: Enforcer,
    rules: usize,
    ends: TrafficEnds,
    /// Nanoseconds of CPU time per unit: for each load, one figure per round.
    figures: [Vec<f64>; Load::ALL.len()],
}

/// `cargo xtask bench packets`; with `--draw`, only draws the page again from existing figures.
pub(super) fn task(arguments: &[String]) -> Result<()> {
    if arguments.first().is_some_and(|it| it == "--draw") {
        return report::draw();
    }
    let options = options(arguments)?;
    if options.is_inside {
        return measure(&options);
    }
    crate::packages::ensure()?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "weir"]))?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "xtask", "--example", "traffic"]))?;
    let again = ["bench", "packets", INSIDE].into_iter().chain(arguments.iter().map(String::as_str));
    isolated(&again.collect::<Vec<_>>())
}

fn options(arguments: &[String]) -> Result<PacketBenchOptions> {
    let cpus = std::thread::available_parallelism()?.get();
    let slice = Duration::from_millis(100);
    let mut options = PacketBenchOptions {
        rounds: 15,
        slice,
        cpu: cpus - 1,
        rules: Vec::new(),
        only: String::new(),
        is_inside: false,
    };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        if name == "--only" {
            options.only.clone_from(arguments.next().context("--only needs a name")?);
            continue;
        }
        let mut number =
            || arguments.next().and_then(|it| it.parse().ok()).with_context(|| format!("{name} needs a number"));
        match name.as_str() {
            INSIDE => options.is_inside = true,
            "--rounds" => options.rounds = number()?,
            "--slice" => options.slice = Duration::from_millis(number()? as u64),
            "--cpu" => options.cpu = number()?,
            "--rules" => options.rules.push(number()?),
            other => bail!("unexpected argument {other}; expected --rounds, --slice, --cpu, --rules or --only"),
        }
    }
    if options.rules.is_empty() {
        options.rules = RULES.into();
    }
    Ok(options)
}

fn measure(options: &PacketBenchOptions) -> Result<()> {
    let directory = BenchDirectory::new("packets")?;
    let release = release()?;
    let means = EnforceTools { weir: &release.join("weir"), directory: directory.path() };
    let mut rows = Vec::new();
    for (number, (by, rules)) in cases(options).into_iter().enumerate() {
        let row = row(number, by, rules, &means, &release.join("examples/traffic"), options.cpu);
        rows.push(row.with_context(|| format!("{}, {rules} rules", by.name()))?);
    }
    for round in 0..options.rounds {
        // iperf3 needs at least a second.
        let is_wanted = |load: &Load| *load != Load::Stream || round % STREAM_EVERY == 0;
        for (load, name) in Load::ALL.into_iter().enumerate().filter(|(_, load)| is_wanted(load)) {
            for row in &mut rows {
                let figure = row.ends.measure(name, options.slice);
                let figure =
                    figure.with_context(|| format!("{}, {} rules, {}", row.by.name(), row.rules, name.name()))?;
                row.figures[load].push(figure);
            }
        }
        eprintln!("round {} of {}", round + 1, options.rounds);
    }
    report::write(&rows)
}

/// The path without rules is measured twice: the difference between the two is the measurement's error.
fn cases(options: &PacketBenchOptions) -> Vec<(Enforcer, usize)> {
    let mut cases = vec![(Enforcer::Nothing, 0), (Enforcer::Nothing, 0)];
    for by in Enforcer::ALL.into_iter().filter(|by| *by != Enforcer::Nothing && by.name().contains(&options.only)) {
        cases.extend(options.rules.iter().map(|rules| (by, *rules)));
    }
    cases
}

fn row(
    number: usize,
    by: Enforcer,
    rules: usize,
    means: &EnforceTools<'_>,
    generator: &Path,
    cpu: usize,
) -> Result<MeasuredPath> {
    let path = PodPath::new(number)?;
    guards::enforce(by, &path, rules, means)?;
    let ends = TrafficEnds::new(&path, generator, cpu)?;
    Ok(MeasuredPath { by, rules, ends, figures: Default::default() })
}
