//! Connects pods of all nodes all the time, and counts the results.
//!
//! Each node has a server `web-N` and clients `friend-N` and `stranger-N`. Every client connects again and again to
//! every server, by its pod's address and by the service's, and prints a line for each connection; `friend-N` also
//! keeps one connection open and uses it. Segments that an allowed pod's kernel retransmits are reported, but are not a
//! failure: on a busy machine the kernel also retransmits segments that are only delayed. The tests in
//! `cli/tests/packets` count datagrams and so detect single lost packets.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{LocalCluster, images};
use crate::process::wait;

pub(super) const NAMESPACE: &str = "weir-test";
const PATIENCE: Duration = Duration::from_secs(120);
/// Number of connections that every pair must have made before a result counts.
const ENOUGH: u64 = 3;

const SERVER: &str = "mkdir /tmp/www; echo ok > /tmp/www/index.html
nc -ll -p 9000 -e cat &
exec httpd -f -p 8080 -h /tmp/www";
const CLIENT: &str = r#"
ask() { printf 'GET / HTTP/1.0\r\n\r\n' | timeout 6 nc -w 3 "$1" "$2"; }
for target in $TARGETS; do
    while :; do
        if [ -n "$(ask "${target%:*}" "${target#*:}")" ]; then echo "+ $target"; else echo "- $target"; fi
        sleep 0.1
    done 2> /dev/null &
done
if [ -n "$STREAM" ]; then
    until [ -n "$(echo first | timeout 6 nc -w 1 "$STREAM" 9000)" ]; do sleep 0.1; done 2> /dev/null
    while :; do echo more; sleep 0.1; done | nc "$STREAM" 9000 | while read -r _; do echo "= $STREAM"; done
    echo "! $STREAM"
fi
wait
"#;

/// The counted results of the connections between a client and a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionCounts {
    passed: u64,
    failed: u64,
    /// For the connection that stays open: number of answers, and how often it ended.
    answers: u64,
    ended: u64,
}

/// All results since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct TrafficCounts {
    /// For each client and target, also before there is a result.
    pairs: BTreeMap<(String, String), ConnectionCounts>,
    sent_twice: u64,
}

impl fmt::Display for TrafficCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |who: &str, of: fn(&ConnectionCounts) -> u64| self.of(who).map(of).sum::<u64>();
        write!(
            f,
            "friends: {} connections, {} lost, {} answers on open connections, {} segments sent twice; strangers: {} tries, {} passed",
            sum("friend", |it| it.passed + it.failed),
            sum("friend", |it| it.failed),
            sum("friend", |it| it.answers),
            self.sent_twice,
            sum("stranger", |it| it.passed + it.failed),
            sum("stranger", |it| it.passed),
        )
    }
}

impl TrafficCounts {
    fn of<'c>(&'c self, who: &'c str) -> impl Iterator<Item = &'c ConnectionCounts> {
        self.pairs.iter().filter(move |((client, _), _)| client.starts_with(who)).map(|(_, pair)| pair)
    }

    fn all(&self, who: &str, is_so: impl Fn(&ConnectionCounts) -> bool) -> bool {
        self.of(who).count() > 0 && self.of(who).all(is_so)
    }

    /// The results since `before`.
    fn since(&self, before: &Self) -> Self {
        let pairs = self.pairs.iter().map(|(name, now)| {
            let then = before.pairs.get(name).copied().unwrap_or_default();
            let pair = ConnectionCounts {
                passed: now.passed - then.passed,
                failed: now.failed - then.failed,
                answers: now.answers - then.answers,
                ended: now.ended - then.ended,
            };
            (name.clone(), pair)
        });
        Self { pairs: pairs.collect(), sent_twice: self.sent_twice - before.sent_twice }
    }

    fn add(&mut self, client: &str, line: &str) {
        let Some((what, target)) = line.split_once(' ') else { return };
        let pair = self.pairs.entry((client.to_owned(), target.to_owned())).or_default();
        match what {
            "+" => pair.passed += 1,
            "-" => pair.failed += 1,
            "=" => pair.answers += 1,
            _ => pair.ended += 1,
        }
    }
}

/// Pods that make connections.
pub(super) struct ClusterTraffic<'c> {
    cluster: &'c LocalCluster,
    /// Each client, with each of its targets.
    pairs: Vec<(String, String)>,
}

