//! Packets that lists deny to all pods are dropped at an uplink; all other packets are judged at the pods as if there
//! were no edge.
//!
//! p0 and p1 are enforced. p2 is not an endpoint: for the node it is outside, and the host's end of its interface is
//! the uplink.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_artifact::{Artifact, packet};
use weir_machine::edge_program::{AtEdge, DROP, PASS as PASSES};
use weir_model::Protocol;
use weir_model::eval::FlowProtocol;
use weir_runtime::observe::Counter;
use weir_runtime::runtime::{Attached, EdgeState, PinAccess, Request, Runtime};
use weir_runtime::sys::{BpfKernel, XdpMode};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, skip};

use crate::attach::{attach, detach, request, status};
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{artifact, cluster};
use crate::probe::{connect, is_alive, serve};

type Made = (Artifact, Vec<u8>);

const OUTSIDE: usize = 2;

/// The outside pod, and the lists that deny it.
fn denying(directions: &str) -> Made {
    let [v4, v6] = [false, true].map(|v6| pod_address(OUTSIDE, v6).to_string());
    denying_of([&v4, &v6], directions)
}

fn denying_of([v4, v6]: [&str; 2], directions: &str) -> Made {
    let list = format!(
        "apiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: bad}}\nspec: {{action: Deny, order: 1, directions: \
         [{directions}], cidrs: ['{v4}', '{v6}']}}\n---\n"
    );
    artifact(&cluster(2, &list))
}

fn both_ways() -> Made {
    denying("Ingress, Egress")
}

fn open() -> Made {
    artifact(&cluster(2, ""))
}

fn with_uplink(check: impl Fn(&Node)) {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 3);
    serve(&node, 0, 80);
    serve(&node, 1, 80);
    check(&node);
}

/// p0 and p1, and the uplink, on a system that may have faults.
fn attach_on(node: &Node, system: impl Fn() -> System + Sync, made: &Made) -> Result<Attached, Error> {
    let endpoints = [0, 1].map(|pod| (format!("default/p{pod}"), node.interface(pod))).into();
    let request = Request { endpoints, uplinks: vec![node.interface(OUTSIDE)], ..request(made) };
    node.here(|| {
        let runtime = Runtime::with_system(system(), &node.bpffs(), PinAccess::Change)?.without_grace();
        let attached = runtime.attach(&request)?;
        runtime.reap().map(|()| attached)
    })
}

fn attach_edge(node: &Node, made: &Made) -> Result<Attached, Error> {
    attach_on(node, || System::open().unwrap(), made)
}

/// A system whose drivers do not support XDP.
fn only_generic() -> System {
    let refuses = |operation| (operation == Operation::AttachNative).then_some(libc::EOPNOTSUPP);
    System::with_faults(Box::new(refuses)).unwrap()
}

/// Number of packets that were dropped at the uplink and at the pods.
fn dropped(node: &Node) -> [u64; 2] {
    let counters = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Read)?.counters()).unwrap();
    let of = |outcome: &str| counters.iter().filter(|it| it.outcome == outcome).map(|it: &Counter| it.packets).sum();
    [of("xdp"), of("denied")]
}

fn reaches(node: &Node, from: usize, to: usize) -> bool {
    [false, true].iter().all(|v6| connect(node, from, pod_address(to, *v6), 80).is_some())
}

/// Whether no connection gets through, in either family.
fn is_cut_off(node: &Node, from: usize, to: usize) -> bool {
    [false, true].iter().all(|v6| connect(node, from, pod_address(to, *v6), 80).is_none())
}

fn edge_is(node: &Node, state: EdgeState) {
    let status = status(node).unwrap();
    assert_eq!(status.uplinks.iter().map(|it| it.state).collect::<Vec<_>>(), [state], "{status:?}");
    assert_eq!(status.drift, Vec::<String>::new());
}

