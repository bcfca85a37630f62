//! Properties that hold for every cluster, tested on random clusters that are small and full of edge cases.
//!
//! The same functions run for longer in `cargo xtask fuzz`. Each property counts its comparisons, and fails if there
//! were too few: agreement on nothing proves nothing.

#[path = "properties/addresses.rs"]
mod addresses;
#[path = "properties/difference.rs"]
mod difference;
#[path = "properties/engines.rs"]
mod engines;
#[path = "properties/meaning.rs"]
mod meaning;
#[path = "properties/objects.rs"]
mod objects;
#[path = "properties/order.rs"]
mod order;
#[path = "properties/programs.rs"]
mod programs;
#[path = "properties/provenance.rs"]
mod provenance;
#[path = "properties/reach.rs"]
mod reach;
#[path = "properties/structures.rs"]
mod structures;

use std::ops::Range;

use weir_fuzz::generators::{Random, cluster};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, HostNetworkPods, Icmp};
use weir_objects::k8s::Object;

/// A cluster for a seed, sometimes with a changed assumption.
fn generated(seed: u64) -> (Vec<Object>, Assumptions, Random) {
    let mut random = Random::new(seed);
    let objects = cluster::objects(&mut random);
    let mut assume = cluster::assumptions(&mut random);
    // Programs do not support the other values: classify refuses them, and
    // `programs::what_programs_cannot_tell_is_refused` tests that.
    (assume.hostnetwork_pods, assume.icmp) = (HostNetworkPods::Node, Icmp::Policy);
    (objects, assume, random)
}

fn resolved(objects: &[Object], assume: Assumptions) -> Cluster {
    let (cluster, diagnostics) = resolve(objects, assume);
    assert!(!diagnostics.has_errors(), "{diagnostics:#?}");
    cluster
}

/// The clusters of these seeds, each with its seed and with the random numbers that follow.
fn clusters(seeds: Range<u64>) -> impl Iterator<Item = (u64, Cluster, Random)> {
    seeds.map(|seed| {
        let (objects, assume, random) = generated(seed);
        (seed, resolved(&objects, assume), random)
    })
}
