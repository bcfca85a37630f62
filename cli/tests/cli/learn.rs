//! `weir learn`: the shop of the examples, recorded, learned and asked again.

use std::path::Path;

use crate::support::{Place, Ran};

const POD: &str = "---\napiVersion: v1\nkind: Pod\n";

/// The pods of the shop as they run, and DNS.
fn shop() -> String {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/examples/24-three-tier-shop.yaml");
    let mut text = std::fs::read_to_string(examples).expect("the example");
    text.push_str("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: kube-system}\n");
    for (name, namespace, label, ip, port) in [
        ("web-5d7-a", "shop", "app: web, pod-template-hash: 5d7", "10.0.0.1", "name: https, containerPort: 8443"),
        ("web-5d7-b", "shop", "app: web, pod-template-hash: 5d7", "10.0.0.2", "name: https, containerPort: 8443"),
        ("api-9f1-a", "shop", "app: api", "10.0.0.3", "name: http, containerPort: 8080"),
        ("db-0", "shop", "app: db", "10.0.0.4", "name: postgres, containerPort: 5432"),
        ("coredns-1", "kube-system", "k8s-app: kube-dns", "10.0.1.1", "name: dns, protocol: UDP, containerPort: 53"),
    ] {
        text.push_str(&format!(
            "{POD}metadata: {{name: {name}, namespace: {namespace}, labels: {{{label}}}}}\n\
             spec: {{containers: [{{name: main, image: x, ports: [{{{port}}}]}}]}}\n\
             status: {{phase: Running, podIP: {ip}}}\n"
        ));
    }
    text
}

const FLOWS: &str = "src,dst,dport,proto,action
203.0.113.7,10.0.0.1,8443,6,ACCEPT
203.0.113.8,10.0.0.2,8443,6,ACCEPT
10.0.0.1,10.0.0.3,8080,6,ACCEPT
10.0.0.2,10.0.0.3,8080,6,ACCEPT
10.0.0.3,10.0.0.4,5432,6,ACCEPT
10.0.0.1,10.0.1.1,53,17,ACCEPT
10.0.0.1,10.0.1.1,53,17,ACCEPT
10.0.0.3,10.0.1.1,53,17,ACCEPT
10.0.0.9,10.0.0.4,22,6,REJECT
192.0.2.1,192.0.2.2,22,6,ACCEPT
";

fn place() -> Place {
    Place::new().file("cluster/shop.yaml", shop()).file("flows.csv", FLOWS)
}

const LEARN: &str = "learn cluster --flows flows.csv -o out";

#[test]
fn pairs_of_namespaces_without_policies_do_not_count() {
    let mut quiet = String::new();
    for pod in ["a", "b", "c"] {
        quiet += &format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {pod}, namespace: quiet, labels: {{app: {pod}}}}}, \
             status: {{podIP: 10.0.2.{}}}}}\n",
            pod.len() + usize::from(pod.as_bytes()[0])
        );
    }
    let alone =
        |ran: &Ran| ran.out.lines().find(|line| line.starts_with("with these policies alone:")).map(str::to_owned);
    let before = place().run(LEARN).exits(0);
    let ran = place().file("cluster/quiet.yaml", quiet).run(LEARN).exits(0);
    assert!(alone(&before).is_some(), "{}", before.out);
    assert_eq!(alone(&ran), alone(&before), "the three pods of the namespace may talk to each other");
    ran.says("1 other namespace without a policy: no recorded flow is from or to a pod there\n");
}

#[test]
fn the_shop_is_learned_from_its_flows() {
    let place = place();
    let expected = "\
6 policies in 2 namespaces from 7 different flows (9 records)
6 flows seen only once: look for `seen only once` in the policies
not used: 1 record: neither end is a pod of the input

they deny none of the recorded flows (7 flows asked again)
";
    let ran = place.run(LEARN).exits(0).says("wrote out/policies/shop.yaml\n");
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    let text = std::fs::read_to_string(place.path().join("out/policies/shop.yaml")).expect("written");
    let web = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: learned-web
  namespace: shop
  annotations:
    weir.dev/mode: audit
spec:
  podSelector:
    matchLabels:
      app: web
  policyTypes:
    - Ingress
    - Egress
  ingress:
";
    assert!(text.contains(web), "{text}");
    assert!(text.contains("    # DNS, seen 2 times\n") && text.contains("        - port: https\n"), "{text}");
}

