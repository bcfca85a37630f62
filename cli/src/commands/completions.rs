//! `weir completions`: made from the same definitions as the help.

use anyhow::Result;
use clap::CommandFactory as _;

use super::CommandOutcome;
use crate::args::{Cli, CompletionsArgs};
use crate::page;

pub(crate) fn run(completions: &CompletionsArgs) -> Result<CommandOutcome> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "weir", &mut script);
    page::print_bytes(&script)?;
    Ok(CommandOutcome::Clean)
}