#[test]
fn sources_denied_to_every_pod_do_not_reach_the_pods_hooks() {
    for generic in [false, true] {
        with_uplink(|node| {
            let system = || if generic { only_generic() } else { System::open().unwrap() };
            let attached = attach_on(node, system, &both_ways()).unwrap();
            assert_eq!(attached.uplinks[0].uplink.generic, generic);
            assert_eq!(attached.generic.len(), usize::from(generic), "{:?}", attached.generic);
            assert!(is_cut_off(node, OUTSIDE, 1) && is_cut_off(node, OUTSIDE, 0));
            assert!(reaches(node, 0, 1), "no list denies this source");
            let [at_edge, at_pods] = dropped(node);
            assert!(at_edge >= 4 && at_pods == 0, "{at_edge} at the uplink, {at_pods} at the pods");
            edge_is(node, EdgeState::Enforced);
            // The edge sees only incoming packets; packets of the pods are denied at their hooks.
            assert!(is_cut_off(node, 1, OUTSIDE));
            assert!(dropped(node)[1] > 0);
        });
    }
}

#[test]
fn the_kernel_drops_the_same_packets_as_the_vm() {
    with_uplink(|node| {
        let lists = ["192.0.2.0/24", "2001:db8::/33"];
        let made = denying_of(lists, "Ingress, Egress");
        attach_edge(node, &made).unwrap();
        let mut machine = AtEdge::new(&made.0).unwrap().expect("a program");
        let system = System::open().unwrap();
        let program = system.pinned_program(&node.bpffs().join("progs/at_edge")).unwrap().unwrap();
        let (mut dropped, mut passed) = (0, 0);
        let mut check = |packet: &[u8]| {
            let verdict = system.test_run(&program, packet).unwrap().verdict as i32;
            let drops = machine.drops(packet.to_vec()).unwrap();
            assert_eq!(verdict, if drops { DROP } else { PASSES }, "{packet:02x?}");
            *(if drops { &mut dropped } else { &mut passed }) += 1;
        };
        let sources = ["192.0.2.0", "192.0.2.255", "192.0.3.0", "2001:db8::", "2001:db8:7fff::1", "2001:db8:8000::"];
        for source in sources.map(|it| it.parse::<IpAddr>().unwrap()) {
            for pod in [0, 1, OUTSIDE].map(|pod| pod_address(pod, source.is_ipv6())) {
                let packet = packet::build(source, pod, FlowProtocol::Transport(Protocol::Tcp), 80).unwrap();
                // Offsets of the protocol, the version, the fragment field, the first byte behind the IP header, and
                // the EtherType.
                for at in [if source.is_ipv4() { 23 } else { 20 }, 14, 20, 34, 54, 12] {
                    for byte in [0, 1, 3, 6, 8, 17, 44, 58, 60, 0x45, 0x60, 0x81, 128, 132] {
                        let mut changed = packet.clone();
                        changed.get_mut(at).into_iter().for_each(|it| *it = byte);
                        check(&changed);
                    }
                }
                (14..packet.len()).for_each(|length| check(&packet[..length]));
            }
        }
        assert!(dropped > 300 && passed > 300, "{dropped} and {passed}");
    });
}

#[test]
fn the_edge_ignores_lists_of_one_direction() {
    with_uplink(|node| {
        serve(node, OUTSIDE, 80);
        attach_edge(node, &denying("Ingress")).unwrap();
        edge_is(node, EdgeState::Idle);
        assert!(is_cut_off(node, OUTSIDE, 1), "denied at the pod");
        assert!(reaches(node, 1, OUTSIDE), "and answered");
        assert!(dropped(node)[1] > 0);
    });
}

