//! The agent compiles the objects that the API serves; no privileges are needed. The artifact of each generation is
//! compared with the objects as the server lists them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use weir_runtime::skip;
use xtask::apiserver::{self, ApiServer, Binaries, Settings};

use crate::rig::{Agent, Directory, Wire, server, until, within};

const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
const LISTS: &str = "/apis/weir.dev/v1alpha1/cidrlists";
pub(crate) const PODS: &str = "/api/v1/namespaces/shop/pods";

/// A policy without `apiVersion` and `kind`, which the server adds.
pub(crate) fn policy(name: &str, spec: &str) -> String {
    format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#)
}

pub(crate) fn ask(server: &ApiServer, method: &str, path: &str, body: &str) {
    let answer = server.ask(method, path, Some(body).filter(|body| !body.is_empty()));
    answer.unwrap_or_else(|error| panic!("{error:#}"));
}

pub(crate) fn add_pod(server: &ApiServer, name: &str, node: &str, address: &str) {
    add_starting_pod(server, name, node);
    add_address(server, name, address);
}

pub(crate) fn add_starting_pod(server: &ApiServer, name: &str, node: &str) {
    let pod = format!(
        r#"{{"metadata":{{"name":"{name}","labels":{{"app":"{name}"}}}},
        "spec":{{"nodeName":"{node}","containers":[{{"name":"c","image":"i"}}]}}}}"#
    );
    ask(server, "POST", PODS, &pod);
}

pub(crate) fn add_address(server: &ApiServer, name: &str, address: &str) {
    let status = format!(
        r#"{{"status":{{"phase":"Running","podIP":"{address}","podIPs":[{{"ip":"{address}"}}],"hostIP":"172.16.0.1"}}}}"#
    );
    ask(server, "PATCH", &format!("{PODS}/{name}/status"), &status);
}

