//! `weir bench`: measures the cost of a packet on this machine, with an artifact's programs or with generated policies.
//!
//! Strategy: the artifact is loaded as for an attach, but not attached ([`weir_runtime::trial`]). For each program and
//! address family, the class tables are searched for an allowed flow and a denied one ([`find`]), and packets of these
//! flows are sent ([`measure`]). The cost of a program that does nothing is subtracted.

mod find;
mod generated;
mod measure;

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};
use weir_artifact::Artifact;
use weir_artifact::layout::program_name;
use weir_classes::{Classes, Scope, classify};
use weir_model::Cluster;

use super::{CommandOutcome, inspect};
use crate::args::{BenchArgs, GlobalArgs, TextOrJson};
use crate::failure::with_hint;
use crate::page::OutputPage;
use crate::{input_source, kernel_engine};
use find::FlowPair;
use measure::PacketTimes;

/// The programs to measure, with the cluster that they were compiled from.
struct MeasuredPrograms {
    artifact: Artifact,
    cluster: Cluster,
    classes: Classes,
}

/// One line of the output.
struct BenchRow {
    pair: FlowPair,
    pod: String,
    figures: PacketTimes,
}

pub(crate) fn run(global: &GlobalArgs, arguments: &BenchArgs) -> Result<CommandOutcome> {
    let kernel = kernel_engine::open("`weir inspect` shows the length of the programs without these rights")?;
    let subject = match &arguments.artifact {
        Some(path) => read(global, path)?,
        None => Some(generated::programs(arguments.policies as usize)?),
    };
    let Some(MeasuredPrograms { artifact, cluster, classes }) = subject else { return Ok(CommandOutcome::Failed) };
    let pairs = find::pairs(&cluster, &classes, &artifact.endpoints);
    if pairs.is_empty() {
        let hint = "name another artifact; without an artifact, generated policies are measured";
        return Err(with_hint("there is nothing to measure: no pod of the artifact has an address", hint));
    }
    let mut bench = measure::PacketBench::new(&kernel, &artifact)?;
    let mut rows = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let endpoint = artifact.endpoints.get(pair.endpoint).context("the artifact lacks an endpoint")?;
        let pod = format!("{}/{}", endpoint.namespace, endpoint.name);
        let figures = bench.measure(&pair, &endpoint.value);
        rows.push(BenchRow { figures: figures.with_context(|| format!("measuring with {pod}"))?, pod, pair });
    }
    let mut page = OutputPage::new();
    match arguments.output {
        TextOrJson::Json => page.json(&document(arguments, &cluster, &rows, bench.nothing))?,
        TextOrJson::Text => table(&mut page, &cluster, &rows, bench.nothing),
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// An artifact and the cluster that it was compiled from.
fn read(global: &GlobalArgs, path: &Path) -> Result<Option<MeasuredPrograms>> {
    let artifact = inspect::load(path)?;
    let Some(read) = input_source::read_artifact(global, &path.to_string_lossy())? else { return Ok(None) };
    let manifest: Value = serde_json::from_str(&artifact.manifest).context("its manifest cannot be read")?;
    let cluster = read.cluster;
    let scope = match manifest["node"].as_str() {
        Some(node) => Scope::node(&cluster, node).with_context(|| format!("its objects have no node {node}"))?,
        None => Scope::everything(&cluster),
    };
    let classes = classify(&cluster, &scope).map_err(|error| anyhow!(error))?;
    let is_whole = classes.subject_of.len() == artifact.endpoints.len();
    ensure!(is_whole, "the endpoints of {} do not agree with its objects", path.display());
    Ok(Some(MeasuredPrograms { artifact, cluster, classes }))
}

fn table(page: &mut OutputPage, cluster: &Cluster, rows: &[BenchRow], nothing: f64) {
    page.line(format_args!(
        "{} policies, {} pods; nanoseconds for each packet, over a program that does nothing ({nothing:.1})",
        cluster.policies.len(),
        cluster.endpoints.len()
    ));
    page.blank();
    let [program, one, many, new, denied] = ["program", "established", "1,024 flows", "new", "denied"];
    page.line(format_args!("{program:<14} {one:>12} {many:>12} {new:>10} {denied:>10}  pod"));
    for BenchRow { pair, pod, figures } in rows {
        let cell = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |it| format!("{it:.1}"));
        let [one, many] = figures.established.map(cell);
        let family = if pair.own.is_ipv4() { "IPv4" } else { "IPv6" };
        page.line(format_args!(
            "{:<9} {family:<4} {one:>12} {many:>12} {:>10} {:>10}  {pod}",
            program_name(pair.direction),
            cell(figures.new),
            cell(figures.denied)
        ));
    }
}

fn document(arguments: &BenchArgs, cluster: &Cluster, rows: &[BenchRow], nothing: f64) -> Value {
    let rounded = |it: f64| (it * 10.0).round() / 10.0;
    let flow = |flow: &Option<find::MeasuredFlow>| {
        flow.as_ref().map(|it| json!({"remote": it.others.first().map(ToString::to_string), "port": it.port}))
    };
    let row = |BenchRow { pair, pod, figures }: &BenchRow| {
        let [established, many] = figures.established.map(|it| it.map(rounded));
        json!({
            "program": program_name(pair.direction),
            "family": if pair.own.is_ipv4() { 4 } else { 6 },
            "pod": pod,
            "allowed": flow(&pair.allowed),
            "denied": flow(&pair.denied),
            "ns": {
                "established": established,
                "established_1024": many,
                "new": figures.new.map(rounded),
                "denied": figures.denied.map(rounded),
            },
        })
    };
    json!({
        "artifact": arguments.artifact.as_ref().map(|it| it.to_string_lossy()),
        "policies": cluster.policies.len(),
        "endpoints": cluster.endpoints.len(),
        "empty_ns": rounded(nothing),
        "programs": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
