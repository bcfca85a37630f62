//! One question about one flow, as `explain` and `test` ask it: names in, judged packets out.
//!
//! A service without an address of its own (headless, or a manifest that no cluster has given one) is asked about
//! backend by backend. A service with an address is one question: the oracle judges its backends.

use std::rc::Rc;

use weir_analysis::world::{AskedEnd, AskedTarget, DescribedPod, FlowExample, OpenQuestion, PossiblePod};
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::{Cluster, EndpointId, NamedPort, Protocol, Service, ServiceId};
use weir_objects::address::Family;

use crate::endpoint_lookup::{EndpointLookup, NamedObject, parse_ip, parse_protocol};
use crate::possible_pods;
use crate::similar_name::most_similar;

/// An end as the user asked for it.
#[derive(Clone, Copy, Debug)]
pub enum QuestionEnd<'q> {
    /// A name or an address.
    Named(&'q str),
    /// A pod that could exist.
    Described(&'q DescribedPod),
}

/// A question as the user asked it.
#[derive(Clone, Copy, Debug)]
pub struct FlowQuestion<'q> {
    /// The source of the connection.
    pub from: QuestionEnd<'q>,
    /// The destination of the connection.
    pub to: QuestionEnd<'q>,
    /// `80`, `53/udp`, or the name of a port of the destination.
    pub port: Option<&'q str>,
    /// `tcp`, `udp`, `sctp` or `icmp`, if the port does not contain it.
    pub protocol: Option<&'q str>,
}

/// The packets to judge; the answer is "allowed" only if all of them are.
#[derive(Clone, Debug)]
pub struct FlowAnswer {
    /// The service that was named, if it has no address.
    pub service: Option<ServiceId>,
    /// A service with the same name as the endpoint that was meant.
    pub namesake: Option<ServiceId>,
    /// In the order in which they were asked.
    pub packets: Vec<JudgedPacket>,
    /// For every pod that the ends describe; `None` if no end is described.
    pub verdict_if: Option<VerdictConditions>,
}

/// Properties that the verdict on described pods depends on.
#[derive(Clone, Debug)]
pub struct VerdictConditions {
    /// The verdict on all of them, if it is one.
    verdict: Option<Verdict>,
    /// The fields of a description that would determine it.
    pub fields: Vec<String>,
    /// The conditions under which the flow is allowed.
    pub allowed_if: Vec<String>,
    /// Whether there are more conditions.
    pub has_more: bool,
}

/// One packet of the flow, with the oracle's judgement.
#[derive(Clone, Debug)]
pub struct JudgedPacket {
    /// The flow between its ends.
    pub flow: Flow,
    /// Of both sides.
    pub judgement: Judgement,
    /// Examples of described pods.
    pub example: Option<Rc<PacketExample>>,
}

/// Pods that fit the descriptions of a question, in a cluster.
#[derive(Clone, Debug)]
pub struct PacketExample {
    /// The cluster with these pods in it.
    pub cluster: Cluster,
    /// Source and destination.
    pub pods: [Option<PossiblePod>; 2],
    /// Properties that the example adds to each description.
    pub added: [Option<String>; 2],
}

impl JudgedPacket {
    /// The cluster that the packet is in.
    pub fn cluster<'c>(&'c self, input: &'c Cluster) -> &'c Cluster {
        self.example.as_ref().map_or(input, |it| &it.cluster)
    }
}

/// The destinations that a question is about.
struct AskedTargets {
    /// The service that was named, if it has no address.
    service: Option<ServiceId>,
    /// Whether the ends are a service's: those of families that the source lacks are skipped.
    is_service: bool,
    /// Whether one of the ends is enough: they are the addresses of one service.
    is_one: bool,
    ends: Vec<(FlowEnd, ProtocolPort)>,
}

/// The flows that a question is about.
struct AskedFlows {
    /// The service that was named, if it has no address.
    service: Option<ServiceId>,
    flows: Vec<Flow>,
}

/// A protocol and a port number; 0 for ICMP.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ProtocolPort {
    protocol: FlowProtocol,
    port: u16,
}

