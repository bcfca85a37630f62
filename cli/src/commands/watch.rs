//! `weir watch`: the agent.

use anyhow::Result;

use super::Outcome;
use crate::args::{Global, Watch};
use crate::failure::with_hint;
use crate::read;
use crate::watch::enforce::DryRun;
use crate::watch::log::Log;
use crate::watch::{self, Options};

pub(crate) fn run(global: &Global, arguments: &Watch) -> Result<Outcome> {
    if !arguments.dry_run {
        return Err(with_hint("enforcement from the API is not there yet", "`--dry-run` shows what would be in force"));
    }
    let options = Options {
        kubeconfig: arguments.kubeconfig.as_deref(),
        node: watch::node_name(arguments.node.as_deref())?,
        metrics: arguments.metrics_addr,
        assume: read::chosen_assumptions(global)?,
        log: Log { format: arguments.log_format },
    };
    watch::run(options, DryRun { artifact: arguments.artifact.clone(), epoch: 0 })?;
    Ok(Outcome::Clean)
}
