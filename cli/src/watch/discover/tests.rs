mod plugins;

use super::*;

fn interface(ifindex: u32, name: &str, kind: &str, peer: Option<u32>) -> NamespaceInterface {
    NamespaceInterface { ifindex, name: name.to_owned(), kind: kind.to_owned(), peer }
}

fn host() -> Interfaces {
    let interfaces = [
        interface(1, "lo", "", None),
        interface(2, "ens3", "", None),
        interface(3, "cni0", "bridge", None),
        interface(7, "veth7", "veth", Some(2)),
        interface(8, "veth8", "veth", Some(2)),
    ];
    interfaces.into_iter().collect()
}

/// A result as libcni 1.1 of containerd writes it for the bridge plug-in.
fn bridge(uid: &str, veth: &str, address: &str) -> String {
    format!(
        r#"{{"kind":"cniCacheV1","containerId":"0a1b","config":"e30=","ifName":"eth0","networkName":"pods",
        "cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web"],
        ["K8S_POD_INFRA_CONTAINER_ID","0a1b"],["K8S_POD_UID","{uid}"]],
        "capabilityArgs":{{"dns":{{"Servers":["10.96.0.10"]}}}},
        "result":{{"cniVersion":"1.0.0","dns":{{}},"interfaces":[{{"mac":"02:00:00:00:00:01","name":"cni0"}},
        {{"mac":"02:00:00:00:00:02","name":"{veth}"}},
        {{"mac":"02:00:00:00:00:03","name":"eth0","sandbox":"/run/netns/cni-1"}}],
        "ips":[{{"address":"{address}/24","gateway":"10.0.0.1","interface":2}}],"routes":[{{"dst":"0.0.0.0/0"}}]}}}}"#
    )
}

fn cached(text: &str) -> Arc<Attachment> {
    Arc::new(cache::parse(text).expect("it is JSON").expect("it is about a pod"))
}

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 5));

fn web(addresses: &[IpAddr]) -> SearchedPod<'_> {
    let uids = PodUids { of_object: Some("u1"), of_static_pod: None };
    SearchedPod { uids, namespace: "shop", name: "web", addresses }
}

fn claimant(pod: SearchedPod<'_>) -> Claimant<'_> {
    Claimant { pod, known: None, has_lost: false }
}

fn find(inventory: &Inventory, pod: SearchedPod<'_>) -> Result<FoundInterface, NotFound> {
    inventory.assign(&[claimant(pod)]).outcomes.remove(0)
}

#[track_caller]
fn check(inventory: &Inventory, expected: &str) {
    let said = match find(inventory, web(&[ADDRESS])) {
        Ok(found) => format!("{} {} by {:?}", found.ifindex, found.name, found.by),
        Err(error) => error.to_string(),
    };
    assert_eq!(said, expected);
}

#[test]
fn bridge_port_is_found_instead_of_the_bridge() {
    let cached = vec![cached(&bridge("u1", "veth7", "10.0.0.5"))];
    check(&Inventory { interfaces: host(), cached, ..Inventory::default() }, "7 veth7 by Cache");
}

#[test]
fn cni_result_of_an_earlier_pod_with_the_same_name_is_ignored() {
    let cached = vec![cached(&bridge("u0", "veth7", "10.0.0.5"))];
    check(
        &Inventory { interfaces: host(), cached, ..Inventory::default() },
        "no interface found: the CNI result cache has no result for the pod; no network namespace has the pod's \
         address; no route leads to its address alone",
    );
}

#[test]
fn cni_result_with_the_pods_address_is_preferred() {
    let cached = [("veth7", "10.0.0.9"), ("veth8", "10.0.0.5")].map(|(veth, at)| cached(&bridge("u1", veth, at)));
    check(&Inventory { interfaces: host(), cached: cached.to_vec(), ..Inventory::default() }, "8 veth8 by Cache");
}

#[test]
fn cni_result_counts_before_the_pods_address_is_known() {
    let cached = vec![cached(&bridge("u1", "veth7", "10.0.0.5"))];
    let inventory = Inventory { interfaces: host(), cached, ..Inventory::default() };
    assert_eq!(find(&inventory, web(&[])).map(|found| found.ifindex), Ok(7));
}

#[test]
fn veth_in_the_pods_namespace_leads_to_the_host_interface() {
    let inside = |kind: &str, peer| NetworkNamespace {
        interfaces: vec![interface(1, "lo", "", None), interface(2, "eth0", kind, peer)],
        addresses: vec![(1, [127, 0, 0, 1].into()), (2, ADDRESS)],
    };
    let inventory = |namespace| Inventory {
        interfaces: host(),
        namespaces: vec![MountedNamespace { name: "cni-1".to_owned(), content: namespace }],
        ..Inventory::default()
    };
    check(&inventory(inside("veth", Some(8))), "8 veth8 by Namespace");
    let start = "no interface found: the CNI result cache has no result for the pod; in network namespace cni-1 the \
                 pod's interface is";
    check(
        &inventory(inside("macvlan", Some(2))),
        &format!("{start} eth0, which is a macvlan and not a veth; no route leads to its address alone"),
    );
    check(
        &inventory(inside("veth", Some(99))),
        &format!(
            "{start} the veth eth0, whose other end is not on the host's network; no route leads to its address alone"
        ),
    );
}

#[test]
fn route_to_a_single_address_leads_to_the_host_interface() {
    let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                ens3\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                cni0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                veth8\t0500000A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n";
    let routes = routes::v4(text);
    assert_eq!(routes, [HostRoute { address: ADDRESS, interface: "veth8".to_owned() }]);
    check(&Inventory { interfaces: host(), routes, ..Inventory::default() }, "8 veth8 by Route");
    let routes = vec![HostRoute { address: ADDRESS, interface: "ens3".to_owned() }];
    check(
        &Inventory { interfaces: host(), routes, ..Inventory::default() },
        "no interface found: the CNI result cache has no result for the pod; no network namespace has the pod's \
         address; the route to 10.0.0.5 leads to ens3, which is not a veth",
    );
}

#[test]
fn ipv6_routes_to_single_addresses_are_parsed() {
    let text = "fd000000000000000000000000000005 80 00000000000000000000000000000000 00 00000000000000000000000000000000 \
                00000400 00000001 00000000 00000001    veth7\n\
                fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 \
                00000100 00000001 00000000 00000001     cni0\n";
    let address = "fd00::5".parse().expect("an address");
    assert_eq!(routes::v6(text), [HostRoute { address, interface: "veth7".to_owned() }]);
}

#[test]
fn cni_results_without_a_pod_are_ignored() {
    assert_eq!(cache::parse(r#"{"ifName":"eth0","cniArgs":[]}"#).expect("it is JSON"), None);
    let second = bridge("u1", "veth7", "10.0.0.5").replace(r#""ifName":"eth0""#, r#""ifName":"net1""#);
    assert_eq!(cache::parse(&second).expect("it is JSON"), None);
    assert!(cache::parse(r#"{"ifName":"#).is_err());
}
