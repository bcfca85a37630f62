//! Builds the binaries of the API server.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::debian;
use crate::process::run;

/// The version of the servers.
pub const KUBERNETES: &str = "1.35.4";
const SERVER: &str = "k8s.io/kubernetes/cmd/kube-apiserver";
const ETCD: &str = "go.etcd.io/etcd/server/v3";
const JUDGE: &str = include_str!("../../judge/main.go");
/// The module of the Network Policy API, and the kinds whose definitions are taken from each version of it.
const POLICY_API: &str = "sigs.k8s.io/network-policy-api";
const DEFINITIONS: [(&str, &str); 3] = [
    ("v0.1.7", "adminnetworkpolicies"),
    ("v0.1.7", "baselineadminnetworkpolicies"),
    ("v0.2.0", "clusternetworkpolicies"),
];

/// The paths of the binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// kube-apiserver
    pub apiserver: PathBuf,
    /// etcd
    pub etcd: PathBuf,
}

/// The binaries if they are built, else an error that says how to build them.
pub fn built() -> Result<Binaries> {
    let directory = super::directory();
    let stamp = fs::read_to_string(directory.join("stamp")).unwrap_or_default();
    ensure!(stamp == KUBERNETES, "kube-apiserver {KUBERNETES} is not built: `cargo xtask apiserver build` (needs Go)");
    let bin = directory.join("bin").canonicalize()?;
    Ok(Binaries { apiserver: bin.join("kube-apiserver"), etcd: bin.join("etcd") })
}

/// The custom resource definitions of cluster-wide policies in a channel (`standard` or `experimental`), if they have
/// been fetched, else an error that says how to do it.
pub fn definitions(channel: &str) -> Result<Vec<PathBuf>> {
    let directory = super::directory().join("definitions");
    let stamp = fs::read_to_string(directory.join("stamp")).unwrap_or_default();
    let hint = "the definitions of cluster-wide policies are missing: `cargo xtask apiserver build` (needs Go)";
    ensure!(stamp == format!("{DEFINITIONS:?}"), "{hint}");
    let file = |(_, plural): &(&str, &str)| directory.join(channel).join(format!("{plural}.yaml"));
    Ok(DEFINITIONS.iter().map(file).collect())
}

fn fetch_definitions() -> Result<()> {
    if definitions("standard").is_ok() {
        return Ok(());
    }
    let directory = made(&super::directory().join("definitions"))?;
    fs::write(directory.join("go.mod"), "module weir.dev/definitions\n")?;
    for (version, plural) in DEFINITIONS {
        let module = module(&directory, &format!("{POLICY_API}@{version}"))?;
        for channel in ["standard", "experimental"] {
            let source = module.join("config/crd").join(channel);
            let text = fs::read(source.join(format!("policy.networking.k8s.io_{plural}.yaml")))?;
            fs::write(made(&directory.join(channel))?.join(format!("{plural}.yaml")), text)?;
        }
    }
    Ok(fs::write(directory.join("stamp"), format!("{DEFINITIONS:?}"))?)
}

/// Builds the binaries and the judge, and fetches the definitions, unless they exist.
pub fn build() -> Result<Binaries> {
    build_judge()?;
    fetch_definitions()?;
    if let Ok(binaries) = built() {
        return Ok(binaries);
    }
    let directory = super::directory();
    let bin = made(&directory.join("bin"))?;
    let source = wrapper()?;
    go_build(&source, &[SERVER], &bin.join("kube-apiserver"))?;
    go_build(&source, &[ETCD], &bin.join("etcd"))?;
    fs::write(directory.join("stamp"), KUBERNETES)?;
    built()
}

/// The program that answers how Kubernetes reads a text, if it is built, else an error that says how to build it.
pub fn judge() -> Result<PathBuf> {
    let directory = super::directory().join("judge");
    let stamp = fs::read_to_string(directory.join("stamp")).unwrap_or_default();
    ensure!(stamp == judge_stamp(), "the judge of texts is not built: `cargo xtask apiserver build` (needs Go)");
    Ok(directory.canonicalize()?.join("judge"))
}

fn judge_stamp() -> String {
    format!("{KUBERNETES}\n{JUDGE}")
}

fn build_judge() -> Result<()> {
    if judge().is_ok() {
        return Ok(());
    }
    let directory = made(&super::directory().join("judge"))?;
    let source = wrapper()?;
    fs::write(made(&source.join("judge"))?.join("main.go"), JUDGE)?;
    go_build(&source, &["./judge"], &directory.join("judge"))?;
    Ok(fs::write(directory.join("stamp"), judge_stamp())?)
}

/// Debian's etcd, which is too old for API servers to stream lists from it.
pub fn old_etcd() -> Result<PathBuf> {
    let directory = super::directory().join("debian");
    debian::unpack(&directory, &["etcd-server"])?;
    Ok(directory.canonicalize()?.join("usr/bin/etcd"))
}

