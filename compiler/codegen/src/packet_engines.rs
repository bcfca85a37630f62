//! Engines: they answer questions about flows with the compiled result, in the reference oracle's terms.
//!
//! Problem: an engine decides one packet at one endpoint; a question is a flow between two ends that may be named
//! without an address, be behind a service, or carry an address that the cluster gives to another endpoint.
//! Strategy: translate every flow to packets at endpoints ([`PacketQuestion`]), let the engine ([`Decide`]) allow or
//! deny them, and read the reasons off the classes. Endpoints without an address get a placeholder ([`world`]); a
//! packet to a service is judged by `from_pod` as it leaves, and by `to_pod` at each backend.
//! Invariants: the verdict is the engine's, never the oracle's; the oracle is used only to translate service addresses,
//! which is not policy. A question that depends on a distinction which no packet shows is skipped with a reason.

mod ir;
mod parts;
mod verdict_basis;
mod vm;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::compile::{CompileError, Compiled};
use weir_artifact::packet;
use weir_classes::SubjectId;
use weir_model::eval::{
    Basis, EndVerdict, Flow, FlowEnd, FlowProtocol, Judgement, Oracle, ServiceBasis, ServicesBehind, Verdict,
};
use weir_model::{Cluster, Direction, EndpointId, ServiceId, ServicePort, Standing};
use weir_objects::address::Family;

pub use ir::Interpreter;
use parts::AskedEndpoints;
pub use vm::VmEngine;
pub use weir_machine::Broken;
use world::CompiledWorld;

/// One packet at one local endpoint: the first of a new flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketQuestion {
    /// The direction, seen from the endpoint.
    pub direction: Direction,
    /// The endpoint's place among [`Compiled::endpoints`].
    pub place: usize,
    /// Its subject class.
    pub subject: SubjectId,
    /// Its address.
    pub own: IpAddr,
    /// The other end's address.
    pub remote: IpAddr,
    /// The protocol.
    pub protocol: FlowProtocol,
    /// The destination port.
    pub port: u16,
    /// Whether the other end is the endpoint's own node.
    pub own_node: bool,
}

impl PacketQuestion {
    /// The first packet of the flow in question; `None` if its addresses are of two families.
    pub fn first_packet(&self) -> Option<Vec<u8>> {
        let (source, destination) = match self.direction {
            Direction::Ingress => (self.remote, self.own),
            Direction::Egress => (self.own, self.remote),
        };
        packet::build(source, destination, self.protocol, self.port)
    }
}

/// Gives verdicts on packets.
pub trait Decide {
    /// The verdict on the packet.
    fn decide(&mut self, question: &PacketQuestion) -> Result<Verdict, Broken>;
}

/// Makes an engine from a compile result.
pub type Make = dyn Fn(&Compiled) -> Result<Box<dyn Decide>, Broken>;

/// Why an engine could not be made or cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The cluster cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The engine failed.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Why there is no answer for a flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoVerdict {
    /// No packet expresses the question.
    #[error("{0}")]
    Skip(String),
    /// The engine cannot continue.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<Broken> for NoVerdict {
    fn from(broken: Broken) -> Self {
        Self::Engine(broken.into())
    }
}

// A compiled cluster can take hundreds of megabytes. Questions about one odd flow mostly come in groups, so a few
// worlds are enough.
/// The maximum number of worlds that are kept.
const MOST_WORLDS: usize = 16;

/// The owners of addresses during one flow, where they differ from the cluster's.
type Owners = BTreeMap<IpAddr, Option<EndpointId>>;

/// An engine with the worlds of one cluster.
pub struct ClusterEngine<'c> {
    oracle: Oracle<'c>,
    cluster: &'c Cluster,
    make: Box<Make>,
    asked: AskedEndpoints,
    // The key is the difference and not the flow: all flows without one share the base world, which is compiled once.
    /// By the differences from the cluster. There is nearly always only one world.
    worlds: BTreeMap<Vec<(IpAddr, Option<EndpointId>)>, CompiledWorld<'c>>,
}

