//! Packets by hand: packets that sockets do not send, or not in this order.

use crate::stage::{Stage, by_programs, everywhere};
use crate::topology::Layout;
use crate::wire::{Wire, with_checksum};
use weir_testing::packet::{ACK, Packet, SYN};

fn wire(stage: &Stage, pod: &str) -> Wire {
    Wire::pod(&stage.net, &format!("default/{pod}")).unwrap()
}

/// Sends a packet from pod to pod: directly on a bridge, through the gateway otherwise.
fn send(stage: &Stage, from: &Wire, to: &Wire, packet: &Packet) {
    let sent = if stage.net.layout == Layout::Bridge { from.send_to(to, packet) } else { from.send(packet) };
    sent.unwrap();
}

#[track_caller]
fn arrives(stage: &Stage, from: &Wire, to: &Wire, packet: &Packet) {
    send(stage, from, to, packet);
    assert!(to.gets(packet), "{}: should arrive: {packet:?}", stage.name());
}

#[track_caller]
fn is_dropped(stage: &Stage, from: &Wire, to: &Wire, packet: &Packet) {
    send(stage, from, to, packet);
    assert!(to.misses(packet), "{}: should not arrive: {packet:?}", stage.name());
}

#[test]
fn ip_options_and_extension_headers_do_not_hide_ports() {
    everywhere(|stage| {
        let (client, server) = (wire(stage, "client"), wire(stage, "server"));
        let ends = (stage.address("client"), stage.address("server"));
        let dressed: Vec<Box<dyn Fn(Packet) -> Packet>> = match stage.v6 {
            // First no-operations, then a router alert.
            false => vec![
                Box::new(|it| it.with_options(&[1, 1, 1, 0])),
                Box::new(|it| it.with_options(&[148, 4, 0, 0, 1, 1, 1, 0])),
            ],
            // Padding in destination options, in hop-by-hop options, and in both.
            true => vec![
                Box::new(|it| it.with_extension(60, &PADDING)),
                Box::new(|it| it.with_extension(0, &PADDING)),
                Box::new(|it| it.with_extension(0, &PADDING).with_extension(60, &PADDING)),
            ],
        };
        for (number, dress) in dressed.iter().enumerate() {
            let port = 40_000 + number as u16;
            let to = |to| dress(Packet::tcp((ends.0, port), (ends.1, to), SYN));
            arrives(stage, &client, &server, &to(80));
            is_dropped(stage, &client, &server, &to(81));
            arrives(stage, &client, &server, &dress(Packet::udp((ends.0, port), (ends.1, 53))));
            is_dropped(stage, &client, &server, &dress(Packet::udp((ends.0, port), (ends.1, 54))));
        }
    });
}

/// An options header without its first byte: the length field (no further 8 bytes), and a padding option.
const PADDING: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

#[test]
fn fragments_get_the_verdict_of_the_first_fragment() {
    by_programs(&|stage: &mut Stage| {
        let (client, server) = (wire(stage, "client"), wire(stage, "server"));
        let ends = (stage.address("client"), stage.address("server"));
        let first = |id, port| Packet::udp((ends.0, 40_000), (ends.1, port)).with_fragment(id, 0, true);
        let later = |id, at, more| Packet::new(ends.0, ends.1, 17, vec![9; 16]).with_fragment(id, at, more);
        arrives(stage, &client, &server, &first(1, 53));
        arrives(stage, &client, &server, &later(1, 3, true));
        arrives(stage, &client, &server, &later(1, 5, false));
        is_dropped(stage, &client, &server, &first(2, 54));
        is_dropped(stage, &client, &server, &later(2, 3, false));
        // A later fragment that arrives before the first one is dropped: its port is not known yet.
        is_dropped(stage, &client, &server, &later(3, 3, true));
        arrives(stage, &client, &server, &first(3, 53));
        arrives(stage, &client, &server, &later(3, 5, false));
        arrives(stage, &client, &server, &later(3, 3, true));
        // A fragment of another source with the same number is not part of the packet.
        let other = wire(stage, "other");
        let strange = Packet::new(stage.address("other"), ends.1, 17, vec![9; 16]).with_fragment(1, 5, false);
        is_dropped(stage, &other, &server, &strange);
    });
}

