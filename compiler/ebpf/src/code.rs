//! Instructions to eight-byte slots and back, in either byte order.
//!
//! Strategy: a [`InsnFields`] is the kernel's `struct bpf_insn` with its fields apart; byte order matters only between
//! a slot and its bytes. Decoding is strict: fields that an instruction does not use must be zero, so every accepted
//! program encodes to the same bytes again. Each opcode table exists once ([`ALU`], [`COND`], [`ATOMIC`], [`EXTEND`])
//! and serves both directions. The rows are in the order of the enum's variants, and the encoder takes a row by the
//! variant's number, because an agent encodes thousands of instructions for each generation.

use std::borrow::Borrow;

use super::helper::Helper;
use super::insn::{AluOp, AtomicOp, Cond, Extend, Imm64, Insn, Narrow, Operand, Reg, Size, Swap, SwapBits, Width};

/// Byte order of the machine that will run the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// x86-64, arm64, riscv64.
    Little,
    /// s390x.
    Big,
}

/// The fields of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InsnFields {
    /// The opcode byte.
    pub opcode: u8,
    /// Destination register field.
    pub dst: u8,
    /// Source register field.
    pub src: u8,
    /// Signed 16-bit field.
    pub offset: i16,
    /// Signed 32-bit field.
    pub imm: i32,
}

/// The bytes of one slot.
pub const SLOT_BYTES: usize = 8;

impl InsnFields {
    /// The bytes as the kernel reads them.
    #[inline]
    pub fn to_bytes(self, order: ByteOrder) -> [u8; SLOT_BYTES] {
        let Self { opcode, dst, src, offset, imm } = self;
        let (opcode, offset, imm) = (u64::from(opcode), u64::from(offset as u16), u64::from(imm as u32));
        // One word, because compilers do not merge stores of eight single bytes into one.
        match order {
            // The registers are bit fields in the kernel's structure, so their halves change places with the byte
            // order: https://github.com/torvalds/linux/blob/v6.12/Documentation/bpf/standardization/instruction-set.rst
            ByteOrder::Little => {
                let registers = u64::from(src << 4 | dst & 15);
                (opcode | registers << 8 | offset << 16 | imm << 32).to_le_bytes()
            }
            ByteOrder::Big => {
                let registers = u64::from(dst << 4 | src & 15);
                (opcode << 56 | registers << 48 | offset << 32 | imm).to_be_bytes()
            }
        }
    }

    /// The fields of eight bytes.
    pub fn from_bytes(bytes: [u8; SLOT_BYTES], order: ByteOrder) -> Self {
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = bytes;
        let (low, high) = (registers & 15, registers >> 4);
        match order {
            ByteOrder::Little => {
                let (offset, imm) = (i16::from_le_bytes([o0, o1]), i32::from_le_bytes([i0, i1, i2, i3]));
                Self { opcode, dst: low, src: high, offset, imm }
            }
            ByteOrder::Big => {
                let (offset, imm) = (i16::from_be_bytes([o0, o1]), i32::from_be_bytes([i0, i1, i2, i3]));
                Self { opcode, dst: high, src: low, offset, imm }
            }
        }
    }
}

/// Why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The length is not a multiple of eight.
    #[error("{bytes} bytes are not a whole number of instructions")]
    Ragged {
        /// The number of bytes.
        bytes: usize,
    },
    /// The opcode is unknown, or a field is set that the instruction does not use.
    #[error("slot {slot}: no such instruction: {fields:?}")]
    Unknown {
        /// The slot's position.
        slot: usize,
        /// The slot's fields.
        fields: InsnFields,
    },
    /// The second half of a 64-bit load is missing.
    #[error("slot {slot}: the second half of a 64-bit load is missing")]
    Halved {
        /// The position of the first half.
        slot: usize,
    },
}

/// The bytes of a program.
pub fn encode(insns: impl IntoIterator<Item: Borrow<Insn>>, order: ByteOrder) -> Vec<u8> {
    let insns = insns.into_iter();
    // Room for one instruction of two slots in eight.
    let mut slots = Vec::with_capacity(insns.size_hint().0 * 9 / 8);
    for insn in insns {
        // Infallible: every value of `Insn` has an encoding, so callers have no error to invent an answer for.
        let (first, second) = encode_one(insn.borrow());
        slots.push(first.to_bytes(order));
        slots.extend(second.map(|second| second.to_bytes(order)));
    }
    slots.into_flattened()
}

