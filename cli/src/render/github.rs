//! For GitHub Actions: one workflow command a finding, shown beside the line in the pull request.

use weir_compiler::diagnostic::Severity;

use super::Finding;

/// At most `max` of them, one a line.
pub(crate) fn findings(findings: &[Finding], max: usize) -> String {
    findings.iter().take(max).map(annotation).collect()
}

fn annotation(finding: &Finding) -> String {
    let diagnostic = &finding.diagnostic;
    let command = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "notice",
    };
    let mut properties = Vec::new();
    if let Some(spot) = &finding.location {
        properties.push(format!("file={}", escape_property(&spot.file)));
        properties.push(format!("line={},endLine={}", spot.start.line, spot.end.line));
        // GitHub takes columns of a single line only.
        if spot.start.line == spot.end.line {
            properties.push(format!("col={},endColumn={}", spot.start.column, spot.end.column));
        }
    }
    properties.push(format!("title={}", escape_property(&format!("weir: {}", diagnostic.code.name))));
    let details = diagnostic.notes.iter().map(|note| format!("\nnote: {note}"));
    let help = diagnostic.help.iter().map(|help| format!("\nhelp: {help}"));
    let message: String = std::iter::once(diagnostic.message.clone()).chain(details).chain(help).collect();
    format!("::{command} {}::{}\n", properties.join(","), escape(&message))
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

pub(crate) fn escape_property(text: &str) -> String {
    escape(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_would_end_a_property_is_escaped() {
        assert_eq!(super::escape_property("a,b:c%\n"), "a%2Cb%3Ac%25%0A");
    }
}
