//! `weir completions`: from the same definitions as the help.

use std::io::Write as _;

use anyhow::Result;
use clap::CommandFactory as _;

use super::Outcome;
use crate::args::{Cli, Completions};

pub(crate) fn run(completions: &Completions) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Cli::command(), "weir", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Outcome::Clean)
}
