//! `weir counters`: packets by direction and outcome.

use anyhow::Result;
use serde_json::json;
use weir_runtime::runtime::{PinAccess, Runtime};

use super::CommandOutcome;
use crate::args::{CountersArgs, TextOrJson};
use crate::page::OutputPage;

pub(crate) fn run(arguments: &CountersArgs) -> Result<CommandOutcome> {
    let counters = Runtime::open(&arguments.pinned.bpffs, PinAccess::Read)?.counters()?;
    let mut page = OutputPage::new();
    match arguments.output {
        TextOrJson::Json => page.json(&json!({"counters": counters}))?,
        TextOrJson::Text => {
            let counted = counters.iter().filter(|it| it.packets > 0);
            let line = |it: &weir_runtime::observe::Counter| {
                let what = if it.dropped { "dropped" } else { "passed" };
                format!(
                    "{:8} {:12} {what:8} {:>12} packets {:>15} bytes",
                    it.direction, it.outcome, it.packets, it.bytes
                )
            };
            counted.for_each(|it| page.line(line(it)));
        }
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}
