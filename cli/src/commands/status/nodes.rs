//! The state of many nodes: a line for each, and everything that is wrong.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::all_nodes::{self, NodeAnswer, missing_fields};
use crate::args::{GlobalArgs, StatusArgs, TextOrJson};
use crate::commands::CommandOutcome;
use crate::page::{OutputPage, Style};

/// The fields that each answer has (docs/schema/status.json).
const FIELDS: [&str; 6] = ["generation", "endpoints", "unattached", "drift", "maps", "repaired"];
/// A table that is fuller than this is worth a line.
const NEARLY_FULL: u64 = 80;

pub(super) fn run(global: &GlobalArgs, arguments: &StatusArgs) -> Result<CommandOutcome> {
    let (answers, mut summary) = all_nodes::ask(&arguments.agents, &["status", "-o", "json"])?;
    let (mut statuses, mut rows, mut differs) = (Vec::new(), Vec::new(), false);
    for NodeAnswer { node, value, code } in answers {
        let Ok(row) = StatusRow::deserialize(&value) else {
            summary.answered.remove(&node);
            summary.fail(&node, "its answer is not a status");
            continue;
        };
        differs |= code != 0;
        summary.lacks(&node, missing_fields(&value, &FIELDS).into_iter().map(str::to_owned));
        statuses.push(all_nodes::with_node(&node, value));
        rows.push((node, row));
    }
    let mut page = OutputPage::for_stdout(global.color);
    match arguments.output {
        TextOrJson::Json => page.json(&json!({"statuses": statuses, "nodes": summary.json()}))?,
        TextOrJson::Text => {
            let nodes: Vec<String> = rows.iter().map(|(node, _)| node.clone()).collect();
            summary.head(&mut page, &nodes);
            write(&mut page, &rows);
        }
    }
    page.print()?;
    if arguments.output == TextOrJson::Text {
        let mut page = OutputPage::new();
        summary.tail(&mut page);
        page.print_to_stderr();
    }
    Ok(match summary.outcome() {
        CommandOutcome::Clean if differs => CommandOutcome::Findings,
        outcome => outcome,
    })
}

/// A status as the table shows it. An older agent may not know all fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StatusRow {
    generation: Option<GenerationCell>,
    endpoints: Vec<EndpointCell>,
    unattached: Vec<Value>,
    drift: Vec<String>,
    maps: Vec<MapCell>,
    repaired: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GenerationCell {
    epoch: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EndpointCell {
    pod: String,
    interface: String,
    state: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MapCell {
    name: String,
    entries: u64,
    max_entries: u64,
}

fn write(page: &mut OutputPage, rows: &[(String, StatusRow)]) {
    let width = rows.iter().map(|(node, _)| node.chars().count()).max().unwrap_or(0).max("NODE".len());
    page.pieces(&[(
        Style::Bold,
        &format_args!("{:width$}  {:>10}  {:>8}  ENDPOINTS", "NODE", "GENERATION", "REPAIRED"),
    )]);
    for (node, row) in rows {
        let generation = row.generation.as_ref().map_or_else(|| "none".to_owned(), |it| it.epoch.to_string());
        let states = row.states();
        let style = if row.is_enforced() { Style::Plain } else { Style::Red };
        let head = format!("{node:width$}  {generation:>10}  {:>8}  ", row.repaired);
        page.folded(4, &[(Style::Plain, &head), (style, &states)]);
        row.problems().iter().for_each(|it| page.folded(4, &[(Style::Red, &format_args!("    {it}"))]));
    }
}

impl StatusRow {
    fn is_enforced(&self) -> bool {
        self.endpoints.iter().all(|it| it.state == "enforced") && self.drift.is_empty() && self.unattached.is_empty()
    }

    /// `12 enforced, 1 open`
    fn states(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.endpoints.iter().for_each(|it| *counts.entry(&it.state).or_default() += 1);
        let mut text = String::new();
        for (state, count) in counts {
            let comma = if text.is_empty() { "" } else { ", " };
            _ = write!(text, "{comma}{count} {state}");
        }
        if text.is_empty() { "none".to_owned() } else { text }
    }

    fn problems(&self) -> Vec<String> {
        let endpoints = self.endpoints.iter().filter(|it| it.state != "enforced");
        let mut problems: Vec<String> =
            endpoints.map(|it| format!("{} at {} is {}", it.pod, it.interface, it.state)).collect();
        let name = |it: &Value| it["pod"].as_str().unwrap_or("?").to_owned();
        problems.extend(self.unattached.iter().map(|it| format!("{} is not attached", name(it))));
        problems.extend(self.drift.iter().map(|it| format!("drift: {it}")));
        let percent = |it: &MapCell| it.entries.saturating_mul(100) / it.max_entries.max(1);
        let full = self.maps.iter().filter(|it| percent(it) >= NEARLY_FULL);
        problems.extend(full.map(|it| format!("map {} is {} % full", it.name, percent(it))));
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_with_a_problem_names_it() {
        let status = json!({"generation": {"epoch": 3}, "endpoints": [
            {"pod": "shop/web", "interface": "veth1", "state": "enforced"},
            {"pod": "shop/db", "interface": "veth2", "state": "open"}],
            "drift": ["a link is gone"], "maps": [{"name": "flow_table4", "entries": 9, "max_entries": 10}]});
        let row = StatusRow::deserialize(&status).expect("a status");
        let mut page = OutputPage::new();
        write(&mut page, &[("node-0".to_owned(), row)]);
        let expected = "NODE    GENERATION  REPAIRED  ENDPOINTS
node-0           3         0  1 enforced, 1 open
    shop/db at veth2 is open
    drift: a link is gone
    map flow_table4 is 90 % full
";
        assert_eq!(page.as_str(), expected);
    }
}
