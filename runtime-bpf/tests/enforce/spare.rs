//! The spare: a switch to other tables under the same programs loads no program, and the earlier content of a spare
//! never comes into force.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weir_runtime::runtime::{Attached, PinAccess, Request, Runtime};
use weir_runtime::sys::{BpfKernel, KernelMap};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, HookKind, skip};

use crate::attach::{each, request};
use crate::faults::all_is_well;
use crate::net::{Layout, Node, pod_address, possible};
use crate::policy::{agents_artifact, cluster, policy};
use crate::probe::{connect, serve};
use crate::switch::{converse, flood};

pub(crate) type Made = (weir_artifact::Artifact, Vec<u8>);

/// Only from p0, only to this port.
pub(crate) fn only_port(port: u16) -> Made {
    only_port_by("of-p1", port)
}

/// The same, by a policy with this name.
fn only_port_by(name: &str, port: u16) -> Made {
    let from = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: PORT}]}]";
    let policy = policy(1, "Ingress", &from.replace("PORT", &port.to_string()));
    agents_artifact(&cluster(2, &policy.replace("of-p1", name)))
}

/// A runtime as the agent uses it, and the number of programs that it has loaded.
pub(crate) fn agent(node: &Node) -> (Runtime, Arc<AtomicUsize>) {
    agent_counting(Operation::Load, node)
}

/// An agent, and how many operations of a kind it has asked for.
pub(crate) fn agent_counting(counted: Operation, node: &Node) -> (Runtime, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let total = Arc::clone(&asked);
    let count = move |operation| {
        total.fetch_add(usize::from(operation == counted), Ordering::Relaxed);
        None
    };
    let system = System::with_faults(Box::new(count)).unwrap();
    let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap();
    (runtime.keeping().unwrap(), asked)
}

pub(crate) fn attach(runtime: &Runtime, node: &Node, made: &Made, way: HookKind) -> Result<Attached, Error> {
    let endpoints = [0, 1].map(|pod| (format!("default/p{pod}"), node.interface(pod))).to_vec();
    runtime.attach(&Request { endpoints, way: Some(way), ..request(made) })
}

/// The numbers of the programs and maps that are pinned in a directory, apart from the map of the artifact's file.
pub(crate) fn pinned(node: &Node, directory: &str) -> BTreeSet<(bool, u32)> {
    let kernel = BpfKernel::open().unwrap();
    let number = |path: std::path::PathBuf| {
        let is_program = ["to_pod", "from_pod"].iter().any(|name| path.ends_with(name));
        let number = match is_program {
            true => kernel.pinned_program(&path).unwrap().info().unwrap().id,
            false => kernel.pinned_map(&path).unwrap().info().unwrap().id,
        };
        (is_program, number)
    };
    let paths = fs::read_dir(node.bpffs().join(directory)).unwrap().flatten().map(|it| it.path());
    paths.filter(|path| !path.ends_with("artifact")).map(number).collect()
}

/// The loads of the program that does nothing, with which new endpoints begin.
pub(crate) const PREPARED: usize = 1;

#[track_caller]
pub(crate) fn assert_in_force(node: &Node, runtime: &Runtime, allowed: u16, denied: u16, what: &str) {
    assert!(connect(node, 0, pod_address(1, false), allowed).is_some(), "{what}: {allowed} is allowed");
    assert!(connect(node, 0, pod_address(1, false), denied).is_none(), "{what}: {denied} is denied");
    assert_eq!(runtime.status().unwrap().drift, Vec::<String>::new(), "{what}");
}

#[test]
fn switches_to_other_tables_load_no_program() {
    each(|node, way| {
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        let made = [only_port(80), only_port(81)];
        node.here(|| {
            let (runtime, loads) = agent(node);
            let (mut programs, mut own) = (BTreeSet::new(), BTreeSet::new());
            for turn in 0..10 {
                attach(&runtime, node, &made[turn % 2], way).unwrap();
                let ports = [80, 81];
                assert_in_force(node, &runtime, ports[turn % 2], ports[(turn + 1) % 2], &format!("{way:?} {turn}"));
                runtime.reap().unwrap();
                programs.insert(pinned(node, "progs"));
                own.insert(pinned(node, "maps"));
            }
            assert_eq!(loads.load(Ordering::Relaxed), 4 + PREPARED, "{way:?}: two programs for each of the two banks");
            assert_eq!((programs.len(), own.len()), (2, 2), "{way:?}: two pairs of programs take turns");
            assert!(runtime.spare().unwrap().is_some());
            assert!(fs::read_dir(node.bpffs().join("next")).unwrap().next().is_none());
            assert_eq!(pinned(node, "progs").intersection(&pinned(node, "old")).count(), 0);
            runtime.detach(None).unwrap();
            assert!(!node.bpffs().join("old").exists(), "a detach removes the spare too");
        });
    });
}

