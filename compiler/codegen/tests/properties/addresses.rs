//! The address map agrees with the predicates for every class, in the tables and in the map images.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_artifact::layout::{MapName, address_bytes};
use weir_classes::{PeerId, Predicate, PredicateId};
use weir_codegen::structures::StructureOptions;
use weir_fuzz::oracles::engines::{Compiled, edges, scopes};
use weir_model::directory::Directory;
use weir_model::labels::matches;
use weir_model::{Cluster, IpBlockPods, Peer};
use weir_objects::address::{Family, to_address, to_number};

use crate::{for_each_cluster, resolved};

/// Both ends of every block and list, and their neighbours.
fn boundaries(compiled: &Compiled<'_>) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    let cluster = compiled.cluster;
    let holes = |peer: &Peer| match peer {
        Peer::Block { cidr, except } => except.iter().chain([cidr]).map(|it| it.address()).collect(),
        Peer::Pods { .. } => Vec::new(),
    };
    let rules = cluster.policies.iter().flat_map(|it| it.ingress.iter().chain(&it.egress).flatten());
    let blocks = rules.flat_map(|rule| &rule.peers).flat_map(holes);
    let lists = cluster.lists.iter().flat_map(|it| &it.entries).flat_map(|it| [it.first, it.last]);
    for address in edges(&compiled.tables).into_iter().chain(blocks).chain(lists) {
        let (family, number) = to_number(address);
        let most = match family {
            Family::V4 => u128::from(u32::MAX),
            Family::V6 => u128::MAX,
        };
        let around = [number.saturating_sub(1), number, number.saturating_add(1).min(most)];
        found.extend(around.map(|number| to_address(family, number)));
    }
    found
}

/// Evaluates every predicate, one by one.
fn expected(compiled: &Compiled<'_>, directory: &Directory<'_>, address: IpAddr) -> Vec<PredicateId> {
    let cluster = compiled.cluster;
    let predicates = compiled.classes.predicates().iter().enumerate();
    let holds = predicates.filter(|(_, it)| holds(cluster, directory, it, address));
    holds.map(|(index, _)| PredicateId(index as u32)).collect()
}

fn holds(cluster: &Cluster, directory: &Directory<'_>, predicate: &Predicate, address: IpAddr) -> bool {
    let pod = directory.endpoint_at(address);
    match predicate {
        Predicate::List(list) => cluster.list_entry(*list, address).is_some(),
        Predicate::Block { cidr, except } => {
            (pod.is_none() || cluster.assume.ipblock_pods == IpBlockPods::Match)
                && cidr.contains(address)
                && !except.iter().any(|hole| hole.contains(address))
        }
        Predicate::Networks(networks) => networks.iter().any(|network| network.contains(address)),
        Predicate::Nodes(selector) => {
            let of_nodes = cluster.nodes.iter().filter(|node| node.addresses.contains(&address));
            let is_selected = |labels| matches(cluster.labels.selector(*selector), cluster.labels.labels(labels));
            pod.is_none() && of_nodes.map(|node| node.labels).any(is_selected)
        }
        Predicate::Pods { own, namespaces, pods } => pod.is_some_and(|id| {
            let endpoint = &cluster.endpoints[id.index()];
            let of_namespace = cluster.namespaces[endpoint.namespace.index()].labels;
            let labels = &cluster.labels;
            let matches = |selector: &_, set| matches(labels.selector(*selector), labels.labels(set));
            own.is_none_or(|own| own == endpoint.namespace)
                && namespaces.as_ref().is_none_or(|it| matches(it, of_namespace))
                && matches(pods, endpoint.labels)
        }),
    }
}

#[test]
fn an_address_s_class_holds_the_predicates_that_hold_for_the_address() {
    let (mut asked, mut held) = (0, 0);
    for_each_cluster(150, |objects, assume, _| {
        let cluster = resolved(&objects, assume);
        let directory = Directory::new(&cluster);
        for scope in scopes(&cluster) {
            let compiled = Compiled::new(&cluster, scope).unwrap();
            for address in boundaries(&compiled) {
                let peer = &compiled.classes.peers[compiled.classes.peer_at(address).index()];
                let expected = expected(&compiled, &directory, address);
                assert_eq!(*peer.predicates, *expected, "{address}");
                (asked, held) = (asked + 1, held + expected.len());
            }
        }
    });
    assert!(asked > 20_000 && held > 15_000, "{asked} addresses, {held} predicates held");
}

/// The class that the kernel finds in the images: the exact entry, else the longest prefix, else 0.
fn looked_up(images: &[weir_artifact::map_image::MapImage], address: IpAddr) -> PeerId {
    let (exact, prefixes) = match Family::of(address) {
        Family::V4 => (MapName::Exact4, MapName::Prefixes4),
        Family::V6 => (MapName::Exact6, MapName::Prefixes6),
    };
    let entries = |name| images.iter().find(|it| it.name == name).into_iter().flat_map(|it| it.entries.iter());
    let class = |value: &[u8]| PeerId(u32::from_le_bytes(value.try_into().expect("four bytes")));
    let bytes = address_bytes(address);
    if let Some((_, value)) = entries(exact).find(|(key, _)| **key == bytes[..]) {
        return class(value);
    }
    let matching = entries(prefixes).filter_map(|(key, value)| {
        let (length, network) = key.split_at(4);
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        begins_alike(network, &bytes, length).then_some((length, class(value)))
    });
    matching.max_by_key(|(length, _)| *length).map_or(PeerId(0), |(_, class)| class)
}

fn begins_alike(a: &[u8], b: &[u8], bits: u32) -> bool {
    let bit = |bytes: &[u8], at: u32| bytes[at as usize / 8] >> (7 - at % 8) & 1;
    (0..bits).all(|at| bit(a, at) == bit(b, at))
}

#[test]
fn prefixes_in_the_image_give_every_address_its_class() {
    let mut asked = 0;
    for_each_cluster(100, |objects, assume, _| {
        let cluster = resolved(&objects, assume);
        for scope in scopes(&cluster) {
            let compiled = Compiled::with(&cluster, scope, &StructureOptions::kernel_maps()).unwrap();
            let images = compiled.maps();
            for address in boundaries(&compiled) {
                if !weir_codegen::map_images::has_family(&cluster, &compiled.scope, Family::of(address)) {
                    continue;
                }
                let found = looked_up(&images, address);
                assert_eq!(found, compiled.classes.peer_at(address), "{address}");
                asked += 1;
            }
        }
    });
    assert!(asked > 10_000, "only {asked} addresses");
}