impl std::fmt::Debug for ClusterEngine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("worlds", &self.worlds.len()).finish_non_exhaustive()
    }
}

impl<'c> ClusterEngine<'c> {
    /// Compiles the cluster, and makes the engine: for every endpoint at once, or in parts if the cluster is large.
    pub fn new(cluster: &'c Cluster, make: Box<Make>) -> Result<Self, EngineError> {
        Self::make(cluster, make, AskedEndpoints::suiting(cluster))
    }

    /// Compiles the cluster for these endpoints alone. Others are peers: flows that they take part in are judged at one
    /// end.
    pub fn among(cluster: &'c Cluster, make: Box<Make>, endpoints: BTreeSet<EndpointId>) -> Result<Self, EngineError> {
        Self::make(cluster, make, AskedEndpoints::These(endpoints))
    }

    /// Compiles the cluster for at most `most` endpoints at once: those of the flows to be judged next.
    pub fn in_parts(cluster: &'c Cluster, make: Box<Make>, most: usize) -> Result<Self, EngineError> {
        Self::make(cluster, make, AskedEndpoints::part(most))
    }

    fn make(cluster: &'c Cluster, make: Box<Make>, asked: AskedEndpoints) -> Result<Self, EngineError> {
        // At once and not at the first question: a cluster that cannot be compiled is an error of the engine, not of a
        // flow.
        let base = CompiledWorld::new(cluster, &Owners::new(), asked.now(), &make)?;
        let worlds = BTreeMap::from([(Vec::new(), base)]);
        Ok(Self { oracle: Oracle::new(cluster), cluster, make, asked, worlds })
    }

    /// Prepares for the next flows, and returns for how many of them it did. Without this call the answers are the
    /// same, but each may need a compile of its own.
    pub fn prepare(&mut self, flows: &[Flow]) -> usize {
        let (taken, part) = self.asked.next(self.cluster, &self.oracle, flows);
        if let (Some(part), AskedEndpoints::Part { now, .. }) = (part, &mut self.asked) {
            // The old part is freed before the new one is made, because memory may not be enough for both.
            self.worlds.clear();
            *now = part;
        }
        taken
    }

    /// Judges a new connection.
    pub fn judge(&mut self, flow: &Flow) -> Result<Judgement, NoVerdict> {
        // Does nothing if the caller has prepared for this flow already. Without it, an endpoint outside of the part
        // would be taken for one without policies, and everything would be allowed.
        self.prepare(std::slice::from_ref(flow));
        // From the oracle: which service an address belongs to is kube-proxy's translation and not policy. The verdicts
        // stay the engine's.
        let (behind, host_ports) = (self.oracle.services_behind(flow), self.oracle.host_ports_of(flow));
        let (source, destination) = (self.oracle.complete(flow.source), self.oracle.complete(flow.destination));
        let owners = self.owners(source, destination)?;
        let key: Vec<_> = owners.iter().map(|(address, owner)| (*address, *owner)).collect();
        if !self.worlds.contains_key(&key) {
            // All but the base are dropped: which of the odd ones is needed next is unknown, and the base certainly is.
            if self.worlds.len() >= self.most_worlds() {
                self.worlds.retain(|differs, _| differs.is_empty());
            }
            self.worlds.insert(key.clone(), CompiledWorld::new(self.cluster, &owners, self.asked.now(), &self.make)?);
        }
        let Some(world) = self.worlds.get_mut(&key) else { return Err(skip("no world".to_owned())) };
        let target = QuestionPorts { protocol: flow.protocol, port: flow.port };
        let mut session = FlowSession { world, flow_ends: [source, destination] };
        let judgement = match behind {
            Some(behind) => session.judge_behind(source, destination, target, &behind)?,
            None => session.judge_plain(source, destination, target)?,
        };
        session.judge_host_ports(source, target, &host_ports, judgement)
    }

    fn most_worlds(&self) -> usize {
        match self.asked {
            // The base and one more. The cluster was divided into parts because memory is short.
            AskedEndpoints::Part { .. } => 2,
            AskedEndpoints::All | AskedEndpoints::These(_) => MOST_WORLDS,
        }
    }