#[test]
fn learned_policies_allow_what_was_recorded_and_hardly_more() {
    let place = place();
    place.run(LEARN).exits(0);
    let example = std::fs::read_to_string(place.path().join("cluster/shop.yaml")).expect("a file");
    let documents = example.split("---\n").filter(|it| !it.contains("kind: NetworkPolicy"));
    std::fs::write(place.path().join("pods.yaml"), documents.collect::<Vec<_>>().join("---\n")).expect("written");
    let input = "pods.yaml out/policies --assume audit=enforce";
    place.run(&format!("test {input} --expectations out/expectations.yaml")).exits(0);
    for (from, to, port, verdict) in [
        ("203.0.113.7", "shop/web-5d7-b", "8443", "allow"),
        ("203.0.113.9", "shop/web-5d7-b", "8443", "deny"),
        ("shop/web-5d7-b", "shop/db-0", "5432", "deny"),
        ("shop/api-9f1-a", "shop/db-0", "22", "deny"),
        ("shop/db-0", "kube-system/coredns-1", "53/udp", "deny"),
    ] {
        place.run(&format!("explain {input} --from {from} --to {to} --port {port} --expect {verdict}")).exits(0);
    }
}

/// A client's own node records the connections that the server's node drops.
#[test]
fn a_client_that_tries_again_and_again_does_not_open_a_policy() {
    let tries = "10.0.0.1,10.0.0.4,5432,6,ACCEPT\n".repeat(50);
    let place = Place::new().file("cluster/shop.yaml", shop()).file("flows.csv", format!("{FLOWS}{tries}"));
    let why = "50 records: the input's policies deny it: only one end accepted it, or it is older than they are\n";
    place.run(LEARN).exits(0).says(why);
    let ask = "explain cluster out/policies --assume audit=enforce --from shop/web-5d7-a --to shop/db-0 --port 5432";
    place.run(&format!("{ask} --expect deny")).exits(0);
}

#[test]
fn addresses_are_widened_to_blocks() {
    let place = place();
    place.run(&format!("{LEARN} --cidr-floor 24")).exits(0);
    let text = std::fs::read_to_string(place.path().join("out/policies/shop.yaml")).expect("written");
    assert!(text.contains("cidr: 203.0.113.0/24\n") && !text.contains("/32"), "{text}");
}

#[test]
fn learning_again_never_turns_an_enforced_policy_back_to_audit() {
    let place = place();
    place.run(LEARN).exits(0);
    for namespace in ["shop", "kube-system"] {
        let text =
            std::fs::read_to_string(place.path().join(format!("out/policies/{namespace}.yaml"))).expect("written");
        let enforced = text.replace("  annotations:\n    weir.dev/mode: audit\n", "");
        std::fs::write(place.path().join(format!("cluster/{namespace}-enforced.yaml")), enforced).expect("written");
    }
    let ran = place.run("learn cluster --flows flows.csv -o again").exits(0);
    ran.says("The policies of the input stay as they are: the new ones have other names");
    // A name that is written twice is an error.
    place.run("check cluster again/policies").exits(0);
    let text = std::fs::read_to_string(place.path().join("again/policies/shop.yaml")).expect("written");
    assert!(text.contains("name: learned-default-deny-2\n") && text.contains("name: learned-web-2\n"), "{text}");
}

#[test]
fn files_of_an_earlier_run_are_overwritten_only_by_force() {
    let place = place();
    place.run(LEARN).exits(0);
    let path = place.path().join("out/policies/shop.yaml");
    std::fs::write(&path, "# edited\n").expect("written");
    std::fs::remove_file(place.path().join("out/expectations.yaml")).expect("removed");
    let ran = place.run(LEARN).exits(2);
    let ran = ran.complains("because out/policies/kube-system.yaml, out/policies/shop.yaml exist already");
    ran.complains("hint: `--force` overwrites files");
    assert_eq!(std::fs::read_to_string(&path).expect("a file"), "# edited\n");
    assert!(!place.path().join("out/expectations.yaml").exists());
    place.run(&format!("{LEARN} --force")).exits(0);
    assert!(std::fs::read_to_string(&path).expect("a file").contains("name: learned-web\n"));
}

#[test]
fn files_that_record_nothing_are_errors() {
    let place = place().file("bad.csv", "a,b\n1,2\n").file("none.csv", "src,dst,dport,proto\n");
    place.run("learn cluster --flows bad.csv -o out").exits(2).complains("bad.csv is not a record of flows");
    place.run("learn cluster --flows none.csv -o out").exits(2).complains("no accepted flow of a pod of the input");
    assert!(!place.path().join("out").exists());
}
