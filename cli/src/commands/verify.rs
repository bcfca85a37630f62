//! `weir verify`: checks that an artifact enforces exactly the policies.
//!
//! The verifier runs the artifact's programs over the artifact's maps and believes nothing else in the file. But it
//! cannot try every packet: a malicious program could depend on a field that policies do not mention, such as the
//! length. So programs and maps are also compared with those that this weir compiles from the policies. The manifest
//! only supplies options for that (node, target, structures). They cannot weaken it: with any options, the compiled
//! code is our own.

use anyhow::{Context as _, Result};
use serde_json::Value;
use weir_artifact::Artifact;
use weir_artifact::structure::{LookupSet, Structure};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, compile};
use weir_codegen::structures::parse_forced;
use weir_ebpf::target::Target;
use weir_model::Cluster;
use weir_verify as verify;
use weir_verify::{Difference, VerifyPart, VerifyReport};

use super::CommandOutcome;
use super::inspect::load;
use crate::args::{GlobalArgs, VerifyArgs, parse_target};
use crate::input_source;
use crate::page::{self, OutputPage, Progress};
use crate::read;

pub(crate) fn run(global: &GlobalArgs, arguments: &VerifyArgs) -> Result<CommandOutcome> {
    let artifact = load(&arguments.artifact)?;
    let Some(read) = read::read_valid(global, &arguments.input)? else { return Ok(CommandOutcome::Failed) };
    let progress = Progress::new(global.quiet, "verifying");
    let report = watched(&artifact, &read.cluster, &progress);
    drop(progress);
    print_differences(&report);
    page::print(line(&report))?;
    if let Some(sentence) = read.left_out.sentence() {
        page::print(sentence)?;
    }
    if !report.is_verified() {
        explain_difference(&artifact, &read.cluster, arguments)?;
    }
    if report.is_verified() && !is_as_compiled(&artifact, &read.cluster)? {
        page::print_to_stderr(
            "note: all tested packets have the right verdict, but the programs or maps are not those that this version \
             of weir compiles from the policies: do not trust them unless another version of weir compiled them",
        );
    }
    Ok(if report.is_verified() { CommandOutcome::Clean } else { CommandOutcome::Findings })
}

/// Says how the input differs from the one that was compiled, if the manifest shows it.
fn explain_difference(artifact: &Artifact, cluster: &Cluster, arguments: &VerifyArgs) -> Result<()> {
    let manifest: Value = serde_json::from_str(&artifact.manifest).unwrap_or_default();
    let path = arguments.artifact.display();
    if let Some((key, value)) = input_source::other_assumption(&manifest, cluster.assume, path)? {
        page::print_to_stderr(format_args!(
            "note: the artifact was compiled with {key}={value}: verify it with `--assume {key}={value}`"
        ));
        return Ok(());
    }
    let inputs = manifest["inputs"].as_array().into_iter().flatten().filter_map(|it| it["name"].as_str());
    let inputs: Vec<&str> = inputs.collect();
    if !inputs.is_empty() {
        page::print_to_stderr(format_args!("note: the artifact was compiled from {}", inputs.join(", ")));
    }
    Ok(())
}

/// Verifies, and shows how much of it is done.
pub(super) fn watched(artifact: &Artifact, cluster: &Cluster, progress: &Progress) -> VerifyReport {
    progress.stage("verifying");
    verify::verify_watched(artifact, cluster, &|it| progress.share(it.done, it.total))
}

/// Whether programs, maps and endpoints equal those that we compile from the cluster.
pub(super) fn is_as_compiled(artifact: &Artifact, cluster: &Cluster) -> Result<bool> {
    let manifest: Value = serde_json::from_str(&artifact.manifest).unwrap_or_default();
    let scope = match manifest["node"].as_str() {
        None => Some(Scope::everything(cluster)),
        Some(node) => Scope::node(cluster, node),
    };
    let Some(scope) = scope else { return Ok(false) };
    let target = manifest["target"].as_str().and_then(|it| it.strip_prefix("linux "));
    let target = target.and_then(|it| parse_target(it).ok()).unwrap_or(Target::BASE);
    let chosen = CompileOptions { target, ..CompileOptions::default() };
    let forced = CompileOptions { forced: structures(&manifest), ..chosen.clone() };
    // What `weir watch --dry-run --artifact` writes.
    let agents = CompileOptions::for_changes(target);
    for options in [chosen, forced, agents] {
        let compiled = compile(cluster, &scope, &options).context("the policies cannot be compiled")?;
        let own = compiled.artifact(cluster, &options, |_| {}).context("the policies cannot be compiled")?;
        if own.generation()? == artifact.generation()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The structures that the manifest names.
fn structures(manifest: &Value) -> Vec<(LookupSet, Structure)> {
    let one = |note: &Value| {
        let text = format!("{}={}", note["place"].as_str()?, note["structure"].as_str()?);
        parse_forced(&text).ok()?.first().copied()
    };
    manifest["structures"].as_array().into_iter().flatten().filter_map(one).collect()
}

/// Each with its witness.
pub(super) fn print_differences(report: &VerifyReport) {
    let mut page = OutputPage::new();
    for difference in &report.differences {
        page.line(format_args!("differs: {difference}"));
        if let Difference::Verdict { packet, .. } = difference {
            let bytes: Vec<String> = packet.iter().map(|byte| format!("{byte:02x}")).collect();
            page.line(format_args!("  packet: {}", bytes.join(" ")));
        }
    }
    page.print_to_stderr();
}

/// `verified N of N`
pub(super) fn line(report: &VerifyReport) -> String {
    let (agreed, asked) = (report.agreed(), report.asked());
    let parts = VerifyPart::ALL.iter().zip(report.parts).filter(|(_, (asked, _))| *asked > 0);
    let parts: Vec<String> = parts.map(|(part, (asked, agreed))| part_line(*part, asked, agreed)).collect();
    let how = if report.exhaustive { "every combination of classes" } else { "by parts" };
    format!("verified {agreed} of {asked} ({how}: {})", parts.join(", "))
}

fn part_line(part: VerifyPart, asked: u64, agreed: u64) -> String {
    if asked == agreed { format!("{asked} {}", part.name()) } else { format!("{agreed} of {asked} {}", part.name()) }
}
