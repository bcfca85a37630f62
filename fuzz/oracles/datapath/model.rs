//! The rules, one after the other, over a plain list of flows.
//!
//! Read it beside [`super::rules`]: each `note` names the sentence that the lines around it carry out. The table of flows has
//! room for all of them; which flow gives way in a full bucket is no part of this model.

use std::net::{IpAddr, Ipv6Addr};

use weir_compiler::model::Direction;

use super::packet::{Arrival, Body, Fault, INIT, Ip, Packet, Upper, tcp};
use super::rules::Rule;

/// What policy says in one generation about one endpoint.
pub trait Policy {
    /// Whether a connection in this direction may begin. `port` is the remote one of egress, the local one of ingress.
    /// A packet of ingress is never taken for one of the endpoint itself or of its own node: the model decides about those.
    fn allows(&mut self, direction: Direction, remote: IpAddr, protocol: u8, port: u16) -> bool;
    /// Whether any packet could be denied in this direction.
    fn filters(&self, direction: Direction) -> bool;
    /// Whether this is an address of the endpoint's node.
    fn is_own_node(&self, address: IpAddr) -> bool;
    /// Whether flows of older generations go on unasked.
    fn keeps_established(&self) -> bool;
}

/// The pod behind the interface.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its IPv4 address.
    pub v4: Option<IpAddr>,
    /// Its IPv6 address.
    pub v6: Option<IpAddr>,
    /// The hardware address of its interface, if that is known.
    pub hardware: Option<[u8; 6]>,
}

impl Endpoint {
    /// Whether this is its address.
    pub fn has(&self, address: IpAddr) -> bool {
        self.v4 == Some(address) || self.v6 == Some(address)
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the counters' own")]
pub enum Outcome {
    Established,
    Allowed,
    Denied,
    Itself,
    OwnNode,
    Unfiltered,
    Related,
    Neighbour,
    Malformed,
    Unknown,
    Fragment,
    Source,
    Stray,
    NoEndpoint,
    Cut,
    SourceRoute,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Established,
        Self::Allowed,
        Self::Denied,
        Self::Itself,
        Self::OwnNode,
        Self::Unfiltered,
        Self::Related,
        Self::Neighbour,
        Self::Malformed,
        Self::Unknown,
        Self::Fragment,
        Self::Source,
        Self::Stray,
        Self::NoEndpoint,
        Self::Cut,
        Self::SourceRoute,
    ];

    /// As the counters name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Established => "established",
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Itself => "itself",
            Self::OwnNode => "own-node",
            Self::Unfiltered => "unfiltered",
            Self::Related => "related",
            Self::Neighbour => "neighbour",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Fragment => "fragment",
            Self::Source => "source",
            Self::Stray => "stray",
            Self::NoEndpoint => "no-endpoint",
            Self::Cut => "cut",
            Self::SourceRoute => "source-route",
        }
    }

    /// Whether the packet goes on.
    pub fn passes(self) -> bool {
        match self {
            Self::Established
            | Self::Allowed
            | Self::Itself
            | Self::OwnNode
            | Self::Unfiltered
            | Self::Related
            | Self::Neighbour => true,
            Self::Denied
            | Self::Malformed
            | Self::Unknown
            | Self::Fragment
            | Self::Source
            | Self::Stray
            | Self::NoEndpoint
            | Self::Cut
            | Self::SourceRoute => false,
        }
    }
}

/// Who began a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another host or pod, or the pod itself towards others.
    Elsewhere,
    /// The pod's own node.
    Host,
    /// The pod, towards itself.
    Itself,
    /// Unknown: the first packet that was seen did not begin a connection.
    MidStream,
}

/// Where a flow is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its beginner has not sent anything since an answer.
    Fresh,
    /// Both sides are known to talk.
    Open,
    /// TCP: it was ended.
    Closing,
}

