//! The spare that an agent prepares: the first change loads no program and reads no table, and nothing that is in force
//! changes, whatever fails.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_runtime::runtime::{PinAccess, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{HookKind, skip};

use crate::attach::each;
use crate::faults::{all_is_well, errnos, reaches, stride};
use crate::net::{Node, pod_address, possible};
use crate::policy::{agents_artifact, cluster, policy};
use crate::probe::{connect, serve};
use crate::spare::{
    Made, PREPARED, agent, agent_with_spare, assert_in_force, attach, damage_spare, only_port, pinned, with_servers,
};

/// Returns whether there was anything to prepare.
fn prepare(runtime: &Runtime, made: &Made) -> bool {
    runtime.prepare_spare(&made.0, &made.1).unwrap()
}

#[test]
fn the_first_change_after_a_preparation_loads_no_program() {
    each(|node, way| {
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        let made = [only_port(80), only_port(81)];
        node.here(|| {
            let (runtime, loads) = agent(node);
            attach(&runtime, node, &made[0], way).unwrap();
            let before = (runtime.epoch_and_file().unwrap(), pinned(node, "progs"), pinned(node, "maps"));
            assert!(prepare(&runtime, &made[0]), "{way:?}");
            let after = (runtime.epoch_and_file().unwrap(), pinned(node, "progs"), pinned(node, "maps"));
            assert_eq!(before, after, "{way:?}: what is in force stays");
            all_is_well(node, &format!("{way:?}: a preparation"));
            assert_in_force(node, &runtime, 80, 81, &format!("{way:?}: prepared"));
            let (spare, loaded) = (pinned(node, "old"), loads.load(Ordering::Relaxed));
            assert_eq!(loaded, 4 + PREPARED, "{way:?}: two programs for each of the two banks");
            assert_eq!(spare.iter().filter(|(is_program, _)| *is_program).count(), 2, "{way:?}");
            assert!(!prepare(&runtime, &made[0]), "{way:?}: once is enough");
            assert_eq!((pinned(node, "old"), loads.load(Ordering::Relaxed)), (spare, loaded), "{way:?}");
            for turn in 1..4 {
                attach(&runtime, node, &made[turn % 2], way).unwrap();
                assert!(!prepare(&runtime, &made[turn % 2]), "{way:?} {turn}: two banks take turns");
                assert_in_force(node, &runtime, [80, 81][turn % 2], [81, 80][turn % 2], &format!("{way:?} {turn}"));
                runtime.reap().unwrap();
            }
            assert_eq!(loads.load(Ordering::Relaxed), loaded, "{way:?}: changes load nothing");
            runtime.detach(None).unwrap();
        });
    });
}

/// An agent whose operations are counted.
fn counted_agent(node: &Node) -> (Runtime, Arc<Mutex<BTreeMap<Operation, usize>>>) {
    let seen: Arc<Mutex<BTreeMap<Operation, usize>>> = Arc::default();
    let counts = Arc::clone(&seen);
    let count = move |operation| {
        *counts.lock().unwrap().entry(operation).or_default() += 1;
        None
    };
    let system = System::with_faults(Box::new(count)).unwrap();
    (Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap(), seen)
}

/// The content of an earlier process's spare is not known. The preparation reads it, so that the next change need not.
#[test]
fn the_spare_of_an_earlier_process_is_read_by_the_preparation() {
    skip!(unless possible());
    for is_damaged in [false, true] {
        let node = &with_servers();
        node.here(|| {
            drop(agent_with_spare(node));
            if is_damaged {
                damage_spare(node);
            }
            let (runtime, seen) = counted_agent(node);
            let spare = pinned(node, "old");
            attach(&runtime, node, &only_port(81), HookKind::Tcx).unwrap();
            assert!(prepare(&runtime, &only_port(81)));
            assert_eq!(pinned(node, "old"), spare, "the spare stays");
            all_is_well(node, "a preparation");
            let reads = |at: &BTreeMap<Operation, usize>| at.get(&Operation::Entries).copied().unwrap_or(0);
            let before = reads(&seen.lock().unwrap());
            attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
            let after = seen.lock().unwrap().clone();
            // Tables of endpoints are small, and are always read.
            assert!(reads(&after) - before < before, "{after:?} and before {before}");
            assert_in_force(node, &runtime, 80, 81, "after the preparation");
            assert!(!runtime.deviations().unwrap().wrong_tables);
            assert!(
                prepare(&runtime, &only_port(80)),
                "an earlier process has written the tables of the generation before"
            );
            attach(&runtime, node, &only_port(81), HookKind::Tcx).unwrap();
            assert!(!prepare(&runtime, &only_port(81)));
            assert_in_force(node, &runtime, 81, 80, "after the second preparation");
            assert_eq!(seen.lock().unwrap().get(&Operation::Load), None, "no program is loaded");
        });
    }
}

