//! Enforcement on this machine: attach, switch, repair, detach.
//!
//! Problem: the process can die between any two operations, and any operation can fail; the rules in force must stay in
//! force.
//! Strategy: the [`EnforcementRecord`] is the desired state, and [`Runtime::reconcile`] makes the kernel's state equal
//! to it, from any state. A change is: reconcile; make the new objects, not yet in use; write the record; reconcile. So
//! recovery, adoption, repair and the change itself share one implementation. Only an agent checks a generation that it
//! replaces first, and reconciles it only if there is a deviation.
//!
//! A switch to another generation:
//!
//! ```text
//!  make next (maps filled, programs loaded, pinned under next/)     not yet in use; with the same code, the spare is
//!                                                                   filled instead: `generation::take_over`
//!  pair it with current: each knows the other's mark and program    packets that one has seen go through both hooks of that one
//!  record: next                                                     from here on, recovery goes forward
//!  replace the program at each uplink, then at each point           atomic each; a new endpoint gets its entry with its
//!                                                                   programs, see `new_endpoints`
//!  record: current = next, retired = current                        in force
//!  after a grace period: unpair; remove old, or keep it as spare
//! ```

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_artifact::Artifact;

use crate::error::{Doing as _, Error};
use crate::generation::{self, LoadedGeneration, ObjectSource};
use crate::pins::{Age, Pins};
use crate::record::{EnforcedEndpoint, EnforcementRecord, KernelGeneration, LatestRecord};
use crate::sys::{self, KernelProgram, Lock, errno};
use crate::system::System;

mod attach;
mod check;
mod contents;
mod detach;
mod edge;
mod ended;
mod endpoint_entries;
mod endpoint_programs;
mod endpoint_table;
mod extended;
mod hook_check;
mod hook_move;
mod kept;
mod latest_code;
mod leaving;
mod measure;
mod new_endpoints;
mod other_installation;
mod own_addresses;
mod pods;
mod prepared;
mod reconcile;
mod recorded_pins;
mod retired;
mod single;
mod status;
mod switch;
mod unattached;

pub use attach::{Attached, ExactPods, Request};
pub use edge::{EdgeFailure, EdgeState};
pub use ended::EndedFlows;
pub use hook_check::HookCheck;
pub(crate) use kept::HeldObjects;
pub(crate) use measure::EventLimit;
pub(crate) use own_addresses::{OWN, OwnAddresses, of};
pub use pods::{ComingPod, LeavingPod};
pub use status::{Deviations, EndpointState, EnforcementState, EnforcementStatus, Fill, UplinkState};
pub use unattached::{UnattachedEndpoint, unattached};

/// The longest time that a packet may wait in queues between two hooks of this host. The CNI plug-in `bandwidth` makes
/// queues of 25 ms (longer ones if its burst is large). Where the kernel cannot wait for packets that are in no queue,
/// previous generations are kept for twice this time.
pub const GRACE: Duration = Duration::from_millis(30);
/// How long to wait for another process to end its change.
const PATIENCE: Duration = Duration::from_secs(2);

/// The purpose for which a directory of pins is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinAccess {
    /// To read.
    Read,
    /// To change; other processes cannot change anything meanwhile.
    Change,
}

