//! Tests the manifests in `deploy/`: a server accepts them, its validation agrees with ours, and their permissions
//! suffice.

use weir_runtime::skip;
use xtask::apiserver::{ApiServer, Settings};

use crate::api::{account, add_cluster, add_pod, agent, has_the_servers_objects};
use crate::rig::{Agent, Directory, server, until};

const LISTS: &str = "/apis/weir.dev/v1alpha1/cidrlists";

/// Each manifest with its API path.
fn manifests(choices: &[(&str, &str)]) -> Vec<(&'static str, String)> {
    let text = xtask::deploy::with(choices).expect("the chart renders");
    let path = |document: &str| {
        let kind = document.lines().find_map(|line| line.strip_prefix("kind: ")).expect("a kind");
        match kind {
            "CustomResourceDefinition" => "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "ServiceAccount" => "/api/v1/namespaces/kube-system/serviceaccounts",
            "ClusterRole" => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "ClusterRoleBinding" => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            "DaemonSet" => "/apis/apps/v1/namespaces/kube-system/daemonsets",
            other => panic!("no path for {other}"),
        }
    };
    text.split("\n---\n").skip(1).map(|document| (path(document), document.to_owned())).collect()
}

fn install(server: &ApiServer) {
    for (path, document) in manifests(&[]) {
        let answer =
            server.ask_as("application/yaml", "POST", &format!("{path}?fieldValidation=Strict"), Some(&document));
        answer.unwrap_or_else(|error| panic!("{error:#}"));
    }
    until("the kind is served", || server.ask("GET", LISTS, None).is_ok());
}

