//! `weir diff --approved` and `--write-approved`: the changes that a file of approvals accepts, and those that it refuses.

use serde_json::{Value, json};
use weir_testing::Random;
use weir_testing::schema::check_schema;

use crate::support::{DATABASE, Place, Ran, yaml_value};

/// A rule more, for the backup.
const BACKUP: &str = "    - from: [{podSelector: {matchLabels: {app: backup}}}]
      ports: [{port: 5432, endPort: 5440}]
";

/// A policy that does not concern the database.
const OTHER: &str = "---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: all, namespace: ops}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
";

fn head() -> String {
    format!("{DATABASE}{BACKUP}")
}

/// The base, the head, and approvals of the difference.
fn approved() -> Place {
    let place = Place::new().file("base.yaml", DATABASE).file("head.yaml", head());
    write(&place, "base.yaml head.yaml");
    place
}

#[track_caller]
fn write(place: &Place, inputs: &str) -> Ran {
    let command = format!("diff {inputs} --no-cost --write-approved approved.yaml --reason nightly");
    place.run(&command).exits(0)
}

#[track_caller]
fn gate(place: &Place, inputs: &str) -> Ran {
    place.run(&format!("diff {inputs} --no-cost --approved approved.yaml"))
}

fn read(place: &Place) -> String {
    std::fs::read_to_string(place.path().join("approved.yaml")).expect("a file of approvals")
}

fn edit(place: &Place, from: &str, to: &str) {
    let text = read(place);
    assert!(text.contains(from), "{text}");
    std::fs::write(place.path().join("approved.yaml"), text.replace(from, to)).expect("written");
}

#[test]
fn approved_changes_pass_the_gate() {
    let place = approved();
    let ran = gate(&place, "base.yaml head.yaml").exits(0);
    ran.says("      approved: nightly\n").says("The gate refuses 0 of 1 change; 1 is approved.");
    place.run("diff base.yaml head.yaml --no-cost --deny added --approved approved.yaml").exits(0);
    place.run("diff base.yaml head.yaml --no-cost --deny added").exits(1).says("Newly allowed, and refused");
}

#[test]
fn approvals_are_written_as_documented() {
    let place = approved();
    let text = read(&place);
    let expected = "\
# Changes that `weir diff --approved` accepts. Each needs a reason. `expires: YYYY-MM-DD` is its last day.
apiVersion: weir.dev/v1alpha1
kind: DiffApprovals
approvals:
  - change: added
    from:
      pods:
        - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
          podSelector: {matchLabels: {app: backup}}
    to:
      pods:
        - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
          podSelector: {matchLabels: {app: db}}
    traffic: {ports: [{protocol: TCP, port: 5432, endPort: 5440}]}
    reason: nightly
";
    assert_eq!(text, expected);
    check_schema("diff-approvals", &yaml_value(&text));
}

/// In HEAD, baseline rules accept the port `http`. Admin rules pass `metrics` on, and then deny `web`. A port that has
/// all three names is therefore opened, but only because of `metrics`.
const NAMED: &str = "---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: admin}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  ingress:
    - {action: Pass, from: [{namespaces: {}}], protocols: [{destinationNamedPort: metrics}]}
    - {action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: web}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: baseline}
spec:
  tier: Baseline
  priority: 1
  subject: {namespaces: {}}
  ingress:
    - {action: Accept, from: [{namespaces: {}}], protocols: [{destinationNamedPort: http}]}
    - {action: Deny, from: [{namespaces: {}}]}
";

