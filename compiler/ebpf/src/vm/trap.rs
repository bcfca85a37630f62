//! Traps: exactly where and why a program was stopped.

use super::map::MapId;
use super::{ProgramId, map::MapKind};
use crate::helper::Helper;
use crate::insn::Insn;
use std::fmt;

/// The kind of object that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRegion {
    /// No object: NULL and small numbers.
    Nothing,
    /// The stack; its elements are call frames.
    Stack,
    /// The context.
    Context,
    /// The linear part of the packet.
    Packet,
    /// The packet before a helper invalidated its pointers.
    StalePacket,
    /// A map itself; programs may only pass its address to helpers.
    Map(MapId),
    /// A map's values; their elements are entries.
    Value(MapId),
    /// A reserved ring-buffer record.
    Record(MapId),
    /// A record that was submitted or discarded.
    StaleRecord(MapId),
}

impl fmt::Display for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Stack => f.write_str("the stack"),
            Self::Context => f.write_str("the context"),
            Self::Packet => f.write_str("the packet"),
            Self::StalePacket => f.write_str("the packet before it moved"),
            Self::Map(map) => write!(f, "map {}", map.0),
            Self::Value(map) => write!(f, "a value of map {}", map.0),
            Self::Record(map) => write!(f, "a record of ring {}", map.0),
            Self::StaleRecord(map) => write!(f, "a released record of ring {}", map.0),
        }
    }
}

/// A decoded address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessSite {
    /// The address.
    pub address: u64,
    /// The object that it belongs to.
    pub region: MemoryRegion,
    /// The number of the element within the object.
    pub element: u64,
    /// The byte within the element; negative before its beginning.
    pub offset: i64,
    /// The size of an element in bytes.
    pub size: u64,
}

impl fmt::Display for AccessSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, region, element, offset, size } = self;
        // The raw address as well: its upper bits show which object the program had, if the decoding guessed wrong.
        write!(f, "{address:#x}: byte {offset} of {region} (element {element}, {size} bytes)")
    }
}

/// The kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum AccessKind {
    Read,
    Write,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// Why memory rejects an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessFault {
    Outside,
    ReadOnly,
    Uninitialised,
    Misaligned,
    NotAllowed,
}

/// The reason of a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Cause {
    #[error("{access} of {bytes} bytes out of bounds at {place}")]
    OutOfBounds { access: AccessKind, bytes: u64, place: AccessSite },
    #[error("write of {bytes} bytes to read-only memory at {place}")]
    ReadOnly { bytes: u64, place: AccessSite },
    #[error("read of {bytes} bytes of stack that were never written at {place}")]
    Uninitialised { bytes: u64, place: AccessSite },
    #[error("{access} of {bytes} bytes is not aligned at {place}")]
    Misaligned { access: AccessKind, bytes: u64, place: AccessSite },
    #[error("{access} of {bytes} bytes is not allowed at {place}")]
    NotAllowed { access: AccessKind, bytes: u64, place: AccessSite },
    #[error("write to the frame pointer")]
    FramePointer,
    #[error("control left the program")]
    OffTheEnd,
    #[error("more than {0} instructions")]
    Budget(u64),
    // Counted in frames, the entry's included; the kernel's message says "the call stack of 8 frames is too deep".
    #[error("more than 8 nested calls")]
    CallDepth,
    #[error("argument {argument} of {helper} is not {expected}")]
    Argument { helper: Helper, argument: u8, expected: &'static str },
    #[error("{helper} does not work on a map of type {kind:?}")]
    WrongMap { helper: Helper, kind: MapKind },
    #[error("{helper} writes to map {}, which programs may only read", map.0)]
    ReadOnlyMap { helper: Helper, map: MapId },
    #[error("{0} is not modelled")]
    UnknownHelper(Helper),
    #[error("kernel function {0} is not modelled")]
    KernelFunction(i32),
    #[error("{0} ring-buffer records were neither submitted nor discarded")]
    LeakedRecords(usize),
}

/// A program that the machine stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("program {}, slot {slot}{}: {cause}", program.0, InsnName(insn))]
pub struct Trap {
    /// The program that was running, after tail calls.
    pub program: ProgramId,
    /// The slot of the instruction.
    pub slot: usize,
    /// The instruction, unless control has left the program.
    pub insn: Option<Insn>,
    /// The reason.
    pub cause: Cause,
}

struct InsnName<'a>(&'a Option<Insn>);

impl fmt::Display for InsnName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In backquotes and in the text form of `disasm`, so that a message can be searched for in a listing.
        self.0.as_ref().map_or(Ok(()), |insn| write!(f, " `{insn}`"))
    }
}

impl Cause {
    pub(super) fn memory(fault: AccessFault, access: AccessKind, bytes: u64, place: AccessSite) -> Self {
        match fault {
            AccessFault::Outside => Self::OutOfBounds { access, bytes, place },
            AccessFault::ReadOnly => Self::ReadOnly { bytes, place },
            AccessFault::Uninitialised => Self::Uninitialised { bytes, place },
            AccessFault::Misaligned => Self::Misaligned { access, bytes, place },
            AccessFault::NotAllowed => Self::NotAllowed { access, bytes, place },
        }
    }
}
