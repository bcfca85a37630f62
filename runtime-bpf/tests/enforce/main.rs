//! Enforcement with real packets, in network namespaces.

mod attach;
mod net;
mod policy;
mod probe;
mod switch;
