//! A panic is our bug, and says so: what to report, and nothing that only we could read unless it was asked for.

use std::any::Any;
use std::io::Write as _;
use std::panic;

/// The exit code of our own bugs.
pub(crate) const EXIT_CODE: u8 = 101;

/// From now on a panic prints a page for its reporter instead of a bare location.
pub(crate) fn install_hook() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        _ = std::io::stderr().write_all(page(info.payload(), &place).as_bytes());
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|it| it != "0") {
            usual(info);
        }
    }));
}

fn page(payload: &dyn Any, place: &str) -> String {
    let message = payload.downcast_ref::<&str>().map(|it| (*it).to_owned());
    let message = message.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    format!(
        "error: this is a bug in weir, not in your input\n  \
         what: {message}\n  where: {place}\n  version: {}\n  \
         hint: please report these lines, the command line, and the smallest input that still shows it; \
         RUST_BACKTRACE=1 adds a backtrace\n",
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_broke_and_what_to_report() {
        for payload in [&"no such block" as &dyn Any, &"no such block".to_owned()] {
            let page = page(payload, "compiler/src/ir.rs:7:9");
            for line in ["error: this is a bug in weir", "what: no such block\n", "where: compiler/src/ir.rs:7:9\n"] {
                assert!(page.contains(line), "{page}");
            }
            assert!(page.contains("please report these lines"), "{page}");
        }
    }
}
