//! Endpoints whose interfaces disappeared without notice are cleaned up, and switches leave nothing behind.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_runtime::runtime::{EnforcementState, PinAccess, Request, Runtime};
use weir_runtime::sys::netlink::{Filter, Put};
use weir_runtime::sys::{BpfKernel, Hook};
use weir_runtime::system::System;
use weir_runtime::{HookKind, skip};

use crate::attach::{attach, only_port, request, status};
use crate::net::{Layout, Node, possible};
use crate::policy::{artifact, cluster, policy};

const LEFT: usize = 1_000;

/// As many interfaces as a node's pods in a day, removed without a detach.
#[test]
fn a_thousand_leftover_pins_are_removed() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 1);
    let made = artifact(&cluster(1, &policy(0, "Ingress", "ingress: []")));
    let pairs = (0..LEFT).step_by(2).map(|it| format!("link add gone{it} type veth peer name gone{}\n", it + 1));
    node.batch(&pairs.collect::<String>());
    node.batch(&(0..LEFT).map(|it| format!("link set gone{it} group 7\n")).collect::<String>());
    let gone = (0..LEFT).map(|it| ("default/p0".to_owned(), format!("gone{it}")));
    let endpoints = gone.chain([("default/p0".to_owned(), node.interface(0))]).collect();
    let all = Request { endpoints, way: Some(HookKind::Clsact), ..request(&made) };
    node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.attach(&all)).unwrap();
    assert_eq!(status(&node).unwrap().endpoints.len(), LEFT + 1);
    node.ip("link del group 7");
    // Also pins that are not in the record: links made by a process that died.
    let kernel = BpfKernel::open().unwrap();
    let map = kernel.pinned_map(&node.bpffs().join("maps/endpoints")).unwrap();
    let stray = |it: usize| node.bpffs().join(format!("links/from_pod_{}", 1_000_000 + it));
    (0..LEFT).for_each(|it| kernel.pin(std::os::fd::AsFd::as_fd(&map), &stray(it)).unwrap());
    assert_eq!(map.entries().unwrap().len(), LEFT + 1);

    let attached = attach(&node, &made, &[0], None).unwrap();
    assert_eq!((attached.gone.len(), attached.endpoints.len()), (LEFT, 1));
    let status = status(&node).unwrap();
    assert!(status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced), "{:?}", status.endpoints);
    assert_eq!(status.drift, Vec::<String>::new());
    assert_eq!(std::fs::read_dir(node.bpffs().join("links")).unwrap().count(), 0);
    assert_eq!(map.entries().unwrap().len(), 1);
}

/// Names, addresses and numbers of interfaces are reused. An interface is the same one as before if our programs still
/// run there.
#[test]
fn a_recreated_interface_is_a_new_one_and_a_renamed_one_stays_attached() {
    skip!(unless possible());
    for way in [HookKind::Tcx, HookKind::Clsact] {
        let node = Node::new(Layout::Routed, 2);
        let made = only_port(80);
        attach(&node, &made, &[0, 1], Some(way)).unwrap();
        // Renamed and with another address, as udev does it: still the same interface, even if its programs are removed
        // afterwards.
        node.ip("link set veth1 down");
        node.ip("link set veth1 name other1 address 02:00:00:00:00:01 up");
        attach(&node, &made, &[], None).unwrap();
        let names = |node: &Node| {
            status(node).unwrap().endpoints.iter().map(|it| it.endpoint.interface.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&node), ["veth0", "other1"], "{way:?}");
        match way {
            HookKind::Tcx => std::fs::remove_file(links(&node).pop().unwrap()).unwrap(),
            HookKind::Clsact => node.tc("qdisc del dev other1 clsact"),
        }
        // The kernel removes a link some time after its pin. Until then the program is still there, and a second link
        // is refused.
        let attached = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            attach(&node, &made, &[], None).ok()
        });
        let attached = attached.expect("the kernel lets go of the link");
        assert_eq!(attached.gone.len(), 0, "{way:?}");
        assert!(status(&node).unwrap().endpoints.iter().all(|it| it.state == EnforcementState::Enforced), "{way:?}");
        // The interface is removed and comes back under another name: once with the same number and address, once with
        // another address.
        for (again, address) in [("third1", "02:00:00:00:00:01"), ("third1", "02:00:00:00:00:02")] {
            let before = status(&node).unwrap().endpoints.pop().unwrap().endpoint;
            node.ip(&format!("link del {}", before.interface));
            node.ip(&format!("link add {again} index {} address {address} type veth peer name peer1", before.ifindex));
            assert_eq!(status(&node).unwrap().endpoints[1].state, EnforcementState::Gone, "{way:?}");
            let attached = attach(&node, &made, &[], None).unwrap();
            assert_eq!(attached.gone.iter().map(|it| it.pod.as_str()).collect::<Vec<_>>(), ["default/p1"], "{way:?}");
            let endpoints = vec![("default/p1".to_owned(), again.to_owned())];
            let again = Request { endpoints, way: Some(way), ..request(&made) };
            node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change)?.attach(&again)).unwrap();
            assert_eq!((status(&node).unwrap().drift, names(&node).len()), (Vec::new(), 2), "{way:?}");
        }
    }
}

