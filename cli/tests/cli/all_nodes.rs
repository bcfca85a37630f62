//! `weir status|flows|monitor --all-nodes`, against a simulated API server whose pods follow scripts.

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_testing::schema::check_schema;
use xtask::simulated::{ExecStep, Simulated};

use crate::support::{Place, Ran};

use ExecStep::{Break, Err, Exit, Hang, Out, Pause, UntilInputEnds};

const LABELS: &str = "app.kubernetes.io/name";

/// A cluster whose nodes have an agent each, and a directory with a kubeconfig for it.
struct Cluster {
    server: Simulated,
    place: Place,
}

impl Cluster {
    fn new(nodes: &[&str]) -> Self {
        let server = Simulated::start().expect("loopback is there");
        let place = Place::new();
        server.write_kubeconfig(&place.path().join("kubeconfig")).expect("the directory is ours");
        nodes.iter().for_each(|node| server.put("Node", json!({"metadata": {"name": node, "labels": {"zone": node}}})));
        Self { server, place }
    }

    /// Puts a running agent on a node, whose commands follow the script.
    fn agent(&self, node: &str, script: impl Fn(&[String]) -> Vec<ExecStep> + Send + Sync + 'static) {
        self.pod(node, "Running");
        self.server.on_exec(&format!("kube-system/weir-{node}"), script);
    }

    fn pod(&self, node: &str, phase: &str) {
        let labels = json!({LABELS: "weir", "app.kubernetes.io/component": "agent"});
        self.server.put(
            "Pod",
            json!({"metadata": {"name": format!("weir-{node}"), "namespace": "kube-system", "labels": labels},
                "spec": {"nodeName": node, "containers": [{"name": "weir", "args": ["watch", "--bpffs=/sys/fs/bpf/x"]}]},
                "status": {"phase": phase}}),
        );
    }

    fn run(&self, arguments: &str) -> Ran {
        Ran::from(self.command(arguments).output().expect("weir runs"))
    }

    fn command(&self, arguments: &str) -> std::process::Command {
        let mut command = self.place.command(arguments);
        command.env("KUBECONFIG", self.place.path().join("kubeconfig")).env("PATH", "");
        command
    }
}

/// An event at a second of a minute.
fn event(second: u32, pod: &str) -> String {
    let event = json!({"time": format!("2026-01-01T00:00:{second:02}.000Z"), "verdict": "deny", "reason": "denied",
        "direction": "ingress", "pod": pod, "ifindex": 3, "generation": 1, "policies": ["shop/db"], "tiers": [],
        "audit": [], "rule": null, "list": null, "places": {}, "proto": "TCP",
        "local": {"ip": "10.0.0.1", "port": 80}, "peer": {"ip": "10.0.0.2", "pod": null, "port": 4000}});
    format!("{event}\n")
}