/// Before Linux 5.17, pins cannot be exchanged.
#[test]
fn switches_put_pins_right_on_a_kernel_that_cannot_exchange_them() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let refuse = |operation| (operation == Operation::ExchangePins).then_some(libc::EINVAL);
        let system = System::with_faults(Box::new(refuse)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        let mut pins = Vec::new();
        for (turn, port) in [80, 81, 80, 81].into_iter().enumerate() {
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            assert_in_force(node, &runtime, port, 161 - port, &format!("turn {turn}"));
            runtime.reap().unwrap();
            pins.push(["progs", "maps", "old"].map(|directory| pinned(node, directory)));
        }
        let [.., [programs, maps, old], [other_programs, other_maps, _]] = &pins[..] else { panic!("four turns") };
        assert!(programs.is_disjoint(other_programs) && maps != other_maps, "two generations take turns");
        assert!(other_programs.is_subset(old));
        assert_eq!(runtime.repair().unwrap(), Vec::<String>::new());
        assert_eq!(runtime.status().unwrap().repaired, 0, "no pin was lost");
    });
}

/// Another process removes or replaces pins of the generation in force or of the spare, which then change places.
#[test]
fn a_switch_to_the_spare_puts_pins_of_both_generations_right() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, _) = agent_with_spare(node);
        let at = |path: &str| node.bpffs().join(path);
        let changes: [(&str, &dyn Fn()); 7] = [
            ("maps/artifact", &|| fs::remove_file(at("maps/artifact")).unwrap()),
            ("maps/config", &|| fs::rename(at("maps/endpoints"), at("maps/config")).unwrap()),
            ("progs/to_pod", &|| fs::rename(at("progs/from_pod"), at("progs/to_pod")).unwrap()),
            ("old/config", &|| fs::remove_file(at("old/config")).unwrap()),
            ("old/artifact", &|| fs::remove_file(at("old/artifact")).unwrap()),
            ("old/endpoints", &|| fs::rename(at("maps/endpoints"), at("old/endpoints")).unwrap()),
            ("maps/endpoints", &|| fs::rename(at("old/config"), at("maps/endpoints")).unwrap()),
        ];
        for (turn, (what, change)) in changes.into_iter().enumerate() {
            let port = [80, 81][turn % 2];
            change();
            let repaired = attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap().repaired;
            assert!(repaired.iter().any(|it| it.contains(what)), "{what}: {repaired:?}");
            assert_in_force(node, &runtime, port, 161 - port, what);
            runtime.reap().unwrap();
            assert_in_force(node, &runtime, port, 161 - port, what);
            assert!(runtime.artifact_in_force().unwrap().is_some(), "{what}");
            // The next turn needs a spare.
            let again = if runtime.spare().unwrap().is_none() { &[161 - port, port][..] } else { &[] };
            for port in again {
                attach(&runtime, node, &only_port(*port), HookKind::Tcx).unwrap();
                runtime.reap().unwrap();
            }
        }
    });
}

#[test]
fn an_agent_keeps_the_file_with_another_name_of_a_policy() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, loads) = agent_with_spare(node);
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        let (epoch, loaded) = (runtime.epoch_and_file().unwrap(), loads.load(Ordering::Relaxed));
        attach(&runtime, node, &only_port_by("renamed", 80), HookKind::Tcx).unwrap();
        let now = runtime.epoch_and_file().unwrap();
        assert!(now.0 == epoch.0 && now.1 != epoch.1, "{epoch:?} {now:?}");
        let manifest = runtime.artifact_in_force().unwrap().unwrap().manifest;
        assert!(manifest.contains("default/renamed") && !manifest.contains("default/of-p1"));
        assert_eq!((runtime.repair().unwrap(), runtime.status().unwrap().drift), (vec![], vec![]));
        // The next switches take turns with the spare as before.
        for port in [81, 80, 81] {
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            assert_in_force(node, &runtime, port, 161 - port, "after the name");
        }
        assert_eq!(loads.load(Ordering::Relaxed), loaded, "no program is loaded");
    });
}

