//! `weir matrix`, `weir graph` and `weir exposure`: every format, and the exit codes.

use crate::support::{Place, SHOP};
use weir_testing::schema::check_schema;

/// Another namespace, without policies, and a service that leads into the shop.
const MORE: &str = "\
{apiVersion: v1, kind: Pod, metadata: {name: probe, namespace: ops, labels: {app: probe}}, status: {podIP: 10.0.0.3}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {type: NodePort, clusterIP: 10.96.0.1, \
 selector: {app: web}, ports: [{port: 80, targetPort: 8080, nodePort: 30080}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {type: NodePort, clusterIP: 10.96.0.2, \
 selector: {app: db}, ports: [{port: 5432, nodePort: 30432}]}}
";

fn shop() -> Place {
    Place::shop().file("more.yaml", MORE)
}

#[test]
fn edges_name_who_reaches_whom() {
    let ran = shop().run("graph .").exits(0);
    let db: Vec<&str> = ran.out.lines().skip_while(|line| *line != "shop/db").take(2).collect();
    assert_eq!(db, ["shop/db", "  from shop/web: TCP 5432"], "{}", ran.out);
    assert!(ran.out.contains("  from every pod and address: everything\n"), "{}", ran.out);
}

#[test]
fn the_table_has_a_letter_for_each_sort_of_traffic() {
    let ran = shop().run("matrix .").exits(0);
    let row = ran.out.lines().find(|line| line.contains("shop/web")).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().skip(2).collect();
    assert_eq!(cells[..3], ["*", "a", "*"], "{}", ran.out);
    assert!(ran.out.contains(" a  TCP 5432"), "{}", ran.out);
}

#[test]
fn json_matches_the_schemas() {
    let place = shop();
    for by in ["workload", "namespace"] {
        for command in ["matrix", "graph"] {
            let document = place.run(&format!("{command} . --by {by} -o json")).exits(0).json();
            assert_eq!(document["by"], by);
            check_schema(command, &document);
        }
    }
    check_schema("exposure", &place.run("exposure . -o json").exits(0).json());
}

/// A repository of policies has no pods, but the pods that its policies mean.
#[test]
fn pods_that_could_exist_are_parties() {
    let policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\nspec:\n  \
                  podSelector: {matchLabels: {app: db}}\n  ingress: [{from: [{podSelector: {matchLabels: {app: api}}}], \
                  ports: [{port: 5432}]}]\n";
    let place = Place::new().file("db.yaml", policy);
    let ran = place.run("graph db.yaml --world open").exits(0);
    assert!(ran.out.contains("shop/(pods with app=db)\n  from shop/(pods with app=api): TCP 5432\n"), "{}", ran.out);
    let document = place.run("matrix db.yaml --world open -o json").exits(0).json();
    check_schema("matrix", &document);
    assert_eq!(document["ends"][2]["workload"], "possible", "{document:#}");
    let refused = place.run("matrix db.yaml --world open -o html").exits(2).err;
    assert!(refused.contains("omit `--world open`"), "{refused}");
    // With a pod of its own, the namespace's other pods are the only new party.
    let closed = shop().run("matrix .").exits(0).out;
    let open = shop().run("matrix . --world open").exits(0).out;
    assert!(!closed.contains('(') && open.contains("(other namespaces)/(any pod)"), "{open}");
}

#[test]
fn namespaces_sum_up_their_pairs() {
    let ran = shop().run("graph . --by namespace").exits(0);
    assert!(ran.out.contains("  from every pod of ops: everything (at most; 1 of 2 pairs)"), "{}", ran.out);
}

#[test]
fn exposure_lists_open_workloads_and_sets_the_exit_code() {
    let place = shop();
    let ran = place.run("exposure .").exits(0);
    for expected in [
        "3 workloads: 2 reachable from outside, 2 from other namespaces, 2 without any policy",
        "shop/web   everything  from any address outside",
        "service shop/web  TCP 80, node port 30080    all of 1 backend reachable from outside",
        "service shop/db   TCP 5432, node port 30432  no backend is reachable from outside",
        "shop/db    no policy for egress (1 of 2 workloads)",
    ] {
        assert!(ran.out.contains(expected), "no {expected:?} in {}", ran.out);
    }
    place.run("exposure . --deny outside").exits(1).complains("2 workloads reachable from outside");
    place.run("exposure . --deny no-policy,namespaces").exits(1).complains("2 workloads without any policy");
    let closed = SHOP.replace("  ingress:\n", "  egress: []\n  ingress:\n").replace("[Ingress]", "[Ingress, Egress]");
    let closed = closed.replace("podSelector:\n    matchLabels: {app: db}", "podSelector: {}");
    let place = Place::new().file("shop.yaml", closed);
    place.run("exposure shop.yaml --deny outside,namespaces,no-policy").exits(0);
    place.run("exposure none.yaml").exits(2);
}

#[test]
fn every_format_is_the_same_every_time() {
    let place = shop();
    for command in ["matrix", "graph"] {
        for format in ["text", "json", "md", "csv", "dot", "svg", "html"] {
            let runs = [0, 1].map(|_| place.run(&format!("{command} . -o {format}")).exits(0).out);
            assert!(runs[0] == runs[1] && runs[0].contains("db"), "{command} {format}: {}", runs[0]);
        }
    }
    for format in ["text", "json", "md", "csv"] {
        assert!(place.run(&format!("exposure . -o {format}")).exits(0).out.contains("shop"), "{format}");
    }
}

/// Checks that tags are closed in the reverse order of their opening.
#[track_caller]
fn check_nesting(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in text.split('<').skip(1) {
        let (inside, _) = tag.split_once('>').expect("a tag ends");
        let name = inside.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        match (inside.starts_with('/'), inside.ends_with('/')) {
            (true, _) => assert_eq!(open.pop(), Some(name), "{text}"),
            (false, false) => open.push(name),
            (false, true) => {}
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn pictures_are_well_formed() {
    let place = shop().file("head.yaml", SHOP.replace("5432", "5433"));
    check_nesting(&place.run("graph shop.yaml more.yaml -o svg").exits(0).out);
    check_nesting(&place.run("matrix shop.yaml more.yaml -o svg").exits(0).out);
    let ran = place.run("diff --world closed shop.yaml head.yaml --no-cost -o svg").exits(1);
    check_nesting(&ran.out);
    let ran = ran.says("+ TCP 5433").says("− TCP 5432").says("class=\"removed\"");
    assert!(!ran.out.contains("<script"), "{}", ran.out);
    place
        .run("diff --world closed shop.yaml head.yaml --no-cost -o dot")
        .exits(1)
        .says("style=dashed")
        .says("label=\"+ TCP 5433\"");
}

#[test]
fn input_with_errors_is_not_shown() {
    let place = Place::new().file("bad.yaml", SHOP.replace("podSelector:", "podselector:"));
    for command in ["matrix", "graph", "exposure"] {
        place.run(&format!("{command} bad.yaml")).exits(2).complains("the input has");
    }
}
