//! `weir explain`: explains one flow to people: the rules that decide it on each side, their lines, and what would have
//! to change.

mod json;
mod text;

use anyhow::{Result, anyhow, ensure};
use weir_analysis::world::DescribedPod;
use weir_model::eval::{
    EndVerdict, Flow, FlowEnd, FlowProtocol, HostPortBasis, Judgement, Oracle, ServiceBasis, Verdict,
};
use weir_model::{Backend, Cluster, EndpointId};

use super::CommandOutcome;
use crate::args::{ExpectedVerdict, ExplainArgs, GlobalArgs, TextOrJson, World};
use crate::endpoint_lookup::{EndpointLookup, reference};
use crate::failure::{self, with_hint};
use crate::page::OutputPage;
use crate::question::{FlowQuestion, JudgedPacket, QuestionEnd};
use crate::rule_mismatch::protocol_name;
use crate::verdict_reasons::verdict_name;
use crate::{possible_pods, read};

pub(crate) fn run(global: &GlobalArgs, explain: &ExplainArgs) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, &explain.input)? else { return Ok(CommandOutcome::Failed) };
    let lookup = EndpointLookup { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    let (from, to) = (described(&explain.from, explain.world)?, described(&explain.to, explain.world)?);
    let question = FlowQuestion {
        from: from.as_ref().map_or(QuestionEnd::Named(&explain.from), QuestionEnd::Described),
        to: to.as_ref().map_or(QuestionEnd::Named(&explain.to), QuestionEnd::Described),
        port: explain.port.as_deref(),
        protocol: explain.proto.as_deref(),
    };
    let answer =
        question.ask(&lookup, &mut oracle).map_err(|reason| match question.hint(&lookup, oracle.directory()) {
            Some(hint) => with_hint(reason, hint),
            None => anyhow!(reason),
        })?;
    let mut page = match explain.output {
        TextOrJson::Text => text::answer(&read, &answer, OutputPage::for_stdout(global.color), global.verbose > 0),
        TextOrJson::Json => json::answer(&read, &answer)?,
    };
    read.left_out.mark(&mut page, explain.output)?;
    page.print()?;
    let expected = explain.expect.map(|it| if it == ExpectedVerdict::Allow { Verdict::Allow } else { Verdict::Deny });
    let Some(expected) = expected.filter(|it| Some(*it) != answer.verdict()) else { return Ok(CommandOutcome::Clean) };
    let found = match (answer.verdict(), &answer.verdict_if) {
        (None, Some(conditions)) => format!("depends on {}", conditions.fields.join(" and ")),
        (verdict, _) => format!("is {}", possible_pods::verdict_word(verdict)),
    };
    let error = anyhow!("expected {}, but the verdict {found}", verdict_name(expected));
    failure::print(&match suggestion(explain, expected) {
        Some(command) => with_hint(error.to_string(), format!("to propose a change: {command}")),
        None => error,
    });
    Ok(CommandOutcome::Findings)
}

/// The command that proposes the change of a policy with which the verdict is as expected.
fn suggestion(explain: &ExplainArgs, expected: Verdict) -> Option<String> {
    let mut words = vec!["weir".to_owned(), "suggest".to_owned()];
    words.extend(explain.input.paths.iter().map(|it| it.display().to_string()));
    words.extend(["--from".to_owned(), explain.from.clone(), "--to".to_owned(), explain.to.clone()]);
    for (flag, value) in [("--port", &explain.port), ("--proto", &explain.proto)] {
        words.extend(value.iter().flat_map(|it| [flag.to_owned(), it.clone()]));
    }
    words.extend((expected == Verdict::Deny).then(|| "--deny".to_owned()));
    // Words with other characters would have to be quoted for a shell, and descriptions of pods cannot be asked about.
    let is_plain = |it: &String| it.chars().all(|it| it.is_ascii_alphanumeric() || "-_./:".contains(it));
    words.iter().all(is_plain).then(|| words.join(" "))
}

