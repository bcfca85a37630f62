//! `weir test --bless`: gives failed expectations the verdict that the flows have now.
//!
//! Only the words `allow` and `deny` are exchanged, so comments, order and layout stay. The changed text is read again
//! before it is written: it must contain the same expectations, with other verdicts.

use std::path::Path;

use anyhow::{Context as _, Result};
use weir_objects::syntax;
use weir_policy::verdict_reasons::verdict_name;

use super::file::{self, Expectation};
use super::{ExpectationResult, ExpectationStatus, opposite};
use crate::failure::with_hint;
use crate::page::{self, OutputPage};
use crate::render::text::count;
use crate::{output_file, patch};

/// Refuses inputs that cannot be written back, before any work.
pub(super) fn check(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        let hint = "name the file of the expectations";
        return Err(with_hint("expectations from standard input cannot be changed", hint));
    }
    Ok(())
}

/// Writes the file with the verdicts that failed expectations have now, and prints the change as a patch.
pub(super) fn bless(path: &Path, bytes: Vec<u8>, results: &mut [ExpectationResult]) -> Result<()> {
    let name = path.display().to_string();
    let text = syntax::text(bytes).map_err(|_| anyhow::anyhow!("{name} is not UTF-8 text"))?;
    let failed = |it: &&ExpectationResult| matches!(it.status, ExpectationStatus::Failed(_));
    let blessed: Vec<&Expectation> = results.iter().filter(failed).map(|it| &it.expectation).collect();
    if blessed.is_empty() {
        page::print_to_stderr("nothing to bless: no expectation fails");
    } else {
        let after = with_verdicts(&text, &name, &blessed)?;
        verify(&after, &name, results)?;
        write(path, &after)?;
        print(&name, &text, &after, &blessed)?;
    }
    for it in results.iter() {
        let reason = match &it.status {
            ExpectationStatus::Depends { .. } => "not every pod that it describes has the same verdict",
            ExpectationStatus::Unresolved(reason) => reason,
            ExpectationStatus::Passed | ExpectationStatus::Failed(_) => continue,
        };
        page::print_to_stderr(format_args!("not blessed: {name}:{}: {reason}", it.expectation.line));
    }
    results.iter_mut().filter(|it| matches!(it.status, ExpectationStatus::Failed(_))).for_each(|it| {
        it.status = ExpectationStatus::Passed;
    });
    Ok(())
}

/// The text with the opposite verdicts of these expectations.
fn with_verdicts(text: &str, name: &str, blessed: &[&Expectation]) -> Result<String> {
    let mut after = text.to_owned();
    // From the end: an edit moves the text behind it.
    for it in blessed.iter().rev() {
        let span = it.verdict_span;
        let written = span.slice(text).replacen(verdict_name(it.verdict), verdict_name(opposite(it.verdict)), 1);
        let range = span.start as usize..span.end as usize;
        if after.get(range.clone()).is_none() || written == span.slice(text) {
            return Err(not_editable(name));
        }
        after.replace_range(range, &written);
    }
    Ok(after)
}

/// Fails unless the text has the same expectations, with the verdicts that they have now.
fn verify(after: &str, name: &str, results: &[ExpectationResult]) -> Result<()> {
    let now = |it: &ExpectationResult| match it.status {
        ExpectationStatus::Failed(_) => opposite(it.expectation.verdict),
        _ => it.expectation.verdict,
    };
    let read = file::parse(after.as_bytes().to_vec(), name).map_err(|_| not_editable(name))?;
    let is_same =
        |(read, it): (&Expectation, &ExpectationResult)| read.verdict == now(it) && read.asks_the_same(&it.expectation);
    match read.len() == results.len() && read.iter().zip(results).all(is_same) {
        true => Ok(()),
        false => Err(not_editable(name)),
    }
}

fn not_editable(name: &str) -> anyhow::Error {
    let hint = "write `expect: allow` or `expect: deny` in each expectation, without anchors";
    with_hint(format!("{name} was not changed: its verdicts cannot be replaced one by one"), hint)
}

/// Writes through links, with the byte order mark that the file has.
fn write(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let path = path.canonicalize().with_context(failed)?;
    let text = match patch::has_byte_order_mark(&path) {
        true => patch::with_byte_order_mark(text),
        false => text.to_owned(),
    };
    output_file::replace_with_same_permissions(&path, text.as_bytes()).with_context(failed)
}

fn print(name: &str, before: &str, after: &str, blessed: &[&Expectation]) -> Result<()> {
    let mut page = OutputPage::new();
    if !page.patch(&patch::file_patch(name, Some(before), after)) {
        page::print_to_stderr(format_args!("note: {}", patch::unprintable(name)));
    }
    page.print()?;
    for it in blessed {
        let verdict = verdict_name(opposite(it.verdict));
        let (line, title) = (it.line, &it.name);
        let named = if it.is_named { "; check that its name is still true" } else { "" };
        page::print_to_stderr(format_args!("blessed {name}:{line}: {title}: now {verdict}{named}"));
    }
    page::print_to_stderr(format_args!("changed {} of {name}", count(blessed.len(), "expectation")));
    Ok(())
}
