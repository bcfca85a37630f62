//! Policies of kinds that are not read: they are reported and refused, and answers without them say so.

use serde_json::json;
use weir_testing::schema::check_schema;

use crate::support::{Place, Ran, SHOP};

const CILIUM: &str = "\
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: deny, namespace: shop}
spec:
  endpointSelector: {}
  ingressDeny:
    - fromEntities: [all]
";
const FLAG: &str = "--ignore-kind cilium.io/CiliumNetworkPolicy";
const NOTE: &str = "left out, because weir does not read these policies: cilium.io/CiliumNetworkPolicy (2)";
const FLOW: &str = r#"{"id": 1, "src": {"pod": "shop/web"}, "dst": {"pod": "shop/db"}, "proto": "TCP", "port": 5432}"#;

fn place() -> Place {
    let place = Place::shop().file("cilium.yaml", format!("{CILIUM}---\n{}", CILIUM.replace("deny,", "again,")));
    let expectations = "expectations:\n  - {from: shop/web, to: shop/db, port: 5432/tcp, expect: allow}\n";
    place.file("flows.jsonl", FLOW).file("tests.txt", expectations).file("head/shop.yaml", SHOP.replace("5432", "5433"))
}

fn command(arguments: &str) -> String {
    arguments.replace("INPUT", "shop.yaml cilium.yaml")
}

/// The commands that answer or compile.
const COMMANDS: [&str; 9] = [
    "query INPUT --flows flows.jsonl",
    "explain INPUT --from shop/web --to shop/db --port 5432",
    "test INPUT --expectations tests.txt",
    "compile INPUT -o out.weir",
    "verify shop.weir INPUT",
    "matrix INPUT",
    "graph INPUT",
    "exposure INPUT",
    "diff shop.yaml,cilium.yaml head",
];

#[test]
fn check_warns_about_policies_that_are_not_read() {
    let ran = place().run(&command("check INPUT")).exits(0);
    let ran = ran.says("warning[unread-policy]: weir does not read `CiliumNetworkPolicy` of cilium.io");
    ran.says("cilium.yaml:2:7").says("cilium.yaml:10:7").says("add `--ignore-kind cilium.io/CiliumNetworkPolicy`");
    place().run(&command("check INPUT --deny-warnings")).exits(1);
    let ran = place().run(&command(&format!("check INPUT --deny-warnings {FLAG}"))).exits(0).says(NOTE);
    assert!(!ran.out.contains("unread-policy"), "{}", ran.out);
    for (format, says) in [("json", "leftOut"), ("sarif", NOTE), ("github", NOTE)] {
        place().run(&command(&format!("check INPUT {FLAG} -o {format}"))).exits(0).says(says);
    }
}

#[test]
fn no_command_answers_while_policies_are_not_read() {
    let place = place();
    place.run("compile shop.yaml -o shop.weir").exits(0);
    for arguments in COMMANDS {
        let ran = place.run(&command(arguments)).exits(2);
        assert_eq!(ran.out, "", "{arguments}");
        let ran = ran.complains("cilium.io/CiliumNetworkPolicy (cilium.yaml:3 and 1 more)");
        ran.complains("hint: to answer without them, add `--ignore-kind cilium.io/CiliumNetworkPolicy`");
    }
}

#[test]
fn every_format_says_what_it_leaves_out() {
    let place = place();
    place.run("compile shop.yaml -o shop.weir").exits(0);
    let formats = |arguments: &str| -> &[&str] {
        match arguments.split(' ').next() {
            Some("query") => &["jsonl"],
            Some("explain") => &["text", "json"],
            Some("test") => &["text", "json", "junit"],
            Some("matrix" | "graph") => &["text", "json", "md", "html", "svg", "dot", "mermaid"],
            Some("exposure") => &["text", "json", "md"],
            Some("diff") => &["text", "json", "md", "sarif", "html", "svg", "dot", "github"],
            _ => &[],
        }
    };
    for arguments in COMMANDS {
        for format in formats(arguments) {
            let ran = place.run(&command(&format!("{arguments} {FLAG} -o {format}")));
            assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
            match *format {
                "json" | "jsonl" => {
                    let found = ran.json();
                    assert_eq!(found["leftOut"], json!([{"kind": "cilium.io/CiliumNetworkPolicy", "objects": 2}]));
                    check_schema(arguments.split(' ').next().expect("a name"), &found);
                }
                _ => _ = ran.says(NOTE),
            }
        }
    }
    place.run(&command(&format!("verify shop.weir INPUT {FLAG}"))).exits(0).says(NOTE);
    place.run(&command(&format!("exposure INPUT {FLAG} -o csv"))).exits(0).complains(NOTE);
}

#[test]
fn an_artifact_records_what_it_leaves_out() {
    let place = place();
    place.run(&command(&format!("compile INPUT {FLAG} -o shop.weir"))).exits(0).says(NOTE);
    place.run("inspect shop.weir").exits(0).says(NOTE);
    place.run("diff shop.weir head").exits(1).says(NOTE);
    place.run(&command(&format!("compile INPUT {FLAG} --emit manifest"))).exits(0).says("\"left_out\"");
    place.run(&command(&format!("compile INPUT {FLAG} --emit iptables"))).exits(0).complains(NOTE);
}

#[test]
fn a_configuration_can_ignore_kinds() {
    let place = place().file("weir.toml", "ignore-kinds = [\"cilium.io/CiliumNetworkPolicy\"]\n");
    place.run(&command("matrix INPUT")).exits(0).says(NOTE);
    let both =
        place.file("calico.yaml", "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: a}}");
    both.run(&command("matrix INPUT calico.yaml"))
        .exits(2)
        .complains("projectcalico.org/NetworkPolicy (calico.yaml:1)");
    let flag = "--ignore-kind projectcalico.org/NetworkPolicy";
    both.run(&command(&format!("matrix INPUT calico.yaml {flag}")))
        .exits(0)
        .says("projectcalico.org/NetworkPolicy (1)");
    let wrong = both.file("weir.toml", "ignore-kinds = [\"cilium.io/CiliumNetworkPolicies\"]\n");
    wrong.run("matrix shop.yaml").exits(2).complains("did you mean `cilium.io/CiliumNetworkPolicy`?");
}

#[test]
fn kinds_that_decide_nothing_are_skipped() {
    let staged = "{apiVersion: projectcalico.org/v3, kind: StagedNetworkPolicy, metadata: {name: a}}";
    let place = Place::shop().file("staged.yaml", staged);
    let ran: Ran = place.run("matrix shop.yaml staged.yaml").exits(0);
    assert!(!ran.out.contains("left out"), "{}", ran.out);
}
