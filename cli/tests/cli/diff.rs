//! `weir diff`: rows, witnesses, inputs and output formats.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::{DATABASE, Place, SHOP};
use weir_testing::schema::check_schema;

/// The shop before and after: 5433 instead of 5432.
fn moved_port() -> Place {
    Place::shop().file("head.yaml", SHOP.replace("5432", "5433"))
}

/// The changed shop of the documents.
fn changes() -> String {
    let directory = format!("{}/../policies/changes", env!("CARGO_MANIFEST_DIR"));
    format!("{directory}/base.yaml {directory}/head.yaml")
}

#[test]
fn nothing_changes_between_a_cluster_and_itself() {
    Place::shop()
        .run("diff --world closed shop.yaml shop.yaml")
        .exits(0)
        .says("Nothing changes")
        .says("Compared: 2 endpoints.");
}

#[test]
fn a_change_names_rule_and_line_on_each_side() {
    let ran = moved_port().run("diff --world closed shop.yaml head.yaml --no-cost").exits(1);
    let expected = "\
1 connection newly allowed, 1 no longer allowed.
Compared: 2 endpoints.

Newly allowed
  + from shop/web to shop/db: TCP 5433
      ingress: now allowed by shop/db spec.ingress[0] (head.yaml:11); before isolated by shop/db (shop.yaml:4), and no rule allows it
      for example shop/web → shop/db TCP 5433: denied before, allowed now

No longer allowed
  - from shop/web to shop/db: TCP 5432
      ingress: now isolated by shop/db (head.yaml:4), and no rule allows it; before allowed by shop/db spec.ingress[0] (shop.yaml:11)
      for example shop/web → shop/db TCP 5432: allowed before, denied now
";
    assert_eq!(ran.out, expected);
}

#[test]
fn isolation_that_begins_or_ends_is_shown() {
    let place = Place::shop().file("head.yaml", SHOP.replace("policyTypes: [Ingress]", "policyTypes: [Egress]"));
    place
        .run("diff --world closed shop.yaml head.yaml")
        .exits(1)
        .says("- egress of shop/db is now isolated, by shop/db (head.yaml:4): only traffic that rules allow passes")
        .says("+ ingress of shop/db is no longer isolated (before: by shop/db (shop.yaml:4)): all traffic passes");
}

#[test]
fn new_and_removed_endpoints_are_listed() {
    let place =
        Place::shop().file("head.yaml", SHOP.replace("name: web, namespace: shop", "name: front, namespace: shop"));
    let ran = place.run("diff --world closed shop.yaml head.yaml -o json").exits(1);
    let found = ran.json();
    assert_eq!(found["endpoints"]["appeared"], json!(["shop/front"]));
    assert_eq!(found["endpoints"]["disappeared"], json!(["shop/web"]));
    let rows = found["rows"].as_array().expect("rows");
    assert!(!rows.is_empty() && rows.iter().all(|row| row["presence"] != "kept"), "{rows:#?}");
    check_schema("diff", &found);
}

#[test]
fn json_matches_its_schema() {
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\n\
        spec: {clusterIP: 10.96.0.1, selector: {app: db}, ports: [{port: 80, targetPort: 5432}]}\n";
    let list = "---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {name: bad}\n\
        spec: {action: Deny, cidrs: [192.0.2.0/24]}\n";
    let place = Place::shop()
        .file("base.yaml", format!("{SHOP}{service}"))
        .file("head.yaml", format!("{}{service}{list}", SHOP.replace("5432", "5433")));
    let found = place.run("diff --world closed base.yaml head.yaml -o json").exits(1).json();
    check_schema("diff", &found);
    let rows = found["rows"].as_array().expect("rows");
    let states: Vec<&Value> = rows.iter().map(|row| &row["ingress"]["head"]["state"]).collect();
    assert!(states.contains(&&json!("list")) && states.contains(&&json!("isolated")), "{found:#}");
    assert!(found["groups"].as_array().expect("groups").iter().any(|it| it["services"] != json!([])), "{found:#}");
}