/// The program in `bytes`.
pub fn decode(bytes: &[u8], order: ByteOrder) -> Result<Vec<Insn>, DecodeError> {
    let (chunks, rest) = bytes.as_chunks::<SLOT_BYTES>();
    if !rest.is_empty() {
        return Err(DecodeError::Ragged { bytes: bytes.len() });
    }
    let mut slots = chunks.iter().map(|&chunk| InsnFields::from_bytes(chunk, order)).enumerate();
    let mut insns = Vec::with_capacity(chunks.len());
    while let Some((slot, fields)) = slots.next() {
        // The only instruction of two slots must be recognised before its second slot, whose opcode is 0.
        let decoded = if fields.opcode == LD_IMM64 {
            // The iterator has counted both slots, so positions in later errors are the kernel's.
            let (_, second) = slots.next().ok_or(DecodeError::Halved { slot })?;
            decode_wide(fields, second)
        } else {
            decode_one(fields)
        };
        insns.push(decoded.ok_or(DecodeError::Unknown { slot, fields })?);
    }
    Ok(insns)
}

// Instruction classes, the low three bits of the opcode.
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const ALU32: u8 = 0x04;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
/// The operand is a register.
const X: u8 = 0x08;
// Modes of the memory classes.
const MEM: u8 = 0x60;
const MEMSX: u8 = 0x80;
const ATOMIC_MODE: u8 = 0xc0;
const LD_IMM64: u8 = LD | 0x18;
const NEG: u8 = 0x80;
const MOV: u8 = 0xb0;
const END: u8 = 0xd0;
const JA: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// The flag in an atomic's imm that returns the old value.
const FETCH: i32 = 1;

/// Operation, opcode bits, offset field.
const ALU: [(AluOp, u8, i16); 14] = [
    (AluOp::Add, 0x00, 0),
    (AluOp::Sub, 0x10, 0),
    (AluOp::Mul, 0x20, 0),
    (AluOp::Div, 0x30, 0),
    (AluOp::Or, 0x40, 0),
    (AluOp::And, 0x50, 0),
    (AluOp::Lsh, 0x60, 0),
    (AluOp::Rsh, 0x70, 0),
    (AluOp::Mod, 0x90, 0),
    (AluOp::Xor, 0xa0, 0),
    (AluOp::Mov, MOV, 0),
    (AluOp::Arsh, 0xc0, 0),
    // Signed division has the opcode of the unsigned one; only the offset field differs. Kernels before 6.6 reject a
    // non-zero offset here ("BPF_ALU uses reserved fields").
    (AluOp::Sdiv, 0x30, 1),
    (AluOp::Smod, 0x90, 1),
];

const COND: [(Cond, u8); 11] = [
    (Cond::Eq, 0x10),
    (Cond::Ne, 0x50),
    (Cond::Gt, 0x20),
    (Cond::Ge, 0x30),
    (Cond::Lt, 0xa0),
    (Cond::Le, 0xb0),
    (Cond::Sgt, 0x60),
    (Cond::Sge, 0x70),
    (Cond::Slt, 0xc0),
    (Cond::Sle, 0xd0),
    (Cond::Set, 0x40),
];

const ATOMIC: [(AtomicOp, i32); 10] = [
    (AtomicOp::Add, 0x00),
    (AtomicOp::Or, 0x40),
    (AtomicOp::And, 0x50),
    (AtomicOp::Xor, 0xa0),
    (AtomicOp::FetchAdd, FETCH),
    (AtomicOp::FetchOr, 0x40 | FETCH),
    (AtomicOp::FetchAnd, 0x50 | FETCH),
    (AtomicOp::FetchXor, 0xa0 | FETCH),
    // Both of the last rows exist only with the flag, since they have no meaning without the old value.
    (AtomicOp::Xchg, 0xe0 | FETCH),
    (AtomicOp::Cmpxchg, 0xf0 | FETCH),
];

