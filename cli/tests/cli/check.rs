//! `weir check`: findings, output formats and exit codes.

use std::os::unix::fs::symlink;

use crate::support::{Place, SHOP};
use weir_testing::schema::check_schema;

const BAD: &str = "\
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: bad, namespace: shop}
spec:
  podselector: {}
  ingress:
    - ports:
        - {port: 80, endPort: 79}
";

const TWINS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: one, namespace: shop}
status: {phase: Running, podIP: 10.0.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: two, namespace: shop}
status: {phase: Running, podIP: 10.0.0.1}
";

#[test]
fn a_finding_is_drawn_at_its_line() {
    let ran = Place::new().file("bad.yaml", BAD).run("check bad.yaml").exits(1);
    let expected = "\
error[unknown-field]: unknown field `spec.podselector`
 --> bad.yaml:5:3
  |
5 |   podselector: {}
  |   ^^^^^^^^^^^ no such field
  |
";
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    let ran = ran.says("--> bad.yaml:8:31").says("in NetworkPolicy shop/bad: spec.ingress[0].ports[0].endPort");
    ran.says("checked no valid objects: 2 errors, no warnings");
}

#[test]
fn clean_input_is_counted() {
    let place = Place::shop().file("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n");
    let ran = place.run("check .").exits(0).says("checked 1 policy, 2 pods, 1 namespace: no errors");
    ran.says("skipped 1 object of other kinds (1 v1 Secret)");
    assert_eq!(place.run("check . --quiet -A duplicate-address").exits(0).err, "");
}

#[test]
fn findings_are_sorted_by_position_without_duplicates() {
    let place = Place::new().file("b.yaml", BAD).file("a.yaml", BAD.replace("name: bad", "name: other"));
    let found = place.run("check b.yaml . a.yaml -o json").exits(1).json();
    let places: Vec<String> = found["diagnostics"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| format!("{}:{}", it["location"]["file"].as_str().expect("a file"), it["location"]["line"]))
        .collect();
    assert_eq!(places, ["b.yaml:5", "b.yaml:8", "./a.yaml:5", "./a.yaml:8"]);
}

#[test]
fn max_says_how_many_more() {
    let place = Place::new().file("bad.yaml", BAD);
    place.run("check bad.yaml --max 1").exits(1).says("and 1 more (--max 0 shows all)");
    let shown = place.run("check bad.yaml --max 1 -o json").exits(1).json();
    assert_eq!(shown["diagnostics"].as_array().map(Vec::len), Some(1));
    assert_eq!(shown["summary"]["errors"], 2);
}

#[test]
fn json_matches_its_schema() {
    let place = Place::shop().file("bad.yaml", BAD).file("twins.yaml", TWINS.replace("shop}", "twins}"));
    let found = place.run("check . -o json").exits(1).json();
    check_schema("check", &found);
    let first = &found["diagnostics"][0];
    assert_eq!((&first["code"], &first["location"]["column"]), (&"unknown-field".into(), &3.into()));
    assert_eq!(first["object"], serde_json::json!({"kind": "NetworkPolicy", "namespace": "shop", "name": "bad"}));
    let twin = found["diagnostics"].as_array().expect("a list").iter().find(|it| it["code"] == "duplicate-address");
    assert!(twin.is_some_and(|it| it["related"][0]["location"]["line"].is_u64()), "{found:#}");
}

#[test]
fn sarif_has_what_code_scanning_needs() {
    let log = Place::new().file("a b.yaml", BAD).run("check . -o sarif").exits(1).json();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let result = &run["results"][0];
    let rule = &run["tool"]["driver"]["rules"][result["ruleIndex"].as_u64().expect("an index") as usize];
    assert_eq!(rule["id"], result["ruleId"]);
    assert!(rule["fullDescription"]["text"].is_string() && result["message"]["text"].is_string());
    assert_eq!(result["level"], "error");
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "a%20b.yaml");
    assert_eq!(place["region"]["startLine"], 5);
}

