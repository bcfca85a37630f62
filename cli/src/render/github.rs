//! GitHub Actions: one workflow command per finding, shown next to the line in the pull request.

use weir_objects::diagnostic::Severity;
use weir_objects::escape;
use weir_policy::findings::{LocatedFinding, LocatedSpan};

use crate::page::OutputPage;

/// At most `max` findings, one per line.
pub(crate) fn findings(findings: &[LocatedFinding], max: usize) -> OutputPage {
    let mut page = OutputPage::new();
    findings.iter().take(max).for_each(|finding| annotate(&mut page, finding));
    page
}

fn annotate(page: &mut OutputPage, finding: &LocatedFinding) {
    let diagnostic = &finding.diagnostic;
    let command = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "notice",
    };
    let title = format!("weir: {}", diagnostic.code.name);
    let mut properties: Vec<(&str, String)> = Vec::new();
    if let Some(LocatedSpan { file, start, end, .. }) = &finding.location {
        properties.push(("file", file.clone()));
        properties.extend([("line", start.line.to_string()), ("endLine", end.line.to_string())]);
        // GitHub accepts columns only for a single line.
        if start.line == end.line {
            properties.extend([("col", start.column.to_string()), ("endColumn", end.column.to_string())]);
        }
    }
    properties.push(("title", title));
    let properties: Vec<(&str, &str)> = properties.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let details = diagnostic.notes.iter().map(|note| format!("note: {note}"));
    let help = diagnostic.help.iter().map(|help| format!("help: {help}"));
    let lines = std::iter::once(diagnostic.message.clone()).chain(details).chain(help);
    // A line break in a name is not a line break of the message.
    let lines: Vec<String> = lines.map(|line| escape::line(&line).into_owned()).collect();
    page.command(command, &properties, &lines.join("\n"));
}