impl<'c> ClusterTraffic<'c> {
    /// Starts the pods, and waits until every friend has reached every server.
    pub(super) fn start(cluster: &'c LocalCluster) -> Result<Self> {
        let mut traffic = Self { cluster, pairs: Vec::new() };
        let nodes = || (0..cluster.nodes.len()).map(|number| (number, cluster.nodes[number].name()));
        let mut objects = vec![
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            // The cluster makes it too, but perhaps later than the first pod needs it.
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": NAMESPACE},
                "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}),
        ];
        objects.extend(nodes().map(|(number, node)| pod(&format!("web-{number}"), "web", &node, SERVER, json!([]))));
        traffic.cluster.apply("servers", &objects)?;
        let addresses = traffic.addresses()?;
        let servers = addresses.iter().map(|address| format!("{address}:8080"));
        let targets: Vec<String> = servers.chain([format!("{}:80", traffic.service())]).collect();
        let stream = addresses.last();
        let mut clients = Vec::new();
        for (number, node) in nodes() {
            let of_all = [json!({"name": "TARGETS", "value": targets.join(" ")})];
            let of_friend = [&of_all[..], &[json!({"name": "STREAM", "value": stream})]].concat();
            for (who, environment, stream) in [("friend", &of_friend[..], stream), ("stranger", &of_all, None)] {
                let name = format!("{who}-{number}");
                clients.push(pod(&name, who, &node, CLIENT, json!(environment)));
                traffic.pairs.extend(targets.iter().chain(stream).map(|target| (name.clone(), target.clone())));
            }
        }
        traffic.cluster.apply("clients", &clients)?;
        traffic.until("all clients reach all servers", |it| passes(it, "friend") && passes(it, "stranger"))?;
        Ok(traffic)
    }

    /// The addresses of the servers, once all have one.
    fn addresses(&self) -> Result<Vec<String>> {
        let ask = ["get", "pods", "-n", NAMESPACE, "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}"];
        let mut addresses = Vec::new();
        wait("servers have addresses", PATIENCE, || {
            let said = self.cluster.kubectl(&ask).unwrap_or_default();
            addresses = said.split_whitespace().map(str::to_owned).collect();
            addresses.len() == self.cluster.nodes.len()
        })?;
        Ok(addresses)
    }

    /// The service's address; the clients get it in their environment.
    fn service(&self) -> String {
        let ask = ["get", "service", "web", "-n", NAMESPACE, "-o", "jsonpath={.spec.clusterIP}"];
        self.cluster.kubectl(&ask).unwrap_or_default()
    }

    /// The results until now.
    fn counts(&self) -> Result<TrafficCounts> {
        let pairs = self.pairs.iter().map(|pair| (pair.clone(), ConnectionCounts::default()));
        let mut counts = TrafficCounts { pairs: pairs.collect(), sent_twice: 0 };
        for number in 0..self.cluster.nodes.len() {
            for who in ["friend", "stranger", "web"] {
                let name = format!("{who}-{number}");
                if who != "web" {
                    let log = self.cluster.kubectl(&["logs", "-n", NAMESPACE, &name])?;
                    log.lines().for_each(|line| counts.add(&name, line));
                }
                if who != "stranger" {
                    let snmp =
                        self.cluster.kubectl(&["exec", "-n", NAMESPACE, &name, "--", "cat", "/proc/net/snmp"])?;
                    counts.sent_twice += sent_twice(&snmp).with_context(|| format!("/proc/net/snmp of {name}"))?;
                }
            }
        }
        Ok(counts)
    }

    /// Waits until `is_so` holds for the results from now on.
    pub(super) fn until(&self, what: &str, is_so: impl Fn(&TrafficCounts) -> bool) -> Result<()> {
        let mut last = TrafficCounts::default();
        let mut before = self.counts().unwrap_or_default();
        let waited = wait(what, PATIENCE, || {
            let Ok(now) = self.counts() else { return false };
            last = now.since(&before);
            // Each check covers the time since the one before, unless that was too short for a result.
            if is_so(&last) {
                return true;
            }
            if says_something(&last) {
                before = now;
            }
            false
        });
        waited.with_context(|| format!("{last:#?}"))
    }

    /// Runs `act`, and checks that meanwhile and for a while afterwards no allowed connection is lost and no denied one
    /// gets through.
    pub(super) fn during(&self, what: &str, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let counts = self.without_loss(what, act)?;
        ensure!(counts.all("stranger", |it| it.passed == 0), "{what}: denied connections passed: {counts:#?}");
        Ok(())
    }

