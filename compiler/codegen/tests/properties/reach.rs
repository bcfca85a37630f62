//! A view's traffic between two ends equals the oracle's verdict for every pair of their members, on every port.

use std::net::IpAddr;

use weir_analysis::reach::edges::{EndGroup, edges};
use weir_analysis::reach::possible::with_possible_pods;
use weir_analysis::reach::{CellCache, Passes, Reach, ReachEnd};
use weir_classes::{AtomSet, Atoms};
use weir_fuzz::generators::cluster;
use weir_model::directory::Directory;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Cluster, EndpointId, Protocol};
use weir_objects::address::Family;

use crate::{for_each_cluster, resolved};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Members of an end that take part in a family: all pods, or the first and last address of each range.
fn members(
    cluster: &Cluster,
    directory: &Directory<'_>,
    reach: &Reach<'_>,
    who: ReachEnd,
    family: Family,
) -> Vec<FlowEnd> {
    match who {
        ReachEnd::Party(index) => {
            let ends = reach.parties[index as usize].members.iter().map(|id| {
                let addresses = &cluster.endpoints[id.index()].addresses;
                let own = |at: &&IpAddr| Family::of(**at) == family && directory.endpoint_at(**at) == Some(*id);
                let address = addresses.iter().find(own).copied();
                (addresses.is_empty() || address.is_some()).then_some(FlowEnd { endpoint: Some(*id), address })
            });
            ends.flatten().collect()
        }
        ReachEnd::Zone(index) => {
            let zone = &reach.zones[index as usize];
            let ranges = zone.ranges.iter().filter(|_| zone.family == family);
            let addresses = ranges.flat_map(|(first, last)| [*first, *last]);
            let free = addresses.filter(|at| directory.endpoint_at(*at).is_none());
            free.map(|at| FlowEnd { endpoint: None, address: Some(at) }).collect()
        }
    }
}

/// Whether views show the traffic: not between a pod and itself, between a pod and its own node, and to services.
fn is_in_description(cluster: &Cluster, directory: &Directory<'_>, from: FlowEnd, to: FlowEnd) -> bool {
    let near = |pod: FlowEnd, other: FlowEnd| {
        let node = pod.endpoint.and_then(|id| cluster.endpoints[id.index()].node);
        node.zip(other.address).is_some_and(|(node, at)| cluster.is_of_node(node, at))
    };
    let is_service = to.endpoint.is_none() && to.address.is_some_and(|at| !directory.services_at(at).is_empty());
    let is_one_pod = |id: EndpointId| !cluster.endpoints[id.index()].is_several;
    let is_itself = from.endpoint.is_some_and(is_one_pod) && from.endpoint == to.endpoint;
    // Endpoints without addresses have placeholder addresses in 0.64.0.0/10, which no real endpoint has.
    let stands_in = |end: FlowEnd| matches!(end.address, Some(IpAddr::V4(v4)) if v4.octets()[0] == 0);
    !stands_in(from) && !stands_in(to) && !is_itself && !is_service && !near(from, to) && !near(to, from)
}

fn questions(atoms: &Atoms) -> Vec<(FlowProtocol, u16)> {
    let mut found = vec![(FlowProtocol::Icmp, 0)];
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let ports = cluster::PORTS.into_iter().chain([2, 444]);
        found.extend(ports.map(|port| (FlowProtocol::Transport(protocol), port)));
    }
    for interval in &atoms.intervals {
        let spec = interval.spec;
        found.extend([spec.first, spec.last].map(|port| (FlowProtocol::Transport(spec.protocol), port)));
    }
    found
}

fn allows(atoms: &Atoms, set: &AtomSet, protocol: FlowProtocol, port: u16) -> bool {
    match protocol {
        FlowProtocol::Transport(protocol) => set.contains(atoms.find(protocol, port)),
        FlowProtocol::Icmp => set.contains(Atoms::REST),
    }
}

