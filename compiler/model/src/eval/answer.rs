//! Questions and answers of the oracle: flows, verdicts and their reasons.

use crate::eval::FlowProtocol;
use std::net::IpAddr;

use crate::{Direction, EndpointId, ListId, PolicyId, ServiceId, TierRuleId};

/// A new connection as the pods see it: after DNAT, before SNAT, unless the destination is a service address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The end that opens the connection.
    pub source: FlowEnd,
    /// The end that it is opened to.
    pub destination: FlowEnd,
    /// The protocol.
    pub protocol: FlowProtocol,
    /// The destination port; 0 where the protocol has none.
    pub port: u16,
}

/// One end of a flow: an endpoint, an address, or both (then the address is one of the endpoint's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowEnd {
    /// The endpoint; `None` for an address that is no endpoint's.
    pub endpoint: Option<EndpointId>,
    /// The address; `None` for an endpoint without addresses.
    pub address: Option<IpAddr>,
}

/// The verdict on a packet or connection: pass or drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Pass.
    Allow,
    /// Drop.
    Deny,
}

/// The verdicts at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// Where the flow leaves its source.
    pub egress: EndVerdict,
    /// Where it reaches its destination.
    pub ingress: EndVerdict,
}

impl Judgement {
    /// Both ends must allow.
    pub fn verdict(&self) -> Verdict {
        self.egress.verdict.max(self.ingress.verdict)
    }

    /// The verdict at the end that a direction belongs to.
    pub fn side(&self, direction: Direction) -> &EndVerdict {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// The verdict at one end, and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndVerdict {
    /// Pass or drop.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub basis: Basis,
    /// The rules of cluster-wide policies that passed the flow on to the tier that decided: at most one of each tier.
    pub passed: Vec<TierRuleId>,
}

/// The reason for the verdict of a side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The end is no subject: outside the cluster, on the host's network, finished or pending.
    NotSubject,
    /// A pod reaches itself.
    Itself,
    /// A pod and its own node reach each other.
    OwnNode,
    /// ICMP, where it is assumed to pass.
    IcmpAssumed,
    /// No policy isolates the pod in this direction.
    NotIsolated,
    /// An address list denies.
    List(ListId),
    /// A rule of a cluster-wide policy accepts or denies.
    Tier(TierRuleId),
    /// The pod is isolated, and these rules allow (all of them, in policy order).
    Rules(Vec<RuleId>),
    /// The pod is isolated by these policies, and none of their rules allows.
    Isolated(Vec<PolicyId>),
    /// The destination is a service's address: the verdicts on its backends decide.
    Service(ServiceBasis),
    /// The destination is a contested port: every claim must be allowed, and so must the address itself.
    Claims(ClaimsBasis),
    /// The destination is a hostPort: the verdicts on the pods behind it decide.
    HostPorts(HostPortBasis),
}

/// A rule of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId {
    /// The policy.
    pub policy: PolicyId,
    /// The index of the rule in its direction's list.
    pub rule: u32,
}

/// A service port's backends, judged one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceBasis {
    /// The service.
    pub service: ServiceId,
    /// The index of its port; `None` if the service has no such port.
    pub port: Option<u32>,
    /// The verdict for each ready backend, in the service's order.
    pub backends: Vec<EndVerdict>,
}

/// The services behind an address and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicesBehind {
    /// The service whose ClusterIP the address is. If no service claims the port, nothing is behind it.
    pub owner: Option<ServiceId>,
    /// The services that claim the port, each with the index of its port.
    pub claims: Vec<(ServiceId, u32)>,
    /// Whether the address itself must be allowed too.
    pub contested: bool,
}

impl ServicesBehind {
    /// The one service that decides, and its port, unless the port is contested.
    pub fn single(&self) -> Option<(ServiceId, Option<u32>)> {
        match self.claims[..] {
            [] => self.owner.map(|owner| (owner, None)),
            [(service, port)] if !self.contested => Some((service, Some(port))),
            _ => None,
        }
    }
}

/// The sides that decide about a contested port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimsBasis {
    /// The services that claim it, each with the index of its port, and the side of each claim.
    pub claims: Vec<((ServiceId, u32), EndVerdict)>,
    /// The side of the address itself, as if no service claimed the port.
    pub otherwise: Box<EndVerdict>,
}

impl ClaimsBasis {
    /// The sides that decided the verdict: one denied claim is enough to deny.
    pub fn deciding(&self, verdict: Verdict) -> impl Iterator<Item = &EndVerdict> {
        let agreeing = self.claims.iter().map(|(_, side)| side).filter(move |side| side.verdict == verdict);
        agreeing.chain((verdict == Verdict::Allow).then_some(&*self.otherwise))
    }
}

/// The sides that decide about an address and port that pods claim as their hostPort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPortBasis {
    /// The claims, as indices into [`Cluster::host_ports`](crate::Cluster::host_ports), with the verdict on
    /// each.
    pub claims: Vec<(usize, EndVerdict)>,
    /// The verdict on the address and port as if no pod claimed it.
    pub otherwise: Box<EndVerdict>,
}

impl HostPortBasis {
    /// The sides that decided the verdict: one denied claim is enough to deny.
    pub fn deciding(&self, verdict: Verdict) -> impl Iterator<Item = &EndVerdict> {
        let agreeing = self.claims.iter().map(|(_, side)| side).filter(move |side| side.verdict == verdict);
        agreeing.chain((verdict == Verdict::Allow).then_some(&*self.otherwise))
    }
}

impl EndVerdict {
    /// Adds hostPorts, which can only deny: every pod that claims the port must be allowed, and so must the address and
    /// port itself.
    #[must_use]
    pub fn with_host_ports(self, claims: Vec<(usize, Self)>) -> Self {
        let verdict = claims.iter().map(|(_, side)| side.verdict).max();
        match (verdict, self.verdict) {
            (None, _) | (Some(Verdict::Allow), Verdict::Deny) => self,
            (Some(verdict), _) => {
                Self::new(verdict, Basis::HostPorts(HostPortBasis { claims, otherwise: Box::new(self) }))
            }
        }
    }

    /// Adds contested claims. A claim can only deny.
    #[must_use]
    pub fn with_claims(self, claims: Vec<((ServiceId, u32), Self)>) -> Self {
        let verdict = claims.iter().map(|(_, side)| side.verdict).max();
        match (verdict, self.verdict) {
            (None, _) | (Some(Verdict::Allow), Verdict::Deny) => self,
            (Some(verdict), _) => Self::new(verdict, Basis::Claims(ClaimsBasis { claims, otherwise: Box::new(self) })),
        }
    }

    /// A verdict to which no rule of a cluster-wide policy passed the flow on.
    pub fn new(verdict: Verdict, basis: Basis) -> Self {
        Self { verdict, basis, passed: Vec::new() }
    }

    pub(super) fn allow(basis: Basis) -> Self {
        Self::new(Verdict::Allow, basis)
    }

    pub(super) fn deny(basis: Basis) -> Self {
        Self::new(Verdict::Deny, basis)
    }

    /// The same verdict, after these rules passed the flow on.
    #[must_use]
    pub fn after(self, passed: Vec<TierRuleId>) -> Self {
        Self { passed, ..self }
    }
}
