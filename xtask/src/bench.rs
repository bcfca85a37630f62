//! `cargo xtask bench`: what the front end costs, on clusters of two sizes.
//!
//! Figures of one machine at one moment say little, so each stands beside a yardstick of the same run: reading the
//! same bytes with serde_json into plain values.

mod page;
mod performance;
mod sets;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::generate::{Size, flows, snapshot};
use crate::process::{cargo, run};

const SMALL: Size = Size { pods: 2_000, policies: 1_000, namespaces: 20 };
const LARGE: Size = Size { pods: 100_000, policies: 10_000, namespaces: 200 };
const FLOWS: usize = 500_000;
const RUNS: usize = 5;

/// Runs the benchmarks whose name contains the filter.
pub(crate) fn run_all(filter: Option<&str>) -> Result<()> {
    if filter == Some("tables") {
        return run(&mut cargo(&["bench", "--locked", "--package", "weir-runtime", "--bench", "tables"]));
    }
    if filter == Some("programs") {
        return programs();
    }
    if filter == Some("sets") {
        let mut bench = cargo(&["bench", "--locked", "--package", "weir-runtime", "--bench", "sets"]);
        run(bench.env("WEIR_BENCH_JSON", &page::figures("sets")?))?;
        return sets::write();
    }
    if filter == Some("events") {
        return run(&mut cargo(&["bench", "--locked", "--package", "weir-compiler", "--bench", "index"]));
    }
    run(&mut cargo(&["build", "--release", "--locked", "--package", "weir"]))?;
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&directory)?;
    let bench = Bench { weir: weir_binary()?, directory, filter: filter.unwrap_or_default().to_owned() };
    println!("{:<34} {:>10} {:>10} {:>12}", "benchmark", "median s", "MiB", "× serde_json");
    bench.start_up()?;
    bench.check("check 1k policies, 2k pods", "small.json", SMALL)?;
    bench.check("check 10k policies, 100k pods", "large.json", LARGE)?;
    bench.compile("compile 1k policies, 2k pods", "small.json", SMALL, &["--no-verify"])?;
    bench.compile("verified 1k policies, 2k pods", "small.json", SMALL, &[])?;
    bench.compile("compile one node, 10k, 100k", "large.json", LARGE, &["--no-verify", "--node", "node-5"])?;
    bench.compile("verified one node, 10k, 100k", "large.json", LARGE, &["--node", "node-5"])?;
    bench.query()
}

/// Whole programs in the kernel, and what the documentation says of them.
fn programs() -> Result<()> {
    let figures = page::figures("programs")?;
    let mut bench = cargo(&["bench", "--locked", "--package", "weir-runtime", "--bench", "programs"]);
    run(bench.env("WEIR_BENCH_JSON", &figures))?;
    performance::write(&figures)
}

struct Bench {
    weir: PathBuf,
    directory: PathBuf,
    filter: String,
}

struct Measured {
    seconds: f64,
    mebibytes: u64,
}

impl Bench {
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn start_up(&self) -> Result<()> {
        let name = "start-up (--help)";
        if self.wants(name) {
            let measured = self.measure(&["--help"], &[0])?;
            print_row(name, &measured, None);
        }
        Ok(())
    }

    fn check(&self, name: &str, file: &str, size: Size) -> Result<()> {
        if self.wants(name) {
            let path = self.write(file, &snapshot(size))?;
            let measured = self.measure(&["check", "--max", "1", &path], &[0, 1])?;
            print_row(name, &measured, Some(yardstick(&path)?));
        }
        Ok(())
    }

    fn compile(&self, name: &str, file: &str, size: Size, arguments: &[&str]) -> Result<()> {
        if self.wants(name) {
            let path = self.write(file, &snapshot(size))?;
            let output = self.directory.join("bench.o").to_string_lossy().into_owned();
            let all = [&["compile", &path, "-o", &output], arguments].concat();
            print_row(name, &self.measure(&all, &[0])?, Some(yardstick(&path)?));
        }
        Ok(())
    }

    fn query(&self) -> Result<()> {
        let name = "query 500k flows, 1k policies";
        if self.wants(name) {
            let cluster = self.write("small.json", &snapshot(SMALL))?;
            let flows = self.write("flows.jsonl", &flows(FLOWS, SMALL))?;
            let measured = self.measure(&["query", &cluster, "--flows", &flows], &[0])?;
            print_row(name, &measured, None);
            println!("{:<34} {:>10.0} flows/s", "", FLOWS as f64 / measured.seconds);
        }
        Ok(())
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// The median time and the highest memory of several runs.
    fn measure(&self, arguments: &[&str], allowed: &[i32]) -> Result<Measured> {
        let mut seconds = Vec::new();
        let mut kibibytes = 0;
        for _ in 0..RUNS {
            let (time, peak, code) = run_once(Command::new(&self.weir).args(arguments))?;
            if !code.is_some_and(|code| allowed.contains(&code)) {
                bail!("weir {} ended with {code:?}", arguments.join(" "));
            }
            seconds.push(time.as_secs_f64());
            kibibytes = kibibytes.max(peak);
        }
        seconds.sort_by(f64::total_cmp);
        Ok(Measured { seconds: seconds[RUNS / 2], mebibytes: kibibytes / 1024 })
    }
}

fn print_row(name: &str, measured: &Measured, yardstick: Option<f64>) {
    let ratio = yardstick.map_or_else(String::new, |seconds| format!("{:.2}", measured.seconds / seconds));
    println!("{name:<34} {:>10.4} {:>10} {ratio:>12}", measured.seconds, measured.mebibytes);
}

/// Time, peak resident KiB (sampled while it runs), exit code.
fn run_once(command: &mut Command) -> Result<(Duration, u64, Option<i32>)> {
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
    Ok((start.elapsed(), peak, status.code()))
}

fn resident_kibibytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// The same bytes, read into plain values by serde_json.
fn yardstick(path: &str) -> Result<f64> {
    let text = std::fs::read_to_string(path)?;
    let start = Instant::now();
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let elapsed = start.elapsed().as_secs_f64();
    std::hint::black_box(&value);
    Ok(elapsed)
}

fn weir_binary() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    target.join("release/weir").canonicalize().context("the release build left no weir binary")
}
