use super::*;

const MIN64: u64 = 1 << 63;
const MIN32: u32 = 1 << 31;
const M1: u64 = u64::MAX;

#[track_caller]
fn check64(op: AluOp, a: u64, b: u64, expected: u64) {
    assert_eq!(alu64(op, a, b), expected, "{a:#x} {op} {b:#x}");
}

#[track_caller]
fn check32(op: AluOp, a: u32, b: u32, expected: u32) {
    assert_eq!(alu32(op, a, b), expected, "{a:#x} {op} {b:#x}");
}

#[test]
fn sums_and_products_wrap() {
    check64(AluOp::Add, M1, 2, 1);
    check64(AluOp::Sub, 0, 1, M1);
    check64(AluOp::Mul, MIN64 + 1, 2, 2);
    check32(AluOp::Add, u32::MAX, 2, 1);
    check32(AluOp::Sub, 0, 1, u32::MAX);
    check32(AluOp::Mul, MIN32 + 1, 2, 2);
}

#[test]
fn bits_and_moves() {
    check64(AluOp::Or, 0xf0, 0x0f, 0xff);
    check64(AluOp::And, 0xff, 0x3c, 0x3c);
    check64(AluOp::Xor, 0xff, 0x0f, 0xf0);
    check64(AluOp::Mov, 1, 2, 2);
    check32(AluOp::Or, 0xf0, 0x0f, 0xff);
    check32(AluOp::And, 0xff, 0x3c, 0x3c);
    check32(AluOp::Xor, 0xff, 0x0f, 0xf0);
    check32(AluOp::Mov, 1, 2, 2);
}

#[test]
fn shifts_take_the_count_modulo_the_width() {
    check64(AluOp::Lsh, 1, 63, MIN64);
    check64(AluOp::Lsh, 1, 64, 1);
    check64(AluOp::Lsh, 1, M1, MIN64);
    check64(AluOp::Rsh, MIN64, 65, MIN64 >> 1);
    check64(AluOp::Arsh, MIN64, 63, M1);
    check64(AluOp::Arsh, MIN64, 64, MIN64);
    check32(AluOp::Lsh, 1, 31, MIN32);
    check32(AluOp::Lsh, 1, 32, 1);
    check32(AluOp::Rsh, MIN32, 33, MIN32 >> 1);
    check32(AluOp::Arsh, MIN32, 31, u32::MAX);
    check32(AluOp::Arsh, MIN32, 32, MIN32);
}

#[test]
fn division_by_zero_gives_zero_and_its_remainder_the_dividend() {
    for op in [AluOp::Div, AluOp::Sdiv] {
        check64(op, 7, 0, 0);
        check32(op, 7, 0, 0);
    }
    for op in [AluOp::Mod, AluOp::Smod] {
        check64(op, 7, 0, 7);
        check32(op, 7, 0, 7);
    }
}

#[test]
fn unsigned_division_knows_no_sign() {
    check64(AluOp::Div, M1, 2, M1 >> 1);
    check64(AluOp::Mod, M1, 10, 5);
    check32(AluOp::Div, u32::MAX, 2, u32::MAX >> 1);
    check32(AluOp::Mod, u32::MAX, 10, 5);
}

#[test]
fn signed_division_rounds_to_zero_and_its_overflow_wraps() {
    check64(AluOp::Sdiv, -7_i64 as u64, 2, -3_i64 as u64);
    check64(AluOp::Smod, -7_i64 as u64, 2, M1);
    check64(AluOp::Smod, 7, -2_i64 as u64, 1);
    check64(AluOp::Sdiv, MIN64, M1, MIN64);
    check64(AluOp::Smod, MIN64, M1, 0);
    check32(AluOp::Sdiv, -7_i32 as u32, 2, -3_i32 as u32);
    check32(AluOp::Smod, -7_i32 as u32, 2, u32::MAX);
    check32(AluOp::Sdiv, MIN32, u32::MAX, MIN32);
    check32(AluOp::Smod, MIN32, u32::MAX, 0);
}

#[test]
fn comparisons_distinguish_signed_from_unsigned() {
    // The condition, then whether it holds for (1, 2), (2, 2), (2, 1) and (-1, 1).
    for (cond, expected) in [
        (Cond::Eq, [false, true, false, false]),
        (Cond::Ne, [true, false, true, true]),
        (Cond::Gt, [false, false, true, true]),
        (Cond::Ge, [false, true, true, true]),
        (Cond::Lt, [true, false, false, false]),
        (Cond::Le, [true, true, false, false]),
        (Cond::Sgt, [false, false, true, false]),
        (Cond::Sge, [false, true, true, false]),
        (Cond::Slt, [true, false, false, true]),
        (Cond::Sle, [true, true, false, true]),
        (Cond::Set, [false, true, false, true]),
    ] {
        let pairs = [(1, 2), (2, 2), (2, 1), (M1, 1)];
        assert_eq!(pairs.map(|(a, b)| holds64(cond, a, b)), expected, "{cond} 64");
        assert_eq!(pairs.map(|(a, b)| holds32(cond, a as u32, b as u32)), expected, "{cond} 32");
    }
}

#[test]
fn narrow_comparisons_see_the_lower_half_only() {
    assert!(holds32(Cond::Gt, MIN32, MIN32 - 1));
    assert!(holds32(Cond::Slt, MIN32, MIN32 - 1));
    assert!(!holds32(Cond::Set, MIN32, MIN32 - 1));
    assert!(holds32(Cond::Set, MIN32, MIN32));
}

#[test]
fn sign_extension_stops_at_the_width() {
    for (kind, expected) in [
        (Extend::B32, 0xffff_ff80),
        (Extend::H32, 0xffff_8080),
        (Extend::B64, 0xffff_ffff_ffff_ff80),
        (Extend::H64, 0xffff_ffff_ffff_8080),
        (Extend::W64, 0xffff_ffff_8080_8080),
    ] {
        assert_eq!(extend(kind, 0x7f7f_7f7f_8080_8080), expected, "{kind:?}");
        assert_eq!(extend(kind, 0x8080_8080_0000_007f), 0x7f, "{kind:?}");
    }
}

#[test]
fn swaps_cut_to_their_width() {
    let value = 0x1122_3344_5566_7788;
    for (bits, little, big) in [
        (SwapBits::B16, 0x7788, 0x8877),
        (SwapBits::B32, 0x5566_7788, 0x8877_6655),
        (SwapBits::B64, value, 0x8877_6655_4433_2211),
    ] {
        assert_eq!(swap(Swap::ToLe, bits, value), little);
        assert_eq!(swap(Swap::ToBe, bits, value), big);
        assert_eq!(swap(Swap::Always, bits, value), big);
    }
}

#[test]
fn atomics_leave_their_result_in_memory() {
    for (op, expected) in [
        (AtomicOp::Add, 15),
        (AtomicOp::FetchAdd, 15),
        (AtomicOp::Or, 15),
        (AtomicOp::FetchOr, 15),
        (AtomicOp::And, 0),
        (AtomicOp::FetchAnd, 0),
        (AtomicOp::Xor, 15),
        (AtomicOp::FetchXor, 15),
        (AtomicOp::Xchg, 5),
    ] {
        assert_eq!(atomic(op, 10, 5, 0), expected, "{op:?}");
    }
    assert_eq!(atomic(AtomicOp::Cmpxchg, 10, 5, 10), 5);
    assert_eq!(atomic(AtomicOp::Cmpxchg, 10, 5, 11), 10);
}