/// Judges every witness on both sides.
fn replay(place: &Place, base: &str, head: &str) -> usize {
    let found = place.run(&format!("diff --world closed {base} {head} -o json")).exits(1).json();
    let rows = found["rows"].as_array().expect("rows");
    let kept: Vec<&Value> = rows.iter().filter(|row| row["presence"] == "kept").collect();
    for (side, paths, flow) in [("base", base, "flow"), ("head", head, "headFlow")] {
        let line = |row: &&Value| {
            let witness = &row["witness"];
            let flow = if witness[flow].is_null() { &witness["flow"] } else { &witness[flow] };
            format!("{flow}\n")
        };
        let flows: String = kept.iter().map(line).collect();
        for engine in ["reference", "vm"] {
            let paths = paths.replace(',', " ");
            let ran = place.run_with_input(&format!("query {paths} --flows - --engine {engine}"), &flows).exits(0);
            let answers: Vec<Value> = ran.out.lines().map(|it| serde_json::from_str(it).expect("JSON")).collect();
            assert_eq!(answers.len(), kept.len());
            for (row, answer) in kept.iter().zip(answers) {
                assert_eq!(answer["verdict"], row["witness"][side], "{engine}, {side}: {row:#}");
                let differs = row["witness"]["base"] != row["witness"]["head"];
                assert!(differs, "{row:#}");
            }
        }
    }
    kept.len()
}

#[test]
fn every_witness_is_answered_differently_by_the_reference_and_the_machine() {
    let place = moved_port();
    assert_eq!(replay(&place, "shop.yaml", "head.yaml"), 2);
    let changes = changes();
    let (base, head) = changes.split_once(' ').expect("two files");
    assert!(replay(&place, base, head) >= 3);
    let policies = |extra: &str| format!("{}/../policies/examples/{extra}", env!("CARGO_MANIFEST_DIR"));
    let names: Vec<String> = std::fs::read_dir(policies(""))
        .expect("examples")
        .map(|it| it.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    let mut names: Vec<String> = names.into_iter().filter(|it| it.ends_with(".yaml")).collect();
    names.sort();
    // Every example against the same example without its policies.
    let mut asked = 0;
    for name in &names {
        let text = std::fs::read_to_string(policies(name)).expect("an example");
        let documents =
            text.split("\n---\n").filter(|it| !it.contains("kind: NetworkPolicy") && !it.contains("kind: CidrList"));
        let bare = documents.collect::<Vec<_>>().join("\n---\n");
        if !bare.contains("kind: ") {
            continue;
        }
        let place = Place::new().file("bare.yaml", bare).file("whole.yaml", text);
        if place.run("diff --world closed bare.yaml whole.yaml").code == Some(1) {
            asked += replay(&place, "bare.yaml", "whole.yaml");
        }
    }
    assert!(asked >= 40, "only {asked} witnesses");
}

#[test]
fn the_order_of_files_changes_nothing() {
    let place = Place::shop().file("a/one.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n");
    let one = place.run("diff --world closed shop.yaml,a shop.yaml").exits(0).out;
    assert_eq!(one, place.run("diff --world closed a,shop.yaml shop.yaml").exits(0).out);
}

fn git(place: &Place, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(place.path()).args(["-c", "user.name=x", "-c", "user.email=x@example.org"]).args(arguments);
    let output = command.output().expect("git runs");
    assert!(output.status.success(), "{output:?}");
}

fn repository() -> Place {
    let place = Place::new().file("net/policies/shop.yaml", SHOP).file("net/policies/.hidden/x.yaml", "no yaml: [");
    std::fs::remove_dir(place.path().join(".git")).expect("removed");
    git(&place, &["init", "--quiet", "--initial-branch=main"]);
    git(&place, &["add", "--all"]);
    git(&place, &["commit", "--quiet", "--message=one"]);
    place.file("net/policies/shop.yaml", SHOP.replace("5432", "5433"))
}

#[test]
fn a_revision_is_compared_with_the_working_directory() {
    let place = repository();
    place
        .run("diff --world closed git:main:net/policies net/policies")
        .exits(1)
        .says("+ from shop/web to shop/db: TCP 5433")
        .says("(main:net/policies/shop.yaml:4)");
    place.run("diff --world closed git:HEAD:./net/policies/shop.yaml git:main:net").exits(0);
    let from_below = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["diff", "--world", "closed", "git:HEAD:./policies", "git:main:net/policies"])
        .current_dir(place.path().join("net"))
        .output();
    assert_eq!(from_below.expect("weir runs").status.code(), Some(0));
}

