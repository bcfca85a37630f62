//! `cluster:` inputs: the objects of a live cluster, read through its API.

use serde_json::{Value, json};
use xtask::simulated::Simulated;

use crate::support::{Place, Ran, SHOP};

fn policy(name: &str, port: u16) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "shop", "managedFields": [{"manager": "kubectl"}]},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": port}]}]}})
}

fn pod(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
        "status": {"phase": "Running", "podIP": address}})
}

/// A server with the objects of [`SHOP`], and a directory with a kubeconfig for it.
fn live_shop() -> (Simulated, Place) {
    let server = Simulated::start().expect("loopback is there");
    server.put("Namespace", json!({"metadata": {"name": "shop"}}));
    server.put("Pod", pod("web", "10.0.0.1"));
    server.put("Pod", pod("db", "10.0.0.2"));
    server.put("NetworkPolicy", policy("db", 5432));
    let place = Place::shop().file("head.yaml", SHOP.replace("5432", "5433"));
    server.write_kubeconfig(&place.path().join("kubeconfig")).expect("the directory is ours");
    (server, place)
}

fn run(place: &Place, arguments: &str) -> Ran {
    let mut command = place.command(arguments);
    command.env("KUBECONFIG", place.path().join("kubeconfig"));
    // A kubectl is not needed.
    command.env("PATH", "");
    Ran::from(command.output().expect("weir runs"))
}

#[test]
fn the_live_cluster_is_read_through_its_api() {
    let (_server, place) = live_shop();
    run(&place, "diff cluster: shop.yaml").exits(0);
    run(&place, "diff cluster:weir shop.yaml").exits(0);
    let ran = run(&place, "diff cluster:weir head.yaml").exits(1).says("TCP 5433");
    // The line of the object's JSON, as kubectl would print it.
    ran.says("(cluster:weir:");
}

#[test]
fn report_names_the_cluster() {
    let (_server, place) = live_shop();
    let row = |report: &Ran| {
        let (_, rest) = report.out.split_once("<dt>Cluster</dt>").unwrap_or_default();
        rest.split_once("</div>").unwrap_or_default().0.to_owned()
    };
    assert_eq!(row(&run(&place, "matrix cluster: -o html").exits(0)), "<dd>the current context</dd>");
    assert_eq!(row(&run(&place, "exposure cluster:weir -o html").exits(0)), "<dd>weir</dd>");
    assert_eq!(row(&run(&place, "diff cluster:weir head.yaml -o html").exits(1)), "<dd>weir</dd>");
    assert_eq!(row(&run(&place, "matrix shop.yaml -o html").exits(0)), "", "files are of no cluster");
}

#[test]
fn every_page_of_a_list_is_read_also_if_its_version_expires() {
    let (server, place) = live_shop();
    let mut names: Vec<String> = (0..1_200).map(|number| format!("p{number:04}")).collect();
    names.iter().for_each(|name| server.put("NetworkPolicy", policy(name, 5432)));
    server.delete("NetworkPolicy", "shop", "p1199");
    server.put("NetworkPolicy", policy("p1199", 5433));
    for expiring in [0, 1, 3] {
        server.expire_lists(expiring);
        run(&place, "diff shop.yaml cluster:").exits(1).says("TCP 5433").says("p1199");
    }
    server.expire_lists(u32::MAX);
    let ran = run(&place, "diff shop.yaml cluster:").exits(2);
    ran.complains("cannot list the objects of kind NetworkPolicy: the API server answered 410");
    server.expire_lists(0);
    names.drain(..).for_each(|name| server.delete("NetworkPolicy", "shop", &name));
    run(&place, "diff shop.yaml cluster:").exits(0);
}

#[test]
fn policies_of_the_cluster_that_are_not_read_are_an_error() {
    let (server, place) = live_shop();
    let policy = json!({"metadata": {"name": "deny", "namespace": "shop"}, "spec": {"endpointSelector": {}}});
    server.put("CiliumNetworkPolicy", policy);
    run(&place, "diff cluster: shop.yaml").exits(2).complains("cilium.io/CiliumNetworkPolicy (cluster::");
    let flag = "--ignore-kind cilium.io/CiliumNetworkPolicy";
    let ran = run(&place, &format!("diff cluster: shop.yaml {flag}")).exits(0);
    ran.says("left out, because weir does not read these policies: cilium.io/CiliumNetworkPolicy (1)");
    // Files without pods are a proposal for the cluster, where the policy is in force as before.
    let only_policy = SHOP.split("---").next().expect("the policy");
    let place = place.file("policy.yaml", only_policy);
    run(&place, "diff cluster: policy.yaml").exits(2).complains("cilium.io/CiliumNetworkPolicy");
}

