//! Policies that an answer leaves out: those of ignored kinds, and how each output format says so.
//!
//! A policy of a kind that Weir does not read can make an answer wrong. Commands that answer refuse such input
//! ([`refusal`]) unless `--ignore-kind` or `ignore-kinds` in weir.toml names the kind. Then each answer names the
//! ignored kinds, in a form that its format allows ([`LeftOut::mark`]).

use std::collections::BTreeMap;

use anyhow::{Error, Result};
use serde_json::{Value, json};
use weir_objects::decode::{ForeignPolicy, ForeignPolicyKind, codes};
use weir_objects::diagnostic::{Diagnostic, FindingPlace};
use weir_objects::origin::FieldOrigin;
use weir_objects::source::SourceMap;
use weir_policy::locator::Locator;
use weir_policy::similar_name::most_similar;

use crate::args::{
    CheckFormat, CompileOutput, DiffFormat, ExposureFormat, GlobalArgs, SuggestFormat, TestFormat, TextOrJson,
    ViewFormat,
};
use crate::config::Config;
use crate::failure::with_hint;
use crate::page::{self, OutputPage};
use crate::render::sarif;

/// The policies that an answer leaves out: the number of objects of each ignored kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeftOut {
    kinds: BTreeMap<String, usize>,
}

/// How a format takes a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoteForm {
    /// A last line.
    Line,
    /// A field `leftOut` of the document.
    Json,
    /// An annotation of the workflow.
    Github,
    /// A notification of the run.
    Sarif,
    /// A property of the test suite.
    Junit,
    /// The graph's label.
    Dot,
    /// A comment.
    Mermaid,
    /// The picture's description.
    Svg,
    /// The answer contains it already.
    Contained,
    /// The format has no place for notes.
    Stderr,
}

impl From<TextOrJson> for NoteForm {
    fn from(format: TextOrJson) -> Self {
        match format {
            TextOrJson::Text => Self::Line,
            TextOrJson::Json => Self::Json,
        }
    }
}

impl From<CheckFormat> for NoteForm {
    fn from(format: CheckFormat) -> Self {
        match format {
            CheckFormat::Text => Self::Line,
            CheckFormat::Json => Self::Json,
            CheckFormat::Sarif => Self::Sarif,
            CheckFormat::Github => Self::Github,
        }
    }
}

impl From<CompileOutput> for NoteForm {
    fn from(output: CompileOutput) -> Self {
        match output {
            CompileOutput::Summary => Self::Line,
            CompileOutput::Manifest => Self::Contained,
            CompileOutput::Ir | CompileOutput::Asm | CompileOutput::Iptables | CompileOutput::Maps => Self::Stderr,
        }
    }
}

impl From<TestFormat> for NoteForm {
    fn from(format: TestFormat) -> Self {
        match format {
            TestFormat::Text => Self::Line,
            TestFormat::Json => Self::Json,
            TestFormat::Junit => Self::Junit,
        }
    }
}

impl From<SuggestFormat> for NoteForm {
    fn from(format: SuggestFormat) -> Self {
        match format {
            SuggestFormat::Text => Self::Line,
            SuggestFormat::Json => Self::Json,
            SuggestFormat::Patch | SuggestFormat::Yaml => Self::Stderr,
        }
    }
}

impl From<ViewFormat> for NoteForm {
    fn from(format: ViewFormat) -> Self {
        match format {
            ViewFormat::Text | ViewFormat::Md => Self::Line,
            ViewFormat::Json => Self::Json,
            ViewFormat::Csv => Self::Stderr,
            ViewFormat::Svg => Self::Svg,
            ViewFormat::Dot => Self::Dot,
            ViewFormat::Mermaid => Self::Mermaid,
            ViewFormat::Html => Self::Contained,
        }
    }
}

impl From<ExposureFormat> for NoteForm {
    fn from(format: ExposureFormat) -> Self {
        match format {
            ExposureFormat::Text | ExposureFormat::Md => Self::Line,
            ExposureFormat::Json => Self::Json,
            ExposureFormat::Csv => Self::Stderr,
            ExposureFormat::Html => Self::Contained,
        }
    }
}

