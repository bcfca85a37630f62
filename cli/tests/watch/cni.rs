//! `weir-cni`, called as a container runtime calls it: the environment, and JSON on standard input.

use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use weir_runtime::skip;
use xtask::apiserver::ApiServer;

use crate::api::{PODS, add_address, add_cluster, add_pod, add_starting_pod};
use crate::packets::{DENY, Network, POLICIES, Sender, ask};
use crate::rig::{Directory, server, until, within};

const WEB: &str = "10.231.7.2";

/// The result of the previous plug-in, with unusual spaces and line breaks, to see that it is passed on byte for
/// byte. As with the bridge plug-in, the shared bridge comes first.
fn previous(network: &Network) -> String {
    let sandbox = network.namespace("web");
    format!(
        r#"{{"cniVersion": "1.0.0",   "interfaces":[{{"name":"br0"}},{{"name":"v-web"}},{{"name":"eth0","sandbox":"/run/netns/{sandbox}"}}],
        "ips":[{{"address":"{WEB}/32","interface":2}}],"dns":{{}}}}"#
    )
}

/// The plug-in on a node.
pub(crate) struct Plugin<'n> {
    network: &'n Network,
    binary: PathBuf,
    pub(crate) socket: PathBuf,
    uid: String,
}

/// The result of a call.
pub(crate) struct Ended {
    pub(crate) success: bool,
    pub(crate) output: String,
}

impl Ended {
    fn json(&self) -> Value {
        serde_json::from_str(&self.output).unwrap_or_else(|error| panic!("{error}: {}", self.output))
    }
}

impl<'n> Plugin<'n> {
    pub(crate) fn new(directory: &Directory, network: &'n Network) -> Self {
        let binary = directory.path().join("weir-cni");
        symlink(env!("CARGO_BIN_EXE_weir"), &binary).expect("the directory is ours");
        Self { network, binary, socket: directory.path().join("run/cni.sock"), uid: String::new() }
    }

    /// Reads the pod's UID from the API.
    pub(crate) fn read_uid(&mut self, server: &ApiServer) {
        let pod = server.ask("GET", &format!("{PODS}/web"), None).expect("the pod exists");
        let pod: Value = serde_json::from_str(&pod).expect("JSON");
        self.uid = pod["metadata"]["uid"].as_str().expect("the server has given it one").to_owned();
    }

    pub(crate) fn call(&self, command: &str, seconds: u32, on_timeout: &str) -> Ended {
        let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID={}", self.uid);
        self.call_for(command, seconds, on_timeout, ["eth0", "/run/netns/web", &arguments])
    }

    /// Like [`Self::call`], with a given interface, path of the network namespace, and arguments.
    fn call_for(&self, command: &str, seconds: u32, on_timeout: &str, of: [&str; 3]) -> Ended {
        let [interface, netns, arguments] = of;
        let settings = self.network.settings();
        let mut plugin = settings.command(&self.binary);
        plugin.env("CNI_COMMAND", command).env("CNI_CONTAINERID", "c1").env("CNI_IFNAME", interface);
        plugin.env("CNI_NETNS", netns).env("CNI_PATH", "/opt/cni/bin").env("CNI_ARGS", arguments);
        plugin.stdin(Stdio::piped()).stdout(Stdio::piped());
        let options = json!({"cniVersion": "1.0.0", "name": "net", "type": "weir-cni", "socket": self.socket,
            "bpffs": self.network.pins(), "timeoutSeconds": seconds, "onTimeout": on_timeout});
        let options = options.to_string();
        let text = format!("{},\"prevResult\":{}}}", options.trim_end_matches('}'), previous(self.network));
        let mut child = plugin.spawn().expect("it starts");
        child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it is read");
        let output = child.wait_with_output().expect("it ends");
        Ended { success: output.status.success(), output: String::from_utf8(output.stdout).expect("text") }
    }

    #[track_caller]
    fn add(&self) {
        let ended = self.call("ADD", 30, "fail");
        assert!(ended.success, "{}", ended.output);
        assert_eq!(ended.output, previous(self.network), "the previous result is passed on unchanged");
    }
}

