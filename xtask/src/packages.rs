//! System programs that tests need. They are installed if we may do so; otherwise their packages are named.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::run;

/// A program, and the Debian package that has it.
const WANTED: &[(&str, &str)] = &[
    ("make", "make"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("ipset", "ipset"),
    ("iperf3", "iperf3"),
    ("ping", "iputils-ping"),
    ("bpftool", "bpftool"),
    ("nsenter", "util-linux"),
    ("openssl", "openssl"),
    ("curl", "curl"),
    ("minisign", "minisign"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
];

/// Installs missing packages if we are root on Debian or Ubuntu; otherwise prints one line that says what to install.
pub(crate) fn ensure() -> Result<()> {
    let missing: Vec<&str> =
        WANTED.iter().filter(|(program, _)| !is_installed(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if is_root() && Path::new("/usr/bin/apt-get").exists() {
        return install(&missing);
    }
    eprintln!("note: tests that need these packages will be skipped: {}", missing.join(" "));
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    run(apt_get().args(["update", "-qq"]))?;
    run(apt_get().args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Whether a program is installed, also in directories that are only in root's path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').any(|directory| Path::new(directory).join(program).exists())
}

pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
