//! Answers about whole clusters, from class tables: what differs between two clusters ([`diff`]), and who can reach
//! whom in one ([`reach`]).
//!
//! [`containment`] compares two descriptions of flows.
//!
//! `diff` and `reach` read table entries and never enumerate flows, so the cost depends on the number of classes. Every row of a
//! comparison has a witness that the oracle has confirmed.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod addresses;
pub mod containment;
pub mod diff;
pub mod reach;
pub mod world;
