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
    fn key(&self) -> PortKey {
        match &self.port {
            PortMatch::Any => PortKey(0, String::new(), self.protocol),
            PortMatch::Range(first, _) => PortKey(*first, String::new(), self.protocol),
            PortMatch::Named(name) => PortKey(u16::MAX, name.clone(), self.protocol),
        }
    }
}

/// The order of ports in a rule: by number, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortKey(u16, String, Protocol);

/// A rule with its comment.
pub(super) struct LearnedRule {
    pub(super) rule: PolicyRule,
    pub(super) comment: String,
}

/// How often each peer used each port.
#[derive(Clone, Debug, Default)]
pub(super) struct Traffic {
    seen: BTreeMap<PeerKey, BTreeMap<PortKey, SeenPort>>,
}

#[derive(Clone, Debug)]
struct SeenPort {
    port: LearnedPort,
    times: u64,
}

/// The ports of a rule. DNS, and flows that were recorded only once, get rules of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RuleKey {
    is_once: bool,
    is_dns: bool,
    ports: Vec<PortKey>,
}

/// The peers that use the same ports.
#[derive(Default)]
struct RuleDraft {
    peers: Vec<PeerKey>,
    ports: Vec<LearnedPort>,
    times: u64,
}

impl Traffic {
    /// Adds a flow. Returns whether it is the first one from this peer to this port.
    pub(super) fn add(&mut self, peer: PeerKey, port: LearnedPort, times: u64) -> bool {
        let ports = self.seen.entry(peer).or_default();
        let seen = ports.entry(port.key()).or_insert(SeenPort { port, times: 0 });
        let is_new = seen.times == 0;
        seen.times = seen.times.saturating_add(times);
        is_new
    }

    /// The rules: peers with the same ports share one.
    pub(super) fn rules(&self, groups: &Groups, own: GroupId) -> Vec<LearnedRule> {
        let mut drafts: BTreeMap<RuleKey, RuleDraft> = BTreeMap::new();
        for (peer, ports) in &self.seen {
            for (is_once, is_dns) in [(false, false), (false, true), (true, false), (true, true)] {
                let is_of_rule = |it: &&SeenPort| (it.times == 1) == is_once && self::is_dns(&it.port) == is_dns;
                let chosen: Vec<&SeenPort> = ports.values().filter(is_of_rule).collect();
                if chosen.is_empty() {
                    continue;
                }
                let key = RuleKey { is_once, is_dns, ports: chosen.iter().map(|it| it.port.key()).collect() };
                let draft = drafts.entry(key).or_default();
                draft.peers.push(*peer);
                draft.ports = chosen.iter().map(|it| it.port.clone()).collect();
                draft.times = chosen.iter().fold(draft.times, |sum, it| sum.saturating_add(it.times));
            }
        }
        let rule = |(key, draft): (RuleKey, RuleDraft)| {
            let port = |it: LearnedPort| PolicyPort { protocol: it.protocol, port: it.port };
            let ports = draft.ports.into_iter().map(port).collect();
            let times = if key.is_once { 1 } else { draft.times };
            let peers = peers(&draft.peers, groups, own);
            LearnedRule::new(PolicyRule { peers, ports }, key.is_dns, times)
        };
        drafts.into_iter().map(rule).collect()
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
