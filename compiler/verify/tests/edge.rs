//! The program at the edge of the node drops packets from and to addresses that lists deny to every endpoint, and no
//! others.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_artifact::layout::{MapName, config, endpoint};
use weir_artifact::structure::LookupSet;
use weir_artifact::{Artifact, packet};
use weir_classes::Scope;
use weir_codegen::compile::{CompileOptions, compile};
use weir_ebpf::target::Target;
use weir_fuzz::generators::cluster::enforceable;
use weir_fuzz::generators::for_each;
use weir_machine::LoadedPrograms;
use weir_machine::edge_program::AtEdge;
use weir_model::eval::{Basis, Flow, FlowEnd, FlowProtocol, Oracle, Verdict};
use weir_model::{Assumptions, Cluster, Direction, EndpointId, Established, Protocol, resolve};
use weir_objects::address::{Family, to_address, to_number};
use weir_verify::{Difference, verify};

const PODS: &str = r#"
{kind: Node, apiVersion: v1, metadata: {name: here}, status: {addresses: [{type: InternalIP, address: 172.16.0.1}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {nodeName: here, containers: [{name: c}]},
  status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}
---
{kind: Pod, apiVersion: v1, metadata: {name: db, namespace: shop, labels: {app: db}}, spec: {nodeName: here, containers: [{name: c}]},
  status: {phase: Running, podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}, {ip: "fd00::2"}]}}
---
"#;

/// A list with the given name and spec.
fn list(name: &str, spec: &str) -> String {
    format!("{{kind: CidrList, apiVersion: weir.dev/v1alpha1, metadata: {{name: {name}}}, spec: {{{spec}}}}}\n---\n")
}

fn cluster_of(lists: &str) -> Cluster {
    weir_testing::yaml::cluster(&format!("{PODS}{lists}"))
}

fn artifact(cluster: &Cluster, options: &CompileOptions) -> Artifact {
    let scope = Scope::everything(cluster);
    let artifact = compile(cluster, &scope, options).expect("compiled").artifact(cluster, options, |_| ());
    // The test runs the artifact as it is read from the file.
    Artifact::read(&artifact.expect("linked").to_bytes().expect("written")).expect("read")
}

/// The edge program for these lists, which must deny some address to every endpoint.
fn edge(lists: &str) -> AtEdge {
    AtEdge::new(&artifact(&cluster_of(lists), &CompileOptions::default())).unwrap().expect("a program at the edge")
}

fn tcp(from: &str, to: &str) -> Vec<u8> {
    let protocol = FlowProtocol::Transport(Protocol::Tcp);
    packet::build(from.parse().unwrap(), to.parse().unwrap(), protocol, 80).unwrap()
}

/// `flows` are pairs of source and destination.
#[track_caller]
fn check_drops(edge: &mut AtEdge, flows: &str, dropped: bool) {
    for flow in flows.split(", ") {
        let (from, to) = flow.split_once(' ').expect("a source and a destination");
        assert_eq!(edge.drops(tcp(from, to)).unwrap(), dropped, "{flow}");
    }
}

const DENY: &str = "action: Deny, order: 100, cidrs: [192.0.2.0/24, 198.51.100.7, '2001:db8::/32']";

#[test]
fn sources_denied_to_every_pod_are_dropped_before_any_pod() {
    let mut edge = edge(&list("bad", DENY));
    check_drops(
        &mut edge,
        "192.0.2.1 10.0.0.1, 192.0.2.255 10.0.0.2, 198.51.100.7 10.0.0.1, 2001:db8::7 fd00::2",
        true,
    );
    check_drops(&mut edge, "192.0.3.0 10.0.0.1, 198.51.100.8 10.0.0.1, 2001:db9:: fd00::1", false);
    // Not a local pod, and the node itself.
    check_drops(&mut edge, "192.0.2.1 10.0.0.3, 192.0.2.1 172.16.0.1, 2001:db8::7 fd00::3", false);
    let counted = edge.read(MapName::EdgeDrops, &[0; 4]).unwrap();
    let bytes = 3 * tcp("192.0.2.1", "10.0.0.1").len() + tcp("2001:db8::7", "fd00::2").len();
    assert_eq!(counted, [4_u64.to_le_bytes(), (bytes as u64).to_le_bytes()].concat());
}

