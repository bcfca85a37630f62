//! Images for the cluster, packed here.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use xtask::apiserver;
use xtask::image::{self, Tar};

use super::tools::Tools;

/// A shell and small programs. It is also the pause image: a pod's infrastructure container only sleeps.
pub(super) const BUSYBOX: &str = "weir.dev/busybox:1";
const PROGRAMS: [&str; 10] = ["sh", "cat", "httpd", "ip", "mkdir", "nc", "ping", "seq", "sleep", "timeout"];

/// Makes the images that every cluster has.
pub(super) fn make(tools: &Tools) -> Result<Vec<PathBuf>> {
    Ok(vec![busybox(tools)?])
}

fn busybox(tools: &Tools) -> Result<PathBuf> {
    let mut layer = Tar::new();
    add_busybox(&mut layer, tools)?;
    write(tools, "busybox", &image::packed(BUSYBOX, &["/bin/sleep", "2147483647"], layer)?)
}

/// Adds a shell, the programs that it runs, and a directory in which they may write.
pub(super) fn add_busybox(layer: &mut Tar, tools: &Tools) -> Result<()> {
    let path = tools.debian("bin/busybox");
    let program = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    ["bin", "tmp"].into_iter().for_each(|path| layer.directory(path));
    layer.file("bin/busybox", &program, 0o755);
    PROGRAMS.into_iter().for_each(|name| layer.link(&format!("bin/{name}"), "busybox"));
    Ok(())
}

/// Builds Kubernetes' server and client for tests of networks, and packs it with a shell.
pub(super) fn agnhost(tools: &Tools, name: &str, entrypoint: &[&str]) -> Result<PathBuf> {
    let bin = tools.bin("suite");
    apiserver::build_packages(&bin, &["k8s.io/kubernetes/test/images/agnhost".to_owned()])?;
    let mut layer = Tar::new();
    add_busybox(&mut layer, tools)?;
    // Some tests name bash, and use nothing that only bash has.
    layer.file("bin/bash", b"#!/bin/sh\nexec /bin/sh \"$@\"\n", 0o755);
    layer.directory("uploads");
    layer.file("agnhost", &fs::read(bin.join("agnhost"))?, 0o755);
    let file = name.rsplit('/').next().unwrap_or(name).replace(':', "-");
    write(tools, &file, &image::packed(name, entrypoint, layer)?)
}

/// Writes an image to the directory where nodes find it.
pub(super) fn write(tools: &Tools, name: &str, image: &[u8]) -> Result<PathBuf> {
    fs::create_dir_all(tools.images())?;
    let path = tools.images().join(format!("{name}.tar"));
    fs::write(&path, image)?;
    Ok(path)
}
