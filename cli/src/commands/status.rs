//! `weir status`: lists the endpoints that are enforced, and checks whether the kernel's state is still the one that
//! was attached; on this machine, or on many nodes.

#[cfg(feature = "enforce")]
mod local;
mod nodes;

use anyhow::Result;

use super::CommandOutcome;
use crate::args::{GlobalArgs, StatusArgs};

#[cfg(feature = "enforce")]
pub(super) use local::json;

pub(crate) fn run(global: &GlobalArgs, arguments: &StatusArgs) -> Result<CommandOutcome> {
    if arguments.agents.is_remote() {
        return nodes::run(global, arguments);
    }
    #[cfg(feature = "enforce")]
    return local::run(arguments);
    #[cfg(not(feature = "enforce"))]
    Err(crate::no_enforcement::only_remote("status"))
}
