//! `weir explain`: explains one flow to people: the rules that decide it on each side, their lines, and what would have
//! to change.

mod json;
mod text;

use anyhow::{Result, anyhow};
use weir_model::eval::{
    EndVerdict, Flow, FlowEnd, FlowProtocol, HostPortBasis, Judgement, Oracle, ServiceBasis, Verdict,
};
use weir_model::{Backend, Cluster};

use super::Outcome;
use crate::args::{Expected, Explain, Global, TextOrJson};
use crate::because::word;
use crate::ends::Ends;
use crate::failure::{self, with_hint};
use crate::near::protocol_name;
use crate::question::Question;
use crate::{page, read};

pub(crate) fn run(global: &Global, explain: &Explain) -> Result<Outcome> {
    let Some(read) = read::read_sound(global, &explain.input)? else { return Ok(Outcome::Failed) };
    let ends = Ends { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    let question = Question {
        from: &explain.from,
        to: &explain.to,
        port: explain.port.as_deref(),
        protocol: explain.proto.as_deref(),
    };
    let answer = question.ask(&ends, &mut oracle).map_err(|reason| match question.hint(&ends, oracle.directory()) {
        Some(hint) => with_hint(reason, hint),
        None => anyhow!(reason),
    })?;
    let page = match explain.output {
        TextOrJson::Text => text::answer(&read, &answer, page::color_on_stdout(global.color)),
        TextOrJson::Json => json::answer(&read, &answer)?,
    };
    page.print()?;
    let expected = explain.expect.map(|it| if it == Expected::Allow { Verdict::Allow } else { Verdict::Deny });
    match expected {
        Some(expected) if expected != answer.verdict() => {
            let words = (word(expected), word(answer.verdict()));
            failure::print(&anyhow!("expected {}, but the verdict is {}", words.0, words.1));
            Ok(Outcome::Findings)
        }
        _ => Ok(Outcome::Clean),
    }
}

/// The verdicts if the policies in audit mode were enforced; `None` if there are no such policies.
fn with_audit(cluster: &Cluster, packets: &[(Flow, Judgement)]) -> Option<Vec<Judgement>> {
    if cluster.audit.is_empty() {
        return None;
    }
    let enforced = cluster.with_audit_enforced();
    let mut oracle = Oracle::new(&enforced);
    Some(packets.iter().map(|(flow, _)| oracle.judge(flow)).collect())
}

/// The packet: protocol, both ends, destination port.
fn packet(cluster: &Cluster, flow: &Flow) -> String {
    let protocol = protocol(flow.protocol);
    let port = if flow.protocol == FlowProtocol::Icmp { String::new() } else { format!(" port {}", flow.port) };
    format!("{protocol} {} -> {}{port}", end(cluster, &flow.source), end(cluster, &flow.destination))
}

fn protocol(protocol: FlowProtocol) -> &'static str {
    match protocol {
        FlowProtocol::Transport(protocol) => protocol_name(protocol),
        FlowProtocol::Icmp => "icmp",
    }
}

fn end(cluster: &Cluster, end: &FlowEnd) -> String {
    let name = end.endpoint.map(|id| {
        let kind = cluster.endpoints[id.index()].kind.as_ref();
        let kind = if kind == "Pod" { String::new() } else { format!("{}/", kind.to_lowercase()) };
        format!("{kind}{}", cluster.endpoint_name(id))
    });
    match (name, end.address) {
        (Some(name), Some(address)) => format!("{name} ({address})"),
        (Some(name), None) => name,
        (None, Some(address)) => address.to_string(),
        (None, None) => "anyone".to_owned(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The flows behind the judgement of a hostPort: for each claim its name, the flow to the pod behind it, and the side
/// that was judged.
fn claims<'b>(cluster: &Cluster, flow: &Flow, basis: &'b HostPortBasis) -> Vec<(String, Flow, &'b EndVerdict)> {
    let claim = |(index, side): &'b (usize, EndVerdict)| {
        let Backend { endpoint, address, port } = cluster.host_ports.get(*index)?.backend;
        let flow = Flow { destination: FlowEnd { endpoint, address }, port, ..flow.clone() };
        Some((cluster.host_port_name(*index), flow, side))
    };
    basis.claims.iter().filter_map(claim).collect()
}

/// The flows behind the judgement of a service: for each backend a flow of its own and the side that was judged.
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
