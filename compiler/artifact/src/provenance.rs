//! The rules, lists and services behind each entry of the tables.
//!
//! Problem: written out for every entry, the provenance is as large as subjects × peers × atoms × rules.
//! Strategy: store the factors. A subject class names its policies and lists; a rule names its predicates and ranges of
//! atoms; a predicate names the peer classes for which it holds. [`Provenance::rules`] multiplies them out for one
//! entry.
//! Invariant: that product is [`Classes::provenance`] (a test of each entry holds it).

use std::sync::Arc;

use super::json::{self, Json};
use weir_objects::k8s::Direction;

/// Provenance of all tables. Numbers of policies, lists, predicates, classes and atoms are positions, here and in the
/// tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The policies that select any local endpoint, audit ones last, in parts.
    pub policies: Vec<Arc<DescribedPolicies>>,
    /// The cluster-wide policies that select any local endpoint, in the order in which they are evaluated.
    pub tiers: Vec<ProvenanceTier>,
    /// The lists that apply to any local endpoint, in the order in which they decide.
    pub lists: Vec<ProvenanceList>,
    /// The subject classes, in the order of their numbers.
    pub subjects: Vec<ProvenanceSubject>,
    /// By predicate: the peer classes for which it holds.
    pub predicates: Arc<PredicatePeers>,
    /// Peer classes with named ports that egress rules use: (name, atom).
    pub named: Vec<(u32, Vec<(u32, u32)>)>,
    /// The services and hostPorts on addresses.
    pub services: ServedPorts,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenancePolicy {
    /// `namespace/name`
    pub name: String,
    /// Whether it is only reported.
    pub is_audit: bool,
    /// Its position: `file:line`; `None` for an object without a file.
    pub place: Option<String>,
    /// Ingress and egress; `None` where it does not isolate.
    pub rules: [Option<Vec<ProvenanceRule>>; 2],
}

/// Some policies and their text in the manifest. Both are made once, and shared by all manifests that have these
/// policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedPolicies {
    policies: Vec<ProvenancePolicy>,
    text: String,
}

impl From<Vec<ProvenancePolicy>> for DescribedPolicies {
    fn from(policies: Vec<ProvenancePolicy>) -> Self {
        let mut text = String::new();
        for policy in &policies {
            json::begin_item(&mut text);
            policy.json().write(&mut text, json::ITEM_DEPTH);
        }
        text.shrink_to_fit();
        Self { policies, text }
    }
}

/// For each predicate, the peer classes for which it holds, and their text in the manifest. Both are made once, and
/// shared by all manifests with the same peer classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PredicatePeers {
    peers: Vec<Vec<u32>>,
    text: String,
}

impl From<Vec<Vec<u32>>> for PredicatePeers {
    fn from(peers: Vec<Vec<u32>>) -> Self {
        let mut text = String::new();
        for numbers in &peers {
            json::begin_item(&mut text);
            Json::Numbers(numbers).write(&mut text, json::ITEM_DEPTH);
        }
        text.shrink_to_fit();
        Self { peers, text }
    }
}

impl PredicatePeers {
    /// How many predicates there are.
    pub fn predicates(&self) -> usize {
        self.peers.len()
    }

    fn holds(&self, predicate: u32, peer: u32) -> bool {
        self.peers.get(predicate as usize).is_some_and(|peers| peers.binary_search(&peer).is_ok())
    }
}

/// The services and hostPorts on addresses: for each peer class, the atom and the name of each port. Only their text is
/// kept, because there can be tens of thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedPorts {
    text: String,
}

/// The ports of a peer class, while they are written.
#[derive(Debug)]
pub struct PeerPorts<'t> {
    text: &'t mut String,
    peer: u32,
    has_ports: bool,
}

impl ServedPorts {
    /// Adds the ports of a peer class, whose numbers must rise. Without a port, nothing is added.
    pub fn of_peer(&mut self, peer: u32) -> PeerPorts<'_> {
        PeerPorts { text: &mut self.text, peer, has_ports: false }
    }
}

impl PeerPorts<'_> {
    /// Adds a port by its atom and its name: `namespace/service port/protocol`, or a hostPort's name.
    pub fn add(&mut self, atom: u32, name: &str) {
        if !std::mem::replace(&mut self.has_ports, true) {
            json::begin_item(self.text);
            self.text.push_str("{\"peer\": ");
            json::digits(self.text, u64::from(self.peer));
            self.text.push_str(", \"ports\": [");
        } else {
            self.text.push_str(", ");
        }
        self.text.push('[');
        json::digits(self.text, u64::from(atom));
        self.text.push_str(", ");
        json::quote(self.text, name);
        self.text.push(']');
    }
}

