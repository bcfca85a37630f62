//! Other root processes change hooks and pins while an agent runs. The next check finds and repairs that.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weir_artifact::Artifact;
use weir_runtime::closed::close_interface;
use weir_runtime::runtime::{Attached, EnforcementState, HookCheck, PinAccess, Request, Runtime};
use weir_runtime::sys::netlink::{Filter, NetlinkSocket, Put};
use weir_runtime::sys::{BpfKernel, Hook, KernelProgram};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, HookKind, StateAfterFailure, skip};
use weir_testing::files::remove_all;

use crate::attach::{each, only_port, request};
use crate::net::{Layout, Node, must, pod_address, possible};
use crate::policy::{artifact, cluster, policy};
use crate::probe::{connect, datagram, is_alive, serve};

/// `weir` in ASCII: the handle of our filters.
const HANDLE: u32 = 0x7765_6972;

fn attach(
    runtime: &Runtime,
    node: &Node,
    made: &(Artifact, Vec<u8>),
    way: Option<HookKind>,
) -> Result<(), weir_runtime::Error> {
    let endpoints = [0, 1].map(|pod| (format!("default/p{pod}"), node.interface(pod))).to_vec();
    runtime.attach(&Request { endpoints, way, ..request(made) }).map(|_| ())
}

/// Runs `work` with a runtime as the agent uses it; pod 0 may connect to port 80 of pod 1.
fn with_agent(node: &Node, way: HookKind, work: impl FnOnce(&Runtime) + Send) {
    [80, 81].into_iter().for_each(|port| serve(node, 1, port));
    node.here(|| {
        let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        attach(&runtime, node, &only_port(80), Some(way)).unwrap();
        assert_eq!(runtime.check_hooks().unwrap(), HookCheck::default(), "{way:?}: nothing is wrong");
        work(&runtime);
    });
}

#[track_caller]
fn assert_enforced(node: &Node, runtime: &Runtime, what: &str) {
    assert!(connect(node, 0, pod_address(1, false), 80).is_some(), "{what}: 80 is allowed");
    assert!(connect(node, 0, pod_address(1, false), 81).is_none(), "{what}: 81 is denied");
    let status = runtime.status().unwrap();
    assert!(status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced), "{what}: {status:?}");
    assert_eq!(status.drift, Vec::<String>::new(), "{what}");
}

#[track_caller]
fn assert_repaired(node: &Node, runtime: &Runtime, what: &str) {
    let check = runtime.check_hooks().unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert!(!check.repaired.is_empty() && check.astray.is_empty(), "{what}: {check:?}");
    assert_eq!(runtime.check_hooks().unwrap(), HookCheck::default(), "{what}: it was repaired once");
    assert_enforced(node, runtime, what);
}

fn pins(node: &Node) -> Vec<PathBuf> {
    let root = node.bpffs();
    let inside = |directory: &str| fs::read_dir(root.join(directory)).unwrap().flatten().map(|it| it.path());
    let directories = ["links", "maps", "progs", "next", "old"];
    let singly = directories.iter().flat_map(|it| inside(it)).collect::<Vec<_>>();
    // `next` and `old` are empty between switches, and `links` is empty without TCX. Removing an empty directory loses
    // nothing.
    let full = directories.iter().filter(|it| inside(it).next().is_some());
    let whole = full.map(|it| root.join(it)).chain([root.join("record"), root.clone()]);
    singly.into_iter().chain(whole).collect()
}

#[test]
fn removed_pins_open_no_pod_and_come_back_with_every_flow() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            let mut flow = connect(node, 0, pod_address(1, false), 80).unwrap();
            for path in pins(node) {
                let what = format!("{way:?}, without {}", path.display());
                remove_all(&path);
                assert!(connect(node, 0, pod_address(1, false), 81).is_none(), "{what}: 81 is denied at once");
                assert_repaired(node, runtime, &what);
                assert!(is_alive(&mut flow), "{what}");
            }
        });
    });
}

#[test]
fn a_generation_comes_into_force_after_all_pins_were_removed() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            for (made, open, shut) in [(only_port(81), 81, 80), (only_port(80), 80, 81)] {
                remove_all(&node.bpffs());
                attach(runtime, node, &made, None).unwrap();
                assert!(connect(node, 0, pod_address(1, false), open).is_some(), "{way:?}");
                assert!(connect(node, 0, pod_address(1, false), shut).is_none(), "{way:?}");
            }
            // Writing entries needs the record too.
            remove_all(&node.bpffs());
            runtime.write_addresses(&[], true).unwrap();
            runtime.reap().unwrap();
            runtime.check_hooks().unwrap();
            assert_enforced(node, runtime, "after an entry");
        });
    });
}

