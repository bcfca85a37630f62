//! What is in `deploy/`: the server takes it, it says what we say, and its rights are enough.

use weir_runtime::skip;
use xtask::apiserver::{Server, Settings};

use crate::api::{account, add_cluster, add_pod, agent, says_the_same};
use crate::rig::{Directory, server, until};

const LISTS: &str = "/apis/weir.dev/v1alpha1/cidrlists";

/// Each manifest, and where it belongs.
fn manifests() -> Vec<(&'static str, String)> {
    let text = xtask::deploy::plain().expect("the chart renders");
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

fn install(server: &Server) {
    for (path, document) in manifests() {
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
fn the_manifests_are_taken_and_their_rights_are_enough() {
    let directory = Directory::new();
    let server = match server(&directory, Settings::default()) {
        Ok(server) => server,
        Err(reason) => skip!("{reason}"),
    };
    install(&server);
    lists_are_validated(&server);
    add_cluster(&server);
    add_pod(&server, "web", "near", "10.231.0.2");
    let agent = agent(&directory, &account(&server, &directory, "kube-system", "weir"));
    until("everything is compiled", || says_the_same(&server, &directory));
    assert_eq!(agent.metric("weir_objects{kind=\"Pod\"}"), 1.0, "{}", agent.log());
    assert!(!agent.log().contains("403"), "{}", agent.log());
}

/// The server takes what we take, and refuses what it can of what we refuse.
fn lists_are_validated(server: &Server) {
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
