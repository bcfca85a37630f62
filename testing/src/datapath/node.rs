//! Traffic of a pod with itself, and with its own node.

use weir_artifact::layout::Outcome::*;

use crate::datapath::rig::{Arrival, UPLINK, node, other_node, server, stranger};
use crate::packet::{ACK, Packet, SYN};
use weir_model::Direction;
use weir_objects::address::Family;

facts! {
    node => node_facts;

    a_pod_reaches_itself(rig, family) {
        let server = server(family);
        rig.from_pod(&Packet::tcp((server, 40_000), (server, 9), SYN)).is(Itself);
        rig.from_itself(&Packet::tcp((server, 40_000), (server, 9), SYN)).is(Itself);
        rig.from_host(&Packet::tcp((server, 40_001), (server, 9), SYN)).is(Itself);
    }

    what_came_from_outside_is_not_the_pod_itself(rig, family) {
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

    /// A packet with the node's address may come from any client that the node masquerades.
    what_came_from_outside_is_not_the_node(rig, family) {
        rig.to_pod(&Packet::tcp((node(family), 40_000), (server(family), 9), SYN)).is(Denied);
    }

    /// The pod's own packet, which went through a service and was masqueraded on the way.
    what_comes_back_to_the_pod_is_its_own(rig, family) {
        let (node, server) = (node(family), server(family));
        rig.from_itself(&Packet::tcp((node, 40_000), (server, 9), SYN)).is(Itself);
        rig.next_epoch();
        rig.from_pod(&Packet::tcp((server, 9), (node, 40_000), SYN | ACK)).is(Established);
    }

    what_the_host_sends_in_anothers_name_is_not_the_node(rig, family) {
        rig.from_host(&Packet::tcp((stranger(family), 40_000), (server(family), 9), SYN)).is(Denied);
        rig.from_host(&Packet::tcp((other_node(family), 40_000), (server(family), 9), SYN)).is(Denied);
    }

    /// A forwarded packet can lose its incoming interface, and a bridged packet keeps its sender's socket.
    a_packet_is_this_hosts_only_with_all_of_the_evidence(rig, family) {
        let packet = Packet::tcp((node(family), 40_000), (server(family), 9), SYN);
        if rig.knows_sockets() {
            let nothing_known = Arrival { interface: 0, has_socket: false, stamp: 0 };
            rig.send(Direction::Ingress, &packet.bytes(), nothing_known).is(Denied);
            let of_a_pod = Arrival { stamp: 1, ..Arrival::HERE };
            rig.send(Direction::Ingress, &packet.bytes(), of_a_pod).is(Denied);
        }
        let forwarded = Arrival { has_socket: true, ..Arrival::through(UPLINK) };
        rig.send(Direction::Ingress, &packet.bytes(), forwarded).is(Denied);
        if family == Family::V6 {
            rig.from_host(&packet.clone().with_fragment(7, 0, true)).is(Denied);
            rig.from_host(&packet.clone().with_fragment(7, 0, false)).is(Denied);
        } else {
            rig.from_host(&packet.clone().with_fragment(7, 0, true)).is(OwnNode);
        }
        rig.from_host(&Packet::udp((node(family), 40_000), (server(family), 9))).is(OwnNode);
    }

    /// A client outside can get the node's address and port once NAT has forgotten the node's own flow, while the flow
    /// table still has it.
    only_the_node_goes_on_with_its_flow(rig, family) {
        let packet = Packet::udp((node(family), 40_000), (server(family), 9));
        rig.from_host(&packet).is(OwnNode);
        rig.from_pod(&Packet::udp((server(family), 9), (node(family), 40_000))).is(Established);
        rig.from_host(&packet).is(Established);
        rig.to_pod(&packet).is(Denied);
        if family == Family::V6 {
            rig.from_host(&packet.clone().with_fragment(7, 0, false)).is(Denied);
        }
        rig.from_itself(&Packet::udp((node(family), 40_001), (server(family), 9))).is(Itself);
        rig.to_pod(&Packet::udp((node(family), 40_001), (server(family), 9))).is(Denied);
        rig.from_host(&packet).is(Established);
    }

    other_nodes_are_ordinary_addresses(rig, family) {
        rig.from_pod(&Packet::tcp((server(family), 40_000), (other_node(family), 10_250), SYN)).is(Denied);
    }

    /// The answer is judged as the packet that it answers, and that one came from the node.
    the_node_is_remembered_over_generations(rig, family) {
        let (node, server) = (node(family), server(family));
        rig.from_host(&Packet::tcp((node, 40_000), (server, 9), SYN)).is(OwnNode);
        rig.next_epoch();
        rig.from_pod(&Packet::tcp((server, 9), (node, 40_000), SYN | ACK)).is(Established);
    }
}
