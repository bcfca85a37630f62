//! The stack depth of each function.

use super::Violation;
use super::flow::Graph;
use crate::insn::{AluOp, Insn, Operand, Reg, Width};

/// For each register that points into the frame: its distance from the frame pointer.
type Distances = [Option<i64>; 11];

const AT_ENTRY: Distances = {
    let mut distances = [None; 11];
    distances[Reg::R10 as usize] = Some(0);
    distances
};

/// The bytes of stack of each function, in the graph's order.
pub(super) fn depths(insns: &[Insn], graph: &Graph, violations: &mut Vec<Violation>) -> Vec<u32> {
    graph.functions().map(|range| depth(insns, graph, range, violations)).collect()
}

fn depth(insns: &[Insn], graph: &Graph, range: std::ops::Range<usize>, violations: &mut Vec<Violation>) -> u32 {
    let landings = graph.landings(range.clone());
    let mut distances = AT_ENTRY;
    let mut lowest = 0;
    for index in range {
        let Some(insn) = insns.get(index) else { break };
        // Another way leads here, on which the registers may differ. Only R10 is the same on all of them.
        if landings.binary_search(&index).is_ok() {
            distances = AT_ENTRY;
        }
        if let Some((start, end)) = accessed(insn, &distances) {
            lowest = lowest.min(start);
            // Above the frame pointer is the caller's frame; the verifier calls it an invalid stack offset.
            if end > 0 {
                violations.push(Violation::StackAboveFrame { slot: graph.slot(index) });
            }
        }
        step(insn, &mut distances);
        // A pointer counts even if it is only passed to a helper, which reads or writes behind it.
        lowest = distances.iter().flatten().copied().fold(lowest, i64::min);
    }
    // Less 31, so that rounding up to 32 does not overflow.
    u32::try_from(-lowest).unwrap_or(u32::MAX - 31)
}

/// The first byte that an instruction accesses and the byte after the last, relative to the frame pointer.
fn accessed(insn: &Insn, distances: &Distances) -> Option<(i64, i64)> {
    let (base, offset, bytes) = match *insn {
        Insn::Load { size, base, offset, .. } | Insn::Store { size, base, offset, .. } => (base, offset, size.bytes()),
        Insn::LoadSx { size, base, offset, .. } => (base, offset, size.size().bytes()),
        Insn::Atomic { width, base, offset, .. } => (base, offset, if width == Width::W64 { 8 } else { 4 }),
        _ => return None,
    };
    // `None` for all other pointers: they are not on the stack, or the verifier knows more than this check.
    let start = distances[base as usize]? + i64::from(offset);
    Some((start, start + i64::from(bytes)))
}

fn step(insn: &Insn, distances: &mut Distances) {
    match *insn {
        Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: Operand::Reg(src) } => {
            // Also clears `dst` if `src` is no stack pointer.
            distances[dst as usize] = distances[src as usize];
        }
        Insn::Alu { width: Width::W64, op, dst, src: Operand::Imm(imm) } if matches!(op, AluOp::Add | AluOp::Sub) => {
            let imm = if op == AluOp::Add { i64::from(imm) } else { -i64::from(imm) };
            distances[dst as usize] = distances[dst as usize].map(|distance| distance + imm);
        }
        // R0 to R5 are clobbered by every call; R6 to R9 keep their pointers.
        Insn::CallHelper(_) | Insn::CallLocal { .. } | Insn::CallKfunc { .. } => distances[..6].fill(None),
        _ => {
            if let Some(dst) = insn.destination() {
                distances[dst as usize] = None;
            }
        }
    }
}
