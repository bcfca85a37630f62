//! The `bpf` system call, as safe functions on owned descriptors.
//!
//! Strategy: one private function per command that fills the command's part of `union bpf_attr` ([`attr`]) and makes
//! the call; the public methods check every length first, so that the kernel never reads or writes past a Rust buffer.

#![expect(unsafe_code, reason = "system calls have no safe form")]

mod attr;
pub mod links;
mod mapped;
pub mod netlink;
mod notify;
mod objects;
mod place;

pub use mapped::MappedFlowTable;
pub use notify::Notifier;
pub use objects::{Hook, KernelLink, LinkInfo, MapInfo, ProgramInfo, Queried, XdpMode};
pub use place::{
    Lock, borrow, give_memory_back, is_bpffs, kernel_version, namespace, raise_descriptor_limit, random, roots_outside,
    share_heap, tick, wait_readable,
};

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use weir_artifact::DebugInfo;

/// Map types by the kernel's numbers. Only these: the size of a value in a system call depends on the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the kernel's names")]
pub enum MapType {
    Hash = 1,
    Array = 2,
    ProgArray = 3,
    PercpuHash = 5,
    PercpuArray = 6,
    LruHash = 9,
    LpmTrie = 11,
    ArrayOfMaps = 12,
    HashOfMaps = 13,
    RingBuf = 27,
}

/// The type of a program: `BPF_PROG_TYPE_SCHED_CLS`, `BPF_PROG_TYPE_XDP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum For {
    Tc = 3,
    Xdp = 6,
}

/// `BPF_LOG_STATS`
const LOG_STATISTICS: u32 = 4;

/// Entries that one call reads.
const BATCH_ENTRIES: usize = 1024;

/// Why the kernel refused a program.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refused the program: {error}")]
pub struct ProgramLoadError {
    /// The system call's error.
    pub error: io::Error,
    /// The verifier's log; empty if it is.
    pub log: String,
}

/// The properties of a map, in the kernel's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapDefinition {
    /// Its type.
    pub map_type: MapType,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// Entries, or bytes of a ring buffer.
    pub max_entries: u32,
    /// Creation flags.
    pub flags: u32,
}

/// Access to the `bpf` system call, which was found to work.
#[derive(Debug)]
pub struct BpfKernel {
    possible_cpus: usize,
}

/// A map of the kernel.
#[derive(Debug)]
pub struct KernelMap {
    fd: OwnedFd,
    definition: MapDefinition,
    /// Bytes of a value as the system call reads and writes it.
    value_bytes: usize,
}

/// A program that the kernel has loaded.
#[derive(Debug)]
pub struct KernelProgram {
    fd: OwnedFd,
}

/// The result of a test run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The program's return value.
    pub verdict: u32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// The context afterwards, of the same length as before.
    pub context: Vec<u8>,
    /// Mean nanoseconds of a run.
    pub nanoseconds: u32,
}

impl BpfKernel {
    /// Lifts the memory limit that kernels before 5.11 count maps against, and tries the system call.
    pub fn open() -> io::Result<Self> {
        let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is a valid rlimit that outlives the call. Failing is fine where the limit does not matter.
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
        let kernel = Self { possible_cpus: possible_cpus()? };
        let probe = MapDefinition { map_type: MapType::Array, key_size: 4, value_size: 4, max_entries: 1, flags: 0 };
        kernel.create_map(&probe, None)?;
        Ok(kernel)
    }

    /// The number of CPUs for which per-CPU values have room.
    pub fn possible_cpus(&self) -> usize {
        self.possible_cpus
    }

    /// Makes a map; a map of maps needs an inner map as its pattern.
    pub fn create_map(&self, definition: &MapDefinition, inner: Option<BorrowedFd<'_>>) -> io::Result<KernelMap> {
        self.create_named_map("", definition, inner)
    }

    /// Makes a map with a name that tools show.
    pub fn create_named_map(
        &self,
        name: &str,
        definition: &MapDefinition,
        inner: Option<BorrowedFd<'_>>,
    ) -> io::Result<KernelMap> {
        let mut attr = attr::MapCreate {
            numa_node: 0,
            map_name: object_name(name),
            map_type: definition.map_type as u32,
            key_size: definition.key_size,
            value_size: definition.value_size,
            max_entries: definition.max_entries,
            map_flags: definition.flags,
            inner_map_fd: inner.map_or(0, |fd| fd.as_raw_fd() as u32),
        };
        let fd = new_fd(attr::MAP_CREATE, &mut attr)?;
        Ok(self.map(fd, *definition))
    }

