//! The `bpf` system call, as safe functions on owned descriptors.
//!
//! Strategy: each method fills the command's part of `union bpf_attr` (which `aya-obj` generates from the kernel's
//! headers) and makes the call. It checks every length first, so that the kernel never reads or writes past a Rust
//! buffer. The members are set one by one in a union of zeros, because the kernel refuses unknown members that are not
//! zero: a structure written as a whole would bring its padding along, which has no defined value.

#![expect(unsafe_code, reason = "system calls have no safe form")]

pub mod beside;
mod changed_files;
pub(crate) mod known_files;
pub(crate) mod known_filters;
pub(crate) mod known_interfaces;
pub mod links;
mod mapped;
pub mod netlink;
mod notify;
mod objects;
mod place;
pub(crate) mod until_change;

pub use changed_files::{ChangedFiles, FileChanges};
pub use mapped::{BegunFlows, MappedFlowTable};
pub use notify::{ChangedInterfaces, Notifier};
pub use objects::{Hook, KernelLink, LinkInfo, MapInfo, ProgramInfo, Queried, XdpMode};
pub use place::{
    Lock, cpu_time, is_bpffs, kernel_version, namespace, page_bytes, raise_descriptor_limit, random, roots_outside,
    since_boot, tick, wait_for_programs, wait_readable,
};

use std::ffi::c_char;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_link_info, bpf_map_info, bpf_map_type, bpf_prog_info, bpf_prog_type};
use rustix::process::{Resource, Rlimit};
use weir_artifact::DebugInfo;

/// Map types by the kernel's numbers. Only these: the size of a value in a system call depends on the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[expect(missing_docs, reason = "the kernel's names")]
pub enum MapType {
    Hash = bpf_map_type::BPF_MAP_TYPE_HASH as u32,
    Array = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32,
    ProgArray = bpf_map_type::BPF_MAP_TYPE_PROG_ARRAY as u32,
    PercpuHash = bpf_map_type::BPF_MAP_TYPE_PERCPU_HASH as u32,
    PercpuArray = bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY as u32,
    LruHash = bpf_map_type::BPF_MAP_TYPE_LRU_HASH as u32,
    LpmTrie = bpf_map_type::BPF_MAP_TYPE_LPM_TRIE as u32,
    ArrayOfMaps = bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS as u32,
    HashOfMaps = bpf_map_type::BPF_MAP_TYPE_HASH_OF_MAPS as u32,
    RingBuf = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32,
}

const TC: bpf_prog_type = bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS;
const XDP: bpf_prog_type = bpf_prog_type::BPF_PROG_TYPE_XDP;

/// `BPF_LOG_LEVEL1`: the instructions on the way to the error.
const LOG_INSTRUCTIONS: u32 = 1;
/// `BPF_LOG_STATS`
const LOG_STATISTICS: u32 = 4;
/// Bytes of the first buffer for the verifier's log.
const LOG_BYTES: usize = 1 << 16;
/// Bytes of the largest buffer that all supported kernels accept.
const MOST_LOG_BYTES: usize = u32::MAX as usize >> 8;

/// Entries that one call reads.
const BATCH_ENTRIES: usize = 1024;

/// The kernel's number of an error. [`io::Error::raw_os_error`] has none if the kernel explained the error.
pub fn errno(error: &io::Error) -> Option<i32> {
    let explained = || error.get_ref()?.downcast_ref::<netlink::NetlinkError>().map(|it| it.number);
    error.raw_os_error().or_else(explained)
}

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

/// A map of the kernel. A clone has the same descriptor.
#[derive(Clone, Debug)]
pub struct KernelMap {
    fd: Arc<OwnedFd>,
    definition: MapDefinition,
    /// Bytes of a value as the system call reads and writes it.
    value_bytes: usize,
}

