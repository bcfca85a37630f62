//! Pins, links, and information about kernel objects.

use std::ffi::{CString, c_char};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use aya_obj::generated::{
    BPF_F_BEFORE, BPF_F_REPLACE, XDP_FLAGS_DRV_MODE, XDP_FLAGS_SKB_MODE, bpf_attach_type, bpf_attr, bpf_cmd,
    bpf_link_info, bpf_map_info, bpf_prog_info,
};

use super::{BpfKernel, KernelMap, KernelProgram, MapDefinition, MapType, Plain, call, new_fd};

/// A hook on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// tc ingress: packets that the host receives from the interface.
    Ingress,
    /// tc egress: packets that the host sends through it.
    Egress,
}

impl Hook {
    fn attach_type(self) -> bpf_attach_type {
        match self {
            Self::Ingress => bpf_attach_type::BPF_TCX_INGRESS,
            Self::Egress => bpf_attach_type::BPF_TCX_EGRESS,
        }
    }
}

/// The largest number of programs that one query returns.
const MOST_PROGRAMS: usize = 64;

/// Where an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XdpMode {
    /// In the driver.
    Native,
    /// In the kernel's network stack: later, but without support of the driver.
    Generic,
}

impl XdpMode {
    fn flags(self) -> u32 {
        match self {
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// The attachment of a program to an interface. Unless it is pinned, it ends when its last descriptor is closed. A clone
/// has the same descriptor.
#[derive(Clone, Debug)]
pub struct KernelLink {
    fd: Arc<OwnedFd>,
}

/// The kernel's information about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// The link's number.
    pub id: u32,
    /// The program that runs there.
    pub program: u32,
    /// The interface's number; 0 once the interface is gone.
    pub ifindex: u32,
}

/// The kernel's information about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// The program's number.
    pub id: u32,
    /// The digest of its instructions.
    pub tag: [u8; 8],
    /// The program's name, truncated by the kernel.
    pub name: String,
}

/// The kernel's information about a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapInfo {
    /// The map's number.
    pub id: u32,
    /// The definition that it was created with.
    pub definition: MapDefinition,
}

/// The programs on a hook in the order in which they run: numbers of program and link (0: no link).
pub type Queried = Vec<(u32, u32)>;

impl AsFd for KernelLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl BpfKernel {
    /// Gives an object a name under a bpf file system.
    pub fn pin(&self, object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        let path = c_path(path)?;
        let mut attr = bpf_attr::zeroed();
        attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
        attr.__bindgen_anon_4.bpf_fd = object.as_raw_fd() as u32;
        call(bpf_cmd::BPF_OBJ_PIN, &mut attr).map(|_| ())
    }

    /// The map that is pinned there.
    pub fn pinned_map(&self, path: &Path) -> io::Result<KernelMap> {
        let fd = pinned(path)?;
        let definition = map_info(fd.as_fd())?.definition;
        Ok(self.map(fd, definition))
    }

    /// The program that is pinned there.
    pub fn pinned_program(&self, path: &Path) -> io::Result<KernelProgram> {
        pinned(path).map(KernelProgram::new)
    }

    /// The map of this number. It exists as long as a process, a pin or a program holds it.
    pub fn numbered_map(&self, id: u32) -> io::Result<KernelMap> {
        let mut attr = bpf_attr::zeroed();
        attr.__bindgen_anon_6.__bindgen_anon_1.map_id = id;
        let fd = new_fd(bpf_cmd::BPF_MAP_GET_FD_BY_ID, &mut attr)?;
        let definition = map_info(fd.as_fd())?.definition;
        Ok(self.map(fd, definition))
    }

    /// The program of this number. It exists as long as a process, a pin or a hook holds it.
    pub fn numbered_program(&self, id: u32) -> io::Result<KernelProgram> {
        let mut attr = bpf_attr::zeroed();
        attr.__bindgen_anon_6.__bindgen_anon_1.prog_id = id;
        new_fd(bpf_cmd::BPF_PROG_GET_FD_BY_ID, &mut attr).map(KernelProgram::new)
    }

    /// The numbers of all maps of the machine. Opens none of them: see [`Self::program_numbers`].
    pub fn map_numbers(&self) -> io::Result<Vec<u32>> {
        numbers(bpf_cmd::BPF_MAP_GET_NEXT_ID)
    }

    /// The numbers of all programs of the machine. Opens none of them.
    ///
    /// To ask whether an object is gone, opening it by its number is the wrong way: a program array is cleared when its
    /// last file descriptor is closed, and an array that is opened meanwhile can be left with its programs for good.
    pub fn program_numbers(&self) -> io::Result<Vec<u32>> {
        numbers(bpf_cmd::BPF_PROG_GET_NEXT_ID)
    }

    /// The link that is pinned there.
    pub fn pinned_link(&self, path: &Path) -> io::Result<KernelLink> {
        pinned(path).map(KernelLink::new)
    }

    /// Attaches a program to an interface's TCX hook, before all other programs there.
    pub fn attach(&self, program: &KernelProgram, ifindex: u32, hook: Hook) -> io::Result<KernelLink> {
        // Without a neighbour, `BPF_F_BEFORE` means before all others.
        create_link(program, ifindex, hook.attach_type(), BPF_F_BEFORE)
    }

    /// Attaches an XDP program to an interface's incoming packets. An interface has room for one.
    pub fn attach_xdp(&self, program: &KernelProgram, ifindex: u32, mode: XdpMode) -> io::Result<KernelLink> {
        create_link(program, ifindex, bpf_attach_type::BPF_XDP, mode.flags())
    }

