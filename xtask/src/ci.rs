//! Everything that must pass before a change lands.
//!
//! One build serves all of it: the test binaries, the fuzzer, the binary that checks the examples, and the agent on the
//! test cluster, whose image has nothing but one statically linked file. So everything is linked statically.

mod suites;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask::image::{static_cargo, target, triple};

use crate::process::{capture, cargo, run};
use crate::{cluster, packages};

/// Tests that cannot run for lack of privilege add a line to the file that this variable names.
const SKIP_LOG: &str = "WEIR_SKIP_LOG";

pub(crate) fn run_ci() -> Result<()> {
    packages::ensure()?;
    if let Err(error) = xtask::apiserver::build() {
        eprintln!("note: tests against an API server are skipped: {error:#}");
    }
    match xtask::helm::build() {
        Ok(_) => xtask::chart::check()?,
        Err(error) => eprintln!("note: tests of the chart are skipped: {error:#}"),
    }
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(&mut static_cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    // The half that builds without eBPF. Its code differs only where the feature is named.
    run(&mut static_cargo(&["clippy", "-p", "weir", "--no-default-features", "--locked", "--", "-D", "warnings"]))?;
    let skips = SkipLog::new()?;
    suites::run(&skips.path)?;
    run(static_cargo(&["test", "--workspace", "--locked", "--doc"]).env(SKIP_LOG, &skips.path))?;
    cluster::test_where_it_starts()?;
    skips.report()?;
    run(built("weir-fuzz").args(["--secs", "20"]))?;
    run(built("weir").args(["check", "policies/examples"]))
}

/// A program of the workspace, which was built with the tests.
fn built(program: &str) -> Command {
    Command::new(target().join(triple()).join("debug").join(program))
}

/// Runs the tests with random inputs. The arguments are the runner's, such as the time to run.
pub(crate) fn fuzz(arguments: impl Iterator<Item = String>) -> Result<()> {
    let mut runner = cargo(&["run", "--release", "--locked", "-p", "weir-fuzz", "--"]);
    run(runner.args(arguments))
}

/// Runs the tests whose names contain `filter`. If no test matches, that is an error: a renamed test must not pass
/// because it does not run.
fn run_named(arguments: &[&str], filter: &str, variables: &[(&str, String)]) -> Result<()> {
    let listed = capture(cargo(arguments).args([filter, "--", "--list"]))?;
    if !listed.lines().any(|line| line.ends_with(": test")) {
        bail!("no test is named {filter}: was it renamed?");
    }
    run(cargo(arguments).arg(filter).envs(variables.iter().map(|(key, value)| (key, value))))
}

/// The test of random series of events in the agent.
const LIFE: &str = "kernel_matches_the_reference_after_random_events";

/// Runs the random lives of the agent, with new seeds each time, until one fails.
pub(crate) fn life(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    const ROUNDS: u64 = 12_000;
    let mut seed: u64 = arguments.next().map_or(Ok(1), |seed| seed.parse()).context("a seed is a number")?;
    loop {
        let variables = [("WEIR_LIFE_SEED", seed.to_string()), ("WEIR_LIFE_ROUNDS", ROUNDS.to_string())];
        run_named(&["test", "--release", "--locked", "-p", "weir", "--bin", "weir"], LIFE, &variables)?;
        seed += ROUNDS;
    }
}

/// Runs the long form of fault injection: every operation of a switch fails, and the process dies at each.
pub(crate) fn faults() -> Result<()> {
    let variables = [("WEIR_FAULTS", "all".to_owned())];
    run_named(&["test", "--locked", "-p", "weir-runtime", "--test", "enforce"], "faults::", &variables)
}

/// Runs the tests of the HTML report that a test run leaves out.
pub(crate) fn report_tests(variables: &[(&str, String)]) -> Result<()> {
    let mut command = cargo(&["test", "--workspace", "--locked", "--test", "cli", "report::", "--", "--ignored"]);
    run(command.envs(variables.iter().map(|(name, value)| (*name, value))))
}

/// Re-makes descriptive snapshots.
pub(crate) fn bless() -> Result<()> {
    run(cargo(&["test", "--workspace", "--locked"]).env("BLESS", "1"))
}

/// The log in which tests report that they could not run, and why.
struct SkipLog {
    path: PathBuf,
}

impl SkipLog {
    fn new() -> Result<Self> {
        let path = target().join("skipped-tests.log");
        std::fs::create_dir_all(path.parent().context("the log has a directory")?)?;
        std::fs::write(&path, "").with_context(|| format!("could not write {}", path.display()))?;
        Ok(Self { path: path.canonicalize()? })
    }

    /// Prints and counts them. In CI a skip is a failure: there, everything is meant to run.
    fn report(&self) -> Result<()> {
        let log = std::fs::read_to_string(&self.path)?;
        let skipped: Vec<&str> = log.lines().collect();
        for line in &skipped {
            eprintln!("skipped: {line}");
        }
        eprintln!("{} tests skipped", skipped.len());
        if !skipped.is_empty() && std::env::var_os("CI").is_some() {
            bail!("in CI no test may be skipped");
        }
        Ok(())
    }
}
