//! `weir compile`: policies → one artifact, verified before it is written.

mod summary;

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::panic::resume_unwind;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use weir_artifact as artifact;
use weir_artifact::{Artifact, view};
use weir_classes::{ClassifyError, Scope};
use weir_codegen::compile::{self, Budgets, CompileError, CompileOptions, Compiled};
use weir_iptables as iptables;
use weir_model::Cluster;
use weir_policy::locator::Locator;
use weir_policy::similar_name::most_similar;

use super::CommandOutcome;
use crate::args::{CompileArgs, CompileOutput, GlobalArgs};
use crate::failure::{self, with_hint};
use crate::output_file;
use crate::page::{self, OutputPage, Progress};
use crate::read;

pub(crate) fn run(global: &GlobalArgs, arguments: &CompileArgs) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid_with_digests(global, &arguments.input)? else {
        return Ok(CommandOutcome::Failed);
    };
    // The process ends soon, and freeing a large snapshot piece by piece would take a tenth of the command's time.
    let read = ManuallyDrop::new(read);
    let cluster = &read.cluster;
    let scope = scope(cluster, arguments.node.as_deref())?;
    let mut options = CompileOptions {
        budgets: Budgets(arguments.budget.clone()),
        target: arguments.target,
        ..CompileOptions::default()
    };
    options.forced.extend(&arguments.structure);
    let progress = Progress::new(global.quiet, "compiling");
    // Encoding the objects for the artifact takes as long as compiling them. Neither needs the other, so they run in
    // parallel.
    let (compiled, objects) = std::thread::scope(|threads| {
        let objects = arguments.output.is_some().then(|| threads.spawn(|| artifact::objects(&read.objects)));
        (
            compile::compile(cluster, &scope, &options),
            objects.map(|it| it.join().unwrap_or_else(|it| resume_unwind(it))),
        )
    });
    progress.pause();
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(CompileError::Budget(exceeded)) => {
            failure::print(&with_hint(exceeded.to_string(), "nothing was written"));
            return Ok(CommandOutcome::Findings);
        }
        Err(CompileError::Classify(error @ ClassifyError::Exceeded(_))) => {
            failure::print(&with_hint(error.to_string(), "nothing was written"));
            return Ok(CommandOutcome::Findings);
        }
        Err(error) => return Err(anyhow!(error).context("the input cannot be compiled")),
    };
    progress.stage("writing the artifact");
    let mut locator = Locator::new(&read.sources);
    let artifact = compiled.artifact_of_files(cluster, &options, &mut |origin| locator.line(origin), |description| {
        description.inputs.clone_from(&read.inputs);
        description.objects = objects.unwrap_or_default();
        description.node.clone_from(&arguments.node);
        description.left_out = read.left_out.counts();
    });
    let artifact = artifact.context("the artifact cannot be put together")?;
    let report = (!arguments.no_verify).then(|| super::verify::watched(&artifact, cluster, &progress));
    drop(progress);
    if let Some(report) = report.as_ref().filter(|report| !report.is_verified()) {
        super::verify::print_differences(report);
        failure::print(&with_hint(
            "the programs do not enforce exactly the policies, so nothing was written",
            "this is a bug in weir: please report it with the input",
        ));
        return Ok(CommandOutcome::Findings);
    }
    if let Some(path) = &arguments.output {
        write(path, &artifact)?;
    }
    if compiled.endpoints.is_empty() {
        page::print_to_stderr(format_args!(
            "warning: the programs enforce nothing: {}",
            without_pods(cluster, arguments)
        ));
    }
    let output = arguments.emit.unwrap_or(CompileOutput::Summary);
    let mut page = match output {
        CompileOutput::Summary if global.quiet => OutputPage::new(),
        CompileOutput::Summary => {
            let mut page = summary::text(cluster, &compiled, &artifact, report.as_ref(), options.target);
            if let Some(path) = &arguments.output {
                page.line(format_args!("written to {}", path.display()));
            }
            page
        }
        other => emit(other, cluster, &compiled, &artifact),
    };
    read.left_out.mark(&mut page, output)?;
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// Why there is no pod to enforce policy on.
fn without_pods(cluster: &Cluster, arguments: &CompileArgs) -> String {
    match &arguments.node {
        Some(node) => format!("node {node} has no pod with an address and a network of its own"),
        None if cluster.endpoints.is_empty() => "the input has no pods".to_owned(),
        None => "no pod of the input has an address; name pods as a cluster has them, with `status.podIP`".to_owned(),
    }
}

fn scope(cluster: &Cluster, node: Option<&str>) -> Result<Scope> {
    let Some(name) = node else { return Ok(Scope::everything(cluster)) };
    Scope::node(cluster, name).ok_or_else(|| unknown_node(&[cluster], name))
}

/// The error for a node that no input has.
pub(super) fn unknown_node(clusters: &[&Cluster], name: &str) -> anyhow::Error {
    let known: BTreeSet<&str> = clusters.iter().flat_map(|it| &it.nodes).map(|node| node.name.as_str()).collect();
    let hint = match most_similar(name, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "no pod has a node name, and there are no Node objects".to_owned(),
        None => {
            let shown: Vec<&str> = known.iter().copied().take(5).collect();
            format!("the nodes are: {}{}", shown.join(", "), if known.len() > 5 { ", …" } else { "" })
        }
    };
    with_hint(format!("the input has no node {name}"), hint)
}

fn write(path: &Path, artifact: &Artifact) -> Result<()> {
    let bytes = artifact.to_bytes().context("the artifact cannot be written")?;
    output_file::replace(path, &bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn emit(what: CompileOutput, cluster: &Cluster, compiled: &Compiled, artifact: &Artifact) -> OutputPage {
    let mut page = OutputPage::new();
    let text = match what {
        CompileOutput::Summary => String::new(),
        CompileOutput::Ir => compiled.decisions.iter().map(|program| format!("{program}\n")).collect(),
        CompileOutput::Asm => disassembly(artifact),
        CompileOutput::Iptables => {
            let rendering = iptables::render(cluster);
            format!(
                "# ipset restore\n{}# iptables-restore\n{}# ip6tables-restore\n{}",
                rendering.sets, rendering.v4, rendering.v6
            )
        }
        CompileOutput::Maps => view::maps(artifact, cpus()),
        CompileOutput::Manifest => {
            page.written_json(&artifact.manifest);
            return page;
        }
    };
    page.lines(&text);
    page
}

/// The assembly text of all programs.
pub(super) fn disassembly(artifact: &Artifact) -> String {
    let one = |(name, code)| format!("{name}:\n{}", view::disassembly(artifact, code));
    view::programs(artifact).map(one).collect::<Vec<_>>().join("\n")
}

/// The number of CPUs. The sizes of per-CPU maps are reported for this machine.
pub(super) fn cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |it| it.get() as u64)
}