impl FlowAnswer {
    /// The verdict; `None` if it depends on what descriptions leave out.
    pub fn verdict(&self) -> Option<Verdict> {
        let worst = || self.packets.iter().map(|it| it.judgement.verdict()).max().unwrap_or(Verdict::Allow);
        self.verdict_if.as_ref().map_or_else(|| Some(worst()), |it| it.verdict)
    }
}

/// A port as it was written.
enum WrittenPort<'q> {
    None,
    Number(u16),
    Name(&'q str),
}

impl FlowQuestion<'_> {
    /// Resolves the names and judges each packet. The error is a reason without a hint.
    pub fn ask<'c>(&self, lookup: &EndpointLookup<'c>, oracle: &mut Oracle<'c>) -> Result<FlowAnswer, String> {
        let namesake = match self.to {
            QuestionEnd::Named(to) => lookup.namesake(oracle.directory(), to),
            QuestionEnd::Described(_) => None,
        };
        let is_described = |end: &QuestionEnd<'_>| matches!(end, QuestionEnd::Described(_));
        if [self.from, self.to].iter().any(is_described) {
            return Ok(FlowAnswer { namesake, ..self.ask_about_possible_pods(lookup, oracle.directory())? });
        }
        let AskedFlows { service, flows } = self.flows(lookup, oracle.directory())?;
        let judge = |flow: Flow| {
            let judgement = oracle.judge(&flow);
            JudgedPacket { flow, judgement, example: None }
        };
        Ok(FlowAnswer { service, namesake, packets: flows.into_iter().map(judge).collect(), verdict_if: None })
    }

    fn ask_about_possible_pods<'c>(
        &self,
        lookup: &EndpointLookup<'c>,
        directory: &Directory<'c>,
    ) -> Result<FlowAnswer, String> {
        let cluster = lookup.cluster;
        let source = match self.from {
            QuestionEnd::Named(_) => possible_pods::known(cluster, self.source(lookup, directory)?),
            QuestionEnd::Described(pod) => AskedEnd::Described(pod.clone()),
        };
        let (service, targets) = match self.to {
            QuestionEnd::Named(_) => {
                let found = self.targets(lookup, directory)?;
                (found.service.filter(|_| !found.is_one), self.known_targets(cluster, found))
            }
            QuestionEnd::Described(pod) => {
                let (protocol, port) = self.port()?;
                let ProtocolPort { protocol, port } = on_described(pod, protocol, &port)?;
                (None, vec![AskedTarget { end: AskedEnd::Described(pod.clone()), protocol, port }])
            }
        };
        let question = OpenQuestion { source, targets };
        let answer = possible_pods::answer(cluster, &question)?;
        let verdict_if = VerdictConditions {
            verdict: answer.verdict(),
            fields: possible_pods::fields(&question, &answer),
            has_more: answer.has_more_conditions,
            allowed_if: answer.allowed_if.clone(),
        };
        let added = |end: QuestionEnd<'_>, pod: &Option<PossiblePod>| match end {
            QuestionEnd::Described(asked) => possible_pods::added(asked, pod.as_ref()?),
            QuestionEnd::Named(_) => None,
        };
        let packets = answer.examples().flat_map(|FlowExample { cluster, flows, pods }| {
            let added = [added(self.from, &pods[0]), added(self.to, &pods[1])];
            let example = Rc::new(PacketExample { cluster, pods, added });
            let packet = move |(flow, judgement)| JudgedPacket { flow, judgement, example: Some(Rc::clone(&example)) };
            flows.into_iter().map(packet)
        });
        Ok(FlowAnswer { service, namesake: None, packets: packets.collect(), verdict_if: Some(verdict_if) })
    }

    /// The destinations of a described source. It has one address: only a service's addresses and backends of one
    /// family are asked about.
    fn known_targets(&self, cluster: &Cluster, found: AskedTargets) -> Vec<AskedTarget> {
        let AskedTargets { is_service, is_one, mut ends, .. } = found;
        let given = match self.from {
            QuestionEnd::Described(pod) => pod.address,
            QuestionEnd::Named(_) => None,
        };
        let family = given.or_else(|| ends.iter().find_map(|(end, _)| end.address)).map(Family::of);
        if is_service {
            let has_family = |end: &FlowEnd| end.address.is_none_or(|it| family.is_none_or(|of| Family::of(it) == of));
            if ends.iter().any(|(end, _)| has_family(end)) {
                ends.retain(|(end, _)| has_family(end));
            }
            ends.truncate(if is_one { 1 } else { usize::MAX });
        }
        let target = |(end, ProtocolPort { protocol, port })| AskedTarget {
            end: possible_pods::known(cluster, end),
            protocol,
            port,
        };
        ends.into_iter().map(target).collect()
    }

    /// The note for a name that a service has too: the pod or workload was meant.
    pub fn namesake_note(cluster: &Cluster, namesake: ServiceId) -> String {
        let name = cluster.service_name(namesake);
        format!("{name} is also the name of a service; write service/{name} to ask about the service")
    }

    /// The reason why a question cannot be answered, with the name that was probably meant.
    pub fn reason_with_similar_name<'c>(
        &self,
        reason: String,
        lookup: &EndpointLookup<'c>,
        directory: &Directory<'c>,
    ) -> String {
        let similar = self.port().ok().and_then(|_| lookup.did_you_mean(self.unknown_name(lookup, directory)?));
        similar.map_or(reason.clone(), |similar| format!("{reason}; {similar}"))
    }

    /// A hint for a question that cannot be answered.
    pub fn hint<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Option<String> {
        if self.port().is_err() {
            return Some("a port is 1 to 65535, or a name: 80, 53/udp, http".to_owned());
        }
        let text = self.unknown_name(lookup, directory)?;
        if looks_like_address(text) {
            return Some(format!("`{text}` looks like an address, but is not a valid one"));
        }
        Some(match lookup.did_you_mean(text) {
            Some(hint) => hint,
            None if lookup.cluster.endpoints.is_empty() => {
                "the input has no pods; describe one as NAMESPACE/KEY=VALUE, such as shop/app=web".to_owned()
            }
            None => {
                "write NAME, NAMESPACE/NAME, KIND/NAMESPACE/NAME, an address, or NAMESPACE/KEY=VALUE for a pod that \
                     could exist; names without a namespace are searched in the namespace of -n"
                    .to_owned()
            }
        })
    }

    /// The first end that is a name which the cluster does not have.
    fn unknown_name<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Option<&str> {
        let is_unknown = |it: &&str| parse_ip(it).is_err() && lookup.named(directory, it).is_err();
        let named = [self.from, self.to].into_iter().filter_map(|end| match end {
            QuestionEnd::Named(text) => Some(text),
            QuestionEnd::Described(_) => None,
        });
        named.into_iter().find(is_unknown)
    }

    fn source<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Result<FlowEnd, String> {
        let QuestionEnd::Named(from) = self.from else { return Err("the source is described".to_owned()) };
        Ok(match parse_ip(from) {
            Ok(address) => FlowEnd { endpoint: directory.endpoint_at(address), address: Some(address) },
            Err(_) => match lookup.endpoint(directory, from) {
                Ok(endpoint) => FlowEnd { endpoint: Some(endpoint), address: None },
                Err(_) if matches!(lookup.named(directory, from), Ok(NamedObject::Service(_))) => {
                    return Err(format!("{from} is a service, which is no source: name one of its pods"));
                }
                Err(reason) => return Err(reason),
            },
        })
    }

    fn flows<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Result<AskedFlows, String> {
        let source = self.source(lookup, directory)?;
        let AskedTargets { service, is_service, is_one, ends } = self.targets(lookup, directory)?;
        let flow_to = |(destination, ProtocolPort { protocol, port })| {
            let (source, destination) = lookup.choose_addresses(source, destination)?;
            Ok(Flow { source, destination, protocol, port })
        };
        let found: Vec<Result<Flow, String>> = ends.into_iter().map(flow_to).collect();
        // Skip a service's addresses or backends of a family that the source does not have.
        if is_service && found.iter().any(Result::is_ok) {
            let flows = found.into_iter().flatten().take(if is_one { 1 } else { usize::MAX }).collect();
            return Ok(AskedFlows { service: service.filter(|_| !is_one), flows });
        }
        Ok(AskedFlows { service, flows: found.into_iter().collect::<Result<_, _>>()? })
    }

    fn targets<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Result<AskedTargets, String> {
        let QuestionEnd::Named(to) = self.to else { return Err("the destination is described".to_owned()) };
        let (protocol, port) = self.port()?;
        let one =
            |end, target| AskedTargets { service: None, is_service: false, is_one: false, ends: vec![(end, target)] };
        if let Ok(address) = parse_ip(to) {
            let end = FlowEnd { endpoint: directory.endpoint_at(address), address: Some(address) };
            let target = match (end.endpoint, directory.services_at(address)) {
                (None, [service, ..]) => on_service(&lookup.cluster.services[service.index()], protocol, &port)?,
                (endpoint, _) => on_endpoint(lookup.cluster, endpoint, protocol, &port)?,
            };
            return Ok(one(end, target));
        }
        match lookup.named(directory, to)? {
            NamedObject::Endpoint(id) => {
                let target = on_endpoint(lookup.cluster, Some(id), protocol, &port)?;
                Ok(one(FlowEnd { endpoint: Some(id), address: None }, target))
            }
            NamedObject::Service(id) => {
                let service = &lookup.cluster.services[id.index()];
                let target = on_service(service, protocol, &port)?;
                let ends = service_ends(service, target)?.into_iter();
                Ok(AskedTargets {
                    service: Some(id),
                    is_service: true,
                    is_one: !service.addresses.is_empty(),
                    ends: ends.map(|(end, port)| (end, ProtocolPort { port, ..target })).collect(),
                })
            }
        }
    }

    fn port(&self) -> Result<(Option<FlowProtocol>, WrittenPort<'_>), String> {
        let (port, suffix) = match self.port.map(|it| it.split_once('/').map_or((it, None), |(a, b)| (a, Some(b)))) {
            Some((port, suffix)) => (Some(port), suffix),
            None => (None, None),
        };
        if let (Some(a), Some(b)) = (suffix, self.protocol)
            && parse_protocol(a)? != parse_protocol(b)?
        {
            return Err(format!("the port has the protocol `{a}`, but the protocol is given as `{b}`"));
        }
        let protocol = suffix.or(self.protocol).map(parse_protocol).transpose()?;
        let port = match port {
            // Records of flows often have a number where the protocol has no ports.
            _ if protocol == Some(FlowProtocol::Icmp) => WrittenPort::None,
            None => return Err("a port is needed: 80, 53/udp, or a name".to_owned()),
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                WrittenPort::Number(text.parse().map_err(|_| format!("`{text}` is not a port"))?)
            }
            Some(range) if range.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {
                return Err(format!("`{range}` is not a port: ask about one port of the range"));
            }
            Some(name) => WrittenPort::Name(name),
        };
        Ok((protocol, port))
    }
}

