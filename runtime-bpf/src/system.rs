//! The seam to the kernel: every operation that the runtime asks for, with one method for each.
//!
//! Problem: each of these operations can fail at any time, with any of its errnos, and the process can die between any
//! two. Strategy: no other code of this crate makes system calls for enforcement ([`crate::sys::beside`] counts them).
//! Each method first asks [`System::faults`] whether to fail. So a test can make one call fail, or every call from some
//! point on (which is how the kernel sees a process die).

mod typed;

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirEntryExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags};
use weir_artifact::DebugInfo;
use weir_artifact::layout::buckets::Slot;
use weir_objects::address::Family;

use crate::sys::beside::InOperation;
use crate::sys::known_files::KnownFiles;
use crate::sys::known_filters::KnownFilters;
use crate::sys::known_interfaces::{InterfacesByNumber, KnownInterfaces, by_number};
use crate::sys::netlink::{Filter, HostInterface, NetlinkSocket, Put};
use crate::sys::until_change::UntilChange;
use crate::sys::{
    self, BpfKernel, FlatEntries, Hook, KernelLink, KernelMap, KernelProgram, LinkInfo, Lock, MapDefinition, MapInfo,
    MappedFlowTable, ProgramInfo, ProgramLoadError, Queried, XdpMode, errno,
};

pub use typed::{TypedCell, TypedHash, TypedMap, TypedPerCpu};

/// The operations, one for each kind of kernel call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the methods' names")]
pub enum Operation {
    CreateMap,
    Update,
    UpdateBatch,
    UpdateDescriptor,
    Lookup,
    Entries,
    Delete,
    Freeze,
    WaitForPrograms,
    Load,
    LoadLines,
    TestRun,
    Pin,
    PinnedMap,
    PinnedProgram,
    PinnedLink,
    NumberedMap,
    NumberedProgram,
    Typed,
    MapInfo,
    ProgramInfo,
    LinkInfo,
    Attach,
    AttachNative,
    Replace,
    Detach,
    Query,
    Interface,
    Addresses,
    AddClsact,
    PutFilter,
    DeleteFilter,
    Filters,
    IsBpffs,
    Lock,
    Namespace,
    Tick,
    Random,
    Release,
    MakeDirectory,
    RemoveDirectory,
    List,
    Rename,
    ExchangePins,
    Unpin,
}

/// Called before each operation: returns the errno with which it fails, or `None`.
pub type Faults = dyn Fn(Operation) -> Option<i32> + Send + Sync;

/// A file in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedFile {
    /// Its name.
    pub name: String,
    /// The number of its inode. A pin is an inode of its own, whose object never changes, also when it is renamed.
    pub inode: u64,
}

/// The files of a directory, sorted by name. A copy costs nothing.
#[derive(Clone, Debug, Default)]
pub struct ListedFiles(Arc<[ListedFile]>);

impl ListedFiles {
    fn new(mut files: Vec<ListedFile>) -> Self {
        files.sort();
        Self(files.into())
    }

    /// Whether the directory has no files.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The files.
    pub fn iter(&self) -> impl Iterator<Item = &ListedFile> {
        self.0.iter()
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|file| file.name.as_str())
    }

    /// The number of the inode of the file with this name.
    pub fn inode_of(&self, name: &str) -> Option<u64> {
        let at = self.0.binary_search_by_key(&name, |file| &file.name).ok()?;
        self.0.get(at).map(|file| file.inode)
    }

    /// Whether both come from one look at the directory: no message about it has come in between. Lists without files
    /// do not show this.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        !self.is_empty() && Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The kernel's operations that enforcement uses.
pub struct System {
    kernel: BpfKernel,
    netlink: NetlinkSocket,
    faults: Option<Box<Faults>>,
    /// A release to report instead of the kernel's own, for tests.
    release: Option<String>,
    /// This host's interfaces and addresses, for a process that asks for them often.
    lists: Option<Mutex<HostLists>>,
}

/// This host's interfaces, addresses and filters, and the pins, which are asked for again only after a change.
struct HostLists {
    interfaces: KnownInterfaces,
    addresses: UntilChange<Vec<IpAddr>>,
    filters: KnownFilters,
    /// `None` if this host has no room for another inotify instance: then directories are listed each time.
    files: Option<KnownFiles>,
}

