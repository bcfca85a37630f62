//! Arguments of the commands that compile, show and verify artifacts.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use weir_artifact::structure::{LookupSet, Structure};
use weir_codegen::compile::Budget;
use weir_codegen::structures;
use weir_ebpf::target::Target;

use super::InputPaths;

#[derive(Debug, Args)]
#[command(after_help = "\
Budgets: instructions (of all programs), map-bytes (without per-CPU copies), entries, classes, and memory (bytes) and \
steps of the compiler, which stops if it exceeds them.
Exit codes: 0 written, 1 a budget is exceeded or the verification found a difference, 2 the command failed.")]
pub(crate) struct CompileArgs {
    #[command(flatten)]
    pub(crate) input: InputPaths,
    /// Only the pods of this node are local [default: every pod with an address]
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// The file to write the artifact to
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "emit")]
    pub(crate) output: Option<PathBuf>,
    /// Limit on the cost of the result (repeatable)
    #[arg(long, value_name = "KEY=N", value_parser = parse_budget)]
    pub(crate) budget: Vec<(Budget, u64)>,
    /// Skip the verification
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// The oldest kernel that the programs must load on
    #[arg(long, value_name = "MAJOR.MINOR", default_value = "5.14", value_parser = parse_target)]
    pub(crate) target: Target,
    /// Data structure for a set, instead of the cost model's choice (repeatable), such as exact4=hash
    #[arg(long, value_name = "PLACE=STRUCTURE", value_parser = parse_structure, value_delimiter = ',')]
    pub(crate) structure: Vec<(LookupSet, Structure)>,
    /// What to print; without `-o`, no artifact is written
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) emit: Option<CompileOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompileOutput {
    /// Counts, costs and data structures
    Summary,
    /// The decisions after the optimization passes
    Ir,
    /// The programs' instructions
    Asm,
    /// The policies as iptables-save, ip6tables-save and ipset save text
    Iptables,
    /// Every map with its sizes
    Maps,
    /// The manifest (JSON)
    Manifest,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The artifact
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: PathBuf,
    /// What to print
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) emit: InspectOutput,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum InspectOutput {
    /// Counts and costs
    #[default]
    Summary,
    /// The programs' instructions
    Asm,
    /// Every map with its sizes
    Maps,
    /// The manifest (JSON)
    Manifest,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The artifact
    #[arg(value_name = "ARTIFACT", value_hint = ValueHint::FilePath)]
    pub(crate) artifact: PathBuf,
    #[command(flatten)]
    pub(crate) input: InputPaths,
}

pub(super) fn parse_budget(text: &str) -> Result<(Budget, u64), String> {
    let (key, limit) = text.split_once('=').ok_or("expected KEY=N")?;
    let known = || Budget::ALL.map(Budget::name).join(", ");
    let budget =
        Budget::named(key).ok_or_else(|| format!("there is no budget `{key}`; the budgets are: {}", known()))?;
    Ok((budget, limit.parse().map_err(|_| format!("`{limit}` is not a number"))?))
}

fn parse_structure(text: &str) -> Result<(LookupSet, Structure), String> {
    let parsed = structures::parse_forced(text).map_err(|error| error.to_string())?;
    parsed.first().copied().ok_or_else(|| "expected PLACE=STRUCTURE".to_owned())
}

pub(crate) fn parse_target(text: &str) -> Result<Target, String> {
    let parsed = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let target = Target { kernel: parsed.ok_or("expected MAJOR.MINOR, such as 6.1")? };
    let (major, minor) = Target::BASE.kernel;
    if target < Target::BASE {
        Err(format!("Linux {major}.{minor} is the oldest kernel that weir's programs load on"))
    } else {
        Ok(target)
    }
}
