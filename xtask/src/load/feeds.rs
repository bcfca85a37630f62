//! `cargo xtask load --feeds`: the bytes a second that an agent gets, for several forms in which a server could send it
//! the pods of the cluster.
//!
//! Problem: the plan for clusters that are too large for today's agent needs figures. Strategy: a simulation without
//! processes. Pods of deployments are replaced at a given rate, and each form is asked how many bytes it sends for that.
//! The objects are those of the simulated API server, with its sizes.

use std::collections::BTreeSet;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use xtask::simulated::{far_address, pod};

use super::LoadOptions;

/// The events of a pod that is replaced: created, bound to a node, with an address, ready; then ending, ended, deleted.
const EVENTS: u32 = 7;
/// Those of them in which a pod of another node has an address.
const WITH_ADDRESS: u32 = 5;
/// The addresses of a peer slice, as many as an EndpointSlice has by default.
const SLICE: u32 = 100;
/// The pods of a deployment have consecutive numbers.
const DEPLOYMENT: u32 = 50;
const SECONDS: u32 = 60;

/// The part of a pod that policy of other nodes needs.
fn trimmed(whole: &Value) -> Value {
    let (meta, status) = (&whole["metadata"], &whole["status"]);
    json!({"apiVersion": "weir.dev/v1alpha1", "kind": "PeerPod",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"], "labels": meta["labels"],
            "resourceVersion": "100000000"},
        "node": whole["spec"]["nodeName"], "addresses": [status["podIP"]],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
}

/// The bytes of an entry of a peer slice, and of the rest of the slice with the labels that its entries share.
fn slice_bytes(whole: &Value) -> [usize; 2] {
    let meta = &whole["metadata"];
    let entry = json!({"ip": whole["status"]["podIP"], "uid": meta["uid"], "node": whole["spec"]["nodeName"]});
    let rest = json!({"apiVersion": "weir.dev/v1alpha1", "kind": "PeerSlice",
        "metadata": {"name": "a0-00000000", "namespace": meta["namespace"], "resourceVersion": "100000000",
            "uid": meta["uid"], "creationTimestamp": "2026-01-01T00:00:00Z"},
        "labels": meta["labels"], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "pods": []});
    [entry.to_string().len() + 1, rest.to_string().len()]
}

/// The peer slices that change in a second in which pods are replaced: of whole deployments, or at random.
fn touched(pods: u32, replaced: u32, is_rollout: bool, random: &mut Xoshiro256PlusPlus) -> usize {
    let mut any = |below: u32| (random.next_u64() % u64::from(below.max(1))) as u32;
    // A pod that is replaced leaves its slice, and the new one is added to a slice of the same labels.
    let slices: BTreeSet<u32> = match is_rollout {
        true => {
            let deployments = (0..replaced.div_ceil(DEPLOYMENT)).map(|_| any(pods / DEPLOYMENT) * DEPLOYMENT);
            deployments.map(|first| first / SLICE).collect()
        }
        false => (0..replaced).map(|_| any(pods) / SLICE).collect(),
    };
    slices.len()
}

/// Prints a row for each form.
pub(super) fn print(options: &LoadOptions) {
    let (pods, changes) = (options.scale.pods, options.pod_changes);
    let whole = pod(pods, "far42", Some(far_address(pods)));
    let whole_bytes = whole.to_string().len();
    let starting = pod(pods, "far42", None).to_string().len();
    let replaced = changes / EVENTS;
    let per_pod = (EVENTS - WITH_ADDRESS) as usize * starting + WITH_ADDRESS as usize * whole_bytes;
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut slices = |is_rollout| {
        let total: usize = (0..SECONDS).map(|_| touched(pods, replaced, is_rollout, &mut random)).sum();
        total as f64 / f64::from(SECONDS)
    };
    let [entry, rest] = slice_bytes(&whole);
    let slice = (entry * SLICE as usize + rest) as f64;
    let (at_random, rollout) = (slices(false) * slice, slices(true) * slice);
    println!("{pods} pods, {changes} pod events a second ({replaced} pods replaced), bytes a second for each agent");
    let row = |form: &str, first: f64, rate: f64| {
        let all = rate * 5_000.0 * 8.0 / 1e9;
        println!(
            "{form:45} first list {:>8.1} MB, then {:>8.1} kB/s; 5,000 agents {all:>7.2} Gbit/s",
            first / 1e6,
            rate / 1e3
        );
    };
    let (pods, replaced) = (f64::from(pods), f64::from(replaced));
    row("whole pods", pods * whole_bytes as f64, replaced * per_pod as f64);
    let with_address = replaced * f64::from(WITH_ADDRESS) * whole_bytes as f64;
    row("whole pods, only those with an address", pods * whole_bytes as f64, with_address);
    let small = trimmed(&whole).to_string().len() as f64;
    row("an object of the needed fields for each pod", pods * small, replaced * 2.0 * small);
    row("the same, of 20 % of the namespaces", pods * small * 0.2, replaced * 2.0 * small * 0.2);
    let lists = pods / f64::from(SLICE) * slice;
    row("peer slices, pods replaced at random", lists, at_random);
    row("peer slices, rollouts of deployments", lists, rollout);
    for share in [20.0, 5.0] {
        let form = format!("peer slices, {share} % of the namespaces, at random");
        row(&form, lists * share / 100.0, at_random * share / 100.0);
    }
}
