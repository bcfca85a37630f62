//! Evaluates a packet in the chains, as the kernel does.
//!
//! Rules are evaluated one after the other. There is a single shortcut: a run of rules whose only condition is one
//! exact address each (the dispatch to thousands of pods) is a hash map by that address. The skipped rules are exactly
//! those that would not match.

use std::collections::HashMap;
use std::net::IpAddr;

use super::ipset::{AddressSide, IpSets};
use super::parse::{Chain, ChainPolicy, ChainRule, FilterTable, PacketTest, RuleTarget, TableParseError};
use weir_objects::address::Family;

/// The connection tracking state of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConntrackState {
    /// The first packet of a connection.
    New,
    /// A packet of a connection that has been seen in both directions.
    Established,
    /// A packet that relates to another connection, for example an ICMP error.
    Related,
}

/// A forwarded packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedPacket {
    /// Its source.
    pub source: IpAddr,
    /// Its destination, of the same family.
    pub destination: IpAddr,
    /// The protocol's number: 6 is TCP.
    pub protocol: u8,
    /// The destination port, if the protocol has one.
    pub port: Option<u16>,
    /// Its connection tracking state.
    pub state: ConntrackState,
    /// Its firewall mark.
    pub mark: u32,
}

impl ForwardedPacket {
    pub(super) fn address(&self, side: AddressSide) -> IpAddr {
        match side {
            AddressSide::Source => self.source,
            AddressSide::Destination => self.destination,
        }
    }
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkEnd {
    /// Accepted: by a rule, or by the policy of the kernel's own chain.
    Accept,
    /// Dropped by a rule, or by the policy of the kernel's own chain.
    Drop,
    /// Returned from the chain in which the walk began.
    Return,
}

/// The result of a walk and the rules on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainWalk<'e> {
    /// The result.
    pub ending: WalkEnd,
    /// The comments of the rules that matched, in order.
    pub comments: Vec<&'e str>,
}

/// Parsed rules and sets.
#[derive(Clone, Debug)]
pub struct Evaluator {
    sets: IpSets,
    v4: CompiledTable,
    v6: CompiledTable,
}

#[derive(Clone, Debug)]
struct CompiledTable {
    table: FilterTable,
    /// The runs of each chain, in order.
    runs: Vec<Vec<Run>>,
}

/// Neighbouring rules whose only condition is one exact address each.
#[derive(Clone, Debug)]
struct Run {
    start: usize,
    end: usize,
    side: AddressSide,
    /// For each address, the indices of its rules, in order.
    rules: HashMap<IpAddr, Vec<usize>>,
}

impl Evaluator {
    /// Reads iptables-save, ip6tables-save and `ipset save` text.
    pub fn parse(v4: &str, v6: &str, sets: &str) -> Result<Self, TableParseError> {
        let sets = IpSets::parse(sets)?;
        let v4 = CompiledTable::new(FilterTable::parse(Family::V4, v4, &sets)?);
        let v6 = CompiledTable::new(FilterTable::parse(Family::V6, v6, &sets)?);
        Ok(Self { sets, v4, v6 })
    }

    /// Walks a packet from the start of a chain of its family's table; `None` if there is no such chain.
    pub fn walk(&self, chain: &str, packet: &ForwardedPacket) -> Option<ChainWalk<'_>> {
        let compiled = match Family::of(packet.source) {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        let start = compiled.table.find(chain)?;
        let mut walker =
            Walker { sets: &self.sets, compiled, packet: *packet, stack: Vec::new(), comments: Vec::new() };
        let ending = walker.walk(start);
        Some(ChainWalk { ending, comments: walker.comments })
    }
}

impl CompiledTable {
    fn new(table: FilterTable) -> Self {
        let runs = table.chains.iter().map(find_runs).collect();
        Self { table, runs }
    }
}

fn find_runs(chain: &Chain) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, rule) in chain.rules.iter().enumerate() {
        let Some((side, address)) = only_address(rule) else { continue };
        match runs.last_mut() {
            Some(run) if run.end == index && run.side == side => {
                run.end = index + 1;
                run.rules.entry(address).or_default().push(index);
            }
            _ => runs.push(Run { start: index, end: index + 1, side, rules: HashMap::from([(address, vec![index])]) }),
        }
    }
    runs
}

