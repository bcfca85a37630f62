//! `weir test`: a file of expectations about flows.

mod file;
mod report;

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use weir_model::eval::{Oracle, Verdict};

use super::Outcome;
use crate::args::{Global, Test, TestFormat};
use crate::because;
use crate::ends::Ends;
use crate::failure::with_hint;
use crate::question::Question;
use crate::read;
use file::Expectation;

/// The result of one expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    /// The flow has the other verdict; with the reasons.
    Failed(Vec<String>),
    /// A name in the expectation does not exist.
    Unresolved(String),
}

/// An expectation and its result.
#[derive(Debug)]
struct Tried {
    expectation: Expectation,
    fate: Fate,
    /// A note that is printed with any result.
    note: Option<String>,
}

pub(crate) fn run(global: &Global, test: &Test) -> Result<Outcome> {
    let Some(read) = read::read_sound(global, &test.input)? else { return Ok(Outcome::Failed) };
    let name = test.expectations.display().to_string();
    let expectations = file::parse(load(&test.expectations, read.stdin_read)?, &name)?;
    let ends = Ends { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    let tried: Vec<Tried> = expectations
        .into_iter()
        .map(|expectation| {
            let asked = expectation.question().ask(&ends, &mut oracle);
            let namesake = asked.as_ref().ok().and_then(|answer| answer.namesake);
            let note = namesake.map(|it| Question::namesake_note(&read.cluster, it));
            let fate = match asked {
                Err(reason) => Fate::Unresolved(reason),
                Ok(answer) if answer.verdict() == expectation.verdict => Fate::Passed,
                Ok(answer) => {
                    let packets = answer.packets.iter().filter(|(_, it)| it.verdict() != expectation.verdict);
                    Fate::Failed(packets.flat_map(|(_, judgement)| because::lines(&read.cluster, judgement)).collect())
                }
            };
            Tried { expectation, fate, note }
        })
        .collect();
    let page = match test.output {
        TestFormat::Text => report::text(&name, &tried, global.quiet),
        TestFormat::Json => report::json(&name, &tried)?,
        TestFormat::Junit => report::junit(&name, &tried),
    };
    page.print()?;
    Ok(outcome(&tried))
}

fn outcome(tried: &[Tried]) -> Outcome {
    let any = |is: fn(&Fate) -> bool| tried.iter().any(|it| is(&it.fate));
    match () {
        () if any(|fate| matches!(fate, Fate::Unresolved(_))) => Outcome::Failed,
        () if any(|fate| matches!(fate, Fate::Failed(_))) => Outcome::Findings,
        () => Outcome::Clean,
    }
}

fn load(path: &Path, stdin_read: bool) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    }
    if stdin_read {
        return Err(with_hint("standard input is named twice", "it holds either objects or expectations"));
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
    Ok(bytes)
}

/// The opposite verdict, which a failed expectation found.
fn opposite(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Allow => Verdict::Deny,
        Verdict::Deny => Verdict::Allow,
    }
}
