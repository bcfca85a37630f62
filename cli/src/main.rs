//! `weir`: reads files, asks the compiler, prints. The only crate that prints or exits.
//!
//! ```text
//! paths ──load──▶ inputs ──read──▶ cluster + diagnostics ──commands──▶ findings, answers ──render──▶ stdout, exit code
//! ```

#![forbid(unsafe_code)]

mod args;
mod because;
mod bug;
mod cni;
mod commands;
mod config;
mod ends;
mod failure;
mod kernel;
mod lints;
mod load;
mod locate;
mod near;
mod nearest;
mod page;
mod question;
mod read;
mod render;
mod side;
mod views;
mod watch;
mod witness;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, FromArgMatches as _};

use weir_objects::escape;

use args::{Cli, Command};
use commands::Outcome;

fn main() -> ExitCode {
    bug::install_hook();
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
fn exit_code(ended: std::thread::Result<Result<Outcome>>) -> ExitCode {
    match ended {
        Ok(Ok(outcome)) => outcome.into(),
        Ok(Err(error)) if failure::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            failure::print(&error);
            Outcome::Failed.into()
        }
        Err(_) => ExitCode::from(bug::EXIT_CODE),
    }
}

fn run(cli: &Cli) -> Result<Outcome> {
    let global = &cli.global;
    match &cli.command {
        Command::Check(arguments) => commands::check::run(global, arguments),
        Command::Query(arguments) => commands::query::run(global, arguments),
        Command::Watch(arguments) => commands::watch::run(global, arguments),
        Command::CniInstall(arguments) => commands::cni_install::run(arguments),
        Command::Diff(arguments) => commands::diff::run(global, arguments),
        Command::ExplainCode(arguments) => commands::explain_code::run(arguments),
        Command::Explain(arguments) => commands::explain::run(global, arguments),
        Command::Test(arguments) => commands::test::run(global, arguments),
        Command::Compile(arguments) => commands::compile::run(global, arguments),
        Command::Inspect(arguments) => commands::inspect::run(arguments),
        Command::Verify(arguments) => commands::verify::run(global, arguments),
        Command::Attach(arguments) => commands::attach::run(global, arguments),
        Command::Detach(arguments) => commands::detach::run(global, arguments),
        Command::Status(arguments) => commands::status::run(arguments),
        Command::Matrix(arguments) => commands::matrix::run_matrix(global, arguments),
        Command::Graph(arguments) => commands::matrix::run_graph(global, arguments),
        Command::Exposure(arguments) => commands::exposure::run(global, arguments),
        Command::Flows(arguments) => commands::flows::run(arguments),
        Command::Monitor(arguments) => commands::monitor::run(arguments),
        Command::Counters(arguments) => commands::counters::run(arguments),
        Command::Bench(arguments) => commands::bench::run(global, arguments),
        Command::Version(arguments) => commands::version::run(arguments),
        Command::Completions(arguments) => commands::completions::run(arguments),
        Command::Man(arguments) => commands::man::run(arguments),
    }
}

/// Prints the help, or the error about the arguments.
fn usage(error: &clap::Error) -> ExitCode {
    page::usage(error);
    if error.use_stderr() { Outcome::Failed.into() } else { ExitCode::SUCCESS }
}

fn invoked_as(name: &str) -> bool {
    std::env::args_os().next().is_some_and(|it| Path::new(&it).file_stem().is_some_and(|it| it == name))
}

/// Parses the arguments. If the program is called `kubectl-weir`, it is a plug-in of kubectl, and its help says so.
fn parse() -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let mut command = if invoked_as("kubectl-weir") {
        Cli::command().display_name("kubectl weir").bin_name("kubectl weir")
    } else {
        Cli::command()
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
        let ended = std::panic::catch_unwind(|| -> Result<Outcome> { panic!("a bug") });
        assert_eq!(exit_code(ended), ExitCode::from(101));
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        assert_eq!(exit_code(Ok(Err(Error::from(ErrorKind::BrokenPipe).into()))), ExitCode::SUCCESS);
    }
}
