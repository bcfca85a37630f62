//! Rows of several namespaces are one row only if all that they are about is equal, also what texts leave out.

use crate::support::Place;

const NAMESPACES: [&str; 3] = ["ta", "tb", "tc"];
/// More blocks than texts list, and one of each namespace's own after them.
const OWN_BLOCKS: [&str; 3] = ["66.0.0.1/32", "77.0.0.0/8", "88.0.0.1/32"];

fn policy(namespace: &str, name: &str, rest: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{podSelector: {{matchLabels: {{app: web}}}}, policyTypes: [Ingress]{rest}}}\n"
    )
}

/// A pod in each namespace.
fn pods() -> String {
    let pod = |(index, namespace): (usize, &&str)| {
        format!(
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: web, namespace: {namespace}, labels: {{app: web}}}}, \
             status: {{podIP: 10.0.0.{index}}}}}\n"
        )
    };
    NAMESPACES.iter().enumerate().map(pod).collect()
}

fn from_blocks(blocks: [&str; 3]) -> String {
    let policy_with = |(namespace, own): (&str, &str)| {
        let shared = (20..29).map(|it| format!("{{ipBlock: {{cidr: {it}.0.0.1/32}}}}, ")).collect::<String>();
        let rules = format!(", ingress: [{{from: [{shared}{{ipBlock: {{cidr: {own}}}}}]}}]");
        policy(namespace, "web", &rules)
    };
    NAMESPACES.into_iter().zip(blocks).map(policy_with).collect()
}

/// The base allows nothing. The head allows different blocks in each namespace, or the same.
fn place() -> Place {
    let closed: String = NAMESPACES.iter().map(|it| policy(it, "web", "")).collect();
    Place::new()
        .file("base.yaml", pods() + &closed)
        .file("other.yaml", pods() + &from_blocks(OWN_BLOCKS))
        .file("same.yaml", pods() + &from_blocks([OWN_BLOCKS[0]; 3]))
}

#[test]
fn ranges_that_no_text_shows_keep_rows_apart() {
    let place = place();
    let commands = [
        ("diff base.yaml", 1),
        ("diff --world closed base.yaml", 1),
        ("diff -o md base.yaml", 1),
        ("exposure", 0),
        ("exposure --world closed", 0),
        ("exposure -o md", 0),
    ];
    for (command, code) in commands {
        let [other, same] = ["other", "same"].map(|it| place.run(&format!("{command} {it}.yaml")).exits(code).out);
        let cut = |out: &str| out.lines().filter(|it| it.contains("more ranges")).count();
        assert!(cut(&other) >= 3 && cut(&other) == 3 * cut(&same), "{command}: {other}{same}");
        let is_joined = |line: &str| line.contains("more ranges") && line.contains("NS");
        assert!(!other.lines().any(is_joined), "{command}: {other}");
        assert!(same.contains("where NS is each of namespaces ta, tb, tc"), "{command}: {same}");
    }
    let graph = place.run("graph --by workload other.yaml").exits(0).out;
    assert_eq!(graph.matches("more ranges").count(), 3, "{graph}");
}

#[test]
fn policies_that_no_text_shows_keep_isolation_apart() {
    let isolated = |last: [&str; 3]| -> String {
        let names = |last| ["a", "b", "c", "d", last];
        let of = |(namespace, last)| names(last).map(|name| policy(namespace, name, "")).concat();
        NAMESPACES.into_iter().zip(last).map(of).collect()
    };
    let place = Place::new()
        .file("base.yaml", pods())
        .file("other.yaml", pods() + &isolated(["last-1", "last-2", "last-3"]))
        .file("same.yaml", pods() + &isolated(["last-1"; 3]));
    let isolation = |head: &str| -> String {
        let out = place.run(&format!("diff base.yaml {head}")).exits(1).out;
        let (_, rest) = out.split_once("\nIsolation\n").expect("a section");
        rest.split("\n\n").next().unwrap_or_default().to_owned()
    };
    let (other, same) = (isolation("other.yaml"), isolation("same.yaml"));
    assert!(other.contains("2 more") && !other.contains("NS"), "{other}");
    assert_eq!(same.matches("where NS is each of namespaces ta, tb, tc").count(), 1, "{same}");
}
