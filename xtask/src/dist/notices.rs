//! The licences of the crates in the binary, as their authors ask: each text once, with the crates that it belongs to.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::sbom::Graph;

/// How the names of files with licences and notices begin.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
/// A licence is shorter. A larger file of this name is something else.
const LONGEST: usize = 200_000;

/// The text of the file.
pub(super) fn text(graph: &Graph) -> Result<String> {
    let (mut crates, mut texts) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for it in graph.others() {
        let name = format!("{} {}", it.name, it.version);
        let licence = it.licence.as_deref().unwrap_or("see its text below");
        crates.push(format!("{name}: {licence}"));
        for text in licences(&it.directory)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    crates.sort();
    let mut groups: Vec<(Vec<String>, String)> = texts.into_iter().map(|(text, names)| (names, text)).collect();
    groups.sort();
    let mut all = format!("This program contains these crates:\n\n{}\n", crates.join("\n"));
    for (names, text) in groups {
        all += &format!("\n{}\n{}:\n\n{}\n", "=".repeat(80), names.join(", "), text.trim_end());
    }
    Ok(all)
}

/// The texts in a directory.
fn licences(directory: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if !NAMES.iter().any(|it| name.starts_with(it)) || !entry.file_type()?.is_file() {
            continue;
        }
        let text =
            fs::read_to_string(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
        if text.len() <= LONGEST {
            found.push(text.replace("\r\n", "\n"));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::sbom::tests::graph;
    use super::*;

    #[test]
    fn licences_of_the_crates_are_quoted() {
        let registry = std::env::temp_dir().join(format!("weir-notices-{}", std::process::id()));
        let directory = registry.join("used");
        fs::create_dir_all(&directory).expect("temporary directories can be made");
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).expect("the directory is ours");
        write("LICENSE-MIT", "Copyright (c) their authors\r\n");
        write("license-apache", "Apache\n");
        write("Cargo.toml", "[package]");
        let text = text(&graph(&registry.display().to_string())).expect("licences");
        fs::remove_dir_all(&registry).expect("the directory is ours");
        assert!(text.contains("\nused 1.0.0+x: MIT OR Apache-2.0\n"), "{text}");
        assert!(text.contains("used 1.0.0+x:\n\nCopyright (c) their authors\n"), "{text}");
        assert!(text.contains("used 1.0.0+x:\n\nApache\n"), "{text}");
        assert!(!text.contains("[package]") && !text.contains("weir 1.2.3"), "{text}");
    }
}
