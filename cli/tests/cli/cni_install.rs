//! `weir cni-install --keep`: the entry of `weir-cni` comes back if another program removes it, and only an uninstall
//! removes it for good.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_runtime::skip;

use crate::support::Place;

/// The longest wait, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const DIRECTORIES: &str = "--bin-dir bin --conf-dir net.d";
const CHAIN: &str = "10-net.conflist";

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}: not within {} s", PATIENCE.as_secs());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A chain as the cluster's CNI plug-in writes it.
fn chain(types: &[&str]) -> String {
    let plugins: Vec<Value> = types.iter().map(|name| json!({"type": name})).collect();
    json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins}).to_string()
}

/// The container runtime's directories on a node, with one chain.
struct Node(Place);

impl Node {
    fn new() -> Self {
        let node = Self::without_directory();
        fs::create_dir(node.path("net.d")).expect("the place is ours");
        node.write(CHAIN, &chain(&["ptp", "portmap"]));
        node
    }

    fn without_directory() -> Self {
        let node = Self(Place::new());
        fs::create_dir(node.path("bin")).expect("the place is ours");
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn plugin(&self) -> PathBuf {
        self.path("bin/weir-cni")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path("net.d").join(name), text).expect("the directory is ours");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("net.d").join(name)).unwrap_or_default()
    }

    fn plugins(&self, name: &str) -> Vec<Value> {
        let chain: Value = serde_json::from_str(&self.read(name)).unwrap_or_default();
        chain["plugins"].as_array().cloned().unwrap_or_default()
    }

    /// The types of the plug-ins in a chain.
    fn types(&self, name: &str) -> Vec<String> {
        let plugins = self.plugins(name);
        plugins.iter().map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[track_caller]
    fn until_added(&self, name: &str) {
        until(&format!("{name} has the entry"), || self.types(name).last().is_some_and(|it| it == "weir-cni"));
    }

    fn keep(&self) -> Keeper {
        self.keep_with("")
    }

    fn keep_with(&self, arguments: &str) -> Keeper {
        Keeper::start(&self.0, self.0.command(&format!("cni-install --keep {DIRECTORIES} {arguments}")))
    }

    /// A node on which the process runs and has added the entry.
    fn kept() -> (Self, Keeper) {
        let node = Self::new();
        let keeper = node.keep();
        node.until_added(CHAIN);
        (node, keeper)
    }
}

/// A running `weir cni-install --keep`. Dropping this kills it.
struct Keeper {
    process: Child,
    log: PathBuf,
}

impl Keeper {
    fn start(place: &Place, mut command: Command) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = place.path().join(format!("keep-{number}.log"));
        command.args(["--log-format=json"]).stdout(Stdio::null()).stderr(File::create(&log).expect("a log"));
        Self { process: command.spawn().expect("it starts"), log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The events of the log whose message has this text.
    fn events(&self, text: &str) -> Vec<Value> {
        let events = self.log().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>();
        events.into_iter().filter(|it| it.to_string().contains(text)).collect()
    }

    #[track_caller]
    fn until_it_says(&self, text: &str) {
        until(text, || self.log().contains(text));
    }

    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.process.try_wait().expect("it is ours");
            status.is_some()
        });
        status.expect("it has ended")
    }

    #[track_caller]
    fn ends_after(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it runs");
        let status = self.ends();
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("the log of cni-install:\n{}", self.log());
        }
    }
}

fn is_this_program(path: &Path) -> bool {
    fs::read(path).is_ok_and(|it| it == fs::read(env!("CARGO_BIN_EXE_weir")).expect("it is built"))
}

#[test]
fn entry_comes_back_after_the_configuration_is_written_again() {
    let (node, keeper) = Node::kept();
    assert!(is_this_program(&node.plugin()));
    node.write(CHAIN, &chain(&["calico", "portmap"]));
    node.until_added(CHAIN);
    assert_eq!(node.types(CHAIN), ["calico", "portmap", "weir-cni"]);
    keeper.until_it_says("written again without the entry");
    let events = keeper.events("added weir-cni");
    assert_eq!(events.len(), 2, "each write is logged: {}", keeper.log());
    let path = events[1]["configuration"].as_str().unwrap_or_default();
    assert!(path.ends_with("net.d/10-net.conflist"), "{}", events[1]);

    // Another program changes the entry's settings.
    node.write(CHAIN, &node.read(CHAIN).replace("\"timeoutSeconds\": 15", "\"timeoutSeconds\": 600"));
    until("the settings are back", || node.plugins(CHAIN).last().is_some_and(|it| it["timeoutSeconds"] == 15));
    keeper.until_it_says("the entry had other settings");
}

