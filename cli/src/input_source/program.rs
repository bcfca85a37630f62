//! Runs other programs: git, kubectl, kustomize and helm. Arguments are never read by a shell.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, anyhow};

use crate::failure::with_hint;

/// Runs a program to its end. If it fails, the last line of its standard error becomes the error.
pub(super) fn run(command: &mut Command, input: Option<String>) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = run_if_installed(command, input)?.ok_or_else(|| {
        let hint = format!("install {program}, or name files instead");
        with_hint(format!("`{program}` is not installed, or not in PATH"), hint)
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().lines().last().unwrap_or("it printed no error message").to_owned();
    Err(anyhow!("{program} failed: {said}"))
}

/// Runs a program to its end; `None` if there is no such program.
pub(super) fn run_if_installed(command: &mut Command, input: Option<String>) -> Result<Option<Output>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(anyhow!(error).context(format!("cannot run {program}"))),
    };
    // The program may write output before it has read all input, so both happen in parallel.
    let writer = child.stdin.take().zip(input);
    let writer = writer.map(|(mut stdin, input)| std::thread::spawn(move || _ = stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().with_context(|| format!("cannot run {program}"))?;
    writer.map(std::thread::JoinHandle::join);
    Ok(Some(output))
}

/// A directory that is removed with everything in it.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    path: PathBuf,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl TemporaryDirectory {
    /// A new directory that other users cannot read.
    pub(super) fn new() -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("weir-{}-{number}-{:x}", std::process::id(), clock.as_nanos());
        let path = std::env::temp_dir().join(name);
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        // Fails if the path exists, so that no other user can have prepared it.
        builder.create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.path);
    }
}