#[test]
fn github_annotations_are_one_per_line() {
    let ran = Place::new().file("bad.yaml", BAD).run("check bad.yaml -o github").exits(1);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 2, "{}", ran.out);
    let expected =
        "::error file=bad.yaml,line=5,endLine=5,col=3,endColumn=14,title=weir%3A unknown-field::unknown field";
    assert!(lines[0].starts_with(expected), "{}", lines[0]);
}

#[test]
fn the_last_level_of_a_lint_wins() {
    let place = Place::new().file("twins.yaml", TWINS);
    place.run("check twins.yaml").exits(0).says("warning[duplicate-address]");
    place.run("check twins.yaml --deny-warnings").exits(1);
    place.run("check twins.yaml -D duplicate-address").exits(1).says("error[duplicate-address]");
    let ran = place.run("check twins.yaml -D duplicate-address -A duplicate-address --deny-warnings").exits(0);
    assert!(!ran.out.contains("duplicate-address"), "{}", ran.out);
    place.run("check twins.yaml -A duplicate-adress").exits(2).complains("did you mean `duplicate-address`?");
    place.run("check twins.yaml -A unknown-field").exits(2).complains("it cannot be switched off");
}

#[test]
fn weir_toml_is_found_in_parents() {
    let place = Place::new().file("twins.yaml", TWINS).file("deep/er/x", "");
    let place = place.file("weir.toml", "namespace = \"x\"\n[lints]\n\"duplicate-address\" = \"error\"\n");
    let mut command = place.command("check ../../twins.yaml");
    let ran = crate::support::Ran::from(command.current_dir(place.path().join("deep/er")).output().expect("runs"));
    ran.exits(1);
    // The command line overrides the file.
    place.run("check twins.yaml -A duplicate-address").exits(0);
}

#[test]
fn a_mistake_in_weir_toml_is_an_error_with_its_line() {
    let place = Place::shop().file("weir.toml", "[lint]\n");
    let ran = place.run("check shop.yaml").exits(2).complains("unknown key `lint`");
    ran.complains("weir.toml:1").complains("did you mean `lints`?");
    let place = Place::shop().file("other.toml", "[assume]\nicmp = \"perhaps\"\n");
    place.run("check shop.yaml --config other.toml").exits(2).complains("`icmp` cannot be `perhaps`");
    place.run("check shop.yaml --config none.toml").exits(2).complains("cannot read none.toml");
}

#[test]
fn an_unreadable_path_hides_no_other_findings() {
    let place = Place::new().file("bad.yaml", BAD);
    let ran = place.run("check none.yaml bad.yaml").exits(2).says("error[unknown-field]");
    ran.complains("error: cannot read none.yaml\n  caused by: No such file or directory").complains("hint: ");
}

#[test]
fn directories_are_searched_but_not_hidden_ones() {
    let place = Place::shop().file(".hidden/bad.yaml", BAD).file("deep/more.yml", SHOP.replace("shop", "deep"));
    let place = place.file("notes.txt", "not: [yaml").file("empty/x.txt", "");
    symlink("..", place.path().join("deep/loop")).expect("a link");
    place.run("check .").exits(0).says("checked 2 policies, 4 pods");
    place.run("check empty").exits(2).complains("no files to read in empty");
}

#[test]
fn standard_input_is_a_path() {
    let place = Place::new();
    place.run_with_input("check -", BAD).exits(1).says("--> -:5:3");
    place.run_with_input("check -", "{\"kind\": ").exits(1).says("-:1:");
}

#[test]
fn list_files_are_read_beside_the_paths() {
    let place = Place::shop().file("drop.txt", "192.0.2.0/24 # documentation\n\n192.0.2.0/33\n");
    place.run("check shop.yaml --deny-list drop.txt").exits(1).says("--> drop.txt:3:1");
}

#[test]
fn output_is_coloured_only_on_request() {
    let place = Place::new().file("bad.yaml", BAD);
    assert!(!place.run("check bad.yaml").out.contains('\x1b'));
    assert!(place.run("check bad.yaml --color always").out.contains('\x1b'));
}

