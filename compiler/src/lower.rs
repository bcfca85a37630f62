//! Classes → programs and tables. The general form, for every feature there is; [`crate::passes`] narrow it.

use crate::address::Family;
use crate::classify::Classes;
use crate::ir::{Block, BlockId, End, Fact, Inst, Program, Reason, Tables, Test, Value};
use crate::model::Direction;
use crate::model::eval::Verdict;
use crate::structures::rows::Rows;
use crate::structures::{Options, Structures};

/// What the programs look into, laid out as the cost model says, for the oldest kernel.
pub fn tables(classes: &Classes) -> Tables {
    tables_with(classes, &Options::default())
}

/// What the programs look into, laid out as asked.
pub fn tables_with(classes: &Classes, options: &Options) -> Tables {
    let rows = Rows {
        directions: [&classes.ingress, &classes.egress],
        sets: &classes.atom_sets,
        words: classes.atoms.count().div_ceil(64),
    };
    Tables {
        structures: Structures::build(&classes.addresses, &classes.atoms.intervals, rows, options),
        addresses: classes.addresses.clone(),
        ingress: classes.ingress.clone(),
        egress: classes.egress.clone(),
        sets: classes.atom_sets.clone(),
        ports: classes.atoms.intervals.clone(),
        atoms: classes.atoms.count(),
        sources: classes.sources.clone(),
    }
}

/// The decision for one direction.
pub fn lower(direction: Direction) -> Program {
    let [flag, node, subject, remote, family, peer, set, protocol, port, atom] =
        std::array::from_fn(|index| Value(index as u32));
    let block = |insts: &[Inst], end| Block::new(insts.to_vec(), end);
    let allow = |reason| End::Verdict(Verdict::Allow, reason);
    let [own, ask_node, own_node, ask_family, class4, class6, judge, allowed, denied] =
        std::array::from_fn(|index| BlockId(index as u32 + 1));
    let blocks = vec![
        block(&[Inst::Fact(flag, Fact::Itself)], End::If(Test::Equal(flag, 1), own, ask_node)),
        block(&[], allow(Reason::Itself)),
        block(&[Inst::Fact(node, Fact::OwnNode)], End::If(Test::Equal(node, 1), own_node, ask_family)),
        block(&[], allow(Reason::OwnNode)),
        block(
            &[Inst::Fact(remote, Fact::Remote), Inst::Fact(family, Fact::Family)],
            End::If(Test::Equal(family, 4), class4, class6),
        ),
        block(&[Inst::Class(peer, Family::V4, remote)], End::Jump(judge)),
        block(&[Inst::Class(peer, Family::V6, remote)], End::Jump(judge)),
        block(
            &[
                Inst::Fact(subject, Fact::Subject),
                Inst::Row(set, subject, peer),
                Inst::Fact(protocol, Fact::Protocol),
                Inst::Fact(port, Fact::Port),
                Inst::Atom(atom, protocol, port),
            ],
            End::If(Test::Has(set, atom), allowed, denied),
        ),
        block(&[], allow(Reason::Policy)),
        block(&[], End::Verdict(Verdict::Deny, Reason::Policy)),
    ];
    Program { direction, blocks }
}
