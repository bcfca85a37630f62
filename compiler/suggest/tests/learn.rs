//! Policies that are learned from flows of random clusters deny none of them, and allow hardly more.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_fuzz::generators::cluster::{PORTS, enforceable};
use weir_fuzz::generators::{flows, for_each};
use weir_model::eval::{Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::resolve::resolve;
use weir_model::{Cluster, EndpointId, Protocol, Standing};
use weir_objects::address::Prefix;
use weir_objects::decode::{DecodeOptions, Input, InputKind, decode};
use weir_objects::k8s::{Body, Labels, PolicyPeer};
use weir_suggest::learn::{LearnOptions, Learned, Observation, learn};

const CASES: u32 = 150;
const FLOWS: usize = 60;
const EXACT: LearnOptions = LearnOptions { longest: [32, 128] };

type Group<'c> = (&'c str, &'c Labels);
type Pair<'c> = (Group<'c>, Group<'c>, FlowProtocol, u16);

fn group(cluster: &Cluster, id: EndpointId) -> Group<'_> {
    let endpoint = &cluster.endpoints[id.index()];
    (&cluster.namespaces[endpoint.namespace.index()].name, cluster.labels.labels(endpoint.labels))
}

fn is_member(cluster: &Cluster, id: EndpointId) -> bool {
    cluster.endpoints[id.index()].standing == Standing::Member
}

/// Whether a flow can be learned: it has a port, both ends run, and one destination is behind its address.
fn is_learnable(cluster: &Cluster, flow: &Flow) -> bool {
    let runs = |end: &FlowEnd| {
        let standing = end.endpoint.map(|id| cluster.endpoints[id.index()].standing);
        match standing {
            None | Some(Standing::Member) => true,
            Some(Standing::HostNetwork) => end.address.is_some(),
            Some(Standing::Finished | Standing::Pending) => false,
        }
    };
    let oracle = Oracle::new(cluster);
    let is_single = match oracle.services_behind(flow).map(|it| it.single()) {
        None => oracle.host_ports_of(flow).is_empty(),
        Some(Some((service, Some(port)))) => {
            let backends = &cluster.services[service.index()].ports[port as usize].backends;
            let family = |at: Option<IpAddr>| at.map(|it| it.is_ipv4());
            let asked = family(flow.destination.address);
            backends.iter().any(|it| it.address.is_none() || family(it.address) == asked)
        }
        Some(_) => false,
    };
    let has_port = flow.protocol != FlowProtocol::Icmp && flow.port != 0;
    has_port && is_single && runs(&flow.source) && runs(&flow.destination)
}

/// The flows of a random cluster that it allows.
fn recorded(cluster: &Cluster, mut flows: Vec<Flow>) -> Vec<Observation> {
    let mut oracle = Oracle::new(cluster);
    for flow in &mut flows {
        (flow.source, flow.destination) = (oracle.complete(flow.source), oracle.complete(flow.destination));
    }
    flows.retain(|flow| oracle.judge(flow).verdict() == Verdict::Allow && is_learnable(cluster, flow));
    flows.into_iter().map(|flow| Observation { flow, times: 2 }).collect()
}

/// Pairs of groups with a port that a cluster allows, of pods in namespaces that were seen.
fn allowed<'c>(cluster: &'c Cluster, seen: &BTreeSet<String>) -> BTreeSet<Pair<'c>> {
    let mut oracle = Oracle::new(cluster);
    let ids = || (0..cluster.endpoints.len() as u32).map(EndpointId).filter(|id| is_member(cluster, *id));
    let mut found = BTreeSet::new();
    for (from, to) in ids().flat_map(|from| ids().map(move |to| (from, to))).filter(|(from, to)| from != to) {
        if ![from, to].iter().any(|id| seen.contains(group(cluster, *id).0)) {
            continue;
        }
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(FlowProtocol::Transport) {
            for port in PORTS.into_iter().flat_map(|it| [it - 1, it]).filter(|it| *it != 0) {
                let end = |id| FlowEnd { endpoint: Some(id), address: None };
                let addresses = |id: EndpointId| cluster.endpoints[id.index()].addresses.clone();
                let address = |id, v4: bool| addresses(id).into_iter().find(|it: &IpAddr| it.is_ipv4() == v4);
                let families = [true, false].map(|v4| address(from, v4).zip(address(to, v4)));
                let mut ends: Vec<[FlowEnd; 2]> = families
                    .into_iter()
                    .flatten()
                    .map(|(a, b)| [(from, a), (to, b)].map(|(id, at)| FlowEnd { address: Some(at), ..end(id) }))
                    .collect();
                if addresses(from).is_empty() || addresses(to).is_empty() {
                    ends.push([end(from), end(to)]);
                }
                let judge = |[source, destination]: [FlowEnd; 2]| {
                    oracle.judge(&Flow { source, destination, protocol, port }).verdict() == Verdict::Allow
                };
                if ends.into_iter().any(judge) {
                    found.insert((group(cluster, from), group(cluster, to), protocol, port));
                }
            }
        }
    }
    found
}

