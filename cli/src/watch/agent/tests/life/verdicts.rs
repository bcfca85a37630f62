//! Compares the generation in force with the reference model's verdicts for the final objects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_artifact::layout::{MapName, endpoint};
use weir_artifact::{Artifact, packet};
use weir_machine::LoadedPrograms;
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Assumptions, Cluster, Direction, Protocol};
use weir_objects::decode::{self, Input, InputKind};
use weir_objects::k8s::Object;

use super::host::FakeHostState;
use super::server::FakeApiServer;
use super::world::SERVICE_ADDRESSES;

/// A pod of this node whose network is complete.
pub(super) struct ExpectedPod {
    pub(super) path: String,
    pub(super) uid: String,
    pub(super) ifindex: u32,
    pub(super) address: IpAddr,
    /// Another pod has given its own interface this pod's address, so this pod's interface may be closed.
    pub(super) is_disputed: bool,
}

/// How often each result occurred: packets that were `allowed` or `denied`, those among them that pods sent to services
/// with backends (`service allowed`, `service denied`), interfaces that were `closed` because it was not known to which
/// pod they belong, and pods that the CNI plug-in was allowed to start (`started`).
pub(super) type VerdictTally = BTreeMap<&'static str, u64>;

/// All differences, in words.
pub(super) fn differences(
    server: &FakeApiServer,
    state: &FakeHostState,
    pods: &[ExpectedPod],
    uids: &BTreeMap<u32, String>,
    tally: &mut VerdictTally,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for endpoint in state.endpoints.iter().filter(|it| !it.closed && state.is_there(it.ifindex)) {
        if uids.get(&endpoint.ifindex) != endpoint.uid.as_ref() {
            wrong.push(format!("{endpoint:?} is at an interface of {:?}", uids.get(&endpoint.ifindex)));
        }
    }
    for pod in pods {
        let at = state.endpoints.iter().find(|it| it.ifindex == pod.ifindex);
        match at {
            Some(at) if at.closed && pod.is_disputed => *tally.entry("closed").or_default() += 1,
            Some(at) if !at.closed && at.pod == pod.path && at.uid.as_deref() == Some(&pod.uid) => {}
            other => wrong.push(format!("{} ({}) at {}: {other:?}", pod.path, pod.uid, pod.ifindex)),
        }
    }
    if wrong.is_empty() {
        wrong.extend(packets(server, state, pods, tally));
    }
    wrong
}

/// Verdicts of a generation that change when the next one's rows are written into it, before its addresses are. There
/// must be none.
pub(super) fn changed_by_rows(before: &Artifact, next: &Artifact) -> Vec<String> {
    let mut half = before.clone();
    let rows = half.maps.iter_mut().find(|map| map.name == MapName::Rows).expect("rows");
    rows.entries = next.map(MapName::Rows).expect("rows").entries.clone();
    let values: Vec<&[u8]> = before.endpoints.iter().map(|it| it.value.as_slice()).collect();
    let programs = [&before.programs[0].code, &before.programs[1].code];
    let [mut old, mut new] = [before, &half].map(|artifact| {
        LoadedPrograms::new(programs, &artifact.maps, &values).expect("what is in force can be loaded")
    });
    let exact = before.map(MapName::Exact4).into_iter().flat_map(|map| map.entries.iter());
    let known = exact.filter_map(|(key, _)| Some(IpAddr::from(*key.first_chunk::<4>()?)));
    let mut changed = Vec::new();
    for remote in known.chain([[203, 0, 113, 1].into()]).chain(SERVICE_ADDRESSES) {
        for (place, own) in before.endpoints.iter().enumerate() {
            let own = own.value[endpoint::V4 as usize..].first_chunk::<4>().expect("an endpoint's value");
            for (port, hook) in [80, 81].into_iter().flat_map(|port| Direction::ALL.map(|hook| (port, hook))) {
                let (source, destination) = ends((*own).into(), remote, hook);
                let packet = packet::build(source, destination, FlowProtocol::Transport(Protocol::Tcp), port);
                let packet = packet.expect("of one family");
                let verdicts = [&mut old, &mut new].map(|it| it.run(hook, place, packet.clone(), false));
                let [was, is] = verdicts.map(|it| it.expect("the programs run"));
                if was != is {
                    changed.push(format!("{hook:?} {source} -> {destination}:{port} was {was:?}, is {is:?}"));
                }
            }
        }
    }
    changed
}

