//! `weir matrix`, `weir graph` and `weir exposure`: every format, and the exit codes.

use std::collections::BTreeMap;

use serde_json::Value;

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
    assert!(
        ran.out.contains("  from every pod of ops, any address outside: everything (at most; 1 of 2 pairs)"),
        "{}",
        ran.out
    );
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
        for format in ["text", "json", "md", "csv", "dot", "mermaid", "svg", "html"] {
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

type Pair = (String, String);

/// An end's name as `namespace/name`, or its ranges.
fn end_name(end: &Value) -> String {
    match end["kind"].as_str() {
        Some("workload") => {
            let part = |key: &str| end[key].as_str().expect("a text").to_owned();
            format!("{}/{}", part("namespace"), part("name"))
        }
        _ => end["ranges"].to_string(),
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().expect("a list").clone()
}

/// The pairs of a matrix between which anything passes, with what passes.
fn pairs_of_matrix(document: &Value) -> BTreeMap<Pair, Value> {
    let ends: Vec<String> = list(&document["ends"]).iter().map(end_name).collect();
    let mut found = BTreeMap::new();
    for (from, row) in ends.iter().zip(list(&document["cells"])) {
        for (to, cell) in ends.iter().zip(list(&row)) {
            let value = &document["values"][cell.as_u64().expect("an index") as usize];
            if value["kind"] == "part" || value["kind"] == "everything" {
                found.insert((from.clone(), to.clone()), value["passes"].clone());
            }
        }
    }
    found
}

/// The same of a graph, between workloads.
fn pairs_of_graph(document: &Value, workloads: &[String]) -> BTreeMap<Pair, Value> {
    let members = |end: &Value| -> Vec<String> {
        let of = |is: &dyn Fn(&str) -> bool| workloads.iter().filter(|it| is(it)).cloned().collect();
        match end["kind"].as_str().expect("a kind") {
            "everyone" | "pods" => of(&|_| true),
            "namespace" => of(&|it| it.split('/').next() == end["namespace"].as_str()),
            "workload" => vec![end_name(end)],
            _ => Vec::new(),
        }
    };
    let mut found = BTreeMap::new();
    for edge in list(&document["edges"]) {
        for from in list(&edge["from"]).iter().flat_map(members) {
            for to in list(&edge["to"]).iter().flat_map(members) {
                assert_eq!(found.insert((from.clone(), to), edge["passes"].clone()), None, "{from}");
            }
        }
    }
    found
}

fn has_port(passes: &Value, port: u64) -> bool {
    list(passes).iter().any(|it| {
        let is_named = list(&it["ports"]).iter().any(|it| {
            let range = it["first"].as_u64().expect("a port")..=it["last"].as_u64().expect("a port");
            it["protocol"] == "TCP" && range.contains(&port)
        });
        is_named != (it["other"] == "allow")
    })
}

#[test]
fn a_filter_shows_exactly_the_matching_pairs() {
    let place = shop();
    let whole = place.run("matrix . --by workload -o json").exits(0).json();
    let all = pairs_of_matrix(&whole);
    let workloads: Vec<String> =
        list(&whole["ends"]).iter().filter(|it| it["kind"] == "workload").map(end_name).collect();
    type Wanted = fn(&str, &str, &Value) -> bool;
    let cases: [(&str, Wanted); 12] = [
        ("--focus shop/db", |from, to, _| from == "shop/db" || to == "shop/db"),
        ("--focus 10.0.0.2", |from, to, _| from == "shop/db" || to == "shop/db"),
        ("--from shop/app=web", |from, _, _| from == "shop/web"),
        ("--to shop/web", |_, to, _| to == "shop/web"),
        ("--to service/shop/db", |_, to, _| to == "shop/db"),
        ("--selector app=db", |from, to, _| from == "shop/db" || to == "shop/db"),
        ("--selector app=db --direction ingress", |_, to, _| to == "shop/db"),
        ("--to ops", |_, to, _| to.starts_with("ops/")),
        ("--namespace ops", |from, to, _| from.starts_with("ops/") || to.starts_with("ops/")),
        ("--namespace ops --direction egress", |from, _, _| from.starts_with("ops/")),
        ("--to shop/db --port 5432/tcp", |_, to, passes| to == "shop/db" && has_port(passes, 5432)),
        ("--focus shop/db --port 80", |from, to, passes| {
            (from == "shop/db" || to == "shop/db") && has_port(passes, 80)
        }),
    ];
    for (options, wanted) in cases {
        let expected: BTreeMap<Pair, Value> = all
            .iter()
            .filter(|((from, to), passes)| wanted(from, to, passes))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        assert!(!expected.is_empty() && expected.len() < all.len(), "{options}: {expected:#?}");
        let found = place.run(&format!("matrix . --by workload -o json {options}")).exits(0).json();
        check_schema("matrix", &found);
        assert_eq!(pairs_of_matrix(&found), expected, "{options}");
        let found = place.run(&format!("graph . --by workload -o json {options}")).exits(0).json();
        check_schema("graph", &found);
        let of_workloads = |pairs: BTreeMap<Pair, Value>| -> BTreeMap<Pair, Value> {
            pairs.into_iter().filter(|((from, to), _)| workloads.contains(from) && workloads.contains(to)).collect()
        };
        assert_eq!(pairs_of_graph(&found, &workloads), of_workloads(expected), "{options}");
        place.run(&format!("graph . {options}")).exits(0).says("shown: ").says(&format!("({options})"));
    }
}

/// As in kubectl, `-A` shows all namespaces, and `-n` is then only the namespace of names without one.
#[test]
fn a_namespace_with_all_namespaces_is_only_a_default() {
    let place = shop();
    let whole = place.run("graph . --to shop/db").exits(0).out;
    let ran = place.run("graph . -n shop -A --to db").exits(0);
    assert_eq!(ran.out.replace("--to db", "--to shop/db"), whole);
    place.run("graph . -n shop --to db").exits(0).says("--namespace shop");
}

/// The web server is reached on other ports.
#[test]
fn a_destination_without_the_port_is_left_out() {
    let ran = shop().run("graph . --to shop --port 5432").exits(0);
    assert!(!ran.out.contains("no source"), "{}", ran.out);
}

#[test]
fn exposure_is_filtered_and_its_exit_code_is_not() {
    let place = shop();
    let ran = place.run("exposure . --to shop/db -o json").exits(0).json();
    check_schema("exposure", &ran);
    let names: Vec<String> = list(&ran["workloads"]).iter().map(|it| end_name(&it["workload"])).collect();
    assert_eq!(names, ["shop/db"]);
    assert_eq!((&ran["filter"]["shown"], &ran["filter"]["of"]), (&Value::from(1), &Value::from(3)));
    place.run("exposure . --to shop/db --deny outside").exits(1).complains("2 workloads reachable from outside");
    place.run("exposure . --namespace ops").exits(0).says("shown: 1 of 3 workloads (--namespace ops)");
}

#[test]
fn a_filter_with_a_mistake_names_the_nearest() {
    let place = shop();
    place.run("graph . --focus shop/wbe").exits(2).complains("did you mean `shop/web`?");
    place.run("graph . --namespace shpo").exits(2).complains("did you mean `shop`?");
    place.run("graph . -l app=db=x").exits(2).complains("is no selector of labels");
    place.run("matrix . --port 99999").exits(2).complains("`99999` is not a port");
    place.run("matrix . --direction ingress").exits(2).complains("add --focus or --namespace");
    place.run("graph . --focus shop/db -o html").exits(2).complains("filters of its own");
    let place = place.file("head.yaml", SHOP.replace("5432", "5433"));
    place.run("diff shop.yaml head.yaml --to shop/dbb").exits(2).complains("did you mean `shop/db`?");
}

#[test]
fn a_filter_does_not_weaken_the_exit_code_of_a_comparison() {
    let place = shop().file("head.yaml", SHOP.replace("5432", "5433"));
    let ran = place.run("diff shop.yaml head.yaml --deny added --port 5432").exits(1);
    let ran = ran.says("1 connection newly allowed, 1 no longer allowed").says("shown: 1 of 2 changes (--port 5432)");
    assert!(!ran.out.contains("5433"), "{}", ran.out);
    place.run("diff shop.yaml head.yaml --port 1").exits(1).says("shown: 0 of 2 changes (--port 1)");
}

/// The gate is about the whole comparison, so its numbers are too, and refused rows are never silently left out.
#[test]
fn a_filter_does_not_change_the_numbers_of_the_gate() {
    let place = shop().file("head.yaml", SHOP.replace("5432", "5433"));
    let gate = "diff shop.yaml head.yaml --deny added --port 5432";
    for (format, begins) in [("text", ""), ("md", "**")] {
        let ran = place.run(&format!("{gate} -o {format}")).exits(1);
        ran.says(&format!("{begins}The gate refuses 1 of 2 changes; 0 are approved.")).says("shown: 1 of 2 changes");
    }
    let document = place.run(&format!("{gate} -o sarif")).exits(1).json();
    let results = list(&document["runs"][0]["results"]);
    let mut levels: Vec<&str> = results.iter().filter_map(|it| it["level"].as_str()).collect();
    levels.sort_unstable();
    assert_eq!(levels, ["error", "note"], "{document:#}");
    let ran = place.run(&format!("{gate} -o github")).exits(1);
    assert!(ran.out.contains("::error ") && ran.out.contains("5433"), "{}", ran.out);
}

/// In sums as in single pairs: other traffic is not an answer to a question about a port.
#[test]
fn sums_without_the_port_are_hidden() {
    let policy = |namespace: &str, port: u16| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: {namespace}}}\n\
             spec: {{podSelector: {{}}, ingress: [{{ports: [{{port: {port}}}]}}]}}\n---\n\
             {{apiVersion: v1, kind: Pod, metadata: {{name: a, namespace: {namespace}}}, status: {{podIP: 10.0.0.{port}}}}}\n"
        )
    };
    let place = Place::new().file("all.yaml", policy("one", 22) + &policy("two", 54));
    let whole = place.run("matrix all.yaml --by namespace").exits(0).out;
    assert!(whole.contains("TCP 22") && whole.contains("TCP 54"), "{whole}");
    let shown = place.run("matrix all.yaml --by namespace --port 22").exits(0).says("(--port 22)").out;
    assert!(shown.contains("TCP 22") && !shown.contains("TCP 54"), "{shown}");
    let graph = place.run("graph all.yaml --by namespace --port 22").exits(0).out;
    assert!(graph.contains("TCP 22") && !graph.contains("TCP 54"), "{graph}");
    let others = place.run("matrix all.yaml --by namespace --port 80").exits(0).out;
    assert!(!others.contains("TCP"), "{others}");
}

