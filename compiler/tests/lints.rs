//! What lints find, and what they leave alone.

use weir_compiler::decode::{Decoded, Input, InputKind, Options, decode};
use weir_compiler::diagnostic::{Diagnostics, Place};
use weir_compiler::lint::{STEPS, lint_within};
use weir_compiler::model::Assumptions;
use weir_compiler::resolve::resolve;

fn read(text: &str) -> Decoded {
    let input = Input { name: "input.yaml".to_owned(), bytes: text.as_bytes().to_vec(), kind: InputKind::Manifest };
    let (decoded, diagnostics) = decode(vec![input], &Options { default_namespace: "default".to_owned() });
    assert!(!diagnostics.has_errors(), "{:#?}", diagnostics.into_vec());
    decoded
}

fn run(decoded: &Decoded, steps: u64) -> Diagnostics {
    let (cluster, _) = resolve(&decoded.objects, Assumptions::default());
    lint_within(steps, &decoded.objects, &cluster)
}

/// `code object field`, a line each.
fn lines(decoded: &Decoded, diagnostics: &Diagnostics) -> Vec<String> {
    let line = |place: &Place, code: &str| {
        let Place::Field(origin) = place else { panic!("lints point at fields") };
        let object = decoded.objects.iter().find(|object| object.id == origin.object).expect("an object of the input");
        format!("{code} {}/{} {}", object.meta.namespace, object.meta.name, origin.path)
    };
    diagnostics.iter().map(|it| line(&it.primary.place, it.code.name)).collect()
}

/// The findings of one code, as `namespace/name field`.
#[track_caller]
fn check(code: &str, text: &str, expected: &[&str]) {
    let decoded = read(text);
    let all = lines(&decoded, &run(&decoded, STEPS));
    let found: Vec<_> = all.iter().filter_map(|line| line.strip_prefix(code)?.strip_prefix(' ')).collect();
    assert_eq!(found, expected, "{all:#?}");
}

/// Everything that a finding says, for the first finding of a code.
#[track_caller]
fn check_text(code: &str, text: &str, expected: &[&str]) {
    let decoded = read(text);
    let found = run(&decoded, STEPS).into_vec();
    let first = found.into_iter().find(|it| it.code.name == code).expect("a finding");
    let mut said = vec![first.message, first.primary.text];
    said.extend(first.secondary.into_iter().map(|label| label.text));
    said.extend(first.notes);
    said.extend(first.help);
    assert_eq!(said, expected);
}

/// A pod of namespace `shop` with a label `app`, and any more of its fields.
fn pod(name: &str, app: &str) -> String {
    format!("---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\n")
}

/// A policy of namespace `shop` with the given spec, one line in flow style.
fn policy(name: &str, spec: &str) -> String {
    policy_in("shop", name, spec)
}

fn policy_in(namespace: &str, name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
    )
}

fn namespace(name: &str, labels: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n")
}