#[test]
fn an_approval_of_a_port_with_several_names_holds_only_for_all_of_them() {
    let accept = "    - {action: Accept, from: [{namespaces: {}}], protocols: [{destinationNamedPort: http}]}\n";
    let place = Place::new().file("base.yaml", NAMED.replace(accept, "")).file("head.yaml", NAMED);
    write(&place, "base.yaml head.yaml");
    gate(&place, "base.yaml head.yaml").exits(0);
    let written = read(&place);
    let names = "names: [http, metrics]";
    assert!(written.contains(names), "{written}");
    check_schema("diff-approvals", &yaml_value(&written));
    let with = |from: &str, to: &str| {
        assert!(written.contains(from), "{written}");
        std::fs::write(place.path().join("approved.yaml"), written.replace(from, to)).expect("written");
        gate(&place, "base.yaml head.yaml")
    };
    with(names, "names: [metrics, http, metrics]").exits(0);
    with(names, "name: metrics, names: [http]").exits(0);
    // One name alone is a larger set of flows; three names are a smaller one.
    with(names, "name: metrics").exits(0);
    with(names, "names: [http, metrics, web]").exits(1);
    with(names, "names: [http, admin]").exits(1);
}

#[test]
fn unrelated_changes_keep_an_approval() {
    let place = approved();
    let pod = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: backup}}}}\n\
             status: {{phase: Running, podIP: 10.0.0.{}}}\n",
            name.len()
        )
    };
    let pods = format!("{}{}", pod("b"), pod("bb"));
    let rules = "  ingress:\n    - from: [{podSelector: {matchLabels: {app: shell}}}]\n      ports: [{port: 22}]\n";
    let edits: [(&str, String, String); 6] = [
        ("pods of the group", format!("{DATABASE}{pods}"), format!("{}{pods}", head())),
        ("another policy", format!("{DATABASE}{OTHER}"), format!("# Text above.\n{}{OTHER}", head())),
        ("a renamed policy", DATABASE.to_owned(), head().replace("name: db,", "name: database,")),
        ("other numbers of rules", DATABASE.replace("  ingress:\n", rules), head().replace("  ingress:\n", rules)),
        (
            "a selector in another spelling",
            DATABASE.to_owned(),
            head().replace(
                "{matchLabels: {app: backup}}",
                "{matchExpressions: [{key: app, operator: In, values: [backup]}]}",
            ),
        ),
        // Part of the approved traffic is allowed on both sides: the rest is approved.
        ("a rule that allows a part", format!("{DATABASE}{}", BACKUP.replace(", endPort: 5440", "")), head()),
    ];
    for (name, base, head) in edits {
        let place = Place::new().file("approved.yaml", read(&place)).file("base.yaml", base).file("head.yaml", head);
        let ran = gate(&place, "base.yaml head.yaml");
        assert_eq!(ran.code, Some(0), "{name}: {ran:#?}");
        assert!(ran.out.contains("approved: nightly"), "{name}: {ran:#?}");
    }
}

#[test]
fn a_change_that_grew_is_refused() {
    let place = approved();
    let edits = [
        ("more ports", "endPort: 5440", "endPort: 5441"),
        ("every port", "port: 5432, endPort: 5440", "protocol: TCP"),
        ("other pods", "{app: backup}", "{app: restore}"),
        ("all pods", "{matchLabels: {app: backup}}", "{}"),
        (
            "all namespaces",
            "- from: [{podSelector: {matchLabels: {app: backup}}}]",
            "- from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: backup}}}]",
        ),
        ("another protocol", "port: 5432, endPort", "protocol: UDP, port: 5432, endPort"),
        (
            "addresses",
            "- from: [{podSelector: {matchLabels: {app: backup}}}]",
            "- from: [{ipBlock: {cidr: 10.0.0.0/8}}]",
        ),
        ("all sources", "- from: [{podSelector: {matchLabels: {app: backup}}}]\n      ports", "- ports"),
    ];
    for (name, from, to) in edits {
        let changed = head().replace(from, to);
        assert_ne!(changed, head(), "{name}");
        let place =
            Place::new().file("approved.yaml", read(&place)).file("base.yaml", DATABASE).file("head.yaml", changed);
        let ran = gate(&place, "base.yaml head.yaml").exits(1);
        assert!(ran.out.contains("refused: no entry of approved.yaml approves it"), "{name}: {ran:#?}");
    }
}