/// Operation, class and offset field.
const EXTEND: [(Extend, u8, i16); 5] = [
    (Extend::B32, ALU32, 8),
    (Extend::H32, ALU32, 16),
    (Extend::B64, ALU64, 8),
    (Extend::H64, ALU64, 16),
    (Extend::W64, ALU64, 32),
];

/// Each variant has the row at its number.
const _: () = {
    assert!(ALU.len() == AluOp::ALL.len() && COND.len() == Cond::ALL.len());
    assert!(ATOMIC.len() == AtomicOp::ALL.len() && EXTEND.len() == Extend::ALL.len());
    assert!(ALU.len() >= COND.len() && ALU.len() >= ATOMIC.len() && ALU.len() >= EXTEND.len());
    let mut at = 0;
    while at < ALU.len() {
        assert!(ALU[at].0 as usize == at);
        assert!(at >= COND.len() || COND[at].0 as usize == at);
        assert!(at >= ATOMIC.len() || ATOMIC[at].0 as usize == at);
        assert!(at >= EXTEND.len() || EXTEND[at].0 as usize == at);
        at += 1;
    }
};

fn size_bits(size: Size) -> u8 {
    match size {
        Size::W => 0x00,
        Size::H => 0x08,
        Size::B => 0x10,
        Size::Dw => 0x18,
    }
}

fn size_of_bits(opcode: u8) -> Size {
    match opcode & 0x18 {
        0x00 => Size::W,
        0x08 => Size::H,
        0x10 => Size::B,
        _ => Size::Dw,
    }
}

fn alu_class(width: Width) -> u8 {
    match width {
        Width::W32 => ALU32,
        Width::W64 => ALU64,
    }
}

fn jump_class(width: Width) -> u8 {
    match width {
        Width::W32 => JMP32,
        Width::W64 => JMP,
    }
}

/// The source bit, the source register field and the imm field of an operand.
fn operand_fields(operand: Operand) -> (u8, u8, i32) {
    match operand {
        Operand::Reg(reg) => (X, reg.number(), 0),
        Operand::Imm(imm) => (0, 0, imm),
    }
}

/// The slots of one instruction.
#[inline]
pub fn encode_one(insn: &Insn) -> (InsnFields, Option<InsnFields>) {
    let none = InsnFields::default();
    let slot = match *insn {
        Insn::LoadImm64 { dst, value } => return encode_wide(dst, value),
        Insn::Alu { width, op, dst, src } => {
            let (_, bits, offset) = ALU[op as usize];
            let (x, src, imm) = operand_fields(src);
            InsnFields { opcode: alu_class(width) | bits | x, dst: dst.number(), src, offset, imm }
        }
        Insn::Neg { width, dst } => InsnFields { opcode: alu_class(width) | NEG, dst: dst.number(), ..none },
        // A plain move is the same opcode with offset 0, so the decoder asks for the offset first.
        Insn::MovSx { extend, dst, src } => {
            let (_, class, offset) = EXTEND[extend as usize];
            InsnFields { opcode: class | MOV | X, dst: dst.number(), src: src.number(), offset, imm: 0 }
        }
        Insn::Swap { order, bits, dst } => {
            let opcode = match order {
                Swap::ToLe => ALU32 | END,
                Swap::ToBe => ALU32 | END | X,
                // In the 64-bit class the source bit must be zero: there is no order to choose.
                Swap::Always => ALU64 | END,
            };
            InsnFields { opcode, dst: dst.number(), imm: bits.bits(), ..none }
        }
        Insn::Load { size, dst, base, offset } => {
            let opcode = LDX | MEM | size_bits(size);
            InsnFields { opcode, dst: dst.number(), src: base.number(), offset, imm: 0 }
        }
        Insn::LoadSx { size, dst, base, offset } => {
            let opcode = LDX | MEMSX | size_bits(size.size());
            InsnFields { opcode, dst: dst.number(), src: base.number(), offset, imm: 0 }
        }
        Insn::Store { size, base, offset, src } => {
            let (x, src, imm) = operand_fields(src);
            // Stores have two classes where other instructions have the source bit, so `X` is not part of the opcode
            // here.
            let class = if x == 0 { ST } else { STX };
            InsnFields { opcode: class | MEM | size_bits(size), dst: base.number(), src, offset, imm }
        }
        Insn::Atomic { op, width, base, offset, src } => {
            let size = if width == Width::W32 { Size::W } else { Size::Dw };
            let imm = ATOMIC[op as usize].1;
            let opcode = STX | ATOMIC_MODE | size_bits(size);
            InsnFields { opcode, dst: base.number(), src: src.number(), offset, imm }
        }
        // Short and long jumps keep their distance in different fields: 16 bits in `offset`, 32 bits in `imm`.
        Insn::Jump { offset } => InsnFields { opcode: JMP | JA, offset, ..none },
        Insn::JumpLong { offset } => InsnFields { opcode: JMP32 | JA, imm: offset, ..none },
        Insn::JumpIf { width, cond, dst, src, offset } => {
            let bits = COND[cond as usize].1;
            let (x, src, imm) = operand_fields(src);
            InsnFields { opcode: jump_class(width) | bits | x, dst: dst.number(), src, offset, imm }
        }
        Insn::CallHelper(Helper(imm)) => InsnFields { opcode: JMP | CALL, imm, ..none },
        Insn::CallLocal { offset } => InsnFields { opcode: JMP | CALL, src: 1, imm: offset, ..none },
        Insn::CallKfunc { btf_id, module } => {
            InsnFields { opcode: JMP | CALL, src: 2, offset: module, imm: btf_id, ..none }
        }
        Insn::Exit => InsnFields { opcode: JMP | EXIT, ..none },
    };
    (slot, None)
}