fn list(name: &str, spec: &str) -> String {
    format!("---\napiVersion: weir.dev/v1alpha1\nkind: CidrList\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

const API: &str = "podSelector: {matchLabels: {app: api}}";
const DNS: &str = "{ports: [{port: 53, protocol: UDP}]}";

mod selection {
    use super::*;

    #[test]
    fn a_policy_for_a_misspelt_label_selects_nothing() {
        let text = pod("api-1", "api") + &policy("p", "podSelector: {matchLabels: {app: apii}}");
        check("policy-selects-nothing", &text, &["shop/p spec.podSelector.matchLabels[app]"]);
        check_text(
            "policy-selects-nothing",
            &text,
            &[
                "policy shop/p selects no pod",
                "no pod of the namespace matches",
                "1 pod in `shop` has app=api; none has app=apii",
                "did you mean `app: api`?",
            ],
        );
    }

    #[test]
    fn a_label_under_another_key_is_suggested() {
        let text = pod("api-1", "api") + &policy("p", "podSelector: {matchLabels: {name: api}}");
        check_text(
            "policy-selects-nothing",
            &text,
            &[
                "policy shop/p selects no pod",
                "no pod of the namespace matches",
                "1 pod in `shop` has app=api; none has name=api",
                "did you mean `app: api`?",
            ],
        );
    }

    #[test]
    fn a_namespace_without_pods_says_nothing_about_selection() {
        check("policy-selects-nothing", &policy("p", API), &[]);
        let elsewhere = pod("web-1", "web") + &policy_in("other", "p", API);
        check("policy-selects-nothing", &elsewhere, &[]);
    }

    #[test]
    fn a_policy_for_every_pod_is_never_reported() {
        let host = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: h, namespace: shop}\nspec: {hostNetwork: true}\n";
        check("policy-selects-nothing", &(host.to_owned() + &policy("p", "podSelector: {}")), &[]);
    }

    #[test]
    fn only_host_network_pods_are_nothing() {
        let text = pod("api-1", "api") + "spec: {hostNetwork: true}\n" + &pod("web-1", "web") + &policy("p", API);
        check("policy-selects-nothing", &text, &["shop/p spec.podSelector"]);
    }

    #[test]
    fn finished_pods_and_workloads_are_pods_to_come() {
        let finished = pod("api-1", "api") + "status: {phase: Succeeded}\n" + &policy("p", API);
        check("policy-selects-nothing", &finished, &[]);
        let workload = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: api, namespace: shop}\n\
                        spec: {selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}}}\n";
        check("policy-selects-nothing", &(workload.to_owned() + &policy("p", API)), &[]);
    }

    #[test]
    fn a_namespace_is_missing_only_where_others_are_declared() {
        let alone = policy_in("shopp", "p", "podSelector: {}");
        check("namespace-missing", &alone, &[]);
        check("namespace-missing", &(namespace("shop", "") + &alone), &["shopp/p metadata.namespace"]);
        let built_in = namespace("shop", "") + &policy_in("kube-system", "p", "podSelector: {}");
        check("namespace-missing", &built_in, &[]);
        let inhabited = namespace("other", "") + &pod("api-1", "api") + &policy("p", "podSelector: {}");
        check("namespace-missing", &inhabited, &[]);
    }

    #[test]
    fn rules_of_an_unnamed_direction_are_inert() {
        let text = policy("p", &format!("podSelector: {{}}, policyTypes: [Ingress], egress: [{DNS}]"));
        check("inert-rules", &text, &["shop/p spec.egress"]);
        check("inert-rules", &policy("p", &format!("podSelector: {{}}, egress: [{DNS}]")), &[]);
        let text = policy("p", "podSelector: {}, policyTypes: [Egress], ingress: [{}]");
        check("inert-rules", &text, &["shop/p spec.ingress"]);
    }
}

mod peers {
    use super::*;

    fn ingress_from(peers: &str) -> String {
        pod("api-1", "api") + &policy("p", &format!("{API}, ingress: [{{from: [{peers}]}}]"))
    }

    #[test]
    fn a_rule_whose_peers_are_not_there_matches_nothing() {
        let text = ingress_from("{podSelector: {matchLabels: {app: web}}}");
        check("rule-matches-no-peer", &text, &["shop/p spec.ingress[0].from[0].podSelector.matchLabels[app]"]);
        let text = ingress_from("{podSelector: {matchLabels: {app: web}}}, {podSelector: {matchLabels: {app: api}}}");
        check("rule-matches-no-peer", &text, &["shop/p spec.ingress[0].from[0].podSelector.matchLabels[app]"]);
    }

    #[test]
    fn blocks_and_no_peers_always_match() {
        check("rule-matches-no-peer", &ingress_from("{ipBlock: {cidr: 192.0.2.0/24}}"), &[]);
        check("rule-matches-no-peer", &(pod("api-1", "api") + &policy("p", &format!("{API}, ingress: [{{}}]"))), &[]);
    }

