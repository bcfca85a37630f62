//! The sentences about a comparison, shared by all formats for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use weir_analysis::diff::{
    Decides, DiffRow, EndReason, EndState, IsolationChange, Namer, Presence, RowProduct, VerdictChange,
};
use weir_analysis::world::{PodSet, RowCause};
use weir_model::{Direction, PolicyId};
use weir_objects::k8s::LabelSelector;

use super::Comparison;
use super::cause_lines::{CauseLines, VerdictCause, causes};
use super::flows;
use super::gate::Ruling;
use super::groups;
use crate::args::World;
use crate::read::ReadInput;

/// The largest number of causes that are listed.
const MOST_CAUSES: usize = 3;

/// Everything that sentences are made from.
pub(super) struct DiffWording<'a, 'c> {
    pub(super) compared: &'a Comparison,
    pub(super) namer: &'a Namer<'c>,
    pub(super) places: &'a CauseLines,
}

/// Isolation of a group that begins or ends.
pub(super) struct Isolated<'r> {
    pub(super) begins: bool,
    /// The namespace of the group, if it has only one.
    pub(super) own: Option<String>,
    pub(super) endpoints: &'r [u32],
    pub(super) ruling: &'r Ruling,
    pub(super) text: String,
    /// The policies that isolate the group, on the side where it is isolated.
    pub(super) policies: Vec<VerdictCause>,
}

/// Changes of isolation that are described together: they differ only in their direction.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct IsolationKey<'a> {
    /// First, so that refused changes are first in the order.
    ruling: &'a Ruling,
    begins: bool,
    endpoints: &'a [u32],
    policies: &'a [PolicyId],
}