#[test]
fn a_symbolic_link_in_a_revision_is_an_error() {
    let place = repository();
    let policies = place.path().join("net/policies");
    std::os::unix::fs::symlink("shop.yaml", policies.join("README")).expect("a link");
    std::os::unix::fs::symlink("gone", policies.join("gone")).expect("a link");
    let commit = || {
        git(&place, &["add", "--all"]);
        git(&place, &["commit", "--quiet", "--message=links"]);
    };
    commit();
    place.run("diff --world closed git:main:net git:main:net").exits(0);
    for (name, target) in [("up", ".."), ("etc", "/etc"), ("far", "../../../.."), ("a.yaml", "shop.yaml")] {
        std::os::unix::fs::symlink(target, policies.join(name)).expect("a link");
        commit();
        let ran = place.run("diff --world closed git:main:net git:main:net").exits(2);
        ran.complains(&format!("main:net/policies/{name} is a symbolic link"));
        std::fs::remove_file(policies.join(name)).expect("removed");
    }
}

#[test]
fn an_unknown_revision_or_path_exits_with_2() {
    let place = repository();
    place
        .run("diff --world closed git:none:net net")
        .exits(2)
        .complains("git does not know the revision `none`")
        .complains("hint: ");
    place
        .run("diff --world closed git:main:elsewhere net")
        .exits(2)
        .complains("no files to read in git:main:elsewhere");
    place.run("diff --world closed git::net net").exits(2).complains("names no revision");
    place.run("diff --world closed - -").exits(2).complains("standard input (`-`) is named twice");
    place.run("diff --world closed none.yaml net").exits(2).complains("cannot read none.yaml");
    std::os::unix::fs::symlink("shop.yaml", place.path().join("net/policies/link.yaml")).expect("a link");
    git(&place, &["add", "--all"]);
    git(&place, &["commit", "--quiet", "--message=two"]);
    place
        .run("diff --world closed git:main:net net")
        .exits(2)
        .complains("main:net/policies/link.yaml is a symbolic link");
}

#[test]
fn an_artifact_is_compared_by_its_objects() {
    let place = moved_port();
    place.run("compile shop.yaml -o shop.o").exits(0);
    place.run("diff --world closed shop.o shop.yaml").exits(0);
    place
        .run("diff --world closed shop.o head.yaml")
        .exits(1)
        .says("+ from shop/web to shop/db: TCP 5433")
        .says("(head.yaml:11)");
    place
        .run("diff --world closed shop.o head.yaml --assume ipblock-pods=ignore")
        .exits(2)
        .complains("was compiled with ipblock-pods=match");
    let text = std::fs::read(place.path().join("shop.o")).expect("written");
    std::fs::write(place.path().join("cut.o"), &text[..text.len() / 2]).expect("written");
    place.run("diff --world closed cut.o head.yaml").exits(2).complains("cut.o is not a usable artifact");
}

#[test]
fn an_artifacts_lists_come_from_the_artifact() {
    let place = moved_port().file("drop.txt", "192.0.2.0/24\n");
    place.run("compile shop.yaml --deny-list drop.txt -o shop.o").exits(0);
    place.run("diff --world closed shop.o shop.yaml --deny-list drop.txt").exits(0);
    place.run("diff --world closed shop.o shop.yaml").exits(1).says("192.0.2.0/24");
}

