//! `weir watch` against a real API server.

mod api;
mod packets;
mod rig;
