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
use crate::patch::patch;
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
    for _ in 0..MOST_ROUNDS {
        let (fixes, edited) = round(head.as_ref().unwrap_or(&read), check, levels);
        if fixes == 0 {
            break;
        }
        fixed += fixes;
        head = Some(read::read_texts(global, rewrite::inputs(&edited))?);
        files = edited;
    }
    let Some(mut head) = head else {
        page::print_to_stderr("nothing to fix");
        return Ok(if check.diff { FixOutcome::Shown } else { FixOutcome::Written(Box::new(read)) });
    };
    prove(&read, &head)?;
    let changed = changed(&read, &files);
    let (findings, number) = (count(fixed, "finding"), count(changed.len(), "file"));
    if check.diff {
        let mut page = OutputPage::new();
        changed.iter().for_each(|it| page.lines(&patch(it.name, Some(it.before), it.after)));
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

/// Applies the fixes of all findings at once. Returns their number, and the files afterwards.
fn round(read: &ReadInput, check: &CheckArgs, levels: &Levels) -> (usize, Vec<EditedFile>) {
    let mut found = lint::lint(&read.objects, &read.cluster, super::world(check));
    read.diagnostics.iter().for_each(|it| found.push(it.clone()));
    levels.apply(&mut found);
    let mut wanted: Vec<FieldFix> = found.iter().filter_map(field_fix).collect();
    let options = DecodeOptions { default_namespace: read.default_namespace.clone(), is_from_server: false };
    let apply = |fixes: &[FieldFix]| rewrite::fix(&read.sources, &read.objects, &options, fixes);
    if let Ok(files) = apply(&wanted) {
        return (wanted.len(), files);
    }
    // Some of the places cannot be edited in place: leave those out.
    wanted.retain(|it| apply(std::slice::from_ref(it)).is_ok());
    apply(&wanted).map_or((0, Vec::new()), |files| (wanted.len(), files))
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

/// Writes a file, through links and with the permissions that it has.
fn write(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if path == Path::new("-") {
        return Err(with_hint("standard input cannot be fixed", "`--diff` prints the fixes"));
    }
    let path = path.canonicalize().with_context(failed)?;
    let permissions = std::fs::metadata(&path).with_context(failed)?.permissions();
    output_file::replace(&path, text.as_bytes()).with_context(failed)?;
    std::fs::set_permissions(&path, permissions).with_context(failed)
}
