//! The part of a comparison that a filter shows. Verdict, gate and exit code are those of the whole comparison.

use std::collections::BTreeSet;

use weir_analysis::diff::{Diff, RowEnd, RowTraffic, VerdictChange};
use weir_classes::PortSpec;
use weir_model::labels::matches;
use weir_model::{Cluster, Direction};

use super::Comparison;
use crate::args::FilterDirection;
use crate::views::filter::{FilterPort, SelectedEnds, ViewFilter, selects_namespace};
use crate::views::label_filter::may_both_match;

/// The numbers of a whole comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DiffTotals {
    pub(super) rows: usize,
    pub(super) added: usize,
    pub(super) removed: usize,
    pub(super) isolation: usize,
    /// Endpoints that lose their isolation in a direction, and those that get one.
    pub(super) opened: BTreeSet<u32>,
    pub(super) closed: BTreeSet<u32>,
}

impl DiffTotals {
    pub(super) fn of(diff: &Diff) -> Self {
        let of = |change| diff.rows.iter().filter(|row| row.change == change).count();
        let isolated = |begins| {
            let changes = diff.isolation.iter().filter(|it| it.begins == begins);
            changes.flat_map(|it| it.endpoints.iter().copied()).collect()
        };
        Self {
            rows: diff.rows.len(),
            added: of(VerdictChange::Added),
            removed: of(VerdictChange::Removed),
            isolation: diff.isolation.len(),
            opened: isolated(false),
            closed: isolated(true),
        }
    }
}

/// Removes the changes that the filter does not show. `keeps_refused` if all that a gate refuses is shown nevertheless.
pub(super) fn apply(compared: &mut Comparison, filter: &ViewFilter, keeps_refused: bool) {
    if !filter.is_active() {
        return;
    }
    let shown = ShownEnds { clusters: compared.sides.each_ref().map(|it| &it.cluster), diff: &compared.diff };
    let rows: Vec<bool> = compared
        .diff
        .rows
        .iter()
        .enumerate()
        .map(|(index, row)| {
            (keeps_refused && compared.ruling(index).is_refused())
                || (shown.takes(filter, &row.source, &row.destination) && has_port(filter.port, &row.traffic))
        })
        .collect();
    let isolation: Vec<bool> = compared
        .diff
        .isolation
        .iter()
        .enumerate()
        .map(|(index, change)| {
            let of = RowEnd { endpoints: change.endpoints.clone(), ..RowEnd::default() };
            (keeps_refused && compared.isolation_ruling(index).is_refused())
                || shown.takes_isolation(filter, change.direction, &of)
        })
        .collect();
    retain(&mut compared.diff.rows, &rows);
    retain(&mut compared.diff.isolation, &isolation);
    if let Some(gate) = &mut compared.gate {
        retain(&mut gate.rows, &rows);
        retain(&mut gate.isolation, &isolation);
    }
    // They are about no traffic, so no end and no port can select them.
    compared.diff.without_effect.clear();
    let (now, all) = (&compared.diff, &compared.totals);
    let (count, of) = (now.rows.len() + now.isolation.len(), all.rows + all.isolation);
    compared.filter = Some((filter.sentence(count, of, "changes"), filter.json(count, of)));
}

fn retain<T>(all: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    all.retain(|_| kept.next().copied().unwrap_or(true));
}

fn has_port(port: Option<FilterPort>, traffic: &RowTraffic) -> bool {
    let Some(port) = port else { return true };
    match port {
        FilterPort::Portless => traffic.portless,
        FilterPort::Transport(protocol, number) => {
            let has = |it: &PortSpec| it.protocol == protocol && it.first <= number && number <= it.last;
            traffic.ranges.iter().any(has) || traffic.named.iter().any(|(it, _)| has(it))
        }
    }
}

struct ShownEnds<'d> {
    clusters: [&'d Cluster; 2],
    diff: &'d Diff,
}

impl ShownEnds<'_> {
    fn takes(&self, filter: &ViewFilter, from: &RowEnd, to: &RowEnd) -> bool {
        filter.takes(from, to, &|it, end| self.is(it, end), &|it, end| self.lives_in(it, end))
    }

    /// Isolation is about the traffic of one direction at its endpoints.
    fn takes_isolation(&self, filter: &ViewFilter, direction: Direction, of: &RowEnd) -> bool {
        let other = match direction {
            Direction::Ingress => (&filter.from, Some(FilterDirection::Egress), &filter.to),
            Direction::Egress => (&filter.to, Some(FilterDirection::Ingress), &filter.from),
        };
        let (far, opposite, own) = other;
        let is = |it: &SelectedEnds| self.is(it, of);
        far.is_none()
            && filter.direction != opposite
            && own.as_ref().is_none_or(is)
            && filter.focus.as_ref().is_none_or(is)
            && filter.selector.as_ref().is_none_or(is)
            && (filter.namespaces.is_empty() || filter.namespaces.iter().any(|it| self.lives_in(it, of)))
    }

    fn is(&self, selected: &SelectedEnds, end: &RowEnd) -> bool {
        let is_endpoint = |index: &u32| {
            let ids = self.diff.endpoints[*index as usize].ids;
            ids.iter().zip(&selected.endpoints).any(|(id, of)| id.is_some_and(|id| of.contains(&id)))
        };
        let is_service = |index: &u32| selected.services.contains(&self.diff.services[*index as usize].address);
        end.endpoints.iter().any(is_endpoint)
            || end.services.iter().any(is_service)
            || selected.addresses.iter().any(|it| end.ranges.contains(*it))
            || selected.namespace.as_ref().is_some_and(|it| self.lives_in(it, end))
            || selected.selector.as_ref().is_some_and(|it| end.pods.iter().any(|set| may_both_match(it, &set.pods)))
            || selected.described.as_ref().is_some_and(|pod| {
                end.pods.iter().any(|it| {
                    selects_namespace(self.clusters, &it.namespaces, &pod.namespace) && matches(&it.pods, &pod.labels)
                })
            })
    }

    fn lives_in(&self, namespace: &str, end: &RowEnd) -> bool {
        end.endpoints.iter().any(|it| self.diff.endpoints[*it as usize].namespace == namespace)
            || end.pods.iter().any(|it| selects_namespace(self.clusters, &it.namespaces, namespace))
    }
}
