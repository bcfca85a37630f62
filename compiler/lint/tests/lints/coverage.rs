//! Rules, exceptions and lists that another one makes redundant.

use weir_objects::diagnostic::Severity;

use super::*;

fn two(first: &str, second: &str) -> String {
    policy("p", &format!("{API}, ingress: [{first}, {second}]"))
}

/// Addresses that no other rule allows.
const ELSEWHERE: &str = "{from: [{ipBlock: {cidr: 192.0.2.0/24}}]}";
const OWN: &str = "{from: [{podSelector: {}}]}";
const WEB: &str = "{from: [{podSelector: {matchLabels: {app: web}}}]}";

#[test]
fn an_empty_rule_covers_every_other() {
    check("rule-covered", &two("{}", WEB), &["shop/p spec.ingress[1]"]);
    check("rule-covered", &two(WEB, "{}"), &["shop/p spec.ingress[0]"]);
}

#[test]
fn audit_policy_covers_no_enforced_rule() {
    let of = |name: &str, rule: &str| policy(name, &format!("{API}, ingress: [{rule}]"));
    let of_more = |name: &str, rule: &str| of(name, &format!("{rule}, {ELSEWHERE}"));
    let audited = |name: &str, rule: &str| {
        of(name, rule)
            .replace(&format!("name: {name}"), &format!("annotations: {{weir.dev/mode: audit}}, name: {name}"))
    };
    check("rule-covered", &(of_more("p", WEB) + &of("q", OWN)), &["shop/p spec.ingress[0]"]);
    check("rule-covered", &(of_more("p", WEB) + &audited("q", OWN)), &[]);
    let audited_more = audited("q", &format!("{WEB}, {ELSEWHERE}"));
    check("rule-covered", &(of("p", OWN) + &audited_more), &["shop/q spec.ingress[0]"]);
    check("policy-redundant", &(of("p", WEB) + &of("q", OWN)), &["shop/p metadata.name"]);
    check("policy-redundant", &(of("p", WEB) + &audited("q", OWN)), &[]);
    check("policy-redundant", &(of("p", OWN) + &audited("q", WEB)), &["shop/q metadata.name"]);
    check("rule-covered", &audited("p", &format!("{{}}, {WEB}")), &["shop/p spec.ingress[1]"]);
}

#[test]
fn of_two_equal_rules_the_second_is_reported() {
    check("rule-covered", &two(WEB, WEB), &["shop/p spec.ingress[1]"]);
}

#[test]
fn overlapping_rule_is_not_covered() {
    let on = |ports: &str| format!("{{from: [{{podSelector: {{}}}}], ports: [{ports}]}}");
    check("rule-covered", &two(&on("{port: 80}"), &on("{port: 81}")), &[]);
    check("rule-covered", &two(&on("{port: 80, endPort: 90}"), &on("{port: 85, endPort: 95}")), &[]);
    check("rule-covered", &two(&on("{port: 80, endPort: 90}"), &on("{port: 85}")), &["shop/p spec.ingress[1]"]);
    check("rule-covered", &two(&on("{port: 80}"), &on("{port: 80, protocol: UDP}")), &[]);
    check("rule-covered", &two(&on(""), WEB), &["shop/p spec.ingress[1]"]);
    check("rule-covered", &two("{from: [{namespaceSelector: {}}]}", WEB), &["shop/p spec.ingress[1]"]);
    let labelled = "{from: [{namespaceSelector: {matchLabels: {team: a}}}]}";
    check("rule-covered", &two(labelled, WEB), &[]);
}

#[test]
fn blocks_cover_blocks_unless_a_hole_shows() {
    let block = |block: &str| format!("{{from: [{{ipBlock: {{{block}}}}}]}}");
    let wide = block("cidr: 10.0.0.0/8, except: [10.1.0.0/16]");
    check("rule-covered", &two(&wide, &block("cidr: 10.2.0.0/16")), &["shop/p spec.ingress[1]"]);
    check("rule-covered", &two(&wide, &block("cidr: 10.1.2.0/24")), &[]);
    check("rule-covered", &two(&wide, &block("cidr: 10.0.0.0/8")), &["shop/p spec.ingress[0]"]);
    check("rule-covered", &two(&block("cidr: 0.0.0.0/0"), WEB), &[]);
}

