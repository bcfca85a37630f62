//! Helm itself, built from its Go module: charts are tested with the program that people install them with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::process::{capture, run};

const VERSION: &str = "v3.22.0";
/// The Kubernetes version that Helm assumes if it has no API server.
const KUBERNETES: [&str; 2] = ["1", "35"];

/// The program if it is built, else an error that says how to build it.
pub fn built() -> Result<Helm> {
    let directory = directory();
    let stamp = fs::read_to_string(directory.join("stamp")).unwrap_or_default();
    ensure!(stamp == self::stamp(), "Helm {VERSION} is not built: `cargo xtask check-chart` (needs Go)");
    Ok(Helm { program: directory.canonicalize()?.join("helm") })
}

/// Builds the program, unless it exists.
pub fn build() -> Result<Helm> {
    if let Ok(helm) = built() {
        return Ok(helm);
    }
    let directory = directory();
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let directory = directory.canonicalize()?;
    let [major, minor] = KUBERNETES;
    let versions = ["chartutil", "lint/rules"].map(|package| {
        let package = format!("helm.sh/helm/v3/pkg/{package}");
        format!("-X {package}.k8sVersionMajor={major} -X {package}.k8sVersionMinor={minor}")
    });
    let mut go = Command::new("go");
    go.env("CGO_ENABLED", "0").env("GOBIN", &directory).args(["install", "-trimpath", "-ldflags"]);
    run(go.arg(format!("-s -w {}", versions.join(" "))).arg(format!("helm.sh/helm/v3/cmd/helm@{VERSION}")))?;
    fs::write(directory.join("stamp"), stamp())?;
    built()
}

fn stamp() -> String {
    format!("{VERSION} {}", KUBERNETES.join("."))
}

fn directory() -> PathBuf {
    crate::image::target().join("helm")
}

/// The program.
#[derive(Clone, Debug)]
pub struct Helm {
    program: PathBuf,
}

impl Helm {
    /// The path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs it and returns its output. It reads and writes no files of the user.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        for name in ["HELM_CONFIG_HOME", "HELM_CACHE_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.program.with_file_name("home"));
        }
        capture(command.env_remove("KUBECONFIG").args(arguments))
    }
}