impl<'a> DiffWording<'a, '_> {
    /// `2 connections newly allowed, 1 no longer allowed, 3 pods lose isolation`
    pub(super) fn headline(&self) -> String {
        let totals = &self.compared.totals;
        let decides = |side: &ReadInput| {
            let has_tier = side.cluster.tiers.iter().any(|policy| !policy.is_audit);
            has_tier || !side.cluster.policies.is_empty() || !side.cluster.lists.is_empty()
        };
        if self.compared.is_same() && !self.compared.sides.iter().any(decides) {
            let has_audit = self.compared.sides.iter().any(|side| side.cluster.has_audit());
            return match has_audit {
                true => "Nothing to compare: all policies are in audit mode (`--assume audit=enforce` compares them)",
                false => "Nothing to compare: neither side has a policy or a list",
            }
            .to_owned();
        }
        if self.compared.is_same() {
            return match self.compared.world {
                World::Open => "Nothing changes: both sides allow exactly the same",
                World::Closed => "Nothing changes between the endpoints of the input",
            }
            .to_owned();
        }
        let mut parts = Vec::new();
        match (totals.added, totals.removed) {
            (0, 0) => parts.push("The same traffic is allowed".to_owned()),
            (0, removed) => parts.push(format!("{} no longer allowed", count(removed, "connection"))),
            (added, 0) => parts.push(format!("{} newly allowed", count(added, "connection"))),
            (added, removed) => {
                parts.push(format!("{} newly allowed, {removed} no longer allowed", count(added, "connection")));
            }
        }
        for (endpoints, [one, many]) in [
            (&totals.opened, ["loses isolation", "lose isolation"]),
            (&totals.closed, ["becomes isolated", "become isolated"]),
        ] {
            let verb = if endpoints.len() == 1 { one } else { many };
            parts.extend((!endpoints.is_empty()).then(|| format!("{} {verb}", self.counted(endpoints))));
        }
        parts.join(", ")
    }

    /// `3 pods`, `1 workload`
    fn counted(&self, endpoints: &BTreeSet<u32>) -> String {
        let is_pod = |it: &u32| self.compared.diff.endpoints[*it as usize].kind == "Pod";
        match endpoints.iter().filter(|it| is_pod(it)).count() {
            pods if pods == endpoints.len() => count(pods, "pod"),
            0 => count(endpoints.len(), "workload"),
            _ => format!("{} pods and workloads", endpoints.len()),
        }
    }

    /// `Compared: 7 endpoints`
    pub(super) fn scope(&self) -> String {
        let kept = self.compared.diff.endpoints.iter().filter(|it| it.ids.iter().all(Option::is_some)).count();
        match self.compared.world {
            World::Open if kept == 0 => "Compared: every possible pod".to_owned(),
            World::Open => format!("Compared: every possible pod, {} of the input among them", count(kept, "endpoint")),
            World::Closed => format!("Compared: {}", count(kept, "endpoint")),
        }
    }

    /// Sentences about endpoints that were added and removed.
    pub(super) fn endpoint_changes(&self) -> Vec<String> {
        let endpoints = &self.compared.diff.endpoints;
        let mut lines = Vec::new();
        for (which, word) in [(1, "New"), (0, "Removed")] {
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
    pub(super) fn isolation(&self) -> Vec<Isolated<'a>> {
        let mut groups: BTreeMap<IsolationKey<'_>, Vec<&str>> = BTreeMap::new();
        for (index, change) in self.compared.diff.isolation.iter().enumerate() {
            let IsolationChange { begins, endpoints, policies, .. } = change;
            let ruling = self.compared.isolation_ruling(index);
            let key = IsolationKey { ruling, begins: *begins, endpoints, policies };
            groups.entry(key).or_default().push(change.direction.name());
        }
        let one =
            |(IsolationKey { ruling, begins, endpoints, policies }, directions): (IsolationKey<'a>, Vec<&str>)| {
                let who = self.namer.endpoints(endpoints, Presence::Kept);
                let policies: Vec<VerdictCause> = policies.iter().map(|it| VerdictCause::Policy(*it)).collect();
                let by = self.list(usize::from(begins), &policies);
                let verb = if directions.len() == 1 { "is" } else { "are" };
                let what = directions.join(" and ");
                let text = match begins {
                    true => {
                        format!("{what} of {who} {verb} now isolated, by {by}: only traffic that rules allow passes")
                    }
                    false => format!("{what} of {who} {verb} no longer isolated (before: by {by}): all traffic passes"),
                };
                let text = [Some(text), ruling.text()].into_iter().flatten().collect::<Vec<_>>().join("; ");
                let own = groups::of_endpoints(&self.compared.diff, endpoints);
                Isolated { begins, own, endpoints, ruling, text, policies }
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

    /// `from shop/web to shop/db: TCP 5432`
    pub(super) fn sentence(&self, row: &DiffRow) -> String {
        format!("from {} to {}: {}", self.from(row), self.to(row), self.what(row))
    }

    /// The ruling on a row, and the reasons for its change.
    pub(super) fn reasons(&self, index: usize) -> Vec<String> {
        let why = self.why(&self.compared.diff.rows[index]);
        self.compared.ruling(index).text().into_iter().chain(why).collect()
    }

    /// One line for each end that decides.
    fn why(&self, row: &DiffRow) -> Vec<String> {
        let both = if row.decides == Decides::Both && row.presence == Presence::Kept { "also " } else { "" };
        let mut lines = Vec::new();
        for direction in [Direction::Egress, Direction::Ingress] {
            let Some(accounts) = row.accounts(direction) else { continue };
            let mut parts = Vec::new();
            for (which, when) in [(1, "now"), (0, "before")] {
                let reason = self.account(which, direction, &accounts[which]);
                parts.extend(reason.map(|text| format!("{when} {text}")));
            }
            let also = if lines.is_empty() { "" } else { both };
            lines.push(format!("{also}{}: {}", direction.name(), parts.join("; ")));
        }
        lines.extend(row.given.map(|direction| match direction {
            Direction::Egress => "only from sources whose egress allows it".to_owned(),
            Direction::Ingress => "only to destinations whose ingress allows it".to_owned(),
        }));
        // Pods with the labels of several policies are possible, but hardly meant: their exceptions are only counted.
        let (meant, others): (Vec<&RowProduct>, Vec<&RowProduct>) =
            row.except.iter().partition(|it| !concerns_other_pods(row, it));
        lines.extend(meant.iter().take(MOST_CAUSES).map(|it| self.exception(row, it)));
        if meant.len() > MOST_CAUSES {
            lines.push(format!("except {} more groups of flows; `-o json` has all", meant.len() - MOST_CAUSES));
        }
        if !others.is_empty() {
            let those =
                if others.len() == 1 { "one group of flows" } else { &format!("{} groups of flows", others.len()) };
            lines.push(format!("except {those} of pods that other policies select too; `-o json` has all"));
        }
        lines
    }

    /// `except from pods with app=web: TCP 80`. An end or traffic that is the row's own is left out.
    fn exception(&self, row: &DiffRow, except: &RowProduct) -> String {
        let mut text = "except".to_owned();
        let ends = [("from", &except.source, &row.source), ("to", &except.destination, &row.destination)];
        for (word, end, own) in ends {
            if end.pods != own.pods || end.ranges != own.ranges {
                _ = write!(text, " {word} {}", self.namer.party(end, row.presence));
            }
        }
        if except.traffic == row.traffic { text } else { format!("{text}: {}", except.traffic) }
    }

    /// Changed rules, isolations and lists that no flow can observe.
    pub(super) fn without_effect(&self) -> Vec<String> {
        let line = |(change, cause): &(VerdictChange, RowCause)| {
            let (which, of) = VerdictCause::of_row(*change, cause);
            let other = match cause.direction {
                Direction::Ingress => "egress of the sources",
                Direction::Egress => "ingress of the destinations",
            };
            let (sign, what) = match change {
                VerdictChange::Added => ("+", "denies all that this newly allows"),
                VerdictChange::Removed => ("-", "denied before all that this no longer allows"),
            };
            format!("{sign} {}: {other} {what}", self.list(which, &[of]))
        };
        self.compared.diff.without_effect.iter().map(line).collect()
    }

    /// `for example shop/web → shop/db TCP 5432: denied before, allowed now`
    pub(super) fn example(&self, row: &DiffRow) -> String {
        format!("for example {}", flows::sentence(self.compared, row))
    }

    fn account(&self, which: usize, direction: Direction, account: &EndReason) -> Option<String> {
        let names = self.list(which, &causes(direction, account));
        Some(match account.state {
            EndState::Absent => return None,
            EndState::Free => "no policy applies".to_owned(),
            EndState::Tier => format!("decided by {names}"),
            EndState::Open if !account.tiers.is_empty() => format!("decided by {names}; no policy isolates"),
            EndState::Open => "no policy isolates".to_owned(),
            EndState::List(_) => format!("denied by {names}"),
            EndState::Service => "decided by the service's backends".to_owned(),
            EndState::Isolated if account.rules.is_empty() => format!("isolated by {names}, and no rule allows it"),
            EndState::Isolated => format!("allowed by {names}"),
        })
    }

    /// The names of causes with their lines.
    fn list(&self, which: usize, causes: &[VerdictCause]) -> String {
        let mut names = Vec::new();
        for cause in causes.iter().take(MOST_CAUSES) {
            let mut name = cause.name(self.compared, which);
            if let Some(line) = self.places.line(which, *cause) {
                _ = write!(name, " ({}:{})", line.file, line.line);
            }
            names.push(name);
        }
        if causes.len() > MOST_CAUSES {
            names.push(format!("{} more", causes.len() - MOST_CAUSES));
        }
        names.join(", ")
    }
}

/// Whether an exception concerns only pods that have, in addition to the labels for which the row's policies select
/// them, labels that the row does not mention.
fn concerns_other_pods(row: &DiffRow, except: &RowProduct) -> bool {
    let (own, other) = match row.decides {
        Decides::Egress => (&row.source.pods, &except.source.pods),
        Decides::Ingress | Decides::Both => (&row.destination.pods, &except.destination.pods),
    };
    let keys = |set: &PodSet| -> BTreeSet<String> { set.pods.requirements().map(|it| it.key).collect() };
    let known: BTreeSet<String> = own.iter().flat_map(keys).collect();
    let is_selected = !own.is_empty() && own.iter().all(|it| it.pods != LabelSelector::default());
    is_selected && !other.is_empty() && other.iter().all(|it| !keys(it).is_subset(&known))
}

/// `1 change`, `2 changes`
pub(super) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
