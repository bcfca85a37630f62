//! The explanation for programs: docs/schema/explain.json.

use serde_json::{Value, json};
use weir_analysis::world::PossiblePod;
use weir_artifact::layout::program_name;
use weir_model::eval::{Basis, EndVerdict, Flow, FlowEnd, FlowProtocol};
use weir_model::{Cluster, Direction};
use weir_objects::diagnostic::FindingPlace;
use weir_objects::origin::FieldOrigin;

use super::{JudgedHostPort, backends, claims, hex, protocol, with_audit};
use crate::locator::Locator;
use crate::page::OutputPage;
use crate::possible_pods;
use crate::question::{FlowAnswer, JudgedPacket};
use crate::read::ReadInput;
use crate::rule_mismatch;
use crate::verdict_reasons::{self, ShownReason, verdict_name};
use crate::witness::{self, ClassDescription, WitnessPacket};

/// One document.
pub(super) fn answer(read: &ReadInput, answer: &FlowAnswer) -> serde_json::Result<OutputPage> {
    let mut explanation = JsonExplanation { read, cluster: &read.cluster, locator: Locator::new(&read.sources) };
    let audited = with_audit(&read.cluster, &answer.packets).unwrap_or_default();
    let packets: Vec<Value> = answer
        .packets
        .iter()
        .enumerate()
        .map(|(index, judged)| {
            let JudgedPacket { flow, judgement, example } = judged;
            let cluster = judged.cluster(&read.cluster);
            explanation.cluster = cluster;
            let pods = example.as_ref().map_or([None, None], |it| it.pods.each_ref().map(Option::as_ref));
            let mut value = json!({
                "packet": packet(cluster, flow, pods),
                "verdict": verdict_name(judgement.verdict()),
                "egress": explanation.side(Direction::Egress, flow, &judgement.egress),
                "ingress": explanation.side(Direction::Ingress, flow, &judgement.ingress),
                "witnesses": [],
            });
            if let Some(audited) = audited.get(index) {
                let of = |direction| verdict_name(audited.side(direction).verdict);
                value["audit"] = json!({
                    "verdict": verdict_name(audited.verdict()),
                    "egress": of(Direction::Egress),
                    "ingress": of(Direction::Ingress),
                });
            }
            match witness::of(cluster, flow, judgement) {
                Ok(found) => value["witnesses"] = found.iter().map(|it| witness(cluster, it)).collect(),
                Err(reason) => value["no_witness"] = json!(reason),
            }
            value
        })
        .collect();
    let service = answer.service.map(|id| read.cluster.service_name(id));
    let namesake = answer.namesake.map(|id| read.cluster.service_name(id));
    let verdict = possible_pods::verdict_word(answer.verdict());
    let mut document = json!({"verdict": verdict, "service": service, "namesake": namesake, "packets": packets});
    if let (None, Some(conditions)) = (answer.verdict(), &answer.verdict_if) {
        document["dependsOn"] = json!(conditions.fields);
        document["allowedIf"] = json!(conditions.allowed_if);
    }
    let mut page = OutputPage::new();
    page.pretty_json(&document)?;
    Ok(page)
}

/// A packet. Its ends may be examples of described pods.
fn packet(cluster: &Cluster, flow: &Flow, pods: [Option<&PossiblePod>; 2]) -> Value {
    let end = |end: &FlowEnd, pod: Option<&PossiblePod>| {
        if let Some(pod) = pod {
            return possible_pods::end(pod);
        }
        let endpoint = end.endpoint.map(|id| (&cluster.endpoints[id.index()].kind, cluster.endpoint_name(id)));
        json!({
            "kind": endpoint.as_ref().map(|(kind, _)| kind),
            "endpoint": endpoint.as_ref().map(|(_, name)| name),
            "ip": end.address.map(|address| address.to_string()),
        })
    };
    let port = (flow.protocol != FlowProtocol::Icmp).then_some(flow.port);
    let protocol = protocol(flow.protocol).to_uppercase();
    json!({
        "src": end(&flow.source, pods[0]),
        "dst": end(&flow.destination, pods[1]),
        "proto": protocol,
        "port": port,
    })
}

fn witness(cluster: &Cluster, witness: &WitnessPacket) -> Value {
    let class = |class: &ClassDescription| json!({"name": class.name, "is": class.is});
    json!({
        "program": program_name(witness.question.direction),
        "endpoint": cluster.endpoint_name(witness.endpoint),
        "verdict": verdict_name(witness.verdict),
        "subject": class(&witness.classes.subject),
        "peer": class(&witness.classes.peer),
        "atom": class(&witness.classes.atom),
        "packet": {"summary": witness::summary(witness), "hex": hex(&witness.packet)},
    })
}

