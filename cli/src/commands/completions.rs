//! `weir completions`: made from the same definitions as the help.

use anyhow::Result;
use clap::CommandFactory as _;

use super::Outcome;
use crate::args::{Cli, Completions};
use crate::page;

pub(crate) fn run(completions: &Completions) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "weir", &mut script);
    page::hand_over(&script)?;
    Ok(Outcome::Clean)
}
