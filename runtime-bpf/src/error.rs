//! The errors of the runtime: a message for the operator, and a hint with the next step.
//!
//! Invariant: if a failed operation changed the policy that is in force, the error says which policy is in force now.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use crate::sys::{ProgramLoadError, errno};

/// The errors of this crate; each variant has a message and, through [`Error::hint`], a next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process may not use the bpf system call, or the kernel does not have it.
    #[error("cannot use the bpf system call")]
    NoBpf(#[source] io::Error),
    /// Pins need a bpf file system, and the path is not in one.
    #[error("{} is not in a bpf file system", .path.display())]
    NotBpffs {
        /// The path where the pins should be.
        path: PathBuf,
        /// Whether the process runs in a mount namespace of its own (for example under `ip netns exec`).
        apart: bool,
    },
    /// Another weir process holds the lock.
    #[error("another weir process holds the lock on {}{}", .path.display(), holder(*.process))]
    Locked {
        /// The locked directory.
        path: PathBuf,
        /// The process that holds the lock, if it is known.
        process: Option<u32>,
    },
    /// The kernel refused an operation.
    #[error("cannot {doing}")]
    Kernel {
        /// The operation, in words that follow "cannot".
        doing: String,
        /// The kernel's error.
        #[source]
        error: io::Error,
    },
    /// The kernel refused a program.
    #[error("the kernel refuses to load the program {program}{}", summary(.error))]
    Refused {
        /// The program's name.
        program: &'static str,
        /// The kernel's error and the verifier's log.
        #[source]
        error: ProgramLoadError,
    },
    /// A map has no room.
    #[error("the map {map} is full: {room} of {room} entries{}", no_room(.about))]
    Full {
        /// The map's name.
        map: String,
        /// The number of entries that the map can hold.
        room: u32,
        /// The address, prefix or policies of the entry that did not fit, if it is known.
        about: Option<String>,
    },
    /// The map has no single entries: the generation in force does not have it, or stores its addresses in a fixed
    /// table.
    #[error("the map {0} does not accept single entries")]
    NotSingle(String),
    /// A pod cannot be added or removed without a new generation.
    #[error("the pod {pod} needs a new generation: {why}")]
    NotSinglePod {
        /// `namespace/name`
        pod: String,
        /// The condition that does not hold.
        why: &'static str,
    },
    /// The artifact does not contain a pod that was asked for.
    #[error("the artifact does not contain the pod {0}")]
    UnknownPod(String),
    /// This network namespace has no such interface.
    #[error("there is no interface {name} in this network namespace{}", whose(.pod))]
    NoInterface {
        /// The pod that the interface was given for, if any.
        pod: Option<String>,
        /// The interface's name.
        name: String,
    },
    /// Two pods were given the same interface.
    #[error("two pods have the interface {name}: {first} and {second}")]
    TwoPods {
        /// The interface's name.
        name: String,
        /// One of the two pods.
        first: String,
        /// The other pod.
        second: String,
    },
    /// The pins belong to another network namespace.
    #[error("the pins under {} belong to another network namespace", .0.display())]
    OtherNamespace(PathBuf),
    /// Nothing is attached under this path.
    #[error("nothing is attached under {}", .0.display())]
    Nothing(PathBuf),
    /// The pod or interface is not attached.
    #[error("{0} is not attached")]
    NotAttached(String),
    /// The interface is not an uplink with a program.
    #[error("{0} is not an uplink with a Weir program")]
    NotAnUplink(String),
    /// The XDP program could not be attached to an uplink that was asked for; everything else is in force.
    #[error("cannot attach at_edge to {interface}: {why}; at the pods everything is enforced")]
    Edge {
        /// The uplink's name.
        interface: String,
        /// The cause, in one line.
        why: String,
    },
    /// The pins are inconsistent.
    #[error("cannot use the pins under {}: {what}", .path.display())]
    Damaged {
        /// The directory of the pins.
        path: PathBuf,
        /// A description of the damage.
        what: String,
    },
    /// The artifact's file cannot be read from the maps of a generation. The generation stays in force.
    #[error("cannot read the artifact of the generation in force from the maps under {}: {what}", .path.display())]
    Unreadable {
        /// The directory of the pins.
        path: PathBuf,
        /// A description of the damage.
        what: String,
    },
    /// A shared map has the layout of another version of weir.
    #[error("another version of weir made the map {0}, and this version cannot read its layout")]
    OtherVersion(String),
    /// TCX hooks were asked for, and the kernel has none.
    #[error("this kernel has no TCX hooks")]
    NoTcx,
    /// The kernel refused something and is older than the oldest supported version.
    #[error("Linux {release} is too old: weir needs 5.14 or later")]
    TooOld {
        /// The kernel's release, as in `uname -r`.
        release: String,
        /// The error that made us check the version.
        #[source]
        refused: Box<Error>,
    },
    /// Some endpoints could not be enforced as asked; all others are.
    #[error("{}", partial(.0))]
    Partial(Vec<Failure>),
}

/// An endpoint on which an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// The name of its interface.
    pub interface: String,
    /// The state in which the endpoint is now.
    pub now: StateAfterFailure,
    /// The cause, in one line.
    pub why: String,
}

