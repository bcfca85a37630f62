//! Findings for programs: docs/schema/check.json.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Finding, Spot, Tally};
use crate::page::Page;
use crate::read::{Counts, Read};

#[derive(Serialize)]
struct Document<'f> {
    diagnostics: Vec<Item<'f>>,
    summary: Summary<'f>,
}

#[derive(Serialize)]
struct Item<'f> {
    code: &'f str,
    severity: String,
    message: &'f str,
    location: Option<Place<'f>>,
    object: Option<Object<'f>>,
    field: Option<&'f str>,
    label: &'f str,
    related: Vec<Related<'f>>,
    notes: &'f [String],
    help: Option<&'f str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Place<'f> {
    file: &'f str,
    document: Option<u32>,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
}

#[derive(Serialize)]
struct Object<'f> {
    kind: &'f str,
    namespace: Option<&'f str>,
    name: &'f str,
}

#[derive(Serialize)]
struct Related<'f> {
    location: Option<Place<'f>>,
    message: &'f str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'f> {
    errors: usize,
    warnings: usize,
    notes: usize,
    shown: usize,
    objects: usize,
    policies: usize,
    lists: usize,
    pods: usize,
    workloads: usize,
    services: usize,
    namespaces: usize,
    nodes: usize,
    skipped: BTreeMap<&'f str, usize>,
    /// False if a path could not be read.
    complete: bool,
}

/// One document with everything that was found.
pub(crate) fn findings(read: &Read, findings: &[Finding], max: usize) -> serde_json::Result<Page> {
    let shown = &findings[..findings.len().min(max)];
    let document = Document { diagnostics: shown.iter().map(item).collect(), summary: summary(read, findings, shown) };
    let mut page = Page::new();
    page.pretty_json(&document)?;
    Ok(page)
}

fn summary<'f>(read: &'f Read, findings: &[Finding], shown: &[Finding]) -> Summary<'f> {
    let Tally { errors, warnings, notes } = Tally::of(findings);
    let Counts { policies, lists, pods, workloads, services, namespaces, nodes } = read.counts();
    let skipped = read.skipped.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    let (shown, objects, complete) = (shown.len(), read.objects.len(), read.complete);
    #[rustfmt::skip]
    let summary = Summary {
        errors, warnings, notes, shown, objects, policies, lists, pods, workloads, services, namespaces, nodes,
        skipped, complete,
    };
    summary
}

fn item(finding: &Finding) -> Item<'_> {
    let diagnostic = &finding.diagnostic;
    Item {
        code: diagnostic.code.name,
        severity: diagnostic.severity.to_string(),
        message: &diagnostic.message,
        location: finding.location.as_ref().map(place),
        object: finding.object.as_ref().map(|object| Object {
            kind: &object.kind,
            namespace: object.namespace.as_deref(),
            name: &object.name,
        }),
        field: finding.field.as_deref(),
        label: &diagnostic.primary.text,
        related: finding.related.iter().map(related).collect(),
        notes: &diagnostic.notes,
        help: diagnostic.help.as_deref(),
    }
}

fn related((spot, message): &(Option<Spot>, String)) -> Related<'_> {
    Related { location: spot.as_ref().map(place), message }
}

fn place(spot: &Spot) -> Place<'_> {
    Place {
        file: &spot.file,
        document: spot.at.document,
        line: spot.start.line,
        column: spot.start.column,
        end_line: spot.end.line,
        end_column: spot.end.column,
    }
}
