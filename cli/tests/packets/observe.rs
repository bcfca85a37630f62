//! The commands that show the datapath's state, after real packets.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::By;
use crate::enforce::{ask, attach, compile, pins, weir};
use crate::probe::Protocol::{Tcp, Udp};
use crate::stage::Stage;
use crate::topology::Layout;
use crate::wire::{Wire, with_checksum};
use weir_runtime::skip;
use weir_testing::packet::Packet;
use weir_testing::schema::check_schema;

fn json(stage: &Stage, arguments: &str) -> Value {
    let words: Vec<&str> = arguments.split(' ').collect();
    let text = ask(&stage.net.nodes[0], &stage.place, &words).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn stage() -> Result<Stage, String> {
    crate::privilege().map_err(|error| error.to_string())?;
    Ok(Stage::new(By::Programs, Layout::Routed))
}

#[test]
fn observed_flows_have_their_pods_and_ports() {
    let stage = skip!(unless stage());
    stage.between("client", "server", Tcp, 80, true);
    let found = json(&stage, "flows -o json");
    check_schema("flows", &found);
    let flows = found["flows"].as_array().unwrap();
    let is_it = |flow: &&Value| flow["pod"] == "default/server" && flow["local"]["port"] == 80;
    let flow = flows.iter().find(is_it).unwrap_or_else(|| panic!("no such flow: {found:#}"));
    assert_eq!((&flow["remote"]["pod"], &flow["direction"]), (&"default/client".into(), &"ingress".into()));
    assert_eq!((&flow["protocol"], &flow["answered"], &flow["generation"]), (&"TCP".into(), &true.into(), &1.into()));
    assert!(flow["age"].as_u64().unwrap() < 60 && flow["remaining"].as_u64().unwrap() > 0, "{flow:#}");
}

#[test]
fn denied_packets_are_reported_with_their_policy() {
    let stage = skip!(unless stage());
    stage.between("other", "server", Udp, 53, false);
    // The kernel keeps records until they are read.
    let text = ask(&stage.net.nodes[0], &stage.place, &["monitor", "-o", "jsonl", "--duration", "2"]).unwrap();
    let mut events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let event = events.find(|it| it["proto"] == "UDP").unwrap_or_else(|| panic!("nothing about it: {text}"));
    check_schema("monitor", &event);
    assert_eq!((&event["reason"], &event["pod"]), (&"denied".into(), &"default/server".into()), "{event:#}");
    assert_eq!((&event["peer"]["pod"], &event["direction"]), (&"default/other".into(), &"ingress".into()));
    assert_eq!((&event["proto"], &event["local"]["port"]), (&"UDP".into(), &53.into()));
    assert!(!event["policies"].as_array().unwrap().is_empty(), "{event:#}");
    let denied = json(&stage, "counters -o json");
    check_schema("counters", &denied);
    let counters = denied["counters"].as_array().unwrap();
    let is_it = |it: &&Value| it["outcome"] == "denied" && it["direction"] == "ingress";
    assert!(counters.iter().find(is_it).unwrap()["packets"].as_u64() > Some(0));
}

#[test]
fn monitor_shows_only_the_packets_that_its_filters_take() {
    let stage = skip!(unless stage());
    let monitor = |options: &str| {
        stage.between("other", "server", Udp, 53, false);
        let words: Vec<&str> = "monitor --last 5".split(' ').chain(options.split_whitespace()).collect();
        ask(&stage.net.nodes[0], &stage.place, &words).unwrap()
    };
    let shown = monitor("--pod default/server --peer default/other --port 53/udp --reason denied --verdict deny");
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("TIME ") && lines.len() <= 6, "{shown}");
    assert!(lines[1].contains(" ingress denied      UDP default/other "), "{shown}");
    for options in
        ["--pod default/client", "--peer 192.0.2.0/24", "--port 54", "--reason cut", "--verdict allow", "-n no"]
    {
        assert_eq!(monitor(options), "", "{options}");
    }
    stage.between("other", "server", Udp, 53, false);
    let words = ["monitor", "--top", "--duration", "1", "--port", "udp"];
    let table = ask(&stage.net.nodes[0], &stage.place, &words).unwrap();
    let row = table.lines().nth(1).unwrap_or_default();
    assert!(row.contains("denied      ingress UDP    default/other ") && row.contains(":53 "), "{table}");
}

