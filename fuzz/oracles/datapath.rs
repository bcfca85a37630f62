//! The reference for sequences of packets: the outcome that the datapath must give each packet after the earlier ones.
//!
//! Problem: the emitted programs keep state (flows, fragments, neighbours), and a verdict depends on earlier packets,
//! on the time and on the generation in force. Strategy: [`model`] implements the same rules over a plain list of
//! flows, one rule after the other, each with its sentence ([`rules`]); [`crate::generators::sequences`] makes
//! sequences in which flows collide; [`bytes`] writes each packet as a frame; [`compare`] sends it through a
//! [`machine`] and compares the outcomes.
//! Invariants: the model shares no code with the emitter of the programs, and takes policy verdicts from the reference
//! oracle ([`worlds`]). Every rule must occur in a run, because a rule that never occurs is not tested.

pub mod bytes;
pub mod compare;
pub mod machine;
pub mod model;
pub mod neighbours;
pub mod packet;
pub mod rules;
pub mod worlds;
