//! The order of the variables, and numbers for labels' values.
//!
//! The order is: family, protocol, port, names of the port, the source (labels of its namespace, its own labels, its
//! address), the destination (the same). Ports come first: rules rarely share ports, so most diagrams differ near their
//! root and have no copies of what follows. With ports last, 16 policies with label keys of their own took 1.7 million
//! nodes; in this order they take 596.

use std::collections::{BTreeMap, BTreeSet};

use super::diagram::Var;
use weir_model::{Cluster, Peer, PortMatch, TierPeer};
use weir_objects::k8s::{LabelSelector, NAMESPACE_NAME_LABEL, Operator, Requirement};

pub(super) const FAMILY: Var = 0;
/// 0 for traffic without ports, then TCP, UDP and SCTP.
pub(super) const PROTOCOL: Var = 1;
pub(super) const PORT: Var = 2;
const NAMES: Var = 3;

/// A label that is absent.
pub(super) const ABSENT: u128 = 0;
/// The values that no selector mentions: all of them behave alike, and there is always one.
pub(super) const OTHER: u128 = 1;
/// The first of the mentioned values.
const FIRST_VALUE: u128 = 2;

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Source,
    Destination,
}

/// Whose labels a selector tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Labelled {
    Namespace,
    Pod,
}

/// The meaning of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning<'v> {
    Family,
    Protocol,
    Port,
    PortName(&'v str),
    Label(Role, Labelled, &'v str),
    Address(Role),
}

/// Every name, key and value that the policies and lists of both sides mention.
#[derive(Default)]
pub(super) struct Variables {
    names: Vec<String>,
    /// Keys with their values, sorted: those of namespaces, then those of pods.
    keys: Vec<(Labelled, String, Vec<String>)>,
}

impl Variables {
    pub(super) fn of(sides: [&Cluster; 2]) -> Self {
        let mut names = BTreeSet::new();
        let mut keys: BTreeMap<(Labelled, String), BTreeSet<String>> = BTreeMap::new();
        let mut selector = |of: Labelled, selector: &LabelSelector| {
            for Requirement { key, values, .. } in selector.requirements() {
                keys.entry((of, key)).or_default().extend(values);
            }
        };
        for cluster in sides {
            let labels = &cluster.labels;
            for policy in &cluster.policies {
                selector(Labelled::Pod, labels.selector(policy.subjects));
                for rule in policy.ingress.iter().chain(&policy.egress).flatten() {
                    for peer in &rule.peers {
                        if let Peer::Pods { namespaces, pods } = peer {
                            selector(Labelled::Pod, labels.selector(*pods));
                            namespaces.iter().for_each(|it| selector(Labelled::Namespace, labels.selector(*it)));
                        }
                    }
                    names.extend(rule.ports.iter().filter_map(|it| match &it.port {
                        PortMatch::Named(name) => Some(name.clone()),
                        PortMatch::Any | PortMatch::Range(..) => None,
                    }));
                }
            }
            for policy in &cluster.tiers {
                selector(Labelled::Namespace, labels.selector(policy.namespaces));
                selector(Labelled::Pod, labels.selector(policy.pods));
                for matched in policy.ingress.iter().chain(&policy.egress).filter_map(|rule| rule.matched.as_ref()) {
                    for peer in &matched.peers {
                        if let TierPeer::Pods { namespaces, pods } = peer {
                            selector(Labelled::Namespace, labels.selector(*namespaces));
                            selector(Labelled::Pod, labels.selector(*pods));
                        }
                    }
                    names.extend(matched.ports.iter().filter_map(|it| match &it.port {
                        PortMatch::Named(name) => Some(name.clone()),
                        PortMatch::Any | PortMatch::Range(..) => None,
                    }));
                }
            }
            for list in &cluster.lists {
                selector(Labelled::Namespace, labels.selector(list.namespaces));
                selector(Labelled::Pod, labels.selector(list.pods));
            }
        }
        keys.remove(&(Labelled::Namespace, NAMESPACE_NAME_LABEL.to_owned()));
        let keys = keys.into_iter().map(|((of, key), values)| (of, key, values.into_iter().collect())).collect();
        Self { names: names.into_iter().collect(), keys }
    }

    /// The variable: does the destination call the port by this name?
    pub(super) fn port_name(&self, name: &str) -> Option<Var> {
        Some(NAMES + self.names.binary_search_by(|it| it.as_str().cmp(name)).ok()? as Var)
    }

    /// The variable of a label.
    pub(super) fn label(&self, role: Role, of: Labelled, key: &str) -> Option<Var> {
        Some(self.first(role) + self.key(of, key)? as Var)
    }

    /// The variable of an end's address.
    pub(super) fn address(&self, role: Role) -> Var {
        self.first(role) + self.keys.len() as Var
    }

    /// The numbers of the values that a requirement accepts.
    pub(super) fn accepted(&self, of: Labelled, requirement: &Requirement) -> Vec<(u128, u128)> {
        let listed = || {
            let known = self.key(of, &requirement.key).map_or(&[][..], |index| &self.keys[index].2);
            let number = |value: &String| Some(FIRST_VALUE + known.binary_search(value).ok()? as u128);
            let mut numbers: Vec<u128> = requirement.values.iter().filter_map(number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbers
        };
        match requirement.operator {
            Operator::Exists => vec![(OTHER, u128::MAX)],
            Operator::DoesNotExist => vec![(ABSENT, ABSENT)],
            Operator::In => listed().into_iter().map(|it| (it, it)).collect(),
            Operator::NotIn => {
                let mut next = ABSENT;
                let mut intervals = Vec::new();
                for hole in listed() {
                    intervals.extend((next < hole).then(|| (next, hole - 1)));
                    next = hole + 1;
                }
                intervals.push((next, u128::MAX));
                intervals
            }
        }
    }

    /// The value with a number: `None` if the label is absent.
    pub(super) fn value(&self, of: Labelled, key: &str, number: u128) -> Option<String> {
        let known = self.key(of, key).map_or(&[][..], |index| &self.keys[index].2);
        match number {
            ABSENT => None,
            OTHER => Some(self.unmentioned(known)),
            _ => known.get((number - FIRST_VALUE) as usize).cloned().or_else(|| Some(self.unmentioned(known))),
        }
    }

    /// The values of a label in these intervals, as a selector that kubectl prints: `team in (a,b)`.
    pub(super) fn accepted_text(&self, of: Labelled, key: &str, intervals: &[(u128, u128)]) -> String {
        let has = |number: u128| intervals.iter().any(|(first, last)| (*first..=*last).contains(&number));
        let known = self.key(of, key).map_or(&[][..], |index| &self.keys[index].2);
        let (accepted, refused): (Vec<_>, Vec<_>) =
            known.iter().zip(FIRST_VALUE..).partition(|(_, number)| has(*number));
        let list = |values: &[(&String, u128)]| values.iter().map(|(it, _)| it.as_str()).collect::<Vec<_>>().join(",");
        let accepts_others = has(OTHER);
        let values = match (accepts_others, &accepted[..], &refused[..]) {
            (true, _, []) => key.to_owned(),
            (true, _, [one]) => format!("{key}!={}", one.0),
            (true, _, several) => format!("{key} notin ({})", list(several)),
            (false, [], _) => return format!("!{key}"),
            (false, [one], _) => format!("{key}={}", one.0),
            (false, several, _) => format!("{key} in ({})", list(several)),
        };
        match (has(ABSENT), accepts_others) {
            // As in selectors, `!=` and `notin` accept pods without the label.
            (true, true) | (false, false) => values,
            (true, false) => format!("{values} or !{key}"),
            (false, true) if refused.is_empty() => values,
            (false, true) => format!("{key},{values}"),
        }
    }

    fn unmentioned(&self, known: &[String]) -> String {
        let candidates = std::iter::once("other".to_owned()).chain((2..).map(|number| format!("other-{number}")));
        candidates.into_iter().find(|it| known.binary_search(it).is_err()).unwrap_or_default()
    }

    pub(super) fn meaning(&self, var: Var) -> Meaning<'_> {
        match var {
            FAMILY => Meaning::Family,
            PROTOCOL => Meaning::Protocol,
            PORT => Meaning::Port,
            _ if var < self.first(Role::Source) => Meaning::PortName(&self.names[(var - NAMES) as usize]),
            _ => {
                let role = if var < self.first(Role::Destination) { Role::Source } else { Role::Destination };
                match self.keys.get((var - self.first(role)) as usize) {
                    Some((of, key, _)) => Meaning::Label(role, *of, key),
                    None => Meaning::Address(role),
                }
            }
        }
    }

    fn first(&self, role: Role) -> Var {
        let source = NAMES + self.names.len() as Var;
        match role {
            Role::Source => source,
            Role::Destination => source + self.keys.len() as Var + 1,
        }
    }

    fn key(&self, of: Labelled, key: &str) -> Option<usize> {
        self.keys.binary_search_by(|(other, it, _)| (*other, it.as_str()).cmp(&(of, key))).ok()
    }
}
