//! YAML and JSON that people write for Weir itself: expectations, approvals. Unknown fields are errors with their line:
//! a mistyped field must not make a test or a gate pass.

use anyhow::{Result, anyhow};
use serde_json::Value;
use weir_objects::source::{FileId, SourceMap};
use weir_objects::syntax::{self, MappingEntry, Span, SyntaxFormat, SyntaxNode, SyntaxValue, json, yaml};
use weir_policy::locator::Locator;
use weir_policy::similar_name::most_similar;

use crate::failure::with_hint;

/// A file, and how it is described in errors.
pub(crate) struct StrictYaml<'s> {
    locator: Locator<'s>,
    file: FileId,
    name: &'s str,
    /// The hint of errors about the layout.
    layout: &'s str,
}

/// Reads a file of this name.
pub(crate) fn with_file<T>(
    bytes: Vec<u8>,
    name: &str,
    layout: &str,
    read: impl FnOnce(&mut StrictYaml<'_>) -> Result<T>,
) -> Result<T> {
    let text = syntax::text(bytes).map_err(|_| anyhow!("{name} is not UTF-8 text"))?;
    let mut sources = SourceMap::new();
    let file = sources.add_file(name.to_owned(), text);
    read(&mut StrictYaml { locator: Locator::new(&sources), file, name, layout })
}

impl<'s> StrictYaml<'s> {
    /// The only document; `None` if the file is empty. `one` says why there may not be a second one.
    pub(crate) fn root(&mut self, one: &str) -> Result<Option<SyntaxNode<'s>>> {
        let sources = self.locator.sources();
        let text = &sources.file(self.file).text;
        let root = match syntax::format(text) {
            SyntaxFormat::Json => json::parse(text, Span::of(text)).map(Some),
            _ => {
                let mut documents = yaml::documents(text);
                let first = documents.next().transpose();
                if let Some(Ok(second)) = documents.next() {
                    return Err(self.wrong(second.span, "a second document", one));
                }
                first.map(|it| it.map(|document| document.root))
            }
        };
        root.map_err(|error| {
            let help = error.help.unwrap_or_else(|| "it is read as YAML".to_owned());
            self.wrong(error.span, &error.message, &help)
        })
    }

    /// The entries of a mapping with these fields; `what` names it in errors.
    pub(crate) fn mapping<'n, 't>(
        &mut self,
        node: &'n SyntaxNode<'t>,
        what: &str,
        known: &[&'static str],
    ) -> Result<&'n [MappingEntry<'t>]> {
        let SyntaxValue::Map(entries) = &node.value else {
            return Err(self.wrong(node.span, &format!("{what} is a mapping"), self.layout));
        };
        self.only_known(entries, known)?;
        Ok(entries)
    }

    /// A field that is a string or an integer.
    pub(crate) fn scalar(&mut self, entries: &[MappingEntry<'_>], name: &str) -> Result<Option<String>> {
        field(entries, name).map_or(Ok(None), |value| self.text(value, name))
    }

    /// A string, or an integer as one.
    pub(crate) fn text(&mut self, node: &SyntaxNode<'_>, name: &str) -> Result<Option<String>> {
        match &node.value {
            SyntaxValue::Str(text) => Ok(Some(text.to_string())),
            SyntaxValue::Int(number) => Ok(Some(number.to_string())),
            SyntaxValue::Null => Ok(None),
            _ => Err(self.wrong(node.span, &format!("`{name}` is not a string"), self.layout)),
        }
    }

    /// The items of a list; empty if the field is absent.
    pub(crate) fn items<'n, 't>(
        &mut self,
        entries: &'n [MappingEntry<'t>],
        name: &str,
    ) -> Result<&'n [SyntaxNode<'t>]> {
        let Some(value) = field(entries, name) else { return Ok(&[]) };
        match &value.value {
            SyntaxValue::Seq(items) => Ok(items),
            SyntaxValue::Null => Ok(&[]),
            _ => Err(self.wrong(value.span, &format!("`{name}` is not a list"), self.layout)),
        }
    }

    pub(crate) fn only_known(&mut self, entries: &[MappingEntry<'_>], known: &[&'static str]) -> Result<()> {
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

    pub(crate) fn missing(&mut self, node: &SyntaxNode<'_>, what: &str) -> anyhow::Error {
        self.wrong(node.span, &format!("`{what}` is missing"), self.layout)
    }

    /// The error at a place of the file.
    pub(crate) fn wrong(&mut self, span: Span, message: &str, hint: &str) -> anyhow::Error {
        let at = self.locator.position(self.file, span.start);
        with_hint(format!("{}:{}:{}: {message}", self.name, at.line, at.column), hint)
    }

    /// The line of a place, from 1.
    pub(crate) fn line(&mut self, span: Span) -> usize {
        self.locator.position(self.file, span.start).line
    }
}

/// The value of a field.
pub(crate) fn field<'n, 't>(entries: &'n [MappingEntry<'t>], name: &str) -> Option<&'n SyntaxNode<'t>> {
    entries.iter().find(|entry| entry.key == name).map(|entry| &entry.value)
}

/// The same value as JSON. A key that is given twice is an error.
pub(crate) fn to_json(node: &SyntaxNode<'_>) -> Result<Value, String> {
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