/// A node with servers on both ports.
pub(crate) fn with_servers() -> Node {
    let node = Node::new(Layout::Routed, 2);
    [80, 81].into_iter().for_each(|port| serve(&node, 1, port));
    node
}

/// An agent with a generation in force, which allows port 81, and a spare, which allowed port 80.
pub(crate) fn agent_with_spare(node: &Node) -> (Runtime, Arc<AtomicUsize>) {
    let (runtime, loads) = agent(node);
    for port in [80, 81] {
        attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
        runtime.reap().unwrap();
    }
    (runtime, loads)
}

/// Another process continues where the agent has stopped, and uses its spare.
#[test]
fn a_restarted_agent_uses_the_spare() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        for port in [80, 81] {
            let (runtime, _) = agent(node);
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            runtime.reap().unwrap();
        }
        let (runtime, loads) = agent(node);
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), 0);
        assert_in_force(node, &runtime, 80, 81, "after the restart");
    });
}

/// A spare whose programs are others makes room for a new generation.
#[test]
fn a_spare_with_other_programs_is_dropped() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, loads) = agent_with_spare(node);
        let spare = pinned(node, "old");
        attach(&runtime, node, &crate::attach::only_port(80), HookKind::Tcx).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), 6 + PREPARED);
        assert_in_force(node, &runtime, 80, 81, "other programs");
        let kernel = BpfKernel::open().unwrap();
        let left = || {
            let (programs, maps) = (kernel.program_numbers().unwrap(), kernel.map_numbers().unwrap());
            let exists = |(is_program, number): &&(bool, u32)| match is_program {
                true => programs.contains(number),
                false => maps.contains(number),
            };
            spare.iter().filter(exists).count()
        };
        // The shared maps are in another directory. The kernel frees an object some time after its last reference.
        let in_use = spare.intersection(&pinned(node, "maps")).count();
        let is_gone = (0..200).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            left() == in_use
        });
        assert!(is_gone, "{} objects of the dropped spare are left, {in_use} in use", left());
    });
}

/// Allows one of the two ports, and `others` further ones: the more there are, the larger the table of ports, whose
/// size is in the programs.
fn one_port_and(port: u16, others: u16) -> Made {
    let others = (0..others).map(|it| format!(", {{port: {}}}", 7000 + 2 * it));
    let rules = format!("ingress: [{{ports: [{{port: {port}}}{}]}}]", others.collect::<String>());
    agents_artifact(&cluster(2, &policy(1, "Ingress", &rules)))
}

/// The number of a pinned map.
fn number(node: &Node, path: &str) -> Option<u32> {
    let map = BpfKernel::open().unwrap().pinned_map(&node.bpffs().join(path)).ok()?;
    Some(map.info().unwrap().id)
}

#[test]
fn other_programs_use_the_tables_of_the_spare() {
    each(|node, way| {
        [80, 81].into_iter().for_each(|port| serve(node, 1, port));
        node.here(|| {
            let (runtime, loads) = agent(node);
            for (turn, others) in [0, 0, 70, 70, 140, 0, 70, 0].into_iter().enumerate() {
                let port = [80, 81][turn % 2];
                let (spare, loaded) = (number(node, "old/exact4"), loads.load(Ordering::Relaxed));
                attach(&runtime, node, &one_port_and(port, others), way).unwrap();
                let what = format!("{way:?} {turn}");
                assert_in_force(node, &runtime, port, 161 - port, &what);
                if turn > 1 {
                    assert_eq!(number(node, "maps/exact4"), spare, "{what}");
                    let loaded = loads.load(Ordering::Relaxed) - loaded;
                    assert_eq!(
                        loaded,
                        [0, 0, 2, 2, 2, 2, 2, 0][turn],
                        "{what}: only the last spare has these programs"
                    );
                }
                runtime.reap().unwrap();
                assert_in_force(node, &runtime, port, 161 - port, &what);
                all_is_well(node, &what);
                // Single writes are part of the content that the agent knows.
                let address: IpAddr = [10, 77, 0, turn as u8 + 1].into();
                runtime.write_addresses(&[(address, Some(1))], true).unwrap();
            }
            assert_eq!(runtime.repair().unwrap(), Vec::<String>::new());
        });
    });
}

