//! The expectations file. Unknown fields are errors with their line: a mistyped field must not make an expectation
//! pass.

use anyhow::{Result, anyhow};
use serde_json::Value;
use weir_analysis::world::DescribedPod;
use weir_model::eval::Verdict;
use weir_objects::source::{FileId, SourceMap};
use weir_objects::syntax::{self, MappingEntry, Span, SyntaxFormat, SyntaxNode, SyntaxValue, json, yaml};

use crate::failure::with_hint;
use crate::locator::Locator;
use crate::possible_pods::{self, WrittenPod};
use crate::question::{FlowQuestion, QuestionEnd};
use crate::similar_name::most_similar;

const FIELDS: [&str; 6] = ["name", "from", "to", "port", "proto", "expect"];

/// One expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expectation {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) verdict: Verdict,
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
    /// Whether an end is a pod that is described.
    pub(super) fn is_described(&self) -> bool {
        [&self.from, &self.to].iter().any(|it| matches!(it, ExpectedEnd::Described(_)))
    }

    pub(super) fn question(&self) -> FlowQuestion<'_> {
        let (from, to) = (self.from.asked(), self.to.asked());
        FlowQuestion { from, to, port: self.port.as_deref(), protocol: self.protocol.as_deref() }
    }
}

/// All expectations of a file, in order.
pub(super) fn parse(bytes: Vec<u8>, name: &str) -> Result<Vec<Expectation>> {
    let text = syntax::text(bytes).map_err(|_| anyhow!("{name} is not UTF-8 text"))?;
    let mut sources = SourceMap::new();
    let file = sources.add_file(name.to_owned(), text);
    ExpectationsParser { locator: Locator::new(&sources), file, name }.file()
}

struct ExpectationsParser<'s> {
    locator: Locator<'s>,
    file: FileId,
    name: &'s str,
}

