//! `weir flows`: lists the flows in the datapath's tables.

use anyhow::Result;
use serde_json::json;
use weir_runtime::observe::{FlowEnd, ObservedFlow};
use weir_runtime::runtime::{PinAccess, Runtime};

use super::CommandOutcome;
use crate::args::{FlowsArgs, TextOrJson};
use crate::page::OutputPage;

pub(crate) fn run(arguments: &FlowsArgs) -> Result<CommandOutcome> {
    let flows = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read)?.flows()?;
    let mut page = OutputPage::new();
    match arguments.output {
        TextOrJson::Text => flows.iter().for_each(|it| page.line(line(it))),
        TextOrJson::Json => page.json(&json!({"flows": flows}))?,
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}

fn line(flow: &ObservedFlow) -> String {
    let (local, remote) = (end(&flow.local), end(&flow.remote));
    let (from, to) = if flow.direction == "egress" { (local, remote) } else { (remote, local) };
    let ObservedFlow { protocol, state, age, remaining, generation, .. } = flow;
    let answered = if flow.answered { "" } else { ", unanswered" };
    format!(
        "{protocol:6} {from} -> {to}  {state}{answered}, idle {age} s, expires in {remaining} s, \
         generation {generation}"
    )
}

/// `shop/web 10.0.0.1:80`
fn end(end: &FlowEnd) -> String {
    address(end.pod.as_deref(), end.ip, end.port)
}

pub(super) fn address(pod: Option<&str>, ip: std::net::IpAddr, port: Option<u16>) -> String {
    let pod = pod.map(|pod| format!("{pod} ")).unwrap_or_default();
    match (port, ip.is_ipv6()) {
        (None, _) => format!("{pod}{ip}"),
        (Some(port), false) => format!("{pod}{ip}:{port}"),
        (Some(port), true) => format!("{pod}[{ip}]:{port}"),
    }
}
