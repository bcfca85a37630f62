//! `weir inspect`: what an artifact holds.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use weir_compiler::artifact::{Artifact, view};

use super::Outcome;
use super::compile::{cpus, disassembly};
use crate::args::{Inspect, Show};

pub(crate) fn run(arguments: &Inspect) -> Result<Outcome> {
    let artifact = load(&arguments.artifact)?;
    let text = match arguments.emit {
        Show::Summary => format!("{}\n{}", view::summary(&artifact, cpus()), view::maps(&artifact, cpus())),
        Show::Asm => disassembly(&artifact),
        Show::Maps => view::maps(&artifact, cpus()),
        Show::Manifest => format!("{}\n", artifact.manifest.trim_end()),
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(Outcome::Clean)
}

/// The artifact in a file.
pub(crate) fn load(path: &Path) -> Result<Artifact> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Artifact::read(&bytes).with_context(|| format!("{} is no artifact that can be used", path.display()))
}
