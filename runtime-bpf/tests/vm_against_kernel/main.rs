//! The compiler's machine is held to the kernel: the same program on the same input, compared bit for bit.
//!
//! `instructions` goes through the instruction set with edge cases and random operands, `programs` mixes instructions
//! at random, `maps` and `context` compare what helpers and the context do, `limits` where the verifier draws its
//! lines.

mod bench;
mod context;
mod instructions;
mod limits;
mod maps;
mod programs;
mod random;
