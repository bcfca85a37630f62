//! Flows that the runtime ends, although none of their packets ends them.

use std::net::IpAddr;

use weir_runtime::runtime::{EndedFlows, PinAccess, Runtime};
use weir_runtime::{Error, HookKind, skip};

use crate::attach::attach;
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact, cluster, policy};
use crate::probe::{connect, is_alive, serve};

/// The flows of p0 to port 80 of p1, over TCP.
fn flows(remote: IpAddr) -> EndedFlows {
    EndedFlows { pod: "default/p0".to_owned(), remote, port: 80, protocol: 6 }
}

fn end(node: &Node, ended: &[EndedFlows]) -> Result<usize, Error> {
    node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.end_flows(ended))
}

/// The remote ends of the flows that p0 has begun.
fn begun(node: &Node) -> Vec<(IpAddr, Option<u16>)> {
    let flows = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.flows()).unwrap();
    let its = flows.into_iter().filter(|it| it.direction == "egress");
    its.map(|it| (it.remote.ip, it.remote.port)).collect()
}

#[test]
fn only_the_flows_that_were_named_end() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    [80, 81].into_iter().for_each(|port| serve(node, 1, port));
    let rules = "egress: [{to: [{podSelector: {matchLabels: {pod: p1}}}]}]";
    let made = artifact(&cluster(2, &policy(0, "Egress", rules)));
    attach(node, &made, &[0], Some(HookKind::Clsact)).unwrap();
    let [v4, v6] = [false, true].map(|it| pod_address(1, it));
    let ends = [(v4, 80), (v4, 81), (v6, 80), (v6, 81)];
    let mut streams = ends.map(|(address, port)| connect(node, 0, address, port).expect("it is allowed"));
    assert!(streams.iter_mut().all(is_alive));
    assert_eq!(begun(node).len(), 4);

    let others = [
        EndedFlows { pod: "default/p1".to_owned(), ..flows(v4) },
        EndedFlows { port: 82, ..flows(v4) },
        EndedFlows { protocol: 17, ..flows(v4) },
        flows(pod_address(7, false)),
    ];
    assert_eq!(end(node, &others).unwrap(), 0);
    assert_eq!(begun(node).len(), 4);
    assert_eq!(end(node, &[]).unwrap(), 0);
    assert_eq!(end(node, &[flows(v4), flows(v6)]).unwrap(), 2);
    assert_eq!(end(node, &[flows(v4), flows(v6)]).unwrap(), 0, "they have ended already");
    assert!(![0, 2].into_iter().any(|index| is_alive(&mut streams[index])), "their packets do not pass");
    assert!([1, 3].into_iter().all(|index| is_alive(&mut streams[index])), "other ports go on");
    assert!(connect(node, 0, v4, 80).is_some_and(|mut it| is_alive(&mut it)), "new ones begin");
}