/// Enforcement under one directory of pins.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) system: System,
    pub(crate) pins: Pins,
    lock: Mutex<Option<kept::Locked>>,
    latest_record: Mutex<LatestRecord>,
    /// The agent's copy of all pinned objects. `None` for commands, which end after one operation.
    kept: Option<Mutex<kept::Kept>>,
    contests: Option<Mutex<hook_check::Contests>>,
    hurried_moves: Option<Mutex<hook_move::HurriedMoves>>,
    /// Only an agent has it: a command looks at a generation once.
    latest_table: Option<Mutex<endpoint_table::LatestTable>>,
    /// Only an agent has it, too.
    latest_code: Option<latest_code::LatestCode>,
    /// Only an agent has it: a command writes a table once.
    written: Option<generation::WrittenTables>,
    /// See [`Runtime::nothing`].
    nothing: OnceLock<KernelProgram>,
    /// The program that closes interfaces, once it was needed.
    pub(crate) closing: OnceLock<KernelProgram>,
    grace: Duration,
    /// The thread that waits for the retired generation, until it is reaped or paired again.
    retired_wait: Mutex<Option<retired::RetiredWait>>,
    /// Whether an endpoint that fails is closed, and the operation continues with the others.
    apart: bool,
    /// Whether the generation before is kept as a spare, for further changes.
    spares: bool,
    /// Keeps the directory open through which the paths of pins lead.
    _root: Option<File>,
}

impl Runtime {
    /// In this thread's network namespace, under a directory of a bpf file system.
    pub fn open(bpffs: &Path, access: PinAccess) -> Result<Self, Error> {
        Self::with_system(System::open().map_err(Error::NoBpf)?, bpffs, access)
    }

    /// The same on a [`System`] that may inject faults.
    pub fn with_system(system: System, bpffs: &Path, access: PinAccess) -> Result<Self, Error> {
        let (path, root) = reach(&system, bpffs)?;
        let pins = Pins::new(&path);
        let lock = Mutex::new(None);
        let mut runtime = Self {
            system,
            pins,
            lock,
            latest_record: Mutex::default(),
            kept: None,
            contests: None,
            hurried_moves: None,
            latest_table: None,
            latest_code: None,
            written: None,
            nothing: OnceLock::new(),
            closing: OnceLock::new(),
            grace: GRACE,
            retired_wait: Mutex::default(),
            apart: false,
            spares: false,
            _root: root,
        };
        if access == PinAccess::Change {
            let make = |directory: &Path| {
                runtime.system.make_directory(directory).doing(format!("make {}", directory.display()))
            };
            make(runtime.pins.root())?;
            let lock = runtime.take_lock()?;
            // The process that held the lock before may have removed the directories.
            runtime.make_directories()?;
            let locked = kept::Locked::new(lock, runtime.pins.root());
            runtime.lock = Mutex::new(Some(locked));
        }
        Ok(runtime)
    }

    /// Removes previous generations without waiting for packets under way. Only for tests without packets under way.
    pub fn without_grace(self) -> Self {
        self.with_grace(Duration::ZERO)
    }

