//! Packets that belong to no flow: where they began, and the policy's verdict.

use weir_model::Direction;

use super::super::packet::{Arrival, tcp};
use super::super::rules::Rule;
use super::facts::Facts;
use super::{Model, Origin, Outcome, Policy, is_group, is_link_local};

/// An outcome that passes, or the outcome of a packet that is dropped.
type Judged = Result<Outcome, Outcome>;

impl Model {
    /// A packet of no flow, or one that is judged like that.
    pub(super) fn new_flow(&mut self, facts: &Facts, policy: &mut dyn Policy) -> Outcome {
        let Some(endpoint) = self.endpoint.clone() else {
            self.note(Rule::NoEndpoint);
            return Outcome::NoEndpoint;
        };
        if facts.hook == Direction::Egress && !endpoint.has(facts.local) {
            self.note(Rule::WrongSource);
            return Outcome::Source;
        }
        if facts.hook == Direction::Ingress && !endpoint.has(facts.local) {
            if !is_group(facts.local) && !is_link_local(facts.local) {
                self.note(Rule::Stray);
                return Outcome::Stray;
            }
            self.note(Rule::ToGroup);
        }
        let origin = self.origin(facts);
        let is_mid_stream = facts.is_connection() && !facts.begins;
        if is_mid_stream {
            return self.mid_stream(facts, origin, policy);
        }
        match self.judge(facts.hook, origin, facts, policy) {
            Ok(outcome) => {
                self.note(Rule::NewAllowed);
                let origin = self.origin_of_flow(facts, origin, policy);
                self.remember(facts, origin);
                outcome
            }
            Err(outcome) => {
                self.note(Rule::NewDenied);
                outcome
            }
        }
    }

    /// Where a packet to the pod began. A packet that leaves the pod always began there.
    pub(super) fn origin(&mut self, facts: &Facts) -> Origin {
        if facts.hook == Direction::Egress {
            return Origin::Elsewhere;
        }
        match facts.arrival {
            Arrival::Other => Origin::Elsewhere,
            Arrival::Own => {
                self.note(Rule::FromItself);
                Origin::Itself
            }
            Arrival::None if !facts.has_socket => self.not_the_host(Rule::NoSocket),
            Arrival::None if facts.is_stamped => self.not_the_host(Rule::Stamped),
            Arrival::None if facts.has_fragment_header => self.not_the_host(Rule::FragmentHeader),
            Arrival::None => Origin::Host,
        }
    }

    pub(super) fn not_the_host(&mut self, why: Rule) -> Origin {
        self.note(why);
        Origin::Elsewhere
    }

    /// TCP and SCTP in the middle of a connection: both directions must be allowed.
    pub(super) fn mid_stream(&mut self, facts: &Facts, origin: Origin, policy: &mut dyn Policy) -> Outcome {
        match self.judge_both(origin, facts, policy) {
            Err(outcome) => {
                self.note(Rule::MidStreamDenied);
                outcome
            }
            Ok(outcome) if facts.flags & tcp::RST != 0 => {
                self.note(Rule::MidStreamReset);
                outcome
            }
            Ok(outcome) => {
                // The packet does not show which side began, unless the own node or the pod itself sent it.
                let origin = match self.origin_of_flow(facts, origin, policy) {
                    Origin::Elsewhere => Origin::MidStream,
                    known => known,
                };
                self.note(match origin {
                    Origin::Host => Rule::MidStreamOfHost,
                    Origin::Itself => Rule::MidStreamOfItself,
                    _ => Rule::MidStream,
                });
                self.remember(facts, origin);
                outcome
            }
        }
    }

    /// The origin that is stored with a flow. Once policy was asked, packets of the host with an address of neither the
    /// node nor the pod are treated like packets from elsewhere.
    pub(super) fn origin_of_flow(&self, facts: &Facts, origin: Origin, policy: &dyn Policy) -> Origin {
        let remote = facts.key.remote;
        let is_own = policy.is_own_node(remote) || self.endpoint.as_ref().is_some_and(|it| it.has(remote));
        match origin {
            Origin::Host if !is_own && is_filtered(policy) => Origin::Elsewhere,
            origin => origin,
        }
    }

    /// Both directions must be allowed; the outcome is that of ingress, which is asked last.
    pub(super) fn judge_both(&mut self, origin: Origin, facts: &Facts, policy: &mut dyn Policy) -> Judged {
        self.judge(Direction::Egress, origin, facts, policy)?;
        self.judge(Direction::Ingress, origin, facts, policy)
    }

    /// The verdict of the generation in force.
    pub(super) fn judge(
        &mut self,
        direction: Direction,
        origin: Origin,
        facts: &Facts,
        policy: &mut dyn Policy,
    ) -> Judged {
        if !is_filtered(policy) {
            self.note(Rule::UnfilteredIsRemembered);
            return Ok(Outcome::Unfiltered);
        }
        let remote = facts.key.remote;
        let is_own_address = self.endpoint.as_ref().is_some_and(|it| it.has(remote));
        let is_itself = match direction {
            Direction::Egress => is_own_address,
            Direction::Ingress => origin == Origin::Itself || (origin == Origin::Host && is_own_address),
        };
        if is_itself {
            self.note(Rule::ToItself);
            return Ok(Outcome::Itself);
        }
        if direction == Direction::Ingress && origin == Origin::Host && policy.is_own_node(remote) {
            self.note(Rule::OwnNode);
            return Ok(Outcome::OwnNode);
        }
        match policy.allows(direction, remote, facts.key.protocol, facts.port(direction)) {
            true => Ok(Outcome::Allowed),
            false => Err(Outcome::Denied),
        }
    }
}

/// Whether policy can deny anything to or from the endpoint.
fn is_filtered(policy: &dyn Policy) -> bool {
    Direction::ALL.into_iter().any(|direction| policy.filters(direction))
}
