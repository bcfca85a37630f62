//! The pod itself, and its own node.

use weir_compiler::layout::Outcome::*;

use crate::packet::{ACK, Packet, SYN};
use crate::rig::{facts, node, other_node, server, stranger};

facts! {
    a_pod_reaches_itself(rig, family) {
        let server = server(family);
        rig.from_pod(&Packet::tcp((server, 40_000), (server, 9), SYN)).is(Itself);
        rig.from_itself(&Packet::tcp((server, 40_000), (server, 9), SYN)).is(Itself);
        rig.from_host(&Packet::tcp((server, 40_001), (server, 9), SYN)).is(Itself);
    }

    what_came_from_outside_is_not_the_pod_itself(rig, family) {
        if !rig.knows_arrivals() {
            return eprintln!("this kernel's test run knows no interface that a packet came in through");
        }
        let server = server(family);
        rig.to_pod(&Packet::tcp((server, 40_000), (server, 9), SYN)).is(Denied);
    }

    the_own_node_reaches_the_pod(rig, family) {
        let (node, server) = (node(family), server(family));
        rig.from_host(&Packet::tcp((node, 40_000), (server, 9), SYN)).is(OwnNode);
        rig.from_pod(&Packet::tcp((server, 9), (node, 40_000), SYN | ACK)).is(Established);
    }

    the_pod_reaches_its_own_node(rig, family) {
        let (node, server) = (node(family), server(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (node, 10_250), SYN)).is(Allowed);
        rig.from_host(&Packet::tcp((node, 10_250), (server, 40_000), SYN | ACK)).is(Established);
    }

    /// Behind the node's address may be anybody whom it masquerades.
    what_came_from_outside_is_not_the_node(rig, family) {
        if !rig.knows_arrivals() {
            return eprintln!("this kernel's test run knows no interface that a packet came in through");
        }
        rig.to_pod(&Packet::tcp((node(family), 40_000), (server(family), 9), SYN)).is(Denied);
    }

    /// Through a service, and masqueraded on the way.
    what_comes_back_to_the_pod_is_its_own(rig, family) {
        if !rig.knows_arrivals() {
            return eprintln!("this kernel's test run knows no interface that a packet came in through");
        }
        let (node, server) = (node(family), server(family));
        rig.from_itself(&Packet::tcp((node, 40_000), (server, 9), SYN)).is(Itself);
        rig.next_epoch();
        rig.from_pod(&Packet::tcp((server, 9), (node, 40_000), SYN | ACK)).is(Established);
    }

    what_the_host_sends_in_anothers_name_is_not_the_node(rig, family) {
        rig.from_host(&Packet::tcp((stranger(family), 40_000), (server(family), 9), SYN)).is(Denied);
        rig.from_host(&Packet::tcp((other_node(family), 40_000), (server(family), 9), SYN)).is(Denied);
    }

    other_nodes_are_ordinary_addresses(rig, family) {
        rig.from_pod(&Packet::tcp((server(family), 40_000), (other_node(family), 10_250), SYN)).is(Denied);
    }

    /// The answer is judged again as what it answers, and that came from the node.
    the_node_is_remembered_over_generations(rig, family) {
        let (node, server) = (node(family), server(family));
        rig.from_host(&Packet::tcp((node, 40_000), (server, 9), SYN)).is(OwnNode);
        rig.next_epoch();
        rig.from_pod(&Packet::tcp((server, 9), (node, 40_000), SYN | ACK)).is(Established);
    }
}
