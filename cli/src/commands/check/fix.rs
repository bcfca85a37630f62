//! `weir check --fix`: applies the fixes that findings carry, if they change no verdict.
//!
//! The fixes of one round can give new findings, so rounds follow until none has a fix. The proof is the comparison of
//! the input with the result, for every pod that could exist; nothing is written before it.

use std::path::Path;

use anyhow::{Context as _, Result};
use weir_analysis::diff::compare_open;
use weir_lint as lint;
use weir_objects::decode::DecodeOptions;
use weir_objects::diagnostic::{Diagnostic, FindingPlace, Fix, Severity};
use weir_suggest::rewrite::{self, EditedFile, FieldFix};

use crate::args::{CheckArgs, GlobalArgs};
use crate::failure::with_hint;
use crate::lints::Levels;
use crate::page::OutputPage;
use crate::patch;
use crate::read::{self, ReadInput};
use crate::render::text::count;
use crate::{output_file, page};

/// More rounds than any input needs.
const MOST_ROUNDS: usize = 16;

/// The result of fixing.
pub(super) enum FixOutcome {
    /// The fixes were printed, and nothing was written.
    Shown,
    /// The input after the fixes.
    Written(Box<ReadInput>),
}

pub(super) fn run(global: &GlobalArgs, check: &CheckArgs, levels: &Levels, read: ReadInput) -> Result<FixOutcome> {
    if !read.complete || read.diagnostics.has_errors() {
        page::print_to_stderr("nothing is fixed: fix the errors first");
        return Ok(FixOutcome::Written(Box::new(read)));
    }
    let (mut files, mut fixed, mut head) = (Vec::new(), 0, None);
    let mut left = Vec::new();
    for _ in 0..MOST_ROUNDS {
        let round = round(head.as_ref().unwrap_or(&read), check, levels);
        left = round.left;
        if round.fixed == 0 {
            break;
        }
        fixed += round.fixed;
        head = Some(read::read_texts(global, rewrite::inputs(&round.files))?);
        files = round.files;
    }
    left.dedup();
    left.iter().for_each(|it| page::print_to_stderr(format_args!("not fixed: {it}")));
    let Some(mut head) = head else {
        page::print_to_stderr(if left.is_empty() { "nothing to fix" } else { "nothing is fixed" });
        return Ok(if check.diff { FixOutcome::Shown } else { FixOutcome::Written(Box::new(read)) });
    };
    prove(&read, &head)?;
    let changed = changed(&read, &files);
    let (findings, number) = (count(fixed, "finding"), count(changed.len(), "file"));
    if check.diff {
        let mut page = OutputPage::new();
        let hint = "`weir check --fix` without `--diff` edits the files";
        for file in &changed {
            let patch = patch::file_patch(file.name, Some(file.before), file.after);
            patch::print(&mut page, file.name, &patch, hint)?;
        }
        page.print()?;
        page::print_to_stderr(format_args!("would fix {findings} in {number}, and no verdict changes"));
        return Ok(FixOutcome::Shown);
    }
    changed.iter().try_for_each(|it| write(Path::new(it.name), it.after))?;
    page::print_to_stderr(format_args!("fixed {findings} in {number}, and no verdict changes"));
    head.stdin_read = read.stdin_read;
    Ok(FixOutcome::Written(Box::new(head)))
}

/// A file with fixes.
struct FixedFile<'f> {
    name: &'f str,
    before: &'f str,
    after: &'f str,
}

fn changed<'f>(read: &'f ReadInput, files: &'f [EditedFile]) -> Vec<FixedFile<'f>> {
    let pairs = read.sources.files().iter().zip(files);
    let pairs = pairs.map(|(old, new)| FixedFile { name: &new.name, before: &old.text, after: &new.after });
    pairs.filter(|it| it.before != it.after).collect()
}

/// The fixes of one round.
struct Round {
    /// The number of findings.
    fixed: usize,
    files: Vec<EditedFile>,
    /// Why other findings are not fixed.
    left: Vec<String>,
}

/// Applies the fixes of all findings at once.
fn round(read: &ReadInput, check: &CheckArgs, levels: &Levels) -> Round {
    let mut found = lint::lint(&read.objects, &read.cluster, super::world(check));
    read.diagnostics.iter().for_each(|it| found.push(it.clone()));
    levels.apply(&mut found);
    let mut wanted: Vec<FieldFix> = found.iter().filter_map(field_fix).collect();
    let options = DecodeOptions { default_namespace: read.default_namespace.clone(), is_from_server: false };
    let apply = |fixes: &[FieldFix]| rewrite::fix(&read.sources, &read.objects, &options, fixes);
    if let Ok(files) = apply(&wanted) {
        return Round { fixed: wanted.len(), files, left: Vec::new() };
    }
    // Some of the places cannot be edited in place: leave those out.
    let mut left = Vec::new();
    wanted.retain(|it| apply(std::slice::from_ref(it)).map_err(|error| left.push(error.to_string())).is_ok());
    match apply(&wanted) {
        Ok(files) => Round { fixed: wanted.len(), files, left },
        Err(error) => {
            left.push(error.to_string());
            Round { fixed: 0, files: Vec::new(), left }
        }
    }
}

fn field_fix(found: &Diagnostic) -> Option<FieldFix> {
    let FindingPlace::Field(origin) = &found.primary.place else { return None };
    let text = match found.fix.as_ref().filter(|_| found.severity != Severity::Note)? {
        Fix::Remove => None,
        Fix::Write(text) => Some(text.clone()),
    };
    Some(FieldFix { object: origin.object, path: origin.path.clone(), text })
}

/// Refuses fixes that change a verdict, or that made an object unreadable.
fn prove(read: &ReadInput, head: &ReadInput) -> Result<()> {
    let diff = compare_open(&read.cluster, &head.cluster, false).context("the fixes cannot be verified")?;
    let is_same = diff.rows.is_empty() && diff.isolation.is_empty();
    if !is_same || head.diagnostics.has_errors() || read.objects.len() != head.objects.len() {
        let message = "the fixes would change what is allowed, so nothing was written";
        return Err(with_hint(message, "`weir check` without --fix shows the findings"));
    }
    Ok(())
}

/// Writes a file, through links, with the permissions and the byte order mark that it has.
fn write(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if path == Path::new("-") {
        return Err(with_hint("standard input cannot be fixed", "add `--diff` to print the fixes as a patch"));
    }
    let path = path.canonicalize().with_context(failed)?;
    let text = match patch::has_byte_order_mark(&path) {
        true => patch::with_byte_order_mark(text),
        false => text.to_owned(),
    };
    output_file::replace_with_same_permissions(&path, text.as_bytes()).with_context(failed)
}
