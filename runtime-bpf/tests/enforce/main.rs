//! Enforcement with real packets, in network namespaces.

mod attach;
mod faults;
mod net;
mod policy;
mod probe;
mod switch;