#[test]
fn the_edge_follows_each_switch() {
    with_uplink(|node| {
        for _ in 0..2 {
            attach_edge(node, &both_ways()).unwrap();
            edge_is(node, EdgeState::Enforced);
            assert!(is_cut_off(node, OUTSIDE, 1));
            // An attach that does not name the uplink keeps it.
            attach(node, &open(), &[], None).unwrap();
            edge_is(node, EdgeState::Idle);
            assert!(reaches(node, OUTSIDE, 1), "nothing of the generation before drops it");
        }
        // Attaching the same artifact again changes nothing.
        attach_edge(node, &both_ways()).unwrap();
        let before = status(node).unwrap().generation.unwrap().epoch;
        attach_edge(node, &both_ways()).unwrap();
        assert_eq!(status(node).unwrap().generation.unwrap().epoch, before);
    });
}

#[test]
fn an_uplink_can_be_added_to_the_generation_in_force() {
    with_uplink(|node| {
        attach(node, &both_ways(), &[0, 1], None).unwrap();
        assert!(is_cut_off(node, OUTSIDE, 1));
        attach_edge(node, &both_ways()).unwrap();
        edge_is(node, EdgeState::Enforced);
        let before = dropped(node)[0];
        assert!(is_cut_off(node, OUTSIDE, 1));
        assert!(dropped(node)[0] > before);
    });
}

#[test]
fn the_edge_protects_only_enforced_pods() {
    with_uplink(|node| {
        attach_edge(node, &both_ways()).unwrap();
        detach(node, Some("default/p1")).unwrap();
        assert!(reaches(node, OUTSIDE, 1), "p1 is not attached");
        assert!(is_cut_off(node, OUTSIDE, 0));
        attach_edge(node, &both_ways()).unwrap();
        assert!(is_cut_off(node, OUTSIDE, 1));
    });
}

#[test]
fn detaching_an_uplink_removes_its_program() {
    with_uplink(|node| {
        let is_there = |node: &Node| {
            let other = BpfKernel::open().unwrap();
            let program = other.load_xdp("other", &PASS).unwrap();
            let index = node.here(|| interface(node));
            node.here(|| other.attach_xdp(&program, index, XdpMode::Native)).is_err()
        };
        assert!(!is_there(node));
        attach_edge(node, &both_ways()).unwrap();
        assert!(is_there(node));
        node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.detach_uplink(&node.interface(OUTSIDE))).unwrap();
        assert!(!is_there(node));
        assert!(is_cut_off(node, OUTSIDE, 1), "the pods' hooks go on");
        assert!(status(node).unwrap().uplinks.is_empty());
        attach_edge(node, &both_ways()).unwrap();
        detach(node, None).unwrap();
        assert!(!is_there(node));
        assert!(reaches(node, OUTSIDE, 1));
    });
}

/// `r0 = XDP_PASS; exit`
const PASS: [u8; 16] = [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];

fn interface(node: &Node) -> u32 {
    let name = node.interface(OUTSIDE);
    System::open().unwrap().interface_named(&name).unwrap().unwrap().ifindex
}

#[test]
fn the_xdp_program_of_another_tool_stays_and_is_reported() {
    with_uplink(|node| {
        let kernel = BpfKernel::open().unwrap();
        let program = kernel.load_xdp("other", &PASS).unwrap();
        let link = node.here(|| kernel.attach_xdp(&program, interface(node), XdpMode::Native)).unwrap();
        let error = attach_edge(node, &both_ways()).unwrap_err();
        assert!(matches!(&error, Error::Edge { interface, .. } if *interface == node.interface(OUTSIDE)), "{error:?}");
        assert!(error.hint().is_some());
        assert!(is_cut_off(node, OUTSIDE, 1), "the pods are enforced all the same");
        assert_eq!(status(node).unwrap().drift, Vec::<String>::new());
        drop(link);
        attach_edge(node, &both_ways()).unwrap();
        edge_is(node, EdgeState::Enforced);
    });
}