#[test]
fn a_template_is_named_as_one() {
    let begins = "{{- if .Values.on }}\napiVersion: v1\nkind: Pod\n{{- end }}\n";
    let inside = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}-web\n";
    for text in [begins, inside] {
        Place::new().file("t.yaml", text).run("check t.yaml").exits(1).says("is a template: render it first");
    }
}

#[test]
fn an_endless_device_is_an_error() {
    Place::new()
        .run("check /dev/zero")
        .exits(2)
        .complains("it is longer than 1 GiB")
        .says("nothing was checked: no path");
}

#[test]
fn a_long_name_is_not_printed_in_full() {
    let text = BAD.replace("name: bad", &format!("name: {}", "x".repeat(100_000)));
    let ran = Place::new().file("long.yaml", text).run("check long.yaml").exits(1);
    assert!(ran.out.len() < 10_000, "{} bytes", ran.out.len());
}

#[test]
fn a_field_that_is_there_twice_is_shown_twice() {
    let text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, name: web}\nspec:\n  podSelector: {}\n  ingress: []\n\n\n\n  ingress: [{}]\n";
    let ran = Place::new().file("a.yaml", text).run("check a.yaml").exits(1);
    ran.says("again here").says("first here").says("6 |   ingress: []").says("10 |   ingress: [{}]");
}

#[test]
fn places_far_into_a_long_line_are_counted_in_characters() {
    let policies = (0..3_000).map(|number| {
        let twice = if number % 500 == 499 { ", \"a\": \"1\", \"a\": \"2\"" } else { "" };
        let labels = format!("{{\"e\": \"ü{number}\"{twice}}}");
        format!(
            r#"{{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {{"name": "p{number}", "annotations": {labels}}}, "spec": {{"podSelector": {{}}}}}}"#
        )
        .replace('\n', "")
    });
    let items = policies.collect::<Vec<_>>().join(", ");
    let text = format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{items}]}}"#);
    let found = Place::new().file("a.json", &text).run("check a.json -o json").json();
    let found = found["diagnostics"].as_array().expect("findings");
    let columns: Vec<usize> = found
        .iter()
        .filter(|it| it["code"] == "duplicate-field")
        .map(|it| it["location"]["column"].as_u64().expect("a column") as usize)
        .collect();
    let characters: Vec<char> = text.chars().collect();
    assert_eq!(columns.len(), 6, "{found:#?}");
    for column in columns {
        assert_eq!(characters[column - 1..column + 5].iter().collect::<String>(), "\"a\": \"");
        assert_eq!(characters[column + 5], '2');
    }
}

#[test]
fn a_link_out_of_the_directory_is_refused_and_one_inside_is_followed() {
    let place =
        Place::shop().file("set/real/a.yaml", SHOP.replace("shop", "deep")).file("secret.yaml", "password: hunter2\n");
    let set = place.path().join("set");
    symlink("real", set.join("alias")).expect("a link");
    symlink("real/a.yaml", set.join("b.yaml")).expect("a link");
    place.run("check set").exits(0).says("checked 1 policy, 2 pods");
    symlink("../secret.yaml", set.join("c.yaml")).expect("a link");
    symlink("..", set.join("up")).expect("a link");
    let ran =
        place.run("check set").exits(2).complains("cannot read set/c.yaml: it is a symbolic link that leads out of");
    let ran = ran.complains("cannot read set/up: it is a symbolic link that leads out of").says("checked 1 policy");
    assert!(!ran.out.contains("hunter2") && !ran.out.contains("secret.yaml"), "{ran:#?}");
    place.run("query set --flows /dev/null").exits(2).complains("leads out of");
}

#[test]
fn links_given_as_paths_are_followed() {
    let place = Place::shop().file("far/a.yaml", SHOP.replace("shop", "deep"));
    symlink("far", place.path().join("near")).expect("a link");
    symlink("shop.yaml", place.path().join("link.yaml")).expect("a link");
    place.run("check near link.yaml").exits(0).says("checked 2 policies");
}

