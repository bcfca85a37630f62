//! `weir version`: what was built, for people and for bug reports.

use anyhow::Result;
use serde_json::json;

use super::Outcome;
use crate::args::{TextOrJson, Version};
use crate::render;

pub(crate) fn run(version: &Version) -> Result<Outcome> {
    let number = env!("CARGO_PKG_VERSION");
    let text = match version.output {
        TextOrJson::Text => format!("weir {number}\n"),
        TextOrJson::Json => {
            let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
            let debug = cfg!(debug_assertions);
            format!("{}\n", json!({"name": "weir", "version": number, "arch": arch, "os": os, "debug": debug}))
        }
    };
    render::print(text.as_bytes())?;
    Ok(Outcome::Clean)
}
