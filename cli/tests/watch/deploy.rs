//! Tests the manifests in `deploy/`: a server accepts them, its validation agrees with ours, and their permissions
//! suffice.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_runtime::skip;
use xtask::apiserver::{ApiServer, Settings};
use xtask::chart::{self, api_path, documents};
use xtask::{deploy, helm};

use crate::api::{account, add_cluster, add_pod, agent, has_the_servers_objects};
use crate::packets::ask;
use crate::rig::{Agent, Directory, server, until, within};

const LISTS: &str = "/apis/weir.dev/v1alpha1/cidrlists";

/// Each manifest with its API path.
fn manifests(text: &str) -> Vec<(&'static str, String)> {
    let path = |document: &str| api_path(document).expect("a kind").expect("a kind that the server has");
    documents(text).into_iter().map(|document| (path(document), document.to_owned())).collect()
}

fn plain(name: &str) -> Vec<(&'static str, String)> {
    manifests(&deploy::read(name).expect("it is in the tree"))
}

fn create(server: &ApiServer, manifests: Vec<(&'static str, String)>) {
    for (path, document) in manifests {
        let answer =
            server.ask_as("application/yaml", "POST", &format!("{path}?fieldValidation=Strict"), Some(&document));
        answer.unwrap_or_else(|error| panic!("{error:#}"));
    }
}

fn install(server: &ApiServer) {
    create(server, plain("weir.yaml"));
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
}

/// A list that the server accepts and the agent does not is reported as an Event, by the first agent that sees it.
fn events_are_sent_once(server: &ApiServer, directory: &Directory, agent: &Agent) {
    let odd = list("odd", r#"{"action":"Deny","cidrs":["192.0.2.9-192.0.2.7"]}"#);
    server.ask("POST", LISTS, Some(&odd)).unwrap_or_else(|error| panic!("{error:#}"));
    until("the Event is sent", || agent.metric("weir_kubernetes_events_total{outcome=\"told\"}") == 1.0);
    let events = server.ask("GET", "/api/v1/namespaces/default/events", None).expect("the server answers");
    let events: serde_json::Value = serde_json::from_str(&events).expect("JSON");
    // The server reports events of its own in the same namespace.
    let all = events["items"].as_array().expect("a list");
    let about_lists: Vec<_> = all.iter().filter(|it| it["involvedObject"]["kind"] == "CidrList").collect();
    let [event] = about_lists[..] else { panic!("one event about a list: {events}") };
    assert_eq!((&event["reason"], &event["involvedObject"]["name"]), (&"Unreadable".into(), &"odd".into()), "{event}");
    let other = self::agent(directory, &account(server, directory, "kube-system", "weir"));
    until("the other agent knows", || other.metric("weir_kubernetes_events_total{outcome=\"known\"}") == 1.0);
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
fn chart_takes_valid_values_and_refuses_others() {
    let helm = skip!(unless helm::built());
    chart::check_rendering(&helm).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn plain_manifests_are_the_chart_with_its_own_values() {
    let helm = skip!(unless helm::built());
    for (name, text) in deploy::plain(&helm).expect("the chart renders") {
        assert_eq!(deploy::read(name).expect("it is in the tree"), text, "`cargo xtask deploy` makes it anew");
    }
}

/// The arguments of the first container with this name.
fn arguments_of<'d>(document: &'d str, container: &str) -> Vec<&'d str> {
    let after = document.split_once(&format!("- name: {container}\n")).expect("the container").1;
    let lines = after.lines().skip_while(|line| line.trim() != "args:").skip(1);
    lines.map_while(|line| line.trim().strip_prefix("- ")).collect()
}

/// The container's command lines, with directories of the test instead of those of a node.
#[test]
fn container_of_the_chart_keeps_weir_cni_in_the_chain() {
    let helm = skip!(unless helm::built());
    let directory = Directory::new();
    let text = deploy::template(&helm, &[("cni.enabled", "true"), ("cni.timeoutSeconds", "20")], &[]);
    let text = text.unwrap_or_else(|error| panic!("{error:#}"));
    let text = text.replace("/host/", &format!("{}/", directory.path().display()));
    for name in ["bin", "conf"] {
        std::fs::create_dir(directory.path().join(name)).expect("the directory is ours");
    }
    let probe = text.split_once("command: [/weir, cni-install, ").expect("a probe").1;
    let probe: Vec<&str> = probe.split_once(']').expect("a list").0.split(", ").collect();
    let check = || {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.arg("cni-install").args(&probe).output().expect("it starts").status.code()
    };
    assert_eq!(check(), Some(1), "not ready: there is no configuration");
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_weir"));
    let mut keeper = keeper.args(arguments_of(&text, "keep-cni")).stderr(Stdio::null()).spawn().expect("it starts");
    // The container runs on a new node before there is a configuration.
    let chain = directory.path().join("conf/10-net.conflist");
    let is_installed = within(Duration::from_secs(60), || directory.path().join("bin/weir-cni").exists());
    std::fs::write(&chain, r#"{"plugins":[{"type":"ptp"}]}"#).expect("the directory is ours");
    let is_ready = is_installed && within(Duration::from_secs(60), || check() == Some(0));
    keeper.kill().and_then(|()| keeper.wait()).expect("it runs");
    assert!(is_ready);
    let chain = std::fs::read_to_string(&chain).expect("it is there");
    assert!(
        chain.contains(r#""timeoutSeconds": 20"#) && chain.contains(r#""socket": "/run/weir/cni.sock""#),
        "{chain}"
    );
}

/// The documents of one kind of objects.
fn of_kind<'m>(manifests: &'m [(&str, String)], kind: &str) -> Vec<&'m str> {
    let found = manifests.iter().filter(|(path, _)| path.ends_with(kind));
    found.map(|(_, document)| document.as_str()).collect()
}

#[test]
fn agents_rights_are_exactly_those_it_needs() {
    let documents = plain("weir.yaml");
    let rights: [&[&str]; 7] = [
        &[r#"apiGroups: [""]"#, "resources: [namespaces, nodes, pods, services]", "verbs: [list, watch]"],
        &["apiGroups: [discovery.k8s.io]", "resources: [endpointslices]", "verbs: [list, watch]"],
        &["apiGroups: [networking.k8s.io]", "resources: [networkpolicies]", "verbs: [list, watch]"],
        &[
            "apiGroups: [policy.networking.k8s.io]",
            "resources: [clusternetworkpolicies, adminnetworkpolicies, baselineadminnetworkpolicies]",
            "verbs: [list, watch]",
        ],
        &["apiGroups: [weir.dev]", "resources: [cidrlists]", "verbs: [list, watch]"],
        &["nonResourceURLs: [/apis, /apis/*]", "verbs: [get]"],
        &[r#"apiGroups: [""]"#, "resources: [events]", "verbs: [create]"],
    ];
    assert_eq!(lines_of(of_kind(&documents, "/clusterroles")[0], "rules:"), rights.concat());
    containers_are_confined(of_kind(&documents, "/daemonsets")[0], 1);
    let uninstaller = plain("uninstall.yaml");
    let [(_, uninstaller)] = uninstaller.as_slice() else { panic!("it is one object: {uninstaller:?}") };
    assert!(uninstaller.contains("automountServiceAccountToken: false"), "it does not ask the API server");
    containers_are_confined(uninstaller, 2);
}

#[test]
fn containers_of_the_chart_are_confined_for_all_values() {
    let helm = skip!(unless helm::built());
    for choice in chart::ACCEPTED {
        let text = deploy::template(&helm, choice, &[]).unwrap_or_else(|error| panic!("{error:#}"));
        let text = text.replace("PodMonitor", "Service").replace("ServiceMonitor", "Service");
        let documents = manifests(&text.replace("PrometheusRule", "Service"));
        let daemon_sets = of_kind(&documents, "/daemonsets");
        for (document, capable) in daemon_sets.iter().rev().zip([2, 1].into_iter().skip(2 - daemon_sets.len())) {
            containers_are_confined(document, capable);
        }
        of_kind(&documents, "/jobs").into_iter().for_each(|job| containers_are_confined(job, 0));
    }
}

/// No container has more than it needs, and `capable` of them have capabilities.
fn containers_are_confined(document: &str, capable: usize) {
    let containers = document.matches(" image: ").count();
    let count = |line: &str| document.lines().filter(|it| it.trim() == line).count();
    for line in ["readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false", "drop: [ALL]"] {
        assert_eq!(count(line), containers, "{line}: {document}");
    }
    assert_eq!(document.matches("add: [").count(), capable, "{document}");
    assert_eq!(count("add: [BPF, NET_ADMIN, SYS_ADMIN]"), capable);
    assert!(!document.contains("privileged") && !document.contains("hostPID"));
}

/// Runs the command that waits for the pods which uninstall.
fn wait_for_uninstall(kubeconfig: &Path, seconds: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["watch", "--wait-for-uninstall=kube-system/weir-uninstall", "--wait-seconds", seconds]);
    let output = command.arg("--kubeconfig").arg(kubeconfig).output().expect("it starts");
    (output.status.success(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn waiting_for_an_uninstall_needs_exactly_the_rights_of_its_role() {
    let helm = skip!(unless helm::built());
    let directory = Directory::new();
    let server = skip!(unless server(&directory, Settings::default()));
    let documents = manifests(&deploy::template(&helm, &[], &[]).expect("the chart renders"));
    let role = of_kind(&documents, "/roles")[0];
    let rights = [
        ["apiGroups: [apps]", "resources: [daemonsets]", "resourceNames: [weir-uninstall]", "verbs: [get, delete]"]
            .as_slice(),
        [r#"apiGroups: [""]"#, "resources: [pods]", "verbs: [list]"].as_slice(),
    ];
    assert_eq!(lines_of(role, "rules:"), rights.concat());
    let is_of_hook = |(_, document): &(&str, String)| document.contains("helm.sh/hook: post-delete");
    create(&server, documents.into_iter().filter(is_of_hook).collect());
    let kubeconfig = account(&server, &directory, "kube-system", "weir-uninstall");

    let (success, log) = wait_for_uninstall(&kubeconfig, "0");
    assert!(!success && log.contains("nodes are not clean") && !log.contains("orbidden"), "{log}");
    let path = "/apis/apps/v1/namespaces/kube-system/daemonsets/weir-uninstall";
    let status = r#"{"status":{"observedGeneration":1,"desiredNumberScheduled":2,"updatedNumberScheduled":2,
        "currentNumberScheduled":2,"numberMisscheduled":0,"numberReady":NUMBER}}"#;
    let ready =
        |number: &str| ask(&server, "PATCH", &format!("{path}/status"), Some(&status.replace("NUMBER", number)));
    ready("1");
    assert!(!wait_for_uninstall(&kubeconfig, "0").0, "a node is not clean, and the DaemonSet stays for it");
    ready("2");
    let (success, log) = wait_for_uninstall(&kubeconfig, "20");
    assert!(success, "{log}");
    until("the DaemonSet is deleted", || server.ask("GET", path, None).is_err());
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

/// systemd's own check of the unit. It knows the settings, and that the program exists; so a program that does takes
/// its place.
#[test]
fn systemd_accepts_the_unit() {
    let unit = deploy::read("systemd/weir.service").expect("it is in the tree");
    let installed = Command::new("systemd-analyze").arg("--version").output();
    skip!(unless installed.map_err(|error| format!("systemd-analyze: {error}")));
    let directory = Directory::new();
    let verify = |text: &str| {
        let path = directory.path().join("weir.service");
        std::fs::write(&path, text.replace("/usr/bin/weir", "/bin/true")).expect("the directory is ours");
        let output =
            Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().expect("it starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let of_unit = |printed: &str| printed.lines().filter(|line| line.contains("weir.service")).count();
    let printed = verify(&unit);
    assert_eq!(of_unit(&printed), 0, "{printed}");
    let printed = verify(&unit.replace("ProtectSystem=strict", "ProtectSystm=strict"));
    assert_eq!(of_unit(&printed), 1, "a mistake is found: {printed}");
}