#[test]
fn simultaneous_tcp_open_works_in_both_directions() {
    everywhere(|stage| {
        let (client, server) = (wire(stage, "client"), wire(stage, "server"));
        let ends = [(stage.address("client"), 40_000), (stage.address("server"), 80)];
        let packet = |from: usize, flags| Packet::tcp(ends[from], ends[1 - from], flags);
        // The server may not begin the connection.
        is_dropped(stage, &server, &client, &packet(1, SYN));
        arrives(stage, &client, &server, &packet(0, SYN));
        // Whether this one passes makes no difference: each side has seen the other's by the end.
        send(stage, &server, &client, &packet(1, SYN));
        arrives(stage, &client, &server, &packet(0, SYN | ACK));
        arrives(stage, &server, &client, &packet(1, SYN | ACK));
        arrives(stage, &client, &server, &packet(0, ACK));
        arrives(stage, &server, &client, &packet(1, ACK));
    });
}

#[test]
fn spoofed_source_is_dropped() {
    by_programs(&|stage: &mut Stage| {
        let (client, server, other) = (wire(stage, "client"), wire(stage, "server"), wire(stage, "other"));
        let to = (stage.address("server"), 80);
        for name in ["client", "friend", "far"] {
            is_dropped(stage, &other, &server, &Packet::tcp((stage.address(name), 40_000), to, SYN));
        }
        for address in [crate::stage::NODES[0], crate::stage::OUTSIDE] {
            is_dropped(stage, &other, &server, &Packet::tcp((stage.either(address), 40_000), to, SYN));
        }
        // `other` also sends packets with the ends of a live flow.
        let own = Packet::tcp((stage.address("client"), 40_001), to, SYN);
        arrives(stage, &client, &server, &own);
        is_dropped(stage, &other, &server, &Packet::tcp((stage.address("client"), 40_001), to, ACK));
        let reply = Packet::tcp(to, (stage.address("client"), 40_001), SYN | ACK);
        is_dropped(stage, &other, &client, &reply);
        arrives(stage, &server, &client, &reply);
    });
}

#[test]
fn reverse_flow_between_pods_of_one_node_is_judged_separately() {
    everywhere(|stage| {
        let (client, server) = (wire(stage, "client"), wire(stage, "server"));
        let (there, here) = ((stage.address("client"), 80), (stage.address("server"), 80));
        // The same ports both ways: one flow's tuple is the other's mirror image.
        is_dropped(stage, &server, &client, &Packet::tcp(here, there, SYN));
        is_dropped(stage, &server, &client, &Packet::udp(here, there));
        arrives(stage, &client, &server, &Packet::tcp(there, here, SYN));
        arrives(stage, &server, &client, &Packet::tcp(here, there, SYN | ACK));
        is_dropped(stage, &client, &server, &Packet::udp(there, here));
        is_dropped(stage, &server, &client, &Packet::udp(here, there));
    });
}

#[test]
fn icmp_errors_pass_only_for_known_flows() {
    everywhere(|stage| {
        let (client, server) = (wire(stage, "client"), wire(stage, "server"));
        let live = Packet::udp((stage.address("client"), 40_000), (stage.address("server"), 53));
        let dead = Packet::udp((stage.address("client"), 40_001), (stage.address("server"), 53));
        arrives(stage, &client, &server, &live);
        let about = |packet| with_checksum(Packet::unreachable(stage.address("server"), packet));
        arrives(stage, &server, &client, &about(&live));
        is_dropped(stage, &server, &client, &about(&dead));
    });
}

/// Frames that are not IP have no address and no port: they pass only where nothing is enforced.
#[test]
fn non_ip_frames_pass_only_unisolated_pods() {
    by_programs(&|stage: &mut Stage| {
        if stage.net.layout == Layout::Routed || stage.v6 {
            return;
        }
        let [other, client, sealed] = ["other", "client", "sealed"].map(|pod| wire(stage, pod));
        let frame = |from: &Wire, to: &Wire| {
            let mut frame = [to.own_mac(), from.own_mac()].concat();
            frame.extend([0x88, 0xb5]);
            frame.extend([5; 50]);
            frame
        };
        for (from, to, passes) in [(&other, &client, true), (&sealed, &client, false), (&client, &sealed, false)] {
            let frame = frame(from, to);
            from.send_frame(&frame).unwrap();
            let wait = std::time::Duration::from_millis(if passes { 3_000 } else { 150 });
            assert_eq!(to.find(wait, |it| it == frame), passes, "{}", stage.name());
        }
    });
}