/// Without an agent nothing restores removed pins, but the next command must not fail because of them.
#[test]
fn a_command_works_after_all_pins_were_removed() {
    each(|node, way| {
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        for port in [80, 81] {
            node.here(|| {
                let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap();
                attach(&runtime, node, &only_port(port), Some(way)).unwrap();
                remove_all(&node.bpffs());
                attach(&runtime, node, &only_port(port), Some(way)).unwrap();
            });
            assert!(connect(node, 0, pod_address(1, false), port).is_some(), "{way:?}");
            assert!(connect(node, 0, pod_address(1, false), 161 - port).is_none(), "{way:?}");
            remove_all(&node.bpffs());
        }
    });
}

/// `r0 = CODE; exit`
pub(crate) fn verdict(code: i32) -> KernelProgram {
    let code = code.to_ne_bytes();
    let instructions = [[0xb7, 0, 0, 0, code[0], code[1], code[2], code[3]], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
    BpfKernel::open().unwrap().load_named("foreign", &instructions, None).unwrap()
}

/// A comparison that found each link's pin is not repeated while the directory stays as it is.
#[test]
fn pins_of_links_come_back_after_a_comparison_that_found_all_of_them() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    with_agent(node, HookKind::Tcx, |runtime| {
        let links = node.bpffs().join("links");
        let [one, other] = ["to_pod", "from_pod"].map(|program| links.join(format!("{program}_{}", ifindex(node))));
        let changes: [(&str, &dyn Fn()); 3] = [
            ("removed", &|| fs::remove_file(&one).unwrap()),
            ("removed, the other one", &|| fs::remove_file(&other).unwrap()),
            ("replaced by another link's", &|| {
                fs::remove_file(&one).unwrap();
                BpfKernel::open().unwrap().pin(verdict(-1).as_fd(), &one).unwrap();
            }),
        ];
        for (what, change) in changes {
            for _ in 0..2 {
                assert_eq!(runtime.repair().unwrap(), Vec::<String>::new(), "before it was {what}");
            }
            change();
            let repaired = runtime.repair().unwrap();
            assert!(!repaired.is_empty(), "{what}");
            assert_enforced(node, runtime, what);
            let of = |pin: &PathBuf| BpfKernel::open().unwrap().pinned_link(pin).unwrap();
            assert!([&one, &other].into_iter().all(|pin| of(pin).info().is_ok()), "{what}");
        }
    });
}

fn ifindex(node: &Node) -> u32 {
    NetlinkSocket::open().unwrap().interface_named(&node.interface(1)).unwrap().ifindex
}

fn own_filter(name: &str) -> Filter {
    Filter { priority: 1, handle: HANDLE, name: name.to_owned(), program: 0 }
}

#[test]
fn removed_and_replaced_programs_are_restored() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            let (index, socket, nothing) = (ifindex(node), NetlinkSocket::open().unwrap(), verdict(-1));
            for (program, hook) in [("to_pod", Hook::Egress), ("from_pod", Hook::Ingress)] {
                let place = node.bpffs().join(format!("links/{program}_{index}"));
                let name = format!("weir_{program}");
                match way {
                    HookKind::Tcx => {
                        let link = || BpfKernel::open().unwrap().pinned_link(&place).unwrap();
                        link().detach().unwrap();
                        assert_repaired(node, runtime, "a link that was detached");
                        link().replace(&nothing).unwrap();
                        assert_repaired(node, runtime, "a link with another program");
                        link().detach().unwrap();
                        remove_all(&place);
                        assert_repaired(node, runtime, "a link that was detached and removed");
                    }
                    HookKind::Clsact => {
                        socket.delete_clsact(index).unwrap();
                        assert_repaired(node, runtime, "a clsact that was removed");
                        socket.delete_filter(index, hook, &own_filter(&name)).unwrap();
                        assert_repaired(node, runtime, "a filter that was removed");
                        socket.put_filter(index, hook, &own_filter(&name), &nothing, Put::Instead).unwrap();
                        assert_repaired(node, runtime, "a filter with another program");
                    }
                }
            }
        });
    });
}

