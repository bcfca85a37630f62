//! From an answered question to its explanation: the rules that decide, with their lines, the rules that are nearest to
//! a match, and the packets as the emitted programs judge them.

use weir_analysis::world::PossiblePod;
use weir_artifact::layout::program_name;
use weir_model::eval::{
    self, EndVerdict, Flow, FlowEnd, FlowProtocol, HostPortBasis, Judgement, Oracle, ServiceBasis, Verdict,
};
use weir_model::{Backend, Cluster, Direction, PolicyId, TierRuleId};
use weir_objects::diagnostic::FindingPlace;
use weir_objects::origin::FieldOrigin;
use weir_objects::source::SourceMap;

use crate::answers::{
    Audit, BackendSide, Basis, ClaimSide, ClassWords, DirectionWord, EndpointEnd, ExplainAnswer, ExplainedEnd,
    ExplainedFlow, ExplainedPacket, ExplainedSide, HostPortSide, ListReason, NearestRule, PodDescription, PolicyReason,
    Reason, SourceLocation, TierReason, VerdictOrDepends, VerdictWord, Witness, WitnessBytes,
};
use crate::locator::Locator;
use crate::question::{FlowAnswer, JudgedPacket};
use crate::rule_mismatch::{self, protocol_name};
use crate::verdict_reasons::{self, ShownReason};
use crate::witness::{self, ClassDescription, WitnessPacket};

/// Explains an answer. The sources are those that the cluster was resolved from.
pub fn explain(cluster: &Cluster, sources: &SourceMap, answer: &FlowAnswer) -> ExplainAnswer {
    let mut locator = Locator::new(sources);
    let audited = with_audit(cluster, &answer.packets).unwrap_or_default();
    let packet = |(index, judged): (usize, &JudgedPacket)| {
        let mut explanation = Explanation { cluster: judged.cluster(cluster), locator: &mut locator };
        explanation.packet(judged, audited.get(index))
    };
    let packets = answer.packets.iter().enumerate().map(packet).collect();
    let service_name = |id| cluster.service_name(id);
    let depends = answer.verdict_if.as_ref().filter(|_| answer.verdict().is_none());
    ExplainAnswer {
        verdict: match answer.verdict() {
            Some(Verdict::Allow) => VerdictOrDepends::Allow,
            Some(Verdict::Deny) => VerdictOrDepends::Deny,
            None => VerdictOrDepends::Depends,
        },
        service: answer.service.map(service_name),
        namesake: answer.namesake.map(service_name),
        packets,
        depends_on: depends.map(|it| it.fields.clone()),
        allowed_if: depends.map(|it| it.allowed_if.clone()),
        left_out: Vec::new(),
    }
}

/// The verdicts if the policies in audit mode were enforced; `None` if there are no such policies.
pub fn with_audit(cluster: &Cluster, packets: &[JudgedPacket]) -> Option<Vec<Judgement>> {
    if cluster.audit.is_empty() {
        return None;
    }
    let judge = |packet: &JudgedPacket| {
        let enforced = packet.cluster(cluster).with_audit_enforced();
        Oracle::new(&enforced).judge(&packet.flow)
    };
    Some(packets.iter().map(judge).collect())
}

/// A hostPort that claims the destination of a flow.
#[derive(Clone, Debug)]
pub struct JudgedHostPort<'b> {
    /// `hostPort 8080 of shop/web`
    pub name: String,
    /// The flow to the hostPort's pod.
    pub flow: Flow,
    /// Its judgement.
    pub side: &'b EndVerdict,
}

/// The hostPorts that claim the destination, each with its own judgement.
pub fn claims<'b>(cluster: &Cluster, flow: &Flow, basis: &'b HostPortBasis) -> Vec<JudgedHostPort<'b>> {
    let claim = |(index, side): &'b (usize, EndVerdict)| {
        let Backend { endpoint, address, port } = cluster.host_ports.get(*index)?.backend;
        let flow = Flow { destination: FlowEnd { endpoint, address }, port, ..flow.clone() };
        Some(JudgedHostPort { name: cluster.host_port_name(*index), flow, side })
    };
    basis.claims.iter().filter_map(claim).collect()
}

