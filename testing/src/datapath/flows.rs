//! Which end may begin a flow, which may answer, and how flows change state.

use weir_artifact::layout::Outcome::*;

use crate::datapath::rig::{client, friend, open, server, stranger};
use crate::packet::{ACK, FIN, Packet, RST, SYN};

facts! {
    flows => flows_facts;

    policy_decides_who_may_begin(rig, family) {
        let (server, client, stranger) = (server(family), client(family), stranger(family));
        rig.to_pod(&Packet::tcp((client, 40_000), (server, 80), SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((client, 40_000), (server, 81), SYN)).is(Denied);
        rig.to_pod(&Packet::tcp((stranger, 40_000), (server, 80), SYN)).is(Denied);
        rig.to_pod(&Packet::udp((client, 40_000), (server, 53))).is(Allowed);
        rig.to_pod(&Packet::udp((client, 40_000), (server, 80))).is(Denied);
        rig.to_pod(&Packet::sctp((client, 40_000), (server, 90))).is(Allowed);
        rig.to_pod(&Packet::sctp((client, 40_000), (server, 80))).is(Denied);
        rig.from_pod(&Packet::tcp((server, 40_000), (stranger, 80), SYN)).is(Denied);
        assert_eq!(rig.flows(), [
            format!("fresh ingress OtherFresh {client}:40000 90"),
            format!("fresh ingress TcpFresh {client}:40000 80"),
            format!("fresh ingress UdpFresh {client}:40000 53"),
        ]);
    }

    protocols_without_ports_need_a_rule_without_ports(rig, family) {
        let gre = |source, destination| Packet::new(source, destination, 47, vec![0; 8]);
        rig.from_pod(&gre(server(family), friend(family))).is(Allowed);
        rig.to_pod(&gre(client(family), server(family))).is(Denied);
    }

    answers_pass_against_policy(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.connect(server, friend);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Established);
        assert_eq!(rig.flows(), [format!("open egress TcpOpen {friend}:443 40000")]);
    }

    what_is_not_an_answer_does_not_pass(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((friend, 444), (server, 40_000), SYN | ACK)).is(Denied);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_001), SYN | ACK)).is(Denied);
        rig.to_pod(&Packet::tcp((stranger(family), 443), (server, 40_000), SYN | ACK)).is(Denied);
        rig.to_pod(&Packet::udp((friend, 443), (server, 40_000))).is(Denied);
    }

    an_unanswered_flow_stays_fresh(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Established);
        assert_eq!(rig.flows(), [format!("fresh egress TcpFresh {friend}:443 40000")]);
    }

    /// The flow stays fresh: otherwise every SYN of a flood that the pod answers would evict a connection.
    an_answered_syn_stays_fresh(rig, family) {
        let (server, client) = (server(family), client(family));
        rig.to_pod(&Packet::tcp((client, 40_000), (server, 80), SYN)).is(Allowed);
        rig.from_pod(&Packet::tcp((server, 80), (client, 40_000), SYN | ACK)).is(Established);
        assert_eq!(rig.flows(), [format!("fresh ingress TcpFresh {client}:40000 80")]);
    }

    question_answer_question_opens_a_udp_flow(rig, family) {
        let (server, client) = (server(family), client(family));
        let (question, answer) = (Packet::udp((client, 40_000), (server, 53)), Packet::udp((server, 53), (client, 40_000)));
        rig.to_pod(&question).is(Allowed);
        rig.from_pod(&answer).is(Established);
        assert_eq!(rig.flows(), [format!("fresh ingress UdpFresh {client}:40000 53")]);
        rig.to_pod(&question).is(Established);
        assert_eq!(rig.flows(), [format!("open ingress UdpOpen {client}:40000 53")]);
    }

    /// The other end of an allowed connection may answer, but not begin a connection of its own on the same ports.
    a_syn_against_the_flow_is_asked_about(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN)).is(Denied);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN | ACK)).is(Established);
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), ACK)).is(Established);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN)).is(Denied);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Established);
    }

    /// If policy allows both directions, both ends may begin at once.
    a_simultaneous_open_passes_where_both_may_begin(rig, family) {
        rig.plug("listener");
        let (listener, friend) = (crate::datapath::rig::address(family, "10.0.0.3", "fd00::3"), friend(family));
        rig.from_pod(&Packet::tcp((listener, 500), (friend, 500), SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((friend, 500), (listener, 500), SYN)).is(Allowed);
        rig.from_pod(&Packet::tcp((listener, 500), (friend, 500), SYN | ACK)).is(Established);
        rig.to_pod(&Packet::tcp((friend, 500), (listener, 500), SYN | ACK)).is(Established);
    }

    /// The reset's sequence number may be a guess. The pod's kernel can check it, the flow table cannot.
    a_reset_from_outside_changes_nothing(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.connect(server, friend);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), RST | ACK)).is(Established);
        assert_eq!(rig.flows(), [format!("open egress TcpOpen {friend}:443 40000")]);
    }

    a_reset_of_the_pod_is_closing(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN | ACK)).is(Established);
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), RST)).is(Established);
        assert_eq!(rig.flows(), [format!("fresh egress TcpClosing {friend}:443 40000")]);
    }

    /// Half-open connections may carry data for any time, and a FIN of one side alone can be forged.
    a_fin_of_one_side_changes_no_state(rig, family) {
        let (server, friend) = (server(family), friend(family));
        rig.connect(server, friend);
        for _ in 0..2 {
            rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), FIN | ACK)).is(Established);
            rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), ACK)).is(Established);
        }
        assert_eq!(rig.flows(), [format!("open egress TcpOpen {friend}:443 40000")]);
    }

    two_fins_close_and_a_syn_begins_anew(rig, family) {
        let (server, friend) = (server(family), friend(family));
        let out = |flags| Packet::tcp((server, 40_000), (friend, 443), flags);
        let back = |flags| Packet::tcp((friend, 443), (server, 40_000), flags);
        rig.from_pod(&out(SYN)).is(Allowed);
        rig.to_pod(&back(SYN | ACK)).is(Established);
        rig.from_pod(&out(ACK)).is(Established);
        rig.to_pod(&back(FIN | ACK)).is(Established);
        rig.from_pod(&out(FIN | ACK)).is(Established);
        assert_eq!(rig.flows(), [format!("fresh egress TcpClosing {friend}:443 40000")]);
        rig.to_pod(&back(ACK)).is(Established);
        rig.from_pod(&out(SYN)).is(Allowed);
        assert_eq!(rig.flows(), [format!("fresh egress TcpFresh {friend}:443 40000")]);
    }

    /// The flows of a pod without policies are stored too. The first policy that selects the pod then finds them, and
    /// knows which end began each.
    flows_of_an_open_pod_are_remembered(rig, family) {
        rig.plug("open");
        let (open, stranger) = (open(family), stranger(family));
        rig.from_pod(&Packet::tcp((open, 40_000), (stranger, 443), SYN)).is(Unfiltered);
        rig.to_pod(&Packet::udp((stranger, 1), (open, 2))).is(Unfiltered);
        assert_eq!(rig.flows(), [
            format!("fresh egress TcpFresh {stranger}:443 40000"),
            format!("fresh ingress UdpFresh {stranger}:1 2"),
        ]);
        // Now the pod is isolated for ingress. Whichever end sends next, the pod's own connection stays established,
        // and the other one is cut.
        rig.plug_as("listener", "open");
        rig.next_epoch();
        rig.to_pod(&Packet::tcp((stranger, 443), (open, 40_000), SYN | ACK)).is(Established);
        rig.from_pod(&Packet::udp((open, 2), (stranger, 1))).is(Cut);
        rig.to_pod(&Packet::udp((stranger, 1), (open, 2))).is(Denied);
    }

    /// The packet does not show which end began the connection.
    a_packet_from_the_middle_of_a_connection_needs_both_directions(rig, family) {
        let (server, client) = (server(family), client(family));
        // The client may begin a flow to the server, but not the other way round.
        for flags in [ACK, SYN | ACK, FIN | ACK, RST] {
            rig.to_pod(&Packet::tcp((client, 40_000), (server, 80), flags)).is(Denied);
            rig.from_pod(&Packet::tcp((server, 80), (client, 40_000), flags)).is(Denied);
        }
        rig.to_pod(&Packet::sctp_chunk((client, 40_000), (server, 90), 0)).is(Denied);
        assert!(rig.flows().is_empty());
        rig.plug("open");
        let open = open(family);
        rig.to_pod(&Packet::tcp((client, 40_001), (open, 80), RST)).is(Unfiltered);
        assert!(rig.flows().is_empty(), "a reset begins nothing");
        rig.from_pod(&Packet::tcp((open, 80), (client, 40_000), ACK)).is(Unfiltered);
        assert_eq!(rig.flows(), [format!("fresh egress TcpFresh {client}:40000 80 from its middle")]);
        // Isolated for ingress: the pod may have begun the connection, and the client may not. It could be the
        // client's, so it is cut.
        rig.plug_as("listener", "open");
        rig.next_epoch();
        rig.from_pod(&Packet::tcp((open, 80), (client, 40_000), ACK)).is(Cut);
    }

    /// A cut flow is cut in both directions, even if policy allows the other one.
    the_other_side_of_a_cut_connection_does_not_revive_it(rig, family) {
        rig.plug("open");
        let (open, stranger) = (open(family), stranger(family));
        let there = |flags| Packet::tcp((stranger, 40_000), (open, 80), flags);
        let back = |flags| Packet::tcp((open, 80), (stranger, 40_000), flags);
        rig.to_pod(&there(SYN)).is(Unfiltered);
        rig.from_pod(&back(SYN | ACK)).is(Established);
        rig.to_pod(&there(ACK)).is(Established);
        rig.plug_as("listener", "open");
        rig.next_epoch();
        rig.from_pod(&back(ACK)).is(Cut);
        rig.to_pod(&there(ACK)).is(Cut);
        rig.from_pod(&back(ACK)).is(Cut);
        rig.to_pod(&there(SYN)).is(Denied);
        // It stays cut even if policy allows it again: its ends know that it is dead, or will know soon.
        rig.plug("open");
        rig.next_epoch();
        rig.from_pod(&back(ACK)).is(Cut);
        rig.to_pod(&there(SYN)).is(Unfiltered);
        rig.from_pod(&back(SYN | ACK)).is(Established);
    }

    /// UDP has no first packet. Packets in the flow's direction are judged by policy; packets against it are replies.
    replies_of_a_cut_udp_flow_begin_none(rig, family) {
        rig.plug("open");
        let (open, stranger) = (open(family), stranger(family));
        let (there, back) = (Packet::udp((stranger, 4_000), (open, 53)), Packet::udp((open, 53), (stranger, 4_000)));
        rig.to_pod(&there).is(Unfiltered);
        rig.plug_as("listener", "open");
        rig.next_epoch();
        rig.from_pod(&back).is(Cut);
        rig.to_pod(&there).is(Denied);
        rig.from_pod(&back).is(Cut);
        rig.plug("open");
        rig.next_epoch();
        rig.to_pod(&there).is(Unfiltered);
        rig.from_pod(&back).is(Established);
    }

    an_init_against_an_association_is_judged(rig, family) {
        let (server, client) = (server(family), client(family));
        rig.to_pod(&Packet::sctp((client, 40_000), (server, 90))).is(Allowed);
        rig.from_pod(&Packet::sctp_chunk((server, 90), (client, 40_000), 2)).is(Established);
        rig.from_pod(&Packet::sctp((server, 90), (client, 40_000))).is(Denied);
        rig.to_pod(&Packet::sctp_chunk((client, 40_000), (server, 90), 0)).is(Established);
    }

    a_pod_that_is_isolated_for_ingress_may_begin_and_is_answered(rig, family) {
        rig.plug("listener");
        let (listener, stranger) = (crate::datapath::rig::address(family, "10.0.0.3", "fd00::3"), stranger(family));
        rig.to_pod(&Packet::tcp((stranger, 443), (listener, 40_000), ACK)).is(Denied);
        rig.from_pod(&Packet::tcp((listener, 40_000), (stranger, 443), SYN)).is(Allowed);
        rig.to_pod(&Packet::tcp((stranger, 443), (listener, 40_000), SYN | ACK)).is(Established);
    }

    a_flow_that_policy_still_allows_is_adopted(rig, family) {
        let (server, client) = (server(family), client(family));
        rig.to_pod(&Packet::tcp((client, 40_000), (server, 80), SYN)).is(Allowed);
        rig.next_epoch();
        // The answer is judged as the packet that it answers: the server may not begin a flow to the client.
        rig.from_pod(&Packet::tcp((server, 80), (client, 40_000), SYN | ACK)).is(Established);
        rig.to_pod(&Packet::tcp((client, 40_000), (server, 80), ACK)).is(Established);
        assert_eq!(rig.flows(), [format!("open ingress TcpOpen {client}:40000 80")]);
    }

    a_flow_that_policy_no_longer_allows_is_cut(rig, family) {
        rig.plug("listener");
        let (server, friend) = (crate::datapath::rig::address(family, "10.0.0.3", "fd00::3"), stranger(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        // The same pod with the rules of another policy.
        rig.plug_as("server", "listener");
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN | ACK)).is(Established);
        rig.next_epoch();
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Cut);
        assert_eq!(rig.flows(), [format!("cut fresh egress TcpFresh {friend}:443 40000")]);
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), ACK)).is(Cut);
    }

    /// A flow is judged again only once in a generation.
    an_adopted_flow_is_not_asked_again(rig, family) {
        rig.plug("listener");
        let (server, friend) = (crate::datapath::rig::address(family, "10.0.0.3", "fd00::3"), stranger(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        rig.next_epoch();
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN | ACK)).is(Established);
        rig.plug_as("server", "listener");
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), ACK)).is(Established);
    }

    a_flow_goes_on_unasked_if_it_is_to_be_kept(rig, family) {
        rig.plug("listener");
        let (server, friend) = (crate::datapath::rig::address(family, "10.0.0.3", "fd00::3"), stranger(family));
        rig.from_pod(&Packet::tcp((server, 40_000), (friend, 443), SYN)).is(Allowed);
        rig.plug_as("server", "listener");
        rig.keep_established();
        rig.next_epoch();
        rig.to_pod(&Packet::tcp((friend, 443), (server, 40_000), SYN | ACK)).is(Established);
    }

    an_interface_without_endpoint_is_closed(rig, family) {
        rig.unplug();
        rig.to_pod(&Packet::tcp((client(family), 40_000), (server(family), 80), SYN)).is(NoEndpoint);
        rig.from_pod(&Packet::tcp((server(family), 40_000), (friend(family), 80), SYN)).is(NoEndpoint);
        rig.from_pod(&Packet::tcp((server(family), 40_000), (friend(family), 80), SYN).cut(4)).is(NoEndpoint);
    }
}