#[test]
fn a_policy_for_the_same_or_all_pods_covers_too() {
    let narrow = policy("a", &format!("{API}, ingress: [{WEB}, {ELSEWHERE}]"));
    let all = policy("b", "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]");
    check("rule-covered", &(narrow.clone() + &all), &["shop/a spec.ingress[0]"]);
    let other = policy("b", "podSelector: {matchLabels: {app: db}}, ingress: [{}]");
    check("rule-covered", &(narrow.clone() + &other), &[]);
    let elsewhere = policy_in("other", "b", "podSelector: {}, ingress: [{}]");
    check("rule-covered", &(narrow.clone() + &elsewhere), &[]);
    let inert = policy("b", "podSelector: {}, policyTypes: [Egress], ingress: [{}]");
    check("rule-covered", &(narrow + &inert), &[]);
}

#[track_caller]
fn check_severity(code: &str, text: &str, expected: Severity) {
    let found = run(&read(text), STEPS).into_vec();
    let found: Vec<_> = found.iter().filter(|it| it.code.name == code).map(|it| it.severity).collect();
    assert_eq!(found, [expected]);
}

#[test]
fn across_policies_a_repetition_is_a_note_unless_everything_is_allowed() {
    let narrow = policy("a", &format!("{API}, ingress: [{WEB}, {ELSEWHERE}]"));
    let wide = policy("b", "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]");
    check_severity("rule-covered", &(narrow.clone() + &wide), Severity::Note);
    let open = policy("b", "podSelector: {}, ingress: [{}]");
    // The second policy does not isolate the pods for egress, so the first one stays.
    let narrow_both = narrow.replace(&format!(", {ELSEWHERE}]"), "], policyTypes: [Ingress, Egress]");
    check_severity("rule-covered", &(narrow_both + &open), Severity::Warning);
    check_severity("policy-redundant", &(narrow.replace(&format!(", {ELSEWHERE}"), "") + &wide), Severity::Note);
    check_severity("policy-redundant", &(narrow + &open), Severity::Warning);
    check_severity("rule-covered", &two(WEB, "{from: [{podSelector: {}}]}"), Severity::Warning);
}

#[test]
fn every_peer_must_be_covered() {
    let both = "{from: [{podSelector: {matchLabels: {app: web}}}, {podSelector: {matchLabels: {app: db}}}]}";
    check("rule-covered", &two(WEB, both), &["shop/p spec.ingress[0]"]);
}

fn outbound(rules: &str) -> String {
    policy("p", &format!("podSelector: {{}}, egress: [{rules}, {DNS}]"))
}

#[test]
fn a_hole_that_another_block_fills_excludes_nothing() {
    let hole = "{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}";
    let code = "except-excludes-nothing";
    let expected = ["shop/p spec.egress[0].to[0].ipBlock.except[0]"];
    check(code, &outbound(&format!("{{to: [{hole}, {{ipBlock: {{cidr: 10.0.0.0/8}}}}]}}")), &expected);
    check(code, &outbound(&format!("{{to: [{hole}, {{ipBlock: {{cidr: 10.0.0.0/9}}}}]}}")), &[]);
    let other_ports = format!("{{to: [{hole}]}}, {{to: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}], ports: [{{port: 443}}]}}");
    check(code, &outbound(&other_ports), &[]);
    let other_rule = format!("{{to: [{hole}], ports: [{{port: 443}}]}}, {{to: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}]}}");
    check(code, &outbound(&other_rule), &expected);
    let holed = format!("{{to: [{hole}, {{ipBlock: {{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}}}]}}");
    check(code, &outbound(&holed), &[]);
}

#[test]
fn a_hole_inside_a_hole_excludes_nothing() {
    let code = "except-excludes-nothing";
    let text = outbound("{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.1.0.0/16, 10.0.0.0/8, 10.0.0.0/8]}}]}");
    check(
        code,
        &text,
        &["shop/p spec.egress[0].to[0].ipBlock.except[0]", "shop/p spec.egress[0].to[0].ipBlock.except[2]"],
    );
    check(code, &outbound("{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 172.16.0.0/12]}}]}"), &[]);
}
