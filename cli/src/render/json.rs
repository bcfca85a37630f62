//! Findings for programs: docs/schema/check.json.

use weir_policy::answers::{CheckAnswer, CheckSummary, Finding, SeverityCounts};
use weir_policy::findings::LocatedFinding;

use crate::page::OutputPage;
use crate::read::ReadInput;

/// One document with everything that was found.
pub(crate) fn findings(read: &ReadInput, findings: &[LocatedFinding], max: usize) -> serde_json::Result<OutputPage> {
    let shown = &findings[..findings.len().min(max)];
    let summary = CheckSummary {
        severities: SeverityCounts::of(findings),
        shown: shown.len(),
        objects: read.objects.len(),
        kinds: read.counts(),
        skipped: read.skipped.iter().cloned().collect(),
        complete: read.complete,
    };
    let diagnostics = shown.iter().map(Finding::of).collect();
    let mut page = OutputPage::new();
    page.pretty_json(&CheckAnswer { diagnostics, summary, left_out: Vec::new() })?;
    Ok(page)
}
