//! Further services of the operating system: file systems, locks, the namespace, the clock's tick.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

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
        // SAFETY: a descriptor that is open during the call.
        let result = unsafe { libc::flock(directory.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        if result == 0 { Ok(Self { directory }) } else { Err(io::Error::last_os_error()) }
    }
}

/// Whether a path is in a bpf file system.
pub fn is_bpffs(path: &Path) -> io::Result<bool> {
    const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut about = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a terminated path and room for the answer, both alive during the call.
    let result = unsafe { libc::statfs(path.as_ptr(), about.as_mut_ptr()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has been filled in.
    Ok(unsafe { about.assume_init() }.f_type as u32 == BPF_FS_MAGIC)
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
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer, alive during the call.
    let result = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut resolution) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(resolution.tv_sec as u64, resolution.tv_nsec as u32))
}

/// Waits until the descriptor is readable; `false` if the time is over first.
pub fn wait_readable(fd: BorrowedFd<'_>, at_most: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one structure, alive during the call.
    match unsafe { libc::poll(&mut poll, 1, milliseconds) } {
        0 => Ok(false),
        1.. => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Borrows a descriptor from its owner.
pub fn borrow<T: AsRawFd>(owner: &T) -> BorrowedFd<'_> {
    // SAFETY: the owner keeps it open while it is borrowed.
    unsafe { BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}

/// Makes all threads allocate from one heap, so that memory that one thread frees can be used by another. Otherwise
/// each thread keeps its free memory. Call it before there are other threads.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a number, and no other thread yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns free memory to the system. The allocator itself returns only memory at the end of its heap.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Raises the soft limit of descriptors to the hard limit. The soft limit is often 1,024, and the agent needs two
/// descriptors for each pod.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer, alive during the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: a structure that was filled in, alive during the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A random number from the kernel's secure generator.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the kernel fills these eight bytes; so few come in one piece.
    let result = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    match result {
        8 => Ok(u64::from_ne_bytes(bytes)),
        _ => Err(io::Error::last_os_error()),
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