/// What stands for ports in a flow's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// The protocol has none.
    None,
    /// The remote one and the local one.
    Pair(u16, u16),
    /// Of an ICMP question: what was asked, in which direction, with which identifier.
    Question(u8, Direction, u16),
}

/// A flow.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct Flow {
    pub key: Key,
    pub local: IpAddr,
    pub begun: Direction,
    pub origin: Origin,
    pub state: State,
    pub is_answered: bool,
    /// The sides that have sent FIN: to the pod, from the pod.
    pub fins: [bool; 2],
    pub is_cut: bool,
    pub generation: u32,
    pub last: u64,
}

/// What finds a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words of the specification")]
pub struct Key {
    pub protocol: u8,
    pub remote: IpAddr,
    pub ports: Ports,
}

/// What the rules want to know of a packet.
#[derive(Clone, Copy, Debug)]
struct Facts {
    hook: Direction,
    arrival: Arrival,
    has_socket: bool,
    is_stamped: bool,
    /// IPv6 with a fragment header, even of a whole packet.
    has_fragment_header: bool,
    is_first_fragment: bool,
    identification: u16,
    local: IpAddr,
    key: Key,
    /// TCP's flags; none of a later fragment.
    flags: u8,
    /// TCP with SYN and without ACK, SCTP whose first chunk is INIT.
    begins: bool,
    is_icmp: bool,
}

impl Facts {
    /// TCP and SCTP say where a connection begins.
    fn is_connection(&self) -> bool {
        matches!(self.key.protocol, 6 | 132)
    }

    /// An ICMP question, in the direction in which it is asked.
    fn asks(&self) -> bool {
        matches!(self.key.ports, Ports::Question(_, asked, _) if asked == self.hook)
    }

    /// The port that policy speaks of, in a direction.
    fn port(&self, direction: Direction) -> u16 {
        match (self.key.ports, direction) {
            (Ports::Pair(remote, _), Direction::Egress) => remote,
            (Ports::Pair(_, local), Direction::Ingress) => local,
            _ => 0,
        }
    }
}

/// Ports of a first fragment that passed.
#[derive(Clone, Debug)]
struct FirstFragment {
    hook: Direction,
    identification: u16,
    protocol: u8,
    remote: IpAddr,
    local: IpAddr,
    ports: Ports,
}

/// The state of one endpoint.
#[derive(Clone, Debug)]
pub struct Model {
    /// The pod; `None` while the interface has none.
    pub endpoint: Option<Endpoint>,
    /// The generation in force.
    pub generation: u32,
    /// Seconds.
    pub now: u64,
    /// In any order, at most one for a key.
    pub flows: Vec<Flow>,
    /// Global unicast addresses that have solicited the endpoint, and when.
    pub(super) solicitors: Vec<(Ipv6Addr, u64)>,
    first_fragments: Vec<FirstFragment>,
    /// The rules that the last packet met.
    pub noted: Vec<Rule>,
}

/// An outcome that passes, or the outcome of a packet that is dropped.
type Judged = Result<Outcome, Outcome>;

impl Model {
    /// Without flows.
    pub fn new(endpoint: Option<Endpoint>) -> Self {
        let (flows, solicitors, first_fragments, noted) = Default::default();
        Self { endpoint, generation: 1, now: 0, flows, solicitors, first_fragments, noted }
    }

    pub(super) fn note(&mut self, rule: Rule) {
        self.noted.push(rule);
    }

    /// What becomes of a packet.
    pub fn receive(&mut self, packet: &Packet, policy: &mut dyn Policy) -> Outcome {
        self.noted.clear();
        match &packet.body {
            Body::Vlan(_) if packet.hook == Direction::Egress => {
                self.note(Rule::TagFromPod);
                Outcome::Unknown
            }
            Body::UnknownFamily | Body::Vlan(_) => self.unjudged(Outcome::Unknown, packet.hook, None, policy),
            Body::Arp(arp) => self.arp(packet.hook, arp),
            Body::Ip(ip) => self.ip(packet, ip, policy),
        }
    }

