//! Comments and documents in plain English: phrases that readers stumble over are counted.
//!
//! Problem: a style that no test checks does not last. Strategy: a list of phrases from hard sentences of earlier
//! versions, and a limit for each thousand lines of comments and documents. The list does not find every hard sentence,
//! and some findings are good English. So there is a limit instead of a ban.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Findings for each thousand lines.
const LIMIT: usize = 4;
/// Findings in the message if there are too many.
const SHOWN: usize = 40;

/// Pronouns for things, clauses used as nouns, and words for which there is a standard term.
const PHRASES: [&str; 27] = [
    " nobody",
    " whoever",
    " somebody",
    " anybody",
    " so many ",
    " for so long",
    " as many as ",
    " is none ",
    " of ours",
    " of its own making",
    " mended",
    " shall ",
    " by now",
    " without more",
    " goes on ",
    " comes after ",
    " is in the way",
    " stands in ",
    " lies in ",
    " are told",
    " is told",
    ": what ",
    ", what ",
    " and what ",
    " of what ",
    " that what ",
    " is what ",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_text = path.extension().is_some_and(|it| it == "rs" || it == "md");
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            files(&path, found);
        } else if is_text && !path.ends_with("xtask/tests/prose.rs") {
            found.push(path);
        }
    }
}

/// The lines of prose in a file, with their numbers.
fn prose(path: &Path, text: &str) -> Vec<(usize, String)> {
    let is_document = path.extension().is_some_and(|it| it == "md");
    let mut is_fenced = false;
    let mut kept = Vec::new();
    for (line, number) in text.lines().map(str::trim_start).zip(1..) {
        is_fenced ^= is_document && line.starts_with("```");
        let line = if is_document { Some(line).filter(|_| !is_fenced) } else { line.strip_prefix("//") };
        kept.extend(line.map(|line| (number, format!(" {} ", line.trim_start_matches(['/', '!', ' '])))));
    }
    kept
}

#[test]
fn comments_and_documents_are_plain_english() {
    let mut paths = Vec::new();
    files(&root(), &mut paths);
    paths.sort();
    let (mut lines, mut findings) = (0, Vec::new());
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("it is text");
        for (number, line) in prose(&path, &text) {
            lines += 1;
            let found = PHRASES.iter().filter(|phrase| line.contains(**phrase));
            findings.extend(found.map(|phrase| format!("{}:{number}: \"{}\"", path.display(), phrase.trim())));
        }
    }
    assert!(lines > 5_000, "only {lines} lines were read");
    println!("{} findings in {lines} lines", findings.len());
    let mut shown = String::new();
    findings.iter().take(SHOWN).for_each(|it| _ = writeln!(shown, "{it}"));
    assert!(findings.len() * 1_000 <= LIMIT * lines, "{} findings in {lines} lines, such as\n{shown}", findings.len());
}

#[test]
fn hard_sentences_are_found() {
    let text = "/// Tells whoever asks of what is nobody's.\nfn nobody() {}\n";
    let prose = prose(Path::new("a.rs"), text);
    assert_eq!(prose.len(), 1, "{prose:?}");
    assert_eq!(PHRASES.iter().filter(|phrase| prose[0].1.contains(**phrase)).count(), 3);
}
