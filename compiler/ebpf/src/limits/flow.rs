//! The program as a graph: functions, successors, and the worst cases over them.

use super::Violation;
use crate::helper::Helper;
use crate::insn::{Imm64, Insn};

/// Instructions by index; every jump target is resolved to an index.
pub(super) struct Graph {
    /// The slot of every instruction.
    slots: Vec<u32>,
    /// For a jump or call: the index of its target, if the target is valid.
    targets: Vec<Option<usize>>,
    /// First instructions of the functions, in order; the entry is the first.
    functions: Vec<usize>,
}

/// The worst cases of a function, including its callees.
#[derive(Clone, Copy, Default)]
pub(super) struct Worst {
    pub(super) stack: u32,
    pub(super) frames: u32,
    /// The stack bytes of this function and its callees, up to but not including a callee that makes a tail call.
    pub(super) before_tail_call: Option<u32>,
    has_tail_call: bool,
    pub(super) longest_path: Option<u64>,
    pub(super) pending: Option<u64>,
}

#[derive(Clone, Copy, PartialEq)]
enum VisitMark {
    New,
    Open,
    Done,
}

impl Graph {
    pub(super) fn new(insns: &[Insn], violations: &mut Vec<Violation>) -> Self {
        // Positions for all instructions first: a target is searched by its slot.
        let slots: Vec<u32> = insns
            .iter()
            .scan(0, |end, insn| {
                let slot = *end;
                *end += insn.slots();
                Some(slot)
            })
            .collect();
        let mut graph = Self { targets: vec![None; insns.len()], functions: vec![0], slots };
        for (index, insn) in insns.iter().enumerate() {
            if let Some(distance) = callee(insn).or(insn.jump()) {
                let target = graph.find(insns, index, distance, violations);
                graph.set_target(index, target);
                // Every target of a call begins a function. The kernel does the same (`add_subprog`), so code that is
                // reached by falling into it belongs to the function before it.
                graph.functions.extend(target.filter(|_| callee(insn).is_some()));
            }
        }
        // By position, because a function reaches up to the next one's first instruction.
        graph.functions.sort_unstable();
        graph.functions.dedup();
        graph.check_bounds(insns, violations);
        graph
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn slot(&self, index: usize) -> u32 {
        self.slots.get(index).copied().unwrap_or(0)
    }

    /// The functions as ranges of instructions.
    pub(super) fn functions(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let ends = self.functions.iter().skip(1).copied().chain([self.slots.len()]);
        self.functions.iter().copied().zip(ends).map(|(start, end)| start..end)
    }

    /// The instructions that jumps in this range may target.
    pub(super) fn landings(&self, range: std::ops::Range<usize>) -> Vec<usize> {
        let mut landings: Vec<usize> = self.targets.get(range).into_iter().flatten().flatten().copied().collect();
        landings.sort_unstable();
        landings
    }

    fn target(&self, index: usize) -> Option<usize> {
        self.targets.get(index).copied().flatten()
    }

    fn set_target(&mut self, index: usize, target: Option<usize>) {
        if let Some(entry) = self.targets.get_mut(index) {
            *entry = target;
        }
    }

    /// The instruction at a distance, if one begins there.
    fn find(&self, insns: &[Insn], index: usize, distance: i32, violations: &mut Vec<Violation>) -> Option<usize> {
        let slot = self.slot(index);
        let target = i64::from(slot) + 1 + i64::from(distance);
        let end = self.slots.last().zip(insns.last()).map_or(0, |(slot, insn)| i64::from(slot + insn.slots()));
        if !(0..end).contains(&target) {
            violations.push(Violation::TargetOutside { slot, target });
            return None;
        }
        // Not found although it is inside: then it is the second slot of a wide load. Newer kernels say "jump into
        // the middle of ldimm64 insn".
        let found = self.slots.binary_search_by_key(&target, |&slot| i64::from(slot)).ok();
        if found.is_none() {
            violations.push(Violation::TargetInsideWideLoad { slot, target });
        }
        found
    }

    /// Checks that jumps stay in their function, and that each function ends with an exit or a jump.
    fn check_bounds(&mut self, insns: &[Insn], violations: &mut Vec<Violation>) {
        for range in self.functions().collect::<Vec<_>>() {
            let last = range.end.saturating_sub(1);
            // The kernel: "last insn is not an exit or jmp" (`check_subprogs`).
            if insns.get(last).is_some_and(Insn::falls_through) {
                violations.push(Violation::FallsOffTheEnd { slot: self.slot(last) });
            }
            for index in range.clone() {
                let leaves = self.target(index).filter(|target| !range.contains(target));
                if let Some(target) = leaves.filter(|_| insns.get(index).is_some_and(|insn| insn.jump().is_some())) {
                    let target = i64::from(self.slot(target));
                    violations.push(Violation::LeavesFunction { slot: self.slot(index), target });
                    // Forgotten after it was reported, so that the walk stays within one function and its measures stay
                    // meaningful.
                    self.set_target(index, None);
                }
            }
        }
    }

    /// Computes the worst cases from the entry. Reports unreachable instructions and recursion.
    pub(super) fn measure(&self, insns: &[Insn], stacks: &[u32], violations: &mut Vec<Violation>) -> Worst {
        let mut walk = FlowWalk {
            graph: self,
            insns,
            stacks,
            violations,
            marks: vec![VisitMark::New; insns.len()],
            measures: vec![(0, 0); insns.len()],
            functions: vec![(VisitMark::New, Worst::default()); self.functions.len()],
        };
        let worst = walk.function(0, 0);
        // Functions that helpers call back are reached by address only.
        // After the entry: functions that it calls are measured already and are not walked again.
        for function in 1..self.functions.len() {
            walk.function_by_address(function);
        }
        // The verifier rejects unreachable instructions instead of ignoring them:
        // https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`check_cfg`).
        let unreached: Vec<usize> = (0..insns.len()).filter(|&index| walk.mark(index) == VisitMark::New).collect();
        violations.extend(unreached.into_iter().map(|index| Violation::Unreachable { slot: self.slot(index) }));
        worst
    }
}

/// The distance to the function that an instruction calls or whose address it loads.
fn callee(insn: &Insn) -> Option<i32> {
    match *insn {
        Insn::CallLocal { offset } | Insn::LoadImm64 { value: Imm64::Func(offset), .. } => Some(offset),
        _ => None,
    }
}

/// Deeper than any valid nesting; keeps the walk of an invalid program finite.
const MAX_NESTING: u32 = 64;

struct FlowWalk<'a> {
    graph: &'a Graph,
    insns: &'a [Insn],
    stacks: &'a [u32],
    violations: &'a mut Vec<Violation>,
    marks: Vec<VisitMark>,
    /// Longest path and pending branches from each finished instruction to the end of its function.
    measures: Vec<(u64, u64)>,
    functions: Vec<(VisitMark, Worst)>,
}

