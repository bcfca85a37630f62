//! Port → atom as straight-line compares: a binary tree over the cuts of each protocol.
// Preserves verdicts: the leaves are the ranges between cuts in order, each with the atom that the table gives. Ports
// that no range covers, and protocols without a range, have atom 0.

use std::collections::BTreeMap;

use crate::ir::{Block, BlockId, Condition, DecisionProgram, DecisionTables, Inst, Terminator, Value};
use crate::structures::PortTable;
use weir_classes::PortInterval;
use weir_model::Protocol;

pub(super) fn run(program: &mut DecisionProgram, tables: &DecisionTables) {
    if tables.structures.ports != PortTable::Compares {
        return;
    }
    let place = program.blocks.iter().enumerate().find_map(|(index, block)| {
        let at = block.insts.iter().position(|inst| matches!(inst, Inst::Atom(..)))?;
        Some((index, at))
    });
    let Some((index, at)) = place else { return };
    let Inst::Atom(to, protocol, port) = program.blocks[index].insts[at] else { return };
    let rest = program.blocks[index].insts.split_off(at + 1);
    program.blocks[index].insts.pop();
    let Block { end, source, .. } = program.blocks[index];
    let after = push(program, Block { insts: rest, end, source });
    let mut tree = PortTree { program, tables, to, port, after, leaves: BTreeMap::new() };
    let mut next = tree.leaf(0);
    for of in [Protocol::Sctp, Protocol::Udp, Protocol::Tcp] {
        let cuts = cuts(tables, of);
        if cuts.len() > 1 {
            let root = tree.node(of, &cuts);
            let test = Condition::Equal(protocol, u32::from(of.number()));
            next = push(tree.program, Block::new(Vec::new(), Terminator::If(test, root, next)));
        }
    }
    program.blocks[index].end = Terminator::Jump(next);
}

/// (first port, atom) of every range from port 0 on; neighbouring ranges with the same atom are joined.
fn cuts(tables: &DecisionTables, protocol: Protocol) -> Vec<(u32, u32)> {
    let mut cuts: Vec<(u32, u32)> = vec![(0, 0)];
    let mut push = |first: u32, atom: u32| match cuts.last_mut() {
        Some(last) if last.0 == first => last.1 = atom,
        Some(last) if last.1 == atom => {}
        _ => cuts.push((first, atom)),
    };
    let of_protocol = |it: &&PortInterval| it.spec.protocol == protocol;
    for interval in tables.ports.iter().filter(of_protocol) {
        push(u32::from(interval.spec.first), interval.atom.0);
        if interval.spec.last < u16::MAX {
            push(u32::from(interval.spec.last) + 1, 0);
        }
    }
    // All ports of the protocol have the same atom other than 0: a second cut makes sure that the protocol gets a tree.
    if let [(0, atom)] = cuts[..]
        && atom != 0
    {
        cuts.push((u32::from(u16::MAX), atom));
    }
    cuts
}

struct PortTree<'p> {
    program: &'p mut DecisionProgram,
    tables: &'p DecisionTables,
    to: Value,
    port: Value,
    after: BlockId,
    /// By atom: one block each, which all places in the tree share.
    leaves: BTreeMap<u32, BlockId>,
}

impl PortTree<'_> {
    fn node(&mut self, protocol: Protocol, cuts: &[(u32, u32)]) -> BlockId {
        if let [(_, atom)] = cuts {
            return self.leaf(*atom);
        }
        let (low, high) = cuts.split_at(cuts.len() / 2);
        let (then, otherwise) = (self.node(protocol, low), self.node(protocol, high));
        let test = Condition::Less(self.port, high[0].0);
        let source = self.tables.sources.cuts.get(&(protocol.number(), high[0].0)).copied();
        push(self.program, Block::new(Vec::new(), Terminator::If(test, then, otherwise)).of(source))
    }

    fn leaf(&mut self, atom: u32) -> BlockId {
        if let Some(known) = self.leaves.get(&atom) {
            return *known;
        }
        let leaf = Block::new(vec![Inst::Const(self.to, atom)], Terminator::Jump(self.after));
        let leaf = push(self.program, leaf);
        self.leaves.insert(atom, leaf);
        leaf
    }
}

fn push(program: &mut DecisionProgram, block: Block) -> BlockId {
    program.blocks.push(block);
    BlockId(program.blocks.len() as u32 - 1)
}