#[test]
fn address_that_a_pod_or_flow_may_have_is_not_dropped_at_the_edge() {
    let whole = list("bad", DENY);
    for (lists, why) in [
        (String::new(), "no list"),
        (list("bad", &format!("{DENY}, directions: [Ingress]")), "answers to what a pod began"),
        (list("bad", &format!("{DENY}, directions: [Egress]")), "only what leaves"),
        (list("bad", &format!("{DENY}, appliesTo: {{podSelector: {{matchLabels: {{app: db}}}}}}")), "only some pods"),
        (format!("{whole}{}", list("ok", "action: Allow, order: 1, cidrs: [0.0.0.0/0, '::/0']")), "exempt"),
        (list("ok", "action: Allow, order: 1, cidrs: [192.0.2.0/24]"), "nothing is denied"),
    ] {
        assert!(artifact(&cluster_of(&lists), &CompileOptions::default()).edge.is_none(), "{why}");
    }
    // An exemption for one pod or in one direction counts as an exemption.
    for exempt in ["appliesTo: {podSelector: {matchLabels: {app: db}}}", "directions: [Egress]"] {
        let exempt = list("ok", &format!("action: Allow, order: 1, cidrs: [192.0.2.8/29], {exempt}"));
        let mut edge = edge(&format!("{whole}{exempt}"));
        assert!(!edge.drops(tcp("192.0.2.8", "10.0.0.1")).unwrap(), "{exempt}");
        assert!(edge.drops(tcp("192.0.2.7", "10.0.0.1")).unwrap(), "{exempt}");
    }
    // An exemption after the denying list has no effect. Two lists of one direction each deny both directions.
    let late = list("ok", "action: Allow, order: 200, cidrs: [192.0.2.8/29]");
    assert!(edge(&format!("{whole}{late}")).drops(tcp("192.0.2.8", "10.0.0.1")).unwrap());
    let halves = ["Ingress", "Egress"].map(|it| list(&it.to_lowercase(), &format!("{DENY}, directions: [{it}]")));
    assert!(edge(&halves.concat()).drops(tcp("192.0.2.8", "10.0.0.1")).unwrap());
}

#[test]
fn the_own_node_and_a_pod_itself_are_never_denied() {
    let mut edge = edge(&list("bad", "action: Deny, order: 1, cidrs: [0.0.0.0/0, '::/0']"));
    check_drops(&mut edge, "172.16.0.1 10.0.0.1, 10.0.0.1 10.0.0.1, fd00::1 fd00::1", false);
    check_drops(&mut edge, "10.0.0.2 10.0.0.1, fd00::1 fd00::2, 172.16.0.2 10.0.0.1", true);
}

#[test]
fn only_what_is_plain_is_dropped() {
    let mut edge = edge(&list("bad", DENY));
    let mut check = |what: &str, packet: &[u8], dropped: bool| {
        assert_eq!(edge.drops(packet.to_vec()).unwrap(), dropped, "{what}");
        for length in 0..packet.len() {
            // A truncated packet never causes a trap.
            edge.drops(packet[..length].to_vec()).unwrap();
        }
    };
    let (v4, v6) = (tcp("192.0.2.1", "10.0.0.1"), tcp("2001:db8::1", "fd00::1"));
    let with = |packet: &[u8], changes: &[(usize, u8)]| {
        let mut packet = packet.to_vec();
        changes.iter().for_each(|(at, byte)| packet[*at] = *byte);
        packet
    };
    check("tcp", &v4, true);
    check("tcp over IPv6", &v6, true);
    for (protocol, dropped) in [(17, true), (132, true), (4, false), (41, false), (47, false), (50, false), (2, false)]
    {
        check("a protocol", &with(&v4, &[(23, protocol)]), dropped);
    }
    check("udp over IPv6", &with(&v6, &[(20, 17)]), true);
    check("hop-by-hop options", &with(&v6, &[(20, 0)]), false);
    check("destination options", &with(&v6, &[(20, 60)]), false);
    for (icmp, dropped) in [(8, true), (0, true), (3, false), (11, false), (12, false), (13, false), (5, false)] {
        check("an ICMP type", &with(&v4, &[(23, 1), (34, icmp)]), dropped);
    }
    for (icmp, dropped) in [(128, true), (129, true), (1, false), (2, false), (3, false), (135, false), (136, false)] {
        check("an ICMPv6 type", &with(&v6, &[(20, 58), (54, icmp)]), dropped);
    }
    check("ICMP in pieces", &with(&v4, &[(23, 1), (34, 8), (20, 0x20)]), false);
    check("ICMP with options", &with(&v4, &[(23, 1), (34, 8), (14, 0x46)]), false);
    check("a first fragment", &with(&v4, &[(20, 0x20)]), true);
    check("a later fragment", &with(&v4, &[(20, 0), (21, 7)]), true);
    check("a fragment over IPv6", &with(&v6, &[(20, 44), (54, 6)]), true);
    check("a fragment of what is not plain", &with(&v6, &[(20, 44), (54, 58)]), false);
    check("options", &with(&v4, &[(14, 0x46)]), true);
    check("another version", &with(&v4, &[(14, 0x55)]), false);
    check("another version in IPv6", &with(&v6, &[(14, 0x45)]), false);
    check("another family", &with(&v4, &[(12, 0x08), (13, 0x06)]), false);
    let tag = |kind: [u8; 2], packet: &[u8]| [&packet[..12], &kind, &[0, 7], &packet[12..]].concat();
    check("one tag", &tag([0x81, 0], &v4), true);
    check("one tag, IPv6", &tag([0x81, 0], &v6), true);
    check("one outer tag", &tag([0x88, 0xa8], &v4), true);
    check("two tags", &tag([0x88, 0xa8], &tag([0x81, 0], &v4)), false);
}