/// The kernel's messages name the interfaces whose hooks to check.
#[test]
fn a_check_of_interfaces_repairs_all_if_one_of_them_is_wrong() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            let (index, socket) = (ifindex(node), NetlinkSocket::open().unwrap());
            for hook in [Hook::Egress, Hook::Ingress] {
                let program = if hook == Hook::Egress { "to_pod" } else { "from_pod" };
                match way {
                    HookKind::Tcx => {
                        let place = node.bpffs().join(format!("links/{program}_{index}"));
                        BpfKernel::open().unwrap().pinned_link(&place).unwrap().detach().unwrap();
                    }
                    HookKind::Clsact => {
                        socket.delete_filter(index, hook, &own_filter(&format!("weir_{program}"))).unwrap();
                    }
                }
                let others = BTreeSet::from([index + 1_000]);
                assert_eq!(runtime.check_hooks_of(&others).unwrap(), HookCheck::default(), "{way:?} {program}");
                let both = BTreeSet::from([index, index + 1_000]);
                let check = runtime.check_hooks_of(&both).unwrap();
                assert!(!check.repaired.is_empty() && check.astray.is_empty(), "{way:?} {program}: {check:?}");
                assert_eq!(runtime.check_hooks_of(&both).unwrap(), HookCheck::default(), "{way:?} {program}");
                assert_enforced(node, runtime, program);
            }
        });
    });
}

/// Attaches the artifact that allows the port, and returns the repairs before it.
fn switch_to(runtime: &Runtime, node: &Node, port: u16, what: &str) -> Attached {
    let endpoints = [0, 1].map(|pod| (format!("default/p{pod}"), node.interface(pod))).to_vec();
    let attached = runtime.attach(&Request { endpoints, ..request(&only_port(port)) });
    let attached = attached.unwrap_or_else(|error| panic!("{what}: {error:?}"));
    // At once or later: hosts look for the hardware address of a new interface.
    let is_reached = |port| connect(node, 0, pod_address(1, false), port).is_some();
    assert!((0..8).any(|_| is_reached(port)) && !is_reached(161 - port), "{what}: only {port} is allowed");
    let status = runtime.status().unwrap();
    assert!(status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced), "{what}: {status:?}");
    assert_eq!(status.drift, Vec::<String>::new(), "{what}");
    attached
}

/// A switch only checks the generation that it replaces. What another process changed is found and repaired all the
/// same.
#[test]
fn a_switch_enforces_where_another_process_removed_a_program_or_an_entry() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            let mut port = 80;
            let mut switch = |what: &str| {
                port = 161 - port;
                switch_to(runtime, node, port, &format!("{way:?}, {what}"))
            };
            switch("the program that two generations share is loaded");
            assert_eq!(switch("nothing changed").repaired, Vec::<String>::new());
            let (kernel, socket, index) = (BpfKernel::open().unwrap(), NetlinkSocket::open().unwrap(), ifindex(node));
            let changes: [(&str, &str, &dyn Fn()); 6] = [
                ("a program was removed", "to_pod at ", &|| match way {
                    HookKind::Tcx => {
                        let place = node.bpffs().join(format!("links/to_pod_{index}"));
                        kernel.pinned_link(&place).unwrap().detach().unwrap();
                    }
                    HookKind::Clsact => {
                        socket.delete_filter(index, Hook::Egress, &own_filter("weir_to_pod")).unwrap();
                    }
                }),
                ("an entry was removed", "the entry of default/p1", &|| {
                    let entries = kernel.pinned_map(&node.bpffs().join("maps/endpoints")).unwrap();
                    entries.delete(&index.to_le_bytes()).unwrap();
                }),
                ("an entry was changed", "the entry of default/p1", &|| {
                    let entries = kernel.pinned_map(&node.bpffs().join("maps/endpoints")).unwrap();
                    let mut value = entries.lookup(&index.to_le_bytes()).unwrap();
                    value[0] ^= 1;
                    entries.update(&index.to_le_bytes(), &value, 0).unwrap();
                }),
                ("an entry was added", "an entry of no endpoint", &|| {
                    let entries = kernel.pinned_map(&node.bpffs().join("maps/endpoints")).unwrap();
                    let value = entries.lookup(&index.to_le_bytes()).unwrap();
                    entries.update(&u32::MAX.to_le_bytes(), &value, 0).unwrap();
                }),
                ("a pin was removed", "maps/config", &|| fs::remove_file(node.bpffs().join("maps/config")).unwrap()),
                ("a pin holds another object", "maps/config", &|| {
                    let maps = node.bpffs().join("maps");
                    fs::rename(maps.join("endpoints"), maps.join("config")).unwrap();
                }),
            ];
            for (what, repaired, change) in changes {
                change();
                let found = switch(what).repaired;
                assert!(found.iter().any(|it| it.contains(repaired)), "{way:?}, {what}: {found:?}");
            }
        });
    });
}

