//! The traffic of one group in one direction → rules.

use std::collections::BTreeMap;

use weir_analysis::diff::{AddressRange, AddressSet};
use weir_model::Protocol;
use weir_objects::address::Prefix;
use weir_objects::k8s::{PolicyPeer, PolicyPort, PolicyRule, PortMatch};

use super::groups::{GroupId, Groups};
use super::is_dns;
use crate::labels;

/// The other end of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerKey {
    Group(GroupId),
    Block(Prefix),
}

/// The port of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LearnedPort {
    pub(super) protocol: Protocol,
    pub(super) port: PortMatch,
}

impl LearnedPort {
    /// Ports in their order in a rule: by number, then by name.
    fn key(&self) -> (u16, String, Protocol) {
        match &self.port {
            PortMatch::Any => (0, String::new(), self.protocol),
            PortMatch::Range(first, _) => (*first, String::new(), self.protocol),
            PortMatch::Named(name) => (u16::MAX, name.clone(), self.protocol),
        }
    }
}

/// A rule with its comment.
pub(super) struct LearnedRule {
    pub(super) rule: PolicyRule,
    pub(super) comment: String,
}

/// How often each peer used each port.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    seen: BTreeMap<PeerKey, BTreeMap<(u16, String, Protocol), (LearnedPort, u64)>>,
}

/// The ports of a rule: rules about DNS and about what was seen only once are rules of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RuleKey {
    is_once: bool,
    is_dns: bool,
    ports: Vec<(u16, String, Protocol)>,
}

impl Traffic {
    /// Adds a flow. Returns whether it is the first one from this peer to this port.
    pub(super) fn add(&mut self, peer: PeerKey, port: LearnedPort, times: u64) -> bool {
        let ports = self.seen.entry(peer).or_default();
        let entry = ports.entry(port.key()).or_insert((port, 0));
        let is_new = entry.1 == 0;
        entry.1 = entry.1.saturating_add(times);
        is_new
    }

    /// The rules: peers with the same ports share one.
    pub(super) fn rules(&self, groups: &Groups, own: GroupId) -> Vec<LearnedRule> {
        let mut by_ports: BTreeMap<RuleKey, (Vec<PeerKey>, Vec<LearnedPort>, u64)> = BTreeMap::new();
        for (peer, ports) in &self.seen {
            for (is_once, is_dns_rule) in [(false, false), (false, true), (true, false), (true, true)] {
                let is_of_rule =
                    |(port, times): &&(LearnedPort, u64)| (*times == 1) == is_once && is_dns(port) == is_dns_rule;
                let chosen: Vec<&(LearnedPort, u64)> = ports.values().filter(is_of_rule).collect();
                if chosen.is_empty() {
                    continue;
                }
                let keys = chosen.iter().map(|(port, _)| port.key()).collect();
                let key = RuleKey { is_once, is_dns: is_dns_rule, ports: keys };
                let rule = by_ports.entry(key).or_default();
                rule.0.push(*peer);
                rule.1 = chosen.iter().map(|(port, _)| port.clone()).collect();
                rule.2 = chosen.iter().fold(rule.2, |sum, (_, times)| sum.saturating_add(*times));
            }
        }
        let rule = |(key, (peers, ports, times)): (RuleKey, (Vec<PeerKey>, Vec<LearnedPort>, u64))| {
            let ports = ports.into_iter().map(|it| PolicyPort { protocol: it.protocol, port: it.port }).collect();
            let times = if key.is_once { 1 } else { times };
            LearnedRule::new(PolicyRule { peers: self::peers(&peers, groups, own), ports }, key.is_dns, times)
        };
        by_ports.into_iter().map(rule).collect()
    }
}

/// The peers, with blocks that lie side by side joined.
fn peers(keys: &[PeerKey], groups: &Groups, own: GroupId) -> Vec<PolicyPeer> {
    let mut found = Vec::new();
    let mut ranges = Vec::new();
    for key in keys {
        match key {
            PeerKey::Block(block) => ranges.push(AddressRange { first: block.address(), last: block.last() }),
            PeerKey::Group(group) => {
                let namespace = groups.namespace(*group);
                let is_own = namespace == groups.namespace(own);
                let selector = groups.selector(*group);
                let is_needed = is_own || groups.has_labels(*group) || !selector.match_expressions.is_empty();
                found.push(PolicyPeer::Pods {
                    pods: is_needed.then_some(selector),
                    namespaces: (!is_own).then(|| labels::namespace(namespace)),
                });
            }
        }
    }
    for range in AddressSet::new(ranges).iter() {
        let blocks = Prefix::of_range(range.first, range.last, 0);
        found.extend(blocks.map(|cidr| PolicyPeer::Block { cidr, except: Vec::new() }));
    }
    found
}
