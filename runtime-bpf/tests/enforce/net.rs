//! A node with pods, in network namespaces of its own.
//!
//! Names contain the process number; if a test died, the next one removes its namespaces.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The prefix of all names that are made here.
const PREFIX: &str = "weirt";

/// How pods are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One host route a pod; pods know one neighbour.
    Routed,
    /// All on one bridge, which has the gateway's address.
    Bridge,
}

/// A node: its namespace, its pods', a bpf file system.
pub(crate) struct Node {
    name: String,
    pods: Vec<String>,
    layout: Layout,
    directory: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The gateway's addresses, which are the node's.
pub(crate) const GATEWAY: [&str; 2] = ["10.9.0.1", "fd09::1"];

/// A pod's address by its place in the list.
pub(crate) fn pod_address(index: usize, v6: bool) -> IpAddr {
    let text = if v6 { format!("fd09::{:x}", index + 16) } else { format!("10.9.0.{}", index + 16) };
    text.parse().unwrap()
}

pub(crate) fn run(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    output.status.success()
}

#[track_caller]
pub(crate) fn must(command: &str) {
    let mut words = command.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether this machine can run these tests.
pub(crate) fn possible() -> Result<(), String> {
    static POSSIBLE: OnceLock<Result<(), String>> = OnceLock::new();
    POSSIBLE.get_or_init(try_out).clone()
}

fn try_out() -> Result<(), String> {
    sweep();
    weir_runtime::sys::BpfKernel::open().map_err(|error| format!("no bpf system call: {error}"))?;
    let name = format!("{PREFIX}{}x", std::process::id());
    if !run(&format!("ip netns add {name}")) {
        return Err("no network namespaces".to_owned());
    }
    run(&format!("ip netns del {name}"));
    Ok(())
}

/// Removes what dead processes left behind.
fn sweep() {
    let dead = |name: &str| {
        let process: String = name.strip_prefix(PREFIX)?.chars().take_while(char::is_ascii_digit).collect();
        (!Path::new("/proc").join(process).exists()).then_some(())
    };
    let names = |directory: &str| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    for name in names("/run/netns").iter().filter(|name| dead(name).is_some()) {
        run(&format!("ip netns del {name}"));
    }
    let temporary = std::env::temp_dir();
    for name in names(temporary.to_str().unwrap()).iter().filter(|name| dead(name).is_some()) {
        let directory = temporary.join(name);
        run(&format!("umount {}", directory.display()));
        _ = std::fs::remove_dir(directory);
    }
}

impl Node {
    /// A node with `pods` pods, all of them dual-stack.
    pub(crate) fn new(layout: Layout, pods: usize) -> Self {
        let name = format!("{PREFIX}{}n{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&directory).unwrap();
        must(&format!("mount -t bpf bpf {}", directory.display()));
        must(&format!("ip netns add {name}"));
        let mut node = Self { name, pods: Vec::new(), layout, directory };
        node.prepare();
        (0..pods).for_each(|_| _ = node.add_pod());
        node
    }

    fn prepare(&self) {
        self.ip("link set lo up");
        for setting in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            self.set(&self.name, setting, "1");
        }
        for setting in ["net/ipv6/conf/default/accept_dad", "net/ipv4/conf/all/rp_filter"] {
            self.set(&self.name, setting, "0");
        }
        if self.layout == Layout::Bridge {
            self.ip("link add br0 type bridge");
            self.ip("link set br0 up");
            self.ip(&format!("addr add {}/16 dev br0", GATEWAY[0]));
            self.ip(&format!("addr add {}/64 dev br0 nodad", GATEWAY[1]));
        }
    }

    fn set(&self, namespace: &str, setting: &str, value: &str) {
        inside(namespace, || std::fs::write(Path::new("/proc/sys").join(setting), value).unwrap());
    }

    /// In the node's namespace.
    #[track_caller]
    pub(crate) fn ip(&self, arguments: &str) {
        must(&format!("ip -n {} {arguments}", self.name));
    }

    /// `tc` in the node's namespace.
    #[track_caller]
    pub(crate) fn tc(&self, arguments: &str) {
        must(&format!("tc -n {} {arguments}", self.name));
    }

    /// The name of its namespace.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Moves an interface of this node to another one.
    #[track_caller]
    pub(crate) fn move_to(&self, other: &Self, interface: &str) {
        self.ip(&format!("link set {interface} netns {}", other.name));
    }

    /// Lines for `ip -batch` in the node's namespace.
    #[track_caller]
    pub(crate) fn batch(&self, lines: &str) {
        let file = self.directory.with_extension("batch");
        std::fs::write(&file, lines).unwrap();
        must(&format!("ip -n {} -batch {}", self.name, file.display()));
        std::fs::remove_file(file).unwrap();
    }

    /// Another pod; its place in the list.
    pub(crate) fn add_pod(&mut self) -> usize {
        let index = self.pods.len();
        let pod = format!("{}p{index}", self.name);
        must(&format!("ip netns add {pod}"));
        self.pods.push(pod);
        self.plug(index);
        index
    }

    /// Gives a pod its interface.
    pub(crate) fn plug(&self, index: usize) {
        let pod = &self.pods[index];
        let interface = self.interface(index);
        let in_pod = |arguments: &str| must(&format!("ip -n {pod} {arguments}"));
        self.ip(&format!("link add {interface} type veth peer name eth0 netns {pod}"));
        self.set(pod, "net/ipv6/conf/eth0/accept_dad", "0");
        in_pod("link set lo up");
        in_pod("link set eth0 up");
        let [v4, v6] = [false, true].map(|it| pod_address(index, it));
        let length = if self.layout == Layout::Routed { [32, 128] } else { [16, 64] };
        in_pod(&format!("addr add {v4}/{} dev eth0", length[0]));
        in_pod(&format!("addr add {v6}/{} dev eth0 nodad", length[1]));
        if self.layout == Layout::Routed {
            self.ip(&format!("addr add {}/32 dev {interface}", GATEWAY[0]));
            self.ip(&format!("addr add {}/128 dev {interface} nodad", GATEWAY[1]));
            self.ip(&format!("link set {interface} up"));
            self.ip(&format!("route add {v4} dev {interface}"));
            self.ip(&format!("-6 route add {v6} dev {interface}"));
            in_pod(&format!("route add {} dev eth0 scope link", GATEWAY[0]));
            in_pod(&format!("-6 route add {} dev eth0", GATEWAY[1]));
        } else {
            self.ip(&format!("link set {interface} master br0 up"));
            self.ip(&format!("link set {interface} type bridge_slave hairpin on"));
        }
        in_pod(&format!("route add default via {}", GATEWAY[0]));
        in_pod(&format!("-6 route add default via {}", GATEWAY[1]));
    }

    /// The host's end of a pod's interface.
    pub(crate) fn interface(&self, index: usize) -> String {
        format!("veth{index}")
    }

    /// Where everything is pinned.
    pub(crate) fn bpffs(&self) -> PathBuf {
        self.directory.join("weir")
    }

    /// In a pod's namespace.
    pub(crate) fn in_pod<T: Send>(&self, index: usize, what: impl FnOnce() -> T + Send) -> T {
        inside(&self.pods[index], what)
    }

    /// In the node's namespace.
    pub(crate) fn here<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        inside(&self.name, what)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for name in self.pods.iter().chain([&self.name]) {
            run(&format!("ip netns del {name}"));
        }
        run(&format!("umount {}", self.directory.display()));
        _ = std::fs::remove_dir(&self.directory);
    }
}

/// In a thread of its own, in a namespace.
pub(crate) fn inside<T: Send>(namespace: &str, what: impl FnOnce() -> T + Send) -> T {
    let file = File::open(Path::new("/run/netns").join(namespace)).unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // Only this thread changes its namespace, and it ends here.
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
