//! `cargo xtask bench attach`: times of compile, attach, switch and adopt, by the number of endpoints and of policies;
//! and the memory that the kernel charges for the maps, compared with the prediction of `weir inspect`.
//!
//! Strategy: run the released binary as an operator does, in a network namespace with one veth per endpoint, on
//! clusters of 10,000 pods. A switch adds one policy to the same policies. Adopting repeats the same command, which
//! checks everything and changes nothing. The median of several runs counts. Everything is in a mount namespace of this
//! process and disappears with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use xtask::process::{capture, cargo, run};

use super::isolated::{BenchDirectory, isolated, release};
use super::{CommandRun, MeasuredCommand, median, page, run_once};
use xtask::generate::{ClusterSize, snapshot_on};

const ENDPOINTS: [usize; 3] = [10, 100, 250];
const POLICIES: [usize; 4] = [10, 100, 1_000, 10_000];
const PODS: usize = 10_000;
const RUNS: usize = 3;
const INSIDE: &str = "--inside";
const SPACE: &str = "wpk-attach";

/// The policy that a switch adds; it selects a pod of this node.
const ONE_MORE: &str = r#"{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"more","namespace":"team-0"},"spec":{"podSelector":{},"ingress":[{"ports":[{"port":9999}]}]}}"#;

const INTRODUCTION: &str = "\
## Compile, attach, switch, adopt

Made by `cargo xtask bench attach`, on clusters of 10,000 pods; the first column is the number of pods on this node. The
figures are milliseconds of the whole command (the median of 3 runs) and its peak memory. *Switch* attaches the same
policies and one more. *Adopt* repeats the same command, which checks everything in force and changes nothing. Most of
the time of an attach to many interfaces is the kernel's own time for each interface.

";

const MEMORY: &str = "\
## Memory

The bytes that the kernel charges for the maps in force (the sum of `memlock` in the output of bpftool), and the bytes
that `weir inspect` predicts from the artifact for kernels with pages of 4 KiB. Both leave out the flow tables, which
`attach` creates for the number of endpoints, and the artifact file, which is stored in a map. The difference is the map
`fragments`: it is predicted for the endpoints of the artifact, and made for 65,536 fragments.

";

/// `cargo xtask bench attach`
pub(super) fn task(arguments: &[String]) -> Result<()> {
    if arguments.first().is_some_and(|it| it == INSIDE) {
        return measure();
    }
    crate::packages::ensure()?;
    run(&mut cargo(&["build", "--release", "--locked", "--package", "weir"]))?;
    isolated(&["bench", "attach", INSIDE])
}

/// The results for one size.
struct AttachFigures {
    endpoints: usize,
    policies: usize,
    /// compile, attach, switch, adopt
    commands: [MeasuredCommand; 4],
    memory: MapMemory,
}

/// The memory of maps, in bytes.
struct MapMemory {
    /// For each map of the prediction: the predicted bytes and the charged bytes.
    maps: BTreeMap<String, [u64; 2]>,
    /// The charged bytes of the flow tables.
    flows: u64,
    /// The charged bytes of the map with the artifact file.
    file: u64,
}

fn measure() -> Result<()> {
    let directory = BenchDirectory::new("attach")?;
    let weir = release()?.join("weir");
    let mut rows = Vec::new();
    println!(
        "{:>9} {:>8} {:>14} {:>14} {:>14} {:>14} {:>12} {:>12}",
        "endpoints", "policies", "compile, ms", "attach", "switch", "adopt", "predicted", "charged"
    );
    for endpoints in ENDPOINTS {
        run(Command::new("ip").args(["netns", "add", SPACE]))?;
        let lines: String =
            (0..endpoints).map(|it| format!("link add v{it} type veth peer name e{it}\nlink set v{it} up\n")).collect();
        let batch = directory.path().join("links");
        std::fs::write(&batch, lines)?;
        run(Command::new("ip").args(["-n", SPACE, "-batch"]).arg(&batch))?;
        for policies in POLICIES {
            let at = AttachBench { weir: &weir, directory: directory.path(), endpoints, policies };
            let row = at.row().with_context(|| format!("{endpoints} endpoints, {policies} policies"))?;
            show(&row);
            rows.push(row);
        }
        run(Command::new("ip").args(["netns", "delete", SPACE]))?;
    }
    std::fs::write(
        page::figures("attach")?,
        serde_json::to_string_pretty(&rows.iter().map(json).collect::<Vec<_>>())? + "\n",
    )?;
    page::replace("attach", &commands(&rows))?;
    page::replace("memory", &memory(&rows))
}

