//! Classes → programs and tables, in the general form with every feature; [`crate::passes`] specialise it.

mod icmp_errors;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::ir::{
    Block, BlockId, Condition, DecisionProgram, DecisionTables, Fact, Inst, Terminator, Value, VerdictReason, words,
};
use crate::structures::rows::DirectionRows;
use crate::structures::{AddressStructures, StructureOptions, Structures};
use icmp_errors::Extended;
use weir_classes::{AtomSet, AtomSetId, Classes, PeerId, Row};
use weir_model::Direction;
use weir_model::eval::Verdict;
use weir_objects::address::Family;

/// Builds the tables of the programs, with the structures that the cost model chooses for the oldest kernel.
pub fn tables(classes: &Classes) -> DecisionTables {
    tables_with(classes, &StructureOptions::default())
}

/// Builds the tables of the programs, with the structures that `options` ask for.
pub fn tables_with(classes: &Classes, options: &StructureOptions) -> DecisionTables {
    tables_after(classes, options, None)
}

/// The same, with the structures for addresses that were made before.
pub(crate) fn tables_after(
    classes: &Classes,
    options: &StructureOptions,
    last: Option<&AddressStructures>,
) -> DecisionTables {
    let Extended { enforced, audit, sets, atoms, icmp_errors } = Extended::new(classes, options.room);
    let is_audit = audit.is_some();
    let ([ingress, egress], sets) = match &audit {
        Some(audit) => beside(&enforced, audit, &sets),
        None => (enforced, sets),
    };
    let rows = DirectionRows {
        directions: [&ingress, &egress],
        sets: &sets,
        words: words(atoms, is_audit),
        room: options.room,
    };
    let addresses = AddressStructures::build(&classes.addresses, options, last);
    DecisionTables {
        structures: Structures::with_addresses(addresses, &classes.atoms.intervals, rows, options),
        addresses: classes.addresses.clone(),
        ingress,
        egress,
        sets,
        ports: classes.atoms.intervals.clone(),
        atoms,
        icmp_errors,
        is_audit,
        sources: Arc::clone(&classes.sources),
    }
}

/// Rows of pairs: beside each enforced set is the set that would apply if the audit policies were enforced.
fn beside(enforced: &[Vec<Row>; 2], audit: &[Vec<Row>; 2], sets: &[AtomSet]) -> ([Vec<Row>; 2], Vec<AtomSet>) {
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
        let peers: BTreeSet<PeerId> = one.entries.iter().chain(other.entries.iter()).map(|(peer, _)| *peer).collect();
        let entries = peers.into_iter().map(|peer| (peer, pair(one.find(peer), other.find(peer))));
        Row { default, entries: entries.filter(|(_, set)| *set != default).collect() }
    };
    let mut rows = |one: &[Row], other: &[Row]| one.iter().zip(other).map(&mut row).collect();
    let rows = [rows(&enforced[0], &audit[0]), rows(&enforced[1], &audit[1])];
    (rows, pairs)
}

/// The decision for one direction, with these tables.
pub fn lower(direction: Direction, tables: &DecisionTables) -> DecisionProgram {
    let [flag, node, subject, remote, family, peer, set, protocol, port, atom, error] =
        std::array::from_fn(|index| Value(index as u32));
    let errors = tables.icmp_errors.filter(|_| direction == Direction::Ingress);
    let block = |insts: &[Inst], end| Block::new(insts.to_vec(), end);
    let allow = |reason| Terminator::Verdict(Verdict::Allow, reason);
    let [own, ask_node, own_node, ask_family, class4, class6, judge, allowed, denied, judge_port, judge_error] =
        std::array::from_fn(|index| BlockId(index as u32 + 1));
    let find_row = [Inst::Fact(subject, Fact::Subject), Inst::Row(set, subject, peer)];
    let find_atom =
        [Inst::Fact(protocol, Fact::Protocol), Inst::Fact(port, Fact::Port), Inst::Atom(atom, protocol, port)];
    let in_set = Terminator::If(Condition::Has(set, atom), allowed, denied);
    let mut blocks = vec![
        block(&[Inst::Fact(flag, Fact::Itself)], Terminator::If(Condition::Equal(flag, 1), own, ask_node)),
        block(&[], allow(VerdictReason::Itself)),
        block(&[Inst::Fact(node, Fact::OwnNode)], Terminator::If(Condition::Equal(node, 1), own_node, ask_family)),
        block(&[], allow(VerdictReason::OwnNode)),
        block(
            &[Inst::Fact(remote, Fact::Remote), Inst::Fact(family, Fact::Family)],
            Terminator::If(Condition::Equal(family, 4), class4, class6),
        ),
        block(&[Inst::Class(peer, Family::V4, remote)], Terminator::Jump(judge)),
        block(&[Inst::Class(peer, Family::V6, remote)], Terminator::Jump(judge)),
        match errors {
            Some(_) => {
                let find_row = find_row.into_iter().chain([Inst::Fact(error, Fact::IcmpError)]);
                Block::new(find_row.collect(), Terminator::If(Condition::Equal(error, 1), judge_error, judge_port))
            }
            None => Block::new([&find_row[..], &find_atom].concat(), in_set),
        },
        block(&[], allow(VerdictReason::Policy)),
        block(&[], Terminator::Verdict(Verdict::Deny, VerdictReason::Policy)),
    ];
    if let Some(errors) = errors {
        blocks.push(block(&find_atom, in_set));
        blocks.push(block(&[Inst::Const(atom, errors.0)], in_set));
    }
    if tables.is_audit {
        let agrees = |index: usize| BlockId(index as u32);
        for (verdict, at) in [(Verdict::Allow, allowed), (Verdict::Deny, denied)] {
            let [agreed, differs] = [blocks.len(), blocks.len() + 1].map(agrees);
            let targets = if verdict == Verdict::Allow { (agreed, differs) } else { (differs, agreed) };
            blocks[at.index()].end = Terminator::If(Condition::Audit(set, atom), targets.0, targets.1);
            blocks.push(block(&[], Terminator::Verdict(verdict, VerdictReason::Policy)));
            blocks.push(block(&[], Terminator::Verdict(verdict, VerdictReason::UnlessAudit)));
        }
    }
    DecisionProgram { direction, blocks }
}