#[test]
fn pod_starts_when_its_policy_is_in_force() {
    let directory = Directory::new();
    let network = skip!(unless Network::new(&directory));
    let server = skip!(unless server(&directory, network.settings()));
    add_cluster(&server);
    add_pod(&server, "db", "near", "10.231.7.3");
    ask(&server, "POST", POLICIES, Some(DENY));
    network.unplug("web");
    let mut plugin = Plugin::new(&directory, &network);
    let socket = plugin.socket.display().to_string();
    let agent = network.agent_with(&directory, &server, &["--cni-socket", &socket]);
    agent.until_ready();
    add_starting_pod(&server, "web", "near");
    plugin.read_uid(&server);

    let flood = Sender::begin(&network, "db", WEB);
    let starts: u32 = std::env::var("WEIR_POD_STARTS").ok().and_then(|it| it.parse().ok()).unwrap_or(10);
    for start in 0..starts {
        network.plug("web").expect("it is not there");
        if start == 0 {
            until("packets come: no policy is in force on it", || network.arrived("web") > 0);
        } else {
            // The agent knows the pod now, and may find its interface before the plug-in reports it.
            within(Duration::from_millis(300), || network.arrived("web") > 0);
        }
        plugin.add();
        // From here on the pod's processes would run.
        let before = network.arrived("web");
        std::thread::sleep(Duration::from_millis(100));
        let more = network.arrived("web") - before;
        assert_eq!(more, 0, "packets reach a pod that has started: {}{}", network.flows(), agent.log());
        network.unplug("web");
    }
    assert_eq!(agent.metric("weir_cni_held_seconds_count"), f64::from(starts));
    eprintln!("{starts} pods, held for {:.4} s together", agent.metric("weir_cni_held_seconds_sum"));
    drop(flood);

    network.plug("web").expect("it is not there");
    plugin.add();
    for command in ["CHECK", "DEL", "GC", "STATUS"] {
        let ended = plugin.call(command, 5, "fail");
        assert!(ended.success && ended.output.is_empty(), "{command}: {}", ended.output);
    }
    assert!(plugin.call("VERSION", 5, "fail").json()["supportedVersions"].as_array().is_some_and(|it| it.len() > 3));
    // A pod that the API does not know is not started, and the runtime gets the reason.
    plugin.uid = "00000000-0000-4000-8000-000000000000".to_owned();
    let refused = plugin.call("CHECK", 5, "fail");
    assert_eq!((refused.success, &refused.json()["code"]), (false, &json!(100)), "{}", refused.output);
    let refused = plugin.call("ADD", 1, "fail");
    assert!(
        !refused.success && refused.output.contains("the agent has not received the pod's object"),
        "{}",
        refused.output
    );
    assert_eq!(agent.metric("weir_cni_timeouts_total"), 1.0);
}

#[test]
fn interface_without_a_pod_name_does_not_start_open() {
    let directory = Directory::new();
    let network = skip!(unless Network::new(&directory));
    let plugin = Plugin::new(&directory, &network);
    let inside = format!("/run/netns/{}", network.namespace("web"));
    let named = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web";
    for (of, code) in [
        (["eth0", &inside, "K8S_POD_NAMESPACE=shop,K8S_POD_NAME=web"], 4),
        (["eth0", &inside, ""], 4),
        (["eth0", &inside, "K8S_POD_NAME=web"], 4),
        // The network namespace cannot be read, so the interface counts as the pod's main interface.
        (["net1", "/run/netns/none", named], 11),
        (["net1", "/run/netns/none", ""], 4),
    ] {
        let refused = plugin.call_for("ADD", 1, "fail", of);
        assert_eq!((refused.success, &refused.json()["code"]), (false, &json!(code)), "{of:?}: {}", refused.output);
        assert!(!plugin.call_for("CHECK", 1, "fail", of).success, "{of:?}");
        assert!(plugin.call_for("ADD", 1, "allow", of).success && network.reaches("db", "web"), "{of:?}");
    }
    // The pod has its `eth0`: this is a secondary interface.
    assert!(plugin.call_for("ADD", 1, "fail", ["net1", &inside, named]).success);
    assert!(network.reaches("db", "web"));
    let closed = plugin.call_for("ADD", 1, "deny", ["eth0", &inside, ""]);
    assert!(closed.success && !network.reaches("db", "web"), "{}", closed.output);
}

#[test]
fn pod_does_not_start_open_without_an_agent() {
    let directory = Directory::new();
    let network = skip!(unless Network::new(&directory));
    let plugin = Plugin::new(&directory, &network);
    assert!(network.reaches("db", "web"), "nothing is in force");
    let refused = plugin.call("ADD", 1, "fail");
    assert_eq!((refused.success, &refused.json()["code"]), (false, &json!(11)), "{}", refused.output);
    assert!(refused.output.contains("shop/web") && refused.output.contains("cni.sock"), "{}", refused.output);
    let status = plugin.call("STATUS", 1, "fail");
    assert_eq!((status.success, &status.json()["code"]), (false, &json!(50)), "{}", status.output);
    assert!(network.reaches("db", "web"), "the pod is not started, and its interface is unchanged");

    let allowed = plugin.call("ADD", 1, "allow");
    assert!(allowed.success && network.reaches("db", "web"), "{}", allowed.output);
    let closed = plugin.call("ADD", 1, "deny");
    assert!(closed.success, "{}", closed.output);
    assert_eq!(closed.output, previous(&network));
    assert!(!network.reaches("db", "web") && !network.reaches("web", "db"), "it is closed");
    assert!(network.reaches("db", "cron"), "others are not");
    let held = std::fs::read_dir(format!("{}/held/links", network.pins())).expect("something is held");
    assert_eq!(held.count(), 2, "both sides of its own interface, and not the bridge");

    let server = skip!(unless server(&directory, network.settings()));
    add_cluster(&server);
    add_pod(&server, "db", "near", "10.231.7.3");
    add_starting_pod(&server, "web", "near");
    let agent = network.agent_with(&directory, &server, &[]);
    agent.until_ready();
    assert!(!network.reaches("db", "web"), "the agent does not know its interface yet");
    add_address(&server, "web", WEB);
    until("the agent has put policy in force, and opened it", || network.reaches("db", "web"));
    ask(&server, "POST", POLICIES, Some(DENY));
    until("policy is in force", || !network.reaches("db", "web"));
    assert_eq!(agent.terminate(), Some(0));
}
