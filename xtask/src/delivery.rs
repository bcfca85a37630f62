//! Checks the files that other programs read (workflows, packages, manifests) with those programs' own checkers.
//!
//! Strategy: the checkers are built or installed below `target/delivery`, from their registries and in fixed versions;
//! nothing is installed on the machine. A check is a command. All of them run, and the failed ones are listed at the end.
//! The files of a release are checked if `cargo xtask dist` has made them.
//! It takes minutes, so it is not a part of `cargo xtask ci`; `xtask/tests/delivery.rs` has the quick checks.

mod release;
mod schemas;
mod tools;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use xtask::apiserver::KUBERNETES;
use xtask::dist;
use xtask::process::{capture, cargo, run};

use tools::Tools;

/// Runs the checks.
pub(crate) fn check() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let tools = Tools::install()?;
    let mut checks = Checks { root, tools, passed: 0, failed: Vec::new() };
    checks.forge()?;
    checks.deployment()?;
    checks.crates();
    match dist::directory().join("SHA256SUMS").exists() {
        true => release::check(&mut checks, &dist::directory())?,
        false => eprintln!("\nnote: no files of a release are checked: `cargo xtask dist` makes them"),
    }
    checks.report()
}

struct Checks {
    root: PathBuf,
    tools: Tools,
    passed: usize,
    failed: Vec<String>,
}

impl Checks {
    fn run(&mut self, command: &mut Command) {
        match run(command.current_dir(&self.root)) {
            Ok(()) => self.passed += 1,
            Err(error) => {
                eprintln!("FAILED: {error:#}");
                self.failed.push(format!("{error:#}"));
            }
        }
    }

    /// A checker with these arguments.
    fn tool(&mut self, name: &str, arguments: &[impl AsRef<OsStr>]) {
        let mut command = self.tools.command(name);
        self.run(command.args(arguments));
    }

    /// Workflows, the action, hooks and templates.
    fn forge(&mut self) -> Result<()> {
        let workflows = self.files(".github/workflows", "yml")?;
        let scripts = self.files(".github/action", "sh")?;
        let forms = self.files(".github/ISSUE_TEMPLATE", "yml")?;
        let (settings, forms): (Vec<_>, Vec<_>) = forms.into_iter().partition(|it| it.ends_with("config.yml"));
        self.tool("actionlint", &workflows);
        self.tool("actionlint", &["docs/ci/github-workflow.yml"]);
        self.tool("shellcheck", &[scripts, vec![".ci/run".into(), "docs/ci/pre-commit".into()]].concat());
        self.schema("github-workflows", &workflows);
        self.schema("github-actions", &["action.yml".into()]);
        self.schema("github-issue-forms", &forms);
        self.schema("github-issue-config", &settings);
        self.schema("dependabot", &[".github/dependabot.yml".into()]);
        self.schema("gitlab-ci", &["docs/ci/gitlab-ci.yml".into()]);
        self.tool("pre-commit", &["validate-manifest", ".pre-commit-hooks.yaml"]);
        self.tool("pre-commit", &["validate-config", "docs/ci/pre-commit-config.yaml"]);
        Ok(())
    }

    fn schema(&mut self, name: &str, files: &[PathBuf]) {
        let mut command = self.tools.command("check-jsonschema");
        self.run(command.arg("--builtin-schema").arg(format!("vendor.{name}")).args(files));
    }

    /// The chart and the plain manifests.
    fn deployment(&mut self) -> Result<()> {
        self.tool("helm", &["lint", "--strict", "deploy/chart"]);
        let rendered = self.tools.directory.join("chart.yaml");
        let mut template = vec!["template", "weir", "deploy/chart", "--namespace", "kube-system", "--include-crds"];
        // Without a cluster, helm assumes an old version.
        template.extend(["--kube-version", KUBERNETES]);
        let text = capture(self.tools.command("helm").current_dir(&self.root).args(template))?;
        fs::write(&rendered, text).with_context(|| format!("cannot write {}", rendered.display()))?;
        let schemas = schemas::write(&self.tools.directory)?;
        let mut command = self.tools.command("kubeconform");
        command.args(["-strict", "-summary", "-ignore-missing-schemas", "-schema-location"]).arg(schemas);
        self.run(command.arg("deploy/weir.yaml").arg(rendered));
        Ok(())
    }

    /// What would be uploaded to the registry of crates, compiled from the packed files.
    fn crates(&mut self) {
        self.run(&mut cargo(&["publish", "--workspace", "--dry-run", "--locked", "--allow-dirty"]));
    }

    /// The files with an extension, relative to the repository.
    fn files(&self, directory: &str, extension: &str) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.root.join(directory)).with_context(|| format!("cannot read {directory}"))?;
        let paths =
            entries.map(|entry| Ok(Path::new(directory).join(entry?.file_name()))).collect::<Result<Vec<_>>>()?;
        let mut found: Vec<PathBuf> =
            paths.into_iter().filter(|it| it.extension().is_some_and(|it| it == extension)).collect();
        found.sort();
        Ok(found)
    }

    fn report(self) -> Result<()> {
        println!("\n{} checks passed, {} failed", self.passed, self.failed.len());
        if !self.failed.is_empty() {
            bail!("failed:\n{}", self.failed.join("\n"));
        }
        Ok(())
    }
}
