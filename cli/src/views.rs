//! Draws who can reach whom: tables, edges, pictures and the HTML report, all from one [`Reach`].

pub(crate) mod dot;
pub(crate) mod html;
pub(crate) mod links;
pub(crate) mod overlay;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod words;

use weir_analysis::reach::Reach;

use crate::args::{Level, ViewFormat};

/// With more parties than this, output for people is by namespace unless workloads are asked for.
const MOST_PARTIES: usize = 40;

/// Whether to show workloads or namespaces.
pub(crate) fn level(asked: Level, reach: &Reach<'_>) -> Level {
    match asked {
        Level::Auto if reach.parties.len() > MOST_PARTIES => Level::Namespace,
        Level::Auto => Level::Workload,
        asked => asked,
    }
}

/// Whether notes may follow the answer. In formats for programs they would be invalid.
pub(crate) fn takes_notes(format: ViewFormat) -> bool {
    matches!(format, ViewFormat::Text | ViewFormat::Md)
}

/// Notes about workloads that the picture leaves out or sums up.
pub(crate) fn notes(reach: &Reach<'_>, asked: Level) -> Vec<String> {
    let mut notes = Vec::new();
    if asked == Level::Auto && level(asked, reach) == Level::Namespace {
        notes.push(format!("{} workloads, summed up by namespace; --by workload shows each", reach.parties.len()));
    }
    if reach.left_out.host_network > 0 {
        let count = reach.left_out.host_network;
        notes.push(format!("{count} on the network of their node are not shown: policies do not apply to them"));
    }
    if reach.left_out.absent > 0 {
        notes.push(format!("{} finished or without an address of their own are not shown", reach.left_out.absent));
    }
    notes
}
