//! Findings for people: drawn as rustc does, with the line, the field and one next step.

use std::borrow::Cow;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Element, Group, Level, Origin, Snippet};
use weir_objects::diagnostic::Severity;
use weir_objects::escape;
use weir_objects::source::SourceMap;
use weir_policy::findings::{LocatedFinding, LocatedSpan, RelatedLabel};
use weir_policy::locator::Locator;

use crate::page::OutputPage;

/// Longer lines are not shown, only their position: a whole cluster in one line of JSON would be unreadable.
const LONGEST_LINE: usize = 400;
/// Lines shown above and below the marked place.
const CONTEXT: usize = 1;
/// If a place has more lines than this, only its first line is underlined.
const MOST_LINES: usize = 1;

/// Adds at most `max` findings to a page, one after the other.
pub(crate) fn findings(
    sources: &SourceMap,
    findings: &[LocatedFinding],
    mut page: OutputPage,
    max: usize,
) -> OutputPage {
    let mut locator = Locator::new(sources);
    for finding in findings.iter().take(max) {
        page.drawn(0, group(&mut locator, finding));
        page.blank();
    }
    page
}

fn group<'f>(locator: &mut Locator<'f>, finding: &'f LocatedFinding) -> Group<'f> {
    let diagnostic = &finding.diagnostic;
    let title = level(diagnostic.severity).primary_title(escape::line(&diagnostic.message)).id(diagnostic.code.name);
    let mut elements: Vec<Element<'f>> = Vec::new();
    if let Some(spot) = &finding.location {
        elements.push(excerpt(locator, spot, AnnotationKind::Primary, &diagnostic.primary.text, MOST_LINES));
    }
    for RelatedLabel { location, text } in &finding.related {
        elements.extend(location.iter().map(|spot| excerpt(locator, spot, AnnotationKind::Context, text, MOST_LINES)));
    }
    elements.extend(object_and_field(finding).map(|text| Level::NOTE.message(escape::line(&text).into_owned()).into()));
    elements.extend(diagnostic.notes.iter().map(|note| Level::NOTE.message(escape::line(note)).into()));
    elements.extend(diagnostic.help.iter().map(|help| Level::HELP.message(escape::line(help)).into()));
    title.elements(elements)
}

/// The object and the field, if the message does not name them itself.
fn object_and_field(finding: &LocatedFinding) -> Option<String> {
    let object = finding.object.as_ref()?;
    let namespace = object.namespace.as_ref().map(|it| format!("{it}/")).unwrap_or_default();
    let field = finding.field.as_ref()?;
    let known = finding.diagnostic.message.contains(field.as_str());
    let field = if known { String::new() } else { format!(": {field}") };
    let name = if object.name.is_empty() { "without a name" } else { &object.name };
    Some(clip(format!("in {} {namespace}{name}{field}", object.kind)))
}

/// Cuts a text, because names and keys can have any length.
fn clip(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_LINE) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn level(severity: Severity) -> Level<'static> {
    match severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Note => Level::NOTE,
    }
}

/// The lines around a place, with the label.
pub(crate) fn excerpt<'s: 'f, 'f>(
    locator: &mut Locator<'s>,
    spot: &'f LocatedSpan,
    kind: AnnotationKind,
    label: &'f str,
    most_lines: usize,
) -> Element<'f> {
    let text = &locator.sources().file(spot.at.file).text;
    let last_line = if spot.end.line - spot.start.line < most_lines { spot.end.line } else { spot.start.line };
    let first_shown = spot.start.line.saturating_sub(CONTEXT).max(1);
    let start = locator.line_start(spot.at.file, first_shown);
    let end = locator.line_start(spot.at.file, last_line + CONTEXT + 1);
    let mut starts = (first_shown..=last_line + CONTEXT + 1).map(|line| locator.line_start(spot.at.file, line));
    let mut before = starts.next().unwrap_or_default();
    // The length includes the line break.
    let too_long = |at: usize| at - std::mem::replace(&mut before, at) > LONGEST_LINE + 1;
    if starts.any(too_long) {
        return Origin::path(escape::line(&spot.file)).line(spot.start.line).char_column(spot.start.column).into();
    }
    let shown = text.get(start..end).unwrap_or_default();
    let from = (spot.at.span.start as usize).clamp(start, end) - start;
    let line_end = locator.line_start(spot.at.file, last_line + 1).clamp(start, end) - start;
    let to = (spot.at.span.end as usize).saturating_sub(start).clamp(from, line_end.max(from));
    let to = from + shown.get(from..to).map_or(0, |it| it.trim_end().len());
    let VisibleSource { text: shown, marked } = visible(shown.trim_end_matches(['\n', '\r']), from..to);
    let annotation = kind.span(marked);
    let annotation = if label.is_empty() { annotation } else { annotation.label(escape::line(label)) };
    let shown = Snippet::source(shown).line_start(first_shown).path(escape::line(&spot.file));
    shown.annotation(annotation).into()
}

/// Source lines in which hidden characters are escaped, and the range that is marked in them.
struct VisibleSource<'t> {
    text: Cow<'t, str>,
    marked: Range<usize>,
}

/// Escapes hidden characters. Escapes are longer than the characters, so the marked range moves.
fn visible(text: &str, marked: Range<usize>) -> VisibleSource<'_> {
    // The renderer draws tabs as spaces. The `\r` of a `\r\n` is left out: it ends the line as `\n` does.
    let is_shown = |letter: char| letter == '\n' || letter == '\t' || !escape::is_hidden(letter);
    if text.chars().all(is_shown) {
        return VisibleSource { text: Cow::Borrowed(text), marked };
    }
    let (mut out, mut moved) = (String::with_capacity(text.len() + 16), [None; 2]);
    for (at, letter) in text.char_indices() {
        let wanted = [marked.start, marked.end];
        moved.iter_mut().zip(wanted).filter(|(_, it)| *it == at).for_each(|(moved, _)| *moved = Some(out.len()));
        match letter {
            letter if is_shown(letter) => out.push(letter),
            '\r' if text[at..].starts_with("\r\n") => {}
            letter => escape::push(&mut out, letter),
        }
    }
    let [start, end] = moved.map(|it| it.unwrap_or(out.len()));
    VisibleSource { text: Cow::Owned(out), marked: start..end }
}

/// `1 error`, `2 errors`, `no errors`.
pub(crate) fn count(number: usize, what: &str) -> String {
    let plural = match what.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{what}s"),
    };
    match number {
        0 => format!("no {plural}"),
        1 => format!("1 {what}"),
        _ => format!("{number} {plural}"),
    }
}
