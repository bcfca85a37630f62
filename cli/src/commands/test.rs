//! `weir test`: a file of expectations about flows.

mod file;
mod report;

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use weir_model::eval::{Oracle, Verdict};
use weir_model::labels::Selection;
use weir_model::{Cluster, Policy, PolicyId, Standing};

use super::CommandOutcome;
use crate::args::{GlobalArgs, TestArgs, TestFormat};
use crate::endpoint_lookup::EndpointLookup;
use crate::failure::with_hint;
use crate::question::FlowQuestion;
use crate::read;
use crate::verdict_reasons;
use file::Expectation;
use report::TestReport;

/// The result of one expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectationStatus {
    Passed,
    /// The flow has the other verdict; with the reasons.
    Failed(Vec<String>),
    /// A name in the expectation does not exist.
    Unresolved(String),
}

/// An expectation and its result.
#[derive(Debug)]
struct ExpectationResult {
    expectation: Expectation,
    status: ExpectationStatus,
    /// A note that is printed with any result.
    note: Option<String>,
}

pub(crate) fn run(global: &GlobalArgs, test: &TestArgs) -> Result<CommandOutcome> {
    let Some(read) = read::read_valid(global, &test.input)? else { return Ok(CommandOutcome::Failed) };
    let name = test.expectations.display().to_string();
    let expectations = file::parse(load(&test.expectations, read.stdin_read)?, &name)?;
    let lookup = EndpointLookup { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    let results: Vec<ExpectationResult> = expectations
        .into_iter()
        .map(|expectation| {
            let asked = expectation.question().ask(&lookup, &mut oracle);
            let namesake = asked.as_ref().ok().and_then(|answer| answer.namesake);
            let note = namesake.map(|it| FlowQuestion::namesake_note(&read.cluster, it));
            let status = match asked {
                Err(reason) => ExpectationStatus::Unresolved(reason),
                Ok(answer) if answer.verdict() == expectation.verdict => ExpectationStatus::Passed,
                Ok(answer) => {
                    let packets = answer.packets.iter().filter(|it| it.judgement.verdict() != expectation.verdict);
                    ExpectationStatus::Failed(
                        packets.flat_map(|it| verdict_reasons::lines(&read.cluster, &it.judgement)).collect(),
                    )
                }
            };
            ExpectationResult { expectation, status, note }
        })
        .collect();
    let idle = idle_policies(&read.cluster);
    let report = TestReport { file: &name, results: &results, idle: &idle };
    let mut page = match test.output {
        TestFormat::Text => report.text(global.quiet),
        TestFormat::Json => report.json()?,
        TestFormat::Junit => report.junit(),
    };
    read.left_out.mark(&mut page, test.output)?;
    page.print()?;
    Ok(outcome(&results))
}

/// The names of the policies that select no endpoint of the input, so that no expectation can test them.
fn idle_policies(cluster: &Cluster) -> Vec<String> {
    let mut selection = Selection::new(&cluster.labels);
    // Endpoints are sorted by namespace.
    let mut selects = |policy: &Policy| {
        let first = cluster.endpoints.partition_point(|it| it.namespace < policy.namespace);
        let own = cluster.endpoints[first..].iter().take_while(|it| it.namespace == policy.namespace);
        let mut members = own.filter(|it| it.standing == Standing::Member);
        members.any(|it| selection.matches(&cluster.labels, policy.subjects, it.labels))
    };
    let all = cluster.policies.iter().zip(0..).filter(|(policy, _)| !selects(policy));
    all.map(|(_, id)| cluster.policy_name(PolicyId(id))).collect()
}

fn outcome(results: &[ExpectationResult]) -> CommandOutcome {
    let any = |is: fn(&ExpectationStatus) -> bool| results.iter().any(|it| is(&it.status));
    match () {
        () if any(|status| matches!(status, ExpectationStatus::Unresolved(_))) => CommandOutcome::Failed,
        () if any(|status| matches!(status, ExpectationStatus::Failed(_))) => CommandOutcome::Findings,
        () => CommandOutcome::Clean,
    }
}

fn load(path: &Path, stdin_read: bool) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    }
    if stdin_read {
        return Err(with_hint("standard input (`-`) is named twice", "it can contain either objects or expectations"));
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
