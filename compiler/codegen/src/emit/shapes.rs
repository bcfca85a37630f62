//! The shapes of tables: everything in the tables that programs depend on.
//!
//! Problem: most changes of a cluster change the content of tables and leave the programs as they are. Emitting the
//! programs again to find that out costs more than the tables.
//! Strategy: the emitter gets [`TableShapes`] instead of the tables. Equal shapes and equal decisions mean equal
//! programs, so [`crate::last::LastArtifact`] takes the programs of the last compile.
//! Invariant: a shape has everything that a program at a pod reads when it is emitted, such as the seed of a perfect
//! hash. Other content of the tables cannot change these programs. The program at the edge also gets addresses, so it
//! is always emitted again.

use std::collections::BTreeSet;

use crate::ir::DecisionTables;
use crate::structures::dxr::DxrShape;
use crate::structures::perfect::{PerfectShape, PerfectTable};
use crate::structures::rows::RowShape;
use crate::structures::search::SearchShape;
use crate::structures::{ExactTable, PortTable, Prefixes, RowTable};
use weir_objects::address::Family;

/// How a family's single addresses are stored: see [`ExactTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExactShape {
    /// There are no single addresses.
    Empty,
    /// Compares in the program.
    Compares,
    /// Kernel hash.
    Hash,
    /// Perfect hash.
    Perfect(PerfectShape),
    /// Kernel hash, then a perfect hash if there is one.
    Layered(Option<PerfectShape>),
}

/// How a family's prefixes are stored: see [`Prefixes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixShape {
    /// There are no prefixes.
    Empty,
    /// Kernel trie.
    Lpm,
    /// Kernel hash, with prefixes of these lengths.
    HashPerLength(BTreeSet<u8>),
    /// Branch-free binary search.
    Search(SearchShape),
    /// DXR.
    Dxr(DxrShape),
}

/// How verdict rows are stored: see [`RowTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowTableShape {
    /// Kernel hash, and an array of the defaults of this many subject classes for each direction.
    Maps {
        /// The number of subject classes.
        subjects: u32,
    },
    /// Matrix or perfect hash.
    Compiled(RowShape),
}

/// The shapes of all tables of a compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableShapes {
    exact: [ExactShape; 2],
    prefixes: [PrefixShape; 2],
    /// The table of ports; `None` if the decision compares them.
    pub ports: Option<SearchShape>,
    /// The verdict rows.
    pub rows: RowTableShape,
    /// The number of atoms.
    pub atoms: usize,
    /// Whether each set has beside it the set that would apply if the audit policies were enforced.
    pub is_audit: bool,
    /// Whether ICMP errors about live flows are judged: see [`DecisionTables::icmp_errors`].
    pub judges_icmp_errors: bool,
}

impl TableShapes {
    /// The shapes of these tables.
    pub fn of(tables: &DecisionTables) -> Self {
        let DecisionTables { structures, ingress, atoms, is_audit, icmp_errors, .. } = tables;
        let families = [Family::V4, Family::V6];
        Self {
            exact: families.map(|family| exact(structures.exact(family))),
            prefixes: families.map(|family| prefixes(structures.prefixes(family))),
            ports: match &structures.ports {
                PortTable::Compares => None,
                PortTable::Search(table) => Some(table.shape),
            },
            rows: match &structures.rows {
                RowTable::Maps => RowTableShape::Maps { subjects: ingress.len() as u32 },
                RowTable::Compiled(table) => RowTableShape::Compiled(table.shape),
            },
            atoms: *atoms,
            is_audit: *is_audit,
            judges_icmp_errors: icmp_errors.is_some(),
        }
    }

    /// The single addresses of a family.
    pub fn exact(&self, family: Family) -> ExactShape {
        self.exact[usize::from(family == Family::V6)]
    }

    /// The prefixes of a family.
    pub fn prefixes(&self, family: Family) -> &PrefixShape {
        &self.prefixes[usize::from(family == Family::V6)]
    }
}

fn exact(table: &ExactTable) -> ExactShape {
    let shape = |table: &PerfectTable| table.shape;
    match table {
        ExactTable::Empty => ExactShape::Empty,
        ExactTable::Compares => ExactShape::Compares,
        ExactTable::Hash => ExactShape::Hash,
        ExactTable::Perfect(table) => ExactShape::Perfect(shape(table)),
        ExactTable::Layered(table) => ExactShape::Layered(table.as_ref().map(shape)),
    }
}

fn prefixes(table: &Prefixes) -> PrefixShape {
    match table {
        Prefixes::Empty => PrefixShape::Empty,
        Prefixes::Lpm(_) => PrefixShape::Lpm,
        Prefixes::HashPerLength(list) => PrefixShape::HashPerLength(list.iter().map(|(it, _)| it.len()).collect()),
        Prefixes::Search(table) => PrefixShape::Search(table.shape),
        Prefixes::Dxr(table) => PrefixShape::Dxr(table.shape),
    }
}
