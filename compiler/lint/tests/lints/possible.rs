//! Lints about every pod that could exist, and the cases in which they must not report.

use weir_objects::diagnostic::Severity;

use super::*;

fn rules(first: &str, second: &str) -> String {
    policy("p", &format!("podSelector: {{}}, ingress: [{first}, {second}]"))
}

fn expressions(all: &str) -> String {
    format!("{{matchExpressions: [{all}]}}")
}

const IN: &str = "{key: app, operator: In, values: [a]}";
const NOT_IN: &str = "{key: app, operator: NotIn, values: [a]}";

#[test]
fn a_selector_that_contradicts_itself_is_found_without_pods() {
    for (contradiction, note) in [
        (format!("{IN}, {NOT_IN}"), "app=a, app notin (a)"),
        ("{key: app, operator: Exists}, {key: app, operator: DoesNotExist}".to_owned(), "app, !app"),
        (format!("{IN}, {{key: app, operator: In, values: [b]}}"), "app=a, app=b"),
    ] {
        let selector = expressions(&contradiction);
        let subject = policy("p", &format!("podSelector: {selector}"));
        check("policy-selects-nothing", &subject, &["shop/p spec.podSelector"]);
        check_text(
            "policy-selects-nothing",
            &subject,
            &[
                "policy shop/p can select no pod",
                "these requirements contradict each other",
                &format!("no pod can have {note}"),
                "remove one of the requirements",
            ],
        );
        let peer = policy("p", &format!("podSelector: {{}}, ingress: [{{from: [{{podSelector: {selector}}}]}}]"));
        check("rule-matches-no-peer", &peer, &["shop/p spec.ingress[0].from[0].podSelector"]);
        assert!(closed(&subject).is_empty() && closed(&peer).is_empty());
    }
    let other = expressions(&format!("{IN}, {{key: app, operator: NotIn, values: [b]}}, {{key: x, operator: Exists}}"));
    check("policy-selects-nothing", &policy("p", &format!("podSelector: {other}")), &[]);
}

/// The codes in the closed world.
fn closed(text: &str) -> Vec<&'static str> {
    let decoded = read(text);
    let (cluster, _) = resolve(&decoded.objects, Assumptions::default());
    let found = lint_within(STEPS, &decoded.objects, &cluster, LintWorld::Closed);
    found.iter().map(|it| it.code.name).collect()
}

#[test]
fn a_namespace_that_cannot_be_selected_is_found() {
    let from = |selector: &str| {
        policy("p", &format!("podSelector: {{}}, ingress: [{{from: [{{namespaceSelector: {selector}}}]}}]"))
    };
    let named =
        |name: &str, more: &str| from(&format!("{{matchLabels: {{kubernetes.io/metadata.name: {name}{more}}}}}"));
    let expected = ["shop/p spec.ingress[0].from[0].namespaceSelector"];
    check("rule-matches-no-peer", &named("Not_A_Name", ""), &expected);
    let other = policy_in("ops", "q", "podSelector: {}") + &named("ops", ", team: x");
    check("rule-matches-no-peer", &other, &[]);
    let declared = namespace("ops", "team: blue") + &named("ops", ", team: x");
    check("rule-matches-no-peer", &declared, &expected);
    check_text(
        "rule-matches-no-peer",
        &declared,
        &[
            "spec.ingress[0] of policy shop/p matches no peer",
            "no namespace can match",
            "namespace ops is declared with other labels",
            "no namespace can have kubernetes.io/metadata.name=ops, team=x",
            "remove one of the requirements, or the peer",
        ],
    );
    check("rule-matches-no-peer", &(namespace("ops", "team: x") + &named("ops", ", team: x")), &[]);
    check("rule-matches-no-peer", &from("{matchLabels: {team: x}}"), &[]);
}

#[test]
fn exceptions_that_leave_no_address_match_no_peer() {
    let block = |except: &str| {
        let block = format!("{{ipBlock: {{cidr: 192.0.2.0/24, except: [{except}]}}}}");
        policy("p", &format!("podSelector: {{}}, ingress: [{{from: [{block}]}}]"))
    };
    let expected = ["shop/p spec.ingress[0].from[0].ipBlock.except"];
    check("rule-matches-no-peer", &block("192.0.2.0/25, 192.0.2.128/25"), &expected);
    check("rule-matches-no-peer", &block("192.0.2.0/25, 192.0.2.128/26"), &[]);
}

