//! What must hold for every input, as functions that give the difference as text.

pub mod bounds;
pub mod datapath;
pub mod decoding;
pub mod difference;
pub mod engines;
pub mod packets;
pub mod questions;
pub mod readers;