impl ExpectationsParser<'_> {
    fn file(&mut self) -> Result<Vec<Expectation>> {
        let text = &self.locator.sources().file(self.file).text;
        let root = match syntax::format(text) {
            SyntaxFormat::Json => json::parse(text, Span::of(text)).map(Some),
            _ => {
                let mut documents = yaml::documents(text);
                let first = documents.next().transpose();
                if let Some(Ok(second)) = documents.next() {
                    return Err(self.wrong(second.span, "a second document", "all expectations must be in one list"));
                }
                first.map(|it| it.map(|document| document.root))
            }
        };
        let root = root.map_err(|error| {
            let help = error.help.unwrap_or_else(|| "it is read as YAML".to_owned());
            self.wrong(error.span, &error.message, &help)
        })?;
        let root = root.ok_or_else(|| with_hint(format!("{} contains no expectations", self.name), LAYOUT))?;
        self.list(&root)?.iter().map(|node| self.expectation(node)).collect()
    }

    /// A list, or a mapping with `expectations`.
    fn list<'n, 't>(&mut self, root: &'n SyntaxNode<'t>) -> Result<&'n [SyntaxNode<'t>]> {
        let list = match &root.value {
            SyntaxValue::Map(entries) => {
                self.only_known(entries, &["expectations"])?;
                entries.first().map(|entry| &entry.value.value)
            }
            value => Some(value),
        };
        match list {
            Some(SyntaxValue::Seq(items)) if !items.is_empty() => Ok(items),
            _ => Err(self.wrong(root.span, "no list of expectations", LAYOUT)),
        }
    }

    fn expectation(&mut self, node: &SyntaxNode<'_>) -> Result<Expectation> {
        let SyntaxValue::Map(entries) = &node.value else {
            return Err(self.wrong(node.span, "an expectation is a mapping", LAYOUT));
        };
        self.only_known(entries, &FIELDS)?;
        let (from, to) = (self.end(entries, "from")?, self.end(entries, "to")?);
        let mut field = |name: &str| self.scalar(entries, name);
        let name = field("name")?;
        let (port, protocol, expect) = (field("port")?, field("proto")?, field("expect")?);
        let missing = |what: &str| format!("`{what}` is missing");
        let from = from.ok_or_else(|| self.wrong(node.span, &missing("from"), LAYOUT))?;
        let to = to.ok_or_else(|| self.wrong(node.span, &missing("to"), LAYOUT))?;
        let verdict = match expect.as_deref() {
            Some("allow") => Verdict::Allow,
            Some("deny") => Verdict::Deny,
            Some(other) => {
                let message = format!("`{other}` is not a verdict");
                return Err(self.wrong(node.span, &message, "write `expect: allow` or `expect: deny`"));
            }
            None => return Err(self.wrong(node.span, &missing("expect"), LAYOUT)),
        };
        let shown_port = port.as_deref().or(protocol.as_deref()).unwrap_or_default();
        let name =
            name.unwrap_or_else(|| format!("{} to {} {shown_port}", from.text(), to.text()).trim_end().to_owned());
        let line = self.locator.position(self.file, node.span.start).line;
        Ok(Expectation { name, line, verdict, from, to, port, protocol })
    }

    /// An end: a name or address, or a pod that could exist, as a text or as a mapping.
    fn end(&mut self, entries: &[MappingEntry<'_>], name: &str) -> Result<Option<ExpectedEnd>> {
        let Some(entry) = entries.iter().find(|entry| entry.key == name) else { return Ok(None) };
        let pod = match &entry.value.value {
            SyntaxValue::Map(_) => {
                let written = to_json(&entry.value).and_then(|it| {
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
            Some(Err(reason)) => Err(self.wrong(entry.value.span, &format!("`{name}`: {reason}"), POD_LAYOUT)),
            None => Ok(self.scalar(entries, name)?.map(ExpectedEnd::Named)),
        }
    }

    fn scalar(&mut self, entries: &[MappingEntry<'_>], name: &str) -> Result<Option<String>> {
        let Some(entry) = entries.iter().find(|entry| entry.key == name) else { return Ok(None) };
        match &entry.value.value {
            SyntaxValue::Str(text) => Ok(Some(text.to_string())),
            SyntaxValue::Int(number) => Ok(Some(number.to_string())),
            SyntaxValue::Null => Ok(None),
            _ => Err(self.wrong(entry.value.span, &format!("`{name}` is not a string"), LAYOUT)),
        }
    }

    fn only_known(&mut self, entries: &[MappingEntry<'_>], known: &[&'static str]) -> Result<()> {
        for (index, entry) in entries.iter().enumerate() {
            if !known.contains(&&*entry.key) {
                let hint = match most_similar(&entry.key, known.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("the fields are: {}", known.join(", ")),
                };
                return Err(self.wrong(entry.key_span, &format!("unknown field `{}`", entry.key), &hint));
            }
            if entries.iter().take(index).any(|before| before.key == entry.key) {
                return Err(self.wrong(entry.key_span, &format!("`{}` is given twice", entry.key), "remove one"));
            }
        }
        Ok(())
    }

    fn wrong(&mut self, span: Span, message: &str, hint: &str) -> anyhow::Error {
        let at = self.locator.position(self.file, span.start);
        with_hint(format!("{}:{}:{}: {message}", self.name, at.line, at.column), hint)
    }
}

/// The same value as JSON. A key that is given twice is an error.
fn to_json(node: &SyntaxNode<'_>) -> Result<Value, String> {
    Ok(match &node.value {
        SyntaxValue::Null => Value::Null,
        SyntaxValue::Bool(value) => Value::from(*value),
        SyntaxValue::Int(number) => Value::from(*number),
        SyntaxValue::Float(number) => Value::from(*number),
        SyntaxValue::Str(text) => Value::from(&**text),
        SyntaxValue::Seq(items) => items.iter().map(to_json).collect::<Result<_, _>>()?,
        SyntaxValue::Map(entries) => {
            let mut map = serde_json::Map::new();
            for entry in entries {
                if map.insert(entry.key.to_string(), to_json(&entry.value)?).is_some() {
                    return Err(format!("`{}` is given twice", entry.key));
                }
            }
            Value::Object(map)
        }
    })
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
        assert_eq!((one.name.as_str(), one.is_described()), ("a/x=z to a/b 80", true));
    }
}