/// A program that the kernel has loaded. A clone has the same descriptor.
#[derive(Clone, Debug)]
pub struct KernelProgram {
    fd: Arc<OwnedFd>,
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
        // Failing is fine where the limit does not matter.
        _ = rustix::process::setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        let kernel = Self { possible_cpus: aya::util::nr_cpus().map_err(|(_, error)| error)? };
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
        let mut attr = bpf_attr::zeroed();
        attr.__bindgen_anon_1.map_type = definition.map_type as u32;
        attr.__bindgen_anon_1.key_size = definition.key_size;
        attr.__bindgen_anon_1.value_size = definition.value_size;
        attr.__bindgen_anon_1.max_entries = definition.max_entries;
        attr.__bindgen_anon_1.map_flags = definition.flags;
        attr.__bindgen_anon_1.inner_map_fd = inner.map_or(0, |fd| fd.as_raw_fd() as u32);
        attr.__bindgen_anon_1.map_name = object_name(name);
        let fd = new_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr)?;
        Ok(self.map(fd, *definition))
    }

    fn map(&self, fd: OwnedFd, definition: MapDefinition) -> KernelMap {
        let size = definition.value_size as usize;
        let per_cpu = matches!(definition.map_type, MapType::PercpuArray | MapType::PercpuHash);
        let value_bytes = if per_cpu { size.next_multiple_of(8) * self.possible_cpus } else { size };
        KernelMap { fd: Arc::new(fd), definition, value_bytes }
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
        self.load_plain(TC, name, instructions)
    }

    /// Loads an XDP program with a name that tools show.
    pub fn load_xdp(&self, name: &str, instructions: &[u8]) -> Result<KernelProgram, ProgramLoadError> {
        self.load_plain(XDP, name, instructions)
    }

    fn load_plain(
        &self,
        what: bpf_prog_type,
        name: &str,
        instructions: &[u8],
    ) -> Result<KernelProgram, ProgramLoadError> {
        let first = match self.load_at(what, name, instructions, 0, &mut []) {
            Err(error) if error.raw_os_error() != Some(libc::EPERM) => error,
            other => return other.map_err(|error| ProgramLoadError { error, log: String::new() }),
        };
        let mut log = vec![0; LOG_BYTES];
        loop {
            let error = match self.load_at(what, name, instructions, LOG_INSTRUCTIONS, &mut log) {
                // The log did not fit, which hides why the program was refused.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    if log.len() < MOST_LOG_BYTES {
                        log = vec![0; (log.len() * 10).min(MOST_LOG_BYTES)];
                        continue;
                    }
                    first
                }
                Err(error) => error,
                Ok(program) => return Ok(program),
            };
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            return Err(ProgramLoadError { error, log: String::from_utf8_lossy(&log[..end]).into_owned() });
        }
    }

    /// Loads a tc program and returns how many instructions the verifier processed. This measures the cost of a load
    /// independently of the machine.
    pub fn load_counted(&self, instructions: &[u8]) -> io::Result<(KernelProgram, u64)> {
        let mut log = vec![0; LOG_BYTES];
        let program = self.load_at(TC, "", instructions, LOG_STATISTICS, &mut log)?;
        let text = String::from_utf8_lossy(&log);
        let count = text.split("processed ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        count.map(|count| (program, count)).ok_or_else(|| io::Error::other("the verifier's log has no statistics"))
    }

    fn load_at(
        &self,
        what: bpf_prog_type,
        name: &str,
        instructions: &[u8],
        log_level: u32,
        log: &mut [u8],
    ) -> io::Result<KernelProgram> {
        let mut attr = program_attr(what, name, instructions);
        if !log.is_empty() {
            attr.__bindgen_anon_3.log_level = log_level;
            attr.__bindgen_anon_3.log_size = log.len() as u32;
            attr.__bindgen_anon_3.log_buf = log.as_mut_ptr() as u64;
        }
        new_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr).map(KernelProgram::new)
    }

    fn load_with_lines(&self, name: &str, instructions: &[u8], debug: &DebugInfo) -> io::Result<KernelProgram> {
        let mut attr = bpf_attr::zeroed();
        attr.__bindgen_anon_7.btf = debug.types.as_ptr() as u64;
        attr.__bindgen_anon_7.btf_size = debug.types.len() as u32;
        let types = new_fd(bpf_cmd::BPF_BTF_LOAD, &mut attr)?;
        let mut attr = program_attr(TC, name, instructions);
        attr.__bindgen_anon_3.prog_btf_fd = types.as_raw_fd() as u32;
        attr.__bindgen_anon_3.func_info_rec_size = DebugInfo::FUNCTION_BYTES;
        attr.__bindgen_anon_3.func_info = debug.functions.as_ptr() as u64;
        attr.__bindgen_anon_3.func_info_cnt = debug.functions.len() as u32 / DebugInfo::FUNCTION_BYTES;
        attr.__bindgen_anon_3.line_info_rec_size = DebugInfo::LINE_BYTES;
        attr.__bindgen_anon_3.line_info = debug.lines.as_ptr() as u64;
        attr.__bindgen_anon_3.line_info_cnt = debug.lines.len() as u32 / DebugInfo::LINE_BYTES;
        new_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr).map(KernelProgram::new)
    }
}

/// The attributes of a program without a log. Valid only while the instructions are borrowed.
fn program_attr(what: bpf_prog_type, name: &str, instructions: &[u8]) -> bpf_attr {
    let mut attr = bpf_attr::zeroed();
    attr.__bindgen_anon_3.prog_type = what as u32;
    attr.__bindgen_anon_3.insn_cnt = (instructions.len() / 8) as u32;
    attr.__bindgen_anon_3.insns = instructions.as_ptr() as u64;
    attr.__bindgen_anon_3.license = c"GPL".as_ptr() as u64;
    attr.__bindgen_anon_3.prog_name = object_name(name);
    attr
}

