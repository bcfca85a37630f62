//! Runs every test binary of the workspace, several side by side.
//!
//! Problem: `cargo test` runs one binary after the other, and many binaries spend their time waiting for timers of the
//! kernel, for servers, or for packets that must not arrive.
//! Strategy: cargo builds the binaries and reports their names. A lane takes the next binary, beginning with the longest
//! ones. There is one lane more than processors, because the tests wait for about 40 % of their time. The whole output
//! of a binary is printed when it ends.
//! Invariant: every binary that cargo names is run once; the run fails if one of them fails, cannot be started, or does
//! not end.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::SKIP_LOG;
use crate::process::built;
use xtask::image::{TEST_BUILD, static_cargo};

/// Test targets that take minutes. They start first, so that no lane is alone with one of them at the end.
const LONG: [&str; 4] = ["enforce", "packets", "verify_parts", "watch"];

/// Seconds that a binary may take: several times the longest run. Without a limit, a test that hangs would end
/// the whole run without a line of its output.
const LIMIT: &str = "2400";
/// The exit code of `timeout` if the program did not end.
const NOT_ENDED: i32 = 124;

/// A test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Suite {
    /// Package and target, such as `weir-codegen/verdicts`.
    name: String,
    program: PathBuf,
    /// The package's directory, in which cargo runs its tests.
    directory: PathBuf,
}

/// Builds all test binaries and runs them. They report skipped tests in `skip_log`.
pub(super) fn run(skip_log: &Path) -> Result<()> {
    let mut suites = build()?;
    ensure!(!suites.is_empty(), "cargo named no test binary");
    suites.sort_by_key(|suite| LONG.iter().position(|it| suite.target() == *it).unwrap_or(LONG.len()));
    let lanes = (std::thread::available_parallelism().map_or(1, usize::from) + 1).min(suites.len());
    eprintln!("\n{} test binaries in {lanes} lanes", suites.len());
    let queue = Mutex::new(VecDeque::from(suites));
    let failed = Mutex::new(Vec::new());
    let lane = || {
        while let Some(suite) = take(&queue) {
            eprintln!("running {}", suite.name);
            if !suite.passes(skip_log) {
                failed.lock().expect("no lane panics").push(suite.name);
            }
        }
    };
    std::thread::scope(|scope| (0..lanes).for_each(|_| _ = scope.spawn(lane)));
    let failed = failed.into_inner().context("a lane panicked")?;
    if !failed.is_empty() {
        bail!("tests failed in {}", failed.join(", "));
    }
    Ok(())
}

fn take(queue: &Mutex<VecDeque<Suite>>) -> Option<Suite> {
    queue.lock().expect("no lane panics").pop_front()
}

impl Suite {
    fn target(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or_default()
    }

    /// Runs the binary and prints its output. Returns whether all of its tests passed.
    fn passes(&self, skip_log: &Path) -> bool {
        let started = Instant::now();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", LIMIT]).arg(&self.program);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory).env(SKIP_LOG, skip_log);
        let output = command.stdin(Stdio::null()).output();
        let seconds = started.elapsed().as_secs();
        match output {
            Ok(output) => {
                let verdict = match output.status.code() {
                    Some(0) => "passed",
                    Some(NOT_ENDED) => "FAILED, because it did not end,",
                    _ => "FAILED",
                };
                let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                eprintln!("\n==== {} {verdict} after {seconds} s ({})\n{out}{err}", self.name, output.status);
                output.status.success()
            }
            Err(error) => {
                eprintln!("\n==== {} FAILED: could not start `timeout`: {error}", self.name);
                false
            }
        }
    }
}

/// Builds the test binaries, and reads their names from cargo's messages.
fn build() -> Result<Vec<Suite>> {
    let mut build = static_cargo(&TEST_BUILD);
    build.arg("--message-format=json-render-diagnostics");
    eprintln!("\n$ cargo {}", TEST_BUILD.join(" "));
    built(&mut build)?.iter().filter_map(|message| suite(message).transpose()).collect()
}

/// The test binary that a message of cargo names, if it names one.
fn suite(message: &Value) -> Result<Option<Suite>> {
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let Some(program) = message["executable"].as_str().filter(|_| is_test) else { return Ok(None) };
    let manifest = message["manifest_path"].as_str().map(Path::new).and_then(Path::parent);
    let directory = manifest.context("a test binary without a manifest")?.to_owned();
    let package = directory.file_name().unwrap_or_default().to_string_lossy();
    let target = message["target"]["name"].as_str().unwrap_or("unnamed");
    Ok(Some(Suite { name: format!("{package}/{target}"), program: program.into(), directory }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"reason":"compiler-artifact","manifest_path":"/w/compiler/codegen/Cargo.toml",
        "target":{"name":"verdicts"},"profile":{"test":true},"executable":"/w/target/debug/deps/verdicts-1"}"#;

    fn read(message: &str) -> Option<Suite> {
        suite(&serde_json::from_str(message).unwrap()).unwrap()
    }

    #[test]
    fn a_test_binary_is_found_in_a_message() {
        let found = read(MESSAGE).unwrap();
        assert_eq!(found.name, "codegen/verdicts");
        assert_eq!(found.directory, Path::new("/w/compiler/codegen"));
    }

    #[test]
    fn libraries_and_programs_are_no_test_binaries() {
        let program = MESSAGE.replace("\"test\":true", "\"test\":false");
        let library = MESSAGE.replace("\"/w/target/debug/deps/verdicts-1\"", "null");
        assert_eq!(read(&program), None);
        assert_eq!(read(&library), None);
        assert_eq!(read(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn a_failed_binary_is_not_passed() {
        let suite = |program: &str| Suite { name: program.into(), program: program.into(), directory: "/".into() };
        let log = Path::new("/dev/null");
        assert!(suite("/bin/true").passes(log));
        assert!(!suite("/bin/false").passes(log));
        assert!(!suite("/no/such/program").passes(log));
    }
}
