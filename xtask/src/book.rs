//! The documentation as a website, made by mdBook from the Markdown files of the repository.
//!
//! Problem: the same file must read well on the forge and in the book, and links between the files, and to sources,
//! must work in both. Strategy: the pages are copied with their directories, so links between them stay as they are, and
//! the files to which they link are copied too. A directory to which a page links gets a listing. The table of contents
//! is the list in `docs/README.md`, which readers of the forge see too.
//! Invariants: the targets of all links are in the book, every page is in the list, and its first paragraph names its
//! readers. Tests: below, and `check` for the
//! HTML that mdBook has written.

mod check;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::process::run;

/// The version of mdBook with which the book is built.
const MDBOOK: &str = "0.4.52";
/// The pages before the first part of the table of contents, with their names there.
const FIRST: [(&str, &str); 2] = [("README.md", "Weir"), (INDEX, "All pages")];
/// The list of all pages: a heading for each part, and an item for each page.
const INDEX: &str = "docs/README.md";

/// `cargo xtask book`
pub fn task(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    if let Some(unknown) = arguments.next() {
        bail!("unknown option {unknown}: there are none");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let (source, output) = (root.join("target/book-src"), root.join("target/book"));
    let external = write_source(&root, &source)?;
    run(Command::new(mdbook(&root)?).arg("build").arg(&root))?;
    let checked = check::pages(&output)?;
    let listed = root.join("target/external-links.txt");
    fs::write(&listed, external.iter().map(|it| format!("{it}\n")).collect::<String>())?;
    println!("\n{}: {} pages, {} links checked", output.join("README.html").display(), checked.pages, checked.links);
    println!("{}: {} links to other sites, which are not checked", listed.display(), external.len());
    Ok(())
}

/// The program: one that was installed below `target/tools`, or the one on the `PATH`; otherwise it is installed.
fn mdbook(root: &Path) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let installed = tools.join("bin/mdbook");
    if installed.exists() {
        return Ok(installed);
    }
    if Command::new("mdbook").arg("--version").output().is_ok_and(|it| it.status.success()) {
        return Ok("mdbook".into());
    }
    let mut install = Command::new("cargo");
    install.args(["install", "mdbook", "--locked", "--version", MDBOOK]);
    // The search of the pages, and none of the servers.
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(&tools);
    run(&mut install).context("mdBook cannot be installed")?;
    Ok(installed)
}

/// A part of the table of contents.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    title: String,
    /// Relative to the repository.
    pages: Vec<PathBuf>,
}

/// Reads the parts from the list of all pages.
fn parts(index: &str) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for line in index.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            parts.push(Part { title: title.to_owned(), pages: Vec::new() });
        } else if line.starts_with("* [") {
            let link = links(line).next().with_context(|| format!("{INDEX}: no link in: {line}"))?;
            let part = parts.last_mut().with_context(|| format!("{INDEX}: an item before the first heading"))?;
            part.pages.push(joined(Path::new(INDEX), link.target(line)));
        }
    }
    ensure!(!parts.is_empty(), "{INDEX} has no headings");
    Ok(parts)
}

/// Copies the pages and the files to which they link, and writes the table of contents. Returns the links to other sites.
fn write_source(root: &Path, source: &Path) -> Result<BTreeSet<String>> {
    let parts = parts(&read(root, Path::new(INDEX))?)?;
    let listed = parts.iter().flat_map(|it| it.pages.iter().cloned());
    let pages: BTreeSet<PathBuf> = FIRST.iter().map(|(path, _)| PathBuf::from(path)).chain(listed).collect();
    _ = fs::remove_dir_all(source);
    let mut external = BTreeSet::new();
    for page in &pages {
        let text = read(root, page)?;
        let mut copy = String::new();
        let mut copied = 0;
        for link in links(&text) {
            let target = link.target(&text);
            if target.contains("://") {
                external.insert(target.to_owned());
                continue;
            }
            copy.push_str(&text[copied..link.end]);
            copied = link.end;
            copy.push_str(bring(root, source, page, target, &pages)?);
        }
        copy.push_str(&text[copied..]);
        put(source, page, copy.as_bytes())?;
    }
    put(source, Path::new("SUMMARY.md"), summary(root, &parts)?.as_bytes())?;
    Ok(external)
}

