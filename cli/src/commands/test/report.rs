//! The results of expectations: for people, for programs, for CI systems.

use serde_json::{Value, json};
use weir_policy::verdict_reasons::verdict_name;

use super::coverage::Coverage;
use super::{ExpectationResult, ExpectationStatus, opposite};
use crate::page::OutputPage;
use crate::render::text::count;
use crate::views::words::xml;

/// The results of a run, and the policies that no expectation can test.
pub(super) struct TestReport<'r> {
    /// The name of the expectations' file.
    pub(super) file: &'r str,
    pub(super) results: &'r [ExpectationResult],
    /// Policies that select no endpoint of the input.
    pub(super) idle: &'r [String],
    /// With `--coverage`.
    pub(super) coverage: Option<&'r Coverage>,
}

impl TestReport<'_> {
    /// As cargo prints tests: one line for each, at most `most` of those that fail, then the numbers.
    pub(super) fn text(&self, quiet: bool, most: usize) -> OutputPage {
        let mut page = text(self.file, self.results, quiet, most);
        for policy in self.idle.iter().filter(|_| !quiet) {
            page.line(format_args!(
                "note: policy {policy} selects no pod or workload of the input, so nothing tests it"
            ));
        }
        if let Some(coverage) = self.coverage {
            if !quiet {
                page.blank();
            }
            coverage.print(&mut page);
        }
        page
    }

    /// docs/schema/test.json
    pub(super) fn json(&self) -> serde_json::Result<OutputPage> {
        let tally = ResultCounts::of(self.results);
        let results: Vec<Value> = self.results.iter().map(result).collect();
        let mut document = json!({
            "file": self.file,
            "results": results,
            "summary": {"passed": tally.passed, "failed": tally.failed, "unresolved": tally.unresolved},
        });
        if !self.idle.is_empty() {
            document["untested"] = json!(self.idle);
        }
        if let Some(coverage) = self.coverage {
            document["coverage"] = coverage.json();
        }
        let mut page = OutputPage::new();
        page.pretty_json(&document)?;
        Ok(page)
    }

    /// JUnit XML, as CI systems read it.
    pub(super) fn junit(&self) -> OutputPage {
        let mut page = junit(self.file, self.results);
        self.idle.iter().rev().for_each(|policy| page.junit_property("untested policy", &xml(policy)));
        page
    }
}

fn text(file: &str, results: &[ExpectationResult], quiet: bool, most: usize) -> OutputPage {
    let mut page = OutputPage::new();
    let mut failures = 0;
    for it in results {
        failures += usize::from(it.status != ExpectationStatus::Passed);
        if it.status != ExpectationStatus::Passed && failures > most {
            continue;
        }
        let (name, place) = (&it.expectation.name, format!("{file}:{}", it.expectation.line));
        match &it.status {
            ExpectationStatus::Passed if quiet => {}
            ExpectationStatus::Passed => page.line(format_args!("ok      {name}")),
            ExpectationStatus::Failed(why) | ExpectationStatus::Depends { because: why, .. } => {
                page.line(format_args!("FAILED  {name}"));
                page.line(format_args!("          {place}: {}", message(it)));
                why.iter().for_each(|line| page.line(format_args!("          {line}")));
            }
            ExpectationStatus::Unresolved(reason) => {
                page.line(format_args!("ERROR   {name}"));
                page.line(format_args!("          {place}: {reason}"));
            }
        }
        if let Some(note) = it.note.as_ref().filter(|_| !quiet || it.status != ExpectationStatus::Passed) {
            page.line(format_args!("          note: {note}"));
        }
    }
    if failures > most {
        page.line(format_args!("and {} more that did not pass (--max 0 shows all)", failures - most));
    }
    let tally = ResultCounts::of(results);
    if !quiet || tally.failed + tally.unresolved > 0 {
        let ResultCounts { passed, failed, unresolved } = tally;
        let unresolved = if unresolved > 0 { format!(", {unresolved} could not be evaluated") } else { String::new() };
        page.line(format_args!(
            "{}: {passed} passed, {failed} failed{unresolved}",
            count(results.len(), "expectation")
        ));
    }
    page
}

fn result(it: &ExpectationResult) -> Value {
    let (status, because, reason) = match &it.status {
        ExpectationStatus::Passed => ("passed", &[][..], None),
        ExpectationStatus::Failed(why) | ExpectationStatus::Depends { because: why, .. } => {
            ("failed", why.as_slice(), None)
        }
        ExpectationStatus::Unresolved(reason) => ("unresolved", &[][..], Some(reason)),
    };
    let mut value = json!({
        "name": it.expectation.name,
        "line": it.expectation.line,
        "expect": verdict_name(it.expectation.verdict),
        "status": status,
        "because": because,
        "reason": reason,
    });
    if let Some(counterexample) = &it.counterexample {
        value["counterexample"] = counterexample.clone();
    }
    value
}

fn junit(file: &str, results: &[ExpectationResult]) -> OutputPage {
    let tally = ResultCounts::of(results);
    let attributes =
        format!("tests=\"{}\" failures=\"{}\" errors=\"{}\"", results.len(), tally.failed, tally.unresolved);
    let mut page = OutputPage::new();
    page.line("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    page.line(format_args!("<testsuites {attributes}>"));
    page.line(format_args!("  <testsuite name=\"{}\" {attributes}>", xml(file)));
    results.iter().for_each(|it| case(&mut page, file, it));
    page.line("  </testsuite>");
    page.line("</testsuites>");
    page
}

fn case(page: &mut OutputPage, file: &str, it: &ExpectationResult) {
    let name = xml(&it.expectation.name);
    let open = format!("    <testcase classname=\"{}\" name=\"{name}\" line=\"{}\"", xml(file), it.expectation.line);
    let (element, message, details) = match &it.status {
        ExpectationStatus::Passed => return page.line(format_args!("{open}/>")),
        ExpectationStatus::Failed(why) | ExpectationStatus::Depends { because: why, .. } => {
            ("failure", message(it), why.iter().map(|it| xml(it)).collect::<Vec<_>>().join("&#10;"))
        }
        ExpectationStatus::Unresolved(reason) => ("error", reason.clone(), String::new()),
    };
    page.line(format_args!("{open}>"));
    page.line(format_args!("      <{element} message=\"{}\">{details}</{element}>", xml(&message)));
    page.line("    </testcase>");
}

fn message(it: &ExpectationResult) -> String {
    let expected = it.expectation.verdict;
    if let ExpectationStatus::Depends { on, .. } = &it.status {
        return format!("expected {}, but the verdict depends on {}", verdict_name(expected), on.join(" and "));
    }
    format!("expected {}, but the verdict is {}", verdict_name(expected), verdict_name(opposite(expected)))
}

#[derive(Default)]
struct ResultCounts {
    passed: usize,
    failed: usize,
    unresolved: usize,
}

impl ResultCounts {
    fn of(results: &[ExpectationResult]) -> Self {
        let mut tally = Self::default();
        for it in results {
            *match it.status {
                ExpectationStatus::Passed => &mut tally.passed,
                ExpectationStatus::Failed(_) | ExpectationStatus::Depends { .. } => &mut tally.failed,
                ExpectationStatus::Unresolved(_) => &mut tally.unresolved,
            } += 1;
        }
        tally
    }
}
