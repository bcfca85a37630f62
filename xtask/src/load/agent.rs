//! The agent's process, and the figures about it that are visible from outside.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use xtask::process::run;
use xtask::simulated::Simulated;

const PATIENCE: Duration = Duration::from_secs(60);

/// An agent that is killed on drop. Its attached programs go when its bpf file system is unmounted.
pub(crate) struct MeasuredAgent {
    child: Child,
    directory: PathBuf,
    port: u16,
}

impl MeasuredAgent {
    pub(crate) fn start(
        server: &Simulated,
        directory: PathBuf,
        results: &Path,
        cpu_budget: Option<&str>,
    ) -> Result<Self> {
        let bpffs = directory.join("bpf");
        fs::create_dir_all(&bpffs)?;
        run(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&bpffs))?;
        let kubeconfig = directory.join("kubeconfig");
        server.write_kubeconfig(&kubeconfig)?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut weir = Command::new(xtask::image::target().join("release/weir"));
        weir.args(["watch", "--node", "near", "--kubeconfig"]).arg(kubeconfig);
        weir.args(["--metrics-addr", &format!("127.0.0.1:{port}"), "--bpffs"]).arg(bpffs.join("weir"));
        weir.arg("--cni-results").arg(results);
        weir.args(cpu_budget.into_iter().flat_map(|share| ["--cpu-budget", share]));
        let log = File::create(directory.join("log"))?;
        let child =
            weir.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().context("could not start weir")?;
        Ok(Self { child, directory, port })
    }

    pub(crate) fn until_ready(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.page("/readyz").is_ok_and(|text| text.starts_with("HTTP/1.1 200")) {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        bail!("the agent is not ready: {}\n{}", self.page("/readyz")?, fs::read_to_string(self.directory.join("log"))?)
    }

    pub(crate) fn metrics(&self) -> Result<String> {
        self.page("/metrics")
    }

    fn page(&self, path: &str) -> Result<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port))?;
        connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
        let mut text = String::new();
        connection.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Resident memory now and at its peak, and the part of it that is not backed by files.
    pub(crate) fn memory(&self) -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let megabytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kilobytes: f64 = line.and_then(|it| it.split_whitespace().next()?.parse().ok()).unwrap_or_default();
            kilobytes / 1_024.0
        };
        let [now, most, own] = ["VmRSS:", "VmHWM:", "RssAnon:"].map(megabytes);
        Ok(format!("{now:>8.1} MiB (at most {most:.1}; its own {own:.1})"))
    }

    /// CPU time so far, in seconds.
    pub(crate) fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        Ok(fields.filter_map(|it| it.parse::<f64>().ok()).sum::<f64>() / 100.0)
    }

    pub(crate) fn stop(mut self) -> Result<()> {
        let stopped = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        ensure!(stopped.success() && self.child.wait()?.success(), "the agent failed when it was stopped");
        Ok(())
    }
}

impl Drop for MeasuredAgent {
    fn drop(&mut self) {
        // The process may have ended already, and its directory may be busy for a moment.
        _ = self.child.kill();
        _ = self.child.wait();
        _ = Command::new("umount").arg(self.directory.join("bpf")).status();
        _ = fs::remove_dir_all(&self.directory);
    }
}

/// The value of a metric on the agent's metrics page.
pub(crate) fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_default()
}

/// The upper bounds of the buckets with the median and the 99th percentile of the values between two pages.
pub(crate) fn quantiles_since(before: &str, after: &str, name: &str) -> String {
    let prefix = format!("{name}_bucket{{le=\"");
    let bounds = after.lines().filter_map(|line| Some(line.strip_prefix(&prefix)?.split_once("\"} ")?.0));
    let since = |name: &str| value(after, name) - value(before, name);
    let count = since(&format!("{name}_count"));
    let buckets: Vec<(&str, f64)> =
        bounds.map(|bound| (bound, since(&format!("{name}_bucket{{le=\"{bound}\"}}")))).collect();
    let within =
        |share: f64| buckets.iter().find(|(_, so_far)| *so_far >= share * count).map_or("?", |(bound, _)| bound);
    let mean = since(&format!("{name}_sum")) / count.max(1.0) * 1_000.0;
    format!("{count:>8} times, mean {mean:.1} ms, half ≤ {} s, 99 % ≤ {} s", within(0.5), within(0.99))
}
