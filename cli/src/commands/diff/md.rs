//! Markdown for a pull request's comment: a summary first, the rest folded, and never longer than GitHub accepts.

use std::fmt::Write as _;

use weir_analysis::diff::VerdictChange;
use weir_objects::escape;
use weir_policy::answers::Costs;

use super::cost;
use super::gate::Ruling;
use super::groups::{self, DiffSection, sections};
use super::wording::{DiffWording, count};
use crate::args::World;
use crate::page::OutputPage;
use crate::views::namespaces::RepeatedRow;
use crate::views::words::md;

/// GitHub accepts 65,536 characters.
const MOST_CHARACTERS: usize = 64_000;
/// Number of rows in the table, outside of the folded part.
const MOST_AT_ONCE: usize = 10;
/// Longer cells are cut; the folded part has the whole text.
const LONGEST_CELL: usize = 160;

/// The first line, by which a bot finds the comment that it wrote before.
const MARK: &str = "<!-- weir diff -->";

pub(super) fn markdown(words: &DiffWording<'_, '_>, costs: Option<&Costs>, most: usize) -> OutputPage {
    let mut out = format!("{MARK}\n### Allowed traffic\n\n**{}.** {}.\n", words.headline(), words.scope());
    if let Some(gate) = &words.compared.gate {
        _ = writeln!(out, "\n**{}.**", gate.summary());
    }
    if let Some((sentence, _)) = &words.compared.filter {
        _ = writeln!(out, "\n{}.", md(sentence));
    }
    words.endpoint_changes().iter().for_each(|line| _ = writeln!(out, "\n{}", md(line)));
    let found = sections(words, most);
    let rows: Vec<&RepeatedRow> = found.sections.iter().flat_map(|it| &it.rows).collect();
    let ending = ending(costs);
    out.push_str(&table(words, &rows));
    out.push_str(&isolation(words, MOST_CHARACTERS / 4));
    out.push_str(&without_effect(words, MOST_CHARACTERS / 8));
    let room = MOST_CHARACTERS.saturating_sub(out.chars().count() + ending.chars().count() + 400);
    let details = details(words, &found.sections, room);
    out.push_str(&details.text);
    let hidden = rows.len() + found.left_out - details.lines;
    if hidden > 0 {
        let names = &words.compared.names;
        let world = if words.compared.world == World::Closed { " --world closed" } else { "" };
        let command = format!("weir diff {} {}{world} --max 0", quote(&names[0]), quote(&names[1]));
        // Within back quotes, only the back quote has a special meaning.
        let command = escape::line(&command).replace('`', "'");
        _ = writeln!(
            out,
            "\n**{} not shown here**, because a comment has limited length: `{command}` shows all.",
            count(hidden, "more row")
        );
    }
    let mut page = OutputPage::new();
    page.lines(&(out + &ending));
    page
}