#[test]
fn an_exception_that_vanished_is_refused() {
    let wide = |base: &str| base.replace("{podSelector: {matchLabels: {app: api}}}", "{podSelector: {}}");
    let place = Place::new().file("base.yaml", DATABASE).file("head.yaml", wide(DATABASE));
    write(&place, "base.yaml head.yaml");
    assert!(read(&place).contains("except:"), "{}", read(&place));
    gate(&place, "base.yaml head.yaml").exits(0);
    let narrow = DATABASE.replace("{app: api}", "{app: api, tier: x}");
    gate(&place.file("base.yaml", narrow), "base.yaml head.yaml").exits(1).says("refused: ");
}

#[test]
fn flows_that_the_other_direction_denied_are_not_approved() {
    let open = DATABASE.replace("    - from: [{podSelector: {matchLabels: {app: api}}}]\n      ports", "    - ports");
    let limited = |text: &str| format!("{text}{OTHER}");
    let place = Place::new().file("base.yaml", limited(DATABASE)).file("head.yaml", limited(&open));
    write(&place, "base.yaml head.yaml");
    assert!(read(&place).contains("given: egress"), "{}", read(&place));
    gate(&place, "base.yaml head.yaml").exits(0);
    let place = place.file("base.yaml", DATABASE).file("head.yaml", &open);
    gate(&place, "base.yaml head.yaml").exits(1).says("refused: ");
    // The other way round, the row became smaller.
    write(&place, "base.yaml head.yaml");
    assert!(!read(&place).contains("given"), "{}", read(&place));
    let place = place.file("base.yaml", limited(DATABASE)).file("head.yaml", limited(&open));
    gate(&place, "base.yaml head.yaml").exits(0);
}

#[test]
fn a_pod_with_two_families_keeps_an_approval() {
    let block = "{ipBlock: {cidr: 10.0.0.0/8}}, {ipBlock: {cidr: 'fd00::/16'}}";
    let open = DATABASE.replace("{podSelector: {matchLabels: {app: api}}}", block);
    let dual = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: x, namespace: shop}\n\
        status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}\n";
    let [with, without] = [dual, ""].map(|pod| [DATABASE, &open].map(|text| format!("{text}{pod}")));
    for (before, after, entries) in [(&with, &without, 4), (&without, &with, 2)] {
        let place = Place::new().file("base.yaml", &before[0]).file("head.yaml", &before[1]);
        write(&place, "base.yaml head.yaml");
        assert_eq!(read(&place).matches("- change").count(), entries, "one for each family: {}", read(&place));
        let place = place.file("base.yaml", &after[0]).file("head.yaml", &after[1]);
        gate(&place, "base.yaml head.yaml").exits(0);
    }
}

#[test]
fn an_approval_of_one_direction_does_not_approve_the_other() {
    let place = approved();
    gate(&place, "head.yaml base.yaml").exits(1).complains("matches no change");
    place.run("diff head.yaml base.yaml --no-cost --deny added --approved approved.yaml").exits(0);
}

#[test]
fn an_approval_counts_until_its_date() {
    let place = approved();
    edit(&place, "    reason: nightly", "    reason: nightly\n    expires: 2999-12-31");
    gate(&place, "base.yaml head.yaml").exits(0).says("approved: nightly (until 2999-12-31)");
    edit(&place, "2999-12-31", "2020-02-29");
    gate(&place, "base.yaml head.yaml")
        .exits(1)
        .says("refused: the approval at approved.yaml:5 expired on 2020-02-29")
        .complains("warning: approved.yaml:5: the approval expired on 2020-02-29 and does not count (nightly)");
    write(&place, "base.yaml head.yaml")
        .complains("expired on 2020-02-29 and does not count: change or remove its date");
    assert!(read(&place).contains("2020-02-29"), "{}", read(&place));
}

#[test]
fn an_approval_that_matches_nothing_is_a_warning() {
    let place = approved();
    gate(&place, "base.yaml base.yaml")
        .exits(0)
        .complains("warning: approved.yaml:5: the approval matches no change (nightly)");
}

