//! ICMP: echo requests and replies, errors and the packets they quote, link-local messages.

use weir_artifact::layout::Outcome::*;
use weir_objects::address::Family;

use crate::datapath::Machines;
use crate::datapath::rig::{
    FAMILIES, Rig, client, denied, friend, listed, listed_and_audit, node, open, server, stranger,
};
use crate::packet::{ACK, Packet, SYN};

/// A flow from the server to its friend; returns the packet that began it.
fn begin(rig: &mut Rig, family: Family) -> Packet {
    let packet = Packet::tcp((server(family), 40_000), (friend(family), 443), SYN);
    rig.from_pod(&packet).is(Allowed);
    packet
}

facts! {
    icmp => icmp_facts;

    an_echo_is_answered(rig, family) {
        rig.from_pod(&Packet::ping(server(family), friend(family), 7)).is(Allowed);
        rig.to_pod(&Packet::pong(friend(family), server(family), 7)).is(Established);
        rig.to_pod(&Packet::pong(friend(family), server(family), 8)).is(Denied);
        assert_eq!(rig.flows().len(), 1);
    }

    /// If only the identifier counted, the receiver of an echo request could send requests of its own.
    an_echo_does_not_let_the_other_side_ask(rig, family) {
        rig.from_pod(&Packet::ping(server(family), friend(family), 7)).is(Allowed);
        rig.to_pod(&Packet::ping(friend(family), server(family), 7)).is(Denied);
        rig.to_pod(&Packet::pong(friend(family), server(family), 7)).is(Established);
    }

    an_answer_to_no_question_is_judged(rig, family) {
        rig.to_pod(&Packet::pong(friend(family), server(family), 7)).is(Denied);
    }

    /// Otherwise the reply would create the flow that the request then belongs to.
    an_answer_to_no_question_lets_no_question_in(rig, family) {
        rig.from_pod(&Packet::pong(server(family), friend(family), 7)).is(Allowed);
        assert_eq!(rig.flows().len(), 0);
        rig.to_pod(&Packet::ping(friend(family), server(family), 7)).is(Denied);
        rig.to_pod(&Packet::pong(friend(family), server(family), 7)).is(Denied);
    }

    an_error_about_a_flow_passes(rig, family) {
        let packet = begin(rig, family);
        // From the other end, and from a router on the path.
        rig.to_pod(&Packet::unreachable(friend(family), &packet)).is(Related);
        rig.to_pod(&Packet::unreachable(stranger(family), &packet)).is(Related);
        assert_eq!(rig.flows().len(), 1);
    }

    /// There may be options or extension headers between the quoted packet's header and its ports.
    an_error_that_quotes_options_passes(rig, family) {
        begin(rig, family);
        let packet = Packet::tcp((server(family), 40_000), (friend(family), 443), ACK);
        let packet = match family {
            weir_objects::address::Family::V4 => packet.with_options(&[1; 8]),
            weir_objects::address::Family::V6 => {
                packet.with_extension(0, &[0, 1, 4, 0, 0, 0, 0]).with_extension(60, &[0, 1, 4, 0, 0, 0, 0])
            }
        };
        rig.to_pod(&Packet::unreachable(stranger(family), &packet)).is(Related);
        assert_eq!(rig.flows().len(), 1);
    }

    an_error_about_an_answer_passes(rig, family) {
        begin(rig, family);
        let answer = Packet::tcp((friend(family), 443), (server(family), 40_000), SYN | ACK);
        rig.to_pod(&answer).is(Established);
        rig.from_pod(&Packet::unreachable(server(family), &answer)).is(Related);
    }

    an_error_about_an_echo_passes(rig, family) {
        let ping = Packet::ping(server(family), friend(family), 7);
        rig.from_pod(&ping).is(Allowed);
        rig.to_pod(&Packet::unreachable(stranger(family), &ping)).is(Related);
        // The server never answered an echo request from its friend.
        let pong = Packet::pong(server(family), friend(family), 7);
        rig.to_pod(&Packet::unreachable(stranger(family), &pong)).is(Denied);
    }

    an_error_about_no_flow_is_judged(rig, family) {
        begin(rig, family);
        let other_port = Packet::tcp((server(family), 40_001), (friend(family), 443), SYN);
        rig.to_pod(&Packet::unreachable(friend(family), &other_port)).is(Denied);
        let other_protocol = Packet::udp((server(family), 40_000), (friend(family), 443));
        rig.to_pod(&Packet::unreachable(friend(family), &other_protocol)).is(Denied);
    }

    /// The quoted packet must have been sent by the receiver of the error.
    an_error_that_quotes_the_wrong_side_is_judged(rig, family) {
        let sent = begin(rig, family);
        let mut reversed = Packet::tcp((friend(family), 443), (server(family), 40_000), SYN);
        let mut error = Packet::unreachable(friend(family), &reversed);
        error.destination = server(family);
        rig.to_pod(&error).is(Denied);
        reversed = sent;
        reversed.source = open(family);
        let mut error = Packet::unreachable(friend(family), &reversed);
        error.destination = server(family);
        rig.to_pod(&error).is(Denied);
    }

    /// A pod may not send errors with another source address, not even about its own flows.
    an_error_with_a_spoofed_source_is_dropped(rig, family) {
        begin(rig, family);
        let answer = Packet::tcp((friend(family), 443), (server(family), 40_000), SYN | ACK);
        rig.to_pod(&answer).is(Established);
        rig.from_pod(&Packet::unreachable(stranger(family), &answer)).is(Source);
    }

    /// A pod may not send errors that quote a packet to another pod, even if the quoted ports are those of its own
    /// flow.
    an_error_that_quotes_another_pods_packet_on_an_own_flow_is_dropped(rig, family) {
        begin(rig, family);
        let mut answer = Packet::tcp((friend(family), 443), (server(family), 40_000), SYN | ACK);
        rig.to_pod(&answer).is(Established);
        answer.destination = open(family);
        rig.from_pod(&Packet::unreachable(open(family), &answer)).is(Source);
    }

    every_kind_of_error_passes_and_nothing_else_that_quotes(rig, family) {
        let packet = begin(rig, family);
        let errors: &[u8] = if family == Family::V4 { &[3, 4, 11, 12] } else { &[1, 2, 3, 4] };
        for kind in 0..=u8::MAX {
            let mut message = Packet::unreachable(stranger(family), &packet);
            message.payload[0] = kind;
            let passes = rig.to_pod(&message).counted().contains(&Related);
            assert_eq!(passes, errors.contains(&kind), "type {kind}");
        }
    }

    an_error_without_enough_of_a_quote_is_malformed(rig, family) {
        let packet = begin(rig, family);
        let whole = Packet::unreachable(friend(family), &packet);
        let header = if family == Family::V4 { 20 } else { 40 };
        rig.to_pod(&whole.clone().cut(8 + header - 1)).is(Malformed);
        rig.to_pod(&whole.clone().cut(8 + header + 7)).is(Malformed);
        rig.to_pod(&whole.cut(8 + header + 8)).is(Related);
    }

    an_error_about_an_error_is_judged(rig, family) {
        let packet = begin(rig, family);
        let mut error = Packet::unreachable(server(family), &packet);
        error.destination = friend(family);
        rig.to_pod(&Packet::unreachable(friend(family), &error)).is(Denied);
    }

    an_error_to_an_open_pod_passes(rig, family) {
        rig.plug("open");
        let packet = Packet::tcp((open(family), 40_000), (client(family), 443), SYN);
        rig.to_pod(&Packet::unreachable(client(family), &packet)).is(Unfiltered);
    }
}

