//! `weir attach`: enforcement on this machine's interfaces.

mod departed;
mod trust;

use anyhow::{Context as _, Result};
use weir_artifact::Artifact;
use weir_runtime::HookNeighbour;
use weir_runtime::runtime::{Attached, EdgeFailure, EdgeState, PinAccess, Request, Runtime, UplinkState};

use super::Outcome;
use crate::args::{Attach, Established, Global, Paths};
use crate::failure::with_hint;
use crate::page::{self, Page};

pub(crate) fn run(global: &Global, arguments: &Attach) -> Result<Outcome> {
    let path = &arguments.artifact;
    // The file is read once. The checked bytes are the attached bytes, even if the file changes in the meantime.
    let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if let Some(key) = &arguments.key {
        trust::check_signature(global, path, &file, key)?;
    }
    let artifact =
        Artifact::read(&file).with_context(|| format!("{} is no artifact that can be used", path.display()))?;
    if !arguments.verify.is_empty() {
        let paths = Paths { paths: arguments.verify.clone() };
        match trust::check_policies(global, &artifact, &paths)? {
            Outcome::Clean => {}
            other => return Ok(other),
        }
    }
    let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Change)?;
    let request = Request {
        artifact: &artifact,
        file: &file,
        endpoints: arguments.endpoints.clone(),
        uplinks: arguments.xdp.clone(),
        way: arguments.hook.way(),
        keep: arguments.established.map(|it| it == Established::Keep),
        exact: None,
    };
    // If it cannot be read, the kernel's state is damaged. `Runtime::attach` reports that.
    let before = runtime.artifact_in_force().unwrap_or_default();
    let attached = runtime.attach(&request)?;
    if attached.endpoints.is_empty() {
        return Err(with_hint("nothing is enforced: no endpoint is attached", "name one: --endpoint NS/POD=IFNAME"));
    }
    end_departed(global, &runtime, &attached, before.as_ref(), &artifact);
    if !global.quiet {
        text(&attached).print()?;
        let mut page = Page::new();
        runtime.neighbours(&attached.endpoints)?.iter().for_each(|it| page.line(neighbour_line(it)));
        page.print()?;
    }
    tell_of_uplinks(&attached);
    // The generation is in force. Only the one that it replaced is left to remove.
    if let Err(error) = runtime.reap() {
        page::complain(format_args!(
            "warning: the generation before could not be removed, the next command will: {error}"
        ));
    }
    Ok(Outcome::Clean)
}

/// Ends flows to services that have lost the flow's backend, unless established flows are kept.
fn end_departed(global: &Global, runtime: &Runtime, attached: &Attached, before: Option<&Artifact>, now: &Artifact) {
    let Some(before) = before.filter(|_| attached.before.is_some() && !attached.generation.keep) else { return };
    match departed::end(runtime, before, now) {
        Ok(count) if count > 0 && !global.quiet => page::complain(format_args!(
            "note: {count} flow{} ended: their services have lost a backend that their pods may not reach any more",
            plural(count)
        )),
        Ok(_) => {}
        Err(error) => {
            page::complain(format_args!("warning: flows to backends that services have lost may go on: {error:#}"))
        }
    }
}

/// Reports uplinks where the edge program runs in generic mode, drops nothing, or is not of this generation.
fn tell_of_uplinks(attached: &Attached) {
    for EdgeFailure { interface, why } in &attached.generic {
        page::complain(format_args!(
            "note: the driver of {interface} takes no XDP program ({why}); the kernel runs it, later (generic mode)"
        ));
    }
    let idle: Vec<&str> = attached
        .uplinks
        .iter()
        .filter(|it| it.state == EdgeState::Idle)
        .map(|it| it.uplink.interface.as_str())
        .collect();
    if !idle.is_empty() {
        page::complain(format_args!(
            "note: no list denies anything to every pod in both directions, so nothing is dropped at {}",
            idle.join(", ")
        ));
    } else if attached.generation.keep && !attached.uplinks.is_empty() {
        page::complain("note: established flows are kept, and uplinks do not know them, so nothing is dropped there");
    }
    for EdgeFailure { interface, why } in &attached.edge_failures {
        page::complain(format_args!("warning: at {interface}, the program at_edge is not of this generation: {why}"));
    }
}

fn text(attached: &Attached) -> Page {
    let generation = &attached.generation;
    let mut text = format!("generation {} ({}) in force at ", generation.epoch, short(&generation.digest));
    text.push_str(&format!("{} endpoint{}", attached.endpoints.len(), plural(attached.endpoints.len())));
    if let Some(before) = &attached.before {
        text.push_str(&format!(", in place of {} ({})", before.epoch, short(&before.digest)));
    }
    let mut page = Page::new();
    page.line(text);
    for it in attached.uplinks.iter().filter(|it| it.state == EdgeState::Enforced) {
        let UplinkState { uplink, .. } = it;
        let by = if uplink.generic { "generic" } else { "native" };
        page.line(format_args!("at {} ({by}): what lists deny to every pod, both ways, is dropped", uplink.interface));
    }
    for gone in &attached.gone {
        page.line(format_args!("forgotten: {} (interface {} is gone)", gone.pod, gone.interface));
    }
    for repaired in &attached.repaired {
        page.line(format_args!("repaired: {repaired}"));
    }
    page
}

/// Describes a program of another owner at one of our hooks.
pub(super) fn neighbour_line(neighbour: &HookNeighbour) -> String {
    let HookNeighbour { interface, beside, before, program, name, .. } = neighbour;
    let order = if *before { "before" } else { "after" };
    let note = if *before { ": what it accepts for good, we never see" } else { "" };
    format!("also at {interface}: {name} (program {program}) runs {order} {beside}{note}")
}

pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
