//! `weir watch` against a real API server.

mod api;
mod cni;
mod deploy;
mod fake;
mod host;
mod memory;
mod packets;
mod rig;
