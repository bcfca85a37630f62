//! Tests that need what a machine may not have: no silent skip.

use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

static SKIPPED: AtomicU32 = AtomicU32::new(0);

/// Says on the test's real standard error that it is skipped and why, and counts. Fails where `CI` is `true`.
pub fn skip(test: &str, reason: &dyn std::fmt::Display) {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // Not eprintln!, which the test harness keeps back unless the test fails.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason} ({count} skipped in this binary)");
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!in_ci, "skipped in CI: {test}: {reason}");
}

/// Leaves a test early, loudly: `skip!("no privilege")`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        let test = std::thread::current().name().unwrap_or("test").to_owned();
        $crate::skip::skip(&test, &format_args!($($reason)*));
        return;
    }};
}