fn encode_wide(dst: Reg, value: Imm64) -> (InsnFields, Option<InsnFields>) {
    let (src, low, high) = match value {
        // Via `u32`: a direct conversion is the same here, but would hide that the bits are kept and not the number.
        Imm64::Value(value) => (0, value as u32 as i32, (value >> 32) as u32 as i32),
        Imm64::MapFd(fd) => (1, fd, 0),
        Imm64::MapValue { fd, offset } => (2, fd, offset),
        Imm64::BtfId { id, module } => (3, id, module),
        Imm64::Func(offset) => (4, offset, 0),
        Imm64::MapIndex(index) => (5, index, 0),
        Imm64::MapIndexValue { index, offset } => (6, index, offset),
    };
    let first = InsnFields { opcode: LD_IMM64, dst: dst.number(), src, offset: 0, imm: low };
    (first, Some(InsnFields { imm: high, ..InsnFields::default() }))
}

fn decode_wide(first: InsnFields, second: InsnFields) -> Option<Insn> {
    let high = second.imm;
    // "Reserved" fields must be zero. The kernel checks it, so a decoder that does not would accept programs that no
    // kernel loads.
    if second != (InsnFields { imm: high, ..InsnFields::default() }) || first.offset != 0 {
        return None;
    }
    let low = first.imm;
    let value = match (first.src, high) {
        (0, _) => Imm64::Value(u64::from(high as u32) << 32 | u64::from(low as u32)),
        // A descriptor has 32 bits; a second half that is not zero is no instruction.
        (1, 0) => Imm64::MapFd(low),
        (2, offset) => Imm64::MapValue { fd: low, offset },
        (3, module) => Imm64::BtfId { id: low, module },
        (4, 0) => Imm64::Func(low),
        (5, 0) => Imm64::MapIndex(low),
        (6, offset) => Imm64::MapIndexValue { index: low, offset },
        _ => return None,
    };
    Some(Insn::LoadImm64 { dst: Reg::from_number(first.dst)?, value })
}

fn decode_one(slot: InsnFields) -> Option<Insn> {
    let insn = match slot.opcode & 7 {
        LDX | ST | STX => decode_memory(slot),
        ALU32 => decode_alu(slot, Width::W32),
        ALU64 => decode_alu(slot, Width::W64),
        JMP => decode_jump(slot, Width::W64),
        JMP32 => decode_jump(slot, Width::W32),
        _ => None,
    }?;
    // All unused fields must be zero: the instruction must encode to the slot that was read.
    (encode_one(&insn) == (slot, None)).then_some(insn)
}

