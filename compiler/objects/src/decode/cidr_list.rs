//! CidrList, Weir's own kind, and the plain list files that are read as one.

use crate::address::parse_plain_v4;
use crate::k8s::{CidrList, ListAction, ListEntry};

use super::report::ObjectFindings;
use super::trail::Trail;
use super::view::ValueView;
use super::{codes, list_entry, metadata, selector};

/// The order of a list that gives none.
const DEFAULT_ORDER: i64 = 100;

/// Reads a CidrList whose shape has been checked.
pub(super) fn read(object: ValueView<'_, '_>, report: &mut ObjectFindings) -> CidrList {
    metadata::validate(object, metadata::Of::CidrList, report);
    if metadata::mode(object).is_some_and(|mode| mode != "enforce") {
        metadata::at_mode(|at| report.error(at, codes::bad_mode::list));
    }
    let (spec, at) = (object.get("spec"), Trail::ROOT.field("spec"));
    let (ingress, egress) = directions(spec.get("directions"), &at.field("directions"), report);
    let (applies_to, applies_at) = (spec.get("appliesTo"), at.field("appliesTo"));
    let [namespaces, pods] = ["namespaceSelector", "podSelector"].map(|name| {
        let found = applies_to.get(name);
        found.is_there().then(|| selector::read(found, &applies_at.field(name), report))
    });
    if !spec.get("cidrs").is_there() {
        report.missing(&at.field("cidrs"), codes::bad_list_entry::none);
    }
    CidrList {
        action: action(spec.get("action"), &at.field("action"), report),
        order: spec.get("order").int().unwrap_or(DEFAULT_ORDER),
        ingress,
        egress,
        namespaces,
        pods,
        entries: entries(spec.get("cidrs"), &at.field("cidrs"), report),
    }
}

fn action(action: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> ListAction {
    match action.str().unwrap_or_default() {
        "Deny" => ListAction::Deny,
        "Allow" => ListAction::Allow,
        "" => {
            report.missing(at, |origin| codes::bad_list_action::at(origin, ""));
            ListAction::Deny
        }
        other => {
            report.error(at, |origin| codes::bad_list_action::at(origin, other));
            ListAction::Deny
        }
    }
}

/// Ingress and egress; both if the list names none.
fn directions(directions: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> (bool, bool) {
    let (mut ingress, mut egress) = (false, false);
    for (index, direction) in directions.items().enumerate() {
        match direction.str().unwrap_or_default() {
            "Ingress" => ingress = true,
            "Egress" => egress = true,
            other => report.error(&at.index(index), |origin| codes::bad_direction::at(origin, other)),
        }
    }
    match directions.items().len() {
        0 => (true, true),
        _ => (ingress, egress),
    }
}

fn entries(cidrs: ValueView<'_, '_>, at: &Trail<'_>, report: &mut ObjectFindings) -> Vec<ListEntry> {
    let mut entries = Vec::with_capacity(cidrs.items().len());
    for (index, entry) in cidrs.items().enumerate() {
        let range = list_entry::read(entry.str().unwrap_or_default(), &at.index(index), report);
        entries.extend(range.map(|(first, last)| ListEntry { first, last, position: index as u32 }));
    }
    entries
}

/// Reads a list file: one entry on each line, comments from `#` or `;`, blank lines.
///
/// Its entries have the path `spec.cidrs[LINE]`, with lines counted from 1.
pub(super) fn read_file(text: &str, action: ListAction, report: &mut ObjectFindings) -> CidrList {
    let (spec, order) = (Trail::ROOT.field("spec"), if action == ListAction::Allow { 0 } else { DEFAULT_ORDER });
    let at = spec.field("cidrs");
    let mut entries = Vec::new();
    for (line, position) in text.lines().zip(1u32..) {
        if let Some(address) = parse_plain_v4(line.trim_ascii().as_bytes()) {
            entries.push(ListEntry { first: address.into(), last: address.into(), position });
            continue;
        }
        let entry = entry_of_line(line);
        if entry.is_empty() {
            continue;
        }
        let range = list_entry::read(entry, &at.index(position as usize), report);
        entries.extend(range.map(|(first, last)| ListEntry { first, last, position }));
    }
    CidrList { action, order, ingress: true, egress: true, namespaces: None, pods: None, entries }
}

/// The text of a line without its comment and without white space around it.
pub(crate) fn entry_of_line(line: &str) -> &str {
    line.find(['#', ';']).and_then(|comment| line.get(..comment)).unwrap_or(line).trim()
}
