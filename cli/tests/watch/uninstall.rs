//! `weir watch --uninstall` on a node: nothing is left, and pods start. A crash is not an uninstall.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use weir_runtime::skip;

use crate::api::{add_address, add_cluster, add_pod, add_starting_pod};
use crate::cni::Plugin;
use crate::packets::{DENY, Network, POLICIES, ask};
use crate::rig::{Directory, server, until};

/// The container runtime's directories on a node.
struct Runtime<'n> {
    network: &'n Network,
    plugins: PathBuf,
    chains: PathBuf,
    socket: String,
}

impl<'n> Runtime<'n> {
    fn new(directory: &Directory, network: &'n Network, socket: String) -> Self {
        let (plugins, chains) = (directory.path().join("bin"), directory.path().join("net.d"));
        for path in [&plugins, &chains] {
            std::fs::create_dir(path).expect("the directory is ours");
        }
        let runtime = Self { network, plugins, chains, socket };
        runtime.write("10-net.conflist", &chain(&["ptp", "portmap"]).to_string());
        runtime
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.chains.join(name), text).expect("the directory is ours");
    }

    fn install_cni(&self) {
        let arguments = ["--bin-dir", &self.plugins.display().to_string(), "--conf-dir"];
        let ended = self.weir("cni-install", &[&arguments[..], &[&self.chains.display().to_string()]].concat());
        assert!(ended.0, "{}", ended.1);
    }

    /// Runs weir on the node. Returns whether it succeeded, and its output.
    fn weir(&self, command: &str, arguments: &[&str]) -> (bool, String) {
        let mut weir = self.network.settings().command(env!("CARGO_BIN_EXE_weir"));
        let output = weir.arg(command).args(arguments).output().expect("it starts");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    fn uninstall_arguments(&self) -> Vec<String> {
        let directories = [("--bpffs", self.network.pins()), ("--cni-socket", self.socket.clone())];
        let directories = directories.map(|(name, value)| format!("{name}={value}")).to_vec();
        let runtime = [("--cni-bin-dir", &self.plugins), ("--cni-conf-dir", &self.chains)];
        let runtime = runtime.map(|(name, path)| format!("{name}={}", path.display()));
        [vec!["--uninstall".to_owned()], directories, runtime.to_vec()].concat()
    }

    fn uninstall(&self) -> (bool, String) {
        let arguments = self.uninstall_arguments();
        self.weir("watch", &arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn uninstall_and_stay(&self) -> Child {
        let mut weir = self.network.settings().command(env!("CARGO_BIN_EXE_weir"));
        weir.arg("watch").args(self.uninstall_arguments()).arg("--stay").stdin(Stdio::null());
        weir.spawn().expect("it starts")
    }

    /// The types of the plug-ins in a chain.
    fn types(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.chains.join(name)).expect("the chain is there");
        let chain: Value = serde_json::from_str(&text).expect("JSON");
        let plugins = chain["plugins"].as_array().expect("plugins").iter();
        plugins.map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
    }

    fn names(&self, directory: &PathBuf) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("it is there").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    #[track_caller]
    fn nothing_is_left(&self) {
        assert_eq!(self.types("10-net.conflist"), ["ptp", "portmap"]);
        assert_eq!(self.names(&self.plugins), Vec::<String>::new());
        assert_eq!(self.names(&self.chains), ["10-net.conflist"]);
        assert!(!PathBuf::from(&self.network.pins()).exists(), "pins");
        assert!(!PathBuf::from(&self.socket).exists(), "socket");
        // `bpftool net` lists TCX links and tc filters of the node.
        let bpftool = self.network.settings().command("bpftool").args(["net", "show"]).output().expect("it starts");
        let listed = String::from_utf8_lossy(&bpftool.stdout).into_owned();
        assert!(bpftool.status.success() && !listed.contains("v-"), "{listed}");
    }
}

fn chain(types: &[&str]) -> Value {
    let plugins: Vec<Value> = types.iter().map(|name| json!({"type": name})).collect();
    json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins})
}

#[test]
fn uninstall_leaves_nothing_and_a_crash_opens_nothing() {
    let directory = Directory::new();
    let network = skip!(unless Network::new(&directory));
    let server = skip!(unless server(&directory, network.settings()));
    add_cluster(&server);
    add_pod(&server, "db", "near", "10.231.7.3");
    add_starting_pod(&server, "web", "near");
    add_address(&server, "web", "10.231.7.2");
    ask(&server, "POST", POLICIES, Some(DENY));
    let mut plugin = Plugin::new(&directory, &network);
    plugin.read_uid(&server);
    let runtime = Runtime::new(&directory, &network, plugin.socket.display().to_string());
    runtime.install_cni();
    assert_eq!(runtime.types("10-net.conflist"), ["ptp", "portmap", "weir-cni"]);
    let agent = network.agent_with(&directory, &server, &["--cni-socket", &runtime.socket]);
    agent.until_ready();
    until("policy is in force", || !network.reaches("db", "web"));

    let (success, said) = runtime.uninstall();
    assert!(!success && said.contains("an agent still runs on this node"), "{said}");
    assert_eq!(runtime.types("10-net.conflist"), ["ptp", "portmap", "weir-cni"], "nothing is changed");
    agent.kill();
    let refused = plugin.call("ADD", 1, "fail");
    assert!(!refused.success && refused.output.contains("--uninstall"), "{}", refused.output);
    assert!(!network.reaches("db", "web"), "policy stays in force");

    // Another plug-in's chain came first meanwhile, and an installation was interrupted.
    runtime.write("05-other.conflist", &chain(&["ptp", "weir-cni"]).to_string());
    runtime.write("20-not-ours.conflist", "{");
    runtime.write(".10-net.conflist.weir", "{");
    let (success, said) = runtime.uninstall();
    assert!(success, "{said}");
    assert_eq!(runtime.types("05-other.conflist"), ["ptp"]);
    for name in ["05-other.conflist", "20-not-ours.conflist"] {
        std::fs::remove_file(runtime.chains.join(name)).expect("a file of another plug-in stays");
    }
    runtime.nothing_is_left();
    assert!(network.reaches("db", "web"), "nothing is enforced any more");
    let (success, said) = runtime.uninstall();
    assert!(success, "on a clean node there is nothing to do: {said}");

    // A pod of the agent that still ended has installed the plug-in again.
    let mut staying = runtime.uninstall_and_stay();
    runtime.install_cni();
    until("it is removed again", || runtime.names(&runtime.plugins).is_empty());
    assert!(std::process::Command::new("kill").arg(staying.id().to_string()).status().is_ok_and(|it| it.success()));
    assert_eq!(staying.wait().expect("it ends").code(), Some(0));
    runtime.nothing_is_left();
}