fn objects(server: &FakeApiServer) -> Vec<Object> {
    let decoded = server.objects.values().map(|object| {
        let bytes = object.to_string().into_bytes();
        let input = Input { name: "final".to_owned(), bytes, kind: InputKind::Manifest };
        decode::decode(vec![input], &decode::DecodeOptions { default_namespace: String::new(), is_from_server: false })
            .0
            .objects
    });
    decoded.flatten().collect()
}

fn packets(
    server: &FakeApiServer,
    state: &FakeHostState,
    pods: &[ExpectedPod],
    tally: &mut VerdictTally,
) -> Vec<String> {
    let Some(artifact) = &state.artifact else {
        return if pods.is_empty() { Vec::new() } else { vec!["nothing is in force".to_owned()] };
    };
    let objects = objects(server);
    let (cluster, _) = resolve(&objects, Assumptions::default());
    let open: Vec<&ExpectedPod> = pods.iter().filter(|pod| is_open(state, pod)).collect();
    let value = |pod: &&ExpectedPod| {
        let named = artifact.endpoints.iter().find(|it| format!("{}/{}", it.namespace, it.name) == pod.path);
        named.map_or(&[][..], |it| it.value.as_slice())
    };
    let values: Vec<&[u8]> = open.iter().map(value).collect();
    let programs = [&artifact.programs[0].code, &artifact.programs[1].code];
    let mut machine = LoadedPrograms::new(programs, &artifact.maps, &values).expect("what is in force can be loaded");
    let mut oracle = Oracle::new(&cluster);
    let mut wrong = Vec::new();
    let others = cluster.endpoints.iter().flat_map(|it| it.addresses.clone());
    let others = others.chain((1..4).map(|last| [203, 0, 113, last].into()));
    let others: Vec<IpAddr> = others.chain(SERVICE_ADDRESSES).collect();
    for (place, pod) in open.iter().enumerate() {
        for (remote, port) in others.iter().flat_map(|remote| [80, 81].map(|port| (*remote, port))) {
            for hook in Direction::ALL {
                let expected = expected(&mut oracle, pod.address, remote, port, hook);
                let (source, destination) = ends(pod.address, remote, hook);
                let protocol = FlowProtocol::Transport(Protocol::Tcp);
                let packet = packet::build(source, destination, protocol, port).expect("of one family");
                let found = machine.run(hook, place, packet, false).expect("the programs run");
                *tally.entry(if found == Verdict::Allow { "allowed" } else { "denied" }).or_default() += 1;
                if SERVICE_ADDRESSES.contains(&remote) && has_backends(&cluster, remote, port) {
                    let of_service = if found == Verdict::Allow { "service allowed" } else { "service denied" };
                    *tally.entry(of_service).or_default() += u64::from(hook == Direction::Egress);
                }
                if found != expected {
                    wrong.push(format!("{hook:?} {source} -> {destination}:{port} is {found:?}, not {expected:?}"));
                }
            }
        }
    }
    wrong
}

/// Whether a service at this address has backends behind the port.
fn has_backends(cluster: &Cluster, address: IpAddr, port: u16) -> bool {
    let at_address = cluster.services.iter().filter(|it| it.addresses.contains(&address));
    at_address.flat_map(|it| &it.ports).any(|it| it.port == port && !it.backends.is_empty())
}

fn is_open(state: &FakeHostState, pod: &ExpectedPod) -> bool {
    state.endpoints.iter().any(|it| it.ifindex == pod.ifindex && !it.closed)
}

fn ends(own: IpAddr, remote: IpAddr, hook: Direction) -> (IpAddr, IpAddr) {
    if hook == Direction::Ingress { (remote, own) } else { (own, remote) }
}

fn expected(oracle: &mut Oracle<'_>, own: IpAddr, remote: IpAddr, port: u16, hook: Direction) -> Verdict {
    let (source, destination) = ends(own, remote, hook);
    let [source, destination] = [source, destination]
        .map(|address| FlowEnd { endpoint: oracle.directory().endpoint_at(address), address: Some(address) });
    let flow = Flow { source, destination, protocol: FlowProtocol::Transport(Protocol::Tcp), port };
    oracle.judge(&flow).side(hook).verdict
}
