//! Rows at the lines that cause them: SARIF for code scanning, and GitHub's workflow annotations.
//!
//! A change is shown at a line of the head if one causes it: the rule that allows, or the policy that isolates. If no
//! line of the head causes the change (a policy was deleted), it has no line.

use serde_json::{Value, json};
use weir_analysis::diff::{DiffRow, VerdictChange};
use weir_model::Direction;
use weir_objects::escape;

use super::places::{Culprit, Line, culprits};
use super::words::Words;
use crate::page::Page;
use crate::render::sarif::{self, uri};

/// A note at the line that causes a change.
struct Note<'w> {
    kind: &'static Kind,
    text: String,
    line: Option<&'w Line>,
}

struct Kind {
    id: &'static str,
    title: &'static str,
    /// The names of the severity in SARIF and in GitHub's commands.
    levels: [&'static str; 2],
}

const ADDED: Kind =
    Kind { id: "traffic-added", title: "traffic is allowed that was not", levels: ["warning", "warning"] };
const REMOVED: Kind = Kind { id: "traffic-removed", title: "traffic is no longer allowed", levels: ["note", "notice"] };
const BEGINS: Kind = Kind { id: "isolation-begins", title: "isolation begins", levels: ["note", "notice"] };
const ENDS: Kind = Kind { id: "isolation-ends", title: "isolation ends", levels: ["warning", "warning"] };

fn notes<'w>(words: &Words<'w, '_>, most: usize) -> Vec<Note<'w>> {
    let mut notes = Vec::new();
    for change in words.isolation() {
        let kind = if change.begins { &BEGINS } else { &ENDS };
        let mut lines = change.policies.iter().filter_map(|it| words.places.line(1, *it));
        notes.push(Note { kind, text: change.text, line: lines.next().filter(|_| change.begins) });
    }
    for row in words.compared.diff.rows.iter().take(most) {
        let kind = if row.change == VerdictChange::Added { &ADDED } else { &REMOVED };
        let lines = std::iter::once(words.sentence(row)).chain(words.why(row)).chain([words.example(row)]);
        // A line break in a name is not a line break of the note.
        let lines: Vec<String> = lines.map(|line| escape::line(&line).into_owned()).collect();
        notes.push(Note { kind, text: lines.join("\n"), line: responsible(words, row) });
    }
    notes
}

/// The first line of the head that is responsible.
fn responsible<'w>(words: &Words<'w, '_>, row: &DiffRow) -> Option<&'w Line> {
    let of = |direction| {
        let accounts = row.accounts(direction)?;
        let all: Vec<Culprit> = culprits(direction, &accounts[1]);
        all.into_iter().find_map(|it| words.places.line(1, it))
    };
    [Direction::Ingress, Direction::Egress].into_iter().find_map(of)
}

/// SARIF 2.1.0.
pub(super) fn sarif(words: &Words<'_, '_>, most: usize) -> serde_json::Result<Page> {
    let kinds = [&ADDED, &REMOVED, &BEGINS, &ENDS];
    let rule = |kind: &&Kind| {
        json!({
            "id": kind.id,
            "shortDescription": {"text": kind.title},
            "defaultConfiguration": {"level": kind.levels[0]},
        })
    };
    let result = |note: Note<'_>| {
        let location = |line: &Line| {
            json!({"physicalLocation": {
                "artifactLocation": {"uri": uri(words.compared.in_repository(&line.file))},
                "region": {"startLine": line.line, "endLine": line.end_line},
            }})
        };
        json!({
            "ruleId": note.kind.id,
            "ruleIndex": kinds.iter().position(|it| it.id == note.kind.id),
            "level": note.kind.levels[0],
            "message": {"text": note.text},
            "locations": note.line.into_iter().map(location).collect::<Vec<Value>>(),
        })
    };
    sarif::run(kinds.iter().map(rule).collect(), notes(words, most).into_iter().map(result).collect())
}

/// One workflow command a line.
pub(super) fn github(words: &Words<'_, '_>, most: usize) -> Page {
    let mut page = Page::new();
    for note in notes(words, most) {
        let title = format!("weir: {}", note.kind.title);
        let place =
            note.line.map(|it| (words.compared.in_repository(&it.file), it.line.to_string(), it.end_line.to_string()));
        let mut properties = Vec::new();
        if let Some((file, line, end_line)) = &place {
            properties.extend([("file", *file), ("line", line), ("endLine", end_line)]);
        }
        properties.push(("title", &title));
        page.command(note.kind.levels[1], &properties, &note.text);
    }
    page
}
