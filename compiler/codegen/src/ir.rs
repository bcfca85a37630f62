//! The decision as a program: the verdict on a new flow, given the facts of its packet.
//!
//! Problem: the tables alone would make every packet pay for every feature. A cluster without IPv6, without prefixes or
//! without port ranges needs no code for them.
//! Strategy: a small program over typed values for each direction, in blocks. [`crate::passes`] specialise it to the
//! input. The eBPF back end turns the result into instructions, inside a datapath that parses packets and remembers
//! flows.
//! Invariants: a program knows numbers only, never pods, labels or namespaces; blocks end in exactly one terminator;
//! every value is set on every path before it is used, and always to the same kind of thing ([`verify`]); there are no
//! loops.
//! The printed text can be parsed back, so a failing case can be sent as text.

mod interp;
mod parse;
mod text;
mod verify;

use std::net::IpAddr;
use std::sync::Arc;

pub use interp::{InterpError, run};
pub use parse::{IrParseError, parse};
pub use verify::{VerifyError, verify};

use crate::structures::Structures;
use weir_classes::{AddressMap, AtomId, AtomSet, PortInterval, Row, SourceId, Sources};
use weir_model::eval::Verdict;
use weir_model::{Direction, Protocol, id};
use weir_objects::address::Family;

id!(/// A block. Prints as `b3`.
    BlockId, "b");
id!(/// A value. Prints as `v3`.
    Value, "v");

/// The decision for one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionProgram {
    /// The direction, as the pod sees it.
    pub direction: Direction,
    /// The blocks; the first one is the entry.
    pub blocks: Vec<Block>,
}

/// A sequence of instructions and its terminator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The instructions, in order.
    pub insts: Vec<Inst>,
    /// The terminator.
    pub end: Terminator,
    /// The part of the input that the block serves; `None` for blocks that every program has.
    pub source: Option<SourceId>,
}

impl Block {
    /// A block that serves no particular part of the input.
    pub fn new(insts: Vec<Inst>, end: Terminator) -> Self {
        Self { insts, end, source: None }
    }

    /// The same block with a source.
    #[must_use]
    pub fn of(self, source: Option<SourceId>) -> Self {
        Self { source, ..self }
    }
}

/// An instruction of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inst {
    /// `v0 = remote`: a fact of the packet or of its endpoint.
    Fact(Value, Fact),
    /// `v0 = const 7`
    Const(Value, u32),
    /// `v1 = class4 v0`: the peer class of an address.
    Class(Value, Family, Value),
    /// `v1 = prefix4 v0`: the peer class of an address that is not among the single ones.
    Prefix(Value, Family, Value),
    /// `v2 = row v0 v1`: the set for a subject class and a peer class.
    Row(Value, Value, Value),
    /// `v1 = default v0`: the set of a subject class for peers that have no entry.
    Default(Value, Value),
    /// `v2 = atom v0 v1`: the atom of a protocol and a port.
    Atom(Value, Value, Value),
}

weir_ebpf::named_enum! {
    /// The facts that the datapath knows before the decision.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Fact {
        /// The subject class of the endpoint.
        Subject = "subject",
        /// The other end's address.
        Remote = "remote",
        /// The address family: 4 or 6.
        Family = "family",
        /// The transport protocol: 6, 17, 132, or 0 for all others.
        Protocol = "protocol",
        /// The destination port; 0 if the protocol has none.
        Port = "port",
        /// 1 if the other end is the pod itself.
        Itself = "itself",
        /// 1 if the packet is from the pod's own node and began there.
        OwnNode = "own-node",
        /// 1 if the packet is an ICMP error about a live flow.
        IcmpError = "icmp-error",
    }
}

/// The terminator of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminator {
    /// `jump b1`
    Jump(BlockId),
    /// `if v0 == 4 b1 b2`
    If(Condition, BlockId, BlockId),
    /// `allow policy`, `deny policy`
    Verdict(Verdict, VerdictReason),
}

/// The condition of an `if`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// `v0 == 7`
    Equal(Value, u32),
    /// `v0 < 7`
    Less(Value, u32),
    /// `v0 is 10.0.0.1`
    Is(Value, IpAddr),
    /// `v0 has v1`: a set has an atom.
    Has(Value, Value),
    /// `v0 staged v1`: a set would have an atom if the audit policies were enforced.
    Audit(Value, Value),
    /// `v0 full`: a set has every atom.
    Full(Value),
}

weir_ebpf::named_enum! {
    /// The reason under which a verdict is counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum VerdictReason {
        /// A pod reaches itself.
        Itself = "itself",
        /// The pod's own node reaches the pod.
        OwnNode = "own-node",
        /// Policies and lists.
        Policy = "policy",
        /// Policies and lists; the verdict would be the opposite if the audit policies were enforced.
        UnlessAudit = "unless-staged",
    }
}

