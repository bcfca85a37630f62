//! Entries of a list that other entries of it contain.

use super::context::LintContext;
use super::words;
use weir_model::{CidrList, ListEntry};
use weir_objects::diagnostic::{Code, Diagnostic, Diagnostics, Fix, Severity};

pub(super) static CODE: Code =
    Code::lint("list-entry-covered", Severity::Warning, include_str!("list_entry_covered.diff"))
        .what("Entries of an address list are contained in other entries of the same list.")
        .why(
            "They have no effect, and removing one of them changes nothing. In a list that is written by hand, such \
          an entry is often a typing mistake.",
        );

pub(super) fn check(context: &LintContext<'_>, found: &mut Diagnostics) {
    for list in &context.cluster.lists {
        let covered = covered(list);
        if let Some(diagnostic) = describe(list, &covered) {
            found.push(diagnostic);
        }
    }
}

/// Each covered entry and one that reaches as far; in the order of the list.
fn covered(list: &CidrList) -> Vec<(&ListEntry, &ListEntry)> {
    let mut entries: Vec<&ListEntry> = list.entries.iter().collect();
    entries.sort_by_key(|entry| (entry.first, std::cmp::Reverse(entry.last), entry.position));
    let mut covered = Vec::new();
    let mut widest: Option<&ListEntry> = None;
    for entry in entries {
        match widest {
            Some(wide) if entry.last <= wide.last => covered.push((entry, wide)),
            _ => widest = Some(entry),
        }
    }
    covered.sort_by_key(|(entry, _)| entry.position);
    covered
}

fn describe(list: &CidrList, covered: &[(&ListEntry, &ListEntry)]) -> Option<Diagnostic> {
    let (entry, wide) = covered.first()?;
    let name = &list.name;
    let message = match covered.len() {
        1 => format!("an entry of list {name} is contained in another"),
        more => format!("{more} entries of list {name} are contained in others"),
    };
    let equal = (entry.first, entry.last) == (wide.first, wide.last);
    let mut diagnostic = Diagnostic::at(&CODE, words::entry_origin(list, entry.position), message)
        .label(if equal { "the same again".to_owned() } else { format!("{} contains it", words::entry(wide)) })
        .also(words::entry_origin(list, wide.position), "this entry contains it");
    if covered.len() > 1 {
        let pair =
            |(entry, wide): &(&ListEntry, &ListEntry)| format!("{} in {}", words::entry(entry), words::entry(wide));
        diagnostic = diagnostic.note(format!("contained are: {}", words::some(covered.iter().map(pair), 3)));
    }
    Some(diagnostic.help("remove the entries that are contained in others").fix(Fix::Remove))
}
