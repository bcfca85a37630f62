//! Arguments of `weir bench`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::TextOrJson;

#[derive(Debug, Args)]
#[command(after_help = "\
Loads the programs and runs them on generated packets. Nothing is attached, and nothing stays in the kernel. For each \
program and address family, the first pod with an allowed peer and a denied peer is measured. Each figure is the minimum \
of several runs. On a busy machine the figures are still too high.

Exit codes: 0 measured, 2 the command failed (it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, or root).")]
pub(crate) struct BenchArgs {
    /// The artifact [default: generated policies]
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: Option<PathBuf>,
    /// Number of policies to generate if there is no artifact
    #[arg(long, value_name = "N", default_value_t = 1_000, conflicts_with = "artifact",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) policies: u32,
    /// Output format (docs/schema/bench.json)
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: TextOrJson,
}
