//! Scenes: each is a fact about packets, played in both families and both layouts, by programs and by the control.

mod connections;
mod frames;
mod neighbours;
mod nodes;
mod sizes;
mod uplinks;