    #[test]
    fn other_namespaces_that_the_input_does_not_have_are_not_held_against_it() {
        for peer in [
            "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}",
            "{namespaceSelector: {matchLabels: {team: monitoring}}}",
            "{namespaceSelector: {}, podSelector: {matchLabels: {app: prometheus}}}",
        ] {
            check("rule-matches-no-peer", &ingress_from(peer), &[]);
        }
        let named = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}";
        check("rule-matches-no-peer", &(namespace("shop", "") + &ingress_from(named)), &[]);
    }

    #[test]
    fn declared_namespaces_without_the_label_are() {
        let text = namespace("shop", "team: shop") + &ingress_from("{namespaceSelector: {matchLabels: {team: shpo}}}");
        let expected = "shop/p spec.ingress[0].from[0].namespaceSelector.matchLabels[team]";
        check("rule-matches-no-peer", &text, &[expected]);
        let misspelt = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shopp}}}";
        let expected = "shop/p spec.ingress[0].from[0].namespaceSelector.matchLabels[kubernetes.io/metadata.name]";
        check("rule-matches-no-peer", &(namespace("shop", "") + &ingress_from(misspelt)), &[expected]);
    }

    #[test]
    fn a_whole_cluster_shows_everything() {
        let peer = "{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}";
        let text = namespace("kube-system", "") + &namespace("shop", "") + &ingress_from(peer);
        check(
            "rule-matches-no-peer",
            &text,
            &["shop/p spec.ingress[0].from[0].namespaceSelector.matchLabels[kubernetes.io/metadata.name]"],
        );
    }

    #[test]
    fn a_pod_of_another_namespace_explains_the_mistake() {
        let other =
            "---\napiVersion: v1\nkind: Pod\nmetadata: {name: prom, namespace: obs, labels: {app: prometheus}}\n";
        let text = ingress_from("{podSelector: {matchLabels: {app: prometheus}}}") + other;
        check_text(
            "rule-matches-no-peer",
            &text,
            &[
                "spec.ingress[0] of policy shop/p matches no peer",
                "no pod in `shop` matches",
                "pods in `shop` have these values of `app`: `api`",
                "pod obs/prom would match, but a podSelector alone looks in the policy's own namespace",
                "add a namespaceSelector beside it: kubernetes.io/metadata.name: obs",
            ],
        );
    }

    #[test]
    fn two_halves_in_two_items_are_noted() {
        let split = "{namespaceSelector: {matchLabels: {team: obs}}}, {podSelector: {matchLabels: {app: prometheus}}}";
        let rule = format!("podSelector: {{}}, ingress: [{{from: [{split}]}}]");
        check("and-or-peers", &policy("p", &rule), &["shop/p spec.ingress[0].from[1]"]);
        check("and-or-peers", &(pod("prom", "prometheus") + &policy("p", &rule)), &[]);
        let documented =
            format!("podSelector: {{}}, ingress: [{{from: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}, {split}]}}]");
        check("and-or-peers", &policy("p", &documented), &[]);
        let own = "{namespaceSelector: {matchLabels: {team: obs}}}, {podSelector: {}}";
        check("and-or-peers", &policy("p", &format!("podSelector: {{}}, ingress: [{{from: [{own}]}}]")), &[]);
    }
}

mod ports {
    use super::*;

    const HTTP: &str = "spec: {containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}\n";

    fn named(port: &str) -> String {
        pod("api-1", "api") + HTTP + &policy("p", &format!("{API}, ingress: [{{ports: [{port}]}}]"))
    }

    #[test]
    fn a_port_name_that_no_selected_pod_has_is_unknown() {
        check("named-port-unknown", &named("{port: http}"), &[]);
        check("named-port-unknown", &named("{port: htttp}"), &["shop/p spec.ingress[0].ports[0].port"]);
        check(
            "named-port-unknown",
            &named("{port: 81}, {port: http, protocol: UDP}"),
            &["shop/p spec.ingress[0].ports[1].port"],
        );
    }

    #[test]
    fn one_pod_that_has_the_port_is_enough() {
        check("named-port-unknown", &(named("{port: http}") + &pod("api-2", "api")), &[]);
    }

