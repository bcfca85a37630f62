//! The HTML report: one file that needs nothing else, with the class tables in it as JSON.
//!
//! The page looks into the tables as [`Reach`] does, so a cell costs nothing until it is shown. Text from the input is
//! only ever data: JSON without any character that has a meaning in HTML, inserted as text. A content security policy
//! allows the page's own script and style by their digests, and no URLs.

use anyhow::Result;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use weir_analysis::reach::{Reach, ports};
use weir_artifact::Digest;
use weir_classes::{AtomSet, Predicate, Row};
use weir_model::eval::RuleId;
use weir_model::{Direction, ListId, PolicyId, PortMatch, Rule, rule_path};
use weir_objects::diagnostic::FindingPlace;
use weir_objects::escape;
use weir_objects::origin::FieldOrigin;

use super::report_ends::{self, ChangedEnds, ReportEnd};
use crate::args::ViewLevel;
use crate::locator::Locator;
use crate::page::OutputPage;
use crate::read::ReadInput;
use crate::render::text::count;

const PAGE: &str = include_str!("report/report.html");
const STYLE: &str = include_str!("report/report.css");
const SCRIPT: &str = include_str!("report/report.js");

/// The largest number of pods of a workload that the report names; for more, it has only their number.
const MOST_PODS: usize = 20;

/// The additions to a report on a change; the report's tables are those of the head.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReportChanges {
    pub(crate) title: String,
    pub(crate) summary: String,
    /// Facts that are not about pairs of ends.
    pub(crate) facts: Vec<String>,
    pub(crate) rows: Vec<(ChangedEnds, Value)>,
}

/// The whole page.
pub(crate) fn page(read: &ReadInput, reach: &Reach<'_>, changes: Option<ReportChanges>) -> Result<OutputPage> {
    let (rows, mut values): (Vec<ChangedEnds>, Vec<Value>) =
        changes.iter().flat_map(|it| it.rows.iter().cloned()).unzip();
    let ends = report_ends::ends(reach, &rows);
    let mut data = Data { read, reach, locator: Locator::new(&read.sources) }.document(&ends);
    if let Some(changes) = changes {
        let taking_part = |of: fn(&ReportEnd) -> &Vec<usize>, number| -> Vec<usize> {
            (0..ends.len()).filter(|it| of(&ends[*it]).binary_search(&number).is_ok()).collect()
        };
        for (number, value) in values.iter_mut().enumerate() {
            value["from"] = taking_part(|it| &it.part.from, number).into();
            value["to"] = taking_part(|it| &it.part.to, number).into();
        }
        data["title"] = changes.title.into();
        data["summary"] = changes.summary.into();
        data["facts"] = changes.facts.into();
        data["changes"] = values.into();
    }
    if let (Some(sentence), Some(summary)) = (read.left_out.sentence(), data["summary"].as_str()) {
        data["summary"] = format!("{summary}; {sentence}").into();
    }
    let mut page = PAGE.replace("@STYLE_HASH@", &BASE64_STANDARD.encode(Digest::of(STYLE.as_bytes()).0));
    page = page.replace("@SCRIPT_HASH@", &BASE64_STANDARD.encode(Digest::of(SCRIPT.as_bytes()).0));
    page = page.replace("@STYLE@", STYLE).replace("@SCRIPT@", SCRIPT);
    make_visible(&mut data);
    // The data is inserted last, so that its contents are not searched for placeholders.
    let text = page.replacen("@DATA@", &inert(&serde_json::to_string(&data)?), 1);
    let mut page = OutputPage::new();
    page.lines(&text);
    Ok(page)
}

/// Escapes hidden characters in all texts of the page.
fn make_visible(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(escape::is_hidden) => *text = escape::line(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(make_visible),
        Value::Object(fields) => fields.values_mut().for_each(make_visible),
        _ => {}
    }
}

/// JSON in which no letter is left that HTML or a script reader could take for something else, and no command to a CI
/// system.
fn inert(json: &str) -> String {
    let mut text = String::with_capacity(json.len() + json.len() / 64);
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '#' | '\'' | '\u{2028}' | '\u{2029}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            _ => text.push(letter),
        }
    }
    text
}

struct Data<'r> {
    read: &'r ReadInput,
    reach: &'r Reach<'r>,
    locator: Locator<'r>,
}

