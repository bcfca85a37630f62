//! A comparison as the HTML report: the report on the head, with the changes marked.

use anyhow::{Context as _, Result};
use serde_json::json;
use weir_analysis::diff::{DiffRow, RowEnd, VerdictChange};
use weir_analysis::reach::Reach;
use weir_model::Direction;
use weir_objects::source::SourceMap;

use super::cause_lines::{CauseLine, VerdictCause, causes};
use super::flows::protocol;
use super::wording::{DiffWording, Isolated, count};
use crate::args::{GlobalArgs, World};
use crate::page::OutputPage;
use crate::views::html::{self, Report};
use crate::views::report::ends::{ChangeMembers, ChangedEnds, Member};
use crate::views::report::exposure::{ExposureCounts, ReportExposure};
use crate::views::report::head::{Card, ReportHead, Tone};
use crate::views::report::list::{ListRow, RowKind, RuleLines, RuleText};
use crate::views::report::source_links::SourceLinks;

pub(super) fn html(global: &GlobalArgs, words: &DiffWording<'_, '_>) -> Result<OutputPage> {
    let [base, head] = &words.compared.sides;
    let [base_reach, head_reach] = [base, head].map(|side| Reach::new(&side.cluster));
    let context = "cannot compute who can reach whom";
    let (base_reach, head_reach) = (base_reach.context(context)?, head_reach.context(context)?);
    let exposures = [&base_reach, &head_reach].map(|reach| ReportExposure::of(reach).counts());
    let [base_name, head_name] = &words.compared.names;
    let isolation = words.isolation();
    let (tone, verdict) = verdict(words);
    let report_head = ReportHead {
        title: format!("Changes from {base_name} to {head_name}"),
        origin: html::origin(global, &[("Base", base_name, base), ("Head", head_name, head)])?,
        tone,
        verdict,
        cards: cards(words, &isolation, exposures),
    };
    let links = SourceLinks::from_environment();
    let report = Report {
        head: report_head,
        list_title: "What changes",
        empty_list: "The same traffic is allowed.",
        rows: list(words, &isolation, &links),
        facts: facts(words),
        changes: Some((0..words.compared.diff.rows.len()).map(|index| change(words, index)).collect()),
    };
    html::page(head, &head_reach, &links, report)
}

/// The numbers of rows that are newly allowed and no longer allowed.
fn numbers(words: &DiffWording<'_, '_>) -> [usize; 2] {
    let rows = &words.compared.diff.rows;
    [VerdictChange::Added, VerdictChange::Removed].map(|change| rows.iter().filter(|it| it.change == change).count())
}

/// The answer in a sentence, with the gate's if there is one.
fn verdict(words: &DiffWording<'_, '_>) -> (Tone, String) {
    let entries = |number| match number {
        1 => "1 entry".to_owned(),
        number => format!("{number} entries"),
    };
    let opens = words.compared.diff.isolation.iter().any(|it| !it.begins);
    let (mut tone, mut text) = match numbers(words) {
        [0, 0] if opens => (Tone::Warning, format!("{}.", words.headline())),
        [0, 0] => (Tone::Calm, format!("{}.", words.headline())),
        [0, removed] => (Tone::Notice, format!("This change only forbids traffic: {} below.", entries(removed))),
        [added, 0] => (Tone::Warning, format!("This change newly allows traffic: {} below.", entries(added))),
        [added, removed] => (
            Tone::Warning,
            format!(
                "This change newly allows traffic ({}) and no longer allows other traffic ({}).",
                entries(added),
                entries(removed)
            ),
        ),
    };
    if let Some(gate) = &words.compared.gate {
        text = format!("{text} {}.", gate.summary());
        tone = if gate.refuses() { Tone::Warning } else { tone };
    }
    (tone, text)
}