#[test]
fn where_established_flows_are_kept_nothing_is_dropped() {
    let artifact = artifact(&cluster_of(&list("bad", DENY)), &CompileOptions::default());
    let mut value = artifact.map(MapName::Config).unwrap().entries.entry(0).1.to_vec();
    value[config::KEEP_ESTABLISHED as usize] = 1;
    let mut edge = AtEdge::new(&artifact).unwrap().unwrap();
    assert!(edge.drops(tcp("192.0.2.1", "10.0.0.1")).unwrap());
    edge.write(MapName::Config, &[0; 4], &value).unwrap();
    assert!(!edge.drops(tcp("192.0.2.1", "10.0.0.1")).unwrap());
    assert!(!edge.drops(tcp("2001:db8::1", "fd00::1")).unwrap());
}

/// The structures of one round; in three rounds every structure is used.
fn options(round: usize) -> CompileOptions {
    let of = |place: &LookupSet| (*place, place.structures()[round % place.structures().len()]);
    let forced = LookupSet::ALL.iter().map(of).collect();
    CompileOptions { forced, target: Target::BASE, ..CompileOptions::default() }
}

/// The boundaries of all ranges and addresses, with their neighbours.
fn addresses(cluster: &Cluster) -> BTreeSet<IpAddr> {
    let lists = cluster.lists.iter().flat_map(|list| &list.entries).flat_map(|entry| [entry.first, entry.last]);
    let owned = cluster.endpoints.iter().flat_map(|it| &it.addresses).copied();
    let owned = owned.chain(cluster.nodes.iter().flat_map(|it| &it.addresses).copied());
    let owned = owned.chain(cluster.services.iter().flat_map(|it| &it.addresses).copied());
    let beside = |address: IpAddr| {
        let (family, number) = to_number(address);
        let most = if family == Family::V4 { u128::from(u32::MAX) } else { u128::MAX };
        let all = [number.saturating_sub(1), number, number.saturating_add(1).min(most)];
        all.map(|number| to_address(family, number))
    };
    lists.chain(owned).flat_map(beside).collect()
}

/// The address in an endpoint's value.
fn address_in(value: &[u8], is_v4: bool) -> Option<IpAddr> {
    let address: IpAddr = match is_v4 {
        true => <[u8; 4]>::try_from(&value[endpoint::V4 as usize..][..4]).unwrap().into(),
        false => <[u8; 16]>::try_from(&value[endpoint::V6 as usize..][..16]).unwrap().into(),
    };
    Some(address).filter(|it| !it.is_unspecified())
}

const PROTOCOLS: [FlowProtocol; 3] =
    [FlowProtocol::Transport(Protocol::Tcp), FlowProtocol::Transport(Protocol::Udp), FlowProtocol::Icmp];

/// Whether lists deny the address to each other local endpoint in both directions, according to the reference.
fn is_denied_to_all(cluster: &Cluster, oracle: &mut Oracle<'_>, remote: IpAddr) -> bool {
    let scope = Scope::everything(cluster);
    let is_own = |id: &&EndpointId| cluster.endpoints[id.index()].addresses.contains(&remote);
    let others: Vec<_> = scope.endpoints().iter().filter(|id| !is_own(id)).collect();
    let remote = FlowEnd { endpoint: None, address: Some(remote) };
    !others.is_empty()
        && others.into_iter().all(|id| {
            let local =
                FlowEnd { endpoint: Some(*id), address: cluster.endpoints[id.index()].addresses.first().copied() };
            PROTOCOLS.into_iter().all(|protocol| {
                let comes = oracle.judge(&Flow { source: remote, destination: local, protocol, port: 80 }).ingress;
                let goes = oracle.judge(&Flow { source: local, destination: remote, protocol, port: 80 }).egress;
                [comes, goes].iter().all(|side| matches!(side.basis, Basis::List(_)) && side.verdict == Verdict::Deny)
            })
        })
}