/// The short form is the same option: the default namespace of names, and the part that is shown.
#[test]
fn a_namespace_filters_and_says_so() {
    let place = shop().file("head.yaml", SHOP.replace("5432", "5433"));
    for command in ["matrix shop.yaml more.yaml", "graph shop.yaml more.yaml", "exposure shop.yaml more.yaml"] {
        place.run(&format!("{command} -n ops")).exits(0).says("shown: ").says("(--namespace ops)");
    }
    place.run("diff shop.yaml head.yaml -n shop").exits(1).says("shown: 2 of 2 changes (--namespace shop)");
    // That of the configuration is a default alone.
    let place = place.file("weir.toml", "namespace = \"shop\"\n");
    let ran = place.run("graph shop.yaml more.yaml --to db").exits(0).says("(--to db)");
    assert!(!ran.out.contains("--namespace"), "{}", ran.out);
}

/// Lines of a flowchart as <https://mermaid.js.org/syntax/flowchart.html> has them, with quoted labels.
#[track_caller]
fn check_flowchart(text: &str) {
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("flowchart LR"));
    let mut depth = 0;
    for line in lines {
        let line = line.trim();
        let labels = line.matches('"').count();
        let is_node = line.split_once("[\"").is_some_and(|(id, rest)| {
            id.split(' ').next_back().is_some_and(|id| id.starts_with(['n', 's'])) && rest.ends_with("\"]")
        });
        let is_edge = ["-->", "-.->", "---", "-.-"].iter().any(|it| line.contains(it));
        match line {
            _ if line.starts_with("subgraph s") => depth += 1,
            "end" => depth -= 1,
            _ => assert!(is_node || is_edge || line.starts_with("linkStyle") || line.ends_with("(( ))"), "{line}"),
        }
        assert!(labels == 0 || labels == 2, "a label ends early: {line}");
    }
    assert_eq!(depth, 0, "{text}");
}

#[test]
fn mermaid_is_well_formed() {
    let place = shop().file("head.yaml", SHOP.replace("5432", "5433"));
    check_flowchart(&place.run("graph shop.yaml more.yaml -o mermaid").exits(0).out);
    check_flowchart(&place.run("matrix shop.yaml more.yaml -o mermaid --by namespace").exits(0).out);
    let ran = place.run("diff shop.yaml head.yaml -o mermaid").exits(1).says("linkStyle 0 stroke:");
    check_flowchart(&ran.out);
}