/// Copies the target of a link, unless it is a page. Returns the text to append to the link.
fn bring(root: &Path, source: &Path, page: &Path, target: &str, pages: &BTreeSet<PathBuf>) -> Result<&'static str> {
    let path = joined(page, target.split('#').next().unwrap_or_default());
    if target.starts_with('#') || pages.contains(&path) {
        return Ok("");
    }
    ensure!(path.extension().is_none_or(|it| it != "md"), "{}: {target} is not listed in {INDEX}", page.display());
    let original = root.join(&path);
    if !original.is_dir() {
        let bytes = fs::read(&original).with_context(|| format!("{}: no file {target}", page.display()))?;
        put(source, &path, &bytes)?;
        return Ok("");
    }
    let mut listing = format!("<!DOCTYPE html>\n<title>{0}</title>\n<h1>{0}</h1>\n<ul>\n", path.display());
    for file in files(&original)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        // mdBook copies no Markdown files that are not in its table of contents.
        if !name.ends_with(".md") {
            put(source, &path.join(name.as_ref()), &fs::read(&file)?)?;
            listing.push_str(&format!("<li><a href=\"{name}\">{name}</a></li>\n"));
        }
    }
    put(source, &path.join("index.html"), format!("{listing}</ul>\n").as_bytes())?;
    Ok(if target.ends_with('/') { "index.html" } else { "/index.html" })
}

/// mdBook's table of contents. A page's name is its first heading.
fn summary(root: &Path, parts: &[Part]) -> Result<String> {
    let mut text = "# Summary\n\n".to_owned();
    for (path, name) in FIRST {
        text.push_str(&format!("[{name}]({path})\n"));
    }
    for part in parts {
        text.push_str(&format!("\n# {}\n\n", part.title));
        for page in &part.pages {
            let content = read(root, page)?;
            let heading = content.lines().find_map(|line| line.strip_prefix("# "));
            let heading = heading.with_context(|| format!("{} has no heading", page.display()))?;
            text.push_str(&format!("- [{heading}]({})\n", page.display()));
        }
    }
    Ok(text)
}

/// A link in a Markdown text: the bytes of its target.
#[derive(Clone, Copy, Debug)]
struct Link {
    start: usize,
    end: usize,
}

impl Link {
    fn target(self, text: &str) -> &str {
        &text[self.start..self.end]
    }
}

/// The links and pictures of a Markdown text, outside of fenced blocks.
fn links(text: &str) -> impl Iterator<Item = Link> {
    let (mut fenced, mut offset, mut found) = (false, 0, Vec::new());
    for line in text.split_inclusive('\n') {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced {
            for (at, opened) in line.match_indices("](") {
                let start = at + opened.len();
                found
                    .extend(line[start..].find(')').map(|it| Link { start: offset + start, end: offset + start + it }));
            }
        }
        offset += line.len();
    }
    found.into_iter()
}

/// The path of a link's target, relative to the repository.
fn joined(page: &Path, target: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => _ = path.pop(),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The files of a directory, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files = entries.map(|it| Ok(it?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|it| it.is_file());
    files.sort();
    Ok(files)
}

fn read(root: &Path, path: &Path) -> Result<String> {
    fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))
}