    #[test]
    fn for_egress_the_peers_count() {
        let egress = |peers: &str| {
            let rule = format!(
                "podSelector: {{matchLabels: {{app: web}}}}, egress: [{{to: [{peers}], ports: [{{port: http}}]}}]"
            );
            pod("api-1", "api") + HTTP + &pod("web-1", "web") + &policy("p", &rule)
        };
        check("named-port-unknown", &egress("{podSelector: {matchLabels: {app: api}}}"), &[]);
        let expected = ["shop/p spec.egress[0].ports[0].port"];
        check("named-port-unknown", &egress("{podSelector: {matchLabels: {app: web}}}"), &expected);
        check("named-port-unknown", &egress("{namespaceSelector: {matchLabels: {team: other}}}"), &[]);
    }

    #[test]
    fn an_outside_address_has_no_port_names() {
        let live = "status: {phase: Running, podIP: 10.0.0.1}\n";
        let text = pod("api-1", "api")
            + HTTP
            + live
            + &policy("p", "podSelector: {}, egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: http}]}]");
        check("named-port-unknown", &text, &["shop/p spec.egress[0].ports[0].port"]);
        check("named-port-unknown", &text.replace("192.0.2.0/24", "10.0.0.0/8"), &[]);
    }
}

mod coverage {
    use super::*;

    fn two(first: &str, second: &str) -> String {
        policy("p", &format!("{API}, ingress: [{first}, {second}]"))
    }

    const WEB: &str = "{from: [{podSelector: {matchLabels: {app: web}}}]}";

    #[test]
    fn an_empty_rule_covers_every_other() {
        check("rule-covered", &two("{}", WEB), &["shop/p spec.ingress[1]"]);
        check("rule-covered", &two(WEB, "{}"), &["shop/p spec.ingress[0]"]);
    }

    #[test]
    fn of_two_equal_rules_the_second_is_reported() {
        check("rule-covered", &two(WEB, WEB), &["shop/p spec.ingress[1]"]);
    }

    #[test]
    fn what_only_overlaps_is_not_covered() {
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
        let narrow = policy("a", &format!("{API}, ingress: [{WEB}]"));
        let all = policy("b", "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]");
        check("rule-covered", &(narrow.clone() + &all), &["shop/a spec.ingress[0]"]);
        let other = policy("b", "podSelector: {matchLabels: {app: db}}, ingress: [{}]");
        check("rule-covered", &(narrow.clone() + &other), &[]);
        let elsewhere = policy_in("other", "b", "podSelector: {}, ingress: [{}]");
        check("rule-covered", &(narrow.clone() + &elsewhere), &[]);
        let inert = policy("b", "podSelector: {}, policyTypes: [Egress], ingress: [{}]");
        check("rule-covered", &(narrow + &inert), &[]);
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
        let other_ports =
            format!("{{to: [{hole}]}}, {{to: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}], ports: [{{port: 443}}]}}");
        check(code, &outbound(&other_ports), &[]);
        let other_rule =
            format!("{{to: [{hole}], ports: [{{port: 443}}]}}, {{to: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}]}}");
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
}

mod dns {
    use super::*;

    const CODE: &str = "dns-not-allowed";
    const DB: &str = "{to: [{podSelector: {matchLabels: {app: db}}}]}";

    #[test]
    fn a_default_deny_for_egress_is_reported_once() {
        let text = policy("deny", "podSelector: {}, policyTypes: [Egress]");
        check(CODE, &text, &["shop/deny spec.policyTypes"]);
        check(CODE, &(pod("api-1", "api") + &pod("web-1", "web") + &text), &["shop/deny spec.policyTypes"]);
    }

    #[test]
    fn another_policy_of_the_pod_may_allow_it() {
        let deny = policy("deny", "podSelector: {}, policyTypes: [Ingress, Egress]");
        let api = policy("api", &format!("{API}, egress: [{DNS}]"));
        check(CODE, &(pod("api-1", "api") + &deny + &api), &[]);
        check(CODE, &(deny.clone() + &api), &[]);
        check(CODE, &(pod("api-1", "api") + &pod("web-1", "web") + &deny + &api), &["shop/deny spec.policyTypes"]);
    }

