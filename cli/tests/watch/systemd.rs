//! The systemd unit, under a real systemd: its sandbox leaves the agent all that it needs.
//!
//! systemd is the first process of namespaces that the test makes, so it starts no unit of this machine.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use weir_runtime::skip;

use crate::rig::{Directory, until};

const SYSTEMD: &str = "/usr/lib/systemd/systemd";
const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd/weir.service");
const BOOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/watch/systemd/boot.sh");
const OBJECTS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
status: {podIP: 10.88.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
status: {podIP: 10.88.0.3}
---
apiVersion: v1
kind: Pod
metadata: {name: cron, namespace: shop, labels: {app: cron}}
status: {podIP: 10.88.0.4}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector: {matchLabels: {app: db}}
";

/// A host whose init process is systemd, with three containers on a bridge.
struct Host {
    unshare: Child,
    /// The id of systemd, as this machine sees it.
    systemd: u32,
    _directory: Directory,
}

impl Host {
    fn boot() -> Result<Self, String> {
        if !Path::new(SYSTEMD).exists() {
            return Err("systemd is not installed".into());
        }
        let directory = Directory::new();
        let root = directory.path().join("root");
        fs::create_dir(&root).map_err(|error| error.to_string())?;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc", "--cgroup", "sh", BOOT]);
        unshare.arg(&root).args([env!("CARGO_BIN_EXE_weir"), UNIT]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut unshare = unshare.spawn().map_err(|error| error.to_string())?;
        let mut systemd = None;
        until("systemd runs, or its namespaces cannot be made", || {
            systemd = child_of(unshare.id()).filter(|child| name_of(*child) == "systemd");
            systemd.is_some() || unshare.try_wait().is_ok_and(|status| status.is_some())
        });
        let systemd = systemd.ok_or("namespaces for systemd cannot be made")?;
        let host = Self { unshare, systemd, _directory: directory };
        until("the host is up", || host.run("systemctl is-active host.target").status.success());
        host.script(
            "mkdir -p /run/netns; ip link set lo up
             ip link add br0 type bridge; ip address add 10.88.0.1/16 dev br0; ip link set br0 up",
        );
        for (name, last) in [("web", 2), ("db", 3), ("cron", 4)] {
            host.script(&format!(
                "ip netns add {name}; ip link add v-{name} type veth peer name eth0 netns {name}
                 ip link set v-{name} master br0 up; ip -n {name} address add 10.88.0.{last}/16 dev eth0
                 ip -n {name} link set eth0 up"
            ));
        }
        Ok(host)
    }

    /// Runs a command on the host.
    fn run(&self, command: &str) -> Output {
        let (id, root) = (self.systemd.to_string(), format!("--root=/proc/{}/root", self.systemd));
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &id, "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", &root, "--wd=/"]);
        enter.args(["sh", "-c", command]).stdin(Stdio::null()).output().expect("nsenter starts")
    }

    /// Runs commands that must not fail, and returns their standard output.
    #[track_caller]
    fn script(&self, commands: &str) -> String {
        let output = self.run(&format!("set -e; {commands}"));
        assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn reaches(&self, from: &str, to: u8) -> bool {
        self.run(&format!("ip netns exec {from} ping -c 1 -W 1 10.88.0.{to}")).status.success()
    }

    fn is_ready(&self) -> bool {
        let url = "curl -s -o /dev/null -w '%{http_code}' --unix-socket /run/weir/health.sock http://localhost/readyz";
        self.run(url).stdout == b"200"
    }

    #[track_caller]
    fn assert_enforced(&self) {
        assert!(self.reaches("db", 2) && self.reaches("web", 4), "what the policy allows is dropped");
        assert!(!self.reaches("cron", 2), "what the policy denies passes");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The other processes of the namespaces end with their first one, and `unshare` with that.
        _ = Command::new("kill").args(["-KILL", &self.systemd.to_string()]).status();
        _ = self.unshare.wait();
    }
}

fn child_of(id: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn name_of(id: u32) -> String {
    fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default().trim().to_owned()
}

#[test]
fn the_unit_enforces_files_through_crashes_and_stops() {
    let host = skip!(unless Host::boot());
    host.script("mkdir -p /etc/weir/policies");
    fs::write(format!("/proc/{}/root/etc/weir/policies/shop.yaml", host.systemd), OBJECTS).expect("the host is ours");
    host.script("systemctl start weir");
    until("the policy is in force", || host.is_ready());
    host.assert_enforced();

    // systemd starts the agent again after a crash.
    let agent = host.script("systemctl show --property=MainPID weir");
    host.script("systemctl kill --signal=KILL weir");
    until("another agent is ready", || {
        host.script("systemctl show --property=MainPID weir") != agent && host.is_ready()
    });
    host.assert_enforced();

    host.script("systemctl stop weir");
    host.assert_enforced();
    host.script("weir watch --uninstall");
    assert!(host.reaches("cron", 2), "uninstalled, and packets are still dropped");
    assert_eq!(host.script("ls /sys/fs/bpf | grep -v debug || true"), "", "pins are left");
}
