//! The instruction set, versions 1 to 4, as types.
//!
//! Every value of [`Insn`] has an encoding, and every encoding that the decoder accepts is one value, so encoding
//! cannot fail and `decode(encode(x)) == x`. Left out on purpose: the legacy packet loads (`LD_ABS`, `LD_IND`), which
//! the kernel keeps for programs converted from classic BPF, and instructions newer than version 4 (`may_goto`, arenas,
//! load-acquire).

use super::helper::Helper;

/// A register. `R10` is the frame pointer and cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl Reg {
    /// All registers, in order.
    pub const ALL: [Self; 11] =
        [Self::R0, Self::R1, Self::R2, Self::R3, Self::R4, Self::R5, Self::R6, Self::R7, Self::R8, Self::R9, Self::R10];

    /// The register with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        // The field has four bits, so 11 to 15 occur in damaged code. They are no registers.
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The part of a register that an operation uses. A 32-bit result clears the upper half of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// The lower half.
    W32,
    /// All of it.
    W64,
}

/// The number of bytes that a memory access touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// One byte.
    B,
    /// Two bytes.
    H,
    /// Four bytes.
    W,
    /// Eight bytes.
    Dw,
}

impl Size {
    /// All sizes, smallest first.
    pub const ALL: [Self; 4] = [Self::B, Self::H, Self::W, Self::Dw];

    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B => 1,
            Self::H => 2,
            Self::W => 4,
            Self::Dw => 8,
        }
    }
}

/// The second operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A register.
    Reg(Reg),
    /// A constant; sign-extended where the operation has 64 bits.
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Self {
        Self::Imm(imm)
    }
}

crate::named_enum! {
    /// An operation on a register and an operand.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum AluOp {
        /// `+=`
        Add = "+=",
        /// `-=`
        Sub = "-=",
        /// `*=`
        Mul = "*=",
        /// Unsigned division; division by zero gives 0.
        Div = "/=",
        /// `|=`
        Or = "|=",
        /// `&=`
        And = "&=",
        /// Shift left; the count is taken modulo the width.
        Lsh = "<<=",
        /// Shift right; zeros are shifted in.
        Rsh = ">>=",
        /// Unsigned remainder; a remainder by zero leaves the dividend (its lower half, with 32 bits).
        Mod = "%=",
        /// `^=`
        Xor = "^=",
        /// `=`
        Mov = "=",
        /// Shift right; copies of the sign bit are shifted in.
        Arsh = "s>>=",
        /// Signed division, rounding to zero (version 4).
        Sdiv = "s/=",
        /// Signed remainder, with the sign of the dividend (version 4).
        Smod = "s%=",
    }
}

/// A sign-extending move (version 4): the source bits and the result bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extend {
    /// 8 to 32 bits.
    B32,
    /// 16 to 32 bits.
    H32,
    /// 8 to 64 bits.
    B64,
    /// 16 to 64 bits.
    H64,
    /// 32 to 64 bits.
    W64,
}

impl Extend {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::B32, Self::H32, Self::B64, Self::H64, Self::W64];
}

/// The size of a sign-extending load (version 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Narrow {
    /// One byte.
    B,
    /// Two bytes.
    H,
    /// Four bytes.
    W,
}

impl Narrow {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::B, Self::H, Self::W];

    /// The same size for plain loads.
    pub const fn size(self) -> Size {
        match self {
            Self::B => Size::B,
            Self::H => Size::H,
            Self::W => Size::W,
        }
    }
}

/// The byte order that a swap produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swap {
    /// Host to little endian; on a little-endian host it only truncates to the width.
    ToLe,
    /// Host to big endian.
    ToBe,
    /// Swaps on every host (version 4).
    Always,
}

impl Swap {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ToLe, Self::ToBe, Self::Always];
}

/// The number of bits that a swap keeps; the rest of the register becomes zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwapBits {
    /// 16
    B16,
    /// 32
    B32,
    /// 64
    B64,
}

impl SwapBits {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::B16, Self::B32, Self::B64];

    /// The number of bits.
    pub const fn bits(self) -> i32 {
        match self {
            Self::B16 => 16,
            Self::B32 => 32,
            Self::B64 => 64,
        }
    }
}

crate::named_enum! {
    /// The comparison of a conditional jump.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Cond {
        /// `==`
        Eq = "==",
        /// `!=`
        Ne = "!=",
        /// Unsigned `>`
        Gt = ">",
        /// Unsigned `>=`
        Ge = ">=",
        /// Unsigned `<`
        Lt = "<",
        /// Unsigned `<=`
        Le = "<=",
        /// Signed `>`
        Sgt = "s>",
        /// Signed `>=`
        Sge = "s>=",
        /// Signed `<`
        Slt = "s<",
        /// Signed `<=`
        Sle = "s<=",
        /// `dst & src` is not zero.
        Set = "&",
    }
}

