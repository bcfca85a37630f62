//! The datapath's facts on other kernels, each in a virtual machine without network or disk.
//!
//! Problem: the verifier of an old kernel accepts and refuses other programs than that of a new one, and its hooks
//! differ. Strategy: static test binaries, `weir`, busybox, `ip` and an `/init` make an initramfs ([`initramfs`]). The
//! tests' results are read from the kernel's console. No hardware virtualization is needed. Real packets go through
//! namespaces of the guest, for which the kernels' packages bring modules.
//!
//! Where kernels come from: `WEIR_KERNEL_IMAGES` names files (`vmlinuz…` or Debian's `linux-image-….deb`) or
//! directories of them, separated by colons. Without it the newest `linux-image-*-cloud-amd64` of each version that
//! this machine's apt knows is downloaded; apt's own configuration says from where, and a version that it does not know
//! is reported as missing.

mod initramfs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{built, run};
use initramfs::{initramfs, with_modules};
use xtask::image::static_cargo;

const IMAGES: &str = "WEIR_KERNEL_IMAGES";
/// The kernel versions that must be tested.
const VERSIONS: [&str; 2] = ["6.1", "6.12"];
/// The tests that run in the guest: package, test binary, and filters for test names (all tests without a filter).
const TESTS: [(&str, &str, &[&str]); 2] = [
    ("weir-runtime", "datapath_in_kernel", &[]),
    // Only the scenes that our programs enforce. The control with netfilter rules does not depend on the kernel's
    // version.
    ("weir", "packets", &["scenes::"]),
];
const PASSED: &str = "weir-guest: passed";
/// Seconds that a guest may take.
const PATIENCE: &str = "3600";
/// QEMU 7.2 sometimes leaves wrong flags behind `cmpxchg16b`, on which kernels of 6.12 and later die in their memory
/// allocator. Without the instruction they use a lock.
const CPU: &str = "max,-cx16";

/// Runs the tests on every kernel that was found. Fails if a test fails, or if one of the versions is missing.
pub(crate) fn run_kernels() -> Result<()> {
    let tools =
        ["qemu-system-x86_64", "busybox", "cpio", "dpkg-deb", "timeout", "ip", "tc", "xtables-legacy-multi", "ipset"];
    for tool in tools.into_iter().chain(["ldd", "xz"]) {
        let found = Command::new("which").arg(tool).stdout(Stdio::null()).status()?.success();
        ensure!(
            found,
            "{tool} is missing (Debian: qemu-system-x86, busybox-static, cpio, dpkg, coreutils, iproute2, iptables, ipset, \
             libc-bin, xz-utils)"
        );
    }
    let work = PathBuf::from("target/kernels");
    fs::create_dir_all(&work)?;
    let initramfs = initramfs(&work, &test_binaries()?)?;
    let mut failed = Vec::new();
    let images = images(&work)?;
    for version in VERSIONS {
        let dotted = format!("{version}.");
        if !images.iter().any(|image| name(image).contains(&dotted)) {
            failed.push(format!("{version} (no image; {IMAGES} can name one)"));
        }
    }
    for image in images {
        match boot(&work, &image, &initramfs) {
            Ok(()) => eprintln!("{}: passed", name(&image)),
            Err(error) => failed.push(format!("{}: {error:#}", name(&image))),
        }
    }
    ensure!(failed.is_empty(), "kernels:\n  {}", failed.join("\n  "));
    Ok(())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Images of the kernels that the user names, or else those that apt has.
fn images(work: &Path) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    match std::env::var(IMAGES) {
        Ok(named) => {
            for path in named.split(':').filter(|path| !path.is_empty()).map(PathBuf::from) {
                if path.is_dir() {
                    images.extend(files(&path)?);
                } else {
                    images.push(path);
                }
            }
        }
        Err(_) => {
            for version in VERSIONS {
                download(work, version)?;
            }
            images = files(&work.join("images"))?;
        }
    }
    images.retain(|image| name(image).starts_with("vmlinuz") || name(image).ends_with(".deb"));
    images.sort();
    Ok(images)
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    Ok(entries.collect::<Result<Vec<_>, _>>()?.into_iter().map(|entry| entry.path()).collect())
}

/// The newest image of a version, if apt knows any.
fn download(work: &Path, version: &str) -> Result<()> {
    let directory = work.join("images");
    fs::create_dir_all(&directory)?;
    let pattern = format!("^linux-image-{}\\..*-cloud-amd64$", version.replace('.', "\\."));
    let known = Command::new("apt-cache").args(["search", "--names-only", &pattern]).output()?;
    let names = String::from_utf8_lossy(&known.stdout).into_owned();
    let newest = names.lines().filter_map(|line| line.split(' ').next()).max_by_key(|name| numbers(name));
    match newest {
        Some(package) => run(Command::new("apt-get").args(["download", package]).current_dir(directory)),
        None => Ok(()),
    }
}

/// The numbers in a package's name, so that `5.10.0-9` is older than `5.10.0-10`.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// Static test binaries: one for each of [`TESTS`], and the other binaries that cargo built for them.
fn test_binaries() -> Result<Vec<PathBuf>> {
    let mut binaries = Vec::new();
    for (package, test, _) in TESTS {
        let mut build = static_cargo(&["test", "--no-run", "-p", package, "--test", test]);
        build.arg("--message-format=json-render-diagnostics");
        for message in built(&mut build).with_context(|| format!("the test {test}"))? {
            binaries.extend(message["executable"].as_str().map(PathBuf::from));
        }
    }
    Ok(binaries)
}

/// The kernel of a package, with its modules; or the file itself, whose drivers must all be built in.
fn kernel(work: &Path, image: &Path) -> Result<(PathBuf, Option<PathBuf>)> {
    if !name(image).ends_with(".deb") {
        return Ok((image.to_owned(), None));
    }
    let unpacked = work.join("unpacked").join(name(image));
    fs::create_dir_all(&unpacked)?;
    run(Command::new("dpkg-deb").arg("--extract").arg(image).arg(&unpacked))?;
    let boot = files(&unpacked.join("boot"))?;
    let kernel = boot.into_iter().find(|file| name(file).starts_with("vmlinuz")).context("no kernel in the package")?;
    // Debian 13 and later keep them below /usr.
    let modules = ["lib/modules", "usr/lib/modules"].map(|it| unpacked.join(it)).into_iter().find(|it| it.is_dir());
    Ok((kernel, Some(modules.context("no modules in the package")?)))
}

fn boot(work: &Path, image: &Path, initramfs: &Path) -> Result<()> {
    let (kernel, modules) = kernel(work, image)?;
    let initramfs = with_modules(work, initramfs, modules.as_deref())?;
    let output = Command::new("timeout")
        .args([PATIENCE, "qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", CPU, "-m", "1024"])
        .args(["-nographic", "-no-reboot", "-nic", "none", "-append", "console=ttyS0 panic=-1 quiet"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null())
        .output()?;
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    if console.contains(PASSED) {
        return Ok(());
    }
    eprintln!("{console}");
    bail!("{}", if output.status.code() == Some(124) { "not finished in time" } else { "failed" })
}
