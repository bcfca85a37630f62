//! A node: namespaces that one process holds. When that process is killed, the kernel ends every process in the
//! namespaces, pods too, and removes interfaces, mounts and pins. So stopping is complete, even if starting failed
//! halfway.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::cgroups;
use super::tools::Tools;
use crate::process::{capture, wait};

const INIT: &str = include_str!("init.sh");
const PATIENCE: Duration = Duration::from_secs(60);

/// A running node.
#[derive(Clone, Debug)]
pub(super) struct ClusterNode {
    pub(super) number: usize,
    directory: PathBuf,
    tools: Tools,
    /// Its first process, by the machine's process number.
    init: u32,
}

/// `node-0`
pub(super) fn name(number: usize) -> String {
    format!("node-{number}")
}

impl ClusterNode {
    /// Starts an empty node. Its directory keeps the logs.
    pub(super) fn start(number: usize, run: &Path, tools: &Tools) -> Result<Self> {
        let directory = run.join(name(number));
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        cgroups::make(&cgroups::name(number))?;
        let log = File::create(directory.join("init.log"))?;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]);
        unshare.args(["sh", "-euc", INIT, "sh"]).arg(&directory).arg(name(number));
        unshare.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // An interrupt from the terminal must not end the node.
        std::os::unix::process::CommandExt::process_group(&mut unshare, 0);
        let parent = unshare.spawn().context("could not start unshare")?.id();
        let ready = directory.join("ready");
        wait(&name(number), PATIENCE, || ready.exists() || !is_alive(parent))?;
        if !ready.exists() {
            bail!(
                "{} does not start (this needs root): {}",
                name(number),
                fs::read_to_string(directory.join("init.log"))?
            );
        }
        let init = only_child(parent)?;
        fs::write(directory.join("pid"), identity(init).context("the node has ended already")?)?;
        Ok(Self { number, directory, tools: tools.clone(), init })
    }

    /// Finds a node that was started before, if it still runs.
    pub(super) fn find(number: usize, run: &Path, tools: &Tools) -> Option<Self> {
        let directory = run.join(name(number));
        let identity = fs::read_to_string(directory.join("pid")).ok()?;
        let init = alive(&identity)?;
        Some(Self { number, directory, tools: tools.clone(), init })
    }

    /// `node-0`
    pub(super) fn name(&self) -> String {
        name(self.number)
    }

    pub(super) fn address(&self) -> String {
        format!("172.31.0.{}", 10 + self.number)
    }

    /// The subnet of its pods.
    pub(super) fn subnet(&self) -> String {
        format!("10.244.{}.0/24", self.number)
    }

    /// The control group above those of its pods.
    pub(super) fn group(&self) -> String {
        cgroups::name(self.number)
    }

    /// The directory of its logs.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number of its first process.
    pub(super) fn init(&self) -> u32 {
        self.init
    }

    /// A command that runs a program in the node's namespaces.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string(), "--mount", "--net", "--pid", "--uts", "--ipc", "--"]);
        command.arg(program).env("PATH", self.tools.path()).stdin(Stdio::null());
        command
    }

    /// Runs a line of shell in the node and returns its output.
    pub(super) fn shell(&self, line: &str) -> Result<String> {
        capture(self.command("sh").args(["-euc", line]))
    }

    /// Writes a file on it.
    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        capture(self.command("sh").args(["-euc", r#"printf %s "$2" > "$1""#, "sh", path, text])).map(|_| ())
    }

    /// Starts a daemon that runs until the node ends, with a log file and a file with its process number on the
    /// machine.
    pub(super) fn daemon(&self, name: &str, mut command: Command) -> Result<()> {
        let path = self.directory.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(path)?;
        command.stdout(log.try_clone()?).stderr(log);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let parent = command.spawn().with_context(|| format!("could not start {name}"))?.id();
        let mut child = None;
        wait(name, PATIENCE, || {
            child = only_child(parent).ok().and_then(identity);
            child.is_some() || !is_alive(parent)
        })?;
        let child = child.with_context(|| format!("{name} has ended: {}", self.log(name)))?;
        Ok(fs::write(self.directory.join(format!("{name}.pid")), child)?)
    }

    /// Kills a daemon, as a crash would.
    pub(super) fn kill(&self, name: &str) -> Result<()> {
        let identity = fs::read_to_string(self.directory.join(format!("{name}.pid")));
        let id = identity.ok().and_then(|it| alive(&it)).with_context(|| format!("{name} does not run"))?;
        kill(id)
    }

    /// The last lines of a daemon's log.
    pub(super) fn log(&self, name: &str) -> String {
        let path = self.directory.join(format!("{name}.log"));
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        format!("{}:\n{}", path.display(), lines[lines.len().saturating_sub(20)..].join("\n"))
    }

    /// Ends all processes of the node.
    pub(super) fn stop(self) -> Result<()> {
        kill(self.init)?;
        Ok(fs::remove_file(self.directory.join("pid"))?)
    }
}

/// Identifies a process by its number and start time: the number alone may belong to another process later.
fn identity(id: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name may contain any character; the last parenthesis ends it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?;
    (state != "Z").then(|| format!("{id} {started}"))
}

/// The process number, if it still belongs to the same process.
fn alive(identity: &str) -> Option<u32> {
    let id = identity.split(' ').next()?.parse().ok()?;
    (self::identity(id)? == identity).then_some(id)
}

fn is_alive(id: u32) -> bool {
    identity(id).is_some()
}

fn only_child(of: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children"))?;
    Ok(children.trim().parse()?)
}

fn kill(id: u32) -> Result<()> {
    capture(Command::new("kill").args(["-KILL", &id.to_string()]))?;
    wait(&format!("the end of process {id}"), PATIENCE, || !is_alive(id))
}