#[test]
fn writing_again_keeps_what_people_wrote() {
    let place = approved();
    edit(&place, "  - change", "  # Ask the storage team.\n  - change");
    edit(&place, "nightly", "\"nightly: every day\"   # since 2024");
    let head = head().replace("  ingress:", "  ingress:\n    - ports: [{port: 9187}]");
    let place = place.file("head.yaml", head);
    let before = read(&place);
    let ran = place.run("diff base.yaml head.yaml --no-cost --write-approved approved.yaml --reason metrics").exits(0);
    ran.complains("wrote 2 approvals to approved.yaml, 1 of them new");
    let after = read(&place);
    assert!(after.starts_with(&before) && after[before.len()..].starts_with("  - change: added\n"), "{after}");
    gate(&place, "base.yaml head.yaml").exits(0).says("approved: nightly: every day").says("approved: metrics");
    // The first change is gone, and its approval with it.
    let place = place.file("head.yaml", DATABASE.replace("  ingress:", "  ingress:\n    - ports: [{port: 9187}]"));
    write(&place, "base.yaml head.yaml")
        .complains("removed: approved.yaml:6: the approval matches no change (nightly: every day)");
    let left = read(&place);
    assert!(!left.contains("storage team") && left.contains("reason: metrics"), "{left}");
    gate(&place, "base.yaml head.yaml").exits(0);
}

#[test]
fn an_approval_without_a_reason_is_refused() {
    let place = Place::new().file("base.yaml", DATABASE).file("head.yaml", head());
    place
        .run("diff base.yaml head.yaml --no-cost --write-approved approved.yaml")
        .exits(0)
        .complains("1 approval without a reason");
    gate(&place, "base.yaml head.yaml").exits(2).complains("approved.yaml:15:13: the approval has no reason");
    write(&place, "base.yaml head.yaml");
    gate(&place, "base.yaml head.yaml").exits(0);
}

#[test]
fn mistakes_in_approvals_name_their_line() {
    let place = approved();
    let text = read(&place);
    for (from, to, expected) in [
        ("reason: nightly", "reasons: nightly", "approved.yaml:15:5: unknown field `reasons`"),
        ("change: added", "change: adding", "approved.yaml:5:13: `adding` is not a value of `change`"),
        ("reason: nightly", "reason: nightly\n    expires: soon", "approved.yaml:16:14: `soon` is not a date"),
        ("reason: nightly", "reason: nightly\n    expires: 2026-02-30", "`2026-02-30` is not a date"),
        ("kind: DiffApprovals", "kind: Approvals", "`kind` is not `DiffApprovals`"),
        ("approvals:\n", "approval:\n", "approved.yaml:4:1: unknown field `approval`"),
        ("          podSelector: {matchLabels: {app: db}}\n", "", "approved.yaml:12:11: `podSelector` is missing"),
        ("port: 5432", "port: 70000", "`port` is not a number from 1 to 65535"),
        ("endPort: 5440", "endPort: 5000", "`endPort` needs a smaller `port`"),
        ("change: added", "change: isolation-ends", "`from` does not fit `change`"),
        ("    traffic: ", "    traffics: ", "approved.yaml:14:5: unknown field `traffics`"),
        ("{ports: [{protocol: TCP, port: 5432, endPort: 5440}]}", "{}", "`traffic` names nothing"),
    ] {
        assert!(text.contains(from), "{from}");
        let place = approved().file("approved.yaml", text.replacen(from, to, 1));
        gate(&place, "base.yaml head.yaml").exits(2).complains(expected);
    }
    std::fs::remove_file(place.path().join("approved.yaml")).expect("removed");
    gate(&place, "base.yaml head.yaml").exits(2).complains("cannot read approved.yaml");
    gate(&place.file("approved.yaml", ""), "base.yaml head.yaml").exits(2).complains("approved.yaml is empty");
}