fn list(name: &str, spec: &str) -> String {
    format!(r#"{{"apiVersion":"weir.dev/v1alpha1","kind":"CidrList","metadata":{{"name":"{name}"}},"spec":{spec}}}"#)
}

#[test]
fn api_server_accepts_the_manifests_and_their_rights_suffice() {
    let directory = Directory::new();
    let server = skip!(unless server(&directory, Settings::default()));
    install(&server);
    lists_are_validated(&server);
    add_cluster(&server);
    add_pod(&server, "web", "near", "10.231.0.2");
    let agent = agent(&directory, &account(&server, &directory, "kube-system", "weir"));
    until("everything is compiled", || has_the_servers_objects(&server, &directory));
    assert_eq!(agent.metric("weir_objects{kind=\"Pod\"}"), 1.0, "{}", agent.log());
    assert!(!agent.log().contains("403"), "{}", agent.log());
    events_are_sent_once(&server, &directory, &agent);
    choices_are_taken(&server);
}

/// A list that the server accepts and the agent does not is reported as an Event, by the first agent that sees it.
fn events_are_sent_once(server: &ApiServer, directory: &Directory, agent: &Agent) {
    let odd = list("odd", r#"{"action":"Deny","cidrs":["192.0.2.9-192.0.2.7"]}"#);
    server.ask("POST", LISTS, Some(&odd)).unwrap_or_else(|error| panic!("{error:#}"));
    until("the Event is sent", || agent.metric("weir_kubernetes_events_total{outcome=\"told\"}") == 1.0);
    let events = server.ask("GET", "/api/v1/namespaces/default/events", None).expect("the server answers");
    let events: serde_json::Value = serde_json::from_str(&events).expect("JSON");
    let event = &events["items"][0];
    assert_eq!((&event["reason"], &event["involvedObject"]["name"]), (&"Unreadable".into(), &"odd".into()), "{event}");
    let other = self::agent(directory, &account(server, directory, "kube-system", "weir"));
    until("the other agent knows", || other.metric("weir_kubernetes_events_total{outcome=\"known\"}") == 1.0);
}

/// Creates the manifests with all options that are off by default.
fn choices_are_taken(server: &ApiServer) {
    for (path, document) in manifests(&[("cni.enabled", "true"), ("annotatePods", "true")]) {
        if path.ends_with("clusterroles") {
            let path = format!("{path}/weir?fieldValidation=Strict&force=true&fieldManager=test");
            let answer = server.ask_as("application/apply-patch+yaml", "PATCH", &path, Some(&document));
            answer.unwrap_or_else(|error| panic!("{error:#}"));
        }
        if path.ends_with("daemonsets") {
            let path = format!("{path}/weir?fieldValidation=Strict&dryRun=All&force=true&fieldManager=test");
            let answer = server.ask_as("application/apply-patch+yaml", "PATCH", &path, Some(&document));
            let answer = answer.unwrap_or_else(|error| panic!("{error:#}"));
            assert!(answer.contains("--cni-socket=/run/weir/cni.sock") && answer.contains("cni-install"), "{answer}");
        }
    }
}

/// The lines after a given line of a document that are deeper or belong to the same list.
fn lines_of(document: &str, of: &str) -> Vec<String> {
    let mut lines = document.lines().skip_while(|line| line.trim() != of);
    let depth = |line: &str| line.len() - line.trim_start().len();
    let first = lines.next().map(depth).unwrap_or_default();
    let inside = lines.take_while(|line| depth(line) > first || line.trim_start().starts_with(['-', '#']));
    inside.map(|line| line.trim().trim_start_matches("- ").to_owned()).filter(|line| !line.starts_with('#')).collect()
}

#[test]
fn agents_rights_are_exactly_those_it_needs() {
    for choices in [&[][..], &[("cni.enabled", "true")]] {
        let documents = manifests(choices);
        let document = |kind: &str| {
            let found = documents.iter().find(|(path, _)| path.ends_with(kind));
            found.map(|(_, document)| document.as_str()).expect("it is there")
        };
        let rights = [
            [r#"apiGroups: [""]"#, "resources: [namespaces, nodes, pods, services]", "verbs: [list, watch]"],
            ["apiGroups: [discovery.k8s.io]", "resources: [endpointslices]", "verbs: [list, watch]"],
            ["apiGroups: [networking.k8s.io]", "resources: [networkpolicies]", "verbs: [list, watch]"],
            [
                "apiGroups: [policy.networking.k8s.io]",
                "resources: [clusternetworkpolicies, adminnetworkpolicies, baselineadminnetworkpolicies]",
                "verbs: [list, watch]",
            ],
            ["apiGroups: [weir.dev]", "resources: [cidrlists]", "verbs: [list, watch]"],
            [r#"apiGroups: [""]"#, "resources: [events]", "verbs: [create]"],
        ];
        assert_eq!(lines_of(document("/clusterroles"), "rules:"), rights.concat());
        let daemon_set = document("daemonsets");
        let containers = daemon_set.matches("image: ").count();
        let count = |line: &str| daemon_set.lines().filter(|it| it.trim() == line).count();
        for line in ["readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "drop: [ALL]"] {
            assert_eq!(count(line), containers, "{line}");
        }
        assert_eq!(daemon_set.matches("add: [").count(), 1, "one container has capabilities");
        assert_eq!(count("add: [BPF, NET_ADMIN, SYS_ADMIN]"), 1);
        assert!(!daemon_set.contains("privileged") && !daemon_set.contains("hostPID"));
    }
}

/// The server accepts the lists that we accept, and refuses those that we refuse, as far as a schema can.
fn lists_are_validated(server: &ApiServer) {
    let entries = [
        "192.0.2.7",
        "192.0.2.0/24",
        "010.0.0.0/08",
        "2001:db8::7",
        "2001:db8::/32",
        "::/0",
        "::ffff:192.0.2.1",
        "192.0.2.7-192.0.2.9",
        "2001:db8::1 - 2001:db8::f",
        "0.0.0.0/0",
        "::",
    ];
    let cidrs = serde_json::to_string(&entries).expect("JSON");
    let good = [
        format!(r#"{{"action":"Deny","cidrs":{cidrs}}}"#),
        r#"{"action":"Allow","order":-3,"directions":["Ingress","Egress"],"cidrs":[],"appliesTo":{"podSelector":{
        "matchLabels":{"a":"b"},"matchExpressions":[{"key":"k","operator":"In","values":["v"]}]},"namespaceSelector":{}}}"#
            .to_owned(),
    ];
    for (number, spec) in good.iter().enumerate() {
        let answer = server.ask(
            "POST",
            &format!("{LISTS}?fieldValidation=Strict"),
            Some(&list(&format!("good-{number}"), spec)),
        );
        answer.unwrap_or_else(|error| panic!("{spec}: {error:#}"));
    }
    for bad in [
        r#"{"cidrs":[]}"#,
        r#"{"action":"Deny"}"#,
        r#"{"action":"deny","cidrs":[]}"#,
        r#"{"action":"Deny","cidrs":["example.com"]}"#,
        r#"{"action":"Deny","cidrs":["192.0.2"]}"#,
        r#"{"action":"Deny","cidrs":["192.0.2.0/24-192.0.3.0/24"]}"#,
        r#"{"action":"Deny","cidrs":[""]}"#,
        r#"{"action":"Deny","cidrs":[],"order":"1"}"#,
        r#"{"action":"Deny","cidrs":[],"directions":["ingress"]}"#,
        r#"{"action":"Deny","cidrs":[],"appliesTo":{"podSelector":{"matchExpressions":[{"key":"k","operator":"in"}]}}}"#,
    ] {
        assert!(server.ask("POST", LISTS, Some(&list("bad", bad))).is_err(), "{bad}");
    }
}
