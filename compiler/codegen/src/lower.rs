//! Classes → programs and tables, in the general form with every feature; [`crate::passes`] specialise it.

mod icmp_errors;

use std::collections::{BTreeSet, HashMap};

use weir_objects::address::Family;
use weir_classes::{AtomSet, AtomSetId, Classes, PeerId, Row};
use crate::ir::{Block, BlockId, End, Fact, Inst, Program, Reason, Tables, Test, Value, words};
use weir_model::Direction;
use weir_model::eval::Verdict;
use crate::structures::rows::Rows;
use crate::structures::{Options, Structures};
use icmp_errors::Extended;

/// Builds the tables of the programs, with the structures that the cost model chooses for the oldest kernel.
pub fn tables(classes: &Classes) -> Tables {
    tables_with(classes, &Options::default())
}

/// Builds the tables of the programs, with the structures that `options` ask for.
pub fn tables_with(classes: &Classes, options: &Options) -> Tables {
    let Extended { enforced, staged, sets, atoms, icmp_errors } = Extended::new(classes);
    let is_staged = staged.is_some();
    let ([ingress, egress], sets) = match &staged {
        Some(staged) => beside(&enforced, staged, &sets),
        None => (enforced, sets),
    };
    let rows = Rows { directions: [&ingress, &egress], sets: &sets, words: words(atoms, is_staged) };
    Tables {
        structures: Structures::build(&classes.addresses, &classes.atoms.intervals, rows, options),
        addresses: classes.addresses.clone(),
        ingress,
        egress,
        sets,
        ports: classes.atoms.intervals.clone(),
        atoms,
        icmp_errors,
        is_staged,
        sources: classes.sources.clone(),
    }
}

/// Rows of pairs: beside each enforced set is the set that would apply if the staged policies were enforced.
fn beside(enforced: &[Vec<Row>; 2], staged: &[Vec<Row>; 2], sets: &[AtomSet]) -> ([Vec<Row>; 2], Vec<AtomSet>) {
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
    let rows = [rows(&enforced[0], &staged[0]), rows(&enforced[1], &staged[1])];
    (rows, pairs)
}

/// The decision for one direction, with these tables.
pub fn lower(direction: Direction, tables: &Tables) -> Program {
    let [flag, node, subject, remote, family, peer, set, protocol, port, atom, error] =
        std::array::from_fn(|index| Value(index as u32));
    let errors = tables.icmp_errors.filter(|_| direction == Direction::Ingress);
    let block = |insts: &[Inst], end| Block::new(insts.to_vec(), end);
    let allow = |reason| End::Verdict(Verdict::Allow, reason);
    let [own, ask_node, own_node, ask_family, class4, class6, judge, allowed, denied, judge_port, judge_error] =
        std::array::from_fn(|index| BlockId(index as u32 + 1));
    let find_row = [Inst::Fact(subject, Fact::Subject), Inst::Row(set, subject, peer)];
    let find_atom =
        [Inst::Fact(protocol, Fact::Protocol), Inst::Fact(port, Fact::Port), Inst::Atom(atom, protocol, port)];
    let in_set = End::If(Test::Has(set, atom), allowed, denied);
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
        match errors {
            Some(_) => {
                let find_row = find_row.into_iter().chain([Inst::Fact(error, Fact::IcmpError)]);
                Block::new(find_row.collect(), End::If(Test::Equal(error, 1), judge_error, judge_port))
            }
            None => Block::new([&find_row[..], &find_atom].concat(), in_set),
        },
        block(&[], allow(Reason::Policy)),
        block(&[], End::Verdict(Verdict::Deny, Reason::Policy)),
    ];
    if let Some(errors) = errors {
        blocks.push(block(&find_atom, in_set));
        blocks.push(block(&[Inst::Const(atom, errors.0)], in_set));
    }
    if tables.is_staged {
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