    /// The owners of the flow's addresses that differ from the cluster's. The address of a finished pod may belong to
    /// another pod, and a workload has the address that the flow gives it.
    fn owners(&self, source: FlowEnd, destination: FlowEnd) -> Result<Owners, NoVerdict> {
        let mut owners = Owners::new();
        // One address cannot have two owners in one world. A packet to itself passes in every world, so the base will
        // do.
        if source.address.is_some() && source.address == destination.address {
            return Ok(owners);
        }
        for end in [source, destination] {
            let Some(address) = end.address else { continue };
            let is_member = |id: &EndpointId| self.cluster.endpoints[id.index()].standing == Standing::Member;
            // A pod that has finished owns no address any more, even if the API still shows one.
            let owner = end.endpoint.filter(is_member);
            if owner != self.oracle.directory().endpoint_at(address) {
                owners.insert(address, owner);
            }
        }
        Ok(owners)
    }
}

fn skip(reason: String) -> NoVerdict {
    NoVerdict::Skip(reason)
}

/// The ports of one question.
#[derive(Clone, Copy)]
struct QuestionPorts {
    protocol: FlowProtocol,
    port: u16,
}

/// One flow and its world.
struct FlowSession<'w, 'c> {
    world: &'w mut CompiledWorld<'c>,
    flow_ends: [FlowEnd; 2],
}

impl FlowSession<'_, '_> {
    fn judge_side(
        &mut self,
        direction: Direction,
        subject: FlowEnd,
        remote: FlowEnd,
        target: QuestionPorts,
    ) -> Result<EndVerdict, NoVerdict> {
        self.judge_by(direction, subject, remote, target, true)
    }

    fn judge_plain(
        &mut self,
        source: FlowEnd,
        destination: FlowEnd,
        target: QuestionPorts,
    ) -> Result<Judgement, NoVerdict> {
        Ok(Judgement {
            egress: self.judge_side(Direction::Egress, source, destination, target)?,
            ingress: self.judge_side(Direction::Ingress, destination, source, target)?,
        })
    }

    /// The same, with `own_node`: whether the other end counts as the subject's own node.
    fn judge_by(
        &mut self,
        direction: Direction,
        subject: FlowEnd,
        remote: FlowEnd,
        target: QuestionPorts,
        by_own_node: bool,
    ) -> Result<EndVerdict, NoVerdict> {
        // Not a local endpoint, so no program runs there.
        let Some(question) = self.question(direction, subject, remote, target, by_own_node)? else {
            return Ok(EndVerdict::new(Verdict::Allow, Basis::NotSubject));
        };
        // The verdict first, then a basis for that verdict. A basis computed independently could contradict it, and the
        // contradiction would hide which of them is wrong.
        let verdict = self.world.decide.decide(&question)?;
        Ok(verdict_basis::explained(self.world, &question, verdict))
    }

    /// The packet of one side; `None` if its end is no local endpoint.
    fn question(
        &mut self,
        direction: Direction,
        subject: FlowEnd,
        remote: FlowEnd,
        target: QuestionPorts,
        by_own_node: bool,
    ) -> Result<Option<PacketQuestion>, NoVerdict> {
        let place = subject.endpoint.and_then(|id| self.world.place(id));
        let Some((place, class)) = place else { return Ok(None) };
        let family = self.family(subject, remote)?;
        self.refuse_node_port(remote, target)?;
        let own = self.address(subject, family)?;
        let workload = remote.endpoint.filter(|it| Some(*it) == subject.endpoint && remote.address.is_none());
        let other = match workload.and_then(|it| self.world.sibling(it, family)) {
            Some(address) => address,
            None => self.address(remote, family)?,
        };
        // A pod with a node's address is not the node: its packets do not come from the host itself.
        let is_pod = remote.endpoint.is_some_and(|id| self.world.place(id).is_some());
        Ok(Some(PacketQuestion {
            direction,
            place,
            subject: class,
            own,
            remote: other,
            protocol: target.protocol,
            port: target.port,
            own_node: by_own_node && !is_pod && self.world.is_own_node(place, other),
        }))
    }