#[test]
fn configuration_that_becomes_the_first_gets_the_entry() {
    let (node, keeper) = Node::kept();
    node.write("05-other.conflist", &chain(&["cilium"]));
    node.until_added("05-other.conflist");
    keeper.until_it_says("this file is the first one now");
    assert_eq!(node.types(CHAIN), ["ptp", "portmap", "weir-cni"], "a chain that is not used is left alone");
}

#[test]
fn missing_configuration_is_waited_for_and_reported_once() {
    let node = Node::without_directory();
    let keeper = node.keep();
    keeper.until_it_says("there is no CNI configuration");
    fs::create_dir(node.path("net.d")).expect("the place is ours");
    until("the plug-in is installed", || node.plugin().exists());
    // Several looks pass until the plug-in has been repaired twice.
    for _ in 0..2 {
        until("the plug-in is complete", || is_this_program(&node.plugin()));
        fs::remove_file(node.plugin()).expect("it is there");
    }
    assert_eq!(keeper.events("there is no CNI configuration").len(), 1, "{}", keeper.log());
    node.write(CHAIN, &chain(&["ptp"]));
    node.until_added(CHAIN);
}

#[test]
fn half_written_configuration_is_left_alone_until_it_is_complete() {
    let (node, keeper) = Node::kept();
    let whole = chain(&["flannel", "portmap"]);
    let half = &whole[..whole.len() / 2];
    node.write(CHAIN, half);
    keeper.until_it_says("is not JSON");
    assert_eq!(node.read(CHAIN), half);
    node.write(CHAIN, &whole);
    node.until_added(CHAIN);
    assert_eq!(node.types(CHAIN), ["flannel", "portmap", "weir-cni"]);
    assert_eq!(keeper.events("is not JSON").len(), 1, "{}", keeper.log());
}

#[test]
fn missing_or_changed_plugin_is_installed_again() {
    let (node, _keeper) = Node::kept();
    fs::remove_file(node.plugin()).expect("it is there");
    until("the plug-in is back", || is_this_program(&node.plugin()));
    let mut other = fs::read(node.plugin()).expect("it is there");
    *other.last_mut().expect("a program has bytes") ^= 1;
    fs::write(node.plugin(), other).expect("it is ours");
    until("the plug-in is complete again", || is_this_program(&node.plugin()));
}

/// Each further write waits twice as long as the one before. A slow machine only makes the time longer.
#[test]
fn program_that_removes_the_entry_each_time_is_reported_and_does_not_cause_a_loop() {
    let node = Node::new();
    let started = Instant::now();
    let keeper = node.keep();
    until("the other program is reported", || {
        if node.types(CHAIN).iter().any(|it| it == "weir-cni") {
            node.write(CHAIN, &chain(&["ptp", "portmap"]));
        }
        keeper.log().contains("again and again")
    });
    assert!(started.elapsed() >= Duration::from_secs(3), "three writes need waits of 1 s and 2 s: {}", keeper.log());
    assert_eq!(keeper.events("added weir-cni").len(), 3, "{}", keeper.log());
    let [warning] = &keeper.events("again and again")[..] else { panic!("one warning: {}", keeper.log()) };
    assert_eq!((&warning["level"], &warning["writes"]), (&json!("warn"), &json!(3)), "{warning}");
}

#[test]
fn signals_end_the_process_and_leave_the_entry() {
    for signal in [Signal::TERM, Signal::INT] {
        let (node, keeper) = Node::kept();
        keeper.until_it_says("added weir-cni");
        keeper.ends_after(signal);
        assert_eq!(node.types(CHAIN), ["ptp", "portmap", "weir-cni"]);
    }
    // Also while it waits.
    let node = Node::without_directory();
    let keeper = node.keep();
    keeper.until_it_says("there is no CNI configuration");
    keeper.ends_after(Signal::TERM);
}

