//! Lints of address lists.

use super::*;

#[test]
fn entries_inside_others_are_one_finding() {
    let code = "list-entry-covered";
    let text = list("l", "action: Deny, cidrs: [192.0.2.7, 192.0.2.0/24, 192.0.2.7, '2001:db8::/32', '2001:db8::1']");
    check(code, &text, &["/l spec.cidrs[0]"]);
    check_text(
        code,
        &text,
        &[
            "3 entries of list l are contained in others",
            "192.0.2.0/24 contains it",
            "this entry contains it",
            "contained are: 192.0.2.7 in 192.0.2.0/24, 192.0.2.7 in 192.0.2.0/24, 2001:db8::1 in 2001:db8::/32",
            "remove the entries that are contained in others",
        ],
    );
    check(code, &list("l", "action: Deny, cidrs: [192.0.2.0/25, 192.0.2.128/25, 0.0.0.0/8, '::/8']"), &[]);
}

#[test]
fn a_list_inside_a_like_one_is_redundant() {
    let code = "list-redundant";
    let (wide, narrow) = (list("wide", "action: Deny, cidrs: [192.0.2.0/24]"), "action: Deny, cidrs: [192.0.2.7");
    check(code, &(wide.clone() + &list("small", &format!("{narrow}]"))), &["/small spec.cidrs"]);
    check(code, &(wide.clone() + &list("small", &format!("{narrow}, 198.51.100.1]"))), &[]);
    check(code, &(wide.clone() + &list("small", "action: Deny, cidrs: [192.0.2.0/24]")), &["/wide spec.cidrs"]);
    let exempt = list("allow", "action: Allow, order: 50, cidrs: [192.0.2.7]");
    check(code, &(wide.clone() + &exempt + &list("small", &format!("{narrow}], order: 10"))), &[]);
    let ingress_only = list("wide", "action: Deny, directions: [Ingress], cidrs: [192.0.2.0/24]");
    check(code, &(ingress_only + &list("small", &format!("{narrow}]"))), &[]);
    let applied = "action: Deny, cidrs: [192.0.2.0/24], appliesTo: {podSelector: {matchLabels: {app: api}}}";
    check(code, &(list("wide", applied) + &list("small", &format!("{narrow}]"))), &[]);
}

#[test]
fn an_allow_list_needs_a_later_deny_list() {
    let code = "allow-list-without-effect";
    let allow = list("allow", "action: Allow, order: 10, cidrs: [192.0.2.7]");
    check(code, &allow, &["/allow spec.action"]);
    check(code, &(allow.clone() + &list("deny", "action: Deny, order: 20, cidrs: [192.0.2.0/24]")), &[]);
    check(
        code,
        &(allow.clone() + &list("deny", "action: Deny, order: 10, cidrs: [192.0.2.0/24]")),
        &["/allow spec.action"],
    );
    let ingress = list("deny", "action: Deny, order: 20, directions: [Ingress], cidrs: [192.0.2.0/24]");
    check(code, &(allow + &ingress), &[]);
}

#[test]
fn a_deny_list_for_everyone_should_not_hit_the_cluster() {
    let code = "list-hits-cluster";
    let api = pod("api-1", "api") + "status: {phase: Running, podIP: 10.0.0.1}\n";
    let deny = |more: &str| list("deny", &format!("action: Deny, cidrs: [192.0.2.0/24, 10.0.0.0/8]{more}"));
    check(code, &(api.clone() + &deny("")), &["/deny spec.cidrs[1]"]);
    let applied = ", appliesTo: {podSelector: {matchLabels: {app: api}}}";
    check(code, &(api.clone() + &deny(applied)), &[]);
    let exempt = list("allow", "action: Allow, order: 0, cidrs: [10.0.0.0/24]");
    check(code, &(api.clone() + &deny("") + &exempt), &[]);
    let finished = api.replace("Running", "Succeeded");
    check(code, &(finished + &deny("")), &[]);
}
