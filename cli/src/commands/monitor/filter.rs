//! Which packets `weir monitor` shows.

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
            && self.verdict.is_none_or(|it| it.takes(event.dropped))
    }
}

impl EventVerdict {
    fn takes(self, is_dropped: bool) -> bool {
        match self {
            Self::Deny => is_dropped,
            Self::Allow => !is_dropped,
            Self::All => true,
        }
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use std::net::IpAddr;
    use std::time::SystemTime;

    use weir_runtime::names::Why;

    use super::*;
    use crate::args::{Cli, CliCommand, ObserveCommand};

    #[track_caller]
    /// A packet from a pod to another one, which a policy denies.
    fn event() -> DatapathEvent {
        DatapathEvent {
            time: SystemTime::UNIX_EPOCH,
            pod: Some("shop/web".to_owned()),
            ifindex: 7,
            direction: "egress",
            outcome: "denied",
            dropped: true,
            packet: Some(EventPacket {
                protocol: "TCP".to_owned(),
                local: IpAddr::from([10, 0, 0, 1]),
                remote: IpAddr::from([10, 0, 0, 2]),
                peer: Some("shop/db".to_owned()),
                ports: Some((40_000, 5432)),
            }),
            unparsed: None,
            generation: 1,
            why: Why { policies: vec!["shop/deny".to_owned()], ..Why::default() },
        }
    }

    fn check(options: &str, expected: bool) {
        let words = ["weir", "monitor"].into_iter().chain(options.split_whitespace());
        let cli = Cli::try_parse_from(words).expect("valid");
        let CliCommand::Observe(ObserveCommand::Monitor(arguments)) = cli.command else { panic!("not the command") };
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
            ("--verdict dropped", true),
            ("--verdict allow", false),
            ("--verdict allowed", false),
            ("--verdict all", true),
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
}