/// The interface of a pod is renamed, and the interface of a pod is another one.
#[test]
fn a_switch_notices_changed_interfaces() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            switch_to(runtime, node, 81, "before");
            let name = node.interface(1);
            node.ip(&format!("link set {name} name other"));
            runtime.attach(&request(&only_port(80))).unwrap();
            let interfaces: Vec<String> = runtime.attached().unwrap().into_iter().map(|it| it.interface).collect();
            assert_eq!(interfaces, [node.interface(0), "other".to_owned()], "{way:?}");
            node.ip(&format!("link set other name {name}"));
            switch_to(runtime, node, 81, "renamed");
            node.ip(&format!("link del {name}"));
            node.plug(1);
            // Otherwise p0 still sends to the hardware address of the interface before.
            node.in_pod(0, || must("ip neigh flush dev eth0"));
            let gone = switch_to(runtime, node, 80, "another interface").gone;
            assert_eq!(gone.iter().map(|it| it.pod.as_str()).collect::<Vec<_>>(), ["default/p1"], "{way:?}");
        });
    });
}

#[test]
fn our_program_moves_before_a_foreign_program_that_allows_all_packets() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            let (index, socket, pass) = (ifindex(node), NetlinkSocket::open().unwrap(), verdict(0));
            let mut flow = connect(node, 0, pod_address(1, false), 80).unwrap();
            let mut stay = Vec::new();
            let mut overtake = |handle: u32| match way {
                HookKind::Tcx => {
                    // The kernel refuses a program that is already on the hook, and it removes the program of a closed
                    // link a little later.
                    let again = verdict(0);
                    stay.clear();
                    stay.push(BpfKernel::open().unwrap().attach(&again, index, Hook::Egress).unwrap());
                }
                HookKind::Clsact => {
                    let filter = Filter { priority: 1, handle, name: "foreign".to_owned(), program: 0 };
                    socket.put_filter(index, Hook::Egress, &filter, &pass, Put::New).unwrap();
                }
            };
            for handle in 1..=3 {
                overtake(handle);
                assert!(datagram(node, 0, 1, pod_address(1, false), 53), "{way:?}: it lets pass what policy denies");
                assert_repaired(node, runtime, "behind another program");
                if way == HookKind::Tcx {
                    remove_all(&node.bpffs().join("links"));
                    assert!(!datagram(node, 0, 1, pod_address(1, false), 53), "the link that was made again is held");
                    assert_repaired(node, runtime, "without the pins of links");
                }
                assert!(is_alive(&mut flow), "{way:?}");
            }
            // After three moves within a minute the pod is reported instead.
            overtake(4);
            let check = runtime.check_hooks().unwrap();
            let [(pod, why)] = &check.astray[..] else { panic!("{check:?}") };
            assert_eq!(pod, "default/p1");
            assert!(why.contains("foreign") && why.contains("before to_pod"), "{why}");
        });
    });
}