    #[test]
    fn without_pods_policies_that_may_meet_count() {
        let db = policy("api", &format!("{API}, egress: [{DB}]"));
        check(CODE, &db, &["shop/api spec.egress"]);
        let opted_in = policy("dns", &format!("podSelector: {{matchLabels: {{dns: allowed}}}}, egress: [{DNS}]"));
        check(CODE, &(db.clone() + &opted_in), &[]);
        let other = policy("web", &format!("podSelector: {{matchLabels: {{app: web}}}}, egress: [{DNS}]"));
        check(CODE, &(db + &other), &["shop/api spec.egress"]);
    }

    #[test]
    fn every_usual_way_to_allow_it_is_known() {
        for rule in [
            "{}",
            "{ports: [{port: 53, protocol: UDP}]}",
            "{ports: [{port: 53}]}",
            "{ports: [{protocol: UDP}]}",
            "{to: [{namespaceSelector: {}}]}",
            "{to: [{ipBlock: {cidr: 10.96.0.10/32}}]}",
            "{to: [{namespaceSelector: {}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: dns}]}",
            "{to: [{podSelector: {matchLabels: {app: dnsmasq}}}], ports: [{port: 53, protocol: UDP}]}",
            "{to: [{namespaceSelector: {}}], ports: [{port: 5353, protocol: UDP}]}",
        ] {
            check(CODE, &policy("p", &format!("podSelector: {{}}, egress: [{rule}]")), &[]);
        }
    }

    #[test]
    fn what_is_not_dns_is_not_enough() {
        for rule in [
            "{ports: [{port: 443}]}",
            "{ports: [{port: 53, protocol: SCTP}]}",
            "{to: [{podSelector: {matchLabels: {app: db}}}]}",
            "{to: [{namespaceSelector: {}}], ports: [{port: http}]}",
        ] {
            check(CODE, &policy("p", &format!("podSelector: {{}}, egress: [{rule}]")), &["shop/p spec.egress"]);
        }
    }

    #[test]
    fn ingress_policies_need_no_dns() {
        check(CODE, &policy("p", "podSelector: {}, policyTypes: [Ingress]"), &[]);
    }
}

mod both_ends {
    use super::*;

    const CODE: &str = "one-sided-allow";

    fn shop(web_egress: &str) -> String {
        pod("api-1", "api")
            + "spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n"
            + &pod("web-1", "web")
            + &policy(
                "api",
                &format!(
                    "{API}, ingress: [{{from: [{{podSelector: {{matchLabels: {{app: web}}}}}}], ports: [{{port: http}}]}}]"
                ),
            )
            + web_egress
    }

    fn web(rule: &str) -> String {
        policy("web", &format!("podSelector: {{matchLabels: {{app: web}}}}, egress: [{DNS}, {rule}]"))
    }

    #[test]
    fn ingress_without_egress_at_the_other_end_has_no_effect() {
        let text = shop(&policy("deny", "podSelector: {}, policyTypes: [Egress]"));
        check(CODE, &text, &["shop/api spec.ingress[0]"]);
        check_text(
            CODE,
            &text,
            &[
                "spec.ingress[0] of policy shop/api has no effect: the senders are denied egress by their own policies",
                "allows http/TCP, which is denied at the other end",
                "isolates pod shop/web-1 for egress",
                "for example, from pod shop/web-1 to pod shop/api-1: no rule of 1 policy allows it",
                "allow pod shop/web-1 egress to pod shop/api-1 on http/TCP, or remove the rule",
            ],
        );
    }