fn cards(words: &DiffWording<'_, '_>, isolation: &[Isolated<'_>], [base, head]: [ExposureCounts; 2]) -> Vec<Card> {
    let [added, removed] = numbers(words);
    let ends = isolation.iter().filter(|it| !it.begins).count();
    let isolation_tone = if ends > 0 { Tone::Warning } else { Tone::Notice };
    let isolation_text = match isolation.len() {
        0 => "no pod gains or loses a policy that isolates it".to_owned(),
        all => format!("{} of pods: it ends for {ends}, begins for {}", count(all, "group"), all - ends),
    };
    vec![
        Card::counting("Newly allowed", added, destinations(words, VerdictChange::Added), Tone::Warning),
        Card::counting("No longer allowed", removed, destinations(words, VerdictChange::Removed), Tone::Notice),
        Card::counting("Isolation", isolation.len(), isolation_text, isolation_tone),
        ExposureCounts::change_card(base, head),
    ]
}

/// `to shop/db and 2 other destinations`
fn destinations(words: &DiffWording<'_, '_>, change: VerdictChange) -> String {
    let rows = words.compared.diff.rows.iter().filter(|it| it.change == change);
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        let name = words.to(row);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match &names[..] {
        [] => "nothing".to_owned(),
        [only] => format!("to {only}"),
        [first, others @ ..] => format!("to {first} and {}", count(others.len(), "other destination")),
    }
}

/// Refused changes first, then those that open something, as the comparison sorts them.
fn list(words: &DiffWording<'_, '_>, isolation: &[Isolated<'_>], links: &SourceLinks) -> Vec<ListRow> {
    let rows = (0..words.compared.diff.rows.len()).map(|index| change_row(words, index, links));
    let mut found: Vec<ListRow> = rows.chain(isolation.iter().map(|it| isolation_row(words, it, links))).collect();
    let order = |row: &ListRow| {
        (
            !row.is_refused,
            match row.kind {
                RowKind::Added => 0,
                RowKind::IsolationEnds => 1,
                RowKind::Removed => 2,
                _ => 3,
            },
        )
    };
    found.sort_by_key(order);
    found
}

fn change_row(words: &DiffWording<'_, '_>, index: usize, links: &SourceLinks) -> ListRow {
    let row = &words.compared.diff.rows[index];
    ListRow {
        kind: if row.change == VerdictChange::Added { RowKind::Added } else { RowKind::Removed },
        from: words.from(row),
        to: words.to(row),
        ports: words.what(row),
        namespace: namespace(words, &row.destination).or_else(|| namespace(words, &row.source)),
        reasons: words.reasons(index),
        rules: rules(words, row, links),
        example: Some(words.example(row)),
        number: Some(index),
        is_refused: words.compared.ruling(index).is_refused(),
    }
}

fn isolation_row(words: &DiffWording<'_, '_>, isolated: &Isolated<'_>, links: &SourceLinks) -> ListRow {
    let which = usize::from(isolated.begins);
    ListRow {
        kind: if isolated.begins { RowKind::IsolationBegins } else { RowKind::IsolationEnds },
        from: String::new(),
        to: isolated.text.clone(),
        ports: String::new(),
        namespace: None,
        reasons: Vec::new(),
        rules: isolated.policies.iter().filter_map(|it| rule(words, which, *it, links)).collect(),
        example: None,
        number: None,
        is_refused: isolated.ruling.is_refused(),
    }
}

/// The namespace of all endpoints of an end, or the one that all its possible pods are in.
fn namespace(words: &DiffWording<'_, '_>, end: &RowEnd) -> Option<String> {
    let endpoints = end.endpoints.iter().map(|it| words.compared.diff.endpoints[*it as usize].namespace.as_str());
    let pods = end.pods.iter().map(|it| it.namespaces.match_labels.get("kubernetes.io/metadata.name"));
    let mut all: Vec<&str> = endpoints.chain(pods.map(Option::unwrap_or_default)).collect();
    all.dedup();
    match all[..] {
        [only] if !only.is_empty() => Some(only.to_owned()),
        _ => None,
    }
}

/// The rules, policies and lists that decide about a row, first those of the side that allows it.
fn rules(words: &DiffWording<'_, '_>, row: &DiffRow, links: &SourceLinks) -> Vec<RuleText> {
    let allowing = usize::from(row.change == VerdictChange::Added);
    let mut found: Vec<(usize, VerdictCause)> = Vec::new();
    for which in [allowing, 1 - allowing] {
        for direction in [Direction::Ingress, Direction::Egress] {
            let Some(accounts) = row.accounts(direction) else { continue };
            found.extend(causes(direction, &accounts[which]).into_iter().map(|cause| (which, cause)));
        }
    }
    found.sort_by_key(|(which, cause)| (*which != allowing, !matches!(cause, VerdictCause::Rule(..))));
    found.dedup();
    found.into_iter().filter_map(|(which, cause)| rule(words, which, cause, links)).collect()
}

fn rule(words: &DiffWording<'_, '_>, which: usize, cause: VerdictCause, links: &SourceLinks) -> Option<RuleText> {
    let CauseLine { file, line, end_line } = words.places.line(which, cause)?;
    let when = if which == 1 { "now" } else { "before" };
    let text = text(&words.compared.sides[which].sources, file);
    let lines = RuleLines { file, text, line: *line, end_line: *end_line };
    Some(RuleText::new(when, cause.name(words.compared, which), lines, links))
}

fn text<'s>(sources: &'s SourceMap, name: &str) -> &'s str {
    sources.files().iter().find(|it| it.name == name).map_or("", |it| it.text.as_str())
}

/// Endpoints that exist on one side only, changed rules without effect, and the extent of the comparison.
fn facts(words: &DiffWording<'_, '_>) -> Vec<String> {
    let without_effect = words.without_effect().into_iter().map(|it| format!("Without effect: {it}"));
    let mut scope = format!("This is a report on {}.", words.scope());
    if words.compared.world == World::Open {
        scope.push_str(" The matrix and the graph show only the pods and workloads of the input.");
    }
    words.endpoint_changes().into_iter().chain([scope]).chain(without_effect).collect()
}

/// A row for the page's tables.
fn change(words: &DiffWording<'_, '_>, index: usize) -> (ChangedEnds, serde_json::Value) {
    let row = &words.compared.diff.rows[index];
    let change = ChangedEnds { from: members(words, &row.source), to: members(words, &row.destination) };
    let ranges = row.traffic.ranges.iter().map(|it| json!([protocol(it.protocol), it.first, it.last]));
    let value = json!({
        "change": if row.change == VerdictChange::Added { "added" } else { "removed" },
        "ports": words.what(row),
        "text": format!("{} → {}", words.from(row), words.to(row)),
        "ranges": ranges.collect::<Vec<_>>(),
        "portless": row.traffic.portless,
        "reasons": words.reasons(index),
        "witness": words.example(row),
    });
    (change, value)
}

/// The endpoints of a party. Services appear only in the list of changes: the matrix shows the pods behind them.
fn members(words: &DiffWording<'_, '_>, party: &RowEnd) -> ChangeMembers {
    let endpoint = |index: &u32| {
        let it = &words.compared.diff.endpoints[*index as usize];
        let (namespace, name, kind) = (it.namespace.clone(), it.name.clone(), it.kind.clone());
        Member { id: it.ids[1], namespace, name, kind }
    };
    ChangeMembers {
        endpoints: party.endpoints.iter().map(endpoint).collect(),
        ranges: party.ranges.iter().map(|it| (it.first, it.last)).collect(),
    }
}
