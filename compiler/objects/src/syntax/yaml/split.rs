//! Finds the boundaries between the documents of a YAML stream.
//!
//! `---` and `...` at the start of a line are always markers, even in quotes, so no parser is needed.

use crate::syntax::Span;

/// The spans of a text's documents, some of which may be empty.
#[derive(Debug)]
pub(super) struct DocumentSpans<'t> {
    text: &'t str,
    start: usize,
    done: bool,
}

impl<'t> DocumentSpans<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, start: 0, done: false }
    }
}

impl Iterator for DocumentSpans<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        if self.done {
            return None;
        }
        let start = self.start;
        // True while only directives and comments were seen: they belong to the document after the next marker.
        let mut prefix = true;
        let mut at = start;
        while at < self.text.len() {
            let line = line(self.text, at);
            let next = at + line.len();
            if is_marker(line, "---") {
                if !prefix {
                    self.start = at;
                    return Some(Span::new(start, at));
                }
                prefix = false;
            } else if is_marker(line, "...") {
                self.start = next;
                return Some(Span::new(start, next));
            } else if !is_prefix(line) {
                prefix = false;
            }
            at = next;
        }
        self.done = true;
        Some(Span::new(start, self.text.len()))
    }
}

/// A document without the `...` that ends it.
pub(super) fn content(chunk: &str) -> &str {
    let lines = chunk.trim_end_matches(['\r', '\n']);
    let last = lines.rfind(['\r', '\n']).map_or(0, |end| end + 1);
    match lines.get(last..) {
        Some(line) if is_marker(line, "...") => chunk.get(..last).unwrap_or_default(),
        _ => chunk,
    }
}

/// The line that starts at `at`, with its end. A lone CR ends a line too.
fn line(text: &str, at: usize) -> &str {
    let rest = text.get(at..).unwrap_or_default();
    let bytes = rest.as_bytes();
    let end = match bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        Some(end) if bytes.get(end..end + 2) == Some(b"\r\n") => end + 2,
        Some(end) => end + 1,
        None => rest.len(),
    };
    rest.get(..end).unwrap_or_default()
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_prefix(line: &str) -> bool {
    // No other white space: a no-break space is a value.
    let rest = line.trim_start_matches([' ', '\t', '\r', '\n']);
    rest.is_empty() || rest.starts_with('#') || line.starts_with('%')
}
