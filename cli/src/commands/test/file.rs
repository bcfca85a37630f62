//! The expectations file.

use anyhow::Result;
use weir_analysis::world::DescribedPod;
use weir_model::eval::Verdict;
use weir_objects::syntax::{MappingEntry, Span, SyntaxNode, SyntaxValue};
use weir_policy::possible_pods::{self, WrittenPod};
use weir_policy::question::{FlowQuestion, QuestionEnd};

use crate::failure::with_hint;
use crate::strict_yaml::{self, StrictYaml, field, to_json};

const FIELDS: [&str; 6] = ["name", "from", "to", "port", "proto", "expect"];

/// One expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expectation {
    /// The field `name`, or words for the flow.
    pub(super) name: String,
    /// Whether the file gives it a name.
    pub(super) is_named: bool,
    pub(super) line: usize,
    pub(super) verdict: Verdict,
    /// The position of the verdict in the text.
    pub(super) verdict_span: Span,
    from: ExpectedEnd,
    to: ExpectedEnd,
    port: Option<String>,
    protocol: Option<String>,
}

/// An end of an expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExpectedEnd {
    /// A name or an address.
    Named(String),
    /// A pod that could exist.
    Described(DescribedPod),
}

impl ExpectedEnd {
    fn text(&self) -> String {
        match self {
            Self::Named(name) => name.clone(),
            Self::Described(pod) => possible_pods::text(pod),
        }
    }

    fn asked(&self) -> QuestionEnd<'_> {
        match self {
            Self::Named(name) => QuestionEnd::Named(name),
            Self::Described(pod) => QuestionEnd::Described(pod),
        }
    }
}

impl Expectation {
    /// The ends that are described pods.
    pub(super) fn described(&self) -> impl Iterator<Item = &DescribedPod> {
        [&self.from, &self.to].into_iter().filter_map(|it| match it {
            ExpectedEnd::Described(pod) => Some(pod),
            ExpectedEnd::Named(_) => None,
        })
    }

    /// Whether both are about the same flow, and have the same name.
    pub(super) fn asks_the_same(&self, other: &Self) -> bool {
        let asked = |it: &Self| (it.name.clone(), it.from.clone(), it.to.clone());
        asked(self) == asked(other) && (&self.port, &self.protocol) == (&other.port, &other.protocol)
    }

    pub(super) fn question(&self) -> FlowQuestion<'_> {
        let (from, to) = (self.from.asked(), self.to.asked());
        FlowQuestion { from, to, port: self.port.as_deref(), protocol: self.protocol.as_deref() }
    }
}

/// All expectations of a file, in order.
pub(super) fn parse(bytes: Vec<u8>, name: &str) -> Result<Vec<Expectation>> {
    strict_yaml::with_file(bytes, name, LAYOUT, |file| {
        let root = file.root("all expectations must be in one list")?;
        let root = root.ok_or_else(|| with_hint(format!("{name} contains no expectations"), LAYOUT))?;
        list(file, &root)?.iter().map(|node| expectation(file, node)).collect()
    })
}

/// A list, or a mapping with `expectations`.
fn list<'n, 't>(file: &mut StrictYaml<'_>, root: &'n SyntaxNode<'t>) -> Result<&'n [SyntaxNode<'t>]> {
    let list = match &root.value {
        SyntaxValue::Map(entries) => {
            file.only_known(entries, &["expectations"])?;
            entries.first().map(|entry| &entry.value.value)
        }
        value => Some(value),
    };
    match list {
        Some(SyntaxValue::Seq(items)) if !items.is_empty() => Ok(items),
        _ => Err(file.wrong(root.span, "no list of expectations", LAYOUT)),
    }
}

fn expectation(file: &mut StrictYaml<'_>, node: &SyntaxNode<'_>) -> Result<Expectation> {
    let entries = file.mapping(node, "an expectation", &FIELDS)?;
    let (from, to) = (end(file, entries, "from")?, end(file, entries, "to")?);
    let mut scalar = |name: &str| file.scalar(entries, name);
    let name = scalar("name")?;
    let (port, protocol, expect) = (scalar("port")?, scalar("proto")?, scalar("expect")?);
    let from = from.ok_or_else(|| file.missing(node, "from"))?;
    let to = to.ok_or_else(|| file.missing(node, "to"))?;
    let verdict = match expect.as_deref() {
        Some("allow") => Verdict::Allow,
        Some("deny") => Verdict::Deny,
        Some(other) => {
            let message = format!("`{other}` is not a verdict");
            return Err(file.wrong(node.span, &message, "write `expect: allow` or `expect: deny`"));
        }
        None => return Err(file.missing(node, "expect")),
    };
    let shown_port = port.as_deref().or(protocol.as_deref()).unwrap_or_default();
    let is_named = name.is_some();
    let name = name.unwrap_or_else(|| format!("{} to {} {shown_port}", from.text(), to.text()).trim_end().to_owned());
    let verdict_span = field(entries, "expect").map_or(node.span, |it| it.span);
    let line = file.line(node.span);
    Ok(Expectation { name, is_named, line, verdict, verdict_span, from, to, port, protocol })
}

/// An end: a name or address, or a pod that could exist, as a text or as a mapping.
fn end(file: &mut StrictYaml<'_>, entries: &[MappingEntry<'_>], name: &str) -> Result<Option<ExpectedEnd>> {
    let Some(node) = field(entries, name) else { return Ok(None) };
    let pod = match &node.value {
        SyntaxValue::Map(_) => {
            let written = to_json(node).and_then(|it| {
                let written: WrittenPod = serde_json::from_value(it).map_err(|error| error.to_string())?;
                written.pod()
            });
            Some(written)
        }
        SyntaxValue::Str(text) => possible_pods::parse(text),
        _ => None,
    };
    match pod {
        Some(Ok(pod)) => Ok(Some(ExpectedEnd::Described(pod))),
        Some(Err(reason)) => Err(file.wrong(node.span, &format!("`{name}`: {reason}"), POD_LAYOUT)),
        None => Ok(file.scalar(entries, name)?.map(ExpectedEnd::Named)),
    }
}

