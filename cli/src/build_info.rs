//! The version, commit and platform of this build, for `weir version`, the metrics and bug reports.

/// The version of the release.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit, if `WEIR_COMMIT` was set at build time: `cargo xtask dist` sets it. A build script that asks git would
/// make the binary depend on the directory that it is built in.
pub(crate) const COMMIT: &str = match option_env!("WEIR_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The platform: architecture and operating system.
#[cfg(feature = "enforce")]
pub(crate) fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}
