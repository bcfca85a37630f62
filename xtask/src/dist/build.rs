//! Builds the binary, natively and for other architectures.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::ReleaseFacts;
use crate::debian;
use crate::image::{target, triple};
use crate::process::{capture, cargo, run};

/// A platform that a release is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Platform {
    pub(super) triple: &'static str,
    /// Its name in Go, in images and in Debian.
    pub(super) architecture: &'static str,
}

pub(super) const PLATFORMS: [Platform; 2] = [
    Platform { triple: "x86_64-unknown-linux-gnu", architecture: "amd64" },
    Platform { triple: "aarch64-unknown-linux-gnu", architecture: "arm64" },
];

/// The sources of a build, and where cargo writes its output.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) target: PathBuf,
}

/// Debian's cross compiler and static libc for arm64; unpacked, not installed.
const CROSS: [&str; 8] = [
    "binutils-aarch64-linux-gnu",
    "cpp-12-aarch64-linux-gnu",
    "gcc-12-aarch64-linux-gnu",
    "libc6-arm64-cross",
    "libc6-dev-arm64-cross",
    "libgcc-12-dev-arm64-cross",
    "libgcc-s1-arm64-cross",
    "linux-libc-dev-arm64-cross",
];

/// The platforms with these triples; if none is named, those that this machine has a toolchain for. The native one is
/// always among them, because its binary writes the completions and man pages.
pub(super) fn platforms(triples: &[String]) -> Result<Vec<Platform>> {
    if let Some(unknown) = triples.iter().find(|it| !PLATFORMS.iter().any(|platform| platform.triple == **it)) {
        bail!("{unknown} is no platform of a release");
    }
    let is_wanted = |platform: &Platform| triples.is_empty() || triples.iter().any(|it| it == platform.triple);
    let mut found = Vec::new();
    for platform in PLATFORMS.into_iter().filter(|it| is_wanted(it) || it.triple == triple()) {
        if is_installed(platform.triple)? {
            found.push(platform);
            continue;
        }
        let hint = format!("`rustup target add {}` installs its standard library", platform.triple);
        ensure!(triples.is_empty(), "{} cannot be built: {hint}", platform.triple);
        eprintln!("note: {} is left out: {hint}", platform.triple);
    }
    Ok(found)
}

/// Whether Rust's standard library for a target is installed.
fn is_installed(triple: &str) -> Result<bool> {
    let printed = capture(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))?;
    Ok(Path::new(printed.trim()).is_dir())
}

/// Where cargo writes the binary of a target.
fn path(tree: &Tree, triple: &str) -> PathBuf {
    tree.target.join(triple).join("dist/weir")
}

/// The path of the binary for this machine.
pub(super) fn native_binary(tree: &Tree) -> PathBuf {
    path(tree, &triple())
}

/// Builds the binary for a platform.
pub(super) fn binary(tree: &Tree, facts: &ReleaseFacts, platform: &Platform) -> Result<Vec<u8>> {
    let arguments = ["build", "--profile", "dist", "--locked", "-p", "weir", "--target", platform.triple];
    let mut build = cargo(&arguments);
    build.current_dir(&tree.root).env("CARGO_TARGET_DIR", &tree.target).env_remove("CARGO_BUILD_TARGET");
    build.env("RUSTFLAGS", flags(&tree.root)?).env("SOURCE_DATE_EPOCH", facts.epoch.to_string());
    // `weir_build_info` and `weir version -o json` state it.
    build.env("WEIR_COMMIT", &facts.revision);
    if platform.triple.starts_with("aarch64") {
        // Pages of arm64 kernels have 4, 16 or 64 KiB, and the allocator must know the largest.
        build.env("JEMALLOC_SYS_WITH_LG_PAGE", "16");
    }
    if platform.triple != triple() {
        use_cross_compiler(&mut build, platform.triple)?;
    }
    run(&mut build)?;
    let path = path(tree, platform.triple);
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Links statically, and replaces the directories of this machine in the file names that messages of panics contain.
fn flags(root: &Path) -> Result<String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|it| it.join(".cargo"))).context("cargo has no home")?;
    let mut flags = "-C target-feature=+crt-static".to_owned();
    for (directory, name) in [(root, "/weir"), (&*home, "/cargo")] {
        let directory = directory.to_str().filter(|it| !it.contains([' ', '=']));
        let directory = directory.context("a directory's name has characters that RUSTFLAGS cannot contain")?;
        flags += &format!(" --remap-path-prefix={directory}={name}");
    }
    Ok(flags)
}

/// Uses the installed cross compiler, or unpacks Debian's.
fn use_cross_compiler(build: &mut Command, triple: &str) -> Result<()> {
    let upper = triple.to_uppercase().replace('-', "_");
    let lower = triple.replace('-', "_");
    let name = triple.replace("-unknown", "");
    ensure!(name == "aarch64-linux-gnu" && ARCH == "x86_64", "no cross compiler is known from {ARCH} to {triple}");
    let (compiler, archiver) = match capture(Command::new(format!("{name}-gcc")).arg("--version")) {
        Ok(_) => (PathBuf::from(format!("{name}-gcc")), PathBuf::from(format!("{name}-ar"))),
        Err(_) => {
            let tools = target().join("tools/cross-aarch64");
            debian::unpack(&tools, &CROSS)
                .with_context(|| format!("{name}-gcc is not installed, and Debian's package cannot be unpacked"))?;
            let tools = tools.canonicalize()?;
            // The assembler's own libraries.
            build.env("LD_LIBRARY_PATH", tools.join("usr/lib/x86_64-linux-gnu"));
            (tools.join(format!("usr/bin/{name}-gcc-12")), tools.join(format!("usr/bin/{name}-ar")))
        }
    };
    build.env(format!("CARGO_TARGET_{upper}_LINKER"), &compiler);
    build.env(format!("CC_{lower}"), &compiler).env(format!("AR_{lower}"), archiver);
    Ok(())
}

/// The versions that a second build needs to get the same bytes.
pub(super) fn information(facts: &ReleaseFacts, platforms: &[Platform]) -> Result<String> {
    let first_line = |program: &str| -> Result<String> {
        let printed = capture(Command::new(program).arg("--version"))?;
        Ok(printed.lines().next().unwrap_or_default().to_owned())
    };
    let triples: Vec<&str> = platforms.iter().map(|it| it.triple).collect();
    Ok(format!(
        "command: cargo xtask dist\nrevision: {}\nSOURCE_DATE_EPOCH: {}\ntargets: {}\nrust: {}\ncompiler: {}\nlibc: {}\n\
         gzip: {}\n",
        facts.revision,
        facts.epoch,
        triples.join(" "),
        first_line("rustc")?,
        first_line("cc")?,
        first_line("ldd")?,
        first_line("gzip")?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_platforms_are_refused_and_the_native_one_is_built() {
        assert!(platforms(&["riscv64gc-unknown-linux-gnu".into()]).is_err());
        let named = platforms(&[triple()]).expect("this machine has a toolchain");
        assert_eq!(named.iter().map(|it| it.triple).collect::<Vec<_>>(), [triple()]);
    }

    #[test]
    fn the_directory_of_the_sources_is_replaced() {
        let flags = flags(Path::new("/some/where")).expect("flags");
        assert!(flags.contains("--remap-path-prefix=/some/where=/weir"), "{flags}");
        assert!(super::flags(Path::new("/some where")).is_err());
    }
}
