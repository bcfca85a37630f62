//! `cargo xtask bench`: runs one benchmark by name, or all of them. This file contains the benchmarks of commands, on
//! clusters of two sizes.
//!
//! Figures depend on the machine and its load. So each is shown next to a yardstick from the same run: the time to read
//! the same bytes with serde_json into plain values.

mod attach;
mod chart;
mod events;
mod isolated;
mod packets;
mod page;
mod performance;
mod sets;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::{cargo, run};
use xtask::generate::{ClusterSize, flows, snapshot};

const SMALL: ClusterSize = ClusterSize { pods: 2_000, policies: 1_000, namespaces: 20, tiers: 0 };
const LARGE: ClusterSize = ClusterSize { pods: 100_000, policies: 10_000, namespaces: 200, tiers: 0 };
/// A cluster whose verdicts are mostly those of cluster-wide policies.
const TIERED: ClusterSize = ClusterSize { pods: 10_000, policies: 0, namespaces: 20, tiers: 1_000 };
/// The same cluster without them.
const UNTIERED: ClusterSize = ClusterSize { tiers: 0, ..TIERED };
const FLOWS: usize = 500_000;
const RUNS: usize = 5;

/// Runs the benchmark of this name, or all benchmarks without a name. Any other word selects the front end's benchmarks
/// whose names contain it.
pub(crate) fn run_all(arguments: &[String]) -> Result<()> {
    let (name, options) = arguments.split_first().map_or(("", &[][..]), |(name, rest)| (name.as_str(), rest));
    match name {
        "tables" => run(&mut cargo(&["bench", "--locked", "--package", "weir-runtime", "--bench", "tables"])),
        "programs" => programs(),
        "sets" => sets(),
        "packets" => packets::task(options),
        "attach" | "memory" => attach::task(options),
        "events" => events::events(),
        "agent" => events::agent(),
        "commands" => front_end(""),
        "" => {
            front_end("")?;
            programs()?;
            sets()?;
            packets::task(options)?;
            attach::task(options)?;
            events::events()?;
            events::agent()
        }
        word => front_end(word),
    }
}

/// Benchmarks of address sets: look-ups, and the path of a list from the input to the kernel.
fn sets() -> Result<()> {
    let mut bench = cargo(&["bench", "--locked", "--package", "weir-runtime", "--bench", "sets"]);
    run(bench.env("WEIR_BENCH_JSON", &page::figures("sets")?))?;
    sets::write()
}

fn front_end(filter: &str) -> Result<()> {
    run(&mut cargo(&["build", "--release", "--locked", "--package", "weir"]))?;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&directory)?;
    let rows = RefCell::default();
    let bench = CommandBench { weir: weir_binary()?, directory, filter: filter.to_owned(), rows };
    println!("{:<34} {:>10} {:>10} {:>12}", "benchmark", "median s", "MiB", "× serde_json");
    bench.start_up()?;
    bench.check("check 1k policies, 2k pods", "small.json", SMALL)?;
    bench.check("check 10k policies, 100k pods", "large.json", LARGE)?;
    bench.compile("compile 1k policies, 2k pods", "small.json", SMALL, &["--no-verify"])?;
    bench.compile("verified 1k policies, 2k pods", "small.json", SMALL, &[])?;
    bench.compile("compile one node, 10k, 100k", "large.json", LARGE, &["--no-verify", "--node", "node-5"])?;
    bench.compile("verified one node, 10k, 100k", "large.json", LARGE, &["--node", "node-5"])?;
    bench.check("check 1k tiers of 25 rules, 10k pods", "tiers.json", TIERED)?;
    bench.compile("compile 1k tiers, 10k pods", "tiers.json", TIERED, &["--no-verify"])?;
    bench.compile("verified 1k tiers, 10k pods", "tiers.json", TIERED, &[])?;
    bench.compile("verified 0 tiers, 10k pods", "untiered.json", UNTIERED, &[])?;
    bench.query()?;
    ensure!(!bench.rows.borrow().is_empty(), "no benchmark of a command contains \"{filter}\" in its name");
    // With a filter, the results are not the whole table.
    if filter.is_empty() { bench.write_page() } else { Ok(()) }
}

/// Runs the benchmark of whole programs in the kernel, and writes its results into the documentation.
fn programs() -> Result<()> {
    let figures = page::figures("programs")?;
    let mut bench = cargo(&["bench", "--locked", "--package", "weir-runtime", "--bench", "programs"]);
    run(bench.env("WEIR_BENCH_JSON", &figures))?;
    performance::write(&figures)
}

struct CommandBench {
    weir: PathBuf,
    directory: PathBuf,
    filter: String,
    /// The results, one row for each measurement.
    rows: RefCell<Vec<Value>>,
}

struct MeasuredCommand {
    seconds: f64,
    mebibytes: u64,
}

impl CommandBench {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn start_up(&self) -> Result<()> {
        let name = "start-up (--help)";
        if self.wants(name) {
            let measured = self.measure(&["--help"], &[0])?;
            self.row(name, &measured, None);
        }
        Ok(())
    }