/// A process that died may leave any content in the spare's maps. The next generation has none of it.
#[test]
fn the_content_of_a_spare_is_not_trusted() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        drop(agent_with_spare(node));
        let damaged = damage_spare(node);
        assert!(
            ["exact4", "rows", "ports", "nodes4", "config", "artifact"]
                .iter()
                .all(|it| damaged.iter().any(|d| d == it))
        );
        let (runtime, loads) = agent(node);
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert_eq!(loads.load(Ordering::Relaxed), 0, "the spare was used");
        assert_in_force(node, &runtime, 80, 81, "after the damage");
    });
}

/// An agent remembers the content of its spare. If another process changes it, the agent's next comparison finds
/// it, and then the same artifact is a new generation with the right tables, also with single writes in between.
#[test]
fn a_spare_that_another_process_changes_is_found_in_force_and_written_again() {
    skip!(unless possible());
    let elsewhere: IpAddr = "10.9.7.7".parse().unwrap();
    for patches in [false, true] {
        let node = &with_servers();
        node.here(|| {
            let (runtime, _) = agent_with_spare(node);
            assert!(!runtime.deviations().unwrap().wrong_tables);
            damage_spare(node);
            attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
            if patches {
                runtime.write_addresses(&[(elsewhere, Some(1))], false).unwrap();
            }
            let found = runtime.deviations().unwrap();
            assert!(found.drift.iter().any(|it| it.starts_with("the map exact4 differs")), "{found:?}");
            assert!(found.wrong_tables);
            runtime.reap().unwrap();
            attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
            assert_in_force(node, &runtime, 80, 81, "after the comparison");
            let found = runtime.deviations().unwrap();
            assert!(!found.wrong_tables, "{found:?}");
        });
    }
}

/// Damages the spare's maps, and returns their names.
pub(crate) fn damage_spare(node: &Node) -> Vec<String> {
    let mut damaged = Vec::new();
    for entry in fs::read_dir(node.bpffs().join("old")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if ["to_pod", "from_pod", "other", "flow_shape"].contains(&name.as_str()) {
            continue;
        }
        damage(&BpfKernel::open().unwrap().pinned_map(&path).unwrap());
        damaged.push(name);
    }
    damaged
}

/// Changes every entry of a map, removes one, and adds one if the map has room.
fn damage(map: &KernelMap) {
    let entries = map.entries().unwrap();
    for (key, value) in &entries {
        map.update(key, &value.iter().map(|byte| !byte).collect::<Vec<_>>(), 0).unwrap();
    }
    if let Some((key, value)) = entries.first() {
        // An array has no entry to remove or to add.
        _ = map.delete(key);
        _ = map.update(&vec![0x7b; key.len()], value, 0);
    }
}

/// Single entries are written into the generation in force. When it comes into force again, it has none of them.
#[test]
fn single_writes_do_not_outlive_their_generation() {
    skip!(unless possible());
    let node = &with_servers();
    let elsewhere: IpAddr = "10.9.7.7".parse().unwrap();
    node.here(|| {
        let (runtime, loads) = agent(node);
        for (turn, port) in [80, 81, 80, 81].into_iter().enumerate() {
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            assert_in_force(node, &runtime, port, 161 - port, &format!("turn {turn}"));
            runtime.write_addresses(&[(elsewhere, Some(1)), (pod_address(0, false), None)], true).unwrap();
            assert!(connect(node, 0, pod_address(1, false), port).is_none(), "p0 has lost its class");
            runtime.reap().unwrap();
        }
        assert_eq!(loads.load(Ordering::Relaxed), 4 + PREPARED);
    });
}

/// The agent holds its links by descriptor, and the pins of its objects are known.
#[test]
fn an_agents_switch_takes_one_update_for_each_program_and_opens_no_pin() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let seen = Arc::new(Mutex::new(BTreeMap::new()));
        let counts = Arc::clone(&seen);
        let count = move |operation| {
            *counts.lock().unwrap().entry(operation).or_insert(0) += 1;
            None
        };
        let system = System::with_faults(Box::new(count)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap().keeping().unwrap();
        for port in [80, 81, 80, 81] {
            seen.lock().unwrap().clear();
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            runtime.reap().unwrap();
        }
        let seen = seen.lock().unwrap().clone();
        let of = |operation| seen.get(&operation).copied().unwrap_or(0);
        let opened =
            [Operation::PinnedLink, Operation::PinnedProgram, Operation::NumberedMap, Operation::NumberedProgram];
        assert_eq!((of(Operation::Replace), opened.map(of)), (4, [0; 4]), "{seen:?}");
        // The exchange compares the program that was there.
        assert_eq!(of(Operation::LinkInfo), 0, "{seen:?}");
        // This host's addresses are listed for the next generation only: the one before is checked, not reconciled.
        assert_eq!(of(Operation::Addresses), 1, "{seen:?}");
        // The pins of both generations are exchanged. Only records are renamed: two of the switch, and one of the
        // removal.
        assert_eq!(of(Operation::Rename), 3, "{seen:?}");
        // Only the record is a new map after each change.
        assert!(of(Operation::PinnedMap) < 16, "{seen:?}");
        assert_in_force(node, &runtime, 81, 80, "after four switches");
    });
}