/// The state of an endpoint after an operation on it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateAfterFailure {
    /// Its interface is gone, and all traffic with it.
    Gone,
    /// All packets are dropped.
    Closed,
    /// One of its two programs is missing, so the packets of that direction pass unfiltered. The other program drops
    /// the packets of its direction.
    HalfOpen,
    /// Both programs are missing, so all packets pass.
    Open,
    /// A program of another generation is attached, or the entry could not be removed: each packet is judged by one of
    /// two generations.
    Other,
    /// The kernel did not report which programs are attached.
    Unknown,
    /// The new policy is in force, but still on the hooks that the endpoint had before.
    AsBefore,
}

fn no_room(about: &Option<String>) -> String {
    about.as_ref().map(|about| format!("; no room for {about}")).unwrap_or_default()
}

fn whose(pod: &Option<String>) -> String {
    pod.as_ref().map(|pod| format!(" (for {pod})")).unwrap_or_default()
}

fn holder(process: Option<u32>) -> String {
    process.map(|process| format!(" (process {process})")).unwrap_or_default()
}

/// The last line of the verifier's log that is not a statistic.
fn summary(error: &ProgramLoadError) -> String {
    let said =
        |line: &&str| !line.is_empty() && !line.starts_with("processed ") && !line.starts_with("verification time");
    error.log.lines().rev().find(said).map(|line| format!(": {line}")).unwrap_or_default()
}

fn partial(failures: &[Failure]) -> String {
    let one = |failure: &Failure| {
        let now = match failure.now {
            StateAfterFailure::Gone => "its interface is gone",
            StateAfterFailure::Closed => "closed, all packets are dropped",
            StateAfterFailure::HalfOpen => "half open, packets of one direction pass unfiltered",
            StateAfterFailure::Open => "not enforced, all packets pass",
            StateAfterFailure::Other => "a program of another generation is attached",
            StateAfterFailure::Unknown => "cannot read which programs are attached",
            StateAfterFailure::AsBefore => "enforced, but still on the previous hooks",
        };
        format!("{} at {}: {now}: {}", failure.pod, failure.interface, failure.why)
    };
    let all: Vec<String> = failures.iter().map(one).collect();
    format!("not enforced on all endpoints (the others are enforced): {}", all.join("; "))
}

impl Error {
    /// The next step, if one is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoBpf(error) if errno(error) == Some(libc::ENOSYS) => {
                "use a kernel that was built with CONFIG_BPF_SYSCALL".into()
            }
            Self::NoBpf(_) => "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root".into(),
            Self::NotBpffs { apart: true, .. } => {
                "this process has a mount namespace of its own (`ip netns exec` mounts a separate /sys): run \
                 `nsenter --net=/run/netns/NS weir …`, or name one of the machine's bpf file systems with --bpffs"
                    .into()
            }
            Self::NotBpffs { path, .. } => {
                let mount = path.parent().filter(|_| path.ends_with("weir")).unwrap_or(path);
                format!("run `mount -t bpf bpf {}`, or name another path with --bpffs", mount.display())
            }
            Self::Locked { .. } => "wait until it ends, or stop it; only one process can make changes at a time".into(),
            Self::Kernel { error, .. } => return kernel_hint(error).map(str::to_owned),
            Self::Refused { error, .. } => match errno(&error.error) {
                Some(libc::EPERM) => "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root".into(),
                _ => "check with `weir inspect` that the artifact's target is not newer than this kernel".into(),
            },
            Self::Full { .. } => {
                "compile again: the compiler sizes maps for its input. The previous generation stays in force".into()
            }
            Self::NotSingle(_) | Self::NotSinglePod { .. } => "attach a new generation".into(),
            Self::UnknownPod(_) => {
                "compile with this pod in the input, or remove the pod with `weir detach --endpoint`".into()
            }
            Self::NoInterface { .. } => {
                "run weir in the node's network namespace; `ip link` lists its interfaces".into()
            }
            Self::TwoPods { .. } => "give each pod an interface of its own".into(),
            Self::OtherNamespace(_) => {
                "enter that namespace with `nsenter --net`, or name another path with --bpffs".into()
            }
            Self::Nothing(_) => "run `weir attach` first, or name another path with --bpffs".into(),
            Self::NotAttached(_) => "`weir status` lists the attached endpoints".into(),
            Self::NotAnUplink(_) => "`weir status` lists the uplinks".into(),
            Self::Edge { .. } => "an interface can have only one XDP program; `ip link show` lists it".into(),
            Self::Damaged { .. } | Self::Unreadable { .. } => {
                "run `weir attach` again; if that fails, run `weir detach` first, which opens all pods".into()
            }
            Self::OtherVersion(_) => {
                "run `weir detach`, then `weir attach`; the programs judge established flows again".into()
            }
            Self::TooOld { .. } => "use a newer kernel; the policy in force has not changed".into(),
            Self::NoTcx => "TCX needs Linux 6.6 or later; use --hook clsact".into(),
            Self::Partial(_) => "fix the cause, then run the command again".into(),
        })
    }
}

fn kernel_hint(error: &io::Error) -> Option<&'static str> {
    Some(match errno(error)? {
        libc::EPERM | libc::EACCES => "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root",
        libc::ENOMEM => "free some memory; before Linux 5.11, raise RLIMIT_MEMLOCK",
        libc::ENOSPC => "no space is left in the map or file system",
        libc::E2BIG => "the program or map is larger than this kernel allows",
        _ => return None,
    })
}

/// Turns an I/O error into [`Error::Kernel`] and adds the operation that failed.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl Display) -> Result<T, Error>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl Display) -> Result<T, Error> {
        self.map_err(|error| Error::Kernel { doing: what.to_string(), error })
    }
}