    /// Runs `act`, and checks that meanwhile and for a while afterwards no allowed connection is lost. What strangers may
    /// do can change.
    pub(super) fn without_loss(&self, what: &str, act: impl FnOnce() -> Result<()>) -> Result<TrafficCounts> {
        let before = self.counts()?;
        act().with_context(|| what.to_owned())?;
        let done = self.counts()?;
        let mut now = Ok(done.clone());
        let waited = wait(&format!("each client has results after {what}"), PATIENCE, || {
            now = self.counts();
            now.as_ref().is_ok_and(|now| is_lost(&now.since(&before)) || says_something(&now.since(&done)))
        });
        let now = now.with_context(|| what.to_owned())?;
        waited.with_context(|| format!("{:#?}", now.since(&done)))?;
        let during = now.since(&before);
        eprintln!("{what}: {during}");
        ensure!(!is_lost(&during), "{what}: allowed connections were lost: {during:#?}");
        Ok(during)
    }

    /// Ends the clients and servers.
    pub(super) fn stop(self) -> Result<()> {
        let who = "app in (web, friend, stranger)";
        self.cluster.kubectl(&["delete", "pods", "-n", NAMESPACE, "-l", who, "--now"]).map(|_| ())
    }
}

/// Isolates the servers: only friends may connect.
pub(super) fn only_friends() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}],
        },
    })
}

/// Whether every pair has made enough connections.
fn says_something(counts: &TrafficCounts) -> bool {
    ["friend", "stranger"].iter().all(|who| counts.all(who, |it| it.passed + it.failed + it.answers >= ENOUGH))
}

/// Whether an allowed connection failed or ended.
fn is_lost(counts: &TrafficCounts) -> bool {
    counts.of("friend").any(|it| it.failed > 0 || it.ended > 0)
}

/// Whether every pair of these clients gets through without a failure.
pub(super) fn passes(counts: &TrafficCounts, who: &str) -> bool {
    counts.all(who, |it| it.passed + it.answers >= ENOUGH && it.failed == 0)
}

/// Whether no pair of these clients gets through.
pub(super) fn is_kept_out(counts: &TrafficCounts, who: &str) -> bool {
    counts.all(who, |it| it.failed >= ENOUGH && it.passed == 0)
}

/// A pod with this label, from the image that every node has.
pub(super) fn pod(name: &str, app: &str, node: &str, script: &str, environment: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": app}},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "it", "image": images::BUSYBOX, "imagePullPolicy": "Never",
                "command": ["sh", "-c", script], "env": environment,
            }],
        },
    })
}

/// The number of retransmitted TCP segments.
fn sent_twice(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let place = lines.next()?.split(' ').position(|name| name == "RetransSegs")?;
    lines.next()?.split(' ').nth(place)?.parse().ok()
}

impl LocalCluster {
    /// Applies these objects with kubectl.
    pub(super) fn apply(&self, name: &str, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.apply_text(name, &list.to_string())
    }

    pub(super) fn apply_text(&self, name: &str, text: &str) -> Result<()> {
        let path = self.tools.run().join(format!("{name}.yaml"));
        fs::write(&path, text)?;
        self.kubectl(&["apply", "--server-side", "-f", &path.display().to_string()]).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_for_each_pair_and_since_an_earlier_count() {
        let mut before = TrafficCounts::default();
        before.add("friend-0", "+ 10.96.0.7");
        let mut now = before.clone();
        for line in ["+ 10.96.0.7", "= 10.244.0.2", "- 10.96.0.7", "! 10.244.0.2", "odd"] {
            now.add("friend-0", line);
        }
        let since = now.since(&before);
        let pair = |target: &str| since.pairs[&("friend-0".to_owned(), target.to_owned())];
        assert_eq!(pair("10.96.0.7"), ConnectionCounts { passed: 1, failed: 1, ..ConnectionCounts::default() });
        assert_eq!(pair("10.244.0.2"), ConnectionCounts { answers: 1, ended: 1, ..ConnectionCounts::default() });
        assert!(!since.all("stranger", |_| true), "a client without results does not count");
    }

    #[test]
    fn retransmitted_segments_are_found_by_their_name() {
        let snmp = "Ip: A B\nIp: 1 2\nTcp: RtoMin RetransSegs InErrs\nTcp: 200 7 0\nUdp: X\n";
        assert_eq!(sent_twice(snmp), Some(7));
        assert_eq!(sent_twice("Tcp: A\nTcp: 1\n"), None);
    }
}
