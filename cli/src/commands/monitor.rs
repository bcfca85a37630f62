//! `weir monitor`: prints drops as they happen, packets that policies in audit mode would drop, and new connections.

#[cfg(feature = "enforce")]
mod filter;
#[cfg(feature = "enforce")]
mod local;
mod printer;
mod remote;
mod row;
mod rules;
mod top;

use anyhow::Result;

use super::CommandOutcome;
use crate::args::{GlobalArgs, MonitorArgs};

#[cfg(feature = "enforce")]
pub(super) use local::json;

pub(crate) fn run(global: &GlobalArgs, arguments: &MonitorArgs) -> Result<CommandOutcome> {
    if arguments.last.is_some() && arguments.asks_for_connections() {
        let note = "note: --last shows records, and new connections have none; `weir flows` lists known connections";
        crate::page::print_to_stderr(note);
    }
    if arguments.agents.is_remote() {
        return remote::run(global, arguments);
    }
    #[cfg(feature = "enforce")]
    return local::run(global, arguments);
    #[cfg(not(feature = "enforce"))]
    Err(crate::no_enforcement::only_remote("monitor"))
}
