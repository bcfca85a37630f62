//! `weir watch` against a real API server.

mod api;
mod deploy;
mod packets;
mod rig;