/// Errors from routers pass under all policies, but not from machines on a deny list, because an error carries data.
fn lists_deny_the_sender_of_an_error(machines: &dyn Machines) {
    for parts in [listed(), listed_and_audit()] {
        for family in FAMILIES {
            machines.on_parts(&parts, &mut |rig| {
                let packet = begin(rig, family);
                rig.to_pod(&Packet::unreachable(denied(family), &packet)).is(Denied);
                rig.to_pod(&Packet::unreachable(stranger(family), &packet)).is(Related);
                rig.to_pod(&Packet::unreachable(friend(family), &packet)).is(Related);
                // The error is not a packet of the flow, and begins no flow.
                assert_eq!(rig.flows().len(), 1);
                rig.to_pod(&Packet::tcp((friend(family), 443), (server(family), 40_000), SYN | ACK)).is(Established);
            });
        }
    }
}

/// A list applies to a pod even if no policy selects the pod.
fn lists_deny_the_sender_of_an_error_to_a_pod_without_policy(machines: &dyn Machines) {
    for family in FAMILIES {
        machines.on_parts(&listed(), &mut |rig| {
            rig.plug("open");
            let packet = Packet::udp((open(family), 4_000), (stranger(family), 53));
            rig.from_pod(&packet).is(Allowed);
            rig.to_pod(&Packet::unreachable(denied(family), &packet)).is(Denied);
            rig.to_pod(&Packet::unreachable(client(family), &packet)).is(Related);
        });
    }
}

