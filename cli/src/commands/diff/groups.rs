//! Rows for people: the same change in many namespaces is one row.

use std::collections::BTreeSet;

use weir_analysis::diff::{AddressSet, Decides, Diff, DiffRow, EndState, Presence, RowEnd, RowTraffic, VerdictChange};
use weir_analysis::world::PodSet;
use weir_model::Direction;
use weir_objects::address::Family;

use super::cause_lines::{CauseLines, VerdictCause, causes};
use super::text::SECTIONS;
use super::wording::{DiffWording, Isolated};
use crate::views::namespaces::{self, JoinableRow, NamespaceNames, RepeatedRow};

/// The rows of a section under its title.
pub(super) struct DiffSection {
    pub(super) title: String,
    /// The fields of each are: from, to, what.
    pub(super) rows: Vec<RepeatedRow>,
}

/// The sections, at most a number of their rows, and the number of rows that are left out.
pub(super) struct DiffSections {
    pub(super) sections: Vec<DiffSection>,
    pub(super) left_out: usize,
}

/// The rows of each section that has any. Rows that a gate refuses are in sections of their own, before all others.
pub(super) fn sections(words: &DiffWording<'_, '_>, most: usize) -> DiffSections {
    let rows = &words.compared.diff.rows;
    let mut found = DiffSections { sections: Vec::new(), left_out: 0 };
    let mut room = most;
    for is_refused in [true, false] {
        for (title, wanted) in SECTIONS {
            let is_in = |it: &usize| wanted(&rows[*it]) && words.compared.ruling(*it).is_refused() == is_refused;
            let of_section: Vec<usize> = (0..rows.len()).filter(is_in).collect();
            let title = if is_refused { format!("{title}, and refused") } else { title.to_owned() };
            let mut joined = joined(words, &of_section);
            found.left_out += joined.len().saturating_sub(room);
            joined.truncate(room);
            room -= joined.len();
            if !joined.is_empty() {
                found.sections.push(DiffSection { title, rows: joined });
            }
        }
    }
    found
}

/// Rows that differ only in their namespace together. The lines of policies may differ, all other words must not.
fn joined(words: &DiffWording<'_, '_>, rows: &[usize]) -> Vec<RepeatedRow> {
    let none = CauseLines::default();
    let without_lines = DiffWording { compared: words.compared, namer: words.namer, places: &none };
    let texts: Vec<_> = rows
        .iter()
        .map(|index| {
            let row = &words.compared.diff.rows[*index];
            let fields = vec![words.from(row), words.to(row), words.what(row)];
            let own = own_namespace(&words.compared.diff, row);
            let key = own.as_deref().and_then(|own| RowKey::new(&without_lines, *index, own));
            JoinableRow { own, fields, key }
        })
        .collect();
    let mut found = namespaces::joined(&texts);
    found.iter_mut().flat_map(|it| &mut it.rows).for_each(|place| *place = rows[*place]);
    found
}

/// What must be equal in rows that become one: everything, also what texts leave out. Names are templates of the row's
/// own namespace.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RowKey {
    kind: (Presence, VerdictChange, Decides, Option<Family>, Option<Direction>),
    ends: [EndKey; 2],
    traffic: RowTraffic,
    accounts: Vec<AccountKey>,
    except: Vec<([EndKey; 2], RowTraffic)>,
    /// The ruling and the reasons.
    reasons: String,
}

