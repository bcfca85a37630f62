//! The sets that programs look up, the structures that can hold them, and the manifest's note about each choice.

use std::fmt;

use weir_objects::address::Family;

/// The sets that need a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum LookupSet {
    Exact4,
    Prefixes4,
    Exact6,
    Prefixes6,
    Ports,
    Rows,
    Flows,
}

/// How a set is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Structure {
    /// The set is empty.
    Empty,
    /// Compares in the program.
    Compares,
    /// A hash of the kernel; for rows, a hash and an array.
    Hash,
    /// Kernel hash of (length, prefix), looked up from the longest length on.
    HashPerLength,
    /// Kernel trie.
    Lpm,
    /// Compiled: a perfect hash.
    Perfect,
    /// Kernel hash for addresses that come and go and for changes between two generations; behind it, for addresses
    /// from blocks and lists, a perfect hash.
    Layered,
    /// Compiled: a branch-free search.
    Search,
    /// Compiled: DXR; for IPv6, a search with a first table.
    Dxr,
    /// Compiled: a matrix, by position.
    Matrix,
    /// For flows: [`crate::layout::buckets`].
    Buckets,
}

impl LookupSet {
    /// All of them, in order.
    pub const ALL: [Self; 7] =
        [Self::Exact4, Self::Prefixes4, Self::Exact6, Self::Prefixes6, Self::Ports, Self::Rows, Self::Flows];

    /// The name in `--structure`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact4 => "exact4",
            Self::Prefixes4 => "prefixes4",
            Self::Exact6 => "exact6",
            Self::Prefixes6 => "prefixes6",
            Self::Ports => "ports",
            Self::Rows => "rows",
            Self::Flows => "flows",
        }
    }

    /// The single addresses of a family.
    pub fn exact(family: Family) -> Self {
        if family == Family::V4 { Self::Exact4 } else { Self::Exact6 }
    }

    /// The prefixes of a family.
    pub fn prefixes(family: Family) -> Self {
        if family == Family::V4 { Self::Prefixes4 } else { Self::Prefixes6 }
    }

    /// The structures that this set can have, except [`Structure::Empty`].
    pub fn structures(self) -> &'static [Structure] {
        match self {
            Self::Exact4 | Self::Exact6 => {
                // No trie for single addresses: it visits a node for each bit in which neighbours differ, and with a
                // million addresses costs several times a hash.
                &[Structure::Compares, Structure::Hash, Structure::Perfect, Structure::Layered]
            }
            Self::Prefixes4 | Self::Prefixes6 => {
                &[Structure::Lpm, Structure::HashPerLength, Structure::Search, Structure::Dxr]
            }
            Self::Ports => &[Structure::Compares, Structure::Search],
            // No search: a row is asked for by exact numbers, so there are no ranges to exploit.
            Self::Rows => &[Structure::Hash, Structure::Perfect, Structure::Matrix],
            Self::Flows => &[Structure::Buckets],
        }
    }
}

impl Structure {
    /// All of them, in order.
    pub const ALL: [Self; 11] = [
        Self::Empty,
        Self::Compares,
        Self::Hash,
        Self::HashPerLength,
        Self::Lpm,
        Self::Perfect,
        Self::Layered,
        Self::Search,
        Self::Dxr,
        Self::Matrix,
        Self::Buckets,
    ];

    /// The name in `--structure`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "none",
            Self::Compares => "compares",
            Self::Hash => "hash",
            Self::HashPerLength => "hash-per-length",
            Self::Lpm => "lpm",
            Self::Perfect => "perfect",
            Self::Layered => "layered",
            Self::Search => "search",
            Self::Dxr => "dxr",
            Self::Matrix => "matrix",
            Self::Buckets => "buckets",
        }
    }
}

/// The structure that was chosen for a set, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructureNote {
    /// The set.
    pub place: LookupSet,
    /// The chosen structure.
    pub structure: Structure,
    /// The number of entries.
    pub entries: usize,
    /// The size of the compiled table; for kernel maps, an estimate.
    pub bytes: u64,
    /// The reason, in words for the report.
    pub why: String,
}

impl fmt::Display for StructureNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, structure, entries, bytes, why } = self;
        write!(f, "{}: {}, {entries} entries, {bytes} bytes: {why}", place.name(), structure.name())
    }
}
