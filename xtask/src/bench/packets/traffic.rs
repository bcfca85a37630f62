//! The two ends of the traffic, and the CPU time that their packets take.
//!
//! Only the CPU time of packets is measured, not elapsed time. Both ends, and all work of the kernel between them, run
//! on one CPU. The packets' softirqs run there in the ends' own time or in `ksoftirqd`, and the scheduler counts the
//! time of each in nanoseconds. Other processes take turns with the measurement, and their time is not included. (Work
//! that the kernel defers to workers is not counted either, such as the destruction of old conntrack entries.)

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::paths::{PathNamespace, PodPath, SERVER, run};

/// The generator's TCP port (the next port is for UDP), and iperf3's port.
const PORT: u16 = 5300;
const STREAM_PORT: u16 = 5201;
const PATIENCE: Duration = Duration::from_secs(5);

/// The kinds of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    RoundTrip,
    Connection,
    Small,
    Stream,
}

impl Load {
    pub(super) const ALL: [Self; 4] = [Self::RoundTrip, Self::Connection, Self::Small, Self::Stream];

    /// The name in the JSON file.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::RoundTrip => "tcp_rr",
            Self::Connection => "tcp_crr",
            Self::Small => "udp_small",
            Self::Stream => "tcp_stream",
        }
    }

    /// The name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RoundTrip => "TCP_RR transaction",
            Self::Connection => "TCP_CRR transaction",
            Self::Small => "UDP packet, 64 bytes",
            Self::Stream => "TCP stream, MiB",
        }
    }

    /// The name for the generator; `None` if iperf3 sends it.
    fn word(self) -> Option<&'static str> {
        match self {
            Self::RoundTrip => Some("rr"),
            Self::Connection => Some("crr"),
            Self::Small => Some("udp"),
            Self::Stream => None,
        }
    }
}

/// The client and the servers of a path, waiting for a load.
pub(super) struct TrafficEnds {
    path: PodPath,
    cpu: usize,
    /// The kernel thread that runs softirqs when there are many.
    softirqs: u32,
    client: Child,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The servers; each ends when its standard input ends.
    servers: [Child; 2],
}

