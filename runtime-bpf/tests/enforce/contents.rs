//! The comparison of the tables with the artifact reports entries that another process has changed.

use weir_artifact::map_image::MapImage;
use weir_ebpf::vm::MapKind;
use weir_runtime::runtime::{Deviations, PinAccess, Request, Runtime};
use weir_runtime::skip;
use weir_runtime::sys::{BpfKernel, KernelMap};

use crate::attach::request;
use crate::net::{Layout, Node, possible};
use crate::policy::{agents_artifact, cluster, policy};

/// Changes one entry of a map of this kind, removes one, and adds one, as far as the kind permits it. Returns how many
/// entries are missing or changed then, and how many are unexpected.
fn damage(map: &KernelMap, kind: MapKind) -> (usize, usize) {
    let entries = map.entries().unwrap();
    let is_unset = |value: &[u8]| value.iter().all(|byte| *byte == 0);
    let (key, value) = entries.iter().find(|(_, value)| !is_unset(value)).expect("a table has entries");
    let changed: Vec<u8> = value.iter().map(|byte| !byte).collect();
    map.update(key, &changed, 0).unwrap();
    if kind == MapKind::Array {
        // An unused entry counts as unexpected only if it is set.
        let Some((unused, _)) = entries.iter().find(|(_, value)| is_unset(value)) else { return (1, 0) };
        map.update(unused, &changed, 0).unwrap();
        return (1, 1);
    }
    let other = entries.iter().find(|(it, _)| it != key);
    other.iter().for_each(|(other, _)| map.delete(other).unwrap());
    map.update(&vec![0x7b; key.len()], value, 0).unwrap();
    (1 + usize::from(other.is_some()), 1)
}

#[test]
fn each_changed_entry_is_counted() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    let rules = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]";
    let made = agents_artifact(&cluster(2, &policy(1, "Ingress", rules)));
    let endpoints = [0, 1].map(|pod| (format!("default/p{pod}"), node.interface(pod))).to_vec();
    node.here(|| {
        let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap();
        runtime.attach(&Request { endpoints, ..request(&made) }).unwrap();
        let status = runtime.status().unwrap();
        assert_eq!(status.drift, Vec::<String>::new());
        let kernel = BpfKernel::open().unwrap();
        let pinned = |name: &str| kernel.pinned_map(&node.bpffs().join("maps").join(name)).unwrap();
        for fill in status.maps.iter().filter(|it| !it.name.starts_with("flow_table")) {
            assert_eq!(fill.entries, pinned(&fill.name).entries().unwrap().len() as u64, "{}", fill.name);
        }
        let is_compared = |image: &&MapImage| {
            let name = image.name.name();
            let is_own = !["other", "flow_shape", "config"].contains(&name) && pinned_exists(node, name);
            is_own && image.spec.kind != MapKind::RingBuf && !is_shared(name)
        };
        let mut expected = Vec::new();
        for image in made.0.maps.iter().filter(is_compared) {
            let (missing, extra) = damage(&pinned(image.name.name()), image.spec.kind);
            expected.push(format!(
                "the map {} differs from the artifact: {missing} entries are missing or changed, {extra} are unexpected",
                image.name.name()
            ));
        }
        assert!(expected.len() >= 5, "{expected:?}");
        let status = runtime.status().unwrap();
        assert_eq!(status.drift, expected);
        assert_eq!(runtime.deviations().unwrap(), Deviations {
            drift: status.drift,
            maps: status.maps,
            wrong_tables: true,
        });
        pinned("config").update(&[0; 4], &vec![0; pinned("config").lookup(&[0; 4]).unwrap().len()], 0).unwrap();
        assert!(runtime.status().unwrap().drift.contains(&"the map config has another generation's number".to_owned()));
    });
}

#[test]
fn an_attach_of_the_same_artifact_repairs_tables() {
    skip!(unless possible());
    let node = &Node::new(Layout::Routed, 2);
    let rules = "ingress: [{from: [{podSelector: {matchLabels: {pod: p0}}}], ports: [{port: 80}]}]";
    let made = agents_artifact(&cluster(2, &policy(1, "Ingress", rules)));
    let endpoints = [0, 1].map(|pod| (format!("default/p{pod}"), node.interface(pod))).to_vec();
    node.here(|| {
        let attach = || {
            let runtime = Runtime::open(&node.bpffs(), PinAccess::Change).unwrap();
            let attached = runtime.attach(&Request { endpoints: endpoints.clone(), ..request(&made) }).unwrap();
            (attached.repaired, attached.generation.epoch, runtime.status().unwrap().drift)
        };
        assert_eq!(attach(), (Vec::new(), 1, Vec::new()));
        assert_eq!(attach(), (Vec::new(), 1, Vec::new()), "nothing has changed");
        let rows = BpfKernel::open().unwrap().pinned_map(&node.bpffs().join("maps/rows")).unwrap();
        let kind = made.0.maps.iter().find(|it| it.name.name() == "rows").unwrap().spec.kind;
        damage(&rows, kind);
        let (repaired, epoch, drift) = attach();
        assert!(repaired.iter().any(|it| it.starts_with("the map rows differs")), "{repaired:?}");
        assert_eq!((epoch, drift), (2, Vec::new()), "a new generation has all tables");
        assert_eq!(attach(), (Vec::new(), 2, Vec::new()), "it is repaired once");
    });
}

fn pinned_exists(node: &Node, name: &str) -> bool {
    node.bpffs().join("maps").join(name).exists()
}

fn is_shared(name: &str) -> bool {
    ["counters", "events", "event_limit", "fragments", "flow_table4", "flow_table6"].contains(&name)
}
