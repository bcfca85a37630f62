//! `docs/performance.md`: each benchmark writes only its own section, between `<!-- begin NAME -->` and `<!-- end NAME
//! -->`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// The directory of the page and its pictures.
pub(super) fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// `target/bench/NAME.json`: the file with a benchmark's figures.
pub(super) fn figures(name: &str) -> Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&directory)?;
    Ok(directory.canonicalize()?.join(format!("{name}.json")))
}

/// The rows in a benchmark's file.
pub(super) fn rows(figures: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(figures).with_context(|| format!("could not read {}", figures.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} has an unexpected format", figures.display()))
}

/// Replaces the section of this name.
pub(super) fn replace(name: &str, text: &str) -> Result<()> {
    let path = docs().join("performance.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("could not read {}", path.display()))?;
    let page = replaced(&page, name, text).with_context(|| format!("{} has no section {name}", path.display()))?;
    Ok(std::fs::write(&path, page)?)
}

fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let [begin, end] = ["begin", "end"].map(|it| format!("<!-- {it} {name} -->\n"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{}\n\n{end}{after}", text.trim()))
}

/// A number with commas.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{grouped, replaced};

    #[test]
    fn only_the_named_section_is_replaced() {
        let page = "# P\n<!-- begin a -->\nold\n<!-- end a -->\n<!-- begin b -->\nkept\n<!-- end b -->\nend\n";
        let expected = "# P\n<!-- begin a -->\n\nnew\n\n<!-- end a -->\n<!-- begin b -->\nkept\n<!-- end b -->\nend\n";
        assert_eq!(replaced(page, "a", "new\n").as_deref(), Some(expected));
        assert_eq!(replaced(expected, "a", "new").as_deref(), Some(expected), "again, nothing changes");
        assert_eq!(replaced(page, "c", "new"), None);
    }

    #[test]
    fn numbers_have_commas() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