/// With clsact, a guard drops all packets while our filter is moved before another one. If the move fails before the
/// guard is removed, the guard is behind our filter, which passes the packets that it allows on to it.
#[test]
fn the_guard_of_an_interrupted_move_is_removed() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    serve(node, 1, 80);
    serve(node, 1, 81);
    let deletions = Arc::new(AtomicUsize::new(usize::MAX));
    let left = Arc::clone(&deletions);
    let refuse = move |operation| {
        let is_refused = operation == Operation::DeleteFilter && left.load(Ordering::SeqCst) != usize::MAX && {
            left.fetch_sub(1, Ordering::SeqCst) == 0
        };
        is_refused.then_some(libc::EPERM)
    };
    node.here(|| {
        let system = System::with_faults(Box::new(refuse)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        attach(&runtime, node, &only_port(80), Some(HookKind::Clsact)).unwrap();
        let (index, socket, pass) = (ifindex(node), NetlinkSocket::open().unwrap(), verdict(0));
        let interrupt = |handle| {
            let foreign = Filter { priority: 1, handle, name: "foreign".to_owned(), program: 0 };
            socket.put_filter(index, Hook::Egress, &foreign, &pass, Put::New).unwrap();
            // A move deletes a guard of before, our filter, and its guard.
            deletions.store(2, Ordering::SeqCst);
            let check = runtime.check_hooks().unwrap();
            assert_eq!(deletions.swap(usize::MAX, Ordering::SeqCst), usize::MAX, "the third deletion was refused");
            check
        };
        let check = interrupt(1);
        assert!(
            check.astray.iter().any(|(pod, why)| pod == "default/p1" && why.contains("may be dropped")),
            "{check:?}"
        );
        assert!(connect(node, 0, pod_address(1, false), 80).is_none(), "the guard drops everything: {check:?}");
        let check = runtime.check_hooks().unwrap();
        assert!(check.repaired.iter().any(|it| it.starts_with("a filter that dropped all packets")), "{check:?}");
        assert_eq!(check.astray, Vec::new(), "{check:?}");
        // The guard has dropped ARP too, which the kernel tries again after a second.
        assert!((0..10).any(|_| connect(node, 0, pod_address(1, false), 80).is_some()), "the guard is removed");
        assert_enforced(node, &runtime, "behind our filter");
        assert_eq!(runtime.check_hooks().unwrap(), HookCheck::default());
        interrupt(2);
        runtime.detach(None).unwrap();
        assert_eq!(socket.filters(index, Hook::Egress).unwrap().len(), 2, "only the foreign filters stay");
    });
}

/// With TCX, the guard of a move is a link that closes the interface. Nothing but a check removes one that was left.
#[test]
fn a_link_that_closes_an_enforced_interface_is_removed() {
    each(|node, way| {
        with_agent(node, way, |runtime| {
            close_interface(&node.bpffs(), &node.interface(1)).unwrap();
            assert!(connect(node, 0, pod_address(1, false), 80).is_none(), "{way:?}: it drops everything");
            let check = runtime.check_hooks().unwrap();
            assert!(check.repaired.iter().any(|it| it.contains("dropped all packets")), "{way:?}: {check:?}");
            // The kernel ends the link a little later, and a link runs before our filter.
            assert!(check.astray.is_empty() || way == HookKind::Clsact, "{check:?}");
            assert!((0..10).any(|_| connect(node, 0, pod_address(1, false), 80).is_some()), "{way:?}");
            assert_enforced(node, runtime, "without the link");
            assert_eq!(runtime.check_hooks().unwrap(), HookCheck::default(), "{way:?}");
        });
    });
}