/// Builds programs of the same Kubernetes version into a directory, named by the last part of their paths, unless they
/// exist.
pub fn build_packages(bin: &Path, packages: &[String]) -> Result<()> {
    let wanted = format!("{KUBERNETES} {}", packages.join(" "));
    let stamp = bin.join("stamp");
    if fs::read_to_string(&stamp).is_ok_and(|it| it == wanted) {
        return Ok(());
    }
    go_build(&wrapper()?, packages, &made(bin)?)?;
    Ok(fs::write(stamp, wanted)?)
}

/// Builds the tests of a package of the same Kubernetes version, unless they exist.
pub fn build_tests(output: &Path, package: &str) -> Result<()> {
    let stamp = output.with_extension("stamp");
    if fs::read_to_string(&stamp).is_ok_and(|it| it == KUBERNETES) {
        return Ok(());
    }
    go(&wrapper()?, &["test", "-c"], &[package], output)?;
    Ok(fs::write(stamp, KUBERNETES)?)
}

/// Builds the tests of a package of the module in a directory.
pub fn build_module_tests(module: &Path, package: &str, output: &Path) -> Result<()> {
    go(module, &["test", "-c"], &[package], output)
}

fn made(directory: &Path) -> Result<PathBuf> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory.canonicalize()?)
}

fn go_build(source: &Path, packages: &[impl AsRef<OsStr>], output: &Path) -> Result<()> {
    go(source, &["build"], packages, output)
}

fn go(source: &Path, what: &[&str], packages: &[impl AsRef<OsStr>], output: &Path) -> Result<()> {
    let flags = format!(
        "-s -w -X k8s.io/component-base/version.gitVersion=v{KUBERNETES} \
         -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor={}",
        minor()
    );
    let mut go = Command::new("go");
    go.current_dir(source).env("CGO_ENABLED", "0").args(what).args(["-mod=mod", "-trimpath", "-buildvcs=false"]);
    run(go.args(["-ldflags", &flags, "-o"]).arg(output).args(packages))
}

fn minor() -> &'static str {
    KUBERNETES.split('.').nth(1).unwrap_or_default()
}

/// The wrapper module that requires Kubernetes. Its checksums are upstream's; `go` adds and checks those of the staging
/// modules.
fn wrapper() -> Result<PathBuf> {
    let source = made(&super::directory().join("source"))?;
    fs::write(source.join("go.mod"), "module weir.dev/apiserver\n")?;
    let module = module(&source, &format!("k8s.io/kubernetes@v{KUBERNETES}"))?;
    let text = fs::read_to_string(module.join("go.mod"))?;
    fs::write(source.join("go.mod"), go_mod(&text))?;
    fs::write(source.join("go.sum"), fs::read(module.join("go.sum"))?)?;
    fs::write(source.join("empty.go"), "package apiserver\n")?;
    Ok(source)
}

/// The directory with the sources of Kubernetes, in the version of the servers.
pub fn kubernetes_module() -> Result<PathBuf> {
    module(&made(&super::directory())?, &format!("k8s.io/kubernetes@v{KUBERNETES}"))
}

/// Downloads a module, unless `go` has it already, and returns the directory where `go` keeps it.
pub fn module(source: &Path, module: &str) -> Result<PathBuf> {
    let output = Command::new("go").current_dir(source).args(["mod", "download", "-json", module]).output();
    let output = output.context("could not start go; it is needed to build programs of Kubernetes")?;
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).context("go mod download")?;
    let directory = answer["Dir"].as_str();
    let error = answer["Error"].as_str().unwrap_or_default();
    Ok(directory.with_context(|| format!("go cannot download {module}: {error}"))?.into())
}

/// The wrapper's `go.mod`: upstream's language version, and the published module for each one that upstream replaces by
/// a directory.
fn go_mod(upstream: &str) -> String {
    let mut text = "module weir.dev/apiserver\n".to_owned();
    for line in upstream.lines() {
        let language = line.starts_with("go ") || line.starts_with("godebug ");
        match line.split_once(" => ./staging/") {
            Some((module, _)) => {
                let module = module.trim().trim_start_matches("replace ");
                text += &format!("replace {module} => {module} v0.{}\n", KUBERNETES.trim_start_matches("1."));
            }
            None if language => text += &format!("{line}\n"),
            None => {}
        }
    }
    text + &format!("require k8s.io/kubernetes v{KUBERNETES}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_modules_are_replaced_by_published_ones() {
        let upstream = "module k8s.io/kubernetes\n\ngo 1.25.0\n\ngodebug default=go1.25\n\nrequire (\n\ta.b/c v1.0.0\n)\n\
                        replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        assert_eq!(
            go_mod(upstream),
            "module weir.dev/apiserver\ngo 1.25.0\ngodebug default=go1.25\nreplace k8s.io/api => k8s.io/api v0.35.4\n\
             require k8s.io/kubernetes v1.35.4\n"
        );
    }
}
