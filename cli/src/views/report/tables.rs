//! The tables of a report: classes, rows and rules as JSON, from which the page computes its cells.
//!
//! The page looks into the tables as [`Reach`] does, so a cell costs nothing until it is shown, and the file has the
//! classes instead of all pairs.

use serde_json::{Value, json};
use weir_analysis::reach::{Reach, ports};
use weir_classes::{AtomSet, Predicate, Row};
use weir_model::eval::RuleId;
use weir_model::{Direction, ListId, PolicyId, PortMatch, Rule, rule_path};
use weir_objects::diagnostic::FindingPlace;
use weir_objects::origin::FieldOrigin;
use weir_policy::locator::Locator;

use super::ends::ReportEnd;
use super::source_links::SourceLinks;
use crate::read::ReadInput;

/// The largest number of pods of a workload that the report names; for more, it has only their number.
const MOST_PODS: usize = 20;

/// The tables as one JSON document.
pub(crate) fn document(read: &ReadInput, reach: &Reach<'_>, links: &SourceLinks, ends: &[ReportEnd]) -> Value {
    TableWriter { reach, links, locator: Locator::new(&read.sources) }.document(ends)
}

struct TableWriter<'r> {
    reach: &'r Reach<'r>,
    links: &'r SourceLinks,
    locator: Locator<'r>,
}

impl TableWriter<'_> {
    fn document(mut self, ends: &[ReportEnd]) -> Value {
        let (reach, classes) = (self.reach, &self.reach.classes);
        let mut names: Vec<&str> = ends.iter().filter_map(|it| it.namespace.as_deref()).collect();
        names.dedup();
        let (parties, zones): (Vec<&ReportEnd>, Vec<&ReportEnd>) = ends.iter().partition(|it| it.namespace.is_some());
        json!({
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

    /// A file and line, and the page that shows it if there is one.
    fn at(&mut self, origin: FieldOrigin) -> Option<Value> {
        let at = self.locator.locate(&FindingPlace::Field(origin))?;
        let line = self.locator.position(at.file, at.span.start).line;
        let file = &self.locator.sources().file(at.file).name;
        let mut value = json!({"text": format!("{file}:{line}")});
        if let Some(href) = self.links.href(file, line) {
            value["href"] = href.into();
        }
        Some(value)
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
