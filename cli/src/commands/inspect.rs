//! `weir inspect`: shows the contents of an artifact.

use std::path::Path;

use anyhow::{Context as _, Result};
use weir_artifact::{Artifact, view};

use super::Outcome;
use super::compile::{cpus, disassembly};
use crate::args::{Inspect, Show};
use crate::page::Page;

pub(crate) fn run(arguments: &Inspect) -> Result<Outcome> {
    let artifact = load(&arguments.artifact)?;
    let mut page = Page::new();
    match arguments.emit {
        Show::Summary => {
            page.lines(&view::summary(&artifact, cpus()));
            page.blank();
            page.lines(&view::maps(&artifact, cpus()));
        }
        Show::Asm => page.lines(&disassembly(&artifact)),
        Show::Maps => page.lines(&view::maps(&artifact, cpus())),
        Show::Manifest => page.written_json(&artifact.manifest),
    }
    page.print()?;
    Ok(Outcome::Clean)
}

/// The artifact in a file.
pub(crate) fn load(path: &Path) -> Result<Artifact> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Artifact::read(&bytes).with_context(|| format!("{} is no artifact that can be used", path.display()))
}