    /// Keeps previous generations for this time instead of [`GRACE`]. Only for tests.
    pub fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// If the next generation cannot be put in force at an endpoint, closes the endpoint and continues with the others.
    /// Without this, all endpoints stay with the previous generation.
    pub fn one_by_one(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Keeps the previous generation when no packet passes through it any more, so that the next one can reuse its
    /// programs and maps. Only for processes that switch often: the maps of two generations take twice the memory.
    pub fn with_spare(mut self) -> Self {
        self.spares = true;
        self
    }

    /// Makes the directories of pins that do not exist.
    pub(crate) fn make_directories(&self) -> Result<(), Error> {
        for directory in self.pins.directories().iter().filter(|directory| !directory.is_dir()) {
            self.system.make_directory(directory).doing(format!("make {}", directory.display()))?;
        }
        Ok(())
    }

    /// Whether other processes cannot change anything.
    pub(crate) fn has_lock(&self) -> bool {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn take_lock(&self) -> Result<Lock, Error> {
        let (path, begun) = (self.pins.root(), Instant::now());
        loop {
            match self.system.lock(path) {
                Ok(lock) => return Ok(lock),
                Err(error) if errno(&error) != Some(libc::EWOULDBLOCK) => {
                    return Err(error).doing(format!("lock {}", path.display()));
                }
                Err(_) if begun.elapsed() > PATIENCE => {
                    return Err(Error::Locked { path: path.to_owned(), process: holder(path) });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Adds the kernel's version to an error if the kernel is too old: such kernels only report that something is
    /// invalid or missing.
    pub(crate) fn because_of_age(&self, error: Error) -> Error {
        let refused = match &error {
            Error::Refused { .. } => true,
            Error::Kernel { error, .. } => {
                matches!(errno(error), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | 524))
            }
            _ => false,
        };
        match self.system.release() {
            Ok(release) if refused && is_too_old(&release) => Error::TooOld { release, refused: Box::new(error) },
            _ => error,
        }
    }

    /// The pinned record; `None` if no record is pinned.
    pub(crate) fn read_record(&self) -> Result<Option<EnforcementRecord>, Error> {
        Ok(self.shared_record()?.map(Arc::unwrap_or_clone))
    }

    /// The same without a copy, for operations that rarely change it.
    pub(crate) fn shared_record(&self) -> Result<Option<Arc<EnforcementRecord>>, Error> {
        self.latest_record().read(&self.system, &self.pins)
    }

    /// Makes this the record in force.
    pub(crate) fn write_record(&self, record: &EnforcementRecord) -> Result<(), Error> {
        self.latest_record().write(&self.system, &self.pins, record)
    }

    /// The same after a write of the same operation: nothing is written if the record has not changed since then.
    pub(crate) fn write_changed_record(&self, record: &EnforcementRecord) -> Result<(), Error> {
        if self.latest_record().is(record) { Ok(()) } else { self.write_record(record) }
    }

    fn latest_record(&self) -> MutexGuard<'_, LatestRecord> {
        // A panic leaves the bytes and the record of an earlier operation, which belong together.
        self.latest_record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record, which must be there and of this network namespace.
    pub(crate) fn record(&self) -> Result<EnforcementRecord, Error> {
        self.record_here().map(Arc::unwrap_or_clone)
    }

    /// The same without a copy, for operations that rarely change it.
    pub(crate) fn record_here(&self) -> Result<Arc<EnforcementRecord>, Error> {
        let record = self.shared_record()?.ok_or_else(|| Error::Nothing(self.pins.root().to_owned()))?;
        self.check_namespace(&record)?;
        Ok(record)
    }

    pub(crate) fn check_namespace(&self, record: &EnforcementRecord) -> Result<(), Error> {
        let here = self.system.namespace().doing("ask for the network namespace")?;
        if record.namespace == here { Ok(()) } else { Err(Error::OtherNamespace(self.pins.root().to_owned())) }
    }

    /// Finds the objects of generations.
    pub(crate) fn objects(&self) -> ObjectSource<'_> {
        ObjectSource { system: &self.system, pins: &self.pins, held: self.held_objects() }
    }

    /// The generation in force with its objects.
    pub(crate) fn current(&self, record: &EnforcementRecord) -> Result<Option<LoadedGeneration>, Error> {
        let Some(generation) = &record.current else { return Ok(None) };
        let loaded = generation::open(&self.objects(), record, generation, Age::Current)?;
        let damaged = || Error::Damaged {
            path: self.pins.root().to_owned(),
            what: "a program or map of the generation in force is missing".to_owned(),
        };
        loaded.map(Some).ok_or_else(damaged)
    }

    /// The generation whose programs and maps the next one may reuse.
    pub fn spare(&self) -> Result<Option<KernelGeneration>, Error> {
        Ok(self.shared_record()?.and_then(|record| record.spare.clone()))
    }

    /// The endpoints, as they were attached.
    pub fn attached(&self) -> Result<Vec<EnforcedEndpoint>, Error> {
        Ok(self.shared_record()?.map(|record| record.endpoints.to_vec()).unwrap_or_default())
    }

    /// The artifact of the generation in force; `None` if no generation is.
    pub fn artifact_in_force(&self) -> Result<Option<Artifact>, Error> {
        Ok(self.read_in_force()?.map(|(_, _, artifact)| artifact))
    }

    /// The record, and the generation in force with its objects and its artifact, for readers beside a process that
    /// changes them.
    pub(crate) fn read_in_force(&self) -> Result<Option<(Arc<EnforcementRecord>, LoadedGeneration, Artifact)>, Error> {
        loop {
            let Some(record) = self.shared_record()? else { return Ok(None) };
            let loaded = self.current(&record).and_then(|loaded| {
                let artifact = loaded.as_ref().map(|loaded| self.artifact(loaded)).transpose()?;
                Ok(loaded.zip(artifact))
            });
            match loaded {
                Err(error) if self.is_outdated(&record, &error)? => {}
                loaded => return Ok(loaded?.map(|(loaded, artifact)| (record, loaded, artifact))),
            }
        }
    }

    /// Whether an error may come from reading objects of a record that is not in force any more: another process has
    /// replaced the file, or has written the next one into its map.
    pub(crate) fn is_outdated(&self, record: &EnforcementRecord, error: &Error) -> Result<bool, Error> {
        let may_be = matches!(error, Error::Damaged { .. } | Error::Unreadable { .. });
        Ok(may_be && self.shared_record()?.is_some_and(|now| *now != *record))
    }

    /// The artifact that a generation was made from, with the pods that are on this node now.
    pub(crate) fn artifact(&self, loaded: &LoadedGeneration) -> Result<Artifact, Error> {
        let mut artifact = self.stored_artifact(loaded)?;
        loaded.generation.pods.apply(&mut artifact.endpoints);
        Ok(artifact)
    }

    /// The artifact that a generation was made from.
    pub(crate) fn stored_artifact(&self, loaded: &LoadedGeneration) -> Result<Artifact, Error> {
        let damaged = |what: String| Error::Unreadable { path: self.pins.root().to_owned(), what };
        let map =
            loaded.maps.get(generation::FILE).ok_or_else(|| damaged("the map with the artifact is missing".into()))?;
        let file = generation::kept_file(&self.system, &loaded.maps, map)?;
        Artifact::read(&file).map_err(|error| damaged(error.to_string()))
    }
}

/// Finds the directory for pins, and the directory that has to stay open meanwhile. `ip netns exec` gives its command a
/// `/sys` of its own without a bpf file system: then the file system at the same path of an ancestor process is taken,
/// and the machine's first process is tried first. The runtime never mounts a bpf file system: it would end with the
/// command, and enforcement with it.
pub(crate) fn reach(system: &System, bpffs: &Path) -> Result<(PathBuf, Option<File>), Error> {
    let is_there = |path: &Path| {
        let first = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        system.is_bpffs(first).doing(format!("check the file system of {}", first.display()))
    };
    if is_there(bpffs)? {
        return Ok((bpffs.to_owned(), None));
    }
    let absolute = std::path::absolute(bpffs).unwrap_or_else(|_| bpffs.to_owned());
    let inside = absolute.strip_prefix("/").unwrap_or(bpffs);
    let mut apart = false;
    for root in system.roots_outside() {
        apart = true;
        let outside = Path::new("/proc/self/fd").join(root.as_raw_fd().to_string()).join(inside);
        if is_there(&outside)? {
            return Ok((outside, Some(root)));
        }
    }
    Err(Error::NotBpffs { path: bpffs.to_owned(), apart })
}

/// The oldest supported kernel.
const OLDEST: [u32; 2] = [5, 14];

fn is_too_old(release: &str) -> bool {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map_while(|it| it.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => [major, minor] < OLDEST,
        _ => false,
    }
}

/// Milliseconds since boot: the same clock for all processes.
pub(crate) fn uptime() -> u64 {
    sys::since_boot().as_millis() as u64
}

/// The process that holds a lock, according to /proc/locks.
fn holder(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    let inode = format!(":{} ", std::fs::metadata(path).ok()?.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let line = locks.lines().find(|line| line.contains("FLOCK") && line.contains(&inode))?;
    line.split_whitespace().nth(4)?.parse().ok()
}