impl FlowWalk<'_> {
    fn mark(&self, index: usize) -> VisitMark {
        self.marks.get(index).copied().unwrap_or(VisitMark::Done)
    }

    fn set_mark(&mut self, index: usize, mark: VisitMark) {
        if let Some(entry) = self.marks.get_mut(index) {
            *entry = mark;
        }
    }

    fn set_function(&mut self, function: usize, value: (VisitMark, Worst)) {
        if let Some(entry) = self.functions.get_mut(function) {
            *entry = value;
        }
    }

    fn function_by_address(&mut self, function: usize) {
        let start = self.graph.functions.get(function).copied();
        let named = |(index, insn): (usize, &Insn)| {
            matches!(insn, Insn::LoadImm64 { value: Imm64::Func(_), .. }) && self.graph.target(index) == start
        };
        if self.insns.iter().enumerate().any(named) {
            self.function(function, 1);
        }
    }

    fn function(&mut self, function: usize, nesting: u32) -> Worst {
        let start = self.graph.functions.get(function).copied().unwrap_or(0);
        match self.functions.get(function) {
            Some((VisitMark::Done, worst)) => return *worst,
            Some((VisitMark::New, _)) if nesting < MAX_NESTING => {}
            // Open, so it is its own caller; or nested deeper than any valid program. Both end here, or the recursion
            // of this walk would not.
            _ => {
                self.violations.push(Violation::Recursion { function: self.graph.slot(start) });
                return Worst::default();
            }
        }
        self.set_function(function, (VisitMark::Open, Worst::default()));
        // In units of 32 bytes, the granularity of the kernel's interpreter. Newer kernels round to 16 with a JIT; the
        // coarser unit is valid on all of them.
        let own = self.stacks.get(function).copied().unwrap_or(0).next_multiple_of(32);
        let mut worst = Worst { stack: own, frames: 1, ..Worst::default() };
        let loops = self.instructions(start, nesting, own, &mut worst);
        // With a loop there is no longest path. `None` and not a large number: the verifier may still accept the loop.
        if !loops {
            let measure = self.measures.get(start).copied();
            (worst.longest_path, worst.pending) = (measure.map(|m| m.0), measure.map(|m| m.1));
        }
        self.set_function(function, (VisitMark::Done, worst));
        worst
    }

    /// Walks depth-first from `start` and measures each instruction after all its successors. Returns true if there is
    /// a loop.
    fn instructions(&mut self, start: usize, nesting: u32, own: u32, worst: &mut Worst) -> bool {
        let mut loops = false;
        // A stack of our own instead of recursion: a program of a million instructions in one chain would overflow the
        // thread's stack.
        let mut path = vec![(start, false)];
        while let Some((index, expanded)) = path.pop() {
            if expanded {
                loops |= self.finish(index, nesting, own, worst);
                self.set_mark(index, VisitMark::Done);
                continue;
            }
            // An instruction with two predecessors may be on the path twice before it is visited.
            if self.mark(index) != VisitMark::New {
                continue;
            }
            self.set_mark(index, VisitMark::Open);
            // Below its successors, so that it is measured after all of them.
            path.push((index, true));
            let (next, taken) = self.successors(index);
            for successor in [taken, next].into_iter().flatten() {
                match self.mark(successor) {
                    VisitMark::New => path.push((successor, false)),
                    // Open means: on the way from the start to here. A target that is done is only a join, not a loop.
                    VisitMark::Open => loops = true,
                    VisitMark::Done => {}
                }
            }
        }
        loops
    }

    /// The possible next instructions: the following one, and the jump's target.
    fn successors(&self, index: usize) -> (Option<usize>, Option<usize>) {
        let Some(insn) = self.insns.get(index) else { return (None, None) };
        // The bound matters for programs that run off their end, which are reported elsewhere.
        let next = (insn.falls_through() && index + 1 < self.insns.len()).then_some(index + 1);
        let taken = insn.jump().and_then(|_| self.graph.target(index));
        (next, taken)
    }

    /// Measures an instruction from its successors; true if it calls a function with a loop.
    fn finish(&mut self, index: usize, nesting: u32, own: u32, worst: &mut Worst) -> bool {
        let measure = |index: usize| self.measures.get(index).copied().unwrap_or((0, 0));
        let (next, taken) = self.successors(index);
        // Only real branches push a state; a `goto` does not.
        let branch = u64::from(next.is_some() && taken.is_some());
        let (next, taken) = (next.map_or((0, 0), measure), taken.map_or((0, 0), measure));
        let mut longest = 1 + next.0.max(taken.0);
        // The verifier puts the taken side aside and follows the fall-through first. While it is there, one entry more
        // is pending; when it takes the other side, that entry is gone. So `if x == k goto shared` in a row adds up,
        // and `if x != k goto next; act; exit` does not.
        let mut pending = (next.1 + branch).max(taken.1);
        let mut loops = false;
        worst.has_tail_call |= self.insns.get(index) == Some(&Insn::CallHelper(Helper::TAIL_CALL));
        if let Some(function) = self.called(index) {
            let callee = self.function(function, nesting + 1);
            worst.stack = worst.stack.max(own + callee.stack);
            worst.frames = worst.frames.max(1 + callee.frames);
            // The frame of the function that makes the tail call does not count: the call replaces it.
            let below = callee.before_tail_call.or(callee.has_tail_call.then_some(0));
            worst.before_tail_call = worst.before_tail_call.max(below.map(|bytes| own + bytes));
            // A loop in a callee makes the caller's path unbounded as well.
            loops = callee.longest_path.is_none();
            longest += callee.longest_path.unwrap_or(0);
            // Added, not compared: the callee's branches stay pending while the verifier follows the rest of the
            // caller.
            pending += callee.pending.unwrap_or(0);
        }
        if let Some(entry) = self.measures.get_mut(index) {
            *entry = (longest, pending);
        }
        loops
    }

    fn called(&self, index: usize) -> Option<usize> {
        // Not for addresses of functions: taking one calls nothing.
        matches!(self.insns.get(index)?, Insn::CallLocal { .. }).then_some(())?;
        self.graph.functions.binary_search(&self.graph.target(index)?).ok()
    }
}