/// Pods of the input, and a policy for one of them.
const PODS: &str = "---
{apiVersion: v1, kind: Pod, metadata: {name: db, namespace: shop, labels: {app: db}}, status: {phase: Running, podIP: 10.0.0.1}}
---
{apiVersion: v1, kind: Pod, metadata: {name: api, namespace: shop, labels: {app: api}}, status: {phase: Running, podIP: 10.0.0.2}}
";

#[test]
fn isolation_that_ends_can_be_approved() {
    let second = PODS.replace("name: db", "name: db-2").replace("name: api", "name: api-2");
    let second = second.replace("10.0.0.1", "10.0.0.3").replace("10.0.0.2", "10.0.0.4");
    for world in ["open", "closed"] {
        let inputs = format!("base.yaml head.yaml --world {world}");
        let place = Place::new().file("base.yaml", format!("{DATABASE}{PODS}")).file("head.yaml", PODS);
        write(&place, &inputs);
        assert!(read(&place).contains("change: isolation-ends"), "{}", read(&place));
        gate(&place, &inputs).exits(0).says("all traffic passes; approved: nightly");
        check_schema("diff-approvals", &yaml_value(&read(&place)));
        // One more pod of the same kind: part of the group by its labels, and new by its name.
        let place =
            place.file("base.yaml", format!("{DATABASE}{PODS}{second}")).file("head.yaml", format!("{PODS}{second}"));
        gate(&place, &inputs).exits(if world == "open" { 0 } else { 1 });
        let wider = DATABASE.replace("  podSelector: {matchLabels: {app: db}}", "  podSelector: {}");
        let place = place.file("base.yaml", format!("{wider}{PODS}"));
        gate(&place.file("head.yaml", PODS), &inputs).exits(1).says("all traffic passes; refused: ");
    }
}

#[test]
fn isolation_of_pods_that_were_excepted_is_refused() {
    let kept = DATABASE.replace("{app: db}", "{app: db, tier: x}");
    let place = Place::new().file("base.yaml", format!("{DATABASE}{PODS}")).file("head.yaml", format!("{kept}{PODS}"));
    write(&place, "base.yaml head.yaml");
    gate(&place, "base.yaml head.yaml").exits(0);
    gate(&place.file("head.yaml", PODS), "base.yaml head.yaml").exits(1).says("all traffic passes; refused: ");
}

#[test]
fn every_format_shows_rulings() {
    let place = approved();
    let wider = format!("{}    - ports: [{{port: 9187}}]\n", head());
    let place = place.file("head.yaml", wider);
    let of = |format: &str| gate(&place, &format!("base.yaml head.yaml -o {format}")).exits(1);
    let text = gate(&place, "base.yaml head.yaml").exits(1).out;
    assert!(text.find("refused: no entry") < text.find("approved: nightly"), "refused rows come first: {text}");
    let found = of("json").json();
    check_schema("diff", &found);
    assert_eq!((&found["rows"][0]["refused"], &found["rows"][0]["approved"]), (&json!(true), &Value::Null));
    assert_eq!(
        (&found["rows"][1]["refused"], &found["rows"][1]["approved"]),
        (&Value::Null, &json!({"reason": "nightly"}))
    );
    of("md")
        .says("| ➕ now allowed, ❌ refused |")
        .says("| ➕ now allowed, ✅ approved |")
        .says("<br>approved: nightly");
    of("github")
        .says("::error file=head.yaml,line=12")
        .says("::notice file=head.yaml,line=10")
        .says("%0Aapproved: nightly");
    let results = of("sarif").json()["runs"][0]["results"].clone();
    assert_eq!((&results[0]["level"], &results[0]["suppressions"]), (&json!("error"), &Value::Null));
    assert_eq!(results[1]["suppressions"][0]["justification"], "nightly");
    of("html").says("approved: nightly");
}

