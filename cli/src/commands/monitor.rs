//! `weir monitor`: prints drops as they happen, and packets that policies in audit mode would drop.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};
use weir_runtime::events::{DatapathEvent, EventPacket};
use weir_runtime::runtime::{PinAccess, Runtime};

use super::CommandOutcome;
use super::flows::address;
use crate::args::{MonitorArgs, MonitorFormat};
use crate::page::OutputPage;
use crate::time::rfc_3339;

/// How long one reading waits: `--duration` may be exceeded by this time.
const TURN: Duration = Duration::from_millis(200);

pub(crate) fn run(arguments: &MonitorArgs) -> Result<CommandOutcome> {
    let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read)?;
    let mut events = runtime.events()?;
    let end = arguments.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 && end.is_none_or(|end| Instant::now() < end) {
        let read = events.read(TURN)?;
        let mut page = OutputPage::new();
        for event in read.events.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            match arguments.output {
                MonitorFormat::Text => page.line(line(event)),
                MonitorFormat::Jsonl => page.json(&json(event))?,
            }
        }
        left = left.saturating_sub(read.events.len() as u64);
        if read.lost > 0 {
            match arguments.output {
                MonitorFormat::Text => page.line(format_args!("{} more packets were not recorded", read.lost)),
                MonitorFormat::Jsonl => page.json(&json!({"lost": read.lost}))?,
            }
        }
        if page != OutputPage::new() {
            page.print()?;
        }
    }
    Ok(CommandOutcome::Clean)
}

fn line(event: &DatapathEvent) -> String {
    let mut text = format!("{} {:7} {:11} ", rfc_3339(event.time), event.direction, event.outcome);
    match &event.packet {
        Some(packet) => text.push_str(&ends(event, packet)),
        None => text.push_str(event.pod.as_deref().unwrap_or("no endpoint")),
    }
    if let Some(list) = &event.why.list {
        text.push_str(&format!("  by list {list}"));
    } else if !event.why.tiers.is_empty() {
        text.push_str(&format!("  denied by a rule of {}", event.why.tiers.join(", ")));
        if !event.why.policies.is_empty() {
            text.push_str(&format!(", or isolated by {}, allowed by no rule", event.why.policies.join(", ")));
        }
    } else if !event.why.policies.is_empty() {
        text.push_str(&format!("  isolated by {}, allowed by no rule", event.why.policies.join(", ")));
    }
    if !event.why.audit.is_empty() {
        let audited = event.why.audit.join(", ");
        text.push_str(&match event.dropped {
            true => format!(", but with {audited} (audit)"),
            false => format!("  would be isolated by {audited} (audit), allowed by no rule"),
        });
    }
    text
}

fn ends(event: &DatapathEvent, packet: &EventPacket) -> String {
    let local = address(event.pod.as_deref(), packet.local, packet.ports.map(|it| it.0));
    let remote = address(packet.peer.as_deref(), packet.remote, packet.ports.map(|it| it.1));
    let (from, to) = if event.direction == "egress" { (local, remote) } else { (remote, local) };
    format!("{} {from} -> {to}", packet.protocol)
}

fn json(event: &DatapathEvent) -> Value {
    let mut value = json!({
        "time": rfc_3339(event.time), "verdict": if event.dropped { "deny" } else { "allow" },
        "reason": event.outcome, "direction": event.direction,
        "pod": event.pod, "ifindex": event.ifindex, "generation": event.generation,
        "policies": event.why.policies, "tiers": event.why.tiers, "audit": event.why.audit, "rule": null, "list": event.why.list,
    });
    if let Some(packet) = &event.packet {
        value["proto"] = json!(packet.protocol);
        value["local"] = json!({"ip": packet.local, "port": packet.ports.map(|it| it.0)});
        value["peer"] = json!({"ip": packet.remote, "pod": packet.peer, "port": packet.ports.map(|it| it.1)});
    }
    value
}