/// The pin of a link is replaced by another link's: the agent's own link is updated, and its pin is restored.
#[test]
fn exchanged_pins_of_links_are_restored_before_a_switch() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, _) = agent_with_spare(node);
        let links = node.bpffs().join("links");
        let mut pins: Vec<_> = fs::read_dir(&links).unwrap().map(|it| it.unwrap().path()).collect();
        pins.sort();
        let (one, other, between) = (&pins[0], &pins[1], links.join("between"));
        [(one, &between), (other, one), (&between, other)].iter().for_each(|(from, to)| fs::rename(from, to).unwrap());
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert_in_force(node, &runtime, 80, 81, "after the exchange");
        drop(runtime);
        let (runtime, _) = agent(node);
        assert_in_force(node, &runtime, 80, 81, "by the pins alone");
    });
}

/// Another process detaches a link. The link that the next switch makes is held like the one before: it outlives its pin.
#[test]
fn a_link_that_a_switch_makes_again_is_held() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, _) = agent_with_spare(node);
        let links = node.bpffs().join("links");
        let pins = || fs::read_dir(&links).unwrap().map(|it| it.unwrap().path()).collect::<Vec<_>>();
        let system = System::with_faults(Box::new(|_| None)).unwrap();
        for pin in pins() {
            let link = system.pinned_link(&pin).unwrap().unwrap();
            system.detach(&link).unwrap();
        }
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert_in_force(node, &runtime, 80, 81, "after the links were made again");
        attach(&runtime, node, &only_port(81), HookKind::Tcx).unwrap();
        let count = pins().len();
        pins().iter().for_each(|pin| fs::remove_file(pin).unwrap());
        let is_reached = |port| connect(node, 0, pod_address(1, false), port).is_some();
        assert_eq!([81, 80].map(is_reached), [true, false], "without the pins");
        attach(&runtime, node, &only_port(80), HookKind::Tcx).unwrap();
        assert_eq!(pins().len(), count);
        assert_in_force(node, &runtime, 80, 81, "with the pins again");
    });
}

/// The status is read without the lock, while the maps that it reads are written for a later generation.
#[test]
fn a_reader_beside_switches_sees_no_drift() {
    skip!(unless possible());
    let node = &with_servers();
    let made = [only_port(80), only_port(81)];
    node.here(|| {
        let (runtime, _) = agent_with_spare(node);
        let runtime = runtime.without_grace();
        let reader = Runtime::open(&node.bpffs(), PinAccess::Read).unwrap();
        let (reading, mut readings) = (AtomicBool::new(true), Vec::new());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let all = (0..20).map(|_| reader.status().map(|it| it.drift)).collect::<Vec<_>>();
                reading.store(false, Ordering::Relaxed);
                all
            });
            for turn in (0..2).cycle() {
                attach(&runtime, node, &made[turn], HookKind::Tcx).unwrap();
                runtime.reap().unwrap();
                if !reading.load(Ordering::Relaxed) {
                    break;
                }
            }
            readings = reader.join().unwrap();
        });
        // A map can disappear while it is read; such a reading is an error, not drift.
        let drift: Vec<_> = readings.iter().flatten().flatten().collect();
        assert!(drift.is_empty(), "{drift:?}");
        assert!(readings.iter().any(Result::is_ok));
    });
}

/// Another process has changed a byte of a table, so the artifact's file cannot be put together again. The generation
/// is in force nevertheless, and the next one is paired with it.
#[test]
fn a_generation_whose_file_is_unreadable_stays_the_one_in_force() {
    skip!(unless possible());
    let node = &with_servers();
    node.here(|| {
        let (runtime, _) = agent_with_spare(node);
        let epoch = runtime.epoch().unwrap();
        drop(runtime);
        let file = BpfKernel::open().unwrap().pinned_map(&node.bpffs().join("maps/artifact")).unwrap();
        let mut piece = file.lookup(&[0; 4]).unwrap();
        piece[200] ^= 1;
        file.update(&[0; 4], &piece, 0).unwrap();
        let (runtime, _) = agent(node);
        assert!(matches!(runtime.repair(), Err(Error::Unreadable { .. })));
        // The same artifact again: it does not count as being in force.
        for port in [81, 80] {
            let attached = runtime.attach(&request(&only_port(port))).unwrap();
            assert!(attached.before.is_some_and(|it| it.epoch >= epoch), "{port}: {:?}", attached.repaired);
            assert_in_force(node, &runtime, port, 161 - port, "after the damage");
        }
    });
}

