//! `weir detach`: removes enforcement.

use anyhow::Result;
use weir_runtime::runtime::{PinAccess, Runtime};

use super::CommandOutcome;
use super::attach::plural;
use crate::args::{DetachArgs, GlobalArgs};
use crate::page;

pub(crate) fn run(global: &GlobalArgs, arguments: &DetachArgs) -> Result<CommandOutcome> {
    let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Change)?;
    if let Some(interface) = &arguments.xdp {
        runtime.detach_uplink(interface)?;
        if !global.quiet {
            page::print(format_args!("detached the program at uplink {interface}"))?;
        }
        return Ok(CommandOutcome::Clean);
    }
    let detached = runtime.detach(arguments.endpoint.as_deref())?;
    if !global.quiet {
        let count = detached.len();
        page::print(format_args!("detached {count} endpoint{}", plural(count)))?;
    }
    Ok(CommandOutcome::Clean)
}
