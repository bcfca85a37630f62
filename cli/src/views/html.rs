//! The HTML report: one file that needs nothing else. `views/report` has its parts.
//!
//! Text from the input is only ever text: in the page it is written by [`Markup`], and in the tables it is JSON without
//! any character that has a meaning in HTML, which the script inserts as text. A content security policy allows the
//! page's own script and style by their digests, and no URLs.

use anyhow::{Context as _, Result};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;
use weir_analysis::reach::Reach;
use weir_artifact::Digest;
use weir_objects::escape;

use super::report::ends::{self, ChangedEnds, ReportEnd};
use super::report::exposure::ReportExposure;
use super::report::head::{self, ReportHead};
use super::report::list::{self, ListRow};
use super::report::markup::Markup;
use super::report::source_links::SourceLinks;
use super::report::tables;
use crate::args::{GlobalArgs, InputPaths, ViewArgs, ViewLevel};
use crate::page::OutputPage;
use crate::read::ReadInput;
use crate::render::text::count;
use crate::time;

const PAGE: &str = include_str!("report/page.html");
const STYLE: &str = concat!(
    include_str!("report/style/base.css"),
    include_str!("report/style/list.css"),
    include_str!("report/style/matrix.css"),
    include_str!("report/style/graph.css"),
    include_str!("report/style/print.css"),
);
const SCRIPT: &str = concat!(
    include_str!("report/script/base.js"),
    include_str!("report/script/reach.js"),
    include_str!("report/script/ports.js"),
    include_str!("report/script/list.js"),
    include_str!("report/script/axes.js"),
    include_str!("report/script/matrix.js"),
    include_str!("report/script/details.js"),
    include_str!("report/script/graph.js"),
    include_str!("report/script/main.js"),
);

/// The largest number of sentences below the list.
const MOST_FACTS: usize = 100;

/// The parts of a report that a command composes; the tables are those of `read` and `reach`.
pub(crate) struct Report {
    pub(crate) head: ReportHead,
    /// The heading of the list, and the sentence for an empty one.
    pub(crate) list_title: &'static str,
    pub(crate) empty_list: &'static str,
    pub(crate) rows: Vec<ListRow>,
    /// Facts that are not about pairs of ends.
    pub(crate) facts: Vec<String>,
    /// The changes that the matrix and the graph mark; `None` without a comparison.
    pub(crate) changes: Option<Vec<(ChangedEnds, Value)>>,
}

/// The parts of a report without changes besides the exposure of the workloads.
pub(crate) struct StateTexts {
    pub(crate) title: &'static str,
    /// A sentence behind the verdict.
    pub(crate) addition: Option<String>,
    /// Further rows of the list.
    pub(crate) rows: Vec<ListRow>,
}

/// The report of `weir matrix` and `weir graph`.
pub(crate) fn view(global: &GlobalArgs, view: &ViewArgs, read: &ReadInput, reach: &Reach<'_>) -> Result<OutputPage> {
    let texts = StateTexts { title: "Who can reach whom", addition: None, rows: Vec::new() };
    state(global, &view.input, read, reach, texts)
}

/// A report without changes.
pub(crate) fn state(
    global: &GlobalArgs,
    input: &InputPaths,
    read: &ReadInput,
    reach: &Reach<'_>,
    texts: StateTexts,
) -> Result<OutputPage> {
    let exposure = ReportExposure::of(reach);
    let links = SourceLinks::from_environment();
    let (tone, verdict) = exposure.counts().verdict();
    let verdict = std::iter::once(verdict).chain(texts.addition).collect::<Vec<_>>().join(" ");
    let paths: Vec<String> = input.paths.iter().map(|it| it.display().to_string()).collect();
    let head = ReportHead {
        title: texts.title.to_owned(),
        origin: origin(global, &[("Input", &paths.join(" "), read)])?,
        tone,
        verdict,
        cards: exposure.counts().cards(),
    };
    let mut rows = exposure.rows(read, &links);
    rows.extend(texts.rows);
    let empty_list = "Nothing can be reached from outside or from other namespaces.";
    let report = Report { head, list_title: "What is open", empty_list, rows, facts: Vec::new(), changes: None };
    page(read, reach, &links, report)
}