/// The measurement of one size.
struct AttachBench<'a> {
    weir: &'a Path,
    directory: &'a Path,
    endpoints: usize,
    policies: usize,
}

impl AttachBench<'_> {
    fn row(&self) -> Result<AttachFigures> {
        let size = ClusterSize { pods: PODS, policies: self.policies, namespaces: 20, tiers: 0 };
        let text = snapshot_on(size, self.endpoints);
        let [input, changed] = ["before.json", "after.json"].map(|it| self.directory.join(it));
        std::fs::write(&input, &text)?;
        std::fs::write(&changed, text.replacen("\"items\": [\n", &format!("\"items\": [\n{ONE_MORE},\n"), 1))?;
        let [first, second] = ["before.o", "after.o"].map(|it| self.directory.join(it));
        let compile = |input: &Path, to: &Path| {
            let mut command = Command::new(self.weir);
            command
                .args(["-q", "compile", "--no-verify", "--target", "6.1", "--node", "node-0", "-o"])
                .arg(to)
                .arg(input);
            command
        };
        let compiled = repeated(|| self.timed(&mut compile(&input, &first)))?;
        self.timed(&mut compile(&changed, &second))?;
        let [mut attached, mut switched, mut adopted] = [const { Vec::new() }; 3];
        for _ in 0..RUNS {
            attached.push(self.timed(self.attach(&first).args(self.names()))?);
            switched.push(self.timed(&mut self.attach(&second))?);
            adopted.push(self.timed(&mut self.attach(&second))?);
            if attached.len() < RUNS {
                run_quietly(self.inside().args(["detach", "--bpffs"]).arg(self.pins()))?;
            }
        }
        let memory = self.memory(&second)?;
        run_quietly(self.inside().args(["detach", "--bpffs"]).arg(self.pins()))?;
        let commands = [compiled, median(attached), median(switched), median(adopted)];
        Ok(AttachFigures { endpoints: self.endpoints, policies: self.policies, commands, memory })
    }

    fn pins(&self) -> PathBuf {
        self.directory.join("bpf/attach")
    }

    fn inside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{SPACE}")).arg(self.weir);
        command
    }

    fn attach(&self, artifact: &Path) -> Command {
        let mut command = self.inside();
        command.args(["-q", "attach"]).arg(artifact).arg("--bpffs").arg(self.pins());
        command
    }

    fn names(&self) -> Vec<String> {
        let one = |it: usize| ["--endpoint".to_owned(), format!("team-{}/pod-{it}=v{it}", it % 20)];
        (0..self.endpoints).flat_map(one).collect()
    }

    fn timed(&self, command: &mut Command) -> Result<MeasuredCommand> {
        let CommandRun { time, peak_kibibytes, code } = run_once(command)?;
        ensure!(code == Some(0), "{command:?} ended with {code:?}");
        Ok(MeasuredCommand { seconds: time.as_secs_f64(), mebibytes: peak_kibibytes / 1_024 })
    }

    /// The predicted bytes of the maps, and the bytes that the kernel charges for them.
    fn memory(&self, artifact: &Path) -> Result<MapMemory> {
        let said = capture(Command::new(self.weir).args(["inspect", "--emit", "maps"]).arg(artifact))?;
        let (mut maps, mut flows) = (BTreeMap::new(), 0);
        let number = |text: Option<&str>| {
            text.and_then(|it| it.parse().ok()).context("`weir inspect` prints no number of bytes")
        };
        for line in said.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, .., predicted] = words[..] else { continue };
            let Some(charged) = self.charged(name)? else { continue };
            if name.starts_with("flow_table") {
                flows += charged;
            } else {
                maps.insert(name.to_owned(), [number(Some(predicted))?, charged]);
            }
        }
        ensure!(flows > 0, "`weir inspect` names no flow table");
        Ok(MapMemory { maps, flows, file: self.charged("artifact")?.unwrap_or_default() })
    }

    fn charged(&self, map: &str) -> Result<Option<u64>> {
        let pin = self.pins().join("maps").join(map);
        if !pin.exists() {
            return Ok(None);
        }
        let shown: Value =
            serde_json::from_str(&capture(Command::new("bpftool").args(["-j", "map", "show", "pinned"]).arg(pin))?)?;
        Ok(shown["bytes_memlock"].as_u64())
    }
}

