//! Port → atom as straight-line compares: a binary tree over the cuts of each protocol.
// Preserves verdicts: the leaves are the stretches between cuts in order, each with the atom that the table gives; what no
// stretch covers, and every protocol without one, is atom 0.

use crate::classify::PortInterval;
use crate::ir::{Block, BlockId, End, Inst, Program, Tables, Test, Value, protocol_number};
use crate::model::Protocol;

pub(super) fn run(program: &mut Program, tables: &Tables) {
    let place = program.blocks.iter().enumerate().find_map(|(index, block)| {
        let at = block.insts.iter().position(|inst| matches!(inst, Inst::Atom(..)))?;
        Some((index, at))
    });
    let Some((index, at)) = place else { return };
    let Inst::Atom(to, protocol, port) = program.blocks[index].insts[at] else { return };
    let rest = program.blocks[index].insts.split_off(at + 1);
    program.blocks[index].insts.pop();
    let end = program.blocks[index].end;
    let after = push(program, Block { insts: rest, end });
    let mut tree = Tree { program, to, port, after };
    let mut next = tree.leaf(0);
    for of in [Protocol::Sctp, Protocol::Udp, Protocol::Tcp] {
        let cuts = cuts(tables, of);
        if cuts.len() > 1 {
            let root = tree.node(&cuts);
            let test = Test::Equal(protocol, u32::from(protocol_number(of)));
            next = push(tree.program, Block { insts: Vec::new(), end: End::If(test, root, next) });
        }
    }
    program.blocks[index].end = End::Jump(next);
}

/// (first port, atom) of every stretch from port 0 on, neighbours of one atom joined.
fn cuts(tables: &Tables, protocol: Protocol) -> Vec<(u32, u32)> {
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
    // All of it one atom other than 0: a second cut, so that the protocol has a tree.
    if let [(0, atom)] = cuts[..]
        && atom != 0
    {
        cuts.push((u32::from(u16::MAX), atom));
    }
    cuts
}

struct Tree<'p> {
    program: &'p mut Program,
    to: Value,
    port: Value,
    after: BlockId,
}

impl Tree<'_> {
    fn node(&mut self, cuts: &[(u32, u32)]) -> BlockId {
        if let [(_, atom)] = cuts {
            return self.leaf(*atom);
        }
        let (low, high) = cuts.split_at(cuts.len() / 2);
        let (then, otherwise) = (self.node(low), self.node(high));
        let test = Test::Less(self.port, high[0].0);
        push(self.program, Block { insts: Vec::new(), end: End::If(test, then, otherwise) })
    }

    fn leaf(&mut self, atom: u32) -> BlockId {
        push(self.program, Block { insts: vec![Inst::Const(self.to, atom)], end: End::Jump(self.after) })
    }
}

fn push(program: &mut Program, block: Block) -> BlockId {
    program.blocks.push(block);
    BlockId(program.blocks.len() as u32 - 1)
}
