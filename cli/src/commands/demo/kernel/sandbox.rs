//! The objects of a demo on the machine: made, claimed and removed.
//!
//! Problem: a demo that is killed cannot clean up, and its successor must remove the leftovers without touching anything
//! of another owner. Strategy: each demo claims a random number by making `/run/weir-demo/NUMBER`, and holds a lock on
//! that directory while it lives. All that it makes is in the directory (files, a bpf file system of its own) or is a
//! network namespace `weir-demo-NUMBER-ROLE`; interfaces, routes and programs are in the namespaces and end with them. A
//! directory whose lock is free is a leftover, unless it has the mark of a demo that was kept.
//!
//! Invariant: only namespaces of a claimed number are removed, and only of the known roles.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_runtime::sys::Lock;

use crate::failure::with_hint;

const BASE: &str = "/run/weir-demo";
/// Where `ip netns` has its namespaces.
const NAMESPACES: &str = "/run/netns";
/// The namespaces of a demo.
pub(super) const ROLES: [&str; 6] = ["node", "web", "api", "db", "dns", "internet"];
/// The file in the directory of a demo that was kept.
const KEPT: &str = "kept";
/// Other demos may take the same number, or remove the base directory, at the same moment.
const TRIES: usize = 10;

/// The things of one demo. They are removed when it is dropped.
#[derive(Debug)]
pub(super) struct Sandbox {
    id: String,
    /// Until the demo ends.
    lock: Option<Lock>,
}

impl Sandbox {
    /// Claims a number, makes the namespaces, and mounts the bpf file system.
    pub(super) fn new() -> Result<Self> {
        let sandbox = Self::claim()?;
        let bpffs = sandbox.directory().join("bpf");
        fs::create_dir(&bpffs).with_context(|| format!("cannot make {}", bpffs.display()))?;
        // By default everyone may write to a bpf file system. Then another user could put links in the place of pins.
        rustix::mount::mount("bpf", &bpffs, "bpf", MountFlags::empty(), Some(c"mode=0700"))
            .context("cannot mount a bpf file system")?;
        ROLES.iter().try_for_each(|role| ip(&["netns", "add", &sandbox.namespace(role)], ""))?;
        Ok(sandbox)
    }

