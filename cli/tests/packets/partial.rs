//! `weir attach` to a part of the endpoints, to wrong interfaces, and to interfaces that it discovers.

use std::path::PathBuf;
use std::process::Output;

use serde_json::{Value, json};
use weir_runtime::skip;
use weir_testing::schema::check_schema;

use crate::By;
use crate::enforce::{ask, compile, pins, weir};
use crate::namespace::{Error, run};
use crate::stage::Stage;
use crate::topology::{Layout, Node};

/// A stage on which nothing is enforced, and the artifact for its first node.
fn stage(layout: Layout) -> Result<(Stage, PathBuf), Error> {
    crate::privilege()?;
    let stage = Stage::new(By::Programs, layout);
    let node = &stage.net.nodes[0];
    ask(node, &stage.place, &["detach"])?;
    let artifact = compile(&stage.place, node, &[stage.place.file("cluster.yaml")])?;
    Ok((stage, artifact))
}

macro_rules! stage {
    ($layout:expr) => {
        match stage($layout) {
            Ok(stage) => stage,
            Err(reason) => skip!("{reason}"),
        }
    };
}

fn attach(stage: &Stage, artifact: &PathBuf, arguments: &[&str]) -> Output {
    let node = &stage.net.nodes[0];
    let mut command = node.space.command(weir());
    command.arg("attach").arg(artifact).arg("--bpffs").arg(pins(&stage.place, node)).args(arguments);
    command.output().expect("weir runs")
}

/// The argument for a pod at the interface of another pod.
fn at(node: &Node, pod: &str, interface_of: &str) -> String {
    let other = node.pods.iter().find(|it| it.name == format!("default/{interface_of}")).expect("it is on the node");
    format!("default/{pod}={}", other.interface)
}

#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{}{text}", String::from_utf8_lossy(&output.stdout));
    text
}

/// The state of the node. The exit code says whether an endpoint is not attached.
#[track_caller]
fn status(stage: &Stage) -> Value {
    let output = status_as(stage, &["-o", "json"]);
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    check_schema("status", &status);
    let is_any_missing = status["unattached"].as_array().is_some_and(|it| !it.is_empty());
    assert_eq!(output.status.code(), Some(i32::from(is_any_missing)), "{status:#}");
    status
}

fn status_as(stage: &Stage, arguments: &[&str]) -> Output {
    let node = &stage.net.nodes[0];
    let mut command = node.space.command(weir());
    command.arg("status").arg("--bpffs").arg(pins(&stage.place, node)).args(arguments);
    command.output().expect("weir runs")
}

/// The names of the attached endpoints that are enforced.
fn enforced(stage: &Stage) -> usize {
    let status = status(stage);
    let endpoints = status["endpoints"].as_array().expect("a list");
    endpoints.iter().filter(|it| it["state"] == "enforced").count()
}

#[test]
fn half_an_attach_names_the_isolated_endpoints_first() {
    let (stage, artifact) = stage!(Layout::Routed);
    let node = &stage.net.nodes[0];
    let text = said(&attach(&stage, &artifact, &["--endpoint", &at(node, "client", "client")]), 1);
    let lines: Vec<&str> = text.lines().filter(|it| it.starts_with("not attached")).collect();
    let expected = [
        "not attached: default/sealed (isolated for ingress and egress)",
        "not attached: default/server (isolated for ingress and egress)",
        "not attached: default/friend (not isolated)",
        "not attached: default/other (not isolated)",
    ];
    assert_eq!(lines, expected, "{text}");
    assert!(text.contains("4 of 5 local endpoints of the artifact are not attached, 2 of them isolated"), "{text}");
    // The programs are in force where they are attached, and the status keeps naming the others.
    assert_eq!(enforced(&stage), 1);
    let sealed = json!({"pod": "default/sealed", "ingress": true, "egress": true});
    assert_eq!(status(&stage)["unattached"][0], sealed);
    let text = String::from_utf8(status_as(&stage, &[]).stdout).expect("UTF-8");
    assert!(text.contains("  not attached: default/server (isolated for ingress and egress)\n"), "{text}");
    let rest: Vec<String> = ["server", "other", "friend", "sealed"].iter().map(|it| at(node, it, it)).collect();
    let rest: Vec<&str> = ["--endpoint"].into_iter().chain(rest.iter().map(String::as_str)).collect();
    assert_eq!(said(&attach(&stage, &artifact, &rest), 0), "");
    assert_eq!((enforced(&stage), &status(&stage)["unattached"]), (5, &json!([])));
}

