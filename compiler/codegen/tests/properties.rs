//! Properties that hold for every cluster, tested on random clusters that are small and full of edge cases.
//!
//! The same functions run for longer in `cargo xtask fuzz`. Each property counts its comparisons, and fails if there
//! were too few: agreement on nothing proves nothing. A failing cluster is shrunk and printed as YAML.

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

use weir_fuzz::generators::cluster::enforceable;
use weir_fuzz::generators::{Random, for_each};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster};
use weir_objects::k8s::Object;

/// Tests clusters, sometimes with a changed assumption.
#[track_caller]
fn for_each_cluster(cases: u32, mut test: impl FnMut(Vec<Object>, Assumptions, Random)) {
    for_each(cases, &enforceable(), |case| {
        let random = case.random();
        test(case.objects, case.assume, random);
    });
}

fn resolved(objects: &[Object], assume: Assumptions) -> Cluster {
    let (cluster, diagnostics) = resolve(objects, assume);
    assert!(!diagnostics.has_errors(), "{diagnostics:#?}");
    cluster
}