#[test]
fn an_assumption_that_classes_cannot_express_is_refused() {
    moved_port()
        .run("diff --world closed shop.yaml head.yaml --assume icmp=allow")
        .exits(2)
        .complains("cannot be compared");
}

#[test]
fn input_with_errors_is_not_compared() {
    let place = moved_port().file("broken.yaml", SHOP.replace("kind: NetworkPolicy", "kind: NetworkPolicy\nspecs: {}"));
    place.run("diff --world closed shop.yaml broken.yaml").exits(2).complains("the input has 1 error");
}

#[test]
fn rows_that_are_not_shown_are_counted() {
    moved_port()
        .run("diff --world closed shop.yaml head.yaml --max 1")
        .exits(1)
        .says("and 1 more row (--max 0 shows all)");
}

#[test]
fn the_cost_is_compared_and_budgets_are_gates() {
    let place = moved_port();
    let plain = place.run("diff --world closed shop.yaml head.yaml").exits(1);
    assert!(!plain.out.contains("Cost"), "{}", plain.out);
    let run = place.run("diff --world closed shop.yaml head.yaml --cost").exits(1);
    run.says("Cost of enforcing it, on a node that has every pod").says("  instructions ");
    let found = place.run("diff --world closed shop.yaml head.yaml -o json").exits(1).json();
    assert!(found["cost"]["head"]["instructions"].as_u64() > Some(100), "{found:#}");
    assert_eq!(found["cost"]["head"]["maps"]["exact4"]["entries"], found["cost"]["base"]["maps"]["exact4"]["entries"]);
    place.run("diff --world closed shop.yaml shop.yaml --budget instructions=100000").exits(0);
    place
        .run("diff --world closed shop.yaml shop.yaml --budget instructions=10")
        .exits(1)
        .complains("budget instructions is exceeded by");
    let empty = place.run("diff --world closed shop.yaml shop.yaml --node nowhere -o json").exits(0).json();
    assert_eq!(
        (empty["cost"]["head"]["endpoints"].as_u64(), empty["cost"]["node"].as_str()),
        (Some(0), Some("nowhere"))
    );
    let changes = changes();
    place.run(&format!("diff --world closed {changes} --cost")).exits(1).says("(counting every workload as one pod)");
}

