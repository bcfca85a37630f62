//! Questions for engines: one side of a flow, at the boundaries of all rules in force.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_model::eval::{Flow, FlowEnd, FlowProtocol};
use weir_model::{Direction, EndpointId, Protocol};

use super::engines::Compiled;
use crate::generators::Random;

/// A packet at a local endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Whether the packet goes to the endpoint or comes from it.
    pub direction: Direction,
    /// The endpoint.
    pub endpoint: EndpointId,
    /// Its address.
    pub own: IpAddr,
    /// The other end's address.
    pub remote: IpAddr,
    /// `None` for ICMP.
    pub protocol: Option<Protocol>,
    /// The destination port; 0 without one.
    pub port: u16,
}

impl Question {
    /// The question as a flow for the reference oracle.
    pub fn flow(&self) -> Flow {
        let own = FlowEnd { endpoint: Some(self.endpoint), address: Some(self.own) };
        let other = FlowEnd { endpoint: None, address: Some(self.remote) };
        let (source, destination) = match self.direction {
            Direction::Ingress => (other, own),
            Direction::Egress => (own, other),
        };
        let protocol = self.protocol.map_or(FlowProtocol::Icmp, FlowProtocol::Transport);
        Flow { source, destination, protocol, port: self.port }
    }
}

/// Where verdicts can change: endpoints' own addresses, remote addresses, ports.
#[derive(Clone, Debug)]
pub struct Boundaries {
    /// Local endpoints with each of their own addresses.
    pub own: Vec<(EndpointId, IpAddr)>,
    /// The addresses of all objects, and both ends of every range.
    pub remotes: Vec<IpAddr>,
    /// Both ends of every port interval.
    pub ports: Vec<(Option<Protocol>, u16)>,
}

impl Boundaries {
    /// The boundaries of a compile result.
    pub fn of(compiled: &Compiled<'_>) -> Self {
        let cluster = compiled.cluster;
        let directory = &compiled.directory;
        let of_endpoint = |id: &EndpointId| {
            let addresses = cluster.endpoints[id.index()].addresses.iter();
            addresses.map(|address| (*id, *address)).collect::<Vec<_>>()
        };
        let mut own: Vec<_> = compiled.scope.endpoints().iter().flat_map(of_endpoint).collect();
        own.retain(|(id, address)| directory.endpoint_at(*address) == Some(*id));
        Self { own, remotes: remotes(compiled), ports: ports(compiled) }
    }

    /// A random question; `None` if no endpoint is local.
    pub fn pick(&self, random: &mut Random) -> Option<Question> {
        if self.own.is_empty() {
            return None;
        }
        let (endpoint, own) = random.pick(&self.own);
        let remote = loop {
            let remote = random.pick(&self.remotes);
            if remote.is_ipv4() == own.is_ipv4() {
                break remote;
            }
        };
        let (protocol, port) = random.pick(&self.ports);
        Some(Question { direction: random.pick(&Direction::ALL), endpoint, own, remote, protocol, port })
    }
}

fn remotes(compiled: &Compiled<'_>) -> Vec<IpAddr> {
    let cluster = compiled.cluster;
    let mut found: BTreeSet<IpAddr> = BTreeSet::new();
    found.extend(cluster.endpoints.iter().flat_map(|it| &it.addresses));
    found.extend(cluster.frontends.iter().map(|it| it.address));
    found.extend(cluster.nodes.iter().flat_map(|it| &it.addresses));
    found.extend(cluster.host_ports.iter().filter_map(|it| it.address));
    found.extend(compiled.classes.addresses.exact().map(|(address, _)| address));
    found.extend(compiled.classes.addresses.ranges.iter().flat_map(|it| [it.first, it.last]));
    found.extend(["8.8.8.8", "2001:db8:ffff::1"].iter().filter_map(|it| it.parse::<IpAddr>().ok()));
    found.into_iter().collect()
}

fn ports(compiled: &Compiled<'_>) -> Vec<(Option<Protocol>, u16)> {
    let mut ports = vec![(None, 0), (Some(Protocol::Tcp), 65535), (Some(Protocol::Udp), 1), (Some(Protocol::Sctp), 7)];
    for interval in &compiled.classes.atoms.intervals {
        let protocol = Some(interval.spec.protocol);
        ports.extend([(protocol, interval.spec.first), (protocol, interval.spec.last)]);
    }
    ports
}
