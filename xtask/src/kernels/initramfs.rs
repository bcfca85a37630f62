//! The initial RAM file system of a guest, which has no disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{PASSED, TESTS, name};

/// Modules for network namespaces with enforced interfaces, and for a service proxy's rules.
const MODULES: [&str; 21] = [
    "bridge",
    // Without it, rules do not see packets between neighbours on a bridge, in particular a service's answers.
    "br_netfilter",
    "veth",
    "sch_ingress",
    "cls_bpf",
    "iptable_filter",
    "iptable_nat",
    "ip6table_filter",
    "ip6table_nat",
    "xt_MASQUERADE",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_multiport",
    "xt_nat",
    "xt_set",
    "xt_statistic",
    "xt_tcpudp",
    "ip_set_hash_ip",
    "ip_set_hash_ipport",
    "ip_set_hash_net",
];

/// A program and the names under which it is called.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("ip", &["ip"]),
    ("tc", &["tc"]),
    ("ipset", &["ipset"]),
    ("xtables-legacy-multi", &["iptables", "iptables-restore", "ip6tables", "ip6tables-restore"]),
];
/// The directory of the extensions that iptables loads at run time.
const EXTENSIONS: &str = "xtables";

/// The objects of the artifact that `weir attach` must refuse on a kernel that is too old. The pod has an address, so
/// the artifact contains it.
const OBJECTS: &str = "apiVersion: v1
kind: Pod
metadata: {name: keeper, namespace: vault}
spec: {containers: [{name: keeper}]}
status: {podIP: 10.7.0.2, podIPs: [{ip: 10.7.0.2}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: default-deny, namespace: vault}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
";

/// On a kernel before the oldest supported one, nothing is tested but that `weir attach` says so and attaches nothing.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox echo weir-guest: $(/bin/busybox uname -r)
for module in /modules/*.ko; do
  /bin/busybox insmod $module
done
export PATH=/bin CI=true WEIR_BINARY=/tests/weir WEIR_PACKETS_CONTROL=no
/bin/busybox ip link set lo up
result=passed
older=$(/bin/busybox printf '%s\\n' 5.14 $(/bin/busybox uname -r) | /bin/busybox sort -V | /bin/busybox head -n 1)
if [ $older = 5.14 ]; then
TESTSelse
  /bin/busybox mount -t bpf none /sys/fs/bpf
  /tests/weir compile /tests/policies -o /tmp/policy.o || result=failed
  said=$(/tests/weir attach /tmp/policy.o --endpoint vault/keeper=lo 2>&1) && result=failed
  /bin/busybox echo \"$said\"
  case \"$said\" in *'is too old: weir needs 5.14 or later'*) ;; *) result=failed ;; esac
  [ -z \"$(/bin/tc filter show dev lo ingress)\" ] || result=failed
fi
/bin/busybox echo GUEST: $result
/bin/busybox poweroff -f
";

/// Everything except the modules, which depend on the kernel.
pub(super) fn initramfs(work: &Path, binaries: &[PathBuf]) -> Result<PathBuf> {
    let root = work.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    for directory in ["bin", "proc", "sys", "dev", "tests", "tmp", "run"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::copy(found("busybox")?, root.join("bin/busybox"))?;
    for (program, names) in PROGRAMS {
        let path = fs::canonicalize(found(program)?).with_context(|| format!("{program} is missing"))?;
        names.iter().try_for_each(|name| with_libraries(&root, &path, name))?;
    }
    with_extensions(&root)?;
    for binary in binaries {
        // Cargo appends a hash to a test's name.
        let file = name(binary);
        let plain = TESTS.iter().map(|(_, test, _)| *test).find(|test| file.starts_with(&format!("{test}-")));
        fs::copy(binary, root.join("tests").join(plain.unwrap_or(&file)))?;
    }
    fs::create_dir_all(root.join("tests/policies"))?;
    fs::write(root.join("tests/policies/objects.yaml"), OBJECTS)?;
    fs::write(root.join("init"), init())?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    archive(work, &root, "initramfs")
}

fn init() -> String {
    let run = |(_, test, facts): &(&str, &str, &[&str])| {
        format!("  /tests/{test} --test-threads 1 {} || result=failed\n", facts.join(" "))
    };
    let guest = PASSED.split(':').next().unwrap_or_default();
    INIT.replace("GUEST", guest).replace("TESTS", &TESTS.iter().map(run).collect::<String>())
}

fn found(program: &str) -> Result<PathBuf> {
    let path = Command::new("which").arg(program).output()?;
    Ok(PathBuf::from(String::from_utf8(path.stdout)?.trim()))
}

/// Copies the libraries that iptables loads for each kind of match and target.
fn with_extensions(root: &Path) -> Result<()> {
    let listed = Command::new("find").args(["/usr/lib", "/lib", "-type", "d", "-name", EXTENSIONS]).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let from = Path::new(listed.lines().next().context("iptables has no extensions")?);
    let to = root.join(from.strip_prefix("/")?);
    fs::create_dir_all(&to)?;
    for file in super::files(from)? {
        fs::copy(&file, to.join(name(&file)))?;
    }
    Ok(())
}

/// Copies a program to `/bin`, and its libraries to the paths where the loader looks for them.
fn with_libraries(root: &Path, program: &Path, called: &str) -> Result<()> {
    fs::copy(program, root.join("bin").join(called))?;
    let linked = Command::new("ldd").arg(program).output()?;
    for library in String::from_utf8(linked.stdout)?.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = root.join(library.trim_start_matches('/'));
        fs::create_dir_all(to.parent().context("a library has a directory")?)?;
        fs::copy(library, to)?;
    }
    Ok(())
}

/// The archive followed by a kernel's modules: the kernel unpacks one archive after the other.
pub(super) fn with_modules(work: &Path, initramfs: &Path, modules: Option<&Path>) -> Result<PathBuf> {
    let Some(modules) = modules else { return Ok(initramfs.to_owned()) };
    let root = work.join("modules");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fs::create_dir_all(root.join("modules"))?;
    let mut ordered = Vec::new();
    for module in MODULES {
        add_module(modules, module, &mut ordered)?;
    }
    for (number, (module, bytes)) in ordered.iter().enumerate() {
        fs::write(root.join("modules").join(format!("{number:02}-{module}.ko")), bytes)?;
    }
    let both = work.join("initramfs-with-modules");
    let behind = fs::read(archive(work, &root, "modules.cpio")?)?;
    fs::write(&both, [fs::read(initramfs)?, behind].concat())?;
    Ok(both)
}

/// Adds a module after the modules that it depends on; a name without a file is built into the kernel and is skipped.
fn add_module(modules: &Path, module: &str, ordered: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    let listed = Command::new("find").arg(modules).args(["-name", &format!("{module}.ko*")]).output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let Some(file) = listed.lines().next().filter(|_| ordered.iter().all(|(known, _)| known != module)) else {
        return Ok(());
    };
    let bytes = match file.ends_with(".xz") {
        true => Command::new("xz").args(["--decompress", "--stdout", file]).output()?.stdout,
        false => fs::read(file)?,
    };
    for wanted in wanted_by(&bytes) {
        add_module(modules, &wanted, ordered)?;
    }
    ordered.push((module.to_owned(), bytes));
    Ok(())
}

/// The dependencies that the module itself lists: `depends=llc,stp`.
fn wanted_by(module: &[u8]) -> Vec<String> {
    const DEPENDS: &[u8] = b"\0depends=";
    let at = module.windows(DEPENDS.len()).position(|it| it == DEPENDS);
    let rest = at.map(|at| &module[at + DEPENDS.len()..]).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
    let names = String::from_utf8_lossy(&rest[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
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
