//! Text for people: sentences about the changes, the policies that cause them, and one flow to try.

use weir_analysis::diff::{DiffRow, Presence, VerdictChange};

use super::cost::Costs;
use super::wording::DiffWording;
use crate::page::Style::{Bold, Dim, Green, Plain, Red};
use crate::page::{OutputPage, Style};

/// The largest number of changed isolations that are listed.
const MOST_ISOLATED: usize = 20;

type RowFilter = fn(&DiffRow) -> bool;

/// The sections: changes between endpoints that exist on both sides, then those of new and of removed endpoints, then
/// changes that only follow from others.
const SECTIONS: [(&str, RowFilter); 5] = [
    ("Newly allowed", |row| is(row, Presence::Kept) && row.change == VerdictChange::Added),
    ("No longer allowed", |row| is(row, Presence::Kept) && row.change == VerdictChange::Removed),
    ("Of new endpoints", |row| is(row, Presence::Appeared)),
    ("Of removed endpoints", |row| is(row, Presence::Disappeared)),
    ("Through service addresses, as a consequence for their backends", |row| !row.destination.services.is_empty()),
];

fn is(row: &DiffRow, presence: Presence) -> bool {
    row.presence == presence && row.destination.services.is_empty()
}

/// The rows of each section that has any. Rows that a gate refuses are in sections of their own, before all others.
pub(super) fn sections(words: &DiffWording<'_, '_>, most: usize) -> Vec<(String, Vec<usize>)> {
    let rows = &words.compared.diff.rows;
    let mut found = Vec::new();
    for is_refused in [true, false] {
        for (title, wanted) in SECTIONS {
            let is_in = |it: &usize| wanted(&rows[*it]) && words.compared.ruling(*it).is_refused() == is_refused;
            let of_section: Vec<usize> = (0..rows.len().min(most)).filter(is_in).collect();
            let title = if is_refused { format!("{title}, and refused") } else { title.to_owned() };
            found.extend((!of_section.is_empty()).then_some((title, of_section)));
        }
    }
    found
}

pub(super) fn text(words: &DiffWording<'_, '_>, costs: Option<&Costs>, most: usize, color: bool) -> OutputPage {
    let mut writer = TextWriter { words, page: OutputPage::colored(color) };
    writer.page.pieces(&[(Bold, &words.headline()), (Plain, &format_args!(", {}.", words.scope()))]);
    if let Some(gate) = &words.compared.gate {
        writer.page.line(format_args!("{}.", gate.summary()));
    }
    words.endpoint_changes().iter().for_each(|line| writer.page.line(line));
    writer.isolation();
    let rows = &words.compared.diff.rows;
    for (title, of_section) in sections(words, most) {
        writer.title(&title);
        of_section.into_iter().for_each(|row| writer.row(row));
    }
    let without_effect = words.without_effect();
    if !without_effect.is_empty() {
        writer.title("Without effect");
        for line in without_effect.iter().take(most) {
            writer.page.line(format_args!("  {line}"));
        }
        if without_effect.len() > most {
            writer.page.line(format_args!("  and {} more; `--max 0` shows all", without_effect.len() - most));
        }
    }
    if rows.len() > most {
        writer.page.blank();
        writer.page.line(format_args!("{} more rows are not shown; `--max 0` shows all.", rows.len() - most));
    }
    if let Some(costs) = costs {
        writer.title(&format!("Cost of enforcing it{}", costs.condition()));
        costs.lines().iter().for_each(|[what, before, after, change]| {
            let line = format!("  {what:<22} {before:>12} → {after:<12} {change}");
            writer.page.line(line.trim_end());
        });
    }
    writer.page
}

struct TextWriter<'a, 'w, 'c> {
    words: &'a DiffWording<'w, 'c>,
    page: OutputPage,
}

impl TextWriter<'_, '_, '_> {
    fn title(&mut self, title: &str) {
        self.page.blank();
        self.page.pieces(&[(Bold, &title)]);
    }

    fn isolation(&mut self) {
        let changes = self.words.isolation();
        if changes.is_empty() {
            return;
        }
        self.title("Isolation");
        for change in changes.iter().take(MOST_ISOLATED) {
            let (sign, style): (_, Style) = if change.begins { ("-", Red) } else { ("+", Green) };
            self.page.pieces(&[(Plain, &"  "), (style, &sign), (Plain, &format_args!(" {}", change.text))]);
        }
        if changes.len() > MOST_ISOLATED {
            let rest = changes.len() - MOST_ISOLATED;
            self.page.line(format_args!("  {rest} more changes of isolation are not shown; `-o json` has all."));
        }
    }

    fn row(&mut self, index: usize) {
        let row = &self.words.compared.diff.rows[index];
        let (sign, style) = if row.change == VerdictChange::Added { ("+", Green) } else { ("-", Red) };
        self.page.pieces(&[(Plain, &"  "), (style, &format_args!("{sign} {}", self.words.sentence(row)))]);
        self.words.reasons(index).iter().for_each(|why| self.page.line(format_args!("      {why}")));
        self.page.pieces(&[(Plain, &"      "), (Dim, &self.words.example(row))]);
    }
}
