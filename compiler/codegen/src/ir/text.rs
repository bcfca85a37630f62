//! Programs as text: what [`super::parse`] reads.

use std::fmt::{self, Display, Formatter};

use super::{Block, Condition, DecisionProgram, Fact, Inst, Terminator, VerdictReason};
use weir_model::eval::Verdict;
use weir_objects::address::Family;

impl Display for DecisionProgram {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.direction.name())?;
        for (index, block) in self.blocks.iter().enumerate() {
            match block.source {
                Some(source) => writeln!(f, "b{index}: from {source}")?,
                None => writeln!(f, "b{index}:")?,
            }
            write!(f, "{block}")?;
        }
        Ok(())
    }
}

impl Display for Block {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for inst in &self.insts {
            writeln!(f, "  {inst}")?;
        }
        writeln!(f, "  {}", self.end)
    }
}

impl Display for Inst {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fact(to, fact) => write!(f, "{to} = {fact}"),
            Self::Const(to, number) => write!(f, "{to} = const {number}"),
            Self::Class(to, Family::V4, of) => write!(f, "{to} = class4 {of}"),
            Self::Class(to, Family::V6, of) => write!(f, "{to} = class6 {of}"),
            Self::Prefix(to, Family::V4, of) => write!(f, "{to} = prefix4 {of}"),
            Self::Prefix(to, Family::V6, of) => write!(f, "{to} = prefix6 {of}"),
            Self::Row(to, subject, peer) => write!(f, "{to} = row {subject} {peer}"),
            Self::Default(to, subject) => write!(f, "{to} = default {subject}"),
            Self::Atom(to, protocol, port) => write!(f, "{to} = atom {protocol} {port}"),
        }
    }
}

impl Display for Terminator {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jump(to) => write!(f, "jump {to}"),
            Self::If(test, then, otherwise) => write!(f, "if {test} {then} {otherwise}"),
            Self::Verdict(Verdict::Allow, reason) => write!(f, "allow {reason}"),
            Self::Verdict(Verdict::Deny, reason) => write!(f, "deny {reason}"),
        }
    }
}

impl Display for Condition {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal(value, number) => write!(f, "{value} == {number}"),
            Self::Less(value, number) => write!(f, "{value} < {number}"),
            Self::Is(value, address) => write!(f, "{value} is {address}"),
            Self::Has(set, atom) => write!(f, "{set} has {atom}"),
            Self::Audit(set, atom) => write!(f, "{set} staged {atom}"),
            Self::Full(set) => write!(f, "{set} full"),
        }
    }
}

impl Display for Fact {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Display for VerdictReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