/// The first rows, one line each.
fn table(words: &DiffWording<'_, '_>, rows: &[&RepeatedRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut out = "\n| | from | to | what |\n| --- | --- | --- | --- |\n".to_owned();
    let known = groups::known(words);
    for repeated in rows.iter().take(MOST_AT_ONCE) {
        let index = repeated.rows[0];
        let row = &words.compared.diff.rows[index];
        let sign = if row.change == VerdictChange::Added { "➕ now allowed" } else { "➖ no longer" };
        let ruling = match words.compared.ruling(index) {
            Ruling::Refused(_) => ", ❌ refused",
            Ruling::Approved { .. } => ", ✅ approved",
            Ruling::Open => "",
        };
        let mut cells: Vec<String> = repeated.fields.iter().map(|it| cut(&md(it))).collect();
        if let (Some(holds), Some(what)) = (repeated.where_it_holds(&known), cells.last_mut()) {
            *what = format!("{what}, {}", cut(&md(&holds)));
        }
        _ = writeln!(out, "| {sign}{ruling} | {} |", cells.join(" | "));
    }
    if rows.len() > MOST_AT_ONCE {
        _ = writeln!(out, "\n… and {}, below.", count(rows.len() - MOST_AT_ONCE, "more row"));
    }
    out
}

fn isolation(words: &DiffWording<'_, '_>, room: usize) -> String {
    let changes = words.isolation();
    if changes.is_empty() {
        return String::new();
    }
    let lines = changes.iter().map(|it| format!("* {} {}\n", if it.begins { "➖" } else { "➕" }, md(&it.text)));
    let FittingLines { text, lines } = fitting(lines, room);
    let rest = changes.len() - lines;
    let more = if rest > 0 { format!("* {} not shown here\n", count(rest, "more change")) } else { String::new() };
    fold(&format!("Isolation: {}", count(changes.len(), "change")), &format!("{text}{more}"))
}

fn without_effect(words: &DiffWording<'_, '_>, room: usize) -> String {
    let changes = words.without_effect();
    if changes.is_empty() {
        return String::new();
    }
    let FittingLines { text, lines } = fitting(changes.iter().map(|it| format!("* {}\n", md(it))), room);
    let rest = changes.len() - lines;
    let more = if rest > 0 { format!("* {} not shown here\n", count(rest, "more change")) } else { String::new() };
    fold(&format!("Without effect: {}", count(changes.len(), "change")), &format!("{text}{more}"))
}

/// Text that was cut at a line, so that it has not more than a number of characters.
#[derive(Debug, Default, PartialEq, Eq)]
struct FittingLines {
    text: String,
    /// The number of lines that fit.
    lines: usize,
}

/// Every row with its reasons and its example, as long as there is room. `lines` counts rows.
fn details(words: &DiffWording<'_, '_>, sections: &[DiffSection], room: usize) -> FittingLines {
    if sections.is_empty() {
        return FittingLines::default();
    }
    let known = groups::known(words);
    let mut lines = Vec::new();
    for DiffSection { title, rows } in sections {
        for (place, repeated) in rows.iter().enumerate() {
            let index = repeated.rows[0];
            let row = &words.compared.diff.rows[index];
            let title = if place == 0 { format!("\n**{title}**\n\n") } else { String::new() };
            let [from, to, what] = [0, 1, 2].map(|it| repeated.fields[it].as_str());
            let holds = repeated.where_it_holds(&known).map(|it| format!(", {it}")).unwrap_or_default();
            let sentence = format!("from {from} to {to}: {what}{holds}");
            let why: String = words.reasons(index).iter().map(|it| format!("  <br>{}\n", md(it))).collect();
            let example = format!("  <br>_{}_\n", md(&words.example(row)));
            lines.push(format!("{title}* {}\n{why}{example}", md(&sentence)));
        }
    }
    let FittingLines { text, lines } = fitting(lines.into_iter(), room);
    FittingLines { text: fold("Reasons with file and line, and an example flow for each row", &text), lines }
}

fn ending(costs: Option<&Costs>) -> String {
    let Some(costs) = costs else { return String::new() };
    let mut table = "| | before | after | |\n| --- | ---: | ---: | ---: |\n".to_owned();
    for line in cost::lines(costs) {
        _ = writeln!(table, "| {} |", line.map(|it| md(&it)).join(" | "));
    }
    fold(&format!("Cost of enforcing it{}", cost::condition(costs)), &table)
}

fn fold(title: &str, text: &str) -> String {
    format!("\n<details><summary>{}</summary>\n\n{text}\n</details>\n", md(title))
}

/// The first lines that fit.
fn fitting(lines: impl Iterator<Item = String>, room: usize) -> FittingLines {
    let (mut found, mut left) = (FittingLines::default(), room);
    for line in lines {
        let Some(rest) = left.checked_sub(line.chars().count()) else { break };
        left = rest;
        found.text.push_str(&line);
        found.lines += 1;
    }
    found
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST_CELL) {
        // Do not cut within an escape sequence.
        Some((end, _)) => {
            format!("{} …", text[..end].trim_end_matches(['\\', '&']).rsplit_once(' ').map_or("", |it| it.0))
        }
        None => text.to_owned(),
    }
}

/// Quotes a text for a shell.
fn quote(text: &str) -> String {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-._/:,@".contains(it);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_quoted() {
        assert_eq!(quote("it's"), "'it'\\''s'");
    }

    #[test]
    fn lines_that_do_not_fit_are_left_out() {
        let lines = ["aa", "bb", "cc"].map(str::to_owned);
        assert_eq!(fitting(lines.into_iter(), 5), FittingLines { text: "aabb".to_owned(), lines: 2 });
    }

    #[test]
    fn a_long_cell_is_cut_between_words() {
        let text = "abc ".repeat(100);
        let short = cut(&text);
        assert!(short.ends_with("abc …") && short.chars().count() <= LONGEST_CELL + 2, "{short}");
    }
}
