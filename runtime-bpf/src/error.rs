//! The errors of the runtime, in words for the operator, each with a next step.
//!
//! Invariant: if a failed operation changed the policy that is in force, the error says which policy is in force now.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use crate::sys::LoadError;

/// The errors of this crate; each variant has a message and, through [`Error::hint`], a next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process may not use the bpf system call, or the kernel does not have it.
    #[error("the kernel's bpf system call cannot be used")]
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
    #[error("another weir is at work on {}{}", .path.display(), holder(*.process))]
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
    #[error("the kernel does not take the program {program}{}", summary(.error))]
    Refused {
        /// The program's name.
        program: &'static str,
        /// The kernel's error and the verifier's log.
        #[source]
        error: LoadError,
    },
    /// A map has no room.
    #[error("the map {map} is full: {room} of {room} entries{}", no_place(.about))]
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
    #[error("the map {0} takes no single entries")]
    NotSingle(String),
    /// The artifact does not contain a pod that was asked for.
    #[error("the artifact does not know the pod {0}")]
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
    #[error("the interface {name} is given to {first} and to {second}")]
    TwoPods {
        /// The interface's name.
        name: String,
        /// One of the two pods.
        first: String,
        /// The other pod.
        second: String,
    },
    /// The pins belong to another network namespace.
    #[error("{} belongs to another network namespace", .0.display())]
    OtherNamespace(PathBuf),
    /// Nothing is attached under this path.
    #[error("nothing is attached under {}", .0.display())]
    Nothing(PathBuf),
    /// The pod or interface is not attached.
    #[error("{0} is not attached")]
    NotAttached(String),
    /// The interface is not an uplink with a program.
    #[error("nothing is dropped at {0} before the pods")]
    NotAnUplink(String),
    /// The XDP program could not be attached to an uplink that was asked for; everything else is in force.
    #[error("the program at_edge cannot be placed at {interface}: {why}; at the pods everything is enforced")]
    Edge {
        /// The uplink's name.
        interface: String,
        /// The cause, in one line.
        why: String,
    },
    /// The pins are inconsistent.
    #[error("what is pinned under {} cannot be used: {what}", .path.display())]
    Damaged {
        /// The directory of the pins.
        path: PathBuf,
        /// A description of the damage.
        what: String,
    },
    /// A shared map has the layout of another version of weir.
    #[error("the map {0} was made by another version of weir, and its flows cannot be taken over")]
    OtherVersion(String),
    /// TCX hooks were asked for, and the kernel has none.
    #[error("this kernel has no TCX hooks")]
    NoTcx,
    /// The kernel refused something and is older than the oldest supported version.
    #[error("this is Linux {release}, and 5.14 is the oldest that weir runs on")]
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
    pub now: Now,
    /// The cause, in one line.
    pub why: String,
}

/// The state of an endpoint after an operation on it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Now {
    /// Its interface is gone, and all traffic with it.
    Gone,
    /// Nothing passes.
    Closed,
    /// Nothing is enforced, as before.
    Open,
    /// One of two generations is in force, each packet under one of them.
    Other,
    /// The new policy is in force, but still on the hooks that the endpoint had before.
    AsBefore,
}

fn no_place(about: &Option<String>) -> String {
    about.as_ref().map(|about| format!(", and none left for {about}")).unwrap_or_default()
}

fn whose(pod: &Option<String>) -> String {
    pod.as_ref().map(|pod| format!(" (for {pod})")).unwrap_or_default()
}

fn holder(process: Option<u32>) -> String {
    process.map(|process| format!(" (process {process})")).unwrap_or_default()
}

/// The last line of the verifier's log that is not a statistic.
fn summary(error: &LoadError) -> String {
    let said =
        |line: &&str| !line.is_empty() && !line.starts_with("processed ") && !line.starts_with("verification time");
    error.log.lines().rev().find(said).map(|line| format!(": {line}")).unwrap_or_default()
}

fn partial(failures: &[Failure]) -> String {
    let one = |failure: &Failure| {
        let now = match failure.now {
            Now::Gone => "its interface is gone",
            Now::Closed => "closed, nothing passes",
            Now::Open => "not enforced",
            Now::Other => "still under the new policy",
            Now::AsBefore => "in force, but not on these hooks",
        };
        format!("{} at {}: {now}: {}", failure.pod, failure.interface, failure.why)
    };
    let all: Vec<String> = failures.iter().map(one).collect();
    format!("not enforced everywhere (what is not named here is in force): {}", all.join("; "))
}

impl Error {
    /// The next step, if one is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoBpf(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                "this kernel was built without CONFIG_BPF_SYSCALL".into()
            }
            Self::NoBpf(_) => "it needs CAP_BPF and CAP_NET_ADMIN, or root".into(),
            Self::NotBpffs { apart: true, .. } => {
                "mounts here are not those of the machine (under `ip netns exec`, /sys is another one): run it with \
                 `nsenter --net=/run/netns/NS weir …`, or name a bpf file system of the machine's with --bpffs"
                    .into()
            }
            Self::NotBpffs { path, .. } => {
                let mount = path.parent().filter(|_| path.ends_with("weir")).unwrap_or(path);
                format!("mount one: mount -t bpf bpf {}; or name another place with --bpffs", mount.display())
            }
            Self::Locked { .. } => "wait for it to end, or stop it; two at once would undo each other's work".into(),
            Self::Kernel { error, .. } => return kernel_hint(error).map(str::to_owned),
            Self::Refused { error, .. } => match error.error.raw_os_error() {
                Some(libc::EPERM) => "it needs CAP_BPF and CAP_NET_ADMIN, or root".into(),
                _ => "is the kernel at least the one that `weir inspect` names as the target?".into(),
            },
            Self::Full { .. } => "compile again: sizes follow from the input. What was in force stays".into(),
            Self::NotSingle(_) => "put a new generation in force".into(),
            Self::UnknownPod(_) => {
                "compile with this pod in the input; if it is gone, `weir detach --endpoint` it first".into()
            }
            Self::NoInterface { .. } => {
                "run it in the network namespace of the node; `ip link` lists interfaces".into()
            }
            Self::TwoPods { .. } => "an interface leads to one pod".into(),
            Self::OtherNamespace(_) => "enter that one (nsenter --net), or use another --bpffs for this one".into(),
            Self::Nothing(_) => "`weir attach` first, or name the place with --bpffs".into(),
            Self::NotAttached(_) => "`weir status` lists what is attached".into(),
            Self::NotAnUplink(_) => "`weir status` lists the uplinks".into(),
            Self::Edge { .. } => {
                "`ip link show` says whether another XDP program is there: an interface has room for one".into()
            }
            Self::Damaged { .. } => "`weir attach` again; if that does not help, `weir detach` and attach anew".into(),
            Self::OtherVersion(_) => "`weir detach`, then attach anew; established flows are judged again".into(),
            Self::TooOld { .. } => "use a newer kernel; what was in force, if anything was, still is".into(),
            Self::NoTcx => "TCX came with Linux 6.6; use --hook clsact".into(),
            Self::Partial(_) => "repeat the command once the cause is mended".into(),
        })
    }
}

fn kernel_hint(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::EPERM | libc::EACCES => "it needs CAP_BPF and CAP_NET_ADMIN, or root",
        libc::ENOMEM => "the kernel has no memory for it (or, before Linux 5.11, RLIMIT_MEMLOCK is too small)",
        libc::ENOSPC => "there is no room left",
        libc::E2BIG => "it is larger than this kernel takes",
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
