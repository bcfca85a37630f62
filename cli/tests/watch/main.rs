//! `weir watch` against a real API server, and against simulated ones.

mod api;
mod cni;
mod deploy;
mod fake;
mod files;
mod host;
mod kube_runtime;
mod memory;
mod packets;
mod rig;
mod systemd;
mod uninstall;