#[test]
fn interfaces_that_cannot_be_the_pods_are_refused() {
    for layout in [Layout::Routed, Layout::Bridge] {
        let (stage, artifact) = stage!(layout);
        let node = &stage.net.nodes[0];
        node.space.ip("link add spare type bridge\n").unwrap();
        let wrong = [
            ("default/server=spare".to_owned(), "spare is a bridge: all pods behind it"),
            ("default/server=lo".to_owned(), "lo is not a veth"),
            (at(node, "server", "client"), "10.0.0.2 answers behind"),
        ];
        for (endpoint, why) in wrong {
            let text = said(&attach(&stage, &artifact, &["--endpoint", &endpoint]), 2);
            assert!(text.contains("nothing was attached: ") && text.contains(why), "{text}");
            assert!(ask(node, &stage.place, &["status"]).is_err(), "nothing is in force");
        }
        // The user knows better.
        let text = said(&attach(&stage, &artifact, &["--force", "--endpoint", "default/server=spare"]), 1);
        assert!(!text.contains("default/server"), "{text}");
        assert_eq!(enforced(&stage), 1);
    }
}

/// The new artifact has another pod's address for an attached one.
#[test]
fn an_address_that_has_moved_away_from_an_attached_pod_is_a_warning() {
    let (stage, artifact) = stage!(Layout::Routed);
    let node = &stage.net.nodes[0];
    said(&attach(&stage, &artifact, &["--endpoint", &at(node, "server", "server")]), 1);
    let text = std::fs::read_to_string(stage.place.file("cluster.yaml")).expect("it is there");
    assert!(!said(&attach(&stage, &artifact, &[]), 1).contains("warning"));
    let moved = stage.place.file("moved.yaml");
    let text = text.replace("10.0.0.1,", "10.0.0.77,").replace("10.0.0.1}", "10.0.0.77}");
    std::fs::write(&moved, text.replace("\"fd00::1\"", "\"fd00::77\"")).expect("it is ours");
    let artifact = compile(&stage.place, node, &[moved]).expect("it compiles");
    let text = said(&attach(&stage, &artifact, &[]), 1);
    let interface = &node.pods.iter().find(|it| it.name == "default/server").expect("it is here").interface;
    let warning = format!("warning: {interface} may not be the interface of default/server any more: 10.0.0.1 answers");
    assert!(text.contains(&warning), "{text}");
    assert!(text.contains("to remove it: weir detach --endpoint default/server"), "{text}");
    assert!(!said(&attach(&stage, &artifact, &["--force"]), 1).contains("warning"));
    assert_eq!(enforced(&stage), 1);
}