/// The backends of a service: for each the flow to it, and the side that was judged.
pub fn backends<'b>(cluster: &Cluster, flow: &Flow, basis: &'b ServiceBasis) -> Vec<(Flow, &'b EndVerdict)> {
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

/// A protocol's name in lower case.
pub fn protocol(protocol: FlowProtocol) -> &'static str {
    match protocol {
        FlowProtocol::Transport(protocol) => protocol_name(protocol),
        FlowProtocol::Icmp => "icmp",
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn word(verdict: Verdict) -> VerdictWord {
    match verdict {
        Verdict::Allow => VerdictWord::Allow,
        Verdict::Deny => VerdictWord::Deny,
    }
}

impl From<Direction> for DirectionWord {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Egress => Self::Egress,
            Direction::Ingress => Self::Ingress,
        }
    }
}

/// A packet. Its ends may be examples of described pods.
fn explained_flow(cluster: &Cluster, flow: &Flow, pods: [Option<&PossiblePod>; 2]) -> ExplainedFlow {
    let end = |end: &FlowEnd, pod: Option<&PossiblePod>| match pod {
        Some(pod) => ExplainedEnd::Possible(PodDescription::of(pod)),
        None => ExplainedEnd::Known(EndpointEnd {
            kind: end.endpoint.map(|id| cluster.endpoints[id.index()].kind.to_string()),
            endpoint: end.endpoint.map(|id| cluster.endpoint_name(id)),
            ip: end.address,
        }),
    };
    ExplainedFlow {
        src: end(&flow.source, pods[0]),
        dst: end(&flow.destination, pods[1]),
        proto: protocol(flow.protocol).to_uppercase(),
        port: (flow.protocol != FlowProtocol::Icmp).then_some(flow.port),
    }
}

fn explained_witness(cluster: &Cluster, witness: &WitnessPacket) -> Witness {
    let class = |class: &ClassDescription| ClassWords { name: class.name.clone(), is: class.is.clone() };
    Witness {
        program: program_name(witness.question.direction).to_owned(),
        endpoint: cluster.endpoint_name(witness.endpoint),
        verdict: word(witness.verdict),
        subject: class(&witness.classes.subject),
        peer: class(&witness.classes.peer),
        atom: class(&witness.classes.atom),
        packet: WitnessBytes { summary: witness::summary(witness), hex: hex(&witness.packet) },
    }
}

/// The explanation of one packet.
struct Explanation<'r, 's> {
    /// The cluster that the packet is in.
    cluster: &'r Cluster,
    locator: &'r mut Locator<'s>,
}

