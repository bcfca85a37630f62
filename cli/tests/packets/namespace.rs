//! Network namespaces without names.
//!
//! Only this process and its children hold them. So they disappear with it, even after a crash, with every interface,
//! route and rule in them. Only a directory with a bpffs can be left behind; see [`crate::place`].

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};

use crate::sys;

/// The error of any helper.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    file: File,
}

/// Settings of every namespace, made before it has interfaces.
const SETTINGS: [(&str, &str); 9] = [
    ("ipv4/ip_forward", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    // Addresses can be used at once.
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    // Only the code under test may drop packets.
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/icmp_ratelimit", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    ("ipv4/ping_group_range", "0 2147483647"),
];

impl Namespace {
    /// Makes a network namespace with loopback up.
    pub(crate) fn new() -> Result<Self, Error> {
        let file = on_thread(sys::unshare_network)??;
        let it = Self { file };
        for (setting, value) in SETTINGS {
            it.set(setting, value)?;
        }
        it.ip("link set lo up\n")?;
        Ok(it)
    }

    /// Runs a function inside: sockets that it makes stay in the namespace.
    pub(crate) fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_thread(|| sys::enter(self.file.as_fd()).map(|()| inside()))?
    }

    /// Writes under `/proc/sys/net`.
    pub(crate) fn set(&self, setting: &str, value: &str) -> Result<(), Error> {
        let path = format!("/proc/sys/net/{setting}");
        self.enter(|| std::fs::write(&path, value))?.map_err(|error| format!("{path}: {error}").into())
    }

    /// A command that will run inside.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        sys::run_inside(&mut command, self.file.as_fd());
        command
    }

    /// Runs a command inside, with input, and gives its output.
    pub(crate) fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, Error> {
        run(self.command(program).args(arguments), input)
    }

    /// Runs lines of `ip -batch` inside.
    pub(crate) fn ip(&self, lines: &str) -> Result<(), Error> {
        self.run("ip", &["-batch", "-"], lines).map(drop).map_err(|error| format!("{error}\n{lines}").into())
    }

    /// The path of the namespace, in the form that `ip` accepts.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// A namespace is a property of a thread, so code that changes it runs in a thread of its own.
fn on_thread<T: Send>(inside: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, inside)?;
        thread.join().or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs a command with input and returns its output; an error contains its standard error.
pub(crate) fn run(command: &mut Command, input: &str) -> Result<String, Error> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let mut stdin = child.stdin.take().ok_or("no input")?;
    let output = std::thread::scope(|scope| {
        // Ignore write errors: a child may stop reading, and its exit status shows whether it failed.
        scope.spawn(move || stdin.write_all(input.as_bytes()));
        child.wait_with_output()
    })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let (said, status) = (String::from_utf8_lossy(&output.stderr).into_owned(), output.status);
            Err(format!("{command:?}: {status}: {}", said.trim()).into())
        }
    }
}
