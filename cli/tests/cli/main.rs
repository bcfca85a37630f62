//! The built binary, driven as its users drive it.

mod approvals;
mod bench;
mod check;
mod ci;
mod compile;
mod coverage;
mod diff;
mod editors;
mod empty;
mod explain;
mod hostile;
mod init;
mod inputs;
mod large;
mod learn;
mod left_out;
mod live;
mod possible;
mod query;
mod report;
mod signed;
mod suggest;
mod support;
mod tiers;
mod tool;
mod views;
