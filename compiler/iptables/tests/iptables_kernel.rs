//! Compares the evaluator with the kernel: restores the same text in a network namespace and sends packets through it.
//!
//! For each case the kernel must accept the text and print the same text again, every flow must pass or be dropped as
//! the evaluator says, and the rules that counted packets must be those that matched in the evaluator. Without
//! privileges or programs the test is skipped, and reports that.

#[path = "kernel/cases.rs"]
mod cases;
#[path = "kernel/net.rs"]
mod net;
#[path = "kernel/probe.rs"]
mod probe;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::{Command, ExitCode};
use std::time::Duration;

use cases::Case;
use net::{Error, Host, Net};
use weir_iptables::{ConntrackState, Evaluator, ForwardedPacket, WalkEnd};

const NAME: &str = "the_kernel_agrees_with_the_evaluator";
const PORTS: [u16; 6] = [53, 80, 81, 443, 8080, 8081];
/// A packet that has not arrived after this time counts as dropped.
const WAIT: Duration = Duration::from_millis(300);
const RETRIES: usize = 3;

/// The binary starts itself again inside a namespace, as a server or a client.
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("serve") => probe::serve(arguments.iter().filter_map(|port| port.parse().ok())).map_err(Error::from),
        Some("probe") => probe::probe().map_err(Error::from),
        Some("--list") => {
            println!("{NAME}: test");
            Ok(())
        }
        _ if arguments.iter().any(|it| !it.starts_with('-') && !NAME.contains(it.as_str())) => Ok(()),
        _ => test(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("test {NAME} ... FAILED\n{error}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<(), Error> {
    if let Err(reason) = privilege() {
        return skip(&reason.to_string().replace('\n', " "));
    }
    let hosts = hosts();
    let (mut passed, mut dropped) = (0, 0);
    for case in cases::all() {
        let reached = check(&hosts, &case).map_err(|error| format!("case {}: {error}", case.name))?;
        passed += reached.iter().filter(|it| **it).count();
        dropped += reached.iter().filter(|it| !**it).count();
    }
    if passed.min(dropped) < 500 {
        return Err(format!("{passed} flows passed and {dropped} were dropped: that shows nothing").into());
    }
    println!("test {NAME} ... ok ({passed} flows passed, {dropped} dropped)");
    Ok(())
}

/// Checks that the required programs and privileges exist, by using them in a namespace.
fn privilege() -> Result<(), Error> {
    for program in ["iptables-restore", "ip6tables-restore", "ipset", "ping"] {
        let version = if program == "ping" { "-V" } else { "--version" };
        Command::new(program).arg(version).output().map_err(|error| format!("{program}: {error}"))?;
    }
    let net = Net::new(&[], &[])?;
    net.router(&["ipset", "create", "probe", "hash:net"], "")?;
    let rule = "*filter\n-A FORWARD -p tcp -m set --match-set probe src -m multiport --dports 1 -m conntrack --ctstate NEW \
                -m comment --comment probe -j MARK --set-xmark 0x1/0x1\nCOMMIT\n";
    net.router(&["iptables-restore"], rule).map(drop)
}

fn skip(reason: &str) -> Result<(), Error> {
    println!("test {NAME} ... skipped: {reason}");
    if let Some(path) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
        writeln!(log, "{NAME}: {reason}")?;
    }
    Ok(())
}

/// Three pods, a node and an outside host, at addresses that the generated clusters use too.
fn hosts() -> Vec<Host> {
    let host = |v4: &str, v6: &str| Some(Host { v4: v4.parse().ok()?, v6: v6.parse().ok()? });
    let hosts = [
        host("10.0.1.1", "fd00:0:0:1::1"),
        host("10.0.0.2", "fd00::2"),
        host("10.0.1.3", "fd00:0:0:1::3"),
        host("172.16.0.1", "fd00:1::1"),
        host("198.51.100.1", "2001:db8::7"),
    ];
    hosts.into_iter().flatten().collect()
}

