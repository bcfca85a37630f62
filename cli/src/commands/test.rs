//! `weir test`: a file of expectations about flows.

mod bless;
mod coverage;
mod file;
mod report;

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use weir_analysis::world::{DescribedPod, labels_text};
use weir_model::eval::{Oracle, Verdict};
use weir_model::labels::{Selection, matches};
use weir_model::{Cluster, Policy, PolicyId, Standing};
use weir_policy::answers::FlowDescription;
use weir_policy::endpoint_lookup::EndpointLookup;
use weir_policy::question::{FlowQuestion, JudgedPacket};
use weir_policy::{possible_pods, verdict_reasons};

use super::CommandOutcome;
use crate::args::{GlobalArgs, TestArgs, TestFormat, World};
use crate::failure::with_hint;
use crate::left_out::NoteForm;
use crate::page::OutputPage;
use crate::read::{self, ReadInput};
use coverage::Coverage;
use file::Expectation;
use report::TestReport;

/// The result of one expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectationStatus {
    Passed,
    /// The flow has the other verdict; with the reasons.
    Failed(Vec<String>),
    /// Not every pod that the expectation describes has the verdict; with a pod that has the other one.
    Depends {
        on: Vec<String>,
        because: Vec<String>,
    },
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
    /// A flow of described pods that has the other verdict.
    counterexample: Option<Value>,
    /// The packets that were judged.
    packets: Vec<JudgedPacket>,
}

/// Items of a list of `--coverage` that text shows by default.
const MOST_FOR_PEOPLE: usize = 20;
/// Expectations that fail, which text shows by default.
const MOST_FAILURES: usize = 100;

pub(crate) fn run(global: &GlobalArgs, test: &TestArgs) -> Result<CommandOutcome> {
    if test.bless {
        bless::check(&test.expectations)?;
    }
    let Some(read) = read::read_valid(global, &test.input)? else { return Ok(CommandOutcome::Failed) };
    let name = test.expectations.display().to_string();
    let bytes = load(&test.expectations, read.stdin_read)?;
    let expectations = file::parse(bytes.clone(), &name)?;
    let mut results = results(&read, expectations, test.world);
    if test.bless {
        bless::bless(&test.expectations, bytes, &mut results)?;
        // Standard output is the patch.
        read.left_out.mark(&mut OutputPage::new(), NoteForm::Stderr)?;
        return Ok(outcome(&results));
    }
    let coverage = if test.coverage { Some(Coverage::new(&read.cluster, &results, most(test))?) } else { None };
    let idle = idle_policies(&read.cluster, &results);
    let report = TestReport { file: &name, results: &results, idle: &idle, coverage: coverage.as_ref() };
    let mut page = match test.output {
        TestFormat::Text => report.text(global.quiet, most_failures(test)),
        TestFormat::Json => report.json()?,
        TestFormat::Junit => report.junit(),
    };
    read.left_out.mark(&mut page, test.output)?;
    page.print()?;
    Ok(outcome(&results))
}

/// Whether all expectations of a text hold.
pub(super) fn all_hold(read: &ReadInput, text: &str) -> Result<bool> {
    let results = results(read, file::parse(text.into(), "expectations")?, World::Open);
    Ok(results.iter().all(|it| it.status == ExpectationStatus::Passed))
}

/// The number of items that each list of `--coverage` shows.
fn most(test: &TestArgs) -> usize {
    match (test.max, test.output) {
        (Some(0), _) | (None, TestFormat::Json | TestFormat::Junit) => usize::MAX,
        (Some(max), _) => max,
        (None, TestFormat::Text) => MOST_FOR_PEOPLE,
    }
}

/// The number of expectations that fail and are shown.
fn most_failures(test: &TestArgs) -> usize {
    match test.max {
        Some(0) => usize::MAX,
        Some(max) => max,
        None => MOST_FAILURES,
    }
}

/// Asks each expectation's question.
fn results(read: &ReadInput, expectations: Vec<Expectation>, world: World) -> Vec<ExpectationResult> {
    let lookup = EndpointLookup { cluster: &read.cluster, default_namespace: &read.default_namespace };
    let mut oracle = Oracle::new(&read.cluster);
    expectations.into_iter().map(|it| result(read, &lookup, &mut oracle, it, world)).collect()
}

