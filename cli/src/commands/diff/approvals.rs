//! Changes that were accepted before: the file of `--approved` and `--write-approved`.
//!
//! An entry describes a set of flows by selectors, ranges and names, never by texts or numbers of rules. So it holds
//! while other policies, pods and files change. It accepts a change only if it contains all of its flows.

mod change;
mod file;
mod written;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::civil::Date;
use weir_objects::address::Family;

pub(super) use change::{ApprovableChange, ChangeKind};
pub(super) use written::write;

/// One entry of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Approval {
    pub(super) change: ApprovableChange,
    /// Empty only in a file that was just written.
    pub(super) reason: String,
    /// The last day on which the entry counts.
    pub(super) expires: Option<Date>,
    /// The line of its first field, from 1.
    line: usize,
}

/// A file of approvals.
#[derive(Debug)]
pub(super) struct Approvals {
    pub(super) name: String,
    pub(super) entries: Vec<Approval>,
    text: String,
}

impl Approval {
    pub(super) fn is_expired(&self, today: Date) -> bool {
        self.expires.is_some_and(|it| it < today)
    }

    /// Whether it accepts at least all flows of one family.
    fn accepts_some(&self, change: &ApprovableChange) -> bool {
        Family::ALL.iter().any(|family| !change.region.is_empty(*family) && self.accepts(change, *family))
    }

    fn accepts(&self, change: &ApprovableChange, family: Family) -> bool {
        self.change.kind == change.kind && self.change.region.contains(&change.region, family)
    }
}

impl Approvals {
    /// Reads the file for a gate: every entry must have a reason.
    pub(super) fn read(path: &Path) -> Result<Self> {
        Self::load(path, true)
    }

    fn load(path: &Path, needs_reasons: bool) -> Result<Self> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let entries = file::parse(bytes, &name, needs_reasons)?;
        Ok(Self { name, entries, text })
    }

    /// `approved.yaml:7`
    pub(super) fn place(&self, entry: &Approval) -> String {
        format!("{}:{}", self.name, entry.line)
    }

    /// The entries that together accept all flows of a change; `None` if some flows are not accepted.
    pub(super) fn accepting(
        &self,
        change: &ApprovableChange,
        counts: impl Fn(&Approval) -> bool,
    ) -> Option<Vec<&Approval>> {
        let families = Family::ALL.into_iter().filter(|it| !change.region.is_empty(*it));
        let entry = |family| self.entries.iter().position(|it| counts(it) && it.accepts(change, family));
        let found: Option<BTreeSet<usize>> = families.map(entry).collect();
        found.filter(|it| !it.is_empty()).map(|it| it.into_iter().map(|index| &self.entries[index]).collect())
    }

    /// One line for each entry that has no effect.
    pub(super) fn warnings<'c>(
        &self,
        changes: impl Iterator<Item = &'c ApprovableChange> + Clone,
        today: Date,
    ) -> Vec<String> {
        let warning = |entry: &Approval| {
            let problem = match entry.expires {
                Some(date) if date < today => format!("expired on {date} and does not count"),
                _ if changes.clone().any(|it| entry.accepts_some(it)) => return None,
                _ => "matches no change".to_owned(),
            };
            Some(format!("warning: {}: the approval {problem} ({})", self.place(entry), entry.reason))
        };
        self.entries.iter().filter_map(warning).collect()
    }
}
