//! Random inputs. The same choices give the same input on every machine.
//!
//! Each generator is a function that draws from [`Random`]. Tests and the runner use it as a [`Generated`] strategy, which
//! shrinks what fails; the libFuzzer targets give it their bytes as choices.

pub mod change;
pub mod cluster;
pub mod documents;
pub mod flows;
pub mod hostile;
pub mod manifest;
pub mod random;
pub mod sequences;
pub mod strategy;
pub mod texts;

pub use random::Random;
pub use strategy::{Generated, for_each};
