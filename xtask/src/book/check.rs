//! Checks the links of the website that mdBook has written: files exist, and anchors are in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// How much was checked.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) pages: usize,
    pub(super) links: usize,
}

/// Checks every page below a directory.
pub(super) fn pages(directory: &Path) -> Result<Checked> {
    let mut pages = BTreeMap::new();
    collect(directory, &mut pages)?;
    // It is served for addresses at any depth, so its links are absolute.
    pages.remove(&directory.join("404.html"));
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path, values(text, "id").collect())).collect();
    let (mut links, mut broken) = (0, Vec::new());
    for (page, text) in &pages {
        for target in values(text, "href").chain(values(text, "src")).filter(|it| is_relative(it)) {
            links += 1;
            if !exists(page, target, &anchors) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    ensure!(links > 0, "{} has no links", directory.display());
    Ok(Checked { pages: pages.len(), links })
}

fn collect(directory: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|it| it == "html") {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            pages.insert(path, text);
        }
    }
    Ok(())
}

/// The values of an attribute.
fn values<'t>(text: &'t str, attribute: &str) -> impl Iterator<Item = &'t str> {
    let opened = format!(" {attribute}=\"");
    let starts: Vec<usize> = text.match_indices(&opened).map(|(at, it)| at + it.len()).collect();
    starts.into_iter().filter_map(|start| text[start..].split_once('"').map(|(value, _)| value))
}

fn is_relative(target: &str) -> bool {
    !target.contains("://") && !["mailto:", "data:", "javascript:"].iter().any(|it| target.starts_with(it))
}

fn exists(page: &Path, target: &str, anchors: &BTreeMap<&PathBuf, BTreeSet<&str>>) -> bool {
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let file = super::joined(page, path);
    let file = if path.is_empty() { page } else { &file };
    match anchors.get(&file.to_owned()) {
        Some(ids) => fragment.is_empty() || ids.contains(fragment),
        None => file.is_file(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_and_anchors_are_found() {
        let directory = std::env::temp_dir().join(format!("weir-book-check-{}", std::process::id()));
        fs::create_dir_all(directory.join("docs")).expect("a directory");
        let write = |name: &str, text: &str| fs::write(directory.join(name), text).expect("written");
        write("docs/b.html", "<h1 id=\"there\">b</h1> <a href=\"../a.html\">a</a>");
        write("a.html", "<a href=\"docs/b.html#there\">b</a> <a href=\"https://other/\">c</a> <a href=\"#\">d</a>");
        let checked = pages(&directory).expect("no broken links");
        assert_eq!((checked.pages, checked.links), (2, 3));
        write("a.html", "<a href=\"docs/b.html#elsewhere\">b</a> <img src=\"c.svg\">");
        let error = pages(&directory).expect_err("broken").to_string();
        assert!(error.contains("b.html#elsewhere") && error.contains("c.svg"), "{error}");
        fs::remove_dir_all(&directory).expect("removed");
    }
}