fn decode_memory(slot: InsnFields) -> Option<Insn> {
    let (dst, src) = (Reg::from_number(slot.dst)?, Reg::from_number(slot.src)?);
    let (size, offset) = (size_of_bits(slot.opcode), slot.offset);
    Some(match (slot.opcode & 7, slot.opcode & 0xe0) {
        (LDX, MEM) => Insn::Load { size, dst, base: src, offset },
        (LDX, MEMSX) => {
            let size = Narrow::ALL.into_iter().find(|narrow| narrow.size() == size)?;
            Insn::LoadSx { size, dst, base: src, offset }
        }
        // Without a look at the source register field: it must be zero, and `decode_one` compares the whole slot
        // afterwards.
        (ST, MEM) => Insn::Store { size, base: dst, offset, src: Operand::Imm(slot.imm) },
        (STX, MEM) => Insn::Store { size, base: dst, offset, src: Operand::Reg(src) },
        (STX, ATOMIC_MODE) => {
            let width = match size {
                Size::W => Width::W32,
                Size::Dw => Width::W64,
                // Atomic operations of one and two bytes exist only in newer instruction sets.
                Size::B | Size::H => return None,
            };
            let op = ATOMIC.iter().find(|row| row.1 == slot.imm)?.0;
            Insn::Atomic { op, width, base: dst, offset, src }
        }
        _ => return None,
    })
}

fn operand(slot: InsnFields) -> Option<Operand> {
    if slot.opcode & X == 0 { Some(Operand::Imm(slot.imm)) } else { Reg::from_number(slot.src).map(Operand::Reg) }
}

fn decode_alu(slot: InsnFields, width: Width) -> Option<Insn> {
    let dst = Reg::from_number(slot.dst)?;
    match slot.opcode & 0xf0 {
        NEG => Some(Insn::Neg { width, dst }),
        END => {
            let order = match (width, slot.opcode & X) {
                (Width::W32, 0) => Swap::ToLe,
                (Width::W32, _) => Swap::ToBe,
                // Also with the source bit, which is not allowed here: encoding again gives another slot, and
                // `decode_one` refuses it.
                (Width::W64, _) => Swap::Always,
            };
            let bits = SwapBits::ALL.into_iter().find(|bits| bits.bits() == slot.imm)?;
            Some(Insn::Swap { order, bits, dst })
        }
        // Offset 0 is the plain move, which the table of operations has.
        MOV if slot.offset != 0 => {
            let class = slot.opcode & 7;
            let extend = EXTEND.iter().find(|row| (row.1, row.2) == (class, slot.offset))?.0;
            Some(Insn::MovSx { extend, dst, src: Reg::from_number(slot.src)? })
        }
        bits => {
            // Opcode and offset together: division and remainder differ from their signed forms in the offset alone.
            let op = ALU.iter().find(|row| (row.1, row.2) == (bits, slot.offset))?.0;
            Some(Insn::Alu { width, op, dst, src: operand(slot)? })
        }
    }
}

fn decode_jump(slot: InsnFields, width: Width) -> Option<Insn> {
    match (width, slot.opcode & 0xf0) {
        (Width::W64, JA) => Some(Insn::Jump { offset: slot.offset }),
        // In the 32-bit class, so an old kernel sees an unknown opcode and not a short jump to somewhere else.
        (Width::W32, JA) => Some(Insn::JumpLong { offset: slot.imm }),
        (Width::W64, EXIT) => Some(Insn::Exit),
        (Width::W64, CALL) => match slot.src {
            0 => Some(Insn::CallHelper(Helper(slot.imm))),
            1 => Some(Insn::CallLocal { offset: slot.imm }),
            2 => Some(Insn::CallKfunc { btf_id: slot.imm, module: slot.offset }),
            _ => None,
        },
        (width, bits) => {
            let cond = COND.iter().find(|row| row.1 == bits)?.0;
            let dst = Reg::from_number(slot.dst)?;
            Some(Insn::JumpIf { width, cond, dst, src: operand(slot)?, offset: slot.offset })
        }
    }
}

#[cfg(test)]
mod tests;
