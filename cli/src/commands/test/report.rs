//! How expectations fared: for people, for programs, for CI systems.

use serde_json::{Value, json};

use super::{Fate, Tried, opposite};
use crate::because::word;
use crate::render::text::count;

/// As cargo prints tests: one line each, then what failed.
pub(super) fn text(file: &str, tried: &[Tried], quiet: bool) -> String {
    let mut text = String::new();
    for it in tried {
        let (name, place) = (&it.expectation.name, format!("{file}:{}", it.expectation.line));
        match &it.fate {
            Fate::Passed if quiet => {}
            Fate::Passed => text.push_str(&format!("ok      {name}\n")),
            Fate::Failed(why) => {
                text.push_str(&format!("FAILED  {name}\n          {place}: {}\n", message(it)));
                why.iter().for_each(|line| text.push_str(&format!("          {line}\n")));
            }
            Fate::Unresolved(reason) => text.push_str(&format!("ERROR   {name}\n          {place}: {reason}\n")),
        }
        if let Some(note) = it.note.as_ref().filter(|_| !quiet || it.fate != Fate::Passed) {
            text.push_str(&format!("          note: {note}\n"));
        }
    }
    let tally = Tally::of(tried);
    if !quiet || tally.failed + tally.unresolved > 0 {
        text.push_str(&format!(
            "{}: {} passed, {} failed",
            count(tried.len(), "expectation"),
            tally.passed,
            tally.failed
        ));
        if tally.unresolved > 0 {
            text.push_str(&format!(", {} could not be asked", tally.unresolved));
        }
        text.push('\n');
    }
    text
}

/// docs/schema/test.json
pub(super) fn json(file: &str, tried: &[Tried]) -> serde_json::Result<String> {
    let tally = Tally::of(tried);
    let results: Vec<Value> = tried.iter().map(result).collect();
    let document = json!({
        "file": file,
        "results": results,
        "summary": {"passed": tally.passed, "failed": tally.failed, "unresolved": tally.unresolved},
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
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
pub(super) fn junit(file: &str, tried: &[Tried]) -> String {
    let tally = Tally::of(tried);
    let attributes = format!("tests=\"{}\" failures=\"{}\" errors=\"{}\"", tried.len(), tally.failed, tally.unresolved);
    let cases: String = tried.iter().map(|it| case(file, it)).collect();
    let file = escape(file);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {attributes}>\n  \
         <testsuite name=\"{file}\" {attributes}>\n{cases}  </testsuite>\n</testsuites>\n"
    )
}

fn case(file: &str, it: &Tried) -> String {
    let name = escape(&it.expectation.name);
    let open = format!("    <testcase classname=\"{}\" name=\"{name}\" line=\"{}\"", escape(file), it.expectation.line);
    let (element, message, details) = match &it.fate {
        Fate::Passed => return format!("{open}/>\n"),
        Fate::Failed(why) => ("failure", message(it), why.join("\n")),
        Fate::Unresolved(reason) => ("error", reason.clone(), String::new()),
    };
    let (message, details) = (escape(&message), escape(&details));
    format!("{open}>\n      <{element} message=\"{message}\">{details}</{element}>\n    </testcase>\n")
}

fn message(it: &Tried) -> String {
    let expected = it.expectation.verdict;
    format!("expected {}, but the verdict is {}", word(expected), word(opposite(expected)))
}

/// XML takes no control characters, not even escaped.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            char if char.is_control() => escaped.push('\u{fffd}'),
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
