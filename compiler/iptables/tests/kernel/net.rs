//! Hosts around a router, each in a network namespace of its own, without a connection to the outside.
//!
//! Every host has one address of each family and a default route through the router, as pods have. The names of the
//! namespaces contain the process id; those of dead processes are removed at the start.

use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PREFIX: &str = "weir-test-";

/// The reason why the test cannot run here, or the failure.
pub(crate) type Error = Box<dyn std::error::Error>;

/// The addresses of a host.
pub(crate) struct Host {
    pub(crate) v4: IpAddr,
    pub(crate) v6: IpAddr,
}

impl Host {
    pub(crate) fn address(&self, v6: bool) -> IpAddr {
        if v6 { self.v6 } else { self.v4 }
    }
}

/// The namespaces and the servers in them. They are removed on drop.
pub(crate) struct Net {
    names: Vec<String>,
    servers: Vec<Child>,
}

impl Net {
    /// Creates the namespaces, and starts a server on these ports on every host.
    pub(crate) fn new(hosts: &[Host], ports: &[u16]) -> Result<Self, Error> {
        remove_stale();
        let name = |part: &str| format!("{PREFIX}{}-{part}", std::process::id());
        let mut net = Self { names: Vec::new(), servers: Vec::new() };
        net.add(name("router"))?;
        let forwarding = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
        net.router(&["sh", "-c", forwarding], "")?;
        for (index, host) in hosts.iter().enumerate() {
            net.add(name(&index.to_string()))?;
            net.connect(index, host)?;
            net.serve(index, ports)?;
        }
        Ok(net)
    }

    fn add(&mut self, name: String) -> Result<(), Error> {
        run(&mut Command::new("ip"), &["netns", "add", &name], "")?;
        self.names.push(name);
        Ok(())
    }

    fn connect(&self, index: usize, host: &Host) -> Result<(), Error> {
        let ip = |arguments: &str| run(&mut Command::new("ip"), &arguments.split(' ').collect::<Vec<_>>(), "");
        let (router, name, veth) = (&self.names[0], &self.names[index + 1], format!("veth{index}"));
        ip(&format!("link add {veth} netns {router} type veth peer name eth0 netns {name}"))?;
        for line in [
            format!("-n {router} link set {veth} up"),
            format!("-n {router} addr add 169.254.1.1/32 dev {veth}"),
            format!("-n {router} addr add fe80::1/64 dev {veth} nodad"),
            format!("-n {router} route add {}/32 dev {veth}", host.v4),
            format!("-n {router} route add {}/128 dev {veth}", host.v6),
            format!("-n {name} link set lo up"),
            format!("-n {name} link set eth0 up"),
            format!("-n {name} addr add {}/32 dev eth0", host.v4),
            format!("-n {name} addr add {}/128 dev eth0 nodad", host.v6),
            format!("-n {name} route add 169.254.1.1 dev eth0"),
            format!("-n {name} route add default via 169.254.1.1"),
            format!("-n {name} route add default via fe80::1 dev eth0"),
        ] {
            ip(&line)?;
        }
        Ok(())
    }

    fn serve(&mut self, index: usize, ports: &[u16]) -> Result<(), Error> {
        let mut command = inside(&self.names[index + 1])?;
        command.arg(std::env::current_exe()?).arg("serve").args(ports.iter().map(u16::to_string));
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = server.stdout.take();
        self.servers.push(server);
        let mut ready = String::new();
        BufReader::new(output.ok_or("no output")?).read_line(&mut ready)?;
        if ready.trim() == "ready" { Ok(()) } else { Err("a server did not start".into()) }
    }

    /// Runs a command in the router's namespace.
    pub(crate) fn router(&self, command: &[&str], input: &str) -> Result<String, Error> {
        run(&mut inside(&self.names[0])?, command, input)
    }

    /// Starts a client on a host. Its input are the flows to try, its output which of them arrived.
    pub(crate) fn probe(&self, index: usize, tries: &str) -> Result<String, Error> {
        let own = std::env::current_exe()?;
        run(&mut inside(&self.names[index + 1])?, &[own.to_str().ok_or("a path that is no text")?, "probe"], tries)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // Servers also stop when this process ends, because their input ends; either is enough.
            let _ = server.kill();
            let _ = server.wait();
        }
        self.names.iter().for_each(|name| remove(name));
    }
}

fn inside(namespace: &str) -> Result<Command, Error> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]);
    Ok(command)
}

/// Runs a command with input, and returns its output; an error contains its error output.
pub(crate) fn run(command: &mut Command, arguments: &[&str], input: &str) -> Result<String, Error> {
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{arguments:?}: {error}"))?;
    let (mut stdin, text) = (child.stdin.take().ok_or("no input")?, input.to_owned());
    // A child may stop reading early; its exit status shows whether that is an error.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    let _ = writer.join();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim()).into()),
    }
}

/// Removes the namespaces of processes that were killed.
fn remove_stale() {
    let Ok(names) = namespaces() else { return };
    for name in names {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|id| id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists()) {
            remove(&name);
        }
    }
}

fn namespaces() -> io::Result<Vec<String>> {
    let output = Command::new("ip").args(["netns", "list"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

fn remove(name: &str) {
    let _ = Command::new("ip").args(["netns", "del", name]).status();
}
