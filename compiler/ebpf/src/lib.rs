//! eBPF as data: instructions, the assembler that resolves jumps, the text form, and a checker of the verifier's
//! limits.
//!
//! ```text
//!  emit ──▶ asm::Asm ──assemble──▶ asm::Assembled ──link──▶ Vec<Insn> ──code::encode──▶ bytes
//!                                        │                      │
//!                                        └── limits::check      ├─▶ disasm: text
//!                                                               └─▶ vm
//! ```
//!
//! Positions are counted in *slots* of eight bytes, as the kernel counts them: a 64-bit load takes two.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod vm;

pub mod asm;
pub mod bytes;
pub mod code;
pub mod context;
pub mod disasm;
pub mod helper;
pub mod insn;
pub mod instructions;
pub mod limits;
mod named_enum;
pub mod target;

#[cfg(test)]
pub(crate) mod arbitrary;