#[test]
fn rules_cover_a_rule_together() {
    let wide = "{from: [{podSelector: {}}], ports: [{port: 80, endPort: 90}]}";
    let parts = "{from: [{podSelector: {}}], ports: [{port: 80, endPort: 85}]}, {from: [{podSelector: {}}], ports: \
                 [{port: 86, endPort: 90}]}";
    check("rule-covered", &rules(parts, wide), &["shop/p spec.ingress[2]"]);
    check_text(
        "rule-covered",
        &rules(parts, wide),
        &[
            "spec.ingress[2] of policy shop/p allows nothing that is not allowed by 2 other rules together",
            "covered",
            "this rule allows a part of that",
            "this rule allows a part of that",
            "remove the covered rule and leave policyTypes as they are, or narrow the other one",
        ],
    );
    let gap = parts.replace("port: 86", "port: 87");
    check("rule-covered", &rules(&gap, wide), &["shop/p spec.ingress[0]", "shop/p spec.ingress[1]"]);
    let with = "{from: [{podSelector: {matchExpressions: [{key: app, operator: Exists}]}}]}";
    let without = "{from: [{podSelector: {matchExpressions: [{key: app, operator: DoesNotExist}]}}]}";
    let all = format!("{with}, {without}");
    check("rule-covered", &rules(&all, "{from: [{podSelector: {}}]}"), &["shop/p spec.ingress[2]"]);
}

#[test]
fn rules_that_are_written_differently_cover_each_other() {
    let in_list = format!("{{from: [{{podSelector: {}}}]}}", expressions(IN));
    let equal = "{from: [{podSelector: {matchLabels: {app: a}}}]}";
    check("rule-covered", &rules(equal, &in_list), &["shop/p spec.ingress[1]"]);
}

#[test]
fn traffic_that_only_one_rule_allows_is_not_covered() {
    // All ports of all protocols are less than all traffic: ICMP has no ports.
    let all_ports = "{ports: [{}, {protocol: UDP}, {protocol: SCTP}]}";
    check("rule-covered", &rules(all_ports, "{}"), &["shop/p spec.ingress[0]"]);
    // The number of a named port may be another one.
    check("rule-covered", &rules("{ports: [{port: http}]}", "{ports: [{port: 80}]}"), &[]);
    check(
        "rule-covered",
        &rules("{ports: [{port: http}]}", "{ports: [{port: 1, endPort: 65535}]}"),
        &["shop/p spec.ingress[0]"],
    );
    let directions = "podSelector: {}, ingress: [{from: [{podSelector: {}}]}], egress: [{to: [{podSelector: {}}]}]";
    check("rule-covered", &policy("p", directions), &[]);
}

#[test]
fn blocks_cover_pods_only_as_a_note() {
    let both = "{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}]}";
    let text = rules("{from: [{podSelector: {}}]}", both);
    check("rule-covered", &text, &["shop/p spec.ingress[0]"]);
    let found = run(&read(&text), STEPS).into_vec();
    assert_eq!(found[0].severity, Severity::Note);
    assert!(found[0].notes[0].contains("--assume ipblock-pods=ignore"));
}

#[test]
fn policies_that_differ_only_in_name_are_duplicates() {
    let spec = "podSelector: {matchLabels: {app: api}}, ingress: [{from: [{podSelector: {}}]}]";
    let two = policy("a", spec) + &policy("b", spec);
    check("policy-duplicate", &two, &["shop/b metadata.name"]);
    check("policy-redundant", &two, &[]);
    check("rule-covered", &two, &[]);
    check("policy-duplicate", &(policy("a", spec) + &policy_in("ops", "b", spec)), &[]);
    let egress = spec.replace("ingress", "egress").replace("from", "to");
    check("policy-duplicate", &(policy("a", spec) + &policy("b", &egress)), &[]);
    let denies = "podSelector: {matchLabels: {app: api}}";
    check("policy-duplicate", &(policy("a", denies) + &policy("b", denies)), &["shop/b metadata.name"]);
    let audit = policy("a", spec).replace("name: a", "annotations: {weir.dev/mode: audit}, name: a");
    check("policy-duplicate", &(audit + &policy("b", spec)), &["shop/a metadata.name"]);
}