/// The kernel keeps fifteen characters.
fn object_name(name: &str) -> [c_char; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().take(15).zip(name.bytes()) {
        *to = from as c_char;
    }
    bytes
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

    fn elem(&self, command: bpf_cmd, key: u64, value: u64, flags: u64) -> io::Result<()> {
        let mut attr = bpf_attr::zeroed();
        attr.__bindgen_anon_2.map_fd = self.fd.as_raw_fd() as u32;
        attr.__bindgen_anon_2.key = key;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value;
        attr.__bindgen_anon_2.flags = flags;
        call(command, &mut attr).map(|_| ())
    }

    /// Writes an entry.
    pub fn update(&self, key: &[u8], value: &[u8], flags: u64) -> io::Result<()> {
        self.check_key(key)?;
        check_length(value.len(), self.value_bytes)?;
        self.elem(bpf_cmd::BPF_MAP_UPDATE_ELEM, key.as_ptr() as u64, value.as_ptr() as u64, flags)
    }

    /// Writes an entry of a map of maps or of programs.
    pub fn update_descriptor(&self, key: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.update(key, &descriptor.as_raw_fd().to_ne_bytes(), 0)
    }

    /// Reads an entry.
    pub fn lookup(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        self.check_key(key)?;
        let mut value = vec![0; self.value_bytes];
        self.elem(bpf_cmd::BPF_MAP_LOOKUP_ELEM, key.as_ptr() as u64, value.as_mut_ptr() as u64, 0)?;
        Ok(value)
    }

    /// Removes an entry.
    pub fn delete(&self, key: &[u8]) -> io::Result<()> {
        self.check_key(key)?;
        self.elem(bpf_cmd::BPF_MAP_DELETE_ELEM, key.as_ptr() as u64, 0, 0)
    }

    /// The key after `key`, or the first one; `None` at the end.
    pub fn next_key(&self, key: Option<&[u8]>) -> io::Result<Option<Vec<u8>>> {
        key.map_or(Ok(()), |key| self.check_key(key))?;
        let mut next = vec![0; self.definition.key_size as usize];
        let key = key.map_or(0, |key| key.as_ptr() as u64);
        match self.elem(bpf_cmd::BPF_MAP_GET_NEXT_KEY, key, next.as_mut_ptr() as u64, 0) {
            Ok(()) => Ok(Some(next)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// From now on only programs may write entries.
    pub fn freeze(&self) -> io::Result<()> {
        self.elem(bpf_cmd::BPF_MAP_FREEZE, 0, 0, 0)
    }

    /// Writes many entries in one call; keys and values are concatenated. Returns how many were written.
    pub fn update_batch(&self, keys: &[u8], values: &[u8], flags: u64) -> io::Result<u32> {
        let count = self.count_keys(keys)?;
        check_length(values.len(), count as usize * self.value_bytes)?;
        let mut attr = self.batch_attr(count, keys.as_ptr() as u64, values.as_ptr() as u64);
        attr.batch.elem_flags = flags;
        call(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut attr).map(|_| batch_count(&attr))
    }

    /// Removes many entries in one call. Returns how many were removed.
    pub fn delete_batch(&self, keys: &[u8]) -> io::Result<u32> {
        let count = self.count_keys(keys)?;
        let mut attr = self.batch_attr(count, keys.as_ptr() as u64, 0);
        call(bpf_cmd::BPF_MAP_DELETE_BATCH, &mut attr).map(|_| batch_count(&attr))
    }

    /// All entries, in the kernel's order, read in batches. Entries that change meanwhile may be missed or occur twice.
    pub fn entries(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Ok(self.flat_entries()?.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
    }

    /// The same in two allocations, for maps with many entries.
    pub fn flat_entries(&self) -> io::Result<FlatEntries> {
        let mut entries = FlatEntries::new(self);
        self.each(|key, value| entries.push(key, value))?;
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
            let mut attr = self.batch_attr(room as u32, keys.as_mut_ptr() as u64, values.as_mut_ptr() as u64);
            attr.batch.in_batch = if begun { from.as_mut_ptr() as u64 } else { 0 };
            attr.batch.out_batch = next.as_mut_ptr() as u64;
            let result = call(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr);
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
            let pairs = keys.zip(values.chunks(value_size.max(1))).take(batch_count(&attr) as usize);
            pairs.for_each(|(key, value)| each(key, value));
            if error.is_some() {
                return Ok(());
            }
            std::mem::swap(&mut from, &mut next);
            begun = true;
        }
    }

    fn count_keys(&self, keys: &[u8]) -> io::Result<u32> {
        let size = (self.definition.key_size as usize).max(1);
        check_length(keys.len() % size, 0)?;
        u32::try_from(keys.len() / size).map_err(io::Error::other)
    }

    fn batch_attr(&self, count: u32, keys: u64, values: u64) -> bpf_attr {
        let mut attr = bpf_attr::zeroed();
        attr.batch.map_fd = self.fd.as_raw_fd() as u32;
        attr.batch.count = count;
        attr.batch.keys = keys;
        attr.batch.values = values;
        attr
    }
}

/// The number of entries that the kernel has processed.
fn batch_count(attr: &bpf_attr) -> u32 {
    // SAFETY: all bytes are initialized, and every bit pattern is a number.
    unsafe { attr.batch.count }
}

/// Entries of a map, concatenated.
#[derive(Clone, Debug)]
pub struct FlatEntries {
    key_size: usize,
    value_size: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
}

impl FlatEntries {
    pub(crate) fn new(map: &KernelMap) -> Self {
        // Only a map without keys, such as a ring buffer, has a size of 0, and it has no entries.
        let (key_size, value_size) = (map.definition.key_size.max(1) as usize, map.value_bytes.max(1));
        Self { key_size, value_size, keys: Vec::new(), values: Vec::new() }
    }

    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.keys.extend(key);
        self.values.extend(value);
    }

    /// The entries: key and value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.keys.chunks_exact(self.key_size).zip(self.values.chunks_exact(self.value_size))
    }
}

impl KernelProgram {
    fn new(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// Runs the program `repeat` times on a packet, with a `struct __sk_buff` (or nothing) as context.
    pub fn test_run(&self, packet: &[u8], context: &[u8], repeat: u32) -> io::Result<TestRun> {
        // A program may make the packet longer; the kernel refuses to cut its answer short.
        let mut out = vec![0; packet.len() + 256];
        let mut context_out = vec![0; context.len()];
        let mut attr = bpf_attr::zeroed();
        attr.test.prog_fd = self.fd.as_raw_fd() as u32;
        attr.test.data_size_in = packet.len() as u32;
        attr.test.data_size_out = out.len() as u32;
        attr.test.data_in = packet.as_ptr() as u64;
        attr.test.data_out = out.as_mut_ptr() as u64;
        attr.test.repeat = repeat;
        if !context.is_empty() {
            attr.test.ctx_size_in = context.len() as u32;
            attr.test.ctx_size_out = context.len() as u32;
            attr.test.ctx_in = context.as_ptr() as u64;
            attr.test.ctx_out = context_out.as_mut_ptr() as u64;
        }
        call(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
        // SAFETY: all bytes are initialized, and the structure has only numbers.
        let test = unsafe { attr.test };
        out.truncate(test.data_size_out as usize);
        Ok(TestRun { verdict: test.retval, packet: out, context: context_out, nanoseconds: test.duration })
    }
}

/// A structure of the kernel for which any bytes are a valid value.
///
/// # Safety
///
/// The type contains only numbers, and arrays, structures and unions of numbers.
unsafe trait Plain: Copy {
    fn zeroed() -> Self {
        // SAFETY: zeros are a valid value.
        unsafe { std::mem::zeroed() }
    }
}

// SAFETY: the kernel's interface consists of numbers.
unsafe impl Plain for bpf_attr {}
// SAFETY: as above.
unsafe impl Plain for bpf_link_info {}
// SAFETY: as above.
unsafe impl Plain for bpf_map_info {}
// SAFETY: as above.
unsafe impl Plain for bpf_prog_info {}

/// Makes the kernel explain errors on a netlink socket.
fn explain_errors(socket: &OwnedFd) -> io::Result<()> {
    switch_on(socket, libc::NETLINK_EXT_ACK)
}

/// Makes the kernel refuse attributes of lists that it would otherwise ignore.
fn check_strictly(socket: &OwnedFd) -> io::Result<()> {
    switch_on(socket, libc::NETLINK_GET_STRICT_CHK)
}

/// Switches an option of a netlink socket on. (rustix does not have these options.)
fn switch_on(socket: &OwnedFd, option: i32) -> io::Result<()> {
    let on = 1_i32;
    let (value, size) = (std::ptr::from_ref(&on).cast(), size_of_val(&on) as libc::socklen_t);
    // SAFETY: an open socket, and a value of this size, alive during the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_NETLINK, option, value, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn new_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel has just returned this descriptor to us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    beside::count();
    let size = size_of::<bpf_attr>();
    // SAFETY: a union of this size, alive during the call; every address and length in it was taken by the caller from
    // a buffer that is borrowed until this call returns.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as u32, std::ptr::from_mut(attr), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
