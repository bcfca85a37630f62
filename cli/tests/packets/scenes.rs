//! Scenes: each tests one fact about packets, in both families and both layouts, with our programs and with the
//! control.

mod connections;
mod frames;
mod neighbours;
mod nodes;
mod sizes;
mod uplinks;