#[test]
fn a_policy_whose_isolation_matters_is_not_redundant() {
    let web = "podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]";
    let all = "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]";
    check("policy-redundant", &(policy("a", web) + &policy("b", all)), &["shop/a metadata.name"]);
    // The pods of app=web are isolated for egress by the first one alone.
    let both = format!("{web}, policyTypes: [Ingress, Egress]");
    check("policy-redundant", &(policy("a", &both) + &policy("b", all)), &[]);
    // No rule of the second allows more, but it isolates pods that the first one does not.
    let same_rule = web.replace("{matchLabels: {app: web}}", "{}");
    check("policy-redundant", &(policy("a", web) + &policy("b", &same_rule)), &["shop/a metadata.name"]);
    // A default deny is meant to stay.
    let deny = "podSelector: {}";
    check("policy-redundant", &(policy("deny", deny) + &policy("b", all)), &[]);
    // A policy that allows everything, and no other policy isolates the pods.
    check("policy-redundant", &policy("open", "podSelector: {}, ingress: [{}]"), &[]);
}

#[test]
fn several_policies_make_one_redundant() {
    let of = |app: &str| {
        format!("podSelector: {{matchLabels: {{app: {app}}}}}, ingress: [{{from: [{{podSelector: {{}}}}]}}]")
    };
    let either = "podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}, ingress: [{from: \
                  [{podSelector: {}}]}]";
    let text = policy("a", &of("a")) + &policy("b", &of("b")) + &policy("c", &of("c")) + &policy("either", either);
    check("policy-redundant", &text, &["shop/either metadata.name"]);
    check_text(
        "policy-redundant",
        &text,
        &[
            "policy shop/either adds nothing to 2 policies together",
            "its pods are isolated and its traffic is allowed without it",
            "allows traffic of the policy",
            "allows traffic of the policy",
            "remove the policy, or narrow the others",
        ],
    );
}

#[test]
fn a_rule_that_the_other_end_denies_for_every_possible_pod_is_a_note() {
    let ingress = policy("p", "podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: a}}}]}]");
    let deny = policy("q", "podSelector: {}, policyTypes: [Egress]");
    let text = ingress.clone() + &deny;
    check("one-sided-allow", &text, &["shop/p spec.ingress[0]"]);
    assert!(
        run(&read(&text), STEPS).iter().all(|it| it.severity == Severity::Note || it.code.name != "one-sided-allow")
    );
    check("one-sided-allow", &ingress, &[]);
    let some = policy("q", "podSelector: {matchLabels: {app: a, x: b}}, policyTypes: [Egress]");
    check("one-sided-allow", &(ingress + &some), &[]);
}

#[test]
fn the_closed_world_compares_rules_by_their_form() {
    let twice = rules("{from: [{podSelector: {}}]}", "{from: [{podSelector: {matchLabels: {app: a}}}]}");
    assert_eq!(closed(&twice), ["rule-covered"]);
    let range = |first: u16, last: u16| format!("{{ports: [{{port: {first}, endPort: {last}}}]}}");
    let together = rules(&format!("{}, {}", range(80, 85), range(84, 90)), &range(82, 88));
    assert_eq!(closed(&together), Vec::<&str>::new());
    check("rule-covered", &together, &["shop/p spec.ingress[2]"]);
}

#[test]
fn policies_that_are_not_compared_are_named() {
    let text = policy("a", "podSelector: {}, ingress: [{}, {}]") + &policy("b", "podSelector: {}, ingress: [{}]");
    let found = run(&read(&text), 8).into_vec();
    let incomplete: Vec<_> = found.iter().filter(|it| it.message.contains("every possible pod")).collect();
    assert_eq!(incomplete.len(), 1);
    assert_eq!(incomplete[0].code.name, "lint-incomplete");
    assert!(incomplete[0].notes[0].ends_with(": shop/a, shop/b"));
}