impl HostLists {
    /// For this thread's network namespace.
    fn here() -> io::Result<Self> {
        // The kernel sends a message for each change. The limit bounds the damage if a kernel forgets one.
        const MOST_AGE: Duration = Duration::from_secs(10);
        // Before Linux 6.15, a filter that is too long for the message about it sends none. So each of the agent's
        // regular checks, which are 500 ms apart, forgets these lists. The limit is for other work.
        const MOST_AGE_OF_FILTERS: Duration = Duration::from_millis(400);
        let addresses = (libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        Ok(Self {
            interfaces: KnownInterfaces::here(MOST_AGE)?,
            addresses: UntilChange::here(addresses, MOST_AGE)?,
            filters: KnownFilters::here(MOST_AGE_OF_FILTERS)?,
            files: KnownFiles::new(MOST_AGE).ok(),
        })
    }
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("System").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

#[expect(missing_docs, reason = "each is what it is called, see crate::sys")]
impl System {
    /// The running kernel, in this thread's network namespace.
    pub fn open() -> io::Result<Self> {
        let (kernel, netlink) = (BpfKernel::open()?, NetlinkSocket::open()?);
        Ok(Self { kernel, netlink, faults: None, release: None, lists: None })
    }

    /// For a process that asks often for this host's interfaces, addresses and filters, and for files of directories:
    /// keeps the answers until something changes. The network namespace must be this thread's.
    pub fn with_lists(self) -> io::Result<Self> {
        Ok(Self { lists: Some(Mutex::new(HostLists::here()?)), ..self })
    }

    fn lists(&self) -> Option<MutexGuard<'_, HostLists>> {
        // A panic leaves a list that is asked for again at most.
        self.lists.as_ref().map(|lists| lists.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The running kernel, with injected faults.
    pub fn with_faults(faults: Box<Faults>) -> io::Result<Self> {
        Ok(Self { faults: Some(faults), ..Self::open()? })
    }

    /// The running kernel, but reporting another release.
    pub fn pretending(self, release: &str) -> Self {
        Self { release: Some(release.to_owned()), ..self }
    }

    /// Begins an operation, which lasts until the result is dropped.
    fn ask(&self, operation: Operation) -> io::Result<InOperation> {
        match self.faults.as_ref().and_then(|faults| faults(operation)) {
            Some(number) => Err(io::Error::from_raw_os_error(number)),
            None => Ok(InOperation::begin()),
        }
    }

    pub fn possible_cpus(&self) -> usize {
        self.kernel.possible_cpus()
    }

    pub fn create_map(&self, name: &str, definition: &MapDefinition) -> io::Result<KernelMap> {
        let _operation = self.ask(Operation::CreateMap)?;
        self.kernel.create_named_map(name, definition, None)
    }

    pub fn update(&self, map: &KernelMap, key: &[u8], value: &[u8]) -> io::Result<()> {
        let _operation = self.ask(Operation::Update)?;
        map.update(key, value, 0)
    }

    pub fn update_batch(&self, map: &KernelMap, keys: &[u8], values: &[u8]) -> io::Result<u32> {
        let _operation = self.ask(Operation::UpdateBatch)?;
        map.update_batch(keys, values, 0)
    }

    pub fn update_descriptor(&self, map: &KernelMap, key: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let _operation = self.ask(Operation::UpdateDescriptor)?;
        map.update_descriptor(key, descriptor)
    }

    /// `None` if there is no such entry.
    pub fn lookup(&self, map: &KernelMap, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let _operation = self.ask(Operation::Lookup)?;
        absent(map.lookup(key))
    }

    pub fn entries(&self, map: &KernelMap) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.flat_entries(map)?.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
    }

    /// All entries of a map, in few allocations.
    pub fn flat_entries(&self, map: &KernelMap) -> io::Result<FlatEntries> {
        let _operation = self.ask(Operation::Entries)?;
        match map.flat_entries() {
            // This kernel has no batch operations for this map type.
            Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::EOPNOTSUPP | 524)) => one_by_one(map),
            other => other,
        }
    }

    pub fn count(&self, map: &KernelMap) -> io::Result<u64> {
        let _operation = self.ask(Operation::Entries)?;
        match map.count() {
            Err(error) if matches!(errno(&error), Some(libc::EINVAL | libc::EOPNOTSUPP | 524)) => {
                one_by_one(map).map(|entries| entries.iter().count() as u64)
            }
            other => other,
        }
    }

    pub fn freeze(&self, map: &KernelMap) -> io::Result<()> {
        let _operation = self.ask(Operation::Freeze)?;
        map.freeze()
    }

    /// Removes an entry; a missing entry is not an error.
    pub fn delete(&self, map: &KernelMap, key: &[u8]) -> io::Result<()> {
        let _operation = self.ask(Operation::Delete)?;
        absent(map.delete(key)).map(|_| ())
    }

