//! `weir attach`: enforcement on this machine's interfaces.

use anyhow::{Context as _, Result};
use weir_compiler::artifact::Artifact;
use weir_runtime::Neighbour;
use weir_runtime::runtime::{Access, Attached, EdgeFailure, EdgeState, Request, Runtime, UplinkState};

use super::Outcome;
use crate::args::{Attach, Established, Global};
use crate::failure::with_hint;
use crate::render;

pub(crate) fn run(global: &Global, arguments: &Attach) -> Result<Outcome> {
    let path = &arguments.artifact;
    let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let artifact =
        Artifact::read(&file).with_context(|| format!("{} is no artifact that can be used", path.display()))?;
    let runtime = Runtime::open(&arguments.pinned.bpffs, Access::Change)?;
    let request = Request {
        artifact: &artifact,
        file: &file,
        endpoints: arguments.endpoints.clone(),
        uplinks: arguments.xdp.clone(),
        way: arguments.hook.way(),
        keep: arguments.established.map(|it| it == Established::Keep),
    };
    let attached = runtime.attach(&request)?;
    if attached.endpoints.is_empty() {
        return Err(with_hint("nothing is enforced: no endpoint is attached", "name one: --endpoint NS/POD=IFNAME"));
    }
    if !global.quiet {
        render::print(text(&attached).as_bytes())?;
        let neighbours = runtime.neighbours(&attached.endpoints)?;
        render::print(neighbours.iter().map(neighbour_line).collect::<String>().as_bytes())?;
    }
    tell_of_uplinks(&attached);
    // It is in force; what is left is to throw away what it replaced.
    if let Err(error) = runtime.reap() {
        eprintln!("warning: the generation before could not be removed, the next command will: {error}");
    }
    Ok(Outcome::Clean)
}

/// Of uplinks where it is not as one might think.
fn tell_of_uplinks(attached: &Attached) {
    for EdgeFailure { interface, why } in &attached.generic {
        eprintln!(
            "note: the driver of {interface} takes no XDP program ({why}); the kernel runs it, later (generic mode)"
        );
    }
    let idle: Vec<&str> = attached
        .uplinks
        .iter()
        .filter(|it| it.state == EdgeState::Idle)
        .map(|it| it.uplink.interface.as_str())
        .collect();
    if !idle.is_empty() {
        eprintln!(
            "note: no list denies anything to every pod in both directions, so nothing is dropped at {}",
            idle.join(", ")
        );
    } else if attached.generation.keep && !attached.uplinks.is_empty() {
        eprintln!("note: established flows are kept, and uplinks do not know them, so nothing is dropped there");
    }
    for EdgeFailure { interface, why } in &attached.edge_failures {
        eprintln!("warning: at {interface}, the program at_edge is not of this generation: {why}");
    }
}

fn text(attached: &Attached) -> String {
    let generation = &attached.generation;
    let mut text = format!("generation {} ({}) in force at ", generation.epoch, short(&generation.digest));
    text.push_str(&format!("{} endpoint{}", attached.endpoints.len(), plural(attached.endpoints.len())));
    if let Some(before) = &attached.before {
        text.push_str(&format!(", in place of {} ({})", before.epoch, short(&before.digest)));
    }
    text.push('\n');
    for it in attached.uplinks.iter().filter(|it| it.state == EdgeState::Enforced) {
        let UplinkState { uplink, .. } = it;
        let by = if uplink.generic { "generic" } else { "native" };
        text.push_str(&format!(
            "at {} ({by}): what lists deny to every pod, both ways, is dropped\n",
            uplink.interface
        ));
    }
    for gone in &attached.gone {
        text.push_str(&format!("forgotten: {} (interface {} is gone)\n", gone.pod, gone.interface));
    }
    for mended in &attached.mended {
        text.push_str(&format!("mended: {mended}\n"));
    }
    text
}

/// Another's program on one of our hooks.
pub(super) fn neighbour_line(neighbour: &Neighbour) -> String {
    let Neighbour { interface, beside, before, program, name, .. } = neighbour;
    let order = if *before { "before" } else { "after" };
    let note = if *before { ": what it accepts for good, we never see" } else { "" };
    format!("also at {interface}: {name} (program {program}) runs {order} {beside}{note}\n")
}

pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
