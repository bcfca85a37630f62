//! Rows at the lines that cause them: SARIF for code scanning, and GitHub's workflow annotations.
//!
//! A change is shown at a line of the head if one causes it: the rule that allows, or the policy that isolates. If no
//! line of the head causes the change (a policy was deleted), it has no line.

use serde_json::{Value, json};
use weir_analysis::diff::{DiffRow, VerdictChange};
use weir_model::Direction;
use weir_objects::escape;

use super::cause_lines::{CauseLine, VerdictCause, causes};
use super::gate::Ruling;
use super::wording::DiffWording;
use crate::page::OutputPage;
use crate::render::sarif::{self, uri};

/// A note at the line that causes a change.
struct LineNote<'w> {
    kind: &'static NoteKind,
    ruling: &'w Ruling,
    text: String,
    line: Option<&'w CauseLine>,
}

struct NoteKind {
    id: &'static str,
    title: &'static str,
    sarif_level: &'static str,
    /// The name of the workflow command.
    github_level: &'static str,
}

const ADDED: NoteKind = NoteKind {
    id: "traffic-added",
    title: "traffic is newly allowed",
    sarif_level: "warning",
    github_level: "warning",
};
const REMOVED: NoteKind = NoteKind {
    id: "traffic-removed",
    title: "traffic is no longer allowed",
    sarif_level: "note",
    github_level: "notice",
};
const BEGINS: NoteKind =
    NoteKind { id: "isolation-begins", title: "isolation begins", sarif_level: "note", github_level: "notice" };
const ENDS: NoteKind =
    NoteKind { id: "isolation-ends", title: "isolation ends", sarif_level: "warning", github_level: "warning" };

fn notes<'w>(words: &DiffWording<'w, '_>, most: usize) -> Vec<LineNote<'w>> {
    let mut notes = Vec::new();
    for change in words.isolation() {
        let kind = if change.begins { &BEGINS } else { &ENDS };
        let mut lines = change.policies.iter().filter_map(|it| words.places.line(1, *it));
        notes.push(LineNote {
            kind,
            ruling: change.ruling,
            text: change.text,
            line: lines.next().filter(|_| change.begins),
        });
    }
    for (index, row) in words.compared.diff.rows.iter().take(most).enumerate() {
        let kind = if row.change == VerdictChange::Added { &ADDED } else { &REMOVED };
        let lines = std::iter::once(words.sentence(row)).chain(words.reasons(index)).chain([words.example(row)]);
        // A line break in a name is not a line break of the note.
        let lines: Vec<String> = lines.map(|line| escape::line(&line).into_owned()).collect();
        let ruling = words.compared.ruling(index);
        notes.push(LineNote { kind, ruling, text: lines.join("\n"), line: responsible(words, row) });
    }
    notes
}

/// The first line of the head that is responsible.
fn responsible<'w>(words: &DiffWording<'w, '_>, row: &DiffRow) -> Option<&'w CauseLine> {
    let of = |direction| {
        let accounts = row.accounts(direction)?;
        let all: Vec<VerdictCause> = causes(direction, &accounts[1]);
        all.into_iter().find_map(|it| words.places.line(1, it))
    };
    [Direction::Ingress, Direction::Egress].into_iter().find_map(of)
}

/// SARIF 2.1.0.
pub(super) fn sarif(words: &DiffWording<'_, '_>, most: usize) -> serde_json::Result<OutputPage> {
    let kinds = [&ADDED, &REMOVED, &BEGINS, &ENDS];
    let rule = |kind: &&NoteKind| {
        json!({
            "id": kind.id,
            "shortDescription": {"text": kind.title},
            "defaultConfiguration": {"level": kind.sarif_level},
        })
    };
    let result = |note: LineNote<'_>| {
        let location = |line: &CauseLine| {
            json!({"physicalLocation": {
                "artifactLocation": {"uri": uri(words.compared.in_repository(&line.file))},
                "region": {"startLine": line.line, "endLine": line.end_line},
            }})
        };
        let mut result = json!({
            "ruleId": note.kind.id,
            "ruleIndex": kinds.iter().position(|it| it.id == note.kind.id),
            "level": if note.ruling.is_refused() { "error" } else { note.kind.sarif_level },
            "message": {"text": note.text},
            "locations": note.line.into_iter().map(location).collect::<Vec<Value>>(),
        });
        if let Ruling::Approved { reason, .. } = note.ruling {
            result["suppressions"] = json!([{"kind": "external", "status": "accepted", "justification": reason}]);
        }
        result
    };
    sarif::run(kinds.iter().map(rule).collect(), notes(words, most).into_iter().map(result).collect())
}

/// One workflow command a line.
pub(super) fn github(words: &DiffWording<'_, '_>, most: usize) -> OutputPage {
    let mut page = OutputPage::new();
    for note in notes(words, most) {
        let title = format!("weir: {}", note.kind.title);
        let place =
            note.line.map(|it| (words.compared.in_repository(&it.file), it.line.to_string(), it.end_line.to_string()));
        let mut properties = Vec::new();
        if let Some((file, line, end_line)) = &place {
            properties.extend([("file", *file), ("line", line), ("endLine", end_line)]);
        }
        properties.push(("title", &title));
        let level = match note.ruling {
            Ruling::Refused(_) => "error",
            Ruling::Approved { .. } => "notice",
            Ruling::Open => note.kind.github_level,
        };
        page.command(level, &properties, &note.text);
    }
    page
}
