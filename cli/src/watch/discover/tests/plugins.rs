//! The interfaces of the CNI plug-ins in docs/cni.md: their results, as they write them, and the state of the host.

use super::*;

/// A host with the veths of the plug-ins below, and an uplink that is a veth, as the nodes of kind have it.
fn host() -> Interfaces {
    let veths =
        ["vethd0c1", "veth5a3e2b71", "cali2c7d5a8b9f0", "eni3b1c5d7e9f1", "eni9f8e7d6c5b4", "azv8d9e0f1", "lxc4f5a"];
    let numbered = (10..).zip(veths).map(|(ifindex, name)| interface(ifindex, name, "veth", Some(2)));
    let others = [interface(2, "eth0", "veth", Some(40)), interface(3, "cni0", "bridge", None)];
    numbered.chain(others).collect()
}

/// A file of the result cache with these interfaces: name, and whether it is in the pod's network namespace.
fn result(interfaces: &[(&str, bool)]) -> Arc<Attachment> {
    let interfaces: Vec<String> = interfaces
        .iter()
        .map(|(name, is_inside)| match is_inside {
            true => format!(r#"{{"name":"{name}","sandbox":"/var/run/netns/cni-1"}}"#),
            false => format!(r#"{{"name":"{name}"}}"#),
        })
        .collect();
    cached(&format!(
        r#"{{"kind":"cniCacheV1","ifName":"eth0","cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web"],
        ["K8S_POD_UID","u1"]],"result":{{"interfaces":[{}],"ips":[{{"address":"10.0.0.5/24"}}]}}}}"#,
        interfaces.join(",")
    ))
}

#[track_caller]
fn finds(interfaces: &[(&str, bool)], expected: &str) {
    let cached = vec![result(interfaces)];
    check(&Inventory { interfaces: host(), cached, ..Inventory::default() }, expected);
}

#[test]
fn results_that_name_the_host_veth_are_enough() {
    // bridge, which Flannel's plug-in calls too: first the bridge, then its port.
    finds(&[("cni0", false), ("vethd0c1", false), ("eth0", true)], "10 vethd0c1 by Cache");
    // ptp, which kindnet's conflist names.
    finds(&[("veth5a3e2b71", false), ("eth0", true)], "11 veth5a3e2b71 by Cache");
    // Calico: only the host's end.
    finds(&[("cali2c7d5a8b9f0", false)], "12 cali2c7d5a8b9f0 by Cache");
    // Amazon: the pair, and an interface that exists only in the result, to remember a number for the deletion.
    finds(&[("eni3b1c5d7e9f1", false), ("eth0", true), ("dummy3b1c5d7e9f1", false)], "13 eni3b1c5d7e9f1 by Cache");
}

#[test]
fn azures_result_names_the_pods_interface_and_a_route_leads_to_the_veth() {
    // The entry has no sandbox. It is the pod's interface, and not the uplink of the node with the same name.
    let cached = vec![result(&[("eth0", false)])];
    let route = |interface: &str| vec![HostRoute { address: ADDRESS, interface: interface.to_owned() }];
    let inventory = |routes| Inventory { interfaces: host(), cached: cached.clone(), routes, ..Inventory::default() };
    check(&inventory(route("azv8d9e0f1")), "15 azv8d9e0f1 by Route");
    check(
        &inventory(Vec::new()),
        "no interface found: its CNI result names no interface of the host; no network namespace has the pod's address; no \
         route leads to its address alone",
    );
}

#[test]
fn pod_with_several_veths_is_found_at_the_one_with_its_address() {
    // Amazon's plug-in with the annotation k8s.amazonaws.com/nicConfig.
    let cached = vec![result(&[
        ("eni3b1c5d7e9f1", false),
        ("eth0", true),
        ("eni9f8e7d6c5b4", false),
        ("mNicIf1", true),
        ("dummy3b1c5d7e9f1", false),
    ])];
    let peer = |ifindex| [(13, 3), (14, 4)].into_iter().find_map(|(it, peer)| (it == ifindex).then_some(peer));
    let with_peers = |it: &NamespaceInterface| NamespaceInterface { peer: peer(it.ifindex).or(it.peer), ..it.clone() };
    let interfaces = host().iter().map(with_peers).collect();
    let content = NetworkNamespace {
        interfaces: vec![interface(3, "eth0", "veth", Some(13)), interface(4, "mNicIf1", "veth", Some(14))],
        addresses: vec![(3, ADDRESS), (4, [10, 0, 9, 9].into())],
    };
    let namespaces = vec![MountedNamespace { name: "cni-1".to_owned(), content }];
    let inventory = Inventory { interfaces, cached, namespaces, ..Inventory::default() };
    check(&inventory, "13 eni3b1c5d7e9f1 by Namespace");
    check(
        &Inventory { namespaces: Vec::new(), ..inventory },
        "no interface found: its CNI result names several veths (eni9f8e7d6c5b4, eni3b1c5d7e9f1); no network namespace has \
         the pod's address; no route leads to its address alone",
    );
}

#[test]
fn plugin_without_a_result_cache_is_found_by_the_pods_namespace() {
    // Cilium on its own writes a result too; this is a runtime that does not call plug-ins through libcni.
    let content =
        NetworkNamespace { interfaces: vec![interface(2, "eth0", "veth", Some(16))], addresses: vec![(2, ADDRESS)] };
    let namespaces = vec![MountedNamespace { name: "cni-1".to_owned(), content }];
    check(&Inventory { interfaces: host(), namespaces, ..Inventory::default() }, "16 lxc4f5a by Namespace");
}
