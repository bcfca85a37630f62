//! Classes → programs and tables. The general form, for every feature there is; [`crate::passes`] narrow it.

use std::collections::{BTreeSet, HashMap};

use crate::address::Family;
use crate::classify::{AtomSet, AtomSetId, Classes, PeerId, Row};
use crate::ir::{Block, BlockId, End, Fact, Inst, Program, Reason, Tables, Test, Value, words};
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
    let (enforced, atoms) = ([&classes.ingress, &classes.egress], classes.atoms.count());
    let ([ingress, egress], sets) = match &classes.staged {
        Some(staged) => beside(enforced, staged.each_ref(), &classes.atom_sets),
        None => (enforced.map(Clone::clone), classes.atom_sets.clone()),
    };
    let is_staged = classes.staged.is_some();
    let rows = Rows { directions: [&ingress, &egress], sets: &sets, words: words(atoms, is_staged) };
    Tables {
        structures: Structures::build(&classes.addresses, &classes.atoms.intervals, rows, options),
        addresses: classes.addresses.clone(),
        ingress,
        egress,
        sets,
        ports: classes.atoms.intervals.clone(),
        atoms,
        is_staged,
        sources: classes.sources.clone(),
    }
}

/// Rows of pairs: each set of what is enforced has beside it that of what would be.
fn beside(enforced: [&Vec<Row>; 2], staged: [&Vec<Row>; 2], sets: &[AtomSet]) -> ([Vec<Row>; 2], Vec<AtomSet>) {
    let mut pairs: Vec<AtomSet> = Vec::new();
    let mut known: HashMap<(AtomSetId, AtomSetId), AtomSetId> = HashMap::new();
    let mut pair = |one: AtomSetId, other: AtomSetId| {
        *known.entry((one, other)).or_insert_with(|| {
            pairs.push(sets[one.index()].beside(&sets[other.index()]));
            AtomSetId(pairs.len() as u32 - 1)
        })
    };
    let mut row = |(one, other): (&Row, &Row)| {
        let default = pair(one.default, other.default);
        let peers: BTreeSet<PeerId> = one.entries.iter().chain(&other.entries).map(|(peer, _)| *peer).collect();
        let entries = peers.into_iter().map(|peer| (peer, pair(one.find(peer), other.find(peer))));
        Row { default, entries: entries.filter(|(_, set)| *set != default).collect() }
    };
    let mut rows = |one: &[Row], other: &[Row]| one.iter().zip(other).map(&mut row).collect();
    let rows = [rows(enforced[0], staged[0]), rows(enforced[1], staged[1])];
    (rows, pairs)
}

/// The decision for one direction; `is_staged` if sets have beside them what would be if what is staged were enforced.
pub fn lower(direction: Direction, is_staged: bool) -> Program {
    let [flag, node, subject, remote, family, peer, set, protocol, port, atom] =
        std::array::from_fn(|index| Value(index as u32));
    let block = |insts: &[Inst], end| Block::new(insts.to_vec(), end);
    let allow = |reason| End::Verdict(Verdict::Allow, reason);
    let [own, ask_node, own_node, ask_family, class4, class6, judge, allowed, denied] =
        std::array::from_fn(|index| BlockId(index as u32 + 1));
    let mut blocks = vec![
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
    if is_staged {
        let agrees = |index: usize| BlockId(index as u32);
        for (verdict, at) in [(Verdict::Allow, allowed), (Verdict::Deny, denied)] {
            let [agreed, differs] = [blocks.len(), blocks.len() + 1].map(agrees);
            let targets = if verdict == Verdict::Allow { (agreed, differs) } else { (differs, agreed) };
            blocks[at.index()].end = End::If(Test::Staged(set, atom), targets.0, targets.1);
            blocks.push(block(&[], End::Verdict(verdict, Reason::Policy)));
            blocks.push(block(&[], End::Verdict(verdict, Reason::UnlessStaged)));
        }
    }
    Program { direction, blocks }
}
