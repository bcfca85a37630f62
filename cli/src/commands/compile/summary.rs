//! The summary that `weir compile` prints at its end.

use weir_artifact::layout::{AT_EDGE, program_name};
use weir_artifact::{Artifact, view};
use weir_codegen::compile::{Budget, Compiled};
use weir_ebpf::limits;
use weir_model::{Cluster, Direction};
use weir_verify::VerifyReport;

use super::super::verify::line;
use super::cpus;
use crate::page::Page;

pub(super) fn text(cluster: &Cluster, compiled: &Compiled, artifact: &Artifact, report: Option<&VerifyReport>) -> Page {
    let mut page = Page::new();
    let mut say = |what: &str, text: &str| page.line(format_args!("{what:<13} {text}"));
    let classes = &compiled.classes;
    say("endpoints", &format!("{} local, {} in the cluster", classes.subject_of.len(), cluster.endpoints.len()));
    say("classes", &format!("{} of endpoints, {} of addresses", classes.subjects.len(), classes.peers.len()));
    let words = classes.atoms.count().div_ceil(64);
    say(
        "atoms",
        &format!("{} of ports, {words} word{} a set", classes.atoms.count(), if words == 1 { "" } else { "s" }),
    );
    let edge = compiled.edge.as_ref().map(|edge| (AT_EDGE, limits::check(&edge.link(|_| 0))));
    let at_pods = Direction::ALL.map(program_name).into_iter().zip(compiled.reports.clone());
    for (name, report) in at_pods.chain(edge) {
        let longest = report.longest_path.map_or_else(|| "unbounded".to_owned(), |steps| steps.to_string());
        say(name, &format!("{} instructions, longest path {longest}", report.slots));
    }
    for note in compiled.structures() {
        say("structure", &note.to_string());
    }
    let (entries, bytes) = (Budget::Entries.spent(compiled), Budget::MapBytes.spent(compiled));
    say("maps", &format!("{entries} entries, {bytes} bytes beside what comes once for every CPU"));
    page.blank();
    page.lines(&view::maps(artifact, cpus()));
    page.blank();
    page.line(report.map_or_else(|| "not verified".to_owned(), line));
    page
}
