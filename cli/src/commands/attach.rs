//! `weir attach`: enforcement on this machine's interfaces.

mod departed;
mod interfaces;
mod precheck;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use weir_artifact::Artifact;
use weir_runtime::runtime::{
    Attached, EdgeFailure, EdgeState, EnforcementState, PinAccess, Request, Runtime, UnattachedEndpoint, UplinkState,
    unattached,
};
use weir_runtime::{EnforcedEndpoint, HookNeighbour, KernelGeneration};

use super::CommandOutcome;
use crate::args::{AttachArgs, EstablishedFlows, GlobalArgs, InputOptions, InputPaths, TextOrJson};
use crate::failure::{self, with_hint};
use crate::page::{self, OutputPage};
use interfaces::{Discovered, HostInterfaces};

pub(crate) fn run(global: &GlobalArgs, arguments: &AttachArgs) -> Result<CommandOutcome> {
    let path = &arguments.artifact;
    // The file is read once. The checked bytes are the attached bytes, even if the file changes in the meantime.
    let file = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let prints = arguments.output == TextOrJson::Text && !global.quiet;
    let signed = arguments.key.as_ref().map(|key| precheck::check_signature(path, &file, key)).transpose()?;
    if let Some(comment) = signed.as_ref().filter(|_| prints) {
        page::print(format_args!("signed: {comment}"))?;
    }
    let artifact = Artifact::read(&file).with_context(|| format!("{} is not a usable artifact", path.display()))?;
    if !arguments.verify.is_empty() {
        let paths = InputPaths { paths: arguments.verify.clone(), options: InputOptions::default() };
        match precheck::check_policies(global, &artifact, &paths, prints)? {
            CommandOutcome::Clean => {}
            other => return Ok(other),
        }
    }
    let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Change)?;
    let Chosen { endpoints, missing } = choose(&artifact, arguments, &runtime)?;
    if !arguments.force {
        refuse_second_installation(&runtime, arguments, &endpoints)?;
    }
    let request = Request {
        artifact: &artifact,
        file: &file,
        endpoints,
        uplinks: arguments.xdp.clone(),
        way: arguments.hook.way(),
        keep: arguments.established.map(|it| it == EstablishedFlows::Keep),
        exact: None,
        extends: None,
    };
    // If it cannot be read, the kernel's state is damaged. `Runtime::attach` reports that.
    let before = runtime.artifact_in_force().unwrap_or_default();
    let attached = runtime.attach(&request)?;
    if attached.endpoints.is_empty() {
        return Err(with_hint(
            "nothing is enforced: no endpoint is attached",
            "name an endpoint: --endpoint NS/POD=IFNAME, or find all of them: --discover",
        ));
    }
    end_departed(global, &runtime, &attached, before.as_ref(), &artifact);
    let unattached = unattached(&artifact, &attached.endpoints);
    // The artifact is in force, so an error here must not look like one of the attachment.
    let neighbours = runtime.neighbours(&attached.endpoints).inspect_err(|error| {
        page::print_to_stderr(format_args!("warning: the other programs at the interfaces are not known: {error}"));
    });
    let neighbours = neighbours.ok();
    let proof = Proof { signed, is_verified: !arguments.verify.is_empty() };
    let mut page = if prints { text(&attached) } else { OutputPage::new() };
    match arguments.output {
        TextOrJson::Json => page.json(&json(&attached, proof, &unattached, neighbours.as_deref()))?,
        TextOrJson::Text if prints => neighbours.iter().flatten().for_each(|it| page.line(neighbour_line(it))),
        TextOrJson::Text => {}
    }
    page.print()?;
    report_uplinks(&attached);
    // The generation is in force. Only the one that it replaced is left to remove.
    if let Err(error) = runtime.reap() {
        page::print_to_stderr(format_args!(
            "warning: cannot remove the previous generation, the next command will try again: {error}"
        ));
    }
    Ok(report_unattached(&unattached, &missing, artifact.endpoints.len()))
}

/// Facts about the artifact that were proved before it was attached.
struct Proof {
    /// The comment in its signature, if that was checked.
    signed: Option<String>,
    is_verified: bool,
}

/// The state in force, as JSON (docs/schema/attach.json).
fn json(
    attached: &Attached,
    proof: Proof,
    unattached: &[UnattachedEndpoint],
    neighbours: Option<&[HookNeighbour]>,
) -> Value {
    let endpoint = |it: &EnforcedEndpoint| {
        json!({
            "pod": it.pod, "interface": it.interface, "ifindex": it.ifindex, "hook": it.way, "closed": it.closed,
        })
    };
    json!({
        "generation": generation_json(&attached.generation),
        "before": attached.before.as_ref().map(generation_json),
        "signed": proof.signed,
        "verified": proof.is_verified,
        "endpoints": attached.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "unattached": unattached,
        "gone": attached.gone.iter().map(gone_json).collect::<Vec<_>>(),
        "uplinks": attached.uplinks.iter().map(uplink_json).collect::<Vec<_>>(),
        "neighbours": neighbours,
        "repaired": attached.repaired,
    })
}

