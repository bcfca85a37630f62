//! The parties and zones of a report, split so that each change concerns either the whole of one or nothing of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use weir_objects::address::Family;
use weir_objects::address::{to_address, to_number};
use weir_model::EndpointId;
use weir_analysis::reach::{Party, Reach, Zone};

use super::words;

/// A change between ends: all of these to all of those.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) from: Members,
    pub(crate) to: Members,
}

/// The endpoints and addresses that take part in a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Members {
    pub(crate) endpoints: Vec<Member>,
    /// Outside addresses, sorted, both ends inclusive.
    pub(crate) ranges: Vec<(IpAddr, IpAddr)>,
}

/// An endpoint, which the cluster that is shown may not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) id: Option<EndpointId>,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// One end as the page knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    /// `None` for addresses outside.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) pods: Vec<String>,
    /// Class numbers; -1 if there is no class.
    pub(crate) subject: i64,
    pub(crate) peers: [i64; 2],
    /// The changes in which the end takes part.
    pub(crate) part: Part,
}

/// The numbers of changes, as source and as destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Part {
    pub(crate) from: Vec<usize>,
    pub(crate) to: Vec<usize>,
}

/// Parties sorted by namespace and name, then zones.
pub(crate) fn ends(reach: &Reach<'_>, changes: &[Change]) -> Vec<Shown> {
    let (parts, strangers) = parts(reach, changes);
    let mut found: Vec<Shown> = reach.parties.iter().flat_map(|party| split_party(reach, party, &parts)).collect();
    found.extend(strangers.into_iter().map(|(member, part)| stranger(member, part)));
    found.sort_by(|a, b| (&a.namespace, &a.name, &a.pods).cmp(&(&b.namespace, &b.name, &b.pods)));
    for family in [Family::V4, Family::V6] {
        let starts = starts(changes, family);
        found.extend(
            reach.zones.iter().filter(|it| it.family == family).flat_map(|it| split_zone(it, &starts, changes)),
        );
    }
    found
}

type Strangers = BTreeMap<Member, Part>;

/// The changes in which every endpoint takes part. Endpoints that belong to no party are returned separately.
fn parts(reach: &Reach<'_>, changes: &[Change]) -> (HashMap<EndpointId, Part>, Strangers) {
    let known: BTreeSet<EndpointId> = reach.parties.iter().flat_map(|it| it.members.iter().copied()).collect();
    let mut parts: HashMap<EndpointId, Part> = HashMap::new();
    let mut strangers = Strangers::new();
    for (number, change) in changes.iter().enumerate() {
        type Side = fn(&mut Part) -> &mut Vec<usize>;
        let sides: [(_, Side); 2] = [(&change.from, |it| &mut it.from), (&change.to, |it| &mut it.to)];
        for (members, side) in sides {
            for member in &members.endpoints {
                let part = match member.id.filter(|id| known.contains(id)) {
                    Some(id) => parts.entry(id).or_default(),
                    None => strangers.entry(member.clone()).or_default(),
                };
                side(part).push(number);
            }
        }
    }
    (parts, strangers)
}

fn split_party(reach: &Reach<'_>, party: &Party, parts: &HashMap<EndpointId, Part>) -> Vec<Shown> {
    let mut by_part: BTreeMap<Part, Vec<&str>> = BTreeMap::new();
    for member in &party.members {
        let part = parts.get(member).cloned().unwrap_or_default();
        by_part.entry(part).or_default().push(&reach.cluster.endpoints[member.index()].name);
    }
    let is_split = by_part.len() > 1;
    let shown = |(part, pods): (Part, Vec<&str>)| Shown {
        namespace: Some(reach.namespace(party.namespace).to_owned()),
        name: if is_split { format!("{} ({})", party.name, some(&pods)) } else { party.name.clone() },
        kind: party.kind.clone(),
        pods: pods.iter().map(|it| (*it).to_owned()).collect(),
        subject: i64::from(party.subject.0),
        peers: party.peers.map(|it| it.map_or(-1, |it| i64::from(it.0))),
        part,
    };
    by_part.into_iter().map(shown).collect()
}

fn some(pods: &[&str]) -> String {
    match pods {
        [only] => (*only).to_owned(),
        pods => format!("{} and {} more", pods[0], pods.len() - 1),
    }
}

/// An endpoint that is gone, or on its node's network.
fn stranger(member: Member, part: Part) -> Shown {
    Shown {
        namespace: Some(member.namespace),
        pods: vec![member.name.clone()],
        name: member.name,
        kind: member.kind,
        subject: -1,
        peers: [-1; 2],
        part,
    }
}

/// Where ranges of changes begin and where they have ended, sorted.
fn starts(changes: &[Change], family: Family) -> Vec<u128> {
    let all = changes.iter().flat_map(|it| it.from.ranges.iter().chain(&it.to.ranges));
    let of_family = all.filter(|it| Family::of(it.0) == family);
    let ends = of_family.flat_map(|(first, last)| [Some(to_number(*first).1), to_number(*last).1.checked_add(1)]);
    ends.flatten().collect::<BTreeSet<u128>>().into_iter().collect()
}

fn split_zone(zone: &Zone, starts: &[u128], changes: &[Change]) -> Vec<Shown> {
    let mut by_part: BTreeMap<Part, Vec<(IpAddr, IpAddr)>> = BTreeMap::new();
    for piece in zone.ranges.iter().flat_map(|it| cut(*it, starts)) {
        let ranges = by_part.entry(part_of(piece.0, changes)).or_default();
        match ranges.last_mut() {
            Some(before) if to_number(before.1).1.checked_add(1) == Some(to_number(piece.0).1) => before.1 = piece.1,
            _ => ranges.push(piece),
        }
    }
    let peer = |family| if zone.family as usize == family { i64::from(zone.peer.0) } else { -1 };
    let shown = |(part, ranges): (Part, Vec<(IpAddr, IpAddr)>)| Shown {
        namespace: None,
        name: words::ranges(&ranges),
        kind: String::new(),
        pods: Vec::new(),
        subject: -1,
        peers: [peer(0), peer(1)],
        part,
    };
    by_part.into_iter().map(shown).collect()
}

fn cut((first, last): (IpAddr, IpAddr), starts: &[u128]) -> Vec<(IpAddr, IpAddr)> {
    let family = Family::of(first);
    let (mut at, last) = (to_number(first).1, to_number(last).1);
    let inner = &starts[starts.partition_point(|it| *it <= at)..starts.partition_point(|it| *it <= last)];
    let mut pieces = Vec::with_capacity(inner.len() + 1);
    for next in inner {
        pieces.push((to_address(family, at), to_address(family, next - 1)));
        at = *next;
    }
    pieces.push((to_address(family, at), to_address(family, last)));
    pieces
}

fn part_of(address: IpAddr, changes: &[Change]) -> Part {
    let is_in = |members: &Members| {
        let after = members.ranges.partition_point(|(first, _)| *first <= address);
        after.checked_sub(1).is_some_and(|before| address <= members.ranges[before].1)
    };
    let numbers = |of: fn(&Change) -> &Members| (0..changes.len()).filter(|it| is_in(of(&changes[*it]))).collect();
    Part { from: numbers(|it| &it.from), to: numbers(|it| &it.to) }
}