#[test]
fn a_removed_link_is_restored_and_a_missing_uplink_is_forgotten() {
    with_uplink(|node| {
        attach_edge(node, &both_ways()).unwrap();
        let links = std::fs::read_dir(node.bpffs().join("links")).unwrap().flatten().map(|it| it.path());
        let link = links.into_iter().find(|it| it.to_string_lossy().contains("at_edge")).unwrap();
        // Removing the pin alone would detach the link only some time later, so it is detached first.
        let system = System::open().unwrap();
        system.detach(&system.pinned_link(&link).unwrap().unwrap()).unwrap();
        std::fs::remove_file(&link).unwrap();
        let seen = status(node).unwrap();
        assert_eq!(seen.uplinks[0].state, EdgeState::Open);
        assert_eq!(seen.drift.len(), 1, "{:?}", seen.drift);
        let repaired = node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.repair()).unwrap();
        assert_eq!(repaired, [format!("at_edge at {}", node.interface(OUTSIDE))]);
        edge_is(node, EdgeState::Enforced);
        node.ip(&format!("link del {}", node.interface(OUTSIDE)));
        attach(node, &both_ways(), &[], None).unwrap();
        assert!(status(node).unwrap().uplinks.is_empty());
        node.plug(OUTSIDE);
        assert!(is_cut_off(node, OUTSIDE, 1), "the pods' hooks go on");
    });
}

#[test]
fn the_edge_keeps_established_flows() {
    with_uplink(|node| {
        // If the pods are not filtered, no flows are stored.
        attach_edge(node, &denying_of(["192.0.2.1", "2001:db8::1"], "Ingress, Egress")).unwrap();
        let mut stream = connect(node, OUTSIDE, pod_address(1, false), 80).expect("another is denied");
        assert!(is_alive(&mut stream));
        let made = both_ways();
        let keeping = Request { keep: Some(true), ..request(&made) };
        node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.attach(&keeping)).unwrap();
        assert!(is_alive(&mut stream), "it was there before");
        assert!(is_cut_off(node, OUTSIDE, 0), "and this was not");
        let cutting = Request { keep: Some(false), ..request(&made) };
        node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.attach(&cutting)).unwrap();
        assert!(!is_alive(&mut stream));
    });
}

#[test]
fn a_switch_with_an_uplink_survives_death_at_every_operation() {
    with_uplink(|node| {
        let made = [open(), both_ways()];
        attach_edge(node, &made[0]).unwrap();
        for turn in 0.. {
            // Switches back and forth, and dies at some operation on the way.
            let (next, other) = (&made[(turn + 1) % 2], &made[turn % 2]);
            attach_edge(node, other).unwrap();
            let asked = AtomicUsize::new(0);
            let died = std::sync::Arc::new(AtomicUsize::new(0));
            let seen = std::sync::Arc::clone(&died);
            // `faults` tests every operation without an uplink; here a sample is enough to include those at the uplink.
            let place = turn / 2 * 5 + turn / 2 % 5;
            let faults = move |_| {
                let dies = asked.fetch_add(1, Ordering::Relaxed) >= place;
                seen.fetch_add(usize::from(dies), Ordering::Relaxed);
                dies.then_some(libc::EPERM)
            };
            let faults = std::sync::Mutex::new(Some(faults));
            let system = || System::with_faults(Box::new(faults.lock().unwrap().take().unwrap())).unwrap();
            let result = attach_on(node, system, next);
            assert!(connect(node, 0, pod_address(1, false), 80).is_some(), "both allow it: {place}, {result:?}");
            attach_edge(node, next).unwrap_or_else(|error| panic!("{place}: {error:?}"));
            let denies = turn % 2 == 0;
            edge_is(node, if denies { EdgeState::Enforced } else { EdgeState::Idle });
            assert_eq!(connect(node, OUTSIDE, pod_address(1, false), 80).is_none(), denies, "{place}");
            if died.load(Ordering::Relaxed) == 0 && denies {
                assert!(place > 40, "only {place} operations");
                return;
            }
        }
    });
}
