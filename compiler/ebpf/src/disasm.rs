//! The disassembler. It writes instructions as LLVM's disassembler and bpftool do.
//!
//! A single instruction prints its jump as a distance (`goto +3`). A whole program prints the slot before each
//! instruction and labels at jump and call targets (`if r1 == 5 goto L3`). `L3` is the third target in order of
//! position.

use super::insn::{AluOp, AtomicOp, Cond, Extend, Imm64, Insn, Narrow, Operand, Reg, Size, Swap, Width};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.number())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.bytes() * 8)
    }
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for AluOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A register under the name of the width in use: `r1` or `w1`.
struct RegisterName(Width, Reg);

impl fmt::Display for RegisterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // LLVM names the width in the register, not in the operator. A text in another notation could not be compared
        // with `llvm-objdump`.
        let letter = if self.0 == Width::W32 { 'w' } else { 'r' };
        write!(f, "{letter}{}", self.1.number())
    }
}

struct NamedOperand(Width, Operand);

impl fmt::Display for NamedOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Operand::Reg(reg) => RegisterName(self.0, reg).fmt(f),
            Operand::Imm(imm) => write!(f, "{imm}"),
        }
    }
}

/// `r1 + 4`, `r10 - 8`
struct RegisterOffset(Reg, i16);

impl fmt::Display for RegisterOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The sign apart and the magnitude unsigned, since `-i16::MIN` has no value of 16 bits.
        let sign = if self.1 < 0 { '-' } else { '+' };
        write!(f, "{} {sign} {}", self.0, self.1.unsigned_abs())
    }
}

impl fmt::Display for Imm64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Value(value) => write!(f, "{value:#x} ll"),
            Self::MapFd(fd) => write!(f, "map[fd:{fd}]"),
            Self::MapValue { fd, offset } => write!(f, "map[fd:{fd}][0]+{offset}"),
            // Module 0 is the kernel itself and is left out, as in nearly all programs.
            Self::BtfId { id, module: 0 } => write!(f, "btf[id:{id}]"),
            Self::BtfId { id, module } => write!(f, "btf[id:{id} module:{module}]"),
            Self::Func(offset) => write!(f, "func[{offset:+}]"),
            Self::MapIndex(index) => write!(f, "map[idx:{index}]"),
            Self::MapIndexValue { index, offset } => write!(f, "map[idx:{index}][0]+{offset}"),
        }
    }
}

fn write_atomic(f: &mut impl fmt::Write, insn: (AtomicOp, Width, Reg, i16, Reg)) -> fmt::Result {
    let (op, width, base, offset, src) = insn;
    let (address, named) = (RegisterOffset(base, offset), RegisterName(width, src));
    let bits = if width == Width::W32 { 32 } else { 64 };
    // Without the old value it is a statement about memory, with it an assignment to a register.
    let (plain, fetch) = match op {
        AtomicOp::Add => (Some("+="), ""),
        AtomicOp::Or => (Some("|="), ""),
        AtomicOp::And => (Some("&="), ""),
        AtomicOp::Xor => (Some("^="), ""),
        AtomicOp::FetchAdd => (None, "add"),
        AtomicOp::FetchOr => (None, "or"),
        AtomicOp::FetchAnd => (None, "and"),
        AtomicOp::FetchXor => (None, "xor"),
        AtomicOp::Xchg => return write!(f, "{named} = xchg_{bits}({address}, {named})"),
        AtomicOp::Cmpxchg => {
            // R0 is both the expected value and the result, though the instruction does not name it.
            let r0 = RegisterName(width, Reg::R0);
            return write!(f, "{r0} = cmpxchg_{bits}({address}, {r0}, {named})");
        }
    };
    match plain {
        Some(sign) => write!(f, "lock *(u{bits} *)({address}) {sign} {named}"),
        None => write!(f, "{named} = atomic_fetch_{fetch}((u{bits} *)({address}), {named})"),
    }
}

fn write_extend(f: &mut impl fmt::Write, extend: Extend, dst: Reg, src: Reg) -> fmt::Result {
    let (width, bits) = match extend {
        Extend::B32 => (Width::W32, 8),
        Extend::H32 => (Width::W32, 16),
        Extend::B64 => (Width::W64, 8),
        Extend::H64 => (Width::W64, 16),
        Extend::W64 => (Width::W64, 32),
    };
    write!(f, "{} = (s{bits}){}", RegisterName(width, dst), RegisterName(width, src))
}

/// The target of a jump or call, in the notation of the surrounding text.
enum JumpTarget<'a> {
    Distance(i32),
    Label(&'a str),
}

impl fmt::Display for JumpTarget<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Distance(distance) => write!(f, "{distance:+}"),
            Self::Label(label) => f.write_str(label),
        }
    }
}