#[test]
fn a_pipe_among_manifests_is_an_error() {
    let place = Place::shop();
    let made = std::process::Command::new("mkfifo").arg(place.path().join("pipe.yaml")).status();
    assert!(made.is_ok_and(|it| it.success()), "mkfifo");
    symlink("/dev/zero", place.path().join("zero.yaml")).expect("a link");
    let ran = place.run("check .").exits(2).complains("pipe.yaml: it is not a file but a pipe, a socket or a device");
    ran.complains("zero.yaml: it is a symbolic link that leads out of").says("checked 1 policy");
}

#[test]
fn a_configuration_link_out_of_the_repository_is_refused() {
    let place = Place::shop().file("deep/.git/x", "").file("deep/a.yaml", SHOP);
    symlink("/etc/passwd", place.path().join("weir.toml")).expect("a link");
    let ran = place.run("check shop.yaml").exits(2).complains("weir.toml is a symbolic link that leads out of");
    assert!(!ran.err.contains("root:"), "{ran:#?}");
    place.run("check shop.yaml --config weir.toml").exits(2).complains("it is read as TOML");
}

/// A policy with a rule that another rule covers: the warning `rule-covered` or, for another policy, `policy-duplicate`.
fn duplicated(namespace: &str) -> String {
    let policy = |name: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{podSelector: {{}}, policyTypes: [Ingress]}}\n"
        )
    };
    policy("one") + &policy("two")
}

const BROKEN: &str = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: bad, namespace: shop}\n\
                      spec: {podSelector: {}, ingress: [{ports: [{port: 99999}]}]}\n";

#[test]
fn an_error_leaves_the_lints_of_other_namespaces() {
    let (shop, ops) = (duplicated("shop"), duplicated("ops"));
    let place = Place::new().file("good.yaml", format!("{shop}{ops}")).file("bad.yaml", BROKEN);
    let both = place.run("check good.yaml").exits(0);
    assert_eq!(both.out.matches("policy-duplicate").count(), 2, "{}", both.out);
    let ran = place.run("check good.yaml bad.yaml").exits(1);
    assert_eq!(ran.out.matches("policy-duplicate").count(), 1, "{}", ran.out);
    let ran = ran.says("ops/").says(
        "lints skipped: those about namespace shop, and those that compare namespaces, because of errors in NetworkPolicy \
         shop/bad",
    );
    assert!(!ran.out.contains("shop/two"), "{}", ran.out);
}

#[test]
fn an_error_without_an_object_leaves_only_lints_of_single_objects() {
    let place = Place::new().file("good.yaml", duplicated("ops")).file("bad.yaml", "a: [\n");
    let ran = place.run("check good.yaml bad.yaml").exits(1);
    assert!(!ran.out.contains("policy-duplicate"), "{}", ran.out);
    ran.says("lints skipped: a part of the input cannot be read as an object, so only lints");
}

/// An author who only removes the unknown field gets a selector of everything.
#[test]
fn the_help_for_a_selector_without_match_labels_keeps_its_labels() {
    let policy = |peer: &str, ingress: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p, namespace: shop}}\n\
             spec: {{podSelector: {{}}, ingress: {ingress}}}\n"
        )
        .replace("PEER", peer)
    };
    let check =
        |peer: &str| Place::new().file("p.yaml", policy(peer, "[{from: [PEER]}]")).run("check p.yaml --max 0").exits(1);
    check("{podSelector: {app: api}}").says("help: labels belong below `matchLabels`: write `matchLabels: {app: api}`");
    check("{namespaceSelector: {team: 7}}").says("write `matchLabels: {team: \"7\"}`");
    check("{podSelector: {app: \"true\"}}").says("write `matchLabels: {app: \"true\"}`");
    check("{podSelector: {matchlabels: {app: api}}}").says("help: write `matchLabels`");
    check("{quite: {different: 1}}").says("remove it only if the rest says what you mean");
    let list = |ingress: &str| Place::new().file("p.yaml", policy("", ingress)).run("check p.yaml").exits(1);
    list("{}").says("help: write `[]`: a list without items");
    list("{ports: []}").says("help: make it a list: write `- ` before it on a line of its own, or put it in brackets");
}