pub(crate) fn add_cluster(server: &ApiServer) {
    ask(server, "POST", "/api/v1/namespaces", r#"{"metadata":{"name":"shop"}}"#);
    ask(server, "POST", "/api/v1/nodes", r#"{"metadata":{"name":"near"}}"#);
}

/// Adds the CidrList CRD without validation, so that malformed objects are possible.
fn add_lists(server: &ApiServer) {
    let schema = r#"{"type":"object","x-kubernetes-preserve-unknown-fields":true}"#;
    let definition = format!(
        r#"{{"metadata":{{"name":"cidrlists.weir.dev"}},"spec":{{"group":"weir.dev","scope":"Cluster",
        "names":{{"plural":"cidrlists","singular":"cidrlist","kind":"CidrList"}},
        "versions":[{{"name":"v1alpha1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#
    );
    ask(server, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition);
    until("the kind is served", || server.ask("GET", LISTS, None).is_ok());
}

fn list(cidr: &str) -> String {
    format!(
        r#"{{"apiVersion":"weir.dev/v1alpha1","kind":"CidrList","metadata":{{"name":"bad"}},
        "spec":{{"action":"Deny","order":1,"cidrs":["{cidr}"]}}}}"#
    )
}

/// Whether the artifact matches all objects of the server, listed as kubectl would print them.
pub(crate) fn has_the_servers_objects(server: &ApiServer, directory: &Directory) -> bool {
    let mut paths = vec!["/api/v1/namespaces", "/api/v1/nodes", "/api/v1/pods", "/api/v1/services", POLICIES];
    paths.extend(server.ask("GET", LISTS, None).is_ok().then_some(LISTS));
    let objects = directory.path().join("objects");
    std::fs::create_dir_all(&objects).expect("the directory is ours");
    for (index, path) in paths.into_iter().enumerate() {
        let text = server.ask("GET", path, None).expect("the server answers");
        std::fs::write(objects.join(format!("{index}.json")), text).expect("the directory is ours");
    }
    let artifact = directory.path().join("artifact");
    let verify = Command::new(env!("CARGO_BIN_EXE_weir")).arg("verify").arg(artifact).arg(objects).output();
    verify.expect("weir starts").status.success()
}

pub(crate) fn agent(directory: &Directory, kubeconfig: &Path) -> Agent {
    let artifact = directory.path().join("artifact");
    let artifact = artifact.to_str().expect("it is text");
    Agent::start(directory, kubeconfig, &Settings::default(), &["--dry-run", "--artifact", artifact])
}

/// A kubeconfig of a service account.
pub(crate) fn account(server: &ApiServer, directory: &Directory, namespace: &str, name: &str) -> PathBuf {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let token = server.ask("POST", &path, Some("{}")).expect("a token");
    let token: serde_json::Value = serde_json::from_str(&token).expect("JSON");
    let token = token["status"]["token"].as_str().expect("a token");
    let text = std::fs::read_to_string(server.kubeconfig()).expect("the server has one");
    let kubeconfig = directory.path().join(name);
    std::fs::write(&kubeconfig, text.replace("token: loopback", &format!("token: {token}")))
        .expect("the directory is ours");
    kubeconfig
}

/// Skips the test if there is no server.
macro_rules! server {
    ($directory:expr, $settings:expr) => {
        skip!(unless server($directory, $settings))
    };
}

/// Makes changes of every kind; after each of them the artifact must match the server's objects.
fn follows_changes(server: &ApiServer, directory: &Directory) {
    let same = |after: &str| until(after, || has_the_servers_objects(server, directory));
    add_cluster(server);
    add_pod(server, "web", "near", "10.231.0.2");
    add_pod(server, "db", "far", "10.231.1.2");
    ask(server, "POST", POLICIES, &policy("p", r#"{"podSelector":{},"policyTypes":["Ingress","Egress"]}"#));
    same("a policy is created");
    let open =
        r#"{"spec":{"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"db"}}}],"ports":[{"port":80}]}]}}"#;
    ask(server, "PATCH", &format!("{POLICIES}/p"), open);
    same("it is changed");
    add_pod(server, "db-2", "far", "10.231.1.3");
    ask(server, "PATCH", &format!("{PODS}/db-2"), r#"{"metadata":{"labels":{"app":"db"}}}"#);
    same("a pod's labels are changed");
    ask(server, "DELETE", &format!("{PODS}/db?gracePeriodSeconds=0"), "");
    same("a pod is deleted");
    ask(server, "DELETE", &format!("{POLICIES}/p"), "");
    same("the policy is deleted");
}

#[test]
fn compiled_policies_match_the_api_servers_objects() {
    let directory = Directory::new();
    let server = server!(&directory, Settings::default());
    let agent = agent(&directory, &server.kubeconfig());
    follows_changes(&server, &directory);
    assert_eq!(agent.metric("weir_watch_faults_total{kind=\"Pod\"}"), 0.0, "lists were streamed: {}", agent.log());
    assert_eq!(agent.terminate(), Some(0));
}

/// Whether `weir diff` finds the same objects in the live cluster as in lists of the server.
fn cluster_input_has_the_servers_objects(server: &ApiServer, directory: &Directory) -> bool {
    let objects = directory.path().join("objects");
    let diff = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["diff", "cluster:"])
        .arg(objects)
        .env("KUBECONFIG", server.kubeconfig())
        .output();
    let diff = diff.expect("weir starts");
    assert!(matches!(diff.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&diff.stderr));
    diff.status.success()
}

#[test]
fn cluster_input_of_a_diff_is_what_the_server_lists() {
    let directory = Directory::new();
    let server = server!(&directory, Settings::default());
    let agent = agent(&directory, &server.kubeconfig());
    add_lists(&server);
    add_cluster(&server);
    add_pod(&server, "web", "near", "10.231.0.2");
    add_pod(&server, "db", "far", "10.231.1.2");
    ask(&server, "POST", LISTS, &list("192.0.2.0/24"));
    for port in 1..=520 {
        let spec = format!(r#"{{"podSelector":{{}},"ingress":[{{"ports":[{{"port":{port}}}]}}]}}"#);
        ask(&server, "POST", POLICIES, &policy(&format!("p-{port}"), &spec));
    }
    // Writes the lists to files.
    until("all objects are compiled", || has_the_servers_objects(&server, &directory));
    assert!(cluster_input_has_the_servers_objects(&server, &directory), "two pages of policies, and a list");
    ask(&server, "DELETE", &format!("{POLICIES}/p-520"), "");
    assert!(!cluster_input_has_the_servers_objects(&server, &directory), "the last policy is on the second page");
    drop(agent);
}

/// The agent tries one streamed list of pods, which fails, and then follows the server as usual.
fn lists_in_pages(server: &ApiServer, directory: &Directory) {
    let agent = agent(directory, &server.kubeconfig());
    follows_changes(server, directory);
    assert_eq!(agent.metric("weir_watch_faults_total{kind=\"Pod\"}"), 1.0, "{}", agent.log());
}

#[test]
fn server_without_streamed_lists_is_listed_in_pages() {
    let directory = Directory::new();
    let flags = vec!["--feature-gates=WatchList=false".to_owned()];
    let server = server!(&directory, Settings { flags, ..Settings::default() });
    lists_in_pages(&server, &directory);
}

#[test]
fn server_that_always_refuses_streamed_lists_is_listed_in_pages() {
    let directory = Directory::new();
    let old = skip!(unless apiserver::built().and_then(|it| Ok(Binaries { etcd: apiserver::old_etcd()?, ..it })));
    let server = ApiServer::start(&old, &directory.path().join("server"), Settings::default()).expect("it starts");
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let streamed = server.ask("GET", &format!("{PODS}?{query}"), None).expect("it answers");
    assert!(streamed.contains(r#""type":"ERROR""#) && streamed.contains(r#""code":500"#), "{streamed}");
    lists_in_pages(&server, &directory);
}

#[test]
fn malformed_object_hides_no_other_and_keeps_its_last_readable_content() {
    let directory = Directory::new();
    let server = server!(&directory, Settings::default());
    add_lists(&server);
    add_cluster(&server);
    add_pod(&server, "web", "near", "10.231.0.2");
    ask(&server, "POST", LISTS, &list("192.0.2.0/24"));
    let agent = agent(&directory, &server.kubeconfig());
    until("the list is compiled", || has_the_servers_objects(&server, &directory));
    ask(&server, "PATCH", &format!("{LISTS}/bad"), r#"{"spec":{"cidrs":["192.0.2.0/33"]}}"#);
    until("it is logged", || agent.log().contains("CidrList/bad"));
    // Another change has been handled, and the list has its old contents again: the artifact must match.
    let generations = agent.metric("weir_generations_total");
    ask(&server, "POST", POLICIES, &policy("p", r#"{"podSelector":{}}"#));
    until("a new generation", || agent.metric("weir_generations_total") > generations);
    ask(&server, "PATCH", &format!("{LISTS}/bad"), r#"{"spec":{"cidrs":["192.0.2.0/24"]}}"#);
    until("it can be read again", || agent.log().contains("can be read again"));
    assert!(has_the_servers_objects(&server, &directory), "{}", agent.log());
}

#[test]
fn agent_catches_up_after_an_api_outage() {
    let directory = Directory::new();
    let mut server = server!(&directory, Settings::default());
    let agent = agent(&directory, &server.kubeconfig());
    add_cluster(&server);
    add_pod(&server, "web", "near", "10.231.0.2");
    until("the pod is compiled", || has_the_servers_objects(&server, &directory));
    server.kill_apiserver();
    until("the agent notices", || agent.metric("weir_watch_connected{kind=\"Pod\"}") == 0.0);
    assert_eq!(agent.page("/livez").0, "200");
    server.start_apiserver().expect("it starts again");
    ask(&server, "POST", POLICIES, &policy("p", r#"{"podSelector":{}}"#));
    until("the policy is compiled", || has_the_servers_objects(&server, &directory));
}

#[test]
fn expired_watch_is_listed_again() {
    let directory = Directory::new();
    let mut server = server!(&directory, Settings::default());
    let wire = Wire::to(server.port());
    let agent = agent(&directory, &wire.kubeconfig(&server, &directory));
    add_cluster(&server);
    add_pod(&server, "web", "near", "10.231.0.2");
    add_pod(&server, "old", "near", "10.231.0.3");
    ask(&server, "POST", POLICIES, &policy("p", r#"{"podSelector":{}}"#));
    until("the pods are compiled", || has_the_servers_objects(&server, &directory));
    wire.cut();
    // The agent gets no events about these changes: the server has compacted them away.
    ask(&server, "DELETE", &format!("{PODS}/old?gracePeriodSeconds=0"), "");
    ask(&server, "DELETE", &format!("{POLICIES}/p"), "");
    ask(&server, "POST", POLICIES, &policy("q", r#"{"podSelector":{},"policyTypes":["Egress"]}"#));
    server.compact().expect("etcd compacts");
    server.kill_apiserver();
    server.start_apiserver().expect("it starts again");
    assert!(!has_the_servers_objects(&server, &directory), "the connection to the API server is cut");
    wire.mend();
    until("the agent has caught up", || has_the_servers_objects(&server, &directory));
    assert!(agent.log().contains("410"), "the watch has expired: {}", agent.log());
}

#[test]
fn nothing_is_compiled_while_the_list_of_one_kind_is_forbidden() {
    let directory = Directory::new();
    let server = server!(&directory, Settings::default());
    add_cluster(&server);
    // A user that may list pods and nothing else.
    let role =
        r#"{"metadata":{"name":"pods"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["list","watch"]}]}"#;
    ask(&server, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role);
    let binding = r#"{"metadata":{"name":"pods"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole",
        "name":"pods"},"subjects":[{"kind":"ServiceAccount","name":"few","namespace":"shop"}]}"#;
    ask(&server, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding);
    ask(&server, "POST", "/api/v1/namespaces/shop/serviceaccounts", r#"{"metadata":{"name":"few"}}"#);
    let kubeconfig = account(&server, &directory, "shop", "few");
    let agent = agent(&directory, &kubeconfig);
    until("it is logged", || agent.log().contains("403"));
    assert!(!within(Duration::from_secs(2), || agent.metric("weir_generations_total") > 0.0));
    assert_eq!(agent.page("/readyz").0, "503");
    assert_eq!(agent.metric("weir_watch_connected{kind=\"NetworkPolicy\"}"), 0.0);
}