fn repeated(mut timed: impl FnMut() -> Result<MeasuredCommand>) -> Result<MeasuredCommand> {
    Ok(median((0..RUNS).map(|_| timed()).collect::<Result<_>>()?))
}

fn run_quietly(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

fn total(row: &AttachFigures) -> [u64; 2] {
    [0, 1].map(|which| row.memory.maps.values().map(|it| it[which]).sum())
}

fn show(row: &AttachFigures) {
    let cell = |it: &MeasuredCommand| format!("{:.1} ({} MiB)", it.seconds * 1e3, it.mebibytes);
    let [compile, attach, switch, adopt] = row.commands.each_ref().map(cell);
    let [predicted, charged] = total(row);
    println!(
        "{:>9} {:>8} {compile:>14} {attach:>14} {switch:>14} {adopt:>14} {predicted:>12} {charged:>12}",
        row.endpoints, row.policies
    );
}

fn json(row: &AttachFigures) -> Value {
    let value = |it: &MeasuredCommand| json!({"ms": (it.seconds * 1e4).round() / 10.0, "mebibytes": it.mebibytes});
    let [compile, attach, switch, adopt] = row.commands.each_ref().map(value);
    let maps: serde_json::Map<String, Value> = row
        .memory
        .maps
        .iter()
        .map(|(name, [said, charged])| (name.clone(), json!({"predicted": said, "charged": charged})))
        .collect();
    json!({
        "endpoints": row.endpoints,
        "policies": row.policies,
        "compile": compile,
        "attach": attach,
        "switch": switch,
        "adopt": adopt,
        "maps": maps,
        "flow_tables": row.memory.flows,
        "file": row.memory.file,
    })
}

fn commands(rows: &[AttachFigures]) -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str(
        "| endpoints | policies | compile | attach | switch | adopt |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let cell = |it: &MeasuredCommand| format!(" {:.0} ms, {} MiB |", it.seconds * 1e3, it.mebibytes);
        let cells: String = row.commands.iter().map(cell).collect();
        _ = writeln!(text, "| {} | {} |{cells}", row.endpoints, page::grouped(row.policies as u64));
    }
    text
}

fn memory(rows: &[AttachFigures]) -> String {
    let mut text = MEMORY.to_owned();
    text.push_str(
        "| endpoints | policies | predicted | charged | difference | flow tables | for each endpoint | artifact file |\n",
    );
    text.push_str("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for row in rows {
        let [predicted, charged] = total(row);
        let more = (charged as f64 / predicted.max(1) as f64 - 1.0) * 100.0;
        let grouped = page::grouped;
        _ = writeln!(
            text,
            "| {} | {} | {} | {} | {more:+.1} % | {} | {} | {} |",
            row.endpoints,
            grouped(row.policies as u64),
            grouped(predicted),
            grouped(charged),
            grouped(row.memory.flows),
            grouped(row.memory.flows / row.endpoints as u64),
            grouped(row.memory.file)
        );
    }
    text
}