/// A call fails after the record of a new generation is in force. The next check must not bring back the record before
/// it, and the generation of that.
#[test]
fn a_failed_call_after_a_switch_does_not_undo_it() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    [80, 81].into_iter().for_each(|port| serve(node, 1, port));
    let (asked, failing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let (count, place) = (Arc::clone(&asked), Arc::clone(&failing));
    let faults =
        move |_| (count.fetch_add(1, Ordering::SeqCst) == place.load(Ordering::SeqCst)).then_some(libc::EMFILE);
    let made = [only_port(80), only_port(81)];
    let ports = [80, 81];
    node.here(|| {
        let system = System::with_faults(Box::new(faults)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap();
        let runtime = runtime.without_grace().keeping().unwrap();
        let reaches = |turn: usize| connect(node, 0, pod_address(1, false), ports[turn % 2]).is_some();
        let switch = |turn: usize| attach(&runtime, node, &made[turn % 2], Some(HookKind::Tcx));
        (0..3).for_each(|turn| switch(turn).and_then(|()| runtime.reap()).unwrap());
        asked.store(0, Ordering::SeqCst);
        switch(3).unwrap();
        let calls = asked.load(Ordering::SeqCst);
        runtime.reap().unwrap();
        let (mut turn, mut forgotten) = (4, 0);
        for nth in calls.saturating_sub(12)..calls {
            asked.store(0, Ordering::SeqCst);
            failing.store(nth, Ordering::SeqCst);
            let result = switch(turn);
            failing.store(usize::MAX, Ordering::SeqCst);
            let is_new = reaches(turn);
            forgotten += usize::from(is_new && result.is_err());
            for _ in 0..2 {
                runtime.check_hooks().unwrap();
                assert_eq!(reaches(turn), is_new, "call {nth} of {calls}, {result:?}: a check has undone the switch");
            }
            switch(turn).and_then(|()| runtime.reap()).unwrap();
            assert!(reaches(turn) && !reaches(turn + 1), "call {nth}");
            turn += 1;
        }
        assert!(forgotten > 0, "no call failed after the switch");
    });
}

/// The record cannot be opened for a moment, nor can another one be made: the pinned one stays.
#[test]
fn a_record_that_cannot_be_opened_for_a_moment_is_not_lost() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    [80, 81].into_iter().for_each(|port| serve(node, 1, port));
    let refuses = Arc::new(AtomicBool::new(false));
    let refusing = Arc::clone(&refuses);
    let refuse = move |operation| {
        let is_refused = matches!(operation, Operation::PinnedMap | Operation::CreateMap | Operation::Pin);
        (is_refused && refusing.load(Ordering::SeqCst)).then_some(libc::EMFILE)
    };
    node.here(|| {
        let system = System::with_faults(Box::new(refuse)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        attach(&runtime, node, &only_port(80), None).unwrap();
        refuses.store(true, Ordering::SeqCst);
        runtime.check_hooks().unwrap_err();
        drop(runtime);
        refuses.store(false, Ordering::SeqCst);
        let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        assert_eq!(runtime.attached().unwrap().len(), 2, "the record is there");
        assert_enforced(node, &runtime, "with the record of before");
    });
}

/// The process dies during a move to TCX, and afterwards the hooks refuse every link: the pod stays on clsact.
#[test]
fn an_interrupted_move_to_hooks_that_refuse_programs_is_undone() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    [80, 81].into_iter().for_each(|port| serve(node, 1, port));
    let runtime = |refuse: fn(Operation, bool) -> bool| {
        let has_begun = AtomicBool::new(false);
        let faults = move |operation| {
            has_begun.fetch_or(operation == Operation::Attach, Ordering::SeqCst);
            refuse(operation, has_begun.load(Ordering::SeqCst)).then_some(libc::ENOMEM)
        };
        let system = System::with_faults(Box::new(faults)).unwrap();
        Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().one_by_one()
    };
    node.here(|| {
        attach(&runtime(|_, _| false), node, &only_port(80), Some(HookKind::Clsact)).unwrap();
        let mut flow = connect(node, 0, pod_address(1, false), 80).unwrap();
        attach(&runtime(|_, has_begun| has_begun), node, &only_port(80), Some(HookKind::Tcx)).unwrap_err();
        let refusing = runtime(|operation, _| operation == Operation::Attach);
        refusing.repair().unwrap();
        assert_enforced(node, &refusing, "after a repair");
        attach(&refusing, node, &only_port(81), None).unwrap();
        assert!(connect(node, 0, pod_address(1, false), 81).is_some(), "the next generation is in force");
        assert!(connect(node, 0, pod_address(1, false), 80).is_none(), "the next generation is in force");
        assert!(refusing.attached().unwrap().iter().all(|it| it.way == HookKind::Clsact));
        drop(refusing);
        let runtime = runtime(|_, _| false);
        attach(&runtime, node, &only_port(80), Some(HookKind::Tcx)).unwrap();
        assert!(runtime.attached().unwrap().iter().all(|it| it.way == HookKind::Tcx));
        assert_enforced(node, &runtime, "after the move");
        _ = is_alive(&mut flow);
    });
}

/// Another thread removes pins while generations are switched. No packet passes that all generations deny, and the last
/// check repairs everything.
#[test]
fn pins_that_are_removed_during_switches_open_nothing() {
    skip!(unless possible());
    for way in [HookKind::Tcx, HookKind::Clsact] {
        let node = &Node::new(Layout::Routed, 2);
        serve(node, 1, 79);
        with_agent(node, way, |runtime| {
            let over = AtomicBool::new(false);
            let (mut done, mut failed) = (0, 0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 0_usize.. {
                        let root = node.bpffs();
                        let names = ["record", "links", "maps", "progs", "next", "old", "", "record_next"];
                        remove_all(&root.join(names[round % names.len()]));
                        if over.load(Ordering::SeqCst) {
                            return;
                        }
                        std::thread::sleep(std::time::Duration::from_micros(500 * (round as u64 % 7)));
                    }
                });
                scope.spawn(|| {
                    while !over.load(Ordering::SeqCst) {
                        assert!(
                            connect(node, 0, pod_address(1, false), 79).is_none(),
                            "{way:?}: no generation allows 79"
                        );
                    }
                });
                for round in 0..60 {
                    match attach(runtime, node, &only_port(80 + round % 2), None) {
                        Ok(()) => done += 1,
                        Err(_) => failed += 1,
                    }
                    _ = runtime.check_hooks();
                }
                over.store(true, Ordering::SeqCst);
            });
            eprintln!("{way:?}: {done} switches came through, {failed} failed");
            runtime.check_hooks().unwrap();
            attach(runtime, node, &only_port(80), None).unwrap();
            runtime.check_hooks().unwrap();
            assert_enforced(node, runtime, "in the end");
        });
    }
}