/// A generation has other programs than another one, and some of its tables.
fn assert_new_programs(before: &BTreeSet<(bool, u32)>, after: &BTreeSet<(bool, u32)>) {
    let both: Vec<_> = before.intersection(after).collect();
    assert!(both.iter().all(|(is_program, _)| !is_program) && !both.is_empty(), "only tables: {both:?}");
}

#[test]
fn a_preparation_for_other_programs_replaces_the_spare() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, loads) = agent_with_spare(node);
        // A policy for egress makes the agent emit other programs.
        let made = [80, 81].map(|port| {
            let rules = format!("ingress: [{{ports: [{{port: {port}}}]}}], egress: [{{}}]");
            agents_artifact(&cluster(2, &policy(1, "Ingress, Egress", &rules)))
        });
        attach(&runtime, node, &made[0], HookKind::Tcx).unwrap();
        runtime.reap().unwrap();
        let before = pinned(node, "old");
        assert!(prepare(&runtime, &made[0]), "the spare has other programs");
        assert_new_programs(&before, &pinned(node, "old"));
        all_is_well(node, "a preparation");
        let loaded = loads.load(Ordering::Relaxed);
        attach(&runtime, node, &made[1], HookKind::Tcx).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), loaded);
        assert_in_force(node, &runtime, 81, 80, "after the preparation");
    });
}

/// A command keeps no spare, and an agent prepares nothing for a generation that is not in force.
#[test]
fn nothing_is_prepared_without_need() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap();
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert!(!prepare(&runtime, &only_port(80)), "a command");
        drop(runtime);
        let (runtime, _) = agent(node);
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert!(!prepare(&runtime, &only_port(81)), "another generation");
        assert_eq!(pinned(node, "old").len(), 0);
        assert_in_force(node, &runtime, 80, 81, "nothing was prepared");
    });
}

/// Addresses and pods that come between a preparation and the next change are in the generation in force only.
#[test]
fn single_writes_after_a_preparation_do_not_outlive_their_generation() {
    skip!(unless possible());
    let node = &with_servers();
    let (elsewhere, p0): (IpAddr, IpAddr) = ("10.9.7.7".parse().unwrap(), pod_address(0, false));
    node.here(|| {
        let (runtime, loads) = agent(node);
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        runtime.write_addresses(&[(elsewhere, Some(1))], true).unwrap();
        assert!(prepare(&runtime, &only_port(80)));
        runtime.write_addresses(&[(elsewhere, Some(2)), (p0, None)], true).unwrap();
        assert!(connect(node, 0, pod_address(1, false), 80).is_none(), "p0 has lost its class");
        let loaded = loads.load(Ordering::Relaxed);
        attach(&runtime, node, &only_port(81), HookKind::Tcx).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), loaded);
        assert_in_force(node, &runtime, 81, 80, "p0 has its class again");
        let found = runtime.deviations().unwrap();
        assert!(!found.wrong_tables, "{found:?}");
        // The same artifact as before the writes is another generation, and the spare has it already.
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert_in_force(node, &runtime, 80, 81, "again");
        assert!(!runtime.deviations().unwrap().wrong_tables);
    });
}

/// Where the kernel cannot wait for programs that still run, no generation becomes a spare. Each change is prepared by
/// loading a new one.
#[test]
fn each_change_is_prepared_where_no_generation_becomes_a_spare() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let refuse = |operation| (operation == Operation::WaitForPrograms).then_some(libc::EPERM);
        let system = System::with_faults(Box::new(refuse)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        for (turn, port) in [80, 81, 80, 81].into_iter().enumerate() {
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            assert_in_force(node, &runtime, port, 161 - port, &format!("turn {turn}"));
            // Also without a call of `reap` before.
            assert!(prepare(&runtime, &only_port(port)), "turn {turn}");
            assert!(!prepare(&runtime, &only_port(port)), "turn {turn}");
            all_is_well(node, &format!("turn {turn}"));
        }
    });
}