/// A pod is deleted, and the interface of the next one gets its number, and is closed before the agent sees either. On a
/// kernel without TCX, the closing filter is where the old pod's was.
#[test]
fn a_closed_interface_with_the_number_of_one_that_is_gone_stays_closed() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    let made = only_port(80);
    attach(&node, &made, &[0, 1], Some(HookKind::Clsact)).unwrap();
    let before = status(&node).unwrap().endpoints.pop().unwrap().endpoint;
    node.ip(&format!("link del {}", before.interface));
    node.ip(&format!("link add new1 index {} type veth peer name peer1", before.ifindex));
    let system = System::with_faults(Box::new(|_| None)).unwrap();
    // `r0 = TC_ACT_SHOT; exit`
    let closed = system.load("weir_held", &[0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0], None).unwrap();
    let sides = [(Hook::Ingress, "weir_from_pod"), (Hook::Egress, "weir_to_pod")];
    node.here(|| {
        let system = System::with_faults(Box::new(|_| None)).unwrap();
        system.add_clsact(before.ifindex).unwrap();
        for (hook, name) in sides {
            let filter = Filter { priority: 1, handle: 0x7765_6972, name: name.to_owned(), program: 0 };
            system.put_filter(before.ifindex, hook, &filter, &closed, Put::New).unwrap();
        }
    });
    assert_eq!(status(&node).unwrap().endpoints[1].state, EnforcementState::Gone);
    let attached = attach(&node, &made, &[], None).unwrap();
    assert_eq!(attached.gone.iter().map(|it| it.pod.as_str()).collect::<Vec<_>>(), ["default/p1"]);
    let number = system.program_info(&closed).unwrap().id;
    let there = |hook| node.here(|| System::with_faults(Box::new(|_| None)).unwrap().filters(before.ifindex, hook));
    for (hook, name) in sides {
        let numbers: Vec<u32> = there(hook).unwrap().iter().map(|it| it.program).collect();
        assert_eq!(numbers, [number], "{name} still drops everything");
    }
}

/// On a kernel without TCX, an interface is closed by filters. No pin and perhaps no record names it, but after an
/// uninstall it is open.
#[test]
fn an_uninstall_opens_interfaces_that_filters_close() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    attach(&node, &only_port(80), &[0], Some(HookKind::Clsact)).unwrap();
    node.here(|| {
        let system = System::with_faults(Box::new(|_| None)).unwrap();
        // `r0 = TC_ACT_SHOT; exit`
        let closed = system.load("weir_held", &[0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0], None).unwrap();
        let pod = system.interface_named(&node.interface(1)).unwrap().unwrap().ifindex;
        system.add_clsact(pod).unwrap();
        let sides = [(Hook::Ingress, "weir_from_pod"), (Hook::Egress, "weir_to_pod")];
        let put = |handle, hook, name: &str| {
            let filter = Filter { priority: 1, handle, name: name.to_owned(), program: 0 };
            system.put_filter(pod, hook, &filter, &closed, Put::New).unwrap();
        };
        sides.iter().for_each(|(hook, _)| put(1, *hook, "weir_held"));
        // With and without an endpoint that stays.
        for by_hand_too in [false, true] {
            sides.iter().for_each(|(hook, name)| put(0x7765_6972, *hook, name));
            Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().uninstall(by_hand_too).unwrap();
            for (hook, _) in sides {
                let handles: Vec<u32> = system.filters(pod, hook).unwrap().iter().map(|it| it.handle).collect();
                assert_eq!(handles, [1], "ours are removed, and no others");
            }
        }
    });
}

/// Pinned links, in order of their names.
fn links(node: &Node) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(node.bpffs().join("links")).unwrap();
    let mut links: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    links.sort();
    links
}

/// Numbers of everything that is pinned, as the kernel counts its objects.
fn pinned(node: &Node, kernel: &BpfKernel, maps: &mut BTreeSet<u32>, programs: &mut BTreeSet<u32>) {
    for (directory, is_program) in [("maps", false), ("progs", true)] {
        for entry in std::fs::read_dir(node.bpffs().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if is_program {
                programs.insert(kernel.pinned_program(&path).unwrap().info().unwrap().id);
            } else {
                maps.insert(kernel.pinned_map(&path).unwrap().info().unwrap().id);
            }
        }
    }
}

/// How many of the objects that were pinned and no longer are still exist.
fn left(pinned: &BTreeSet<u32>, pinned_now: &BTreeSet<u32>, existing: Vec<u32>) -> usize {
    existing.iter().filter(|it| pinned.contains(it) && !pinned_now.contains(it)).count()
}

/// After a switch, no map, program or memory of the previous generation remains.
#[test]
fn switches_leave_no_maps_and_programs_behind() {
    skip!(unless possible());
    let switches = std::env::var("WEIR_LOAD_SWITCHES").ok().and_then(|it| it.parse().ok()).unwrap_or(60);
    let node = Node::new(Layout::Routed, 2);
    let made = [only_port(80), only_port(81)];
    let kernel = BpfKernel::open().unwrap();
    let (mut maps, mut programs) = (BTreeSet::new(), BTreeSet::new());
    attach(&node, &made[1], &[0, 1], Some(HookKind::Tcx)).unwrap();
    for turn in 0..switches {
        pinned(&node, &kernel, &mut maps, &mut programs);
        node.here(|| {
            let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().without_grace();
            runtime.attach(&request(&made[turn % 2])).unwrap();
            runtime.reap().unwrap();
        });
    }
    let (mut maps_now, mut programs_now) = (BTreeSet::new(), BTreeSet::new());
    pinned(&node, &kernel, &mut maps_now, &mut programs_now);
    assert!(programs.len() >= 2 * switches && programs_now.len() == 2, "{} programs", programs.len());
    // The kernel frees them some time after the last reference is dropped.
    let begun = std::time::Instant::now();
    loop {
        let maps = left(&maps, &maps_now, kernel.map_numbers().unwrap());
        let programs = left(&programs, &programs_now, kernel.program_numbers().unwrap());
        if maps + programs == 0 {
            break;
        }
        assert!(begun.elapsed().as_secs() < 120, "{maps} maps and {programs} programs are left of {switches} switches");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(status(&node).unwrap().drift, Vec::<String>::new());
}
