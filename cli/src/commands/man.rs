//! `weir man`: one page for each command, from the same definitions as the help.

use std::fs;

use anyhow::{Context as _, Result};

use super::CommandOutcome;
use crate::args::{self, ManArgs};

pub(crate) fn run(man: &ManArgs) -> Result<CommandOutcome> {
    let directory = man.directory.display();
    fs::create_dir_all(&man.directory).with_context(|| format!("cannot make {directory}"))?;
    clap_mangen::generate_to(args::command(), &man.directory)
        .with_context(|| format!("cannot write to {directory}"))?;
    Ok(CommandOutcome::Clean)
}
