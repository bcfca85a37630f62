//! One question about one flow, as `explain` and `test` put it: names in, judged packets out.
//!
//! A service without an address of its own (headless, or a manifest that no cluster has given one) is asked about
//! backend by backend; a service with an address is one question, and the oracle looks behind it.

use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Judgement, Oracle, Verdict};
use weir_model::{Cluster, EndpointId, Protocol, Service, ServiceId};

use crate::ends::{Ends, Named, parse_ip, parse_protocol};

/// A question as the user asked it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'q> {
    pub(crate) from: &'q str,
    pub(crate) to: &'q str,
    pub(crate) port: Option<&'q str>,
    pub(crate) protocol: Option<&'q str>,
}

/// The packets to judge; the answer is "allowed" only if all of them are.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The service that was named, if it has no address.
    pub(crate) service: Option<ServiceId>,
    /// A service with the same name as the endpoint that was meant.
    pub(crate) namesake: Option<ServiceId>,
    pub(crate) packets: Vec<(Flow, Judgement)>,
}

impl Answer {
    pub(crate) fn verdict(&self) -> Verdict {
        self.packets.iter().map(|(_, judgement)| judgement.verdict()).max().unwrap_or(Verdict::Allow)
    }
}

/// A port as it was written.
enum Port<'q> {
    None,
    Number(u16),
    Name(&'q str),
}

impl Question<'_> {
    pub(crate) fn ask<'c>(&self, ends: &Ends<'c>, oracle: &mut Oracle<'c>) -> Result<Answer, String> {
        let (service, flows) = self.flows(ends, oracle.directory())?;
        let namesake = ends.namesake(oracle.directory(), self.to);
        let judge = |flow: Flow| {
            let judgement = oracle.judge(&flow);
            (flow, judgement)
        };
        Ok(Answer { service, namesake, packets: flows.into_iter().map(judge).collect() })
    }

    /// The note for a name that a service has too: the pod or workload was meant.
    pub(crate) fn namesake_note(cluster: &Cluster, namesake: ServiceId) -> String {
        let name = cluster.service_name(namesake);
        format!("{name} is also a service, which was not asked about: service/{name} asks about it")
    }

    /// A hint for a question that cannot be answered.
    pub(crate) fn hint<'c>(&self, ends: &Ends<'c>, directory: &Directory<'c>) -> Option<String> {
        if self.port().is_err() {
            return Some("a port is 1 to 65535, or a name: 80, 53/udp, http".to_owned());
        }
        let is_unknown = |it: &&str| parse_ip(it).is_err() && ends.named(directory, it).is_err();
        let text = [self.from, self.to].into_iter().find(is_unknown)?;
        if looks_like_address(text) {
            return Some(format!("`{text}` looks like an address, and is not a valid one"));
        }
        Some(match ends.near(text) {
            Some(name) => format!("did you mean `{name}`?"),
            None => "write NAME, NAMESPACE/NAME, KIND/NAMESPACE/NAME or an address; names without a namespace \
                     are looked for in the one of -n"
                .to_owned(),
        })
    }

    fn flows<'c>(&self, ends: &Ends<'c>, directory: &Directory<'c>) -> Result<(Option<ServiceId>, Vec<Flow>), String> {
        let (protocol, port) = self.port()?;
        let source = match parse_ip(self.from) {
            Ok(address) => FlowEnd { endpoint: directory.endpoint_at(address), address: Some(address) },
            Err(_) => FlowEnd { endpoint: Some(ends.endpoint(directory, self.from)?), address: None },
        };
        let meet = |destination, (protocol, port)| {
            let (source, destination) = ends.meet(source, destination)?;
            Ok(Flow { source, destination, protocol, port })
        };
        if let Ok(address) = parse_ip(self.to) {
            let end = FlowEnd { endpoint: directory.endpoint_at(address), address: Some(address) };
            let target = match (end.endpoint, directory.services_at(address)) {
                (None, [service, ..]) => on_service(&ends.cluster.services[service.index()], protocol, &port)?,
                (endpoint, _) => on_endpoint(ends.cluster, endpoint, protocol, &port)?,
            };
            return Ok((None, vec![meet(end, target)?]));
        }
        match ends.named(directory, self.to)? {
            Named::Endpoint(id) => {
                let target = on_endpoint(ends.cluster, Some(id), protocol, &port)?;
                Ok((None, vec![meet(FlowEnd { endpoint: Some(id), address: None }, target)?]))
            }
            Named::Service(id) => {
                let service = &ends.cluster.services[id.index()];
                let target = on_service(service, protocol, &port)?;
                let flows = service_ends(service, target)?.into_iter().map(|(end, port)| meet(end, (target.0, port)));
                let found: Vec<Result<Flow, String>> = flows.collect();
                // Skip a service's addresses or backends of a family that the source does not have.
                match found.iter().any(Result::is_ok) {
                    true => {
                        let by_address = !service.addresses.is_empty();
                        let most = if by_address { 1 } else { usize::MAX };
                        let flows = found.into_iter().flatten().take(most).collect();
                        Ok((Some(id).filter(|_| !by_address), flows))
                    }
                    false => found.into_iter().collect::<Result<_, _>>().map(|flows| (Some(id), flows)),
                }
            }
        }
    }

    fn port(&self) -> Result<(Option<FlowProtocol>, Port<'_>), String> {
        let (port, suffix) = match self.port.map(|it| it.split_once('/').map_or((it, None), |(a, b)| (a, Some(b)))) {
            Some((port, suffix)) => (Some(port), suffix),
            None => (None, None),
        };
        if let (Some(a), Some(b)) = (suffix, self.protocol)
            && parse_protocol(a)? != parse_protocol(b)?
        {
            return Err(format!("the port says `{a}`, the protocol `{b}`"));
        }
        let protocol = suffix.or(self.protocol).map(parse_protocol).transpose()?;
        let port = match port {
            _ if protocol == Some(FlowProtocol::Icmp) => Port::None,
            None => return Err("a port is needed: 80, 53/udp, or a name".to_owned()),
            Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Port::Number(text.parse().map_err(|_| format!("`{text}` is no port"))?)
            }
            Some(name) => Port::Name(name),
        };
        Ok((protocol, port))
    }
}