    fn check(&self, name: &str, file: &str, size: ClusterSize) -> Result<()> {
        if self.wants(name) {
            let path = self.write(file, &snapshot(size))?;
            let measured = self.measure(&["check", "--max", "1", &path], &[0, 1])?;
            self.row(name, &measured, Some(yardstick(&path)?));
        }
        Ok(())
    }

    fn compile(&self, name: &str, file: &str, size: ClusterSize, arguments: &[&str]) -> Result<()> {
        if self.wants(name) {
            let path = self.write(file, &snapshot(size))?;
            let output = self.directory.join("bench.o").to_string_lossy().into_owned();
            let all = [&["compile", &path, "-o", &output], arguments].concat();
            self.row(name, &self.measure(&all, &[0])?, Some(yardstick(&path)?));
        }
        Ok(())
    }

    fn query(&self) -> Result<()> {
        let name = "query 500k flows, 1k policies";
        if self.wants(name) {
            let cluster = self.write("small.json", &snapshot(SMALL))?;
            let flows = self.write("flows.jsonl", &flows(FLOWS, SMALL))?;
            let measured = self.measure(&["query", &cluster, "--flows", &flows], &[0])?;
            self.row(name, &measured, None);
            println!("{:<34} {:>10.0} flows/s", "", FLOWS as f64 / measured.seconds);
        }
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    fn row(&self, name: &str, measured: &MeasuredCommand, yardstick: Option<f64>) {
        let ratio = yardstick.map(|seconds| measured.seconds / seconds);
        let shown = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        println!("{name:<34} {:>10.4} {:>10} {shown:>12}", measured.seconds, measured.mebibytes);
        let MeasuredCommand { seconds, mebibytes } = measured;
        let row = json!({"name": name, "seconds": seconds, "mebibytes": mebibytes, "ratio": ratio});
        self.rows.borrow_mut().push(row);
    }

    fn write_page(&self) -> Result<()> {
        let rows = self.rows.borrow();
        std::fs::write(page::figures("commands")?, serde_json::to_string_pretty(&*rows)? + "\n")?;
        let mut text = COMMANDS.to_owned();
        for row in rows.iter() {
            let [name, seconds, mebibytes] = [&row["name"], &row["seconds"], &row["mebibytes"]];
            let ratio = row["ratio"].as_f64().map_or_else(String::new, |it| format!("{it:.2}"));
            let seconds = seconds.as_f64().unwrap_or(f64::NAN);
            _ = writeln!(text, "| {} | {seconds:.3} | {mebibytes} | {ratio} |", name.as_str().unwrap_or_default());
        }
        page::replace("commands", &text)
    }

    /// The median time and the highest memory of several runs.
    fn measure(&self, arguments: &[&str], allowed: &[i32]) -> Result<MeasuredCommand> {
        let mut all = Vec::new();
        for _ in 0..RUNS {
            let CommandRun { time, peak_kibibytes, code } = run_once(Command::new(&self.weir).args(arguments))?;
            if !code.is_some_and(|code| allowed.contains(&code)) {
                bail!("weir {} ended with {code:?}", arguments.join(" "));
            }
            all.push(MeasuredCommand { seconds: time.as_secs_f64(), mebibytes: peak_kibibytes / 1024 });
        }
        Ok(median(all))
    }
}

const COMMANDS: &str = "\
## Commands

Made by `cargo xtask bench commands`: the median time of 5 runs of the whole command, its peak memory, and the ratio to
the time in which `serde_json` reads the same bytes into plain values. `compile` rows use `--no-verify`; `verified` rows
verify too, which is the default.

| | seconds | MiB | × serde_json |
| --- | --- | --- | --- |
";

/// The median time, and the highest memory.
fn median(mut all: Vec<MeasuredCommand>) -> MeasuredCommand {
    all.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    let seconds = all.get(all.len() / 2).map_or(f64::NAN, |it| it.seconds);
    MeasuredCommand { seconds, mebibytes: all.iter().map(|it| it.mebibytes).max().unwrap_or_default() }
}

/// One run of a command.
struct CommandRun {
    time: Duration,
    /// The largest resident memory, sampled while the command ran.
    peak_kibibytes: u64,
    code: Option<i32>,
}

fn run_once(command: &mut Command) -> Result<CommandRun> {
    let start = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak = peak.max(resident_kibibytes(child.id()));
        std::thread::sleep(Duration::from_micros(200));
    };
    Ok(CommandRun { time: start.elapsed(), peak_kibibytes: peak, code: status.code() })
}

fn resident_kibibytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Time to read the same bytes with serde_json into plain values.
fn yardstick(path: &str) -> Result<f64> {
    let text = std::fs::read_to_string(path)?;
    let start = Instant::now();
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let elapsed = start.elapsed().as_secs_f64();
    std::hint::black_box(&value);
    Ok(elapsed)
}

fn weir_binary() -> Result<PathBuf> {
    xtask::image::target()
        .join("release/weir")
        .canonicalize()
        .context("cannot find the weir binary of the release build")
}
