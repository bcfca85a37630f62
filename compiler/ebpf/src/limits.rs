//! Checks a program's shape and size against the limits of the kernel's verifier, without a kernel.
//!
//! Strategy: split the program into functions (all call targets) and walk each as a graph, callees first. Jumps, ends,
//! reachability, recursion and call depth are exact. The two worst cases are exact for the graph and upper bounds for
//! the verifier, which follows fewer paths. *Longest path* counts instructions. *Pending branches* counts the states
//! that the verifier has put aside on one path: it follows the fall-through first, so each conditional jump that is not
//! taken leaves one entry, and a called function's entries stay until its caller is done. A program with a loop has no
//! such numbers.
//!
//! Stack depth is computed from `r10` and its copies moved by constants within one straight run. Other calculations
//! with the frame pointer are left to the verifier.

mod flow;
mod stack;

use super::insn::Insn;
use std::fmt;

/// The maximum number of instructions in a program, which is also the maximum that the verifier follows.
pub const MAX_INSNS: u32 = super::asm::MAX_SLOTS;
// More end in EFAULT, "The sequence of 8193 jumps is too complex" (seen on 5.10, 6.1 and 6.18):
// https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c (`push_stack`).
/// The maximum number of branches that the verifier keeps for later (`BPF_COMPLEXITY_LIMIT_JMP_SEQ`).
pub const MAX_PENDING: u64 = 8_192;
// `MAX_BPF_STACK`, over the frames of a chain: https://github.com/torvalds/linux/blob/v6.1/kernel/bpf/verifier.c
// (`check_max_stack_depth`, "combined stack size").
/// The maximum bytes of stack, over all frames of a call chain.
pub const MAX_STACK: u32 = 512;
// A tail call replaces its own frame but not those of its callers. With up to 256 bytes for each of the tail calls in a
// chain, the worst case is 8 KiB of kernel stack: the comment in `check_max_stack_depth` reckons it.
/// The maximum bytes of stack in the callers of a function with a tail call (5.10 and later: below 256).
pub const MAX_TAIL_CALLER_STACK: u32 = 255;
// `MAX_CALL_FRAMES`, https://github.com/torvalds/linux/blob/v6.1/include/linux/bpf_verifier.h
/// The maximum number of frames, including the entry's.
pub const MAX_FRAMES: u32 = 8;

/// A property of a program that makes the kernel reject it. Positions are slots.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the text form says it")]
pub enum Violation {
    Empty,
    TooLong { slots: u64 },
    TargetOutside { slot: u32, target: i64 },
    TargetInsideWideLoad { slot: u32, target: i64 },
    LeavesFunction { slot: u32, target: i64 },
    FallsOffTheEnd { slot: u32 },
    Unreachable { slot: u32 },
    Recursion { function: u32 },
    TooDeep { frames: u32 },
    StackTooLarge { bytes: u32 },
    StackAboveFrame { slot: u32 },
    StackBeforeTailCall { bytes: u32 },
    TooManyPending { branches: u64 },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the program has no instructions"),
            Self::TooLong { slots } => write!(f, "{slots} instructions, the limit is {MAX_INSNS}"),
            Self::TargetOutside { slot, target } => write!(f, "slot {slot} jumps to {target}, outside the program"),
            Self::TargetInsideWideLoad { slot, target } => {
                write!(f, "slot {slot} jumps to {target}, the second half of a 64-bit load")
            }
            Self::LeavesFunction { slot, target } => write!(f, "slot {slot} jumps to {target}, in another function"),
            Self::FallsOffTheEnd { slot } => write!(f, "control runs past the end of the function at slot {slot}"),
            Self::Unreachable { slot } => write!(f, "slot {slot} cannot be reached"),
            Self::Recursion { function } => write!(f, "the function at slot {function} calls itself"),
            Self::TooDeep { frames } => write!(f, "{frames} nested calls, the limit is {MAX_FRAMES}"),
            Self::StackTooLarge { bytes } => write!(f, "{bytes} bytes of stack, the limit is {MAX_STACK}"),
            Self::StackAboveFrame { slot } => write!(f, "slot {slot} touches memory above its stack frame"),
            Self::StackBeforeTailCall { bytes } => write!(
                f,
                "{bytes} bytes of stack in the callers of a function with a tail call, the limit is {MAX_TAIL_CALLER_STACK}"
            ),
            Self::TooManyPending { branches } => {
                write!(f, "{branches} branches pending on one path, the limit is {MAX_PENDING}")
            }
        }
    }
}

/// The measures of a program and its violations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsReport {
    /// The number of slots, as the kernel counts instructions.
    pub slots: u64,
    /// The stack bytes of the worst call chain; each frame is rounded up to 32 bytes, as in the kernel.
    pub stack: u32,
    /// The frames of the deepest call chain.
    pub frames: u32,
    /// The instructions on the longest path; `None` if there is a loop.
    pub longest_path: Option<u64>,
    /// The maximum number of pending branches; `None` if there is a loop.
    pub pending: Option<u64>,
    /// The violations, in order of position.
    pub violations: Vec<Violation>,
}

/// Measures a program and checks it against the limits.
pub fn check(insns: &[Insn]) -> LimitsReport {
    let slots = insns.iter().map(|insn| u64::from(insn.slots())).sum();
    let mut report = LimitsReport { slots, ..LimitsReport::default() };
    // Before the graph is built: it needs memory for each instruction, and the answer is known.
    if report.slots > u64::from(MAX_INSNS) {
        report.violations.push(Violation::TooLong { slots: report.slots });
        return report;
    }
    // Violations are collected and not returned at the first: a report should name all of them, and later measures
    // tolerate missing targets.
    let graph = flow::Graph::new(insns, &mut report.violations);
    if graph.is_empty() {
        report.violations.push(Violation::Empty);
        return report;
    }
    // Stack first: the walk over the calls adds it up.
    let stacks = stack::depths(insns, &graph, &mut report.violations);
    let worst = graph.measure(insns, &stacks, &mut report.violations);
    (report.stack, report.frames) = (worst.stack, worst.frames);
    (report.longest_path, report.pending) = (worst.longest_path, worst.pending);
    if let Some(bytes) = worst.before_tail_call.filter(|&bytes| bytes > MAX_TAIL_CALLER_STACK) {
        report.violations.push(Violation::StackBeforeTailCall { bytes });
    }
    add_size_violations(&mut report);
    // Found by several passes, which would report the same slot in different orders.
    report.violations.sort_unstable();
    report.violations.dedup();
    report
}

fn add_size_violations(report: &mut LimitsReport) {
    if report.stack > MAX_STACK {
        report.violations.push(Violation::StackTooLarge { bytes: report.stack });
    }
    if report.frames > MAX_FRAMES {
        report.violations.push(Violation::TooDeep { frames: report.frames });
    }
    // An upper bound: the verifier drops a branch whose outcome it knows. So this can refuse a program that the kernel
    // would load, but not the other way round.
    if let Some(branches) = report.pending.filter(|&branches| branches > MAX_PENDING) {
        report.violations.push(Violation::TooManyPending { branches });
    }
}

#[cfg(test)]
mod tests;
