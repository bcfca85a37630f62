//! Names for numbers: the artifact's endpoints, policies and lists.
//!
//! The manifest is JSON. If a part is missing (older artifacts have less), those numbers have no names; this is not an
//! error.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use weir_artifact::Artifact;
use weir_artifact::layout::{MapName, endpoint};

/// The names for the numbers of one artifact.
#[derive(Debug, Default)]
pub struct ArtifactNames {
    pods: BTreeMap<IpAddr, String>,
    subjects: BTreeMap<String, u32>,
    manifest: Manifest,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Manifest {
    policies: Vec<NamedPolicy>,
    tiers: Vec<NamedTier>,
    lists: Vec<NamedList>,
    subjects: Vec<NamedSubject>,
    predicates: Vec<Vec<u32>>,
}

/// A policy isolates the directions that its entry has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedPolicy {
    name: String,
    /// `file:line`
    place: Option<String>,
    ingress: Option<Vec<NamedRule>>,
    egress: Option<Vec<NamedRule>>,
}

/// A rule of a policy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedRule {
    /// `file:line`
    place: Option<String>,
}

impl NamedPolicy {
    /// The rules of a direction, if the policy isolates it.
    fn rules(&self, direction: &str) -> Option<&[NamedRule]> {
        let rules = if direction == "ingress" { &self.ingress } else { &self.egress };
        rules.as_deref()
    }
}

/// A cluster-wide policy.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedTier {
    name: String,
    mode: Option<String>,
    ingress: Vec<NamedTierRule>,
    egress: Vec<NamedTierRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedTierRule {
    action: String,
    rule: NamedTierMatch,
}

/// Without predicates the rule matches every peer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedTierMatch {
    /// `file:line`
    place: Option<String>,
    predicates: Option<Vec<u32>>,
    matches: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedList {
    name: String,
    /// `file:line`
    place: Option<String>,
    action: String,
    directions: Vec<String>,
    predicate: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedSubject {
    policies: Vec<u32>,
    #[serde(rename = "staged")]
    audit: Vec<u32>,
    tiers: Vec<u32>,
    lists: Vec<u32>,
}

/// The list or the policies that decided about a packet, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// The list that contains the other end.
    pub list: Option<String>,
    /// The policies that isolate the pod; none if a list decided.
    pub policies: Vec<String>,
    /// The cluster-wide policies with a rule that denies some traffic of the other end.
    pub tiers: Vec<String>,
    /// The policies in audit mode that would isolate the pod too, if they would change the verdict.
    pub audit: Vec<String>,
    /// The rule that decided, as `POLICY spec.DIRECTION[INDEX]`; `None` if it is not known, or if no rule did.
    pub rule: Option<String>,
    /// `file:line` of the list, the policies and the rule, by the names above. Objects from the API have none.
    pub places: BTreeMap<String, String>,
}

impl ArtifactNames {
    /// Reads the names of an artifact.
    pub fn new(artifact: &Artifact) -> Self {
        let mut names =
            Self { manifest: serde_json::from_str(&artifact.manifest).unwrap_or_default(), ..Self::default() };
        for local in &artifact.endpoints {
            let pod = format!("{}/{}", local.namespace, local.name);
            for address in addresses(&local.value) {
                names.pods.insert(address, pod.clone());
            }
            let subject = local.value.get(endpoint::SUBJECT as usize..).and_then(|rest| rest.first_chunk());
            names.subjects.insert(pod, subject.map_or(u32::MAX, |it| u32::from_le_bytes(*it)));
        }
        names
    }

    /// The pod that has an address, if the artifact knows it.
    pub fn pod_at(&self, address: IpAddr) -> Option<&str> {
        self.pods.get(&address).map(String::as_str)
    }

    /// Finds the list or the policies that deny a peer class to a pod (`namespace/name`), in a direction (`ingress`,
    /// `egress`).
    pub fn why_denied(&self, pod: &str, direction: &str, peer: u32) -> Why {
        let Some(subject) = self.subject(pod) else { return Why::default() };
        let lists = subject.lists.iter().filter_map(|number| self.manifest.lists.get(*number as usize));
        let holds = |list: &&NamedList| {
            let of = self.manifest.predicates.get(list.predicate as usize);
            list.directions.iter().any(|it| it == direction) && of.is_some_and(|peers| peers.contains(&peer))
        };
        if let Some(list) = lists.into_iter().find(holds).filter(|list| list.action == "Deny") {
            let places = list.place.iter().map(|place| (list.name.clone(), place.clone())).collect();
            return Why { list: Some(list.name.clone()), places, ..Why::default() };
        }
        let denying = self.denying(&subject.tiers, direction, peer);
        let mut why = Why { tiers: denying.iter().map(|it| it.tier.clone()).collect(), ..Why::default() };
        why.tiers.dedup();
        if let [only] = denying.as_slice() {
            why.rule = Some(only.rule.clone());
            why.places.extend(only.place.clone().map(|place| (only.rule.clone(), place)));
        }
        why.policies = self.isolating(&subject.policies, direction, &mut why.places);
        why
    }

    /// The policies that isolate the pod now, and the audit policies that would change the verdict if they were
    /// enforced.
    pub fn why_otherwise(&self, pod: &str, direction: &str) -> Why {
        let Some(subject) = self.subject(pod) else { return Why::default() };
        let mut why = Why::default();
        why.policies = self.isolating(&subject.policies, direction, &mut why.places);
        why.audit = self.isolating(&subject.audit, direction, &mut why.places);
        why
    }

