//! A panic is a bug of Weir. It prints what to report, and details for developers only on request.

use std::any::Any;
use std::backtrace::Backtrace;
use std::panic;

use crate::page::OutputPage;

/// The exit code after a panic; the same as Rust's own.
pub(crate) const EXIT_CODE: u8 = 101;

/// Installs a panic hook that prints a page for the user instead of only a location.
pub(crate) fn install_hook() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let mut page = page(info.payload(), &place);
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|it| it != "0") {
            // The standard hook is not used: it would print the message again, unescaped.
            page.lines(&Backtrace::force_capture().to_string());
        }
        page.print_to_stderr();
    }));
}

fn page(payload: &dyn Any, place: &str) -> OutputPage {
    let message = payload.downcast_ref::<&str>().map(|it| (*it).to_owned());
    let message = message.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    let mut page = OutputPage::new();
    page.line("error: this is a bug in weir, not in your input");
    page.line(format_args!("  what: {message}"));
    page.line(format_args!("  where: {place}"));
    page.line(format_args!("  version: {}", env!("CARGO_PKG_VERSION")));
    page.line(
        "  hint: please report these lines, the command line, and the smallest input that still shows it; \
         RUST_BACKTRACE=1 adds a backtrace",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_the_panic_and_what_to_report() {
        for payload in [&"no such block" as &dyn Any, &"no such block".to_owned()] {
            let page = page(payload, "compiler/codegen/src/ir.rs:7:9");
            let page = page.as_str();
            for line in
                ["error: this is a bug in weir", "what: no such block\n", "where: compiler/codegen/src/ir.rs:7:9\n"]
            {
                assert!(page.contains(line), "{page}");
            }
            assert!(page.contains("please report these lines"), "{page}");
        }
    }
}