#[test]
fn views_say_of_every_pair_what_the_oracle_says() {
    let (mut asked, mut allowed) = (0, 0);
    for_each_cluster(60, |objects, assume, mut random| {
        let mut cluster = resolved(&objects, assume);
        if random.once_in(2) {
            cluster = with_possible_pods(&cluster);
        }
        let reach = Reach::new(&cluster).expect("a cluster that can be classed");
        // Views are about the pods themselves, and not about services that claim their addresses.
        let unclaimed = Cluster { frontends: Vec::new(), ..cluster.clone() };
        let (mut cells, mut oracle, directory) =
            (CellCache::new(&reach), Oracle::new(&unclaimed), Directory::new(&cluster));
        let atoms = &reach.classes.atoms;
        let all_ends = reach.all_ends();
        for (from, to) in all_ends.iter().flat_map(|from| all_ends.iter().map(move |to| (*from, *to))) {
            let Some(passes) = cells.passes(from, to) else { continue };
            for family in FAMILIES {
                let cell = match passes {
                    Passes::Cell(cell) => cell,
                    Passes::ByFamily(v4, v6) => {
                        if family == Family::V4 {
                            v4
                        } else {
                            v6
                        }
                    }
                };
                let set = cells.set(cell).clone();
                let sources = members(&cluster, &directory, &reach, from, family);
                let destinations = members(&cluster, &directory, &reach, to, family);
                for (source, destination) in sources.iter().flat_map(|a| destinations.iter().map(move |b| (*a, *b))) {
                    if !is_in_description(&cluster, &directory, source, destination) {
                        continue;
                    }
                    for (protocol, port) in questions(atoms) {
                        let flow = Flow { source, destination, protocol, port };
                        let expected = oracle.judge(&flow).verdict() == Verdict::Allow;
                        assert_eq!(allows(atoms, &set, protocol, port), expected, "{flow:?}");
                        asked += 1;
                        allowed += usize::from(expected);
                    }
                }
            }
        }
    });
    assert!(asked > 200_000 && allowed > 20_000 && asked - allowed > 20_000, "too little: {asked} {allowed}");
}

/// Whether a group contains an end.
fn stands_for(reach: &Reach<'_>, group: &EndGroup, who: ReachEnd) -> bool {
    match (group, who) {
        (EndGroup::Everyone, _) | (EndGroup::Pods, ReachEnd::Party(_)) | (EndGroup::Outside, ReachEnd::Zone(_)) => true,
        (EndGroup::Namespace(id), ReachEnd::Party(index)) => reach.parties[index as usize].namespace == *id,
        (EndGroup::Party(wanted), ReachEnd::Party(index)) => *wanted == index,
        (EndGroup::Ranges(ranges), ReachEnd::Zone(index)) => {
            let zone = &reach.zones[index as usize];
            let inside = |at: IpAddr| {
                ranges.iter().any(|(first, last)| Family::of(at) == Family::of(*first) && *first <= at && at <= *last)
            };
            zone.ranges.iter().all(|(first, last)| inside(*first) && inside(*last))
        }
        _ => false,
    }
}

#[test]
fn edges_say_of_every_pair_what_the_table_says() {
    let mut passing = 0;
    for_each_cluster(120, |objects, assume, _| {
        let cluster = resolved(&objects, assume);
        let reach = Reach::new(&cluster).expect("a cluster that can be classed");
        let mut cells = CellCache::new(&reach);
        let found = edges(&reach, &mut cells);
        for from in reach.all_ends() {
            for to in reach.all_ends() {
                let Some(passes) = cells.passes(from, to) else { continue };
                let is = |groups: &[EndGroup], who| groups.iter().any(|group| stands_for(&reach, group, who));
                let told: Vec<Passes> =
                    found.iter().filter(|it| is(&it.from, from) && is(&it.to, to)).map(|it| it.passes).collect();
                let expected = if passes == Passes::NOTHING { Vec::new() } else { vec![passes] };
                assert_eq!(told, expected, "{from:?} to {to:?}");
                passing += expected.len();
            }
        }
    });
    assert!(passing > 1_000, "too little: {passing}");
}