#[test]
fn a_cluster_that_cannot_be_read_is_an_error_with_a_hint() {
    let (_server, place) = live_shop();
    let ran = run(&place, "diff cluster:prod shop.yaml").exits(2);
    ran.complains("the kubeconfig has no usable context `prod`").complains("hint: `kubectl config get-contexts`");
    let text = std::fs::read_to_string(place.path().join("kubeconfig")).expect("written");
    let port = text.split("127.0.0.1:").nth(1).and_then(|it| it.split('\'').next()).expect("a port").to_owned();
    // Port 1 of loopback: nothing listens there.
    let place = place.file("kubeconfig", text.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:1"));
    let ran = run(&place, "diff cluster: shop.yaml").exits(2);
    ran.complains("cannot list the objects of kind Namespace").complains("refused").complains("hint: ");
    let place = place.file("kubeconfig", "clusters: [");
    run(&place, "diff cluster: shop.yaml").exits(2).complains("no API server is configured").complains("hint: ");
}

#[test]
fn policies_without_pods_are_compared_on_the_live_cluster() {
    let (_server, place) = live_shop();
    let place = place
        .file("same.json", policy("db", 5432).to_string())
        .file("other.json", policy("db", 5433).to_string())
        .file("empty.yaml", "");
    run(&place, "diff cluster: same.json").exits(0);
    for (sides, added) in [("cluster: other.json --prune", "5433"), ("other.json cluster:", "5432")] {
        let ran = run(&place, &format!("diff {sides}")).exits(1);
        let ran = ran.complains("taken from the cluster: Namespace, Pod\n");
        let ran = ran.says(&format!(
            "+ from any pod with app=web in namespace shop (1 in the input) to any pod with app=db in namespace shop (1 in the \
             input): TCP {added}"
        ));
        assert!(!ran.out.contains("Removed: "), "{ran:#?}");
    }
    run(&place, "diff cluster: empty.yaml").exits(2).complains("nothing is proposed");
}

#[test]
fn what_kubectl_apply_would_refuse_is_named() {
    let (_server, place) = live_shop();
    let mut elsewhere = policy("db", 1);
    elsewhere["metadata"]["namespace"] = json!("new");
    let list = json!({"apiVersion": "weir.dev/v1alpha1", "kind": "CidrList", "metadata": {"name": "bad"},
        "spec": {"action": "Deny", "cidrs": ["192.0.2.0/24"]}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "new"}});
    let mut generated = policy("db", 1);
    generated["metadata"] = json!({"generateName": "db-", "namespace": "shop"});
    let place = place
        .file("elsewhere.json", elsewhere.to_string())
        .file("namespace.json", namespace.to_string())
        .file("list.json", list.to_string())
        .file("generated.json", generated.to_string());
    let missing =
        "note: namespace new does not exist, and the files do not create it: `kubectl apply` refuses its 1 object";
    run(&place, "diff cluster: elsewhere.json").complains(missing);
    let created = run(&place, "diff cluster: elsewhere.json,namespace.json");
    assert!(!created.err.contains("does not exist"), "{created:#?}");
    run(&place, "diff cluster: generated.json").exits(2).complains("it has generateName and no name");
    run(&place, "diff cluster: list.json").complains("does not know the kind CidrList");
}

#[test]
fn items_of_a_typed_list_are_merged_like_objects_of_their_own() {
    let (server, place) = live_shop();
    let ports = json!([{"name": "a", "port": 1, "protocol": "TCP"}, {"name": "b", "port": 2, "protocol": "TCP"}]);
    let metadata = json!({"name": "db", "namespace": "shop"});
    server.put("Service", json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.9", "ports": ports}}));
    let item = json!({"metadata": metadata, "spec": {"ports": [{"name": "a", "port": 1}]}});
    let list = json!({"apiVersion": "v1", "kind": "ServiceList", "items": [item]});
    let place = place.file("list.json", list.to_string());
    // No `apply` has set the other port, so it stays.
    let ran = run(&place, "diff cluster: list.json").exits(0);
    assert!(ran.out.starts_with("Nothing changes"), "{ran:#?}");
}

#[test]
fn objects_of_an_earlier_apply_are_merged_or_refused() {
    let (server, place) = live_shop();
    let mut live = policy("db", 5432);
    live["metadata"]["annotations"] = json!({"weir.dev/mode": "audit"});
    server.put("NetworkPolicy", live.clone());
    let place = place.file("head.json", policy("db", 5432).to_string());
    let kept = "NetworkPolicy shop/db keeps fields of the cluster that the file does not set: \
                metadata.annotations[weir.dev/mode]";
    run(&place, "diff cluster: head.json").exits(0).complains(kept);
    live["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": "{"});
    server.put("NetworkPolicy", live);
    let ran = run(&place, "diff cluster: head.json").exits(2);
    ran.complains("cannot tell what `kubectl apply` makes of NetworkPolicy shop/db").complains("set-last-applied");
}