/// An atomic read-modify-write of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// `+=`
    Add,
    /// `|=`
    Or,
    /// `&=`
    And,
    /// `^=`
    Xor,
    /// `+=`, the old value goes to the source register.
    FetchAdd,
    /// `|=`, the old value goes to the source register.
    FetchOr,
    /// `&=`, the old value goes to the source register.
    FetchAnd,
    /// `^=`, the old value goes to the source register.
    FetchXor,
    /// Exchanges memory and the source register.
    Xchg,
    /// Stores the source register if memory equals `R0`; `R0` becomes the old value.
    Cmpxchg,
}

impl AtomicOp {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Add,
        Self::Or,
        Self::And,
        Self::Xor,
        Self::FetchAdd,
        Self::FetchOr,
        Self::FetchAnd,
        Self::FetchXor,
        Self::Xchg,
        Self::Cmpxchg,
    ];
}

/// The operand of a 64-bit load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Imm64 {
    /// A number.
    Value(u64),
    /// A map, by file descriptor.
    MapFd(i32),
    /// An address inside the value of a map's only element.
    MapValue {
        /// The map's file descriptor.
        fd: i32,
        /// The byte in the map's value.
        offset: i32,
    },
    /// A kernel variable, by BTF id.
    BtfId {
        /// The id.
        id: i32,
        /// File descriptor of a module's BTF; 0 for the kernel's own.
        module: i32,
    },
    /// The distance to a function of this program, in slots from the second slot of this instruction.
    Func(i32),
    /// A map, by index in the loader's list of descriptors.
    MapIndex(i32),
    /// An address in a map's value, by index in the loader's list.
    MapIndexValue {
        /// The index.
        index: i32,
        /// The byte in the value.
        offset: i32,
    },
}

/// One instruction. Jump distances count slots from the slot after the jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "field names are the kernel's words")]
pub enum Insn {
    /// `dst op= src`
    Alu { width: Width, op: AluOp, dst: Reg, src: Operand },
    /// `dst = -dst`
    Neg { width: Width, dst: Reg },
    /// `dst = (sN) src`
    MovSx { extend: Extend, dst: Reg, src: Reg },
    /// `dst = swapped dst`
    Swap { order: Swap, bits: SwapBits, dst: Reg },
    /// `dst = 64-bit constant or address`: the only instruction of two slots.
    LoadImm64 { dst: Reg, value: Imm64 },
    /// `dst = *(base + offset)`
    Load { size: Size, dst: Reg, base: Reg, offset: i16 },
    /// `dst = *(signed)(base + offset)`
    LoadSx { size: Narrow, dst: Reg, base: Reg, offset: i16 },
    /// `*(base + offset) = src`
    Store { size: Size, base: Reg, offset: i16, src: Operand },
    /// `atomic *(base + offset) op= src`
    Atomic { op: AtomicOp, width: Width, base: Reg, offset: i16, src: Reg },
    /// `goto +offset`
    Jump { offset: i16 },
    /// `gotol +offset` (version 4)
    JumpLong { offset: i32 },
    /// `if dst cond src goto +offset`
    JumpIf { width: Width, cond: Cond, dst: Reg, src: Operand, offset: i16 },
    /// `call helper`
    CallHelper(Helper),
    /// `call` of a function of this program.
    CallLocal { offset: i32 },
    /// `call` of a kernel function by BTF id.
    CallKfunc { btf_id: i32, module: i16 },
    /// `exit`
    Exit,
}

impl Insn {
    /// The register that the instruction writes as its `dst`. Calls and atomic operations write others.
    pub fn destination(&self) -> Option<Reg> {
        match *self {
            Self::Alu { dst, .. }
            | Self::Neg { dst, .. }
            | Self::MovSx { dst, .. }
            | Self::Swap { dst, .. }
            | Self::LoadImm64 { dst, .. }
            | Self::Load { dst, .. }
            | Self::LoadSx { dst, .. } => Some(dst),
            _ => None,
        }
    }

    /// The number of slots of the instruction.
    pub const fn slots(&self) -> u32 {
        match self {
            Self::LoadImm64 { .. } => 2,
            _ => 1,
        }
    }

    /// The jump distance, if the instruction is a jump (not a call).
    pub fn jump(&self) -> Option<i32> {
        match *self {
            // Calls are no jumps here: control comes back from them, and their target is the start of a function.
            Self::Jump { offset } | Self::JumpIf { offset, .. } => Some(i32::from(offset)),
            Self::JumpLong { offset } => Some(offset),
            _ => None,
        }
    }

    /// Whether control can reach the slot after the instruction.
    pub const fn falls_through(&self) -> bool {
        // A tail call falls through too, when the kernel refuses it.
        !matches!(self, Self::Jump { .. } | Self::JumpLong { .. } | Self::Exit)
    }
}
