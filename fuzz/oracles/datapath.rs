//! The reference for sequences of packets: what the datapath must do with each packet, given those before it.
//!
//! Problem: the emitted programs keep state (flows, fragments, neighbours), and a verdict depends on what came before, on the
//! time and on the generation in force. Strategy: [`model`] says the same rules over a plain list of flows, one rule after the
//! other, each with its sentence ([`rules`]); [`crate::generators::sequences`] makes sequences in which flows collide; [`bytes`]
//! puts each packet on the wire; [`compare`] sends it through a [`machine`] and compares what became of it.
//! Invariants: the model shares no code with what emits programs, and takes verdicts of policy from the reference oracle
//! ([`worlds`]). Every rule must occur in a run: a rule that never does is tested by nothing.

pub mod bytes;
pub mod compare;
pub mod machine;
pub mod model;
pub mod neighbours;
pub mod packet;
pub mod rules;
pub mod worlds;