    /// Waits until all programs that run now have ended.
    pub fn wait_for_programs(&self) -> io::Result<()> {
        let _operation = self.ask(Operation::WaitForPrograms)?;
        sys::wait_for_programs()
    }

    /// The same in a thread of its own.
    pub fn begin_wait_for_programs(&self) -> io::Result<JoinHandle<io::Result<()>>> {
        let asked = self.ask(Operation::WaitForPrograms).map(drop);
        std::thread::Builder::new().name("wait".to_owned()).spawn(|| asked.and_then(|()| sys::wait_for_programs()))
    }

    /// Loads a program with its line information; without it if the kernel refuses the line information.
    pub fn load(
        &self,
        name: &str,
        instructions: &[u8],
        debug: Option<&DebugInfo>,
    ) -> Result<KernelProgram, ProgramLoadError> {
        let _operation = self.ask(Operation::Load).map_err(|error| ProgramLoadError { error, log: String::new() })?;
        let debug = debug.filter(|_| self.ask(Operation::LoadLines).is_ok());
        self.kernel.load_named(name, instructions, debug)
    }

    /// Loads an XDP program.
    pub fn load_xdp(&self, name: &str, instructions: &[u8]) -> Result<KernelProgram, ProgramLoadError> {
        let _operation = self.ask(Operation::Load).map_err(|error| ProgramLoadError { error, log: String::new() })?;
        self.kernel.load_xdp(name, instructions)
    }

    pub fn test_run(&self, program: &KernelProgram, packet: &[u8]) -> io::Result<sys::TestRun> {
        let _operation = self.ask(Operation::TestRun)?;
        program.test_run(packet, &[], 1)
    }

    pub fn pin(&self, object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        let _operation = self.ask(Operation::Pin)?;
        self.kernel.pin(object, path)
    }

    pub fn pinned_map(&self, path: &Path) -> io::Result<Option<KernelMap>> {
        let _operation = self.ask(Operation::PinnedMap)?;
        absent(self.kernel.pinned_map(path))
    }

    pub fn pinned_program(&self, path: &Path) -> io::Result<Option<KernelProgram>> {
        let _operation = self.ask(Operation::PinnedProgram)?;
        absent(self.kernel.pinned_program(path))
    }

    pub fn pinned_link(&self, path: &Path) -> io::Result<Option<KernelLink>> {
        let _operation = self.ask(Operation::PinnedLink)?;
        absent(self.kernel.pinned_link(path))
    }

    pub fn numbered_map(&self, id: u32) -> io::Result<Option<KernelMap>> {
        let _operation = self.ask(Operation::NumberedMap)?;
        absent(self.kernel.numbered_map(id))
    }

    pub fn numbered_program(&self, id: u32) -> io::Result<Option<KernelProgram>> {
        let _operation = self.ask(Operation::NumberedProgram)?;
        absent(self.kernel.numbered_program(id))
    }

    pub fn map_info(&self, map: &KernelMap) -> io::Result<MapInfo> {
        let _operation = self.ask(Operation::MapInfo)?;
        map.info()
    }

    pub fn program_info(&self, program: &KernelProgram) -> io::Result<ProgramInfo> {
        let _operation = self.ask(Operation::ProgramInfo)?;
        program.info()
    }

    pub fn link_info(&self, link: &KernelLink) -> io::Result<LinkInfo> {
        let _operation = self.ask(Operation::LinkInfo)?;
        link.info()
    }

    pub fn attach(&self, program: &KernelProgram, ifindex: u32, hook: Hook) -> io::Result<KernelLink> {
        let _operation = self.ask(Operation::Attach)?;
        self.kernel.attach(program, ifindex, hook)
    }

    pub fn attach_xdp(&self, program: &KernelProgram, ifindex: u32, mode: XdpMode) -> io::Result<KernelLink> {
        let operation = if mode == XdpMode::Native { Operation::AttachNative } else { Operation::Attach };
        let _operation = self.ask(operation)?;
        self.kernel.attach_xdp(program, ifindex, mode)
    }

    pub fn replace(&self, link: &KernelLink, program: &KernelProgram) -> io::Result<()> {
        let _operation = self.ask(Operation::Replace)?;
        link.replace(program)
    }

    pub fn exchange(&self, link: &KernelLink, before: &KernelProgram, program: &KernelProgram) -> io::Result<()> {
        let _operation = self.ask(Operation::Replace)?;
        link.exchange(before, program)
    }

    pub fn detach(&self, link: &KernelLink) -> io::Result<()> {
        let _operation = self.ask(Operation::Detach)?;
        link.detach()
    }