/// An endpoint that is not attached any more.
pub(super) fn gone_json(endpoint: &EnforcedEndpoint) -> Value {
    json!({"pod": endpoint.pod, "interface": endpoint.interface})
}

pub(super) fn generation_json(generation: &KernelGeneration) -> Value {
    let established = if generation.keep { "keep" } else { "cut" };
    json!({"epoch": generation.epoch, "digest": generation.digest, "established": established})
}

pub(super) fn uplink_json(it: &UplinkState) -> Value {
    let mode = if it.uplink.generic { "generic" } else { "native" };
    json!({"interface": it.uplink.interface, "ifindex": it.uplink.ifindex, "mode": mode, "state": it.state})
}

/// The endpoints of a request, and the reasons why the others have no interface.
struct Chosen {
    endpoints: Vec<(String, String)>,
    missing: BTreeMap<String, String>,
}

/// Checks the named interfaces and those that stay attached, and discovers the others if that was asked for.
fn choose(artifact: &Artifact, arguments: &AttachArgs, runtime: &Runtime) -> Result<Chosen> {
    let mut endpoints = arguments.endpoints.clone();
    // Without a record, no endpoint is attached yet.
    let mut stay = runtime.attached().unwrap_or_default();
    stay.retain(|it| !it.closed && endpoints.iter().all(|(_, interface)| *interface != it.interface));
    let is_asked_for = !endpoints.is_empty() || arguments.discover;
    if !is_asked_for && stay.is_empty() {
        return Ok(Chosen { endpoints, missing: BTreeMap::new() });
    }
    let place = |it: &EnforcedEndpoint| (it.pod.clone(), it.interface.clone());
    let known: Vec<(String, String)> = endpoints.iter().cloned().chain(stay.iter().map(place)).collect();
    let host = match HostInterfaces::read(artifact, &arguments.cni_results, &known) {
        Err(error) if !is_asked_for => {
            page::print_to_stderr(format_args!("warning: the attached interfaces were not checked: {error:#}"));
            return Ok(Chosen { endpoints, missing: BTreeMap::new() });
        }
        host => host?,
    };
    if !arguments.force {
        let objections = endpoints.iter().filter_map(|(pod, name)| host.objection(pod, name));
        let objections: Vec<String> = objections.collect();
        if !objections.is_empty() {
            return Err(with_hint(
                format!("nothing was attached: {}", objections.join("; ")),
                "name the host's end of the pod's veth, let --discover find it, or override the check with --force",
            ));
        }
        warn_of_moved(&host, &stay);
    }
    if !arguments.discover {
        return Ok(Chosen { endpoints, missing: BTreeMap::new() });
    }
    let status = runtime.status().map(|it| it.endpoints).unwrap_or_default();
    let attached = status.into_iter().filter(|it| it.state != EnforcementState::Gone).map(|it| it.endpoint);
    let attached = attached.filter(|it| endpoints.iter().all(|(pod, _)| *pod != it.pod));
    let known: Vec<_> = attached.map(|it| (it.pod, it.interface)).chain(endpoints.iter().cloned()).collect();
    let Discovered { found, missing } = host.discover(&known);
    endpoints.extend(found);
    Ok(Chosen { endpoints, missing })
}

/// Warns of interfaces that stay attached and seem to belong to another pod. This is no error: a pod can change its
/// addresses, and must not keep the policies of other pods from coming into force.
fn warn_of_moved(host: &HostInterfaces<'_>, stay: &[EnforcedEndpoint]) {
    for it in stay.iter().filter(|it| host.is_at(&it.interface, it.ifindex)) {
        let EnforcedEndpoint { pod, interface, .. } = it;
        if let Some(why) = host.objection(pod, interface) {
            page::print_to_stderr(format_args!(
                "warning: {interface} may not be the interface of {pod} any more: {why}; to remove it: weir detach \
                 --endpoint {pod}"
            ));
        }
    }
}

/// Refuses interfaces where another installation of weir enforces. With TCX, packets would have to pass the policies of
/// both; with clsact, this one would take the place of the other.
fn refuse_second_installation(runtime: &Runtime, arguments: &AttachArgs, endpoints: &[(String, String)]) -> Result<()> {
    let interfaces: Vec<String> = endpoints.iter().map(|(_, interface)| interface.clone()).collect();
    let others = runtime.other_installations(&interfaces, arguments.hook.way())?;
    let Some(HookNeighbour { interface, name, program, .. }) = others.first() else { return Ok(()) };
    let interfaces: BTreeSet<&str> = others.iter().map(|it| it.interface.as_str()).collect();
    let more = match interfaces.len() - 1 {
        0 => String::new(),
        more => format!(", and at {more} other interface{}", plural(more)),
    };
    let bpffs = arguments.pinned.bpffs.display();
    Err(with_hint(
        format!(
            "nothing was attached: at {interface}{more}, another installation of weir enforces already ({name}, \
             program {program}), not the one of {bpffs}"
        ),
        "name its directory with --bpffs, or remove it: weir detach --bpffs DIR; with --force, filters of clsact are \
         replaced, and with TCX packets must pass the policies of both",
    ))
}