    #[test]
    fn what_may_pass_at_the_other_end_is_left_alone() {
        check(CODE, &shop(""), &[]);
        check(CODE, &shop(&web("{ports: [{port: 8080}]}")), &[]);
        check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: api}}}]}")), &[]);
        check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: http}]}")), &[]);
        check(CODE, &shop(&web("{to: [{ipBlock: {cidr: 10.0.0.0/8}}]}")), &[]);
        check(
            CODE,
            &(shop(&web("{ports: [{port: 443}]}")) + &pod("web-2", "web") + &pod("w", "other")),
            &["shop/api spec.ingress[0]"],
        );
    }

    #[test]
    fn another_port_or_another_pod_is_not_enough() {
        // Then neither end's rule has an effect.
        let expected = ["shop/api spec.ingress[0]", "shop/web spec.egress[1]"];
        check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}]}")), &expected);
        let expected = ["shop/api spec.ingress[0]"];
        check(CODE, &shop(&web("{to: [{podSelector: {matchLabels: {app: web}}}]}")), &expected);
    }

    #[test]
    fn egress_without_ingress_at_the_other_end_has_no_effect() {
        let deny = policy("deny", "podSelector: {}, policyTypes: [Ingress]");
        let text =
            pod("db-1", "db") + &pod("web-1", "web") + &deny + &web("{to: [{podSelector: {matchLabels: {app: db}}}]}");
        check(CODE, &text, &["shop/web spec.egress[1]"]);
        let allowed = policy("db", "podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {}}]}]");
        check(CODE, &(text + &allowed), &[]);
    }

    #[test]
    fn a_pod_always_reaches_itself() {
        let own = policy(
            "p",
            &format!(
                "{API}, policyTypes: [Ingress, Egress], ingress: [{{from: [{{podSelector: {{matchLabels: {{app: api}}}}}}]}}]"
            ),
        );
        check(CODE, &(pod("api-1", "api") + &own), &[]);
        check(CODE, &(pod("api-1", "api") + &pod("api-2", "api") + &own), &["shop/p spec.ingress[0]"]);
    }

    const CANARY: &str = "{to: [{podSelector: {matchLabels: {track: canary}}}]}";

    fn service(web_rule: &str) -> String {
        let backend = |name: &str, track: &str, address: &str| {
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: api, track: {track}}}}}\n\
                     status: {{phase: Running, podIP: {address}}}\n"
            )
        };
        backend("api-1", "canary", "10.0.0.1")
            + &backend("api-2", "stable", "10.0.0.2")
            + &pod("web-1", "web")
            + "---\napiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: shop}\n\
               spec: {selector: {app: api}, clusterIP: 10.96.0.1, ports: [{port: 80, targetPort: 8080}]}\n"
            + &web(web_rule)
    }

    #[test]
    fn a_service_with_some_backends_allowed_is_reported_at_the_rule() {
        let code = "service-partly-allowed";
        check(code, &service(CANARY), &["shop/web spec.egress[1]"]);
        check(code, &service("{to: [{ipBlock: {cidr: 10.0.0.1/32}}]}"), &["shop/web spec.egress[1]"]);
        check(code, &service("{to: [{podSelector: {matchLabels: {app: api}}}]}"), &[]);
        check(code, &service("{to: [{podSelector: {matchLabels: {app: api}}}], ports: [{port: 80}]}"), &[]);
        check(code, &service("{to: [{ipBlock: {cidr: 10.0.0.0/24}}]}"), &[]);
        check(code, &service(&format!("{CANARY}, {{}}")), &[]);
    }

    #[test]
    fn backends_of_one_service_on_two_ports_may_be_partly_allowed() {
        let code = "service-partly-allowed";
        let api = "{podSelector: {matchLabels: {app: api}}}";
        let uneven = service(&format!("{{to: [{api}], ports: [{{port: 8080}}]}}"))
            .replace("targetPort: 8080", "targetPort: http")
            .replace(
                "track: canary}}\n",
                "track: canary}}\nspec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}\n",
            )
            .replace(
                "track: stable}}\n",
                "track: stable}}\nspec: {containers: [{name: c, ports: [{name: http, containerPort: 9090}]}]}\n",
            );
        check(code, &uneven, &["shop/web spec.egress[1]"]);
        check(code, &uneven.replace("ports: [{port: 8080}]", "ports: [{port: http}]"), &[]);
        check(code, &uneven.replace(&format!("to: [{api}], "), ""), &["shop/web spec.egress[1]"]);
    }
}