impl TrafficEnds {
    pub(super) fn new(path: &PodPath, generator: &std::path::Path, cpu: usize) -> Result<Self> {
        let start = |place: PathNamespace, verb: &str, port: u16| {
            let mut command = on_cpu(path, place, cpu);
            command.arg(generator).args([verb, &format!("{SERVER}:{port}")]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("could not start the generator")
        };
        let servers = [start(PathNamespace::Server, "serve", PORT)?, start(PathNamespace::Server, "serve", PORT + 1)?];
        let mut client = start(PathNamespace::Client, "drive", PORT)?;
        let words = client.stdin.take().context("the generator has no standard input")?;
        let answers = BufReader::new(client.stdout.take().context("the generator has no standard output")?);
        let mut ends = Self { path: path.clone(), cpu, softirqs: softirqd(cpu)?, client, words, answers, servers };
        ends.wait_until_connected()?;
        Ok(ends)
    }

    /// Waits until the servers listen, and until TCP and UDP get through.
    fn wait_until_connected(&mut self) -> Result<()> {
        let begun = Instant::now();
        let is_listening = |path: &PodPath| {
            let sockets = run(path.command(PathNamespace::Server, "cat").args(["/proc/net/tcp", "/proc/net/udp"]), "");
            sockets.is_ok_and(|text| [PORT, PORT + 1].iter().all(|port| text.contains(&format!(":{port:04X} "))))
        };
        while !is_listening(&self.path) {
            ensure!(begun.elapsed() < PATIENCE, "the servers do not listen on their ports");
            sleep(Duration::from_millis(10));
        }
        for load in [Load::RoundTrip, Load::Connection, Load::Small] {
            self.generate(load.word().unwrap_or_default(), Duration::from_millis(1))?;
        }
        Ok(())
    }

    /// Measures a load; returns nanoseconds of CPU time per unit.
    pub(super) fn measure(&mut self, load: Load, slice: Duration) -> Result<f64> {
        let Some(word) = load.word() else { return self.stream(slice) };
        let before = self.taken()?;
        let units = self.generate(word, slice)?;
        Ok((self.taken()? - before) as f64 / units as f64)
    }

    fn generate(&mut self, word: &str, slice: Duration) -> Result<u64> {
        writeln!(self.words, "{word} {}", slice.as_millis())?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the generator did not answer `{word}` with a number"))
    }

    /// Nanoseconds of CPU time that both ends and the CPU's softirqs have used so far.
    fn taken(&self) -> Result<u64> {
        let ends = [&self.client, &self.servers[0], &self.servers[1]].map(Child::id);
        ends.into_iter().chain([self.softirqs]).map(run_time).sum()
    }

    /// iperf3 reports its own ends' time; the time of `ksoftirqd` is added.
    fn stream(&self, slice: Duration) -> Result<f64> {
        // iperf3 accepts only whole seconds.
        let seconds = slice.as_secs().max(1).to_string();
        let port = STREAM_PORT.to_string();
        let mut server = on_cpu(&self.path, PathNamespace::Server, self.cpu);
        server.args(["iperf3", "--server", "--one-off", "--port", &port]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut server = Killed(server.spawn().context("could not start iperf3")?);
        let listens = format!(":{STREAM_PORT:04X} ");
        let begun = Instant::now();
        while !run(self.path.command(PathNamespace::Server, "cat").args(["/proc/net/tcp", "/proc/net/tcp6"]), "")?
            .contains(&listens)
        {
            ensure!(begun.elapsed() < PATIENCE, "iperf3 does not listen");
            sleep(Duration::from_millis(10));
        }
        let before = run_time(self.softirqs)?;
        let mut client = on_cpu(&self.path, PathNamespace::Client, self.cpu);
        let text = run(client.args(["iperf3", "--client", SERVER, "--port", &port, "--time", &seconds, "--json"]), "")?;
        let softirqs = run_time(self.softirqs)? - before;
        server.0.wait()?;
        let figures: Value = serde_json::from_str(&text)?;
        let number =
            |of: &str| figures.pointer(of).and_then(Value::as_f64).with_context(|| format!("iperf3 reports no {of}"));
        let share = (number("/end/cpu_utilization_percent/host_total")?
            + number("/end/cpu_utilization_percent/remote_total")?)
            / 100.0;
        let taken = share * number("/end/sum_sent/seconds")? * 1e9 + softirqs as f64;
        Ok(taken / (number("/end/sum_received/bytes")? / f64::from(1 << 20)))
    }
}

impl Drop for TrafficEnds {
    fn drop(&mut self) {
        // Errors are ignored: the processes may have ended already.
        for child in self.servers.iter_mut().chain([&mut self.client]) {
            _ = child.kill();
            _ = child.wait();
        }
    }
}

/// A child process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Starts a command as a batch process. A process that is woken then waits until the running one has no more work, so
/// the two ends take turns in the same way each time.
fn on_cpu(path: &PodPath, place: PathNamespace, cpu: usize) -> Command {
    let mut command = path.command(place, "taskset");
    command.args(["--cpu-list", &cpu.to_string(), "chrt", "--batch", "0"]);
    command
}

/// The CPU time of a process's first thread.
fn run_time(process: u32) -> Result<u64> {
    let text =
        fs::read_to_string(format!("/proc/{process}/schedstat")).context("the kernel has no CONFIG_SCHED_INFO")?;
    text.split(' ').next().and_then(|it| it.parse().ok()).context("/proc/PID/schedstat has no CPU time")
}

fn softirqd(cpu: usize) -> Result<u32> {
    let name = format!("ksoftirqd/{cpu}");
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(process) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else { continue };
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.trim() == name) {
            return Ok(process);
        }
    }
    bail!("no process is called {name}")
}
