//! If something cannot be done, the error names it and a next step, and the previous policy stays in force.

use std::time::Duration;

use weir_artifact::Artifact;
use weir_artifact::layout::MapName;
use weir_codegen::structures::StructureOptions as Structures;
use weir_ebpf::vm::MapKind;
use weir_runtime::runtime::{EnforcementState, PinAccess, Runtime};
use weir_runtime::system::{Operation, System};
use weir_runtime::{Error, HookKind, skip};

use crate::attach::{attach, only_port, request, status};
use crate::net::{Layout, Node, possible};
use crate::policy::{artifact_with, cluster, policy};

/// All tables in kernel maps, even if another structure would be smaller or faster: kernel maps can be full.
fn in_maps() -> (Artifact, Vec<u8>) {
    let rules = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}, {ipBlock: {cidr: 192.0.2.0/24}}, {ipBlock: \
                 {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: '2001:db8::/48'}}, {ipBlock: {cidr: '2001:db9::/48'}}], ports: [{port: 80}]}]";
    artifact_with(&cluster(2, &policy(1, "Ingress", rules)), Structures::kernel_maps())
}

fn only(error: Error, node: &Node) -> String {
    let hint = error.hint().unwrap_or_default();
    assert!(!hint.is_empty(), "{error:?}");
    let status = status(node).unwrap();
    assert!(status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced), "{status:?}");
    assert_eq!((status.generation.unwrap().epoch, status.drift), (1, Vec::new()), "what was in force stays");
    error.to_string()
}

#[test]
fn a_full_map_is_named_and_the_previous_generation_stays_in_force() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    attach(&node, &only_port(80), &[0, 1], Some(HookKind::Tcx)).unwrap();
    let (whole, file) = in_maps();
    let mut tried = Vec::new();
    for image in &whole.maps {
        let counts = matches!(image.spec.kind, MapKind::Hash | MapKind::LpmTrie) && image.entries.len() > 1;
        if !counts {
            continue;
        }
        let room = image.entries.len() as u32 - 1;
        let mut small = whole.clone();
        small.maps.iter_mut().filter(|it| it.name == image.name).for_each(|it| it.spec.max_entries = room);
        let error = attach(&node, &(small, file.clone()), &[], None).unwrap_err();
        assert!(matches!(&error, Error::Full { map, .. } if map == image.name.name()), "{error:?}");
        let text = only(error, &node);
        let expected = format!("the map {} is full: {room} of {room} entries; no room for ", image.name.name());
        assert!(text.starts_with(&expected), "{text}");
        if image.name == MapName::Rows {
            assert!(text.ends_with("a row of the policies default/of-p1"), "{text}");
        }
        tried.push(image.name.name());
    }
    assert_eq!(tried, ["exact4", "prefixes4", "exact6", "prefixes6", "rows"]);
    // And with room.
    attach(&node, &(whole, file), &[], None).unwrap();
}

#[test]
fn errors_of_a_too_old_kernel_name_its_version() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    attach(&node, &only_port(80), &[0, 1], Some(HookKind::Tcx)).unwrap();
    let made = only_port(81);
    let request = request(&made);
    let attach_to = |release: &str, refused: Operation| {
        let no = move |operation| (operation == refused).then_some(libc::EINVAL);
        node.here(|| {
            let system = System::with_faults(Box::new(no)).unwrap().pretending(release);
            Runtime::with_system(system, &node.bpffs(), PinAccess::Change)?.attach(&request)
        })
    };
    for refused in [Operation::CreateMap, Operation::Load] {
        let error = attach_to("5.4.0-42-generic", refused).unwrap_err();
        let expected = "Linux 5.4.0-42-generic is too old: weir needs 5.14 or later";
        assert_eq!(only(error, &node), expected, "{refused:?}");
        for known in ["5.14.0", "6.1.0-56-cloud-amd64", "10.0"] {
            let error = attach_to(known, refused).unwrap_err();
            assert!(!matches!(error, Error::TooOld { .. }), "{known}: {error}");
        }
    }
    // The kernel reports an old release, but accepts everything: the release is not checked.
    node.here(|| {
        let system = System::open().unwrap().pretending("4.18.0-553.el8_10.x86_64");
        Runtime::with_system(system, &node.bpffs(), PinAccess::Change)?.attach(&request)
    })
    .unwrap();
}

#[test]
fn two_processes_make_changes_one_after_the_other() {
    skip!(unless possible());
    let node = Node::new(Layout::Routed, 2);
    let made = [only_port(80), only_port(81)];
    attach(&node, &made[0], &[0, 1], Some(HookKind::Tcx)).unwrap();
    // While one process works, the error of the other names it.
    node.here(|| {
        let _at_work = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap();
        let error = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap_err();
        let here = std::process::id();
        assert!(matches!(error, Error::Locked { process: Some(process), .. } if process == here), "{error:?}");
        assert!(error.to_string().ends_with(&format!("(process {here})")), "{error}");
        // Reading the status needs no lock.
        Runtime::open(&node.bpffs(), PinAccess::Read).unwrap().status().unwrap();
    });
    // Two short operations both get their turn, even on a slow machine, and each switch is complete.
    let turns = 10;
    std::thread::scope(|scope| {
        for made in &made {
            scope.spawn(|| {
                for _ in 0..turns {
                    in_turn(&node, made);
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
    let status = status(&node).unwrap();
    assert_eq!((status.drift, status.switching_to), (Vec::new(), None));
    assert!(status.endpoints.iter().all(|it| it.state == EnforcementState::Enforced));
}

/// Retries until it gets a turn. There is no time limit: the time depends more on the machine than on the lock.
fn in_turn(node: &Node, made: &(Artifact, Vec<u8>)) {
    while let Err(error) = attach(node, made, &[0, 1], None) {
        assert!(matches!(error, Error::Locked { process: Some(_), .. }), "{error:?}");
    }
}