impl Explanation<'_, '_> {
    fn packet(&mut self, judged: &JudgedPacket, audited: Option<&Judgement>) -> ExplainedPacket {
        let JudgedPacket { flow, judgement, example } = judged;
        let cluster = self.cluster;
        let pods = example.as_ref().map_or([None, None], |it| it.pods.each_ref().map(Option::as_ref));
        let (witnesses, no_witness) = match witness::of(cluster, flow, judgement) {
            Ok(found) => (found.iter().map(|it| explained_witness(cluster, it)).collect(), None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        ExplainedPacket {
            packet: explained_flow(cluster, flow, pods),
            verdict: word(judgement.verdict()),
            egress: self.side(Direction::Egress, flow, &judgement.egress),
            ingress: self.side(Direction::Ingress, flow, &judgement.ingress),
            witnesses,
            audit: audited.map(|audited| Audit {
                verdict: word(audited.verdict()),
                egress: word(audited.side(Direction::Egress).verdict),
                ingress: word(audited.side(Direction::Ingress).verdict),
            }),
            no_witness,
        }
    }

    fn side(&mut self, direction: Direction, flow: &Flow, side: &EndVerdict) -> ExplainedSide {
        let reasons = verdict_reasons::reasons(side).into_iter();
        let mut explained = ExplainedSide {
            verdict: word(side.verdict),
            basis: basis(&side.basis),
            because: reasons.map(|reason| self.reason(direction, reason)).collect(),
            nearest: None,
            service: None,
            backends: None,
            claims: None,
            otherwise: None,
            host_ports: None,
        };
        match &side.basis {
            eval::Basis::Isolated(policies) => explained.nearest = Some(self.nearest(policies, direction, flow)),
            eval::Basis::Service(service) => {
                explained.service = Some(self.cluster.service_name(service.service));
                let backends = backends(self.cluster, flow, service).into_iter();
                explained.backends = Some(backends.map(|(flow, side)| self.backend(direction, &flow, side)).collect());
            }
            eval::Basis::Claims(basis) => {
                let claims = basis.claims.iter().map(|((service, _), side)| ClaimSide {
                    service: self.cluster.service_name(*service),
                    side: self.side(direction, flow, side),
                });
                explained.claims = Some(claims.collect());
                explained.otherwise = Some(Box::new(self.side(direction, flow, &basis.otherwise)));
            }
            eval::Basis::HostPorts(basis) => {
                let claims = claims(self.cluster, flow, basis).into_iter();
                explained.host_ports = Some(claims.map(|claim| self.host_port(direction, claim)).collect());
            }
            _ => {}
        }
        explained
    }

    fn backend(&mut self, direction: Direction, flow: &Flow, side: &EndVerdict) -> BackendSide {
        let packet = explained_flow(self.cluster, flow, [None, None]);
        BackendSide { packet, side: self.side(direction, flow, side) }
    }

    fn host_port(&mut self, direction: Direction, claim: JudgedHostPort<'_>) -> HostPortSide {
        let JudgedHostPort { name, flow, side } = claim;
        let BackendSide { packet, side } = self.backend(direction, &flow, side);
        HostPortSide { name, packet, side }
    }

    /// The rules of policies that isolate, which do not match.
    fn nearest(&mut self, policies: &[PolicyId], direction: Direction, flow: &Flow) -> Vec<NearestRule> {
        let mismatches = rule_mismatch::mismatches(self.cluster, policies, direction, flow).into_iter();
        let rule = |mismatch: rule_mismatch::RuleMismatch| {
            let PolicyReason { direction: side, policy, location, rule } =
                self.policy(direction, mismatch.policy, Some(mismatch.rule));
            let (peers, ports) = (mismatch.peers, mismatch.ports);
            NearestRule { direction: side, policy, location, rule: rule.unwrap_or_default(), peers, ports }
        };
        mismatches.map(rule).collect()
    }

    fn reason(&mut self, direction: Direction, reason: ShownReason) -> Reason {
        match reason {
            ShownReason::List(id) => {
                let list = &self.cluster.lists[id.index()];
                Reason::List(ListReason {
                    direction: direction.into(),
                    policy: list.name.clone(),
                    kind: "CidrList".to_owned(),
                    location: self.location(FieldOrigin::object(list.object)),
                })
            }
            ShownReason::Tier(id) => Reason::Tier(self.tier_rule(direction, id)),
            ShownReason::Policy(id, rule) => Reason::Policy(self.policy(direction, id, rule)),
        }
    }

    fn tier_rule(&mut self, direction: Direction, id: TierRuleId) -> TierReason {
        let (policy, rule) = (self.cluster.tier_policy(id.policy), self.cluster.tier_rule(id));
        TierReason {
            direction: direction.into(),
            policy: policy.name.clone(),
            kind: policy.kind.name().to_owned(),
            tier: policy.tier.name().to_owned(),
            rule: format!("spec.{}[{}]", id.direction.name(), id.rule),
            action: rule.action.name().to_owned(),
            location: self.location(policy.rule_origin(id.direction, id.rule as usize)),
            rule_name: rule.name.clone(),
        }
    }

    fn policy(&mut self, direction: Direction, id: PolicyId, rule: Option<u32>) -> PolicyReason {
        let policy = &self.cluster.policies[id.index()];
        let origin = rule
            .map_or_else(|| FieldOrigin::object(policy.object), |rule| policy.rule_origin(direction, rule as usize));
        PolicyReason {
            direction: direction.into(),
            policy: self.cluster.policy_name(id),
            location: self.location(origin),
            rule: rule.map(|rule| format!("spec.{}[{rule}]", direction.name())),
        }
    }

    fn location(&mut self, origin: FieldOrigin) -> Option<SourceLocation> {
        let at = self.locator.locate(&FindingPlace::Field(origin))?;
        let start = self.locator.position(at.file, at.span.start);
        let file = self.locator.sources().file(at.file).name.clone();
        Some(SourceLocation { file, line: start.line, column: start.column })
    }
}

fn basis(basis: &eval::Basis) -> Basis {
    match basis {
        eval::Basis::NotSubject => Basis::NotSubject,
        eval::Basis::Itself => Basis::Itself,
        eval::Basis::OwnNode => Basis::OwnNode,
        eval::Basis::IcmpAssumed => Basis::IcmpAssumed,
        eval::Basis::NotIsolated => Basis::NotIsolated,
        eval::Basis::List(_) => Basis::List,
        eval::Basis::Tier(_) => Basis::Tier,
        eval::Basis::Rules(_) => Basis::Rules,
        eval::Basis::Isolated(_) => Basis::Isolated,
        eval::Basis::Service(_) => Basis::Service,
        eval::Basis::Claims(_) => Basis::Claims,
        eval::Basis::HostPorts(_) => Basis::HostPort,
    }
}
