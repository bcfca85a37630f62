//! The pictures of the report in the documentation, which `cargo xtask check-report` makes again.

use std::path::Path;
use std::process::Command;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use super::open;
use crate::support::{Place, Ran};

/// The name, the scheme, the size, and the script that brings the part of the page into view.
const PICTURES: [(&str, &str, (u32, u32), &str); 5] = [
    ("report-diff.png", "light", (1280, 800), ""),
    ("report-diff-dark.png", "dark", (1280, 800), ""),
    ("report-graph.png", "light", (1280, 620), "document.getElementById('graph').scrollIntoView()"),
    ("report-matrix.png", "light", (1280, 620), "document.getElementById('matrix').scrollIntoView()"),
    ("report-phone.png", "light", (390, 844), ""),
];

#[test]
#[ignore = "writes docs/images: cargo xtask check-report"]
fn pictures_are_made_from_the_examples() {
    need_browser!();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let place = Place::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["diff", "policies/changes/base.yaml", "policies/changes/head.yaml", "-o", "html"]);
    command.current_dir(&root).env("SOURCE_DATE_EPOCH", "1767225600").env_remove("GITHUB_SERVER_URL");
    let page = Ran::from(command.output().expect("weir runs")).exits(1).out;
    let browser = open(&place, &page);
    let images = root.join("docs/images");
    std::fs::create_dir_all(&images).expect("a directory");
    for (name, scheme, (width, height), script) in PICTURES {
        browser.resize(width, height);
        browser.emulate(scheme, "screen");
        browser.run(&format!("scrollTo(0, 0); {script}"));
        let bytes = BASE64_STANDARD.decode(browser.picture()).expect("base64");
        std::fs::write(images.join(name), bytes).expect("written");
    }
}
