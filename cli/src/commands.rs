//! One file for each command. Each takes its arguments and gives its exit code.

#[cfg(feature = "enforce")]
pub(crate) mod attach;
#[cfg(feature = "enforce")]
pub(crate) mod bench;
#[cfg(feature = "enforce")]
pub(crate) mod bundle;
pub(crate) mod check;
#[cfg(feature = "enforce")]
pub(crate) mod cni_install;
pub(crate) mod compile;
pub(crate) mod completions;
#[cfg(feature = "enforce")]
pub(crate) mod counters;
pub(crate) mod demo;
#[cfg(feature = "enforce")]
pub(crate) mod detach;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod explain_code;
pub(crate) mod exposure;
pub(crate) mod flows;
pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod learn;
pub(crate) mod man;
pub(crate) mod matrix;
pub(crate) mod monitor;
pub(crate) mod query;
pub(crate) mod status;
pub(crate) mod suggest;
pub(crate) mod test;
pub(crate) mod verify;
pub(crate) mod version;
#[cfg(feature = "enforce")]
pub(crate) mod watch;

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// Nothing found, nothing different.
    Clean,
    /// Findings or differences.
    Findings,
    /// The command failed; the reason is printed already.
    Failed,
}

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> Self {
        Self::from(match outcome {
            CommandOutcome::Clean => 0,
            CommandOutcome::Findings => 1,
            CommandOutcome::Failed => 2,
        })
    }
}
