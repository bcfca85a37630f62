//! The sets that programs look up, the structures that can hold them, and the manifest's note about each choice.

use std::fmt;

use weir_objects::address::Family;

weir_ebpf::named_enum! {
    /// The sets that need a structure.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    #[expect(missing_docs, reason = "the names say it all")]
    pub enum LookupSet {
        Exact4 = "exact4",
        Prefixes4 = "prefixes4",
        Exact6 = "exact6",
        Prefixes6 = "prefixes6",
        Ports = "ports",
        Rows = "rows",
        Flows = "flows",
    }
}

weir_ebpf::named_enum! {
    /// How a set is laid out.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Structure {
        /// The set is empty.
        Empty = "none",
        /// Compares in the program.
        Compares = "compares",
        /// A hash of the kernel; for rows, a hash and an array.
        Hash = "hash",
        /// Kernel hash of (length, prefix), looked up from the longest length on.
        HashPerLength = "hash-per-length",
        /// Kernel trie.
        Lpm = "lpm",
        /// Compiled: a perfect hash.
        Perfect = "perfect",
        /// Kernel hash for addresses that come and go and for changes between two generations; behind it, for addresses
        /// from blocks and lists, a perfect hash.
        Layered = "layered",
        /// Compiled: a branch-free search.
        Search = "search",
        /// Compiled: DXR; for IPv6, a search with a first table.
        Dxr = "dxr",
        /// Compiled: a matrix, by position.
        Matrix = "matrix",
        /// For flows: [`crate::layout::buckets`].
        Buckets = "buckets",
    }
}

impl LookupSet {
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
