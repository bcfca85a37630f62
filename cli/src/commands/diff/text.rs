//! Text for people: sentences about the changes, the policies that cause them, and one flow to try.

use weir_analysis::diff::{DiffRow, Presence, VerdictChange};
use weir_policy::answers::Costs;

use super::cost;
use super::groups;
use super::wording::{DiffWording, count};
use crate::page::Style::{Bold, Dim, Plain, Red, Yellow};
use crate::page::{OutputPage, Style};
use crate::views::namespaces::{NamespaceNames, RepeatedRow};

type RowFilter = fn(&DiffRow) -> bool;

/// The sections: changes between endpoints that exist on both sides, then those of new and of removed endpoints, then
/// changes that only follow from others.
pub(super) const SECTIONS: [(&str, RowFilter); 5] = [
    ("Newly allowed", |row| is(row, Presence::Kept) && row.change == VerdictChange::Added),
    ("No longer allowed", |row| is(row, Presence::Kept) && row.change == VerdictChange::Removed),
    ("Of new endpoints", |row| is(row, Presence::Appeared)),
    ("Of removed endpoints", |row| is(row, Presence::Disappeared)),
    ("Through service addresses, as a consequence for their backends", |row| !row.destination.services.is_empty()),
];

fn is(row: &DiffRow, presence: Presence) -> bool {
    row.presence == presence && row.destination.services.is_empty()
}

pub(super) fn text(words: &DiffWording<'_, '_>, costs: Option<&Costs>, most: usize, page: OutputPage) -> OutputPage {
    let mut writer = TextWriter { words, page, known: groups::known(words) };
    writer.page.folded(2, &[(Bold, &words.headline()), (Plain, &".")]);
    writer.page.folded_line(2, format_args!("{}.", words.scope()));
    if let Some(gate) = &words.compared.gate {
        writer.page.folded_line(2, format_args!("{}.", gate.summary()));
    }
    if let Some((sentence, _)) = &words.compared.filter {
        writer.page.folded_line(2, format_args!("{sentence}."));
    }
    words.endpoint_changes().iter().for_each(|line| writer.page.folded_line(2, line));
    writer.isolation(most);
    let found = groups::sections(words, most);
    for section in found.sections {
        writer.title(&section.title);
        section.rows.iter().for_each(|row| writer.row(row));
    }
    if found.left_out > 0 {
        writer.page.blank();
        writer.page.line(format_args!("and {} (--max 0 shows all)", count(found.left_out, "more row")));
    }
    let without_effect = words.without_effect();
    if !without_effect.is_empty() {
        writer.title("Without effect");
        for line in without_effect.iter().take(most) {
            writer.page.folded_line(6, format_args!("  {line}"));
        }
        if without_effect.len() > most {
            writer.page.line(format_args!("  and {} more (--max 0 shows all)", without_effect.len() - most));
        }
    }
    if let Some(costs) = costs {
        writer.title(&format!("Cost of enforcing it{}", cost::condition(costs)));
        cost::lines(costs).iter().for_each(|[what, before, after, change]| {
            let line = format!("  {what:<22} {before:>12} → {after:<12} {change}");
            writer.page.line(line.trim_end());
        });
    }
    writer.page
}

struct TextWriter<'a, 'w, 'c> {
    words: &'a DiffWording<'w, 'c>,
    page: OutputPage,
    known: NamespaceNames,
}

impl TextWriter<'_, '_, '_> {
    fn title(&mut self, title: &str) {
        self.page.blank();
        self.page.pieces(&[(Bold, &title)]);
    }

    fn isolation(&mut self, most: usize) {
        let changes = self.words.isolation();
        if changes.is_empty() {
            return;
        }
        self.title("Isolation");
        let rows = groups::joined_isolation(self.words);
        for row in rows.iter().take(most) {
            let change = &changes[row.rows[0]];
            let (sign, style): (_, Style) = if change.begins { ("-", Red) } else { ("+", Yellow) };
            let Some(holds) = row.where_it_holds(&self.known) else {
                self.page.folded(6, &[(Plain, &"  "), (style, &sign), (Plain, &format_args!(" {}", change.text))]);
                continue;
            };
            self.page.folded(6, &[(Plain, &"  "), (style, &sign), (Plain, &format_args!(" {}", row.fields[0]))]);
            self.page.folded_line(8, format_args!("      {holds}"));
            self.page.folded(8, &[(Dim, &format_args!("      for example {}", change.text))]);
        }
        if rows.len() > most {
            self.page.line(format_args!("  and {} more (--max 0 shows all)", rows.len() - most));
        }
    }

    fn row(&mut self, repeated: &RepeatedRow) {
        let index = repeated.rows[0];
        let row = &self.words.compared.diff.rows[index];
        let (sign, style) = if row.change == VerdictChange::Added { ("+", Yellow) } else { ("-", Red) };
        let [from, to, what] = [0, 1, 2].map(|it| repeated.fields[it].as_str());
        let sentence = format!("{sign} from {from} to {to}: {what}");
        self.page.folded(6, &[(Plain, &"  "), (style, &sentence)]);
        if let Some(holds) = repeated.where_it_holds(&self.known) {
            self.page.folded_line(8, format_args!("      {holds}"));
        }
        let first = repeated.namespaces.first().map(|it| format!("in {it}: ")).unwrap_or_default();
        for why in self.words.reasons(index) {
            self.page.folded_line(8, format_args!("      {first}{why}"));
        }
        self.page.folded(8, &[(Plain, &"      "), (Dim, &self.words.example(row))]);
    }
}