/// The first process of a container gets only signals for which it has a handler.
#[test]
fn signal_ends_the_first_process_of_a_container() {
    let node = Node::new();
    let is_allowed = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    let is_allowed = is_allowed.map_err(|error| error.to_string()).and_then(|it| {
        if it.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&it.stderr).into_owned()) }
    });
    skip!(unless is_allowed.map_err(|error| format!("no PID namespace: {error}")));
    let mut unshare = Command::new("unshare");
    let arguments = format!("cni-install --keep {DIRECTORIES}");
    unshare.args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_weir")]).args(arguments.split_whitespace());
    unshare.current_dir(node.0.path()).stdin(Stdio::null());
    let mut keeper = Keeper::start(&node.0, unshare);
    keeper.until_it_says("added weir-cni");
    let id = keeper.process.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("it runs");
    let first = children.trim().parse().ok().and_then(Pid::from_raw).expect("one child");
    kill_process(first, Signal::TERM).expect("it runs");
    assert_eq!(keeper.ends().code(), Some(0), "unshare returns the code of its child: {}", keeper.log());
}

#[test]
fn no_other_process_installs_or_removes_while_it_is_kept() {
    let (node, keeper) = Node::kept();
    for mode in ["--remove", ""] {
        let refused = node.0.run(&format!("cni-install {DIRECTORIES} {mode}")).exits(2);
        refused.complains("holds the lock").complains("end that process first");
    }
    assert!(node.plugin().exists());
    assert_eq!(node.types(CHAIN), ["ptp", "portmap", "weir-cni"]);

    // As during an upgrade that starts the new pod first.
    let next = node.keep_with("--timeout 20");
    next.until_it_says("holds the lock");
    assert_eq!(node.plugins(CHAIN)[2]["timeoutSeconds"], 15);
    keeper.ends_after(Signal::TERM);
    until("the next process adds its entry", || {
        node.plugins(CHAIN).get(2).is_some_and(|it| it["timeoutSeconds"] == 20)
    });
    next.ends_after(Signal::TERM);
    node.0.run(&format!("cni-install {DIRECTORIES} --remove")).exits(0).says("removed weir-cni");
    assert_eq!(node.types(CHAIN), ["ptp", "portmap"]);
}

#[test]
fn uninstall_waits_until_the_entry_is_no_longer_kept() {
    let (node, keeper) = Node::kept();
    let uninstall = "watch --uninstall --bpffs pins --cni-socket cni.sock --health-addr unix:health.sock \
                     --cni-bin-dir bin --cni-conf-dir net.d";
    node.0.run(uninstall).exits(2).complains("holds the lock");
    assert_eq!(node.types(CHAIN), ["ptp", "portmap", "weir-cni"]);

    let mut waiting = Keeper::start(&node.0, node.0.command(&format!("{uninstall} --wait-for-agent=60")));
    waiting.until_it_says("waiting until the processes of the agent's pod end");
    assert_eq!(node.types(CHAIN), ["ptp", "portmap", "weir-cni"]);
    keeper.ends_after(Signal::TERM);
    assert_eq!(waiting.ends().code(), Some(0), "{}", waiting.log());
    assert_eq!(node.types(CHAIN), ["ptp", "portmap"]);
    assert!(!node.plugin().exists());
}

#[test]
fn process_ends_if_its_directory_was_removed() {
    let node = Node::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["cni-install", "--keep", "--conf-dir", ".", "--bin-dir"]).arg(node.path("bin"));
    // The current directory leads to the removed directory, as a mount in a container does.
    command.current_dir(node.path("net.d"));
    let mut keeper = Keeper::start(&node.0, command);
    node.until_added(CHAIN);
    fs::remove_dir_all(node.path("net.d")).expect("it is ours");
    fs::create_dir(node.path("net.d")).expect("the place is ours");
    assert_eq!(keeper.ends().code(), Some(2));
    assert!(keeper.log().contains("was removed"), "{}", keeper.log());
}

#[test]
fn check_finds_a_missing_entry_and_a_missing_plugin() {
    let node = Node::without_directory();
    let check = || node.0.run(&format!("cni-install --check {DIRECTORIES}"));
    fs::create_dir(node.path("net.d")).expect("the place is ours");
    check().exits(1).says("there is no CNI configuration");
    node.write(CHAIN, &chain(&["ptp"]));
    check().exits(1).says("has no entry of weir-cni");
    node.0.run(&format!("cni-install {DIRECTORIES}")).exits(0).says("has weir-cni");
    check().exits(0).says("10-net.conflist has weir-cni");
    fs::remove_file(node.plugin()).expect("it is there");
    check().exits(1).says("weir-cni does not exist");
    assert!(!node.plugin().exists(), "nothing is changed");
    node.write(CHAIN, "{");
    check().exits(2).complains("is not JSON");
}
