//! Runs other programs and prints their command lines.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Runs a command with its output shown; an error contains the command line.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    eprintln!("\n$ {shown}");
    let status = command.status().with_context(|| format!("could not start: {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Runs a command silently and returns its output. An error contains the command line and the output.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("could not start: {}", show(command)))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{}: {}: {}{said}", show(command), output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(said)
}

/// Waits until `is_so` returns true.
pub fn wait(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > patience {
            bail!("timed out after {} s: {what}", patience.as_secs());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A cargo command for this workspace.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_stem().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    command.get_args().fold(program, |line, argument| line + " " + &argument.to_string_lossy())
}
