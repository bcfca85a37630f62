//! The summary that `weir compile` prints at its end.

use weir_artifact::layout::{AT_EDGE, program_name};
use weir_artifact::{Artifact, view};
use weir_codegen::compile::{Budget, Compiled};
use weir_ebpf::target::Target;
use weir_model::{Cluster, Direction};
use weir_verify::VerifyReport;

use super::super::verify::line;
use super::cpus;
use crate::page::OutputPage;

pub(super) fn text(
    cluster: &Cluster,
    compiled: &Compiled,
    artifact: &Artifact,
    report: Option<&VerifyReport>,
    target: Target,
) -> OutputPage {
    let mut page = OutputPage::new();
    let mut row = |what: &str, text: &str| page.line(format_args!("{what:<13} {text}"));
    let classes = &compiled.classes;
    row("endpoints", &format!("{} local, {} in the cluster", classes.subject_of.len(), cluster.endpoints.len()));
    row("classes", &format!("{} of endpoints, {} of addresses", classes.subjects.len(), classes.peers.len()));
    let words = classes.atoms.count().div_ceil(64);
    row(
        "atoms",
        &format!("{} of ports, {words} word{} per set", classes.atoms.count(), if words == 1 { "" } else { "s" }),
    );
    let edge = compiled.edge.as_ref().map(|(_, report)| (AT_EDGE, report.clone()));
    let at_pods = Direction::ALL.map(program_name).into_iter().zip(compiled.reports.clone());
    for (name, report) in at_pods.chain(edge) {
        let longest = report.longest_path.map_or_else(|| "unbounded".to_owned(), |steps| steps.to_string());
        row(name, &format!("{} instructions, longest path {longest}", report.slots));
    }
    let (major, minor) = target.kernel;
    row("kernel", &format!("Linux {major}.{minor} and later (--target)"));
    for note in compiled.structures() {
        row("structure", &note.to_string());
    }
    let (entries, bytes) = (Budget::Entries.spent(compiled), Budget::MapBytes.spent(compiled));
    row("maps", &format!("{entries} entries, {bytes} bytes without per-CPU copies"));
    page.blank();
    page.lines(&view::maps(artifact, cpus()));
    page.blank();
    page.line(report.map_or_else(|| "not verified".to_owned(), line));
    page
}
