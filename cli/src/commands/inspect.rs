//! `weir inspect`: shows the contents of an artifact.

use std::path::Path;

use anyhow::{Context as _, Result};
use weir_artifact::{Artifact, view};

use super::CommandOutcome;
use super::compile::{cpus, disassembly};
use crate::args::{InspectArgs, InspectOutput};
use crate::left_out::{LeftOut, NoteForm};
use crate::page::OutputPage;

pub(crate) fn run(arguments: &InspectArgs) -> Result<CommandOutcome> {
    let artifact = load(&arguments.artifact)?;
    let mut page = OutputPage::new();
    match arguments.emit {
        InspectOutput::Summary => {
            page.lines(&view::summary(&artifact, cpus()));
            page.blank();
            page.lines(&view::maps(&artifact, cpus()));
            let manifest = serde_json::from_str(&artifact.manifest).unwrap_or_default();
            LeftOut::of_manifest(&manifest).mark(&mut page, NoteForm::Line)?;
        }
        InspectOutput::Asm => page.lines(&disassembly(&artifact)),
        InspectOutput::Maps => page.lines(&view::maps(&artifact, cpus())),
        InspectOutput::Manifest => page.written_json(&artifact.manifest),
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}

/// The artifact in a file.
pub(crate) fn load(path: &Path) -> Result<Artifact> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Artifact::read(&bytes).with_context(|| format!("{} is not a usable artifact", path.display()))
}
