//! The plain manifests in `deploy/`: the chart in `deploy/chart`, rendered by Helm with its own values.
//!
//! The chart is the only source. The manifests have no labels that say that Helm manages the objects.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::helm::{self, Helm};

/// The release's name and namespace in the plain manifests.
const RELEASE: &str = "weir";
const NAMESPACE: &str = "kube-system";
const FROM: &str = "# Made from deploy/chart by `cargo xtask deploy`.";
const UNINSTALLER: &str = "templates/uninstall/daemonset.yaml";

/// Writes the manifests.
pub fn write() -> Result<()> {
    let helm = helm::build()?;
    for (name, text) in plain(&helm)? {
        fs::write(directory().join(name), text)?;
    }
    Ok(())
}

/// The names of the files in `deploy/` with their expected contents.
pub fn plain(helm: &Helm) -> Result<[(&'static str, String); 2]> {
    let agent = with(helm, &[])?;
    let uninstaller = template(helm, &[], &["--show-only", UNINSTALLER])?;
    let after =
        "# Removes from every node what Weir left there. Apply it after the agents are deleted: see docs/deploying.md.";
    Ok([("weir.yaml", agent), ("uninstall.yaml", format!("{FROM}\n{after}\n{}", without_helm(&uninstaller)))])
}

/// The agent's plain manifests with these values instead of the chart's own.
pub fn with(helm: &Helm, choices: &[(&str, &str)]) -> Result<String> {
    let rendered = template(helm, choices, &["--include-crds", "--no-hooks"])?;
    Ok(format!("{FROM} Apply with `kubectl apply --server-side -f`.\n{}", without_helm(&rendered)))
}

/// Everything that Helm would create, hooks too.
pub fn template(helm: &Helm, choices: &[(&str, &str)], flags: &[&str]) -> Result<String> {
    let chart = chart().display().to_string();
    let sets: Vec<String> = choices.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut arguments = vec!["template", RELEASE, &chart, "--namespace", NAMESPACE];
    arguments.extend(flags);
    sets.iter().for_each(|set| arguments.extend(["--set", set]));
    helm.run(&arguments)
}

/// The text without the lines that only Helm needs.
fn without_helm(text: &str) -> String {
    const HELM: [&str; 3] = ["# Source: ", "helm.sh/", "app.kubernetes.io/managed-by: "];
    let lines: Vec<&str> = text.lines().collect();
    let mut kept = String::new();
    for (number, line) in lines.iter().enumerate() {
        let next = lines.get(number + 1).map_or("", |next| next.trim());
        // Annotations stay if one of them does; Helm's hooks come first.
        let is_empty = line.trim() == "annotations:" && next.starts_with(HELM[1]);
        let is_helms = HELM.iter().any(|it| line.trim_start().starts_with(it));
        if !is_empty && !is_helms {
            kept += line;
            kept.push('\n');
        }
    }
    kept
}

/// `deploy/` of the repository.
pub fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// The directory of the chart.
pub fn chart() -> PathBuf {
    directory().join("chart")
}

/// Reads a file of `deploy/`.
pub fn read(name: &str) -> Result<String> {
    let path: &Path = &directory().join(name);
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_helms_own_lines_are_left_out() {
        let text = "---\n# Source: weir/x.yaml\nmetadata:\n  labels:\n    app.kubernetes.io/managed-by: Helm\n    a: b\n  \
                    annotations:\n    helm.sh/hook: post-delete\nspec:\n  annotations:\n    c: d\n";
        let kept = "---\nmetadata:\n  labels:\n    a: b\nspec:\n  annotations:\n    c: d\n";
        assert_eq!(without_helm(text), kept);
    }
}
