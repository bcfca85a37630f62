//! Seeds → inputs. The same seed gives the same input on every machine.

pub mod change;
pub mod cluster;
pub mod documents;
pub mod flows;
pub mod hostile;
pub mod random;
pub mod sequences;
pub mod texts;

pub use random::Random;