/// The spare has the programs of the generation in force, and too little room for its addresses.
#[test]
fn a_spare_without_room_is_replaced() {
    skip!(unless possible());
    let node = &with_servers();
    let with_addresses = |count: usize| {
        let pods = (0..count).map(|it| {
            let address = format!("10.77.{}.{}", it / 200, it % 200 + 1);
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: far-{it}, namespace: default, labels: {{pod: far}}}}\n\
                 spec: {{nodeName: far, containers: [{{name: c, image: i}}]}}\n\
                 status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n---\n"
            )
        });
        let rules = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]},\
                     {from: [{podSelector: {matchLabels: {pod: far}}}]}]";
        agents_artifact(&cluster(2, &(pods.collect::<String>() + &policy(1, "Ingress", rules))))
    };
    node.here(|| {
        let (runtime, _) = agent(node);
        let (few, many) = (with_addresses(20), with_addresses(400));
        assert_eq!(few.0.code_digest(), many.0.code_digest());
        attach(&runtime, node, &few, HookKind::Tcx).unwrap();
        attach(&runtime, node, &many, HookKind::Tcx).unwrap();
        runtime.reap().unwrap();
        let before = pinned(node, "old");
        assert!(prepare(&runtime, &many));
        assert_new_programs(&before, &pinned(node, "old"));
        assert!(!prepare(&runtime, &many));
        assert_in_force(node, &runtime, 80, 81, "after the preparation");
    });
}

/// Each operation of a preparation fails, alone or with all that follow. The generation in force stays, and the next
/// change is right.
fn prepare_with_faults(has_spare: bool, dies: bool) {
    let node = &with_servers();
    let ports = [80, 81];
    let made = ports.map(only_port);
    let (mut nth, mut failed) = (0, 0);
    loop {
        let (asked, failing) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
        let (count, place) = (Arc::clone(&asked), Arc::clone(&failing));
        let faults = move |operation: Operation| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let (answers, place) = (errnos(operation), place.load(Ordering::Relaxed));
            (number == place || dies && number > place).then(|| answers[number % answers.len()])
        };
        let what = format!("place {nth}, dies: {dies}, has a spare: {has_spare}");
        let is_felt = node.here(|| {
            if has_spare {
                drop(agent_with_spare(node));
            }
            let system = System::with_faults(Box::new(faults)).unwrap();
            let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().without_grace();
            let runtime = runtime.keeping().unwrap();
            attach(&runtime, node, &made[1], HookKind::Tcx).unwrap();
            runtime.reap().unwrap();
            asked.store(0, Ordering::Relaxed);
            failing.store(nth, Ordering::Relaxed);
            let result = runtime.prepare_spare(&made[1].0, &made[1].1);
            let is_felt = asked.load(Ordering::Relaxed) > nth;
            failing.store(usize::MAX, Ordering::Relaxed);
            failed += usize::from(result.is_err());
            assert!(reaches(node, 81), "{what}");
            let runtime = if dies {
                drop(runtime);
                Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().without_grace().keeping().unwrap()
            } else {
                runtime
            };
            attach(&runtime, node, &made[0], HookKind::Tcx).unwrap_or_else(|error| panic!("{what}: {error}"));
            runtime.reap().unwrap();
            assert_in_force(node, &runtime, 80, 81, &what);
            is_felt
        });
        all_is_well(node, &what);
        node.here(|| Runtime::open(&node.bpffs(), PinAccess::Change).unwrap().detach(None)).unwrap();
        if !is_felt {
            break;
        }
        nth += stride();
    }
    println!("{nth} places, {failed} felt; dies: {dies}, has a spare: {has_spare}");
    // If the spare cannot be written, a new one is loaded, so few faults are felt.
    let least = if has_spare { 1 } else { 20 / stride() };
    assert!(failed >= least, "{failed} of {nth}");
}

#[test]
fn a_preparation_survives_every_fault() {
    skip!(unless possible());
    for has_spare in [false, true] {
        [false, true].into_iter().for_each(|dies| prepare_with_faults(has_spare, dies));
    }
}
