//! `weir flows`: lists the flows in the datapath's tables, of this machine or of many nodes.

use std::net::IpAddr;

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;

use super::CommandOutcome;
use crate::all_nodes::{self, missing_fields};
use crate::args::{FlowsArgs, GlobalArgs, TextOrJson};
use crate::page::{OutputPage, Style};

/// The fields that each flow has (docs/schema/flows.json).
const FIELDS: [&str; 9] = ["pod", "protocol", "local", "remote", "direction", "state", "answered", "age", "remaining"];

pub(crate) fn run(global: &GlobalArgs, arguments: &FlowsArgs) -> Result<CommandOutcome> {
    if arguments.agents.is_remote() {
        return of_nodes(global, arguments);
    }
    #[cfg(feature = "enforce")]
    return here(arguments);
    #[cfg(not(feature = "enforce"))]
    Err(crate::no_enforcement::only_remote("flows"))
}

#[cfg(feature = "enforce")]
fn here(arguments: &FlowsArgs) -> Result<CommandOutcome> {
    use weir_runtime::runtime::{PinAccess, Runtime};
    let flows = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read)?.flows()?;
    let document = json!({"flows": flows});
    let mut page = OutputPage::new();
    match arguments.output {
        TextOrJson::Json => page.json(&document)?,
        TextOrJson::Text => {
            for flow in document["flows"].as_array().into_iter().flatten() {
                page.line(FlowRow::deserialize(flow)?.line());
            }
        }
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// The flows of all chosen nodes, by node.
fn of_nodes(global: &GlobalArgs, arguments: &FlowsArgs) -> Result<CommandOutcome> {
    let (answers, mut summary) = all_nodes::ask(&arguments.agents, &["flows", "-o", "json"])?;
    let (mut flows, mut rows) = (Vec::new(), Vec::new());
    for answer in &answers {
        let Some(of_node) = answer.value["flows"].as_array() else {
            summary.answered.remove(&answer.node);
            summary.fail(&answer.node, "its answer has no list of flows");
            continue;
        };
        for flow in of_node {
            match FlowRow::deserialize(flow) {
                Ok(row) => rows.push((answer.node.as_str(), row)),
                Err(_) => {
                    summary.rubbish(&answer.node, &flow.to_string());
                    continue;
                }
            }
            summary.lacks(&answer.node, missing_fields(flow, &FIELDS).into_iter().map(str::to_owned));
            flows.push(all_nodes::with_node(&answer.node, flow.clone()));
        }
    }
    let mut page = OutputPage::for_stdout(global.color);
    match arguments.output {
        TextOrJson::Json => page.json(&json!({"flows": flows, "nodes": summary.json()}))?,
        TextOrJson::Text => {
            let nodes: Vec<String> = summary.answered.iter().cloned().collect();
            summary.head(&mut page, &nodes);
            let width = nodes.iter().map(|it| it.chars().count()).max().unwrap_or(0).max("NODE".len());
            page.pieces(&[(Style::Bold, &format_args!("{:width$}  PROTOCOL AND ENDS  STATE", "NODE"))]);
            for (node, row) in rows {
                page.folded(4, &[(Style::Plain, &format_args!("{node:width$}  {}", row.line()))]);
            }
        }
    }
    page.print()?;
    if arguments.output == TextOrJson::Text {
        let mut page = OutputPage::new();
        summary.tail(&mut page);
        page.print_to_stderr();
    }
    Ok(summary.outcome())
}

/// A flow as text output shows it. An older agent may not know all fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FlowRow {
    pod: Option<String>,
    protocol: String,
    local: Option<RowEnd>,
    remote: Option<RowEnd>,
    direction: String,
    state: String,
    answered: bool,
    age: u64,
    remaining: u64,
    generation: u32,
}

#[derive(Debug, Deserialize)]
struct RowEnd {
    ip: IpAddr,
    #[serde(default)]
    pod: Option<String>,
    #[serde(default)]
    port: Option<u16>,
}

impl FlowRow {
    fn line(&self) -> String {
        let end = |it: &Option<RowEnd>| {
            let it = it.as_ref();
            it.map_or_else(|| "?".to_owned(), |it| address(it.pod.as_deref(), it.ip, it.port))
        };
        let (local, remote) = (end(&self.local), end(&self.remote));
        let (from, to) = if self.direction == "egress" { (local, remote) } else { (remote, local) };
        let Self { protocol, state, age, remaining, generation, .. } = self;
        let answered = if self.answered { "" } else { ", unanswered" };
        format!(
            "{protocol:6} {from} -> {to}  {state}{answered}, idle {age} s, expires in {remaining} s, \
             generation {generation}"
        )
    }
}

/// `shop/web 10.0.0.1:80`
pub(super) fn address(pod: Option<&str>, ip: IpAddr, port: Option<u16>) -> String {
    let pod = pod.map(|pod| format!("{pod} ")).unwrap_or_default();
    match (port, ip.is_ipv6()) {
        (None, _) => format!("{pod}{ip}"),
        (Some(port), false) => format!("{pod}{ip}:{port}"),
        (Some(port), true) => format!("{pod}[{ip}]:{port}"),
    }
}