fn learned_namespaces(learned: &Learned) -> BTreeSet<String> {
    learned.policies.iter().map(|it| it.policy.namespace.clone()).collect()
}

#[test]
fn nothing_recorded_is_denied_and_little_else_is_allowed() {
    let (mut pairs, mut extra, mut once) = (0, 0, 0);
    for_each(CASES, &enforceable(), |case| {
        let (cluster, _) = resolve(&case.objects, case.assume);
        let observations = recorded(&cluster, flows::flows(&cluster, FLOWS, &mut case.random()));
        let learned = learn(&case.objects, case.assume, &observations, EXACT);
        assert!(learned.denied.is_empty(), "{:#?}", learned.denied);
        let (after, _) = resolve(&learned.enforced, case.assume);
        let mut oracle = Oracle::new(&after);
        for observation in &observations {
            assert_eq!(oracle.judge(&observation.flow).verdict(), Verdict::Allow, "{observation:?}");
        }
        let recorded: BTreeSet<Pair<'_>> = learned
            .pairs
            .iter()
            .filter_map(|it| {
                let (from, to) = (it.flow.source.endpoint?, it.flow.destination.endpoint?);
                let are_pods = is_member(&cluster, from) && is_member(&cluster, to);
                are_pods.then(|| (group(&cluster, from), group(&cluster, to), it.flow.protocol, it.flow.port))
            })
            .collect();
        let allowed = allowed(&after, &learned_namespaces(&learned));
        pairs += recorded.len();
        extra += allowed.iter().filter(|it| !recorded.contains(*it)).count();
        once += usize::from(!recorded.is_empty());
    });
    assert!(once > CASES as usize / 2 && pairs > 1_000, "{once} clusters, {pairs} pairs");
    assert!(extra * 10 <= pairs * 3, "{extra} pairs and ports more than the {pairs} that were recorded");
}

#[test]
fn the_documents_are_the_policies_in_audit_mode() {
    for_each(20, &enforceable(), |case| {
        let (cluster, _) = resolve(&case.objects, case.assume);
        let observations = recorded(&cluster, flows::flows(&cluster, FLOWS, &mut case.random()));
        let learned = learn(&case.objects, case.assume, &observations, EXACT);
        for policy in &learned.policies {
            let bytes = policy.yaml.clone().into_bytes();
            let input = Input { name: "learned.yaml".to_owned(), bytes, kind: InputKind::Manifest };
            let options = DecodeOptions { default_namespace: String::new(), is_from_server: false };
            let (read, found) = decode(vec![input], &options);
            assert!(found.is_empty(), "{found:?}\n{}", policy.yaml);
            assert_eq!(read.objects[0].body, Body::NetworkPolicy(policy.policy.policy.clone()), "{}", policy.yaml);
            assert!(policy.policy.is_audit() && policy.yaml.contains("weir.dev/mode: audit"));
        }
    });
}

#[test]
fn names_of_the_input_are_not_written_again() {
    let (mut again, mut numbered) = (0, 0);
    for_each(20, &enforceable(), |case| {
        let (cluster, _) = resolve(&case.objects, case.assume);
        let observations = recorded(&cluster, flows::flows(&cluster, FLOWS, &mut case.random()));
        let first = learn(&case.objects, case.assume, &observations, EXACT);
        let second = learn(&first.enforced, case.assume, &observations, EXACT);
        let names = |learned: &Learned| -> BTreeSet<(String, String)> {
            let policies = learned.policies.iter().map(|it| &it.policy);
            policies.map(|it| (it.namespace.clone(), it.name.clone())).collect()
        };
        let [old, new] = [names(&first), names(&second)];
        assert_eq!(new.len(), second.policies.len(), "a name is written twice: {new:?}");
        assert!(old.is_disjoint(&new), "{:?}", old.intersection(&new));
        again += new.len();
        numbered += new.iter().filter(|(_, name)| name == "learned-default-deny-2").count();
    });
    assert!(again > 20 && numbered > 5, "{again} policies, {numbered} of them deny the rest");
}

#[test]
fn blocks_are_never_narrower_than_asked() {
    for_each(60, &enforceable(), |case| {
        let (cluster, _) = resolve(&case.objects, case.assume);
        let observations = recorded(&cluster, flows::flows(&cluster, FLOWS, &mut case.random()));
        let learned = learn(&case.objects, case.assume, &observations, LearnOptions { longest: [24, 64] });
        assert!(learned.denied.is_empty(), "{:#?}", learned.denied);
        let specs = learned.policies.iter().map(|it| &it.policy.policy);
        let peers = specs.flat_map(|it| it.ingress.iter().chain(&it.egress)).flat_map(|it| &it.peers);
        for peer in peers {
            let PolicyPeer::Block { cidr, .. } = peer else { continue };
            let longest = if Prefix::host(cidr.address()).len() == 32 { 24 } else { 64 };
            assert!(cidr.len() <= longest, "{cidr}");
        }
    });
}