/// For example, the pod's own node reports that a packet is too big for a tunnel. Traffic between a pod and its own
/// node is always allowed.
fn the_own_node_s_errors_pass_with_lists_in_force(machines: &dyn Machines) {
    for family in FAMILIES {
        machines.on_parts(&listed(), &mut |rig| {
            let packet = begin(rig, family);
            rig.from_host(&Packet::unreachable(node(family), &packet)).is(Related);
        });
    }
}

/// An error from the pod goes to the other end of an allowed flow, so no list has to be checked for it.
fn errors_from_the_pod_pass_with_lists_in_force(machines: &dyn Machines) {
    for family in FAMILIES {
        machines.on_parts(&listed(), &mut |rig| {
            let packet = Packet::tcp((client(family), 40_000), (server(family), 80), SYN);
            rig.to_pod(&packet).is(Allowed);
            rig.from_pod(&Packet::unreachable(server(family), &packet)).is(Related);
            rig.to_pod(&Packet { source: denied(family), ..packet }).is(Denied);
        });
    }
}

/// It may go only to the other end of the flow, with which the pod may communicate anyway; and its length is limited.
fn an_error_from_the_pod_goes_to_the_sender_of_what_it_quotes(machines: &dyn Machines) {
    for family in crate::datapath::rig::FAMILIES {
        machines.on_machine(&mut |rig| {
            let (server, client) = (server(family), client(family));
            let packet = Packet::tcp((client, 40_000), (server, 80), crate::packet::SYN);
            rig.to_pod(&packet).is(Allowed);
            let error = Packet::unreachable(server, &packet);
            rig.from_pod(&error).is(Related);
            rig.from_pod(&Packet { destination: stranger(family), ..error.clone() }).is(Denied);
            let mut long = error.clone();
            long.payload.resize(if family == Family::V4 { 576 - 20 } else { 1_280 - 40 }, 0);
            rig.from_pod(&long).is(Related);
            long.payload.push(0);
            rig.from_pod(&long).is(Denied);
            let padded = Packet { trailer: vec![0; 1_300], ..error };
            rig.from_pod(&padded).is(Denied);
        });
    }
}

/// An error carries data, to the pod and from it: it passes only as long as the flow itself would.
fn an_error_about_a_flow_of_an_older_generation_is_judged(machines: &dyn Machines) {
    for family in crate::datapath::rig::FAMILIES {
        machines.on_machine(&mut |rig| {
            let packet = Packet::udp((server(family), 4_000), (friend(family), 53));
            rig.from_pod(&packet).is(Allowed);
            let error = Packet::unreachable(friend(family), &packet);
            rig.to_pod(&error).is(Related);
            rig.next_epoch();
            rig.to_pod(&error).is(Denied);
            rig.from_pod(&packet).is(Established);
            rig.to_pod(&error).is(Related);
        });
    }
}

pub mod v4_only {
    use super::*;

    fn options_in_the_quote_are_stepped_over(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let packet = begin(rig, Family::V4).with_options(&[1; 8]);
            rig.to_pod(&Packet::unreachable(stranger(Family::V4), &packet)).is(Related);
        });
    }

    fn a_quote_of_a_later_fragment_is_judged(machines: &dyn Machines) {
        machines.on_machine(&mut |rig| {
            let packet = begin(rig, Family::V4).with_fragment(7, 3, false);
            rig.to_pod(&Packet::unreachable(stranger(Family::V4), &packet)).is(Denied);
        });
    }

    tests! {
        icmp::v4_only => icmp_v4_tests;
        options_in_the_quote_are_stepped_over,
        a_quote_of_a_later_fragment_is_judged,
    }
}

tests! {
    icmp => icmp_tests;
    lists_deny_the_sender_of_an_error,
    lists_deny_the_sender_of_an_error_to_a_pod_without_policy,
    the_own_node_s_errors_pass_with_lists_in_force,
    errors_from_the_pod_pass_with_lists_in_force,
    an_error_from_the_pod_goes_to_the_sender_of_what_it_quotes,
    an_error_about_a_flow_of_an_older_generation_is_judged,
}