fn write_insn(f: &mut impl fmt::Write, insn: &Insn, place: &JumpTarget<'_>) -> fmt::Result {
    match *insn {
        Insn::Alu { width, op, dst, src } => {
            write!(f, "{} {op} {}", RegisterName(width, dst), NamedOperand(width, src))
        }
        Insn::Neg { width, dst } => write!(f, "{0} = -{0}", RegisterName(width, dst)),
        Insn::MovSx { extend, dst, src } => write_extend(f, extend, dst, src),
        Insn::Swap { order, bits, dst } => {
            let name = match order {
                Swap::ToLe => "le",
                Swap::ToBe => "be",
                Swap::Always => "bswap",
            };
            write!(f, "{dst} = {name}{} {dst}", bits.bits())
        }
        // The address of a function is a distance in the code, so it gets a label like a jump.
        Insn::LoadImm64 { dst, value: Imm64::Func(_) } => write!(f, "{dst} = func[{place}]"),
        Insn::LoadImm64 { dst, value } => write!(f, "{dst} = {value}"),
        Insn::Load { size, dst, base, offset } => write!(f, "{dst} = *({size} *)({})", RegisterOffset(base, offset)),
        Insn::LoadSx { size, dst, base, offset } => {
            write!(f, "{dst} = *(s{} *)({})", Narrow::size(size).bytes() * 8, RegisterOffset(base, offset))
        }
        Insn::Store { size, base, offset, src } => {
            // Always as `r`: the size in front says how much of it is stored.
            write!(f, "*({size} *)({}) = {}", RegisterOffset(base, offset), NamedOperand(Width::W64, src))
        }
        Insn::Atomic { op, width, base, offset, src } => write_atomic(f, (op, width, base, offset, src)),
        Insn::Jump { .. } => write!(f, "goto {place}"),
        Insn::JumpLong { .. } => write!(f, "gotol {place}"),
        Insn::JumpIf { width, cond, dst, src, .. } => {
            write!(f, "if {} {cond} {} goto {place}", RegisterName(width, dst), NamedOperand(width, src))
        }
        Insn::CallHelper(helper) => write!(f, "call {helper}"),
        Insn::CallLocal { .. } => write!(f, "call {place}"),
        Insn::CallKfunc { btf_id, module: 0 } => write!(f, "call kernel-function {btf_id}"),
        Insn::CallKfunc { btf_id, module } => write!(f, "call kernel-function {btf_id} of module {module}"),
        Insn::Exit => f.write_str("exit"),
    }
}

/// The distance to the code that an instruction refers to, from the slot after the instruction's first slot.
fn distance(insn: &Insn) -> Option<i32> {
    match *insn {
        Insn::CallLocal { offset } | Insn::LoadImm64 { value: Imm64::Func(offset), .. } => Some(offset),
        _ => insn.jump(),
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_insn(f, self, &JumpTarget::Distance(distance(self).unwrap_or(0)))
    }
}

/// The text of a program.
pub fn disassemble(insns: &[Insn]) -> String {
    disassemble_with(insns, |_| None, |_| None)
}

/// The text of a program with remarks, by index of the instruction: on a line before it, and at the end of its line.
pub fn disassemble_with(
    insns: &[Insn],
    before: impl Fn(usize) -> Option<String>,
    behind: impl Fn(usize) -> Option<String>,
) -> String {
    // First, because a label may be used before the line that it names.
    let labels = labels(insns);
    let mut text = String::new();
    for (index, (slot, insn)) in positions(insns).enumerate() {
        if let Some(remark) = before(index) {
            let _ = writeln!(text, "; {remark}");
        }
        if let Some(label) = labels.get(&slot) {
            let _ = writeln!(text, "{label}:");
        }
        let _ = write!(text, "{slot:8}: ");
        let target = distance(insn).map(|distance| slot + 1 + i64::from(distance));
        let place = match target.and_then(|target| labels.get(&target)) {
            Some(label) => JumpTarget::Label(label),
            // A target inside a wide load or outside of the program has no line. The distance is then all that can be
            // shown, and broken programs must be printable too.
            None => JumpTarget::Distance(distance(insn).unwrap_or(0)),
        };
        let _ = write_insn(&mut text, insn, &place);
        if let Some(remark) = behind(index) {
            let _ = write!(text, "  ; {remark}");
        }
        text.push('\n');
    }
    text
}

fn positions(insns: &[Insn]) -> impl Iterator<Item = (i64, &Insn)> {
    insns.iter().scan(0, |next, insn| {
        let slot = *next;
        *next += i64::from(insn.slots());
        Some((slot, insn))
    })
}

fn labels(insns: &[Insn]) -> BTreeMap<i64, String> {
    // In `i64`: a broken program may jump before its beginning.
    let targets = positions(insns).filter_map(|(slot, insn)| Some(slot + 1 + i64::from(distance(insn)?)));
    let mut labels: BTreeMap<i64, String> = targets.map(|target| (target, String::new())).collect();
    let starts: std::collections::BTreeSet<i64> = positions(insns).map(|(slot, _)| slot).collect();
    // Only targets that are lines of the listing, and numbered after that, so the numbers have no gaps.
    labels.retain(|target, _| starts.contains(target));
    for (number, label) in labels.values_mut().enumerate() {
        *label = format!("L{number}");
    }
    labels
}

#[cfg(test)]
mod tests;
