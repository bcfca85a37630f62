//! The sentences about a comparison, shared by all formats for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use weir_analysis::diff::{Decides, DiffRow, EndReason, EndState, Namer, Presence, VerdictChange};
use weir_model::{Direction, PolicyId};

use super::Compared;
use super::flows;
use super::places::{Culprit, Places, culprits};

/// The largest number of culprits that are listed.
const MOST_CULPRITS: usize = 3;

/// Everything that sentences are made from.
pub(super) struct Words<'a, 'c> {
    pub(super) compared: &'a Compared,
    pub(super) namer: &'a Namer<'c>,
    pub(super) places: &'a Places,
}

/// Isolation of a group that begins or ends.
pub(super) struct Isolated {
    pub(super) begins: bool,
    pub(super) text: String,
    /// The policies that isolate the group, on the side where it is isolated.
    pub(super) policies: Vec<Culprit>,
}

impl Words<'_, '_> {
    /// `2 regions newly allowed, 1 region no longer allowed`
    pub(super) fn headline(&self) -> String {
        let rows = &self.compared.diff.rows;
        if self.compared.is_same() {
            return "Nothing changes: both sides allow exactly the same".to_owned();
        }
        let of = |change| rows.iter().filter(|row| row.change == change).count();
        match (of(VerdictChange::Added), of(VerdictChange::Removed)) {
            (0, 0) => "The same traffic is allowed, but isolation changes".to_owned(),
            (added, removed) => {
                format!("{} newly allowed, {} no longer allowed", count(added, "region"), count(removed, "region"))
            }
        }
    }

    /// `comparing 7 endpoints`
    pub(super) fn scope(&self) -> String {
        let kept = self.compared.diff.endpoints.iter().filter(|it| it.ids.iter().all(Option::is_some)).count();
        format!("comparing {}", count(kept, "endpoint"))
    }

    /// Sentences about endpoints that were added and removed.
    pub(super) fn comings_and_goings(&self) -> Vec<String> {
        let endpoints = &self.compared.diff.endpoints;
        let mut lines = Vec::new();
        for (which, word) in [(1, "New"), (0, "Gone")] {
            let alone = |it: &u32| {
                let ids = endpoints[*it as usize].ids;
                ids[which].is_some() && ids[1 - which].is_none()
            };
            let names: Vec<u32> = (0..endpoints.len() as u32).filter(alone).collect();
            if names.is_empty() {
                continue;
            }
            let shown: Vec<String> = names.iter().take(5).map(|it| self.namer.name(*it)).collect();
            let more = if names.len() > 5 { format!(" and {} more", names.len() - 5) } else { String::new() };
            lines.push(format!("{word}: {} ({}{more})", count(names.len(), "endpoint"), shown.join(", ")));
        }
        lines
    }

    /// Isolation that begins or ends, both directions of one group together.
    pub(super) fn isolation(&self) -> Vec<Isolated> {
        type Same<'a> = (bool, &'a [u32], &'a [PolicyId]);
        let mut groups: BTreeMap<Same<'_>, Vec<&str>> = BTreeMap::new();
        for change in &self.compared.diff.isolation {
            let key = (change.begins, change.endpoints.as_slice(), change.policies.as_slice());
            groups.entry(key).or_default().push(change.direction.name());
        }
        let one = |((begins, endpoints, policies), directions): (Same<'_>, Vec<&str>)| {
            let who = self.namer.endpoints(endpoints, Presence::Kept);
            let policies: Vec<Culprit> = policies.iter().map(|it| Culprit::Policy(*it)).collect();
            let by = self.list(usize::from(begins), &policies);
            let verb = if directions.len() == 1 { "is" } else { "are" };
            let what = directions.join(" and ");
            let text = match begins {
                true => format!("{what} of {who} {verb} isolated now, by {by}: only what rules allow passes"),
                false => format!("{what} of {who} {verb} no longer isolated, as by {by} before: everything passes"),
            };
            Isolated { begins, text, policies }
        };
        groups.into_iter().map(one).collect()
    }

    pub(super) fn from(&self, row: &DiffRow) -> String {
        self.namer.party(&row.source, row.presence)
    }

    pub(super) fn to(&self, row: &DiffRow) -> String {
        self.namer.party(&row.destination, row.presence)
    }

    pub(super) fn what(&self, row: &DiffRow) -> String {
        let family = row.family.map(|it| format!(", over {it} only")).unwrap_or_default();
        format!("{}{family}", row.traffic)
    }

    /// `shop/web → shop/db: TCP 5432`
    pub(super) fn sentence(&self, row: &DiffRow) -> String {
        format!("{} → {}: {}", self.from(row), self.to(row), self.what(row))
    }

    /// One line for each end that decides.
    pub(super) fn why(&self, row: &DiffRow) -> Vec<String> {
        let both = if row.decides == Decides::Both && row.presence == Presence::Kept { "too " } else { "" };
        let mut lines = Vec::new();
        for direction in [Direction::Egress, Direction::Ingress] {
            let Some(accounts) = row.accounts(direction) else { continue };
            let mut parts = Vec::new();
            for (which, when) in [(1, "now"), (0, "before")] {
                let told = self.account(which, direction, &accounts[which]);
                parts.extend(told.map(|text| format!("{when} {text}")));
            }
            let too = if lines.is_empty() { "" } else { both };
            lines.push(format!("{too}{}: {}", direction.name(), parts.join("; ")));
        }
        lines
    }

    /// `for example shop/web → shop/db TCP 5432: denied before, allowed now`
    pub(super) fn example(&self, row: &DiffRow) -> String {
        format!("for example {}", flows::sentence(self.compared, row))
    }

    fn account(&self, which: usize, direction: Direction, account: &EndReason) -> Option<String> {
        let names = self.list(which, &culprits(direction, account));
        Some(match account.state {
            EndState::Absent => return None,
            EndState::Free => "no policy applies".to_owned(),
            EndState::Open => "no policy isolates".to_owned(),
            EndState::List(_) => format!("denied by {names}"),
            EndState::Service => "as its backends allow".to_owned(),
            EndState::Isolated if account.rules.is_empty() => format!("isolated by {names}, and no rule allows it"),
            EndState::Isolated => format!("allowed by {names}"),
        })
    }

    /// The names of culprits with their lines.
    fn list(&self, which: usize, culprits: &[Culprit]) -> String {
        let mut names = Vec::new();
        for culprit in culprits.iter().take(MOST_CULPRITS) {
            let mut name = culprit.name(self.compared, which);
            if let Some(line) = self.places.line(which, *culprit) {
                _ = write!(name, " ({}:{})", line.file, line.line);
            }
            names.push(name);
        }
        if culprits.len() > MOST_CULPRITS {
            names.push(format!("{} more", culprits.len() - MOST_CULPRITS));
        }
        names.join(", ")
    }
}

/// `1 region`, `2 regions`
pub(super) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
