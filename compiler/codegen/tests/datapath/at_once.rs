//! The fast path: established packets take it, and it has the same results as the slow path.

use weir_artifact::layout::MapName;
use weir_artifact::map_image::with_few_flows;
use weir_model::Direction;
use weir_objects::address::Family;
use weir_testing::Random;
use weir_testing::datapath::rig::{
    Arrival, FAMILIES, INTERFACE, Machine as _, Parts, Rig, UPLINK, client, friend, node, parts, server, stranger,
};
use weir_testing::datapath::vm::Machine;
use weir_testing::packet::{ACK, FIN, Packet, RST, SYN};

/// The facts' cluster with small tables, because they are read after every packet.
fn small() -> Parts {
    let mut parts = parts();
    parts.maps = parts.maps.iter().map(|image| with_few_flows(image, 256).into_owned()).collect();
    parts
}

/// The machine as it is, or one whose packets have no linear area, for which the fast path never applies.
fn rig(parts: &Parts, is_linear: bool) -> Rig {
    let mut machine = Machine::new(parts);
    if !is_linear {
        machine.linear = 0;
    }
    Rig::new(Box::new(machine), parts.pods.clone())
}

/// A packet between the server and one of a few peers, so that most flows have been seen before.
fn any_packet(random: &mut Random) -> (Direction, Packet) {
    let family = FAMILIES[random.below(2)];
    let other = [client(family), friend(family), friend(family), stranger(family), node(family)][random.below(5)];
    let local = if random.below(8) == 0 { client(family) } else { server(family) };
    let ports = [(40_000, 80), (40_001, 53), (443, 40_000)][random.below(3)];
    let (remote, local) = ((other, ports.0), (local, ports.1));
    let hook = [Direction::Ingress, Direction::Egress][random.below(2)];
    let (from, to) = if hook == Direction::Ingress { (remote, local) } else { (local, remote) };
    let flags = [SYN, SYN | ACK, ACK, ACK, ACK, ACK, FIN | ACK, RST][random.below(8)];
    let packet = match random.below(3) {
        0 => Packet::udp(from, to),
        _ => Packet::tcp(from, to, flags),
    };
    let packet = match random.below(12) {
        0 => packet.cut([4, 8, 12, 14, 19][random.below(5)]),
        1 => packet.with_fragment(7, [0, 1, 3][random.below(3)], random.below(2) == 0),
        2 if family == Family::V4 => packet.with_options(&[1; 4]),
        2 => packet.with_extension(60, &[0, 1, 4, 0, 0, 0, 0]),
        _ => packet,
    };
    (hook, packet)
}

#[test]
fn the_fast_path_does_to_a_packet_what_the_slow_path_does() {
    let mut random = Random::new(3);
    let mut established = 0;
    let parts = small();
    for round in 0..40 {
        let mut rigs = [true, false].map(|is_linear| rig(&parts, is_linear));
        if round % 4 == 0 {
            rigs.iter_mut().for_each(Rig::keep_established);
        }
        for step in 0..400 {
            match random.below(60) {
                0 => rigs.iter_mut().for_each(Rig::next_epoch),
                number @ 1..4 => rigs.iter_mut().for_each(|rig| rig.advance([1, 40, 150][number - 1])),
                _ => {}
            }
            let (hook, packet) = any_packet(&mut random);
            let arrival = match hook {
                Direction::Egress => Arrival::through(INTERFACE),
                Direction::Ingress => [Arrival::through(UPLINK), Arrival::through(INTERFACE), Arrival::HERE]
                    [[0, 0, 0, 1, 2, 2][random.below(6)]],
            };
            let [fast, slow] = rigs.each_mut().map(|rig| {
                let seen = rig.send(hook, &packet.bytes(), arrival);
                (seen.verdict(), seen.counted().to_vec(), rig.flows())
            });
            assert_eq!(fast, slow, "round {round}, step {step}: {hook:?} {packet:?}");
            established += usize::from(fast.1 == [weir_artifact::layout::Outcome::Established]);
        }
    }
    assert!(established > 1_000, "{established} packets of known flows");
}

/// The limits are above the current cost of the fast path, and far below that of the slow path.
#[test]
fn a_packet_of_an_open_flow_takes_the_fast_path() {
    let parts = parts();
    for (family, most) in [(Family::V4, 120), (Family::V6, 150)] {
        let mut machine = Machine::new(&parts);
        let pod = &parts.pods.iter().find(|(name, _)| name.ends_with("server")).unwrap().1;
        machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), pod);
        let (here, there) = ((server(family), 40_000), (friend(family), 443));
        let mut send = |hook, flags| {
            let (from, to) = if hook == Direction::Egress { (here, there) } else { (there, here) };
            let arrival = Arrival::through(if hook == Direction::Egress { INTERFACE } else { UPLINK });
            assert_eq!(machine.run(hook, &Packet::tcp(from, to, flags).bytes(), arrival), -1);
            machine.executed
        };
        send(Direction::Egress, SYN);
        send(Direction::Ingress, SYN | ACK);
        send(Direction::Egress, ACK);
        for hook in [Direction::Ingress, Direction::Egress] {
            let executed = send(hook, ACK);
            assert!(executed < most, "{family:?}, {hook:?}: {executed} instructions");
        }
        let whole = send(Direction::Egress, FIN | ACK);
        assert!(whole > most, "{family:?}: {whole} instructions");
    }
}

/// The packet inside the tag belongs to another network.
#[test]
fn a_tag_makes_a_packet_another_flow_s() {
    let parts = parts();
    let mut machine = Machine::new(&parts);
    let pod = &parts.pods.iter().find(|(name, _)| name.ends_with("server")).unwrap().1;
    machine.write(MapName::Endpoints, &INTERFACE.to_le_bytes(), pod);
    for family in FAMILIES {
        let packet = |flags| Packet::tcp((server(family), 40_000), (friend(family), 443), flags).bytes();
        machine.vlan = None;
        assert_eq!(machine.run(Direction::Egress, &packet(SYN), Arrival::through(INTERFACE)), -1);
        assert_eq!(machine.run(Direction::Egress, &packet(ACK), Arrival::through(INTERFACE)), -1);
        machine.vlan = Some(7);
        assert_eq!(machine.run(Direction::Egress, &packet(ACK), Arrival::through(INTERFACE)), 2);
    }
}