/// A random policy with few keys, so that selectors overlap.
fn policy(random: &mut Random, name: usize) -> String {
    let selectors = [
        "{}",
        "{matchLabels: {app: web}}",
        "{matchLabels: {app: db, tier: x}}",
        "{matchExpressions: [{key: app, operator: NotIn, values: [web]}]}",
        "{matchExpressions: [{key: tier, operator: Exists}]}",
    ];
    let namespaces = ["{}", "{matchLabels: {team: a}}", "{matchLabels: {kubernetes.io/metadata.name: shop}}"];
    let ports = ["{port: 80}", "{port: 53, protocol: UDP}", "{port: http}", "{port: 80, endPort: 6000}", "{}"];
    let mut rules = |peers: &str| -> String {
        let rule = |random: &mut Random| {
            let peer = match random.below(3) {
                0 => format!("{{ipBlock: {{cidr: {}}}}}", random.pick(&["10.0.0.0/8", "0.0.0.0/0", "'fd00::/16'"])),
                1 => format!("{{podSelector: {}}}", random.pick(&selectors)),
                _ => format!(
                    "{{namespaceSelector: {}, podSelector: {}}}",
                    random.pick(&namespaces),
                    random.pick(&selectors)
                ),
            };
            format!("{{{peers}: [{peer}], ports: [{}]}}", random.pick(&ports))
        };
        (0..random.below(3)).map(|_| rule(random)).collect::<Vec<_>>().join(", ")
    };
    let (ingress, egress) = (rules("from"), rules("to"));
    let types = random.pick(&["[Ingress]", "[Egress]", "[Ingress, Egress]"]);
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p{name}, namespace: {}}}\n\
         spec: {{podSelector: {}, policyTypes: {types}, ingress: [{ingress}], egress: [{egress}]}}\n",
        random.pick(&["shop", "ops"]),
        random.pick(&selectors)
    )
}

#[test]
fn what_was_written_passes_and_no_other_flow_does() {
    let (mut approved_rows, mut refused_rows) = (0, 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let shared = if random.below(2) == 0 { PODS } else { "" };
        let policies = |random: &mut Random| -> Vec<String> { (0..3).map(|it| policy(random, it)).collect() };
        let (base, mut head) = (policies(&mut random), policies(&mut random));
        let text = |policies: &[String]| format!("{}{shared}", policies.concat());
        let place = Place::new().file("base.yaml", text(&base)).file("head.yaml", text(&head));
        let world = if random.below(4) == 0 { "closed" } else { "open" };
        let inputs = format!("base.yaml head.yaml --world {world}");
        write(&place, &inputs);
        gate(&place, &inputs).exits(0);
        check_schema("diff-approvals", &yaml_value(&read(&place)));
        // Another head: the flows of its approved rows must have changed in the first one, too.
        head[random.below(3)] = policy(&mut random, 0).replace("name: p0", "name: other");
        let place = place.file("other.yaml", text(&head));
        let found = gate(&place, &format!("base.yaml other.yaml --world {world} -o json")).json();
        let rows: Vec<&Value> = found["rows"].as_array().expect("rows").iter().collect();
        refused_rows += rows.iter().filter(|it| it["refused"] == true).count();
        // Which flows another direction allows is not part of an approval.
        let rows: Vec<&Value> =
            rows.into_iter().filter(|it| it["approved"] != Value::Null && it["given"].is_null()).collect();
        approved_rows += rows.len();
        let flows: String = rows.iter().map(|row| format!("{}\n", row["witness"]["flow"])).collect();
        let answers = place.run_with_input("query head.yaml --flows -", &flows).exits(0);
        for (row, answer) in rows.iter().zip(answers.out.lines()) {
            let answer: Value = serde_json::from_str(answer).expect("JSON");
            assert_eq!(answer["verdict"], row["witness"]["head"], "seed {seed}: {row:#}\n{}", read(&place));
        }
    }
    assert!(approved_rows > 20 && refused_rows > 20, "{approved_rows} approved, {refused_rows} refused");
}