    /// The programs on an interface's hook (TCX). `EINVAL` where the kernel does not know such hooks.
    pub fn query(&self, ifindex: u32, hook: Hook) -> io::Result<Queried> {
        let (mut programs, mut links) = ([0_u32; MOST_PROGRAMS], [0_u32; MOST_PROGRAMS]);
        let mut attr = bpf_attr::zeroed();
        attr.query.__bindgen_anon_1.target_ifindex = ifindex;
        attr.query.attach_type = hook.attach_type() as u32;
        attr.query.prog_ids = programs.as_mut_ptr() as u64;
        attr.query.link_ids = links.as_mut_ptr() as u64;
        attr.query.__bindgen_anon_2.count = MOST_PROGRAMS as u32;
        call(bpf_cmd::BPF_PROG_QUERY, &mut attr)?;
        // No program has the number 0: the kernel has not written there.
        Ok(programs.into_iter().zip(links).take_while(|(program, _)| *program != 0).collect())
    }
}

/// The numbers of all objects of a kind. The command returns the next larger number, and fails with `ENOENT` after the
/// last one.
fn numbers(next: bpf_cmd) -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let mut last = 0;
    loop {
        let mut attr = bpf_attr::zeroed();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = last;
        match call(next, &mut attr) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(numbers),
            Err(error) => return Err(error),
        }
        // SAFETY: a field of a union of integers, which the kernel has written.
        last = unsafe { attr.__bindgen_anon_6.next_id };
        numbers.push(last);
    }
}

fn create_link(
    program: &KernelProgram,
    ifindex: u32,
    attach_type: bpf_attach_type,
    flags: u32,
) -> io::Result<KernelLink> {
    let mut attr = bpf_attr::zeroed();
    attr.link_create.__bindgen_anon_1.prog_fd = program.fd.as_raw_fd() as u32;
    attr.link_create.__bindgen_anon_2.target_ifindex = ifindex;
    attr.link_create.attach_type = attach_type as u32;
    attr.link_create.flags = flags;
    new_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr).map(KernelLink::new)
}

impl KernelLink {
    fn new(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// Replaces the link's program atomically: every packet is seen by one of the two.
    pub fn replace(&self, program: &KernelProgram) -> io::Result<()> {
        self.update(program, None)
    }

    /// The same, only if `before` is the link's program now: otherwise the error is `EPERM`.
    pub fn exchange(&self, before: &KernelProgram, program: &KernelProgram) -> io::Result<()> {
        self.update(program, Some(before))
    }

    fn update(&self, program: &KernelProgram, before: Option<&KernelProgram>) -> io::Result<()> {
        let mut attr = bpf_attr::zeroed();
        attr.link_update.link_fd = self.fd.as_raw_fd() as u32;
        attr.link_update.__bindgen_anon_1.new_prog_fd = program.fd.as_raw_fd() as u32;
        if let Some(before) = before {
            attr.link_update.flags = BPF_F_REPLACE;
            attr.link_update.__bindgen_anon_2.old_prog_fd = before.fd.as_raw_fd() as u32;
        }
        call(bpf_cmd::BPF_LINK_UPDATE, &mut attr).map(|_| ())
    }

    /// Detaches the program, even if other processes or pins hold the link.
    pub fn detach(&self) -> io::Result<()> {
        let mut attr = bpf_attr::zeroed();
        attr.link_detach.link_fd = self.fd.as_raw_fd() as u32;
        call(bpf_cmd::BPF_LINK_DETACH, &mut attr).map(|_| ())
    }

    /// The link's number, program and interface.
    pub fn info(&self) -> io::Result<LinkInfo> {
        let info: bpf_link_info = info(self.fd.as_fd())?;
        // SAFETY: all bytes are initialized, and every bit pattern is a number. Links at TCX hooks and at XDP have the
        // interface at the same place.
        let ifindex = unsafe { info.__bindgen_anon_1.tcx.ifindex };
        Ok(LinkInfo { id: info.id, program: info.prog_id, ifindex })
    }
}

impl KernelProgram {
    /// The program's number, digest and name.
    pub fn info(&self) -> io::Result<ProgramInfo> {
        let info: bpf_prog_info = info(self.fd.as_fd())?;
        Ok(ProgramInfo { id: info.id, tag: info.tag, name: name(&info.name) })
    }
}

impl KernelMap {
    /// The map's number and definition.
    pub fn info(&self) -> io::Result<MapInfo> {
        map_info(self.fd.as_fd())
    }
}

fn map_info(fd: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let info: bpf_map_info = info(fd)?;
    let map_type = map_type(info.type_).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let definition = MapDefinition {
        map_type,
        key_size: info.key_size,
        value_size: info.value_size,
        max_entries: info.max_entries,
        flags: info.map_flags,
    };
    Ok(MapInfo { id: info.id, definition })
}

fn map_type(number: u32) -> Option<MapType> {
    use MapType::*;
    let all = [Hash, Array, ProgArray, PercpuHash, PercpuArray, LruHash, LpmTrie, ArrayOfMaps, HashOfMaps, RingBuf];
    all.into_iter().find(|known| *known as u32 == number)
}

/// The name of an object, which ends at the first zero.
fn name(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|it| *it as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The kernel's information about an object.
fn info<T: Plain>(fd: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::zeroed();
    let mut attr = bpf_attr::zeroed();
    attr.info.bpf_fd = fd.as_raw_fd() as u32;
    attr.info.info_len = size_of::<T>() as u32;
    attr.info.info = std::ptr::from_mut(&mut info) as u64;
    call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info)
}

fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = bpf_attr::zeroed();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    new_fd(bpf_cmd::BPF_OBJ_GET, &mut attr)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