    fn map(&self, fd: OwnedFd, definition: MapDefinition) -> KernelMap {
        let size = definition.value_size as usize;
        let per_cpu = matches!(definition.map_type, MapType::PercpuArray | MapType::PercpuHash);
        let value_bytes = if per_cpu { size.next_multiple_of(8) * self.possible_cpus } else { size };
        KernelMap { fd, definition, value_bytes }
    }

    /// Loads a tc program from its instructions' bytes; asks for the verifier's log only if it is refused.
    pub fn load(&self, instructions: &[u8]) -> Result<KernelProgram, ProgramLoadError> {
        self.load_named("", instructions, None)
    }

    /// Loads a tc program with a name that tools show, and with its source lines if the kernel accepts them.
    pub fn load_named(
        &self,
        name: &str,
        instructions: &[u8],
        debug: Option<&DebugInfo>,
    ) -> Result<KernelProgram, ProgramLoadError> {
        // Without its source lines, the program is the same.
        if let Some(program) = debug.and_then(|debug| self.load_with_lines(name, instructions, debug).ok()) {
            return Ok(program);
        }
        self.load_plain(For::Tc, name, instructions)
    }

    /// Loads an XDP program with a name that tools show.
    pub fn load_xdp(&self, name: &str, instructions: &[u8]) -> Result<KernelProgram, ProgramLoadError> {
        self.load_plain(For::Xdp, name, instructions)
    }

    fn load_plain(&self, what: For, name: &str, instructions: &[u8]) -> Result<KernelProgram, ProgramLoadError> {
        self.load_at(what, name, instructions, 0, &mut []).or_else(|error| {
            if error.raw_os_error() == Some(libc::EPERM) {
                return Err(ProgramLoadError { error, log: String::new() });
            }
            let mut log = vec![0; 1 << 20];
            self.load_at(what, name, instructions, 1, &mut log).map_err(|error| {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                ProgramLoadError { error, log: String::from_utf8_lossy(&log[..end]).into_owned() }
            })
        })
    }

    /// Loads a tc program and returns how many instructions the verifier processed. This measures the cost of a load
    /// independently of the machine.
    pub fn load_counted(&self, instructions: &[u8]) -> io::Result<(KernelProgram, u64)> {
        let mut log = vec![0; 1 << 16];
        let program = self.load_at(For::Tc, "", instructions, LOG_STATISTICS, &mut log)?;
        let text = String::from_utf8_lossy(&log);
        let count = text.split("processed ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        count.map(|count| (program, count)).ok_or_else(|| io::Error::other("the verifier's log has no statistics"))
    }

    fn load_at(
        &self,
        what: For,
        name: &str,
        instructions: &[u8],
        log_level: u32,
        log: &mut [u8],
    ) -> io::Result<KernelProgram> {
        let mut attr = attr::ProgLoad {
            log_level,
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            prog_type: what as u32,
            ..program_attr(name, instructions)
        };
        new_fd(attr::PROG_LOAD, &mut attr).map(|fd| KernelProgram { fd })
    }

    fn load_with_lines(&self, name: &str, instructions: &[u8], debug: &DebugInfo) -> io::Result<KernelProgram> {
        let mut attr = attr::BtfLoad {
            btf: debug.types.as_ptr() as u64,
            btf_size: debug.types.len() as u32,
            ..attr::BtfLoad::default()
        };
        let types = new_fd(attr::BTF_LOAD, &mut attr)?;
        let mut attr = attr::ProgLoad {
            prog_btf_fd: types.as_raw_fd() as u32,
            func_info_rec_size: DebugInfo::FUNCTION_BYTES,
            func_info: debug.functions.as_ptr() as u64,
            func_info_cnt: debug.functions.len() as u32 / DebugInfo::FUNCTION_BYTES,
            line_info_rec_size: DebugInfo::LINE_BYTES,
            line_info: debug.lines.as_ptr() as u64,
            line_info_cnt: debug.lines.len() as u32 / DebugInfo::LINE_BYTES,
            ..program_attr(name, instructions)
        };
        new_fd(attr::PROG_LOAD, &mut attr).map(|fd| KernelProgram { fd })
    }
}

/// The attributes of a tc program without a log. Valid only while the instructions are borrowed.
fn program_attr(name: &str, instructions: &[u8]) -> attr::ProgLoad {
    attr::ProgLoad {
        prog_type: For::Tc as u32,
        insn_cnt: (instructions.len() / 8) as u32,
        insns: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        prog_name: object_name(name),
        ..attr::ProgLoad::default()
    }
}

/// The kernel keeps fifteen characters.
fn object_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    bytes
}