fn status(epoch: u32, state: &str) -> String {
    json!({"generation": {"epoch": epoch, "digest": "d", "established": "cut"}, "switching_to": null,
        "endpoints": [{"pod": "shop/db", "interface": "veth0", "ifindex": 3, "hook": "tcx", "state": state}],
        "unattached": [], "uplinks": [], "drift": [], "neighbours": [], "maps": [], "repaired": 0})
    .to_string()
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn events_of_all_nodes_are_merged_by_time_with_their_node() {
    let cluster = Cluster::new(&["a", "b"]);
    cluster.agent("a", |_| vec![Out(event(1, "shop/one") + &event(4, "shop/four")), Exit(0)]);
    cluster.agent("b", |_| vec![Out(event(2, "shop/two") + &event(3, "shop/three")), Exit(0)]);
    let ran = cluster.run("monitor --all-nodes --last 3").exits(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "2 of 2 nodes: a, b");
    assert!(lines[1].starts_with("TIME ") && lines[1].contains(" NODE SIDE "), "{}", ran.out);
    for (line, (node, pod)) in lines[2..].iter().zip([("b", "two"), ("b", "three"), ("a", "four")]) {
        assert!(line.contains(&format!("Z {node}    ingress ")) && line.contains(&format!("shop/{pod} ")), "{line}");
    }
    assert_eq!(lines.len(), 5, "the last three of both nodes");
    let events = json_lines(&cluster.run("monitor --all-nodes --last 10 -o jsonl").exits(0).out);
    let nodes: Vec<&str> = events.iter().filter_map(|it| it["node"].as_str()).collect();
    assert_eq!(nodes, ["a", "b", "b", "a"]);
    events.iter().for_each(|it| check_schema("monitor", it));
    let (pod, command) = &cluster.server.executed()[0];
    assert!(pod.starts_with("kube-system/weir-"), "{pod}");
    assert_eq!(command.join(" "), "/weir monitor -o jsonl --last=1000000 --bpffs=/sys/fs/bpf/x");
    let (_, command) = cluster.server.executed().pop().expect("the second command");
    assert_eq!(command.join(" "), "/weir monitor -o jsonl --last=10 --bpffs=/sys/fs/bpf/x");
}

#[test]
fn neighbour_discovery_of_nodes_does_not_push_drops_out_of_the_last_packets() {
    let cluster = Cluster::new(&["a"]);
    let discovery = event(2, "shop/web").replace("\"TCP\"", "\"ICMPv6\"").replace("10.0.0.1", "fe80::1");
    let discovery = discovery.replace("10.0.0.2", "ff02::2");
    cluster.agent("a", move |_| {
        let lines = event(1, "shop/db") + &discovery.repeat(5) + "{\"lost\":0,\"full\":true}\n";
        vec![Out(lines), Exit(0)]
    });
    let out = cluster.run("monitor --all-nodes --last 2").exits(0).out;
    assert!(out.contains("shop/db ") && !out.contains("ff02::2"), "{out}");
    assert!(out.contains("the buffer of records of a was full: ") && out.contains("\n5 packets of IPv6 "), "{out}");
    let events = json_lines(&cluster.run("monitor --all-nodes --last 2 -o jsonl").exits(0).out);
    events.iter().for_each(|it| check_schema("monitor", it));
    assert_eq!(events.iter().filter(|it| it["proto"] == "ICMPv6").count(), 2, "{events:#?}");
    assert!(events.contains(&json!({"lost": 0, "full": true, "node": "a"})), "{events:#?}");
}

#[test]
fn nodes_that_fail_hang_or_send_rubbish_are_named_and_the_others_are_shown() {
    let cluster = Cluster::new(&["broken", "good", "hangs", "none", "pending", "refused", "rubbish"]);
    cluster.agent("good", |_| vec![Out(event(1, "shop/good")), Exit(0)]);
    cluster.agent("broken", |_| vec![Out(event(2, "shop/half")), Break]);
    cluster.agent("hangs", |_| vec![Out(event(3, "shop/hung")), Hang]);
    cluster.agent("rubbish", |_| {
        vec![
            Out("\u{1b}]0;title\u{7}\u{1b}[2J{\n[1]\n{\"time\": 7}\n".to_owned() + &event(4, "\u{1b}[31mred")),
            Exit(0),
        ]
    });
    cluster.pod("refused", "Running");
    cluster.pod("pending", "Pending");
    let ran = cluster.run("monitor --all-nodes --duration 60 --node-timeout 2").exits(1);
    for said in ["5 of 7 nodes", "good", "none: no agent runs on it", "weir-pending is not running: it is Pending"] {
        let lines: String = ran.out.lines().collect::<Vec<_>>().join(" ");
        assert!(lines.contains(said), "{said}: {}", ran.out);
    }
    for pod in ["shop/good ", "shop/half ", "shop/hung ", "red "] {
        assert!(ran.out.contains(pod), "{pod}: {}", ran.out);
    }
    for said in [
        "broken: the connection ended: ",
        "hangs: no sign of life for 2 s",
        "none: no agent runs on it",
        "pending: its agent's pod weir-pending is not running",
        "refused: the API server answered 403: Forbidden",
        "note: rubbish: 3 lines are not JSON, the first: ",
    ] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    assert!(!ran.out.contains('\u{1b}') && !ran.err.contains('\u{1b}'), "{ran:#?}");
    let events = json_lines(&cluster.run("monitor --all-nodes --duration 60 --node-timeout 2 -o jsonl").exits(1).out);
    events.iter().for_each(|it| check_schema("monitor", it));
    let summary = &events.last().expect("the summary")["nodes"];
    assert_eq!(summary["failed"].as_array().map(Vec::len), Some(5), "{summary:#}");
}

#[test]
fn no_answer_from_any_node_is_a_failure() {
    let cluster = Cluster::new(&["a"]);
    cluster.run("status --all-nodes").exits(2).complains("a: no agent runs on it");
    cluster.agent("a", |_| vec![Err("error: permission denied\n".to_owned()), Exit(2)]);
    cluster.run("status --all-nodes").exits(2).complains("a: permission denied (exit code 2)");
    cluster.agent("a", |_| vec![Err("error: unexpected argument '--until-eof' found\n".to_owned()), Exit(2)]);
    cluster.run("monitor --all-nodes").exits(2).complains("a: its agent is older than this weir: unexpected argument");
    cluster.run("status --node-selector zone=x").exits(2).complains("no node was chosen");
}

#[test]
fn interrupted_monitor_ends_the_commands_on_the_nodes() {
    let cluster = Cluster::new(&["a", "b"]);
    for node in ["a", "b"] {
        cluster.agent(node, |_| vec![Out(event(1, "shop/db")), UntilInputEnds, Out(event(2, "shop/late")), Exit(0)]);
    }
    for signal in [Signal::INT, Signal::TERM] {
        let before = cluster.server.ended_inputs().len();
        let mut command = cluster.command("monitor --all-nodes");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
        read_until(&mut child, "shop/db");
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let ran = Ran::from(child.wait_with_output().expect("it ends")).exits(0);
        assert_eq!(cluster.server.ended_inputs().len(), before + 2, "the standard input of the commands has not ended");
        assert_eq!(ran.out.matches("shop/late").count(), 2, "events of the last moment are shown: {}", ran.out);
    }
}

#[test]
fn killed_monitor_ends_the_commands_on_the_nodes() {
    let cluster = Cluster::new(&["a"]);
    cluster.agent("a", |_| vec![Out(event(1, "shop/db")), UntilInputEnds, Exit(0)]);
    let mut child = cluster.command("monitor --all-nodes").stdout(Stdio::piped()).spawn().expect("weir runs");
    read_until(&mut child, "shop/db");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let started = Instant::now();
    while cluster.server.ended_inputs().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "the connection is still open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Each followed node is a connection, so the usual soft limit of open files would be too low for a large cluster.
#[test]
fn monitor_of_all_nodes_raises_its_limit_of_open_files_to_the_hard_limit() {
    let cluster = Cluster::new(&["a"]);
    cluster.agent("a", |_| vec![Out(event(1, "shop/db")), UntilInputEnds, Exit(0)]);
    let weir = cluster.command("monitor --all-nodes");
    // The shell lowers the limit of its own process and becomes `weir`.
    let mut lowered = std::process::Command::new("/bin/sh");
    lowered.args(["-c", "ulimit -S -n 64 && exec \"$0\" \"$@\""]).arg(weir.get_program()).args(weir.get_args());
    lowered.envs(weir.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = lowered.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the shell runs");
    read_until(&mut child, "shop/db");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).expect("it runs");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("the limit is listed");
    let values: Vec<&str> = limit.split_whitespace().collect();
    assert_eq!(values[0], values[1], "the soft limit is not the hard one");
}

/// Reads standard output until a text occurs in it.
fn read_until(child: &mut Child, text: &str) {
    let out = child.stdout.as_mut().expect("a pipe");
    let (mut read, mut buffer) = (String::new(), [0; 512]);
    while !read.contains(text) {
        let count = out.read(&mut buffer).expect("it prints");
        assert!(count > 0, "it ended without {text}: {read}");
        read.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
}

#[test]
fn output_that_stops_being_read_is_dropped_and_counted() {
    let cluster = Cluster::new(&["a"]);
    // More than the pipe, the buffers of the connection and the queue hold together.
    let many: String = (0..30_000).map(|it| event(it % 60, "shop/db")).collect();
    cluster.agent("a", move |_| vec![Out(many.clone()), Exit(0)]);
    let mut command = cluster.command("monitor --all-nodes -o jsonl");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
    std::thread::sleep(Duration::from_secs(2));
    let ran = Ran::from(child.wait_with_output().expect("it ends")).exits(0);
    let lines = json_lines(&ran.out);
    let dropped: u64 = lines.iter().filter_map(|it| it["dropped"].as_u64()).sum();
    let shown = lines.iter().filter(|it| it["time"].is_string()).count() as u64;
    assert_eq!(shown + dropped, 30_000, "each event is shown or counted");
}

#[test]
fn statuses_of_all_nodes_are_one_table() {
    let cluster = Cluster::new(&["a", "b"]);
    cluster.agent("a", |_| vec![Out(status(7, "enforced")), Exit(0)]);
    cluster.agent("b", |_| vec![Out(status(8, "open")), Exit(1)]);
    let ran = cluster.run("status --all-nodes").exits(1);
    let expected = "2 of 2 nodes: a, b
NODE  GENERATION  REPAIRED  ENDPOINTS
a              7         0  1 enforced
b              8         0  1 open
    shop/db at veth0 is open
";
    assert_eq!(ran.out, expected);
    let document: Value = serde_json::from_str(&cluster.run("status --all-nodes -o json").exits(1).out).expect("JSON");
    check_schema("status-nodes", &document);
    assert_eq!(document["statuses"][1]["node"], "b");
    let ran = cluster.run("status --node a").exits(0);
    assert!(ran.out.starts_with("1 of 1 nodes: a\n"), "{}", ran.out);
    cluster.run("status --node-selector zone=a").exits(0).says("1 of 1 nodes: a");
    cluster.run("status --node c").exits(2).complains("c: no agent runs on it");
}

#[test]
fn flows_of_all_nodes_have_their_node() {
    let cluster = Cluster::new(&["a", "b"]);
    let flows = json!({"flows": [{"pod": "shop/db", "ifindex": 3, "protocol": "TCP",
        "local": {"ip": "10.0.0.1", "pod": "shop/db", "port": 80}, "remote": {"ip": "10.0.0.2", "port": 4000},
        "direction": "ingress", "state": "open", "answered": true, "own_node": false, "mid_stream": false, "age": 1,
        "remaining": 9, "generation": 1}]});
    let text = flows.to_string();
    cluster.agent("a", move |_| vec![Out(text.clone()), Exit(0)]);
    // An older agent, which knows fewer fields.
    let mut older = flows;
    older["flows"][0].as_object_mut().expect("an object").remove("answered");
    let text = older.to_string();
    cluster.agent("b", move |_| vec![Out(text.clone()), Exit(0)]);
    let ran = cluster.run("flows --all-nodes").exits(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(
        lines[2],
        "a     TCP    10.0.0.2:4000 -> shop/db 10.0.0.1:80  open, idle 1 s, expires in 9 s, generation 1"
    );
    assert!(ran.err.contains("note: b: its agent is older, its answers lack answered"), "{}", ran.err);
    let document: Value = serde_json::from_str(&cluster.run("flows --all-nodes -o json").exits(0).out).expect("JSON");
    assert_eq!((&document["flows"][0]["node"], &document["flows"][1]["node"]), (&json!("a"), &json!("b")));
    document["flows"][1].get("answered").is_none().then_some(()).expect("nothing is made up");
}

#[test]
fn slow_node_does_not_delay_the_end_beyond_its_time() {
    let cluster = Cluster::new(&["a", "b"]);
    cluster.agent("a", |_| vec![Out(status(7, "enforced")), Exit(0)]);
    cluster.agent("b", |_| vec![Pause(Duration::from_millis(100)), Hang]);
    let ran = cluster.run("status --all-nodes --node-timeout 2").exits(1);
    ran.says("a              7").complains("b: no answer within 2 s");
}

#[test]
fn user_who_may_not_list_nodes_is_told_what_is_unknown() {
    let cluster = Cluster::new(&["a", "b"]);
    cluster.agent("a", |_| vec![Out(status(7, "enforced")), Exit(0)]);
    cluster.server.forbid("/api/v1/nodes");
    let ran = cluster.run("status --all-nodes").exits(0);
    ran.says("note: this user may not list nodes, so nodes without an agent are not known");
    cluster
        .run("status --node-selector zone=a")
        .exits(2)
        .complains("cannot list the nodes: the API server answered 403");
    cluster.server.forbid("/api/v1/namespaces/kube-system/pods");
    cluster.run("status --all-nodes").exits(2).complains("cannot list the agents' pods in namespace kube-system");
}
