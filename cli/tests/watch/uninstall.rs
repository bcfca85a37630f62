//! `weir watch --uninstall` on a node: nothing is left, and pods start. A crash is not an uninstall, also while an
//! uninstaller waits on the node.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use weir_runtime::skip;
use xtask::apiserver::ApiServer;

use crate::api::{add_address, add_cluster, add_pod, add_starting_pod};
use crate::cni::Plugin;
use crate::packets::{DENY, Network, POLICIES, ask};
use crate::rig::{Agent, Directory, server, until};

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

    /// Starts an uninstall that does not end at once.
    fn start_uninstall(&self, arguments: &[&str]) -> Uninstall {
        let mut weir = self.network.settings().command(env!("CARGO_BIN_EXE_weir"));
        let log = self.chains.with_file_name("uninstall.log");
        let file = std::fs::File::create(&log).expect("the directory is ours");
        weir.arg("watch").args(self.uninstall_arguments()).args(arguments).stdin(Stdio::null()).stderr(file);
        Uninstall { process: weir.spawn().expect("it starts"), log }
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

/// A running `weir watch --uninstall`.
struct Uninstall {
    process: Child,
    log: PathBuf,
}

impl Uninstall {
    #[track_caller]
    fn until_it_says(&self, text: &str) {
        until(text, || std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains(text)));
    }

    fn terminate(&self) {
        let kill = Command::new("kill").arg(self.process.id().to_string()).status();
        assert!(kill.is_ok_and(|it| it.success()));
    }

    fn code(&mut self) -> Option<i32> {
        self.process.wait().expect("it ends").code()
    }
}

impl Drop for Uninstall {
    /// After a test that failed, the process would stay.
    fn drop(&mut self) {
        _ = self.process.kill();
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

    let mut staying = runtime.start_uninstall(&["--stay"]);
    runtime.install_cni();
    assert_eq!(staying.code(), Some(2));
    staying.until_it_says("an agent was installed again after the uninstall");
    assert_eq!(runtime.types("10-net.conflist"), ["ptp", "portmap", "weir-cni"], "it removes nothing");
    let (success, said) = runtime.uninstall();
    assert!(success, "{said}");
    runtime.nothing_is_left();
}

/// An agent whose policy isolates the pod `web`, with `weir-cni` in the chain.
fn enforcing(directory: &Directory, network: &Network, server: &ApiServer, runtime: &Runtime<'_>) -> Agent {
    runtime.install_cni();
    let agent = network.agent_with(directory, server, &["--cni-socket", &runtime.socket]);
    agent.until_ready();
    until("policy is in force", || !network.reaches("db", "web"));
    agent
}

#[test]
fn uninstaller_that_is_left_in_place_never_opens_a_pod() {
    let directory = Directory::new();
    let network = skip!(unless Network::new(&directory));
    let server = skip!(unless server(&directory, network.settings()));
    add_cluster(&server);
    add_pod(&server, "db", "near", "10.231.7.3");
    add_pod(&server, "web", "near", "10.231.7.2");
    ask(&server, "POST", POLICIES, Some(DENY));
    let runtime = Runtime::new(&directory, &network, directory.path().join("cni.sock").display().to_string());
    let agent = enforcing(&directory, &network, &server, &runtime);
    let nothing_changed = |why: &str| {
        assert_eq!(runtime.types("10-net.conflist"), ["ptp", "portmap", "weir-cni"], "{why}");
        assert!(!network.reaches("db", "web"), "{why}: policy stays in force");
    };

    // The agent does not end in time, and crashes later.
    let mut left = runtime.start_uninstall(&["--wait-for-agent=1"]);
    left.until_it_says("this process removes nothing any more");
    agent.kill();
    std::thread::sleep(Duration::from_secs(3));
    nothing_changed("after a crash");
    assert!(left.process.try_wait().expect("it is ours").is_none(), "its successor would not know about the agent");
    left.terminate();
    assert_eq!(left.code(), Some(2));

    // The agents are installed, and the one of this node is down for an upgrade.
    let installed = directory.path().join("installed");
    std::fs::write(&installed, "").expect("the directory is ours");
    let file = format!("--installed-file={}", installed.display());
    for mode in ["--wait-for-agent=60", "--wait-for-agent=0", "--stay"] {
        let mut left = runtime.start_uninstall(&[&file, mode]);
        assert_eq!(left.code(), Some(2), "{mode}");
        left.until_it_says("the agents are installed, so nothing is removed");
        nothing_changed(mode);
    }

    // The agents are deleted, and the one of this node is still ending.
    std::fs::remove_file(&installed).expect("it is ours");
    let agent = enforcing(&directory, &network, &server, &runtime);
    let mut uninstall = runtime.start_uninstall(&[&file, "--wait-for-agent=60"]);
    uninstall.until_it_says("waiting until the processes of the agent's pod end");
    assert_eq!(agent.terminate(), Some(0));
    assert_eq!(uninstall.code(), Some(0));
    runtime.nothing_is_left();
    assert!(network.reaches("db", "web"), "nothing is enforced any more");
}
