//! Whatever bytes a packet has, the program passes or drops it without a fault: random changes to packets of every
//! kind. Each packet also runs with only a part of it linear, and must get the same result.

use weir_fuzz::generators::Random;
use weir_model::Direction;
use weir_objects::address::Family;

use crate::datapath::rig::{
    Arrival, FAMILIES, INTERFACE, Machine as _, Parts, UPLINK, client, friend, node, parts, server,
};
use crate::datapath::{Machines, vm};
use crate::packet::{ACK, Packet, SYN};

/// One packet of each kind.
fn packets(family: Family) -> Vec<Packet> {
    let (server, client, friend) = (server(family), client(family), friend(family));
    let syn = Packet::tcp((client, 40_000), (server, 80), SYN);
    let out = Packet::tcp((server, 40_000), (friend, 443), SYN);
    let mut packets = vec![
        Packet::udp((client, 40_000), (server, 53)),
        Packet::sctp((client, 40_000), (server, 90)),
        Packet::tcp((friend, 443), (server, 40_000), SYN | ACK),
        Packet::ping(server, friend, 7),
        Packet::pong(friend, server, 7),
        Packet::unreachable(friend, &out),
        Packet::tcp((node(family), 40_000), (server, 9), SYN),
        syn.clone().with_fragment(7, 0, true),
        syn.clone().with_fragment(7, 3, false),
    ];
    packets.push(match family {
        Family::V4 => syn.clone().with_options(&[1; 12]),
        Family::V6 => syn.clone().with_extension(0, &[0, 1, 4, 0, 0, 0, 0]).with_extension(60, &[0, 1, 4, 0, 0, 0, 0]),
    });
    if family == Family::V6 {
        packets.extend([Packet::solicitation(server, node(family)), Packet::advertisement(server, node(family))]);
    }
    packets.extend([syn, out]);
    packets
}

/// A packet of some kind with a few bytes changed, and perhaps truncated.
pub fn mutant(random: &mut Random) -> (Direction, Vec<u8>, Arrival) {
    let family = FAMILIES[random.below(2)];
    let packets = packets(family);
    let mut bytes = packets[random.below(packets.len())].bytes();
    for _ in 0..random.below(4) {
        // The EtherType is not changed, because the kernel's test run takes the protocol from it, and so does the VM.
        let at = 14 + random.below(bytes.len() - 14);
        bytes[at] = match random.below(3) {
            0 => random.below(256) as u8,
            1 => bytes[at] ^ 1 << random.below(8),
            _ => [0, 255, 6, 17, 43, 44, 58, 60][random.below(8)],
        };
    }
    if random.below(4) == 0 {
        // The kernel's test run accepts no packet without an IP header.
        let headers = 14 + if family == Family::V4 { 20 } else { 40 };
        bytes.truncate(headers + random.below(bytes.len() - headers));
    }
    let hook = [Direction::Ingress, Direction::Egress][random.below(2)];
    (hook, bytes, [Arrival::HERE, Arrival::through(INTERFACE), Arrival::through(UPLINK)][random.below(3)])
}

fn every_mutant_passes_or_is_dropped_wherever_its_bytes_lie(_: &dyn Machines) {
    every_mutant_fares_alike(&parts());
}

fn every_mutant_fares_alike(parts: &Parts) {
    let server = &parts.pods.iter().find(|(name, _)| name.ends_with("server")).unwrap().1;
    let mut linear = vm::Machine::new(parts);
    let mut split = vm::Machine::new(parts);
    for machine in [&mut linear, &mut split] {
        machine.write(weir_artifact::layout::MapName::Endpoints, &INTERFACE.to_le_bytes(), server);
    }
    let mut random = Random::new(1);
    let mut verdicts = [0, 0];
    for _ in 0..20_000 {
        let (hook, bytes, arrival) = mutant(&mut random);
        split.linear = 14 + random.below(80);
        let verdict = linear.run(hook, &bytes, arrival);
        assert!([-1, 2].contains(&verdict), "{verdict}: {hook:?} {bytes:02x?}");
        verdicts[usize::from(verdict == 2)] += 1;
        assert_eq!(split.run(hook, &bytes, arrival), verdict, "{} linear: {hook:?} {bytes:02x?}", split.linear);
    }
    assert!(verdicts.iter().all(|count| *count > 2_000), "both verdicts are common: {verdicts:?}");
}

tests! {
    mutations => mutations_tests;
    every_mutant_passes_or_is_dropped_wherever_its_bytes_lie,
}