/// The address, if it is the rule's only condition.
fn only_address(rule: &ChainRule) -> Option<(AddressSide, IpAddr)> {
    match rule.matches.as_slice() {
        [it] if !it.negated => match it.test {
            PacketTest::Address(side, prefix) if prefix.len() == prefix.family().bits() => {
                Some((side, prefix.address()))
            }
            _ => None,
        },
        _ => None,
    }
}

impl Run {
    /// The first rule at or after `index` that matches, or the index after the run.
    fn next(&self, index: usize, packet: &ForwardedPacket) -> usize {
        let rules = self.rules.get(&packet.address(self.side)).map_or(&[][..], Vec::as_slice);
        rules.iter().copied().find(|rule| *rule >= index).unwrap_or(self.end)
    }
}

struct Walker<'e> {
    sets: &'e IpSets,
    compiled: &'e CompiledTable,
    packet: ForwardedPacket,
    /// The calling chains, each with the rule to continue with.
    stack: Vec<(usize, usize)>,
    comments: Vec<&'e str>,
}

impl<'e> Walker<'e> {
    fn walk(&mut self, start: usize) -> WalkEnd {
        let table = &self.compiled.table;
        let own = table.chains.get(start).and_then(|chain| chain.policy);
        let (mut chain, mut index) = (start, 0);
        loop {
            let target = match self.next_match(chain, &mut index) {
                Some(rule) => {
                    self.comments.extend(rule.comment.as_deref());
                    rule.target
                }
                None => RuleTarget::Return,
            };
            index += 1;
            match target {
                RuleTarget::Accept => return WalkEnd::Accept,
                RuleTarget::Drop => return WalkEnd::Drop,
                RuleTarget::Mark { value, mask } => self.packet.mark = (self.packet.mark & !mask) ^ value,
                RuleTarget::Nothing => {}
                RuleTarget::Jump(to) => {
                    self.stack.push((chain, index));
                    (chain, index) = (to, 0);
                }
                RuleTarget::Goto(to) => (chain, index) = (to, 0),
                RuleTarget::Return => match self.stack.pop() {
                    Some(back) => (chain, index) = back,
                    None => return WalkEnd::of(own),
                },
            }
        }
    }

    /// The next rule of the chain that matches, from `index` on. Sets `index` to it.
    fn next_match(&self, chain: usize, index: &mut usize) -> Option<&'e ChainRule> {
        let compiled = self.compiled;
        let rules = &compiled.table.chains.get(chain)?.rules;
        let runs = compiled.runs.get(chain)?;
        let mut run = runs.partition_point(|run| run.end <= *index);
        loop {
            if let Some(current) = runs.get(run).filter(|run| run.start <= *index) {
                *index = current.next(*index, &self.packet);
                run += 1;
                // Another run may begin directly after this one.
                if *index == current.end {
                    continue;
                }
            }
            let rule = rules.get(*index)?;
            if self.holds(rule) {
                return Some(rule);
            }
            *index += 1;
        }
    }

    fn holds(&self, rule: &ChainRule) -> bool {
        rule.matches.iter().all(|it| self.test(&it.test) != it.negated)
    }

    fn test(&self, test: &PacketTest) -> bool {
        let packet = &self.packet;
        match test {
            PacketTest::Address(side, prefix) => prefix.contains(packet.address(*side)),
            PacketTest::Protocol(protocol) => packet.protocol == *protocol,
            PacketTest::Set(set, side) => self.sets.sets.get(*set).is_some_and(|set| set.contains(*side, packet)),
            PacketTest::Ports(ranges) => {
                packet.port.is_some_and(|port| ranges.iter().any(|(first, last)| (*first..=*last).contains(&port)))
            }
            // A flow of ICMP begins with an echo request.
            PacketTest::Icmp6Type(kind) => packet.protocol == IPV6_ICMP && *kind == ECHO_REQUEST,
            PacketTest::State(states) => states.contains(&packet.state),
            PacketTest::Mark { value, mask } => packet.mark & mask == *value,
        }
    }
}

/// The protocol number of ICMPv6.
const IPV6_ICMP: u8 = 58;
/// The ICMPv6 type of an echo request.
const ECHO_REQUEST: u8 = 128;

impl WalkEnd {
    /// The result at the end of the first chain: its policy, if it is built in.
    fn of(policy: Option<ChainPolicy>) -> Self {
        match policy {
            Some(ChainPolicy::Accept) => Self::Accept,
            Some(ChainPolicy::Drop) => Self::Drop,
            None => Self::Return,
        }
    }
}