/// Restores a case's text and compares everything that is visible. Returns the flows that passed.
fn check(hosts: &[Host], case: &Case) -> Result<Vec<bool>, Error> {
    // A new network for each case, because connection tracking has state.
    let net = &Net::new(hosts, &PORTS)?;
    restore(net, case)?;
    compare("rules", &normal_rules(&case.v4), &normal_rules(&net.router(&["iptables-save", "-t", "filter"], "")?))?;
    compare("rules", &normal_rules(&case.v6), &normal_rules(&net.router(&["ip6tables-save", "-t", "filter"], "")?))?;
    compare("sets", &normal_sets(&case.sets), &normal_sets(&net.router(&["ipset", "save"], "")?))?;

    let evaluator = Evaluator::parse(&case.v4, &case.v6, &case.sets)?;
    let flows = flows(hosts);
    let mut expected = Vec::new();
    let mut met = BTreeSet::new();
    for flow in &flows {
        let walk = evaluator.walk("FORWARD", &flow.packet()).ok_or("no FORWARD chain")?;
        expected.push(walk.ending == WalkEnd::Accept);
        met.extend(walk.comments.into_iter().map(str::to_owned));
    }
    let reached = send_patiently(net, &flows, &expected)?;
    let wrong: String = flows
        .iter()
        .zip(expected.iter().zip(&reached))
        .filter(|(_, (expected, reached))| expected != reached)
        .map(|(flow, (expected, reached))| format!("{flow:?}: expected {expected}, reached {reached}\n"))
        .collect();
    if !wrong.is_empty() {
        return Err(wrong.into());
    }
    compare("rules that were met", &met.into_iter().collect::<Vec<_>>(), &counted(net)?)?;
    Ok(reached)
}

fn restore(net: &Net, case: &Case) -> Result<(), Error> {
    net.router(&["ipset", "restore"], &case.sets)?;
    net.router(&["iptables-restore"], &case.v4)?;
    net.router(&["ip6tables-restore"], &case.v6)?;
    Ok(())
}

fn compare(what: &str, expected: &[String], found: &[String]) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    let only = |some: &[String], others: &[String]| {
        some.iter().filter(|it| !others.contains(it)).cloned().collect::<Vec<_>>().join("\n  ")
    };
    let (missing, added) = (only(expected, found), only(found, expected));
    Err(format!("{what} differ (order counts);\nexpected only:\n  {missing}\nin the kernel only:\n  {added}").into())
}

/// Chains by name, each with its rules in order, without quotes and counters, whose form may differ.
fn normal_rules(text: &str) -> Vec<String> {
    let plain = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.replace('"', ""));
    let plain =
        plain.map(|line| line.split(" [").next().filter(|_| line.starts_with(':')).map_or(line.clone(), str::to_owned));
    let mut lines: Vec<String> = plain.collect();
    lines.sort_by_key(|line| line.split(' ').take(2).map(str::to_owned).collect::<Vec<_>>());
    lines
}

/// Sets without the parameters that the kernel chooses, and with addresses in one spelling.
fn normal_sets(text: &str) -> Vec<String> {
    let normal = |line: &str| line.split(' ').take(5).map(normal_address).collect::<Vec<_>>().join(" ");
    let mut lines: Vec<String> = text.lines().map(normal).collect();
    lines.sort();
    lines
}

/// `10.0.0.1/32` is `10.0.0.1`, and `::0.1.0.0` is `::1:0`. Other words stay as they are.
fn normal_address(word: &str) -> String {
    let end = word.find(['/', ',']).unwrap_or(word.len());
    let (address, rest) = word.split_at(end);
    match (address.parse::<IpAddr>(), rest) {
        (Ok(address @ IpAddr::V4(_)), "/32") | (Ok(address @ IpAddr::V6(_)), "/128") => address.to_string(),
        (Ok(address), rest) => format!("{address}{rest}"),
        _ => word.to_owned(),
    }
}