/// The pod that a text describes; `None` for a name or an address.
fn described(text: &str, world: World) -> Result<Option<DescribedPod>> {
    let pod = possible_pods::parse(text).transpose().map_err(|reason| anyhow!(reason))?;
    ensure!(pod.is_none() || world == World::Open, "`{text}`: {}", possible_pods::CLOSED);
    Ok(pod)
}

/// The verdicts if the policies in audit mode were enforced; `None` if there are no such policies.
fn with_audit(cluster: &Cluster, packets: &[JudgedPacket]) -> Option<Vec<Judgement>> {
    if cluster.audit.is_empty() {
        return None;
    }
    let judge = |packet: &JudgedPacket| {
        let enforced = packet.cluster(cluster).with_audit_enforced();
        Oracle::new(&enforced).judge(&packet.flow)
    };
    Some(packets.iter().map(judge).collect())
}

/// The packet: protocol, both lookup, destination port.
fn packet(cluster: &Cluster, flow: &Flow) -> String {
    let protocol = protocol(flow.protocol);
    let port = if flow.protocol == FlowProtocol::Icmp { String::new() } else { format!(" port {}", flow.port) };
    let (from, to) = (end(cluster, &flow.source), end(cluster, &flow.destination));
    let is_several = |id: EndpointId| cluster.endpoints[id.index()].is_several;
    match flow.source.endpoint.filter(|id| is_several(*id) && flow.destination.endpoint == Some(*id)) {
        Some(_) => format!("{protocol} one pod of {from} -> another pod of {to}{port}"),
        None => format!("{protocol} {from} -> {to}{port}"),
    }
}

fn protocol(protocol: FlowProtocol) -> &'static str {
    match protocol {
        FlowProtocol::Transport(protocol) => protocol_name(protocol),
        FlowProtocol::Icmp => "icmp",
    }
}

fn end(cluster: &Cluster, end: &FlowEnd) -> String {
    let name = end.endpoint.map(|id| reference(&cluster.endpoints[id.index()].kind, &cluster.endpoint_name(id)));
    match (name, end.address) {
        (Some(name), Some(address)) => format!("{name} ({address})"),
        (Some(name), None) => name,
        (None, Some(address)) => address.to_string(),
        (None, None) => "any address".to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A hostPort that claims the destination of a flow.
struct JudgedHostPort<'b> {
    name: String,
    /// The flow to the hostPort's pod.
    flow: Flow,
    side: &'b EndVerdict,
}

/// The hostPorts that claim the destination, each with its own judgement.
fn claims<'b>(cluster: &Cluster, flow: &Flow, basis: &'b HostPortBasis) -> Vec<JudgedHostPort<'b>> {
    let claim = |(index, side): &'b (usize, EndVerdict)| {
        let Backend { endpoint, address, port } = cluster.host_ports.get(*index)?.backend;
        let flow = Flow { destination: FlowEnd { endpoint, address }, port, ..flow.clone() };
        Some(JudgedHostPort { name: cluster.host_port_name(*index), flow, side })
    };
    basis.claims.iter().filter_map(claim).collect()
}

/// The backends of a service: for each the flow to it, and the side that was judged.
fn backends<'b>(cluster: &Cluster, flow: &Flow, basis: &'b ServiceBasis) -> Vec<(Flow, &'b EndVerdict)> {
    let ports = &cluster.services[basis.service.index()].ports;
    let backends = basis.port.and_then(|port| ports.get(port as usize)).map_or(&[][..], |port| &port.backends);
    let family = flow.destination.address.map(|it| it.is_ipv4());
    let serving = backends
        .iter()
        .filter(|it| it.address.is_none_or(|address| family.is_none_or(|family| address.is_ipv4() == family)));
    let flow_to = |backend: &Backend| Flow {
        destination: FlowEnd { endpoint: backend.endpoint, address: backend.address },
        port: backend.port,
        ..flow.clone()
    };
    serving.map(flow_to).zip(&basis.backends).collect()
}
