//! The gate: the changes that `--deny` refuses and no valid approval accepts.

use anyhow::Result;
use jiff::civil::Date;
use weir_analysis::diff::Diff;

use super::Comparison;
use super::approvals::{ApprovableChange, Approval, Approvals, write};
use super::wording::count;
use crate::args::{DeniedChange, DiffArgs};
use crate::page;
use crate::time;

/// The decision of the gate on a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ruling {
    /// Why the change is refused.
    Refused(String),
    /// Entries of the file accept it.
    Approved { reason: String, expires: Option<Date> },
    /// The gate does not concern such a change.
    Open,
}

impl Ruling {
    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// `approved: the new exporter (until 2030-12-31)`
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Self::Refused(why) => Some(format!("refused: {why}")),
            Self::Approved { reason, expires: Some(date) } => Some(format!("approved: {reason} (until {date})")),
            Self::Approved { reason, expires: None } => Some(format!("approved: {reason}")),
            Self::Open => None,
        }
    }
}

/// The rulings about a comparison.
#[derive(Debug)]
pub(super) struct Gate {
    /// In the order of the comparison's rows.
    pub(super) rows: Vec<Ruling>,
    /// In the order of its changes of isolation.
    pub(super) isolation: Vec<Ruling>,
    totals: GateTotals,
}

/// The numbers of changes, which a filter does not alter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GateTotals {
    changes: usize,
    refused: usize,
    approved: usize,
}

impl Gate {
    /// Decides about every change, and sorts the comparison so that refused changes come first.
    pub(super) fn apply(compared: &mut Comparison, arguments: &DiffArgs) -> Result<()> {
        if let Some(path) = &arguments.write_approved {
            return write(path, compared, arguments.deny, arguments.reason.as_deref());
        }
        let approvals = arguments.approved.as_deref().map(Approvals::read).transpose()?;
        if approvals.is_none() && arguments.deny.is_none() {
            return Ok(());
        }
        let judge = ChangeJudge { approvals: approvals.as_ref(), denied: arguments.deny, today: time::today() };
        let isolation = ApprovableChange::of_isolations(compared);
        let rows = ApprovableChange::of_rows(&compared.diff);
        for warning in approvals.iter().flat_map(|it| it.warnings(isolation.iter().chain(&rows), judge.today)) {
            page::print_to_stderr(warning);
        }
        let [isolation, rows] =
            [isolation, rows].map(|changes| changes.iter().map(|it| judge.ruling(it)).collect::<Vec<Ruling>>());
        let all = || rows.iter().chain(&isolation);
        let totals = GateTotals {
            changes: all().count(),
            refused: all().filter(|it| it.is_refused()).count(),
            approved: all().filter(|it| matches!(it, Ruling::Approved { .. })).count(),
        };
        let Diff { rows: changes, isolation: isolation_changes, .. } = &mut compared.diff;
        compared.gate = Some(Self {
            rows: refused_first(changes, rows),
            isolation: refused_first(isolation_changes, isolation),
            totals,
        });
        Ok(())
    }

    pub(super) fn refuses(&self) -> bool {
        self.totals.refused > 0
    }

    /// `The gate refuses 1 of 3 changes; 2 changes are approved`
    pub(super) fn summary(&self) -> String {
        let GateTotals { changes, refused, approved } = self.totals;
        let verb = if approved == 1 { "is" } else { "are" };
        let of = count(changes, "change");
        format!("The gate refuses {refused} of {of}; {approved} {verb} approved")
    }
}

struct ChangeJudge<'a> {
    approvals: Option<&'a Approvals>,
    denied: Option<DeniedChange>,
    today: Date,
}

impl ChangeJudge<'_> {
    fn ruling(&self, change: &ApprovableChange) -> Ruling {
        let accepting = |counts: &dyn Fn(&Approval) -> bool| self.approvals?.accepting(change, counts);
        if let Some(entries) = accepting(&|it| !it.is_expired(self.today)) {
            let mut reasons: Vec<&str> = entries.iter().map(|it| it.reason.as_str()).collect();
            reasons.dedup();
            let expires = entries.iter().filter_map(|it| it.expires).min();
            return Ruling::Approved { reason: reasons.join("; "), expires };
        }
        if self.denied.is_some_and(|denied| change.kind.denied_by() != denied) {
            return Ruling::Open;
        }
        let expired = accepting(&|_| true).and_then(|all| all.into_iter().find(|it| it.is_expired(self.today)));
        Ruling::Refused(match (self.approvals, expired.and_then(|it| Some((it, it.expires?)))) {
            (Some(approvals), Some((entry, date))) => {
                format!("the approval at {} expired on {date}", approvals.place(entry))
            }
            (Some(approvals), None) => format!("no entry of {} approves it", approvals.name),
            (None, _) => "no approvals are given".to_owned(),
        })
    }
}

/// Sorts changes and their rulings alike.
fn refused_first<T>(changes: &mut Vec<T>, rulings: Vec<Ruling>) -> Vec<Ruling> {
    let mut pairs: Vec<(T, Ruling)> = std::mem::take(changes).into_iter().zip(rulings).collect();
    pairs.sort_by_key(|(_, ruling)| !ruling.is_refused());
    let (sorted, rulings) = pairs.into_iter().unzip();
    *changes = sorted;
    rulings
}
