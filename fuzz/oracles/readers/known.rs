//! The differences from other readers that are meant to be, with their reasons. There is no other place for one.

use super::Reading;
use super::judge::Answer;

/// A difference from every reader that follows libyaml.
fn to_both(text: &str, ours: &Reading) -> Option<&'static str> {
    if text.contains(['\u{85}', '\u{2028}', '\u{2029}']) {
        return Some("only CR and LF end lines in our reader, as in editors and in YAML 1.2");
    }
    match ours {
        Err(error) if error.starts_with("nested more than") => Some("ours allows 256 levels, Go's 10,000"),
        Err(error) if error.starts_with("aliases make this document") => Some("the limits on copies are not the same"),
        _ if text.contains("timestamp") => Some("Go's reader parses dates; in Kubernetes' objects they are strings"),
        _ => None,
    }
}

/// Whether libyaml-safer 0.2 is not asked. It ends a tag at `,`, `[` and `]`, as libyaml 0.2 does and Go's and our reader
/// do not, and panics if a comma follows.
pub fn stops_libyaml(text: &str) -> bool {
    let of_tag = |it: char| it.is_ascii_alphanumeric() || "_-;/?:@&=+$.!~*'()%<>".contains(it);
    text.match_indices('!').any(|(at, _)| text[at..].trim_start_matches(of_tag).starts_with([',', '[', ']']))
}

/// A difference from `libyaml-safer`.
pub fn to_libyaml(text: &str, ours: &Reading, theirs: &Reading) -> Option<&'static str> {
    if let Some(reason) = to_both(text, ours) {
        return Some(reason);
    }
    if text.contains('\u{feff}') {
        return Some("libyaml skips a byte order mark before every line, Go and ours before the first");
    }
    let in_brackets = text.contains(['[', '{']);
    match theirs {
        Err(error) if error.contains("unexpected ':' while scanning a plain scalar") => {
            Some("libyaml 0.2 refuses `a:,` in brackets, Go's reader and ours take `a:` as a text")
        }
        Err(error) if error.contains("unknown escape character") && text.contains("\\'") => {
            Some("libyaml 0.2 no longer knows the escape sequence `\\'`, Go's reader does")
        }
        Ok(_) if ours.is_err() && text.contains("\\/") => {
            Some("libyaml 0.2 knows the escape sequence `\\/`, Go's reader does not")
        }
        Ok(_) if ours.is_err() && ["\n%", "\r%"].iter().any(|it| text.contains(it)) => {
            Some("libyaml accepts a `%` line after a document without `...`; Go's reader and ours refuse it")
        }
        Err(_) if has_end(text) => Some("libyaml refuses an empty document before `...`"),
        _ if in_brackets && text.contains('?') => Some("in libyaml 0.2 a text in brackets may contain `?`"),
        _ => None,
    }
}

fn has_end(text: &str) -> bool {
    let mut lines = text.split(['\n', '\r']);
    lines.any(|line| line.strip_prefix("...").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t'])))
}

/// The number of `---` lines, perhaps with more behind them.
fn markers(text: &str) -> usize {
    let lines = text.split(['\n', '\r']);
    lines.filter(|line| line.strip_prefix("---").is_some_and(|it| it.is_empty() || it.starts_with([' ', '\t']))).count()
}

/// A difference from `serde_json`.
pub fn to_serde(text: &str, theirs: &Reading) -> Option<&'static str> {
    _ = text;
    let error = theirs.as_ref().err()?;
    if error.contains("surrogate") || error.contains("unexpected end of hex escape") {
        return Some("half of a surrogate pair is U+FFFD in Go, and so in ours");
    }
    error.starts_with("recursion limit").then_some("serde_json allows 128 levels, ours 256")
}

/// A difference from `sigs.k8s.io/yaml`.
pub fn to_kubectl(text: &str, ours: &Reading, theirs: &Answer) -> Option<&'static str> {
    if ours.is_err() && matches!(theirs, Answer::WithRest(_)) {
        return Some("kubectl ignores what follows the first value; ours refuses it, so that nothing is ignored");
    }
    if let Some(reason) = to_both(text, ours) {
        return Some(reason);
    }
    if text.starts_with("\u{feff}\u{feff}") {
        return Some("kubectl skips two byte order marks, ours one");
    }
    let is_null = matches!(theirs, Answer::Accepted(json) | Answer::WithRest(json) if json == "null");
    let marks = text.contains('\u{feff}');
    if markers(text) > 1 || (markers(text) == 1 && (is_null || marks)) {
        return Some("kubectl splits a text at `---` before it reads the documents; the judge reads the first one");
    }
    let text = text.trim_start_matches('\u{feff}');
    if text.contains('\u{feff}') {
        return Some("goyaml.v2 may lose the rest of a text after a byte order mark inside of it");
    }
    has_end(text)
        .then_some("kubectl reads one document only: it refuses an empty one before `...`, and ignores those after it")
}