    /// The policies of which a rule can have allowed a connection: those that isolate the pod, and the enforced
    /// cluster-wide policies with an `Accept` rule. The places are also those of all rules of the former.
    pub fn why_allowed(&self, pod: &str, direction: &str) -> Why {
        let Some(subject) = self.subject(pod) else { return Why::default() };
        let mut why = Why::default();
        why.policies = self.isolating(&subject.policies, direction, &mut why.places);
        for policy in subject.policies.iter().filter_map(|number| self.manifest.policies.get(*number as usize)) {
            let rules = policy.rules(direction).unwrap_or_default().iter().enumerate();
            let name = |index| format!("{} spec.{direction}[{index}]", policy.name);
            why.places.extend(rules.filter_map(|(index, it)| Some((name(index), it.place.clone()?))));
        }
        let tiers = subject.tiers.iter().filter_map(|number| self.manifest.tiers.get(*number as usize));
        let accepts =
            |tier: &&NamedTier| tier.mode.is_none() && tier.rules(direction).iter().any(|it| it.action == "Accept");
        why.tiers = tiers.filter(accepts).map(|it| it.name.clone()).collect();
        why
    }

    fn subject(&self, pod: &str) -> Option<&NamedSubject> {
        self.subjects.get(pod).and_then(|number| self.manifest.subjects.get(*number as usize))
    }

    /// The `Deny` rules of enforced cluster-wide policies that match a peer class. The record of a packet does not say
    /// which of them matched first.
    fn denying(&self, tiers: &[u32], direction: &str, peer: u32) -> Vec<DenyingRule> {
        let contains = |predicate: &u32| {
            self.manifest.predicates.get(*predicate as usize).is_some_and(|peers| peers.contains(&peer))
        };
        let denies = |it: &NamedTierRule| {
            let is_met = it.rule.predicates.as_ref().is_none_or(|predicates| predicates.iter().any(contains));
            it.action == "Deny" && it.rule.matches.is_none() && is_met
        };
        let mut found = Vec::new();
        for tier in tiers.iter().filter_map(|number| self.manifest.tiers.get(*number as usize)) {
            let rules = tier.rules(direction).iter().enumerate().filter(|(_, it)| tier.mode.is_none() && denies(it));
            found.extend(rules.map(|(index, it)| DenyingRule {
                tier: tier.name.clone(),
                rule: format!("{} spec.{direction}[{index}]", tier.name),
                place: it.rule.place.clone(),
            }));
        }
        found
    }

    /// The policies that isolate a direction. Adds their places.
    fn isolating(&self, policies: &[u32], direction: &str, places: &mut BTreeMap<String, String>) -> Vec<String> {
        let policies = policies.iter().filter_map(|number| self.manifest.policies.get(*number as usize));
        let isolates = |policy: &&NamedPolicy| policy.rules(direction).is_some();
        let isolating: Vec<&NamedPolicy> = policies.filter(isolates).collect();
        places.extend(isolating.iter().filter_map(|it| Some((it.name.clone(), it.place.clone()?))));
        isolating.into_iter().map(|it| it.name.clone()).collect()
    }
}

/// A rule of a cluster-wide policy that can have denied a packet.
struct DenyingRule {
    tier: String,
    rule: String,
    place: Option<String>,
}

impl NamedTier {
    fn rules(&self, direction: &str) -> &[NamedTierRule] {
        if direction == "ingress" { &self.ingress } else { &self.egress }
    }
}

/// Describes the entry of a map by its key, for messages.
pub(crate) fn about(artifact: &Artifact, map: MapName, key: &[u8]) -> Option<String> {
    let number = |at: usize| key.get(at..).and_then(|rest| rest.first_chunk()).map(|it| u32::from_le_bytes(*it));
    let of = |at: usize, v6| key.get(at..).and_then(|rest| address(rest, v6));
    match map {
        MapName::Exact4 | MapName::Exact6 => of(0, map == MapName::Exact6).map(|it| it.to_string()),
        MapName::Nodes4 | MapName::Nodes6 => of(4, map == MapName::Nodes6).map(|it| it.to_string()),
        MapName::Prefixes4 | MapName::Prefixes6 => {
            Some(format!("{}/{}", of(4, map == MapName::Prefixes6)?, number(0)?))
        }
        MapName::Rows => {
            let names = ArtifactNames::new(artifact);
            let subject = names.manifest.subjects.get((number(4)? & !(1 << 31)) as usize)?;
            let policies = subject.policies.iter().filter_map(|it| names.manifest.policies.get(*it as usize));
            let policies: Vec<&str> = policies.map(|it| it.name.as_str()).collect();
            Some(format!("a row of the policies {}", policies.join(", ")))
        }
        _ => None,
    }
}

/// The addresses in a value of `endpoints`.
fn addresses(value: &[u8]) -> Vec<IpAddr> {
    let v4 = value.get(endpoint::V4 as usize..).and_then(|rest| rest.first_chunk::<4>());
    let v6 = value.get(endpoint::V6 as usize..).and_then(|rest| rest.first_chunk::<16>());
    let v4 = v4.map(|it| IpAddr::from(Ipv4Addr::from(*it)));
    let v6 = v6.map(|it| IpAddr::from(Ipv6Addr::from(*it)));
    v4.into_iter().chain(v6).filter(|address| !address.is_unspecified()).collect()
}

/// Reads four or sixteen bytes in network order.
pub(crate) fn address(bytes: &[u8], v6: bool) -> Option<IpAddr> {
    match v6 {
        false => bytes.first_chunk::<4>().map(|it| Ipv4Addr::from(*it).into()),
        true => bytes.first_chunk::<16>().map(|it| Ipv6Addr::from(*it).into()),
    }
}

/// The protocol's usual name, or its number.
pub(crate) fn protocol(number: u8) -> String {
    let known = [(1, "ICMP"), (6, "TCP"), (17, "UDP"), (58, "ICMPv6"), (132, "SCTP")];
    known.iter().find(|(it, _)| *it == number).map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}