/// The number of 64-bit words of a set, with the audit set beside it if there is one.
pub fn words(atoms: usize, is_audit: bool) -> usize {
    atoms.div_ceil(64) * if is_audit { 2 } else { 1 }
}

/// The set of all atoms, with the audit set beside it if there is one.
pub fn full_set(atoms: usize, is_audit: bool) -> AtomSet {
    let full = AtomSet::all(atoms);
    if is_audit { full.beside(&full) } else { full }
}

/// The tables that a program's look-ups read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecisionTables {
    /// Address → peer class.
    pub addresses: Arc<AddressMap>,
    /// The ingress rows, by subject class.
    pub ingress: Vec<Row>,
    /// The egress rows, by subject class.
    pub egress: Vec<Row>,
    /// Sets of atoms.
    pub sets: Vec<AtomSet>,
    /// Port → atom.
    pub ports: Vec<PortInterval>,
    /// The number of atoms.
    pub atoms: usize,
    /// The atom of ICMP errors about live flows. It is the last atom, and no port has it. `None` if lists deny nothing
    /// in ingress: then such errors pass without a look-up.
    pub icmp_errors: Option<AtomId>,
    /// Whether each set has beside it the set that would apply if the audit policies were enforced.
    pub is_audit: bool,
    /// The places in the input of everything that can become instructions.
    pub sources: Arc<Sources>,
    /// The structures that hold the tables.
    pub structures: Structures,
}

impl DecisionTables {
    /// The rows of a direction.
    pub fn rows(&self, direction: Direction) -> &[Row] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// The number of 64-bit words of a set.
    pub fn words(&self) -> usize {
        words(self.atoms, self.is_audit)
    }

    /// A set with every atom, and with every atom of the audit set beside it.
    pub fn full_set(&self) -> AtomSet {
        full_set(self.atoms, self.is_audit)
    }

    /// Whether any address of a family has a class other than 0.
    pub fn has_family(&self, family: Family) -> bool {
        let of_family = |address: IpAddr| Family::of(address) == family;
        !self.addresses.singles(family).is_empty() || self.addresses.ranges.iter().any(|range| of_family(range.first))
    }
}

/// The facts of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFacts {
    /// The subject class of the endpoint.
    pub subject: u32,
    /// The other end's address.
    pub remote: IpAddr,
    /// The transport protocol; `None` for ICMP and others.
    pub protocol: Option<Protocol>,
    /// The destination port; 0 if the protocol has none.
    pub port: u16,
    /// Whether the other end is the pod itself.
    pub itself: bool,
    /// Whether the packet is from the pod's own node and began there.
    pub own_node: bool,
    /// Whether the packet is an ICMP error about a live flow.
    pub icmp_error: bool,
}

/// The IP protocol number of a protocol.
pub fn protocol_number(protocol: Protocol) -> u8 {
    protocol.number()
}

impl Inst {
    /// The value that the instruction sets.
    pub fn result(self) -> Value {
        match self {
            Self::Fact(to, _)
            | Self::Const(to, _)
            | Self::Class(to, _, _)
            | Self::Prefix(to, _, _)
            | Self::Row(to, _, _)
            | Self::Default(to, _)
            | Self::Atom(to, _, _) => to,
        }
    }

    /// The values that the instruction uses.
    pub fn uses(self) -> impl Iterator<Item = Value> {
        let (first, second) = match self {
            Self::Fact(..) | Self::Const(..) => (None, None),
            Self::Class(_, _, of) | Self::Prefix(_, _, of) | Self::Default(_, of) => (Some(of), None),
            Self::Row(_, a, b) | Self::Atom(_, a, b) => (Some(a), Some(b)),
        };
        first.into_iter().chain(second)
    }
}

impl Terminator {
    /// The values that the terminator uses.
    pub fn uses(self) -> impl Iterator<Item = Value> {
        let (first, second) = match self {
            Self::If(Condition::Has(set, atom) | Condition::Audit(set, atom), _, _) => (Some(set), Some(atom)),
            Self::If(
                Condition::Equal(v, _) | Condition::Less(v, _) | Condition::Is(v, _) | Condition::Full(v),
                _,
                _,
            ) => (Some(v), None),
            Self::Jump(_) | Self::Verdict(..) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The blocks to which the terminator can jump.
    pub fn targets(self) -> impl Iterator<Item = BlockId> {
        let (first, second) = match self {
            Self::Jump(to) => (Some(to), None),
            Self::If(_, then, otherwise) => (Some(then), Some(otherwise)),
            Self::Verdict(..) => (None, None),
        };
        first.into_iter().chain(second)
    }
}
