//! The accessibility checks of axe-core, which `cargo xtask check-report` installs.

use super::{TIERS, changed, open};
use crate::support::Place;

/// Every violation as one text.
const VIOLATIONS: &str = "
    const done = arguments[arguments.length - 1];
    axe.run(document, { resultTypes: ['violations'] }).then((result) => done(result.violations.map((it) =>
      `${it.id}: ${it.help}: ${it.nodes.map((node) => node.html).slice(0, 3).join(' ')}`)));";

#[test]
#[ignore = "needs axe-core: cargo xtask check-report"]
fn axe_finds_no_violation() {
    need_browser!();
    let axe = std::env::var("WEIR_AXE").expect("WEIR_AXE names axe.min.js");
    let axe = std::fs::read_to_string(axe).expect("axe-core can be read");
    let place = Place::new().file("base.yaml", TIERS).file("head.yaml", changed());
    for (command, code) in
        [("diff base.yaml head.yaml -o html", 1), ("matrix head.yaml -o html", 0), ("exposure head.yaml -o html", 0)]
    {
        let page = place.run(command).exits(code).out;
        let browser = open(&place, &page);
        browser.run(&axe);
        for (width, height, scheme) in [(1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light")] {
            browser.resize(width, height);
            browser.emulate(scheme, "screen");
            for is_open in [false, true] {
                browser
                    .run(&format!("document.querySelectorAll('details').forEach((it) => {{ it.open = {is_open}; }})"));
                let found = browser.run_async(VIOLATIONS);
                assert_eq!(found, serde_json::json!([]), "{command}, {width}×{height}, {scheme}, open: {is_open}");
            }
        }
    }
}