/// Names the local endpoints of the artifact that are not attached.
fn report_unattached(
    unattached: &[UnattachedEndpoint],
    missing: &BTreeMap<String, String>,
    local: usize,
) -> CommandOutcome {
    if unattached.is_empty() {
        return CommandOutcome::Clean;
    }
    let mut page = OutputPage::new();
    for it in unattached {
        page.line(unattached_line(it));
        missing.get(&it.pod).into_iter().for_each(|why| page.line(format_args!("  {why}")));
    }
    page.print_to_stderr();
    let isolated = unattached.iter().filter(|it| it.is_isolated()).count();
    failure::print(&with_hint(
        format!(
            "{} of {local} local endpoints of the artifact are not attached, {isolated} of them isolated: nothing \
             filters their packets",
            unattached.len()
        ),
        "name their interfaces: --endpoint NS/POD=IFNAME, or find them: --discover; `weir compile --node NAME` makes \
         an artifact of one node's pods",
    ));
    CommandOutcome::Findings
}

/// A local endpoint that is not attached, and what its policies deny.
pub(super) fn unattached_line(it: &UnattachedEndpoint) -> String {
    let isolated = match (it.ingress, it.egress) {
        (true, true) => "isolated for ingress and egress",
        (true, false) => "isolated for ingress",
        (false, true) => "isolated for egress",
        (false, false) => "not isolated",
    };
    format!("not attached: {} ({isolated})", it.pod)
}

/// Ends flows to services that have lost the flow's backend, unless established flows are kept.
fn end_departed(
    global: &GlobalArgs,
    runtime: &Runtime,
    attached: &Attached,
    before: Option<&Artifact>,
    now: &Artifact,
) {
    let Some(before) = before.filter(|_| attached.before.is_some() && !attached.generation.keep) else { return };
    match departed::end(runtime, before, now) {
        Ok(count) if count > 0 && !global.quiet => page::print_to_stderr(format_args!(
            "note: ended {count} flow{} to services that have lost a backend, because policy now denies that backend",
            plural(count)
        )),
        Ok(_) => {}
        Err(error) => page::print_to_stderr(format_args!(
            "warning: flows to backends that have left their services may continue: {error:#}"
        )),
    }
}

/// Reports uplinks where the edge program runs in generic mode, drops nothing, or is not of this generation.
fn report_uplinks(attached: &Attached) {
    for EdgeFailure { interface, why } in &attached.generic {
        page::print_to_stderr(format_args!(
            "note: the driver of {interface} does not accept the XDP program ({why}); it runs later, in generic mode"
        ));
    }
    let idle: Vec<&str> = attached
        .uplinks
        .iter()
        .filter(|it| it.state == EdgeState::Idle)
        .map(|it| it.uplink.interface.as_str())
        .collect();
    if !idle.is_empty() {
        page::print_to_stderr(format_args!(
            "note: no list denies an address to every pod in both directions, so nothing is dropped at {}",
            idle.join(", ")
        ));
    } else if attached.generation.keep && !attached.uplinks.is_empty() {
        page::print_to_stderr(
            "note: established flows are kept; programs at uplinks do not know these flows, so they drop nothing",
        );
    }
    for EdgeFailure { interface, why } in &attached.edge_failures {
        page::print_to_stderr(format_args!(
            "warning: at {interface}, the program at_edge belongs to another generation: {why}"
        ));
    }
}

fn text(attached: &Attached) -> OutputPage {
    let generation = &attached.generation;
    let mut text = format!("generation {} ({}) in force at ", generation.epoch, short(&generation.digest));
    text.push_str(&format!("{} endpoint{}", attached.endpoints.len(), plural(attached.endpoints.len())));
    if let Some(before) = &attached.before {
        text.push_str(&format!(", in place of {} ({})", before.epoch, short(&before.digest)));
    }
    let mut page = OutputPage::new();
    page.line(text);
    for it in attached.uplinks.iter().filter(|it| it.state == EdgeState::Enforced) {
        let UplinkState { uplink, .. } = it;
        let by = if uplink.generic { "generic" } else { "native" };
        page.line(format_args!(
            "at {} ({by}): packets that lists deny to every pod in both directions are dropped",
            uplink.interface
        ));
    }
    for gone in &attached.gone {
        page.line(format_args!("no longer attached: {} (interface {} is gone)", gone.pod, gone.interface));
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
    let note = if *before { ": weir does not see packets that it finally accepts" } else { "" };
    format!("also at {interface}: {name} (program {program}) runs {order} {beside}{note}")
}

pub(super) fn short(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