fn put(source: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let file = source.join(path);
    fs::create_dir_all(file.parent().context("a file without a directory")?)?;
    fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
    }

    /// Every Markdown file below a directory, relative to the repository.
    fn markdown(directory: &str) -> BTreeSet<PathBuf> {
        let found = files(&root().join(directory)).expect("a readable directory").into_iter();
        found
            .filter(|it| it.extension().is_some_and(|it| it == "md"))
            .map(|it| it.strip_prefix(root()).expect("below the repository").to_owned())
            .collect()
    }

    #[test]
    fn every_page_is_listed_once() {
        let parts = parts(&read(&root(), Path::new(INDEX)).expect("the list")).expect("parts");
        let listed: Vec<&PathBuf> = parts.iter().flat_map(|it| &it.pages).collect();
        let mut missing: BTreeSet<PathBuf> = ["", "docs", "docs/howto"].into_iter().flat_map(markdown).collect();
        for first in FIRST {
            missing.remove(Path::new(first.0));
        }
        for page in &listed {
            assert!(missing.remove(*page), "{}: no such page, or listed twice", page.display());
        }
        assert!(missing.is_empty(), "{INDEX} has no item for {missing:?}");
    }

    #[test]
    fn first_paragraph_of_a_page_says_for_whom_it_is() {
        let pages: BTreeSet<PathBuf> = ["docs", "docs/howto"].into_iter().flat_map(markdown).collect();
        for page in pages {
            let text = read(&root(), &page).expect("a page");
            let first = text.split("\n\n").nth(1).unwrap_or_default();
            assert!(first.starts_with("This page is for "), "{}: {first}", page.display());
        }
    }

    #[test]
    fn source_of_the_book_has_everything_that_pages_link_to() {
        let source = std::env::temp_dir().join(format!("weir-book-{}", std::process::id()));
        let external = write_source(&root(), &source).expect("the source is written");
        assert!(external.iter().all(|it| it.starts_with("https://")), "{external:?}");
        let (mut pages, mut directories) = (0, 0);
        let summary = fs::read_to_string(source.join("SUMMARY.md")).expect("the table of contents");
        for link in links(&summary) {
            let page = PathBuf::from(link.target(&summary));
            let text = read(&source, &page).expect("the page");
            for link in links(&text).filter(|it| !it.target(&text).contains("://")) {
                let target = link.target(&text).split('#').next().unwrap_or_default();
                let found = if target.is_empty() { page.clone() } else { joined(&page, target) };
                assert!(source.join(&found).is_file(), "{}: {target}", page.display());
                directories += usize::from(target.ends_with("/index.html"));
            }
            pages += 1;
        }
        fs::remove_dir_all(&source).expect("removed");
        assert!(pages > 25 && directories > 0, "{pages} pages, {directories} links to directories");
    }

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](b.md#c) ![d](e.svg)\n```sh\n[f](g)\n```\n[h](https://i)\n";
        let targets: Vec<&str> = links(text).map(|it| it.target(text)).collect();
        assert_eq!(targets, ["b.md#c", "e.svg", "https://i"]);
    }

    #[test]
    fn targets_are_relative_to_the_page() {
        assert_eq!(joined(Path::new("docs/a.md"), "../deploy/chart"), Path::new("deploy/chart"));
        assert_eq!(joined(Path::new("README.md"), "./docs/a.md"), Path::new("docs/a.md"));
    }

    #[test]
    fn page_outside_of_the_list_is_an_error() {
        let source = std::env::temp_dir().join(format!("weir-book-unlisted-{}", std::process::id()));
        let error = bring(&root(), &source, Path::new("README.md"), "docs/cni.md", &BTreeSet::new());
        assert!(error.expect_err("not listed").to_string().contains("not listed"));
    }

    #[test]
    fn parts_are_read_from_the_list() {
        let index = "# All\n\n## Use\n\n* [a](a.md): b\n* [c](../C.md)\n  and more\n\n## Operate\n\n* [d](d.md)\n";
        let found = parts(index).expect("parts");
        assert_eq!(found[0].pages, [Path::new("docs/a.md"), Path::new("C.md")]);
        assert_eq!((found[1].title.as_str(), found[1].pages.len()), ("Operate", 1));
        assert!(parts("* [a](a.md)\n").is_err());
    }
}