/// `/sys/devices/system/cpu/possible` is a list such as `0-3` or `0,2-7`; the last number counts.
fn possible_cpus() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other(format!("possible CPUs: {text}")))
}

impl AsFd for KernelMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for KernelProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check_length(actual: usize, expected: usize) -> io::Result<()> {
    if actual == expected { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
}

impl KernelMap {
    /// The properties that the map was created with.
    pub fn definition(&self) -> MapDefinition {
        self.definition
    }

    /// Its number in this process, as instructions name it.
    pub fn descriptor(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Bytes of a value as [`KernelMap::update`] takes it: for a per-CPU map, of all CPUs.
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    fn check_key(&self, key: &[u8]) -> io::Result<()> {
        check_length(key.len(), self.definition.key_size as usize)
    }

    fn elem(&self, command: i32, key: u64, value: u64, flags: u64) -> io::Result<()> {
        let mut attr =
            attr::MapElem { map_fd: self.fd.as_raw_fd() as u32, key, value, flags, ..attr::MapElem::default() };
        call(command, &mut attr).map(|_| ())
    }

    /// Writes an entry.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        self.check_key(key)?;
        check_length(value.len(), self.value_bytes)?;
        self.elem(attr::MAP_UPDATE_ELEM, key.as_ptr() as u64, value.as_ptr() as u64, flags)
    }

    /// Writes an entry of a map of maps or of programs.
    pub fn update_descriptor(&self, key: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.update(key, &descriptor.as_raw_fd().to_ne_bytes(), 0)
    }

    /// Reads an entry.
    pub fn lookup(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        self.check_key(key)?;
        let mut value = vec![0; self.value_bytes];
        self.elem(attr::MAP_LOOKUP_ELEM, key.as_ptr() as u64, value.as_mut_ptr() as u64, 0)?;
        Ok(value)
    }

    /// Removes an entry.
    pub fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check_key(key)?;
        self.elem(attr::MAP_DELETE_ELEM, key.as_ptr() as u64, 0, 0)
    }

