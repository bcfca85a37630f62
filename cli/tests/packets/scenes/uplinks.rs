//! Packets from addresses that lists deny to all pods are dropped where they enter the node: by the uplink's driver, or
//! by the kernel if the driver cannot run programs.

use std::net::IpAddr;

use serde_json::Value;

use crate::enforce::{ask, attach, compile};
use crate::probe::Protocol::{Icmp, Tcp, Udp};
use crate::stage::{ELSEWHERE, OUTSIDE, Stage, by_programs};
use crate::topology::Layout;

/// Number of packets that the programs at uplinks dropped.
fn dropped_at_uplinks(stage: &Stage) -> u64 {
    let counters = ask(&stage.net.nodes[0], &stage.place, &["counters"]).unwrap();
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"xdp")).then(|| words.get(3)?.parse::<u64>().ok()).flatten()
    };
    counters.lines().filter_map(of).sum()
}

/// Number of new records of packets from this address that pods' programs dropped. Counters would also contain what
/// the kernel sends by itself, for example IGMP reports.
fn denied_at_pods(stage: &Stage, from: IpAddr) -> usize {
    // The kernel keeps records until they are read.
    let records = ask(&stage.net.nodes[0], &stage.place, &["monitor", "-o", "jsonl", "--duration", "1"]).unwrap();
    let records = records.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_it = |it: &Value| it["direction"] == "ingress" && it["peer"]["ip"] == from.to_string();
    records.filter(is_it).count()
}

#[test]
fn addresses_denied_to_all_pods_are_dropped_at_the_uplink() {
    by_programs(&|stage: &mut Stage| {
        let node = &stage.net.nodes[0];
        let generic = stage.net.layout == Layout::Bridge;
        if generic {
            // The MTU of the peer exceeds a page, so the veth driver accepts no XDP program.
            stage.net.fabric.ip("link set n0 mtu 9000\n").unwrap();
        }
        let (listed, other) = (stage.either(OUTSIDE), stage.either(ELSEWHERE));
        let pod = stage.address("other");
        assert!(stage.reaches(listed, Udp, pod, 80, true), "{}: before there is a list", stage.name());
        let list = stage.place.file("list.yaml");
        std::fs::write(
            &list,
            format!(
                "{{apiVersion: weir.dev/v1alpha1, kind: CidrList, metadata: {{name: bad}}, spec: {{action: Deny, cidrs: ['{}', '{}']}}}}\n",
                OUTSIDE[0], OUTSIDE[1]
            ),
        )
        .unwrap();
        let artifact = compile(&stage.place, node, &[stage.place.file("cluster.yaml"), list]).unwrap();
        let output = attach(node, &stage.place, &artifact, &["--xdp", "wan"]).unwrap();
        let mode = if generic { "at wan (generic)" } else { "at wan (native)" };
        assert!(output.contains(mode), "{}: {output}", stage.name());
        let status = ask(node, &stage.place, &["status"]).unwrap();
        assert!(status.contains("uplink wan") && status.contains("enforced"), "{status}");
        // Packets of the question above can arrive late, on a busy machine.
        denied_at_pods(stage, listed);
        for protocol in [Tcp, Udp, Icmp] {
            assert!(!stage.reaches(listed, protocol, pod, 80, false), "{}: {protocol:?} from the list", stage.name());
            assert!(stage.reaches(other, protocol, pod, 80, true), "{}: {protocol:?} from elsewhere", stage.name());
            assert!(stage.reaches(pod, protocol, other, 80, true), "{}: {protocol:?} and back", stage.name());
        }
        let (at_edge, at_pods) = (dropped_at_uplinks(stage), denied_at_pods(stage, listed));
        assert!(at_edge >= 3 && at_pods == 0, "{}: {at_edge} at the uplink, {at_pods} at pods", stage.name());
        assert!(
            !stage.reaches(pod, Tcp, listed, 80, false),
            "{}: outgoing packets are judged at the pod",
            stage.name()
        );
        ask(node, &stage.place, &["detach", "--xdp", "wan"]).unwrap();
        assert!(!stage.reaches(listed, Tcp, pod, 80, false), "{}: the pods' hooks go on", stage.name());
        assert_eq!(dropped_at_uplinks(stage), at_edge, "{}", stage.name());
        assert!(denied_at_pods(stage, listed) > 0, "{}", stage.name());
    });
}
