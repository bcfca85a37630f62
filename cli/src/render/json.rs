//! Findings for programs: docs/schema/check.json.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{LocatedFinding, LocatedSpan, RelatedLabel, SeverityCounts};
use crate::page::OutputPage;
use crate::read::{ObjectCounts, ReadInput};

#[derive(Serialize)]
struct CheckJson<'f> {
    diagnostics: Vec<DiagnosticJson<'f>>,
    summary: CheckSummaryJson<'f>,
}

#[derive(Serialize)]
struct DiagnosticJson<'f> {
    code: &'f str,
    severity: String,
    message: &'f str,
    location: Option<LocationJson<'f>>,
    object: Option<ObjectJson<'f>>,
    field: Option<&'f str>,
    label: &'f str,
    related: Vec<RelatedJson<'f>>,
    notes: &'f [String],
    help: Option<&'f str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LocationJson<'f> {
    file: &'f str,
    document: Option<u32>,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
}

#[derive(Serialize)]
struct ObjectJson<'f> {
    kind: &'f str,
    namespace: Option<&'f str>,
    name: &'f str,
}

#[derive(Serialize)]
struct RelatedJson<'f> {
    location: Option<LocationJson<'f>>,
    message: &'f str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckSummaryJson<'f> {
    #[serde(flatten)]
    severities: SeverityCounts,
    shown: usize,
    objects: usize,
    #[serde(flatten)]
    kinds: ObjectCounts,
    skipped: BTreeMap<&'f str, usize>,
    /// False if a path could not be read.
    complete: bool,
}

/// One document with everything that was found.
pub(crate) fn findings(read: &ReadInput, findings: &[LocatedFinding], max: usize) -> serde_json::Result<OutputPage> {
    let shown = &findings[..findings.len().min(max)];
    let document = CheckJson { diagnostics: shown.iter().map(item).collect(), summary: summary(read, findings, shown) };
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}

fn summary<'f>(read: &'f ReadInput, findings: &[LocatedFinding], shown: &[LocatedFinding]) -> CheckSummaryJson<'f> {
    CheckSummaryJson {
        severities: SeverityCounts::of(findings),
        shown: shown.len(),
        objects: read.objects.len(),
        kinds: read.counts(),
        skipped: read.skipped.iter().map(|(kind, count)| (kind.as_str(), *count)).collect(),
        complete: read.complete,
    }
}

fn item(finding: &LocatedFinding) -> DiagnosticJson<'_> {
    let diagnostic = &finding.diagnostic;
    DiagnosticJson {
        code: diagnostic.code.name,
        severity: diagnostic.severity.to_string(),
        message: &diagnostic.message,
        location: finding.location.as_ref().map(place),
        object: finding.object.as_ref().map(|object| ObjectJson {
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

fn related(label: &RelatedLabel) -> RelatedJson<'_> {
    RelatedJson { location: label.location.as_ref().map(place), message: &label.text }
}

fn place(spot: &LocatedSpan) -> LocationJson<'_> {
    LocationJson {
        file: &spot.file,
        document: spot.at.document,
        line: spot.start.line,
        column: spot.start.column,
        end_line: spot.end.line,
        end_column: spot.end.column,
    }
}
