//! The programs of a cluster: Kubernetes' own, built from their Go modules, and Debian's container runtime, unpacked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use xtask::{apiserver, debian};

/// Programs in addition to kube-apiserver and etcd.
const KUBERNETES: [&str; 5] = ["kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl"];
const DEBIAN: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "busybox-static"];

/// The paths of the programs.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    directory: PathBuf,
}

impl Tools {
    pub(super) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Makes the programs that do not exist yet.
    pub(super) fn build(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let tools = Self { directory: directory.canonicalize()? };
        let server = apiserver::build()?;
        for (program, name) in [(server.apiserver, "kube-apiserver"), (server.etcd, "etcd")] {
            tools.link(&program, name)?;
        }
        let packages = KUBERNETES.map(|name| format!("k8s.io/kubernetes/cmd/{name}"));
        apiserver::build_packages(&tools.directory.join("bin"), &packages)?;
        debian::unpack(&tools.debian(""), &DEBIAN)?;
        Ok(tools)
    }

    fn link(&self, program: &Path, name: &str) -> Result<()> {
        let bin = self.directory.join("bin");
        fs::create_dir_all(&bin)?;
        // The link may be from another checkout.
        _ = fs::remove_file(bin.join(name));
        Ok(std::os::unix::fs::symlink(program, bin.join(name))?)
    }

    /// A program of Kubernetes.
    pub(super) fn bin(&self, name: &str) -> PathBuf {
        self.directory.join("bin").join(name)
    }

    /// The path of a file from Debian's packages.
    pub(super) fn debian(&self, path: &str) -> PathBuf {
        self.directory.join("debian").join(path)
    }

    /// The directory of the running cluster.
    pub(super) fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    pub(super) fn images(&self) -> PathBuf {
        self.directory.join("images")
    }

    /// The directory of the source of the conformance suite.
    pub(super) fn conformance(&self) -> PathBuf {
        self.directory.join("conformance")
    }

    /// The search path for programs on a node.
    pub(super) fn path(&self) -> String {
        let ours = ["bin", "debian/usr/bin", "debian/usr/sbin"].map(|it| self.directory.join(it).display().to_string());
        format!("{}:{}:/usr/sbin:/sbin", ours.join(":"), std::env::var("PATH").unwrap_or_default())
    }
}