fn looks_like_address(text: &str) -> bool {
    let of = |allowed: fn(&char) -> bool| text.chars().all(|it| allowed(&it));
    of(|it| it.is_ascii_digit() || *it == '.') || (text.contains(':') && of(|it| it.is_ascii_hexdigit() || *it == ':'))
}

const TCP: FlowProtocol = FlowProtocol::Transport(Protocol::Tcp);

/// A port: a number is returned as it is, a name is looked up.
fn port_number(
    protocol: Option<FlowProtocol>,
    port: &WrittenPort<'_>,
    look_up: impl FnOnce(&str) -> Result<ProtocolPort, String>,
) -> Result<ProtocolPort, String> {
    match port {
        WrittenPort::None => Ok(ProtocolPort { protocol: protocol.unwrap_or(FlowProtocol::Icmp), port: 0 }),
        WrittenPort::Number(number) => Ok(ProtocolPort { protocol: protocol.unwrap_or(TCP), port: *number }),
        WrittenPort::Name(name) => look_up(name),
    }
}

/// The port number of a port on a pod: a name is looked up in the pod's containers.
fn on_endpoint(
    cluster: &Cluster,
    endpoint: Option<EndpointId>,
    protocol: Option<FlowProtocol>,
    port: &WrittenPort<'_>,
) -> Result<ProtocolPort, String> {
    port_number(protocol, port, |name| {
        let id = endpoint.ok_or_else(|| format!("an address outside the cluster has no port named `{name}`"))?;
        named_port(&cluster.endpoints[id.index()].named_ports, protocol, name, &cluster.endpoint_name(id))
    })
}

