//! What enforcement costs on this machine.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::TextOrJson;

#[derive(Debug, Args)]
#[command(after_help = "\
Loads the programs and runs them on packets of their own making; nothing is attached, and nothing is left. For each program and
family of addresses the first pod is taken that may speak with somebody and may not speak with somebody. Figures are the least of several
runs: on a busy machine they are still too high.

Exit codes: 0 measured, 2 could not do it (it needs CAP_BPF and CAP_NET_ADMIN, or root).")]
pub(crate) struct Bench {
    /// The artifact [default: policies of our own making]
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: Option<PathBuf>,
    /// How many policies to make, where there is no artifact
    #[arg(long, value_name = "N", default_value_t = 1_000, conflicts_with = "artifact",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) policies: u32,
    /// How to print (docs/schema/bench.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}
