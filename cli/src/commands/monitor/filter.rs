//! Which packets `weir monitor` shows.

use std::net::IpAddr;

use weir_runtime::events::{DatapathEvent, EventPacket};

use crate::args::{EventFilterArgs, EventPeer, EventPort, EventVerdict};

impl EventFilterArgs {
    /// Whether a packet has one of the values of each option that was given, and its pod is in the namespace.
    pub(super) fn takes(&self, namespace: Option<&str>, event: &DatapathEvent) -> bool {
        let pod = event.pod.as_deref().unwrap_or_default();
        namespace.is_none_or(|it| pod.split_once('/').is_some_and(|(of_pod, _)| of_pod == it))
            && any(&self.pods, |it| it == pod)
            && any(&self.reasons, |it| it == event.outcome)
            && any(&self.peers, |it| event.packet.as_ref().is_some_and(|packet| it.is_of(packet)))
            && any(&self.ports, |it| event.packet.as_ref().is_some_and(|packet| it.is_of(event, packet)))
            && self.verdict.is_none_or(|it| (it == EventVerdict::Deny) == event.dropped)
    }
}

/// An option that was not given takes every packet.
fn any<T>(wanted: &[T], takes: impl FnMut(&T) -> bool) -> bool {
    wanted.is_empty() || wanted.iter().any(takes)
}

impl EventPeer {
    fn is_of(&self, packet: &EventPacket) -> bool {
        match self {
            Self::Pod(pod) => packet.peer.as_deref() == Some(pod),
            Self::Block(block) => block.contains(packet.remote),
        }
    }
}

impl EventPort {
    fn is_of(&self, event: &DatapathEvent, packet: &EventPacket) -> bool {
        let destination = packet.ports.map(|(local, remote)| if event.direction == "egress" { remote } else { local });
        // ICMPv6 is `icmp` too, as in expectations and queries.
        let is_protocol = |it: &String| *it == packet.protocol || (it == "ICMP" && packet.protocol == "ICMPv6");
        self.port.is_none_or(|port| destination == Some(port)) && self.protocol.as_ref().is_none_or(is_protocol)
    }
}

/// Whether a packet is one of those that every host with IPv6 sends to its link without being asked: neighbour discovery
/// and group membership. A record has no ICMPv6 type, so this goes by the addresses: between link-local addresses, or to
/// a group of the link.
pub(super) fn is_housekeeping(event: &DatapathEvent) -> bool {
    let Some(packet) = event.packet.as_ref().filter(|it| it.protocol == "ICMPv6") else { return false };
    is_of_link(packet.local) && is_of_link(packet.remote)
}

/// Whether an address has no meaning outside of the link: `::`, `fe80::/10`, `ff02::/16`.
fn is_of_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unspecified() || v6.is_unicast_link_local() || v6.segments()[0] == 0xff02,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::tests::{event, icmp6};
    use super::*;
    use crate::args::{Cli, CliCommand, EnforcementCommand};

    #[track_caller]
    fn check(options: &str, expected: bool) {
        let words = ["weir", "monitor"].into_iter().chain(options.split_whitespace());
        let cli = Cli::try_parse_from(words).expect("valid");
        let CliCommand::Enforcement(EnforcementCommand::Monitor(arguments)) = cli.command else {
            panic!("not the command")
        };
        assert_eq!(arguments.filter.takes(cli.global.default_namespace(), &event()), expected, "{options}");
    }

    #[test]
    fn each_option_must_match_with_one_of_its_values() {
        for (options, expected) in [
            ("", true),
            ("--pod shop/web", true),
            ("--pod shop/db", false),
            ("--pod shop/db --pod shop/web", true),
            ("-n shop", true),
            ("-n sho", false),
            ("--peer shop/db", true),
            ("--peer 10.0.0.2", true),
            ("--peer 10.0.0.0/24", true),
            ("--peer 10.0.0.99/24", true),
            ("--peer 10.0.1.0/24", false),
            ("--peer ::/0", false),
            ("--port 5432", true),
            ("--port 5432/tcp", true),
            ("--port 5432/udp", false),
            ("--port 40000", false),
            ("--port tcp", true),
            ("--port icmp", false),
            ("--reason denied", true),
            ("--reason cut", false),
            ("--verdict deny", true),
            ("--verdict allow", false),
            ("--pod shop/web --port 80", false),
        ] {
            check(options, expected);
        }
    }

    #[test]
    fn values_that_match_nothing_are_refused() {
        for options in ["--pod web", "--peer 10.0.0.1/33", "--peer web", "--port 0", "--port 80/icmp", "--port 80/tpc"]
        {
            let words = ["weir", "monitor"].into_iter().chain(options.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{options}");
        }
        let unrecorded = ["weir", "monitor", "--reason", "established"];
        assert!(Cli::try_parse_from(unrecorded).is_err(), "the programs write no records of such packets");
    }

    #[test]
    fn only_packets_within_the_link_are_housekeeping() {
        assert!(is_housekeeping(&icmp6("fe80::1", "ff02::16")));
        assert!(is_housekeeping(&icmp6("::", "ff02::1:ff00:5")));
        assert!(is_housekeeping(&icmp6("fe80::1", "fe80::2")));
        // An echo request to or from an address that can be reached from elsewhere.
        assert!(!is_housekeeping(&icmp6("fd00::5", "fe80::2")));
        assert!(!is_housekeeping(&icmp6("fe80::1", "ff05::2")));
        assert!(!is_housekeeping(&event()));
    }
}