/// The port number of a port on a described pod: a name is looked up in the description.
fn on_described(
    pod: &DescribedPod,
    protocol: Option<FlowProtocol>,
    port: &WrittenPort<'_>,
) -> Result<ProtocolPort, String> {
    port_number(protocol, port, |name| match &pod.ports {
        Some(ports) => named_port(ports, protocol, name, &possible_pods::text(pod)),
        None => Err(format!(
            "it is not known which port of {} has the name `{name}`: name its number, or write the pod as a JSON \
             object with `ports`",
            possible_pods::text(pod)
        )),
    })
}

fn named_port(
    ports: &[NamedPort],
    protocol: Option<FlowProtocol>,
    name: &str,
    owner: &str,
) -> Result<ProtocolPort, String> {
    let found: Vec<_> = ports
        .iter()
        .filter(|port| port.name == name)
        .map(|port| ProtocolPort { protocol: FlowProtocol::Transport(port.protocol), port: port.number })
        .filter(|known| protocol.is_none_or(|wanted| wanted == known.protocol))
        .collect();
    one_of(&found, name, owner, ports.iter().map(|it| it.name.as_str()))
}

/// The port number of a port on a service: a name is looked up in the service's ports.
fn on_service(
    service: &Service,
    protocol: Option<FlowProtocol>,
    port: &WrittenPort<'_>,
) -> Result<ProtocolPort, String> {
    port_number(protocol, port, |name| {
        let ports = service.ports.iter().filter(|port| port.name == name);
        let found: Vec<_> = ports
            .map(|port| ProtocolPort { protocol: FlowProtocol::Transport(port.protocol), port: port.port })
            .collect();
        one_of(&found, name, &format!("service {}", service.name), service.ports.iter().map(|it| it.name.as_str()))
    })
}