/// More pods than get TCX links at once. They are enforced through clsact first. A pod that a hook refuses stays there,
/// is reported by a repair, and does not keep the others from moving.
#[test]
fn pods_that_came_in_a_crowd_move_to_tcx_one_at_a_time() {
    const PODS: usize = 18;
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    let bare: String = (2..PODS).map(|pod| format!("link add veth{pod} type veth peer name other{pod}\n")).collect();
    node.batch(&bare);
    [80, 81].into_iter().for_each(|port| serve(node, 1, port));
    let from = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]";
    let made = artifact(&cluster(PODS, &policy(1, "Ingress", from)));
    let endpoints = (0..PODS).map(|pod| (format!("default/p{pod}"), node.interface(pod))).collect();
    let refuses = Arc::new(AtomicBool::new(true));
    let refusing = Arc::clone(&refuses);
    let refuse =
        move |operation| (operation == Operation::Attach && refusing.load(Ordering::SeqCst)).then_some(libc::ENOMEM);
    node.here(|| {
        let system = System::with_faults(Box::new(refuse)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap();
        let runtime = &runtime.keeping().unwrap().moving_every(Duration::from_millis(200));
        runtime.attach(&Request { endpoints, ..request(&made) }).unwrap();
        let moved = || runtime.attached().unwrap().iter().filter(|it| it.way == HookKind::Tcx).count();
        let check = || {
            assert_eq!(runtime.check_hooks().unwrap(), HookCheck::default());
            std::thread::sleep(Duration::from_millis(100));
        };
        assert_eq!(moved(), 0);
        (0..14).for_each(|_| check());
        assert_eq!(moved(), 0, "the hooks refuse it");
        let Err(Error::Partial(failures)) = runtime.repair() else { panic!("failed moves are reported") };
        assert!(failures.len() > 1, "the pods take turns: {failures:?}");
        assert!(failures.iter().all(|it| it.now == StateAfterFailure::AsBefore), "{failures:?}");
        assert_enforced(node, runtime, "before the moves");
        refuses.store(false, Ordering::SeqCst);
        let all_have_moved = (0..100 * PODS).any(|_| {
            let before = moved();
            check();
            assert!([0, 1].contains(&(moved() - before)), "one at a time");
            moved() == PODS
        });
        assert!(all_have_moved, "{} of {PODS}", moved());
        assert_enforced(node, runtime, "after the moves");
        assert_eq!(runtime.repair().unwrap(), Vec::<String>::new());
        remove_all(&node.bpffs().join("links"));
        assert!(connect(node, 0, pod_address(1, false), 81).is_none(), "the new links are held without their pins");
        assert_repaired(node, runtime, "without the pins of links");
    });
}

/// Prints the cost of a check on a full node; it does not test it.
#[test]
fn a_check_of_a_full_node_finds_no_deviation() {
    const PODS: usize = 110;
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 0);
    let links: String = (0..PODS).map(|pod| format!("link add bare{pod} type veth peer name other{pod}\n")).collect();
    node.batch(&links);
    let made = artifact(&cluster(PODS, ""));
    for way in [HookKind::Clsact, HookKind::Tcx] {
        node.here(|| {
            let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
            let endpoints = (0..PODS).map(|pod| (format!("default/p{pod}"), format!("bare{pod}"))).collect();
            runtime.attach(&Request { endpoints, way: Some(way), ..request(&made) }).unwrap();
            runtime.check_hooks().unwrap();
            let took = (0..20).map(|_| {
                let started = Instant::now();
                assert_eq!(runtime.check_hooks().unwrap(), HookCheck::default());
                started.elapsed()
            });
            eprintln!("{way:?}: a look at {PODS} interfaces takes {:?} at least", took.min());
            runtime.detach(None).unwrap();
        });
    }
}
