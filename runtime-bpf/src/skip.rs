//! Support for tests whose requirements a machine may not meet: they are never skipped silently.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where `cargo xtask ci` collects skips.
const SKIP_LOG: &str = "WEIR_SKIP_LOG";

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Prints on the real standard error that a test is skipped and why, counts it, and writes it into the skip log if
/// there is one. Fails if `CI` is `true`.
pub fn skip(test: &str, reason: &dyn std::fmt::Display) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // `eprintln!` would not do: the test harness shows its output only if the test fails.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason} ({count} skipped in this binary)");
    if let Some(log) = std::env::var_os(SKIP_LOG) {
        let log = OpenOptions::new().append(true).create(true).open(log);
        let noted = log.and_then(|mut log| writeln!(log, "{test}: {reason}"));
        assert!(noted.is_ok(), "the skip log: {noted:?}");
    }
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!in_ci, "skipped in CI: {test}: {reason}");
}

/// Leaves a test early, loudly: `skip!("no privilege")`. `skip!(unless RESULT)` is the value of an `Ok`, and skips the
/// test with the reason in an `Err`.
#[macro_export]
macro_rules! skip {
    (unless $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(reason) => $crate::skip!("{reason:#}"),
        }
    };
    ($($reason:tt)*) => {{
        let test = std::thread::current().name().unwrap_or("test").to_owned();
        $crate::skip::skip(&test, &format_args!($($reason)*));
        return;
    }};
}