/// If the next generation could not be placed at an endpoint, programs of the previous one may still run there, so its
/// maps must not change.
#[test]
fn a_generation_that_still_runs_somewhere_does_not_become_the_spare() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    let refuses = Arc::new(AtomicBool::new(false));
    node.here(|| {
        let refusing = Arc::clone(&refuses);
        let faults = move |operation| {
            (operation == Operation::Replace && refusing.load(Ordering::Relaxed)).then_some(libc::ENOMEM)
        };
        let system = System::with_faults(Box::new(faults)).unwrap();
        let runtime = Runtime::with_system(system, &node.bpffs(), PinAccess::Change).unwrap();
        let runtime = runtime.one_by_one().keeping().unwrap();
        for port in [80, 81] {
            attach(&runtime, node, &only_port(port), HookKind::Tcx).unwrap();
            runtime.reap().unwrap();
        }
        assert!(runtime.spare().unwrap().is_some());
        refuses.store(true, Ordering::Relaxed);
        let failed = attach(&runtime, node, &only_port(80), HookKind::Tcx);
        assert!(matches!(failed, Err(Error::Partial(_))), "{failed:?}");
        runtime.reap().unwrap();
        assert!(runtime.spare().unwrap().is_none());
        refuses.store(false, Ordering::Relaxed);
        runtime.repair().unwrap();
        assert_eq!(runtime.status().unwrap().drift, Vec::<String>::new());
    });
}

/// Switches between two generations through the spare while `load` runs; then sets the flag that stops `load`.
fn switch_under(node: &Node, way: HookKind, made: &[Made; 2], load: impl FnOnce(&AtomicBool) + Send) {
    let stop = AtomicBool::new(false);
    node.here(|| {
        let (runtime, loads) = agent(node);
        [1, 0].into_iter().for_each(|turn| _ = attach(&runtime, node, &made[turn], way).unwrap());
        std::thread::scope(|scope| {
            let load = scope.spawn(|| load(&stop));
            for turn in 0..12 {
                attach(&runtime, node, &made[(turn + 1) % 2], way).unwrap();
                // Every second time, as an agent does between changes that are not close together.
                if turn % 2 == 0 {
                    runtime.separate().unwrap();
                    runtime.reap().unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
            load.join().unwrap();
        });
        assert_eq!(loads.load(Ordering::Relaxed), 4 + PREPARED, "{way:?}: all switches went through the spare");
    });
}

/// One generation allows UDP 7 only at p0, the other only at p1.
#[test]
fn no_packet_passes_because_two_banks_judge_it() {
    let (udp, tcp) = ("ports: [{port: 7, protocol: UDP}]", "ports: [{port: 80}]");
    let pair = [(udp, tcp), (tcp, udp)].map(|(from_p0, to_p1)| {
        let egress = policy(0, "Egress", &format!("egress: [{{{from_p0}}}]"));
        let ingress = policy(1, "Ingress", &format!("ingress: [{{{to_p1}}}]"));
        agents_artifact(&cluster(2, &(egress + &ingress)))
    });
    each(|node, way| {
        switch_under(node, way, &pair, |stop| {
            let (sent, received) = flood(node, stop);
            assert!(sent > 1_000, "there was a load: {sent}");
            assert_eq!(received, 0, "of {sent}, over {way:?}");
        });
    });
}

#[test]
fn no_packet_is_lost_while_banks_take_turns() {
    let rules = |port| format!("ingress: [{{ports: [{{port: 7, protocol: UDP}}, {{port: {port}}}]}}]");
    let pair = [80, 81].map(|port| agents_artifact(&cluster(2, &policy(1, "Ingress", &rules(port)))));
    each(|node, way| {
        switch_under(node, way, &pair, |stop| {
            let (answered, lost) = converse(node, stop);
            assert!(answered > 1_000, "there was a load: {answered}");
            assert_eq!(lost, 0, "of {answered}, over {way:?}");
        });
    });
}