    /// Headers that cannot be judged: dropped where the endpoint filters this direction, else they pass as `unfiltered`.
    fn unjudged(&mut self, why: Outcome, hook: Direction, local: Option<IpAddr>, policy: &dyn Policy) -> Outcome {
        let Some(endpoint) = self.endpoint.clone() else {
            self.note(Rule::NoEndpoint);
            return Outcome::NoEndpoint;
        };
        if policy.filters(hook) {
            self.note(Rule::UnjudgedIsDropped);
            return why;
        }
        if let Some(local) = local.filter(|it| !endpoint.has(*it)) {
            if hook == Direction::Egress {
                self.note(Rule::UnjudgedSource);
                return Outcome::Source;
            }
            if !is_group(local) && !is_link_local(local) {
                self.note(Rule::UnjudgedStray);
                return Outcome::Stray;
            }
        }
        self.note(Rule::UnjudgedPasses);
        Outcome::Unfiltered
    }

    fn ip(&mut self, packet: &Packet, ip: &Ip, policy: &mut dyn Policy) -> Outcome {
        let unjudged = match ip.fault {
            Some(Fault::SourceRoute) => Some(Outcome::SourceRoute),
            // A first fragment that is too short is made to deceive.
            Some(Fault::Short) if ip.is_first_fragment() => Some(Outcome::Fragment),
            Some(Fault::Short) if !ip.is_later_fragment() && ip.has_header() => Some(Outcome::Malformed),
            _ => None,
        };
        if let Some(why) = unjudged {
            return self.unjudged(why, packet.hook, Some(ends(packet.hook, ip).1), policy);
        }
        let ports = match ip.is_later_fragment() {
            false => ports(packet.hook, ip),
            // Each endpoint has places of its own for ports of first fragments.
            true if self.endpoint.is_none() => {
                self.note(Rule::NoEndpoint);
                return Outcome::NoEndpoint;
            }
            true => match self.ports_of_later_fragment(packet.hook, ip) {
                Some(ports) => ports,
                None => return self.unjudged(Outcome::Fragment, packet.hook, Some(ends(packet.hook, ip).1), policy),
            },
        };
        let facts = facts(packet, ip, ports);
        if !ip.is_later_fragment() {
            if let Some(outcome) = self.neighbours(packet.hook, ip) {
                return outcome;
            }
            if let Upper::Error(_, quoted) = &ip.upper
                && self.is_related(&facts, ip, quoted, policy)
            {
                return Outcome::Related;
            }
        }
        let outcome = self.of_flow(&facts, policy);
        self.keep_first_fragment(&facts, outcome);
        outcome
    }

    /// Later fragments take their ports from the first one that passed.
    fn ports_of_later_fragment(&mut self, hook: Direction, ip: &Ip) -> Option<Ports> {
        let fragment = ip.fragment?;
        if ip.source.is_ipv4() && ip.protocol() == 6 && fragment.offset == 1 {
            self.note(Rule::TinyFragment);
            return None;
        }
        let (remote, local) = ends(hook, ip);
        let found = self.first_fragments.iter().rev().find(|it| {
            (it.hook, it.identification, it.protocol, it.remote, it.local)
                == (hook, fragment.identification, ip.protocol(), remote, local)
        });
        let ports = found.map(|it| it.ports);
        self.note(if ports.is_some() { Rule::LaterFragment } else { Rule::LostFragment });
        ports
    }

    fn keep_first_fragment(&mut self, facts: &Facts, outcome: Outcome) {
        if !facts.is_first_fragment || !outcome.passes() || self.endpoint.is_none() {
            return;
        }
        self.note(Rule::FirstFragmentIsKept);
        let Facts { hook, identification, local, key, .. } = *facts;
        let Key { protocol, remote, ports } = key;
        self.first_fragments.push(FirstFragment { hook, identification, protocol, remote, local, ports });
    }

