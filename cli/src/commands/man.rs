//! `weir man`: one page for each command, from the same definitions as the help.

use std::fs;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use super::Outcome;
use crate::args::{Cli, Man};

pub(crate) fn run(man: &Man) -> Result<Outcome> {
    let directory = man.directory.display();
    fs::create_dir_all(&man.directory).with_context(|| format!("cannot make {directory}"))?;
    clap_mangen::generate_to(Cli::command(), &man.directory).with_context(|| format!("cannot write to {directory}"))?;
    Ok(Outcome::Clean)
}
