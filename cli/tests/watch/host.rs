//! The agent on a real host with a minimal API server: repairs after other processes' changes, pods that start and pods
//! that end.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use weir_runtime::skip;
use weir_testing::files::remove_all;

use crate::fake::Fake;
use crate::packets::{Network, Sender};
use crate::rig::{Agent, Directory, until, within};

const PODS: &str = "/api/v1/pods";
const POLICIES: &str = "/apis/networking.k8s.io/v1/networkpolicies";

struct Host {
    agent: Option<Agent>,
    api: Fake,
    network: Network,
    directory: Directory,
}

fn pod(name: &str, more: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "near"}, "status": {"phase": "Pending"},
        "metadata": {"name": name, "namespace": "shop", "uid": format!("u-{name}"), "labels": {"app": name}}});
    if let Value::Object(more) = more {
        more.into_iter().for_each(|(field, value)| pod[field] = value);
    }
    pod
}

fn running(name: &str, address: &str) -> Value {
    pod(name, json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}))
}

fn isolated(app: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress", "Egress"]}})
}

impl Host {
    /// Starts a host on which a policy isolates `web` in both directions.
    fn new(arguments: &[&str]) -> Result<Self, String> {
        let directory = Directory::new();
        let network = Network::new(&directory)?;
        let mut api = Fake::start(&network.settings());
        api.apply("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}));
        api.apply("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "near"}}));
        for (name, address) in [("web", "10.231.7.2"), ("db", "10.231.7.3"), ("cron", "10.231.7.4")] {
            api.apply(PODS, running(name, address));
        }
        api.apply(POLICIES, isolated("web"));
        let mut host = Self { agent: None, api, network, directory };
        host.start(arguments);
        host.agent().until_ready();
        assert!(!host.network.reaches("db", "web"), "policy is in force");
        Ok(host)
    }

    fn start(&mut self, arguments: &[&str]) {
        let (pins, results) = (self.network.pins(), self.network.results());
        let arguments = [&["--bpffs", pins.as_str(), "--cni-results", results.as_str()], arguments].concat();
        let kubeconfig = self.api.kubeconfig(&self.directory);
        self.agent = Some(Agent::start(&self.directory, &kubeconfig, &self.network.settings(), &arguments));
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("it was started")
    }

    /// Runs a command in the node's network namespace.
    #[track_caller]
    fn run(&self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = self.network.settings().command(words[0]);
        let output = command.args(&words[1..]).output().expect("it starts");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn watch_faults(&self) -> [f64; 3] {
        let faults = |kind| self.agent().metric(&format!("weir_watch_faults_total{{kind=\"{kind}\"}}"));
        ["Pod", "NetworkPolicy", "Namespace"].map(faults)
    }

    fn repairs(&self) -> f64 {
        self.agent().metric("weir_drift_repairs_total")
    }
}

macro_rules! host {
    ($arguments:expr) => {
        skip!(unless Host::new($arguments))
    };
}

#[test]
fn removed_pins_are_restored_and_open_no_pod() {
    for hook in ["tcx", "clsact"] {
        let mut host = host!(&["--hook", hook]);
        let pins = PathBuf::from(host.network.pins());
        // Without TCX there are filters, and no links.
        for what in ["", "record", "maps", "links"].into_iter().take(if hook == "tcx" { 4 } else { 3 }) {
            let before = host.repairs();
            remove_all(&pins.join(what));
            assert!(!host.network.reaches("db", "web"), "{hook}: without {what:?}");
            until("it is repaired", || host.repairs() > before && pins.join("record").exists());
            assert!(!host.network.reaches("db", "web") && host.network.reaches("db", "cron"), "{hook}: {what:?}");
        }
        // Removed pins do not make the next generation fail.
        remove_all(&pins);
        host.api.apply(POLICIES, isolated("cron"));
        until("the next generation is in force", || {
            host.network.reaches("db", "web") && !host.network.reaches("db", "cron")
        });
        until("it is ready", || host.agent().page("/readyz").0 == "200");
        assert_eq!(host.agent().metric("weir_failures_total{stage=\"install\"}"), 0.0, "{}", host.agent().log());
    }
}

#[test]
fn removed_hooks_are_restored_without_an_api_event() {
    let host = host!(&["--hook", "clsact"]);
    let before = host.repairs();
    host.run("tc qdisc del dev v-web clsact");
    until("it is repaired", || host.repairs() > before);
    assert!(!host.network.reaches("db", "web"));
    host.run("tc filter del dev v-web egress");
    until("policy is in force", || !host.network.reaches("db", "web"));
}

/// A closed pod sends a datagram every two milliseconds until policy is in force on it.
#[test]
fn new_pod_is_closed_when_its_cni_result_appears() {
    let mut host = host!(&[]);
    let starts = 5;
    for _ in 0..starts {
        host.network.unplug("web");
        host.api.delete(PODS, "shop", "web");
        until("it has gone", || host.agent().metric("weir_endpoints{state=\"enforced\"}") == 2.0);
        host.api.apply(PODS, pod("web", Value::Null));
        // About the time to schedule a pod and to make its network.
        std::thread::sleep(Duration::from_secs(2));
        let closed_before = host.agent().metric("weir_new_pods_closed_total");
        host.network.plug("web").expect("it is not there");
        host.network.write_result("web", Some("u-web"));
        // That nothing arrives shows nothing yet: the link of a new pod may take a second until it carries packets.
        let closed = within(Duration::from_secs(60), || {
            let is_closed = host.agent().metric("weir_new_pods_closed_total") > closed_before;
            is_closed || host.agent().metric("weir_endpoints{state=\"enforced\"}") == 3.0
        });
        assert!(closed && !host.network.reaches("web", "db"), "{}", host.agent().log());
        let before = host.network.arrived("db");
        let sender = Sender::begin(&host.network, "web", "10.231.7.3");
        until("it is enforced", || host.agent().metric("weir_endpoints{state=\"enforced\"}") == 3.0);
        drop(sender);
        let arrived = host.network.arrived("db");
        assert_eq!(arrived, before, "it stays closed until policy is in force\n{}", host.agent().log());
        host.api.apply(PODS, running("web", "10.231.7.2"));
    }
    // The others were enforced before the agent looked for pods to close.
    let closed = host.agent().metric("weir_new_pods_closed_total");
    assert!(closed >= 1.0 && closed <= f64::from(starts), "{closed}\n{}", host.agent().log());
    let came = host.agent().metric("weir_single_pods_total{change=\"came\"}");
    assert_eq!(came, f64::from(starts), "{}", host.agent().log());
}

#[test]
fn pod_that_starts_during_an_api_outage_is_closed_if_policy_may_apply() {
    for (arguments, has_policy, is_open) in
        [(&[][..], true, false), (&[], false, true), (&["--unknown-pods", "deny"], false, false)]
    {
        let mut host = host!(arguments);
        host.network.unplug("cron");
        host.api.delete(PODS, "shop", "cron");
        if !has_policy {
            host.api.delete(POLICIES, "shop", "deny");
            until("no policy is in force", || host.network.reaches("db", "web"));
        }
        until("it has gone", || host.agent().metric("weir_endpoints{state=\"enforced\"}") == 2.0);
        host.api.set_away(true);
        host.network.plug("cron").expect("it is not there");
        host.network.write_result("cron", Some("u-cron"));
        let closed = || host.agent().metric("weir_new_pods_closed_total") == 1.0;
        match is_open {
            false => until("it is closed", || closed() && !host.network.reaches("cron", "db")),
            true => assert!(!within(Duration::from_secs(2), closed) && host.network.reaches("cron", "db")),
        }
        // The pod's labels show that no policy isolates it.
        host.api.set_away(false);
        host.api.apply(PODS, running("cron", "10.231.7.4"));
        until("it is known", || host.network.reaches("cron", "db"));
        host.agent().until_ready();
    }
}

#[test]
fn ending_pods_are_not_reported_as_failures() {
    let mut host = host!(&[]);
    for _ in 0..5 {
        let meta = json!({"metadata": {"name": "cron", "namespace": "shop", "uid": "u-cron", "labels": {"app": "cron"},
            "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let mut leaving = running("cron", "10.231.7.4");
        leaving["metadata"] = meta["metadata"].clone();
        host.api.apply(PODS, leaving);
        host.network.unplug("cron");
        let unready = within(Duration::from_millis(1_500), || host.agent().page("/readyz").0 != "200");
        assert!(!unready, "{}{}", host.agent().health("/readyz").1, host.agent().log());
        host.api.delete(PODS, "shop", "cron");
        until("it has gone", || host.agent().metric("weir_endpoints{state=\"enforced\"}") == 2.0);
        host.network.plug("cron").expect("it is not there");
        host.api.apply(PODS, running("cron", "10.231.7.4"));
        until("it is back", || host.agent().metric("weir_endpoints{state=\"enforced\"}") == 3.0);
    }
    let log = host.agent().log();
    assert!(!log.contains("\"level\":\"warn\"") && !log.contains("\"level\":\"error\""), "{log}");
}

#[test]
fn metrics_address_hides_pod_names_and_sigterm_ends_the_agent() {
    let socket = std::env::temp_dir().join(format!("weir-host-{}.sock", std::process::id()));
    let mut host = host!(&["--cni-socket", &socket.display().to_string()]);
    // This pod has no interface here, so the agent is not ready and its health page names the pod.
    host.api.apply(PODS, running("unplugged", "10.231.7.9"));
    until("it is not ready", || host.agent().health("/readyz").1.contains("shop/unplugged"));
    let (status, text) = host.agent().page("/readyz");
    assert_eq!(status, "503");
    for text in [text, host.agent().page("/metrics").1] {
        assert!(!text.contains("unplugged") && !text.contains("shop"), "{text}");
    }
    let agent = host.agent.take().expect("it was started");
    assert_eq!(agent.terminate(), Some(0));
    assert!(!socket.exists());
}

/// The lines of the log after `from` that have this level.
fn lines_of_level(log: &str, from: usize, level: &str) -> Vec<String> {
    let level = format!("\"level\":\"{level}\"");
    log[from..].lines().filter(|line| line.contains(&level)).map(str::to_owned).collect()
}

#[test]
fn api_outage_is_one_warning_until_the_server_is_back() {
    let mut host = host!(&[]);
    for _ in 0..2 {
        let from = host.agent().log().len();
        let before = host.watch_faults();
        host.api.set_away(true);
        until("every watch has tried again several times", || {
            let now = host.watch_faults();
            now.iter().zip(before).all(|(now, before)| *now >= before + 4.0)
        });
        let warnings = lines_of_level(&host.agent().log(), from, "warn");
        assert!(warnings.len() == 1 && warnings[0].contains("the API server does not answer"), "{warnings:?}");
        host.api.set_away(false);
        until("it is reported", || host.agent().log()[from..].contains("the API server answers again"));
        host.api.apply(POLICIES, isolated("web"));
        until("every watch works again", || {
            let kinds = ["Pod", "NetworkPolicy", "Namespace", "CidrList"];
            kinds.iter().all(|kind| host.agent().metric(&format!("weir_watch_connected{{kind=\"{kind}\"}}")) == 1.0)
        });
        let log = host.agent().log();
        assert_eq!(log[from..].matches("the API server answers again").count(), 1, "{log}");
        assert_eq!(lines_of_level(&log, from, "warn").len() + lines_of_level(&log, from, "error").len(), 1, "{log}");
    }
}

#[test]
fn log_level_shows_the_requests_of_the_client() {
    let quiet = host!(&[]);
    assert!(!quiet.agent().log().contains("requesting"));
    drop(quiet);
    let host = host!(&["--log-level", "info,kube=debug"]);
    let log = host.agent().log();
    let line = log.lines().find(|line| line.contains("requesting")).unwrap_or_else(|| panic!("{log}"));
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["level"], &line["http.method"]), (&json!("debug"), &json!("GET")), "{line}");
    assert!(line["target"].as_str().is_some_and(|target| target.starts_with("kube_client")), "{line}");
    assert!(line["http.url"].as_str().is_some_and(|url| url.contains("/api")), "{line}");
}

#[test]
fn bundle_has_the_state_of_the_node_and_no_secrets() {
    let host = host!(&[]);
    let pins = host.network.pins();
    let health = host.agent().health_address();
    let path = |name: &str| host.directory.path().join(name).display().to_string();
    let bundle = |name: &str, more: &[&str]| {
        let file = path(name);
        let mut command = host.network.settings().command(env!("CARGO_BIN_EXE_weir"));
        command.args(["bundle", "--bpffs", &pins, "--health-addr", &health, "-o", &file]).args(more);
        let output = command.env("WEIR_TEST_SECRET", "hunter2").output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::process::Command::new("tar").args(["-xzOf", &file]).output().expect("tar starts");
        (String::from_utf8_lossy(&output.stderr).into_owned(), String::from_utf8_lossy(&text.stdout).into_owned())
    };
    let (printed, text) = bundle("bundle.tar.gz", &[]);
    assert!(!printed.contains("missing"), "{printed}");
    for part in ["shop/web", "weir_build_info", "\"shared\"", "\"state\": \"enforced\"", "shop/deny", "--kubeconfig"] {
        assert!(text.contains(part), "{part} is not in the bundle: {printed}");
    }
    assert!(!text.contains("hunter2") && !text.contains("current-context"), "environment or kubeconfig");
    let seeds = text.lines().find(|line| line.contains("\"seeds\"")).unwrap_or_default();
    assert!(seeds.trim_start().starts_with("\"seeds\": []"), "{seeds}");
    let (_, text) = bundle("anonymous.tar.gz", &["--anonymize"]);
    for name in ["shop", "v-web", "10.231.7"] {
        assert!(!text.contains(name), "{name}: {:?}", text.lines().find(|line| line.contains(name)));
    }
    assert!(text.contains("\"state\": \"enforced\"") && text.contains("name-"), "{text}");
}
