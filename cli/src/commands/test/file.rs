//! The expectations file.

use anyhow::Result;
use weir_model::eval::Verdict;
use weir_objects::syntax::{SyntaxNode, SyntaxValue};

use crate::failure::with_hint;
use crate::question::FlowQuestion;
use crate::strict_yaml::{self, StrictYaml};

const FIELDS: [&str; 6] = ["name", "from", "to", "port", "proto", "expect"];

/// One expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expectation {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) verdict: Verdict,
    from: String,
    to: String,
    port: Option<String>,
    protocol: Option<String>,
}

impl Expectation {
    pub(super) fn question(&self) -> FlowQuestion<'_> {
        FlowQuestion { from: &self.from, to: &self.to, port: self.port.as_deref(), protocol: self.protocol.as_deref() }
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
    let mut field = |name: &str| file.scalar(entries, name);
    let (name, from, to) = (field("name")?, field("from")?, field("to")?);
    let (port, protocol, expect) = (field("port")?, field("proto")?, field("expect")?);
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
    let name = name.unwrap_or_else(|| format!("{from} to {to} {shown_port}").trim_end().to_owned());
    Ok(Expectation { name, line: file.line(node.span), verdict, from, to, port, protocol })
}

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
}