impl<'r> Data<'r> {
    fn document(mut self, ends: &[ReportEnd]) -> Value {
        let (reach, classes) = (self.reach, &self.reach.classes);
        let mut names: Vec<&str> = ends.iter().filter_map(|it| it.namespace.as_deref()).collect();
        names.dedup();
        let (parties, zones): (Vec<&ReportEnd>, Vec<&ReportEnd>) = ends.iter().partition(|it| it.namespace.is_some());
        let counts = self.read.counts();
        let summary = format!(
            "{} in {}, {}, {}",
            count(reach.parties.len(), "workload"),
            count(names.len(), "namespace"),
            count(counts.policies, "policy"),
            count(counts.lists, "list"),
        );
        json!({
            "title": "who can reach whom",
            "summary": summary,
            "notes": self.notes(),
            "namespaces": names,
            "parties": parties.into_iter().map(|it| end(it, &names)).collect::<Vec<_>>(),
            "zones": zones.into_iter().map(|it| end(it, &[])).collect::<Vec<_>>(),
            "atoms": classes.atoms.count(),
            "intervals": classes.atoms.intervals.iter().map(|it| {
                json!([ports::name(it.spec.protocol), it.spec.first, it.spec.last, it.atom.0])
            }).collect::<Vec<_>>(),
            "sets": classes.rows.atom_sets.iter().map(hex).collect::<Vec<_>>(),
            "egress": classes.rows.egress.iter().map(row).collect::<Vec<_>>(),
            "ingress": classes.rows.ingress.iter().map(row).collect::<Vec<_>>(),
            "peers": classes.peers.iter().map(|it| {
                it.predicates.iter().map(|it| it.0).collect()
            }).collect::<Vec<Vec<u32>>>(),
            "subjects": classes.subjects.iter().map(|it| json!({
                "policies": it.policies.iter().map(|it| it.0).collect::<Vec<_>>(),
                "lists": it.lists.iter().map(|it| it.0).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
            "policies": (0..reach.cluster.policies.len() as u32)
                .map(|id| self.policy(PolicyId(id)))
                .collect::<Vec<_>>(),
            "lists": (0..reach.cluster.lists.len() as u32).map(|id| self.list(ListId(id))).collect::<Vec<_>>(),
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = super::notes(self.reach, ViewLevel::Workload);
        notes.push(
            "A pod can always reach itself, and a pod and its own node can always reach each other; the report shows \
             neither."
                .to_owned(),
        );
        notes.push("Services are not shown: look at their backend pods and the ports of these pods.".to_owned());
        notes
    }

    fn policy(&mut self, id: PolicyId) -> Value {
        let policy = &self.reach.cluster.policies[id.index()];
        let mut value =
            json!({"name": self.reach.cluster.policy_name(id), "at": self.at(FieldOrigin::object(policy.object))});
        for direction in Direction::ALL {
            let Some(rules) = policy.rules(direction) else { continue };
            let rules = rules.iter().zip(0..).map(|(rule, index)| {
                let peers = self.reach.classes.peers_of(direction, RuleId { policy: id, rule: index });
                json!({
                    "path": rule_path(direction, index as usize).to_string(),
                    "ports": rule_ports(rule),
                    "p": peers.map(|all| all.iter().map(|it| it.0).collect::<Vec<_>>()),
                    "at": self.at(policy.rule_origin(direction, index as usize)),
                })
            });
            value[direction.name()] = rules.collect();
        }
        value
    }

    fn list(&mut self, id: ListId) -> Value {
        let list = &self.reach.cluster.lists[id.index()];
        let predicate = self.reach.classes.predicates().iter().position(|it| *it == Predicate::List(id));
        json!({
            "name": list.name,
            "action": format!("{:?}", list.action),
            "predicate": predicate,
            "ingress": list.ingress,
            "egress": list.egress,
            "at": self.at(FieldOrigin::object(list.object)),
        })
    }

    /// `file:line`
    fn at(&mut self, origin: FieldOrigin) -> Option<String> {
        let at = self.locator.locate(&FindingPlace::Field(origin))?;
        let line = self.locator.position(at.file, at.span.start).line;
        Some(format!("{}:{line}", self.locator.sources().file(at.file).name))
    }
}

fn end(end: &ReportEnd, namespaces: &[&str]) -> Value {
    let namespace = end.namespace.as_deref().and_then(|it| namespaces.binary_search(&it).ok());
    json!({
        "n": namespace,
        "name": end.name,
        "kind": end.kind,
        "s": end.subject,
        "p": end.peers,
        "pods": end.pods.iter().take(MOST_PODS).collect::<Vec<_>>(),
        "more": end.pods.len().saturating_sub(MOST_PODS),
    })
}

/// A row as numbers: the default set, and then pairs of peer class and set.
fn row(row: &Row) -> Vec<u32> {
    let entries = row.entries.iter().flat_map(|(peer, set)| [peer.0, set.0]);
    std::iter::once(row.default.0).chain(entries).collect()
}

/// The bits of a set as one hexadecimal number.
fn hex(set: &AtomSet) -> String {
    let words: String = set.words().iter().rev().map(|word| format!("{word:016x}")).collect();
    let short = words.trim_start_matches('0');
    if short.is_empty() { "0".to_owned() } else { short.to_owned() }
}

/// The ports of a rule as they are written.
fn rule_ports(rule: &Rule) -> String {
    let port = |it: &weir_model::PortRule| {
        let protocol = ports::name(it.protocol);
        match &it.port {
            PortMatch::Any => format!("all {protocol}"),
            PortMatch::Range(first, last) if first == last => format!("{protocol} {first}"),
            PortMatch::Range(first, last) => format!("{protocol} {first}-{last}"),
            PortMatch::Named(name) => format!("{protocol} {name}"),
        }
    };
    match rule.ports.is_empty() {
        true => "everything".to_owned(),
        false => rule.ports.iter().map(port).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_the_page_cannot_end_the_element() {
        let hostile = serde_json::to_string("</script><!--'&\u{2028}").expect("JSON");
        let text = inert(&hostile);
        assert!(!text.contains(['<', '>', '&', '\'', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).ok().as_deref(), Some("</script><!--'&\u{2028}"));
    }
}
