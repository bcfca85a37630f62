//! The parties and zones of a report, split so that each change concerns either the whole of one or nothing of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use weir_analysis::reach::{Party, Reach, Zone};
use weir_model::EndpointId;
use weir_objects::address::{Family, to_address, to_number};

use crate::views::words;

/// A change between ends: all of these to all of those.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangedEnds {
    pub(crate) from: ChangeMembers,
    pub(crate) to: ChangeMembers,
}

/// The endpoints and addresses that take part in a change.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeMembers {
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
pub(crate) struct ReportEnd {
    /// `None` for addresses outside.
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) pods: Vec<String>,
    /// Class numbers; -1 if there is no class.
    pub(crate) subject: i64,
    pub(crate) peers: [i64; 2],
    /// The changes in which the end takes part.
    pub(crate) part: ChangeNumbers,
}

/// The numbers of changes, as source and as destination.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChangeNumbers {
    pub(crate) from: Vec<usize>,
    pub(crate) to: Vec<usize>,
}

/// Parties sorted by namespace and name, then zones.
pub(crate) fn ends(reach: &Reach<'_>, changes: &[ChangedEnds]) -> Vec<ReportEnd> {
    let MemberChanges { by_endpoint, unlisted } = changes_of_members(reach, changes);
    let mut found: Vec<ReportEnd> =
        reach.parties.iter().flat_map(|party| split_party(reach, party, &by_endpoint)).collect();
    found.extend(unlisted.into_iter().map(|(member, part)| unlisted_end(member, part)));
    found.sort_by(|a, b| (&a.namespace, &a.name, &a.pods).cmp(&(&b.namespace, &b.name, &b.pods)));
    for family in [Family::V4, Family::V6] {
        let starts = starts(changes, family);
        found.extend(
            reach.zones.iter().filter(|it| it.family == family).flat_map(|it| split_zone(it, &starts, changes)),
        );
    }
    found
}

/// The changes in which each endpoint takes part.
#[derive(Default)]
struct MemberChanges {
    by_endpoint: HashMap<EndpointId, ChangeNumbers>,
    /// Endpoints that belong to no party of the reach.
    unlisted: BTreeMap<Member, ChangeNumbers>,
}

fn changes_of_members(reach: &Reach<'_>, changes: &[ChangedEnds]) -> MemberChanges {
    let known: BTreeSet<EndpointId> = reach.parties.iter().flat_map(|it| it.members.iter().copied()).collect();
    let mut found = MemberChanges::default();
    for (number, change) in changes.iter().enumerate() {
        type SelectNumbers = fn(&mut ChangeNumbers) -> &mut Vec<usize>;
        let sides: [(_, SelectNumbers); 2] = [(&change.from, |it| &mut it.from), (&change.to, |it| &mut it.to)];
        for (members, side) in sides {
            for member in &members.endpoints {
                let part = match member.id.filter(|id| known.contains(id)) {
                    Some(id) => found.by_endpoint.entry(id).or_default(),
                    None => found.unlisted.entry(member.clone()).or_default(),
                };
                side(part).push(number);
            }
        }
    }
    found
}

fn split_party(reach: &Reach<'_>, party: &Party, parts: &HashMap<EndpointId, ChangeNumbers>) -> Vec<ReportEnd> {
    let mut by_part: BTreeMap<ChangeNumbers, Vec<&str>> = BTreeMap::new();
    for member in &party.members {
        let part = parts.get(member).cloned().unwrap_or_default();
        by_part.entry(part).or_default().push(&reach.cluster.endpoints[member.index()].name);
    }
    let is_split = by_part.len() > 1;
    let shown = |(part, pods): (ChangeNumbers, Vec<&str>)| ReportEnd {
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
fn unlisted_end(member: Member, part: ChangeNumbers) -> ReportEnd {
    ReportEnd {
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
fn starts(changes: &[ChangedEnds], family: Family) -> Vec<u128> {
    let all = changes.iter().flat_map(|it| it.from.ranges.iter().chain(&it.to.ranges));
    let of_family = all.filter(|it| Family::of(it.0) == family);
    let ends = of_family.flat_map(|(first, last)| [Some(to_number(*first).1), to_number(*last).1.checked_add(1)]);
    ends.flatten().collect::<BTreeSet<u128>>().into_iter().collect()
}

/// Splits a zone where changes begin and end. Adjacent pieces with the same changes are joined again, because the cuts
/// are those of all changes, also of changes between other ends.
fn split_zone(zone: &Zone, starts: &[u128], changes: &[ChangedEnds]) -> Vec<ReportEnd> {
    let mut by_part: BTreeMap<ChangeNumbers, Vec<(IpAddr, IpAddr)>> = BTreeMap::new();
    for piece in zone.ranges.iter().flat_map(|it| cut(*it, starts)) {
        let ranges = by_part.entry(part_of(piece.0, changes)).or_default();
        match ranges.last_mut() {
            Some(before) if to_number(before.1).1.checked_add(1) == Some(to_number(piece.0).1) => before.1 = piece.1,
            _ => ranges.push(piece),
        }
    }
    let peer = |family| if zone.family as usize == family { i64::from(zone.peer.0) } else { -1 };
    let shown = |(part, ranges): (ChangeNumbers, Vec<(IpAddr, IpAddr)>)| ReportEnd {
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

fn part_of(address: IpAddr, changes: &[ChangedEnds]) -> ChangeNumbers {
    let is_in = |members: &ChangeMembers| {
        let after = members.ranges.partition_point(|(first, _)| *first <= address);
        after.checked_sub(1).is_some_and(|before| address <= members.ranges[before].1)
    };
    let numbers =
        |of: fn(&ChangedEnds) -> &ChangeMembers| (0..changes.len()).filter(|it| is_in(of(&changes[*it]))).collect();
    ChangeNumbers { from: numbers(|it| &it.from), to: numbers(|it| &it.to) }
}
