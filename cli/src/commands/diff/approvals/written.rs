//! Writes the file of approvals. Entries that still match stay as people have edited them, with their comments.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use weir_analysis::containment::{EndScope, FlowScope};
use weir_analysis::diff::{AddressRange, RowTraffic};
use weir_analysis::world::PodSet;
use weir_classes::PortSpec;
use weir_model::Direction;
use weir_objects::syntax::{Span, SyntaxValue, yaml};

use super::super::Comparison;
use super::super::flows::protocol;
use super::super::json::selector;
use super::super::wording::count;
use super::file::{API_VERSION, CHANGES, KIND};
use super::{ApprovableChange, Approval, Approvals, ChangeKind};
use crate::args::DeniedChange;
use crate::failure::with_hint;
use crate::output_file;
use crate::page;
use crate::time;

/// A line is not longer, if it can be broken.
const LONGEST_LINE: usize = 100;

const HEADER: &str = "\
# Changes that `weir diff --approved` accepts. Each needs a reason. `expires: YYYY-MM-DD` is its last day.
";

/// Brings the file up to date: it accepts every change that a gate refuses, and nothing else.
pub(in crate::commands::diff) fn write(
    path: &Path,
    compared: &Comparison,
    denied: Option<DeniedChange>,
    reason: Option<&str>,
) -> Result<()> {
    let known = match path.try_exists() {
        Ok(false) => Approvals { name: path.display().to_string(), entries: Vec::new(), text: HEADER.to_owned() },
        _ => Approvals::load(path, false)?,
    };
    let changes = [ApprovableChange::of_isolations(compared), ApprovableChange::of_rows(&compared.diff)].concat();
    let reason = reason.unwrap_or_default();
    // With a reason, an entry without one is written again.
    let is_kept = |it: &Approval| {
        (!it.reason.is_empty() || reason.is_empty()) && changes.iter().any(|change| it.accepts_some(change))
    };
    let mut added: Vec<Approval> = Vec::new();
    for change in changes.iter().filter(|it| denied.is_none_or(|denied| it.kind.denied_by() == denied)) {
        if known.accepting(change, is_kept).is_none() && added.iter().all(|it| it.change != *change) {
            let expires =
                known.accepting(change, |_| true).and_then(|all| all.iter().filter_map(|it| it.expires).min());
            added.push(Approval { change: change.clone(), reason: reason.to_owned(), expires, line: 0 });
        }
    }
    let kept: Vec<bool> = known.entries.iter().map(is_kept).collect();
    let text = text(&known, &kept, &added)?;
    output_file::replace(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    report(&known, &kept, &added);
    Ok(())
}

fn report(known: &Approvals, kept: &[bool], added: &[Approval]) {
    let today = time::today();
    let kept_entries = || known.entries.iter().zip(kept).filter(|(_, kept)| **kept).map(|(entry, _)| entry);
    for (entry, kept) in known.entries.iter().zip(kept) {
        if !kept && !entry.reason.is_empty() {
            let place = known.place(entry);
            page::print_to_stderr(format_args!("removed: {place}: the approval matches no change ({})", entry.reason));
        }
    }
    for entry in kept_entries().filter(|it| it.is_expired(today)) {
        let date = entry.expires.map(|it| it.to_string()).unwrap_or_default();
        page::print_to_stderr(format_args!(
            "warning: an approval of {} expired on {date} and does not count: change or remove its date ({})",
            known.name, entry.reason
        ));
    }
    let written = count(kept_entries().count() + added.len(), "approval");
    page::print_to_stderr(format_args!("wrote {written} to {}, {} of them new", known.name, added.len()));
    let without_reason = kept_entries().chain(added).filter(|it| it.reason.is_empty()).count();
    if without_reason > 0 {
        page::print_to_stderr(format_args!(
            "{} without a reason: `--approved` refuses the file until each says why (`--reason TEXT` is for all of them)",
            count(without_reason, "approval")
        ));
    }
}

/// The new text of the file.
fn text(known: &Approvals, kept: &[bool], added: &[Approval]) -> Result<String> {
    let lines: Vec<&str> = known.text.lines().collect();
    if !kept.contains(&true) {
        let comments: String =
            lines.iter().take_while(|it| it.starts_with('#')).map(|line| format!("{line}\n")).collect();
        let entries: String = added.iter().map(|it| entry(it, 2)).collect();
        let list = if added.is_empty() { "approvals: []\n".to_owned() } else { format!("approvals:\n{entries}") };
        return Ok(format!("{comments}apiVersion: {API_VERSION}\nkind: {KIND}\n{list}"));
    }
    let mut starts = Vec::new();
    for approval in &known.entries {
        let line = approval.line - 1;
        if !lines.get(line).is_some_and(|it| it.trim_start().starts_with('-')) {
            let hint =
                "begin each approval with `- ` on a line of its own, so that weir can keep what you have written";
            return Err(with_hint(format!("{}: the file cannot be updated in place", known.place(approval)), hint));
        }
        // Comments above an entry are about this entry.
        let comments = lines[..line].iter().rev().take_while(|it| it.trim_start().starts_with('#')).count();
        starts.push(line - comments);
    }
    let first = known.entries.first().map_or(0, |it| it.line - 1);
    let last = known.entries.last().map_or(0, |it| it.line);
    // After the list, a line of another field begins with a letter.
    let is_field = |line: &&str| !line.is_empty() && !line.starts_with([' ', '\t', '-', '#']);
    let end = lines[last..].iter().position(is_field).map_or(lines.len(), |it| last + it);
    let indent = lines[first].len() - lines[first].trim_start().len();
    let ends = starts.iter().skip(1).copied().chain([end]);
    let blocks = starts.iter().zip(ends).zip(kept).filter(|(_, kept)| **kept).map(|((start, end), _)| *start..end);
    let whole = |range: std::ops::Range<usize>| -> String { lines[range].iter().map(|it| format!("{it}\n")).collect() };
    let before = whole(0..starts.first().copied().unwrap_or_default());
    let kept_text: String = blocks.map(whole).collect();
    let new: String = added.iter().map(|it| entry(it, indent)).collect();
    Ok(format!("{before}{kept_text}{new}{}", whole(end..lines.len())))
}

fn entry(approval: &Approval, indent: usize) -> String {
    let mut value = change(&approval.change);
    value["reason"] = approval.reason.clone().into();
    if let Some(date) = approval.expires {
        value["expires"] = date.to_string().into();
    }
    item(&value, indent)
}

/// The fields of an entry that describe its change.
fn change(change: &ApprovableChange) -> Value {
    let region = &change.region;
    let begins = |kind: ChangeKind| matches!(kind, ChangeKind::Isolation { begins: true, .. });
    let is_word = |kind: ChangeKind| match change.kind {
        ChangeKind::Traffic(_) => kind == change.kind,
        ChangeKind::Isolation { .. } => {
            matches!(kind, ChangeKind::Isolation { .. }) && begins(kind) == begins(change.kind)
        }
    };
    let word = CHANGES.iter().find(|(_, kind)| is_word(*kind)).map(|(word, _)| *word);
    if let ChangeKind::Isolation { direction, .. } = change.kind {
        let mut value = json!({"change": word, "direction": direction.name(), "of": end(&region.flows.source)});
        if !region.except.is_empty() {
            value["except"] = region.except.iter().map(|it| end(&it.source)).collect();
        }
        return value;
    }
    let mut value = json!({"change": word});
    product(&region.flows, &mut value);
    if let Some(direction) = region.given.map(Direction::name) {
        value["given"] = direction.into();
    }
    if let Some(family) = region.family {
        value["family"] = family.to_string().into();
    }
    let except = region.except.iter().map(|it| {
        let mut value = json!({});
        product(it, &mut value);
        value
    });
    if !region.except.is_empty() {
        value["except"] = except.collect();
    }
    value
}

fn product(flows: &FlowScope, into: &mut Value) {
    into["from"] = end(&flows.source);
    into["to"] = end(&flows.destination);
    into["traffic"] = traffic(&flows.traffic);
}

fn end(scope: &EndScope) -> Value {
    let ranges = |ranges: &[AddressRange]| -> Value { ranges.iter().map(ToString::to_string).collect() };
    let pods = |it: &PodSet| {
        let mut value = json!({"namespaceSelector": selector(&it.namespaces), "podSelector": selector(&it.pods)});
        if let Some(addresses) = &it.addresses {
            value["addresses"] = ranges(addresses);
        }
        value
    };
    let mut value = json!({});
    if !scope.pods.is_empty() {
        value["pods"] = scope.pods.iter().map(pods).collect();
    }
    if !scope.addresses.is_empty() {
        value["addresses"] = ranges(&scope.addresses);
    }
    if !scope.endpoints.is_empty() {
        value["endpoints"] = json!(scope.endpoints);
    }
    if !scope.services.is_empty() {
        value["services"] = json!(scope.services);
    }
    value
}

fn traffic(traffic: &RowTraffic) -> Value {
    let port = |(it, names): (&PortSpec, &[String])| {
        let mut value = json!({"protocol": protocol(it.protocol)});
        if (it.first, it.last) != (1, u16::MAX) {
            value["port"] = it.first.into();
        }
        if (it.first, it.last) != (1, u16::MAX) && it.first != it.last {
            value["endPort"] = it.last.into();
        }
        match names {
            [] => {}
            [name] => value["name"] = json!(name),
            several => value["names"] = json!(several),
        }
        value
    };
    let named = traffic.named.iter().map(|(ports, names)| (ports, &names[..]));
    let ports: Vec<Value> = traffic.ranges.iter().map(|it| (it, &[][..])).chain(named).map(port).collect();
    let mut value = json!({});
    if !ports.is_empty() {
        value["ports"] = ports.into();
    }
    if traffic.portless {
        value["portless"] = true.into();
    }
    value
}

/// The lines of a mapping at an indentation. A value that fits is on the line of its key.
fn block(value: &Value, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let line = |start: &str, value: &Value| {
        let line = format!("{margin}{start} {}\n", flow(value));
        (line.len() <= LONGEST_LINE || !value.is_object() && !value.is_array()).then_some(line)
    };
    match value {
        Value::Object(fields) => {
            let field = |(key, it): (&String, &Value)| {
                let start = format!("{}:", scalar(key));
                line(&start, it).unwrap_or_else(|| format!("{margin}{start}\n{}", block(it, indent + 2)))
            };
            fields.iter().map(field).collect()
        }
        Value::Array(items) => items.iter().map(|it| line("-", it).unwrap_or_else(|| item(it, indent))).collect(),
        other => format!("{margin}{}\n", flow(other)),
    }
}

/// An item of a list on several lines.
fn item(value: &Value, indent: usize) -> String {
    let mut text = block(value, indent + 2);
    text.replace_range(indent..=indent, "-");
    text
}

/// YAML on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(key, it)| format!("{}: {}", scalar(key), flow(it))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// A string, in quotes unless every reader of YAML reads it as a string without them.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|it: char| it.is_ascii_alphanumeric())
        && text.chars().all(|it| it.is_ascii_alphanumeric() || "._/-".contains(it))
        && yaml::parse(text, Span::of(text))
            .is_ok_and(|it| it.is_some_and(|it| matches!(it.value, SyntaxValue::Str(_))));
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}