fn one_of<'n>(
    found: &[ProtocolPort],
    name: &str,
    owner: &str,
    known: impl Iterator<Item = &'n str>,
) -> Result<ProtocolPort, String> {
    match found {
        [one] => Ok(*one),
        [] if parse_protocol(name).is_ok() => {
            Err(format!("{owner} has no port named `{name}`; for the protocol, write --proto {name}"))
        }
        [] => Err(match most_similar(name, known.filter(|it| *it != name && !it.is_empty())) {
            Some(near) => format!("{owner} has no port named `{name}`; did you mean `{near}`?"),
            None => format!("{owner} has no port named `{name}`"),
        }),
        _ => Err(format!("{owner} has several ports named `{name}`: use the port number")),
    }
}

/// A service's addresses, or the backends of a port where it has none.
fn service_ends(service: &Service, target: ProtocolPort) -> Result<Vec<(FlowEnd, u16)>, String> {
    let ProtocolPort { protocol, port } = target;
    if !service.addresses.is_empty() {
        let end = |address| FlowEnd { endpoint: None, address: Some(address) };
        return Ok(service.addresses.iter().map(|address| (end(*address), port)).collect());
    }
    let known = service.ports.iter().find(|it| FlowProtocol::Transport(it.protocol) == protocol && it.port == port);
    let known = known.ok_or_else(|| format!("service {} has no port {port}", service.name))?;
    if known.backends.is_empty() {
        return Err(format!("service {} has neither an address nor a ready backend", service.name));
    }
    let end = |backend: &weir_model::Backend| FlowEnd { endpoint: backend.endpoint, address: backend.address };
    Ok(known.backends.iter().map(|backend| (end(backend), backend.port)).collect())
}
