//! The target kernel's features, beyond those of the base.
//!
//! The base is kernel 5.14 (RHEL 9): instruction set version 3 with all atomic operations. Each newer part of the
//! instruction set is a [`Feature`]; the assembler rejects instructions whose feature the target lacks.

use super::helper::Helper;
use super::insn::{AluOp, AtomicOp, Imm64, Insn, Swap};
use std::fmt;

/// A part of the instruction set that is newer than version 3 with plain atomic addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// `ktime_get_coarse_ns`.
    CoarseClock,
    /// Every atomic operation except plain add.
    Atomics,
    /// Pointers to functions of the program.
    FunctionPointers,
    /// Calls of kernel functions, by BTF id.
    KernelFunctions,
    /// Version 4: signed division, sign extension, `bswap`, `gotol`.
    V4,
}

impl Feature {
    /// The first kernel that has the feature.
    pub const fn since(self) -> (u16, u16) {
        match self {
            // https://github.com/torvalds/linux/commit/d055126180564a57fe533728a4e93d0cb53d49b3
            Self::CoarseClock => (5, 11),
            Self::Atomics => (5, 12),
            Self::FunctionPointers | Self::KernelFunctions => (5, 13),
            // One feature for all of version 4, since the kernel got it in one series; compilers too know it only as a
            // whole (`-mcpu=v4`).
            Self::V4 => (6, 6),
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::CoarseClock => "the coarse clock",
            Self::Atomics => "atomic operations other than add",
            Self::FunctionPointers => "function pointers",
            Self::KernelFunctions => "calls of kernel functions",
            Self::V4 => "instruction set version 4",
        };
        let (major, minor) = self.since();
        write!(f, "{what} (kernel {major}.{minor})")
    }
}

/// The oldest kernel that a program must load on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Major and minor version.
    pub kernel: (u16, u16),
}

impl Target {
    /// The oldest supported kernel.
    pub const BASE: Self = Self { kernel: (5, 14) };
    /// A kernel with all of version 4.
    pub const V4: Self = Self { kernel: (6, 6) };

    /// The maximum size of an array's value: before 6.1 the largest `kmalloc`, since then the largest offset that the
    /// verifier tracks (29 bits).
    pub fn most_value_bytes(self) -> u64 {
        // https://github.com/torvalds/linux/blob/v5.14/kernel/bpf/arraymap.c (`array_map_alloc_check`,
        // `KMALLOC_MAX_SIZE`) and `BPF_MAX_VAR_OFF` in
        // https://github.com/torvalds/linux/blob/v6.1/include/linux/bpf_verifier.h
        if self.kernel < (6, 1) { 4 << 20 } else { 1 << 29 }
    }

    /// Whether the target has `feature`.
    pub fn has(self, feature: Feature) -> bool {
        // Pairs compare by major and then by minor version. As one decimal number, 5.9 would be newer than 5.14.
        self.kernel >= feature.since()
    }
}

impl Insn {
    /// The feature that the instruction needs, if any.
    pub fn feature(&self) -> Option<Feature> {
        match self {
            Self::MovSx { .. } | Self::LoadSx { .. } | Self::JumpLong { .. } => Some(Feature::V4),
            Self::Alu { op: AluOp::Sdiv | AluOp::Smod, .. } => Some(Feature::V4),
            Self::Swap { order: Swap::Always, .. } => Some(Feature::V4),
            // Plain addition is the old `BPF_XADD`, which every kernel has.
            Self::Atomic { op, .. } if *op != AtomicOp::Add => Some(Feature::Atomics),
            Self::LoadImm64 { value: Imm64::Func(_), .. } => Some(Feature::FunctionPointers),
            Self::CallKfunc { .. } => Some(Feature::KernelFunctions),
            Self::CallHelper(Helper::KTIME_GET_COARSE_NS) => Some(Feature::CoarseClock),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::{Operand, Reg, Width};

    #[track_caller]
    fn check(insn: Insn, on_base: bool, on_6_6: bool) {
        let has = |target: Target| insn.feature().is_none_or(|feature| target.has(feature));
        assert_eq!((has(Target::BASE), has(Target::V4)), (on_base, on_6_6), "{insn}");
    }

    #[test]
    fn the_base_has_every_atomic_operation() {
        let atomic = |op| Insn::Atomic { op, width: Width::W64, base: Reg::R1, offset: 0, src: Reg::R2 };
        check(atomic(AtomicOp::Add), true, true);
        check(atomic(AtomicOp::Or), true, true);
        check(atomic(AtomicOp::FetchAdd), true, true);
        check(atomic(AtomicOp::Cmpxchg), true, true);
        assert!(!Target { kernel: (5, 10) }.has(Feature::Atomics));
    }

    #[test]
    fn version_4_needs_6_6() {
        let alu = |op| Insn::Alu { width: Width::W64, op, dst: Reg::R1, src: Operand::Imm(3) };
        check(alu(AluOp::Div), true, true);
        check(alu(AluOp::Sdiv), false, true);
        check(Insn::JumpLong { offset: 1 }, false, true);
        assert!(!Target { kernel: (6, 1) }.has(Feature::V4));
    }

    #[test]
    fn kernels_compare_as_versions() {
        assert!(Target { kernel: (6, 1) }.has(Feature::Atomics));
        assert!(Target { kernel: (5, 15) }.has(Feature::KernelFunctions));
        assert!(!Target { kernel: (5, 4) }.has(Feature::CoarseClock));
    }
}
