use super::*;
use crate::arbitrary;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn encoded_instructions_decode_to_themselves(insn in arbitrary::insn(), big in any::<bool>()) {
        let order = if big { ByteOrder::Big } else { ByteOrder::Little };
        prop_assert_eq!(decode(&encode([insn], order), order), Ok(vec![insn]));
    }

    #[test]
    fn decoded_instructions_encode_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 16), clear in any::<bool>()) {
        // Random bytes rarely leave the unused fields zero, so half of the cases clear them.
        let mut bytes = bytes;
        if clear {
            bytes[1] &= 0x0f;
            bytes[2..8].fill(0);
            bytes[8..12].fill(0);
        }
        if let Ok(insns) = decode(&bytes, ByteOrder::Little) {
            prop_assert_eq!(encode(&insns, ByteOrder::Little), bytes);
        }
    }
}

#[track_caller]
fn check(insn: Insn, little: &str, big: &str) {
    let hex = |order| encode([insn], order).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!((hex(ByteOrder::Little).as_str(), hex(ByteOrder::Big).as_str()), (little, big), "{insn}");
}

/// The bytes as `llvm-mc -filetype=obj` writes them.
#[test]
fn bytes_are_those_of_llvm() {
    use Reg::{R1, R2, R10};
    let w64 = Width::W64;
    let add = AluOp::Add;
    check(Insn::Alu { width: w64, op: add, dst: R1, src: R2.into() }, "0f21000000000000", "0f12000000000000");
    check(Insn::Alu { width: w64, op: add, dst: R1, src: (-2).into() }, "07010000feffffff", "07100000fffffffe");
    check(Insn::Load { size: Size::W, dst: R1, base: R2, offset: 4 }, "6121040000000000", "6112000400000000");
    check(
        Insn::Store { size: Size::Dw, base: R10, offset: -8, src: R1.into() },
        "7b1af8ff00000000",
        "7ba1fff800000000",
    );
    check(
        Insn::JumpIf { width: Width::W32, cond: Cond::Eq, dst: R1, src: 5.into(), offset: 3 },
        "1601030005000000",
        "1610000300000005",
    );
    check(Insn::Exit, "9500000000000000", "9500000000000000");
    check(
        Insn::LoadImm64 { dst: R1, value: Imm64::Value(0x1122_3344_5566_7788) },
        "18010000887766550000000044332211",
        "18100000556677880000000011223344",
    );
    check(
        Insn::Atomic { op: AtomicOp::FetchAdd, width: w64, base: R1, offset: 8, src: R2 },
        "db21080001000000",
        "db12000800000001",
    );
    check(Insn::Swap { order: Swap::ToBe, bits: SwapBits::B16, dst: R1 }, "dc01000010000000", "dc10000000000010");
}

#[test]
fn invalid_instruction_is_reported_with_its_slot() {
    let mut bytes = encode([Insn::Exit, Insn::Exit], ByteOrder::Little);
    // Register 11 fits into the field of four bits and does not exist.
    bytes[9] = 0x0b;
    let fields = InsnFields { opcode: 0x95, dst: 11, ..InsnFields::default() };
    assert_eq!(decode(&bytes, ByteOrder::Little), Err(DecodeError::Unknown { slot: 1, fields }));
    assert_eq!(decode(&bytes[..9], ByteOrder::Little), Err(DecodeError::Ragged { bytes: 9 }));
    assert_eq!(decode(&[0x18, 0, 0, 0, 0, 0, 0, 0], ByteOrder::Little), Err(DecodeError::Halved { slot: 0 }));
}

#[test]
fn unused_fields_must_be_zero() {
    for slot in [
        InsnFields { opcode: 0x95, imm: 1, ..InsnFields::default() },
        InsnFields { opcode: 0x05, offset: 1, imm: 1, ..InsnFields::default() },
        InsnFields { opcode: 0x0f, imm: 1, ..InsnFields::default() },
        InsnFields { opcode: 0x87, src: 1, ..InsnFields::default() },
        InsnFields { opcode: 0x07, offset: 1, ..InsnFields::default() },
        InsnFields { opcode: 0xb7, offset: 8, ..InsnFields::default() },
        InsnFields { opcode: 0xbc, offset: 32, ..InsnFields::default() },
        InsnFields { opcode: 0x20, ..InsnFields::default() },
    ] {
        assert!(decode(&slot.to_bytes(ByteOrder::Little), ByteOrder::Little).is_err(), "{slot:?}");
    }
}
