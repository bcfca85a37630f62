//! The source of the suite: a copy of upstream's module with a few changes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use xtask::apiserver;

const MODULE: &str = "sigs.k8s.io/network-policy-api@v0.2.0";
/// The definition with all of the fields that the suite uses.
pub(super) const CRD: &str = "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml";
/// The parts of the module that the suite needs.
const PARTS: [&str; 5] = ["go.mod", "go.sum", "apis", "config/crd", "conformance"];
const PROBES: &str = include_str!("../../../conformance/probes.go");

/// A text of the suite, and what replaces it.
struct Change {
    path: &'static str,
    from: &'static str,
    to: &'static str,
}

/// Counts probes.
const COUNTED: [Change; 2] = [
    Change {
        path: "conformance/utils/kubernetes/helper.go",
        from: "timeoutConfig config.TimeoutConfig, shouldConnect bool) {\n",
        to: "timeoutConfig config.TimeoutConfig, shouldConnect bool) {\n\tif leavesOut(protocol) {\n\t\treturn\n\t}\n",
    },
    Change {
        path: "conformance/utils/suite/suite.go",
        from: "\ttest.Test(t, suite)\n",
        to: "\tdefer kubernetes.RecordProbes(t, test.ShortName, suite.SkipTests)\n\ttest.Test(t, suite)\n",
    },
];

/// Replaces the servers that exit if the kernel has no SCTP: a pod with one is never ready.
const WITHOUT_SCTP: Change =
    Change { path: "conformance/base/manifests.yaml", from: r#""/agnhost porter""#, to: r#""sleep 2147483647""# };

/// Makes the copy anew and returns its directory.
pub(super) fn prepare(directory: &Path, with_sctp: bool) -> Result<PathBuf> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let directory = directory.canonicalize()?;
    let module = apiserver::module(&directory, MODULE)?;
    PARTS.iter().try_for_each(|part| copy(&module.join(part), &directory.join(part)))?;
    fs::write(directory.join("conformance/utils/kubernetes/probes.go"), PROBES)?;
    for change in COUNTED.iter().chain(Some(&WITHOUT_SCTP).filter(|_| !with_sctp)) {
        let path = directory.join(change.path);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        fs::write(&path, change.apply(&text)?)?;
    }
    Ok(directory)
}

impl Change {
    /// An upstream version without the text is an error: its probes would not be counted.
    fn apply(&self, text: &str) -> Result<String> {
        ensure!(text.contains(self.from), "{MODULE}: {} does not contain {:?}", self.path, self.from);
        Ok(text.replace(self.from, self.to))
    }
}

/// Copies a file or directory, without the module cache's permissions, which forbid changes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        fs::create_dir_all(to)?;
        return fs::read_dir(from)?.try_for_each(|entry| {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name))
        });
    }
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    Ok(fs::write(to, bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suite_without_the_expected_text_is_an_error() {
        let change = Change { path: "p", from: "a", to: "b" };
        assert_eq!(change.apply("a a c").expect("the text contains it"), "b b c");
        assert!(change.apply("c").is_err());
    }
}