    fn claim() -> Result<Self> {
        for _ in 0..TRIES {
            make_base()?;
            // While the base is locked, no other demo takes the new directory for a leftover.
            let Some(_base) = lock_base() else { continue };
            let id = format!("{:08x}", weir_runtime::sys::random().context("no random number")? as u32);
            let is_free = ROLES.iter().all(|role| !namespace_path(&id, role).exists());
            if is_free && DirBuilder::new().mode(0o700).create(directory(&id)).is_ok() {
                let lock = Lock::take(&directory(&id)).with_context(|| format!("cannot lock {BASE}/{id}"))?;
                return Ok(Self { id, lock: Some(lock) });
            }
        }
        bail!("cannot make a directory in {BASE}")
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn directory(&self) -> PathBuf {
        directory(&self.id)
    }

    /// The directory for pins.
    pub(super) fn pins(&self) -> PathBuf {
        self.directory().join("bpf/weir")
    }

    pub(super) fn namespace(&self, role: &str) -> String {
        namespace(&self.id, role)
    }

    /// Runs lines of `ip -batch` in a namespace.
    pub(super) fn ip(&self, role: &str, lines: &str) -> Result<()> {
        ip(&["-n", &self.namespace(role), "-batch", "-"], lines)
    }

    /// Runs a function in a namespace: sockets that it makes stay there. A namespace is a property of a thread, so the
    /// function has a thread of its own.
    pub(super) fn enter<T: Send>(&self, role: &str, inside: impl FnOnce() -> T + Send) -> Result<T> {
        let path = namespace_path(&self.id, role);
        let namespace = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let inside =
            move || move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map(|()| inside());
        let ran = std::thread::scope(|scope| -> io::Result<_> {
            let thread = std::thread::Builder::new().spawn_scoped(scope, inside)?;
            Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        ran?.with_context(|| format!("cannot enter {}", path.display()))
    }

    /// Leaves everything in place.
    pub(super) fn keep(mut self) -> Result<()> {
        File::create(self.directory().join(KEPT)).context("cannot mark the demo as kept")?;
        self.lock = None;
        Ok(())
    }

    pub(super) fn remove(mut self) -> Result<()> {
        let removed = remove(&self.id);
        self.lock = None;
        removed
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Without the lock, the demo was kept or removed. There is no one to tell about an error here.
        if self.lock.is_some() {
            _ = remove(&self.id);
        }
    }
}

/// Makes the directory of all demos, for root alone: other users must not put links in it.
fn make_base() -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(BASE);
    made.with_context(|| format!("cannot make {BASE}"))?;
    let found = fs::symlink_metadata(BASE).with_context(|| format!("cannot read {BASE}"))?;
    let is_ours = found.is_dir() && found.uid() == 0 && found.mode() & 0o077 == 0;
    ensure!(is_ours, "other users can write to {BASE} or read it: remove it, and try again");
    Ok(())
}

/// The base's lock; `None` if other demos hold it for a second, or remove the base.
fn lock_base() -> Option<Lock> {
    (0..50).find_map(|_| {
        let lock = Lock::take(Path::new(BASE)).ok();
        if lock.is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        lock
    })
}

/// The numbers of the demos that were removed, and the errors of others.
#[derive(Debug, Default)]
pub(super) struct RemovedDemos {
    pub(super) removed: Vec<String>,
    pub(super) failed: Vec<Error>,
}

/// Removes leftovers of demos that were killed, and with `kept` also demos that were kept; of `which` alone if it is
/// given. Living demos stay.
pub(super) fn remove_all(which: Option<&str>, kept: bool) -> RemovedDemos {
    let mut found = RemovedDemos::default();
    let Ok(entries) = fs::read_dir(BASE) else { return found };
    let names = entries.flatten().map(|it| it.file_name().to_string_lossy().into_owned());
    let mut ids: Vec<String> = names.filter(|it| is_id(it) && which.is_none_or(|which| which == it)).collect();
    ids.sort();
    // Without the lock, a directory may be that of a demo that is just beginning.
    let Some(_base) = lock_base().filter(|_| !ids.is_empty()) else { return found };
    for id in ids {
        let Ok(_lock) = Lock::take(&directory(&id)) else { continue };
        if kept || !directory(&id).join(KEPT).exists() {
            match remove(&id).with_context(|| format!("cannot remove the leftovers of demo {id}")) {
                Ok(()) => found.removed.push(id),
                Err(error) => found.failed.push(error),
            }
        }
    }
    found
}

/// Removes the namespaces, the bpf file system and the files of a demo; continues after errors and returns the first.
fn remove(id: &str) -> Result<()> {
    let existing = ROLES.iter().filter(|role| namespace_path(id, role).exists());
    let mut results: Vec<Result<()>> = existing.map(|role| ip(&["netns", "del", &namespace(id, role)], "")).collect();
    let directory = directory(id);
    let bpffs = directory.join("bpf");
    if weir_runtime::sys::is_bpffs(&bpffs).unwrap_or(false) {
        // Unmounting removes the pins, and with them the programs that only they held.
        let unmounted = rustix::mount::unmount(&bpffs, UnmountFlags::DETACH);
        results.push(unmounted.with_context(|| format!("cannot unmount {}", bpffs.display())));
    }
    results.into_iter().collect::<Result<()>>()?;
    match fs::remove_dir_all(&directory) {
        // Another demo has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        removed => removed.with_context(|| format!("cannot remove {}", directory.display()))?,
    }
    // It is not empty while there are other demos.
    _ = fs::remove_dir(BASE);
    Ok(())
}

fn is_id(name: &str) -> bool {
    name.len() == 8 && name.bytes().all(|it| it.is_ascii_hexdigit())
}

fn directory(id: &str) -> PathBuf {
    Path::new(BASE).join(id)
}

fn namespace(id: &str, role: &str) -> String {
    format!("weir-demo-{id}-{role}")
}

fn namespace_path(id: &str, role: &str) -> PathBuf {
    Path::new(NAMESPACES).join(namespace(id, role))
}

/// Runs `ip` with input.
fn ip(arguments: &[&str], input: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C reaches all processes of the terminal's group, and would end `ip` in the middle of a removal.
    let mut child = command.process_group(0).spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => with_hint(
            "the demo builds its network with `ip`, which is not on the PATH",
            "install iproute2, or see the demo without the kernel: weir demo --vm",
        ),
        _ => anyhow!(error).context("cannot run `ip`"),
    })?;
    if let Some(mut stdin) = child.stdin.take() {
        // `ip` may stop reading. Its exit status shows whether it failed.
        _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().context("cannot wait for `ip`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {}` failed: {}", arguments.join(" "), said.trim());
    Ok(())
}