#[test]
fn markdown_never_exceeds_the_limit_of_github() {
    let place = moved_port();
    let ran = place.run("diff --world closed shop.yaml head.yaml -o md").exits(1);
    let ran =
        ran.says("<!-- weir diff -->\n### Allowed traffic\n\n**1 connection newly allowed, 1 no longer allowed.**");
    let ran = ran.says("| ➕ now allowed | shop/web | shop/db | TCP 5433 |").says("<details><summary>Reasons");
    assert!(!ran.out.contains("not shown here"), "{}", ran.out);
    // Each pod may reach a port of its own, so there is one row per pod.
    let pod = |number: u32| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{number}, namespace: shop, labels: {{n: \"n{number}\"}}}}\n\
            status: {{phase: Running, podIP: 10.0.{}.{}}}\n",
            1 + number / 200,
            1 + number % 200
        )
    };
    let rule = |number: u32| {
        format!(
            "    - from: [{{podSelector: {{matchLabels: {{n: \"n{number}\"}}}}}}]\n      ports: [{{port: {}}}]\n",
            7_000 + 2 * number
        )
    };
    let pods: String = (0..400).map(pod).collect();
    let rules: String = (0..400).map(rule).collect();
    let base = format!("{SHOP}{pods}");
    let head = format!("{}{pods}", SHOP.replace("  ingress:\n", &format!("  ingress:\n{rules}")));
    let place = Place::new().file("base.yaml", base).file("the head.yaml", head);
    let output = place
        .command("diff --world closed base.yaml")
        .arg("the head.yaml")
        .args(["-o", "md"])
        .output()
        .expect("weir runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.chars().count() <= 65_536 && text.chars().count() > 60_000, "{}", text.chars().count());
    assert!(text.contains("`weir diff base.yaml 'the head.yaml' --world closed --max 0` shows all"), "{text}");
    let shown = text.matches("<br>_for example").count();
    assert!(text.contains(&format!("**{} more rows not shown here**", 400 - shown)), "{shown} shown");
}

#[test]
fn rows_are_annotated_at_the_lines_that_cause_them() {
    let place = moved_port();
    let ran = place.run("diff --world closed shop.yaml head.yaml -o github").exits(1);
    ran.says("::warning file=head.yaml,line=11,endLine=15,title=weir%3A traffic is newly allowed::from shop/web to shop/db: TCP 5433%0A")
        .says("::notice file=head.yaml,line=4,endLine=4,title=weir%3A traffic is no longer allowed::");
    let sarif = place.run("diff --world closed shop.yaml head.yaml -o sarif").exits(1).json();
    let results = sarif["runs"][0]["results"].as_array().expect("results").clone();
    let at = |it: &Value| it["locations"][0]["physicalLocation"]["region"]["startLine"].as_u64();
    assert_eq!(results.iter().map(at).collect::<Vec<_>>(), [Some(11), Some(4)]);
    assert_eq!(results[0]["ruleId"], "traffic-added");
    // A deleted policy has no line.
    let pods = SHOP.split_once("---\n").expect("documents").1;
    let gone = place.file("gone.yaml", pods).run("diff --world closed shop.yaml gone.yaml -o github").exits(1);
    gone.says("::warning title=weir%3A isolation ends::").says("::warning title=weir%3A traffic is newly allowed");
}

#[test]
fn annotations_name_files_as_the_repository_has_them() {
    let place = repository();
    git(&place, &["commit", "--quiet", "--all", "--message=two"]);
    place
        .run("diff --world closed git:HEAD~1:net git:HEAD:net -o github")
        .exits(1)
        .says("::warning file=net/policies/shop.yaml,line=11,");
}

/// A database that was open for the API is open for ssh from everywhere.
fn opened_database() -> Place {
    let head = DATABASE
        .replace("podSelector: {matchLabels: {app: api}}}", "ipBlock: {cidr: 0.0.0.0/0}}")
        .replace("port: 5432", "port: 22");
    Place::new().file("base.yaml", DATABASE).file("head.yaml", head)
}

#[test]
fn policies_without_pods_are_compared_for_every_possible_pod() {
    let expected = "\
1 connection newly allowed, 1 no longer allowed.
Compared: every possible pod.

Newly allowed
  + from any IPv4 address of a pod or outside to any pod with app=db in namespace shop: TCP 22
      ingress: now allowed by shop/db spec.ingress[0] (head.yaml:8); before isolated by shop/db (base.yaml:4), and no rule allows it
      for example a pod without labels in namespace another → a pod with app=db in namespace shop TCP 22: denied before, allowed now

No longer allowed
  - from any pod with app=api in namespace shop to any pod with app=db in namespace shop: TCP 5432
      ingress: now isolated by shop/db (head.yaml:4), and no rule allows it; before allowed by shop/db spec.ingress[0] (base.yaml:8)
      for example a pod with app=api in namespace shop → a pod with app=db in namespace shop TCP 5432: allowed before, denied now
";
    let place = opened_database();
    assert_eq!(place.run("diff base.yaml head.yaml --no-cost").exits(1).out, expected);
    let found = place.run("diff base.yaml head.yaml --no-cost -o json").exits(1).json();
    check_schema("diff", &found);
    assert_eq!(found["groups"][1]["pods"][0]["podSelector"], json!({"matchLabels": {"app": "db"}}));
    place.run("diff base.yaml base.yaml --no-cost").exits(0).says("Nothing changes").says("every possible pod");
}

#[test]
fn query_confirms_the_examples_of_rows_about_possible_pods() {
    let place = opened_database();
    let rows = place.run("diff base.yaml head.yaml --no-cost -o json").exits(1).json()["rows"].clone();
    let rows = rows.as_array().expect("rows");
    let flows: String = rows.iter().map(|row| format!("{}\n", row["witness"]["flow"])).collect();
    for side in ["base", "head"] {
        let ran = place.run_with_input(&format!("query {side}.yaml --flows -"), &flows).exits(0);
        let answers = ran.out.lines().map(|it| serde_json::from_str::<Value>(it).expect("JSON"));
        let answers: Vec<Value> = answers.map(|it| it["verdict"].clone()).collect();
        let expected: Vec<Value> = rows.iter().map(|row| row["witness"][side].clone()).collect();
        assert_eq!(answers, expected, "{side}");
    }
    let skipped = place.run_with_input("query base.yaml --flows - --engine vm", &flows).exits(1);
    skipped.says("only the engine `reference` judges pods that are not in the input");
}

#[test]
fn pods_of_the_input_are_counted_in_rows_about_possible_pods() {
    let ran = moved_port().run("diff shop.yaml head.yaml --no-cost").exits(1);
    ran.says("(1 in the input) to ").says("Compared: every possible pod, 2 endpoints of the input among them");
    let found = moved_port().run("diff shop.yaml head.yaml --no-cost -o json").exits(1).json();
    let groups = found["groups"].as_array().expect("groups");
    assert!(groups.iter().any(|it| it["endpoints"] == json!(["shop/db"]) && it["pods"] != json!([])), "{found:#}");
    assert_eq!(found["rows"].as_array().expect("rows").len(), 2, "no second row about the same flows: {found:#}");
}

#[test]
fn a_gate_refuses_only_the_change_that_it_names() {
    let wider = DATABASE.replace("{app: api}", "{}").replace("matchLabels: {}", "{}").replace("{{}}", "{}");
    let place = Place::new().file("base.yaml", DATABASE).file("wider.yaml", wider);
    place.run("diff base.yaml wider.yaml --deny added").exits(1);
    place.run("diff base.yaml wider.yaml --deny removed").exits(0).says("newly allowed");
    place.run("diff wider.yaml base.yaml --deny added").exits(0).says("no longer allowed");
    place.run("diff wider.yaml base.yaml --deny removed").exits(1);
}

/// The policy of the other end denies everything, so the changed port makes no difference. That is said, because a
/// reviewer sees a changed rule.
#[test]
fn a_changed_rule_that_the_other_end_denies_is_named() {
    let closed = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed, namespace: \
                  shop}\nspec: {podSelector: {}, policyTypes: [Egress]}\n";
    let base = format!("{DATABASE}{closed}");
    let place = Place::new().file("head.yaml", base.replace("5432", "5433")).file("base.yaml", base);
    let text = place.run("diff base.yaml head.yaml --no-cost").exits(0).out;
    for line in [
        "Nothing changes: both sides allow exactly the same",
        "+ shop/db spec.ingress[0] (head.yaml:8): egress of the sources denies all that this newly allows",
        "- shop/db spec.ingress[0] (base.yaml:8): egress of the sources denied before all that this no longer allows",
    ] {
        assert!(text.contains(line), "{line}\nnot in\n{text}");
    }
    let document = place.run("diff base.yaml head.yaml --no-cost -o json").exits(0).json();
    check_schema("diff", &document);
    assert_eq!(document["withoutEffect"][0]["cause"]["rule"], "spec.ingress[0]");
    assert!(place.run("diff base.yaml head.yaml --no-cost -o md").exits(0).out.contains("Without effect: 2 changes"));
}

/// A pod can have the labels of two policies, but a reviewer does not mean it: such exceptions are counted.
#[test]
fn exceptions_about_pods_of_other_policies_are_counted() {
    let other = DATABASE.replace("name: db", "name: other").replace("app: db", "component: cache");
    let base = format!("{DATABASE}---{other}");
    let head = format!("{}---{other}", DATABASE.replace("5432", "5433"));
    let place = Place::new().file("base.yaml", base).file("head.yaml", head.replace("component: cache", "part: cache"));
    let text = place.run("diff base.yaml head.yaml --no-cost").exits(1).out;
    assert!(text.contains("of pods that other policies select too; `-o json` has all"), "{text}");
}