    /// The side of a pod that sends to a backend or hostPort, which may be the pod itself. The program has judged the
    /// address before it is translated, so for the pod itself only the reason is computed here.
    fn judge_leaving(
        &mut self,
        source: FlowEnd,
        backend: FlowEnd,
        target: QuestionPorts,
    ) -> Result<EndVerdict, NoVerdict> {
        match self.question(Direction::Egress, source, backend, target, true)? {
            Some(question) if verdict_basis::is_itself(self.world, &question) => {
                Ok(verdict_basis::hairpin(self.world, &question))
            }
            _ => self.judge_side(Direction::Egress, source, backend, target),
        }
    }

    /// The address family: that of the end that has an address, or for a backend without one, that of the flow's other
    /// end.
    fn family(&self, subject: FlowEnd, remote: FlowEnd) -> Result<Family, NoVerdict> {
        let of = |end: &FlowEnd| end.address.map(Family::of);
        match (of(&subject), of(&remote)) {
            (Some(a), Some(b)) if a != b => {
                // No packet has addresses of two families, so no engine can be asked.
                Err(skip("source and destination are of different address families".into()))
            }
            (Some(family), _) | (None, Some(family)) => Ok(family),
            // Stand-ins exist in both families, and policies about pods do not distinguish them.
            (None, None) => Ok(self.flow_ends.iter().find_map(of).unwrap_or(Family::V4)),
        }
    }

    /// Refuses a question whose stand-in address would be one of a node, at a node port: a packet would be translated
    /// there, but the flow names no address.
    fn refuse_node_port(&self, remote: FlowEnd, target: QuestionPorts) -> Result<(), NoVerdict> {
        let cluster = &self.world.cluster;
        let is_host = |id: EndpointId| cluster.endpoints[id.index()].standing == Standing::HostNetwork;
        let ports = || cluster.services.iter().flat_map(|service| &service.ports);
        let is_node_port = |it: &ServicePort| {
            it.node_port == Some(target.port) && target.protocol == FlowProtocol::Transport(it.protocol)
        };
        match remote.address.is_none() && remote.endpoint.is_some_and(is_host) && ports().any(is_node_port) {
            true => Err(skip("a pod on its node's network has no address, and the port is a node port".to_owned())),
            false => Ok(()),
        }
    }

    fn address(&self, end: FlowEnd, family: Family) -> Result<IpAddr, NoVerdict> {
        // Only endpoints without any address have one. A pod with an IPv6 address alone sends no IPv4 packets, so its
        // question is skipped.
        let stand_in = || self.world.stand_in(end.endpoint?, family);
        end.address.or_else(stand_in).ok_or_else(|| skip("one end has no address of the other's family".into()))
    }

    /// For egress, the verdict of the address already includes hostPorts. For ingress, the pods behind the hostPorts
    /// are judged.
    fn judge_host_ports(
        &mut self,
        source: FlowEnd,
        target: QuestionPorts,
        claims: &[usize],
        otherwise: Judgement,
    ) -> Result<Judgement, NoVerdict> {
        let mut sides = |direction| -> Result<Vec<(usize, EndVerdict)>, NoVerdict> {
            let mut judged = Vec::with_capacity(claims.len());
            for (index, backend, port) in self.world.claims(claims) {
                let target = QuestionPorts { port, ..target };
                let side = match direction {
                    Direction::Egress => self.judge_leaving(source, backend, target)?,
                    Direction::Ingress => self.judge_side(direction, backend, source, target)?,
                };
                judged.push((index, side));
            }
            Ok(judged)
        };
        let (behind, ingress) = (sides(Direction::Egress)?, sides(Direction::Ingress)?);
        // `from_pod` sees the node's address before it is translated and has judged the hostPorts with it. Only the
        // reason is computed here.
        let verdict = otherwise.egress.verdict;
        let egress = otherwise.egress.with_host_ports(behind);
        Ok(Judgement { egress: EndVerdict { verdict, ..egress }, ingress: otherwise.ingress.with_host_ports(ingress) })
    }

