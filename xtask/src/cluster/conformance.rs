//! Upstream's conformance suite of ClusterNetworkPolicy, on real clusters.
//!
//! Problem: many of the suite's tests probe SCTP among other protocols, and not every kernel has SCTP. There the pods'
//! servers of SCTP exit, so no pod becomes ready; and upstream can only skip whole tests. Strategy: a changed copy of
//! the suite ([`source`]) counts the probes of each test and leaves out those that the kernel cannot send. Invariants:
//! with SCTP, the tests are upstream's; a test without all of its probes is never reported as passed, here and in
//! upstream's report.

mod results;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use xtask::image::BuildProfile;

use super::options::{ClusterOptions, Cni, Proxy};
use super::{LocalCluster, control, down, images, runtime};
use results::SuiteResults;

/// The image of the suite's pods, by its name in their manifests.
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.45";
const PROFILE: &str = "ClusterNetworkPolicy";
const FEATURES: &str = "ClusterNetworkPolicy,ClusterNetworkPolicyNamedPorts,ClusterNetworkPolicyEgressNodePeers";

/// Runs the suite on the running cluster, or on a new cluster for each combination of plug-in and mode of kube-proxy.
pub(super) fn task() -> Result<()> {
    if let Ok(cluster) = LocalCluster::find() {
        return run(&cluster);
    }
    let mut failed = Vec::new();
    for cni in [Cni::Bridge, Cni::Ptp] {
        for proxy in [Proxy::Iptables, Proxy::Nftables] {
            let options = ClusterOptions { cni, proxy, ..ClusterOptions::default() };
            let result = LocalCluster::up(options.clone()).and_then(|cluster| run(&cluster));
            let ended = down();
            if let Err(error) = result.and(ended) {
                eprintln!("cluster {options}: {error:#}");
                failed.push(options.to_string());
            }
        }
    }
    ensure!(failed.is_empty(), "the suite failed on: {}", failed.join("; "));
    Ok(())
}

/// Runs the suite, prints the result of each test, and writes upstream's report.
fn run(cluster: &LocalCluster) -> Result<()> {
    ensure!(cluster.nodes.len() == 2, "the suite needs two nodes, because its servers on nodes use the same ports");
    let files = cluster.tools.run().join("conformance");
    // Results of an earlier run would be counted again.
    _ = fs::remove_dir_all(&files);
    fs::create_dir_all(&files)?;
    let with_sctp = super::suite::has_sctp();
    if !with_sctp {
        eprintln!("note: this kernel has no SCTP (no /proc/sys/net/sctp), so probes of SCTP are left out");
    }
    let source = source::prepare(&cluster.tools.conformance(), with_sctp)?;
    let tests = files.join("conformance.test");
    xtask::apiserver::build_module_tests(&source, "./conformance", &tests)?;
    let image = images::agnhost(&cluster.tools, AGNHOST, &["/agnhost", "pause"])?;
    cluster.nodes.iter().try_for_each(|node| runtime::import(node, &cluster.tools, &image))?;
    cluster.apply_text("clusternetworkpolicies", &fs::read_to_string(source.join(source::CRD))?)?;
    cluster.deploy()?;
    cluster.remove_conformance_objects()?;
    let results = cluster.run_conformance(&tests, &files, with_sctp)?;
    results.print();
    let report = fs::read_to_string(files.join("report.yaml")).context("the suite did not write a report")?;
    fs::write(report_path(&cluster.options)?, &report)?;
    results.check(&report)
}

/// `docs/conformance/bridge-iptables.yaml`
fn report_path(options: &ClusterOptions) -> Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance");
    fs::create_dir_all(&directory)?;
    Ok(directory.join(format!("{}-{}.yaml", options.cni.name(), options.proxy.name())))
}

impl LocalCluster {
    /// Removes objects that an interrupted run has left.
    fn remove_conformance_objects(&self) -> Result<()> {
        self.kubectl(&["delete", "namespaces", "--selector", "conformance-house"])?;
        self.kubectl(&["delete", "clusternetworkpolicies", "--all"]).map(|_| ())
    }

    fn run_conformance(&self, tests: &Path, files: &Path, with_sctp: bool) -> Result<SuiteResults> {
        let (log, results) = (files.join("output.log"), files.join("results.json"));
        let mut command = self.first().command(tests);
        command.env("KUBECONFIG", control::kubeconfig(&self.tools, "admin")).env("WEIR_RESULTS", &results);
        if !with_sctp {
            command.env("WEIR_WITHOUT_SCTP", "1");
        }
        command.args(["-test.v", "-test.timeout=0", "-test.run=^TestConformanceProfiles$"]);
        command.args([format!("-conformance-profiles={PROFILE}"), format!("-supported-features={FEATURES}")]);
        command.arg(format!("-report-output={}", files.join("report.yaml").display()));
        command.args(["-organization=weir", "-project=weir", "-url=not published", "-contact=SECURITY.md"]);
        command.arg(format!("-version={}", env!("CARGO_PKG_VERSION")));
        command.arg(format!("-additional-info={}", additional_information(&self.options, with_sctp)));
        eprintln!("running the conformance suite; its output is in {}", log.display());
        let output = fs::File::create(&log)?;
        // The exit code is ignored: it is also nonzero if a test fails, and the results say which one.
        _ = command.stdout(output.try_clone()?).stderr(output).status();
        let text = fs::read_to_string(&results).with_context(|| format!("no test ended; see {}", log.display()))?;
        SuiteResults::parse(&text)
    }
}

/// How to make the report again, and which part of the suite it leaves out.
fn additional_information(options: &ClusterOptions, with_sctp: bool) -> String {
    let options = ClusterOptions { profile: BuildProfile::Release, ..options.clone() };
    let left_out = if with_sctp {
        ""
    } else {
        "; the kernel had no SCTP: skipped tests ran without their SCTP probes, and none of their other probes failed"
    };
    format!("cargo xtask cluster up {options}; cargo xtask cluster conformance (docs/howto/run-a-cluster.md){left_out}")
}
