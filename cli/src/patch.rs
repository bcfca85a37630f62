//! Two texts → a patch, as `diff -u` writes it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path};

use anyhow::Result;

use crate::failure::with_hint;
use crate::page::OutputPage;

const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// If both texts differ in more lines than this, all of the lines between the first and the last difference are
/// exchanged: the search for common lines takes the product of both numbers.
const MOST_LINES: usize = 4_000;

/// The patch of one file; empty if nothing changes. A file without a text before is new.
///
/// Decoding removes a byte order mark, but the patch is for the file: it has the mark if the file has it.
pub(crate) fn file_patch(name: &str, before: Option<&str>, after: &str) -> String {
    match before.filter(|_| has_byte_order_mark(name)) {
        Some(before) => patch(name, Some(&with_byte_order_mark(before)), &with_byte_order_mark(after)),
        None => patch(name, before, after),
    }
}

/// Adds the patch of a file to a page.
///
/// # Errors
/// Fails if the patch cannot be printed byte for byte: `git apply` would reject the printed text. Also if the file is not
/// below the current directory: a patch cannot name it, and would be applied to another file.
pub(crate) fn print(page: &mut OutputPage, name: &str, patch: &str, hint: &str) -> Result<()> {
    let mut parts = Path::new(name).components();
    if parts.any(|it| !matches!(it, Component::Normal(_) | Component::CurDir)) {
        let message = format!("a patch cannot name a file outside of the current directory: {name}");
        return Err(with_hint(
            message,
            "run the command in a directory that contains the file, and name it from there",
        ));
    }
    if page.patch(patch) { Ok(()) } else { Err(with_hint(unprintable(name), hint)) }
}

/// Why a patch is not printed.
pub(crate) fn unprintable(name: &str) -> String {
    format!(
        "the patch of {name} cannot be printed as it is: its lines have carriage returns, tabs or hidden characters"
    )
}

/// Whether the file begins with a byte order mark.
pub(crate) fn has_byte_order_mark(name: impl AsRef<Path>) -> bool {
    let mut first = [0; BYTE_ORDER_MARK.len()];
    // A pipe must not be read twice.
    let is_file = std::fs::metadata(&name).is_ok_and(|it| it.is_file());
    is_file
        && File::open(name).is_ok_and(|mut file| file.read_exact(&mut first).is_ok())
        && first == BYTE_ORDER_MARK.as_bytes()
}

/// The text of a file that begins with a byte order mark.
pub(crate) fn with_byte_order_mark(text: &str) -> String {
    format!("{BYTE_ORDER_MARK}{text}")
}

/// The patch of two texts.
fn patch(name: &str, before: Option<&str>, after: &str) -> String {
    let name = name.trim_start_matches("./").trim_start_matches('/');
    let old: Vec<&str> = before.unwrap_or_default().split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    let lines = differences(&old, &new);
    let mut text = String::new();
    for hunk in hunks(&lines) {
        if text.is_empty() {
            match before {
                Some(_) => _ = writeln!(text, "--- a/{name}\n+++ b/{name}"),
                None => _ = writeln!(text, "--- /dev/null\n+++ b/{name}"),
            }
        }
        write_hunk(&lines, hunk, &mut text);
    }
    text
}

/// A line of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchLine<'t> {
    Both(&'t str),
    Old(&'t str),
    New(&'t str),
}

impl<'t> PatchLine<'t> {
    fn parts(self) -> (char, &'t str) {
        match self {
            Self::Both(line) => (' ', line),
            Self::Old(line) => ('-', line),
            Self::New(line) => ('+', line),
        }
    }

    /// The number of lines of the old and of the new text.
    fn counts(self) -> (usize, usize) {
        match self {
            Self::Both(_) => (1, 1),
            Self::Old(_) => (1, 0),
            Self::New(_) => (0, 1),
        }
    }
}

fn differences<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<PatchLine<'t>> {
    let start = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let end = old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (from, to) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    let mut lines: Vec<PatchLine<'t>> = old[..start].iter().map(|it| PatchLine::Both(it)).collect();
    match from.len().max(to.len()) <= MOST_LINES {
        true => lines.extend(aligned(from, to)),
        false => {
            lines.extend(from.iter().map(|it| PatchLine::Old(it)));
            lines.extend(to.iter().map(|it| PatchLine::New(it)));
        }
    }
    lines.extend(old[old.len() - end..].iter().map(|it| PatchLine::Both(it)));
    lines
}

/// The lines of both, with a longest common subsequence as common lines.
fn aligned<'t>(old: &[&'t str], new: &[&'t str]) -> Vec<PatchLine<'t>> {
    // `common[i][j]` is the number of common lines of `old[i..]` and `new[j..]`.
    let mut common = vec![vec![0_u16; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::with_capacity(old.len() + new.len());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push(PatchLine::Both(old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(PatchLine::Old(old[i]));
            i += 1;
        } else {
            lines.push(PatchLine::New(new[j]));
            j += 1;
        }
    }
    lines
}

/// Ranges of lines with their context.
fn hunks(lines: &[PatchLine<'_>]) -> Vec<std::ops::Range<usize>> {
    let mut hunks: Vec<std::ops::Range<usize>> = Vec::new();
    let changed = lines.iter().enumerate().filter(|(_, it)| !matches!(it, PatchLine::Both(_)));
    for (at, _) in changed {
        let (start, end) = (at.saturating_sub(CONTEXT), (at + 1 + CONTEXT).min(lines.len()));
        match hunks.last_mut() {
            Some(last) if start <= last.end => last.end = end,
            _ => hunks.push(start..end),
        }
    }
    hunks
}

fn write_hunk(lines: &[PatchLine<'_>], hunk: std::ops::Range<usize>, text: &mut String) {
    let count = |lines: &[PatchLine<'_>]| {
        lines.iter().map(|it| it.counts()).fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    };
    let (before, inside) = (count(&lines[..hunk.start]), count(&lines[hunk.clone()]));
    // A side without lines begins at the line before.
    let first = |before: usize, inside: usize| if inside == 0 { before } else { before + 1 };
    let (old, new) = (first(before.0, inside.0), first(before.1, inside.1));
    _ = writeln!(text, "@@ -{old},{} +{new},{} @@", inside.0, inside.1);
    for line in &lines[hunk] {
        let (sign, line) = line.parts();
        _ = write!(text, "{sign}{line}");
        if !line.ends_with('\n') {
            text.push_str("\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_have_context_and_line_numbers() {
        let old: String = (1..=20).map(|it| format!("{it}\n")).collect();
        let new = old.replace("\n5\n", "\nfive\n").replace("20\n", "20\n21");
        let expected = "\
--- a/x/y.yaml
+++ b/x/y.yaml
@@ -2,7 +2,7 @@
 2
 3
 4
-5
+five
 6
 7
 8
@@ -18,3 +18,4 @@
 18
 19
 20
+21
\\ No newline at end of file
";
        assert_eq!(patch("./x/y.yaml", Some(&old), &new), expected);
        assert_eq!(patch("x", Some(&old), &old), "");
    }

    #[test]
    fn a_new_file_has_no_old_lines() {
        assert_eq!(patch("/x", None, "a\nb\n"), "--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+a\n+b\n");
    }
}