    /// The egress verdict of the address already includes all claims on it. The ingress verdict also depends on the
    /// backends of each claim.
    fn judge_behind(
        &mut self,
        source: FlowEnd,
        destination: FlowEnd,
        target: QuestionPorts,
        behind: &ServicesBehind,
    ) -> Result<Judgement, NoVerdict> {
        if let Some(one) = behind.single() {
            return self.judge_service(source, destination, target, one);
        }
        let otherwise = match behind.owner {
            Some(owner) => self.judge_service(source, destination, target, (owner, None))?,
            // Claims on an address that no service owns: the packet may reach the address itself, so it is judged too.
            None => self.judge_plain(source, destination, target)?,
        };
        let (mut egress, mut ingress) = (Vec::new(), Vec::new());
        for (service, port) in &behind.claims {
            // Every claim, since any of the claimants may get the packet.
            let sides = self.judge_backends(source, destination, target, (*service, Some(*port)))?;
            let [of_ingress, of_egress] = sides.map(|basis| {
                let verdict = basis.backends.iter().map(|side| side.verdict).max().unwrap_or(Verdict::Allow);
                EndVerdict::new(verdict, Basis::Service(basis))
            });
            egress.push(((*service, *port), of_egress));
            ingress.push(((*service, *port), of_ingress));
        }
        let verdict = otherwise.egress.verdict;
        let egress = otherwise.egress.with_claims(egress);
        Ok(Judgement { egress: EndVerdict { verdict, ..egress }, ingress: otherwise.ingress.with_claims(ingress) })
    }

    /// `from_pod` judges the service address, and the `to_pod` programs judge the backends.
    fn judge_service(
        &mut self,
        source: FlowEnd,
        destination: FlowEnd,
        target: QuestionPorts,
        (service, port): (ServiceId, Option<u32>),
    ) -> Result<Judgement, NoVerdict> {
        let [ingress, behind] = self.judge_backends(source, destination, target, (service, port))?;
        // The worst, because the service proxy chooses the backend. A service without backends denies nothing here: no
        // packet arrives anywhere.
        let worst = ingress.backends.iter().map(|side| side.verdict).max().unwrap_or(Verdict::Allow);
        // A node port leads away from the node: that it is the pod's own allows nothing.
        let egress = self.judge_by(Direction::Egress, source, destination, target, false)?;
        let question = self.question(Direction::Egress, source, destination, target, false)?;
        let egress = match (&egress.basis, question) {
            // A list applies to the service's own address, so it stays the reason for any backends.
            (Basis::NotSubject | Basis::List(_), _) | (_, None) => egress,
            _ if !behind.backends.is_empty() => EndVerdict::new(egress.verdict, Basis::Service(behind)),
            (_, Some(question)) => match port {
                Some(_) => verdict_basis::without_backends(self.world, &question, egress.verdict),
                None => verdict_basis::without_peers(self.world, egress, target.protocol, false),
            },
        };
        Ok(Judgement { egress, ingress: EndVerdict::new(worst, Basis::Service(ingress)) })
    }

    /// The verdicts for each backend of a service port: at the backend's ingress, and at the source's egress.
    fn judge_backends(
        &mut self,
        source: FlowEnd,
        destination: FlowEnd,
        target: QuestionPorts,
        (service, port): (ServiceId, Option<u32>),
    ) -> Result<[ServiceBasis; 2], NoVerdict> {
        // kube-proxy translates within one family, so backends of the other one are never reached by this packet.
        let family = destination.address.map(Family::of);
        let backends: Vec<(FlowEnd, QuestionPorts)> = self.world.backends(service, port, family, target);
        let (mut arriving, mut leaving) = (Vec::new(), Vec::new());
        for (backend, target) in backends {
            arriving.push(self.judge_side(Direction::Ingress, backend, source, target)?);
            leaving.push(self.judge_leaving(source, backend, target)?);
        }
        Ok([arriving, leaving].map(|backends| ServiceBasis { service, port, backends }))
    }
}
