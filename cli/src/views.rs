//! Draws who can reach whom: tables, edges, pictures and the HTML report, all from one [`Reach`].

pub(crate) mod alike;
mod boxes;
pub(crate) mod dot;
pub(crate) mod filter;
pub(crate) mod folded_table;
pub(crate) mod html;
pub(crate) mod label_filter;
pub(crate) mod links;
pub(crate) mod mermaid;
pub(crate) mod namespaces;
pub(crate) mod report;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod table_text;
pub(crate) mod words;

use weir_analysis::reach::{Party, Reach, possible};
use weir_model::Peer;

use crate::args::{ViewFormat, ViewLevel};
use crate::render::text::count;
use filter::ViewFilter;

/// With more parties than this, output for people is by namespace unless workloads are asked for.
pub(crate) const MOST_PARTIES: usize = 40;

/// Whether to show workloads or namespaces. Single ends that a filter names can only be seen as workloads.
pub(crate) fn level(asked: ViewLevel, reach: &Reach<'_>, filter: &ViewFilter) -> ViewLevel {
    let is_chosen = |it: &Party| filter.namespaces.iter().any(|name| name == reach.namespace(it.namespace));
    let chosen = reach.parties.iter().filter(|it| is_chosen(it)).count();
    match asked {
        ViewLevel::Auto if filter.names_ends() || (1..=MOST_PARTIES).contains(&chosen) => ViewLevel::Workload,
        ViewLevel::Auto if reach.parties.len() > MOST_PARTIES => ViewLevel::Namespace,
        ViewLevel::Auto => ViewLevel::Workload,
        asked => asked,
    }
}

/// Whether notes may follow the answer. In formats for programs they would be invalid.
pub(crate) fn takes_notes(format: ViewFormat) -> bool {
    matches!(format, ViewFormat::Text | ViewFormat::Md)
}

/// Notes about workloads that the picture leaves out or sums up.
pub(crate) fn notes(reach: &Reach<'_>, level: ViewLevel) -> Vec<String> {
    notes_at(reach, level, level)
}

/// The same for a level that was chosen for the user.
pub(crate) fn notes_at(reach: &Reach<'_>, asked: ViewLevel, level: ViewLevel) -> Vec<String> {
    let mut notes = Vec::new();
    if asked == ViewLevel::Auto && level == ViewLevel::Namespace {
        notes.push(format!(
            "{} workloads, summarized by namespace; --by workload shows each workload",
            reach.parties.len()
        ));
    }
    if reach.parties.iter().any(|it| it.kind == possible::KIND) {
        let what = "pods in brackets could exist; they, and namespaces without a Namespace object, have no other labels that policies mention";
        let rules = reach.cluster.policies.iter().flat_map(|it| it.ingress.iter().chain(&it.egress)).flatten();
        let has_blocks = rules.flat_map(|rule| &rule.peers).any(|peer| matches!(peer, Peer::Block { .. }));
        notes.push(match has_blocks || !reach.cluster.lists.is_empty() {
            true => format!("{what}, and an address that no block and no list contains"),
            false => what.to_owned(),
        });
    }
    let audit = reach.cluster.audit.len() + reach.cluster.tiers.iter().filter(|it| it.is_audit).count();
    if audit > 0 {
        let policies = count(audit, "policy");
        notes.push(format!("{policies} in audit mode left out: `--assume audit=enforce` shows the result with them"));
    }
    if reach.left_out.host_network > 0 {
        let hidden = reach.left_out.host_network;
        notes.push(format!("{hidden} pods or workloads with hostNetwork are not shown: policies do not apply to them"));
    }
    if reach.left_out.absent > 0 {
        notes.push(format!(
            "{} pods or workloads that have finished or have no address are not shown",
            reach.left_out.absent
        ));
    }
    notes
}
