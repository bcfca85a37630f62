//! `weir`: reads files, asks the compiler, prints. The only crate that prints or exits.
//!
//! ```text
//! paths ──load──▶ inputs ──read──▶ cluster + diagnostics ──commands──▶ findings, answers ──render──▶ stdout, exit code
//! ```

#![forbid(unsafe_code)]

mod all_nodes;
mod api_config;
mod api_kinds;
mod args;
mod build_info;
#[cfg(feature = "enforce")]
mod cni;
mod commands;
mod config;
mod connections;
#[cfg(all(test, feature = "enforce"))]
mod documented_commands;
mod exclude;
mod failure;
mod input_source;
#[cfg(feature = "enforce")]
mod kernel_engine;
mod left_out;
mod lints;
mod live_cluster;
mod load;
#[cfg(any(not(feature = "enforce"), test))]
mod no_enforcement;
mod output_file;
mod packet_reasons;
mod page;
mod panic_report;
mod patch;
mod path_pattern;
mod read;
mod render;
mod served_policies;
mod strict_yaml;
mod time;
mod views;
#[cfg(feature = "enforce")]
mod watch;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::FromArgMatches as _;

use weir_objects::escape;

#[cfg(feature = "enforce")]
use args::EnforcementCommand;
use args::{Cli, CliCommand, GlobalArgs, ObserveCommand};
use commands::CommandOutcome;

/// The agent holds a cluster in many small pieces and replaces some of them all the time. `.cargo/config.toml` has the
/// settings, and `docs/dependencies.md` the reasons.
#[cfg(feature = "enforce")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    panic_report::install_hook();
    #[cfg(feature = "enforce")]
    if invoked_as(cni::NAME) {
        return cni::main();
    }
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => {
            return usage(&error);
        }
    };
    exit_code(std::panic::catch_unwind(|| run(&cli)))
}

/// The exit code of a run: from its outcome, from an error that is printed here, or for a panic that the hook has
/// printed.
fn exit_code(ended: std::thread::Result<Result<CommandOutcome>>) -> ExitCode {
    match ended {
        Ok(Ok(outcome)) => outcome.into(),
        Ok(Err(error)) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            failure::print(&error);
            CommandOutcome::Failed.into()
        }
        Err(_) => ExitCode::from(panic_report::EXIT_CODE),
    }
}

fn run(cli: &Cli) -> Result<CommandOutcome> {
    let global = &cli.global;
    match &cli.command {
        CliCommand::Check(arguments) => commands::check::run(global, arguments),
        CliCommand::Query(arguments) => commands::query::run(global, arguments),
        CliCommand::Diff(arguments) => commands::diff::run(global, arguments),
        CliCommand::ExplainCode(arguments) => commands::explain_code::run(arguments),
        CliCommand::Explain(arguments) => commands::explain::run(global, arguments),
        CliCommand::Suggest(arguments) => commands::suggest::run(global, arguments),
        CliCommand::Learn(arguments) => commands::learn::run(global, arguments),
        CliCommand::Test(arguments) => commands::test::run(global, arguments),
        CliCommand::Init(arguments) => commands::init::run(global, arguments),
        CliCommand::Compile(arguments) => commands::compile::run(global, arguments),
        CliCommand::Inspect(arguments) => commands::inspect::run(arguments),
        CliCommand::Verify(arguments) => commands::verify::run(global, arguments),
        CliCommand::Observe(command) => observe(global, command),
        #[cfg(feature = "enforce")]
        CliCommand::Enforcement(command) => enforcement(global, command),
        CliCommand::Matrix(arguments) => commands::matrix::run_matrix(global, arguments),
        CliCommand::Graph(arguments) => commands::matrix::run_graph(global, arguments),
        CliCommand::Exposure(arguments) => commands::exposure::run(global, arguments),
        CliCommand::Demo(arguments) => commands::demo::run(global, arguments),
        CliCommand::Version(arguments) => commands::version::run(arguments),
        CliCommand::Completions(arguments) => commands::completions::run(arguments),
        CliCommand::Man(arguments) => commands::man::run(arguments),
    }
}

fn observe(global: &GlobalArgs, command: &ObserveCommand) -> Result<CommandOutcome> {
    match command {
        ObserveCommand::Status(arguments) => commands::status::run(global, arguments),
        ObserveCommand::Flows(arguments) => commands::flows::run(global, arguments),
        ObserveCommand::Monitor(arguments) => commands::monitor::run(global, arguments),
    }
}

#[cfg(feature = "enforce")]
fn enforcement(global: &GlobalArgs, command: &EnforcementCommand) -> Result<CommandOutcome> {
    match command {
        EnforcementCommand::Attach(arguments) => commands::attach::run(global, arguments),
        EnforcementCommand::Detach(arguments) => commands::detach::run(global, arguments),
        EnforcementCommand::Counters(arguments) => commands::counters::run(arguments),
        EnforcementCommand::Bench(arguments) => commands::bench::run(global, arguments),
        EnforcementCommand::Watch(arguments) => commands::watch::run(global, arguments),
        EnforcementCommand::Bundle(arguments) => commands::bundle::run(arguments),
        EnforcementCommand::CniInstall(arguments) => commands::cni_install::run(arguments),
    }
}

/// Prints the help, or the error about the arguments.
fn usage(error: &clap::Error) -> ExitCode {
    #[cfg(not(feature = "enforce"))]
    if let Some(error) = no_enforcement::explained(error) {
        failure::print(&error);
        return CommandOutcome::Failed.into();
    }
    page::usage(error);
    if error.use_stderr() { CommandOutcome::Failed.into() } else { ExitCode::SUCCESS }
}

fn invoked_as(name: &str) -> bool {
    std::env::args_os().next().is_some_and(|it| Path::new(&it).file_stem().is_some_and(|it| it == name))
}

/// Parses the arguments. If the program is called `kubectl-weir`, it is a plug-in of kubectl, and its help says so.
fn parse() -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut command = if invoked_as("kubectl-weir") {
        args::help::laid_out(args::command().display_name("kubectl weir").bin_name("kubectl weir"))
    } else {
        args::help::command()
    };
    match command.try_get_matches_from_mut(&arguments) {
        Ok(matches) => Cli::from_arg_matches(&matches),
        Err(error) => Err(visible(&mut command, &arguments, error)),
    }
}

/// The same error for escaped arguments. clap repeats arguments in its errors, and among them can be the name of a
/// branch or a file that another person chose.
fn visible(command: &mut clap::Command, arguments: &[OsString], error: clap::Error) -> clap::Error {
    let shown: Vec<String> = arguments.iter().map(|it| escape::line(&it.to_string_lossy()).into_owned()).collect();
    if !error.use_stderr() || arguments.iter().zip(&shown).all(|(given, shown)| given == shown.as_str()) {
        return error;
    }
    let otherwise = "an argument has characters that cannot be seen";
    let again = command.try_get_matches_from_mut(shown).err();
    again.unwrap_or_else(|| command.error(clap::error::ErrorKind::InvalidValue, otherwise))
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn a_panic_exits_with_its_own_code() {
        let ended = std::panic::catch_unwind(|| -> Result<CommandOutcome> { panic!("a bug") });
        assert_eq!(exit_code(ended), ExitCode::from(101));
    }

    #[test]
    fn a_closed_pipe_exits_with_0() {
        assert_eq!(exit_code(Ok(Err(Error::from(ErrorKind::BrokenPipe).into()))), ExitCode::SUCCESS);
    }
}