const POD_LAYOUT: &str = "a pod that could exist is NAMESPACE/KEY=VALUE[,KEY=VALUE], or {namespace, labels, namespaceLabels, \
                          ports, ip}";
const LAYOUT: &str = "a list of {name, from, to, port, expect}; `weir test --help` shows one";

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_error(text: &str, expected: &str) {
        let page = crate::failure::page(&parse(text.into(), "e.yaml").expect_err("refused"));
        assert!(page.as_str().contains(expected), "{}", page.as_str());
    }

    #[test]
    fn a_list_has_a_name_or_none() {
        let list = "- {from: a/b, to: c/d, port: 80, expect: deny}\n";
        let alone = parse(list.into(), "e.yaml").expect("valid");
        let named = parse(format!("\nexpectations:\n{list}").into(), "e.yaml").expect("valid");
        assert_eq!((alone[0].name.as_str(), alone[0].line, named[0].line), ("a/b to c/d 80", 1, 3));
        assert_eq!(alone[0].verdict, Verdict::Deny);
    }

    #[test]
    fn mistakes_name_their_line() {
        check_error("- from: a/b\n  too: c/d\n", "e.yaml:2:3: unknown field `too`");
        check_error("- from: a/b\n  too: c/d\n", "did you mean `to`?");
        check_error("- from: a/b\n  from: c/d\n", "e.yaml:2:3: `from` is given twice");
        check_error("- {from: a, to: b, port: 80}\n", "e.yaml:1:3: `expect` is missing");
        check_error("- {from: a, to: b, port: 80, expect: maybe}\n", "`maybe` is not a verdict");
        check_error("expectations: []\n", "no list of expectations");
        check_error("", "contains no expectations");
    }

    #[test]
    fn mistakes_in_a_described_pod_name_their_line() {
        let with = |pod: &str| format!("- to: a/b\n  from: {pod}\n  port: 80\n  expect: deny\n");
        check_error(&with("{namespace: a, label: {}}"), "e.yaml:2:9: `from`: unknown field `label`");
        check_error(&with("{namespace: a, labels: {x: 1}}"), "e.yaml:2:9: `from`: invalid type: integer `1`");
        check_error(&with("{namespace: a, namespace: b}"), "e.yaml:2:9: `from`: `namespace` is given twice");
        check_error(&with("{labels: {}}"), "e.yaml:2:9: `from`: missing field `namespace`");
        check_error(&with("x=y"), "e.yaml:2:9: `from`: `x=y` is not a description of a pod");
    }

    #[test]
    fn a_described_pod_is_a_text_or_a_mapping() {
        let text = "- {from: 'a/x=z', to: a/b, port: 80, expect: deny}\n\
                    - {from: {namespace: a, labels: {x: z}}, to: a/b, port: 80, expect: deny}\n";
        let [one, other] = &parse(text.into(), "e.yaml").expect("valid")[..] else { panic!("two") };
        assert_eq!(one.from, other.from);
        assert_eq!((one.name.as_str(), one.described().count()), ("a/x=z to a/b 80", 1));
    }
}
