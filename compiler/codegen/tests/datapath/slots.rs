//! A slot of the flow table that another CPU gives to another flow while a program reads it.
//!
//! The VM stops before each read of the table in turn; there the slot changes from one flow to another, as after a
//! claim and a publication. The fast path and the slow path are tested apart: a packet with a FIN always takes the slow
//! path. `compiler/codegen/tests/buckets` tests the protocol itself, also with reordered memory accesses.

use weir_artifact::layout::buckets::{Slot, StoredFlow, Tuple, WAYS, slot_bytes};
use weir_artifact::layout::{FlowState, MapName, config};
use weir_model::Direction;
use weir_objects::address::Family;

use weir_testing::datapath::rig::{Arrival, FAMILIES, INTERFACE, Machine as _, UPLINK, address, one_bucket, server};
use weir_testing::datapath::vm::Machine;
use weir_testing::packet::{ACK, FIN, Packet};

/// `TC_ACT_SHOT`
const DROPPED: i32 = 2;
const PASSED: i32 = -1;
/// The way of the bucket that is tested. The other ways are free.
const WAY: usize = 3;
const FIRST_PORT: u16 = 40_000;
/// More than the fast path executes, and fewer than the slow path does.
const FAST: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestedPath {
    Fast,
    Slow,
}

/// A port of the server and a friend: the parts of a flow's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FlowEnds {
    port: u16,
    friend: u16,
}

/// The ends of the packet.
const PACKET: FlowEnds = FlowEnds { port: 0, friend: 0 };
/// Flows that share one part of the key with the packet, so that a mix of both could be mistaken for its flow.
const SAME_PORT: FlowEnds = FlowEnds { port: 0, friend: 1 };
const SAME_FRIEND: FlowEnds = FlowEnds { port: 1, friend: 0 };

fn friend(family: Family, number: u16) -> std::net::IpAddr {
    address(family, &format!("10.8.0.{}", number + 1), &format!("fd08::{:x}", number + 1))
}

/// A machine with one bucket, and a packet from a friend to the server that takes this path.
struct SlotScene {
    machine: Machine,
    family: Family,
    packet: Vec<u8>,
}

impl SlotScene {
    fn new(family: Family, path: TestedPath) -> Self {
        let parts = one_bucket();
        let mut machine = Machine::new(&parts);
        let pod = &parts.pods.iter().find(|(name, _)| name.ends_with("server")).unwrap().1;
        machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), pod);
        let flags = if path == TestedPath::Fast { ACK } else { FIN | ACK };
        let (from, to) = ((friend(family, PACKET.friend), 443), (server(family), FIRST_PORT + PACKET.port));
        Self { machine, family, packet: Packet::tcp(from, to, flags).bytes() }
    }

    fn arrival(&self) -> (Direction, Vec<u8>, Arrival) {
        (Direction::Ingress, self.packet.clone(), Arrival::through(UPLINK))
    }

    /// The slot of an open connection that the server began. `age` is the number of ticks since its last packet.
    fn slot(&self, ends: FlowEnds, sequence: u32, age: u64) -> Slot {
        let epoch = self.machine.read(MapName::Config, &[0; 4])[config::EPOCH as usize];
        let tuple = Tuple {
            ifindex: INTERFACE,
            protocol: 6,
            remote: friend(self.family, ends.friend),
            local: server(self.family),
            remote_port: 443,
            local_port: FIRST_PORT + ends.port,
        };
        let fresh = tuple.begun(Direction::Egress, u32::from(epoch), 1_000_000 - age);
        StoredFlow { state: FlowState::TcpOpen, answered: true, ..fresh }.slot(sequence)
    }

    fn read(&self) -> Vec<u8> {
        let bytes = slot_bytes(self.family) as usize;
        self.machine.read(map_of(self.family), &[0; 4])[bytes * WAY..bytes * (WAY + 1)].to_vec()
    }
}

