//! Arithmetic, comparison and byte order, exactly as the instruction set defines them.
//!
//! Nothing here can fail: division by zero, overflow and oversized shifts all have defined results.

use crate::insn::{AluOp, AtomicOp, Cond, Extend, Swap, SwapBits};

/// `a op b` with 64 bits.
#[inline]
pub(super) fn alu64(op: AluOp, a: u64, b: u64) -> u64 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        // A division by zero has a result, so that no program can fault. The verifier inserts a test before each
        // division where the processor would:
        // https://github.com/torvalds/linux/blob/v6.12/Documentation/bpf/standardization/instruction-set.rst
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::Or => a | b,
        AluOp::And => a & b,
        // The instruction set masks the count (0x3f here, 0x1f for 32 bits), and so does `wrapping_shl`. The conversion
        // to 32 bits keeps all bits of the mask.
        AluOp::Lsh => a.wrapping_shl(b as u32),
        AluOp::Rsh => a.wrapping_shr(b as u32),
        // The dividend stays. With 32 bits the upper half is cleared all the same, which the caller does.
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::Xor => a ^ b,
        AluOp::Mov => b,
        AluOp::Arsh => (a as i64).wrapping_shr(b as u32) as u64,
        AluOp::Sdiv if b == 0 => 0,
        // `wrapping`: the smallest number by -1 overflows. x86 raises a fault for that, and until 6.12 a program could
        // crash the kernel with it: https://github.com/torvalds/linux/commit/7dd34d7b7dcf9309fc6224caf4dd5b35bedddcb7.
        // The result is the dividend.
        AluOp::Sdiv => (a as i64).wrapping_div(b as i64) as u64,
        AluOp::Smod if b == 0 => a,
        // Truncated division, as in C: the remainder has the sign of the dividend (-13 % 3 is -1).
        AluOp::Smod => (a as i64).wrapping_rem(b as i64) as u64,
    }
}

/// `a op b` with 32 bits: the lower half of the result with 64 bits, except for shifts, whose count has fewer bits.
#[inline]
pub(super) fn alu32(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Lsh => a.wrapping_shl(b),
        AluOp::Rsh => a.wrapping_shr(b),
        // The sign is bit 31 here: converting to 64 bits first would shift in zeros.
        AluOp::Arsh => (a as i32).wrapping_shr(b) as u32,
        // The smallest number by -1 fits into 64 bits. Its lower half is the dividend, as `wrapping_div` gives it.
        AluOp::Sdiv | AluOp::Smod => alu64(op, sign_extended(a), sign_extended(b)) as u32,
        _ => alu64(op, a.into(), b.into()) as u32,
    }
}

fn sign_extended(value: u32) -> u64 {
    i64::from(value as i32) as u64
}

/// Whether `a cond b` with 64 bits.
#[inline]
pub(super) fn holds64(cond: Cond, a: u64, b: u64) -> bool {
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Sgt => a as i64 > b as i64,
        Cond::Sge => a as i64 >= b as i64,
        Cond::Slt => (a as i64) < b as i64,
        Cond::Sle => a as i64 <= b as i64,
        Cond::Set => a & b != 0,
    }
}

/// Whether `a cond b` with 32 bits. Sign-extending both operands keeps every order, signed and unsigned. For `Set`, the
/// added copies of the sign bits have common bits only if the sign bits themselves are common.
#[inline]
pub(super) fn holds32(cond: Cond, a: u32, b: u32) -> bool {
    // One table of conditions for both widths: eleven lines written twice would be eleven chances to differ.
    holds64(cond, sign_extended(a), sign_extended(b))
}

/// A sign-extending move.
#[inline]
pub(super) fn extend(extend: Extend, value: u64) -> u64 {
    match extend {
        // Twice: the sign to 32 bits, then zeros to 64.
        Extend::B32 => u64::from(i32::from(value as i8) as u32),
        Extend::H32 => u64::from(i32::from(value as i16) as u32),
        Extend::B64 => i64::from(value as i8) as u64,
        Extend::H64 => i64::from(value as i16) as u64,
        Extend::W64 => i64::from(value as i32) as u64,
    }
}

/// Changes the byte order on a little-endian machine; bits above `bits` become zero.
#[inline]
pub(super) fn swap(order: Swap, bits: SwapBits, value: u64) -> u64 {
    // On this little-endian machine, "to little endian" swaps nothing but still truncates.
    let swapped = order != Swap::ToLe;
    match bits {
        SwapBits::B16 if swapped => u64::from((value as u16).swap_bytes()),
        SwapBits::B32 if swapped => u64::from((value as u32).swap_bytes()),
        SwapBits::B64 if swapped => value.swap_bytes(),
        SwapBits::B16 => u64::from(value as u16),
        SwapBits::B32 => u64::from(value as u32),
        SwapBits::B64 => value,
    }
}

/// The value that an atomic operation leaves in memory; `expected` is `R0`. 32-bit operands must be zero-extended.
#[inline]
pub(super) fn atomic(op: AtomicOp, old: u64, src: u64, expected: u64) -> u64 {
    match op {
        AtomicOp::Add | AtomicOp::FetchAdd => old.wrapping_add(src),
        AtomicOp::Or | AtomicOp::FetchOr => old | src,
        AtomicOp::And | AtomicOp::FetchAnd => old & src,
        AtomicOp::Xor | AtomicOp::FetchXor => old ^ src,
        AtomicOp::Xchg => src,
        // Both are zero-extended by the caller, so this comparison is right for 32 bits too.
        AtomicOp::Cmpxchg if old == expected => src,
        AtomicOp::Cmpxchg => old,
    }
}

#[cfg(test)]
mod tests;