/// The direction, the side, the state and the names of all causes.
type AccountKey = (Direction, usize, EndState, Vec<String>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EndKey {
    /// The endpoints, if the text does not say exactly which ones they are.
    names: Vec<String>,
    ranges: AddressSet,
    services: Vec<u32>,
    pods: Vec<PodSet>,
}

impl RowKey {
    fn new(words: &DiffWording<'_, '_>, index: usize, own: &str) -> Option<Self> {
        let row = &words.compared.diff.rows[index];
        let ends = |source, destination| {
            Some([EndKey::new(words, source, row.presence, own)?, EndKey::new(words, destination, row.presence, own)?])
        };
        let mut accounts = Vec::new();
        for direction in Direction::ALL {
            for (which, account) in row.accounts(direction).into_iter().flatten().enumerate() {
                let names = cause_names(words, which, &causes(direction, account), own)?;
                accounts.push((direction, which, account.state, names));
            }
        }
        let except = row.except.iter().map(|it| Some((ends(&it.source, &it.destination)?, it.traffic.clone())));
        Some(Self {
            kind: (row.presence, row.change, row.decides, row.family, row.given),
            ends: ends(&row.source, &row.destination)?,
            traffic: row.traffic.clone(),
            accounts,
            except: except.collect::<Option<_>>()?,
            reasons: namespaces::template(&words.reasons(index).join("; "), own)?,
        })
    }
}

impl EndKey {
    fn new(words: &DiffWording<'_, '_>, end: &RowEnd, presence: Presence, own: &str) -> Option<Self> {
        // Endpoints among possible pods follow from these.
        let names =
            if end.pods.is_empty() { endpoint_names(words, &end.endpoints, presence, own)? } else { Vec::new() };
        let pods = end.pods.iter().map(|it| namespaces::pods_template(it, own)).collect();
        Some(Self { names, ranges: end.ranges.clone(), services: end.services.clone(), pods })
    }
}

/// The names of endpoints, if their text says `and 3 more`; other texts are exact.
fn endpoint_names(
    words: &DiffWording<'_, '_>,
    endpoints: &[u32],
    presence: Presence,
    own: &str,
) -> Option<Vec<String>> {
    if endpoints.is_empty() || !words.namer.endpoints(endpoints, presence).contains(" more") {
        return Some(Vec::new());
    }
    endpoints.iter().map(|it| namespaces::template(&words.namer.name(*it), own)).collect()
}

fn cause_names(words: &DiffWording<'_, '_>, which: usize, causes: &[VerdictCause], own: &str) -> Option<Vec<String>> {
    causes.iter().map(|it| namespaces::template(&it.name(words.compared, which), own)).collect()
}

/// Changes of isolation that differ only in their namespace together.
pub(super) fn joined_isolation(words: &DiffWording<'_, '_>) -> Vec<RepeatedRow> {
    let none = CauseLines::default();
    let row = |it: Isolated<'_>| {
        let key = it.own.as_deref().and_then(|own| {
            let names = endpoint_names(words, it.endpoints, Presence::Kept, own)?;
            Some((it.begins, names, cause_names(words, usize::from(it.begins), &it.policies, own)?))
        });
        JoinableRow { own: it.own, fields: vec![it.text], key }
    };
    let without_lines = DiffWording { places: &none, ..*words };
    namespaces::joined(&without_lines.isolation().into_iter().map(row).collect::<Vec<_>>())
}

/// The namespace that a row is about: that of its destinations, or else that of its sources.
fn own_namespace(diff: &Diff, row: &DiffRow) -> Option<String> {
    [&row.destination, &row.source].into_iter().find_map(|end| only_namespace(diff, end))
}

fn only_namespace(diff: &Diff, end: &RowEnd) -> Option<String> {
    let of_pods: Option<BTreeSet<&str>> = end.pods.iter().map(|it| it.only_namespace()).collect();
    let of_endpoints = || end.endpoints.iter().map(|it| diff.endpoints[*it as usize].namespace.as_str()).collect();
    let found: BTreeSet<&str> = if end.pods.is_empty() { of_endpoints() } else { of_pods? };
    match found.into_iter().collect::<Vec<_>>()[..] {
        [only] => Some(only.to_owned()),
        _ => None,
    }
}

/// The namespaces of both sides.
pub(super) fn known(words: &DiffWording<'_, '_>) -> NamespaceNames {
    let of = |which: usize| words.compared.sides[which].cluster.namespaces.iter().map(|it| it.name.as_str());
    NamespaceNames::new(of(0).chain(of(1)))
}

/// The namespace of some endpoints, if they share it.
pub(super) fn of_endpoints(diff: &Diff, endpoints: &[u32]) -> Option<String> {
    only_namespace(diff, &RowEnd { endpoints: endpoints.to_vec(), ..RowEnd::default() })
}
