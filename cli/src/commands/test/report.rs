//! The results of expectations: for people, for programs, for CI systems.

use serde_json::{Value, json};
use weir_objects::escape::{is_hidden, self};

use super::{Fate, Tried, opposite};
use crate::because::word;
use crate::page::Page;
use crate::render::text::count;

/// As cargo prints tests: one line for each, then the failures.
pub(super) fn text(file: &str, tried: &[Tried], quiet: bool) -> Page {
    let mut page = Page::new();
    for it in tried {
        let (name, place) = (&it.expectation.name, format!("{file}:{}", it.expectation.line));
        match &it.fate {
            Fate::Passed if quiet => {}
            Fate::Passed => page.line(format_args!("ok      {name}")),
            Fate::Failed(why) => {
                page.line(format_args!("FAILED  {name}"));
                page.line(format_args!("          {place}: {}", message(it)));
                why.iter().for_each(|line| page.line(format_args!("          {line}")));
            }
            Fate::Unresolved(reason) => {
                page.line(format_args!("ERROR   {name}"));
                page.line(format_args!("          {place}: {reason}"));
            }
        }
        if let Some(note) = it.note.as_ref().filter(|_| !quiet || it.fate != Fate::Passed) {
            page.line(format_args!("          note: {note}"));
        }
    }
    let tally = Tally::of(tried);
    if !quiet || tally.failed + tally.unresolved > 0 {
        let Tally { passed, failed, unresolved } = tally;
        let unresolved = if unresolved > 0 { format!(", {unresolved} could not be asked") } else { String::new() };
        page.line(format_args!("{}: {passed} passed, {failed} failed{unresolved}", count(tried.len(), "expectation")));
    }
    page
}

/// docs/schema/test.json
pub(super) fn json(file: &str, tried: &[Tried]) -> serde_json::Result<Page> {
    let tally = Tally::of(tried);
    let results: Vec<Value> = tried.iter().map(result).collect();
    let document = json!({
        "file": file,
        "results": results,
        "summary": {"passed": tally.passed, "failed": tally.failed, "unresolved": tally.unresolved},
    });
    let mut page = Page::new();
    page.pretty_json(&document)?;
    Ok(page)
}

fn result(it: &Tried) -> Value {
    let (status, because, reason) = match &it.fate {
        Fate::Passed => ("passed", &[][..], None),
        Fate::Failed(why) => ("failed", why.as_slice(), None),
        Fate::Unresolved(reason) => ("unresolved", &[][..], Some(reason)),
    };
    json!({
        "name": it.expectation.name,
        "line": it.expectation.line,
        "expect": word(it.expectation.verdict),
        "status": status,
        "because": because,
        "reason": reason,
    })
}

/// JUnit XML, as CI systems read it.
pub(super) fn junit(file: &str, tried: &[Tried]) -> Page {
    let tally = Tally::of(tried);
    let attributes = format!("tests=\"{}\" failures=\"{}\" errors=\"{}\"", tried.len(), tally.failed, tally.unresolved);
    let mut page = Page::new();
    page.line("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
    page.line(format_args!("<testsuites {attributes}>"));
    page.line(format_args!("  <testsuite name=\"{}\" {attributes}>", escape(file)));
    tried.iter().for_each(|it| case(&mut page, file, it));
    page.line("  </testsuite>");
    page.line("</testsuites>");
    page
}

fn case(page: &mut Page, file: &str, it: &Tried) {
    let name = escape(&it.expectation.name);
    let open = format!("    <testcase classname=\"{}\" name=\"{name}\" line=\"{}\"", escape(file), it.expectation.line);
    let (element, message, details) = match &it.fate {
        Fate::Passed => return page.line(format_args!("{open}/>")),
        Fate::Failed(why) => {
            ("failure", message(it), why.iter().map(|it| escape(it)).collect::<Vec<_>>().join("&#10;"))
        }
        Fate::Unresolved(reason) => ("error", reason.clone(), String::new()),
    };
    page.line(format_args!("{open}>"));
    page.line(format_args!("      <{element} message=\"{}\">{details}</{element}>", escape(&message)));
    page.line("    </testcase>");
}

fn message(it: &Tried) -> String {
    let expected = it.expectation.verdict;
    format!("expected {}, but the verdict is {}", word(expected), word(opposite(expected)))
}

/// XML does not allow control characters, not even escaped.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            char if is_hidden(char) => escape::push(&mut escaped, char),
            char => escaped.push(char),
        }
    }
    escaped
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    unresolved: usize,
}

impl Tally {
    fn of(tried: &[Tried]) -> Self {
        let mut tally = Self::default();
        for it in tried {
            *match it.fate {
                Fate::Passed => &mut tally.passed,
                Fate::Failed(_) => &mut tally.failed,
                Fate::Unresolved(_) => &mut tally.unresolved,
            } += 1;
        }
        tally
    }
}
