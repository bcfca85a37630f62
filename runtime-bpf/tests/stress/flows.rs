//! All CPUs insert, hit, confirm and evict flows in one bucket: a packet must never match another flow's slot.
//!
//! Allowed flows have keys (port n, address n). A packet of (port n, address m) answers no flow and must be dropped.
//! Each half of its key belongs to an existing flow. So it would pass if a slot were read while its owner changes, or
//! if a change were applied to the slot's next owner.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_artifact::layout::buckets::{Slot, WAYS};
use weir_artifact::layout::{MapName, Outcome};
use weir_artifact::map_image::bucket_family;
use weir_objects::address::Family;
use weir_testing::Random;
use weir_testing::datapath::rig::{FAMILIES, INTERFACE, UPLINK, address, one_bucket, server};
use weir_testing::packet::{ACK, Packet, SYN};

use crate::{InKernel, context, kernel};

/// Flows that compete for the bucket's slots.
const FLOWS: u16 = 3 * WAYS as u16;
const TIME: Duration = Duration::from_millis(1_500);
/// Runs per call for packets that never pass.
const RUNS: u32 = 100;
/// `TC_ACT_SHOT`
const DROPPED: u32 = 2;
const FIRST_PORT: u16 = 40_000;

/// The friend of this number.
fn friend(family: Family, number: u16) -> std::net::IpAddr {
    address(family, &format!("10.8.0.{}", number + 1), &format!("fd08::{:x}", number + 1))
}

/// A packet of the server that begins or continues a flow.
fn out(family: Family, number: u16, flags: u8) -> Vec<u8> {
    Packet::tcp((server(family), FIRST_PORT + number), (friend(family, number), 443), flags).bytes()
}

/// A packet from a friend to a port of the server.
fn back(family: Family, port: u16, from: u16) -> Vec<u8> {
    Packet::tcp((friend(family, from), 443), (server(family), FIRST_PORT + port), ACK).bytes()
}

/// The state that all threads share.
struct Shared<'a> {
    machine: &'a InKernel,
    family: Family,
    stop: AtomicBool,
    answers: AtomicU64,
    /// Calls with packets that answer no flow.
    others: AtomicU64,
}

#[test]
fn flows_stay_distinct_while_all_cpus_change_one_bucket() {
    let Some(kernel) = kernel() else { return };
    let parts = one_bucket();
    for family in FAMILIES {
        let machine = InKernel::new(&kernel, &parts);
        let value = &parts.pods.iter().find(|(pod, _)| pod.ends_with("server")).unwrap().1;
        machine.maps[&MapName::Endpoints].update(&INTERFACE.to_le_bytes(), value, 0).unwrap();
        let [answers, others] = [0; 2].map(AtomicU64::new);
        let shared = Shared { machine: &machine, family, stop: AtomicBool::new(false), answers, others };
        hammer(&shared);
        let [answers, others] = [shared.answers, shared.others].map(AtomicU64::into_inner);
        // All packets that passed were answers: their number equals that of the answers, which are sent in single runs.
        assert_eq!(established(&machine), answers, "some of {others} × {RUNS} passed that were nobody's answer");
        for slot in live(&machine, family) {
            let [port, from] = key(&slot);
            assert_eq!(port, from, "{slot:?}");
        }
    }
}

/// Runs threads of each kind on each CPU, for some time and until each kind has done some work.
fn hammer(shared: &Shared<'_>) {
    let cpus = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    std::thread::scope(|scope| {
        for number in 0..cpus as u64 {
            for (sort, act) in [begin as Act, answer, pretend].into_iter().enumerate() {
                scope.spawn(move || until(shared, number + 100 * sort as u64, act));
            }
        }
        let begun = Instant::now();
        let few = |it: &AtomicU64| it.load(Ordering::Relaxed) < 50;
        while begun.elapsed() < TIME || few(&shared.answers) || few(&shared.others) {
            std::thread::sleep(Duration::from_millis(20));
        }
        shared.stop.store(true, Ordering::Relaxed);
    });
}

type Act = fn(&Shared<'_>, &mut Random);

/// Repeats `act` until the test stops.
fn until(shared: &Shared<'_>, seed: u64, act: Act) {
    let mut random = Random::new(seed);
    while !shared.stop.load(Ordering::Relaxed) {
        act(shared, &mut random);
    }
}

/// Begins a flow and sends a second packet of it.
fn begin(shared: &Shared<'_>, random: &mut Random) {
    let number = random.below(FLOWS.into()) as u16;
    for flags in [SYN, ACK] {
        let packet = out(shared.family, number, flags);
        let run = shared.machine.programs[1].test_run(&packet, &context(INTERFACE), 3).unwrap();
        // The flow may have been evicted before the ACK.
        assert!(flags != SYN || run.verdict != DROPPED, "the server may begin");
    }
}

fn answer(shared: &Shared<'_>, random: &mut Random) {
    let number = random.below(FLOWS.into()) as u16;
    let packet = back(shared.family, number, number);
    let run = shared.machine.programs[0].test_run(&packet, &context(UPLINK), 1).unwrap();
    shared.answers.fetch_add(u64::from(run.verdict != DROPPED), Ordering::Relaxed);
}

/// A packet with half of one flow's key and half of another's.
fn pretend(shared: &Shared<'_>, random: &mut Random) {
    let port = random.below(FLOWS.into()) as u16;
    let from = (port + 1 + random.below(usize::from(FLOWS) - 1) as u16) % FLOWS;
    let packet = back(shared.family, port, from);
    shared.machine.programs[0].test_run(&packet, &context(UPLINK), RUNS).unwrap();
    shared.others.fetch_add(1, Ordering::Relaxed);
}

/// Packets that came to the pod and passed as part of a flow.
fn established(machine: &InKernel) -> u64 {
    let value = machine.maps[&MapName::Counters].lookup(&(Outcome::Established as u32).to_le_bytes()).unwrap();
    value.chunks(16).map(|cpu| u64::from_le_bytes(*cpu.first_chunk().unwrap())).sum()
}

fn live(machine: &InKernel, family: Family) -> Vec<Slot> {
    let of_family = |name: &MapName| bucket_family(*name).is_some_and(|(it, _)| it == family);
    let (_, map) = machine.maps.iter().find(|(name, _)| of_family(name)).unwrap();
    map.flow_table(family).unwrap().live()
}

/// The numbers of port and address.
fn key(slot: &Slot) -> [u16; 2] {
    let tuple = slot.flow().unwrap().tuple;
    let last = match tuple.remote {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    };
    [tuple.local_port - FIRST_PORT, u16::from(last) - 1]
}
