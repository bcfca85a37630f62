//! `weir explain-code`: prints the documentation of a diagnostic code, which is part of the code's definition.

use anyhow::Result;
use serde_json::{Value, json};
use weir_lint::codes;
use weir_objects::diagnostic::Code;

use super::CommandOutcome;
use crate::args::{ExplainCodeArgs, TextOrJson};
use crate::lints::find_code;
use crate::page::OutputPage;

pub(crate) fn run(arguments: &ExplainCodeArgs) -> Result<CommandOutcome> {
    let chosen = match &arguments.code {
        Some(name) => Some(find_code(name)?),
        None => None,
    };
    let mut page = OutputPage::new();
    match (chosen, arguments.output) {
        (Some(code), TextOrJson::Text) => page.lines(&documentation(code)),
        (Some(code), TextOrJson::Json) => page.pretty_json(&as_json(code))?,
        (None, TextOrJson::Text) => page.lines(&list(&codes::all())),
        (None, TextOrJson::Json) => {
            page.pretty_json(&Value::Array(codes::all().into_iter().map(as_json).collect()))?;
        }
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}

fn documentation(code: &Code) -> String {
    let switch = match code.lint {
        true => format!("a lint: switch it off with `--allow {}`, or in weir.toml", code.name),
        false => "not a lint: it cannot be switched off".to_owned(),
    };
    format!(
        "{}[{}]: {}\n({switch})\n\n{}\n\nExample:\n\n{}\nFixed:\n\n{}",
        code.severity,
        code.name,
        code.what,
        wrap(code.why),
        indent(&code.example.problem()),
        indent(&code.example.fixed()),
    )
}

fn list(all: &[&Code]) -> String {
    let width = all.iter().map(|code| code.name.len()).max().unwrap_or(0);
    let line = |code: &&Code| {
        let lint = if code.lint { "lint" } else { "" };
        format!("{:width$}  {:7}  {lint:4}  {}\n", code.name, code.severity.to_string(), code.what)
    };
    all.iter().map(line).collect()
}

fn as_json(code: &Code) -> Value {
    json!({
        "code": code.name,
        "severity": code.severity.to_string(),
        "lint": code.lint,
        "what": code.what,
        "why": code.why,
        "example": code.example.problem(),
        "fixed": code.example.fixed(),
    })
}

fn indent(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect()
}

fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 100 => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}