/// Where the report comes from: the inputs, their cluster, the lists of the command line, the time.
pub(crate) fn origin(
    global: &GlobalArgs,
    inputs: &[(&'static str, &str, &ReadInput)],
) -> Result<Vec<(&'static str, String)>> {
    let mut found: Vec<(&'static str, String)> =
        inputs.iter().map(|(label, name, read)| (*label, head::input(name, read))).collect();
    let sides: Vec<&ReadInput> = inputs.iter().map(|it| it.2).collect();
    found.extend(head::clusters(&sides).map(|it| ("Cluster", it)));
    found.extend(head::lists(global).map(|it| ("Lists", it)));
    found.push(("Time", time::report_time()?));
    found.push(("Version", env!("CARGO_PKG_VERSION").to_owned()));
    Ok(found)
}

/// The whole page.
pub(crate) fn page(read: &ReadInput, reach: &Reach<'_>, links: &SourceLinks, report: Report) -> Result<OutputPage> {
    let is_diff = report.changes.is_some();
    let facts = facts(&report);
    let (rows, values): (Vec<ChangedEnds>, Vec<Value>) = report.changes.unwrap_or_default().into_iter().unzip();
    let ends = ends::ends(reach, &rows);
    let mut data = tables::document(read, reach, links, &ends);
    if is_diff {
        data["changes"] = changes_of_ends(&ends, values).into();
    }
    make_visible(&mut data);
    let mut title = Markup::new();
    let time = report.head.origin.iter().find(|it| it.0 == "Time").map_or("", |it| it.1.as_str());
    title.text(&format!("Weir: {} – {time}", report.head.title));
    let text = assemble(&[
        ("@TITLE@", title.as_str()),
        ("@BODY_CLASS@", if is_diff { "diff" } else { "state" }),
        ("@HEAD@", report.head.markup().as_str()),
        ("@LIST_TITLE@", report.list_title),
        ("@LIST@", list::markup(&report.rows).as_str()),
        ("@FACTS@", facts.as_str()),
        ("@NOTES@", notes(read, reach).as_str()),
        ("@DATA@", &inert(&serde_json::to_string(&data).context("the tables cannot be written")?)),
    ]);
    let mut page = OutputPage::new();
    page.lines(&text);
    Ok(page)
}

/// The sentences below the list.
fn facts(report: &Report) -> Markup {
    let mut facts = Markup::new();
    if report.rows.is_empty() {
        facts.element("<p>", report.empty_list, "</p>");
    }
    report.facts.iter().take(MOST_FACTS).for_each(|it| _ = facts.element("<p>", it, "</p>"));
    if report.facts.len() > MOST_FACTS {
        facts.raw("<p>and ").number(report.facts.len() - MOST_FACTS).raw(" more, which `-o json` has</p>");
    }
    facts
}

/// The page with its parts. Each part of the template is searched for one placeholder, so text that was inserted is
/// never searched.
fn assemble(parts: &[(&str, &str)]) -> String {
    let digest = |text: &str| BASE64_STANDARD.encode(Digest::of(text.as_bytes()).0);
    let mut rest = PAGE.replace("@STYLE_HASH@", &digest(STYLE)).replace("@SCRIPT_HASH@", &digest(SCRIPT));
    rest = rest.replace("@STYLE@", STYLE);
    let mut text = String::new();
    for (placeholder, part) in parts.iter().chain(&[("@SCRIPT@", SCRIPT)]) {
        if let Some((before, after)) = rest.split_once(placeholder) {
            text.push_str(before);
            text.push_str(part);
            rest = after.to_owned();
        }
    }
    text + &rest
}

/// The changes with the numbers of the ends that take part in them.
fn changes_of_ends(ends: &[ReportEnd], mut values: Vec<Value>) -> Vec<Value> {
    let taking_part = |of: fn(&ReportEnd) -> &Vec<usize>, number| -> Vec<usize> {
        (0..ends.len()).filter(|it| of(&ends[*it]).binary_search(&number).is_ok()).collect()
    };
    for (number, value) in values.iter_mut().enumerate() {
        value["from"] = taking_part(|it| &it.part.from, number).into();
        value["to"] = taking_part(|it| &it.part.to, number).into();
    }
    values
}

/// The report's extent, and the traffic and policies that it leaves out.
fn notes(read: &ReadInput, reach: &Reach<'_>) -> Markup {
    let counts = read.counts();
    let mut namespaces: Vec<&str> = reach.parties.iter().map(|it| reach.namespace(it.namespace)).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    let extent = format!(
        "The matrix and the graph show {} in {}, with {} and {}.",
        count(reach.parties.len(), "workload"),
        count(namespaces.len(), "namespace"),
        count(counts.policies, "policy"),
        count(counts.lists, "list"),
    );
    let mut notes = vec![extent];
    notes.extend(super::notes(reach, ViewLevel::Workload));
    notes.extend(read.left_out.sentence());
    notes.push(
        "A pod can always reach itself, and a pod and its own node can always reach each other; the report shows \
         neither."
            .to_owned(),
    );
    notes.push("Services are not shown: look at their backend pods and the ports of these pods.".to_owned());
    let mut out = Markup::new();
    notes.iter().for_each(|it| _ = out.element("<p>", it, "</p>"));
    out
}

/// Escapes hidden characters in all texts of the tables.
fn make_visible(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(escape::is_hidden) => *text = escape::line(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(make_visible),
        Value::Object(fields) => fields.values_mut().for_each(make_visible),
        _ => {}
    }
}

/// JSON in which no letter is left that HTML or a script reader could take for something else, and no command to a CI
/// system.
fn inert(json: &str) -> String {
    let mut text = String::with_capacity(json.len() + json.len() / 64);
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '#' | '\'' | '\u{2028}' | '\u{2029}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            _ => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_the_page_cannot_end_the_element() {
        let hostile = serde_json::to_string("</script><!--'&\u{2028}").expect("JSON");
        let text = inert(&hostile);
        assert!(!text.contains(['<', '>', '&', '\'', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<String>(&text).ok().as_deref(), Some("</script><!--'&\u{2028}"));
    }

    #[test]
    fn an_inserted_text_is_not_searched_for_placeholders() {
        let text = assemble(&[("@TITLE@", "@SCRIPT@ @DATA@"), ("@DATA@", "{}")]);
        assert!(text.contains("<title>@SCRIPT@ @DATA@</title>"));
        assert!(text.contains("id=\"data\">{}</script>"));
        assert_eq!(text.matches(SCRIPT).count(), 1);
    }
}
