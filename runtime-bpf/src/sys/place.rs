//! Further services of the operating system: file systems, locks, the namespace, the clock's tick.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FlockOperation;
use rustix::process::{Resource, Rlimit};
use rustix::rand::GetRandomFlags;
use rustix::time::ClockId;

/// A lock that is held until it is dropped, or until its process ends.
#[derive(Debug)]
pub struct Lock {
    #[expect(dead_code, reason = "open is locked")]
    directory: File,
}

impl Lock {
    /// Locks a directory; `EWOULDBLOCK` if another process holds the lock.
    pub fn take(directory: &Path) -> io::Result<Self> {
        let directory = File::open(directory)?;
        rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { directory })
    }
}

/// Whether a path is in a bpf file system.
pub fn is_bpffs(path: &Path) -> io::Result<bool> {
    const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
    Ok(rustix::fs::statfs(path)?.f_type as u32 == BPF_FS_MAGIC)
}

/// The number of this thread's network namespace. Numbers of interfaces are valid only within a namespace.
pub fn namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/thread-self/ns/net")?.ino())
}

/// The root directories of ancestor processes that have another mount namespace, the machine's first process first:
/// mounts in them outlive this process. Roots that may not be opened are left out.
pub fn roots_outside() -> Vec<File> {
    let mounts = |process: u32| std::fs::metadata(format!("/proc/{process}/ns/mnt")).ok().map(|it| it.ino());
    let own = mounts(std::process::id());
    let ancestors = std::iter::successors(Some(std::process::id()), |process| parent(*process));
    let mut others: Vec<u32> = ancestors.skip(1).filter(|it| mounts(*it).is_some_and(|it| Some(it) != own)).collect();
    others.reverse();
    others.into_iter().filter_map(|process| File::open(format!("/proc/{process}/root")).ok()).collect()
}

fn parent(process: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // A process's name may contain any character, so the fields are read after the last bracket.
    let parent = text.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
    (parent != 0).then_some(parent)
}

/// How long a tick of the kernel takes: the resolution of its coarse clock.
pub fn tick() -> io::Result<Duration> {
    Duration::try_from(rustix::time::clock_getres(ClockId::MonotonicCoarse)).map_err(io::Error::other)
}

// `membarrier_global`: https://github.com/torvalds/linux/blob/v5.14/kernel/sched/membarrier.c (`MEMBARRIER_CMD_GLOBAL`).
// Programs on hooks run in read-side critical sections of RCU, and this command waits for a grace period. It does not
// need the CPU meanwhile. On a machine with one CPU it returns at once: a system call cannot interrupt a program there,
// except under PREEMPT_RT, where only the time counts for which a generation is kept.
/// Waits until all BPF programs that run now have ended. `EINVAL` on kernels with CPUs that have no tick (`nohz_full`).
pub fn wait_for_programs() -> io::Result<()> {
    Ok(rustix::thread::membarrier(rustix::thread::MembarrierCommand::Global)?)
}

/// Waits until one of the descriptors is readable. Returns `false` if the time is over first, or a signal arrives.
pub fn wait_readable<const N: usize>(fds: [BorrowedFd<'_>; N], at_most: Duration) -> io::Result<bool> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // A time that is too long for the system call never ends.
    match rustix::event::poll(&mut fds, Timespec::try_from(at_most).ok().as_ref()) {
        Err(rustix::io::Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// The size of a page of memory of the running kernel.
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// The time since boot, also while the machine was suspended.
pub fn since_boot() -> Duration {
    time_of(ClockId::Boottime)
}

/// The CPU time that all threads of this process have used.
pub fn cpu_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Raises the soft limit of descriptors to the hard limit. The soft limit is often 1,024, and the agent needs two
/// descriptors for each pod.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// A random number from the kernel's secure generator.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // So few bytes come in one piece.
    match rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())? {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Major and minor version of the running kernel.
pub fn kernel_version() -> io::Result<(u16, u16)> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    version(&release).ok_or_else(|| io::Error::other(format!("`{}` is not a kernel version", release.trim())))
}

/// `6.12.48+deb13-amd64`
fn version(release: &str) -> Option<(u16, u16)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map_while(|it| it.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_release_begins_with_its_version() {
        assert_eq!(version("6.12.48+deb13-amd64\n"), Some((6, 12)));
        assert_eq!(version("5.10-rc1"), Some((5, 10)));
        assert_eq!(version("linux"), None);
    }
}