/// Comments of the rules that counted a packet.
fn counted(net: &Net) -> Result<Vec<String>, Error> {
    let mut comments = BTreeSet::new();
    for program in ["iptables-save", "ip6tables-save"] {
        for line in net.router(&[program, "-c", "-t", "filter"], "")?.lines() {
            let rule = line.strip_prefix('[').filter(|line| !line.starts_with("0:"));
            let Some((_, comment)) = rule.and_then(|rule| rule.split_once("--comment ")) else { continue };
            let comment = match comment.strip_prefix('"') {
                Some(quoted) => quoted.split('"').next(),
                None => comment.split(' ').next(),
            };
            comments.extend(comment.map(str::to_owned));
        }
    }
    Ok(comments.into_iter().collect())
}

/// A connection to try.
#[derive(Debug)]
struct Flow {
    from: usize,
    source: IpAddr,
    destination: IpAddr,
    protocol: &'static str,
    port: u16,
}

impl Flow {
    /// The line that the probe reads.
    fn line(&self, wait: Duration) -> String {
        format!("{} {} {} {}\n", self.protocol, self.destination, self.port, wait.as_millis())
    }

    fn packet(&self) -> ForwardedPacket {
        let (protocol, port) = match (self.protocol, self.source) {
            ("tcp", _) => (6, Some(self.port)),
            ("udp", _) => (17, Some(self.port)),
            (_, IpAddr::V4(_)) => (1, None),
            (_, IpAddr::V6(_)) => (58, None),
        };
        ForwardedPacket {
            source: self.source,
            destination: self.destination,
            protocol,
            port,
            state: ConntrackState::New,
            mark: 0,
        }
    }
}

/// Every host to every other host, in both families, on every port.
fn flows(hosts: &[Host]) -> Vec<Flow> {
    let mut flows = Vec::new();
    for (from, source) in hosts.iter().enumerate() {
        for (_, destination) in hosts.iter().enumerate().filter(|(to, _)| *to != from) {
            for v6 in [false, true] {
                let (source, destination) = (source.address(v6), destination.address(v6));
                let to = |protocol, port| Flow { from, source, destination, protocol, port };
                flows.push(to("icmp", 0));
                flows.extend(PORTS.iter().flat_map(|port| [to("tcp", *port), to("udp", *port)]));
            }
        }
    }
    flows
}

/// Sends all flows. A delayed packet looks dropped, but a dropped one never looks delivered. So flows that should have
/// arrived are tried again, with a longer timeout.
fn send_patiently(net: &Net, flows: &[Flow], expected: &[bool]) -> Result<Vec<bool>, Error> {
    let all: Vec<&Flow> = flows.iter().collect();
    let mut reached = send(net, &all, WAIT)?;
    for _ in 0..RETRIES {
        let late: Vec<usize> = (0..flows.len()).filter(|index| expected[*index] && !reached[*index]).collect();
        let again: Vec<&Flow> = late.iter().map(|index| &flows[*index]).collect();
        for (index, came) in late.into_iter().zip(send(net, &again, 8 * WAIT)?) {
            reached[index] = came;
        }
    }
    Ok(reached)
}

/// Sends flows, from all hosts at the same time. Returns which of them arrived, in order.
fn send(net: &Net, flows: &[&Flow], wait: Duration) -> Result<Vec<bool>, Error> {
    let hosts = flows.iter().map(|flow| flow.from).max().map_or(0, |last| last + 1);
    let answers: Vec<Result<String, String>> = std::thread::scope(|scope| {
        let probe = |host| {
            let of_host = flows.iter().filter(|flow| flow.from == host);
            let tries: String = of_host.map(|flow| flow.line(wait)).collect();
            scope.spawn(move || net.probe(host, &tries).map_err(|error| error.to_string()))
        };
        let probes: Vec<_> = (0..hosts).map(probe).collect();
        probes.into_iter().map(|probe| probe.join().unwrap_or_else(|_| Err("a probe failed".to_owned()))).collect()
    });
    let mut reached = Vec::new();
    for answer in answers {
        reached.extend(answer?.lines().map(|line| line == "1"));
    }
    if reached.len() == flows.len() { Ok(reached) } else { Err("a probe left out an answer".into()) }
}