impl Drop for PeerPorts<'_> {
    fn drop(&mut self) {
        if self.has_ports {
            self.text.push_str("]}");
        }
    }
}

/// A rule; its position is the same as in the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenanceRule {
    /// Its position.
    pub place: Option<String>,
    /// Any of these has to hold; `None` if the rule applies to every peer.
    pub predicates: Option<Vec<u32>>,
    /// Atoms, from first to last; `None`: all.
    pub atoms: Option<Vec<(u32, u32)>>,
    /// The names of further ports, on the subject (ingress) or on the peer (egress).
    pub names: Vec<u32>,
}

/// A cluster-wide policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenanceTier {
    /// `Kind name`
    pub name: String,
    /// `Admin` or `Baseline`
    pub tier: &'static str,
    /// Whether it is only reported.
    pub is_audit: bool,
    /// Its position.
    pub place: Option<String>,
    /// Ingress and egress rules, each with its action; a rule that matches nothing has no content.
    pub rules: [Vec<(&'static str, Option<ProvenanceRule>)>; 2],
}

/// A list of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenanceList {
    /// Its name.
    pub name: String,
    /// Its position.
    pub place: Option<String>,
    /// `Allow` or `Deny`.
    pub action: &'static str,
    /// The directions in which it applies: ingress, egress.
    pub asked: [bool; 2],
    /// The predicate that holds for its addresses.
    pub predicate: u32,
}

/// A subject class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenanceSubject {
    /// The policies that are enforced on it.
    pub policies: Vec<u32>,
    /// Those that are only reported.
    pub audit: Vec<u32>,
    /// The cluster-wide policies that select it, audit ones too.
    pub tiers: Vec<u32>,
    /// The lists that apply to it.
    pub lists: Vec<u32>,
    /// Its ports that ingress rules name: (name, atom).
    pub named: Vec<(u32, u32)>,
}

impl Provenance {
    /// The rules that allow an entry: positions of policies, and of rules in them. Traffic to services and to the pod's
    /// own node can be allowed without a rule.
    pub fn rules(&self, direction: Direction, subject: u32, peer: u32, atom: u32) -> Vec<(u32, u32)> {
        let Some(of) = self.subjects.get(subject as usize) else { return Vec::new() };
        let of_peer = self.named.binary_search_by_key(&peer, |(number, _)| *number);
        let of_peer = of_peer.ok().and_then(|at| self.named.get(at)).map_or(&[][..], |(_, named)| named);
        let named = if direction == Direction::Ingress { &of.named } else { of_peer };
        let holds = |id: &u32| self.predicates.holds(*id, peer);
        let allows = |rule: &ProvenanceRule| {
            let among = |atoms: &Vec<(u32, u32)>| atoms.iter().any(|(first, last)| (*first..=*last).contains(&atom));
            let is_named = || named.iter().any(|(name, at)| *at == atom && rule.names.contains(name));
            rule.predicates.as_ref().is_none_or(|ids| ids.iter().any(holds))
                && (rule.atoms.as_ref().is_none_or(among) || is_named())
        };
        let mut found = Vec::new();
        for number in &of.policies {
            let policy = self.policy(*number);
            let rules = policy.and_then(|policy| policy.rules[direction as usize].as_deref()).unwrap_or_default();
            found.extend((0..).zip(rules).filter(|(_, rule)| allows(rule)).map(|(index, _)| (*number, index)));
        }
        found
    }

    fn policy(&self, number: u32) -> Option<&ProvenancePolicy> {
        self.policies.iter().flat_map(|part| &part.policies).nth(number as usize)
    }

    /// The likely length of its text.
    pub(super) fn room(&self) -> usize {
        const OF_LINE: usize = 64;
        // A number and its separator.
        const OF_NUMBER: usize = 7;
        let policies: usize = self.policies.iter().map(|it| it.text.len() + OF_NUMBER).sum();
        let subjects: usize = self.subjects.iter().map(|it| OF_LINE + OF_NUMBER * it.policies.len()).sum();
        let written = self.predicates.text.len() + self.services.text.len();
        policies + subjects + OF_LINE * self.lists.len() + written
    }