impl From<DiffFormat> for NoteForm {
    fn from(format: DiffFormat) -> Self {
        match format {
            DiffFormat::Text | DiffFormat::Md => Self::Line,
            DiffFormat::Json => Self::Json,
            DiffFormat::Sarif => Self::Sarif,
            DiffFormat::Github => Self::Github,
            DiffFormat::Html => Self::Contained,
            DiffFormat::Svg => Self::Svg,
            DiffFormat::Dot => Self::Dot,
            DiffFormat::Mermaid => Self::Mermaid,
        }
    }
}

impl LeftOut {
    fn of(policies: &[ForeignPolicy]) -> Self {
        let mut kinds = BTreeMap::new();
        policies.iter().for_each(|it| *kinds.entry(it.kind.name()).or_default() += 1);
        Self { kinds }
    }

    /// Of an artifact, by its manifest.
    pub(crate) fn of_manifest(manifest: &Value) -> Self {
        let kinds = manifest["left_out"].as_object().into_iter().flatten();
        let count = |count: &Value| count.as_u64().unwrap_or_default() as usize;
        Self { kinds: kinds.map(|(kind, it)| (kind.clone(), count(it))).collect() }
    }

    /// The kinds and their numbers of objects, for a manifest.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        self.kinds.iter().map(|(kind, count)| (kind.clone(), *count as u64)).collect()
    }

    /// Of two inputs; the larger number of each kind.
    pub(crate) fn merged(mut self, other: &Self) -> Self {
        for (kind, count) in &other.kinds {
            let known = self.kinds.entry(kind.clone()).or_default();
            *known = (*known).max(*count);
        }
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// One sentence without a full stop; `None` if nothing is left out.
    pub(crate) fn sentence(&self) -> Option<String> {
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
        (!kinds.is_empty())
            .then(|| format!("left out, because weir does not read these policies: {}", kinds.join(", ")))
    }

    /// The kinds and their numbers of objects.
    pub(crate) fn json(&self) -> Value {
        self.kinds.iter().map(|(kind, count)| json!({"kind": kind, "objects": count})).collect()
    }

    /// Adds the kinds that were left out to a finished answer.
    pub(crate) fn mark(&self, page: &mut OutputPage, form: impl Into<NoteForm>) -> Result<()> {
        let Some(sentence) = self.sentence() else { return Ok(()) };
        match form.into() {
            NoteForm::Line => {
                page.blank();
                page.line(sentence);
            }
            NoteForm::Json => page.edit_json(|document| document["leftOut"] = self.json())?,
            NoteForm::Github => page.command("warning", &[("title", "weir: policies left out")], &sentence),
            NoteForm::Sarif => sarif::add_notification(page, "warning", &sentence)?,
            NoteForm::Junit => page.junit_property("left out", &sentence),
            NoteForm::Dot => _ = page.insert_line_after("digraph ", &format!("  label=\"{sentence}\";")),
            NoteForm::Mermaid => _ = page.insert_line_after("flowchart ", &format!("  %% {sentence}")),
            NoteForm::Svg => _ = page.insert_line_after("<title>", &format!("<desc>{sentence}</desc>")),
            NoteForm::Contained => {}
            NoteForm::Stderr => page::print_to_stderr(format_args!("note: {sentence}")),
        }
        Ok(())
    }
}

/// The policies that are not read: those of ignored kinds, which answers leave out, and the others.
pub(crate) fn split(
    foreign: Vec<ForeignPolicy>,
    ignored: &[&'static ForeignPolicyKind],
) -> (LeftOut, Vec<ForeignPolicy>) {
    let (left_out, unread): (Vec<_>, Vec<_>) = foreign.into_iter().partition(|it| ignored.contains(&it.kind));
    (LeftOut::of(&left_out), unread)
}

/// Whether a finding is about a policy that is not read, but not about one of `unread`: its kind is ignored.
pub(crate) fn is_of_ignored_kind(finding: &Diagnostic, unread: &[ForeignPolicy]) -> bool {
    let FindingPlace::Field(origin) = &finding.primary.place else { return false };
    let by_number = |it: &ForeignPolicy| it.object.cmp(&origin.object);
    finding.code == &codes::unread_policy::CODE && unread.binary_search_by(by_number).is_err()
}

/// The kinds that the command line and weir.toml ignore.
pub(crate) fn ignored(config: &Config, global: &GlobalArgs) -> Result<Vec<&'static ForeignPolicyKind>> {
    let named = config.ignore_kinds.iter().chain(&global.ignore_kind);
    named.map(|name| ForeignPolicyKind::named(name).ok_or_else(|| unknown(name))).collect()
}