#[test]
fn the_edge_drops_exactly_the_sources_that_lists_deny_to_every_pod() {
    let (mut dropped, mut passed, mut programs) = (0, 0, 0);
    for_each(120, &enforceable(), |case| {
        let assume = Assumptions { established: Established::Cut, ..case.assume };
        let (cluster, _) = resolve::resolve(&case.objects, assume);
        let artifact = artifact(&cluster, &options(case.random().below(8)));
        if artifact.edge.is_some() {
            let report = verify(&artifact, &cluster);
            assert!(report.is_verified(), "{report:#?}");
        }
        let mut oracle = Oracle::new(&cluster);
        let scope = Scope::everything(&cluster);
        let locals: Vec<_> = scope.endpoints().iter().map(|id| &cluster.endpoints[id.index()].addresses).collect();
        let mut machine = AtEdge::new(&artifact).unwrap();
        programs += usize::from(machine.is_some());
        let values: Vec<&[u8]> = artifact.endpoints.iter().map(|it| it.value.as_slice()).collect();
        let programs = artifact.programs.each_ref().map(|it| &it.code);
        let mut at_pods = LoadedPrograms::new(programs, &artifact.maps, &values).unwrap();
        for remote in addresses(&cluster) {
            let others = locals.iter().filter(|own| !own.contains(&remote)).copied().flatten();
            let Some(local) = others.into_iter().find(|it| it.is_ipv4() == remote.is_ipv4()) else { continue };
            let denied = is_denied_to_all(&cluster, &mut oracle, remote);
            for protocol in PROTOCOLS {
                let packet = packet::build(remote, *local, protocol, 80).unwrap();
                let drops = machine.as_mut().is_some_and(|it| it.drops(packet.clone()).unwrap());
                // A service's address may pass even if lists contain it: no packet has it as its source.
                let may_go_on = cluster.services.iter().any(|it| it.addresses.contains(&remote));
                assert!(drops == denied || (may_go_on && !drops), "{remote} to {local}, {protocol:?}");
                *(if drops { &mut dropped } else { &mut passed }) += 1;
            }
            for place in (0..values.len()).filter(|_| denied) {
                let own = address_in(values[place], remote.is_ipv4()).filter(|own| *own != remote);
                let Some(own) = own else { continue };
                let packet = packet::build(remote, own, PROTOCOLS[0], 80).unwrap();
                let verdict = at_pods.run(Direction::Ingress, place, packet, false).unwrap();
                assert_eq!(verdict, Verdict::Deny, "{remote} to {own} would pass at the pod");
            }
        }
    });
    assert!(dropped > 300 && passed > 1_000 && programs > 8, "{dropped} {passed} {programs}");
}

#[test]
fn a_program_that_drops_more_or_less_is_found() {
    let cluster = cluster_of(&list("bad", DENY));
    let sound = artifact(&cluster, &CompileOptions::default());
    assert!(verify(&sound, &cluster).is_verified());
    let classes = sound.map(MapName::Edge).unwrap().entries.entry(0).1.iter().map(|it| it.count_ones()).sum::<u32>();
    assert!(classes > 0);
    let mut found = 0;
    for bit in 0..4 {
        let mut changed = sound.clone();
        let map = changed.maps.iter_mut().find(|map| map.name == MapName::Edge).unwrap();
        map.entries.edit()[0].1[0] ^= 1 << bit;
        let report = verify(&changed, &cluster);
        found += usize::from(report.differences.iter().any(|it| matches!(it, Difference::Edge { .. })));
    }
    assert!(found >= 2, "class 0 and the list's at least: {found}");
}

#[test]
fn without_such_lists_the_file_is_as_it_was() {
    let plain = artifact(&cluster_of(""), &CompileOptions::default());
    let of_edge = [MapName::Edge, MapName::Local4, MapName::Local6, MapName::EdgeDrops];
    assert!(plain.maps.iter().all(|map| !of_edge.contains(&map.name)));
    let one = artifact(&cluster_of(&list("bad", DENY)), &CompileOptions::default());
    let again = artifact(&cluster_of(&list("bad", DENY)), &CompileOptions::default());
    assert_eq!(one.to_bytes().unwrap(), again.to_bytes().unwrap());
}
