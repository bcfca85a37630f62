//! A real API server on loopback: kube-apiserver and etcd, built from their Go modules.
//!
//! Problem: only a real server does the things that the watcher has to survive (expired watches, restarts, no streaming
//! lists), and the usual ways to get one download binaries or images. Strategy: a wrapper module requires
//! `k8s.io/kubernetes` at one version and replaces its staging modules by their published ones, because Go ignores the
//! `replace` directives of dependencies; `go build` does the rest. Both binaries are kept in `target/apiserver/bin`,
//! with a stamp that contains the versions.

mod build;
mod server;

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Result, bail};

pub use build::{
    Binaries, KUBERNETES, build, build_module_tests, build_packages, build_tests, built, definitions, judge,
    kubernetes_module, module, old_etcd,
};
pub use server::{ApiServer, Settings};

/// `cargo xtask apiserver build|run`
pub fn task(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    match arguments.next().as_deref() {
        Some("build") => build().map(|_| ()),
        Some("run") => run(arguments.next().map_or_else(|| directory().join("run"), PathBuf::from)),
        _ => bail!("expected `apiserver build` or `apiserver run [DIR]`"),
    }
}

/// Runs both until standard input ends.
fn run(directory: PathBuf) -> Result<()> {
    let server = ApiServer::start(&build()?, &directory, Settings::default())?;
    eprintln!("export KUBECONFIG={}", server.kubeconfig().display());
    eprintln!("end standard input (Ctrl-D) to stop it");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The directory of its files.
fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/apiserver")
}