fn bytes_of(slot: &Slot) -> Vec<u8> {
    slot.words().iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Sends the packet once for each read of these maps, and changes the slot from one flow to the other before that read.
/// Calls `check` with the number of the read, the verdict and the slot's bytes.
fn at_every_read(
    family: Family,
    path: TestedPath,
    maps: &[MapName],
    [before, after]: [FlowEnds; 2],
    check: impl Fn(usize, i32, Vec<u8>, Vec<u8>),
) {
    for nth in 0.. {
        let mut scene = SlotScene::new(family, path);
        let [old, new] = [scene.slot(before, 1, 20), scene.slot(after, 2, 10)];
        store(&mut scene.machine, family, &old);
        let (hook, packet, arrival) = scene.arrival();
        let Some(run) =
            scene.machine.run_with_change((hook, &packet, arrival), (maps, nth), |it| store(it, family, &new))
        else {
            assert!(nth >= 8, "{family:?} {path:?}: {nth} reads are too few");
            return;
        };
        check(nth, run.verdict(), scene.read(), bytes_of(&new));
    }
}

fn map_of(family: Family) -> MapName {
    if family == Family::V4 { MapName::FlowBuckets4 } else { MapName::FlowBuckets6 }
}

fn store(machine: &mut Machine, family: Family, slot: &Slot) {
    let (map, bytes) = (map_of(family), slot_bytes(family) as usize);
    let mut table = machine.read(map, &[0; 4]);
    assert_eq!(table.len(), bytes * WAYS as usize, "the table is one bucket");
    table[bytes * WAY..bytes * (WAY + 1)].copy_from_slice(&bytes_of(slot));
    machine.write(map, &[0; 4], &table);
}

fn families_and_paths() -> impl Iterator<Item = (Family, TestedPath)> {
    FAMILIES.into_iter().flat_map(|family| [TestedPath::Fast, TestedPath::Slow].map(|path| (family, path)))
}

/// The packets of these tests take the path that they are meant for, and pass if the slot does not change.
#[test]
fn packets_take_the_path_that_they_are_meant_for() {
    for (family, path) in families_and_paths() {
        let mut scene = SlotScene::new(family, path);
        let slot = scene.slot(PACKET, 1, 20);
        store(&mut scene.machine, family, &slot);
        let (hook, packet, arrival) = scene.arrival();
        assert_eq!(scene.machine.run(hook, &packet, arrival), PASSED, "{family:?} {path:?}");
        let executed = scene.machine.executed;
        assert_eq!(executed < FAST, path == TestedPath::Fast, "{family:?} {path:?}: {executed} instructions");
        assert_ne!(scene.read(), bytes_of(&slot), "{family:?} {path:?}: the packet changes the slot");
    }
}

/// A packet that shares one part of the key with each of two flows belongs to neither.
#[test]
fn a_slot_that_changes_while_it_is_read_is_refused() {
    for (family, path) in families_and_paths() {
        for flows in [[SAME_PORT, SAME_FRIEND], [SAME_FRIEND, SAME_PORT]] {
            at_every_read(family, path, &[map_of(family)], flows, |nth, verdict, slot, new| {
                assert_eq!(
                    verdict, DROPPED,
                    "{family:?} {path:?} {flows:?}: it passes as a packet of a mix, read {nth}"
                );
                assert_eq!(slot, new, "{family:?} {path:?} {flows:?}: it changed another flow's slot, read {nth}");
            });
        }
    }
}

/// A packet whose flow loses its slot meanwhile changes nothing in the next flow of the slot.
#[test]
fn a_slot_that_another_flow_has_taken_stays_as_it_is() {
    for (family, path) in families_and_paths() {
        // After the last read of the slot, the program reads its parameters, and only then it changes the slot.
        let maps = [map_of(family), MapName::Config];
        at_every_read(family, path, &maps, [PACKET, SAME_FRIEND], |nth, _, slot, new| {
            assert_eq!(slot, new, "{family:?} {path:?}: it changed another flow's slot, read {nth}");
        });
    }
}
