//! Packets of flows that the table knows, and how a flow gets there.

use weir_model::Direction;

use super::super::packet::{Arrival, tcp};
use super::super::rules::Rule;
use super::facts::Facts;
use super::{Flow, Key, Model, Origin, Outcome, Policy, State, is_group};

impl Model {
    /// The index of a live flow with this key. A flow that was silent for longer than its time-out is removed here.
    pub(super) fn find(&mut self, key: Key) -> Option<usize> {
        let at = self.flows.iter().position(|it| it.key == key)?;
        let flow = &self.flows[at];
        if self.now - flow.last > time_out(key.protocol, flow.state) {
            self.flows.remove(at);
            self.note(Rule::Expired);
            return None;
        }
        Some(at)
    }

    /// The outcome of a packet that no other rule handled.
    pub(super) fn of_flow(&mut self, facts: &Facts, policy: &mut dyn Policy) -> Outcome {
        let Some(at) = self.find(facts.key) else { return self.new_flow(facts, policy) };
        let flow = self.flows[at].clone();
        if flow.local != facts.local {
            self.note(Rule::OtherLocalAddress);
            return self.new_flow(facts, policy);
        }
        if facts.begins
            && let Some(rule) = begins_another(&flow, facts)
        {
            self.note(rule);
            let outcome = self.new_flow(facts, policy);
            if outcome == Outcome::Denied {
                self.note(Rule::BeginningDenied);
            }
            return outcome;
        }
        if flow.is_cut {
            return self.of_cut_flow(at, facts, policy);
        }
        if let Some(rule) = of_other_origin(&flow, facts) {
            self.note(rule);
            return self.new_flow(facts, policy);
        }
        if flow.generation != self.generation {
            if policy.keeps_established() {
                self.note(Rule::Kept);
            } else if let Err(outcome) = self.judge_again(at, facts, policy) {
                return outcome;
            }
        }
        self.goes_on(at, facts);
        Outcome::Established
    }

    /// A packet of a cut flow that begins no connection.
    pub(super) fn of_cut_flow(&mut self, at: usize, facts: &Facts, policy: &mut dyn Policy) -> Outcome {
        if facts.is_connection() {
            self.note(Rule::CutConnection);
            return Outcome::Cut;
        }
        if facts.hook != self.flows[at].begun {
            self.note(Rule::CutAnswer);
            self.flows[at].last = self.now;
            return Outcome::Cut;
        }
        self.note(Rule::CutJudgedAnew);
        let outcome = self.new_flow(facts, policy);
        if !outcome.passes() {
            self.note(Rule::CutStays);
        }
        outcome
    }

    /// A flow of an older generation: is it allowed in this one too?
    pub(super) fn judge_again(&mut self, at: usize, facts: &Facts, policy: &mut dyn Policy) -> Result<(), Outcome> {
        let flow = self.flows[at].clone();
        if self.endpoint.is_none() {
            self.note(Rule::NoEndpoint);
            return Err(Outcome::NoEndpoint);
        }
        let judged = match flow.origin {
            Origin::MidStream => {
                self.note(Rule::MidStreamJudgedAgain);
                self.judge_both(Origin::Elsewhere, facts, policy)
            }
            origin => {
                self.note(Rule::JudgedAgain);
                self.judge(flow.begun, origin, facts, policy)
            }
        };
        if judged.is_ok() {
            self.note(Rule::Adopted);
            self.flows[at].generation = self.generation;
            return Ok(());
        }
        self.note(Rule::Cut);
        self.flows[at].is_cut = true;
        if !facts.is_connection() && facts.hook != flow.begun {
            self.note(Rule::CutByAnswer);
            self.flows[at].last = self.now;
        }
        Err(Outcome::Cut)
    }

    /// A packet of a flow that is in force: it passes, and the flow's state is updated.
    pub(super) fn goes_on(&mut self, at: usize, facts: &Facts) {
        self.note(Rule::Established);
        let mut flow = self.flows[at].clone();
        flow.last = self.now;
        if facts.begins {
            self.note(Rule::BeginsAgain);
        }
        if flow.state == State::Closing {
            self.note(Rule::ClosingGoesOn);
        }
        if facts.hook != flow.begun {
            self.note(Rule::Answers);
            flow.is_answered = true;
        } else if flow.is_answered && flow.state == State::Fresh {
            self.note(Rule::Opens);
            flow.state = State::Open;
        }
        if facts.flags & tcp::FIN != 0 {
            flow.fins[usize::from(facts.hook == Direction::Egress)] = true;
            if flow.fins == [true, true] {
                self.note(Rule::BothFins);
                flow.state = State::Closing;
            } else {
                self.note(Rule::OneFin);
            }
        }
        if facts.flags & tcp::RST != 0 {
            if facts.hook == Direction::Egress {
                self.note(Rule::ResetFromPod);
                flow.state = State::Closing;
            } else {
                self.note(Rule::ResetToPod);
            }
        }
        self.flows[at] = flow;
    }

    /// Stores a new flow, and replaces an existing one with its key.
    pub(super) fn remember(&mut self, facts: &Facts, origin: Origin) {
        if facts.is_icmp && !facts.asks() {
            return self.note(Rule::AsksNothing);
        }
        let destination = if facts.hook == Direction::Egress { facts.key.remote } else { facts.local };
        if is_group(destination) {
            return self.note(Rule::GroupNotRemembered);
        }
        let before = self.flows.len();
        self.flows.retain(|it| it.key != facts.key);
        if self.flows.len() < before {
            self.note(Rule::TakesSlot);
        }
        self.flows.push(Flow {
            key: facts.key,
            local: facts.local,
            begun: facts.hook,
            origin,
            state: State::Fresh,
            is_answered: false,
            fins: [false, false],
            is_cut: false,
            generation: self.generation,
            last: self.now,
        });
    }
}

/// The rule by which a first packet does not belong to this flow, if there is one.
fn begins_another(flow: &Flow, facts: &Facts) -> Option<Rule> {
    match flow {
        _ if flow.is_cut => Some(Rule::BeginsOnCut),
        _ if flow.state == State::Closing => Some(Rule::BeginsOnClosing),
        _ if flow.origin == Origin::MidStream => Some(Rule::BeginsOnMidStream),
        _ if flow.begun != facts.hook => Some(Rule::BeginsAgainst),
        _ => None,
    }
}

/// The rule by which a packet to the pod has another origin than this flow, if there is one.
fn of_other_origin(flow: &Flow, facts: &Facts) -> Option<Rule> {
    if facts.hook == Direction::Egress {
        return None;
    }
    match flow.origin {
        Origin::Host if facts.arrival != Arrival::None => Some(Rule::HostArrival),
        Origin::Host if facts.is_stamped => Some(Rule::HostStamp),
        Origin::Host if facts.has_fragment_header => Some(Rule::HostFragment),
        Origin::Itself if facts.arrival != Arrival::Own => Some(Rule::ItselfArrival),
        _ => None,
    }
}

/// How long a flow may be silent, in seconds.
pub fn time_out(protocol: u8, state: State) -> u64 {
    match (protocol, state) {
        (6, State::Fresh) => 60,
        (6, State::Open) => 7200,
        (_, State::Closing) => 120,
        (17, State::Fresh) => 30,
        (17, State::Open) => 180,
        (_, State::Fresh) => 30,
        (_, State::Open) => 120,
    }
}
