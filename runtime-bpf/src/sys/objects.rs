//! Pins, links, and information about kernel objects.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::{BpfKernel, KernelMap, KernelProgram, MapDefinition, MapType, attr, call, new_fd};

/// A hook on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// tc ingress: packets that the host receives from the interface.
    Ingress,
    /// tc egress: packets that the host sends through it.
    Egress,
}

impl Hook {
    /// `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`
    fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }
}

/// `BPF_F_BEFORE`: without a neighbour, before all others.
const BEFORE: u32 = 1 << 3;
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

/// `BPF_XDP`
const XDP: u32 = 37;

impl XdpMode {
    /// `XDP_FLAGS_DRV_MODE`, `XDP_FLAGS_SKB_MODE`
    fn flags(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }
}

/// The attachment of a program to an interface. Unless it is pinned, it ends when its last descriptor is closed.
#[derive(Debug)]
pub struct KernelLink {
    fd: OwnedFd,
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
        let mut attr = attr::ObjectAttr {
            pathname: path.as_ptr() as u64,
            bpf_fd: object.as_raw_fd() as u32,
            ..attr::ObjectAttr::default()
        };
        call(attr::OBJ_PIN, &mut attr).map(|_| ())
    }

    /// The map that is pinned there.
    pub fn pinned_map(&self, path: &Path) -> io::Result<KernelMap> {
        let fd = pinned(path)?;
        let definition = map_info(fd.as_fd())?.definition;
        Ok(self.map(fd, definition))
    }

    /// The program that is pinned there.
    pub fn pinned_program(&self, path: &Path) -> io::Result<KernelProgram> {
        Ok(KernelProgram { fd: pinned(path)? })
    }

    /// The map of this number. It exists as long as a process, a pin or a program holds it.
    pub fn numbered_map(&self, id: u32) -> io::Result<KernelMap> {
        let fd = new_fd(attr::MAP_GET_FD_BY_ID, &mut attr::ById { id, ..attr::ById::default() })?;
        let definition = map_info(fd.as_fd())?.definition;
        Ok(self.map(fd, definition))
    }

    /// The program of this number. It exists as long as a process, a pin or a hook holds it.
    pub fn numbered_program(&self, id: u32) -> io::Result<KernelProgram> {
        new_fd(attr::PROG_GET_FD_BY_ID, &mut attr::ById { id, ..attr::ById::default() }).map(|fd| KernelProgram { fd })
    }

    /// The link that is pinned there.
    pub fn pinned_link(&self, path: &Path) -> io::Result<KernelLink> {
        Ok(KernelLink { fd: pinned(path)? })
    }

    /// Attaches a program to an interface's TCX hook, before all other programs there.
    pub fn attach(&self, program: &KernelProgram, ifindex: u32, hook: Hook) -> io::Result<KernelLink> {
        let mut attr = attr::LinkCreate {
            prog_fd: program.fd.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: hook.attach_type(),
            flags: BEFORE,
            ..attr::LinkCreate::default()
        };
        new_fd(attr::LINK_CREATE, &mut attr).map(|fd| KernelLink { fd })
    }

    /// Attaches an XDP program to an interface's incoming packets. An interface has room for one.
    pub fn attach_xdp(&self, program: &KernelProgram, ifindex: u32, mode: XdpMode) -> io::Result<KernelLink> {
        let mut attr = attr::LinkCreate {
            prog_fd: program.fd.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: XDP,
            flags: mode.flags(),
            ..attr::LinkCreate::default()
        };
        new_fd(attr::LINK_CREATE, &mut attr).map(|fd| KernelLink { fd })
    }

    /// The programs on an interface's hook (TCX). `EINVAL` where the kernel does not know such hooks.
    pub fn query(&self, ifindex: u32, hook: Hook) -> io::Result<Queried> {
        let (mut programs, mut links) = ([0_u32; MOST_PROGRAMS], [0_u32; MOST_PROGRAMS]);
        let mut attr = attr::ProgQuery {
            target_ifindex: ifindex,
            attach_type: hook.attach_type(),
            prog_ids: programs.as_mut_ptr() as u64,
            link_ids: links.as_mut_ptr() as u64,
            count: MOST_PROGRAMS as u32,
            ..attr::ProgQuery::default()
        };
        call(attr::PROG_QUERY, &mut attr)?;
        Ok(programs.into_iter().zip(links).take(attr.count as usize).collect())
    }
}

impl KernelLink {
    /// Replaces the link's program atomically: every packet is seen by one of the two.
    pub fn replace(&self, program: &KernelProgram) -> io::Result<()> {
        let mut attr = attr::LinkUpdate {
            link_fd: self.fd.as_raw_fd() as u32,
            new_prog_fd: program.fd.as_raw_fd() as u32,
            ..attr::LinkUpdate::default()
        };
        call(attr::LINK_UPDATE, &mut attr).map(|_| ())
    }

    /// Detaches the program, even if other processes or pins hold the link.
    pub fn detach(&self) -> io::Result<()> {
        let mut attr = attr::LinkUpdate { link_fd: self.fd.as_raw_fd() as u32, ..attr::LinkUpdate::default() };
        call(attr::LINK_DETACH, &mut attr).map(|_| ())
    }

    /// The link's number, program and interface.
    pub fn info(&self) -> io::Result<LinkInfo> {
        let bytes = info::<32>(self.fd.as_fd())?;
        Ok(LinkInfo { id: word(&bytes, 4), program: word(&bytes, 8), ifindex: word(&bytes, 16) })
    }
}

impl KernelProgram {
    /// The program's number, digest and name.
    pub fn info(&self) -> io::Result<ProgramInfo> {
        let bytes = info::<80>(self.fd.as_fd())?;
        let mut tag = [0; 8];
        tag.copy_from_slice(&bytes[8..16]);
        let name = bytes[64..].split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(ProgramInfo { id: word(&bytes, 4), tag, name: String::from_utf8_lossy(name).into_owned() })
    }
}

impl KernelMap {
    /// The map's number and definition.
    pub fn info(&self) -> io::Result<MapInfo> {
        map_info(self.fd.as_fd())
    }
}

fn map_info(fd: BorrowedFd<'_>) -> io::Result<MapInfo> {
    let bytes = info::<40>(fd)?;
    let map_type = map_type(word(&bytes, 0)).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let definition = MapDefinition {
        map_type,
        key_size: word(&bytes, 8),
        value_size: word(&bytes, 12),
        max_entries: word(&bytes, 16),
        flags: word(&bytes, 20),
    };
    Ok(MapInfo { id: word(&bytes, 4), definition })
}

fn map_type(number: u32) -> Option<MapType> {
    use MapType::*;
    let all = [Hash, Array, ProgArray, PercpuHash, PercpuArray, LruHash, LpmTrie, ArrayOfMaps, HashOfMaps, RingBuf];
    all.into_iter().find(|known| *known as u32 == number)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u32::from_ne_bytes(*word))
}

/// The first `N` bytes of the kernel's information about an object.
fn info<const N: usize>(fd: BorrowedFd<'_>) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut attr = attr::Info { bpf_fd: fd.as_raw_fd() as u32, info_len: N as u32, info: bytes.as_mut_ptr() as u64 };
    call(attr::OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(bytes)
}

fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attr = attr::ObjectAttr { pathname: path.as_ptr() as u64, ..attr::ObjectAttr::default() };
    new_fd(attr::OBJ_GET, &mut attr)
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