fn unknown(name: &str) -> Error {
    let all: Vec<String> = ForeignPolicyKind::all().iter().map(ForeignPolicyKind::name).collect();
    let hint = match most_similar(name, all.iter().map(String::as_str)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the kinds are: {}", all.join(", ")),
    };
    with_hint(format!("`{name}` is no kind that can be ignored"), hint)
}

/// The error for an input with policies that are not read.
pub(crate) fn refusal(sources: &SourceMap, unread: &[ForeignPolicy]) -> Error {
    let mut first: BTreeMap<String, (ForeignPolicy, usize)> = BTreeMap::new();
    unread.iter().for_each(|it| first.entry(it.kind.name()).or_insert((*it, 0)).1 += 1);
    let mut locator = Locator::new(sources);
    let mut kind = |(name, (policy, count)): (&String, &(ForeignPolicy, usize))| {
        let place = locator.locate(&FindingPlace::Field(FieldOrigin::object(policy.object)));
        let place = place.map(|it| {
            let line = locator.position(it.file, it.span.start).line;
            format!("{}:{line}", sources.file(it.file).name)
        });
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        format!("{name} ({}{more})", place.unwrap_or_default())
    };
    let kinds: Vec<String> = first.iter().map(&mut kind).collect();
    let flags: Vec<String> = first.keys().map(|name| format!("--ignore-kind {name}")).collect();
    with_hint(
        format!("there is no answer, because weir does not read policies of the input: {}", kinds.join(", ")),
        format!("to answer without them, add `{}`; or name the kinds in `ignore-kinds` of weir.toml", flags.join(" ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out() -> LeftOut {
        LeftOut { kinds: BTreeMap::from([("cilium.io/CiliumNetworkPolicy".to_owned(), 2)]) }
    }

    #[track_caller]
    fn marked(text: &str, form: NoteForm, expected: &str) {
        let mut page = OutputPage::new();
        page.lines(text);
        left_out().mark(&mut page, form).expect("it takes a note");
        assert!(page.as_str().contains(expected), "{}", page.as_str());
        let mut unchanged = OutputPage::new();
        unchanged.lines(text);
        LeftOut::default().mark(&mut unchanged, form).expect("nothing to do");
        assert_eq!(unchanged.as_str(), format!("{text}\n"));
    }

    #[test]
    fn every_format_names_the_kinds_that_are_left_out() {
        let note = "left out, because weir does not read these policies: cilium.io/CiliumNetworkPolicy (2)";
        marked("allowed", NoteForm::Line, note);
        marked("a", NoteForm::Github, &format!("::warning title=weir%3A policies left out::{note}"));
        marked("{\"b\": 1, \"a\": 2}", NoteForm::Json, "\"leftOut\": [");
        marked("{\"b\": 1, \"a\": 2}", NoteForm::Json, "{\n  \"b\": 1,\n  \"a\": 2,");
        marked("{\"runs\": [{}]}", NoteForm::Sarif, note);
        marked("<testsuites>\n  <testsuite name=\"a\">", NoteForm::Junit, note);
        marked("digraph reach {\n}", NoteForm::Dot, &format!("digraph reach {{\n  label=\"{note}\";\n}}"));
        marked("flowchart LR\n  n0[\"a\"]", NoteForm::Mermaid, &format!("flowchart LR\n  %% {note}\n  n0"));
        marked("<svg>\n<title>a</title>\n</svg>", NoteForm::Svg, &format!("</title>\n<desc>{note}</desc>\n"));
    }

    #[test]
    fn a_mistyped_kind_names_the_nearest() {
        let page = crate::failure::page(&unknown("cilium.io/CiliumNetworkPolicies"));
        assert!(page.as_str().contains("did you mean `cilium.io/CiliumNetworkPolicy`?"), "{}", page.as_str());
    }
}