    /// The members of the manifest.
    pub(super) fn json<'a>(&'a self) -> [(&'static str, Json<'a>); 7] {
        let written =
            |text: &'a str| Json::List((!text.is_empty()).then_some(Json::Written(text)).into_iter().collect());
        [
            ("policies", Json::List(self.policies.iter().map(|part| Json::Written(&part.text)).collect())),
            ("tiers", Json::List(self.tiers.iter().map(ProvenanceTier::json).collect())),
            ("lists", Json::List(self.lists.iter().map(ProvenanceList::json).collect())),
            ("predicates", written(&self.predicates.text)),
            ("subjects", Json::List(self.subjects.iter().map(ProvenanceSubject::json).collect())),
            ("named_ports", Json::List(self.named.iter().map(|(peer, named)| at(*peer, pairs(named))).collect())),
            ("services", written(&self.services.text)),
        ]
    }
}

fn pairs(pairs: &[(u32, u32)]) -> Json<'static> {
    Json::List(pairs.iter().map(|(a, b)| Json::list([*a, *b])).collect())
}

fn at(peer: u32, ports: Json<'_>) -> Json<'_> {
    Json::object([("peer", peer.into()), ("ports", ports)])
}

impl ProvenancePolicy {
    fn json(&self) -> Json<'_> {
        let rules = |direction: Direction| {
            let rules = self.rules[direction as usize].as_ref()?;
            Some((direction.name(), Json::List(rules.iter().map(ProvenanceRule::json).collect())))
        };
        let mode = self.is_audit.then(|| ("mode", "audit".into()));
        let head = [("name", self.name.as_str().into())].into_iter().chain(mode).chain(placed(self.place.as_ref()));
        Json::object(head.chain(Direction::ALL.into_iter().filter_map(rules)))
    }
}

fn tier_rule<'a>((action, rule): &'a (&'static str, Option<ProvenanceRule>)) -> Json<'a> {
    let rule = rule.as_ref().map_or_else(|| Json::object([("matches", "nothing".into())]), ProvenanceRule::json);
    Json::object([("action", (*action).into()), ("rule", rule)])
}

impl ProvenanceTier {
    fn json(&self) -> Json<'_> {
        let rules = |direction: Direction| {
            (direction.name(), Json::List(self.rules[direction as usize].iter().map(tier_rule).collect()))
        };
        let mode = self.is_audit.then(|| ("mode", "audit".into()));
        let head = [("name", self.name.as_str().into()), ("tier", self.tier.into())];
        let head = head.into_iter().chain(mode).chain(placed(self.place.as_ref()));
        Json::object(head.chain(Direction::ALL.map(rules)))
    }
}

impl ProvenanceRule {
    fn json(&self) -> Json<'_> {
        let predicates = self.predicates.as_ref().map(|ids| ("predicates", Json::Numbers(ids)));
        let atoms = self.atoms.as_ref().map(|atoms| ("atoms", pairs(atoms)));
        let names = (!self.names.is_empty()).then(|| ("names", Json::Numbers(&self.names)));
        Json::object(placed(self.place.as_ref()).into_iter().chain(predicates).chain(atoms).chain(names))
    }
}

impl ProvenanceList {
    fn json(&self) -> Json<'_> {
        let asked = Direction::ALL.into_iter().zip(self.asked).filter(|(_, asked)| *asked);
        let rest = [
            ("action", self.action.into()),
            ("directions", Json::list(asked.map(|(direction, _)| direction.name()))),
            ("predicate", self.predicate.into()),
        ];
        let head = [("name", self.name.as_str().into())].into_iter().chain(placed(self.place.as_ref()));
        Json::object(head.chain(rest))
    }
}

impl ProvenanceSubject {
    fn json(&self) -> Json<'_> {
        let policies = ("policies", Json::Numbers(&self.policies));
        let lists = (!self.lists.is_empty()).then(|| ("lists", Json::Numbers(&self.lists)));
        let named = (!self.named.is_empty()).then(|| ("named_ports", pairs(&self.named)));
        let audit = (!self.audit.is_empty()).then(|| ("staged", Json::Numbers(&self.audit)));
        let tiers = (!self.tiers.is_empty()).then(|| ("tiers", Json::Numbers(&self.tiers)));
        Json::object([policies].into_iter().chain(audit).chain(tiers).chain(lists).chain(named))
    }
}

fn placed(place: Option<&String>) -> Option<(&'static str, Json<'_>)> {
    place.map(|place| ("place", place.as_str().into()))
}