    pub fn query(&self, ifindex: u32, hook: Hook) -> io::Result<Queried> {
        let _operation = self.ask(Operation::Query)?;
        self.kernel.query(ifindex, hook)
    }

    /// `None` if no interface has this name.
    pub fn interface_named(&self, name: &str) -> io::Result<Option<HostInterface>> {
        let _operation = self.ask(Operation::Interface)?;
        absent(self.netlink.interface_named(name))
    }

    /// `None` if no interface has this number.
    pub fn interface_numbered(&self, ifindex: u32) -> io::Result<Option<HostInterface>> {
        let _operation = self.ask(Operation::Interface)?;
        absent(self.netlink.interface_numbered(ifindex))
    }

    /// The hardware address of the other end of a veth; `None` if the interface is no veth, or the kernel does not say.
    pub fn other_end(&self, interface: &HostInterface) -> Option<[u8; 6]> {
        let _operation = self.ask(Operation::Interface).ok()?;
        // The other end of an interface in a kept list may be out of date.
        let now = self.netlink.interface_numbered(interface.ifindex).ok()?;
        let is_same = (&now.name, &now.address) == (&interface.name, &interface.address);
        self.netlink.other_end(&now).ok().filter(|_| is_same)?.address.try_into().ok()
    }

    /// The interfaces of this network namespace.
    pub fn interfaces(&self) -> io::Result<InterfacesByNumber> {
        let _operation = self.ask(Operation::Interface)?;
        match self.lists() {
            Some(mut lists) => lists.interfaces.read(&self.netlink),
            None => Ok(by_number(self.netlink.interfaces()?)),
        }
    }

