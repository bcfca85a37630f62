//! `weir explain`: explains one flow to people: the rules that decide it on each side, their lines, and what would have
//! to change.

mod text;

use anyhow::{Result, anyhow, ensure};
use weir_analysis::world::DescribedPod;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, EndpointId};
use weir_policy::endpoint_lookup::{EndpointLookup, reference};
use weir_policy::explanation::{explain as explain_answer, protocol};
use weir_policy::possible_pods;
use weir_policy::question::{FlowQuestion, QuestionEnd};
use weir_policy::verdict_reasons::verdict_name;

use super::CommandOutcome;
use crate::args::{ExpectedVerdict, ExplainArgs, GlobalArgs, TextOrJson, World};
use crate::failure::{self, with_hint};
use crate::page::OutputPage;
use crate::read;

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
        TextOrJson::Json => {
            let mut page = OutputPage::new();
            page.pretty_json(&explain_answer(&read.cluster, &read.sources, &answer))?;
            page
        }
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

fn end(cluster: &Cluster, end: &FlowEnd) -> String {
    let name = end.endpoint.map(|id| reference(&cluster.endpoints[id.index()].kind, &cluster.endpoint_name(id)));
    match (name, end.address) {
        (Some(name), Some(address)) => format!("{name} ({address})"),
        (Some(name), None) => name,
        (None, Some(address)) => address.to_string(),
        (None, None) => "any address".to_owned(),
    }
}
