//! For people: what changes, in sentences, with who is responsible and one flow to try.

use std::fmt::Write as _;

use weir_compiler::diff::{Change, Presence, Row};

use super::cost::Costs;
use super::words::Words;

const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const DIM: &str = "\x1b[2m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Changes of isolation are shown up to so many.
const MOST_ISOLATED: usize = 20;

type Wanted = fn(&Row) -> bool;

/// What is about endpoints that are on both sides, then the others, then what only follows.
pub(super) const SECTIONS: [(&str, Wanted); 5] = [
    ("Allowed now, and was not before", |row| is(row, Presence::Kept) && row.change == Change::Added),
    ("No longer allowed", |row| is(row, Presence::Kept) && row.change == Change::Removed),
    ("Of endpoints that are new", |row| is(row, Presence::Appeared)),
    ("Of endpoints that are gone", |row| is(row, Presence::Disappeared)),
    ("Through addresses of services, as it follows from what stands behind them", |row| {
        !row.destination.services.is_empty()
    }),
];

fn is(row: &Row, presence: Presence) -> bool {
    row.presence == presence && row.destination.services.is_empty()
}

pub(super) fn text(words: &Words<'_, '_>, costs: Option<&Costs>, most: usize, color: bool) -> String {
    let mut writer = Writer { words, color, out: String::new() };
    let headline = writer.paint(BOLD, &words.headline());
    writer.line(&format!("{headline}, {}.", words.scope()));
    words.comings_and_goings().iter().for_each(|line| writer.line(line));
    writer.isolation();
    let rows = &words.compared.diff.rows;
    for (title, wanted) in SECTIONS {
        let of_section: Vec<&Row> = rows.iter().take(most).filter(|row| wanted(row)).collect();
        if !of_section.is_empty() {
            writer.title(title);
            of_section.into_iter().for_each(|row| writer.row(row));
        }
    }
    if rows.len() > most {
        _ = writeln!(writer.out, "\n{} more rows are not shown; `--max 0` shows all.", rows.len() - most);
    }
    if let Some(costs) = costs {
        writer.title(&format!("Cost of enforcing it{}", costs.condition()));
        costs.lines().iter().for_each(|[what, before, after, change]| {
            let line = format!("  {what:<22} {before:>12} → {after:<12} {change}");
            writer.line(line.trim_end());
        });
    }
    writer.out
}

struct Writer<'a, 'w, 'c> {
    words: &'a Words<'w, 'c>,
    color: bool,
    out: String,
}

impl Writer<'_, '_, '_> {
    fn paint(&self, style: &str, text: &str) -> String {
        if self.color { format!("{style}{text}{PLAIN}") } else { text.to_owned() }
    }

    fn line(&mut self, text: &str) {
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn title(&mut self, title: &str) {
        let title = self.paint(BOLD, title);
        self.line(&format!("\n{title}"));
    }

    fn isolation(&mut self) {
        let changes = self.words.isolation();
        if changes.is_empty() {
            return;
        }
        self.title("Isolation");
        for change in changes.iter().take(MOST_ISOLATED) {
            let sign = if change.begins { self.paint(RED, "-") } else { self.paint(GREEN, "+") };
            self.line(&format!("  {sign} {}", change.text));
        }
        if changes.len() > MOST_ISOLATED {
            let rest = changes.len() - MOST_ISOLATED;
            self.line(&format!("  {rest} more changes of isolation are not shown; `-o json` has all."));
        }
    }

    fn row(&mut self, row: &Row) {
        let (sign, style) = if row.change == Change::Added { ("+", GREEN) } else { ("-", RED) };
        let head = self.paint(style, &format!("{sign} {}", self.words.sentence(row)));
        self.line(&format!("  {head}"));
        self.words.why(row).iter().for_each(|why| self.line(&format!("      {why}")));
        let example = self.paint(DIM, &self.words.example(row));
        self.line(&format!("      {example}"));
    }
}