    /// The addresses of this network namespace.
    pub fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let _operation = self.ask(Operation::Addresses)?;
        let list = || Ok(self.netlink.addresses()?.into_iter().map(|(_, address)| address).collect());
        match self.lists() {
            Some(mut lists) => lists.addresses.read(list),
            None => list(),
        }
    }

    pub fn add_clsact(&self, ifindex: u32) -> io::Result<()> {
        let _operation = self.ask(Operation::AddClsact)?;
        self.netlink.add_clsact(ifindex)
    }

    pub fn put_filter(
        &self,
        ifindex: u32,
        hook: Hook,
        filter: &Filter,
        program: &KernelProgram,
        put: Put,
    ) -> io::Result<()> {
        let _operation = self.ask(Operation::PutFilter)?;
        self.netlink.put_filter(ifindex, hook, filter, program, put)
    }

    /// Deletes a filter; a missing filter is not an error.
    pub fn delete_filter(&self, ifindex: u32, hook: Hook, filter: &Filter) -> io::Result<()> {
        let _operation = self.ask(Operation::DeleteFilter)?;
        match self.netlink.delete_filter(ifindex, hook, filter) {
            // The interface has no clsact qdisc, so it has no filter.
            Err(error) if errno(&error) == Some(libc::EINVAL) => Ok(()),
            other => absent(other).map(|_| ()),
        }
    }

    pub fn filters(&self, ifindex: u32, hook: Hook) -> io::Result<Vec<Filter>> {
        let _operation = self.ask(Operation::Filters)?;
        let list = || Ok(absent(self.netlink.filters(ifindex, hook))?.unwrap_or_default());
        match self.lists() {
            Some(mut lists) => lists.filters.read(ifindex, hook, list),
            None => list(),
        }
    }

    /// Makes the next questions about filters ask the kernel.
    pub(crate) fn forget_filters(&self) {
        if let Some(mut lists) = self.lists() {
            lists.filters.clear();
        }
    }

    pub fn is_bpffs(&self, path: &Path) -> io::Result<bool> {
        let _operation = self.ask(Operation::IsBpffs)?;
        sys::is_bpffs(path)
    }

    /// The root directories of this process's ancestors in other mount namespaces; those mounts outlive this process.
    pub fn roots_outside(&self) -> Vec<std::fs::File> {
        sys::roots_outside()
    }

    /// The kernel's release, as `uname -r` prints it.
    pub fn release(&self) -> io::Result<String> {
        let _operation = self.ask(Operation::Release)?;
        match &self.release {
            Some(release) => Ok(release.clone()),
            None => Ok(std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned()),
        }
    }

    pub fn lock(&self, directory: &Path) -> io::Result<Lock> {
        let _operation = self.ask(Operation::Lock)?;
        Lock::take(directory)
    }

    pub fn namespace(&self) -> io::Result<u64> {
        let _operation = self.ask(Operation::Namespace)?;
        sys::namespace()
    }

    pub fn tick(&self) -> io::Result<std::time::Duration> {
        let _operation = self.ask(Operation::Tick)?;
        sys::tick()
    }

    /// Returns `count` random numbers.
    pub fn random(&self, count: usize) -> io::Result<Vec<u64>> {
        let _operation = self.ask(Operation::Random)?;
        (0..count).map(|_| sys::random()).collect()
    }

    /// The live flows of a table of buckets.
    pub fn slots(&self, map: &KernelMap, family: Family) -> io::Result<Vec<Slot>> {
        let _operation = self.ask(Operation::Entries)?;
        map.flow_table_parts(family).try_fold(Vec::new(), |mut live, part| {
            live.extend(part?.live());
            Ok(live)
        })
    }

    /// Maps a table of buckets, for a caller that reads it many times.
    pub fn flow_table(&self, map: &KernelMap, family: Family) -> io::Result<MappedFlowTable> {
        let _operation = self.ask(Operation::Entries)?;
        map.flow_table(family)
    }

    /// Removes flows from a table of buckets.
    pub fn remove_slots(&self, map: &KernelMap, family: Family, gone: impl Fn(&Slot) -> bool) -> io::Result<()> {
        let _operation = self.ask(Operation::Delete)?;
        map.flow_table_parts(family).try_for_each(|part| part.map(|part| part.remove(&gone)))
    }

    /// Changes the words of matching flows in a table of buckets; returns how many were changed.
    pub fn change_slots(
        &self,
        map: &KernelMap,
        family: Family,
        which: impl Fn(&Slot) -> bool,
        to: impl Fn(u64) -> u64,
    ) -> io::Result<usize> {
        let _operation = self.ask(Operation::Update)?;
        map.flow_table_parts(family).map(|part| Ok(part?.change(&which, &to))).sum()
    }

    /// Creates a directory and its parents; an existing directory is not an error.
    pub fn make_directory(&self, path: &Path) -> io::Result<()> {
        let _operation = self.ask(Operation::MakeDirectory)?;
        std::fs::create_dir_all(path)
    }

    /// Removes an empty directory; a missing directory is not an error.
    pub fn remove_directory(&self, path: &Path) -> io::Result<()> {
        let _operation = self.ask(Operation::RemoveDirectory)?;
        absent(std::fs::remove_dir(path)).map(|_| ())
    }

    /// The files in a directory; none if it is not there.
    pub fn list(&self, directory: &Path) -> io::Result<ListedFiles> {
        let _operation = self.ask(Operation::List)?;
        match self.lists().as_mut().and_then(|lists| lists.files.as_mut()) {
            Some(files) => files.read(directory, || listed_now(directory)),
            None => listed_now(directory),
        }
    }

    /// Renames a file atomically and replaces an existing one.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _operation = self.ask(Operation::Rename)?;
        std::fs::rename(from, to)
    }

    /// Exchanges two pins atomically. A kernel before 5.17 cannot do this in a bpf file system: the error is `EINVAL`.
    pub fn exchange_pins(&self, one: &Path, other: &Path) -> io::Result<()> {
        let _operation = self.ask(Operation::ExchangePins)?;
        Ok(rustix::fs::renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
    }

    /// Removes a pin; a missing pin is not an error.
    pub fn unpin(&self, path: &Path) -> io::Result<()> {
        let _operation = self.ask(Operation::Unpin)?;
        absent(std::fs::remove_file(path)).map(|_| ())
    }
}

fn listed_now(directory: &Path) -> io::Result<ListedFiles> {
    let Some(entries) = absent(std::fs::read_dir(directory))? else { return Ok(ListedFiles::default()) };
    let listed = |entry: std::fs::DirEntry| ListedFile {
        name: entry.file_name().to_string_lossy().into_owned(),
        inode: entry.ino(),
    };
    Ok(ListedFiles::new(entries.map(|entry| entry.map(listed)).collect::<io::Result<Vec<_>>>()?))
}

fn one_by_one(map: &KernelMap) -> io::Result<FlatEntries> {
    let (mut entries, mut last) = (FlatEntries::new(map), None);
    while let Some(key) = map.next_key(last.as_deref())? {
        if let Some(value) = absent(map.lookup(&key))? {
            entries.push(&key, &value);
        }
        last = Some(key);
    }
    Ok(entries)
}

/// Turns the errors for a missing object into `None`.
fn absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(errno(&error), Some(libc::ENOENT | libc::ENODEV)) => Ok(None),
        Err(error) => Err(error),
    }
}