#[test]
fn neighbour_discovery_does_not_push_drops_out_of_the_last_packets() {
    let stage = skip!(unless stage());
    let monitor = |options: &str| {
        let words: Vec<&str> = "monitor --last 2".split(' ').chain(options.split_whitespace()).collect();
        ask(&stage.net.nodes[0], &stage.place, &words).unwrap()
    };
    // An echo request to all hosts of the link. Its source is not an address of the pod, so it is dropped.
    let [source, group]: [IpAddr; 2] = ["fe80::1", "ff02::1"].map(|it| it.parse().unwrap());
    let packet = with_checksum(Packet::ping(source, group, 7));
    let pod = Wire::pod(&stage.net, "default/client").unwrap();
    let act = || {
        stage.between("other", "server", Udp, 53, false);
        (0..10).for_each(|_| pod.send(&packet).unwrap());
    };
    act();
    let shown = monitor("");
    assert!(shown.contains(" ingress denied      UDP default/other "), "{shown}");
    let last = shown.lines().last().unwrap();
    let count: Option<u32> = last.split(' ').next().and_then(|it| it.parse().ok());
    assert!(count.is_some_and(|it| it >= 10) && last.contains("neighbour discovery"), "{shown}");
    for options in ["--all", "-o jsonl"] {
        act();
        let shown = monitor(options);
        assert_eq!(shown.matches("fe80::1").count(), 2, "{options}: {shown}");
    }
}

#[test]
fn buffer_that_was_full_is_reported() {
    // The kernel's buffer holds 910 records.
    const PACKETS: u32 = 1_000;
    let stage = skip!(unless stage());
    let socket = stage.bind_udp("other", 4_000, Duration::from_secs(1));
    let send = |port: u16| socket.send_to(b"x", SocketAddr::new(stage.address("server"), port)).unwrap();
    let monitor = |options: &str| {
        let words: Vec<&str> = "monitor --last 1 --port udp".split(' ').chain(options.split_whitespace()).collect();
        ask(&stage.net.nodes[0], &stage.place, &words).unwrap()
    };
    for (options, expected) in [("", "the buffer of records was full: "), ("-o jsonl", "\"full\":true")] {
        for _ in 0..PACKETS {
            // The programs write at most 200 records a second.
            std::thread::sleep(Duration::from_millis(6));
            send(53);
        }
        send(54);
        let shown = monitor(options);
        assert!(shown.contains(expected), "{shown}");
        send(55);
        let shown = monitor("-o jsonl");
        let event: Value = serde_json::from_str(shown.trim()).unwrap_or_else(|error| panic!("{error}: {shown}"));
        assert_eq!(event["local"]["port"], 55, "reading has made room for new records");
    }
}

