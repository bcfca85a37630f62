//! `weir completions`: made from the same definitions as the help.

use anyhow::Result;

use super::CommandOutcome;
use crate::args::{self, CompletionsArgs};
use crate::page;

pub(crate) fn run(completions: &CompletionsArgs) -> Result<CommandOutcome> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut args::command(), "weir", &mut script);
    page::print_bytes(&script)?;
    Ok(CommandOutcome::Clean)
}
