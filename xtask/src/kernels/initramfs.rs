//! What a guest has instead of a disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{PASSED, TESTS, name};
use crate::process::run;

/// Modules that network namespaces with enforced interfaces want, each after what it wants itself.
const MODULES: [&str; 6] = ["llc", "stp", "bridge", "veth", "sch_ingress", "cls_bpf"];

const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox echo weir-guest: $(/bin/busybox uname -r)
for module in MODULES; do
  test -e /modules/$module.ko && /bin/busybox insmod /modules/$module.ko
done
export PATH=/bin CI=true WEIR_BINARY=/tests/weir WEIR_PACKETS_CONTROL=no
/bin/busybox ip link set lo up
result=passed
TESTS/bin/busybox echo GUEST: $result
/bin/busybox poweroff -f
";

/// Everything but the modules, which are each kernel's own.
pub(super) fn initramfs(work: &Path, binaries: &[PathBuf]) -> Result<PathBuf> {
    let root = work.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for directory in ["bin", "proc", "sys", "dev", "tests", "tmp"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::copy(found("busybox")?, root.join("bin/busybox"))?;
    with_libraries(&root, &found("ip")?)?;
    for binary in binaries {
        // Cargo puts a hash behind a test's name.
        let file = name(binary);
        let plain = TESTS.iter().map(|(_, test, _)| *test).find(|test| file.starts_with(&format!("{test}-")));
        fs::copy(binary, root.join("tests").join(plain.unwrap_or(&file)))?;
    }
    fs::write(root.join("init"), init())?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    archive(work, &root, "initramfs")
}

fn init() -> String {
    let run = |(_, test, facts): &(&str, &str, &[&str])| {
        format!("/tests/{test} --test-threads 1 {} || result=failed\n", facts.join(" "))
    };
    let guest = PASSED.split(':').next().unwrap_or_default();
    let text = INIT.replace("MODULES", &MODULES.join(" ")).replace("GUEST", guest);
    text.replace("TESTS", &TESTS.iter().map(run).collect::<String>())
}

fn found(program: &str) -> Result<PathBuf> {
    let path = Command::new("which").arg(program).output()?;
    Ok(PathBuf::from(String::from_utf8(path.stdout)?.trim()))
}

/// Copies a program to `/bin`, and what it is linked to where it is looked for.
fn with_libraries(root: &Path, program: &Path) -> Result<()> {
    fs::copy(program, root.join("bin").join(name(program)))?;
    let linked = Command::new("ldd").arg(program).output()?;
    for library in String::from_utf8(linked.stdout)?.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("a library has a directory")?)?;
        fs::copy(library, to)?;
    }
    Ok(())
}

/// The archive with a kernel's modules behind it: the kernel reads one after the other.
pub(super) fn with_modules(work: &Path, initramfs: &Path, modules: Option<&Path>) -> Result<PathBuf> {
    let Some(modules) = modules else { return Ok(initramfs.to_owned()) };
    let root = work.join("modules");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(root.join("modules"))?;
    for module in MODULES {
        let listed = Command::new("find").arg(modules).args(["-name", &format!("{module}.ko*")]).output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let Some(file) = listed.lines().next() else { continue };
        let plain = root.join("modules").join(format!("{module}.ko"));
        if file.ends_with(".xz") {
            run(Command::new("xz").args(["--decompress", "--stdout", file]).stdout(fs::File::create(plain)?))?;
        } else {
            fs::copy(file, plain)?;
        }
    }
    let both = work.join("initramfs-with-modules");
    let behind = fs::read(archive(work, &root, "modules.cpio")?)?;
    fs::write(&both, [fs::read(initramfs)?, behind].concat())?;
    Ok(both)
}

fn archive(work: &Path, root: &Path, file: &str) -> Result<PathBuf> {
    let archive = fs::canonicalize(work)?.join(file);
    let list = Command::new("find").arg(".").current_dir(root).output()?.stdout;
    fs::write(work.join("list"), list)?;
    let status = Command::new("cpio")
        .args(["--create", "--format=newc", "--quiet"])
        .current_dir(root)
        .stdin(fs::File::open(work.join("list"))?)
        .stdout(fs::File::create(&archive)?)
        .stderr(Stdio::inherit())
        .status()?;
    ensure!(status.success(), "cpio: {status}");
    Ok(archive)
}
