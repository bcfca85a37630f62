//! Real packets between pods on a node. Pods and node are network namespaces, and the policies come from a real API
//! server.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use weir_runtime::skip;
use xtask::apiserver::{ApiServer, Settings};

use crate::api::{add_cluster, add_pod};
use crate::rig::{Agent, Directory, server, until, within};

pub(crate) const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
pub(crate) const DENY: &str = r#"{"metadata":{"name":"deny"},"spec":{"podSelector":{"matchLabels":{"app":"web"}}}}"#;
const ALLOW_DB: &str = r#"{"metadata":{"name":"allow"},"spec":{"podSelector":{"matchLabels":{"app":"web"}},
    "ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"db"}}}]}]}}"#;

/// A node and the pods `web`, `db` and `cron`, with routes as the ptp plug-in makes them.
pub(crate) struct Network {
    name: String,
    bpffs: PathBuf,
    results: PathBuf,
}

const PODS: [(&str, &str); 3] = [("web", "10.231.7.2"), ("db", "10.231.7.3"), ("cron", "10.231.7.4")];

impl Network {
    pub(crate) fn new(directory: &Directory) -> Result<Self, String> {
        let path = |name| directory.path().join(name);
        let name = format!("weirw{}", std::process::id());
        let network = Self { name, bpffs: path("bpf"), results: path("cni/results") };
        std::fs::create_dir(&network.bpffs).map_err(|error| error.to_string())?;
        run("mount", &["-t", "bpf", "bpf", &network.bpffs.display().to_string()])?;
        let node = network.namespace("node");
        run("ip", &["netns", "add", &node])?;
        run("ip", &["-n", &node, "link", "set", "lo", "up"])?;
        run("ip", &["-n", &node, "link", "add", "br0", "type", "bridge"])?;
        network.at("node", &["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        for (pod, _) in PODS {
            network.plug(pod)?;
        }
        Ok(network)
    }

    pub(crate) fn namespace(&self, of: &str) -> String {
        format!("{}-{of}", self.name)
    }

    /// The number of UDP datagrams that have arrived at a pod.
    pub(crate) fn arrived(&self, pod: &str) -> u64 {
        let inside = format!("--net=/run/netns/{}", self.namespace(pod));
        let output = Command::new("nsenter").args([inside.as_str(), "cat", "/proc/net/snmp"]).output();
        let text = String::from_utf8(output.expect("nsenter starts").stdout).expect("text");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
        let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let mut pairs = names.split(' ').zip(values.split(' '));
        pairs.find(|(name, _)| *name == "NoPorts").and_then(|(_, value)| value.parse().ok()).expect("it is counted")
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings { namespace: Some(format!("/run/netns/{}", self.namespace("node")).into()), ..Settings::default() }
    }

    /// Connects a pod to the network, as a CNI plug-in does.
    pub(crate) fn plug(&self, pod: &str) -> Result<(), String> {
        let (node, inside, veth) = (self.namespace("node"), self.namespace(pod), format!("v-{pod}"));
        let address = PODS.iter().find(|(name, _)| *name == pod).map_or("", |(_, address)| address);
        run("ip", &["netns", "add", &inside])?;
        run("ip", &["link", "add", &veth, "netns", &node, "type", "veth", "peer", "name", "eth0", "netns", &inside])?;
        for line in [
            format!("-n {inside} address add {address}/32 dev eth0"),
            format!("-n {inside} link set eth0 up"),
            format!("-n {inside} route add 10.231.7.1 dev eth0"),
            format!("-n {inside} route add default via 10.231.7.1"),
            format!("-n {node} address add 10.231.7.1/32 dev {veth}"),
            format!("-n {node} link set {veth} up"),
            format!("-n {node} route add {address}/32 dev {veth}"),
        ] {
            run("ip", &line.split(' ').collect::<Vec<_>>())?;
        }
        Ok(())
    }

    pub(crate) fn unplug(&self, pod: &str) {
        // The kernel deletes the veth with the namespace, but at some later time. So it is deleted here.
        run("ip", &["-n", &self.namespace("node"), "link", "delete", &format!("v-{pod}")])
            .expect("the test created it");
        run("ip", &["netns", "delete", &self.namespace(pod)]).expect("the test created it");
    }

    /// Writes the CNI result, as libcni does when the last plug-in has ended.
    pub(crate) fn write_result(&self, pod: &str, uid: Option<&str>) {
        let address = PODS.iter().find(|(name, _)| *name == pod).map_or("", |(_, address)| address);
        let mut arguments = vec![["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", pod]];
        arguments.extend(uid.map(|uid| ["K8S_POD_UID", uid]));
        let result = json!({"kind": "cniCacheV1", "ifName": "eth0", "cniArgs": arguments,
            "result": {"cniVersion": "1.0.0", "ips": [{"address": format!("{address}/32"), "interface": 1}],
            "interfaces": [{"name": format!("v-{pod}")}, {"name": "eth0", "sandbox": "/run/netns/x"}]}});
        std::fs::create_dir_all(&self.results).expect("the directory is ours");
        std::fs::write(self.results.join(format!("net-{pod}-eth0")), result.to_string())
            .expect("the directory is ours");
    }

    /// The directory that [`Self::write_result`] writes to.
    pub(crate) fn results(&self) -> String {
        self.results.display().to_string()
    }

    fn at(&self, place: &str, arguments: &[&str]) -> Result<(), String> {
        let net = format!("--net=/run/netns/{}", self.namespace(place));
        run("nsenter", &[&[net.as_str()], arguments].concat())
    }

    /// Whether a packet and its answer pass.
    pub(crate) fn reaches(&self, from: &str, to: &str) -> bool {
        let address = PODS.iter().find(|(name, _)| *name == to).map_or("", |(_, address)| address);
        self.at(from, &["ping", "-c", "1", "-W", "1", address]).is_ok()
    }

    pub(crate) fn pins(&self) -> String {
        self.bpffs.join("weir").display().to_string()
    }

    /// The flows that the kernel knows, as text.
    pub(crate) fn flows(&self) -> String {
        let mut flows = self.settings().command(env!("CARGO_BIN_EXE_weir"));
        let output = flows.args(["flows", "--bpffs", &self.pins()]).output().expect("it starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn agent(&self, directory: &Directory, server: &ApiServer) -> Agent {
        self.agent_with(directory, server, &[])
    }

    pub(crate) fn agent_with(&self, directory: &Directory, server: &ApiServer, arguments: &[&str]) -> Agent {
        let (pins, results) = (self.pins(), self.results());
        let arguments = [&["--bpffs", pins.as_str(), "--cni-results", results.as_str()], arguments].concat();
        Agent::start(directory, &server.kubeconfig(), &self.settings(), &arguments)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Deletes all namespaces that exist. The node's is the last one, because it has the other ends of the pods'
        // interfaces.
        for place in PODS.map(|(pod, _)| pod).into_iter().chain(["node"]) {
            _ = run("ip", &["netns", "delete", &self.namespace(place)]);
        }
        _ = run("umount", &[&self.bpffs.display().to_string()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

pub(crate) fn ask(server: &ApiServer, method: &str, path: &str, body: Option<&str>) {
    server.ask(method, path, body).unwrap_or_else(|error| panic!("{error:#}"));
}

/// A process in the pod that sends from the moment when the interface exists.
pub(crate) struct Sender(Child);

impl Sender {
    pub(crate) fn begin(network: &Network, from: &str, to: &str) -> Self {
        let inside = format!("--net=/run/netns/{}", network.namespace(from));
        let send = format!("exec 3>/dev/udp/{to}/9; while :; do echo x >&3; sleep 0.002; done");
        let mut sender = Command::new("nsenter");
        sender.args([inside.as_str(), "bash", "-c", &send]).stdout(Stdio::null()).stderr(Stdio::null());
        Self(sender.spawn().expect("bash starts"))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn policies_of_the_api_decide_real_connections() {
    let directory = Directory::new();
    let network = skip!(unless Network::new(&directory));
    let mut server = skip!(unless server(&directory, network.settings()));
    add_cluster(&server);
    PODS.iter().for_each(|(pod, address)| add_pod(&server, pod, "near", address));
    assert!(network.reaches("db", "web"), "before there is an agent, everything passes");

    let agent = network.agent_with(&directory, &server, &["--annotate-pods"]);
    agent.until_ready();
    assert!(network.reaches("db", "web") && network.reaches("cron", "web"), "no policy, no isolation");
    ask(&server, "POST", POLICIES, Some(DENY));
    until("the denial is in force", || !network.reaches("db", "web"));
    assert!(!network.reaches("cron", "web") && network.reaches("web", "db"));
    ask(&server, "POST", POLICIES, Some(ALLOW_DB));
    until("the allowance is in force", || network.reaches("db", "web"));
    assert!(!network.reaches("cron", "web"), "it allows db only");
    assert!(agent.metric("weir_policy_enforced_seconds_count") >= 2.0);
    assert_eq!(agent.metric("weir_endpoints{state=\"enforced\"}"), 3.0);

    until("the pods say which generation it is", || {
        let generation = format!("\"weir.dev/generation\":\"{}\"", agent.metric("weir_generation"));
        let pods = server.ask("GET", "/api/v1/namespaces/shop/pods", None).expect("the server answers");
        pods.replace(": ", ":").matches(&generation).count() == PODS.len()
    });

    // Policy stays in force without an agent and without an API server.
    let before = agent.metric("weir_generation");
    agent.kill();
    assert!(network.reaches("db", "web") && !network.reaches("cron", "web"), "the agent was killed");
    server.kill_apiserver();
    let agent = network.agent(&directory, &server);
    assert!(!within(Duration::from_secs(2), || network.reaches("cron", "web") || !network.reaches("db", "web")));
    assert_eq!(agent.page("/readyz").0, "503");
    server.start_apiserver().expect("it starts again");
    agent.until_ready();
    assert!(network.reaches("db", "web") && !network.reaches("cron", "web"), "adopted");
    // Changes were applied to the classes before, so their numbers can differ from those of this agent's compile. Then
    // the first generation is a new one with the same verdicts.
    let compiled = agent.metric("weir_generation");
    assert!(compiled == before || compiled == before + 1.0, "{before}, {compiled}: {}", agent.log());
    agent.kill();
    let agent = network.agent(&directory, &server);
    agent.until_ready();
    assert!(network.reaches("db", "web") && !network.reaches("cron", "web"), "adopted again");
    assert_eq!(agent.metric("weir_generation"), compiled, "the same objects are the same generation: {}", agent.log());

    // The pod's network is recreated: another interface with the same name and address. Only the CNI result shows that
    // it belongs to this pod.
    network.unplug("web");
    network.plug("web").expect("it went before");
    network.write_result("web", None);
    until("the new interface is enforced", || network.reaches("db", "web") && !network.reaches("cron", "web"));

    ask(&server, "DELETE", &format!("{POLICIES}/allow"), None);
    until("the deletion is in force", || !network.reaches("db", "web"));
    assert_eq!(agent.terminate(), Some(0));
    assert!(!network.reaches("db", "web"), "a graceful stop leaves it in force");
    let weir = env!("CARGO_BIN_EXE_weir");
    network.at("node", &[weir, "watch", "--uninstall", "--bpffs", &network.pins()]).expect("it is removed");
    assert!(network.reaches("db", "web") && network.reaches("cron", "web"), "nothing is enforced any more");
    let pinned = std::fs::read_dir(network.pins()).map_or(0, Iterator::count);
    assert_eq!(pinned, 0, "nothing is pinned any more");
}

#[test]
fn audit_policy_is_reported_and_enforced_when_the_annotation_is_removed() {
    const WOULD_DENY: &str = "weir_packets_total{direction=\"ingress\",reason=\"would-deny\",verdict=\"passed\"}";
    let directory = Directory::new();
    let network = skip!(unless Network::new(&directory));
    let server = skip!(unless server(&directory, network.settings()));
    add_cluster(&server);
    PODS.iter().for_each(|(pod, address)| add_pod(&server, pod, "near", address));
    let agent = network.agent(&directory, &server);
    agent.until_ready();
    let mode = |mode: &str| {
        let body = format!(r#"{{"metadata":{{"annotations":{{"weir.dev/mode":{mode}}}}}}}"#);
        ask(&server, "PATCH", &format!("{POLICIES}/deny"), Some(&body));
    };
    ask(
        &server,
        "POST",
        POLICIES,
        Some(&DENY.replace("\"name\"", "\"annotations\":{\"weir.dev/mode\":\"audit\"},\"name\"")),
    );
    until("the packets that it would deny are counted", || {
        network.reaches("db", "web") && agent.metric(WOULD_DENY) > 0.0
    });
    assert_eq!(agent.metric("weir_audit_policies"), 1.0);
    mode("null");
    until("it is in force", || !network.reaches("db", "web"));
    // An unknown mode changes nothing, and is reported.
    mode("\"off\"");
    let malformed = "weir_unenforced_objects{kind=\"NetworkPolicy\",why=\"malformed\"}";
    until("the unknown mode is reported", || agent.metric(malformed) == 1.0);
    assert!(!network.reaches("db", "web"), "it keeps its last readable content");
    mode("\"audit\"");
    until("it is out of force", || network.reaches("db", "web"));
    assert_eq!(agent.metric(malformed), 0.0);
}