fn result<'c>(
    read: &ReadInput,
    lookup: &EndpointLookup<'c>,
    oracle: &mut Oracle<'c>,
    expectation: Expectation,
    world: World,
) -> ExpectationResult {
    let asked = match expectation.described().next().is_some() && world == World::Closed {
        true => Err(possible_pods::CLOSED.to_owned()),
        false => expectation.question().ask(lookup, oracle),
    };
    let namesake = asked.as_ref().ok().and_then(|answer| answer.namesake);
    let note = namesake.map(|it| FlowQuestion::namesake_note(&read.cluster, it));
    let wrong = |it: &&JudgedPacket| it.judgement.verdict() != expectation.verdict;
    let failed = asked.as_ref().ok().filter(|it| it.verdict() != Some(expectation.verdict));
    let counterexample = failed.and_then(|it| counterexample(&read.cluster, it.packets.iter().find(wrong)?));
    let packets = asked.as_ref().map(|answer| answer.packets.clone()).unwrap_or_default();
    let status = match asked {
        Err(reason) => {
            let question = expectation.question();
            let reason = question.reason_with_similar_name(reason, lookup, oracle.directory());
            ExpectationStatus::Unresolved(reason)
        }
        Ok(answer) if answer.verdict() == Some(expectation.verdict) => ExpectationStatus::Passed,
        Ok(answer) => {
            let packets = answer.packets.iter().filter(wrong);
            let because = packets.flat_map(|it| reasons(&read.cluster, it)).collect();
            match answer.verdict_if.filter(|it| !it.fields.is_empty()) {
                Some(conditions) => ExpectationStatus::Depends { on: conditions.fields, because },
                None => ExpectationStatus::Failed(because),
            }
        }
    };
    ExpectationResult { expectation, status, note, counterexample, packets }
}

/// The flow of a packet between examples of described pods.
fn counterexample(input: &Cluster, packet: &JudgedPacket) -> Option<Value> {
    let example = packet.example.as_ref()?;
    let pods = example.pods.each_ref().map(Option::as_ref);
    Some(json!(FlowDescription::of(packet.cluster(input), &packet.flow, pods)))
}

/// The reasons for a packet's verdict, after its examples of described pods.
fn reasons(input: &Cluster, packet: &JudgedPacket) -> Vec<String> {
    let cluster = packet.cluster(input);
    let mut lines = Vec::new();
    if let Some(example) = &packet.example {
        for (pod, added) in example.pods.iter().zip(&example.added) {
            let (Some(pod), Some(added)) = (pod, added) else { continue };
            lines.push(format!("example: {}/{} with {added}", pod.namespace, labels_text(&pod.labels)));
        }
    }
    lines.extend(verdict_reasons::lines(cluster, &packet.judgement));
    lines
}

/// The names of the policies that select no endpoint of the input and no described pod, so that no expectation tests
/// them.
fn idle_policies(cluster: &Cluster, results: &[ExpectationResult]) -> Vec<String> {
    let described: Vec<&DescribedPod> = results.iter().flat_map(|it| it.expectation.described()).collect();
    let mut selection = Selection::new(&cluster.labels);
    // Endpoints are sorted by namespace.
    let mut selects = |policy: &Policy| {
        let first = cluster.endpoints.partition_point(|it| it.namespace < policy.namespace);
        let own = cluster.endpoints[first..].iter().take_while(|it| it.namespace == policy.namespace);
        let mut members = own.filter(|it| it.standing == Standing::Member);
        let is_selected = |pod: &&DescribedPod| {
            cluster.namespaces[policy.namespace.index()].name == pod.namespace
                && matches(cluster.labels.selector(policy.subjects), &pod.labels)
        };
        members.any(|it| selection.matches(&cluster.labels, policy.subjects, it.labels))
            || described.iter().any(is_selected)
    };
    let all = cluster.policies.iter().zip(0..).filter(|(policy, _)| !selects(policy));
    all.map(|(_, id)| cluster.policy_name(PolicyId(id))).collect()
}

fn outcome(results: &[ExpectationResult]) -> CommandOutcome {
    let any = |is: fn(&ExpectationStatus) -> bool| results.iter().any(|it| is(&it.status));
    match () {
        () if any(|status| matches!(status, ExpectationStatus::Unresolved(_))) => CommandOutcome::Failed,
        () if any(|status| matches!(status, ExpectationStatus::Failed(_) | ExpectationStatus::Depends { .. })) => {
            CommandOutcome::Findings
        }
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
