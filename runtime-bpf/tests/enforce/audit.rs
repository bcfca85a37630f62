//! Policies that are only reported, with real packets.

use std::time::Duration;

use weir_runtime::events::DatapathEvent;
use weir_runtime::runtime::{PinAccess, Runtime};
use weir_runtime::skip;

use crate::attach::attach;
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact, cluster, policy};
use crate::probe::{connect, is_alive, serve};

const FROM_P0: &str = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]";
const FROM_P2: &str = "ingress: [{from: [{podSelector: {matchLabels: {pod: p2}}}], ports: [{port: 80}]}]";

fn audited(policy: &str) -> String {
    policy.replace("namespace: default}", "namespace: default, annotations: {weir.dev/mode: audit}}")
}

/// The records about TCP packets that `act` causes. (A bridge sends multicast reports of its own, when it likes.)
fn events_during(node: &Node, act: impl FnOnce() + Send) -> Vec<DatapathEvent> {
    node.here(|| {
        let runtime = Runtime::open(&node.bpffs(), PinAccess::Read).unwrap();
        let mut events = runtime.events().unwrap();
        act();
        let mut all = Vec::new();
        while let Some(more) = Some(events.read(Duration::from_millis(300)).unwrap().events).filter(|it| !it.is_empty())
        {
            all.extend(more);
        }
        all.retain(|it| it.packet.as_ref().is_some_and(|packet| packet.protocol == "TCP"));
        all
    })
}

fn packets(node: &Node, reason: &str) -> u64 {
    let counters = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.counters()).unwrap();
    counters.iter().filter(|it| it.outcome == reason).map(|it| it.packets).sum()
}

#[test]
fn packets_that_audited_policies_would_deny_pass_and_are_reported() {
    skip!(unless possible());
    for layout in [Layout::Routed, Layout::Bridge] {
        let node = &Node::new(layout, 3);
        serve(node, 1, 80);
        let made = artifact(&cluster(3, &audited(&policy(1, "Ingress", FROM_P0))));
        attach(node, &made, &[0, 1, 2], None).unwrap();
        for v6 in [false, true] {
            let to = pod_address(1, v6);
            assert!(events_during(node, || _ = connect(node, 0, to, 80).expect("nothing is enforced")).is_empty());
            let mut stream = None;
            let events = events_during(node, || stream = connect(node, 2, to, 80));
            assert!(is_alive(&mut stream.expect("nothing is enforced")));
            let [event] = events.as_slice() else { panic!("{events:#?}") };
            assert_eq!(
                (event.outcome, event.direction, event.pod.as_deref()),
                ("would-deny", "ingress", Some("default/p1"))
            );
            assert_eq!(event.why.audit, ["default/of-p1"]);
            assert_eq!((&event.why.policies, &event.why.list), (&Vec::new(), &None));
        }
        let would_deny = packets(node, "would-deny");
        match layout {
            Layout::Routed => assert_eq!(would_deny, 2),
            // The bridge's multicast reports are counted too, whenever it sends them.
            Layout::Bridge => assert!(would_deny >= 2, "{would_deny}"),
        }
    }
}

#[test]
fn packets_that_audited_policies_would_allow_are_dropped_and_reported() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 3);
    serve(node, 1, 80);
    let more = audited(&policy(1, "Ingress", FROM_P2)).replace("of-p1", "more-of-p1");
    let made = artifact(&cluster(3, &(policy(1, "Ingress", FROM_P0) + &more)));
    attach(node, &made, &[0, 1, 2], None).unwrap();
    let events = events_during(node, || assert!(connect(node, 2, pod_address(1, false), 80).is_none(), "it is denied"));
    let event = events.first().expect("an event is reported");
    assert_eq!((event.outcome, event.direction), ("would-allow", "ingress"));
    assert_eq!(
        (&event.why.policies, &event.why.audit),
        (&vec!["default/of-p1".into()], &vec!["default/more-of-p1".into()])
    );
    assert!(connect(node, 0, pod_address(1, false), 80).is_some());
}

/// The annotation goes: the same policy is enforced, and a connection that it does not allow is cut.
#[test]
fn an_audited_policy_is_enforced_by_a_switch() {
    skip!(unless possible());
    let node = &Node::new(Layout::Bridge, 3);
    serve(node, 1, 80);
    let of_p1 = policy(1, "Ingress", FROM_P0);
    attach(node, &artifact(&cluster(3, &audited(&of_p1))), &[0, 1, 2], None).unwrap();
    let [mut allowed, mut denied] = [0, 2].map(|from| connect(node, from, pod_address(1, false), 80).expect("audit"));
    attach(node, &artifact(&cluster(3, &of_p1)), &[], None).unwrap();
    assert!(is_alive(&mut allowed) && !is_alive(&mut denied));
    assert!(connect(node, 2, pod_address(1, false), 80).is_none());
}
