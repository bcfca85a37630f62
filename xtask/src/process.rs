//! Runs other programs and prints their command lines.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

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

/// Runs a command on this input and returns its output.
pub fn filter(command: &mut Command, input: &[u8]) -> Result<Vec<u8>> {
    let shown = show(command);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("could not start: {shown}"))?;
    let mut pipe = child.stdin.take().context("the command has no input")?;
    // Written by another thread: the command may wait until its output is read.
    let (written, output) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || pipe.write_all(input));
        let output = child.wait_with_output();
        (writer.join().expect("the writer does not panic"), output)
    });
    let output = output?;
    ensure!(output.status.success(), "{shown}: {}", output.status);
    written.with_context(|| format!("{shown} did not read its input"))?;
    Ok(output.stdout)
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

/// Runs a build of cargo that reports as `--message-format=json-render-diagnostics`. Returns cargo's messages.
pub fn built(command: &mut Command) -> Result<Vec<Value>> {
    let output = command.stderr(Stdio::inherit()).output().context("could not start cargo")?;
    ensure!(output.status.success(), "the build failed: {}", output.status);
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")?;
    let message = |line| serde_json::from_str(line).context("a message of cargo is not JSON");
    messages.lines().map(message).collect()
}

fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_stem().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    command.get_args().fold(program, |line, argument| line + " " + &argument.to_string_lossy())
}
