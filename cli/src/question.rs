//! One question about one flow, as `explain` and `test` ask it: names in, judged packets out.
//!
//! A service without an address of its own (headless, or a manifest that no cluster has given one) is asked about
//! backend by backend. A service with an address is one question: the oracle judges its backends.

use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::{Cluster, EndpointId, Protocol, Service, ServiceId};

use crate::endpoint_lookup::{EndpointLookup, NamedObject, parse_ip, parse_protocol};

/// A question as the user asked it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowQuestion<'q> {
    pub(crate) from: &'q str,
    pub(crate) to: &'q str,
    pub(crate) port: Option<&'q str>,
    pub(crate) protocol: Option<&'q str>,
}

/// The packets to judge; the answer is "allowed" only if all of them are.
#[derive(Clone, Debug)]
pub(crate) struct FlowAnswer {
    /// The service that was named, if it has no address.
    pub(crate) service: Option<ServiceId>,
    /// A service with the same name as the endpoint that was meant.
    pub(crate) namesake: Option<ServiceId>,
    pub(crate) packets: Vec<JudgedPacket>,
}

/// One packet of the flow, with the oracle's judgement.
#[derive(Clone, Debug)]
pub(crate) struct JudgedPacket {
    pub(crate) flow: Flow,
    pub(crate) judgement: Judgement,
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
    pub(crate) fn verdict(&self) -> Verdict {
        self.packets.iter().map(|it| it.judgement.verdict()).max().unwrap_or(Verdict::Allow)
    }
}

/// A port as it was written.
enum WrittenPort<'q> {
    None,
    Number(u16),
    Name(&'q str),
}

impl FlowQuestion<'_> {
    pub(crate) fn ask<'c>(&self, lookup: &EndpointLookup<'c>, oracle: &mut Oracle<'c>) -> Result<FlowAnswer, String> {
        let AskedFlows { service, flows } = self.flows(lookup, oracle.directory())?;
        let namesake = lookup.namesake(oracle.directory(), self.to);
        let judge = |flow: Flow| {
            let judgement = oracle.judge(&flow);
            JudgedPacket { flow, judgement }
        };
        Ok(FlowAnswer { service, namesake, packets: flows.into_iter().map(judge).collect() })
    }

    /// The note for a name that a service has too: the pod or workload was meant.
    pub(crate) fn namesake_note(cluster: &Cluster, namesake: ServiceId) -> String {
        let name = cluster.service_name(namesake);
        format!("{name} is also the name of a service; write service/{name} to ask about the service")
    }

    /// A hint for a question that cannot be answered.
    pub(crate) fn hint<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Option<String> {
        if self.port().is_err() {
            return Some("a port is 1 to 65535, or a name: 80, 53/udp, http".to_owned());
        }
        let is_unknown = |it: &&str| parse_ip(it).is_err() && lookup.named(directory, it).is_err();
        let text = [self.from, self.to].into_iter().find(is_unknown)?;
        if looks_like_address(text) {
            return Some(format!("`{text}` looks like an address, but is not a valid one"));
        }
        Some(match lookup.similar_name(text) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "write NAME, NAMESPACE/NAME, KIND/NAMESPACE/NAME or an address; names without a namespace \
                     are searched in the namespace of -n"
                .to_owned(),
        })
    }

    fn flows<'c>(&self, lookup: &EndpointLookup<'c>, directory: &Directory<'c>) -> Result<AskedFlows, String> {
        let (protocol, port) = self.port()?;
        let source = match parse_ip(self.from) {
            Ok(address) => FlowEnd { endpoint: directory.endpoint_at(address), address: Some(address) },
            Err(_) => FlowEnd { endpoint: Some(lookup.endpoint(directory, self.from)?), address: None },
        };
        let flow_to = |destination, ProtocolPort { protocol, port }| {
            let (source, destination) = lookup.choose_addresses(source, destination)?;
            Ok(Flow { source, destination, protocol, port })
        };
        if let Ok(address) = parse_ip(self.to) {
            let end = FlowEnd { endpoint: directory.endpoint_at(address), address: Some(address) };
            let target = match (end.endpoint, directory.services_at(address)) {
                (None, [service, ..]) => on_service(&lookup.cluster.services[service.index()], protocol, &port)?,
                (endpoint, _) => on_endpoint(lookup.cluster, endpoint, protocol, &port)?,
            };
            return Ok(AskedFlows { service: None, flows: vec![flow_to(end, target)?] });
        }
        match lookup.named(directory, self.to)? {
            NamedObject::Endpoint(id) => {
                let target = on_endpoint(lookup.cluster, Some(id), protocol, &port)?;
                let flow = flow_to(FlowEnd { endpoint: Some(id), address: None }, target)?;
                Ok(AskedFlows { service: None, flows: vec![flow] })
            }
            NamedObject::Service(id) => {
                let service = &lookup.cluster.services[id.index()];
                let target = on_service(service, protocol, &port)?;
                let ends = service_ends(service, target)?.into_iter();
                let flows = ends.map(|(end, port)| flow_to(end, ProtocolPort { port, ..target }));
                let found: Vec<Result<Flow, String>> = flows.collect();
                // Skip a service's addresses or backends of a family that the source does not have.
                match found.iter().any(Result::is_ok) {
                    true => {
                        let by_address = !service.addresses.is_empty();
                        let most = if by_address { 1 } else { usize::MAX };
                        let flows = found.into_iter().flatten().take(most).collect();
                        Ok(AskedFlows { service: Some(id).filter(|_| !by_address), flows })
                    }
                    false => {
                        let flows = found.into_iter().collect::<Result<_, _>>()?;
                        Ok(AskedFlows { service: Some(id), flows })
                    }
                }
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
            _ if protocol == Some(FlowProtocol::Icmp) => WrittenPort::None,
            None => return Err("a port is needed: 80, 53/udp, or a name".to_owned()),
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                WrittenPort::Number(text.parse().map_err(|_| format!("`{text}` is not a port"))?)
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
        let ports = cluster.endpoints[id.index()].named_ports.iter().filter(|port| port.name == name);
        let found: Vec<_> = ports
            .map(|port| ProtocolPort { protocol: FlowProtocol::Transport(port.protocol), port: port.number })
            .filter(|known| protocol.is_none_or(|wanted| wanted == known.protocol))
            .collect();
        one_of(&found, name, &cluster.endpoint_name(id))
    })
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
        one_of(&found, name, &format!("service {}", service.name))
    })
}

fn one_of(found: &[ProtocolPort], name: &str, owner: &str) -> Result<ProtocolPort, String> {
    match found {
        [one] => Ok(*one),
        [] => Err(format!("{owner} has no port named `{name}`")),
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
