//! Random inputs, and the properties that must hold for each of them.
//!
//! [`generators`] make clusters, questions and broken texts from a seed; [`oracles`] ask every engine and compare. Both
//! are plain code: the property tests of the compiler, `cargo xtask fuzz` and the targets under `libfuzzer/` all call
//! the same functions.

pub mod generators;
pub mod oracles;
