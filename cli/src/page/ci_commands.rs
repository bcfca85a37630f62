//! Lines that CI systems take for commands.
//!
//! GitHub's runner looks for `::name …::` at the beginning of a line, behind any white space, and for `##[name]`
//! anywhere in it ([`ActionCommand.TryParseV2` and `TryParse`][runner]). The agent of Azure Pipelines looks for
//! `##vso[`, TeamCity for `##teamcity[`.
//!
//! [runner]: https://github.com/actions/runner/blob/v2.320.0/src/Runner.Common/ActionCommand.cs

use weir_objects::escape;

/// Escapes one character of the line if a CI system would take the line for a command.
pub(super) fn disarm(mut line: String) -> String {
    if begins_command(&line) {
        let at = line.len() - line.trim_start().len();
        line.replace_range(at..=at, "\\u{3a}");
    }
    if has_marker(&line) { line.replace("##", "#\\u{23}") } else { line }
}

/// Whether [`disarm`] would change a line of the text.
pub(super) fn is_armed(text: &str) -> bool {
    text.lines().any(|line| begins_command(line) || has_marker(line))
}

fn begins_command(line: &str) -> bool {
    let name = line.trim_start().strip_prefix("::").and_then(|rest| rest.split_once("::")).map(|(name, _)| name);
    // IPv6 ranges such as `::1-::5` are not commands.
    let of_address = |letter: char| letter.is_ascii_hexdigit() || "-./:, ".contains(letter);
    name.is_some_and(|name| !name.chars().all(of_address))
}

pub(super) fn has_marker(line: &str) -> bool {
    let begins =
        |rest: &str| rest.trim_start_matches(|it: char| it.is_ascii_alphanumeric() || it == '#').starts_with('[');
    line.match_indices("##").any(|(at, _)| begins(&line[at..]))
}

/// A command with its properties and a message of one or more lines.
pub(super) fn written(name: &str, properties: &[(&str, &str)], message: &str) -> String {
    let properties: Vec<String> =
        properties.iter().map(|(key, value)| format!("{key}={}", escape_property(value))).collect();
    format!("::{name} {}::{}", properties.join(","), escape_message(message))
}

/// The caller has escaped line breaks from outside: those that are left separate the lines of the message.
fn escape_message(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| disarm(escape::line(line).replace('%', "%25"))).collect();
    lines.join("%0A")
}

fn escape_property(text: &str) -> String {
    disarm(escape::line(text).replace('%', "%25").replace(':', "%3A").replace(',', "%2C"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_in_properties_are_escaped() {
        assert_eq!(written("error", &[("file", "a,b:c%\n")], "x\ny%\r"), "::error file=a%2Cb%3Ac%25\\n::x%0Ay%25\\r");
    }

    #[test]
    fn commands_are_disarmed_and_addresses_stay() {
        for (line, expected) in [
            ("::error::x", "\\u{3a}:error::x"),
            ("  \u{a0}::add-mask::x", "  \u{a0}\\u{3a}:add-mask::x"),
            ("a ##[error]x", "a #\\u{23}[error]x"),
            ("##vso[task.setvariable]", "#\\u{23}vso[task.setvariable]"),
            ("###[error]x", "#\\u{23}#[error]x"),
            ("::/0", "::/0"),
            ("::a-::c, ::f", "::a-::c, ::f"),
            ("### Title", "### Title"),
        ] {
            assert_eq!(disarm(line.to_owned()), expected);
        }
    }
}