    /// The key after `key`, or the first one; `None` at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        key.map_or(Ok(()), |key| self.check_key(key))?;
        let mut next = vec![0; self.definition.key_size as usize];
        let key = key.map_or(0, |key| key.as_ptr() as u64);
        match self.elem(attr::MAP_GET_NEXT_KEY, key, next.as_mut_ptr() as u64, 0) {
            Ok(()) => Ok(Some(next)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// From now on only programs may write entries.
    pub fn freeze(&self) -> io::Result<()> {
        let mut attr = attr::MapElem { map_fd: self.fd.as_raw_fd() as u32, ..attr::MapElem::default() };
        call(attr::MAP_FREEZE, &mut attr).map(|_| ())
    }

    /// Writes many entries in one call; keys and values are concatenated. Returns how many were written.
    pub fn update_batch(&self, keys: &[u8], values: &[u8], flags: u64) -> io::Result<u32> {
        let count = self.batch_count(keys)?;
        check_length(values.len(), count as usize * self.value_bytes)?;
        self.batch(attr::MAP_UPDATE_BATCH, count, keys, values.as_ptr() as u64, flags)
    }

    /// Removes many entries in one call. Returns how many were removed.
    pub fn delete_batch(&self, keys: &[u8]) -> io::Result<u32> {
        let count = self.batch_count(keys)?;
        self.batch(attr::MAP_DELETE_BATCH, count, keys, 0, 0)
    }

    /// All entries, in the kernel's order, read in batches. Entries that change meanwhile may be missed or occur twice.
    pub fn entries(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut entries = Vec::new();
        self.each(|key, value| entries.push((key.to_vec(), value.to_vec())))?;
        Ok(entries)
    }

    /// How many entries there are.
    pub fn count(&self) -> io::Result<u64> {
        let mut count = 0;
        self.each(|_, _| count += 1)?;
        Ok(count)
    }

    fn each(&self, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        let (key_size, value_size) = ((self.definition.key_size as usize).max(4), self.value_bytes);
        let (mut from, mut next) = (vec![0_u8; key_size], vec![0_u8; key_size]);
        let mut room = BATCH_ENTRIES;
        let mut begun = false;
        loop {
            let (mut keys, mut values) = (vec![0_u8; room * key_size], vec![0_u8; room * value_size]);
            let mut attr = attr::MapBatch {
                in_batch: if begun { from.as_mut_ptr() as u64 } else { 0 },
                out_batch: next.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: room as u32,
                map_fd: self.fd.as_raw_fd() as u32,
                ..attr::MapBatch::default()
            };
            let result = call(attr::MAP_LOOKUP_BATCH, &mut attr);
            let error = result.as_ref().err().and_then(io::Error::raw_os_error);
            if error == Some(libc::ENOSPC) && room < self.definition.max_entries.max(64) as usize * 2 {
                // A bucket of the hash holds more than there is room for.
                room *= 2;
                continue;
            }
            if error != Some(libc::ENOENT) {
                result?;
            }
            let keys = keys.chunks(self.definition.key_size.max(1) as usize);
            let pairs = keys.zip(values.chunks(value_size.max(1))).take(attr.count as usize);
            pairs.for_each(|(key, value)| each(key, value));
            if error.is_some() {
                return Ok(());
            }
            std::mem::swap(&mut from, &mut next);
            begun = true;
        }
    }

    fn batch_count(&self, keys: &[u8]) -> io::Result<u32> {
        let size = (self.definition.key_size as usize).max(1);
        check_length(keys.len() % size, 0)?;
        u32::try_from(keys.len() / size).map_err(io::Error::other)
    }

    fn batch(&self, command: i32, count: u32, keys: &[u8], values: u64, elem_flags: u64) -> io::Result<u32> {
        let mut attr = attr::MapBatch {
            keys: keys.as_ptr() as u64,
            values,
            count,
            map_fd: self.fd.as_raw_fd() as u32,
            elem_flags,
            ..attr::MapBatch::default()
        };
        call(command, &mut attr).map(|_| attr.count)
    }
}

impl KernelProgram {
    /// Runs the program `repeat` times on a packet, with a `struct __sk_buff` (or nothing) as context.
    pub fn test_run(&self, packet: &[u8], context: &[u8], repeat: u32) -> io::Result<TestRun> {
        // A program may make the packet longer; the kernel refuses to cut its answer short.
        let mut out = vec![0; packet.len() + 256];
        let mut context_out = vec![0; context.len()];
        let pointer = |bytes: &[u8]| if bytes.is_empty() { 0 } else { bytes.as_ptr() as u64 };
        let mut attr = attr::TestRunAttr {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: packet.len() as u32,
            data_size_out: out.len() as u32,
            data_in: packet.as_ptr() as u64,
            data_out: out.as_mut_ptr() as u64,
            repeat,
            ctx_size_in: context.len() as u32,
            ctx_size_out: context.len() as u32,
            ctx_in: pointer(context),
            ctx_out: if context.is_empty() { 0 } else { context_out.as_mut_ptr() as u64 },
            ..attr::TestRunAttr::default()
        };
        call(attr::PROG_TEST_RUN, &mut attr)?;
        out.truncate(attr.data_size_out as usize);
        Ok(TestRun { verdict: attr.retval, packet: out, context: context_out, nanoseconds: attr.duration })
    }
}

fn new_fd<T: attr::Attr>(command: i32, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel has just returned this descriptor to us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call<T: attr::Attr>(command: i32, attr: &mut T) -> io::Result<i32> {
    let size = size_of::<T>();
    // SAFETY: `attr` is a plain C structure without padding that begins as `union bpf_attr` does for `command`; every
    // address and length in it was taken by the caller from a buffer that is borrowed until this call returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Turns the result of a socket call into a descriptor or an error.
fn call_socket(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