#[test]
fn attach_and_detach_print_one_json_document() {
    let (stage, artifact) = stage!(Layout::Routed);
    let node = &stage.net.nodes[0];
    let printed = |output: &Output| -> Value { serde_json::from_slice(&output.stdout).expect("JSON alone") };
    let policies = stage.place.file("cluster.yaml");
    let verify = ["-o", "json", "--verify", policies.to_str().expect("UTF-8"), "--endpoint"];
    let output = attach(&stage, &artifact, &[&verify[..], &[&at(node, "client", "client")]].concat());
    said(&output, 1);
    let attached = printed(&output);
    check_schema("attach", &attached);
    assert_eq!(attached["endpoints"][0]["pod"], "default/client");
    assert_eq!(attached["unattached"].as_array().map(Vec::len), Some(4), "{attached:#}");
    assert_eq!(
        (&attached["verified"], &attached["signed"], &attached["before"]),
        (&json!(true), &Value::Null, &Value::Null)
    );
    // The same artifact with another setting is another generation.
    let output = attach(&stage, &artifact, &["-o", "json", "--established", "keep"]);
    let attached = printed(&output);
    check_schema("attach", &attached);
    assert_eq!(
        (&attached["before"]["established"], &attached["generation"]["established"]),
        (&json!("cut"), &json!("keep"))
    );
    let detached = ask(node, &stage.place, &["detach", "-o", "json"]).expect("it is attached");
    let detached: Value = serde_json::from_str(&detached).expect("JSON alone");
    check_schema("detach", &detached);
    assert_eq!(detached["endpoints"][0]["pod"], "default/client");
    // A difference from the policies: nothing is attached, and standard output is empty.
    let other = stage.place.file("other.yaml");
    std::fs::write(&other, "{apiVersion: v1, kind: Namespace, metadata: {name: other}}").expect("it is ours");
    let output = attach(&stage, &artifact, &["-o", "json", "--discover", "--verify", other.to_str().expect("UTF-8")]);
    assert!(said(&output, 1).contains("the artifact does not enforce these policies"), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(ask(node, &stage.place, &["status"]).is_err(), "nothing is in force");
}

/// Two directories of pins are two installations, and both would judge each packet.
#[test]
fn a_second_installation_is_refused_at_the_same_interface() {
    let (stage, artifact) = stage!(Layout::Routed);
    let node = &stage.net.nodes[0];
    for (hook, other_hook) in [("tcx", "tcx"), ("tcx", "clsact"), ("clsact", "tcx"), ("clsact", "clsact")] {
        let first = ["--hook", hook, "--endpoint", &at(node, "client", "client")];
        said(&attach(&stage, &artifact, &first), 1);
        // The installation itself may attach again.
        said(&attach(&stage, &artifact, &first), 1);
        let other = stage.place.bpffs().join("other");
        let second = |arguments: &[&str]| {
            let mut command = node.space.command(weir());
            command.arg("attach").arg(&artifact).arg("--bpffs").arg(&other).args(["--hook", other_hook]);
            command.args(arguments).output().expect("weir runs")
        };
        let both = [at(node, "server", "server"), at(node, "client", "client")];
        let both = ["--endpoint", &both[0], "--endpoint", &both[1]];
        let text = said(&second(&both), 2);
        assert!(text.contains("another installation of weir enforces already"), "{hook}, {other_hook}: {text}");
        let interface = &node.pods.iter().find(|it| it.name == "default/client").expect("it is here").interface;
        assert!(text.contains(&format!("nothing was attached: at {interface}, ")), "{hook}: {text}");
        said(&second(&both[..2]), 1);
        said(&second(&[&both[..], &["--force"]].concat()), 1);
        run(node.space.command(weir()).arg("detach").arg("--bpffs").arg(&other), "").expect("it is attached");
        ask(node, &stage.place, &["detach"]).expect("it is attached");
    }
}

#[test]
fn interfaces_are_discovered_by_the_routes_to_the_pods() {
    let (stage, artifact) = stage!(Layout::Routed);
    assert_eq!(said(&attach(&stage, &artifact, &["--discover"]), 0), "");
    assert_eq!((enforced(&stage), &status(&stage)["unattached"]), (5, &json!([])));
    // Each pod has its own interface.
    let found = status(&stage);
    for pod in &stage.net.nodes[0].pods {
        let own = found["endpoints"].as_array().unwrap().iter().find(|it| it["pod"] == pod.name.as_str()).unwrap();
        assert_eq!(own["interface"], pod.interface.as_str());
    }
    // Attached endpoints stay, also if their evidence is gone.
    assert_eq!(said(&attach(&stage, &artifact, &["--discover"]), 0), "");
}

#[test]
fn interfaces_are_discovered_by_cni_results_and_missing_ones_are_explained() {
    let (stage, artifact) = stage!(Layout::Bridge);
    let (node, results) = (&stage.net.nodes[0], stage.place.file("results"));
    std::fs::create_dir_all(&results).unwrap();
    for pod in node.pods.iter().filter(|it| it.name != "default/sealed") {
        let (namespace, name) = pod.name.split_once('/').expect("a namespace");
        let result = json!({"kind": "cniCacheV1", "ifName": "eth0",
            "cniArgs": [["K8S_POD_NAMESPACE", namespace], ["K8S_POD_NAME", name]],
            "result": {"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}, {"name": pod.interface},
                {"name": "eth0", "sandbox": "/run/netns/x"}],
                "ips": [{"address": format!("{}/24", pod.addresses[0]), "interface": 2}]}});
        std::fs::write(results.join(name), result.to_string()).unwrap();
    }
    let results = results.to_str().expect("UTF-8");
    let text = said(&attach(&stage, &artifact, &["--discover", "--cni-results", results]), 1);
    assert!(text.contains("not attached: default/sealed (isolated for ingress and egress)"), "{text}");
    assert!(text.contains("no interface found: the CNI result cache has no result for the pod"), "{text}");
    assert!(text.contains("1 of 5 local endpoints"), "{text}");
    assert_eq!(enforced(&stage), 4);
    // A CNI result also contradicts a wrong name.
    let wrong = at(node, "sealed", "client");
    let text = said(&attach(&stage, &artifact, &["--cni-results", results, "--endpoint", &wrong]), 2);
    assert!(text.contains("belongs to another pod than default/sealed"), "{text}");
    // A named interface and discovery go together.
    let named = at(node, "sealed", "sealed");
    assert_eq!(
        said(&attach(&stage, &artifact, &["--discover", "--cni-results", results, "--endpoint", &named]), 0),
        ""
    );
    assert_eq!(enforced(&stage), 5);
}
