//! `weir version`: prints the version and build facts, for people and for bug reports.

use anyhow::Result;
use serde_json::json;

use super::Outcome;
use crate::args::{TextOrJson, Version};
use crate::page::Page;

pub(crate) fn run(version: &Version) -> Result<Outcome> {
    let number = env!("CARGO_PKG_VERSION");
    let mut page = Page::new();
    match version.output {
        TextOrJson::Text => page.line(format_args!("weir {number}")),
        TextOrJson::Json => {
            let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
            let debug = cfg!(debug_assertions);
            page.json(&json!({"name": "weir", "version": number, "arch": arch, "os": os, "debug": debug}))?;
        }
    }
    page.print()?;
    Ok(Outcome::Clean)
}