    /// The place of a live flow with this key. One that was silent for longer than its time-out is forgotten here.
    fn find(&mut self, key: Key) -> Option<usize> {
        let at = self.flows.iter().position(|it| it.key == key)?;
        let flow = &self.flows[at];
        if self.now - flow.last > time_out(key.protocol, flow.state) {
            self.flows.remove(at);
            self.note(Rule::Expired);
            return None;
        }
        Some(at)
    }

    /// What becomes of a packet that no other rule caught.
    fn of_flow(&mut self, facts: &Facts, policy: &mut dyn Policy) -> Outcome {
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
    fn of_cut_flow(&mut self, at: usize, facts: &Facts, policy: &mut dyn Policy) -> Outcome {
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
    fn judge_again(&mut self, at: usize, facts: &Facts, policy: &mut dyn Policy) -> Result<(), Outcome> {
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

    /// A packet of a flow that is in force: it passes, and the flow learns from it.
    fn goes_on(&mut self, at: usize, facts: &Facts) {
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

    /// A packet of no flow, or one that is judged like that.
    fn new_flow(&mut self, facts: &Facts, policy: &mut dyn Policy) -> Outcome {
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

    /// Where a packet began that comes to the pod. What leaves the pod has no origin but the pod.
    fn origin(&mut self, facts: &Facts) -> Origin {
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

    fn not_the_host(&mut self, why: Rule) -> Origin {
        self.note(why);
        Origin::Elsewhere
    }

    /// TCP and SCTP in the middle of a connection: both directions must be allowed.
    fn mid_stream(&mut self, facts: &Facts, origin: Origin, policy: &mut dyn Policy) -> Outcome {
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
                // Which side began is not in the packet, unless the own node or the pod itself sent it.
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

    /// The origin that a flow is remembered with. The host's packets with an address of neither the node nor the pod are no different
    /// from others, once policy was asked.
    fn origin_of_flow(&self, facts: &Facts, origin: Origin, policy: &dyn Policy) -> Origin {
        let remote = facts.key.remote;
        let is_own = policy.is_own_node(remote) || self.endpoint.as_ref().is_some_and(|it| it.has(remote));
        match origin {
            Origin::Host if !is_own && is_filtered(policy) => Origin::Elsewhere,
            origin => origin,
        }
    }

    /// Both directions must be allowed; the outcome is that of ingress, which is asked last.
    fn judge_both(&mut self, origin: Origin, facts: &Facts, policy: &mut dyn Policy) -> Judged {
        self.judge(Direction::Egress, origin, facts, policy)?;
        self.judge(Direction::Ingress, origin, facts, policy)
    }

    /// The verdict of the generation in force.
    fn judge(&mut self, direction: Direction, origin: Origin, facts: &Facts, policy: &mut dyn Policy) -> Judged {
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

    /// A new flow, which takes the place of the one with its key.
    fn remember(&mut self, facts: &Facts, origin: Origin) {
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

    /// Whether an ICMP error is about a flow that is in force.
    fn is_related(&mut self, facts: &Facts, error: &Ip, quoted: &Ip, policy: &dyn Policy) -> bool {
        if quoted.is_later_fragment() || matches!(quoted.upper, Upper::Error(..) | Upper::Neighbour(_)) {
            self.note(Rule::ErrorAboutNoFlow);
            return false;
        }
        // An error that comes to the pod quotes what left it, and the other way round.
        let sent = if facts.hook == Direction::Ingress { Direction::Egress } else { Direction::Ingress };
        let (remote, local) = ends(sent, quoted);
        let ports = ports(sent, quoted);
        let is_question = matches!(ports, Ports::Question(..));
        let about_icmp = quoted.protocol() == quoted.icmp_number() && !is_question;
        if local != facts.local || about_icmp {
            self.note(Rule::ErrorAboutNoFlow);
            return false;
        }
        let rule = match self.find(Key { protocol: quoted.protocol(), remote, ports }).map(|at| &self.flows[at]) {
            None => Rule::ErrorAboutNoFlow,
            Some(flow) if flow.local != facts.local => Rule::ErrorOtherLocal,
            Some(flow) if flow.is_cut => Rule::ErrorAboutCut,
            Some(flow) if flow.generation != self.generation && !policy.keeps_established() => Rule::ErrorAboutOlder,
            Some(_) if facts.hook == Direction::Egress && error.destination != remote => Rule::ErrorToOther,
            Some(_) if is_too_long(error) => Rule::ErrorTooLong,
            Some(_) => Rule::Related,
        };
        self.note(rule);
        rule == Rule::Related
    }
}

/// Whether policy can deny anything to or from the endpoint.
fn is_filtered(policy: &dyn Policy) -> bool {
    Direction::ALL.into_iter().any(|direction| policy.filters(direction))
}

/// Why a beginning is not of this flow, if it is not.
fn begins_another(flow: &Flow, facts: &Facts) -> Option<Rule> {
    match flow {
        _ if flow.is_cut => Some(Rule::BeginsOnCut),
        _ if flow.state == State::Closing => Some(Rule::BeginsOnClosing),
        _ if flow.origin == Origin::MidStream => Some(Rule::BeginsOnMidStream),
        _ if flow.begun != facts.hook => Some(Rule::BeginsAgainst),
        _ => None,
    }
}

/// Why a packet to the pod does not come from where this flow's packets come from, if it does not.
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

fn facts(packet: &Packet, ip: &Ip, ports: Ports) -> Facts {
    let (remote, local) = ends(packet.hook, ip);
    let (flags, begins) = match ip.upper {
        _ if ip.is_later_fragment() => (0, false),
        Upper::Tcp(_, _, flags) => (flags, flags & (tcp::SYN | tcp::ACK) == tcp::SYN),
        Upper::Sctp(_, _, chunk) => (0, chunk == INIT),
        _ => (0, false),
    };
    Facts {
        hook: packet.hook,
        arrival: packet.arrival,
        has_socket: packet.has_socket,
        is_stamped: packet.stamp & 3 != 0,
        has_fragment_header: ip.source.is_ipv6() && ip.fragment.is_some(),
        is_first_fragment: ip.is_first_fragment(),
        identification: ip.fragment.map_or(0, |it| it.identification),
        local,
        key: Key { protocol: ip.protocol(), remote, ports },
        flags,
        begins,
        is_icmp: ip.protocol() == ip.icmp_number(),
    }
}

/// The remote address and the local one.
fn ends(hook: Direction, ip: &Ip) -> (IpAddr, IpAddr) {
    match hook {
        Direction::Egress => (ip.destination, ip.source),
        Direction::Ingress => (ip.source, ip.destination),
    }
}

/// What stands for ports in the key, of a packet that goes in this direction.
fn ports(hook: Direction, ip: &Ip) -> Ports {
    let opposite = if hook == Direction::Egress { Direction::Ingress } else { Direction::Egress };
    match ip.upper {
        Upper::Tcp(source, destination, _) | Upper::Udp(source, destination) | Upper::Sctp(source, destination, _) => {
            match hook {
                Direction::Egress => Ports::Pair(destination, source),
                Direction::Ingress => Ports::Pair(source, destination),
            }
        }
        Upper::Icmp(kind, identifier) => match (ip.source.is_ipv4(), kind) {
            (true, 8 | 13 | 15 | 17) | (false, 128) => Ports::Question(kind, hook, identifier),
            (true, 0) => Ports::Question(8, opposite, identifier),
            (true, 14 | 16 | 18) | (false, 129) => Ports::Question(kind - 1, opposite, identifier),
            _ => Ports::None,
        },
        _ => Ports::None,
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

/// Multicast, and IPv4's broadcast.
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

/// IPv6's link-local unicast addresses.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Errors quote no more than this.
fn is_too_long(error: &Ip) -> bool {
    super::bytes::length(error) > if error.source.is_ipv4() { 576 } else { 1280 }
}
