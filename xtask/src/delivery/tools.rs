//! The checkers, in fixed versions.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use xtask::debian;
use xtask::image::target;
use xtask::process::run;

/// Programs in Go: the name, and the package with its version.
const GO: [(&str, &str); 5] = [
    ("actionlint", "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"),
    ("helm", "helm.sh/helm/v3/cmd/helm@v3.22.0"),
    ("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0"),
    ("oras", "oras.land/oras/cmd/oras@v1.3.6"),
    ("validate-krew-manifest", "sigs.k8s.io/krew/cmd/validate-krew-manifest@v0.4.3"),
];
/// Packages in Python. Their programs are `check-jsonschema`, `pre-commit` and `cdx-ev`.
const PYTHON: [&str; 3] = ["check-jsonschema==0.39.0", "pre-commit==4.7.0", "cyclonedx-editor-validator==1.0.3"];
/// Debian's packages; unpacked, not installed.
const DEBIAN: [&str; 1] = ["shellcheck"];

/// The directory of the installed checkers.
pub(super) struct Tools {
    pub(super) directory: PathBuf,
}

impl Tools {
    /// Installs the checkers that are missing.
    pub(super) fn install() -> Result<Self> {
        let directory = target().join("delivery");
        fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let tools = Self { directory: directory.canonicalize()? };
        for (_, package) in GO {
            tools.once(package, || {
                let mut go = Command::new("go");
                run(go.args(["install", package]).env("GOBIN", tools.directory.join("bin")).env("CGO_ENABLED", "0"))
            })?;
        }
        tools.once(&PYTHON.join(" "), || {
            let python = tools.directory.join("python");
            run(Command::new("python3").args(["-m", "venv"]).arg(&python))?;
            run(Command::new(python.join("bin/pip")).args(["install", "--quiet"]).args(PYTHON))
        })?;
        debian::unpack(&tools.directory.join("debian"), &DEBIAN)?;
        Ok(tools)
    }

    /// Does it, unless an earlier run has done it.
    fn once(&self, name: &str, install: impl FnOnce() -> Result<()>) -> Result<()> {
        let stamp = self.directory.join(format!("{}.stamp", name.replace(['/', ' '], "_")));
        if !stamp.exists() {
            install()?;
            fs::write(&stamp, "")?;
        }
        Ok(())
    }

    /// A command of this name, which finds the other checkers too: actionlint uses shellcheck.
    pub(super) fn command(&self, name: &str) -> Command {
        let directories = ["bin", "python/bin", "debian/usr/bin"].map(|it| self.directory.join(it));
        let found = directories.iter().map(|it| it.join(name)).find(|it| it.exists());
        let path = directories.map(|it| it.display().to_string()).join(":");
        let mut command = Command::new(found.unwrap_or_else(|| name.into()));
        command.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap_or_default()));
        command
    }
}
