//! `cargo xtask bench events` and `cargo xtask bench agent`: the agent's work after changes in the cluster, and its
//! cost.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::Result;
use serde_json::Value;
use xtask::process::{capture, cargo, run};

use super::page;

const EVENTS: &str = "\
## Changes in a cluster

Made by `cargo xtask bench events`, single-threaded, without the kernel and the API server. *Compile* computes the classes
of the whole cluster for the first time. If the class of a pod on another node is known, adding or removing the pod
changes a single entry. Where a change of a policy cannot be applied to the generation in force, all classes are computed
again (*classes*), and then the tables, the programs and the file are made (*emit*). 110 pods are local.

| pods | policies | compile, ms | pod added, µs | pod removed, µs | as single entries | policy changed: classes, ms | emit, ms |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

const WHOLE: &str = "
The next table is for changes that cannot be applied to the generation in force, so that all objects are compiled, with
200 services of 50 pods each: from the change to the file, as median and 99th percentile of 15 changes, in milliseconds.
The work is single-threaded, so this is the CPU time too. *Memory* is the whole process, with the objects and one
generation.

| pods | policies | EndpointSlice, p50 | p99 | local pod, p50 | p99 | policy, p50 | p99 | memory, MiB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

const INSTALLS: &str = "
From the file to the generation in force at 110 local pods, with 10,000 pods and 1,000 policies in the cluster: CPU time
of the process with the kernel's work for it, and the time that passes, which is longer if the machine is busy. If the
programs are the *same* as before, their tables are exchanged; if they are *other* programs, they are loaded. If a
service comes, the tables in force are *extended*. A *local pod* has the policies of another one, and its programs are
attached with TCX, which takes the time that passes.
*Afterwards* is the CPU time to retire the generation before. (`WEIR_BENCH_OPERATIONS=1` prints the time of each kind of
operation.)

| | CPU, ms | time, ms | afterwards: CPU, ms |
| --- | --- | --- | --- |
";

const SMALL: &str = "
Changes that need no generation, with the same services: a slice exchanges a backend for one with the same labels, the
kubelet reports a local pod as ready, a namespace gets a label that no policy mentions. Microseconds for each change, and
the fraction of the slices for which that was enough: a local backend, or one whose class no other backend has, needs a
generation.

| pods | policies | EndpointSlice, µs | without a generation | local pod, µs | namespace, µs |
| --- | --- | --- | --- | --- | --- |
";

const APPLIED: &str = "
The next table has changes that are applied to the generation in force: a port is added to a rule, a policy with a new
peer is added and deleted, and a pod of another node gets a peer class that no pod had. Medians of up to 15 changes, in
milliseconds: until the classes are known, and from then on until the file is written.

| pods | policies | port: classes | emit | new policy: classes | emit | deleted policy: classes | emit | new class: classes | emit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

const RANGES: &str = "
The same for changes of ranges of addresses and of named ports: a rule gets a new `ipBlock` that contains pods, a rule
gets a port whose name no rule has, one block of a list of 1,000 is replaced by one of 131,072 addresses, and further
such lists are created.

| pods | policies | `ipBlock`: classes | emit | named port: classes | emit | list: classes | emit | new list: classes | emit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

const SERVICES: &str = "
The same with 200 services of 50 pods each: a slice loses a backend, a service is created, and the pod behind one or
more services gets other labels. Changes that need no generation are left out.

| pods | policies | slice: classes | emit | new service: classes | emit | backend: classes | emit |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

const AGENT: &str = "\
## The agent

Made by `cargo xtask bench agent`, which runs `cargo xtask load`: an agent in a cluster of 10,000 pods, 110 of them on
its node, and 1,000 policies, on a simulated API server, with the default CPU budget of 10 % of a core. It first has a
minute to move its pods to TCX. Then 100 pods of other nodes, 50 EndpointSlices and 2 policies change a second: first
one kind after the other, then *together*. Each of these phases lasts two minutes. In between, 40 local pods come and
then leave, two a second. The machine is shared, and its speed varies up to three times, so compare figures of one run
only. The page about [large clusters](scale.md) has more of them.

| | |
| --- | --- |
";