struct JsonExplanation<'r> {
    read: &'r ReadInput,
    /// The cluster of the current packet.
    cluster: &'r Cluster,
    locator: Locator<'r>,
}

impl JsonExplanation<'_> {
    fn side(&mut self, direction: Direction, flow: &Flow, side: &EndVerdict) -> Value {
        let because: Vec<Value> =
            verdict_reasons::reasons(side).into_iter().map(|reason| self.reason(direction, reason)).collect();
        let mut value = json!({"verdict": verdict_name(side.verdict), "basis": basis(&side.basis), "because": because});
        match &side.basis {
            Basis::Isolated(policies) => {
                let mismatches = rule_mismatch::mismatches(self.cluster, policies, direction, flow);
                let nearest = mismatches.into_iter().map(|mismatch| {
                    let mut value = self.reason(direction, ShownReason::Policy(mismatch.policy, Some(mismatch.rule)));
                    value["peers"] = json!(mismatch.peers);
                    value["ports"] = json!(mismatch.ports);
                    value
                });
                value["nearest"] = nearest.collect();
            }
            Basis::Service(service) => {
                value["service"] = json!(self.cluster.service_name(service.service));
                let backends = backends(self.cluster, flow, service).into_iter().map(|(flow, side)| {
                    let judged = self.side(direction, &flow, side);
                    json!({"packet": packet(self.cluster, &flow, [None, None]), "side": judged})
                });
                value["backends"] = backends.collect();
            }
            Basis::Claims(basis) => {
                let claims = basis.claims.iter().map(|((service, _), side)| {
                    let name = self.cluster.service_name(*service);
                    json!({"service": name, "side": self.side(direction, flow, side)})
                });
                value["claims"] = claims.collect();
                value["otherwise"] = self.side(direction, flow, &basis.otherwise);
            }
            Basis::HostPorts(basis) => {
                let claims =
                    claims(self.cluster, flow, basis).into_iter().map(|JudgedHostPort { name, flow, side }| {
                        let judged = self.side(direction, &flow, side);
                        json!({"name": name, "packet": packet(self.cluster, &flow, [None, None]), "side": judged})
                    });
                value["host_ports"] = claims.collect();
            }
            _ => {}
        }
        value
    }

    fn reason(&mut self, direction: Direction, reason: ShownReason) -> Value {
        let cluster = self.cluster;
        match reason {
            ShownReason::List(id) => {
                let list = &cluster.lists[id.index()];
                let location = self.location(FieldOrigin::object(list.object));
                json!({"direction": direction.name(), "policy": list.name, "kind": "CidrList", "location": location})
            }
            ShownReason::Tier(id) => {
                let (policy, rule) = (cluster.tier_policy(id.policy), cluster.tier_rule(id));
                let mut value = json!({
                    "direction": direction.name(),
                    "policy": policy.name,
                    "kind": policy.kind.name(),
                    "tier": policy.tier.name(),
                    "rule": format!("spec.{}[{}]", id.direction.name(), id.rule),
                    "action": rule.action.name(),
                    "location": self.location(policy.rule_origin(id.direction, id.rule as usize)),
                });
                if let Some(name) = &rule.name {
                    value["ruleName"] = json!(name);
                }
                value
            }
            ShownReason::Policy(id, rule) => {
                let policy = &cluster.policies[id.index()];
                let origin = rule.map_or_else(
                    || FieldOrigin::object(policy.object),
                    |rule| policy.rule_origin(direction, rule as usize),
                );
                let name = cluster.policy_name(id);
                let location = self.location(origin);
                let mut value = json!({"direction": direction.name(), "policy": name, "location": location});
                if let Some(rule) = rule {
                    value["rule"] = json!(format!("spec.{}[{rule}]", direction.name()));
                }
                value
            }
        }
    }

    fn location(&mut self, origin: FieldOrigin) -> Option<Value> {
        let at = self.locator.locate(&FindingPlace::Field(origin))?;
        let start = self.locator.position(at.file, at.span.start);
        let file = &self.read.sources.file(at.file).name;
        Some(json!({"file": file, "line": start.line, "column": start.column}))
    }
}

fn basis(basis: &Basis) -> &'static str {
    match basis {
        Basis::NotSubject => "not-subject",
        Basis::Itself => "itself",
        Basis::OwnNode => "own-node",
        Basis::IcmpAssumed => "icmp-assumed",
        Basis::NotIsolated => "not-isolated",
        Basis::List(_) => "list",
        Basis::Tier(_) => "tier",
        Basis::Rules(_) => "rules",
        Basis::Isolated(_) => "isolated",
        Basis::Service(_) => "service",
        Basis::Claims(_) => "claims",
        Basis::HostPorts(_) => "host-port",
    }
}