/// A monitor in the background, which has begun to look.
struct Watching {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Watching {
    fn begin(stage: &Stage, options: &str) -> Self {
        let node = &stage.net.nodes[0];
        let mut command = node.space.command(weir());
        command.args(["monitor", "-o", "jsonl", "--until-eof"]).args(options.split_whitespace());
        command.arg("--bpffs").arg(pins(&stage.place, node)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        Self { child, out }
    }

    /// Ends the monitor by the end of its standard input; returns its events.
    fn end(mut self) -> Vec<Value> {
        // A look at the flow tables comes every 200 ms.
        std::thread::sleep(Duration::from_secs(1));
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn connections<'v>(events: &'v [Value], direction: &str, proto: &str) -> Vec<&'v Value> {
    let is_it = |it: &&Value| it["direction"] == direction && it["proto"] == proto && it["verdict"] == "allow";
    events.iter().filter(is_it).collect()
}

#[test]
fn new_connections_are_shown_once_with_the_rule_that_allows_them() {
    let stage = skip!(unless stage());
    stage.between("client", "server", Tcp, 80, true);
    // Several monitors see all connections; one that is killed leaves nothing behind that could disturb them.
    let mut killed = Watching::begin(&stage, "--verdict allowed");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let monitors = [Watching::begin(&stage, "--verdict all"), Watching::begin(&stage, "--verdict allowed")];
    let by_default = Watching::begin(&stage, "");
    stage.between("client", "server", Udp, 53, true);
    stage.between("other", "server", Udp, 53, false);
    let seen = monitors.map(Watching::end);
    for events in &seen {
        events.iter().for_each(|it| check_schema("monitor", it));
        let arrived = connections(events, "ingress", "UDP");
        assert_eq!(arrived.len(), 1, "{events:#?}");
        let event = arrived[0];
        assert_eq!((&event["reason"], &event["pod"]), (&"allowed".into(), &"default/server".into()), "{event:#}");
        assert_eq!((&event["peer"]["pod"], &event["local"]["port"]), (&"default/client".into(), &53.into()));
        let rule = event["rule"].as_str().unwrap_or_default();
        assert!(rule.starts_with("default/") && rule.contains(" spec.ingress["), "{event:#}");
        assert!(event["places"][rule].as_str().unwrap_or_default().contains("cluster.yaml:"), "{event:#}");
        let left = connections(events, "egress", "UDP");
        assert!(left.iter().any(|it| it["pod"] == "default/client" && it["reason"] == "unfiltered"), "{events:#?}");
        assert!(connections(events, "ingress", "TCP").is_empty(), "a connection from before the monitor is shown");
        let missed: u64 = events.iter().filter_map(|it| it["missed"].as_u64()).sum();
        assert_eq!(missed, 0, "{events:#?}");
    }
    let is_denied = |it: &Value| it["verdict"] == "deny";
    assert!(!seen[1].iter().any(is_denied), "{:#?}", seen[1]);
    assert!(
        by_default.end().iter().all(|it| it["verdict"] != "allow"),
        "connections are shown without being asked for"
    );
}

/// The first event of this kind that a monitor prints. Fails when the monitor ends.
fn next_event(out: &mut impl std::io::BufRead, is_it: impl Fn(&Value) -> bool) -> Value {
    loop {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "the monitor has ended");
        let event: Value = serde_json::from_str(&line).unwrap();
        if is_it(&event) {
            return event;
        }
    }
}

#[test]
fn monitor_follows_enforcement_that_is_removed_and_comes_back() {
    let stage = skip!(unless stage());
    let node = &stage.net.nodes[0];
    // Another rule for the same connections.
    let text = std::fs::read_to_string(stage.place.file("cluster.yaml")).unwrap();
    let renamed = |name: &str| {
        let file = stage.place.file(&format!("{name}.yaml"));
        std::fs::write(&file, text.replace("metadata: {name: server}", &format!("metadata: {{name: {name}}}")))
            .unwrap();
        compile(&stage.place, node, &[file]).unwrap()
    };
    let mut command = node.space.command(weir());
    command.args(["monitor", "-o", "jsonl", "--verdict", "all", "--duration", "60"]);
    command.arg("--bpffs").arg(pins(&stage.place, node)).stdout(Stdio::piped());
    let mut monitor = command.spawn().unwrap();
    let mut out = BufReader::new(monitor.stdout.take().unwrap());
    let mut shows_packets_of = |policy: &str| {
        // A record waits for the monitor if it comes before it. A connection does not, so it comes second. Events of
        // packets from before may follow, and name the other policy.
        stage.between("other", "server", Udp, 53, false);
        next_event(&mut out, |it| it["verdict"] == "deny" && it["policies"] == serde_json::json!([policy]));
        stage.between("client", "server", Tcp, 80, true);
        let is_of_rule = |it: &Value| it["rule"].as_str().is_some_and(|rule| rule.starts_with(&format!("{policy} ")));
        next_event(&mut out, |it| it["reason"] == "allowed" && is_of_rule(it));
    };
    shows_packets_of("default/server");
    ask(node, &stage.place, &["detach"]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    attach(node, &stage.place, &renamed("renamed"), &[]).unwrap();
    shows_packets_of("default/renamed");
    // It may go and come between two looks at the record. The artifact is another file with the same name.
    let artifact = compile(&stage.place, node, &[stage.place.file("cluster.yaml")]).unwrap();
    ask(node, &stage.place, &["detach"]).unwrap();
    attach(node, &stage.place, &artifact, &[]).unwrap();
    shows_packets_of("default/server");
    // The order of the policies and the tables are the same, so the generation stays in force, with other names. The
    // monitor looks once a second.
    let generation = || json(&stage, "status -o json")["generation"].clone();
    let before = generation();
    attach(node, &stage.place, &renamed("server1"), &[]).unwrap();
    assert_eq!(generation(), before);
    std::thread::sleep(Duration::from_secs(1));
    shows_packets_of("default/server1");
    monitor.kill().unwrap();
    monitor.wait().unwrap();
}

#[test]
fn status_reports_the_state_and_its_deviations() {
    let stage = skip!(unless stage());
    let status = json(&stage, "status -o json");
    check_schema("status", &status);
    let endpoints = status["endpoints"].as_array().unwrap();
    assert!(endpoints.iter().all(|it| it["state"] == "enforced"), "{status:#}");
    assert_eq!(status["drift"], Value::Array(Vec::new()));
    // Removes an interface.
    let node = &stage.net.nodes[0];
    let gone = &node.pods[0];
    node.space.ip(&format!("link del {}\n", gone.interface)).unwrap();
    let error = ask(node, &stage.place, &["status"]).unwrap_err().to_string();
    assert!(error.contains("exit status: 1"), "{error}");
}