/// Runs `compiler/classes/benches/index.rs` and `runtime-bpf/benches/installs.rs`.
pub(super) fn events() -> Result<()> {
    let figures = page::figures("events")?;
    let mut bench = cargo(&["bench", "--locked", "--package", "weir-classes", "--bench", "index"]);
    run(bench.env("WEIR_BENCH_JSON", &figures))?;
    let (mut text, mut whole) = (EVENTS.to_owned(), WHOLE.to_owned());
    let (mut small, mut applied, mut ranges) = (SMALL.to_owned(), APPLIED.to_owned(), RANGES.to_owned());
    let mut services = SERVICES.to_owned();
    for row in page::rows(&figures)? {
        let number = |field: &str| page::grouped(row[field].as_u64().unwrap_or_default());
        let figure = |field: &str| format!("{:.1}", row[field].as_f64().unwrap_or(f64::NAN));
        let single = row["single"].as_f64().map(|it| 100.0 * it).unwrap_or(f64::NAN);
        let figures = [figure("compile_ms"), figure("pod_comes_us"), figure("pod_goes_us")].join(" | ");
        let changes = [figure("classify_ms"), figure("emit_ms")].join(" | ");
        _ = writeln!(text, "| {} | {} | {figures} | {single:.1} % | {changes} |", number("pods"), number("policies"));
        let of_kind =
            |kind| format!("{} | {}", figure(&format!("{kind}_classes_ms")), figure(&format!("{kind}_emit_ms")));
        let edits = ["port", "new_policy", "deleted_policy", "new_class"].map(of_kind);
        _ = writeln!(applied, "| {} | {} | {} |", number("pods"), number("policies"), edits.join(" | "));
        let moved = ["block", "named_port", "list", "new_list"].map(of_kind);
        _ = writeln!(ranges, "| {} | {} | {} |", number("pods"), number("policies"), moved.join(" | "));
        let of_services = ["slice_applied", "service_applied", "backend_relabelled"].map(of_kind);
        _ = writeln!(services, "| {} | {} | {} |", number("pods"), number("policies"), of_services.join(" | "));
        let kinds = ["slice", "local_pod", "policy"]
            .map(|kind| format!("{} | {}", figure(&format!("{kind}_p50_ms")), figure(&format!("{kind}_p99_ms"))));
        let (pods, policies, memory) = (number("pods"), number("policies"), figure("memory_mib"));
        _ = writeln!(whole, "| {pods} | {policies} | {} | {memory} |", kinds.join(" | "));
        let share = 100.0 * row["slice_moves_small"].as_f64().unwrap_or(f64::NAN);
        let others = ["local_pod_reported_us", "namespace_labelled_us"].map(figure).join(" | ");
        _ = writeln!(small, "| {pods} | {policies} | {} | {share:.0} % | {others} |", figure("slice_moves_us"));
    }
    page::replace("events", &(text + &whole + &applied + &ranges + &services + &small + &installs()?))
}

/// The table of installs.
fn installs() -> Result<String> {
    let figures = page::figures("installs")?;
    let mut bench = cargo(&["bench", "--locked", "--package", "weir-runtime", "--bench", "installs"]);
    run(bench.env("WEIR_BENCH_JSON", &figures))?;
    let mut text = INSTALLS.to_owned();
    for row in page::rows(&figures)? {
        let [cpu, wall, after] = ["cpu_ms", "wall_ms", "after_ms"].map(|it| row[it].as_f64().unwrap_or(f64::NAN));
        let what = row["what"].as_str().unwrap_or_default();
        _ = writeln!(text, "| {what} | {cpu:.1} | {wall:.1} | {after:.1} |");
    }
    Ok(text)
}

/// Runs `cargo xtask load` and keeps its output.
pub(super) fn agent() -> Result<()> {
    let said = capture(Command::new(std::env::current_exe()?).args(["load", "--secs", "120", "--settle", "60"]))?;
    print!("{said}");
    let lines: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_at_checked(COLUMN)).collect();
    let values = lines.iter().map(|(name, value)| (name.trim().to_owned(), Value::from(value.trim())));
    let values: serde_json::Map<String, Value> = values.collect();
    std::fs::write(page::figures("agent")?, serde_json::to_string_pretty(&values)? + "\n")?;
    let rows = lines.iter().map(|(name, value)| format!("| {} | {} |\n", name.trim(), value.trim()));
    page::replace("agent", &(AGENT.to_owned() + &rows.collect::<String>()))
}

/// The column of the figures in a line of `load`.
const COLUMN: usize = 26;
