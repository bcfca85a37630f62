//! The results of the suite's tests, and whether upstream's report agrees with them.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// All probes that were made passed, and others were left out.
    PassedInPart,
    /// All probes were left out.
    Skipped,
    Failed,
}

#[derive(Debug)]
struct TestResult {
    name: String,
    outcome: Outcome,
    /// The number of probes.
    made: u64,
    left_out: u64,
}

/// The results of all tests.
#[derive(Debug)]
pub(super) struct SuiteResults(Vec<TestResult>);

impl TestResult {
    fn parse(line: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        let number = |name: &str| value[name].as_u64().with_context(|| format!("no {name}"));
        let (made, left_out) = (number("made")?, number("leftOut")?);
        let outcome = match (value["failed"].as_bool().context("no result")?, made, left_out) {
            // A test that makes no probe tests nothing.
            (true, _, _) | (false, 0, 0) => Outcome::Failed,
            (false, 0, _) => Outcome::Skipped,
            (false, _, 0) => Outcome::Passed,
            (false, _, _) => Outcome::PassedInPart,
        };
        Ok(Self { name: value["name"].as_str().context("no name")?.to_owned(), outcome, made, left_out })
    }
}

impl SuiteResults {
    /// Parses the lines that the suite writes, one for each test.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let results = text.lines().map(|line| TestResult::parse(line).with_context(|| format!("in the result {line}")));
        results.collect::<Result<_>>().map(Self)
    }

    fn count(&self, outcomes: &[Outcome]) -> u64 {
        self.0.iter().filter(|test| outcomes.contains(&test.outcome)).count() as u64
    }

    /// Prints the result of each test and the totals.
    pub(super) fn print(&self) {
        for test in &self.0 {
            let outcome = match test.outcome {
                Outcome::Passed => "passed",
                Outcome::PassedInPart => "in part",
                Outcome::Skipped => "skipped",
                Outcome::Failed => "failed",
            };
            let (made, left_out) = (test.made, test.left_out);
            println!("{outcome:8} {made:3} probes, {left_out:3} of SCTP left out  {}", test.name);
        }
        let (made, left_out) =
            self.0.iter().fold((0, 0), |(made, left_out), it| (made + it.made, left_out + it.left_out));
        println!(
            "{} passed, {} passed in part, {} skipped, {} failed; {made} probes, {left_out} of SCTP left out",
            self.count(&[Outcome::Passed]),
            self.count(&[Outcome::PassedInPart]),
            self.count(&[Outcome::Skipped]),
            self.count(&[Outcome::Failed]),
        );
    }

    /// Whether no test failed, and upstream's report counts each test as it ended.
    pub(super) fn check(&self, report: &str) -> Result<()> {
        let counts = [
            ("Passed", self.count(&[Outcome::Passed])),
            ("Skipped", self.count(&[Outcome::PassedInPart, Outcome::Skipped])),
            ("Failed", self.count(&[Outcome::Failed])),
        ];
        for (name, ours) in counts {
            let reported = reported(report, name)?;
            ensure!(reported == ours, "the report counts {reported} tests as {name}, their results {ours}");
        }
        ensure!(self.count(&[Outcome::Failed]) == 0, "not all tests passed");
        ensure!(self.count(&[Outcome::Passed]) > 0, "no test passed");
        Ok(())
    }
}

/// The sum of the report's statistics of this name: one for standard and one for experimental features.
fn reported(report: &str, name: &str) -> Result<u64> {
    let numbers = report.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
    numbers.map(|it| it.parse::<u64>().with_context(|| format!("{name}: {it} in the report"))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(tests: &[(bool, u64, u64)]) -> SuiteResults {
        let line = |&(failed, made, left_out): &(bool, u64, u64)| {
            format!("{{\"failed\":{failed},\"leftOut\":{left_out},\"made\":{made},\"name\":\"t\"}}\n")
        };
        SuiteResults::parse(&tests.iter().map(line).collect::<String>()).expect("as the suite writes them")
    }

    /// A report in upstream's format.
    fn report([standard, experimental]: [[u64; 3]; 2]) -> String {
        let statistics = |[passed, skipped, failed]: [u64; 3]| {
            format!("    statistics:\n      Failed: {failed}\n      Passed: {passed}\n      Skipped: {skipped}\n")
        };
        format!(
            "kind: ConformanceReport\nprofiles:\n- experimental:\n    result: success\n{}  name: ClusterNetworkPolicy\n  \
             standard:\n    result: partial\n    skippedTests:\n    - Skipped\n{}",
            statistics(experimental),
            statistics(standard)
        )
    }

    #[test]
    fn tests_with_probes_left_out_are_not_counted_as_passed() {
        let outcomes = |tests| results(tests).0.iter().map(|it| it.outcome).collect::<Vec<_>>();
        assert_eq!(
            outcomes(&[(false, 8, 0), (false, 8, 2), (false, 0, 2), (true, 8, 2), (true, 8, 0), (false, 0, 0)]),
            [
                Outcome::Passed,
                Outcome::PassedInPart,
                Outcome::Skipped,
                Outcome::Failed,
                Outcome::Failed,
                Outcome::Failed
            ]
        );
        assert!(SuiteResults::parse(r#"{"name":"t","failed":false,"made":1}"#).is_err());
    }

    #[test]
    fn failed_tests_and_reports_that_count_otherwise_are_errors() {
        let of = |tests: &[_], counts| results(tests).check(&report(counts)).is_ok();
        let good = [(false, 8, 0), (false, 8, 0), (false, 8, 2), (false, 0, 2)];
        assert!(of(&good, [[1, 2, 0], [1, 0, 0]]));
        assert!(!of(&good, [[2, 1, 0], [1, 0, 0]]), "a partial test was reported as passed");
        assert!(!of(&good, [[1, 2, 0], [0, 0, 0]]), "a test is missing");
        assert!(!of(&[(false, 8, 0), (true, 8, 0)], [[1, 0, 1], [0, 0, 0]]), "a test failed");
        assert!(!of(&[(false, 0, 2)], [[0, 1, 0], [0, 0, 0]]), "no test passed");
    }
}
