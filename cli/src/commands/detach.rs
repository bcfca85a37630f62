//! `weir detach`: removes enforcement.

use anyhow::Result;
use serde_json::json;
use weir_runtime::runtime::{PinAccess, Runtime};

use super::CommandOutcome;
use super::attach::{gone_json, plural};
use crate::args::{DetachArgs, GlobalArgs, TextOrJson};
use crate::page::OutputPage;

pub(crate) fn run(global: &GlobalArgs, arguments: &DetachArgs) -> Result<CommandOutcome> {
    let runtime = Runtime::open(&arguments.pinned.bpffs, PinAccess::Change)?;
    let detached = match &arguments.xdp {
        Some(interface) => runtime.detach_uplink(interface).map(|()| Vec::new()),
        None => runtime.detach(arguments.endpoint.as_deref()),
    };
    let detached = detached?;
    let mut page = OutputPage::new();
    match (arguments.output, &arguments.xdp) {
        (TextOrJson::Json, uplink) => {
            let endpoints: Vec<_> = detached.iter().map(gone_json).collect();
            page.json(&json!({"endpoints": endpoints, "uplink": uplink}))?;
        }
        _ if global.quiet => {}
        (TextOrJson::Text, Some(interface)) => page.line(format_args!("detached the program at uplink {interface}")),
        (TextOrJson::Text, None) => {
            let count = detached.len();
            page.line(format_args!("detached {count} endpoint{}", plural(count)));
        }
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}
