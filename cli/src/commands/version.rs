//! `weir version`: prints the version and build facts, for people and for bug reports.

use anyhow::Result;
use serde_json::json;

use super::CommandOutcome;
use crate::args::{TextOrJson, VersionArgs};
use crate::build_info::{COMMIT, VERSION};
use crate::page::OutputPage;

pub(crate) fn run(version: &VersionArgs) -> Result<CommandOutcome> {
    let mut page = OutputPage::new();
    match version.output {
        TextOrJson::Text => page.line(format_args!("weir {VERSION}")),
        TextOrJson::Json => {
            let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
            let debug = cfg!(debug_assertions);
            page.json(
                &json!({"name": "weir", "version": VERSION, "commit": COMMIT, "arch": arch, "os": os, "debug": debug}),
            )?;
        }
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}
