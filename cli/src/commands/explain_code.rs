//! `weir explain-code`: prints the documentation of a diagnostic code, which is part of the code's definition, or of the
//! reason that `weir monitor` and `weir counters` give for a packet.

use anyhow::Result;
use serde_json::{Value, json};
use weir_lint::codes;
use weir_objects::diagnostic::Code;

use super::CommandOutcome;
use crate::args::{ExplainCodeArgs, TextOrJson};
use crate::lints::find_code;
use crate::packet_reasons::{self, PacketReason};
use crate::page::OutputPage;

pub(crate) fn run(arguments: &ExplainCodeArgs) -> Result<CommandOutcome> {
    let is_asked = |reason: &PacketReason| arguments.code.as_deref() == Some(reason.outcome.name());
    if let Some(reason) = packet_reasons::all().find(is_asked) {
        return explain_reason(&reason, arguments.output);
    }
    let chosen = match &arguments.code {
        Some(name) => Some(find_code(name)?),
        None => None,
    };
    let mut page = OutputPage::new();
    match (chosen, arguments.output) {
        (Some(code), TextOrJson::Text) => page.lines(&documentation(code)),
        (Some(code), TextOrJson::Json) => page.pretty_json(&as_json(code))?,
        (None, TextOrJson::Text) => {
            page.lines(&list(&codes::all()));
            page.blank();
            page.line("Reasons of `weir monitor` and `weir counters`:");
            packet_reasons::all().for_each(|it| page.line(format_args!("{:12}  {}", it.outcome.name(), it.what)));
        }
        (None, TextOrJson::Json) => {
            page.pretty_json(&Value::Array(codes::all().into_iter().map(as_json).collect()))?;
        }
    }
    page.print()?;
    Ok(CommandOutcome::Clean)
}

fn explain_reason(reason: &PacketReason, output: TextOrJson) -> Result<CommandOutcome> {
    let PacketReason { outcome, what, action } = reason;
    let mut page = OutputPage::new();
    match output {
        TextOrJson::Text => {
            let fate = if outcome.drops() { "are dropped" } else { "pass" };
            page.line(format_args!("{}: {what}", outcome.name()));
            page.line(format_args!("(packets with this reason {fate})"));
            page.blank();
            page.lines(&wrap(action));
        }
        TextOrJson::Json => page.pretty_json(&json!({
            "reason": outcome.name(), "dropped": outcome.drops(), "what": what, "action": action,
        }))?,
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
