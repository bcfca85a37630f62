//! Kubernetes' own end-to-end tests of NetworkPolicy, on the running cluster.
//!
//! The results come from the suite's own report. Tests of SCTP are left out if the kernel does not have it: their
//! servers could not listen.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::apiserver;

use super::{LocalCluster, control, images, runtime};

/// The image of the tests' pods, under the name to which [`REPOSITORY`] redirects.
const AGNHOST: &str = "weir.dev/agnhost:2.59";
const REPOSITORY: &str = "promoterE2eRegistry: weir.dev\n";
const FOCUS: &str = "Netpol|NetworkPolicy";

/// Runs the tests whose names match, or all tests of NetworkPolicy.
pub(super) fn run(cluster: &LocalCluster, focus: Option<&str>) -> Result<()> {
    let tests = build(cluster)?;
    cluster.deploy()?;
    let reports = cluster.tools.run().join("suite");
    fs::create_dir_all(&reports)?;
    let repository = reports.join("repository.yaml");
    fs::write(&repository, REPOSITORY)?;
    let report = reports.join("report.json");
    let mut command = cluster.first().command(tests);
    command
        .env("KUBE_TEST_REPO_LIST", repository)
        .arg("--kubeconfig")
        .arg(control::kubeconfig(&cluster.tools, "admin"));
    command.args(["--provider=skeleton", "--ginkgo.no-color", "--ginkgo.focus", focus.unwrap_or(FOCUS)]);
    command.arg("--ginkgo.json-report").arg(&report);
    if !has_sctp() {
        command.args(["--ginkgo.skip", "SCTPConnectivity"]);
    }
    let log = reports.join("output.log");
    eprintln!("running tests of {}; their output is in {}", focus.unwrap_or(FOCUS), log.display());
    // The exit code is ignored: it is also nonzero if a test fails, and the report says which one.
    _ = command.stdout(fs::File::create(&log)?).status();
    let report = fs::read_to_string(&report).context("the tests did not write a report")?;
    check_report(&serde_json::from_str(&report)?)
}

/// Whether the kernel has SCTP.
pub(super) fn has_sctp() -> bool {
    fs::metadata("/proc/sys/net/sctp").is_ok()
}

/// Builds the tests and the image of their pods.
fn build(cluster: &LocalCluster) -> Result<PathBuf> {
    let bin = cluster.tools.bin("suite");
    let image = images::agnhost(&cluster.tools, AGNHOST, &["/agnhost"])?;
    apiserver::build_tests(&bin.join("e2e.test"), "k8s.io/kubernetes/test/e2e")?;
    cluster.nodes.iter().try_for_each(|node| runtime::import(node, &cluster.tools, &image))?;
    Ok(bin.join("e2e.test"))
}

/// Prints the result of each test and the totals.
fn check_report(report: &Value) -> Result<()> {
    let tests =
        report.as_array().into_iter().flatten().flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    let (mut passed, mut failed) = (0, 0);
    for test in tests.filter(|test| test["LeafNodeType"] == "It" && test["State"] != "skipped") {
        let seconds = test["RunTime"].as_u64().unwrap_or_default() / 1_000_000_000;
        println!("{:8} {seconds:4} s  {}", test["State"].as_str().unwrap_or_default(), name(test));
        match test["State"].as_str() {
            Some("passed") => passed += 1,
            _ => failed += 1,
        }
    }
    println!("{passed} passed, {failed} failed");
    ensure!(failed == 0 && passed > 0, "not all tests passed");
    Ok(())
}

fn name(test: &Value) -> String {
    let above = test["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let texts = above.chain([&test["LeafNodeText"]]).filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failed_test_and_a_report_without_tests_are_errors() {
        let of = |states: &[&str]| {
            let reports: Vec<Value> =
                states.iter().map(|state| json!({"LeafNodeType": "It", "State": state, "LeafNodeText": "t"})).collect();
            check_report(&json!([{"SpecReports": reports}]))
        };
        assert!(of(&["passed", "skipped"]).is_ok());
        assert!(of(&["passed", "panicked"]).is_err());
        assert!(of(&["skipped"]).is_err());
    }
}