mod lists {
    use super::*;

    #[test]
    fn entries_inside_others_are_one_finding() {
        let code = "list-entry-covered";
        let text =
            list("l", "action: Deny, cidrs: [192.0.2.7, 192.0.2.0/24, 192.0.2.7, '2001:db8::/32', '2001:db8::1']");
        check(code, &text, &["/l spec.cidrs[0]"]);
        check_text(
            code,
            &text,
            &[
                "3 entries of list l are contained in others",
                "192.0.2.0/24 contains it",
                "this entry contains it",
                "contained are: 192.0.2.7 in 192.0.2.0/24, 192.0.2.7 in 192.0.2.0/24, 2001:db8::1 in 2001:db8::/32",
                "remove what is contained",
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
}

mod together {
    use super::*;

    /// Findings of many kinds in an input of 60 objects.
    fn documents() -> Vec<String> {
        let mut documents = vec![namespace("shop", "team: shop"), namespace("other", "team: other")];
        for index in 0..20 {
            let app = ["api", "web", "db"][index % 3];
            documents.push(
                pod(&format!("{app}-{index}"), app) + &format!("status: {{phase: Running, podIP: 10.0.0.{index}}}\n"),
            );
        }
        for index in 0..30 {
            let (app, peer) = (["api", "web", "db", "apii"][index % 4], ["web", "db", "none"][index % 3]);
            let rule =
                format!("[{{podSelector: {{matchLabels: {{app: {peer}}}}}}}], ports: [{{port: {}}}]", 80 + index % 2);
            let spec = format!(
                "podSelector: {{matchLabels: {{app: {app}}}}}, ingress: [{{from: {rule}}}], egress: [{{to: {rule}}}]"
            );
            documents.push(policy(&format!("p{index}"), &spec));
        }
        documents.push(list("deny-a", "action: Deny, cidrs: [10.0.0.0/8, 10.0.0.0/9]"));
        documents.push(list("deny-b", "action: Deny, cidrs: [10.0.0.0/16]"));
        documents
    }

    fn said(documents: &[String], steps: u64) -> Vec<String> {
        let decoded = read(&documents.concat());
        let found = run(&decoded, steps);
        let lines = lines(&decoded, &found);
        let text = |(line, it): (String, &weir_compiler::diagnostic::Diagnostic)| {
            format!("{line}: {} {:?} {:?}", it.message, it.notes, it.help)
        };
        lines.into_iter().zip(found.iter()).map(text).collect()
    }

    #[test]
    fn the_order_of_objects_does_not_show() {
        let mut documents = documents();
        let mut expected = said(&documents, STEPS);
        assert!(expected.len() > 30, "{expected:#?}");
        expected.sort();
        for turn in 1..8 {
            documents.rotate_left(7);
            documents.reverse();
            documents.swap(turn, 3 * turn + 1);
            let mut found = said(&documents, STEPS);
            found.sort();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn findings_are_in_the_order_of_objects_and_fields() {
        let decoded = read(&documents().concat());
        let found = run(&decoded, STEPS);
        let origins = found.iter().map(|it| match &it.primary.place {
            Place::Field(origin) => origin.clone(),
            other => panic!("lints point at fields, not {other:?}"),
        });
        assert!(origins.is_sorted());
    }

    #[test]
    fn a_lint_without_steps_says_that_it_stopped() {
        let complete = said(&documents(), STEPS);
        assert!(!complete.iter().any(|line| line.starts_with("lint-incomplete")));
        for steps in [0, 10, 100] {
            let found = said(&documents(), steps);
            let (stopped, rest): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|line| line.starts_with("lint-incomplete"));
            assert!(!stopped.is_empty());
            assert!(rest.iter().all(|line| complete.contains(line)), "a lint that stops says nothing that is not so");
        }
    }
}