fn looks_like_address(text: &str) -> bool {
    let of = |allowed: fn(&char) -> bool| text.chars().all(|it| allowed(&it));
    of(|it| it.is_ascii_digit() || *it == '.') || (text.contains(':') && of(|it| it.is_ascii_hexdigit() || *it == ':'))
}

const TCP: FlowProtocol = FlowProtocol::Transport(Protocol::Tcp);

/// The port number of a port on a pod: a name is looked up in the pod's containers, a number is returned as it is.
fn on_endpoint(
    cluster: &Cluster,
    endpoint: Option<EndpointId>,
    protocol: Option<FlowProtocol>,
    port: &Port<'_>,
) -> Result<(FlowProtocol, u16), String> {
    let name = match port {
        Port::None => return Ok((protocol.unwrap_or(FlowProtocol::Icmp), 0)),
        Port::Number(number) => return Ok((protocol.unwrap_or(TCP), *number)),
        Port::Name(name) => *name,
    };
    let id = endpoint.ok_or_else(|| format!("an address outside the cluster has no port named `{name}`"))?;
    let ports = cluster.endpoints[id.index()].named_ports.iter().filter(|port| port.name == name);
    let found: Vec<_> = ports
        .map(|port| (FlowProtocol::Transport(port.protocol), port.number))
        .filter(|(known, _)| protocol.is_none_or(|wanted| wanted == *known))
        .collect();
    one_of(&found, name, &cluster.endpoint_name(id))
}

/// The port number of a port on a service: a name is looked up in the service's ports, a number is returned as it is.
fn on_service(
    service: &Service,
    protocol: Option<FlowProtocol>,
    port: &Port<'_>,
) -> Result<(FlowProtocol, u16), String> {
    let name = match port {
        Port::None => return Ok((protocol.unwrap_or(FlowProtocol::Icmp), 0)),
        Port::Number(number) => return Ok((protocol.unwrap_or(TCP), *number)),
        Port::Name(name) => *name,
    };
    let ports = service.ports.iter().filter(|port| port.name == name);
    let found: Vec<_> = ports.map(|port| (FlowProtocol::Transport(port.protocol), port.port)).collect();
    one_of(&found, name, &format!("service {}", service.name))
}

fn one_of(found: &[(FlowProtocol, u16)], name: &str, owner: &str) -> Result<(FlowProtocol, u16), String> {
    match found {
        [one] => Ok(*one),
        [] => Err(format!("{owner} has no port named `{name}`")),
        _ => Err(format!("{owner} has several ports named `{name}`: ask by number")),
    }
}

/// A service's addresses, or the backends of a port where it has none.
fn service_ends(service: &Service, (protocol, port): (FlowProtocol, u16)) -> Result<Vec<(FlowEnd, u16)>, String> {
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
