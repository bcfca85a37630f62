//! The state of this machine.

use anyhow::Result;
use serde_json::{Value, json};
use weir_runtime::KernelGeneration;
use weir_runtime::runtime::{EdgeState, EnforcementState, EnforcementStatus, PinAccess, Runtime};

use crate::args::{StatusArgs, TextOrJson};
use crate::commands::CommandOutcome;
use crate::commands::attach::{generation_json, neighbour_line, short, unattached_line, uplink_json};
use crate::page::OutputPage;

pub(super) fn run(arguments: &StatusArgs) -> Result<CommandOutcome> {
    let status = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read)?.status()?;
    let mut page = OutputPage::new();
    match arguments.output {
        TextOrJson::Text => write(&mut page, &status),
        TextOrJson::Json => page.json(&json(&status))?,
    }
    page.print()?;
    Ok(outcome(&status))
}

/// Endpoints that are not attached are findings, as they are for `weir attach`: nothing filters their packets.
fn outcome(status: &EnforcementStatus) -> CommandOutcome {
    let is_enforced = status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced);
    match is_enforced && status.unattached.is_empty() && status.drift.is_empty() {
        true => CommandOutcome::Clean,
        false => CommandOutcome::Findings,
    }
}

fn word(state: EnforcementState) -> &'static str {
    match state {
        EnforcementState::Enforced => "enforced",
        EnforcementState::Closed => "closed",
        EnforcementState::Other => "other",
        EnforcementState::Open => "open",
        EnforcementState::Gone => "gone",
    }
}

fn edge_word(state: EdgeState) -> &'static str {
    match state {
        EdgeState::Enforced => "enforced",
        EdgeState::Idle => "idle",
        EdgeState::Other => "other",
        EdgeState::Open => "open",
    }
}

fn write(page: &mut OutputPage, status: &EnforcementStatus) {
    match &status.generation {
        Some(it) => page.line(format_args!(
            "generation {} ({}), established flows are {}",
            it.epoch,
            short(&it.digest),
            established(it)
        )),
        None => page.line("no generation is in force"),
    }
    let width = status.endpoints.iter().map(|it| it.endpoint.pod.len()).max().unwrap_or(0);
    for it in &status.endpoints {
        let (pod, interface) = (&it.endpoint.pod, &it.endpoint.interface);
        page.line(format_args!("  {pod:width$}  {interface:15}  {}", word(it.state)));
    }
    status.unattached.iter().for_each(|it| page.line(format_args!("  {}", unattached_line(it))));
    for it in &status.uplinks {
        let by = if it.uplink.generic { "generic" } else { "native" };
        page.line(format_args!("  uplink {:15}  {} ({by})", it.uplink.interface, edge_word(it.state)));
    }
    for map in &status.maps {
        let percent = map.entries * 100 / u64::from(map.max_entries.max(1));
        page.line(format_args!("  map {:12} {:>9} of {:>9}  {percent:>3} %", map.name, map.entries, map.max_entries));
    }
    status.neighbours.iter().for_each(|it| page.line(neighbour_line(it)));
    status.drift.iter().for_each(|it| page.line(format_args!("drift: {it}")));
    if status.repaired > 0 {
        page.line(format_args!("repaired so far: {}", status.repaired));
    }
}

fn established(generation: &KernelGeneration) -> &'static str {
    if generation.keep { "kept" } else { "cut" }
}

/// The state as JSON (docs/schema/status.json).
pub(in crate::commands) fn json(status: &EnforcementStatus) -> Value {
    let endpoint = |it: &weir_runtime::runtime::EndpointState| {
        let local = &it.endpoint;
        json!({
            "pod": local.pod, "interface": local.interface, "ifindex": local.ifindex, "hook": local.way,
            "state": it.state,
        })
    };
    json!({
        "generation": status.generation.as_ref().map(generation_json),
        "switching_to": status.switching_to.as_ref().map(generation_json),
        "endpoints": status.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "unattached": status.unattached,
        "uplinks": status.uplinks.iter().map(uplink_json).collect::<Vec<_>>(),
        "drift": status.drift,
        "neighbours": status.neighbours,
        "maps": status.maps,
        "repaired": status.repaired,
    })
}
